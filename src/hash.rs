//! A fast hash for ids.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
pub type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

/// For so many ids.
pub fn id_set<K>(ids: usize) -> IdSet<K> {
    IdSet::with_capacity_and_hasher(ids, BuildHasherDefault::default())
}

/// Multiplies and folds eight bytes at a time, from a seed that differs from process to process: ids come from clients,
/// who must not be able to choose collisions.
pub struct IdHasher {
    state: u64,
}

impl Default for IdHasher {
    fn default() -> Self {
        IdHasher { state: *SEED }
    }
}

lazy_static::lazy_static! {
    static ref SEED: u64 = RandomState::new().hash_one(0) | 1;
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
        // The last eight bytes, which may overlap the chunks: cheaper than to look at the rest byte by byte.
        let last = match bytes.last_chunk() {
            Some(last) => u64::from_le_bytes(*last),
            None => bytes.iter().fold(0, |last, byte| last << 8 | u64::from(*byte)),
        };
        self.mix(last ^ ((bytes.len() as u64) << 56));
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
    fn similar_ids_spread() {
        let build = BuildHasherDefault::<IdHasher>::default();
        let buckets: HashSet<u64> =
            (0..4096).map(|number| build.hash_one(format!("message-{number:08}").as_bytes()) >> 52).collect();
        // Of 4096 buckets a good hash fills 63 % with 4096 ids.
        assert!(buckets.len() > 2300, "{}", buckets.len());
    }
}
