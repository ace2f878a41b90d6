//! RMQ.EXTEND namespace lease_ms id receipt [id receipt …]
//!
//! A new deadline, lease_ms from now, for those whose receipt is current. The receipt stays as it is. Replies with an
//! array of 1 or 0.

use crate::args;
use crate::clock::Now;
use crate::delivery::{self, check_pairs};
use crate::error::Error;
use crate::namespace::Namespace;
use crate::redis::command::{required, several, Command, Kind, Spec, NAMESPACE};
use crate::redis::Invocation;
use crate::stats::{self, Counter};

pub struct Extend;

impl Command for Extend {
    const SPEC: Spec = Spec {
        name: "RMQ.EXTEND",
        summary: "Gives the holder of messages a new deadline.",
        complexity: "O(K*log(M)) for K messages and the size M of expires",
        flags: "write fast",
        categories: "write fast",
        args: &[
            NAMESPACE,
            required("lease_ms", Kind::Integer),
            several("delivery", Kind::Group(&[required("id", Kind::Text), required("receipt", Kind::Text)])),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, lease_ms, pairs @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let lease_ms = args::span_ms("lease_ms", lease_ms.bytes())?;
        check_pairs(pairs)?;
        let ns = Namespace::of_caller(call, *namespace)?;
        let payloads = ns.payloads()?;
        let mut expires = ns.expires()?;
        ns.check_slot(!payloads.exists() || !expires.exists())?;
        let deliveries = delivery::current(&ns, pairs, &payloads, &expires);

        let now = Now::read();
        let deadline = now.lease(lease_ms);
        for delivery in &deliveries {
            expires.add(delivery.id, deadline);
        }
        ns.due_after(now, lease_ms);

        stats::add(Counter::Extended, deliveries.len());
        let mut extended = vec![0; pairs.len() / 2];
        deliveries.iter().for_each(|delivery| extended[delivery.pair] = 1);
        call.reply_array(extended.len());
        extended.into_iter().for_each(|one| call.reply_integer(one));
        Ok(())
    }
}
