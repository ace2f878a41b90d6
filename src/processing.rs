//! The processing list. How ids are found is private to this file. The oldest id is at the right end, the
//! newest at the left, and most messages are settled in about the order in which they were taken, so the ends come
//! first. In a long list the deadlines help: where all consumers use the same lease time, deadlines fall from left to
//! right, and a search by deadline needs a few probes. These are hints: every hit is verified, every miss falls
//! back to a full search.

use smallvec::{smallvec, SmallVec};

use crate::hash::IdMap;
use crate::redis::list::{LremSide, Place};
use crate::redis::{ListKey, StrRef, ZsetKey};

/// Elements probed at the right and at the left end before the server searches the list: each probe costs as much as a
/// few elements of that search.
const TAIL_PROBES: usize = 2;
const HEAD_PROBES: usize = 1;
/// The same at either end where the deadline says that the id is near it.
const END_PROBES: usize = 8;
/// Up to this length a list is walked as a whole.
const WALK_MAX_LEN: usize = 4;
/// Up to this length the server's own search is as fast as a search by deadline.
const DEADLINE_SEARCH_MIN_LEN: usize = 1024;
/// Maximum probes of a search by deadline; the first ones interpolate, the rest bisect.
const PROBES_MAX: usize = 20;
const INTERPOLATED_PROBES: usize = 6;
/// Neighbours probed one by one when the search has come close, or has met the wanted deadline on another id.
const NEIGHBOURS: usize = 16;
/// Elements that a pass over the list looks at in the time of one search by deadline.
const PASS_PER_SEARCH: usize = 50;
/// After this many elements in a row that are not wanted, a pass is interrupted for searches by deadline.
const PATIENCE: usize = 16;

pub struct Processing<'a, 'c> {
    list: &'a mut ListKey<'c>,
}

impl<'a, 'c> Processing<'a, 'c> {
    pub fn of(list: &'a mut ListKey<'c>) -> Self {
        Processing { list }
    }

    pub fn take_out(&mut self, place: Place, id: StrRef) {
        self.list.remove(&mut [(place, id)]);
    }

    /// Takes out one occurrence of each id. Returns which of them were there.
    pub fn take_out_all(&mut self, ids: &[StrRef], deadlines: &ZsetKey) -> SmallVec<[bool; 1]> {
        let found = self.find_all(ids, deadlines);
        self.take_out_found(&found, ids);
        let mut there: SmallVec<[bool; 1]> = smallvec![false; ids.len()];
        found.iter().for_each(|(index, _)| there[*index] = true);
        there
    }

    pub fn take_out_found(&mut self, found: &[(usize, Place)], ids: &[StrRef]) {
        let mut places: SmallVec<[(Place, StrRef); 4]> =
            found.iter().map(|(index, place)| (*place, ids[*index])).collect();
        self.list.remove(&mut places);
    }

    /// `deadlines` holds the deadlines of the ids.
    pub fn find(&mut self, id: StrRef, deadlines: &ZsetKey) -> Option<Place> {
        let len = self.list.len();
        let last = len.checked_sub(1)?;
        if self.list.is_at(last, id) {
            return Some(Place { index: last, side: LremSide::Tail });
        }
        let hint = if len > DEADLINE_SEARCH_MIN_LEN { self.hint(id, deadlines) } else { Hint::Unknown };
        let (tail_probes, head_probes) = match hint {
            Hint::At(index) => return Some(Place { index, side: LremSide::Ambiguous }),
            Hint::Unknown if len <= WALK_MAX_LEN => (len, 0),
            Hint::Unknown => (TAIL_PROBES, HEAD_PROBES),
            Hint::NearTail => (END_PROBES, END_PROBES),
            Hint::NotNearTail => (0, END_PROBES),
        };
        if let Some(index) = (len - tail_probes..last).rev().find(|index| self.list.is_at(*index, id)) {
            return Some(Place { index, side: LremSide::Tail });
        }
        if tail_probes == len {
            return None;
        }
        if let Some(index) = (0..head_probes).find(|index| self.list.is_at(*index, id)) {
            return Some(Place { index, side: LremSide::Head });
        }
        self.list.last_place_of(id).map(|index| Place { index, side: LremSide::Tail })
    }

