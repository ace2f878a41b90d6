//! Redis Cluster: a namespace with a hash tag works on whichever node owns it; a call in one without is refused and
//! changes nothing.

use crate::common::cases::*;
use crate::common::*;
use std::collections::BTreeSet;

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
    let nodes = cluster.primaries();
    let to = nodes.iter().find(|node| node.port() != from.port()).expect("another");
    let [from_id, to_id] = [from, to].map(|node| -> String { ask!(node.con(), "CLUSTER", "MYID") });
    match (from.is_valkey(), from.version()) {
        (true, (9.., ..)) => {
            ok!(from.con(), "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to_id);
        }
        (false, version) if version >= (8, 4, 0) => {
            ok!(to.con(), "CLUSTER", "MIGRATION", "IMPORT", slot, slot);
        }
        _ => {
            ok!(to.con(), "CLUSTER", "SETSLOT", slot, "IMPORTING", from_id);
            ok!(from.con(), "CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id);
            let keys: Vec<String> = ask!(from.con(), "CLUSTER", "GETKEYSINSLOT", slot, 100);
            for key in keys {
                ok!(from.con(), "MIGRATE", "127.0.0.1", to.port(), key, 0, 5000);
            }
            for node in [to, &from] {
                ok!(node.con(), "CLUSTER", "SETSLOT", slot, "NODE", &to_id);
            }
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
