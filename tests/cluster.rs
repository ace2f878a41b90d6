//! Redis Cluster: a namespace with a hash tag works on whichever node owns it; one without is refused whole.

mod cases;
mod common;
use cases::*;
use common::*;
use std::collections::BTreeSet;

const TAGGED: World = World("{t}:");
const UNTAGGED: World = World("");

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
        assert_eq!(
            Snapshot::of(&mut con).keys(),
            Snapshot::of(&mut alone).keys(),
            "{about}"
        );
    }
}

#[test]
fn a_namespace_without_a_hash_tag_gets_crossslot_and_changes_nothing() {
    let cluster = Cluster::start(1, 0);
    let mut con = cluster.nodes()[0].con();
    for row in ROWS.iter().filter(|row| row.keys.len() > 1) {
        UNTAGGED.set_up(&mut con, row.setup);
        let before = Snapshot::of(&mut con);
        let reply = shown(UNTAGGED.call(&mut con, row.effect.call));
        assert!(reply.starts_with("CROSSSLOT "), "{}: {reply}", row.name);
        before.assert_unchanged(&mut con);
    }
    for row in ROWS.iter().filter(|row| row.keys.len() == 1) {
        UNTAGGED.set_up(&mut con, row.setup);
        UNTAGGED.run(&mut con, &row.effect);
    }
}

#[test]
fn a_derived_key_in_another_slot_gets_crossslot_is_named_and_nothing_changes() {
    let cluster = Cluster::start(1, 0);
    let mut con = cluster.nodes()[0].con();
    for row in rows_with_derived_keys() {
        // One of several messages belongs to a queue that lives elsewhere.
        let setup: Vec<String> = row
            .setup
            .iter()
            .map(|line| line.replacen(":queue @q", ":queue elsewhere", 1))
            .collect();
        let setup: Vec<&str> = setup.iter().map(String::as_str).collect();
        let call = row.effect.call.replace(" @q ", " elsewhere ");
        TAGGED.set_up(&mut con, &setup);
        let before = Snapshot::of(&mut con);
        let reply = shown(TAGGED.call(&mut con, &call));
        let suffix = row.derived[0].key.rsplit(':').next().unwrap();
        let wanted = format!("CROSSSLOT the derived key 'elsewhere:{suffix}' is not in the slot of the keys given");
        assert_eq!(reply, wanted, "{}", row.name);
        before.assert_unchanged(&mut con);

        let by_script = shown(call_in_script(&mut con, &TAGGED.words(&call)));
        assert!(
            by_script.starts_with("CROSSSLOT the derived key"),
            "{}: {by_script}",
            row.name
        );
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

#[test]
fn an_empty_processing_key_counts_as_a_key_of_its_own_slot() {
    // As for the script: the server computes the slot of every key argument, also of an empty one.
    let cluster = Cluster::start(1, 0);
    let mut con = cluster.nodes()[0].con();
    ok!(con, "HSET", "{t}:map", "a", "pa", "a:queue", "{t}:q");
    let error = err!(con, "RMQ.RETRY", "{t}:map", "{t}:delay", "{t}:exp", "", "a", "new", 1);
    assert!(error.starts_with("CROSSSLOT "), "{error}");
    // A name in the slot that holds nothing does instead.
    ok!(
        con,
        "RMQ.RETRY",
        "{t}:map",
        "{t}:delay",
        "{t}:exp",
        "{t}:none",
        "a",
        "new",
        1
    );
}

const NAMESPACES: [World; 6] = [
    World("{one}:"),
    World("{two}:"),
    World("{three}:"),
    World("{four}:"),
    World("{five}:"),
    World("{six}:"),
];

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

#[test]
fn a_waiting_reserve_is_served_by_the_node_that_owns_it() {
    let cluster = Cluster::start(3, 0);
    let mut con = cluster.con();
    let owner = cluster.node_for_key("{t}:map");
    let mut waiting = Raw::connect(owner);
    waiting.send(&TAGGED.words("RMQ.RESERVE @q:pending @q:processing @map @exp 60000 BLOCK 0"));
    assert!(eventually(deadline(), || owner.info("clients")["blocked_clients"] == "1"));
    ok!(con, "RMQ.PUBLISH", "{t}:map", "{t}:q:pending", "a", "pa");
    let Reply::Array(messages) = waiting.read() else {
        panic!("a message was expected");
    };
    assert_eq!(messages.len(), 1);
}
