//! RMQ.PURGE namespace [COUNT n] PENDING queue | DELAYED [queue] | DEAD [queue]
//!
//! Removes pending, delayed or dead messages with their payloads, oldest first. Replies with how many: call it again until
//! that is 0 (which a very long row of ids without message gives, too). A queue without messages and without a policy is
//! removed from `<ns>:queues`.

use std::collections::BTreeSet;

use super::{queue_after, split_at_state, DEAD, DELAYED};
use crate::args::{self, Opt};
use crate::error::Error;
use crate::hash::IdSet;
use crate::lists::Lists;
use crate::message::{forget_fields, is_message, queue_field, DEAD_FIELDS, FIELDS};
use crate::namespace::Namespace;
use crate::redis::command::{optional, required, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::list::{LremSide, Place};
use crate::redis::zset::Walk;
use crate::redis::{HashKey, Invocation, OwnedStr, StrRef, ZsetKey};
use crate::settings;
use crate::skipped::Reason;
use crate::stats::{self, Counter};
use crate::whereabouts::Whereabouts;

pub struct Purge;

/// Ids without message, and copies of messages that are held, that one call removes.
const STALE_PER_CALL: usize = 10_000;
/// Pending ids that are looked at before more are read.
const READ_AT_ONCE: usize = 1000;
/// Messages of other queues that a call passes once it has found one of the queue asked for.
const PASSED_PER_CALL: usize = 10_000;
/// Delayed and dead messages that are checked to find out which queues have any.
const LOOKED_AT: usize = 10_000;

enum Which {
    Pending(OwnedStr),
    Delayed(Option<OwnedStr>),
    Dead(Option<OwnedStr>),
}

impl Command for Purge {
    const SPEC: Spec = Spec {
        name: "RMQ.PURGE",
        summary: "Removes messages that wait, are delayed or dead, oldest first.",
        complexity:
            "O(N) for N messages removed, O(N*log(M)) for the size M of delays; with a queue also for those of other \
                     queues in front of them",
        flags: "write",
        categories: "write slow",
        args: &[
            NAMESPACE,
            optional("count", Kind::Option("COUNT", ValueType::Integer)),
            required(
                "which",
                Kind::OneOf(&[required("queue", Kind::Option("PENDING", ValueType::Text)), DELAYED, DEAD]),
            ),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, words @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let ns = Namespace::of_caller(call, *namespace)?;
        let (which, count) = parse(&ns, words)?;
        let mut places = Whereabouts::open(&ns)?;
        let mut once = ns.once()?;
        ns.check_slot(!once.exists())?;
        let mut purge = Purging { ns: &ns, places: &mut places, once: &mut once, count, queues: BTreeSet::new() };
        let purged = match which {
            Which::Pending(queue) => purge.pending(&queue)?,
            Which::Delayed(queue) => purge.delayed(queue.as_ref())?,
            Which::Dead(queue) => purge.dead(queue.as_ref())?,
        };
        purge.forget_empty_queues();
        stats::add(Counter::Purged, purged);
        call.reply_integer(purged as i64);
        Ok(())
    }
}

fn parse(ns: &Namespace, words: &[StrRef]) -> Result<(Which, usize), Error> {
    let known = [Opt::Value("COUNT")];
    let Some((options, state, rest)) = split_at_state(words, &["PENDING", "DELAYED", "DEAD"]) else {
        args::options(words, known)?;
        return Err(Error::Missing("PENDING, DELAYED or DEAD", "a queue (needed for PENDING only)"));
    };
    let [count] = args::options(options, known)?;
    let count = match count {
        Some(count) => args::limited("COUNT", count.bytes())?,
        None => settings::MAX_BATCH.as_usize(),
    };
    let queue = queue_after(ns, state, rest, &["COUNT"])?;
    let which = match state {
        "PENDING" => Which::Pending(queue.ok_or(Error::Incomplete("PENDING", "a queue"))?),
        "DELAYED" => Which::Delayed(queue),
        _ => Which::Dead(queue),
    };
    Ok((which, count))
}

struct Purging<'a, 'c> {
    ns: &'a Namespace<'c>,
    places: &'a mut Whereabouts<'c>,
    once: &'a mut ZsetKey<'c>,
    count: usize,
    /// Full names of the queues that something was removed from.
    queues: BTreeSet<Vec<u8>>,
}

impl Purging<'_, '_> {
    fn pending(&mut self, queue: &OwnedStr) -> Result<usize, Error> {
        self.ns.check_pending(queue.bytes())?;
        self.ns.check_processing(queue.bytes())?;
        let number = self.places.keys.pending.open(queue)?;
        self.places.keys.processing.open(queue)?;
        let len = self.places.keys.pending.get(number).map_or(0, |list| list.len());
        if !self.has_payloads(len) {
            return Ok(0);
        }
        self.queues.insert(queue.bytes().to_vec());
        let (mut gone, mut leaving) = (Vec::new(), 0);
        while gone.is_empty() && leaving < len.min(STALE_PER_CALL) {
            let Some(list) = self.places.keys.pending.get(number) else { break };
            let most = self.count.max(READ_AT_ONCE);
            let ids: Vec<OwnedStr> = (0..len - leaving).rev().take(most).map_while(|index| list.at(index)).collect();
            let (looked_at, messages) = self.messages_among(&ids)?;
            if looked_at == 0 {
                break;
            }
            leaving += looked_at;
            gone = messages;
        }
        if let Some(list) = self.places.keys.pending.get(number) {
            (0..leaving).for_each(|_| drop(list.pop_right()));
        }
        Ok(self.forget(&gone))
    }

    fn delayed(&mut self, queue: Option<&OwnedStr>) -> Result<usize, Error> {
        if !self.has_payloads(self.places.keys.delays.len()) {
            return Ok(0);
        }
        let (mut ids, mut own_queues, mut passed, mut free) = (Vec::new(), Vec::new(), 0, 0);
        let (places, count) = (&*self.places, self.count);
        let _ = places.keys.delays.between(f64::NEG_INFINITY, f64::INFINITY, |id, _| {
            let own = places.keys.payloads.get(queue_field(id.as_ref()).as_ref());
            if queue.is_some_and(|queue| own.as_ref().is_none_or(|own| own.bytes() != queue.bytes())) {
                passed += 1;
            } else {
                // What has a deadline may be the copy of a message that is held.
                let is_free = places.is_live(id.as_ref()) && places.keys.expires.score(id.as_ref()).is_none();
                free += usize::from(is_free);
                own_queues.push(own);
                ids.push(id);
            }
            let is_enough =
                free == count || free > 0 && passed >= PASSED_PER_CALL || ids.len() - free >= STALE_PER_CALL;
            Ok::<_, ()>(if is_enough { Walk::Stop } else { Walk::On })
        });
        let (looked_at, gone) = self.messages_among(&ids)?;
        for (id, own) in ids.iter().zip(own_queues).take(looked_at) {
            self.places.keys.delays.remove(id.as_ref());
            self.queues.extend(own.map(|own| own.bytes().to_vec()));
        }
        Ok(self.forget(&gone))
    }

    /// How many of these ids leave, and the messages among them, as many as are asked for. The payload of a leased message
    /// stays; only the copy of its id leaves.
    fn messages_among(&mut self, ids: &[OwnedStr]) -> Result<(usize, Vec<OwnedStr>), Error> {
        let are_held = self.places.are_held(self.ns, &ids.iter().map(OwnedStr::as_ref).collect::<Vec<_>>())?;
        let (mut gone, mut leaving) = (Vec::new(), 0);
        for (id, is_held) in ids.iter().zip(are_held) {
            if gone.len() == self.count {
                break;
            }
            leaving += 1;
            if !is_held && self.places.is_live(id.as_ref()) {
                gone.push(OwnedStr::retain(id.as_ref()));
            }
        }
        Ok((leaving, gone))
    }

    fn dead(&mut self, queue: Option<&OwnedStr>) -> Result<usize, Error> {
        let dead = &mut self.places.dead;
        if !dead.map.exists() {
            Reason::NoMap.report(dead.list.len().min(self.count), || self.ns.names.dlq_data.bytes().to_vec());
            return Ok(0);
        }
        let (mut leaving, mut gone, mut passed) = (Vec::new(), Vec::new(), 0);
        let mut seen: IdSet<Vec<u8>> = IdSet::default();
        for index in (0..dead.list.len()).rev() {
            let is_enough = gone.len() == self.count || !gone.is_empty() && passed >= PASSED_PER_CALL;
            if is_enough || leaving.len() - gone.len() >= STALE_PER_CALL {
                break;
            }
            let Some(id) = dead.list.at(index) else { break };
            let field = queue_field(id.as_ref());
            let own = dead.map.get(field.as_ref());
            let is_stored = is_message(&dead.map, id.as_ref(), &DEAD_FIELDS);
            if is_stored && queue.is_some_and(|queue| own.as_ref().is_none_or(|own| own.bytes() != queue.bytes())) {
                passed += 1;
                continue;
            }
            self.queues.extend(own.map(|own| own.bytes().to_vec()));
            if is_stored {
                gone.push(OwnedStr::retain(id.as_ref()));
            }
            // The walk comes from the right, so the first one met is the last occurrence.
            let side = if seen.insert(id.bytes().to_vec()) { LremSide::Tail } else { LremSide::Ambiguous };
            leaving.push((Place { index, side }, id));
        }
        dead.remove_from_list(&leaving);
        let mut purged = 0;
        for id in &gone {
            let id = id.as_ref();
            purged += usize::from(dead.forget(id));
            // A live message of this id was published after the dead one.
            if !is_message(&self.places.keys.payloads, id, &FIELDS) {
                self.once.remove(id);
            }
        }
        Ok(purged)
    }

    /// If the whole hash is missing, that proves nothing about the messages.
    fn has_payloads(&self, ids: usize) -> bool {
        let exists = self.places.keys.payloads.exists();
        if !exists {
            Reason::NoMap.report(ids.min(self.count), || self.ns.names.payloads.bytes().to_vec());
        }
        exists
    }

    /// Every trace of these messages that is left. Returns how many there were.
    fn forget(&mut self, ids: &[OwnedStr]) -> usize {
        let ids: Vec<StrRef> = ids.iter().map(OwnedStr::as_ref).collect();
        for id in &ids {
            self.places.keys.delays.remove(*id);
            self.places.keys.expires.remove(*id);
            self.once.remove(*id);
        }
        forget_fields(&mut self.places.keys.payloads, &ids).into_iter().filter(|had_any| *had_any).count()
    }

    fn forget_empty_queues(&mut self) {
        let mut empty = std::mem::take(&mut self.queues);
        empty.retain(|queue| self.is_without_policy_and_lists(queue));
        if empty.is_empty() || !self.leave_out_delayed_and_dead(&mut empty) {
            return;
        }
        for short in empty.iter().filter_map(|queue| self.ns.names.short(queue)) {
            self.places.keys.queues.delete(OwnedStr::new(short).as_ref());
        }
    }

    fn is_without_policy_and_lists(&mut self, queue: &[u8]) -> bool {
        let keys = &mut self.places.keys;
        let short = self.ns.names.short(queue).map(OwnedStr::new);
        let is_empty = |lists: &mut Lists| {
            let list = lists.find(OwnedStr::new(queue)).ok().and_then(|number| lists.get(number));
            list.is_some_and(|list| list.len() == 0)
        };
        short.and_then(|short| keys.queues.get(short.as_ref())).is_some_and(|policy| policy.bytes() == b"{}")
            && is_empty(&mut keys.pending)
            && is_empty(&mut keys.processing)
    }

    /// Only queues without delayed and dead messages stay in the set. False if there are too many to look at.
    fn leave_out_delayed_and_dead(&mut self, queues: &mut BTreeSet<Vec<u8>>) -> bool {
        let (keys, dead) = (&self.places.keys, &mut self.places.dead);
        if keys.delays.len() > LOOKED_AT || dead.list.len() > LOOKED_AT {
            return false;
        }
        let mut leave_out = |map: &HashKey, id: OwnedStr| {
            if let Some(own) = map.get(queue_field(id.as_ref()).as_ref()) {
                queues.remove(own.bytes());
            }
        };
        let _ = keys.delays.between(f64::NEG_INFINITY, f64::INFINITY, |id, _| {
            leave_out(&keys.payloads, id);
            Ok::<_, ()>(Walk::On)
        });
        for index in 0..dead.list.len() {
            let Some(id) = dead.list.at(index) else { break };
            leave_out(&dead.map, id);
        }
        true
    }
}
