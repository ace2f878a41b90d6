//! Server time, deadlines and due times, and what happens when they come. All times are Unix milliseconds in a sorted
//! set's score.

pub mod due;
pub mod keep;
pub mod overdue;
pub mod resume;
pub mod waiting;

use std::time::{SystemTime, UNIX_EPOCH};

/// The latest time that a score holds to the microsecond: 2^43 ms, in the year 2248.
pub const LATEST_MS: f64 = (1i64 << 43) as f64;

/// Whether a deadline is that of a lease: scripts write whole numbers.
pub fn is_lease(deadline: f64) -> bool {
    deadline.is_finite() && deadline.fract() != 0.0
}

#[derive(Clone, Copy)]
pub struct Now {
    micros: i64,
}

impl Now {
    pub fn read() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { micros: since_epoch.as_micros() as i64 }
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

    /// The deadline of a lease that starts now, as a score. It is never a whole number of milliseconds, as the scripts'
    /// deadlines are.
    pub fn lease(self, lease_ms: i64) -> f64 {
        let micros = self.micros + lease_ms * 1000;
        (micros + i64::from(micros % 1000 == 0)) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lease_is_a_whole_number_of_milliseconds() {
        for start in [0, Now::read().micros(), LATEST_MS as i64 * 1000 - 10_000] {
            for micros in start..start + 5000 {
                assert_ne!(Now { micros }.lease(1).fract(), 0.0);
            }
        }
    }
}
