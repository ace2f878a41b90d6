//! RMQ: reliable message queues as native Redis commands, over plain keys. This file is the map of the module: its
//! name, its commands, its parts.
#![deny(unsafe_code)]

mod args;
mod clock;
mod commands;
mod derived;
mod due;
mod error;
mod id;
mod locate;
mod message;
mod record;
mod redis;
mod settings;
mod slot;
mod stats;

use commands::*;
use redis::command::Entry;

/// Shown by MODULE LIST.
pub(crate) const VERSION_NUMBER: std::ffi::c_int = 1;
/// The version in which the commands appeared, for COMMAND DOCS.
pub(crate) const SINCE: &str = env!("CARGO_PKG_VERSION");

/// Every command. Arity, key specs, ACL categories and COMMAND DOCS follow from what each says of itself.
pub(crate) const COMMANDS: &[Entry] = &[
    Entry::of::<publish::Publish>(),
    Entry::of::<schedule::Schedule>(),
    Entry::of::<reserve::Reserve>(),
    Entry::of::<ack::Ack>(),
    Entry::of::<nack::Nack>(),
    Entry::of::<extend::Extend>(),
    Entry::of::<deadletter::DeadLetter>(),
    Entry::of::<redrive::Redrive>(),
    Entry::of::<nextdelay::NextDelay>(),
    Entry::of::<complete::Complete>(),
    Entry::of::<retry::Retry>(),
    Entry::of::<delaytick::DelayTick>(),
    Entry::of::<timeouts::Timeouts>(),
    Entry::of::<parseerr::ParseErr>(),
    #[cfg(feature = "panic-probe")]
    Entry::of::<panic_probe::PanicProbe>(),
];
