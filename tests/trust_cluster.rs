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

/// Two hash tags for each primary.
fn tags_on_every_node(cluster: &Cluster) -> Vec<String> {
    let mut tags = Vec::new();
    for node in cluster.primaries() {
        let here = (0..)
            .map(|n| format!("{{tag{n}}}"))
            .filter(|tag| cluster.node_for_key(tag).port() == node.port());
        tags.extend(here.take(2));
    }
    tags
}

#[test]
fn nothing_acknowledged_is_lost_while_slots_move_and_when_a_primary_is_killed() {
    let migrations = scaled("RMQ_MIGRATIONS", 12);
    let mut rng = Rng::seeded();
    let cluster = Cluster::start(3, 1);
    let tags = tags_on_every_node(&cluster);
    let ports: Vec<u16> = cluster.nodes().iter().map(Server::port).collect();
    let turn = std::sync::atomic::AtomicUsize::new(0);
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| {
            let turn = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Some(Routed::link(ports[turn % ports.len()]))
        });
        let workers: Vec<Workers> = tags
            .iter()
            .enumerate()
            .map(|(n, tag)| {
                let mut habits = Habits::of([Style::Leases, Style::Plain][n % 2]).deaths(1);
                (habits.producers, habits.consumers) = (1, 2);
                Workers::start(scope, tag, &habits, &mut rng, dial.clone())
            })
            .collect();
        for number in 1..=migrations {
            sleep(Duration::from_millis(rng.range(20..200) as u64));
            for workers in &workers {
                workers.go_on_until(|report| report.acknowledged > 100 * number / migrations);
            }
            let tag = rng.pick(&tags).clone();
            migrate_under_traffic(&cluster, &tag, &mut rng);
            if number % 4 == 0 {
                println!("  {number} of {migrations} slots have moved");
            }
            if number == migrations / 2 || number == migrations {
                fail_over(&cluster, &tag);
            }
        }
        let ledgers: Vec<_> = workers.into_iter().map(|workers| workers.finish(DRAIN)).collect();
        for ledger in &ledgers {
            println!("  {}", ledger.report());
        }
        for ledger in ledgers {
            ledger.assert_nothing_lost_and_nothing_unexplained();
        }
    });
}

/// Key by key, with pauses in which a namespace is on two nodes.
fn migrate_under_traffic(cluster: &Cluster, tag: &str, rng: &mut Rng) {
    let slot = cluster.slot_of(tag);
    let from = cluster.node_for_slot(slot);
    let others: Vec<&Server> = cluster
        .primaries()
        .into_iter()
        .filter(|node| node.port() != from.port())
        .collect();
    let to: &Server = others[rng.below(others.len())];
    let moving = Moving::between(from, to, slot);
    loop {
        let mut keys = moving.keys();
        if keys.is_empty() {
            break;
        }
        rng.shuffle(&mut keys);
        for key in keys {
            // NOKEY if it has become empty since.
            ok!(
                moving.from.con(),
                "MIGRATE",
                "127.0.0.1",
                moving.to.port(),
                &key,
                0,
                5000
            );
            sleep(Duration::from_millis(rng.range(0..15) as u64));
        }
    }
    moving.end(cluster);
    let agreed = || {
        cluster
            .nodes()
            .iter()
            .all(|node| owner_seen_by(node, slot) == Some(moving.to.port()))
    };
    assert!(
        eventually(deadline(), agreed),
        "the nodes do not agree on the owner of slot {slot}"
    );
    // WAIT does not cover what MIGRATE brings: the replica gets it a little later.
    in_sync(cluster, moving.to);
}

/// The port of the slot's owner, as a node sees it.
fn owner_seen_by(node: &Server, slot: u16) -> Option<u16> {
    let ranges = items(ok!(node.con(), "CLUSTER", "SLOTS"));
    ranges.into_iter().find_map(|range| {
        let range = items(range);
        let number = |value: &redis::Value| text(value.clone()).parse::<u16>().expect("a number");
        let primary = items(range[2].clone());
        (number(&range[0])..=number(&range[1]))
            .contains(&slot)
            .then(|| number(&primary[1]))
    })
}

