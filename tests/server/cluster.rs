//! Redis Cluster: a namespace with a hash tag works on whichever node owns it; a call in one without is refused and
//! changes nothing.

use crate::common::cases::*;
use crate::common::process::{in_repository, spawn_bound_to_this_process};
use crate::common::*;
use std::collections::BTreeSet;
use std::io::BufRead;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::time::Duration;

const TAGGED: World = World("{t}:");

#[test]
fn a_namespace_with_a_hash_tag_works_as_on_a_single_server() {
    let cluster = Cluster::start(1, 0);
    let (node, single) = (&cluster.nodes()[0], Server::start());
    let (mut con, mut alone) = (node.con(), single.con());
    let tap = ReplicaTap::attach(node);
    for (about, setup, step) in examples() {
        TAGGED.set_up(&mut con, setup);
        TAGGED.set_up(&mut alone, setup);
        tap.commands_until_key_marker(&mut con, "{t}:marker");
        let now = server_time_ms(&mut con);
        TAGGED.run(&mut con, step);
        TAGGED.run(&mut alone, step);
        let sent = tap.commands_until_key_marker(&mut con, "{t}:marker");
        TAGGED.assert_stream(&about, step, now, &sent);
        ok!(con, "DEL", "{t}:marker");
        assert_eq!(Snapshot::of(&mut con).keys(), Snapshot::of(&mut alone).keys(), "{about}");
    }
}

#[test]
fn a_namespace_without_a_hash_tag_gets_crossslot_and_changes_nothing() {
    let cluster = Cluster::start(1, 0);
    let mut con = cluster.nodes()[0].con();
    for row in ROWS.iter().filter(|row| row.keys.len() != 1) {
        HERE.set_up(&mut con, row.setup);
        let before = Snapshot::of(&mut con);
        let reply = shown(HERE.call(&mut con, row.effect.call));
        assert!(reply.starts_with("CROSSSLOT "), "{}: {reply}", row.name);
        before.assert_unchanged(&mut con);
    }
    for row in ROWS.iter().filter(|row| row.keys.len() == 1) {
        HERE.set_up(&mut con, row.setup);
        HERE.run(&mut con, &row.effect);
    }
}

#[test]
fn a_derived_key_in_another_slot_gets_crossslot_is_named_and_nothing_changes() {
    let cluster = Cluster::start(1, 0);
    let mut con = cluster.nodes()[0].con();
    for row in twins_with_derived_keys() {
        // One of several messages belongs to a queue in another slot.
        let setup: Vec<String> =
            row.setup.iter().map(|line| line.replacen(":queue @q", ":queue elsewhere", 1)).collect();
        let setup: Vec<&str> = setup.iter().map(String::as_str).collect();
        TAGGED.set_up(&mut con, &setup);
        let before = Snapshot::of(&mut con);
        let reply = shown(TAGGED.call(&mut con, row.effect.call));
        let suffix = row.derived[0].key.rsplit(':').next().unwrap();
        let wanted = format!("CROSSSLOT the derived key 'elsewhere:{suffix}' is not in the slot of the keys given");
        assert_eq!(reply, wanted, "{}", row.name);
        before.assert_unchanged(&mut con);

        let by_script = shown(call_in_script(&mut con, &TAGGED.words(row.effect.call)));
        assert!(by_script.starts_with("CROSSSLOT the derived key"), "{}: {by_script}", row.name);
        before.assert_unchanged(&mut con);
    }
}

fn call_in_script(con: &mut redis::Connection, words: &[String]) -> redis::RedisResult<redis::Value> {
    cmd!(con, "EVAL", "return redis.call(unpack(ARGV))", 1, &words[1], words)
}

