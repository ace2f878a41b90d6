//! Finding ids in a list, quickly wherever they stand. The oldest id of `processing` is at the right end and the newest
//! at the left, and most messages are settled in about the order in which they were taken; so the place of the last one
//! and the ends come first. Between them the deadlines show the way: where every consumer takes its messages for the
//! same time, deadlines fall from left to right, and a search by deadline needs a handful of looks. All of that are
//! hints only: what they find is the id itself, and what they miss is looked for in the whole list.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::redis::{Call, ListKey, StrRef, ZsetKey};

/// Elements looked at from the right and from the left end before the server searches the list: each look costs as much
/// as a few elements of that search.
const FEW: (usize, usize) = (2, 1);
/// The same at either end where the deadline says that the id stands near it.
const NEAR: usize = 8;
/// Elements of a list that is looked at as a whole.
const HANDFUL: usize = 4;
/// Up to this many elements a search by deadline does not pay. A sorted set of this size is stored so that each look-up
/// of a deadline walks over it.
const SHORT: usize = 128;
/// Looks that a search by deadline may take: by proportion first, then by halves.
const BY_PROPORTION: usize = 6;
const LOOKS: usize = 20;
/// Neighbours looked at one by one when the search has come close, or has met the wanted deadline on another id.
const CLOSE: usize = 16;
/// How many elements a pass looks at in the time that a search by deadline takes: for the first id of a deadline, and
/// for each further one, which stands next to it.
const PASS_PER_SEARCH: usize = 50;
const PASS_PER_NEIGHBOUR: usize = 2;
/// Elements in a row, none of them wanted, after which a pass makes room for a search by deadline.
pub const PATIENCE: usize = 16;

/// Where an id stands, and how LREM would get at that occurrence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub index: usize,
    pub reach: Reach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It is the first from the left.
    FromLeft,
    /// It is the first from the right.
    FromRight,
    /// The same id may stand on either side of it.
    ByIndex,
}

/// One id. `deadlines` is where the ids' deadlines are.
pub fn find(call: &Call, list: &mut ListKey, id: StrRef, deadlines: &ZsetKey) -> Option<Place> {
    let len = list.len();
    if len <= HANDFUL {
        return search(list, id, deadlines);
    }
    let track = Track::of(list.name().bytes(), 1);
    let lead = track
        .leads(len, call.has_listeners())
        .find(|index| list.is_at(*index, id));
    let place = match lead {
        Some(index) => Place {
            index,
            reach: Reach::ByIndex,
        },
        None => search(list, id, deadlines)?,
    };
    track.learn(len, place.index);
    Some(place)
}

fn search(list: &mut ListKey, id: StrRef, deadlines: &ZsetKey) -> Option<Place> {
    let len = list.len();
    let place = |index: usize, reach: Reach| Some(Place { index, reach });

    let last = len.checked_sub(1)?;
    if list.is_at(last, id) {
        return place(last, Reach::FromRight);
    }
    let course = match len > SHORT && deadlines.len() > SHORT {
        true => course(list, id, deadlines),
        false => Course::Unknown,
    };
    let (near_right, near_left) = match course {
        Course::Unknown if len <= HANDFUL => (len, 0),
        Course::Unknown => FEW,
        _ => (NEAR, NEAR),
    };
    if matches!(course, Course::Right | Course::Unknown) {
        for index in (len - near_right..last).rev() {
            if list.is_at(index, id) {
                return place(index, Reach::FromRight);
            }
        }
        if near_right == len {
            return None;
        }
    }
    if let Course::At(index) = course {
        return place(index, Reach::ByIndex);
    }
    for index in 0..near_left {
        if list.is_at(index, id) {
            return place(index, Reach::FromLeft);
        }
    }
    list.last_place_of(id).and_then(|index| place(index, Reach::FromRight))
}

/// How far from the right end of a list the last settled message stood. A worker settles what it took in the order in
/// which it took it, and workers of one kind take turns: then the next message stands where the last one was taken out,
/// or right of that. Kept for a few lists, by the hash of their name; lists that share a place spoil each other's leads,
/// and leads that have been wrong of late are not followed.
pub struct Track {
    slot: &'static AtomicU64,
    /// Of the rightmost, where several are settled in one call.
    distance: usize,
    trust: u64,
    /// How many ids this call settles.
    count: usize,
    learnt: Cell<bool>,
}

static TRACKS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

