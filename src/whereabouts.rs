//! Where messages are: looking ids up in every place that a message can be in.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::keep::Keys;
use crate::clock::{Now, LATEST_MS};
use crate::dead::DeadLetters;
use crate::error::Error;
use crate::hash::IdMap;
use crate::lists::Lists;
use crate::message::{is_message, queue_field, DEAD_FIELDS, FIELDS};
use crate::namespace::Namespace;
use crate::processing::Processing;
use crate::redis::list::{Place, Sought};
use crate::redis::{OwnedStr, StrRef};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Pending,
    Delayed,
    Processing,
    Dead,
    /// Stored, but in no list.
    Lost,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Delayed => "delayed",
            State::Processing => "processing",
            State::Dead => "dead",
            State::Lost => "lost",
        }
    }
}

/// All keys of a namespace that a message can be in.
pub struct Whereabouts<'c> {
    pub keys: Keys<'c>,
    pub dead: DeadLetters<'c>,
}

/// What is known of an id.
pub struct Traces<'c> {
    pub id: StrRef<'c>,
    /// Of the live message, or else of the dead one; None if there is no message with this id.
    pub state: Option<State>,
    /// `<id>:queue`, or else the queue in whose list it is. Full name.
    pub queue: Option<OwnedStr>,
    pub deadline: Option<f64>,
    pub due: Option<f64>,
    /// Where it is in lists: the number of the list, and the place. Several only after a fault.
    pub pending: Vec<(usize, Place)>,
    pub processing: Vec<(usize, Place)>,
    pub is_dead: bool,
}

impl<'c> Traces<'c> {
    /// Whether there is a deadline that comes: later ones (infinity, a script's µs taken for ms) are as good as none.
    pub fn has_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= LATEST_MS)
    }

    /// Its places in pending lists, as `take_out` takes them.
    pub fn in_pending(&self) -> impl Iterator<Item = (usize, Place, StrRef<'c>)> + '_ {
        self.pending.iter().map(|(list, place)| (*list, *place, self.id))
    }

    pub fn in_processing(&self) -> impl Iterator<Item = (usize, Place, StrRef<'c>)> + '_ {
        self.processing.iter().map(|(list, place)| (*list, *place, self.id))
    }

    /// In no list, nor delayed.
    pub fn is_nowhere(&self) -> bool {
        self.pending.is_empty() && self.processing.is_empty() && self.due.is_none()
    }
}

/// The ids without repetition, and for each one given its number among them.
pub fn distinct<'c>(ids: &[StrRef<'c>]) -> (Vec<StrRef<'c>>, Vec<usize>) {
    let mut numbers: IdMap<&[u8], usize> = IdMap::default();
    let mut distinct = Vec::with_capacity(ids.len());
    let of_each = ids.iter().map(|id| {
        *numbers.entry(id.bytes()).or_insert_with(|| {
            distinct.push(*id);
            distinct.len() - 1
        })
    });
    let of_each = of_each.collect();
    (distinct, of_each)
}

impl<'c> Whereabouts<'c> {
    pub fn open(ns: &Namespace<'c>) -> Result<Self, Error> {
        Ok(Whereabouts { keys: Keys::open(ns)?, dead: ns.dead_letters()? })
    }

    /// Looks each id up: in its own queue's lists, and if it is in no place there, in those of all known queues. The ids are
    /// distinct.
    pub fn look_up<'i>(&mut self, ns: &Namespace<'c>, ids: &[StrRef<'i>], now: Now) -> Result<Vec<Traces<'i>>, Error> {
        let mut all = self.without_lists(ids);
        let mut by_queue: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
        for (number, traces) in all.iter().enumerate() {
            if let Some(queue) = &traces.queue {
                by_queue.entry(queue.bytes().to_vec()).or_default().push(number);
            }
        }
        for (queue, numbers) in by_queue {
            self.search(ns, &queue, &sought(&all, numbers), &mut all)?;
        }
        let is_missing = |number: &usize| {
            let traces = &all[*number];
            traces.is_nowhere() && self.is_live(traces.id)
        };
        let missing: Vec<usize> = (0..all.len()).filter(is_missing).collect();
        if !missing.is_empty() {
            let missing = sought(&all, missing);
            for short in Namespace::known_queues(&self.keys.queues) {
                let searched = self.search(ns, ns.names.queue(short.bytes()).bytes(), &missing, &mut all);
                pass_over_wrong_type(searched)?;
            }
        }
        for traces in &mut all {
            traces.state = self.state_of(traces, now);
            if traces.queue.is_none() {
                let list =
                    |lists: &Lists, found: &[(usize, Place)]| Some(OwnedStr::retain(lists.name(found.first()?.0)));
                traces.queue = list(&self.keys.pending, &traces.pending)
                    .or_else(|| list(&self.keys.processing, &traces.processing));
            }
        }
        Ok(all)
    }

    /// Looks each id up in the lists of every known queue and of those that the ids name, in one pass over each. A list of
    /// another type is skipped. `queue` is the value of `<id>:queue`. The ids are distinct.
    pub fn look_everywhere<'i>(
        &mut self,
        ns: &Namespace<'c>,
        ids: &[StrRef<'i>],
        now: Now,
    ) -> Result<Vec<Traces<'i>>, Error> {
        let mut all = self.without_lists(ids);
        let named = all.iter().filter_map(|traces| Some(traces.queue.as_ref()?.bytes().to_vec()));
        let known = Namespace::known_queues(&self.keys.queues);
        let queues: BTreeSet<Vec<u8>> =
            named.chain(known.iter().map(|short| ns.names.queue(short.bytes()).bytes().to_vec())).collect();
        let sought = Sought::of(ids);
        for queue in queues {
            pass_over_wrong_type(self.search(ns, &queue, &sought, &mut all))?;
        }
        for traces in &mut all {
            traces.state = self.state_of(traces, now);
        }
        Ok(all)
    }

