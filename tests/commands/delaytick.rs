//! RMQ.DELAYTICK delay_tasks payload_map batch

use crate::common::messages::{blocked_clients, DELAYS, LATER, MAP};
use crate::common::*;

use redis::Connection;
use std::collections::BTreeSet;
use std::time::Duration;

fn delay(con: &mut Connection, id: &str, queue: &str, due: impl redis::ToRedisArgs) {
    ok!(con, "HSET", MAP, id, "payload", format!("{id}:queue"), queue);
    ok!(con, "ZADD", DELAYS, due, id);
}

fn tick(con: &mut Connection, batch: i64) -> Vec<Vec<String>> {
    text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, batch))
}

fn waiting(con: &mut Connection) -> Vec<String> {
    strings(ok!(con, "ZRANGE", DELAYS, 0, -1))
}

#[test]
fn due_messages_go_to_the_left_of_their_pending_list_and_out_of_delay_tasks() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RPUSH", "q:pending", "earlier", "earliest");
    delay(&mut con, "a", "q", 2000);
    delay(&mut con, "b", "q", 1000);
    delay(&mut con, "c", "q", LATER);
    let payloads = Snapshot::of(&mut con).hash(MAP);
    assert_eq!(tick(&mut con, 10), [["b", "q"], ["a", "q"]]);
    assert_eq!(list(&mut con, "q:pending"), ["a", "b", "earlier", "earliest"]);
    assert_eq!(waiting(&mut con), ["c"]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.hash(MAP), payloads);
    assert_eq!(after.keys(), [DELAYS, MAP, "q:pending"]);
    assert_eq!(counter(&server, "moved"), 2);
}

#[test]
fn the_reply_is_an_array_of_id_and_queue() {
    let server = Server::start();
    let mut con = server.con();
    delay(&mut con, "12", "mx-rmq:orders", 1);
    delay(&mut con, "b", "", 2);
    let mut raw = Raw::connect(&server);
    assert_eq!(
        raw.call_raw(&["rmq.delaytick", DELAYS, MAP, "10"]),
        b"*2\r\n*2\r\n$2\r\n12\r\n$13\r\nmx-rmq:orders\r\n*2\r\n$1\r\nb\r\n$0\r\n\r\n"
    );
    assert_eq!(raw.call_raw(&["RMQ.DELAYTICK", DELAYS, MAP, "10"]), b"*0\r\n");
}

#[test]
fn the_lowest_due_time_comes_first_across_all_queues() {
    let server = Server::start();
    let mut con = server.con();
    for (id, queue, due) in [
        ("d", "q1", "4"),
        ("b", "q2", "2"),
        ("e", "q3", "5.5"),
        ("c", "q1", "3"),
        ("a", "q1", "-inf"),
        ("f", "q2", "5.75"),
        ("a2", "q3", "-7"),
    ] {
        delay(&mut con, id, queue, due);
    }
    let moved = tick(&mut con, 100);
    let rows = [["a", "q1"], ["a2", "q3"], ["b", "q2"], ["c", "q1"], ["d", "q1"], ["e", "q3"], ["f", "q2"]];
    assert_eq!(moved, rows);
    // The one that was due first is taken first, from the right.
    assert_eq!(list(&mut con, "q1:pending"), ["d", "c", "a"]);
    assert_eq!(list(&mut con, "q2:pending"), ["f", "b"]);
    assert_eq!(list(&mut con, "q3:pending"), ["e", "a2"]);
    assert_eq!(Snapshot::of(&mut con).zset(DELAYS).len(), 0);
}

#[test]
fn messages_due_at_the_same_time_go_in_the_order_of_the_sorted_set() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["b", "10", "a", "9", "B"] {
        delay(&mut con, id, "q", 5);
    }
    let order = waiting(&mut con);
    let moved: Vec<String> = tick(&mut con, 100).into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(moved, order);
}

#[test]
fn a_message_due_now_by_the_servers_clock_is_moved_and_a_later_one_is_not() {
    let server = Server::start();
    let mut con = server.con();
    let now = server_time_ms(&mut con);
    delay(&mut con, "now", "q", now);
    delay(&mut con, "in an hour", "q", now + 3_600_000);
    delay(&mut con, "never", "q", "+inf");
    assert_eq!(tick(&mut con, 10), [["now", "q"]]);
    assert_eq!(tick(&mut con, 10), [[""; 2]; 0]);
    assert_eq!(waiting(&mut con), ["in an hour", "never"]);
}

#[test]
fn at_most_batch_messages_move_and_the_next_call_goes_on_behind_them() {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..5 {
        delay(&mut con, &format!("m{n}"), "q", n);
    }
    assert_eq!(tick(&mut con, 2), [["m0", "q"], ["m1", "q"]]);
    assert_eq!(waiting(&mut con), ["m2", "m3", "m4"]);
    assert_eq!(tick(&mut con, 1), [["m2", "q"]]);
    assert_eq!(tick(&mut con, 100), [["m3", "q"], ["m4", "q"]]);
    assert_eq!(tick(&mut con, 100), [[""; 2]; 0]);
    assert_eq!(list(&mut con, "q:pending"), ["m4", "m3", "m2", "m1", "m0"]);
}

