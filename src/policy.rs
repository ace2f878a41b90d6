//! The policy of a queue: attempts, backoff, pause. Pure but for the read of the two fields that it comes from.

use std::collections::HashMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value as Json};

use crate::args::LONGEST_MS;
use crate::id::random_bits;
use crate::redis::reply::Value;
use crate::redis::{log, HashKey, StrRef};
use crate::skipped::is_time_to_log;

/// The name under which `<ns>:queues` has the namespace's default.
pub const DEFAULT: &[u8] = b"*";

/// The policy in force.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// 0: no limit.
    pub attempts: i64,
    pub backoff_first_ms: i64,
    pub backoff_max_ms: i64,
    pub paused: bool,
}

const BUILT_IN: Policy = Policy { attempts: 25, backoff_first_ms: 1000, backoff_max_ms: 3_600_000, paused: false };

impl Policy {
    /// Of a queue: its own values, else the namespace's, else built in.
    pub fn of(queues: &HashKey, queue: StrRef, default: StrRef) -> Self {
        let [own, default] = queues.get_two(queue, default);
        let read =
            |field: Option<crate::redis::OwnedStr>| field.map_or_else(Stored::default, |f| Stored::read(f.bytes()));
        Policy::effective(read(own), read(default))
    }

    pub fn effective(own: Stored, default: Stored) -> Self {
        let backoff = own.backoff.or(default.backoff);
        let (backoff_first_ms, backoff_max_ms) =
            backoff.unwrap_or((BUILT_IN.backoff_first_ms, BUILT_IN.backoff_max_ms));
        Policy {
            attempts: own.attempts.or(default.attempts).unwrap_or(BUILT_IN.attempts),
            backoff_first_ms,
            backoff_max_ms,
            paused: own.paused || default.paused,
        }
    }

    /// As replies show it.
    pub fn fields(&self) -> [(&'static str, Value<'static>); 4] {
        [
            ("attempts", Value::Integer(self.attempts)),
            ("backoff_first_ms", Value::Integer(self.backoff_first_ms)),
            ("backoff_max_ms", Value::Integer(self.backoff_max_ms)),
            ("paused", Value::Integer(i64::from(self.paused))),
        ]
    }

    /// Whether a failed attempt was the last one.
    pub fn is_last(&self, attempts: i64) -> bool {
        self.attempts > 0 && attempts >= self.attempts
    }

    /// The delay after the failed attempt number `attempts`: doubled with each, plus up to a tenth at random, so that
    /// messages that failed together do not come back together.
    pub fn backoff_ms(&self, attempts: i64) -> i64 {
        let doublings = attempts.saturating_sub(1).clamp(0, 62) as u32;
        let delay = self.backoff_first_ms.saturating_mul(1i64 << doublings).min(self.backoff_max_ms);
        delay + (random_bits() % (delay as u64 / 10 + 1)) as i64
    }
}

/// The values that are set for one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stored {
    pub attempts: Option<i64>,
    /// First and longest delay.
    pub backoff: Option<(i64, i64)>,
    pub paused: bool,
}

