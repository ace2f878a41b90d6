//! One file a command, each from top to bottom: arguments, checks, change, effects, reply.

pub mod ack;
pub mod complete;
pub mod deadletter;
pub mod delaytick;
pub mod extend;
pub mod nack;
pub mod nextdelay;
#[cfg(feature = "panic-probe")]
pub mod panic_probe;
pub mod parseerr;
pub mod publish;
pub mod redrive;
pub mod reserve;
pub mod retry;
pub mod schedule;
pub mod timeouts;
