//! The reliability suite: long, randomised, with crashes and failovers. `scripts/trust.sh` runs it; the other scripts
//! run it only when asked to.

#[path = "../common/mod.rs"]
mod common;

mod cluster;
mod crash;
mod fuzz;
mod load;
mod memory;
mod model;
mod replication;
mod traffic;
mod waiters;
mod wire;
