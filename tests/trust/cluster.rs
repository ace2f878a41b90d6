//! A real Redis Cluster: hash-tagged namespaces on every node, slots that move while traffic runs, a primary that dies.
//!
//! `RMQ_MIGRATIONS` (12) slots; `RMQ_SEED`.

use crate::common::*;
use crate::traffic::*;
use redis::Connection;
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::Duration;

/// A call on a node that takes over the slot.
fn asking(con: &mut Connection, call: &redis::Cmd) -> redis::RedisResult<redis::Value> {
    ok!(con, "ASKING");
    send!(con, call)
}

/// Every command with keys that are no arguments, and the key that it would create or miss. Each replies with one row.
fn calls_with_derived_keys() -> Vec<(redis::Cmd, &'static str)> {
    vec![
        (command!("RMQ.DELAYTICK", "{m}:delays", "{m}:payloads", 10), "{m}:q:pending"),
        (command!("RMQ.TIMEOUTS", "{m}:expires", "{m}:payloads", "*", 10), "{m}:q:processing"),
        (command!("RMQ.TIMEOUTS", "{m}:expires", "{m}:payloads", "*", 10, "CLAIM", 1), "{m}:q:processing"),
        (command!("RMQ.REDRIVE", "{m}", "COUNT", 10), "{m}:q:pending"),
        (command!("RMQ.PUBLISH", "{m}", "TO", "q", "new", "1"), "{m}:q:pending"),
        (command!("RMQ.PUBLISH", "{m}", "DELAY", 0, "TO", "q", "new", "1"), "{m}:delays"),
        (command!("RMQ.RESERVE", "{m}", 1000, "FROM", "q"), "{m}:q:processing"),
        (command!("RMQ.RESERVE", "{m}", 1000, "FROM", "q"), "{m}:payloads"),
    ]
}

fn has_namespace(call: &redis::Cmd) -> bool {
    line_of(call).split(' ').nth(1) == Some("{m}")
}

fn fill(con: &mut Connection) {
    ok!(con, "HSET", "{m}:payloads", "a", "1", "a:queue", "{m}:q", "b", "1", "b:queue", "{m}:q");
    ok!(con, "ZADD", "{m}:delays", 1, "a");
    ok!(con, "ZADD", "{m}:expires", 1, "b");
    ok!(con, "LPUSH", "{m}:q:pending", "older");
    ok!(con, "LPUSH", "{m}:q:processing", "b");
    ok!(con, "LPUSH", "{m}:dlq", "c");
    ok!(con, "HSET", "{m}:dlq:data", "c", "1", "c:queue", "{m}:q");
    ok!(con, "HSET", "{m}:queues", "q", "{}");
}

/// Not now: the command is to be tried again, here or, where the server sends away by the namespace, at the other node.
fn assert_not_now(call: &redis::Cmd, reply: redis::RedisResult<redis::Value>, old_node: bool) {
    let error = error_of(call, reply);
    let fits = error.starts_with("TRYAGAIN ") || old_node && has_namespace(call) && error.starts_with("ASK ");
    assert!(fits, "{}: {error}", line_of(call));
}

#[test]
fn while_a_slot_moves_a_derived_key_that_has_moved_first_makes_the_call_reply_tryagain() {
    let cluster = Cluster::start(3, 0);
    for (call, derived) in calls_with_derived_keys() {
        let moving = filled_and_moving(&cluster);
        moving.move_key(derived);
        let line = line_of(&call);
        let before = moving.digests();
        assert_not_now(&call, send!(moving.from.con(), &call), true);
        assert_eq!(moving.digests(), before, "{line}");
        // The rest follows; then the new owner does it.
        moving.keys().iter().for_each(|key| moving.move_key(key));
        moving.end(&cluster);
        replies_with_one_row(moving.to, &call);
    }
}

#[test]
fn while_a_slot_moves_a_derived_key_that_has_not_moved_yet_makes_the_call_reply_tryagain() {
    let cluster = Cluster::start(3, 0);
    for (call, derived) in calls_with_derived_keys() {
        let moving = filled_and_moving(&cluster);
        for key in moving.keys().iter().filter(|key| *key != derived) {
            moving.move_key(key);
        }
        let line = line_of(&call);
        let before = moving.digests();
        assert_not_now(&call, asking(&mut moving.to.con(), &call), false);
        assert_eq!(moving.digests(), before, "{line}");
        moving.move_key(derived);
        // A namespace has more keys, and that one of them is missing here says nothing until the slot is here.
        if !has_namespace(&call) {
            assert_eq!(items(asking(&mut moving.to.con(), &call).unwrap()).len(), 1, "{line}");
        }
        moving.end(&cluster);
        if has_namespace(&call) {
            replies_with_one_row(moving.to, &call);
        }
    }
}

