//! RMQ.TIMEOUTS expire_monitor payload_map target_time batch [ALL] [CLAIM ms]
//!
//! Takes back messages whose deadline has passed. Replies with one [id, payload, queue] per message. An expired id that
//! is not in its `<queue>:processing` is done or still pending: it only leaves expire_monitor, and is reported with ALL
//! alone, as the script does. With CLAIM a stuck message stays in processing under a new deadline, so that it is
//! reported again if the caller dies before it settles the message.

use crate::args::{self, Opt};
use crate::clock::overdue::{Expired, Overdue};
use crate::clock::Now;
use crate::error::Error;
use crate::lists::Lists;
use crate::redis::command::{key, optional, required, Command, KeyUse, Kind, Spec, ValueType};
use crate::redis::{HashKey, Invocation, ZsetKey};
use crate::stats::{self, Counter};

pub struct Timeouts;

impl Command for Timeouts {
    const SPEC: Spec = Spec {
        name: "RMQ.TIMEOUTS",
        summary: "Takes back messages whose deadline has passed.",
        complexity: "O(B*log(M)+N) for B messages taken, M in expire_monitor and N in the processing lists concerned",
        flags: "write getkeys-api",
        categories: "write slow",
        args: &[
            key("expire_monitor", KeyUse::Take),
            key("payload_map", KeyUse::Read),
            required("target_time", Kind::Text),
            required("batch", Kind::Integer),
            optional("all", Kind::Word("ALL")),
            optional("claim", Kind::Option("CLAIM", ValueType::Integer)),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let ([expire_monitor, payload_map], args) = call.keys_and_args()?;
        let [target_time, batch, options @ ..] = args else {
            return Err(Error::WrongArity);
        };
        let now = Now::read();
        let target_time = args::target_time(target_time.bytes(), now)?;
        let batch = args::batch(batch.bytes())?;
        let [all, claim] = args::options(options, [Opt::Word("ALL"), Opt::Value("CLAIM")])?;
        let claim_ms = claim.map(|ms| args::span_ms("CLAIM", ms.bytes())).transpose()?;
        let mut lists = Lists::processing(call, expire_monitor.name);
        let mut expire_monitor = ZsetKey::open(call, expire_monitor)?;
        let payload_map = HashKey::open(call, payload_map)?;
        let overdue = Overdue::find(&expire_monitor, &payload_map, &mut lists, target_time, batch)?;

        match claim_ms {
            // A whole number, which ends the receipt of the message's holder.
            Some(claim_ms) => {
                for message in overdue.messages.iter().filter(|message| message.in_processing) {
                    expire_monitor.add(message.id.as_ref(), (now.ms() + claim_ms) as f64);
                }
            }
            None => overdue.take_out(&mut lists),
        }
        let leaving = overdue.messages.iter().filter(|message| claim_ms.is_none() || !message.in_processing);
        for id in leaving.map(|message| &message.id).chain(&overdue.stale) {
            expire_monitor.remove(id.as_ref());
        }

        let stuck = overdue.messages.iter().filter(|message| message.in_processing).count();
        stats::add(if claim_ms.is_some() { Counter::Claimed } else { Counter::Reclaimed }, stuck);
        stats::add(Counter::Stale, overdue.messages.len() - stuck + overdue.stale.len());
        lists.report_skipped(overdue.passed);
        let is_reported = |message: &&Expired| message.in_processing || all.is_some();
        call.reply_array(overdue.messages.iter().filter(is_reported).count());
        for message in overdue.messages.iter().filter(is_reported) {
            call.reply_array(3);
            call.reply_str(message.id.as_ref());
            message.payload.as_ref().map_or_else(|| call.reply_nil(), |payload| call.reply_str(payload.as_ref()));
            call.reply_str(lists.name(message.queue));
        }
        Ok(())
    }
}
