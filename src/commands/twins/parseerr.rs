//! RMQ.PARSEERR parse_error_map parse_error_queue processing expire_monitor payload_map id payload topic error
//! timestamp [expire_days [max_count [supports_hexpire]]]
//!
//! Quarantine of a message whose payload cannot be parsed: writes a record, then removes every trace of the message
//! from the working keys. The same id again replaces its record, and is in the queue once, at its left.

use crate::args;
use crate::clock::Now;
use crate::error::Error;
use crate::hash::IdSet;
use crate::message::Working;
use crate::record::ParseError;
use crate::redis::command::{key, key_or_none, optional, required, Command, KeyUse, Kind, Spec};
use crate::redis::list::{LremSide, MayBeThere, Place, Sought};
use crate::redis::{server, HashKey, Invocation, ListKey, OwnedStr, StrRef};
use crate::settings;
use crate::stats::{self, Counter};

/// Ids without record dropped from the tail of the queue in one call.
const EXPIRED_PER_CALL: usize = 100;
/// Ids looked at in one call for records that have expired and are not removed yet.
const EXPIRED_LOOKS: usize = 1000;

pub struct ParseErr;

impl Command for ParseErr {
    const SPEC: Spec = Spec {
        name: "RMQ.PARSEERR",
        summary: "Puts a message that cannot be parsed into quarantine.",
        complexity: "O(1) for an id near either end of processing, else O(N) for its length; plus O(T) for T records \
                     trimmed, and O(Q) for the length of parse_error_queue where the id may stand in it already",
        flags: "write deny-oom getkeys-api",
        categories: "write slow",
        args: &[
            key("parse_error_map", KeyUse::Update),
            key("parse_error_queue", KeyUse::Update),
            key_or_none("processing", KeyUse::Remove),
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

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let ([parse_error_map, parse_error_queue, processing, expire_monitor, payload_map], args) =
            call.keys_and_args()?;
        let [id, payload, topic, error, timestamp, limits @ ..] = args else {
            return Err(Error::WrongArity);
        };
        if limits.len() > 3 {
            return Err(Error::WrongArity);
        }
        let limit = |index: usize| limits.get(index).map_or(&b""[..], |limit| limit.bytes());
        let keep_ms = args::expire_days(limit(0))?;
        let max_count = args::max_count(limit(1))?;
        let field_expiry = args::supports_hexpire(limit(2))? && server().field_expiry;
        args::writable_id(id.bytes())?;
        let mut quarantine =
            Quarantine { map: HashKey::open(call, parse_error_map)?, queue: ListKey::open(call, parse_error_queue)? };
        let mut working = Working::open(call, payload_map, processing, expire_monitor)?;
        let record = ParseError {
            payload: payload.bytes(),
            error: error.bytes(),
            topic: topic.bytes(),
            timestamp: timestamp.bytes(),
            id: id.bytes(),
        };
        let record =
            OwnedStr::new(&record.to_json(settings::PAYLOAD_LIMIT.as_usize(), settings::MESSAGE_LIMIT.as_usize()));

        quarantine.drop_expired();
        let one_is_left = quarantine.queue.len() == 1;
        quarantine.store(*id, record.as_ref());
        if one_is_left {
            quarantine.drop_expired();
        }
        if let Some(max_count) = max_count {
            quarantine.trim(max_count);
        }
        if let Some(keep_ms) = keep_ms {
            let expire_at = Now::read().ms() + keep_ms;
            match field_expiry {
                true => quarantine.map.expire_field_at(*id, expire_at),
                false => quarantine.map.expire_at(expire_at),
            }
        }
        working.forget(std::slice::from_ref(id));

        stats::add(Counter::Quarantined, 1);
        call.reply_ok();
        Ok(())
    }
}

/// The records, and the queue of their ids, newest at the left.
struct Quarantine<'c> {
    map: HashKey<'c>,
    queue: ListKey<'c>,
}

