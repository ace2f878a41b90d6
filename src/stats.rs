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
    /// Messages that DELAYTICK moved to pending.
    Moved => "moved",
    /// Messages that TIMEOUTS took out of processing.
    Reclaimed => "reclaimed",
    /// Messages that TIMEOUTS … CLAIM gave a new deadline.
    Claimed => "claimed",
    /// Entries of expire_monitor or delay_tasks that stood for nothing any more and were removed.
    Stale => "stale",
    /// Messages that PARSEERR put away.
    Quarantined => "quarantined",
    /// Parse-error records dropped for max_count, or because they had expired.
    Trimmed => "trimmed",
    /// Ids left where they are because a derived key has the wrong type, counted each time.
    Skipped => "skipped",
    Published => "published",
    Scheduled => "scheduled",
    /// Messages handed out by RESERVE.
    Reserved => "reserved",
    /// Ids that RESERVE found without payload and dropped.
    Dropped => "dropped",
    Acked => "acked",
    Nacked => "nacked",
    Extended => "extended",
    DeadLettered => "dead_lettered",
    Redriven => "redriven",
    /// Settlements refused because the lease was not current.
    Fenced => "fenced",
    /// Panics caught at the door. Anything but 0 is a bug to report.
    Panics => "panics",
}

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

pub fn add(counter: Counter, count: usize) {
    let cell = &COUNTS[counter as usize];
    // One writer: a load and a store cost less than a locked add.
    cell.store(
        cell.load(Ordering::Relaxed).wrapping_add(count as u64),
        Ordering::Relaxed,
    );
}

pub fn all() -> impl Iterator<Item = (&'static str, u64)> {
    NAMES
        .iter()
        .zip(&COUNTS)
        .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
}
