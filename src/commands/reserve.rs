//! RMQ.RESERVE pending processing payload_map expire_monitor lease_ms [COUNT n] [BLOCK ms]
//!
//! Takes the oldest messages: out of pending, into processing, lease set, attempt counted, payload fetched, in one
//! step. Each is told as [id, payload, lease, attempts]; the lease is the score in expire_monitor, and whoever can show
//! it may settle the message. Ids without payload are dropped on the way; a missing `<id>:queue` is restored, since without
//! it TIMEOUTS would not find the message again. With BLOCK the server holds the client until something fills pending.

use crate::args::{self, distinct_keys, Opt};
use crate::clock::{Lease, Now};
use crate::error::Error;
use crate::message::{attempts_field, forget_payloads, queue_field, PROCESSING};
use crate::redis::acl::User;
use crate::redis::blocking::{self, Waits};
use crate::redis::command::{key, optional, required, Command, KeyUse, Kind, Plain, Spec};
use crate::redis::key::End;
use crate::redis::{Call, HashKey, ListKey, OwnedStr, StrRef, ZsetKey};
use crate::settings;
use crate::stats::{self, Counter};
use smallvec::SmallVec;

pub struct Reserve;

struct Request<'c> {
    pending: StrRef<'c>,
    processing: StrRef<'c>,
    payload_map: StrRef<'c>,
    expire_monitor: StrRef<'c>,
    lease_ms: i64,
    count: usize,
    /// How long to wait; 0 is for ever.
    block_ms: Option<i64>,
}

struct Taken {
    id: OwnedStr,
    payload: OwnedStr,
    attempts_field: OwnedStr,
    attempts: i64,
    attempts_text: OwnedStr,
    /// `<id>:queue`, where it was missing.
    queue_field: Option<OwnedStr>,
}

/// What was in pending.
enum Found {
    Messages,
    /// Ids without payload, which are gone now.
    OnlyDropped,
    /// So many of those that the rest of the list is left for the next call.
    TooManyDropped,
    Nothing,
}

impl Command for Reserve {
    const SPEC: Spec = Spec {
        name: "RMQ.RESERVE",
        summary: "Takes the oldest pending messages under a lease, waiting for one if asked to.",
        complexity: "O(C*log(M)) for C messages taken and M in expire_monitor",
        flags: "write fast blocking",
        categories: "write fast blocking",
        args: &[
            key("pending", KeyUse::Take),
            key("processing", KeyUse::Insert),
            key("payload_map", KeyUse::ReadUpdate),
            key("expire_monitor", KeyUse::Update),
            required("lease_ms", Kind::Integer),
            optional("count", Kind::Option("COUNT", Plain::Integer)),
            optional("block", Kind::Option("BLOCK", Plain::Integer)),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let request = Request::parse(call)?;
        match (request.take(call)?, request.block_ms) {
            (Found::Messages, _) => (),
            // A list that is not empty would wake nobody.
            (Found::OnlyDropped | Found::Nothing, Some(timeout_ms)) if !call.may_not_block() => {
                blocking::wait::<Self>(call, request.pending, timeout_ms);
            }
            _ => call.reply_nil_array(),
        }
        Ok(())
    }
}

impl Waits for Reserve {
    fn serve<'c>(call: &'c Call<'c>) -> Result<bool, Error> {
        let request = Request::parse(call)?;
        // Not a list is not a message: wait on, as BLMOVE does. Some servers ask every client that waits, when the
        // first has emptied the list already.
        match ListKey::open(call, request.pending, "pending") {
            Ok(pending) if pending.len() > 0 => {}
            _ => return Ok(false),
        }
        if !User::of(call).may_run(Self::SPEC.name) {
            return Err(Error::PermissionWithdrawn);
        }
        match request.take(call)? {
            Found::Messages => Ok(true),
            Found::OnlyDropped if blocking::may_change_and_wait() => Ok(false),
            Found::Nothing => Ok(false),
            Found::OnlyDropped | Found::TooManyDropped => {
                call.reply_nil_array();
                Ok(true)
            }
        }
    }

    fn timed_out<'c>(call: &'c Call<'c>) {
        call.reply_nil_array();
    }
}

