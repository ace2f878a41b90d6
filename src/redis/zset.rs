//! A sorted set.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use redis_module::raw;

use super::api::api;
use super::effects::Plain;
use super::key::Key;
use super::plain::Scan;
use super::{OwnedStr, StrRef};
use crate::clock::LATEST_MS;
use crate::digits::Digits;

pub struct ZsetKey<'c> {
    pub(super) key: Key<'c>,
    /// The latest score added, and its text: a batch often shares one.
    pub(super) score_text: Option<(f64, OwnedStr)>,
}

impl ZsetKey<'_> {
    pub fn score(&self, member: StrRef) -> Option<f64> {
        if !self.key.exists() {
            return None;
        }
        let mut score = 0.0;
        // SAFETY: the key is open and a sorted set; `score` outlives the call.
        let status = unsafe { api!(RedisModule_ZsetScore(self.key.raw(), member.raw(), &mut score)) };
        (status == raw::REDISMODULE_OK as c_int).then_some(score)
    }

    /// `score` must be a number: NaN is refused by the server, and nothing would be written.
    pub fn add(&mut self, member: StrRef, score: f64) {
        if score.fract() != 0.0 {
            self.leave_compact_encoding();
        }
        if self.add_raw(member, score, 0) & raw::REDISMODULE_ZADD_NOP != 0 {
            return;
        }
        let text = match &mut self.score_text {
            Some((same, text)) if *same == score => text,
            other => &mut other.insert((score, OwnedStr::new(score_text(score).bytes()))).1,
        };
        self.key.changed(Plain::ZAdd, 0, &[text.as_ref(), member]);
    }

    fn add_raw(&mut self, member: StrRef, score: f64, flags: u32) -> u32 {
        let mut flags = flags as c_int;
        // SAFETY: the key is open for writing and a sorted set or missing; `flags` outlives the call.
        unsafe { api!(RedisModule_ZsetAdd(self.key.raw(), score, member.raw(), &mut flags)) };
        flags as u32
    }

    fn remove_raw(&mut self, member: StrRef) -> bool {
        let mut deleted: c_int = 0;
        // SAFETY: the key is open for writing and a sorted set or missing; `deleted` outlives the call.
        unsafe { api!(RedisModule_ZsetRem(self.key.raw(), member.raw(), &mut deleted)) };
        deleted != 0
    }

    /// A small sorted set is stored compactly: scores with decimals are text there, and every insertion reads them one
    /// by one; among 50 leases that took 60 % of a RESERVE. So a set of some size is made to take the ordinary encoding, by
    /// a member too long for the compact one that is added and removed within the call. Asking for the encoding takes
    /// too long, so this is done at one size, and above it for one insertion in 32, whether it is needed or not.
    fn leave_compact_encoding(&mut self) {
        /// A growing set passes the first size; above the last (the server's default limit) none is compact.
        const SIZES: std::ops::RangeInclusive<usize> = 12..=128;
        const ONE_IN: u32 = 32;
        /// A pseudo-random turn, so that no key is always left out.
        const STRIDE: u32 = 0x9E37_79B9;
        static TURN: AtomicU32 = AtomicU32::new(0);

        let len = self.key.len();
        let is_its_turn = || TURN.fetch_add(STRIDE, Ordering::Relaxed) <= u32::MAX / ONE_IN;
        if !(len == *SIZES.start() || SIZES.contains(&len) && is_its_turn()) {
            return;
        }
        let long = OwnedStr::new(&[b'.'; 300]);
        // A user's own member of that name stays.
        if self.add_raw(long.as_ref(), 0.0, raw::REDISMODULE_ZADD_NX) & raw::REDISMODULE_ZADD_ADDED != 0 {
            self.remove_raw(long.as_ref());
        }
    }

    /// Whether the member was there.
    pub fn remove(&mut self, member: StrRef) -> bool {
        let removed = self.remove_raw(member);
        if removed {
            self.key.changed(Plain::ZRem, 0, &[member]);
        }
        removed
    }

    /// Some members from this cursor on, about `count`, and the next cursor, which is 0 at the end. None if the server did not
    /// look.
    pub fn page(&mut self, cursor: u64, count: usize) -> Option<(u64, Vec<OwnedStr>)> {
        if !self.key.exists() {
            return Some((0, Vec::new()));
        }
        self.key.reopen(|call, name| call.scan(Scan::Zset, name, cursor, count))
    }

    /// The member with the lowest score.
    pub fn first(&self) -> Option<(OwnedStr, f64)> {
        let mut first = None;
        let _ = self.between(f64::NEG_INFINITY, f64::INFINITY, |member, score| {
            first = Some((member, score));
            Ok::<_, ()>(Walk::Stop)
        });
        first
    }

    /// Members with a score from `min` to `max`, lowest first, until `visit` stops. Nothing is removed meanwhile: a
    /// removal would leave the server's iterator dangling.
    pub fn between<E>(
        &self,
        min: f64,
        max: f64,
        mut visit: impl FnMut(OwnedStr, f64) -> Result<Walk, E>,
    ) -> Result<(), E> {
        if !self.key.exists() {
            return Ok(());
        }
        let key = self.key.raw();
        // SAFETY: the key is open and a sorted set. The iterator lives in the handle; `&self` keeps writers of this
        // handle away until the guard stops it, and no other handle on the key exists.
        unsafe {
            api!(RedisModule_ZsetFirstInScoreRange(key, min, max, 0, 0));
            let _stop = RangeGuard(key);
            loop {
                let mut score = 0.0;
                let Some(member) = OwnedStr::take(api!(RedisModule_ZsetRangeCurrentElement(key, &mut score))) else {
                    return Ok(());
                };
                if visit(member, score)? == Walk::Stop || api!(RedisModule_ZsetRangeNext(key)) == 0 {
                    return Ok(());
                }
            }
        }
    }
}