    /// Several ids: the index in `ids` and the place of each that is there.
    pub fn find_all(&mut self, ids: &[StrRef], deadlines: &ZsetKey) -> Vec<(usize, Place)> {
        if let [id] = ids {
            return self.find(*id, deadlines).map(|place| (0, place)).into_iter().collect();
        }
        let len = self.list.len();
        let mut found: Vec<(usize, Place)> = Vec::with_capacity(ids.len());
        // Those that are settled in the order in which they were taken need no set of ids.
        while found.len() < ids.len().min(len) && self.list.is_at(len - found.len() - 1, ids[found.len()]) {
            found.push((found.len(), Place { index: len - found.len() - 1, side: LremSide::Tail }));
        }
        let in_order = found.len();
        let mut wanted = Wanted::new(ids.iter().map(|id| id.bytes()).enumerate().skip(in_order));
        // One that is wanted again must not be found at the same place again.
        let each_once = wanted.each_once() && !ids[..in_order].iter().any(|id| wanted.contains(id.bytes()));
        let rest = (0..len - in_order).rev();
        let end = self.gather(rest, LremSide::Tail, PATIENCE, &mut wanted, &mut found).unwrap_or(0);
        if len > DEADLINE_SEARCH_MIN_LEN && each_once {
            self.find_by_deadline(ids, deadlines, &mut wanted, &mut found);
        }
        // From where the first pass stopped: an occurrence must not be found twice.
        self.gather((0..end).rev(), LremSide::Tail, usize::MAX, &mut wanted, &mut found);
        found
    }

    /// The same in one pass from the right, without using deadlines.
    pub fn pass(&mut self, ids: &[StrRef]) -> Vec<(usize, Place)> {
        let mut wanted = Wanted::new(ids.iter().map(|id| id.bytes()).enumerate());
        let mut found = Vec::with_capacity(ids.len());
        self.gather((0..self.list.len()).rev(), LremSide::Tail, usize::MAX, &mut wanted, &mut found);
        found
    }

    /// Finds ids by their deadlines, until they are no help any more or a pass over the list is cheaper.
    fn find_by_deadline(
        &mut self,
        ids: &[StrRef],
        deadlines: &ZsetKey,
        wanted: &mut Wanted,
        found: &mut Vec<(usize, Place)>,
    ) {
        let len = self.list.len();
        for (tag, id) in ids.iter().enumerate().take(len / PASS_PER_SEARCH) {
            if wanted.missing == 0 {
                return;
            }
            if !wanted.contains(id.bytes()) {
                continue;
            }
            let Hint::At(index) = self.hint(*id, deadlines) else { return };
            wanted.take(id.bytes());
            let side = LremSide::Ambiguous;
            found.push((tag, Place { index, side }));
            // Those that were taken in one call are side by side.
            self.gather((0..index).rev(), side, PATIENCE, wanted, found);
            self.gather(index + 1..len, side, PATIENCE, wanted, found);
        }
    }

    /// Looks at one element after the other, until all wanted ones are found or `patience` elements in a row were none of
    /// them. Returns the index at which it ran out of patience.
    fn gather(
        &mut self,
        indexes: impl Iterator<Item = usize>,
        side: LremSide,
        patience: usize,
        wanted: &mut Wanted,
        found: &mut Vec<(usize, Place)>,
    ) -> Option<usize> {
        let mut in_vain = 0;
        for index in indexes {
            if wanted.missing == 0 {
                return None;
            }
            if in_vain >= patience {
                return Some(index + 1);
            }
            let element = self.list.at(index)?;
            match wanted.take(element.bytes()) {
                Some(tag) => {
                    found.push((tag, Place { index, side }));
                    in_vain = 0;
                }
                None => in_vain += 1,
            }
        }
        None
    }

    /// Where the deadline of an id points to in a long list.
    fn hint(&mut self, id: StrRef, deadlines: &ZsetKey) -> Hint {
        let Some(wanted) = deadlines.score(id) else {
            return Hint::Unknown;
        };
        let len = self.list.len();
        let mut look = |index| {
            let element = self.list.at(index)?;
            if element.bytes() == id.bytes() {
                return Some(Look::Found);
            }
            deadlines.score(element.as_ref()).map(Look::Deadline)
        };
        let right = match look(len - END_PROBES) {
            Some(Look::Deadline(deadline)) if deadline < wanted => (len - END_PROBES, deadline),
            Some(Look::Found) => return Hint::At(len - END_PROBES),
            _ => return Hint::NearTail,
        };
        let left = match look(END_PROBES - 1) {
            Some(Look::Deadline(deadline)) if deadline > wanted => (END_PROBES - 1, deadline),
            Some(Look::Found) => return Hint::At(END_PROBES - 1),
            _ => return Hint::NotNearTail,
        };
        search_falling(left, right, wanted, look).map_or(Hint::NotNearTail, Hint::At)
    }
}

