//! RMQ.DEADLETTER dlq_map dlq expire_monitor payload_map processing id payload [topic] [LEASE lease] and
//! RMQ.REDRIVE dlq dlq_map payload_map batch

mod common;
mod life;
use common::*;
use life::*;

use redis::{Connection, Value};
use std::collections::BTreeMap;

fn bury(con: &mut Connection, id: &str) -> Value {
    ok!(
        con,
        "RMQ.DEADLETTER",
        DLQ_MAP,
        DLQ,
        DUE,
        MAP,
        WORK,
        id,
        format!("dead {id}")
    )
}

fn redrive(con: &mut Connection, batch: usize) -> Vec<Vec<String>> {
    text_rows(ok!(con, "RMQ.REDRIVE", DLQ, DLQ_MAP, MAP, batch))
}

/// A dead letter, as the script leaves it.
fn dead_letter(con: &mut Connection, id: &str, queue: &str) {
    ok!(
        con,
        "HSET",
        DLQ_MAP,
        id,
        format!("dead {id}"),
        format!("{id}:queue"),
        queue
    );
    ok!(con, "LPUSH", DLQ, id);
}

fn fields(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(f, v)| (f.to_string(), v.to_string())).collect()
}

// ---- DEADLETTER

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
fn the_newest_dead_letter_stands_at_the_left() {
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
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    take_new(&mut con, "b");
    bury(&mut con, "b");
    let before = Snapshot::of(&mut con);
    assert_eq!(
        err!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "b", "again"),
        gone
    );
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
    ok!(con, "RMQ.PUBLISH", MAP, "mx-rmq:bills:pending", "b", "again");
    ok!(
        con,
        "RMQ.DEADLETTER",
        DLQ_MAP,
        DLQ,
        DUE,
        MAP,
        "mx-rmq:bills:processing",
        "b",
        "dead again"
    );
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
    assert_eq!(redrive(&mut con, 5), [["a", QUEUE]]);
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
    let reply = ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, "", "a", "dead", "orders");
    assert_eq!(reply, Value::Okay);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.hash(DLQ_MAP), fields(&[("a", "dead"), ("a:queue", QUEUE)]));
    assert_eq!(after.list(WORK), ["a"]);

    let delivery = take_new(&mut con, "b");
    for topic in [&["orders"][..], &["LEASE"], &[""]] {
        let words = [topic, &["lease", "1.5"]].concat();
        let reply = ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "b", "dead", words);
        assert_eq!(reply, Value::Int(0));
    }
    let words = ["orders", "LEASE", &delivery.lease];
    let reply = ok!(con, "RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "b", "dead", &words);
    assert_eq!(reply, Value::Int(1));
}

#[test]
fn with_a_lease_only_its_holder_gives_a_message_up() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let before = Snapshot::of(&mut con);
    let by = |con: &mut Connection, lease: &str| {
        ok!(
            con,
            "RMQ.DEADLETTER",
            DLQ_MAP,
            DLQ,
            DUE,
            MAP,
            WORK,
            "a",
            "dead",
            "LEASE",
            lease
        )
    };
    assert_eq!(by(&mut con, "1.5"), Value::Int(0));
    before.assert_unchanged(&mut con);
    assert_eq!(by(&mut con, &delivery.lease), Value::Int(1));
    assert_eq!(by(&mut con, &delivery.lease), Value::Int(0));
    let after = Snapshot::of(&mut con);
    assert_eq!(after.keys(), [DLQ, DLQ_MAP]);
    assert_eq!(after.list(DLQ), ["a"]);
    assert_eq!((counter(&server, "dead_lettered"), counter(&server, "fenced")), (1, 2));
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
            ok!(
                con,
                "RMQ.DEADLETTER",
                DLQ_MAP,
                DLQ,
                DUE,
                MAP,
                WORK,
                "a",
                "dead",
                "orders"
            );
        } else {
            let keys = [DLQ_MAP, DLQ, DUE, MAP, WORK];
            peer.call(&mut con, "move_to_dlq", &keys, ("a", "dead", "orders"))
                .unwrap();
        }
        results.push(Snapshot::of(&mut con));
    }
    results[0].assert_same(&results[1]);
}

