//! A list.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ffi::c_int;

use redis_module::raw;
use smallvec::SmallVec;

use super::api::api;
use super::effects::Plain;
use super::key::Key;
use super::server::server;
use super::{Invocation, KeyArg, OwnedStr, StrRef};
use crate::error::Error;
use crate::hash::IdMap;

pub struct ListKey<'c> {
    pub(super) key: Key<'c>,
    pub(super) cursor: Cursor,
}

/// The iterator that the server keeps in the handle.
#[derive(Default)]
pub(super) struct Cursor {
    position: Option<usize>,
    /// It has moved to the left at some time.
    leftward: bool,
    /// It has lost its place by a removal, and must not be used again.
    spent: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Left,
    Right,
}

/// Where an element is, and from which side LREM would get at this occurrence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub index: usize,
    pub side: LremSide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LremSide {
    /// It is the first occurrence from the left.
    Head,
    /// It is the first occurrence from the right.
    Tail,
    /// There may be others on both sides.
    Ambiguous,
}

/// Elements that are looked for, in one list after the other. Each has a number; of those that are equal the first counts.
pub struct Sought<'a> {
    elements: Vec<(usize, StrRef<'a>)>,
    numbers: IdMap<&'a [u8], usize>,
}

impl<'a> Sought<'a> {
    pub fn new(numbered: impl Iterator<Item = (usize, StrRef<'a>)>) -> Self {
        let mut numbers = IdMap::default();
        let mut elements = Vec::new();
        for (number, element) in numbered {
            numbers.entry(element.bytes()).or_insert_with(|| {
                elements.push((number, element));
                number
            });
        }
        Sought { elements, numbers }
    }

    /// Their numbers are their indexes.
    pub fn of(elements: &[StrRef<'a>]) -> Self {
        Sought::new(elements.iter().copied().enumerate())
    }
}

/// Where an element may be in a list that it is pushed to.
#[derive(Clone, Copy)]
pub enum MayBeThere {
    Nowhere,
    /// In a very long list only its ends are searched, so that the time is bounded.
    NearTheEnds,
    Anywhere,
}

/// Elements searched at each end of a very long list.
const END_WINDOW: usize = 10_000;

impl<'c> ListKey<'c> {
    /// Opens a list given as an argument; an empty name means none.
    pub fn open_unless_empty(call: &'c Invocation<'c>, key: KeyArg<'c>) -> Result<Option<Self>, Error> {
        if key.name.is_empty() {
            return Ok(None);
        }
        ListKey::open(call, key).map(Some)
    }
}

/// Steps of the server's iterator that cost as much as a seek from an end; the most that is ever stepped.
const SEEK_COST: usize = 14;
const STEPS_MAX: usize = 96;

impl ListKey<'_> {
    /// The element at `index`, counted from the left. A step from the last index read is cheap; to get further, the
    /// handle is opened anew, and the server seeks node by node from the nearer end.
    pub fn at(&mut self, index: usize) -> Option<OwnedStr> {
        if let Some(position) = self.cursor.position {
            let steps = position.abs_diff(index);
            let seek = SEEK_COST + index.min(self.len().saturating_sub(index));
            if self.cursor.spent || steps > STEPS_MAX || steps > SEEK_COST && steps > seek {
                self.start_anew();
            } else if steps > 0 {
                // For good, until the handle is opened anew: a step to the left over the edge of a node makes the server
                // count from the node's end, and a removal then shifts its place, in whichever direction it went last.
                self.cursor.leftward |= index < position;
            }
        }
        self.cursor.position = Some(index);
        if !self.key.exists() {
            return None;
        }
        // SAFETY: the key is open; an index out of range gives null. The string is the caller's.
        unsafe { OwnedStr::take(api!(RedisModule_ListGet(self.key.raw(), index as i64))) }
    }

    pub fn is_at(&mut self, index: usize, element: StrRef) -> bool {
        self.at(index).is_some_and(|other| other.bytes() == element.bytes())
    }

    fn start_anew(&mut self) {
        self.key.reopen(|_, _| ());
        self.cursor = Cursor::default();
    }

    pub fn push(&mut self, end: End, element: StrRef) {
        self.push_raw(end, element);
        match end {
            End::Left => self.key.changed(Plain::LPush, 0, &[element]),
            End::Right => self.key.changed(Plain::RPush, 0, &[element]),
        }
    }

    fn push_raw(&mut self, end: End, element: StrRef) {
        let end = match end {
            End::Left => raw::REDISMODULE_LIST_HEAD,
            End::Right => raw::REDISMODULE_LIST_TAIL,
        };
        // SAFETY: the key is open for writing and a list or missing.
        unsafe { api!(RedisModule_ListPush(self.key.raw(), end as c_int, element.raw())) };
        // The server drops its iterator, here and in `pop_right_raw`.
        self.cursor = Cursor::default();
    }

    pub fn pop_right(&mut self) -> Option<OwnedStr> {
        let element = self.pop_right_raw()?;
        self.key.changed(Plain::RPop, 1, &[]);
        Some(element)
    }

    fn pop_right_raw(&mut self) -> Option<OwnedStr> {
        let end = raw::REDISMODULE_LIST_TAIL as c_int;
        self.cursor = Cursor::default();
        // SAFETY: the key is open for writing and a list or missing (then null); the string is the caller's.
        unsafe { OwnedStr::take(api!(RedisModule_ListPop(self.key.raw(), end))) }
    }

    /// Moves the rightmost element, which is this one, to the left of another list, as by RPOPLPUSH.
    pub fn move_right_to_left_of(&mut self, other: &mut ListKey, element: StrRef) {
        let Some(last) = self.len().checked_sub(1) else { return };
        self.remove_at(&[last]);
        other.push_raw(End::Left, element);
        other.key.fires(Plain::LPush);
        self.key.fires(Plain::RPop);
        self.key.effect_with(Plain::RPopLPush, &mut other.key);
    }

    /// Puts an element at the left; where it may have been in the list, it is there once afterwards.
    pub fn push_left_once(&mut self, element: StrRef, may_be_there: MayBeThere) {
        let places = self.places_of(element, may_be_there);
        let at_the_left = places.first() == Some(&0);
        let elsewhere = &places[usize::from(at_the_left)..];
        if matches!(may_be_there, MayBeThere::NearTheEnds) {
            // There may be others that were not searched for.
            let place = |index: &usize| (Place { index: *index, side: LremSide::Ambiguous }, element);
            self.remove(&mut elsewhere.iter().map(place).collect::<Vec<_>>());
        } else if !elsewhere.is_empty() {
            self.remove_at(elsewhere);
            self.key.changed(Plain::LRem, -(elsewhere.len() as i64), &[element]);
        }
        if !at_the_left {
            self.push(End::Left, element);
        }
    }

    /// Removes one occurrence of each element, found at these places.
    ///
    /// A replica removes those at the right end by one RPOP, others by LREM, which searches from one end. Where LREM would take
    /// a walk for each of many elements, or might hit another occurrence, the place itself is marked (LSET), and one LREM
    /// removes all marks.
    pub fn remove(&mut self, found: &mut [(Place, StrRef)]) {
        /// How far from the right end a replica walks for each of several elements.
        const SHORT_WALK: usize = 128;
        found.sort_unstable_by_key(|(place, _)| Reverse(place.index));
        // A place that is named twice is removed once, and not its neighbour.
        let mut last = None;
        let is_new = |(place, _): &&(Place, StrRef)| last.replace(place.index) != Some(place.index);
        let found: SmallVec<[(Place, StrRef); 4]> = found.iter().filter(is_new).copied().collect();
        let len = self.len();
        let ascending: SmallVec<[usize; 4]> = found.iter().rev().map(|(place, _)| place.index).collect();
        let removed = self.remove_at(&ascending);
        let is_right_end = found.iter().enumerate().all(|(nth, (place, _))| place.index + nth + 1 == len);
        if is_right_end && removed > 0 {
            self.key.changed(Plain::RPop, removed as i64, &[]);
            return;
        }

        for _ in 0..removed {
            self.key.fires_once_more(Plain::LRem);
        }
        let alone = found.len() == 1;
        let is_near = |nth: usize, place: &Place| len - nth - place.index <= SHORT_WALK;
        let mut by_lrem: SmallVec<[(i64, StrRef); 4]> = SmallVec::new();
        let mut marked: SmallVec<[usize; 4]> = SmallVec::new();
        for (place, element) in found.iter() {
            match place.side {
                LremSide::Head if alone => by_lrem.push((1, *element)),
                LremSide::Tail if alone || is_near(by_lrem.len(), place) => by_lrem.push((-1, *element)),
                _ => marked.push(place.index),
            }
        }
        // The indexes are those of the list as it was, so the marks come first.
        if !marked.is_empty() {
            let mark = new_mark();
            for index in &marked {
                self.key.effect(Plain::LSet, *index as i64, &[mark.as_ref()]);
            }
            let near_left = marked.iter().all(|index| *index < len / 2);
            let count = marked.len() as i64;
            self.key.effect(Plain::LRem, if near_left { count } else { -count }, &[mark.as_ref()]);
        }
        for (count, element) in by_lrem {
            self.key.effect(Plain::LRem, count, &[element]);
        }
    }

    /// Returns how many were there. Only in this direction may one removal follow another: on its way to the left the
    /// server's iterator loses its place with a removal, and later elements are missed. The element that it stands at is
    /// the right one in any case.
    fn remove_at(&mut self, ascending: &[usize]) -> usize {
        let mut removed = 0;
        for (before, place) in ascending.iter().enumerate() {
            let index = place - before;
            let position = self.cursor.position.unwrap_or(index);
            let may_step_there = !self.cursor.leftward && position < index && index - position <= STEPS_MAX;
            if self.cursor.spent || !(position == index || may_step_there) {
                self.start_anew();
            }
            // SAFETY: the key is open for writing; an index out of range is refused by the server.
            let status = unsafe { api!(RedisModule_ListDelete(self.key.raw(), index as i64)) };
            removed += usize::from(status == raw::REDISMODULE_OK as c_int);
            self.cursor.position = Some(index);
            self.cursor.spent = self.cursor.leftward || !server().list_iterator_survives_removal;
        }
        removed
    }

    /// The last place of `element`, by the server's own search: fast per element, but slow to start.
    pub fn last_place_of(&mut self, element: StrRef) -> Option<usize> {
        let place = self.search_by_server(|call, list| call.list_position_from_right(list, element))?;
        // A server may refuse to search, as in a slot that moves.
        place.unwrap_or_else(|| (0..self.len()).rev().find(|index| self.is_at(*index, element)))
    }

    /// Every place of each element sought: its number, and where. A few are searched by the server one by one, more in one
    /// pass.
    pub fn every_place_of(&mut self, sought: &Sought) -> Vec<(usize, Place)> {
        const SEARCH_ONE_BY_ONE_MAX: usize = 4;
        let mut found = Vec::new();
        let place = |index, is_last| Place { index, side: if is_last { LremSide::Tail } else { LremSide::Ambiguous } };
        if sought.elements.len() <= SEARCH_ONE_BY_ONE_MAX {
            for (number, element) in &sought.elements {
                let places = self.places_of(*element, MayBeThere::Anywhere);
                let last = places.last().copied();
                found.extend(places.iter().map(|index| (*number, place(*index, Some(*index) == last))));
            }
            return found;
        }
        let mut seen = HashSet::new();
        for index in (0..self.len()).rev() {
            let Some(element) = self.at(index) else { break };
            if let Some(number) = sought.numbers.get(element.bytes()) {
                found.push((*number, place(index, seen.insert(*number))));
            }
        }
        found
    }

    /// Every place of `element`, lowest first.
    fn places_of(&mut self, element: StrRef, may_be: MayBeThere) -> Vec<usize> {
        let window = match may_be {
            MayBeThere::Nowhere => return Vec::new(),
            MayBeThere::NearTheEnds if self.len() > 2 * END_WINDOW => Some(END_WINDOW),
            MayBeThere::NearTheEnds | MayBeThere::Anywhere => None,
        };
        let places = self.search_by_server(|call, list| call.list_positions(list, element, window));
        // A server may refuse to search, as in a slot that moves.
        places.flatten().unwrap_or_else(|| (0..self.len()).filter(|index| self.is_at(*index, element)).collect())
    }

    /// None if the list is empty: LPOS on a missing key fires keymiss mid-call.
    fn search_by_server<T>(&mut self, search: impl FnOnce(&Invocation, StrRef) -> T) -> Option<T> {
        if self.len() == 0 {
            return None;
        }
        let found = self.key.reopen(search);
        self.cursor = Cursor::default();
        Some(found)
    }
}

/// Is in a replica's list for a moment, within one transaction. No id equals it: it is another one each time, or else who has
/// seen one on a replica could publish that id.
fn new_mark() -> OwnedStr {
    OwnedStr::new(format!("rmq:removed:{:016x}", crate::id::random_bits()).as_bytes())
}
