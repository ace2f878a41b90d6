//! RMQ.NACK namespace id receipt [DELAY ms | DEAD] [ERROR text] [PAYLOAD payload]
//!
//! Failed: the message becomes due again after the policy's backoff, or after DELAY; if its attempts have reached the
//! policy's limit, or with DEAD, it becomes a dead letter. Replies with RETRY or DEAD, or nil if the receipt is not current.

use crate::args::{self, Opt};
use crate::clock::Now;
use crate::dead::Death;
use crate::delivery::{self, check_pairs};
use crate::error::Error;
use crate::lists::Lists;
use crate::namespace::Namespace;
use crate::policy::Policy;
use crate::receipt::Attempts;
use crate::record::cut;
use crate::redis::command::{optional, required, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::{Invocation, OwnedStr};
use crate::settings;
use crate::stats::{self, Counter};
use crate::traffic::Event;

pub struct Nack;

impl Command for Nack {
    const SPEC: Spec = Spec {
        name: "RMQ.NACK",
        summary: "Gives a failed message back, to be retried later or as a dead letter, if the receipt is current.",
        complexity: "O(log(M)) for the size of delays, plus O(1) for an id near either end of processing, else O(N) \
                     for the length of processing",
        // Not deny-oom: without a new payload hardly anything grows, and a worker must be able to give back what it holds.
        flags: "write",
        categories: "write slow",
        args: &[
            NAMESPACE,
            required("id", Kind::Text),
            required("receipt", Kind::Text),
            optional(
                "fate",
                Kind::OneOf(&[
                    required("delay", Kind::Option("DELAY", ValueType::Integer)),
                    required("dead", Kind::Word("DEAD")),
                ]),
            ),
            optional("error", Kind::Option("ERROR", ValueType::Text)),
            optional("payload", Kind::Option("PAYLOAD", ValueType::Text)),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, id, receipt, options @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let pair = [*id, *receipt];
        check_pairs(&pair)?;
        let [delay, dead, error, payload] = args::options(
            options,
            [Opt::Value("DELAY"), Opt::Word("DEAD"), Opt::Value("ERROR"), Opt::Value("PAYLOAD")],
        )?;
        let delay_ms = delay.map(|ms| args::delay_ms("DELAY", ms.bytes())).transpose()?;
        if delay.is_some() && dead.is_some() {
            return Err(Error::NotTogether("DELAY", "DEAD"));
        }
        let over_limit = call.over_memory_limit();
        if payload.is_some() && over_limit {
            return Err(Error::OutOfMemory);
        }
        let ns = Namespace::of_caller(call, *namespace)?;
        let mut payloads = ns.payloads()?;
        let mut expires = ns.expires()?;
        let mut delays = ns.delays()?;
        let queues = ns.queues()?;
        let mut letters = ns.dead_letters()?;
        ns.check_slot(!payloads.exists() || !expires.exists() || !delays.exists() || !queues.exists())?;
        let mut deliveries = delivery::current(&ns, &pair, &payloads, &expires);
        let mut processing = Lists::processing_of(&ns);
        delivery::open_processing(&ns, &mut deliveries, &mut processing)?;
        let [delivery] = &deliveries[..] else {
            call.reply_nil();
            return Ok(());
        };
        let stored = match payload {
            Some(payload) => Some(OwnedStr::retain(payload)),
            None => payloads.get(*id),
        };
        let short = delivery.queue.as_ref().and_then(|queue| ns.names.short(queue.bytes()));
        let policy = Policy::of(&queues, OwnedStr::new(short.unwrap_or_default()).as_ref(), ns.names.default.as_ref());
        let before = Attempts::parse(delivery.attempts.bytes());
        let new_error = error.filter(|_| !over_limit).map(|text| cut(text.bytes(), settings::ERROR_LIMIT.as_usize()));
        let error = new_error.or(before.error);
        let dies = dead.is_some() || policy.is_last(before.count);
        if !dies && delivery.queue.is_none() {
            return Err(Error::NoQueue(id.bytes().to_vec()));
        }

        let now = Now::read();
        delivery::take_out(&deliveries, &mut processing, &mut expires);
        if dies {
            let reason = if dead.is_some() { "rejected" } else { "attempts" };
            let death = Death { reason, error: error.unwrap_or_default(), attempts: before.count, at: now.ms() };
            let payload = stored.unwrap_or_else(|| OwnedStr::new(b""));
            let queue = delivery.queue.as_ref().map(OwnedStr::as_ref);
            letters.bury(*id, payload.as_ref(), queue, Some(&death.to_json()));
            delivery::forget_fields(&deliveries, &mut payloads);
            stats::add(Counter::Died, 1);
            delivery::count(call, &deliveries, Event::Died);
            call.reply_word(c"DEAD");
        } else {
            let due = now.ms() + delay_ms.unwrap_or_else(|| policy.backoff_ms(before.count));
            if let Some(payload) = payload {
                payloads.set(*id, payload);
            }
            let attempts = Attempts { micros: due * 1000, error, ..before };
            payloads.set(delivery.attempts_field.as_ref(), OwnedStr::new(attempts.text().bytes()).as_ref());
            delays.add(*id, due as f64);
            ns.due_at(due);
            delivery::count(call, &deliveries, Event::Retried);
            call.reply_word(c"RETRY");
        }
        stats::add(Counter::Nacked, 1);
        Ok(())
    }
}
