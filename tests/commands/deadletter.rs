//! RMQ.DEADLETTER dlq_map dlq expire_monitor payload_map processing id payload [topic]

use crate::common::messages::*;
use crate::common::*;

use redis::{Connection, Value};
use std::collections::BTreeMap;

fn bury(con: &mut Connection, id: &str) -> Value {
    ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, id, format!("dead {id}"))
}

fn fields(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(f, v)| (f.to_string(), v.to_string())).collect()
}

#[test]
fn a_message_that_is_given_up_goes_into_the_dead_letter_pair_and_out_of_everything_else() {
    let server = Server::start();
    let mut con = server.con();
    take_new(&mut con, "a");
    take_new(&mut con, "other");
    assert_eq!(bury(&mut con, "a"), Value::Okay);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(DLQ), ["a"]);
    assert_eq!(after.hash(DLQ_MAP), fields(&[("a", "dead a"), ("a:queue", QUEUE)]));
    assert_eq!(after.list(WORK), ["other"]);
    assert_eq!(after.zset(DUE).into_keys().collect::<Vec<_>>(), ["other"]);
    let left: Vec<String> = after.hash(MAP).into_keys().collect();
    assert_eq!(left, ["other", "other:attempts", "other:queue"]);
    assert_eq!(counter(&server, "dead_lettered"), 1);
}

#[test]
fn the_newest_dead_letter_is_at_the_left() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c"] {
        take_new(&mut con, id);
        bury(&mut con, id);
    }
    assert_eq!(Snapshot::of(&mut con).list(DLQ), ["c", "b", "a"]);
}

#[test]
fn a_message_that_is_gone_is_not_brought_back_as_a_dead_letter() {
    let server = Server::start();
    let mut con = server.con();
    let gone = "NOMSG id is neither in payload_map nor in processing: the message was settled already";
    assert_eq!(err!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "a", ""), gone);
    let delivery = take_new(&mut con, "a");
    ack(&mut con, &delivery);
    assert_eq!(err!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "a", ""), gone);
    assert_eq!(Snapshot::of(&mut con).keys(), [QUEUES]);
    take_new(&mut con, "b");
    bury(&mut con, "b");
    let before = Snapshot::of(&mut con);
    assert_eq!(err!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "b", "again"), gone);
    before.assert_unchanged(&mut con);
}

#[test]
fn an_id_is_a_dead_letter_once_only_and_the_later_one_replaces_the_earlier() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    for id in ["a", "b", "c"] {
        take_new(&mut con, id);
        bury(&mut con, id);
    }
    ok!(con, "RMQ.PUBLISH", NS, "TO", "bills", "b", "again");
    ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, "mx-rmq:bills:processing", "b", "dead again");
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(DLQ), ["b", "c", "a"]);
    assert_eq!(after.hash(DLQ_MAP)["b"], "dead again");
    assert_eq!(after.hash(DLQ_MAP)["b:queue"], "mx-rmq:bills");
    assert_eq!(after.hash(DLQ_MAP).len(), 6);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn a_missing_queue_is_restored_from_the_name_of_the_processing_list() {
    let server = Server::start();
    let mut con = server.con();
    take_new(&mut con, "a");
    ok!(con, "HDEL", MAP, "a:queue");
    bury(&mut con, "a");
    assert_eq!(Snapshot::of(&mut con).hash(DLQ_MAP)["a:queue"], QUEUE);
}

#[test]
fn a_message_that_only_processing_knows_becomes_a_dead_letter_too() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "LPUSH", WORK, "a");
    assert_eq!(bury(&mut con, "a"), Value::Okay);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.keys(), [DLQ, DLQ_MAP]);
    assert_eq!(after.hash(DLQ_MAP), fields(&[("a", "dead a"), ("a:queue", QUEUE)]));
}

#[test]
fn a_dead_letter_of_no_known_queue_is_kept_without_one() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", MAP, "a", "payload");
    ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, "", "a", "dead");
    ok!(con, "HSET", MAP, "b", "payload");
    ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, "work", "b", "dead");
    let after = Snapshot::of(&mut con);
    assert_eq!(after.hash(DLQ_MAP), fields(&[("a", "dead"), ("b", "dead")]));
    assert_eq!(after.keys(), [DLQ, DLQ_MAP]);
}

#[test]
fn a_topic_is_accepted_and_an_empty_processing_means_none() {
    let server = Server::start();
    let mut con = server.con();
    take_new(&mut con, "a");
    // Nor is a key with an empty name used.
    ok!(con, "RPUSH", "", "a");
    let reply = ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, "", "a", "dead", "orders");
    assert_eq!(reply, Value::Okay);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.hash(DLQ_MAP), fields(&[("a", "dead"), ("a:queue", QUEUE)]));
    assert_eq!((after.list(WORK), after.list("")), (vec![], vec!["a".into()]));
}

#[test]
fn the_command_leaves_what_the_script_leaves() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let mut results = Vec::new();
    for native in [false, true] {
        ok!(con, "FLUSHALL");
        for id in ["x", "a", "y"] {
            ok!(con, "HSET", MAP, id, "payload", format!("{id}:queue"), QUEUE);
            ok!(con, "LPUSH", WORK, id);
            ok!(con, "ZADD", DUE, 5, id);
        }
        if native {
            ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "a", "dead", "orders");
        } else {
            let keys = [DLQ_MAP, DLQ, DUE, MAP, WORK];
            peer.call(&mut con, "move_to_dlq", &keys, ("a", "dead", "orders")).unwrap();
        }
        results.push(Snapshot::of(&mut con));
    }
    results[0].assert_same(&results[1]);
}