impl Stored {
    /// A field of `<ns>:queues`. Parsed only when its bytes are new.
    pub fn read(field: &[u8]) -> Self {
        const KEPT: usize = 256;
        const LONGEST_KEPT: usize = 1024;
        lazy_static::lazy_static! {
            static ref READ: Mutex<HashMap<Vec<u8>, Stored>> = Mutex::default();
        }
        if field == b"{}" {
            return Stored::default();
        }
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stored) = read.get(field) {
            return *stored;
        }
        let (stored, is_whole) = Stored::parse(field);
        static LAST_LOGGED: AtomicI64 = AtomicI64::new(0);
        let is_logged = !is_whole && is_time_to_log(&LAST_LOGGED);
        if is_logged {
            log::warning(&format!("rmq: a policy cannot be read, and counts as absent: '{}'", log::printable(field)));
        }
        if read.len() >= KEPT {
            read.clear();
        }
        // One that is still to be logged is parsed again.
        if field.len() <= LONGEST_KEPT && (is_whole || is_logged) {
            read.insert(field.to_vec(), stored);
        }
        stored
    }

    /// The values that can be read, and whether that is all of them.
    fn parse(field: &[u8]) -> (Self, bool) {
        let Ok(Json::Object(values)) = serde_json::from_slice(field) else {
            return (Stored::default(), false);
        };
        let number = |name: &str| values.get(name).and_then(Json::as_i64).filter(|value| *value >= 0);
        let attempts = number("attempts");
        let backoff = number("backoff_first_ms").zip(number("backoff_max_ms"));
        let backoff = backoff.filter(|(first, max)| first <= max && *max <= LONGEST_MS);
        let paused = values.get("paused").map(|paused| paused.as_bool().or(paused.as_i64().map(|number| number != 0)));
        let is_whole = values.contains_key("attempts") == attempts.is_some()
            && (values.contains_key("backoff_first_ms") || values.contains_key("backoff_max_ms")) == backoff.is_some()
            && paused != Some(None);
        (Stored { attempts, backoff, paused: paused.flatten().unwrap_or(false) }, is_whole)
    }

    pub fn to_json(self) -> Vec<u8> {
        let mut values = Map::new();
        if let Some(attempts) = self.attempts {
            values.insert("attempts".into(), attempts.into());
        }
        if let Some((first, max)) = self.backoff {
            values.insert("backoff_first_ms".into(), first.into());
            values.insert("backoff_max_ms".into(), max.into());
        }
        if self.paused {
            values.insert("paused".into(), true.into());
        }
        Json::Object(values).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_the_queues_own_else_the_default_else_built_in() {
        let own = Stored { attempts: Some(3), ..Stored::default() };
        let default = Stored { attempts: Some(9), backoff: Some((10, 20)), paused: true };
        let policy = Policy::effective(own, default);
        assert_eq!(policy, Policy { attempts: 3, backoff_first_ms: 10, backoff_max_ms: 20, paused: true });
        assert_eq!(Policy::effective(Stored::default(), Stored::default()), BUILT_IN);
    }

    #[test]
    fn the_backoff_doubles_up_to_its_limit_with_a_tenth_at_random() {
        let policy = Policy { backoff_first_ms: 100, backoff_max_ms: 1000, ..BUILT_IN };
        for (attempt, delay) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (400, 1000)] {
            for _ in 0..50 {
                let backoff = policy.backoff_ms(attempt);
                assert!((delay..=delay + delay / 10).contains(&backoff), "{attempt}: {backoff}");
            }
        }
        let longest = Policy { backoff_first_ms: LONGEST_MS, backoff_max_ms: LONGEST_MS, ..BUILT_IN };
        assert!(longest.backoff_ms(i64::MAX) <= 1_100_000_000_000);
    }

    #[test]
    fn what_is_stored_is_read_back_and_what_cannot_be_read_is_absent() {
        let stored = Stored { attempts: Some(0), backoff: Some((5, 5)), paused: true };
        assert_eq!(Stored::parse(&stored.to_json()), (stored, true));
        assert_eq!(Stored::default().to_json(), b"{}");
        assert_eq!(
            Stored::parse(b"{\"attempts\": \"x\", \"paused\": 1}"),
            (Stored { paused: true, ..Stored::default() }, false)
        );
        assert_eq!(Stored::parse(b"no json"), (Stored::default(), false));
        let too_long = format!("{{\"backoff_first_ms\": 1, \"backoff_max_ms\": {}}}", i64::MAX);
        assert_eq!(Stored::parse(too_long.as_bytes()), (Stored::default(), false));
        assert_eq!(Stored::parse(b"{\"backoff_first_ms\": 9, \"backoff_max_ms\": 1}").0, Stored::default());
    }
}
