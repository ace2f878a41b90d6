//! RMQ.PURGE namespace [COUNT n] PENDING queue | DELAYED [queue] | DEAD [queue]
//!
//! Removes pending, delayed or dead messages with their payloads, oldest first. Replies with how many: call it again until
//! that is 0. A queue without messages and without a policy is removed from `<ns>:queues`.

use std::collections::BTreeSet;

use crate::args::{self, Opt};
use crate::dead::death_field;
use crate::error::Error;
use crate::hash::IdSet;
use crate::message::{forget_fields, is_message, queue_field, DEAD_FIELDS};
use crate::namespace::Namespace;
use crate::redis::command::{optional, required, Arg, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::list::{LremSide, Place};
use crate::redis::zset::Walk;
use crate::redis::{Invocation, OwnedStr, StrRef, ZsetKey};
use crate::settings;
use crate::skipped::Reason;
use crate::stats::{self, Counter};
use crate::whereabouts::Whereabouts;

pub struct Purge;

/// Ids without message, and copies of messages that are held, that one call removes.
const STALE_PER_CALL: usize = 1000;
/// Messages of other queues that a call passes once it has found one of the queue asked for.
const PASSED_PER_CALL: usize = 10_000;
/// Delayed and dead messages that are checked to find out whether a queue has none of either.
const LOOKED_AT: usize = 1000;

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
                Kind::OneOf(&[
                    required("queue", Kind::Option("PENDING", ValueType::Text)),
                    required("delayed", Kind::Group(DELAYED)),
                    required("dead", Kind::Group(DEAD)),
                ]),
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

const QUEUE: Arg = optional("queue", Kind::Text);
const DELAYED: &[Arg] = &[required("delayed", Kind::Word("DELAYED")), QUEUE];
const DEAD: &[Arg] = &[required("dead", Kind::Word("DEAD")), QUEUE];

fn parse(ns: &Namespace, words: &[StrRef]) -> Result<(Which, usize), Error> {
    let is = |word: &StrRef, name: &str| word.bytes().eq_ignore_ascii_case(name.as_bytes());
    let states = ["PENDING", "DELAYED", "DEAD"];
    let state_of = |word: &StrRef| states.into_iter().find(|state| is(word, state));
    let Some((position, state)) = words.iter().enumerate().find_map(|(at, word)| Some((at, state_of(word)?))) else {
        args::options(words, [Opt::Value("COUNT")])?;
        return Err(Error::Missing("PENDING, DELAYED or DEAD", "a queue (needed for PENDING only)"));
    };
    let [count] = args::options(&words[..position], [Opt::Value("COUNT")])?;
    let count = match count {
        Some(count) => args::limited("COUNT", count.bytes())?,
        None => settings::MAX_BATCH.as_usize(),
    };
    let queue = match &words[position + 1..] {
        [] => None,
        [queue] => Some(ns.queue(*queue)?),
        [_, more, ..] => return Err(Error::UnknownOption(more.bytes().to_vec())),
    };
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
        let number = self.places.keys.pending.find(OwnedStr::retain(queue.as_ref()))?;
        if !self.places.keys.pending.is_usable(number) {
            return Err(self.places.keys.pending.why_unusable(number));
        }
        let mut ids = Vec::new();
        if let Some(list) = self.places.keys.pending.get(number) {
            let most = self.count.saturating_add(STALE_PER_CALL);
            ids.extend((0..list.len()).rev().take(most).map_while(|index| list.at(index)));
        }
        if !self.has_payloads(ids.len()) {
            return Ok(0);
        }
        self.queues.insert(queue.bytes().to_vec());
        // The payload of a leased message stays; only the copy of its id is removed.
        let ids: Vec<StrRef> = ids.iter().map(OwnedStr::as_ref).collect();
        let are_held = self.places.are_held(self.ns, &ids)?;
        let (mut gone, mut leaving) = (Vec::new(), 0);
        for (id, is_held) in ids.iter().zip(are_held) {
            if gone.len() == self.count || leaving - gone.len() == STALE_PER_CALL {
                break;
            }
            leaving += 1;
            if !is_held && self.places.is_live(*id) {
                gone.push(*id);
            }
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
        let (mut ids, mut passed) = (Vec::new(), 0);
        let payloads = &self.places.keys.payloads;
        let _ = self.places.keys.delays.between(f64::NEG_INFINITY, f64::INFINITY, |id, _| {
            let own = payloads.get(queue_field(id.as_ref()).as_ref());
            match queue.is_none_or(|queue| own.as_ref().is_some_and(|own| own.bytes() == queue.bytes())) {
                true => ids.push((id, own)),
                false => passed += 1,
            }
            let is_enough = ids.len() == self.count || !ids.is_empty() && passed >= PASSED_PER_CALL;
            Ok::<_, ()>(if is_enough { Walk::Stop } else { Walk::On })
        });
        let in_order: Vec<StrRef> = ids.iter().map(|(id, _)| id.as_ref()).collect();
        let are_held = self.places.are_held(self.ns, &in_order)?;
        self.queues.extend(ids.iter().filter_map(|(_, own)| Some(own.as_ref()?.bytes().to_vec())));
        let mut gone = Vec::new();
        for (id, is_held) in in_order.into_iter().zip(are_held) {
            self.places.keys.delays.remove(id);
            if !is_held && self.places.is_live(id) {
                gone.push(id);
            }
        }
        Ok(self.forget(&gone))
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
            if is_enough || leaving.len() >= self.count + STALE_PER_CALL {
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
            purged += usize::from(dead.map.delete(id));
            dead.map.delete(queue_field(id).as_ref());
            dead.map.delete(death_field(id).as_ref());
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
    fn forget(&mut self, ids: &[StrRef]) -> usize {
        for id in ids {
            self.places.keys.delays.remove(*id);
            self.places.keys.expires.remove(*id);
            self.once.remove(*id);
        }
        forget_fields(&mut self.places.keys.payloads, ids).into_iter().filter(|had_any| *had_any).count()
    }

    fn forget_empty_queues(&mut self) {
        for queue in std::mem::take(&mut self.queues) {
            let Some(short) = self.ns.names.short(&queue).map(OwnedStr::new) else { continue };
            let has_policy = self.places.keys.queues.get(short.as_ref()).is_some_and(|policy| policy.bytes() != b"{}");
            if !has_policy && !self.has_messages(&queue) {
                self.places.keys.queues.delete(short.as_ref());
            }
        }
    }

    /// Whether a queue has messages, or might have: at most `LOOKED_AT` delayed and dead ones are checked.
    fn has_messages(&mut self, queue: &[u8]) -> bool {
        let keys = &mut self.places.keys;
        for lists in [&mut keys.pending, &mut keys.processing] {
            let list = lists.find(OwnedStr::new(queue)).ok().and_then(|number| lists.get(number));
            if list.is_none_or(|list| list.len() > 0) {
                return true;
            }
        }
        let dead = &mut self.places.dead;
        if keys.delays.len() > LOOKED_AT || dead.list.len() > LOOKED_AT {
            return true;
        }
        let is_own = |own: Option<OwnedStr>| own.is_some_and(|own| own.bytes() == queue);
        let mut is_delayed = false;
        let _ = keys.delays.between(f64::NEG_INFINITY, f64::INFINITY, |id, _| {
            is_delayed |= is_own(keys.payloads.get(queue_field(id.as_ref()).as_ref()));
            Ok::<_, ()>(if is_delayed { Walk::Stop } else { Walk::On })
        });
        let is_dead = (0..dead.list.len())
            .any(|index| dead.list.at(index).is_some_and(|id| is_own(dead.map.get(queue_field(id.as_ref()).as_ref()))));
        is_delayed || is_dead
    }
}
