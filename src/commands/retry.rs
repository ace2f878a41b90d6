//! RMQ.RETRY payload_map delay_tasks expire_monitor processing id payload delay [topic]
//!
//! Failure, to be tried again: the payload is replaced, and the message becomes due after `delay` seconds. A message
//! that was settled already stays settled (NOMSG). An empty `processing` means none; `topic` is taken for the sake of
//! the script and not used.

use crate::args::{distinct_keys, due_after_seconds, writable_id};
use crate::clock::Now;
use crate::error::Error;
use crate::message::{Postponed, Working};
use crate::redis::command::{key, optional, required, Command, KeyUse, Kind, Spec};
use crate::redis::{Call, ZsetKey};
use crate::stats::{self, Counter};

pub struct Retry;

impl Command for Retry {
    const SPEC: Spec = Spec {
        name: "RMQ.RETRY",
        summary: "Puts a failed message into delay_tasks, to be tried again later.",
        complexity: "O(log(M)) for the size of delay_tasks, plus O(1) for an id near either end of processing, else \
                     O(N) for the length of processing",
        flags: "write deny-oom",
        categories: "write slow",
        args: &[
            key("payload_map", KeyUse::Update),
            key("delay_tasks", KeyUse::Update),
            key("expire_monitor", KeyUse::Remove),
            key("processing", KeyUse::Remove),
            required("id", Kind::Text),
            required("payload", Kind::Text),
            required("delay", Kind::Double),
            optional("topic", Kind::Text),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [payload_map, delay_tasks, expire_monitor, processing, id, payload, delay, topic @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        if topic.len() > 1 {
            return Err(Error::WrongArity);
        }
        writable_id(id.bytes())?;
        let due = due_after_seconds("delay", delay.bytes(), Now::read())?;
        distinct_keys(&[
            ("payload_map", payload_map.bytes()),
            ("delay_tasks", delay_tasks.bytes()),
            ("expire_monitor", expire_monitor.bytes()),
            ("processing", processing.bytes()),
        ])?;
        let mut delay_tasks = ZsetKey::open(call, *delay_tasks, "delay_tasks")?;
        let mut working = Working::open(call, *payload_map, *processing, *expire_monitor)?;
        let place = working.look_up(call, *id)?;

        working.postpone(
            call,
            &mut delay_tasks,
            &Postponed {
                id: *id,
                payload: Some(*payload),
                place,
                due,
            },
        );

        stats::add(Counter::Retried, 1);
        call.reply_ok();
        Ok(())
    }
}
