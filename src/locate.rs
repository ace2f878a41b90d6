//! Finding ids in a list, quickly wherever they stand. The oldest id of `processing` is at the right end and the newest
//! at the left, and most messages are settled in about the order in which they were taken; so the ends come first.
//! Between them the deadlines show the way: where every consumer takes its messages for the same time, deadlines fall
//! from left to right, and a search by deadline needs a handful of looks. It is a hint only: what it finds is the id
//! itself, and what it misses is looked for in the whole list.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use smallvec::SmallVec;

use crate::redis::{ListKey, StrRef, ZsetKey};

/// Elements looked at from each end before anything else is tried.
const NEAR: usize = 8;
/// Up to this length a search by deadline does not pay.
const SHORT: usize = 64;
/// Looks that a search by deadline may take: by proportion first, then by halves.
const BY_PROPORTION: usize = 6;
const LOOKS: usize = 20;
/// Neighbours looked at one by one when the search has come close, or has met the wanted deadline on another id.
const CLOSE: usize = 16;
/// How many elements a pass looks at in the time that a search by deadline takes for one id.
const PASS_PER_SEARCH: usize = 50;

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

/// One id. `deadlines` is where the ids' deadlines are, if they have any.
pub fn find(list: &mut ListKey, id: StrRef, deadlines: Option<&ZsetKey>) -> Option<Place> {
    let len = list.len();
    let wanted = id.bytes();
    let near = if len <= 2 * NEAR { len } else { NEAR };
    for index in (len - near..len).rev() {
        if list.at(index)?.bytes() == wanted {
            let reach = Reach::FromRight;
            return Some(Place { index, reach });
        }
    }
    if near == len {
        return None;
    }
    for index in 0..NEAR {
        if list.at(index)?.bytes() == wanted {
            let reach = Reach::FromLeft;
            return Some(Place { index, reach });
        }
    }
    let by_deadline = deadlines.and_then(|deadlines| find_by_deadline(list, id, deadlines));
    if by_deadline.is_some() {
        return by_deadline;
    }
    let index = list.last_place_of(id)?;
    let reach = Reach::FromRight;
    Some(Place { index, reach })
}

/// None: not found that way, which says nothing.
fn find_by_deadline(list: &mut ListKey, id: StrRef, deadlines: &ZsetKey) -> Option<Place> {
    let len = list.len();
    if len <= SHORT {
        return None;
    }
    let deadline = deadlines.score(id)?;
    let wanted = id.bytes();
    let index = search_falling(len, deadline, |index| {
        let element = list.at(index)?;
        if element.bytes() == wanted {
            return Some(Look::Found);
        }
        deadlines.score(element.as_ref()).map(Look::Deadline)
    })?;
    let reach = Reach::ByIndex;
    Some(Place { index, reach })
}

enum Look {
    Found,
    /// Another id, with this deadline.
    Deadline(f64),
}

/// Searches a row whose deadlines fall from index 0 to `len` - 1. Gives up as soon as the row turns out to be otherwise.
fn search_falling(len: usize, wanted: f64, mut look: impl FnMut(usize) -> Option<Look>) -> Option<usize> {
    let (mut left, mut right) = (0, len - 1);
    let Look::Deadline(mut latest) = look(left)? else {
        return Some(left);
    };
    let Look::Deadline(mut earliest) = look(right)? else {
        return Some(right);
    };
    for looks in 0..LOOKS {
        if !(earliest <= wanted && wanted <= latest && earliest < latest) {
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
                let on_the_right = guess + 1..(guess + 1 + CLOSE).min(len);
                let on_the_left = guess.saturating_sub(CLOSE)..guess;
                return on_the_right
                    .chain(on_the_left.rev())
                    .find(|index| matches!(look(*index), Some(Look::Found)));
            }
        }
    }
    None
}

/// Several ids: the place of each that is there, with its number among `ids`; rightmost first. An id that is asked for
/// several times is found as often, if it stands in the list as often.
pub fn find_all(list: &mut ListKey, ids: &[StrRef], deadlines: &ZsetKey) -> SmallVec<[(usize, Place); 1]> {
    if let [id] = ids {
        return find(list, *id, Some(deadlines))
            .map(|place| (0, place))
            .into_iter()
            .collect();
    }
    let mut wanted = Wanted::new(ids.iter().map(|id| id.bytes()).enumerate());
    let mut found: SmallVec<[(usize, Place); 1]> = SmallVec::with_capacity(ids.len());
    if wanted.each_once() && ids.len() * PASS_PER_SEARCH < list.len() {
        let mut misses = 0;
        for (tag, id) in ids.iter().enumerate() {
            match find_by_deadline(list, *id, deadlines) {
                Some(place) => {
                    wanted.take(id.bytes());
                    found.push((tag, place));
                }
                None => misses += 1,
            }
            // The deadlines are no guide here, or the ids are not in the list.
            if misses > 1 {
                break;
            }
        }
    }
    found.extend(pass(list, wanted));
    found.sort_unstable_by_key(|(_, place)| std::cmp::Reverse(place.index));
    found
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

    /// The id's tag, as often as it is wanted.
    fn take(&mut self, id: &[u8]) -> Option<usize> {
        let entry = self.ids.get_mut(id).filter(|entry| entry.count > 0)?;
        entry.count -= 1;
        self.missing -= 1;
        Some(entry.tag)
    }
}

/// One pass over the list, from the right end, until all wanted ids are found: the tag and the place of each.
pub fn pass(list: &mut ListKey, mut wanted: Wanted) -> Vec<(usize, Place)> {
    let mut found = Vec::with_capacity(wanted.missing);
    let reach = Reach::FromRight;
    let mut index = list.len();
    while index > 0 && wanted.missing > 0 {
        index -= 1;
        let Some(element) = list.at(index) else { break };
        if let Some(tag) = wanted.take(element.bytes()) {
            found.push((tag, Place { index, reach }));
        }
    }
    found
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
        use std::hash::{BuildHasher, Hash};
        let build = BuildHasherDefault::<IdHasher>::default();
        let buckets: std::collections::HashSet<u64> = (0..4096)
            .map(|number| {
                let mut hasher = build.build_hasher();
                format!("message-{number:08}").as_bytes().hash(&mut hasher);
                hasher.finish() >> 52
            })
            .collect();
        // Of 4096 buckets a good hash fills 63 % with 4096 ids.
        assert!(buckets.len() > 2300, "{}", buckets.len());
    }

    /// Searches a row for the id at `target`; returns what was found and the number of looks.
    fn search(deadlines: &[f64], target: usize) -> (Option<usize>, usize) {
        let mut looks = 0;
        let found = search_falling(deadlines.len(), deadlines[target], |index| {
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
            prop_assert!(looks <= 2 + LOOKS + 2 * CLOSE);
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
