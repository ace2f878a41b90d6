//! One call does a bounded amount of work, also where very many ids cannot go on, and nothing starves behind them.

mod common;
use common::*;

/// More than one call passes.
const STUCK: usize = 25_000;

/// Ids whose queue's list is a string, each with its own score from 1 on; then one message of a good queue.
fn many_stuck_and_one_good(con: &mut redis::Connection, zset: &str, bad_key: &str) {
    ok!(con, "SET", bad_key, "not a list");
    for first in (1..=STUCK).step_by(5000) {
        let ids: Vec<usize> = (first..first + 5000).collect();
        let fields: Vec<String> = ids
            .iter()
            .flat_map(|id| [format!("bad{id}"), "p".into(), format!("bad{id}:queue"), "bad".into()])
            .collect();
        let scores: Vec<String> = ids.iter().flat_map(|id| [id.to_string(), format!("bad{id}")]).collect();
        ok!(con, "HSET", "map", &fields);
        ok!(con, "ZADD", zset, &scores);
    }
    ok!(con, "HSET", "map", "good", "payload", "good:queue", "q");
    ok!(con, "ZADD", zset, STUCK + 1, "good");
}

fn skipped(server: &Server) -> usize {
    server.info("rmq")["rmq_skipped"].parse().expect("a number")
}

#[test]
fn delaytick_passes_a_bounded_number_of_stuck_ids_a_call_and_reaches_what_is_behind_them() {
    let server = Server::start();
    let mut con = server.con();
    many_stuck_and_one_good(&mut con, "delays", "bad:pending");
    let mut moved = Vec::new();
    for call in 1..=6 {
        let before = skipped(&server);
        moved.extend(text_rows(ok!(con, "RMQ.DELAYTICK", "delays", "map", 10)));
        assert!(skipped(&server) - before <= 10_000, "call {call}");
    }
    assert_eq!(moved, [["good", "q"]]);
    let left: usize = ask!(con, "ZCARD", "delays");
    assert_eq!(left, STUCK);

    // Mended, all of them go.
    ok!(con, "DEL", "bad:pending");
    let mut mended = 0;
    while mended < STUCK {
        let batch = text_rows(ok!(con, "RMQ.DELAYTICK", "delays", "map", 10_000)).len();
        assert!(batch > 0 || mended == 0, "after {mended}");
        mended += batch;
    }
    let pending: usize = ask!(con, "LLEN", "bad:pending");
    assert_eq!(pending, STUCK);
}

#[test]
fn timeouts_passes_a_bounded_number_of_stuck_ids_a_call_and_reaches_what_is_behind_them() {
    let server = Server::start();
    let mut con = server.con();
    many_stuck_and_one_good(&mut con, "expires", "bad:processing");
    ok!(con, "LPUSH", "q:processing", "good");
    let mut reported = Vec::new();
    for call in 1..=6 {
        let before = skipped(&server);
        reported.extend(text_rows(ok!(con, "RMQ.TIMEOUTS", "expires", "map", "*", 10)));
        assert!(skipped(&server) - before <= 10_000, "call {call}");
    }
    assert_eq!(reported, [["good", "payload", "q"]]);
}

#[test]
fn very_many_stuck_ids_of_one_score_do_not_hide_what_is_behind_them() {
    let server = Server::start();
    let mut con = server.con();
    many_stuck_and_one_good(&mut con, "delays", "bad:pending");
    let scores: Vec<String> = (1..=STUCK).flat_map(|id| ["7".into(), format!("bad{id}")]).collect();
    for part in scores.chunks(10_000) {
        ok!(con, "ZADD", "delays", part);
    }
    let mut moved = Vec::new();
    for _ in 0..3 {
        moved.extend(text_rows(ok!(con, "RMQ.DELAYTICK", "delays", "map", 10)));
    }
    assert_eq!(moved, [["good", "q"]]);
}

#[test]
fn each_database_and_each_key_has_a_place_of_its_own() {
    let server = Server::start();
    let mut con = server.con();
    many_stuck_and_one_good(&mut con, "delays", "bad:pending");
    ok!(con, "RMQ.DELAYTICK", "delays", "map", 10);
    ok!(con, "ZADD", "others", 1, "good");
    assert_eq!(
        text_rows(ok!(con, "RMQ.DELAYTICK", "others", "map", 10)),
        [["good", "q"]]
    );
    ok!(con, "SELECT", 1);
    ok!(con, "HSET", "map", "x:queue", "q");
    ok!(con, "ZADD", "delays", 1, "x");
    assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", "delays", "map", 10)), [["x", "q"]]);
}

#[test]
fn reserve_drops_a_bounded_number_of_ids_without_payload_a_call_and_gets_to_the_message() {
    let server = Server::builder().config_line("rmq.max-batch 100").start();
    let mut con = server.con();
    let reserve = |con: &mut redis::Connection, words: &[&str]| {
        ok!(
            con,
            "RMQ.RESERVE",
            "q:pending",
            "q:processing",
            "map",
            "expires",
            60000,
            words
        )
    };
    ok!(con, "RMQ.PUBLISH", "map", "q:pending", "a", "payload");
    let ghosts: Vec<String> = (0..250).map(|ghost| format!("ghost{ghost}")).collect();
    ok!(con, "RPUSH", "q:pending", &ghosts);
    // With BLOCK too: a list that is not empty would wake nobody.
    for (words, left) in [(&[][..], 151), (&["BLOCK", "0"][..], 51)] {
        assert_eq!(reserve(&mut con, words), redis::Value::Nil);
        let pending: usize = ask!(con, "LLEN", "q:pending");
        assert_eq!(pending, left);
    }
    let taken = items(reserve(&mut con, &["BLOCK", "0"]));
    assert_eq!(text(items(taken[0].clone()).remove(0)), "a");
    assert_eq!(server.info("rmq")["rmq_dropped"], "250");
}

#[test]
fn a_waiting_client_that_meets_very_many_ids_without_payload_is_freed_to_ask_again() {
    let server = Server::builder().config_line("rmq.max-batch 100").start();
    let mut con = server.con();
    let mut waiter = Raw::connect(&server);
    let wait = [
        "RMQ.RESERVE",
        "q:pending",
        "q:processing",
        "map",
        "expires",
        "60000",
        "BLOCK",
        "0",
    ];
    waiter.send(&wait);
    assert!(eventually(deadline(), || server.info("clients")["blocked_clients"] == "1"));
    let mut ids: Vec<String> = (0..250).map(|ghost| format!("ghost{ghost}")).collect();
    ids.insert(0, "a".into());
    ok!(con, "HSET", "map", "a", "payload", "a:queue", "q");
    ok!(con, "RPUSH", "q:pending", &ids);
    let mut replies = vec![waiter.read()];
    while replies.last() == Some(&Reply::NilArray) {
        replies.push(waiter.call(&wait));
    }
    assert_eq!(replies.len(), 3);
    let left: usize = ask!(con, "LLEN", "q:pending");
    assert_eq!(left, 0);
}
