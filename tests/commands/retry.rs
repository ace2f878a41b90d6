//! RMQ.RETRY payload_map delay_tasks expire_monitor processing id payload delay [topic]

use crate::common::messages::{DELAYS, DUE, MAP, QUEUE, WORK};
use crate::common::*;

use redis::Connection;
use std::collections::BTreeMap;

const NOMSG: &str = "NOMSG id is neither in payload_map nor in processing: the message was settled already";

fn take_into_work(con: &mut Connection, ids: &[&str]) {
    for id in ids {
        ok!(con, "HSET", MAP, id, "old", format!("{id}:queue"), QUEUE);
        ok!(con, "LPUSH", WORK, id);
        ok!(con, "ZADD", DUE, 1000, id);
    }
}

/// Retries `id` and returns its due time, less the server's clock before and after the call.
fn due_after(con: &mut Connection, id: &str, delay: &str) -> (f64, f64) {
    let before = server_time_ms(con);
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, id, "new", delay);
    let after = server_time_ms(con);
    let due: f64 = ask!(con, "ZSCORE", DELAYS, id);
    (due - before as f64, due - after as f64)
}

#[test]
fn a_retried_message_gets_its_new_payload_waits_in_delay_tasks_and_is_in_work_no_more() {
    let server = Server::start();
    let mut con = server.con();
    take_into_work(&mut con, &["a", "b", "c"]);
    let before = Snapshot::of(&mut con);
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "b", "new", 60);

    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(WORK), ["c", "a"]);
    assert_eq!(after.zset(DUE), BTreeMap::from([("a".into(), 1000.0), ("c".into(), 1000.0)]));
    let delayed: Vec<String> = after.zset(DELAYS).into_keys().collect();
    assert_eq!(delayed, ["b"]);
    let mut payloads = before.hash(MAP);
    payloads.insert("b".into(), "new".into());
    assert_eq!(after.hash(MAP), payloads);
    assert_eq!(after.keys().len(), 4);
    assert_eq!(server.info("rmq")["rmq_retried"], "1");
}

#[test]
fn the_reply_is_ok() {
    let server = Server::start();
    take_into_work(&mut server.con(), &["a"]);
    let reply = Raw::connect(&server).call_raw(&["rmq.retry", MAP, DELAYS, DUE, WORK, "a", "new", "1"]);
    assert_eq!(reply, b"+OK\r\n");
}

#[test]
fn the_message_is_due_at_the_servers_time_plus_the_delay_in_whole_or_decimal_seconds() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", MAP, "a", "old");
    for (delay, ms) in [
        ("0", 0.0),
        ("0.0", 0.0),
        ("1", 1000.0),
        ("60", 60_000.0),
        ("1.5", 1500.0),
        ("0.001", 1.0),
        (".25", 250.0),
        ("3.", 3000.0),
        ("1e-3", 1.0),
        ("2E2", 200_000.0),
        ("86400.125", 86_400_125.0),
        ("3155760000", 3_155_760_000_000.0),
    ] {
        let (since_before, since_after) = due_after(&mut con, "a", delay);
        assert!(since_after <= ms && ms <= since_before, "{delay}: {since_before}…{since_after}");
    }
}

#[test]
fn a_message_that_waits_already_gets_a_new_due_time() {
    let server = Server::start();
    let mut con = server.con();
    take_into_work(&mut con, &["a"]);
    let (first, _) = due_after(&mut con, "a", "1000");
    let (second, _) = due_after(&mut con, "a", "10");
    assert!(second < first);
    let waiting: i64 = ask!(con, "ZCARD", DELAYS);
    assert_eq!(waiting, 1);
}

#[test]
fn the_message_comes_back_after_the_delay_and_not_before() {
    let server = Server::start();
    let mut con = server.con();
    take_into_work(&mut con, &["soon", "late"]);
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "late", "new", 1000);
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "soon", "new", "0.05");
    let mut moved = Vec::new();
    assert!(eventually(deadline(), || {
        moved = text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 10));
        !moved.is_empty()
    }));
    assert_eq!(moved, [["soon", QUEUE]]);
    assert_eq!(strings(ok!(con, "LRANGE", format!("{QUEUE}:pending"), 0, -1)), ["soon"]);
    assert_eq!(strings(ok!(con, "ZRANGE", DELAYS, 0, -1)), ["late"]);
}

#[test]
fn a_delay_of_zero_is_due_at_once() {
    let server = Server::start();
    let mut con = server.con();
    take_into_work(&mut con, &["a"]);
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "a", "new", 0);
    let moved = text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 10));
    assert_eq!(moved, [["a", QUEUE]]);
}

#[test]
fn an_empty_processing_means_none() {
    let server = Server::start();
    let mut con = server.con();
    take_into_work(&mut con, &["a"]);
    // Nor is a key with an empty name used.
    ok!(con, "RPUSH", "", "a");
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, "", "a", "new", 60);
    let after = Snapshot::of(&mut con);
    // It leaves the list of its own queue.
    assert_eq!((after.list(WORK), after.list("")), (vec![], vec!["a".into()]));
    assert_eq!(after.hash(MAP)["a"], "new");
    assert_eq!((after.zset(DUE).len(), after.zset(DELAYS).len()), (0, 1));
}

