//! The walk over what is due, lowest score first, for DELAYTICK and TIMEOUTS. Ids that have to stay where they are (their
//! queue's key is not a list) do not count for the batch, so nothing starves behind them; but they take time, so one
//! call passes only so many of them, and the next call goes on where it stopped. The place is kept in memory alone: to
//! lose it costs one walk from the start.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::redis::key::Walk;
use crate::redis::{Call, OwnedStr, ZsetKey};

/// Ids that stay behind, passed in one call.
const PASSED_PER_CALL: usize = 10_000;
/// Places kept. Each is a sorted set with very many ids that cannot go on.
const PLACES: usize = 64;

/// What became of an id.
pub enum Visit {
    /// It counts for the batch.
    Taken,
    /// It stays where it is.
    Passed,
}

/// Visits ids with a score of at most `max` until `batch` are taken. Returns how many were passed.
pub fn walk(
    call: &Call,
    zset: &ZsetKey,
    max: f64,
    batch: usize,
    mut visit: impl FnMut(OwnedStr) -> Result<Visit, Error>,
) -> Result<usize, Error> {
    let place = Place::of(call, zset);
    let start = place.score();
    let (mut taken, mut passed) = (0, 0);
    let mut tired_at = None;
    zset.between(start, max, |id, score| {
        // Among ids of one score there is no place to go on from.
        if passed >= PASSED_PER_CALL && score > start {
            tired_at = Some(score);
            return Ok(Walk::Stop);
        }
        match visit(id)? {
            Visit::Taken => taken += 1,
            Visit::Passed => passed += 1,
        }
        Ok(if taken < batch { Walk::On } else { Walk::Stop })
    })?;
    match tired_at {
        Some(score) => place.keep(score),
        // The next call starts anew, so that what has become due before this place does not wait for long.
        None if start > f64::NEG_INFINITY => place.forget(),
        None => (),
    }
    Ok(passed)
}

lazy_static::lazy_static! {
    static ref SCORES: Mutex<HashMap<(i32, Vec<u8>), f64>> = Mutex::default();
}
/// How many there are, so that the usual call needs no look.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Where the next walk over a sorted set starts.
struct Place<'a> {
    call: &'a Call<'a>,
    zset: &'a ZsetKey<'a>,
}

impl<'a> Place<'a> {
    fn of(call: &'a Call<'a>, zset: &'a ZsetKey<'a>) -> Self {
        Place { call, zset }
    }

    fn score(&self) -> f64 {
        if KEPT.load(Ordering::Relaxed) == 0 {
            return f64::NEG_INFINITY;
        }
        self.with(|scores, key| scores.get(&key).copied().unwrap_or(f64::NEG_INFINITY))
    }

    fn keep(&self, score: f64) {
        self.with(|scores, key| {
            if scores.len() >= PLACES {
                scores.clear();
            }
            scores.insert(key, score);
        });
    }

    fn forget(&self) {
        self.with(|scores, key| {
            scores.remove(&key);
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut HashMap<(i32, Vec<u8>), f64>, (i32, Vec<u8>)) -> T) -> T {
        let mut scores = SCORES.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (self.call.selected_db(), self.zset.name().bytes().to_vec());
        let result = act(&mut scores, key);
        KEPT.store(scores.len(), Ordering::Relaxed);
        result
    }
}
