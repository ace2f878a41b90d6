//! A sorted set.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use redis_module::raw;

use super::api::api;
use super::effects::Plain;
use super::key::Key;
use super::plain::Scan;
use super::{OwnedStr, StrRef};

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
            other => &mut other.insert((score, OwnedStr::new(score.to_string().as_bytes()))).1,
        };
        self.key.changed(c"zadd", Plain::ZAdd, 0, &[text.as_ref(), member]);
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
    /// too long, so this is done now and then, whether it is needed or not.
    fn leave_compact_encoding(&mut self) {
        /// Below, it does not pay; above (the server's default limit), no set is compact.
        const SIZES: std::ops::RangeInclusive<usize> = 16..=128;
        const ONE_IN: u32 = 32;
        /// Spreads the turns, so that keys used in a fixed order all get theirs.
        const STRIDE: u32 = 0x9E37_79B9;
        static TURN: AtomicU32 = AtomicU32::new(0);

        if !SIZES.contains(&self.key.len()) || TURN.fetch_add(STRIDE, Ordering::Relaxed) > u32::MAX / ONE_IN {
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
            self.key.changed(c"zrem", Plain::ZRem, 0, &[member]);
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