#[test]
fn the_topic_is_accepted_and_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    for topic in ["orders", "", "another", "\0\r\n%s", "CLAIM", "1"] {
        take_into_work(&mut con, &["a"]);
        ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "a", "new", 60, topic);
        let after = Snapshot::of(&mut con);
        assert_eq!(after.keys(), [DELAYS, MAP]);
        assert_eq!(after.hash(MAP), BTreeMap::from([("a".into(), "new".into()), ("a:queue".into(), QUEUE.into())]));
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn a_message_that_was_completed_already_gets_nomsg_and_nothing_is_written() {
    let server = Server::start();
    let mut con = server.con();
    take_into_work(&mut con, &["a", "b"]);
    ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, "a");
    // A leftover field does not make it a live message.
    ok!(con, "ZADD", DUE, 5, "a");
    ok!(con, "ZADD", DELAYS, 5, "a");
    ok!(con, "HSET", MAP, "a:queue", QUEUE, "a:attempts", 2);
    let before = Snapshot::of(&mut con);
    for processing in [WORK, "", "mx-rmq:other:processing"] {
        let tap = ReplicaTap::attach(&server);
        let mut events = Events::subscribe(&server);
        let watcher = Watcher::on(&server, &[MAP, DELAYS, DUE, WORK]);
        assert_eq!(err!(con, "RMQ.RETRY", MAP, DELAYS, DUE, processing, "a", "new", 1, "orders"), NOMSG);
        assert!(watcher.untouched());
        assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
        assert_eq!(events.lines_until_marker(&mut con), [""; 0]);
        before.assert_unchanged(&mut con);
    }
    assert_eq!(server.info("rmq")["rmq_retried"], "0");
}

#[test]
fn nomsg_on_an_empty_server_creates_no_key() {
    let server = Server::start();
    let mut con = server.con();
    assert_eq!(err!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "a", "new", 1), NOMSG);
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
}

#[test]
fn a_message_that_is_only_in_processing_is_retried_and_gets_payload_and_queue() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "LPUSH", WORK, "a");
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "a", "new", 0);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.keys(), [DELAYS, MAP]);
    assert_eq!(after.hash(MAP), BTreeMap::from([("a".into(), "new".into()), ("a:queue".into(), QUEUE.into())]));
}

#[test]
fn a_message_that_is_only_in_payload_map_is_retried() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", MAP, "a", "old", "a:queue", QUEUE);
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "a", "new", 0);
    let moved = text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 10));
    assert_eq!(moved, [["a", QUEUE]]);
    assert_eq!(text(ok!(con, "HGET", MAP, "a")), "new");
}

#[test]
fn a_missing_queue_is_restored_from_the_name_of_processing_and_the_next_tick_delivers() {
    let server = Server::start();
    let mut con = server.con();
    for queue in ["mx-rmq:orders", "{tag}:a:b", "x", "", "a:processing", "with blank\n"] {
        let processing = format!("{queue}:processing");
        ok!(con, "LPUSH", &processing, "a");
        ok!(con, "HSET", MAP, "a", "old");
        ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, &processing, "a", "new", 0);
        assert_eq!(text(ok!(con, "HGET", MAP, "a:queue")), queue);
        let moved = text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 10));
        assert_eq!(moved, [["a", queue]]);
        assert_eq!(strings(ok!(con, "LRANGE", format!("{queue}:pending"), 0, -1)), ["a"]);
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn a_queue_that_is_there_stays_as_it_is() {
    let server = Server::start();
    let mut con = server.con();
    for queue in ["another:queue", ""] {
        ok!(con, "LPUSH", WORK, "a");
        ok!(con, "HSET", MAP, "a", "old", "a:queue", queue);
        ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "a", "new", 0);
        assert_eq!(text(ok!(con, "HGET", MAP, "a:queue")), queue);
    }
}

#[test]
fn the_count_of_attempts_survives_a_retry() {
    let server = Server::start();
    let mut con = server.con();
    take_into_work(&mut con, &["a"]);
    ok!(con, "HSET", MAP, "a:attempts", 3);
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "a", "new", 0);
    assert_eq!(text(ok!(con, "HGET", MAP, "a:attempts")), "3");
}

#[test]
fn one_occurrence_leaves_processing_wherever_it_stands() {
    let server = Server::start();
    let mut con = server.con();
    for length in [1, 16, 17, 18, 1000] {
        let ids: Vec<String> = (0..length).map(|n| format!("m{n}")).collect();
        for place in [0, length / 3, length / 2, length - 1] {
            ok!(con, "DEL", WORK);
            ok!(con, "RPUSH", WORK, &ids);
            ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, &ids[place], "new", 60);
            let mut rest = ids.clone();
            rest.remove(place);
            assert_eq!(Snapshot::of(&mut con).list(WORK), rest);
        }
    }
    ok!(con, "DEL", WORK);
    ok!(con, "RPUSH", WORK, "a", "b", "a");
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "a", "new", 60);
    let mut rest = Snapshot::of(&mut con).list(WORK);
    rest.sort();
    assert_eq!(rest, ["a", "b"]);
}

#[test]
fn a_message_is_retried_in_small_and_in_large_encodings_alike() {
    let server = Server::start();
    let mut con = server.con();
    for (count, encoding) in [(3, "listpack"), (600, "skiplist")] {
        let ids: Vec<String> = (0..count).map(|n| format!("m{n}")).collect();
        take_into_work(&mut con, &ids.iter().map(String::as_str).collect::<Vec<_>>());
        for id in &ids[1..] {
            ok!(con, "ZADD", DELAYS, "+inf", id);
        }
        assert_eq!(text(ok!(con, "OBJECT", "ENCODING", DUE)), encoding);
        let (since_before, since_after) = due_after(&mut con, "m1", "5");
        assert!(since_after <= 5000.0 && 5000.0 <= since_before);
        let after = Snapshot::of(&mut con);
        assert_eq!(after.hash(MAP)["m1"], "new");
        assert_eq!(after.hash(MAP)["m2"], "old");
        assert_eq!(after.zset(DUE).len(), count - 1);
        assert_eq!(after.zset(DELAYS).len(), count - 1);
        assert_eq!(after.list(WORK).len(), count - 1);
        ok!(con, "FLUSHALL");
    }
}
