//! AUDIT and REPAIR: checks that every message of a namespace is in exactly one place, and repairs what is not. A call
//! checks one page of all stored elements, and replies with the cursor of the next page. Each message of the page is looked
//! up in every place in the same call, so that a message that moves between two calls is not taken for a fault.

use std::collections::BTreeMap;

use crate::args::{self, Opt};
use crate::clock::keep::Keys;
use crate::clock::Now;
use crate::error::Error;
use crate::hash::IdSet;
use crate::lists::{Lists, PENDING};
use crate::message::{is_field_of_message, is_message, owner_of, queue_field, DEAD_FIELDS, FIELDS};
use crate::namespace::Namespace;
use crate::redis::list::{End, Place, Sought};
use crate::redis::{HashKey, Invocation, OwnedStr, StrRef, ZsetKey};
use crate::settings;
use crate::skipped::Reason;
use crate::whereabouts::{take_out, State, Traces, Whereabouts};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// Stored, but in no list.
    Lost,
    PendingWithoutPayload,
    ProcessingWithoutPayload,
    DelayedWithoutPayload,
    DeadWithoutPayload,
    /// In processing without a deadline, or with one that never comes: it would never be taken back.
    WithoutDeadline,
    InTwoPlaces,
    /// Its `<id>:queue` is missing, of another namespace, or not the queue whose processing list it is in: it would
    /// never be taken back, or moved when it is due.
    WrongQueue,
    /// Fields of a message that does not exist.
    OrphanFields,
    /// Deadlines of messages that do not exist.
    StaleDeadlines,
}

const FAULTS: [(Fault, &str); 10] = [
    (Fault::Lost, "lost"),
    (Fault::PendingWithoutPayload, "pending_without_payload"),
    (Fault::ProcessingWithoutPayload, "processing_without_payload"),
    (Fault::DelayedWithoutPayload, "delayed_without_payload"),
    (Fault::DeadWithoutPayload, "dead_without_payload"),
    (Fault::WithoutDeadline, "without_deadline"),
    (Fault::InTwoPlaces, "in_two_places"),
    (Fault::WrongQueue, "wrong_queue"),
    (Fault::OrphanFields, "orphan_fields"),
    (Fault::StaleDeadlines, "stale_deadlines"),
];

/// The deadline that REPAIR gives a message without one: a consumer that is about to set its own has the time to do so.
const NEW_DEADLINE_MS: i64 = 10_000;
/// COUNT of a scan. Servers that cannot scan without values return the payloads too, so it is small.
const SCANNED_AT_ONCE: usize = 100;

/// What a checkup walks over, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Payloads,
    Pending,
    Processing,
    Delays,
    Expires,
    Dead,
    DeadData,
}

const PARTS: [Part; 7] =
    [Part::Payloads, Part::Pending, Part::Processing, Part::Delays, Part::Expires, Part::Dead, Part::DeadData];

/// Where the next page starts. As a number it has at most 53 bits, so that it is exact in a double.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct PageCursor {
    part: usize,
    /// The index of the queue among the known ones, sorted by name.
    queue: usize,
    /// An index from the left, or the server's own cursor.
    position: u64,
}

const POSITION_BITS: u32 = 30;
const QUEUE_BITS: u32 = 20;

impl PageCursor {
    fn of_number(number: u64) -> Option<Self> {
        let part = usize::try_from(number >> (POSITION_BITS + QUEUE_BITS)).ok().filter(|part| *part < PARTS.len())?;
        let rest = number & ((1 << (POSITION_BITS + QUEUE_BITS)) - 1);
        Some(match PARTS[part] {
            Part::Pending | Part::Processing => PageCursor {
                part,
                queue: (rest >> POSITION_BITS) as usize,
                position: rest & ((1 << POSITION_BITS) - 1),
            },
            _ => PageCursor { part, queue: 0, position: rest },
        })
    }

