//! What the commands did since the module was loaded; INFO rmq shows it. Only the server's main thread counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $variant:ident => $name:literal),* $(,)?) => {
        #[derive(Clone, Copy)]
        pub enum Counter { $($(#[doc = $doc])* $variant),* }
        const NAMES: &[&str] = &[$($name),*];
    };
}

counters! {
    /// Messages that left by COMPLETE.
    Completed => "completed",
    /// Messages that RETRY put into delay_tasks.
    Retried => "retried",
    /// Messages that were due and moved to pending.
    Moved => "moved",
    /// Messages that TIMEOUTS took out of processing.
    Reclaimed => "reclaimed",
    /// Messages that TIMEOUTS … CLAIM gave a new deadline.
    Claimed => "claimed",
    /// Entries of expire_monitor, delay_tasks or dlq that were stale and removed.
    Stale => "stale",
    /// Messages that PARSEERR put into quarantine.
    Quarantined => "quarantined",
    /// Parse-error records dropped for max_count, or because they had expired.
    Trimmed => "trimmed",
    /// Ids left where they are because nothing better can be done without losing a message, counted each time.
    Skipped => "skipped",
    Published => "published",
    /// Messages that PUBLISH left alone because of ONCE.
    Once => "once",
    /// Messages handed out by RESERVE.
    Reserved => "reserved",
    /// Ids without payload, and second copies of an id, that RESERVE dropped.
    Dropped => "dropped",
    Acked => "acked",
    Nacked => "nacked",
    Released => "released",
    Extended => "extended",
    /// Leases that ran out.
    Expired => "expired",
    /// Messages that became dead letters by NACK or by their last lease.
    Died => "died",
    /// Messages that DEADLETTER made dead letters.
    DeadLettered => "dead_lettered",
    Redriven => "redriven",
    Cancelled => "cancelled",
    Rescheduled => "rescheduled",
    Purged => "purged",
    /// Faults that REPAIR mended.
    Repaired => "repaired",
    /// Settlements refused because the receipt was not current.
    Fenced => "fenced",
    /// Panics caught. Anything but 0 is a bug to report.
    Panics => "panics",
}

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

pub fn add(counter: Counter, count: usize) {
    let cell = &COUNTS[counter as usize];
    // One writer: a load and a store cost less than a locked add.
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(count as u64), Ordering::Relaxed);
}

/// The counters start again at 0.
pub fn reset() {
    COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

pub fn all() -> impl Iterator<Item = (&'static str, u64)> {
    NAMES.iter().zip(&COUNTS).map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
}
