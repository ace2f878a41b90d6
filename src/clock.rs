//! Server time, and the deadlines and due times made from it. All are Unix milliseconds in a sorted set's score.

use std::time::{SystemTime, UNIX_EPOCH};

use smallvec::SmallVec;

/// The latest time that a score tells to the microsecond: 2^43 ms, in the year 2248.
pub const LATEST_MS: f64 = (1i64 << 43) as f64;

#[derive(Clone, Copy)]
pub struct Now {
    micros: i64,
}

impl Now {
    pub fn read() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            micros: since_epoch.as_micros() as i64,
        }
    }

    /// Whole milliseconds, as the scripts take the time.
    pub fn ms(self) -> i64 {
        self.micros / 1000
    }

    /// Milliseconds with microseconds behind the point.
    pub fn exact_ms(self) -> f64 {
        self.micros as f64 / 1000.0
    }

    pub fn micros(self) -> i64 {
        self.micros
    }

    /// The deadline of a lease that starts now. It is never a whole number of milliseconds, as the scripts' are.
    pub fn lease(self, lease_ms: i64) -> Lease {
        let micros = self.micros + lease_ms * 1000;
        Lease {
            micros: micros + i64::from(micros % 1000 == 0),
        }
    }
}

/// A deadline to the microsecond. The text and the score are the same number: a score read back from the text compares
/// equal.
#[derive(Clone, Copy)]
pub struct Lease {
    micros: i64,
}

impl Lease {
    pub fn score(self) -> f64 {
        self.micros as f64 / 1000.0
    }

    /// Milliseconds with three decimals.
    pub fn text(self) -> SmallVec<[u8; 24]> {
        let mut text = [0; 24];
        let mut start = text.len();
        let mut left = self.micros;
        for place in 0.. {
            if place == 3 {
                start -= 1;
                text[start] = b'.';
            }
            if place > 3 && left == 0 {
                break;
            }
            start -= 1;
            text[start] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        SmallVec::from_slice(&text[start..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_lease_is_a_whole_number_of_milliseconds() {
        for micros in 0..5000 {
            assert_ne!(Now { micros }.lease(7).score().fract(), 0.0);
        }
    }

    proptest! {
        #[test]
        fn the_text_of_a_lease_is_its_score(micros in 0i64..LATEST_MS as i64 * 1000) {
            let lease = Lease { micros };
            let text = String::from_utf8(lease.text().to_vec()).unwrap();
            prop_assert_eq!(text.parse::<f64>().unwrap(), lease.score());
            prop_assert_eq!(text, format!("{}.{:03}", micros / 1000, micros % 1000));
        }

        #[test]
        fn neighbouring_microseconds_are_different_leases(micros in 0i64..LATEST_MS as i64 * 1000) {
            let (one, next) = (Lease { micros }, Lease { micros: micros + 1 });
            prop_assert!(one.score() < next.score());
        }
    }
}