    fn number(self) -> u64 {
        (self.part as u64) << (POSITION_BITS + QUEUE_BITS) | (self.queue as u64) << POSITION_BITS | self.position
    }

    /// None at the end.
    fn next_part(self) -> Option<Self> {
        (self.part + 1 < PARTS.len()).then(|| PageCursor { part: self.part + 1, ..PageCursor::default() })
    }
}

/// One element of the page.
struct PageEntry {
    part: Part,
    /// The number of its list.
    list: usize,
    /// An id, or a field of a hash.
    name: OwnedStr,
}

/// A page of a namespace, and what is wrong there.
struct Checkup<'c> {
    places: Whereabouts<'c>,
    /// The numbers of the pending and the processing list of each known queue.
    lists: Vec<(usize, usize)>,
    /// Where the next call goes on; None at the end.
    next: Option<PageCursor>,
    entries: Vec<PageEntry>,
    /// The fault, and the entry that it was found at.
    faults: Vec<(Fault, usize)>,
}

impl<'c> Checkup<'c> {
    /// Looks at about `count` elements.
    fn of(ns: &Namespace<'c>, cursor: PageCursor, count: usize) -> Result<Self, Error> {
        let mut places = Whereabouts::open(ns)?;
        let mut lists = Vec::new();
        for short in Namespace::known_queues(&places.keys.queues) {
            let queue = ns.names.queue(short.bytes());
            ns.check_pending(queue.bytes())?;
            ns.check_processing(queue.bytes())?;
            let pending = places.keys.pending.find(OwnedStr::retain(queue.as_ref()))?;
            lists.push((pending, places.keys.processing.find(queue)?));
        }
        if lists.len() >= 1 << QUEUE_BITS {
            return Err(Error::Invalid { argument: "namespace", expected: "one with less than 1048576 queues" });
        }
        let mut checkup = Checkup { places, lists, next: Some(cursor), entries: Vec::new(), faults: Vec::new() };
        while let Some(cursor) = checkup.next.filter(|_| checkup.entries.len() < count) {
            checkup.next = checkup.walk(ns, cursor, count)?;
        }
        Ok(checkup)
    }

    /// Adds elements to the page, from one part or one list. Returns where to go on.
    fn walk(&mut self, ns: &Namespace, cursor: PageCursor, count: usize) -> Result<Option<PageCursor>, Error> {
        let (part, most) = (PARTS[cursor.part], count - self.entries.len());
        let keys = &mut self.places.keys;
        let scanned = match part {
            Part::Payloads => keys.payloads.page(cursor.position, SCANNED_AT_ONCE.min(most)),
            Part::DeadData => self.places.dead.map.page(cursor.position, SCANNED_AT_ONCE.min(most)),
            Part::Delays => keys.delays.page(cursor.position, SCANNED_AT_ONCE.min(most)),
            Part::Expires => keys.expires.page(cursor.position, SCANNED_AT_ONCE.min(most)),
            Part::Pending | Part::Processing => {
                let Some((pending, processing)) = self.lists.get(cursor.queue) else { return Ok(cursor.next_part()) };
                let (number, list) = match part {
                    Part::Pending => (*pending, keys.pending.get(*pending)),
                    _ => (*processing, keys.processing.get(*processing)),
                };
                let start = cursor.position as usize;
                let len = list.as_ref().map_or(0, |list| list.len());
                if let Some(list) = list {
                    for index in (start..len).take(most) {
                        let Some(name) = list.at(index) else { break };
                        self.entries.push(PageEntry { part, list: number, name });
                    }
                }
                let end = start.saturating_add(most);
                // What is further behind in a list, the cursor could not say.
                return Ok(Some(match end < len.min(1 << POSITION_BITS) {
                    true => PageCursor { position: end as u64, ..cursor },
                    false => PageCursor { queue: cursor.queue + 1, position: 0, ..cursor },
                }));
            }
            Part::Dead => {
                let list = &mut self.places.dead.list;
                let (start, len) = (cursor.position as usize, list.len());
                for index in (start..len).take(most) {
                    let Some(name) = list.at(index) else { break };
                    self.entries.push(PageEntry { part, list: 0, name });
                }
                let end = start.saturating_add(most);
                return Ok(if end < len {
                    Some(PageCursor { position: end as u64, ..cursor })
                } else {
                    cursor.next_part()
                });
            }
        };
        // None: the server refused the scan, the slot moves.
        let refused = || Error::SlotMoves { derived_key: ns.names.payloads.bytes().to_vec() };
        let (position, names) = scanned.ok_or_else(refused)?;
        self.entries.extend(names.into_iter().map(|name| PageEntry { part, list: 0, name }));
        Ok(if position == 0 { cursor.next_part() } else { Some(PageCursor { position, ..cursor }) })
    }