#[test]
fn bad_input_to_deadletter_is_named_and_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
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
            assert_eq!(
                error,
                format!("ERR {} and {} must be different keys", names[other], names[place])
            );
        }
    }
    let mut error = |words: &[&str]| err!(con, "RMQ.DEADLETTER", &keys, words);
    assert!(error(&["a:queue", "dead"]).starts_with("ERR id must not end in"));
    assert!(error(&["a:attempts", "dead"]).starts_with("ERR id must not end in"));
    assert!(error(&["a"]).starts_with("ERR wrong number of arguments"));
    assert_eq!(error(&["a", "dead", "topic", "LEASE"]), "ERR unknown option 'topic'");
    assert_eq!(
        error(&["a", "dead", "topic", "LEASE", "1", "LEASE", &delivery.lease]),
        "ERR option LEASE must be given once only"
    );
    before.assert_unchanged(&mut con);
    ok!(con, "CONFIG", "SET", "maxmemory", 1);
    assert!(err!(con, "RMQ.DEADLETTER", &keys, "a", "dead").starts_with("OOM "));
    before.assert_unchanged(&mut con);
}

// ---- REDRIVE

#[test]
fn the_oldest_dead_letters_go_back_to_the_left_of_their_own_pending_lists() {
    let server = Server::start();
    let mut con = server.con();
    for (id, queue) in [("1", "x"), ("2", "y"), ("3", "x"), ("4", "x"), ("5", "y")] {
        dead_letter(&mut con, id, queue);
    }
    ok!(con, "LPUSH", "x:pending", "old");
    assert_eq!(redrive(&mut con, 4), [["1", "x"], ["2", "y"], ["3", "x"], ["4", "x"]]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list("x:pending"), ["4", "3", "1", "old"]);
    assert_eq!(after.list("y:pending"), ["2"]);
    assert_eq!(after.list(DLQ), ["5"]);
    assert_eq!(after.hash(DLQ_MAP), fields(&[("5", "dead 5"), ("5:queue", "y")]));
    assert_eq!(after.hash(MAP).len(), 8);
    assert_eq!(after.hash(MAP)["3"], "dead 3");
    assert_eq!(after.hash(MAP)["3:queue"], "x");
    assert_eq!(counter(&server, "redriven"), 4);
    assert_eq!(redrive(&mut con, 4), [["5", "y"]]);
    assert_eq!(redrive(&mut con, 4), Vec::<Vec<String>>::new());
    assert_eq!(Snapshot::of(&mut con).keys(), [MAP, "x:pending", "y:pending"]);
}

#[test]
fn the_attempts_of_a_redriven_message_start_afresh() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    for script in [false, true] {
        ok!(con, "FLUSHALL");
        let delivery = take_new(&mut con, "a");
        ok!(con, "RMQ.NACK", MAP, DELAYS, DUE, WORK, "a", delivery.lease, 0);
        ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 1);
        assert_eq!(reserve(&mut con).attempts, 2);
        if script {
            peer.call(
                &mut con,
                "move_to_dlq",
                &[DLQ_MAP, DLQ, DUE, MAP, WORK],
                ("a", "dead a", ""),
            )
            .unwrap();
            assert_eq!(text(ok!(con, "HGET", MAP, "a:attempts")), "2");
        } else {
            bury(&mut con, "a");
        }
        assert_eq!(redrive(&mut con, 1), [["a", QUEUE]]);
        let again = reserve(&mut con);
        assert_eq!((again.attempts, again.payload.as_str()), (1, "dead a"));
        assert_eq!(ack(&mut con, &again), 1);
        assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    }
}

