//! The twins of the scripts: every key is an argument, in the order of the script's KEYS.

pub mod complete;
pub mod deadletter;
pub mod delaytick;
pub mod nextdelay;
pub mod parseerr;
pub mod retry;
pub mod timeouts;