#[test]
fn an_id_without_queue_is_removed_and_not_reported() {
    let server = Server::start();
    let mut con = server.con();
    delay(&mut con, "a", "q", 1);
    ok!(con, "ZADD", DELAYS, 0, "nothing", 2, "payload only", LATER, "not yet due");
    ok!(con, "HSET", MAP, "payload only", "payload");
    assert_eq!(tick(&mut con, 10), [["a", "q"]]);
    assert_eq!(waiting(&mut con), ["not yet due"]);
    assert_eq!(list(&mut con, "q:pending"), ["a"]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.keys(), [DELAYS, MAP, "q:pending"]);
    assert_eq!(after.hash(MAP)["payload only"], "payload");
    assert_eq!((counter(&server, "moved"), counter(&server, "stale")), (1, 2));
}

#[test]
fn orphans_alone_are_removed_too_and_the_key_with_them() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", MAP, "other", "x");
    ok!(con, "ZADD", DELAYS, 1, "x", 2, "y");
    assert_eq!(tick(&mut con, 10), [[""; 2]; 0]);
    assert_eq!(Snapshot::of(&mut con).keys(), [MAP]);
}

#[test]
fn the_batch_counts_ids_that_are_dropped() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "ZADD", DELAYS, 0, "o1", 1, "o2", 2, "o3", 5, "o4");
    delay(&mut con, "a", "q", 4);
    delay(&mut con, "b", "q", 6);
    assert_eq!(tick(&mut con, 3), [[""; 2]; 0]);
    assert_eq!(waiting(&mut con), ["a", "o4", "b"]);
    assert_eq!(tick(&mut con, 2), [["a", "q"]]);
    assert_eq!(waiting(&mut con), ["b"]);
}

#[test]
fn a_message_is_moved_by_its_queue_alone_as_the_script_does() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", MAP, "a:queue", "q");
    ok!(con, "ZADD", DELAYS, 1, "a");
    assert_eq!(tick(&mut con, 10), [["a", "q"]]);
    assert_eq!(list(&mut con, "q:pending"), ["a"]);
}

#[test]
fn with_nothing_due_no_key_is_touched_nothing_fired_and_nothing_sent() {
    let server = Server::start();
    let mut con = server.con();
    delay(&mut con, "a", "q", LATER);
    for keys in [[DELAYS, MAP], ["none", "no-map"]] {
        let tap = ReplicaTap::attach(&server);
        let mut events = Events::subscribe(&server);
        let before = Snapshot::of(&mut con);
        let watcher = Watcher::on(&server, &[keys[0], keys[1], "q:pending"]);
        assert_eq!(items(ok!(con, "RMQ.DELAYTICK", keys[0], keys[1], 10)).len(), 0);
        assert!(watcher.untouched());
        assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
        assert_eq!(events.lines_until_marker(&mut con), [""; 0]);
        before.assert_unchanged(&mut con);
    }
}

