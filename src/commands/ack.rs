//! RMQ.ACK payload_map processing expire_monitor id lease [id lease …]
//!
//! COMPLETE for those whose lease is current. The reply is how many were.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use crate::args::{self, distinct_keys};
use crate::error::Error;
use crate::locate::IdHasher;
use crate::message::Working;
use crate::redis::command::{key, required, several, Command, KeyUse, Kind, Spec};
use crate::redis::{Call, StrRef};
use crate::stats::{self, Counter};
use smallvec::SmallVec;

pub struct Ack;

impl Command for Ack {
    const SPEC: Spec = Spec {
        name: "RMQ.ACK",
        summary: "Removes messages that were processed successfully, if the lease is current.",
        complexity: "O(1) for an id near either end of processing, else O(N) for the length of processing; for \
                     several ids one pass over processing",
        flags: "write",
        categories: "write slow",
        args: &[
            key("payload_map", KeyUse::Remove),
            key("processing", KeyUse::Remove),
            key("expire_monitor", KeyUse::Take),
            several(
                "delivery",
                Kind::Group(&[required("id", Kind::Text), required("lease", Kind::Text)]),
            ),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [payload_map, processing, expire_monitor, deliveries @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        if deliveries.is_empty() || deliveries.len() % 2 != 0 {
            return Err(Error::WrongArity);
        }
        let mut held: SmallVec<[(StrRef, f64); 1]> = SmallVec::with_capacity(deliveries.len() / 2);
        for delivery in deliveries.chunks_exact(2) {
            held.push((delivery[0], args::lease(delivery[1].bytes())?));
        }
        distinct_keys(&[
            ("payload_map", payload_map.bytes()),
            ("processing", processing.bytes()),
            ("expire_monitor", expire_monitor.bytes()),
        ])?;
        let mut working = Working::open(call, *payload_map, *processing, *expire_monitor)?;

        let several = held.len() > 1;
        let mut acked: SmallVec<[StrRef; 1]> = SmallVec::with_capacity(held.len());
        let mut seen: HashSet<&[u8], BuildHasherDefault<IdHasher>> = HashSet::default();
        if several {
            seen.reserve(held.len());
        }
        for (id, lease) in &held {
            // The same delivery twice in one call counts once; an older lease of the same message counts for nothing.
            if working.holds(*id, *lease) && (!several || seen.insert(id.bytes())) {
                acked.push(*id);
            }
        }

        working.forget(call, &acked);

        stats::add(Counter::Acked, acked.len());
        stats::add(Counter::Fenced, held.len() - acked.len());
        call.reply_integer(acked.len() as i64);
        Ok(())
    }
}