    /// Replies with the cursor, 0 at the end, and a map from each kind of fault to how often it occurs, with some of the ids.
    fn reply(&self, call: &Invocation) {
        const IDS_SHOWN: usize = 10;
        let of_kind = |kind: Fault| self.faults.iter().filter(move |(fault, _)| *fault == kind);
        call.reply_array(2);
        call.reply_integer(self.next.map_or(0, PageCursor::number) as i64);
        call.reply_map(FAULTS.iter().filter(|(kind, _)| of_kind(*kind).next().is_some()).count());
        for (kind, word) in FAULTS {
            let count = of_kind(kind).count();
            if count > 0 {
                call.reply_bytes(word.as_bytes());
                call.reply_array(2);
                call.reply_integer(count as i64);
                call.reply_array(count.min(IDS_SHOWN));
                of_kind(kind).take(IDS_SHOWN).for_each(|(_, entry)| call.reply_bytes(self.id(*entry)));
            }
        }
    }

    /// The id that a fault is about.
    fn id(&self, entry: usize) -> &[u8] {
        let PageEntry { part, name, .. } = &self.entries[entry];
        match part {
            Part::Payloads => owner_of(name.bytes(), &FIELDS).unwrap_or(name.bytes()),
            Part::DeadData => owner_of(name.bytes(), &DEAD_FIELDS).unwrap_or(name.bytes()),
            _ => name.bytes(),
        }
    }

    /// Finds what is wrong with the page, and mends it if `mend` is asked for. Returns how many faults were mended.
    fn check(&mut self, ns: &Namespace<'c>, now: Now, mend: bool) -> Result<usize, Error> {
        let entries = std::mem::take(&mut self.entries);
        let result = self.check_entries(ns, &entries, now, mend);
        self.entries = entries;
        result
    }