impl Track {
    /// The lowest bits of a slot are the trust, the others the distance.
    const TRUST_BITS: u32 = 2;
    const MOST_TRUST: u64 = (1 << Self::TRUST_BITS) - 1;
    const ENOUGH_TRUST: u64 = 2;

    pub fn of(list: &[u8], count: usize) -> Track {
        let hash = BuildHasherDefault::<IdHasher>::default().hash_one(list);
        let slot = &TRACKS[hash as usize % TRACKS.len()];
        let value = slot.load(Ordering::Relaxed);
        Track {
            slot,
            distance: (value >> Self::TRUST_BITS) as usize,
            trust: value & Self::MOST_TRUST,
            count,
            learnt: Cell::new(false),
        }
    }

    /// Where to look in a list of this length. Nowhere if effects are heard: a replica finds an id by LREM, and would
    /// have to be told more of one that might stand further right too.
    fn leads(&self, len: usize, heard: bool) -> impl Iterator<Item = usize> {
        let follow = self.trust >= Self::ENOUGH_TRUST && !heard;
        [Some(self.distance), self.distance.checked_sub(self.count)]
            .into_iter()
            .flatten()
            // The end is looked at in any case.
            .filter(move |distance| follow && (1..len).contains(distance))
            .map(move |distance| len - 1 - distance)
    }

    /// In a list of this length the id, or the rightmost of several, stood at `index`. Once a call.
    pub fn learn(&self, len: usize, index: usize) {
        if self.learnt.replace(true) {
            return;
        }
        let distance = len - 1 - index;
        let as_expected = distance == self.distance || distance + self.count == self.distance;
        let trust = if as_expected {
            Self::MOST_TRUST.min(self.trust + 1)
        } else {
            self.trust.saturating_sub(1)
        };
        let value = (distance as u64) << Self::TRUST_BITS | trust;
        self.slot.store(value, Ordering::Relaxed);
    }
}

/// Where an id's deadline points to.
enum Course {
    /// Near the right end.
    Right,
    /// Not there; near the left end, or anywhere.
    Elsewhere,
    At(usize),
    /// There is no deadline to go by.
    Unknown,
}

/// Goes by the deadlines of a few elements of a long list.
fn course(list: &mut ListKey, id: StrRef, deadlines: &ZsetKey) -> Course {
    let Some(wanted) = deadlines.score(id) else {
        return Course::Unknown;
    };
    let len = list.len();
    let mut look = |index| look_at(list, index, id, deadlines);
    let right = match look(len - NEAR) {
        Some(Look::Deadline(deadline)) if deadline < wanted => (len - NEAR, deadline),
        _ => return Course::Right,
    };
    let left = match look(NEAR - 1) {
        Some(Look::Deadline(deadline)) if deadline > wanted => (NEAR - 1, deadline),
        _ => return Course::Elsewhere,
    };
    match search_falling(left, right, wanted, look) {
        Some(index) => Course::At(index),
        None => Course::Elsewhere,
    }
}

enum Look {
    Found,
    /// Another id, with this deadline.
    Deadline(f64),
}

/// A look at one element. None: it has no deadline.
fn look_at(list: &mut ListKey, index: usize, id: StrRef, deadlines: &ZsetKey) -> Option<Look> {
    let element = list.at(index)?;
    if element.bytes() == id.bytes() {
        return Some(Look::Found);
    }
    deadlines.score(element.as_ref()).map(Look::Deadline)
}

/// Searches a row whose deadlines fall from left to right, between two elements whose deadlines are known. Gives up as
/// soon as the row turns out to be otherwise.
fn search_falling(
    (mut left, mut latest): (usize, f64),
    (mut right, mut earliest): (usize, f64),
    wanted: f64,
    mut look: impl FnMut(usize) -> Option<Look>,
) -> Option<usize> {
    for looks in 0..LOOKS {
        if !(left < right && earliest <= wanted && wanted <= latest && earliest < latest) {
            return None;
        }
        if right - left <= CLOSE {
            return (left + 1..right).find(|index| matches!(look(*index), Some(Look::Found)));
        }
        let share = if looks < BY_PROPORTION {
            (latest - wanted) / (latest - earliest)
        } else {
            0.5
        };
        let step = (share * (right - left) as f64) as usize;
        let guess = (left + step).clamp(left + 1, right - 1);
        match look(guess)? {
            Look::Found => return Some(guess),
            Look::Deadline(deadline) if deadline > wanted => (left, latest) = (guess, deadline),
            Look::Deadline(deadline) if deadline < wanted => (right, earliest) = (guess, deadline),
            // Taken in the same call or the same millisecond: close by, on either side.
            Look::Deadline(_) => {
                let on_the_right = guess + 1..(guess + 1 + CLOSE).min(right);
                let on_the_left = guess.saturating_sub(CLOSE).max(left + 1)..guess;
                return on_the_right
                    .chain(on_the_left.rev())
                    .find(|index| matches!(look(*index), Some(Look::Found)));
            }
        }
    }
    None
}