enum Hint {
    NearTail,
    NotNearTail,
    At(usize),
    /// The id has no deadline.
    Unknown,
}

/// The result of one probe. None: the element has no deadline.
enum Look {
    Found,
    /// Another id, with this deadline.
    Deadline(f64),
}

/// Searches elements whose deadlines fall from left to right, between two whose deadlines are known. Gives up as soon as
/// the deadlines turn out to be in another order.
fn search_falling(
    (mut left, mut latest): (usize, f64),
    (mut right, mut earliest): (usize, f64),
    wanted: f64,
    mut look: impl FnMut(usize) -> Option<Look>,
) -> Option<usize> {
    for looks in 0..PROBES_MAX {
        if !(left < right && earliest <= wanted && wanted <= latest && earliest < latest) {
            return None;
        }
        if right - left <= NEIGHBOURS {
            return (left + 1..right).find(|index| matches!(look(*index), Some(Look::Found)));
        }
        let share = if looks < INTERPOLATED_PROBES { (latest - wanted) / (latest - earliest) } else { 0.5 };
        let step = (share * (right - left) as f64) as usize;
        let guess = (left + step).clamp(left + 1, right - 1);
        match look(guess)? {
            Look::Found => return Some(guess),
            Look::Deadline(deadline) if deadline > wanted => (left, latest) = (guess, deadline),
            Look::Deadline(deadline) if deadline < wanted => (right, earliest) = (guess, deadline),
            // Taken in the same call or the same millisecond: adjacent, on either side.
            Look::Deadline(_) => {
                let on_the_right = guess + 1..(guess + 1 + NEIGHBOURS).min(right);
                let on_the_left = guess.saturating_sub(NEIGHBOURS).max(left + 1)..guess;
                return on_the_right.chain(on_the_left.rev()).find(|index| matches!(look(*index), Some(Look::Found)));
            }
        }
    }
    None
}

/// Ids to look for. Each comes with a tag, its index in the caller's own list; an id may be wanted several times.
struct Wanted<'a> {
    ids: IdMap<&'a [u8], WantedId>,
    missing: usize,
}

struct WantedId {
    tag: usize,
    count: usize,
}

impl<'a> Wanted<'a> {
    fn new(ids: impl Iterator<Item = (usize, &'a [u8])>) -> Self {
        let mut wanted = Wanted { ids: IdMap::default(), missing: 0 };
        wanted.ids.reserve(ids.size_hint().0);
        for (tag, id) in ids {
            wanted.ids.entry(id).or_insert(WantedId { tag, count: 0 }).count += 1;
            wanted.missing += 1;
        }
        wanted
    }

    fn each_once(&self) -> bool {
        self.ids.len() == self.missing
    }

    fn contains(&self, id: &[u8]) -> bool {
        self.ids.get(id).is_some_and(|wanted| wanted.count > 0)
    }

    /// The id's tag, as often as it is wanted.
    fn take(&mut self, id: &[u8]) -> Option<usize> {
        let wanted = self.ids.get_mut(id).filter(|wanted| wanted.count > 0)?;
        wanted.count -= 1;
        self.missing -= 1;
        Some(wanted.tag)
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

    /// Searches a row for the id at `target`; returns what was found and the number of probes.
    fn search(deadlines: &[f64], target: usize) -> (Option<usize>, usize) {
        let mut looks = 0;
        let last = deadlines.len() - 1;
        let ends = ((0, deadlines[0]), (last, deadlines[last]));
        if let Some(end) = [0, last].into_iter().find(|end| *end == target) {
            return (Some(end), looks);
        }
        let found = search_falling(ends.0, ends.1, deadlines[target], |index| {
            looks += 1;
            Some(if index == target { Look::Found } else { Look::Deadline(deadlines[index]) })
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
            prop_assert!(looks <= PROBES_MAX + 2 * NEIGHBOURS);
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