/// The shortest text that is read as the same number. Times with whole microseconds, which nearly all scores are, need no
/// search for it.
fn score_text(score: f64) -> Digits {
    let micros = score * 1000.0;
    if micros <= 0.0 || micros >= LATEST_MS * 1000.0 || micros.round() / 1000.0 != score {
        return Digits::of(score.to_string().as_bytes());
    }
    let micros = micros.round() as i64;
    let mut text = Digits::new();
    text.push(micros / 1000);
    let rest = micros % 1000;
    if rest != 0 {
        text.push_byte(b'.');
        text.push_byte(b'0' + (rest / 100) as u8);
        if rest % 100 != 0 {
            text.push_byte(b'0' + (rest / 10 % 10) as u8);
        }
        if rest % 10 != 0 {
            text.push_byte(b'0' + (rest % 10) as u8);
        }
    }
    text
}

#[derive(PartialEq, Eq)]
pub enum Walk {
    On,
    Stop,
}

struct RangeGuard(*mut raw::RedisModuleKey);

impl Drop for RangeGuard {
    fn drop(&mut self) {
        // SAFETY: made and dropped while the key is open.
        unsafe { api!(RedisModule_ZsetRangeStop(self.0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_of_a_time_has_no_needless_digits() {
        for text in
            ["0", "1", "0.5", "1794891056259", "1794891056259.2", "1794891056259.02", "1794891056259.224", "0.001"]
        {
            assert_eq!(score_text(text.parse().unwrap()).bytes(), text.as_bytes());
        }
        for score in [-1.5, 1e300, f64::INFINITY, f64::NEG_INFINITY, LATEST_MS, -0.0, 5e-324, 0.0001] {
            assert_eq!(score_text(score).bytes(), score.to_string().as_bytes(), "{score}");
        }
    }

    proptest! {
        #[test]
        fn it_is_the_shortest_text_of_any_number(micros in 0..LATEST_MS as i64 * 1000, other in proptest::num::f64::ANY) {
            for score in [micros as f64 / 1000.0, other] {
                prop_assert!(score_text(score).bytes() == score.to_string().as_bytes(), "{score}");
            }
        }
    }
}
