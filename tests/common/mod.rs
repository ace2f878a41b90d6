//! What the integration tests share: real servers that they start themselves, and helpers that let a test
//! read like the sentence it proves. Each test binary declares `mod common` once; a test file
//! begins with `use crate::common::*;`.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `RMQ_SERVER` | server binary | `.servers/redis-7.0/bin/redis-server` if there, else `redis-server` on PATH |
//! | `RMQ_MODULE` | the module | `target/release/librmq.so`, built once if missing |
//! | `RMQ_PEER` | folder of the peer's Lua scripts | `.servers/peer/mx_rmq/resources/lua_scripts` |
//! | `RMQ_SEED` | seed of `Rng::seeded()` | fixed |
//! | `RMQ_DEADLINE` | seconds that a server may take to start, to answer or to stop | 30 |

// Each test binary uses its own part of this.
#![allow(dead_code, unused_imports, unused_macros)]

pub mod cases;
pub mod cluster;
pub mod commands;
pub mod cost;
pub mod messages;
pub mod moving;
pub mod observe;
pub mod peer;
pub mod process;
pub mod replica;
pub mod resp;
pub mod rng;
pub mod server;
pub mod snapshot;

pub use cluster::Cluster;
pub use commands::*;
pub use cost::{assert_below, assert_ratio};
pub use moving::Moving;
pub use observe::{Events, Watcher};
pub use peer::Peer;
pub use replica::{line, Replica, ReplicaTap};
pub use resp::{Raw, Reply};
pub use rng::Rng;
pub use server::{Builder, CommandStats, Server};
pub use snapshot::Snapshot;

use std::time::{Duration, Instant};

/// How long the harness waits for a server before it gives up.
pub fn deadline() -> Duration {
    let seconds = std::env::var("RMQ_DEADLINE").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.unwrap_or(30))
}

/// Polls until the condition holds; false when it does not within the time given.
#[must_use]
pub fn eventually(within: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + within;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
