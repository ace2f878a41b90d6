//! Ids that the server makes: sortable by time, never twice. `<µs of Unix time in hex>-<40 random bits>`.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::clock::Now;

/// Later than every id that this process made before, even if the clock was set back.
pub fn fresh(now: Now) -> String {
    static LAST: AtomicI64 = AtomicI64::new(0);
    let micros = now.micros().max(LAST.load(Ordering::Relaxed) + 1);
    LAST.store(micros, Ordering::Relaxed);
    format!("{micros:014x}-{:010x}", random_bits() >> 24)
}

/// Another server, or this one after a restart, may make an id in the same microsecond.
pub fn random_bits() -> u64 {
    lazy_static::lazy_static! {
        static ref KEYS: RandomState = RandomState::new();
    }
    static COUNT: AtomicU64 = AtomicU64::new(0);
    KEYS.hash_one(COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_in_the_order_in_which_they_were_made() {
        let ids: Vec<String> = (0..10_000).map(|_| fresh(Now::read())).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(ids[0].len(), 25);
    }
}
