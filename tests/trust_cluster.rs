//! A real Redis Cluster: hash-tagged namespaces on every node, slots that move while traffic runs, a primary that dies.
//!
//! `RMQ_MIGRATIONS` (12) slots; `RMQ_SEED`.

mod common;
mod traffic;
use common::*;
use redis::Connection;
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::Duration;
use traffic::*;

const DRAIN: Duration = Duration::from_secs(90);

/// A slot half way between two nodes, with all keys of a namespace still on the old one.
struct Moving<'c> {
    from: &'c Server,
    to: &'c Server,
    slot: u16,
}

impl<'c> Moving<'c> {
    fn begin(cluster: &'c Cluster, tag: &str) -> Moving<'c> {
        let slot = cluster.slot_of(tag);
        let from = cluster.node_for_slot(slot);
        let to = *cluster
            .primaries()
            .iter()
            .find(|node| node.port() != from.port())
            .expect("another node");
        Moving::between(from, to, slot)
    }

    fn between(from: &'c Server, to: &'c Server, slot: u16) -> Moving<'c> {
        ok!(to.con(), "CLUSTER", "SETSLOT", slot, "IMPORTING", id_of(from));
        ok!(from.con(), "CLUSTER", "SETSLOT", slot, "MIGRATING", id_of(to));
        Moving { from, to, slot }
    }

    fn keys(&self) -> Vec<String> {
        ask!(self.from.con(), "CLUSTER", "GETKEYSINSLOT", self.slot, 100)
    }

    fn move_key(&self, key: &str) {
        ok!(self.from.con(), "MIGRATE", "127.0.0.1", self.to.port(), key, 0, 5000);
    }

    fn digests(&self) -> [String; 2] {
        [self.from, self.to].map(Server::digest)
    }

    fn end(&self, cluster: &Cluster) {
        let new = id_of(self.to);
        ok!(self.to.con(), "CLUSTER", "SETSLOT", self.slot, "NODE", &new);
        for node in cluster.primaries() {
            ok!(node.con(), "CLUSTER", "SETSLOT", self.slot, "NODE", &new);
        }
    }
}

fn id_of(node: &Server) -> String {
    ask!(node.con(), "CLUSTER", "MYID")
}

/// A call on a node that takes over the slot.
fn asking(con: &mut Connection, call: &redis::Cmd) -> redis::RedisResult<redis::Value> {
    ok!(con, "ASKING");
    commands::top_error(redis::ConnectionLike::req_command(con, call))
}

/// Every command with derived keys, what it needs, and the derived key that it would create or miss.
fn calls_with_derived_keys() -> Vec<(redis::Cmd, &'static str)> {
    vec![
        (
            command!("RMQ.DELAYTICK", "{m}:delays", "{m}:payloads", 10),
            "{m}:q:pending",
        ),
        (
            command!("RMQ.TIMEOUTS", "{m}:expires", "{m}:payloads", "*", 10),
            "{m}:q:processing",
        ),
        (
            command!("RMQ.TIMEOUTS", "{m}:expires", "{m}:payloads", "*", 10, "CLAIM", 1),
            "{m}:q:processing",
        ),
        (
            command!("RMQ.REDRIVE", "{m}:dlq", "{m}:dead", "{m}:payloads", 10),
            "{m}:q:pending",
        ),
    ]
}

fn fill(con: &mut Connection) {
    ok!(
        con,
        "HSET",
        "{m}:payloads",
        "a",
        "1",
        "a:queue",
        "{m}:q",
        "b",
        "1",
        "b:queue",
        "{m}:q"
    );
    ok!(con, "ZADD", "{m}:delays", 1, "a");
    ok!(con, "ZADD", "{m}:expires", 1, "b");
    ok!(con, "LPUSH", "{m}:q:pending", "older");
    ok!(con, "LPUSH", "{m}:q:processing", "b");
    ok!(con, "LPUSH", "{m}:dlq", "c");
    ok!(con, "HSET", "{m}:dead", "c", "1", "c:queue", "{m}:q");
}

#[test]
fn while_a_slot_moves_a_derived_key_that_has_gone_ahead_makes_the_call_try_again() {
    let cluster = Cluster::start(3, 0);
    for (call, derived) in calls_with_derived_keys() {
        clear(&cluster);
        let owner = cluster.node_for_key("{m}");
        fill(&mut owner.con());
        let moving = Moving::begin(&cluster, "{m}");
        moving.move_key(derived);
        let line = line_of(&call);
        let before = moving.digests();
        let error = commands::top_error(redis::ConnectionLike::req_command(&mut moving.from.con(), &call));
        let error = error_text(&error.expect_err(&line));
        assert!(error.starts_with("TRYAGAIN "), "{line}: {error}");
        assert_eq!(moving.digests(), before, "{line}");
        // The rest follows; then the new owner does it.
        moving.keys().iter().for_each(|key| moving.move_key(key));
        moving.end(&cluster);
        let told = items(cmd_on(&mut moving.to.con(), &call));
        assert_eq!(told.len(), 1, "{line}");
    }
}

#[test]
fn while_a_slot_moves_a_derived_key_that_has_stayed_behind_makes_the_call_try_again() {
    let cluster = Cluster::start(3, 0);
    for (call, derived) in calls_with_derived_keys() {
        clear(&cluster);
        let owner = cluster.node_for_key("{m}");
        fill(&mut owner.con());
        let moving = Moving::begin(&cluster, "{m}");
        for key in moving.keys().iter().filter(|key| *key != derived) {
            moving.move_key(key);
        }
        let line = line_of(&call);
        let before = moving.digests();
        let error = error_text(&asking(&mut moving.to.con(), &call).expect_err(&line));
        assert!(error.starts_with("TRYAGAIN "), "{line}: {error}");
        assert_eq!(moving.digests(), before, "{line}");
        moving.move_key(derived);
        assert_eq!(items(asking(&mut moving.to.con(), &call).unwrap()).len(), 1, "{line}");
        moving.end(&cluster);
    }
}

#[test]
fn while_a_slot_moves_a_call_goes_on_where_all_its_keys_are() {
    let cluster = Cluster::start(3, 0);
    for (call, _) in calls_with_derived_keys() {
        clear(&cluster);
        let owner = cluster.node_for_key("{m}");
        fill(&mut owner.con());
        let moving = Moving::begin(&cluster, "{m}");
        assert_eq!(
            items(cmd_on(&mut moving.from.con(), &call)).len(),
            1,
            "{}",
            line_of(&call)
        );
        moving.keys().iter().for_each(|key| moving.move_key(key));
        moving.end(&cluster);
    }
}

fn clear(cluster: &Cluster) {
    for node in cluster.nodes() {
        ok!(node.con(), "FLUSHALL");
    }
}

fn cmd_on(con: &mut Connection, call: &redis::Cmd) -> redis::Value {
    commands::top_error(redis::ConnectionLike::req_command(con, call))
        .unwrap_or_else(|e| panic!("{}: {e}", line_of(call)))
}
