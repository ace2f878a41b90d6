//! RMQ: reliable message queues as native Redis commands, over plain keys. This file lists the module's
//! name, commands and parts.
#![deny(unsafe_code)]

mod args;
mod checkup;
mod clock;
mod commands;
mod dead;
mod delivery;
mod digits;
mod error;
mod hash;
mod id;
mod lists;
mod message;
mod namespace;
mod policy;
mod processing;
mod receipt;
mod record;
mod redis;
mod settings;
mod skipped;
mod slot;
mod stats;
mod traffic;
mod whereabouts;

use commands::admin::{audit, cancel, peek, purge, repair, reschedule, stats as queue_stats};
use commands::queue::{self, ack, extend, nack, publish, redrive, release, reserve};
use commands::twins::{complete, deadletter, delaytick, nextdelay, parseerr, retry, timeouts};
use redis::command::Entry;

/// Shown by MODULE LIST: major * 10000 + minor * 100 + patch.
pub(crate) const VERSION_NUMBER: std::ffi::c_int = 100;
/// The version in which the commands appeared, for COMMAND DOCS.
pub(crate) const SINCE: &str = env!("CARGO_PKG_VERSION");

/// Every command. Arity, key specs, ACL categories and COMMAND DOCS are derived from its `SPEC`.
pub(crate) const COMMANDS: &[Entry] = &[
    Entry::of::<publish::Publish>(),
    Entry::of::<reserve::Reserve>(),
    Entry::of::<ack::Ack>(),
    Entry::of::<nack::Nack>(),
    Entry::of::<release::Release>(),
    Entry::of::<extend::Extend>(),
    Entry::of::<redrive::Redrive>(),
    Entry::of::<queue::policy::PolicyCommand>(),
    Entry::of::<queue_stats::Stats>(),
    Entry::of::<peek::Peek>(),
    Entry::of::<cancel::Cancel>(),
    Entry::of::<reschedule::Reschedule>(),
    Entry::of::<purge::Purge>(),
    Entry::of::<audit::Audit>(),
    Entry::of::<repair::Repair>(),
    Entry::of::<deadletter::DeadLetter>(),
    Entry::of::<nextdelay::NextDelay>(),
    Entry::of::<complete::Complete>(),
    Entry::of::<retry::Retry>(),
    Entry::of::<delaytick::DelayTick>(),
    Entry::of::<timeouts::Timeouts>(),
    Entry::of::<parseerr::ParseErr>(),
    #[cfg(feature = "panic-probe")]
    Entry::of::<commands::panic_probe::PanicProbe>(),
];
