//! RMQ.DEADLETTER dlq_map dlq expire_monitor payload_map processing id payload [topic]
//!
//! A message that is given up: into the dead-letter pair with its queue, out of everything else. A message that was settled
//! already stays settled (NOMSG). The same id again replaces its dead letter. The id also leaves the processing list of its
//! own queue, where that is not the one given. An empty `processing` means none; `topic` is accepted for the script's sake
//! and unused.

use crate::args::writable_id;
use crate::dead::DeadLetters;
use crate::error::Error;
use crate::message::{forget_fields, Working};
use crate::redis::command::{key, key_or_none, optional, required, Command, KeyUse, Kind, Spec};
use crate::redis::{Invocation, OwnedStr};
use crate::stats::{self, Counter};

pub struct DeadLetter;

impl Command for DeadLetter {
    const SPEC: Spec = Spec {
        name: "RMQ.DEADLETTER",
        summary: "Moves a message that is given up to the dead letters.",
        complexity: "O(1) for an id near either end of processing, else O(N) for the length of processing; plus O(D) \
                     for the length of dlq where the id is a dead letter already",
        flags: "write deny-oom getkeys-api",
        categories: "write slow",
        args: &[
            key("dlq_map", KeyUse::Update),
            key("dlq", KeyUse::Insert),
            key("expire_monitor", KeyUse::Remove),
            key("payload_map", KeyUse::Take),
            key_or_none("processing", KeyUse::Remove),
            required("id", Kind::Text),
            required("payload", Kind::Text),
            optional("topic", Kind::Text),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let ([dlq_map, dlq, expire_monitor, payload_map, processing], args) = call.keys_and_args()?;
        let ([id, payload] | [id, payload, _]) = args else {
            return Err(Error::WrongArity);
        };
        writable_id(id.bytes())?;
        let mut dead = DeadLetters::open(call, dlq_map, dlq)?;
        let mut working = Working::open(call, payload_map, processing, expire_monitor)?;
        let mut message = working.look_up(call, payload_map, *id)?;

        dead.bury(*id, *payload, message.queue.as_ref().map(OwnedStr::as_ref), None);
        working.take_out_of_processing(&mut message);
        working.expire_monitor.remove(*id);
        forget_fields(&mut working.payload_map, std::slice::from_ref(id));

        stats::add(Counter::DeadLettered, 1);
        call.reply_ok();
        Ok(())
    }
}
