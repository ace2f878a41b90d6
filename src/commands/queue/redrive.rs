//! RMQ.REDRIVE namespace COUNT n [QUEUE queue]
//! RMQ.REDRIVE namespace IDS id [id …]
//!
//! Dead letters move back to the left of their own pending list, with their attempts forgotten: the oldest n, or these.
//! Replies with one [id, queue] per message. A dead letter stays where it is if its queue is unknown or its pending list
//! cannot be used, or if a live message has its id. An id in the list without dead letter is stale and removed.

use crate::args::{self, Opt};
use crate::clock::resume;
use crate::dead::DeadLetters;
use crate::error::Error;
use crate::hash::IdSet;
use crate::lists::Lists;
use crate::message::{attempts_field, queue_field};
use crate::namespace::Namespace;
use crate::redis::command::{optional, required, several, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::list::{LremSide, Place};
use crate::redis::{HashKey, Invocation, OwnedStr, StrRef};
use crate::skipped::Reason;
use crate::stats::{self, Counter};

/// Dead letters that have to stay where they are, passed in one call.
const PASSED_PER_CALL: usize = 1000;

pub struct Redrive;

enum Which<'c> {
    /// The oldest ones, of all queues or of this one.
    Oldest {
        count: usize,
        queue: Option<OwnedStr>,
    },
    Ids(&'c [StrRef<'c>]),
}

struct Letter {
    id: OwnedStr,
    payload: OwnedStr,
    queue: usize,
}

impl Command for Redrive {
    const SPEC: Spec = Spec {
        name: "RMQ.REDRIVE",
        summary: "Moves dead letters back to the pending lists of their queues.",
        complexity: "O(N+S) for N dead letters moved and S that stay, at most 1000; with IDS O(D) for D dead letters",
        flags: "write",
        categories: "write slow",
        args: &[
            NAMESPACE,
            required(
                "which",
                Kind::OneOf(&[
                    required(
                        "oldest",
                        Kind::Group(&[
                            required("count", Kind::Option("COUNT", ValueType::Integer)),
                            optional("queue", Kind::Option("QUEUE", ValueType::Text)),
                        ]),
                    ),
                    several("id", Kind::Option("IDS", ValueType::Text)),
                ]),
            ),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, words @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let ns = Namespace::of_caller(call, *namespace)?;
        let which = Which::parse(&ns, words)?;
        let mut dead = ns.dead_letters()?;
        let mut payloads = ns.payloads()?;
        let mut queues = ns.queues()?;
        let all_exist = dead.map.exists() && dead.list.exists() && payloads.exists() && queues.exists();
        ns.check_slot(!all_exist)?;
        let mut pending = Lists::pending_of(&ns);
        if !dead.map.exists() {
            Reason::NoMap.report(dead.list.len().min(PASSED_PER_CALL), || ns.names.dlq_data.bytes().to_vec());
            call.reply_array(0);
            return Ok(());
        }
        let mut search = Search { ns: &ns, payloads: &payloads, pending: &mut pending, unusable: 0 };
        let (letters, leaving) = match which {
            Which::Oldest { count, queue } => search.oldest(&mut dead, count, queue.as_ref())?,
            Which::Ids(ids) => search.ids(&mut dead, ids)?,
        };
        let unusable = search.unusable;

        dead.remove_from_list(&leaving);
        pending.push_left(letters.iter().map(|letter| (&letter.id, letter.queue)));
        for letter in &letters {
            let (id, field) = (letter.id.as_ref(), queue_field(letter.id.as_ref()));
            payloads.set(id, letter.payload.as_ref());
            payloads.set(field.as_ref(), pending.name(letter.queue));
            dead.forget(id);
        }
        for letter in &letters {
            payloads.delete(attempts_field(letter.id.as_ref()).as_ref());
        }
        pending.register_created(&mut queues);

        stats::add(Counter::Redriven, letters.len());
        // A dead letter that is not in the list leaves nothing there.
        stats::add(Counter::Stale, leaving.len().saturating_sub(letters.len()));
        pending.report_skipped(unusable);
        call.reply_array(letters.len());
        for letter in &letters {
            call.reply_array(2);
            call.reply_str(letter.id.as_ref());
            ns.reply_queue(pending.name(letter.queue).bytes());
        }
        Ok(())
    }
}

impl<'c> Which<'c> {
    fn parse(ns: &Namespace, words: &'c [StrRef<'c>]) -> Result<Self, Error> {
        if let [word, ids @ ..] = words {
            if word.bytes().eq_ignore_ascii_case(b"IDS") {
                return match ids {
                    [] => Err(Error::Incomplete("IDS", args::AT_LEAST_ONE_ID)),
                    ids => Ok(Which::Ids(ids)),
                };
            }
        }
        let [count, queue] = args::options(words, [Opt::Value("COUNT"), Opt::Value("QUEUE")])?;
        let count = count.ok_or(Error::Missing("COUNT or IDS", "a number, or ids"))?;
        let count = args::limited("COUNT", count.bytes())?;
        Ok(Which::Oldest { count, queue: queue.map(|queue| ns.queue(queue)).transpose()? })
    }
}

