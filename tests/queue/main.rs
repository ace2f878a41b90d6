//! The queue: a namespace, short queue names, receipts, and a server that keeps the time.

#[path = "../common/mod.rs"]
mod common;

mod calls;

mod bad_input;
mod bounded;
mod clock;
mod dead_letters;
mod ending;
mod faults;
mod looking;
mod namespace;
mod policy;
mod publish;
mod receipts;
mod replication;
mod reserve;
mod scripts;
mod waiting;