#[test]
fn dead_letters_of_a_queue_of_the_wrong_type_stay_and_the_others_do_not_starve_behind_them() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    ok!(con, "SET", "bad:pending", "x");
    for n in 0..60 {
        let queue = if n % 3 == 2 { "good" } else { "bad" };
        dead_letter(&mut con, &n.to_string(), queue);
    }
    let moved = redrive(&mut con, 15);
    let ids: Vec<&str> = moved.iter().map(|row| row[0].as_str()).collect();
    let expected: Vec<String> = (0..15).map(|n| (3 * n + 2).to_string()).collect();
    assert_eq!(ids, expected);
    assert!(moved.iter().all(|row| row[1] == "good"));
    assert_eq!(redrive(&mut con, 15).len(), 5);
    let after = Snapshot::of(&mut con);
    let stayed: Vec<String> = (0..60).rev().filter(|n| n % 3 != 2).map(|n| n.to_string()).collect();
    assert_eq!(after.list(DLQ), stayed);
    assert_eq!(after.hash(DLQ_MAP).len(), 80);
    assert!(counter(&server, "skipped") >= 40);
    assert_eq!(server.log().matches("because 'bad:pending' is not a list").count(), 1);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());

    ok!(con, "DEL", "bad:pending");
    assert_eq!(redrive(&mut con, 100).len(), 40);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn a_dead_letter_without_a_queue_stays() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", DLQ_MAP, "lost", "dead");
    ok!(con, "LPUSH", DLQ, "lost");
    let before = Snapshot::of(&mut con);
    assert_eq!(redrive(&mut con, 5), Vec::<Vec<String>>::new());
    before.assert_unchanged(&mut con);
    dead_letter(&mut con, "a", QUEUE);
    assert_eq!(redrive(&mut con, 1), [["a", QUEUE]]);
    assert_eq!(Snapshot::of(&mut con).list(DLQ), ["lost"]);
    ok!(con, "HSET", DLQ_MAP, "lost:queue", QUEUE);
    assert_eq!(redrive(&mut con, 1), [["lost", QUEUE]]);
}

#[test]
fn a_dead_letter_whose_id_lives_again_stays_until_that_message_is_done() {
    let server = Server::start();
    let mut con = server.con();
    dead_letter(&mut con, "a", QUEUE);
    let live = take_new(&mut con, "a");
    let before = Snapshot::of(&mut con);
    assert_eq!(redrive(&mut con, 5), Vec::<Vec<String>>::new());
    before.assert_unchanged(&mut con);
    assert_eq!(ack(&mut con, &live), 1);
    assert_eq!(redrive(&mut con, 5), [["a", QUEUE]]);
}

#[test]
fn an_id_that_stands_twice_in_the_list_goes_back_once() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    dead_letter(&mut con, "a", QUEUE);
    dead_letter(&mut con, "b", QUEUE);
    dead_letter(&mut con, "a", QUEUE);
    dead_letter(&mut con, "c", QUEUE);
    assert_eq!(redrive(&mut con, 9), [["a", QUEUE], ["b", QUEUE], ["c", QUEUE]]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(PENDING), ["c", "b", "a"]);
    assert_eq!(after.keys(), [PENDING, MAP]);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn the_second_of_an_id_that_stands_twice_is_dropped_by_a_later_call_too() {
    let server = Server::start();
    let mut con = server.con();
    dead_letter(&mut con, "a", QUEUE);
    dead_letter(&mut con, "a", QUEUE);
    assert_eq!(redrive(&mut con, 1), [["a", QUEUE]]);
    assert_eq!(Snapshot::of(&mut con).list(DLQ), ["a"]);
    let delivery = reserve(&mut con);
    ack(&mut con, &delivery);
    assert_eq!(redrive(&mut con, 1), Vec::<Vec<String>>::new());
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
}

