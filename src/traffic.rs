//! What went through each queue since the server started, and when a worker last asked for it. In memory only, for at most
//! `QUEUES_MAX` queues; RMQ.STATS shows it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Now;
use crate::hash::IdMap;
use crate::redis::Invocation;

#[derive(Clone, Copy)]
pub enum Event {
    Published,
    Delivered,
    Acked,
    /// Given back by NACK, to be tried again.
    Retried,
    /// Its lease ran out.
    Expired,
    Died,
}

pub const EVENTS: [&str; 6] = ["published", "delivered", "acked", "retried", "expired", "died"];

#[derive(Clone, Copy, Default)]
pub struct Traffic {
    pub counts: [u64; EVENTS.len()],
    /// When a RESERVE last named the queue, Unix ms.
    pub asked_at: Option<i64>,
    /// When it was last used: the value of `Counters::uses` then.
    used: u64,
}

#[derive(Default)]
struct Counters {
    /// By the number of the database, then by the queue's full name.
    queues: IdMap<i32, IdMap<Vec<u8>, Traffic>>,
    len: usize,
    uses: u64,
}

/// With more, a queue that was not used for long is forgotten, and starts again at 0.
const QUEUES_MAX: usize = 10_000;
/// Of queues with longer names nothing is counted.
const LONGEST_NAME: usize = 1024;

lazy_static::lazy_static! {
    static ref COUNTERS: Mutex<Counters> = Mutex::default();
}

fn counters() -> MutexGuard<'static, Counters> {
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn count(call: &Invocation, queue: &[u8], event: Event, messages: usize) {
    if messages > 0 {
        counters().change(call.selected_db(), queue, |traffic| traffic.counts[event as usize] += messages as u64);
    }
}

/// A RESERVE names the queue.
pub fn asked(call: &Invocation, queue: &[u8], now: Now) {
    counters().change(call.selected_db(), queue, |traffic| traffic.asked_at = Some(now.ms()));
}

pub fn of(call: &Invocation, queue: &[u8]) -> Traffic {
    let counters = counters();
    let known = counters.queues.get(&call.selected_db()).and_then(|queues| queues.get(queue));
    known.copied().unwrap_or_default()
}

/// The counters start again at 0; what is known of the workers stays.
pub fn reset() {
    for traffic in counters().queues.values_mut().flat_map(IdMap::values_mut) {
        traffic.counts = Default::default();
    }
}

impl Counters {
    fn change(&mut self, db: i32, queue: &[u8], change: impl FnOnce(&mut Traffic)) {
        // Or clients could fill the memory with names.
        if queue.len() > LONGEST_NAME {
            return;
        }
        self.uses += 1;
        if let Some(traffic) = self.queues.get_mut(&db).and_then(|queues| queues.get_mut(queue)) {
            change(traffic);
            traffic.used = self.uses;
            return;
        }
        if self.len >= QUEUES_MAX {
            self.forget_one();
        }
        let mut traffic = Traffic { used: self.uses, ..Traffic::default() };
        change(&mut traffic);
        self.queues.entry(db).or_default().insert(queue.to_vec(), traffic);
        self.len += 1;
    }

    /// Least recently used of a small sample.
    fn forget_one(&mut self) {
        const SAMPLE: usize = 16;
        let all =
            self.queues.iter().flat_map(|(db, queues)| queues.iter().map(move |(name, traffic)| (db, name, traffic)));
        let oldest = all.take(SAMPLE).min_by_key(|(_, _, traffic)| traffic.used);
        let Some((db, name)) = oldest.map(|(db, name, _)| (*db, name.clone())) else { return };
        if let Some(queues) = self.queues.get_mut(&db) {
            queues.remove(&name);
            self.len -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_used_stays_when_there_are_too_many() {
        let mut counters = Counters::default();
        for number in 0..3 * QUEUES_MAX {
            counters.change(0, b"used", |traffic| traffic.counts[0] += 1);
            counters.change(number as i32 % 3, format!("queue-{number}").as_bytes(), |_| ());
        }
        assert_eq!(counters.queues.values().map(IdMap::len).sum::<usize>(), counters.len);
        assert!(counters.len <= QUEUES_MAX);
        assert_eq!(counters.queues[&0][&b"used"[..]].counts[0], 3 * QUEUES_MAX as u64);
    }
}