#[test]
fn a_derived_key_with_the_tag_elsewhere_in_its_name_is_in_the_slot() {
    let cluster = Cluster::start(1, 0);
    let mut con = cluster.nodes()[0].con();
    ok!(con, "HSET", "{t}:map", "a", "pa", "a:queue", "deep:{t}{x}:q");
    ok!(con, "ZADD", "{t}:delay", 1, "a");
    let moved = text_rows(ok!(con, "RMQ.DELAYTICK", "{t}:delay", "{t}:map", 1));
    assert_eq!(moved, [["a", "deep:{t}{x}:q"]]);
    assert_eq!(strings(ok!(con, "LRANGE", "deep:{t}{x}:q:pending", 0, -1)), ["a"]);
}

const NAMESPACES: [World; 6] =
    [World("{one}:"), World("{two}:"), World("{three}:"), World("{four}:"), World("{five}:"), World("{six}:")];

#[test]
fn a_cluster_client_is_routed_by_the_keys_and_namespaces_spread_over_the_nodes() {
    let cluster = Cluster::start(3, 0);
    let mut con = cluster.con();
    let mut owners = BTreeSet::new();
    for world in NAMESPACES {
        let owner = cluster.node_for_key(&world.text("@map"));
        owners.insert(owner.port());
        let mut there = owner.con();
        for row in ROWS {
            ok!(there, "FLUSHALL");
            world.add(&mut con, row.setup);
            let now = server_time_ms(&mut there);
            let reply = world.call(&mut con, row.effect.call);
            world.assert_reply(&row.effect, now, reply);
            // What the call wrote is on the node that owns the namespace.
            for key in row.effect.stream.iter().map(|line| world.words(line)[1].clone()) {
                assert_eq!(cluster.node_for_key(&key).port(), owner.port());
            }
        }
    }
    assert!(owners.len() > 1, "the namespaces fell on one node");
}

#[test]
fn a_node_that_does_not_own_the_slot_says_who_does() {
    let cluster = Cluster::start(3, 0);
    let owner = cluster.node_for_key("{t}:map");
    let other = cluster.nodes().iter().find(|node| node.port() != owner.port()).unwrap();
    let mut raw = Raw::connect(other);
    let moved = format!("MOVED {} 127.0.0.1:{}", cluster.slot_of("{t}:map"), owner.port());
    for row in ROWS {
        let reply = raw.call(&TAGGED.words(row.effect.call));
        assert_eq!(reply, Reply::Error(moved.clone()), "{}", row.name);
    }
}