#[test]
fn while_a_slot_moves_a_call_goes_on_where_all_its_keys_are() {
    let cluster = Cluster::start(3, 0);
    for (call, _) in calls_with_derived_keys().into_iter().filter(|(call, _)| !has_namespace(call)) {
        let moving = filled_and_moving(&cluster);
        replies_with_one_row(moving.from, &call);
        moving.keys().iter().for_each(|key| moving.move_key(key));
        moving.end(&cluster);
    }
}

/// The slot of `{m}` begins to move, with all keys still on its old node.
fn filled_and_moving(cluster: &Cluster) -> Moving<'_> {
    for node in cluster.nodes() {
        ok!(node.con(), "FLUSHALL");
    }
    fill(&mut cluster.node_for_key("{m}").con());
    Moving::begin(cluster, "{m}")
}

#[track_caller]
fn replies_with_one_row(node: &Server, call: &redis::Cmd) {
    let before = Snapshot::of(&mut node.con());
    let reply = send!(node.con(), call).unwrap_or_else(|e| failed(call, &e));
    let is_one_row = matches!(&reply, redis::Value::Array(rows) if rows.len() == 1);
    assert!(is_one_row, "{} replied {reply:?}; before: {before:?}", line_of(call));
}

/// Clients wait for a namespace whose slot moves away, with messages that become due on the way.
#[test]
fn while_a_slot_moves_its_timer_does_nothing_and_then_the_waiting_clients_are_sent_to_the_new_node() {
    const CLIENTS: usize = 200;
    let cluster = Cluster::start(3, 0);
    let from = cluster.node_for_key("{m}");
    let rmq = |node: &Server, gauge: &str| node.info("rmq")[gauge].parse::<usize>().expect("a number");
    let wait = |node: &Server| {
        let mut waiter = Raw::connect(node);
        waiter.send(&["RMQ.RESERVE", "{m}", "60000", "BLOCK", "0", "FROM", "urgent", "q"]);
        waiter
    };
    let mut waiters: Vec<Raw> = (0..CLIENTS).map(|_| wait(from)).collect();
    assert!(eventually(deadline(), || rmq(from, "rmq_waiting_clients") == CLIENTS));
    let mut con = from.con();
    for n in 0..10 {
        ok!(con, "RMQ.PUBLISH", "{m}", "DELAY", 1000 + n, "TO", "q", format!("late-{n}"), "payload");
    }
    // One whose lease runs out meanwhile.
    ok!(con, "HSET", "{m}:payloads", "stuck", "payload", "stuck:queue", "{m}:q", "stuck:attempts", "1-1");
    ok!(con, "LPUSH", "{m}:q:processing", "stuck");
    ok!(con, "ZADD", "{m}:expires", clock_ms() + 1000.0, "stuck");
    let moving = Moving::begin(&cluster, "{m}");
    let mut keys = moving.keys();
    Rng::seeded().shuffle(&mut keys);
    let (first, rest) = keys.split_at(keys.len() / 2);
    first.iter().for_each(|key| moving.move_key(key));
    let half_way = moving.digests();
    sleep(Duration::from_millis(2500));
    assert_eq!(moving.digests(), half_way, "something moved although the slot is on its way: {keys:?}");
    rest.iter().for_each(|key| moving.move_key(key));
    moving.end(&cluster);
    for waiter in &mut waiters {
        let reply = waiter.try_read_raw().expect("the server sends the client away");
        let reply = reply.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(reply.as_ref().is_none_or(|text| text.starts_with("-MOVED ")), "{reply:?}");
    }
    let ends = || rmq(from, "rmq_waiting_clients") == 0 && rmq(from, "rmq_timers") == 0;
    assert!(eventually(deadline(), ends), "{:?}", from.info("rmq"));
    assert_eq!(moving.keys(), Vec::<String>::new());
    let ids: BTreeSet<String> = (0..11)
        .map(|_| match wait(moving.to).read() {
            Reply::Array(rows) => match &rows[0] {
                Reply::Array(row) => String::from_utf8_lossy(row[0].bytes().expect("an id")).into_owned(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids.len(), 11, "{ids:?}");
    assert!(eventually(deadline(), || rmq(moving.to, "rmq_timers") == 0));
}

/// Two hash tags for each primary.
fn tags_on_every_node(cluster: &Cluster) -> Vec<String> {
    let mut tags = Vec::new();
    for node in cluster.primaries() {
        let here = (0..).map(|n| format!("{{tag{n}}}")).filter(|tag| cluster.node_for_key(tag).port() == node.port());
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
                let mut habits = Habits::of(STYLES[n % 2]).deaths(1);
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
    let others: Vec<&Server> = cluster.primaries().into_iter().filter(|node| node.port() != from.port()).collect();
    let to: &Server = others[rng.below(others.len())];
    let moving = Moving::between(from, to, slot);
    let rng = std::cell::RefCell::new(rng);
    let pause = || sleep(Duration::from_millis(rng.borrow_mut().range(0..15) as u64));
    moving.move_keys(|keys| rng.borrow_mut().shuffle(keys), pause);
    moving.end(cluster);
    // WAIT does not cover what MIGRATE brings: the replica gets it a little later.
    in_sync(cluster, moving.to);
}

fn in_sync(cluster: &Cluster, primary: &Server) {
    let offset =
        |server: &Server, field: &str| server.info("replication").get(field).and_then(|at| at.parse::<u64>().ok());
    let wanted = offset(primary, "master_repl_offset").expect("an offset");
    let synced = || {
        let replicas = cluster.replicas_of(primary);
        !replicas.is_empty() && replicas.iter().all(|r| offset(r, "slave_repl_offset").is_some_and(|at| at >= wanted))
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
    println!("  a primary was killed, and node {} took over", cluster.node_for_slot(slot).port());
}

/// The whole life of a message in each namespace; `call` is what a cluster client offers.
fn lives(tag: &str) -> Vec<(redis::Cmd, &'static str)> {
    let key = |name: &str| format!("{tag}:{name}");
    let [payloads, delays, expires, processing] = ["payloads", "delays", "expires", "q:processing"].map(key);
    let [errors, error_queue, dlq, dead] = ["errors:data", "errors", "dlq", "dlq:data"].map(key);
    let parse_error = command!("RMQ.PARSEERR", &errors, &error_queue, &processing, &expires, &payloads);
    vec![
        (command!("RMQ.PUBLISH", tag, "TO", "q", "a", "1"), "a"),
        (command!("RMQ.PUBLISH", tag, "DELAY", 0, "TO", "q", "b", "1"), "b"),
        (command!("RMQ.NEXTDELAY", &delays), "EXPIRED"),
        (command!("RMQ.DELAYTICK", &delays, &payloads, 10), "b"),
        (command!("RMQ.POLICY", tag, "q", "ATTEMPTS", 3), "attempts"),
        (command!("RMQ.RESERVE", tag, 60000, "COUNT", 9, "BLOCK", 1000, "FROM", "p", "q"), "a"),
        (command!("RMQ.EXTEND", tag, 1, "a", "1-1"), "0"),
        (command!("RMQ.ACK", tag, "a", "1-1"), "0"),
        (command!("RMQ.RELEASE", tag, "a", "1-1"), "0"),
        (command!("RMQ.NACK", tag, "a", "1-1"), ""),
        (command!("RMQ.TIMEOUTS", &expires, &payloads, "99999999999999", 10, "CLAIM", 1), "a"),
        (command!("RMQ.RETRY", &payloads, &delays, &expires, &processing, "a", "2", 0), "OK"),
        (command!("RMQ.DEADLETTER", &dead, &dlq, &expires, &payloads, &processing, "b", "2"), "OK"),
        (command!("RMQ.REDRIVE", tag, "COUNT", 10), "b"),
        (command!("RMQ.COMPLETE", &payloads, &processing, &expires, "b"), "OK"),
        (parse_error.clone().arg(&["a", "{", "q", "no JSON", "1"]).clone(), "OK"),
    ]
}

/// The first word of a reply, however deeply nested.
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
            let reply = send!(con, &call).unwrap_or_else(|e| failed(&call, &e));
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
             while isinstance(reply, (list, dict)): reply = next(iter(reply), None)\n    \
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
    assert!(output.status.success(), "redis-py: {}", String::from_utf8_lossy(&output.stderr));
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
        let line = line_of(&call);
        // One key is always in one slot.
        if line.starts_with("RMQ.NEXTDELAY") {
            continue;
        }
        let is_twin = line.split(' ').nth(1) != Some("untagged");
        for node in cluster.nodes() {
            let is_here = is_twin || node.port() == cluster.node_for_key("untagged").port();
            let error = error_of(&call, send!(node.con(), &call));
            // Redis 8.6 does not look at the name; the command itself does.
            let fits = error.starts_with("CROSSSLOT ") || !is_here && error.starts_with("MOVED ");
            assert!(fits, "{line}: {error}");
        }
    }
    // The keys given share a slot, but the queue's name does not. (A namespace never follows such a name.)
    let node = cluster.node_for_key("{m}");
    fill(&mut node.con());
    for id in ["a", "b"] {
        ok!(node.con(), "HSET", "{m}:payloads", format!("{id}:queue"), "elsewhere");
    }
    let before = node.digest();
    for (call, _) in calls_with_derived_keys().into_iter().filter(|(call, _)| !has_namespace(call)) {
        let error = error_of(&call, send!(node.con(), &call));
        assert!(error.starts_with("CROSSSLOT "), "{}: {error}", line_of(&call));
    }
    assert_eq!(node.digest(), before);
    for other in cluster.nodes().iter().filter(|other| other.port() != node.port()) {
        let keys: usize = ask!(other.con(), "DBSIZE");
        assert_eq!(keys, 0);
    }
}