impl Quarantine<'_> {
    fn store(&mut self, id: StrRef, record: StrRef) {
        // Queue and map hold the same ids, unless records have expired. An expired record that the server has not removed
        // yet is invisible, but it is replaced, and then the number of fields stays the same.
        let fields = self.map.len();
        let in_step = self.queue.len() == fields && self.every_field_is_a_record();
        self.map.set(id, record);
        let may_be_there = match (self.map.len() == fields, in_step) {
            (true, _) => MayBeThere::Anywhere,
            (false, true) => MayBeThere::Nowhere,
            (false, false) => MayBeThere::NearTheEnds,
        };
        self.queue.push_left_once(id, may_be_there);
    }

    /// False where a field may have expired and not be removed yet: it counts in `len`, and Valkey 9, which does not say
    /// whether there are any, does not delete it.
    fn every_field_is_a_record(&self) -> bool {
        !server().field_expiry || self.map.none_has_expired(Now::read().ms())
    }

    /// Oldest first, ids whose record has expired leave the queue too.
    fn drop_expired(&mut self) {
        let mut dropped = 0;
        // One stays, so that the list is never deleted and created again.
        while dropped < EXPIRED_PER_CALL && self.queue.len() > 1 {
            let Some(oldest) = self.queue.at(self.queue.len() - 1) else {
                break;
            };
            if self.map.has(oldest.as_ref()) {
                break;
            }
            self.queue.pop_right();
            self.map.delete(oldest.as_ref());
            dropped += 1;
        }
        stats::add(Counter::Trimmed, dropped);
    }

    /// The newest `max_count` records remain, in the queue and in the map.
    fn trim(&mut self, max_count: usize) {
        if self.queue.len() <= max_count {
            return;
        }
        // Ids whose record is gone would take the place of older records. The number of fields shows those whose record
        // was removed; those that have expired and are not removed yet are found among the newest only.
        let looks = match self.queue.len() > self.map.len() {
            true => usize::MAX,
            false if !self.every_field_is_a_record() => EXPIRED_LOOKS,
            false => 0,
        };
        let holes = self.holes_before(max_count, looks);
        self.cut_to(max_count.saturating_add(holes.len()));
        let mut places: Vec<(Place, StrRef)> = holes.iter().map(|(place, id)| (*place, id.as_ref())).collect();
        self.queue.remove(&mut places);
        for (_, id) in &holes {
            self.map.delete(id.as_ref());
        }
        stats::add(Counter::Trimmed, holes.len());
    }

    /// Ids without record, from the left, until `count` with one are seen; at most `looks` ids are looked at.
    fn holes_before(&mut self, count: usize, looks: usize) -> Vec<(Place, OwnedStr)> {
        let mut holes = Vec::new();
        for index in 0..self.queue.len().min(looks) {
            if index - holes.len() == count {
                break;
            }
            match self.queue.at(index) {
                Some(id) if !self.map.has(id.as_ref()) => holes.push((Place { index, side: LremSide::Head }, id)),
                _ => (),
            }
        }
        holes
    }

    fn cut_to(&mut self, len: usize) {
        // Only where ids without record are in the queue can an id be there twice.
        let may_be_twice = self.queue.len() > self.map.len() || !self.every_field_is_a_record();
        let mut cut = Vec::new();
        while self.queue.len() > len {
            let Some(oldest) = self.queue.pop_right() else { break };
            cut.push(oldest);
        }
        let ids: Vec<StrRef> = cut.iter().map(OwnedStr::as_ref).collect();
        let newer = if may_be_twice { self.queue.every_place_of(&Sought::of(&ids)) } else { Vec::new() };
        let newer: IdSet<&[u8]> = newer.iter().map(|(number, _)| ids[*number].bytes()).collect();
        for id in ids.iter().filter(|id| !newer.contains(id.bytes())) {
            self.map.delete(*id);
        }
        stats::add(Counter::Trimmed, ids.len());
    }
}
