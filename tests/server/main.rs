//! The module within its server: loading, settings, ACL, cluster, replication, events, documentation, and the tests'
//! own harness.

#[path = "../common/mod.rs"]
mod common;

mod acl;
mod cluster;
mod contexts;
mod docs;
mod empty_processing;
mod events;
mod examples;
mod harness;
mod loading;
mod panics;
mod readme;
mod replication;
mod replication_consumers;
mod settings;
mod unload;