impl<'c> Request<'c> {
    fn parse(call: &'c Call<'c>) -> Result<Self, Error> {
        let [pending, processing, payload_map, expire_monitor, lease_ms, options @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let [count, block] = args::options(options, [Opt::Value("COUNT"), Opt::Value("BLOCK")])?;
        let count = count.map_or(Ok(1), |count| args::positive_integer("COUNT", count.bytes()))?;
        let request = Request {
            pending: *pending,
            processing: *processing,
            payload_map: *payload_map,
            expire_monitor: *expire_monitor,
            lease_ms: args::span_ms("lease_ms", lease_ms.bytes())?,
            count: count.min(settings::MAX_BATCH.get()) as usize,
            block_ms: block.map(|ms| args::delay_ms("BLOCK", ms.bytes())).transpose()?,
        };
        // The commands that settle a message take an empty name for none.
        if processing.is_empty() {
            return Err(Error::Invalid {
                argument: "processing",
                expected: "a key, not empty",
            });
        }
        distinct_keys(&[
            ("pending", pending.bytes()),
            ("processing", processing.bytes()),
            ("payload_map", payload_map.bytes()),
            ("expire_monitor", expire_monitor.bytes()),
        ])?;
        Ok(request)
    }

    /// Replies with the messages that there are; does not reply where there is none.
    fn take(&self, call: &'c Call<'c>) -> Result<Found, Error> {
        let mut pending = ListKey::open(call, self.pending, "pending")?;
        let mut processing = ListKey::open(call, self.processing, "processing")?;
        let mut payload_map = HashKey::open(call, self.payload_map, "payload_map")?;
        let mut expire_monitor = ZsetKey::open(call, self.expire_monitor, "expire_monitor")?;

        let lease = Now::read().lease(self.lease_ms);
        let queue = self.processing.bytes().strip_suffix(PROCESSING).map(OwnedStr::new);
        let mut taken: SmallVec<[Taken; 1]> = SmallVec::with_capacity(self.count.min(pending.len()));
        let mut dropped: Vec<OwnedStr> = Vec::new();
        while taken.len() < self.count {
            let Some(id) = pending.pop_right() else { break };
            match payload_map.get(id.as_ref()) {
                // Counted at once: the same id may stand in pending twice, and is delivered twice then.
                Some(payload) => {
                    let mut message = Taken::count(id, payload, &mut payload_map, &mut expire_monitor, lease);
                    message.restore_queue(&mut payload_map, queue.as_ref());
                    taken.push(message);
                }
                None => dropped.push(id),
            }
            if dropped.len() >= settings::MAX_BATCH.as_usize() {
                break;
            }
        }
        let popped = taken.len() + dropped.len();
        let moved_alone = popped == 1 && taken.len() == 1;
        if moved_alone {
            call.replicate_lmove(pending.name(), processing.name());
        } else if popped > 0 {
            call.replicate_number(c"RPOP", pending.name(), popped as i64);
        }
        let dropped: Vec<StrRef> = dropped.iter().map(OwnedStr::as_ref).collect();
        stats::add(Counter::Dropped, dropped.len());
        if taken.is_empty() {
            forget_payloads(call, &mut payload_map, &dropped, |_| ());
            return Ok(match popped {
                0 => Found::Nothing,
                _ if pending.len() > 0 => Found::TooManyDropped,
                _ => Found::OnlyDropped,
            });
        }

        let lease_text = OwnedStr::new(&lease.text());
        let mut ids: SmallVec<[StrRef; 1]> = SmallVec::with_capacity(taken.len());
        let mut counted: SmallVec<[StrRef; 2]> = SmallVec::with_capacity(2 * taken.len());
        let mut leased: SmallVec<[StrRef; 2]> = SmallVec::with_capacity(2 * taken.len());
        for message in &taken {
            let id = message.id.as_ref();
            processing.push(End::Left, id);
            ids.push(id);
            counted.extend([message.attempts_field.as_ref(), message.attempts_text.as_ref()]);
            if let (Some(field), Some(queue)) = (&message.queue_field, &queue) {
                counted.extend([field.as_ref(), queue.as_ref()]);
            }
            leased.extend([lease_text.as_ref(), id]);
        }
        if !moved_alone {
            call.replicate(c"LPUSH", processing.name(), &ids);
        }
        call.replicate(c"HSET", payload_map.name(), &counted);
        forget_payloads(call, &mut payload_map, &dropped, |_| ());
        call.replicate(c"ZADD", expire_monitor.name(), &leased);

        stats::add(Counter::Reserved, taken.len());
        call.reply_array(taken.len());
        for message in &taken {
            call.reply_array(4);
            call.reply_str(message.id.as_ref());
            call.reply_str(message.payload.as_ref());
            call.reply_str(lease_text.as_ref());
            call.reply_integer(message.attempts);
        }
        Ok(Found::Messages)
    }
}

impl Taken {
    /// Under the lease, with one delivery more than before.
    fn count(
        id: OwnedStr,
        payload: OwnedStr,
        payload_map: &mut HashKey,
        expire_monitor: &mut ZsetKey,
        lease: Lease,
    ) -> Self {
        let attempts_field = attempts_field(id.as_ref());
        // A pending message has a deadline only where a script has produced it, and that is a whole number, as no lease
        // is. The count is then one that another script left of an earlier message with the same id.
        let produced_by_script = || {
            let deadline = expire_monitor.score(id.as_ref());
            deadline.is_some_and(|deadline| deadline.fract() == 0.0)
        };
        let before = payload_map
            .get(attempts_field.as_ref())
            .filter(|_| !produced_by_script())
            .and_then(|count| std::str::from_utf8(count.bytes()).ok()?.parse::<i64>().ok())
            .filter(|count| *count > 0)
            .unwrap_or(0);
        let attempts = before.saturating_add(1);
        let attempts_text = OwnedStr::number(attempts);
        payload_map.set(attempts_field.as_ref(), attempts_text.as_ref());
        expire_monitor.add(id.as_ref(), lease.score());
        Taken {
            id,
            payload,
            attempts_field,
            attempts,
            attempts_text,
            queue_field: None,
        }
    }

    fn restore_queue(&mut self, payload_map: &mut HashKey, queue: Option<&OwnedStr>) {
        let Some(queue) = queue else { return };
        let field = queue_field(self.id.as_ref());
        if !payload_map.has(field.as_ref()) {
            payload_map.set(field.as_ref(), queue.as_ref());
            self.queue_field = Some(field);
        }
    }
}
