//! What a call costs the server, on a machine that others use, too. They can only make it dearer: so whatever holds in
//! one of some tries holds, and two costs are compared by the cheapest of each.

use super::Server;
use std::time::Duration;

const FEWEST_ROUNDS: usize = 3;
const MOST_ROUNDS: usize = 15;

impl Server {
    /// Microseconds that the server's main thread has been on a processor. Exact while it sleeps, so this waits a little
    /// for it to do so.
    pub fn on_processor(&self) -> u64 {
        std::thread::sleep(Duration::from_micros(300));
        let pid = self.pid();
        let path = format!("/proc/{pid}/task/{pid}/schedstat");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let nanos: u64 = text.split(' ').next().and_then(|n| n.parse().ok()).expect("nanoseconds");
        nanos / 1000
    }

    /// Microseconds that it has been there for this.
    pub fn cost(&self, work: impl FnOnce()) -> u64 {
        let before = self.on_processor();
        work();
        (self.on_processor() - before).max(1)
    }
}

/// Asserts that the first costs at most so many times as much as the second. They are measured in turns.
#[track_caller]
pub fn assert_ratio<T: Copy>(at_most: f64, [first, second]: [T; 2], mut cost: impl FnMut(T) -> u64) {
    let mut least = [u64::MAX; 2];
    for round in 1..=MOST_ROUNDS {
        least = [least[0].min(cost(first)), least[1].min(cost(second))];
        if round >= FEWEST_ROUNDS && least[0] as f64 <= at_most * least[1] as f64 {
            println!("{} µs and {} µs after {round} rounds, allowed {at_most} times", least[0], least[1]);
            return;
        }
    }
    panic!("{} µs and {} µs: more than {at_most} times as much", least[0], least[1]);
}

/// Asserts that a figure is below the bound in one of some tries.
#[track_caller]
pub fn assert_below(bound: u64, mut figure: impl FnMut() -> u64) {
    let mut least = u64::MAX;
    for _ in 0..MOST_ROUNDS {
        least = least.min(figure());
        if least < bound {
            return;
        }
    }
    panic!("{least} at least, and the bound is {bound}");
}
