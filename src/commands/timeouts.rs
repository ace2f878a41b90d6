//! RMQ.TIMEOUTS expire_monitor payload_map target_time batch [ALL] [CLAIM ms]
//!
//! Takes back messages whose deadline has passed, and tells each as [id, payload, queue]. An expired id that is not in
//! its `<queue>:processing` is done or still pending: it only leaves expire_monitor, and is told with ALL alone, as
//! the script does. With CLAIM a stuck message stays in processing under a new deadline, so that it comes again if the
//! caller dies before it settles the message.

use crate::args::{self, Opt};
use crate::clock::Now;
use crate::derived::DerivedLists;
use crate::due::{self, Visit};
use crate::error::Error;
use crate::locate::{self, Wanted};
use crate::message::{queue_field, remove_places, PROCESSING};
use crate::redis::acl::Access;
use crate::redis::command::{key, optional, required, Command, KeyUse, Kind, Plain, Spec};
use crate::redis::{Call, HashKey, OwnedStr, StrRef, ZsetKey};
use crate::stats::{self, Counter};

pub struct Timeouts;

struct Expired {
    id: OwnedStr,
    payload: OwnedStr,
    queue: usize,
    in_processing: bool,
}

impl Command for Timeouts {
    const SPEC: Spec = Spec {
        name: "RMQ.TIMEOUTS",
        summary: "Takes back messages whose deadline has passed.",
        complexity: "O(B*log(M)+N) for B messages taken, M in expire_monitor and N in the processing lists concerned",
        flags: "write",
        categories: "write slow",
        args: &[
            key("expire_monitor", KeyUse::Take),
            key("payload_map", KeyUse::Read),
            required("target_time", Kind::Text),
            required("batch", Kind::Integer),
            optional("all", Kind::Word("ALL")),
            optional("claim", Kind::Option("CLAIM", Plain::Integer)),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [expire_monitor, payload_map, target_time, batch, options @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let now = Now::read();
        let target_time = args::target_time(target_time.bytes(), now)?;
        let batch = args::batch(batch.bytes())?;
        let [all, claim] = args::options(options, [Opt::Word("ALL"), Opt::Value("CLAIM")])?;
        let claim_ms = claim.map(|ms| args::span_ms("CLAIM", ms.bytes())).transpose()?;
        args::distinct_keys(&[
            ("expire_monitor", expire_monitor.bytes()),
            ("payload_map", payload_map.bytes()),
        ])?;
        let mut processing = DerivedLists::new(call, *expire_monitor, PROCESSING, Access::Delete);
        let mut expire_monitor = ZsetKey::open(call, *expire_monitor, "expire_monitor")?;
        let payload_map = HashKey::open(call, *payload_map, "payload_map")?;

        let mut expired: Vec<Expired> = Vec::new();
        let mut orphans: Vec<OwnedStr> = Vec::new();
        let skipped = due::walk(call, &expire_monitor, target_time, batch, |id| {
            match payload_map.get_two(id.as_ref(), queue_field(id.as_ref()).as_ref()) {
                [Some(payload), Some(queue)] => match processing.find(queue)? {
                    queue if processing.is_list(queue) => expired.push(Expired {
                        id,
                        payload,
                        queue,
                        in_processing: false,
                    }),
                    _ => return Ok(Visit::Passed),
                },
                _ => orphans.push(id),
            }
            Ok(Visit::Taken)
        })?;

        let mut by_queue: Vec<Vec<usize>> = vec![Vec::new(); processing.len()];
        for (index, message) in expired.iter().enumerate() {
            by_queue[message.queue].push(index);
        }
        let take_out = claim_ms.is_none();
        for (queue, list) in processing.lists() {
            let mut wanted = Wanted::new(by_queue[queue].iter().map(|index| (*index, expired[*index].id.bytes())));
            let found = locate::pass(list, &mut wanted, usize::MAX);
            if take_out {
                remove_places(call, list, &found, |index| expired[index].id.as_ref());
            }
            for (index, _) in found {
                expired[index].in_processing = true;
            }
        }

        let stuck = expired.iter().filter(|message| message.in_processing).count();
        match claim_ms {
            Some(claim_ms) => {
                let deadline = now.lease(claim_ms);
                let score = OwnedStr::new(&deadline.text());
                let mut renewed: Vec<StrRef> = Vec::with_capacity(2 * stuck);
                for message in expired.iter().filter(|message| message.in_processing) {
                    expire_monitor.add(message.id.as_ref(), deadline.score());
                    renewed.extend([score.as_ref(), message.id.as_ref()]);
                }
                if !renewed.is_empty() {
                    call.replicate(c"ZADD", expire_monitor.name(), &renewed);
                }
                stats::add(Counter::Claimed, stuck);
            }
            None => stats::add(Counter::Reclaimed, stuck),
        }
        let leaving: Vec<StrRef> = expired
            .iter()
            .filter(|message| take_out || !message.in_processing)
            .map(|message| &message.id)
            .chain(&orphans)
            .map(OwnedStr::as_ref)
            .collect();
        for id in &leaving {
            expire_monitor.remove(*id);
        }
        if !leaving.is_empty() {
            call.replicate(c"ZREM", expire_monitor.name(), &leaving);
        }

        stats::add(Counter::Stale, expired.len() - stuck + orphans.len());
        processing.report_skipped(skipped);
        let told = |message: &&Expired| message.in_processing || all.is_some();
        call.reply_array(expired.iter().filter(told).count());
        for message in expired.iter().filter(told) {
            call.reply_array(3);
            call.reply_str(message.id.as_ref());
            call.reply_str(message.payload.as_ref());
            call.reply_str(processing.name(message.queue));
        }
        Ok(())
    }
}
