//! Ids that a command leaves where they are, because it cannot do better without losing a message. They are counted, and
//! the log says why: at most one line per reason every ten seconds, since the next call meets them again.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::Now;
use crate::redis::{log, StrRef};
use crate::stats::{self, Counter};

#[derive(Clone, Copy)]
pub enum Reason {
    /// A key that they would go to or leave has another type or role, or their queue belongs to another namespace.
    UnusableKey,
    /// They have no `<id>:queue`.
    NoQueue,
    /// The hash with their payloads is missing as a whole, which proves nothing about the messages: it may be mistyped,
    /// or not copied yet.
    NoMap,
}

const LOG_EVERY_MS: i64 = 10_000;

impl Reason {
    /// `key` is the key in question.
    pub fn report(self, count: usize, key: impl FnOnce() -> Vec<u8>) {
        static LAST: [AtomicI64; 3] = [const { AtomicI64::new(0) }; 3];
        if count == 0 {
            return;
        }
        stats::add(Counter::Skipped, count);
        if !is_time_to_log(&LAST[self as usize]) {
            return;
        }
        let why = match self {
            Reason::UnusableKey => "cannot be used: it has another type or role, or belongs to another namespace",
            Reason::NoQueue => "does not say which queue they belong to",
            Reason::NoMap => "does not exist",
        };
        log::warning(&format!(
            "rmq: {count} ids stay where they are, because '{}' {why} (logged at most every {} s)",
            log::printable(&key()),
            LOG_EVERY_MS / 1000
        ));
    }
}

/// Ids that RESERVE found without message in this list, and dropped.
pub fn report_dropped(count: usize, list: StrRef) {
    static LAST: AtomicI64 = AtomicI64::new(0);
    stats::add(Counter::Dropped, count);
    if count > 0 && is_time_to_log(&LAST) {
        log::warning(&format!(
            "rmq: {count} ids without payload, or second copies, were dropped from '{}' (logged at most every {} s)",
            log::printable(list.bytes()),
            LOG_EVERY_MS / 1000
        ));
    }
}

/// At most every 10 s.
pub fn is_time_to_log(last: &AtomicI64) -> bool {
    let now = Now::read().ms();
    let is_time = (now - last.load(Ordering::Relaxed)).abs() >= LOG_EVERY_MS;
    if is_time {
        last.store(now, Ordering::Relaxed);
    }
    is_time
}