/// The two ends of a list, between which a search goes on.
enum Bounds {
    Known((usize, f64), (usize, f64)),
    /// The id stands at an end itself.
    Found(usize),
    Unknown,
}

impl Bounds {
    fn look(look: &mut impl FnMut(usize) -> Option<Look>, first: usize, last: usize) -> Self {
        if first > last {
            return Bounds::Unknown;
        }
        match (look(first), look(last)) {
            (Some(Look::Found), _) => Bounds::Found(first),
            (_, Some(Look::Found)) => Bounds::Found(last),
            (Some(Look::Deadline(latest)), Some(Look::Deadline(earliest))) => {
                Bounds::Known((first, latest), (last, earliest))
            }
            _ => Bounds::Unknown,
        }
    }
}

/// Whether deadlines may lead to the wanted ids sooner than a pass over the list.
pub fn may_sweep(list: &ListKey, wanted: &Wanted, deadlines: &ZsetKey) -> bool {
    let worth_it = PASS_PER_SEARCH + wanted.missing * PASS_PER_NEIGHBOUR < list.len();
    worth_it && wanted.each_once() && list.len() > SHORT && deadlines.len() > SHORT
}

/// Takes out wanted ids whose deadlines show where they are, in one sweep from left to right. Returns the number and the
/// place (as it was before the sweep) of each, leftmost first.
pub fn sweep(list: &mut ListKey, ids: &[StrRef], wanted: &mut Wanted, deadlines: &ZsetKey) -> Vec<(usize, usize)> {
    let mut swept: Vec<(usize, usize)> = Vec::new();
    let len = list.len();
    let mut course: Vec<(f64, usize)> = Vec::with_capacity(wanted.missing);
    course.extend(
        ids.iter()
            .enumerate()
            .filter(|(_, id)| wanted.contains(id.bytes()))
            .filter_map(|(tag, id)| Some((deadlines.score(*id)?, tag))),
    );
    course.sort_unstable_by(|one, other| other.0.total_cmp(&one.0));
    let searches = course.chunk_by(|one, other| one.0 == other.0).count();
    if searches * PASS_PER_SEARCH + course.len() * PASS_PER_NEIGHBOUR >= len {
        return swept;
    }
    let mut misses = 0;
    let mut left: Option<(usize, f64)> = None;
    let mut right: Option<(usize, f64)> = None;
    for group in course.chunk_by(|one, other| one.0 == other.0) {
        let (deadline, tag) = group[0];
        let id = ids[tag];
        let gone = swept.len();
        // What was taken out stood to the left of what is still to come.
        let mut look = |index: usize| look_at(list, index - gone, id, deadlines);
        let bounds = match (left, right) {
            (Some(left), Some(right)) => Bounds::Known(left, right),
            _ => Bounds::look(&mut look, left.map_or(0, |(index, _)| index + 1), len - 1),
        };
        let found = match bounds {
            Bounds::Found(index) => Some(index),
            Bounds::Unknown => None,
            Bounds::Known(first, last) => {
                (left, right) = (Some(first), Some(last));
                search_falling(first, last, deadline, look)
            }
        };
        if let Some(index) = found.filter(|_| wanted.take(id.bytes()).is_some()) {
            let mut places = vec![(tag, index)];
            let first = swept.last().map_or(0, |(_, index)| index + 1);
            // Those that were taken in one call stand side by side.
            let until = (group.len(), CLOSE);
            gather(list, (first..index).rev(), gone, until, wanted, &mut places);
            gather(list, index + 1..len, gone, until, wanted, &mut places);
            places.sort_unstable_by_key(|(_, index)| *index);
            let now: Vec<usize> = places.iter().map(|(_, index)| index - gone).collect();
            list.remove_at(&now);
            left = places.last().map(|(_, index)| (*index, deadline));
            swept.extend(places);
        } else {
            misses += 1;
        }
        // The deadlines are no guide here, or the ids are not in the list.
        if misses > 1 {
            break;
        }
    }
    swept
}

