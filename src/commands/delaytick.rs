//! RMQ.DELAYTICK delay_tasks payload_map batch
//!
//! Moves messages that are due, lowest due time first, to the left of their `<queue>:pending`. The reply tells each as
//! [id, queue]. An id without `<id>:queue` stands for nothing and is removed.

use crate::args;
use crate::clock::Now;
use crate::derived::DerivedLists;
use crate::due::{self, Visit};
use crate::error::Error;
use crate::message::{queue_field, PENDING};
use crate::redis::acl::Access;
use crate::redis::command::{key, required, Command, KeyUse, Kind, Spec};
use crate::redis::{Call, HashKey, OwnedStr, StrRef, ZsetKey};
use crate::stats::{self, Counter};

pub struct DelayTick;

impl Command for DelayTick {
    const SPEC: Spec = Spec {
        name: "RMQ.DELAYTICK",
        summary: "Moves delayed messages that are due to the pending lists of their queues.",
        complexity: "O(B*log(M)) for B messages moved and M in delay_tasks",
        flags: "write",
        categories: "write slow",
        args: &[
            key("delay_tasks", KeyUse::Take),
            key("payload_map", KeyUse::Read),
            required("batch", Kind::Integer),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [delay_tasks, payload_map, batch] = *call.args() else {
            return Err(Error::WrongArity);
        };
        let batch = args::batch(batch.bytes())?;
        args::distinct_keys(&[
            ("delay_tasks", delay_tasks.bytes()),
            ("payload_map", payload_map.bytes()),
        ])?;
        let mut pending = DerivedLists::new(call, delay_tasks, PENDING, Access::Insert);
        let mut delay_tasks = ZsetKey::open(call, delay_tasks, "delay_tasks")?;
        let payload_map = HashKey::open(call, payload_map, "payload_map")?;

        let mut ready: Vec<(OwnedStr, usize)> = Vec::new();
        let mut orphans: Vec<OwnedStr> = Vec::new();
        let skipped = due::walk(call, &delay_tasks, Now::read().ms() as f64, batch, |id| {
            match payload_map.get(queue_field(id.as_ref()).as_ref()) {
                None => orphans.push(id),
                Some(queue) => match pending.find(queue)? {
                    queue if pending.is_list(queue) => ready.push((id, queue)),
                    _ => return Ok(Visit::Passed),
                },
            }
            Ok(Visit::Taken)
        })?;

        pending.push_left(ready.iter().map(|(id, queue)| (id, *queue)));
        let leaving: Vec<StrRef> = ready
            .iter()
            .map(|(id, _)| id)
            .chain(&orphans)
            .map(OwnedStr::as_ref)
            .collect();
        for id in &leaving {
            delay_tasks.remove(*id);
        }
        if !leaving.is_empty() {
            call.replicate(c"ZREM", delay_tasks.name(), &leaving);
        }

        stats::add(Counter::Moved, ready.len());
        stats::add(Counter::Stale, orphans.len());
        pending.report_skipped(skipped);
        call.reply_array(ready.len());
        for (id, queue) in &ready {
            call.reply_array(2);
            call.reply_str(id.as_ref());
            call.reply_str(pending.name(*queue));
        }
        Ok(())
    }
}