    pub fn is_live(&self, id: StrRef) -> bool {
        is_message(&self.keys.payloads, id, &FIELDS)
    }

    /// What is known of the ids before the lists were searched.
    fn without_lists<'i>(&self, ids: &[StrRef<'i>]) -> Vec<Traces<'i>> {
        let traces = |id: &StrRef<'i>| Traces {
            id: *id,
            state: None,
            queue: self.keys.payloads.get(queue_field(*id).as_ref()),
            deadline: self.keys.expires.score(*id),
            due: self.keys.delays.score(*id),
            pending: Vec::new(),
            processing: Vec::new(),
            is_dead: is_message(&self.dead.map, *id, &DEAD_FIELDS),
        };
        ids.iter().map(traces).collect()
    }

    /// Which of these ids have a deadline and are in the processing list of their own queue; one pass over each list.
    pub fn are_held(&mut self, ns: &Namespace<'c>, ids: &[StrRef]) -> Result<Vec<bool>, Error> {
        let mut by_queue: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
        for (number, id) in ids.iter().enumerate() {
            // Without a deadline there is no lease.
            let queue = self.keys.expires.score(*id).and_then(|_| self.keys.payloads.get(queue_field(*id).as_ref()));
            if let Some(queue) = queue.filter(|queue| ns.names.short(queue.bytes()).is_some()) {
                by_queue.entry(queue.bytes().to_vec()).or_default().push(number);
            }
        }
        let mut are_held = vec![false; ids.len()];
        for (queue, numbers) in by_queue {
            let list = self.keys.processing.find(OwnedStr::new(&queue))?;
            let Some(list) = self.keys.processing.get(list) else {
                // It cannot be found out, so nothing of them is removed.
                numbers.iter().for_each(|number| are_held[*number] = true);
                continue;
            };
            let of_queue: Vec<StrRef> = numbers.iter().map(|number| ids[*number]).collect();
            // A list has one occurrence of each for all its copies.
            let (of_queue, of_each) = distinct(&of_queue);
            let mut in_processing = vec![false; of_queue.len()];
            for (index, _) in Processing::of(list).find_all(&of_queue, &self.keys.expires) {
                in_processing[index] = true;
            }
            numbers.iter().zip(of_each).for_each(|(number, index)| are_held[*number] = in_processing[index]);
        }
        Ok(are_held)
    }

    /// Looks for ids in the lists of one queue; their numbers are those of their traces. A queue of another namespace is never
    /// followed.
    fn search(&mut self, ns: &Namespace<'c>, queue: &[u8], sought: &Sought, all: &mut [Traces]) -> Result<(), Error> {
        if ns.names.short(queue).is_none() {
            return Ok(());
        }
        ns.check_pending(queue)?;
        ns.check_processing(queue)?;
        // The other list is searched all the same: some callers ignore this error.
        let mut unusable = Ok(());
        for is_pending in [true, false] {
            let lists = if is_pending { &mut self.keys.pending } else { &mut self.keys.processing };
            let number = match lists.open(&OwnedStr::new(queue)) {
                Ok(number) => number,
                Err(error @ Error::KeyWrongType { .. }) => {
                    unusable = unusable.and(Err(error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(list) = lists.get(number) else { continue };
            for (index, place) in list.every_place_of(sought) {
                let traces = &mut all[index];
                let found = if is_pending { &mut traces.pending } else { &mut traces.processing };
                found.push((number, place));
            }
        }
        unusable
    }

    /// Of several places, the one that REPAIR would keep: processing while the lease runs, else pending, else
    /// delayed.
    fn state_of(&self, traces: &Traces, now: Now) -> Option<State> {
        if !self.is_live(traces.id) {
            return traces.is_dead.then_some(State::Dead);
        }
        let is_leased = traces.has_deadline() && traces.deadline > Some(now.exact_ms());
        Some(match traces {
            _ if !traces.processing.is_empty() && is_leased => State::Processing,
            _ if !traces.pending.is_empty() => State::Pending,
            _ if traces.due.is_some() => State::Delayed,
            _ if !traces.processing.is_empty() => State::Processing,
            _ => State::Lost,
        })
    }
}

/// A list of another type concerns its own queue only.
fn pass_over_wrong_type(searched: Result<(), Error>) -> Result<(), Error> {
    match searched {
        Err(Error::KeyWrongType { .. }) => Ok(()),
        result => result,
    }
}

fn sought<'i>(all: &[Traces<'i>], numbers: Vec<usize>) -> Sought<'i> {
    Sought::new(numbers.into_iter().map(|number| (number, all[number].id)))
}

/// Takes ids out of lists: for each the number of the list, and the place.
pub fn take_out<'a>(lists: &mut Lists, found: impl Iterator<Item = (usize, Place, StrRef<'a>)>) {
    let mut by_list: Vec<Vec<(Place, StrRef)>> = vec![Vec::new(); lists.len()];
    for (list, place, id) in found {
        by_list[list].push((place, id));
    }
    for (number, places) in by_list.iter_mut().enumerate() {
        if let (Some(list), false) = (lists.get(number), places.is_empty()) {
            list.remove(places);
        }
    }
}
