//! A small deterministic source of randomness (splitmix64). The seed is printed, so that a failure can be repeated.

use std::ops::Range;

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From `RMQ_SEED`, or a fixed seed; prints it.
    pub fn seeded() -> Rng {
        let seed = match std::env::var("RMQ_SEED") {
            Ok(text) => parse_seed(&text).unwrap_or_else(|| panic!("RMQ_SEED {text:?} is no number")),
            Err(_) => 0x5eed,
        };
        println!("seed {seed}; RMQ_SEED={seed} repeats this run");
        Rng(seed)
    }

    pub fn from_seed(seed: u64) -> Rng {
        Rng(seed)
    }

    /// An independent generator, for a thread.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next_u64())
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }

    pub fn range(&mut self, range: Range<i64>) -> i64 {
        range.start + self.below((range.end - range.start) as usize) as i64
    }

    /// True `percent` times out of a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next_u64() as u8).collect()
    }
}

fn parse_seed(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}
