//! Delayed messages that are due, and how they move to pending.

use super::{resume, Now};
use crate::error::Error;
use crate::lists::Lists;
use crate::message::queue_field;
use crate::redis::zset::Walk;
use crate::redis::{HashKey, Invocation, OwnedStr, ZsetKey};
use crate::skipped::Reason;
use crate::stats::{self, Counter};

/// Ids that have to stay where they are, passed in one call.
const PASSED_PER_CALL: usize = 10_000;

/// What becomes of an id.
pub enum Visit {
    /// It counts for the batch.
    Taken,
    /// It stays where it is, and does not count, so that ids behind it are not starved.
    Passed,
}

/// Visits ids with a score of at most `max`, lowest first, until `batch` are taken. Returns how many were passed. They
/// take time, so one call passes at most `PASSED_PER_CALL` of them, and the next call goes on where it stopped.
pub fn walk(
    call: &Invocation,
    zset: &ZsetKey,
    max: f64,
    batch: usize,
    mut visit: impl FnMut(OwnedStr, f64) -> Result<Visit, Error>,
) -> Result<usize, Error> {
    let start = resume::get(call, zset.name()).map_or(f64::NEG_INFINITY, |(score, _)| score);
    let (mut taken, mut passed) = (0, 0);
    let mut resume_score = None;
    zset.between(start, max, |id, score| {
        // We resume by score, so we never stop among equal scores.
        if passed >= PASSED_PER_CALL && score > start {
            resume_score = Some(score);
            return Ok(Walk::Stop);
        }
        match visit(id, score)? {
            Visit::Taken => taken += 1,
            Visit::Passed => passed += 1,
        }
        Ok(if taken < batch { Walk::On } else { Walk::Stop })
    })?;
    // At the end, the next call starts anew, so that what has become due before this place does not wait for long.
    resume::set(call, zset.name(), resume_score.map(|score| (score, Vec::new())));
    Ok(passed)
}

/// How many ids have a score of at most `max`; at most `limit`.
pub fn count(zset: &ZsetKey, max: f64, limit: usize) -> usize {
    let mut count = 0;
    let _ = zset.between(f64::NEG_INFINITY, max, |_, _| {
        count += 1;
        Ok::<_, ()>(if count < limit { Walk::On } else { Walk::Stop })
    });
    count
}

/// An id that the clock can neither move nor drop is postponed by this time, so that the next calls do not meet it again.
pub const PUT_OFF_MS: i64 = 60_000;

/// Due messages, checked and ready to move.
#[derive(Default)]
pub struct Due {
    /// Each with the number of its queue.
    pub ready: Vec<(OwnedStr, usize)>,
    /// Ids without message.
    stale: Vec<OwnedStr>,
    put_off: Vec<OwnedStr>,
    passed: usize,
}

impl Due {
    /// Finds at most `batch` messages that are due, and opens the lists that they move to.
    pub fn find(
        delays: &ZsetKey,
        payloads: &HashKey,
        pending: &mut Lists,
        until: f64,
        batch: usize,
    ) -> Result<Due, Error> {
        let mut due = Due::default();
        if !payloads.exists() {
            Reason::NoMap.report(count(delays, until, batch), || payloads.name().bytes().to_vec());
            return Ok(due);
        }
        let in_namespace = pending.is_namespace();
        due.passed = walk(pending.call(), delays, until, batch, |id, _| {
            match payloads.get(queue_field(id.as_ref()).as_ref()) {
                None if in_namespace && payloads.has(id.as_ref()) => due.put_off.push(id),
                None => due.stale.push(id),
                Some(_) if in_namespace && !payloads.has(id.as_ref()) => due.stale.push(id),
                Some(queue) => match pending.find(queue)? {
                    queue if pending.is_usable(queue) => due.ready.push((id, queue)),
                    _ if in_namespace => due.put_off.push(id),
                    _ => return Ok(Visit::Passed),
                },
            }
            Ok(Visit::Taken)
        })?;
        Ok(due)
    }

    /// How many ids are not due any more; a full batch means more may be due.
    pub fn len(&self) -> usize {
        self.ready.len() + self.stale.len() + self.put_off.len()
    }

    /// Moves them to the left of their pending lists.
    pub fn move_to(&self, pending: &mut Lists, delays: &mut ZsetKey, now: Now) {
        pending.push_left(self.ready.iter().map(|(id, queue)| (id, *queue)));
        for id in self.ready.iter().map(|(id, _)| id).chain(&self.stale) {
            delays.remove(id.as_ref());
        }
        for id in &self.put_off {
            delays.add(id.as_ref(), (now.ms() + PUT_OFF_MS) as f64);
        }
        stats::add(Counter::Moved, self.ready.len());
        stats::add(Counter::Stale, self.stale.len());
        pending.report_skipped(self.passed + self.put_off.len());
    }
}