type Leaving = Vec<(Place, OwnedStr)>;

/// Finds dead letters that can move.
struct Search<'a, 'c> {
    ns: &'a Namespace<'c>,
    payloads: &'a HashKey<'c>,
    pending: &'a mut Lists<'c>,
    unusable: usize,
}

impl Search<'_, '_> {
    /// None: it stays.
    fn letter(
        &mut self,
        dead: &HashKey,
        id: StrRef,
        payload: OwnedStr,
        only: Option<&OwnedStr>,
    ) -> Result<Option<Letter>, Error> {
        let Some(queue) = dead.get(queue_field(id).as_ref()) else {
            return Ok(None);
        };
        if only.is_some_and(|only| only.bytes() != queue.bytes()) || self.payloads.has(id) {
            return Ok(None);
        }
        let known = self.pending.len();
        let queue = self.pending.find(queue)?;
        if !self.pending.is_usable(queue) {
            self.unusable += 1;
            return Ok(None);
        }
        if queue == known {
            self.ns.check_pending(self.pending.name(queue).bytes())?;
        }
        Ok(Some(Letter { id: OwnedStr::retain(id), payload, queue }))
    }

    /// From the right. Letters that stay take time, so one call passes at most `PASSED_PER_CALL`, and the next goes on where
    /// this one stopped.
    fn oldest(
        &mut self,
        dead: &mut DeadLetters,
        count: usize,
        only: Option<&OwnedStr>,
    ) -> Result<(Vec<Letter>, Leaving), Error> {
        let (mut letters, mut leaving) = (Vec::new(), Leaving::new());
        let mut seen: IdSet<Vec<u8>> = IdSet::default();
        let mut passed = 0;
        // Where to go on is kept for each queue named.
        let walk = OwnedStr::concat(dead.list.name().bytes(), only.map_or(b"", |queue| queue.bytes()));
        let (start, mut last_that_stays) = match resume::get(self.ns.call, walk.as_ref()) {
            Some((distance, id)) if dead.goes_on_behind(distance as usize, &id) => (distance as usize, id),
            _ => (0, Vec::new()),
        };
        let mut distance = start;
        while letters.len() < count && passed < PASSED_PER_CALL {
            let Some(index) = dead.list.len().checked_sub(distance + 1) else { break };
            let Some(id) = dead.list.at(index) else { break };
            distance += 1;
            // From the right end on, this is the last occurrence of the id.
            let side = if start == 0 { LremSide::Tail } else { LremSide::Ambiguous };
            let place = Place { index, side };
            let Some(payload) = dead.map.get(id.as_ref()).filter(|_| !seen.contains(id.bytes())) else {
                leaving.push((place, id));
                passed += 1;
                continue;
            };
            match self.letter(&dead.map, id.as_ref(), payload, only)? {
                Some(letter) => {
                    seen.insert(id.bytes().to_vec());
                    letters.push(letter);
                    leaving.push((place, id));
                }
                None => {
                    last_that_stays = id.bytes().to_vec();
                    passed += 1;
                }
            }
        }
        let is_half_way = passed >= PASSED_PER_CALL || start > 0 && letters.len() == count;
        let stopped_at = is_half_way.then_some(((distance - leaving.len()) as f64, last_that_stays));
        resume::set(self.ns.call, walk.as_ref(), stopped_at);
        Ok((letters, leaving))
    }

    fn ids(&mut self, dead: &mut DeadLetters, ids: &[StrRef]) -> Result<(Vec<Letter>, Leaving), Error> {
        let mut letters = Vec::new();
        let mut seen: IdSet<&[u8]> = IdSet::default();
        for id in ids.iter().filter(|id| seen.insert(id.bytes())) {
            if let Some(payload) = dead.map.get(*id) {
                letters.extend(self.letter(&dead.map, *id, payload, None)?);
            }
        }
        let leaving = dead.places_of(letters.iter().map(|letter| &letter.id));
        Ok((letters, leaving))
    }
}
