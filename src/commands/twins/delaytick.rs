//! RMQ.DELAYTICK delay_tasks payload_map batch
//!
//! Moves messages that are due, lowest due time first, to the left of their `<queue>:pending`. Replies with one
//! [id, queue] per message. An id without `<id>:queue` is stale and removed.

use crate::args;
use crate::clock::due::Due;
use crate::clock::Now;
use crate::error::Error;
use crate::lists::Lists;
use crate::redis::command::{key, required, Command, KeyUse, Kind, Spec};
use crate::redis::{HashKey, Invocation, ZsetKey};

pub struct DelayTick;

impl Command for DelayTick {
    const SPEC: Spec = Spec {
        name: "RMQ.DELAYTICK",
        summary: "Moves delayed messages that are due to the pending lists of their queues.",
        complexity: "O(B*log(M)) for B messages moved and M in delay_tasks",
        flags: "write getkeys-api",
        categories: "write slow",
        args: &[key("delay_tasks", KeyUse::Take), key("payload_map", KeyUse::Read), required("batch", Kind::Integer)],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let ([delay_tasks, payload_map], args) = call.keys_and_args()?;
        let [batch] = args else {
            return Err(Error::WrongArity);
        };
        let batch = args::batch(batch.bytes())?;
        let mut pending = Lists::pending(call, delay_tasks.name);
        let mut delay_tasks = ZsetKey::open(call, delay_tasks)?;
        let payload_map = HashKey::open(call, payload_map)?;
        let now = Now::read();
        let due = Due::find(&delay_tasks, &payload_map, &mut pending, now.ms() as f64, batch)?;

        due.move_to(&mut pending, &mut delay_tasks, now);

        call.reply_array(due.ready.len());
        for (id, queue) in &due.ready {
            call.reply_array(2);
            call.reply_str(id.as_ref());
            call.reply_str(pending.name(*queue));
        }
        Ok(())
    }
}
