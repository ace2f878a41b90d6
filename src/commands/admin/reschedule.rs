//! RMQ.RESCHEDULE namespace delay_ms IDS id [id …]
//!
//! Delayed and pending messages become due after delay_ms; with 0 they can be taken now. Replies with an array: 1, or 0 for an
//! id that is in processing, dead, lost or unknown.

use crate::args;
use crate::clock::Now;
use crate::error::Error;
use crate::message::{attempts_field, queue_field};
use crate::namespace::Namespace;
use crate::receipt::Attempts;
use crate::redis::command::{required, several, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::{Invocation, OwnedStr};
use crate::stats::{self, Counter};
use crate::whereabouts::{distinct, take_out, State, Traces, Whereabouts};

pub struct Reschedule;

impl Command for Reschedule {
    const SPEC: Spec = Spec {
        name: "RMQ.RESCHEDULE",
        summary: "Makes delayed or pending messages due later, or now.",
        complexity: "O(N+log(M)) for the lengths N of the lists of the messages' queues and the size M of delays",
        flags: "write",
        categories: "write slow",
        args: &[NAMESPACE, required("delay_ms", Kind::Integer), several("id", Kind::Option("IDS", ValueType::Text))],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, delay_ms, words @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let delay_ms = args::delay_ms("delay_ms", delay_ms.bytes())?;
        let (options, ids) = args::before_ids(words)?;
        let [] = args::options(options, [])?;
        let now = Now::read();
        let ns = Namespace::of_caller(call, *namespace)?;
        let mut places = Whereabouts::open(&ns)?;
        let (ids, of_each) = distinct(ids);
        let found = places.look_up(&ns, &ids, now)?;

        // One without a queue of this namespace would never become due.
        let can_wait = |traces: &Traces| {
            let is_of_namespace = traces.queue.as_ref().is_some_and(|queue| ns.names.short(queue.bytes()).is_some());
            is_of_namespace && matches!(traces.state, Some(State::Pending | State::Delayed))
        };
        // A pending message can be taken now already.
        let moves = |traces: &&Traces| can_wait(traces) && (delay_ms > 0 || traces.state == Some(State::Delayed));
        let moving: Vec<&Traces> = found.iter().filter(moves).collect();
        let due = now.ms() + delay_ms;
        take_out(&mut places.keys.pending, moving.iter().flat_map(|traces| traces.in_pending()));
        for traces in &moving {
            let payloads = &mut places.keys.payloads;
            let (queue_field, attempts_field) = (queue_field(traces.id), attempts_field(traces.id));
            let [queue, attempts] = payloads.get_two(queue_field.as_ref(), attempts_field.as_ref());
            if let (None, Some(queue)) = (queue, &traces.queue) {
                payloads.set(queue_field.as_ref(), queue.as_ref());
            }
            let before = Attempts::of(attempts.as_ref());
            let attempts = Attempts { micros: due * 1000, ..before };
            payloads.set(attempts_field.as_ref(), OwnedStr::new(attempts.text().bytes()).as_ref());
            places.keys.delays.add(traces.id, due as f64);
        }
        if !moving.is_empty() {
            ns.due_at(due);
        }

        stats::add(Counter::Rescheduled, moving.len());
        call.reply_array(of_each.len());
        of_each.iter().for_each(|number| call.reply_integer(i64::from(can_wait(&found[*number]))));
        Ok(())
    }
}