#[test]
fn an_id_without_a_dead_letter_is_dropped_and_counts_towards_the_batch() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "LPUSH", DLQ, "ghost1", "ghost2");
    dead_letter(&mut con, "a", QUEUE);
    assert_eq!(redrive(&mut con, 2), Vec::<Vec<String>>::new());
    assert_eq!(Snapshot::of(&mut con).list(DLQ), ["a"]);
    assert_eq!(redrive(&mut con, 2), [["a", QUEUE]]);
    assert_eq!(counter(&server, "stale"), 2);
}

#[test]
fn a_queue_that_would_lead_back_into_the_keys_given_stays_where_it_is() {
    let server = Server::start();
    let mut con = server.con();
    for (dlq, dlq_map, payload_map) in [
        ("x:pending", "dm", "m"),
        ("d", "x:pending", "m"),
        ("d", "dm", "x:pending"),
    ] {
        ok!(con, "FLUSHALL");
        ok!(con, "HSET", dlq_map, "a", "dead", "a:queue", "x");
        ok!(con, "LPUSH", dlq, "a");
        let before = Snapshot::of(&mut con);
        let moved = ok!(con, "RMQ.REDRIVE", dlq, dlq_map, payload_map, 5);
        assert_eq!(items(moved), [], "{dlq} {dlq_map} {payload_map}");
        before.assert_unchanged(&mut con);
    }
}

#[test]
fn redriving_needs_permission_on_the_pending_list_and_moves_nothing_without() {
    let server = Server::start();
    let mut con = server.con();
    dead_letter(&mut con, "a", "mine");
    dead_letter(&mut con, "b", "theirs");
    ok!(
        con,
        "ACL",
        "SETUSER",
        "bob",
        "on",
        ">pw",
        "+@all",
        format!("~{DLQ}*"),
        format!("~{MAP}"),
        "~mine:pending"
    );
    let before = Snapshot::of(&mut con);
    let mut bob = server.con_as("bob", "pw");
    let error = err!(bob, "RMQ.REDRIVE", DLQ, DLQ_MAP, MAP, 5);
    assert_eq!(error, "NOPERM no permission to access the derived key 'theirs:pending'");
    before.assert_unchanged(&mut con);
    assert_eq!(
        text_rows(ok!(bob, "RMQ.REDRIVE", DLQ, DLQ_MAP, MAP, 1)),
        [["a", "mine"]]
    );
}

#[test]
fn a_redrive_is_one_transaction_of_plain_commands() {
    let server = Server::start();
    let mut con = server.con();
    dead_letter(&mut con, "a", QUEUE);
    dead_letter(&mut con, "b", QUEUE);
    ok!(con, "HSET", MAP, "a:attempts", 3);
    let tap = ReplicaTap::attach(&server);
    redrive(&mut con, 5);
    let mut heard = tap.lines_until_marker(&mut con);
    assert_eq!((heard.remove(0), heard.pop().unwrap()), ("MULTI".into(), "EXEC".into()));
    heard.sort();
    let mut expected = [
        format!("RPOP {DLQ} 2"),
        format!("LPUSH {PENDING} a b"),
        format!("HSET {MAP} a \"dead a\" a:queue {QUEUE} b \"dead b\" b:queue {QUEUE}"),
        format!("HDEL {DLQ_MAP} a a:queue b b:queue"),
        format!("HDEL {MAP} a:attempts"),
    ];
    expected.sort();
    assert_eq!(heard, expected);
    redrive(&mut con, 5);
    assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
}