#[test]
fn every_due_message_moves_exactly_once_in_every_encoding() {
    let server = Server::start();
    let mut con = server.con();
    let mut rng = Rng::seeded();
    for (count, encoding) in [(100, "listpack"), (3000, "skiplist")] {
        let mut all = BTreeSet::new();
        for n in 0..count {
            let id = match n % 3 {
                0 => n.to_string(),
                1 => format!("m{n}"),
                _ => format!("{n}{}", "x".repeat(rng.below(60))),
            };
            delay(&mut con, &id, &format!("q{}", rng.below(7)), rng.below(50));
            all.insert(id);
        }
        assert_eq!(text(ok!(con, "OBJECT", "ENCODING", DELAYS)), encoding);
        let mut moved = Vec::new();
        loop {
            let batch = 1 + rng.below(count / 5);
            let rows = tick(&mut con, batch as i64);
            if rows.is_empty() {
                break;
            }
            assert!(rows.len() <= batch);
            moved.extend(rows);
        }
        let ids: BTreeSet<String> = moved.iter().map(|row| row[0].clone()).collect();
        assert!(moved.len() == count && ids == all);
        for queue in (0..7).map(|n| format!("q{n}")) {
            let mut expected: Vec<String> =
                moved.iter().filter(|row| row[1] == queue).map(|row| row[0].clone()).collect();
            expected.reverse();
            assert!(list(&mut con, &format!("{queue}:pending")) == expected);
        }
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn a_thousand_queues_in_one_batch_each_get_their_own() {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..1000 {
        delay(&mut con, &format!("m{n}"), &format!("q{n}"), n);
    }
    assert_eq!(tick(&mut con, 1000).len(), 1000);
    for n in 0..1000 {
        assert_eq!(list(&mut con, &format!("q{n}:pending")), [format!("m{n}")]);
    }
}

#[test]
fn a_larger_batch_than_max_batch_is_lowered_to_it() {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..12 {
        delay(&mut con, &format!("m{n:02}"), "q", n);
    }
    ok!(con, "CONFIG", "SET", "rmq.max-batch", 5);
    assert_eq!(tick(&mut con, i64::MAX).len(), 5);
    assert_eq!(tick(&mut con, 6).len(), 5);
    ok!(con, "CONFIG", "SET", "rmq.max-batch", 10000);
    assert_eq!(tick(&mut con, 6).len(), 2);
}

#[test]
fn by_default_one_call_moves_ten_thousand_at_most() {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..10_001 {
        delay(&mut con, &format!("m{n:05}"), "q", n);
    }
    assert_eq!(tick(&mut con, 1_000_000).len(), 10_000);
    assert_eq!(waiting(&mut con), ["m10000"]);
}

/// A client that waits on `q:pending`, seen to be waiting.
fn blocked(server: &Server, command: &[&str]) -> Raw {
    let already = blocked_clients(server);
    let mut raw = Raw::connect(server);
    raw.send(command);
    assert!(eventually(deadline(), || blocked_clients(server) > already));
    raw
}

#[test]
fn a_consumer_blocked_on_pending_wakes() {
    let server = Server::start();
    let mut con = server.con();
    let popped = |id: &str| Reply::Array(vec![Reply::bulk("q:pending"), Reply::bulk(id)]);
    let ids = Reply::Array(vec![Reply::bulk("q:pending"), Reply::Array(vec![Reply::bulk("a"), Reply::bulk("b")])]);
    let waits: [(&[&str], Reply, &[&str]); 6] = [
        (&["BLMOVE", "q:pending", "q:processing", "RIGHT", "LEFT", "0"], Reply::bulk("a"), &["b"]),
        (&["BRPOPLPUSH", "q:pending", "q:processing", "0"], Reply::bulk("a"), &["b"]),
        (&["BRPOP", "q:pending", "0"], popped("a"), &["b"]),
        (&["BLPOP", "other", "q:pending", "0"], popped("b"), &["a"]),
        (&["BLMPOP", "0", "1", "q:pending", "RIGHT", "COUNT", "5"], ids, &[]),
        (&["BRPOP", "q:pending", "unrelated", "0"], popped("a"), &["b"]),
    ];
    for (wait, reply, rest) in waits {
        let mut consumer = blocked(&server, wait);
        delay(&mut con, "a", "q", 1);
        delay(&mut con, "b", "q", 2);
        assert!(consumer.is_silent_for(Duration::from_millis(20)));
        assert_eq!(tick(&mut con, 10), [["a", "q"], ["b", "q"]]);
        assert_eq!(consumer.read(), reply, "{wait:?}");
        assert_eq!(list(&mut con, "q:pending"), rest, "{wait:?}");
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn several_blocked_consumers_get_one_message_each_in_the_order_they_came() {
    let server = Server::start();
    let mut con = server.con();
    let wait = ["BLMOVE", "q:pending", "q:processing", "RIGHT", "LEFT", "0"];
    let mut consumers: Vec<Raw> = (0..3).map(|_| blocked(&server, &wait)).collect();
    for n in 0..5 {
        delay(&mut con, &format!("m{n}"), "q", n);
    }
    tick(&mut con, 10);
    for (n, consumer) in consumers.iter_mut().enumerate() {
        assert_eq!(consumer.read(), Reply::bulk(format!("m{n}")));
    }
    assert_eq!(list(&mut con, "q:pending"), ["m4", "m3"]);
    assert_eq!(list(&mut con, "q:processing"), ["m2", "m1", "m0"]);
}

#[test]
fn consumers_of_several_queues_wake_from_one_tick() {
    let server = Server::start();
    let mut con = server.con();
    let mut one = blocked(&server, &["BRPOP", "q1:pending", "0"]);
    let mut two = blocked(&server, &["BRPOP", "q2:pending", "0"]);
    let mut none = blocked(&server, &["BRPOP", "q3:pending", "0"]);
    delay(&mut con, "a", "q2", 1);
    delay(&mut con, "b", "q1", 2);
    tick(&mut con, 10);
    let popped = |key: &str, id: &str| Reply::Array(vec![Reply::bulk(key), Reply::bulk(id)]);
    assert_eq!(one.read(), popped("q1:pending", "b"));
    assert_eq!(two.read(), popped("q2:pending", "a"));
    assert!(none.is_silent_for(Duration::from_millis(50)));
}

#[test]
fn a_consumer_wakes_from_a_tick_in_a_transaction_and_in_a_script() {
    let server = Server::start();
    let mut con = server.con();
    for in_script in [false, true] {
        let mut consumer = blocked(&server, &["BRPOP", "q:pending", "0"]);
        delay(&mut con, "a", "q", 1);
        if in_script {
            let script = "return redis.call('RMQ.DELAYTICK', KEYS[1], KEYS[2], 10)";
            assert_eq!(text_rows(ok!(con, "EVAL", script, 2, DELAYS, MAP)), [["a", "q"]]);
        } else {
            ok!(con, "MULTI");
            ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 10);
            ok!(con, "EXEC");
        }
        let reply = Reply::Array(vec![Reply::bulk("q:pending"), Reply::bulk("a")]);
        assert_eq!(consumer.read(), reply);
    }
}
