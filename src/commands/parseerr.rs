//! RMQ.PARSEERR parse_error_map parse_error_queue processing expire_monitor payload_map id payload topic error
//! timestamp [expire_days [max_count [supports_hexpire]]]
//!
//! Quarantine of a message whose payload cannot be parsed: writes a record, then removes every trace of the message
//! from the working keys. The same id again replaces its record, and stands once in the queue, at its left.

use crate::args;
use crate::clock::Now;
use crate::error::Error;
use crate::message::{push_once, Working};
use crate::record::ParseError;
use crate::redis::command::{key, optional, required, server_has_field_expiry, Command, KeyUse, Kind, Spec};
use crate::redis::{log, Call, HashKey, ListKey, OwnedStr, StrRef};
use crate::settings;
use crate::stats::{self, Counter};

/// Ids without record dropped from the tail of the queue in one call.
const EXPIRED_PER_CALL: usize = 100;
/// Ids trimmed between two HDELs, so that a first trim of a huge queue needs little memory.
const TRIM_CHUNK: usize = 1000;

pub struct ParseErr;

impl Command for ParseErr {
    const SPEC: Spec = Spec {
        name: "RMQ.PARSEERR",
        summary: "Puts a message that cannot be parsed into quarantine.",
        complexity: "O(1) for an id near either end of processing, else O(N) for its length; plus O(T) for T records \
                     trimmed, and O(Q) for the length of parse_error_queue where the id may stand in it already",
        flags: "write deny-oom",
        categories: "write slow",
        args: &[
            key("parse_error_map", KeyUse::Update),
            key("parse_error_queue", KeyUse::Update),
            key("processing", KeyUse::Remove),
            key("expire_monitor", KeyUse::Remove),
            key("payload_map", KeyUse::Remove),
            required("id", Kind::Text),
            required("payload", Kind::Text),
            required("topic", Kind::Text),
            required("error", Kind::Text),
            required("timestamp", Kind::Text),
            optional("expire_days", Kind::Double),
            optional("max_count", Kind::Integer),
            optional("supports_hexpire", Kind::Integer),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [parse_error_map, parse_error_queue, processing, expire_monitor, payload_map, id, payload, topic, error, timestamp, limits @ ..] =
            call.args()
        else {
            return Err(Error::WrongArity);
        };
        if limits.len() > 3 {
            return Err(Error::WrongArity);
        }
        let limit = |index: usize| limits.get(index).map_or(&b""[..], |limit| limit.bytes());
        let keep_ms = args::expire_days(limit(0))?;
        let max_count = args::max_count(limit(1))?;
        let expire_field = args::supports_hexpire(limit(2))? && server_has_field_expiry();
        args::writable_id(id.bytes())?;
        args::distinct_keys(&[
            ("parse_error_map", parse_error_map.bytes()),
            ("parse_error_queue", parse_error_queue.bytes()),
            ("processing", processing.bytes()),
            ("expire_monitor", expire_monitor.bytes()),
            ("payload_map", payload_map.bytes()),
        ])?;
        let mut quarantine = Quarantine {
            map: HashKey::open(call, *parse_error_map, "parse_error_map")?,
            queue: ListKey::open(call, *parse_error_queue, "parse_error_queue")?,
        };
        let mut working = Working::open(call, *payload_map, *processing, *expire_monitor)?;
        let record = ParseError {
            payload: payload.bytes(),
            error: error.bytes(),
            topic: topic.bytes(),
            timestamp: timestamp.bytes(),
            id: id.bytes(),
        };
        let record =
            OwnedStr::new(&record.to_json(settings::PAYLOAD_LIMIT.as_usize(), settings::MESSAGE_LIMIT.as_usize()));
        let expire_at = keep_ms.map(|ms| Now::read().ms() + ms);

        quarantine.drop_expired(call);
        let one_is_left = quarantine.queue.len() == 1;
        quarantine.store(call, *id, record.as_ref());
        if one_is_left {
            quarantine.drop_expired(call);
        }
        if let Some(max_count) = max_count {
            quarantine.trim(call, max_count);
        }
        working.forget(call, std::slice::from_ref(id));
        if let Some(expire_at) = expire_at {
            let has_ttl = quarantine.map.has_ttl();
            // By plain commands, which need the key for themselves and fire their events after ours.
            drop((quarantine, working));
            call.fire_events();
            let expire_at = OwnedStr::number(expire_at);
            let (fields, one) = (OwnedStr::new(b"FIELDS"), OwnedStr::new(b"1"));
            let expires = if expire_field {
                let words = [expire_at.as_ref(), fields.as_ref(), one.as_ref(), *id];
                call.run_plain(c"HPEXPIREAT", *parse_error_map, &words)
            } else {
                has_ttl || call.run_plain(c"PEXPIREAT", *parse_error_map, &[expire_at.as_ref()])
            };
            if !expires {
                log::warning(
                    "rmq: the server refused to let a parse-error record expire: it was stored without expiry",
                );
            }
        }

        stats::add(Counter::Quarantined, 1);
        call.reply_ok();
        Ok(())
    }
}

struct Quarantine<'c> {
    map: HashKey<'c>,
    queue: ListKey<'c>,
}