/// Looks at one element after the other, until `enough` of the wanted ones are found or `patience` elements in a row were
/// none of them. `gone` elements have been taken out on the left.
fn gather(
    list: &mut ListKey,
    indexes: impl Iterator<Item = usize>,
    gone: usize,
    (enough, patience): (usize, usize),
    wanted: &mut Wanted,
    places: &mut Vec<(usize, usize)>,
) {
    let mut in_vain = 0;
    for index in indexes {
        if places.len() >= enough || in_vain >= patience {
            return;
        }
        let Some(element) = list.at(index - gone) else { return };
        match wanted.take(element.bytes()) {
            Some(tag) => {
                places.push((tag, index));
                in_vain = 0;
            }
            None => in_vain += 1,
        }
    }
}

/// Ids to look for. Each comes with a tag, its place in the caller's own list; an id may be wanted several times.
pub struct Wanted<'a> {
    ids: HashMap<&'a [u8], Entry, BuildHasherDefault<IdHasher>>,
    missing: usize,
}

struct Entry {
    tag: usize,
    count: usize,
}

impl<'a> Wanted<'a> {
    pub fn new(ids: impl Iterator<Item = (usize, &'a [u8])>) -> Self {
        let mut wanted = Wanted {
            ids: HashMap::with_capacity_and_hasher(ids.size_hint().0, BuildHasherDefault::default()),
            missing: 0,
        };
        for (tag, id) in ids {
            wanted.ids.entry(id).or_insert(Entry { tag, count: 0 }).count += 1;
            wanted.missing += 1;
        }
        wanted
    }

    fn each_once(&self) -> bool {
        self.ids.len() == self.missing
    }

    fn contains(&self, id: &[u8]) -> bool {
        self.ids.get(id).is_some_and(|entry| entry.count > 0)
    }

    /// The id's tag, as often as it is wanted.
    fn take(&mut self, id: &[u8]) -> Option<usize> {
        let entry = self.ids.get_mut(id).filter(|entry| entry.count > 0)?;
        entry.count -= 1;
        self.missing -= 1;
        Some(entry.tag)
    }
}

/// Several ids, where the last ones stood: the tag and the place of each that is there, rightmost first.
pub fn follow(call: &Call, list: &mut ListKey, wanted: &mut Wanted, track: &Track) -> Vec<(usize, Place)> {
    for lead in track.leads(list.len(), call.has_listeners()) {
        let found = pass_from(list, lead + 1, wanted, 1, Reach::ByIndex);
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// One pass over the list, from the right end, until all wanted ids are found or `patience` elements in a row were none
/// of them: the tag and the place of each.
pub fn pass(list: &mut ListKey, wanted: &mut Wanted, patience: usize) -> Vec<(usize, Place)> {
    pass_from(list, list.len(), wanted, patience, Reach::FromRight)
}

/// The same over the elements left of `end`.
fn pass_from(
    list: &mut ListKey,
    end: usize,
    wanted: &mut Wanted,
    patience: usize,
    reach: Reach,
) -> Vec<(usize, Place)> {
    let enough = wanted.missing;
    let mut places = Vec::with_capacity(enough);
    gather(list, (0..end).rev(), 0, (enough, patience), wanted, &mut places);
    places
        .into_iter()
        .map(|(tag, index)| (tag, Place { index, reach }))
        .collect()
}

/// Multiply and fold, eight bytes at a time, from a start that differs from process to process: ids come from
/// clients, who must not be able to choose collisions.
pub struct IdHasher {
    state: u64,
}

impl Default for IdHasher {
    fn default() -> Self {
        IdHasher { state: *SEED }
    }
}

lazy_static::lazy_static! {
    static ref SEED: u64 = {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(0) | 1
    };
}

impl IdHasher {
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * 0x9E37_79B9_7F4A_7C15;
        self.state = (product as u64) ^ ((product >> 64) as u64) ^ *SEED;
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.mix(u64::from_le_bytes(chunk.try_into().expect("eight bytes")));
        }
        let mut last = [0; 8];
        let rest = chunks.remainder();
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last) ^ ((bytes.len() as u64) << 56));
    }

    fn write_usize(&mut self, _length: usize) {
        // The length of a slice; `write` mixes it in with the last bytes.
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_is_taken_as_often_as_it_is_wanted() {
        let mut wanted = Wanted::new([&b"a"[..], b"b", b"a"].into_iter().enumerate());
        assert!(!wanted.each_once());
        assert_eq!(wanted.take(b"a"), Some(0));
        assert_eq!(wanted.take(b"a"), Some(0));
        assert_eq!(wanted.take(b"a"), None);
        assert_eq!(wanted.take(b"c"), None);
        assert_eq!((wanted.missing, wanted.take(b"b"), wanted.missing), (1, Some(1), 0));
    }

    #[test]
    fn similar_ids_spread() {
        use std::hash::BuildHasher;
        let build = BuildHasherDefault::<IdHasher>::default();
        let buckets: std::collections::HashSet<u64> = (0..4096)
            .map(|number| build.hash_one(format!("message-{number:08}").as_bytes()) >> 52)
            .collect();
        // Of 4096 buckets a good hash fills 63 % with 4096 ids.
        assert!(buckets.len() > 2300, "{}", buckets.len());
    }

    #[test]
    fn ids_are_looked_for_where_the_last_ones_stood_as_long_as_they_do_stand_there() {
        // After so many ids in a list of 100, at these distances from the right end, the next is looked for…
        let next = |count: usize, len: usize, distances: &[usize]| -> Vec<usize> {
            for distance in distances {
                Track::of(b"list", count).learn(100, 99 - distance);
            }
            Track::of(b"list", count).leads(len, false).collect()
        };
        assert_eq!(next(1, 100, &[]), [0; 0]);
        assert_eq!(next(1, 100, &[18, 18, 18]), [81, 82]);
        assert_eq!(
            next(1, 100, &[17, 16, 15]),
            [84, 85],
            "at the same place or right of it"
        );
        assert_eq!(next(1, 16, &[]), [0, 1]);
        assert_eq!(next(1, 15, &[]), [0], "only within the list");
        assert_eq!(next(10, 100, &[]), [84, 94], "those of one call stand side by side");
        assert_eq!(next(10, 100, &[5, 5, 5]), [94], "nothing stands ten further right");
        assert_eq!(next(1, 100, &[40]), [59, 60], "one miss is forgiven");
        assert_eq!(next(1, 100, &[20]), [0; 0], "two are not");
        assert_eq!(next(1, 100, &[20, 20]), [79, 80]);
        assert_eq!(
            next(1, 100, &[0, 0, 0]),
            [0; 0],
            "the end itself is looked at first anyway"
        );
        assert_eq!(next(1, 100, &[3, 3, 3]), [96, 97]);
        assert_eq!(Track::of(b"list", 1).leads(100, true).next(), None, "effects are heard");
    }

    /// Searches a row for the id at `target`; returns what was found and the number of looks.
    fn search(deadlines: &[f64], target: usize) -> (Option<usize>, usize) {
        let mut looks = 0;
        let last = deadlines.len() - 1;
        let ends = ((0, deadlines[0]), (last, deadlines[last]));
        if let Some(end) = [0, last].into_iter().find(|end| *end == target) {
            return (Some(end), looks);
        }
        let found = search_falling(ends.0, ends.1, deadlines[target], |index| {
            looks += 1;
            Some(if index == target {
                Look::Found
            } else {
                Look::Deadline(deadlines[index])
            })
        });
        (found, looks)
    }

    #[test]
    fn in_an_even_row_every_id_is_found_in_a_few_looks() {
        let row: Vec<f64> = (0..10_000).map(|index| 1e12 - 7.0 * f64::from(index)).collect();
        for target in (0..row.len()).step_by(37) {
            let (found, looks) = search(&row, target);
            assert_eq!(found, Some(target));
            assert!(looks <= 5, "{looks} looks for {target}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_deadlines_only_the_id_itself_is_found_in_bounded_looks(
            row in proptest::collection::vec(-1e6f64..1e6, 2..300),
            target in any::<proptest::sample::Index>(),
        ) {
            let target = target.index(row.len());
            let (found, looks) = search(&row, target);
            prop_assert!(found.is_none_or(|index| index == target));
            prop_assert!(looks <= LOOKS + 2 * CLOSE);
        }

        #[test]
        fn in_a_falling_row_an_id_with_a_deadline_of_its_own_is_found(
            steps in proptest::collection::vec(1u32..100_000, 2..2000),
            target in any::<proptest::sample::Index>(),
        ) {
            let mut deadline = 1e12;
            let row: Vec<f64> = steps.iter().map(|step| { deadline -= f64::from(*step); deadline }).collect();
            let target = target.index(row.len());
            prop_assert_eq!(search(&row, target).0, Some(target));
        }
    }
}