#[test]
fn bad_input_to_deadletter_is_named_and_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    take_new(&mut con, "a");
    ok!(con, "SET", "text", "x");
    let before = Snapshot::of(&mut con);
    let keys = [DLQ_MAP, DLQ, DUE, MAP, WORK];
    let names = ["dlq_map", "dlq", "expire_monitor", "payload_map", "processing"];
    let types = ["hash", "list", "sorted set", "hash", "list"];
    for place in 0..5 {
        let mut wrong = keys;
        wrong[place] = "text";
        let error = err!(con, "RMQ.DEADLETTER", &wrong, "a", "dead");
        assert_eq!(error, format!("WRONGTYPE {} must be a {}", names[place], types[place]));
        for other in 0..place {
            let mut equal = keys;
            equal[place] = keys[other];
            let error = err!(con, "RMQ.DEADLETTER", &equal, "a", "dead");
            assert_eq!(error, format!("ERR {} and {} must be different keys", names[other], names[place]));
        }
    }
    let mut error = |words: &[&str]| err!(con, "RMQ.DEADLETTER", &keys, words);
    assert!(error(&["a:queue", "dead"]).starts_with("ERR id must not end in"));
    assert!(error(&["a:attempts", "dead"]).starts_with("ERR id must not end in"));
    assert!(error(&["a"]).starts_with("ERR wrong number of arguments"));
    assert!(error(&["a", "dead", "topic", "LEASE"]).starts_with("ERR wrong number of arguments"));
    assert!(error(&["a:death", "dead"]).starts_with("ERR id must not end in"));
    before.assert_unchanged(&mut con);
    ok!(con, "CONFIG", "SET", "maxmemory", 1);
    assert!(err!(con, "RMQ.DEADLETTER", &keys, "a", "dead").starts_with("OOM "));
    before.assert_unchanged(&mut con);
}

/// move_to_dlq.lua queues an id again each time.
#[test]
fn an_id_that_a_script_has_listed_several_times_is_listed_once_afterwards() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    for before in [&["a", "b", "a"][..], &["a", "a"], &["b", "a", "a", "c", "a"]] {
        ok!(con, "DEL", DLQ, DLQ_MAP);
        ok!(con, "RPUSH", DLQ, before);
        ok!(con, "HSET", DLQ_MAP, "a", 1, "b", 2, "c", 3);
        publish(&mut con, "a");
        ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "a", "p");
        let mut expected = vec!["a"];
        expected.extend(before.iter().filter(|id| **id != "a"));
        assert_eq!(Snapshot::of(&mut con).list(DLQ), expected);
    }
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

/// A script that failed again and again may have left thousands.
#[test]
fn older_occurrences_of_a_dead_letter_go_in_one_step() {
    let server = Server::start();
    let mut con = server.con();
    let others: Vec<String> = (0..50).map(|n| format!("other{n}")).collect();
    ok!(con, "RPUSH", DLQ, "first", vec!["a"; 40], &others, vec!["a"; 3]);
    ok!(con, "HSET", DLQ_MAP, "a", 1, "first", 2);
    publish(&mut con, "a");
    let tap = ReplicaTap::attach(&server);
    let mut events = Events::subscribe(&server);
    events.until_marker(&mut con);
    tap.commands_until_marker(&mut con);
    ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "a", "p");
    let on_dlq = format!(" {DLQ} ");
    let sent: Vec<String> = tap.lines_until_marker(&mut con);
    let sent: Vec<&String> = sent.iter().filter(|line| line.contains(&on_dlq)).collect();
    assert_eq!(sent, [&format!("LREM {DLQ} -43 a"), &format!("LPUSH {DLQ} a")]);
    let received = events.lines_until_marker(&mut con);
    let received = received.iter().filter(|line| line.split(' ').any(|word| word == DLQ)).count();
    assert_eq!(received, 2, "one lrem, one lpush");
    let dead = Snapshot::of(&mut con).list(DLQ);
    assert_eq!(dead[..2], ["a", "first"]);
    assert_eq!(dead[2..], others);
}

/// The look-up of a missing key is an event, and a module that subscribes to it may delete keys that the command has
/// open.
#[test]
fn a_dead_letter_whose_list_is_gone_is_not_searched_for() {
    let server = Server::builder().arg("notify-keyspace-events", "KEAm").start();
    let mut con = server.con();
    ok!(con, "HSET", DLQ_MAP, "a", "old");
    publish(&mut con, "a");
    ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "a", "p");
    let missed = server.info("stats")["keyspace_misses"].clone();
    ok!(con, "DEL", DLQ);
    publish(&mut con, "a");
    ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "a", "p");
    assert_eq!(server.info("stats")["keyspace_misses"], missed);
    assert_eq!(Snapshot::of(&mut con).list(DLQ), ["a"]);
}

#[test]
fn one_word_after_the_payload_of_a_dead_letter_is_its_topic_whatever_it_says() {
    let server = Server::start();
    let mut con = server.con();
    for topic in ["lease", "LEASE", "Lease", "orders", ""] {
        take_new(&mut con, "a");
        let reply = ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "a", "dead", topic);
        assert_eq!(text(reply), "OK", "{topic:?}");
        assert_eq!(Snapshot::of(&mut con).list(DLQ), ["a"], "{topic:?}");
        ok!(con, "FLUSHALL");
    }
}
