//! RMQ.SCHEDULE payload_map delay_tasks id payload queue delay_ms [AT]
//!
//! A new message that becomes due later: after `delay_ms`, or with AT at that Unix time. DELAYTICK then moves it to
//! `<queue>:pending`, so the caller needs the right to push there, and in a cluster the slot must be the same.

use crate::args::{self, distinct_keys, writable_id, Opt};
use crate::clock::Now;
use crate::derived::Guard;
use crate::error::Error;
use crate::message::{NewMessages, PENDING};
use crate::redis::acl::Access;
use crate::redis::command::{key, optional, required, Command, KeyUse, Kind, Spec};
use crate::redis::{Call, HashKey, OwnedStr, ZsetKey};
use crate::stats::{self, Counter};

pub struct Schedule;

impl Command for Schedule {
    const SPEC: Spec = Spec {
        name: "RMQ.SCHEDULE",
        summary: "Stores a new message that becomes due later.",
        complexity: "O(log(M)) for the size of delay_tasks",
        flags: "write deny-oom fast",
        categories: "write fast",
        args: &[
            key("payload_map", KeyUse::Update),
            key("delay_tasks", KeyUse::Update),
            required("id", Kind::Text),
            required("payload", Kind::Text),
            required("queue", Kind::Text),
            required("delay_ms", Kind::Integer),
            optional("at", Kind::Word("AT")),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [payload_map, delay_tasks, id, payload, queue, delay_ms, options @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let now = Now::read();
        let [at] = args::options(options, [Opt::Word("AT")])?;
        let due = match at {
            Some(_) => args::unix_ms("delay_ms", delay_ms.bytes())?,
            None => now.ms() + args::delay_ms("delay_ms", delay_ms.bytes())?,
        };
        writable_id(id.bytes())?;
        distinct_keys(&[
            ("payload_map", payload_map.bytes()),
            ("delay_tasks", delay_tasks.bytes()),
        ])?;
        let pending = OwnedStr::concat(queue.bytes(), PENDING);
        Guard::new(call, *delay_tasks).check(Access::Insert, pending.as_ref())?;
        let mut payload_map = HashKey::open(call, *payload_map, "payload_map")?;
        let mut delay_tasks = ZsetKey::open(call, *delay_tasks, "delay_tasks")?;

        let message = std::iter::once((*id, *payload));
        let new = NewMessages::store(call, &mut payload_map, message, *queue, now);
        if let [id] = new.stored()[..] {
            delay_tasks.add(id, due as f64);
            call.replicate_zadd(delay_tasks.name(), due as f64, id);
            stats::add(Counter::Scheduled, 1);
        }

        new.reply(call);
        Ok(())
    }
}