/// Moves the slot of `tag` to the other primary, in one step where the server can.
fn move_slot(cluster: &Cluster, tag: &str) {
    let slot = cluster.slot_of(tag);
    let from = cluster.node_for_slot(slot);
    let to = *cluster.primaries().iter().find(|node| node.port() != from.port()).expect("another");
    match (from.is_valkey(), from.version()) {
        (true, (9.., ..)) => {
            ok!(from.con(), "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to.ask_cluster("MYID"));
        }
        (false, version) if version >= (8, 4, 0) => {
            ok!(to.con(), "CLUSTER", "MIGRATION", "IMPORT", slot, slot);
        }
        _ => {
            let moving = Moving::between(from, to, slot);
            moving.move_keys(|_| {}, || {});
            moving.end(cluster);
        }
    }
    let arrived =
        || cmd!(to.con(), "EXISTS", format!("{{{tag}}}:payloads")).is_ok_and(|found| found == redis::Value::Int(1));
    assert!(eventually(deadline(), arrived), "the slot has moved");
}

#[test]
fn messages_go_with_their_slot_by_the_way_in_which_the_server_moves_slots() {
    let cluster = Cluster::start(2, 0);
    let old = cluster.node_for_key("{t}").port();
    let mut con = cluster.con();
    for n in 0..100 {
        ok!(con, "RMQ.PUBLISH", "{t}", "TO", "q", format!("a{n}"), "payload");
    }
    ok!(con, "RMQ.RESERVE", "{t}", 60000, "COUNT", 40, "FROM", "q");
    move_slot(&cluster, "t");

    let node = cluster.primaries().into_iter().find(|node| node.port() != old).expect("the other");
    let mut con = node.con();
    ok!(con, "RMQ.PUBLISH", "{t}", "TO", "q", "b", "payload");
    let lengths = ["{t}:q:pending", "{t}:q:processing"].map(|list| -> usize { ask!(con, "LLEN", list) });
    assert_eq!(lengths, [61, 40]);
    let leases: usize = ask!(con, "ZCARD", "{t}:expires");
    assert_eq!(leases, 40);
}

/// What a client has published, and what it has settled.
#[derive(Default)]
struct Ledger {
    published: BTreeSet<String>,
    settled: BTreeSet<String>,
    /// Replies that the client handed to its caller although it tries again by itself.
    errors: Vec<String>,
}

/// Publishes, reserves and acknowledges with redis-rs' cluster client until it is told to stop. A call that fails is made
/// again: an id of one's own makes that safe.
fn work_with_redis_rs(cluster: &Cluster, stop: &AtomicBool, ledger: &Mutex<Ledger>) {
    let mut con = cluster.con();
    let mut until_it_works = |call: redis::Cmd| loop {
        match send!(con, &call) {
            Ok(reply) => return reply,
            Err(error) => ledger.lock().unwrap().errors.push(error_text(&error)),
        }
        assert!(ledger.lock().unwrap().errors.len() < 10_000, "{}", line_of(&call));
    };
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let id = format!("rs-{number}");
        number += 1;
        until_it_works(command!("RMQ.PUBLISH", "{app}", "TO", "q", &id, "payload"));
        ledger.lock().unwrap().published.insert(id);
        let taken = until_it_works(command!("RMQ.RESERVE", "{app}", 3000, "COUNT", 3, "FROM", "q"));
        for message in if taken == redis::Value::Nil { Vec::new() } else { items(taken) } {
            let message = items(message);
            let [id, receipt] = [0, 2].map(|part| text(message[part].clone()));
            until_it_works(command!("RMQ.ACK", "{app}", &id, receipt));
            ledger.lock().unwrap().settled.insert(id);
        }
    }
}

/// The same with redis-py, until its input ends; `+id` is published, `-id` is settled, `!` is an error.
const WORK_WITH_REDIS_PY: &str = r#"
import select, sys
from redis.cluster import RedisCluster
from redis.exceptions import RedisError

r = RedisCluster(host="127.0.0.1", port=int(sys.argv[1]))

def say(line):
    print(line, flush=True)

def until_it_works(*call):
    while True:
        try:
            return r.execute_command(*call)
        except RedisError as error:
            say(f"!{type(error).__name__} {error}")

number = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    until_it_works("RMQ.PUBLISH", "{app}", "TO", "q", f"py-{number}", "payload")
    say(f"+py-{number}")
    number += 1
    for id, payload, receipt, attempts, queue in until_it_works(
            "RMQ.RESERVE", "{app}", 3000, "COUNT", 3, "FROM", "q") or []:
        until_it_works("RMQ.ACK", "{app}", id, receipt)
        say(f"-{id.decode()}")
"#;

/// The slot moves to another node key by key, with pauses in which the namespace is on two nodes.
fn move_slowly(cluster: &Cluster) {
    let moving = Moving::begin(cluster, "{app}");
    moving.move_keys(|_| {}, || std::thread::sleep(Duration::from_millis(40)));
    moving.end(cluster);
}