impl Quarantine<'_> {
    fn store(&mut self, call: &Call, id: StrRef, record: StrRef) {
        // Queue and map hold the same ids, unless records have gone by themselves.
        let out_of_step = self.queue.len() != self.map.len();
        // An expired record does not show, but is there to be replaced until the server has swept it up.
        let replaced = self.map.set(id, record);
        call.replicate(c"HSET", self.map.name(), &[id, record]);
        push_once(call, &mut self.queue, id, replaced || out_of_step);
    }

    /// Oldest first, ids whose record has expired leave the queue too.
    fn drop_expired(&mut self, call: &Call) {
        let mut dropped = 0;
        let mut swept: Vec<OwnedStr> = Vec::new();
        // One stays, so that the list is not gone for a moment.
        while dropped < EXPIRED_PER_CALL && self.queue.len() > 1 {
            let Some(oldest) = self.queue.at(self.queue.len() - 1) else {
                break;
            };
            if self.map.has(oldest.as_ref()) {
                break;
            }
            self.queue.pop_right();
            dropped += 1;
            if self.map.delete(oldest.as_ref()) {
                swept.push(oldest);
            }
        }
        if dropped > 0 {
            call.replicate_number(c"RPOP", self.queue.name(), dropped as i64);
            stats::add(Counter::Trimmed, dropped);
        }
        if !swept.is_empty() {
            let swept: Vec<StrRef> = swept.iter().map(OwnedStr::as_ref).collect();
            call.replicate(c"HDEL", self.map.name(), &swept);
        }
    }

    /// The newest `max_count` remain, in the queue and in the map.
    fn trim(&mut self, call: &Call, max_count: usize) {
        if self.queue.len() <= max_count {
            return;
        }
        // Ids whose record is gone would take the place of older records.
        let holes = if self.queue.len() > self.map.len() {
            self.holes_before(max_count)
        } else {
            Vec::new()
        };
        self.cut_to(call, max_count.saturating_add(holes.len()));
        for (_, id) in &holes {
            call.replicate_lrem(self.queue.name(), 1, id.as_ref());
        }
        if !holes.is_empty() {
            let places: Vec<usize> = holes.iter().map(|(place, _)| *place).collect();
            self.queue.remove_at(&places);
            stats::add(Counter::Trimmed, holes.len());
        }
    }

    /// Ids without record, from the left, until `count` with one are seen.
    fn holes_before(&mut self, count: usize) -> Vec<(usize, OwnedStr)> {
        let mut holes = Vec::new();
        for place in 0..self.queue.len() {
            if place - holes.len() == count {
                break;
            }
            match self.queue.at(place) {
                Some(id) if !self.map.has(id.as_ref()) => holes.push((place, id)),
                _ => (),
            }
        }
        holes
    }

    fn cut_to(&mut self, call: &Call, len: usize) {
        while self.queue.len() > len {
            let excess = (self.queue.len() - len).min(TRIM_CHUNK);
            let oldest: Vec<OwnedStr> = (0..excess).map_while(|_| self.queue.pop_right()).collect();
            let gone: Vec<StrRef> = oldest
                .iter()
                .map(OwnedStr::as_ref)
                .filter(|id| self.map.delete(*id))
                .collect();
            call.replicate_number(c"RPOP", self.queue.name(), oldest.len() as i64);
            if !gone.is_empty() {
                call.replicate(c"HDEL", self.map.name(), &gone);
            }
            stats::add(Counter::Trimmed, oldest.len());
        }
    }
}