fn in_sync(cluster: &Cluster, primary: &Server) {
    let offset = |server: &Server, field: &str| {
        server
            .info("replication")
            .get(field)
            .and_then(|at| at.parse::<u64>().ok())
    };
    let wanted = offset(primary, "master_repl_offset").expect("an offset");
    let synced = || {
        let replicas = cluster.replicas_of(primary);
        !replicas.is_empty()
            && replicas
                .iter()
                .all(|r| offset(r, "slave_repl_offset").is_some_and(|at| at >= wanted))
    };
    assert!(eventually(deadline(), synced), "the replicas do not catch up");
}

/// SIGKILL of the primary that owns a tag; its replica takes over, and the dead node comes back as a replica.
fn fail_over(cluster: &Cluster, tag: &str) {
    let old = cluster.node_for_key(tag);
    in_sync(cluster, old);
    old.kill9();
    let slot = cluster.slot_of(tag);
    let replaced = || cluster.node_for_slot(slot).port() != old.port();
    assert!(eventually(deadline(), replaced), "no replica took over");
    cluster.wait_ok();
    old.restart();
    cluster.wait_ok();
    in_sync(cluster, cluster.node_for_slot(slot));
    println!(
        "  a primary was killed, and node {} took over",
        cluster.node_for_slot(slot).port()
    );
}

/// The whole life of a message in each namespace; `call` is what a cluster client offers.
fn lives(tag: &str) -> Vec<(redis::Cmd, &'static str)> {
    let key = |name: &str| format!("{tag}:{name}");
    let [payloads, delays, expires, pending, processing] =
        ["payloads", "delays", "expires", "q:pending", "q:processing"].map(key);
    let [errors, error_queue, dlq, dead, queue] = ["errors:data", "errors", "dlq", "dead", "q"].map(key);
    vec![
        (command!("RMQ.PUBLISH", &payloads, &pending, "a", "1"), "a"),
        (command!("RMQ.SCHEDULE", &payloads, &delays, "b", "1", &queue, 0), "b"),
        (command!("RMQ.NEXTDELAY", &delays), "EXPIRED"),
        (command!("RMQ.DELAYTICK", &delays, &payloads, 10), "b"),
        (
            command!("RMQ.RESERVE", &pending, &processing, &payloads, &expires, 1, "COUNT", 9),
            "a",
        ),
        (command!("RMQ.EXTEND", &expires, "a", 1, 1), ""),
        (command!("RMQ.ACK", &payloads, &processing, &expires, "a", 1), "0"),
        (
            command!("RMQ.NACK", &payloads, &delays, &expires, &processing, "a", 1, 0),
            "0",
        ),
        (
            command!("RMQ.TIMEOUTS", &expires, &payloads, "99999999999999", 10, "CLAIM", 1),
            "a",
        ),
        (
            command!("RMQ.RETRY", &payloads, &delays, &expires, &processing, "a", "2", 0),
            "OK",
        ),
        (
            command!(
                "RMQ.DEADLETTER",
                &dead,
                &dlq,
                &expires,
                &payloads,
                &processing,
                "b",
                "2"
            ),
            "OK",
        ),
        (command!("RMQ.REDRIVE", &dlq, &dead, &payloads, 10), "b"),
        (command!("RMQ.COMPLETE", &payloads, &processing, &expires, "b"), "OK"),
        (
            command!(
                "RMQ.PARSEERR",
                &errors,
                &error_queue,
                &processing,
                &expires,
                &payloads,
                "a",
                "{",
                "q",
                "no JSON",
                1
            ),
            "OK",
        ),
    ]
}

/// The first word of a reply, however deep it stands.
fn first(reply: redis::Value) -> String {
    match reply {
        redis::Value::Array(items) => items.into_iter().next().map_or_else(String::new, first),
        redis::Value::Nil => String::new(),
        other => text(other),
    }
}

