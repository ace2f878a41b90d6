//! Finding ids in a list, quickly at both ends. The oldest id of `processing` stands at the right end and the newest
//! at the left, and most messages are settled in about the order in which they were taken; so a few elements at each
//! end are looked at directly, and only then is the whole list searched.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::redis::key::End;
use crate::redis::{ListKey, StrRef};

/// Elements looked at from each end before the whole list is searched.
const NEAR: usize = 8;

/// Where an id stands, and from which end LREM finds that one first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub index: usize,
    pub from: End,
}

impl Place {
    /// LREM's count that takes out this occurrence.
    pub fn lrem_count(self) -> &'static std::ffi::CStr {
        match self.from {
            End::Left => c"1",
            End::Right => c"-1",
        }
    }
}

pub fn find(list: &mut ListKey, id: StrRef) -> Option<Place> {
    let len = list.len();
    let near_right = len.min(2 * NEAR);
    let near_right = if near_right == len { len } else { NEAR };
    let wanted = id.bytes();
    let is_at = |list: &ListKey, index| list.get(index).is_some_and(|element| element.bytes() == wanted);
    for index in (len - near_right..len).rev() {
        if is_at(list, index) {
            return Some(Place {
                index,
                from: End::Right,
            });
        }
    }
    if near_right == len {
        return None;
    }
    // From the right end the server would walk the whole list to get to the left one.
    list.rewind();
    for index in 0..NEAR {
        if is_at(list, index) {
            return Some(Place { index, from: End::Left });
        }
    }
    let index = list.last_place_of(id)?;
    Some(Place {
        index,
        from: End::Right,
    })
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

    /// The id's tag, as often as it is wanted.
    fn take(&mut self, id: &[u8]) -> Option<usize> {
        let entry = self.ids.get_mut(id).filter(|entry| entry.count > 0)?;
        entry.count -= 1;
        self.missing -= 1;
        Some(entry.tag)
    }
}

/// One pass over the list, from the right end, until all wanted ids are found; each is told to `found` by its tag and
/// taken out of the list if `remove`.
pub fn pass(list: &mut ListKey, mut wanted: Wanted, remove: bool, mut found: impl FnMut(usize)) {
    let mut index = list.len();
    let mut places = Vec::new();
    while index > 0 && wanted.missing > 0 {
        index -= 1;
        let Some(element) = list.get(index) else { break };
        if let Some(tag) = wanted.take(element.bytes()) {
            if remove {
                places.push(index);
            }
            found(tag);
        }
    }
    places.reverse();
    list.remove_all(&places);
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
        self.mix(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
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

    #[test]
    fn an_id_is_taken_as_often_as_it_is_wanted() {
        let mut wanted = Wanted::new([&b"a"[..], b"b", b"a"].into_iter().enumerate());
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
}
