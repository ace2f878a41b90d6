//! RMQ.STATS namespace [queue …]
//!
//! How many messages are in each state, what is late, how many clients wait, and what went through. Replies with a map of
//! the namespace's figures and `queues`, a map from each queue (all known ones, or those named) to the map of its own. The
//! time does not depend on the number of messages.

use crate::clock::{waiting, Now};
use crate::error::Error;
use crate::message::attempts_field;
use crate::namespace::Namespace;
use crate::policy::Policy;
use crate::receipt::{since_ms, Attempts};
use crate::redis::command::{any, Command, Kind, Spec, NAMESPACE};
use crate::redis::reply::Value;
use crate::redis::{HashKey, Invocation, ListKey, OwnedStr, StrRef};
use crate::traffic::{self, EVENTS};
use crate::whereabouts::distinct;

pub struct Stats;

impl Command for Stats {
    const SPEC: Spec = Spec {
        name: "RMQ.STATS",
        summary: "Shows how much is waiting, in work, delayed, late and dead, and what went through each queue.",
        complexity: "O(Q+log(N)) for Q queues and N delayed or leased messages",
        flags: "readonly",
        categories: "read slow",
        args: &[NAMESPACE, any("queue", Kind::Text)],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, named @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        call.notice_reset_of_statistics();
        let now = Now::read();
        let ns = Namespace::of_caller(call, *namespace)?;
        let (named, _) = distinct(named);
        let named: Vec<OwnedStr> =
            named.iter().map(|queue| ns.queue(*queue).map(|_| OwnedStr::retain(*queue))).collect::<Result<_, _>>()?;
        let (delays, expires, dead) = (ns.delays()?, ns.expires()?, ns.dead_letters()?);
        let (queues, payloads) = (ns.queues()?, ns.payloads()?);
        let all_exist = delays.exists() && expires.exists() && queues.exists() && payloads.exists();
        ns.check_slot(!all_exist)?;
        let figures =
            [("delayed", delays.len() as i64), ("leased", expires.len() as i64), ("dead", dead.list.len() as i64)];
        let next_due = delays.first().map(|(_, due)| (due as i64).saturating_sub(now.ms()).max(0));
        drop((delays, expires, dead));
        let late = |zset: &OwnedStr| call.zset_count(zset.as_ref(), now.exact_ms()).unwrap_or(0) as i64;
        let (due, overdue) = (late(&ns.names.delays), late(&ns.names.expires));
        let is_named = !named.is_empty();
        let known = if is_named { named } else { Namespace::known_queues(&queues) };
        let waiting = waiting::queues_waited_for(&ns);
        let mut lines = Vec::with_capacity(known.len());
        for short in &known {
            let waiting = waiting.get(short.bytes()).copied().unwrap_or(0);
            lines.push(Line::of(&ns, &queues, &payloads, short.as_ref(), is_named, waiting, now)?);
        }

        call.reply_map(7);
        let [delayed, leased, dead] = figures.map(|(name, value)| (name, Value::Integer(value)));
        call.reply_fields(&[
            delayed,
            ("due", Value::Integer(due)),
            ("next_due_in_ms", next_due.map_or(Value::Nil, Value::Integer)),
            leased,
            ("overdue", Value::Integer(overdue)),
            dead,
        ]);
        call.reply_bytes(b"queues");
        call.reply_map(known.len());
        for (short, line) in known.iter().zip(&lines) {
            call.reply_str(short.as_ref());
            line.reply(call);
        }
        Ok(())
    }
}

/// The figures of one queue.
struct Line {
    /// None for a list of another type, which must not hide the other queues.
    pending: Option<usize>,
    processing: Option<usize>,
    policy: Policy,
    waiting: usize,
    next_age_ms: Option<i64>,
    idle_ms: Option<i64>,
    counts: [u64; EVENTS.len()],
}

impl Line {
    fn of(
        ns: &Namespace,
        queues: &HashKey,
        payloads: &HashKey,
        short: StrRef,
        is_named: bool,
        waiting: usize,
        now: Now,
    ) -> Result<Self, Error> {
        let names = ns.names.of_queue(short.bytes());
        let queue = names.queue.bytes();
        ns.check_pending(queue)?;
        ns.check_processing(queue)?;
        let open = |name| match ListKey::open_named(ns.call, name) {
            Err(Error::KeyWrongType { .. }) if !is_named => Ok(None),
            list => list.map(Some),
        };
        let (mut pending, processing) = (open(&names.pending)?, open(&names.processing)?);
        let next = pending.as_mut().and_then(|list| list.at(list.len().checked_sub(1)?));
        let next_age_ms = next.and_then(|id| {
            let field = payloads.get(attempts_field(id.as_ref()).as_ref());
            let attempts = Attempts::of(field.as_ref());
            Some((now.ms() - since_ms(&attempts, id.bytes())?).max(0))
        });
        let traffic = traffic::of(ns.call, queue);
        // A waiting client counts as asking now.
        let asked_at = if waiting > 0 { Some(now.ms()) } else { traffic.asked_at };
        Ok(Line {
            pending: pending.map(|list| list.len()),
            processing: processing.map(|list| list.len()),
            policy: Policy::of(queues, short, ns.names.default.as_ref()),
            waiting,
            next_age_ms,
            idle_ms: asked_at.map(|at| (now.ms() - at).max(0)),
            counts: traffic.counts,
        })
    }

    fn reply(&self, call: &Invocation) {
        let optional = |number: Option<i64>| number.map_or(Value::Nil, Value::Integer);
        let length = |len: Option<usize>| optional(len.map(|len| len as i64));
        let policy = self.policy.fields();
        call.reply_map(5 + policy.len() + EVENTS.len());
        call.reply_fields(&[
            ("pending", length(self.pending)),
            ("processing", length(self.processing)),
            ("waiting_clients", Value::Integer(self.waiting as i64)),
            ("next_age_ms", optional(self.next_age_ms)),
            ("idle_ms", optional(self.idle_ms)),
        ]);
        call.reply_fields(&policy);
        for (name, count) in EVENTS.iter().zip(self.counts) {
            call.reply_fields(&[(name, Value::Integer(count as i64))]);
        }
    }
}
