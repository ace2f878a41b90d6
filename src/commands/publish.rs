//! RMQ.PUBLISH payload_map pending [URGENT] id payload [id payload …]
//!
//! New messages: payload and queue are stored, the id is pushed to the left of pending, or with URGENT to the right,
//! where it is taken next. For the id `*` the server makes one. An id that exists already is left alone and told as
//! nil, so a producer may publish again after a lost reply.

use crate::args::{distinct_keys, writable_id};
use crate::clock::Now;
use crate::error::Error;
use crate::message::{NewMessages, PENDING};
use crate::redis::command::{key, optional, required, several, Command, KeyUse, Kind, Spec};
use crate::redis::key::End;
use crate::redis::{Call, HashKey, ListKey, OwnedStr};
use crate::stats::{self, Counter};

pub struct Publish;

impl Command for Publish {
    const SPEC: Spec = Spec {
        name: "RMQ.PUBLISH",
        summary: "Stores new messages and puts them into the pending list of their queue.",
        complexity: "O(N) for N messages",
        flags: "write deny-oom fast",
        categories: "write fast",
        args: &[
            key("payload_map", KeyUse::Update),
            key("pending", KeyUse::Insert),
            optional("urgent", Kind::Word("URGENT")),
            several(
                "message",
                Kind::Group(&[required("id", Kind::Text), required("payload", Kind::Text)]),
            ),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [payload_map, pending, words @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        // Messages come in pairs, so an odd word can only be the option.
        let (end, messages) = match words {
            [option, messages @ ..] if words.len() % 2 == 1 => {
                if !option.bytes().eq_ignore_ascii_case(b"URGENT") {
                    return Err(Error::WrongArity);
                }
                (End::Right, messages)
            }
            messages => (End::Left, messages),
        };
        if messages.is_empty() {
            return Err(Error::WrongArity);
        }
        for message in messages.chunks_exact(2) {
            writable_id(message[0].bytes())?;
        }
        let queue = pending.bytes().strip_suffix(PENDING).ok_or(Error::Invalid {
            argument: "pending",
            expected: "a key that ends in ':pending'",
        })?;
        distinct_keys(&[("payload_map", payload_map.bytes()), ("pending", pending.bytes())])?;
        let mut payload_map = HashKey::open(call, *payload_map, "payload_map")?;
        let mut pending = ListKey::open(call, *pending, "pending")?;

        let queue = OwnedStr::new(queue);
        let new = NewMessages::store(
            call,
            &mut payload_map,
            messages.chunks_exact(2).map(|message| (message[0], message[1])),
            queue.as_ref(),
            Now::read(),
        );
        let ids = new.stored();
        for id in &ids {
            pending.push(end, *id);
        }
        if !ids.is_empty() {
            let push = if end == End::Left { c"LPUSH" } else { c"RPUSH" };
            call.replicate(push, pending.name(), &ids);
        }

        stats::add(Counter::Published, ids.len());
        new.reply(call);
        Ok(())
    }
}
