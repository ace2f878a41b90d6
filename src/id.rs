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

/// For a message that can be taken at this time: its id contains that time. Ids of one millisecond differ in the last three
/// digits of the µs and in the random bits.
pub fn fresh_at(unix_ms: i64) -> String {
    static COUNT: AtomicI64 = AtomicI64::new(0);
    let micros = unix_ms * 1000 + COUNT.fetch_add(1, Ordering::Relaxed).rem_euclid(1000);
    format!("{micros:014x}-{:010x}", random_bits() >> 24)
}

/// The µs in an id that the server made; None for any other id.
pub fn micros_of(id: &[u8]) -> Option<i64> {
    let (micros, random) = (id.get(..14)?, id.get(14..)?);
    let is_hex = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_ours = random.len() == 11 && random[0] == b'-' && is_hex(&random[1..]) && is_hex(micros);
    is_ours.then(|| i64::from_str_radix(std::str::from_utf8(micros).ok()?, 16).ok()).flatten()
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

    #[test]
    fn an_id_of_the_server_contains_its_time_and_others_none() {
        let now = Now::read();
        let micros = micros_of(fresh(now).as_bytes()).unwrap();
        assert!(micros >= now.micros() && micros < now.micros() + 1_000_000);
        assert_eq!(micros_of(fresh_at(1_794_891_056_259).as_bytes()).unwrap() / 1000, 1_794_891_056_259);
        for other in ["", "order-1", "6f1c2f3e-8a4b-4c8e-9a51-0d5d1b7f2a11", "0006607c1b4d5a-00000000zz"] {
            assert_eq!(micros_of(other.as_bytes()), None, "{other}");
        }
    }
}