#[test]
fn any_number_of_dead_letters_of_any_state_is_redriven_exactly_and_a_replica_agrees() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    let mut rng = Rng::seeded();
    ok!(con, "SET", "bad:pending", "x");
    for round in 0..40 {
        ok!(con, "DEL", DLQ, DLQ_MAP, MAP, "x:pending", "y:pending");
        ok!(
            con,
            "CONFIG",
            "SET",
            "list-max-listpack-size",
            *rng.pick(&[-2, 1, 4, 128])
        );
        let count = rng.below(if round % 4 == 0 { 400 } else { 30 });
        let mut left: Vec<String> = Vec::new();
        let mut moved: Vec<Vec<String>> = Vec::new();
        let batch = 1 + rng.below(60);
        let mut taken = 0;
        for n in 0..count {
            let id = n.to_string();
            ok!(con, "LPUSH", DLQ, &id);
            let (stays, reported) = match rng.below(6) {
                0 => (false, None),
                1 => {
                    ok!(con, "HSET", DLQ_MAP, &id, "no queue");
                    (true, None)
                }
                2 => {
                    ok!(con, "HSET", DLQ_MAP, &id, "dead", format!("{id}:queue"), "bad");
                    (true, None)
                }
                3 => {
                    ok!(con, "HSET", DLQ_MAP, &id, "dead", format!("{id}:queue"), "x");
                    ok!(con, "HSET", MAP, &id, "live");
                    (true, None)
                }
                _ => {
                    let queue = *rng.pick(&["x", "y"]);
                    ok!(con, "HSET", DLQ_MAP, &id, "dead", format!("{id}:queue"), queue);
                    (false, Some(queue))
                }
            };
            if stays || taken == batch {
                left.insert(0, id);
            } else {
                taken += 1;
                moved.extend(reported.map(|queue| vec![id, queue.to_string()]));
            }
        }
        assert_eq!(redrive(&mut con, batch), moved);
        assert_eq!(Snapshot::of(&mut con).list(DLQ), left);
        replica.wait_synced();
        assert_eq!(replica.digest(), server.digest());
    }
}

#[test]
fn bad_input_to_redrive_is_named_and_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    dead_letter(&mut con, "a", QUEUE);
    ok!(con, "SET", "text", "x");
    let before = Snapshot::of(&mut con);
    for bad in ["0", "-1", "1.5", "", "x", "9223372036854775808"] {
        let error = err!(con, "RMQ.REDRIVE", DLQ, DLQ_MAP, MAP, bad);
        assert_eq!(error, "ERR batch must be a positive integer", "{bad:?}");
    }
    assert_eq!(
        err!(con, "RMQ.REDRIVE", "text", DLQ_MAP, MAP, 1),
        "WRONGTYPE dlq must be a list"
    );
    assert_eq!(
        err!(con, "RMQ.REDRIVE", DLQ, "text", MAP, 1),
        "WRONGTYPE dlq_map must be a hash"
    );
    assert_eq!(
        err!(con, "RMQ.REDRIVE", DLQ, DLQ_MAP, "text", 1),
        "WRONGTYPE payload_map must be a hash"
    );
    let error = err!(con, "RMQ.REDRIVE", DLQ, DLQ_MAP, DLQ_MAP, 1);
    assert_eq!(error, "ERR dlq_map and payload_map must be different keys");
    assert!(err!(con, "RMQ.REDRIVE", DLQ, DLQ_MAP, MAP).starts_with("ERR wrong number of arguments"));
    before.assert_unchanged(&mut con);
}

#[test]
fn a_batch_above_the_largest_is_lowered_to_it() {
    let server = Server::builder().config_line("rmq.max-batch 3").start();
    let mut con = server.con();
    for n in 0..5 {
        dead_letter(&mut con, &n.to_string(), QUEUE);
    }
    assert_eq!(redrive(&mut con, 1_000_000).len(), 3);
}

/// move_to_dlq.lua queues an id again each time.
#[test]
fn an_id_that_a_script_has_put_among_the_dead_letters_several_times_stands_there_once() {
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
    let heard = events.lines_until_marker(&mut con);
    let heard = heard
        .iter()
        .filter(|line| line.split(' ').any(|word| word == DLQ))
        .count();
    assert_eq!(heard, 2, "one lrem, one lpush");
    let dead = Snapshot::of(&mut con).list(DLQ);
    assert_eq!(dead[..2], ["a", "first"]);
    assert_eq!(dead[2..], others);
}

/// The look-up of a missing key is an event, and a listener may delete keys that the command has open.
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