    fn check_entries(
        &mut self,
        ns: &Namespace<'c>,
        entries: &[PageEntry],
        now: Now,
        mend: bool,
    ) -> Result<usize, Error> {
        let numbers: Vec<usize> = self.stored_once(entries, Part::Payloads);
        let ids: Vec<StrRef> = numbers.iter().map(|number| entries[*number].name.as_ref()).collect();
        let messages = self.places.look_everywhere(ns, &ids, now)?;
        let dead_numbers: Vec<usize> = self.stored_once(entries, Part::DeadData);
        let dead_ids: Vec<StrRef> = dead_numbers.iter().map(|number| entries[*number].name.as_ref()).collect();
        let in_dead_list = self.places.dead.list.every_place_of(&Sought::of(&dead_ids));
        let has_payloads = self.places.keys.payloads.exists();
        let has_dead = self.places.dead.map.exists();

        let mut mending = Mending::default();
        for (traces, number) in messages.iter().zip(&numbers) {
            // A field of a message that is gone looks like an id, too.
            if is_field(&self.places.keys.payloads, traces.id, &FIELDS) && traces.is_nowhere() {
                mending.fields.push(traces.id);
                self.faults.push((Fault::OrphanFields, *number));
            } else if let Some(fault) = self.fault_of(ns, traces) {
                mending.messages.push(traces);
                self.faults.push((fault, *number));
            }
        }
        let mut dead_places: Vec<Vec<Place>> = vec![Vec::new(); dead_ids.len()];
        in_dead_list.into_iter().for_each(|(number, place)| dead_places[number].push(place));
        for ((id, number), mut places) in dead_ids.iter().zip(&dead_numbers).zip(dead_places) {
            places.sort_by_key(|place| place.index);
            let fault = match places.len() {
                0 if is_field(&self.places.dead.map, *id, &DEAD_FIELDS) => Fault::OrphanFields,
                0 => Fault::Lost,
                1 => continue,
                _ => Fault::InTwoPlaces,
            };
            match fault {
                Fault::OrphanFields => mending.dead_fields.push(*id),
                Fault::Lost => mending.dead_lost.push(*id),
                // A second death puts the id at the left, so the leftmost stays.
                _ => mending.in_dead.extend(places.iter().skip(1).map(|place| (*place, *id))),
            }
            self.faults.push((fault, *number));
        }
        for (number, entry) in entries.iter().enumerate() {
            let id = entry.name.as_ref();
            let is_stored = match entry.part {
                Part::Payloads | Part::DeadData => continue,
                Part::Dead => is_message(&self.places.dead.map, id, &DEAD_FIELDS),
                _ => is_message(&self.places.keys.payloads, id, &FIELDS),
            };
            if is_stored {
                continue;
            }
            let fault = match entry.part {
                Part::Pending => Fault::PendingWithoutPayload,
                Part::Processing => Fault::ProcessingWithoutPayload,
                Part::Delays => Fault::DelayedWithoutPayload,
                Part::Expires => Fault::StaleDeadlines,
                _ => Fault::DeadWithoutPayload,
            };
            self.faults.push((fault, number));
            match entry.part {
                // Where a hash is missing as a whole, that proves nothing about the messages.
                Part::Dead if !has_dead => mending.skipped_dead += 1,
                Part::Dead => mending.unknown_dead.push(id),
                _ if !has_payloads => mending.skipped += 1,
                Part::Pending => mending.unknown_pending.push((entry.list, id)),
                Part::Processing => mending.unknown_processing.push((entry.list, id)),
                Part::Delays => mending.in_delays.push(id),
                _ => mending.in_expires.push(id),
            }
        }
        Ok(if mend { mending.apply(self, ns, now) } else { 0 })
    }

    /// The page's elements of a hash, without those that are fields of a message that is there, each once.
    fn stored_once(&self, entries: &[PageEntry], part: Part) -> Vec<usize> {
        let (map, fields): (&HashKey, &[&[u8]]) = match part {
            Part::Payloads => (&self.places.keys.payloads, &FIELDS),
            _ => (&self.places.dead.map, &DEAD_FIELDS),
        };
        let mut seen: IdSet<&[u8]> = IdSet::default();
        let is_meant = |entry: &PageEntry| entry.part == part && !is_field_of_message(map, entry.name.as_ref(), fields);
        let meant = entries.iter().enumerate().filter(|(_, entry)| is_meant(entry));
        meant.filter(|(_, entry)| seen.insert(entry.name.bytes())).map(|(number, _)| number).collect()
    }

    fn fault_of(&self, ns: &Namespace, traces: &Traces) -> Option<Fault> {
        let own = traces.queue.as_ref().filter(|queue| ns.names.short(queue.bytes()).is_some());
        let places = traces.pending.len() + traces.processing.len() + usize::from(traces.due.is_some());
        match (places, traces.processing.first()) {
            (0, _) => Some(Fault::Lost),
            (2.., _) => Some(Fault::InTwoPlaces),
            (1, Some(_)) if !traces.has_deadline() => Some(Fault::WithoutDeadline),
            (1, Some((list, _))) => {
                let is_own = |own: &OwnedStr| own.bytes() == self.places.keys.processing.name(*list).bytes();
                (!own.is_some_and(is_own)).then_some(Fault::WrongQueue)
            }
            // A pending message gets its queue from the list that it is taken from.
            (1, None) => (traces.due.is_some() && own.is_none()).then_some(Fault::WrongQueue),
        }
    }
}

