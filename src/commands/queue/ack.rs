//! RMQ.ACK namespace id receipt [id receipt …]
//!
//! Done: every trace of the messages whose receipt is current is removed. Replies with how many those were.

use crate::delivery::{self, check_pairs};
use crate::error::Error;
use crate::lists::Lists;
use crate::namespace::Namespace;
use crate::redis::command::{required, several, Command, Kind, Spec, NAMESPACE};
use crate::redis::Invocation;
use crate::stats::{self, Counter};
use crate::traffic::Event;

pub struct Ack;

impl Command for Ack {
    const SPEC: Spec = Spec {
        name: "RMQ.ACK",
        summary: "Removes messages that were processed successfully, if the receipt is current.",
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
        ns.check_slot(!payloads.exists() || !expires.exists())?;
        let mut processing = Lists::processing_of(&ns);
        let mut deliveries = delivery::current(&ns, pairs, &payloads, &expires);
        delivery::open_processing(&ns, &mut deliveries, &mut processing)?;

        delivery::take_out(&deliveries, &mut processing, &mut expires);
        delivery::forget_fields(&deliveries, &mut payloads);

        stats::add(Counter::Acked, deliveries.len());
        delivery::count(call, &deliveries, Event::Acked);
        call.reply_integer(deliveries.len() as i64);
        Ok(())
    }
}
