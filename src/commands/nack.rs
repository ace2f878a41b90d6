//! RMQ.NACK payload_map delay_tasks expire_monitor processing id lease delay_ms [PAYLOAD payload]
//!
//! RETRY if the lease is current; the reply is 1 or 0. The payload stays as it is unless a new one is given.

use crate::args::{self, distinct_keys, writable_id, Opt};
use crate::clock::Now;
use crate::error::Error;
use crate::message::{Postponed, Working};
use crate::redis::command::{key, optional, required, Command, KeyUse, Kind, Plain, Spec};
use crate::redis::{Call, ZsetKey};
use crate::stats::{self, Counter};

pub struct Nack;

impl Command for Nack {
    const SPEC: Spec = Spec {
        name: "RMQ.NACK",
        summary: "Puts a failed message into delay_tasks, if the lease is current.",
        complexity: "O(log(M)) for the size of delay_tasks, plus O(1) for an id near either end of processing, else \
                     O(N) for the length of processing",
        // Not deny-oom: without a new payload nothing grows, and a consumer must be able to give back what it holds.
        flags: "write",
        categories: "write slow",
        args: &[
            key("payload_map", KeyUse::Update),
            key("delay_tasks", KeyUse::Update),
            key("expire_monitor", KeyUse::Take),
            key("processing", KeyUse::Remove),
            required("id", Kind::Text),
            required("lease", Kind::Text),
            required("delay_ms", Kind::Integer),
            optional("payload", Kind::Option("PAYLOAD", Plain::Text)),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [payload_map, delay_tasks, expire_monitor, processing, id, lease, delay_ms, options @ ..] = call.args()
        else {
            return Err(Error::WrongArity);
        };
        writable_id(id.bytes())?;
        let lease = args::lease(lease.bytes())?;
        let due = Now::read().ms() + args::delay_ms("delay_ms", delay_ms.bytes())?;
        let [payload] = args::options(options, [Opt::Value("PAYLOAD")])?;
        if payload.is_some() && call.over_memory_limit() {
            return Err(Error::OutOfMemory);
        }
        distinct_keys(&[
            ("payload_map", payload_map.bytes()),
            ("delay_tasks", delay_tasks.bytes()),
            ("expire_monitor", expire_monitor.bytes()),
            ("processing", processing.bytes()),
        ])?;
        let mut delay_tasks = ZsetKey::open(call, *delay_tasks, "delay_tasks")?;
        let mut working = Working::open(call, *payload_map, *processing, *expire_monitor)?;
        if !working.holds(*id, lease) {
            stats::add(Counter::Fenced, 1);
            call.reply_integer(0);
            return Ok(());
        }
        let place = working.look_up(call, *id)?;

        working.postpone(
            call,
            &mut delay_tasks,
            &Postponed {
                id: *id,
                payload,
                place,
                due: due as f64,
            },
        );

        stats::add(Counter::Nacked, 1);
        call.reply_integer(1);
        Ok(())
    }
}