/// Whether this is a field by its name, and not an id that happens to end like one: such an id has a queue of its own.
fn is_field(map: &HashKey, name: StrRef, fields: &[&[u8]]) -> bool {
    owner_of(name.bytes(), fields).is_some() && !map.has(queue_field(name).as_ref())
}

/// What is to be mended.
#[derive(Default)]
struct Mending<'a> {
    messages: Vec<&'a Traces<'a>>,
    fields: Vec<StrRef<'a>>,
    in_pending: Vec<(usize, Place, StrRef<'a>)>,
    in_processing: Vec<(usize, Place, StrRef<'a>)>,
    /// Ids without message in lists, with the number of the list.
    unknown_pending: Vec<(usize, StrRef<'a>)>,
    unknown_processing: Vec<(usize, StrRef<'a>)>,
    unknown_dead: Vec<StrRef<'a>>,
    in_delays: Vec<StrRef<'a>>,
    in_expires: Vec<StrRef<'a>>,
    in_dead: Vec<(Place, StrRef<'a>)>,
    dead_lost: Vec<StrRef<'a>>,
    dead_fields: Vec<StrRef<'a>>,
    /// Lost messages, with the number of the pending list that they go to.
    to_pending: Vec<(usize, StrRef<'a>)>,
    /// Of lost messages that stay so: the numbers of their pending lists.
    unusable: Vec<usize>,
    without_queue: usize,
    skipped: usize,
    skipped_dead: usize,
}

impl<'a> Mending<'a> {
    /// Nothing can fail here. Returns how many faults were mended.
    fn apply<'c>(mut self, checkup: &mut Checkup<'c>, ns: &Namespace<'c>, now: Now) -> usize {
        let in_lists = self.unknown_pending.len() + self.unknown_processing.len();
        let without_message = in_lists + self.in_delays.len() + self.in_expires.len();
        let of_dead = self.in_dead.len() + self.unknown_dead.len() + self.dead_lost.len() + self.dead_fields.len();
        let keys = &mut checkup.places.keys;
        let mut mended = without_message + of_dead + self.fields.len();
        self.in_pending.extend(places_of(&mut keys.pending, &self.unknown_pending));
        self.in_processing.extend(places_of(&mut keys.processing, &self.unknown_processing));
        let in_dead = checkup.places.dead.list.every_place_of(&Sought::of(&self.unknown_dead));
        self.in_dead.extend(in_dead.into_iter().map(|(number, place)| (place, self.unknown_dead[number])));
        for traces in std::mem::take(&mut self.messages) {
            mended += usize::from(self.mend(keys, ns, traces, now));
        }
        checkup.next = checkup.next.map(|cursor| self.moved(cursor, &checkup.lists));
        let keys = &mut checkup.places.keys;
        take_out(&mut keys.pending, self.in_pending.iter().copied());
        take_out(&mut keys.processing, self.in_processing.iter().copied());
        remove_all(&mut keys.delays, &self.in_delays);
        remove_all(&mut keys.expires, &self.in_expires);
        for (list, id) in &self.to_pending {
            keys.pending.push(*list, End::Right, *id);
        }
        for field in &self.fields {
            keys.payloads.delete(*field);
        }
        // Scripts that fill a queue do not add it to `<ns>:queues`.
        for lists in [&mut keys.pending, &mut keys.processing] {
            for number in 0..lists.len() {
                if lists.get(number).is_some_and(|list| list.len() > 0) {
                    lists.note_created(number);
                }
            }
            lists.register_created(&mut keys.queues);
        }
        let dead = &mut checkup.places.dead;
        dead.list.remove(&mut self.in_dead);
        for id in &self.dead_lost {
            dead.list.push(End::Left, *id);
        }
        for field in &self.dead_fields {
            dead.map.delete(*field);
        }
        Reason::NoMap.report(self.skipped, || ns.names.payloads.bytes().to_vec());
        Reason::NoMap.report(self.skipped_dead, || ns.names.dlq_data.bytes().to_vec());
        Reason::NoQueue.report(self.without_queue, || ns.names.payloads.bytes().to_vec());
        if let Some(list) = self.unusable.first() {
            let name = checkup.places.keys.pending.name(*list);
            Reason::UnusableKey.report(self.unusable.len(), || [name.bytes(), PENDING].concat());
        }
        mended
    }

    /// Where a message stays, which places it leaves, and what it gets. False where that cannot be known.
    fn mend(&mut self, keys: &mut Keys, ns: &Namespace, traces: &'a Traces<'a>, now: Now) -> bool {
        let own = traces.queue.as_ref().filter(|queue| ns.names.short(queue.bytes()).is_some());
        match traces.state {
            Some(State::Processing) => {
                let kept = keep_one(&keys.processing, &traces.processing, own, traces.id, &mut self.in_processing);
                self.in_pending.extend(traces.in_pending());
                self.in_delays.extend(traces.due.map(|_| traces.id));
                set_queue(&mut keys.payloads, traces.id, own, keys.processing.name(kept));
                if !traces.has_deadline() {
                    let deadline = now.ms() + NEW_DEADLINE_MS;
                    keys.expires.add(traces.id, deadline as f64);
                    ns.due_at(deadline);
                }
            }
            Some(State::Pending) => {
                let kept = keep_one(&keys.pending, &traces.pending, own, traces.id, &mut self.in_pending);
                self.leave_processing(traces);
                self.in_delays.extend(traces.due.map(|_| traces.id));
                set_queue(&mut keys.payloads, traces.id, own, keys.pending.name(kept));
            }
            Some(State::Delayed) => {
                self.leave_processing(traces);
                match (own, traces.processing.first()) {
                    (Some(_), _) => (),
                    (None, Some((list, _))) => {
                        set_queue(&mut keys.payloads, traces.id, own, keys.processing.name(*list));
                    }
                    (None, None) => {
                        self.without_queue += 1;
                        return false;
                    }
                }
            }
            _ => match own.and_then(|own| keys.pending.find(OwnedStr::retain(own.as_ref())).ok()) {
                Some(list) if keys.pending.is_usable(list) => {
                    self.to_pending.push((list, traces.id));
                    self.in_expires.extend(traces.deadline.map(|_| traces.id));
                }
                Some(list) => {
                    self.unusable.push(list);
                    return false;
                }
                None => {
                    self.without_queue += 1;
                    return false;
                }
            },
        }
        true
    }

    /// A message that was in processing stays elsewhere: its lease ends.
    fn leave_processing(&mut self, traces: &'a Traces<'a>) {
        self.in_processing.extend(traces.in_processing());
        if !traces.processing.is_empty() && traces.deadline.is_some() {
            self.in_expires.push(traces.id);
        }
    }

    /// The cursor after the repair: elements that were taken out moved those behind them to the left.
    fn moved(&self, cursor: PageCursor, lists: &[(usize, usize)]) -> PageCursor {
        let is_before = |place: &Place| (place.index as u64) < cursor.position;
        let in_list = |removed: &[(usize, Place, StrRef)], number: Option<usize>| {
            removed.iter().filter(|(list, place, _)| Some(*list) == number && is_before(place)).count()
        };
        let of_queue = lists.get(cursor.queue);
        let before = match PARTS[cursor.part] {
            Part::Pending => in_list(&self.in_pending, of_queue.map(|(pending, _)| *pending)),
            Part::Processing => in_list(&self.in_processing, of_queue.map(|(_, processing)| *processing)),
            Part::Dead => self.in_dead.iter().filter(|(place, _)| is_before(place)).count(),
            _ => 0,
        };
        PageCursor { position: cursor.position - before as u64, ..cursor }
    }
}

/// Keeps one of a message's places, in the list of its own queue if it is there, and takes it out of the others. Returns the
/// number of the list that it stays in.
fn keep_one<'a>(
    lists: &Lists,
    places: &[(usize, Place)],
    own: Option<&OwnedStr>,
    id: StrRef<'a>,
    leaving: &mut Vec<(usize, Place, StrRef<'a>)>,
) -> usize {
    let is_own = |(list, _): &(usize, Place)| own.is_some_and(|own| own.bytes() == lists.name(*list).bytes());
    let kept = places.iter().position(is_own).unwrap_or(0);
    let others = places.iter().enumerate().filter(|(number, _)| *number != kept);
    leaving.extend(others.map(|(_, (list, place))| (*list, *place, id)));
    places[kept].0
}

/// Every place of each id in its list.
fn places_of<'a>(lists: &mut Lists, ids: &[(usize, StrRef<'a>)]) -> Vec<(usize, Place, StrRef<'a>)> {
    let mut by_list: BTreeMap<usize, Vec<StrRef>> = BTreeMap::new();
    for (list, id) in ids {
        by_list.entry(*list).or_default().push(*id);
    }
    let mut places = Vec::new();
    for (number, ids) in by_list {
        let Some(list) = lists.get(number) else { continue };
        let found = list.every_place_of(&Sought::of(&ids)).into_iter();
        places.extend(found.map(|(index, place)| (number, place, ids[index])));
    }
    places
}

fn set_queue(payloads: &mut HashKey, id: StrRef, own: Option<&OwnedStr>, queue: StrRef) {
    if own.is_none_or(|own| own.bytes() != queue.bytes()) {
        payloads.set(queue_field(id).as_ref(), queue);
    }
}

fn remove_all(zset: &mut ZsetKey, ids: &[StrRef]) {
    for id in ids {
        zset.remove(*id);
    }
}

/// `[CURSOR c] [COUNT n]`, the arguments of both commands.
pub fn run<'c>(call: &'c Invocation<'c>, mend: bool) -> Result<usize, Error> {
    let [namespace, words @ ..] = call.args() else {
        return Err(Error::WrongArity);
    };
    let [cursor, count] = args::options(words, [Opt::Value("CURSOR"), Opt::Value("COUNT")])?;
    let cursor = cursor.map_or(Ok(0), |cursor| args::offset("CURSOR", cursor.bytes()))?;
    let count = count.map_or_else(|| Ok(settings::MAX_BATCH.as_usize()), |n| args::limited("COUNT", n.bytes()))?;
    let expected = "0, or a cursor that the command returned";
    let cursor = PageCursor::of_number(cursor as u64).ok_or(Error::Invalid { argument: "CURSOR", expected })?;
    let ns = Namespace::of_caller(call, *namespace)?;
    let mut checkup = Checkup::of(&ns, cursor, count)?;
    let mended = checkup.check(&ns, Now::read(), mend)?;
    checkup.reply(call);
    Ok(mended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_a_number_that_every_client_can_hold() {
        let last = PageCursor { part: PARTS.len() - 1, queue: 0, position: (1 << 50) - 1 };
        assert!(last.number() < 1 << 53);
        for cursor in [
            PageCursor::default(),
            last,
            PageCursor { part: 1, queue: (1 << 20) - 1, position: (1 << 30) - 1 },
            PageCursor { part: 2, queue: 65_536, position: 12 },
            PageCursor { part: 0, queue: 0, position: 1 << 40 },
        ] {
            assert_eq!(PageCursor::of_number(cursor.number()), Some(cursor));
        }
        assert_eq!(PageCursor::of_number(u64::MAX), None);
    }
}
