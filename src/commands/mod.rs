//! One file a command, each from top to bottom: arguments, checks, change, effects, reply.

pub mod complete;
pub mod delaytick;
pub mod parseerr;
pub mod retry;
pub mod timeouts;