#[test]
fn nothing_is_lost_by_the_cluster_clients_of_redis_py_and_redis_rs_while_the_slot_moves_key_by_key() {
    const MOVES: usize = 4;
    let cluster = Cluster::start(3, 0);
    // Keys that are there in any case: one of them is always on its way.
    ok!(cluster.con(), "RMQ.PUBLISH", "{app}", "DELAY", 3_600_000, "TO", "q", "later", "payload");
    let (by_rs, by_py) = (Mutex::new(Ledger::default()), Mutex::new(Ledger::default()));
    let stop = AtomicBool::new(false);
    let mut python = Command::new(in_repository(".servers/python/bin/python"));
    python.args(["-c", WORK_WITH_REDIS_PY, &cluster.nodes()[0].port().to_string()]);
    python.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = spawn_bound_to_this_process(python).expect("python runs; `scripts/servers.sh python` makes it");
    let (input, output) = (python.stdin.take(), python.stdout.take().expect("a pipe"));
    std::thread::scope(|scope| {
        scope.spawn(|| work_with_redis_rs(&cluster, &stop, &by_rs));
        scope.spawn(|| {
            for line in std::io::BufReader::new(output).lines() {
                let line = line.expect("text");
                let mut ledger = by_py.lock().unwrap();
                match line.split_at(1) {
                    ("+", id) => drop(ledger.published.insert(id.into())),
                    ("-", id) => drop(ledger.settled.insert(id.into())),
                    (_, error) => ledger.errors.push(error.into()),
                }
            }
        });
        let input = input;
        let stopping = Stopping(&stop);
        let done = || [&by_rs, &by_py].map(|ledger| ledger.lock().unwrap().settled.len());
        let go_on = || {
            let before = done();
            let both = || done().iter().zip(before).all(|(now, before)| *now >= before + 20);
            assert!(eventually(deadline(), both), "the clients do not get on: {before:?}, {:?}", done());
        };
        for _ in 0..MOVES {
            go_on();
            move_slowly(&cluster);
        }
        go_on();
        drop((stopping, input));
    });
    assert!(python.wait().expect("it ends").success());

    // Calls did meet a namespace that was on two nodes.
    let refused = |node: &Server| {
        let count = node.info("errorstats").get("errorstat_TRYAGAIN").cloned();
        count.and_then(|count| count.strip_prefix("count=")?.parse::<u64>().ok()).unwrap_or(0)
    };
    let refused: u64 = cluster.nodes().iter().map(refused).sum();
    println!("TRYAGAIN was replied {refused} times");
    assert!(refused > 0);
    let [by_rs, by_py] = [by_rs, by_py].map(|ledger| ledger.into_inner().unwrap());
    for (client, ledger) in [("redis-rs", &by_rs), ("redis-py", &by_py)] {
        let kinds: BTreeSet<&String> = ledger.errors.iter().collect();
        println!(
            "{client}: {} published, {} settled, {} errors for the caller {kinds:?}",
            ledger.published.len(),
            ledger.settled.len(),
            ledger.errors.len()
        );
    }
    // What is left is taken by whoever comes later, also what a lost reply had leased.
    let mut settled: BTreeSet<String> = by_rs.settled.union(&by_py.settled).cloned().collect();
    let mut con = cluster.con();
    let mut drain = || {
        let taken = ok!(con, "RMQ.RESERVE", "{app}", 60_000, "COUNT", 100, "FROM", "q");
        for message in if taken == redis::Value::Nil { Vec::new() } else { items(taken) } {
            let message = items(message);
            let [id, receipt] = [0, 2].map(|part| text(message[part].clone()));
            assert_eq!(ok!(con, "RMQ.ACK", "{app}", &id, receipt), redis::Value::Int(1));
            settled.insert(id);
        }
        let left: Vec<String> = ask!(con, "HKEYS", "{app}:payloads");
        left.len() == 2
    };
    assert!(eventually(deadline(), &mut drain), "messages are left that nobody gets");
    let published: BTreeSet<String> = by_rs.published.union(&by_py.published).cloned().collect();
    assert_eq!(published.difference(&settled).collect::<Vec<_>>(), Vec::<&String>::new(), "lost");
    let owner = cluster.node_for_key("{app}");
    assert_eq!(Snapshot::of(&mut owner.con()).keys(), ["{app}:delays", "{app}:payloads", "{app}:queues"]);
    for other in cluster.nodes().iter().filter(|node| node.port() != owner.port()) {
        assert_eq!(ok!(other.con(), "DBSIZE"), redis::Value::Int(0), "something was left behind");
    }
}

/// Tells a thread to stop when it goes, also when a test fails.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
