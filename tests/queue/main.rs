//! The queue: a namespace, short queue names, receipts, and a server that keeps the time.

#[path = "../common/mod.rs"]
mod common;

mod calls;

mod bad_input;
mod clock;
mod dead_letters;
mod ending;
mod faults;
mod looking;
mod many_at_once;
mod namespace;
mod policy;
mod publish;
mod receipts;
mod replication;
mod reserve;
mod scripts;
mod waiting;
