//! RMQ.RETRY payload_map delay_tasks expire_monitor processing id payload delay [topic]
//!
//! Failure, to be tried again: the payload is replaced, and the message becomes due after `delay` seconds. A message
//! that was settled already stays settled (NOMSG); one whose queue is unknown is refused, because the next tick would
//! drop it. The id also leaves the processing list of its own queue, where that is not the one given. An empty
//! `processing` means none; `topic` is accepted for the script's sake and unused.

use crate::args::{due_after_seconds, writable_id};
use crate::clock::Now;
use crate::error::Error;
use crate::message::Working;
use crate::redis::command::{key, key_or_none, optional, required, Command, KeyUse, Kind, Spec};
use crate::redis::{Invocation, ZsetKey};
use crate::stats::{self, Counter};

pub struct Retry;

impl Command for Retry {
    const SPEC: Spec = Spec {
        name: "RMQ.RETRY",
        summary: "Puts a failed message into delay_tasks, to be tried again later.",
        complexity: "O(log(M)) for the size of delay_tasks, plus O(1) for an id near either end of processing, else \
                     O(N) for the length of processing",
        flags: "write deny-oom getkeys-api",
        categories: "write slow",
        args: &[
            key("payload_map", KeyUse::Update),
            key("delay_tasks", KeyUse::Update),
            key("expire_monitor", KeyUse::Remove),
            key_or_none("processing", KeyUse::Remove),
            required("id", Kind::Text),
            required("payload", Kind::Text),
            required("delay", Kind::Double),
            optional("topic", Kind::Text),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let ([payload_map, delay_tasks, expire_monitor, processing], args) = call.keys_and_args()?;
        let ([id, payload, delay] | [id, payload, delay, _]) = *args else {
            return Err(Error::WrongArity);
        };
        writable_id(id.bytes())?;
        let due = due_after_seconds("delay", delay.bytes(), Now::read())?;
        let mut delay_tasks = ZsetKey::open(call, delay_tasks)?;
        let mut working = Working::open(call, payload_map, processing, expire_monitor)?;
        let mut message = working.look_up(call, payload_map, id)?;
        if message.queue.is_none() {
            return Err(Error::UnknownQueue);
        }

        working.postpone(&mut message, payload, &mut delay_tasks, due);

        stats::add(Counter::Retried, 1);
        call.reply_ok();
        Ok(())
    }
}
