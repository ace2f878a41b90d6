//! RMQ.RELEASE namespace id receipt [id receipt …]
//!
//! Given back as if not delivered, by a worker that shuts down: the attempt is not counted, and the messages are taken
//! next, the first named first. Replies with how many there were.

use crate::clock::Now;
use crate::delivery::{self, check_pairs};
use crate::error::Error;
use crate::lists::Lists;
use crate::namespace::Namespace;
use crate::receipt::Attempts;
use crate::redis::command::{required, several, Command, Kind, Spec, NAMESPACE};
use crate::redis::list::End;
use crate::redis::{Invocation, OwnedStr};
use crate::stats::{self, Counter};

pub struct Release;

impl Command for Release {
    const SPEC: Spec = Spec {
        name: "RMQ.RELEASE",
        summary: "Gives messages back as if they had not been delivered, if the receipt is current.",
        complexity: "O(1) for an id near either end of processing, else O(N) for the length of processing; for \
                     several ids one pass over each processing list",
        flags: "write",
        categories: "write slow",
        args: &[
            NAMESPACE,
            several("delivery", Kind::Group(&[required("id", Kind::Text), required("receipt", Kind::Text)])),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, pairs @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        check_pairs(pairs)?;
        let ns = Namespace::of_caller(call, *namespace)?;
        let mut payloads = ns.payloads()?;
        let mut expires = ns.expires()?;
        let mut queues = ns.queues()?;
        ns.check_slot(!payloads.exists() || !expires.exists() || !queues.exists())?;
        let mut processing = Lists::processing_of(&ns);
        let mut pending = Lists::pending_of(&ns);
        let mut deliveries = delivery::current(&ns, pairs, &payloads, &expires);
        delivery::open_processing(&ns, &mut deliveries, &mut processing)?;
        let mut back = Vec::with_capacity(deliveries.len());
        for delivery in &deliveries {
            let queue = delivery.queue.as_ref().ok_or(Error::NoQueue(delivery.id.bytes().to_vec()))?;
            ns.check_pending(queue.bytes())?;
            back.push((delivery, pending.open(queue)?));
        }

        delivery::take_out(&deliveries, &mut processing, &mut expires);
        let now = Now::read();
        for (delivery, list) in back.iter().rev() {
            pending.push(*list, End::Right, delivery.id);
            let before = Attempts::parse(delivery.attempts.bytes());
            let attempts = Attempts { count: (before.count - 1).max(0), micros: now.micros(), ..before };
            payloads.set(delivery.attempts_field.as_ref(), OwnedStr::new(attempts.text().bytes()).as_ref());
        }
        pending.register_created(&mut queues);

        stats::add(Counter::Released, back.len());
        call.reply_integer(back.len() as i64);
        Ok(())
    }
}