#[test]
fn cluster_clients_are_routed_by_the_key_specs_and_namespaces_spread_over_the_nodes() {
    let cluster = Cluster::start(3, 1);
    let tags = tags_on_every_node(&cluster);
    let mut con = cluster.con();
    for tag in &tags {
        for (call, expected) in lives(tag) {
            let reply = commands::top_error(redis::ConnectionLike::req_command(&mut con, &call));
            let reply = reply.unwrap_or_else(|e| panic!("redis-rs: {}: {e}", line_of(&call)));
            assert_eq!(first(reply), expected, "redis-rs: {}", line_of(&call));
        }
    }
    assert_record_on_each_node(&cluster, &tags);
    for node in cluster.primaries() {
        ok!(node.con(), "FLUSHALL");
    }

    let mut script = format!(
        "from redis.cluster import RedisCluster\n\
         def first(reply):\n    \
             while isinstance(reply, list): reply = reply[0] if reply else None\n    \
             return '' if reply is None else reply.decode() if isinstance(reply, bytes) else str(reply)\n\
         r = RedisCluster(host='127.0.0.1', port={})\n",
        cluster.nodes()[0].port()
    );
    for (call, expected) in tags.iter().flat_map(|tag| lives(tag)) {
        let args: Vec<String> = call
            .args_iter()
            .map(|arg| match arg {
                redis::Arg::Simple(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
                _ => panic!("a cursor"),
            })
            .collect();
        let args = args.join(", ");
        script += &format!("got = first(r.execute_command({args}))\nassert got == {expected:?}, (got, {args})\n");
    }
    let python = process::in_repository(".servers/python/bin/python");
    let output = Command::new(&python)
        .args(["-c", &script])
        .output()
        .unwrap_or_else(|e| panic!("{python:?} (scripts/servers.sh python makes it): {e}"));
    assert!(
        output.status.success(),
        "redis-py: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_record_on_each_node(&cluster, &tags);
}

/// What is left of each life is the parse-error record, on the node that owns the tag, and every primary has some.
fn assert_record_on_each_node(cluster: &Cluster, tags: &[String]) {
    let mut owners = BTreeSet::new();
    for tag in tags {
        let owner = cluster.node_for_key(tag);
        owners.insert(owner.port());
        let mut here = owner.con();
        assert_eq!(strings(ok!(here, "HKEYS", format!("{tag}:errors:data"))), ["a"]);
    }
    assert_eq!(owners.len(), cluster.primaries().len());
}

#[test]
fn a_namespace_without_hash_tag_gets_crossslot_and_changes_nothing() {
    let cluster = Cluster::start(3, 0);
    for (call, _) in lives("untagged") {
        // One key is always in one slot.
        if matches!(line_of(&call).split(' ').next(), Some("RMQ.NEXTDELAY" | "RMQ.EXTEND")) {
            continue;
        }
        for node in cluster.nodes() {
            let error = commands::top_error(redis::ConnectionLike::req_command(&mut node.con(), &call));
            let error = error_text(&error.expect_err(&line_of(&call)));
            assert!(error.starts_with("CROSSSLOT "), "{}: {error}", line_of(&call));
        }
    }
    // The keys given share a slot, but the queue's name does not.
    let node = cluster.node_for_key("{m}");
    fill(&mut node.con());
    for id in ["a", "b"] {
        ok!(node.con(), "HSET", "{m}:payloads", format!("{id}:queue"), "elsewhere");
    }
    ok!(node.con(), "HSET", "{m}:dead", "c:queue", "elsewhere");
    let before = node.digest();
    for (call, _) in calls_with_derived_keys() {
        let error = commands::top_error(redis::ConnectionLike::req_command(&mut node.con(), &call));
        let error = error_text(&error.expect_err(&line_of(&call)));
        assert!(error.starts_with("CROSSSLOT "), "{}: {error}", line_of(&call));
    }
    assert_eq!(node.digest(), before);
    for other in cluster.nodes().iter().filter(|other| other.port() != node.port()) {
        let keys: usize = ask!(other.con(), "DBSIZE");
        assert_eq!(keys, 0);
    }
}
