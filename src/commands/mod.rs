//! One file per command, each from top to bottom: arguments, checks, change, reply. Effects and events follow from the
//! change.

pub mod admin;
#[cfg(feature = "panic-probe")]
pub mod panic_probe;
pub mod queue;
pub mod twins;
