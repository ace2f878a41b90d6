//! One call does a bounded amount of work, also with very many ids that it has to skip, and messages behind them are
//! still reached.

use crate::common::messages::*;
use crate::common::*;
use redis::Connection;

/// More than one call skips.
const STUCK: usize = 25_000;

/// Ids whose queue's list is a string, each with its own score from 1 on; then one message of a good queue.
fn many_stuck_and_one_good(con: &mut Connection, zset: &str, bad_key: &str) {
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

#[test]
fn delaytick_passes_a_bounded_number_of_stuck_ids_a_call_and_reaches_what_is_behind_them() {
    let server = Server::start();
    let mut con = server.con();
    many_stuck_and_one_good(&mut con, "delays", "bad:pending");
    let mut moved = Vec::new();
    for call in 1..=6 {
        let before = counter(&server, "skipped");
        moved.extend(text_rows(ok!(con, "RMQ.DELAYTICK", "delays", "map", 10)));
        assert!(counter(&server, "skipped") - before <= 10_000, "call {call}");
    }
    assert_eq!(moved, [["good", "q"]]);
    let left: usize = ask!(con, "ZCARD", "delays");
    assert_eq!(left, STUCK);

    // Once the key is a list again, all of them are moved.
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
        let before = counter(&server, "skipped");
        reported.extend(text_rows(ok!(con, "RMQ.TIMEOUTS", "expires", "map", "*", 10)));
        assert!(counter(&server, "skipped") - before <= 10_000, "call {call}");
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
    assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", "others", "map", 10)), [["good", "q"]]);
    ok!(con, "SELECT", 1);
    ok!(con, "HSET", "map", "x:queue", "q");
    ok!(con, "ZADD", "delays", 1, "x");
    assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", "delays", "map", 10)), [["x", "q"]]);
}

/// Ids without payload before the message `a`, which is stored.
fn haunt(con: &mut Connection, ghosts: usize) {
    let mut ids = vec!["a".to_string()];
    ids.extend((0..ghosts).map(|ghost| format!("ghost{ghost}")));
    ok!(con, "HSET", MAP, "a", "payload", "a:queue", QUEUE);
    ok!(con, "RPUSH", PENDING, ids);
}

#[test]
fn reserve_drops_a_bounded_number_of_ids_without_payload_a_call_and_gets_to_the_message() {
    let server = Server::start();
    let mut con = server.con();
    haunt(&mut con, 2500);
    for left in [1501, 501] {
        assert_eq!(reserve_up_to(&mut con, 1), []);
        let pending: usize = ask!(con, "LLEN", PENDING);
        assert_eq!(pending, left);
    }
    assert_eq!(reserve(&mut con).id, "a");
    assert_eq!(counter(&server, "dropped"), 2500);
}

#[test]
fn a_client_that_waits_gets_behind_very_many_ids_without_payload_whenever_they_come() {
    for before in [true, false] {
        let server = Server::start();
        let mut con = server.con();
        let mut waiter = Raw::connect(&server);
        if before {
            haunt(&mut con, 2500);
        }
        waiter.send(WAIT_FOR_EVER);
        if !before {
            assert!(eventually(deadline(), || blocked_clients(&server) == 1));
            haunt(&mut con, 2500);
        }
        // Redis 7.0 cannot let a client wait on after a change: it gets nil, and asks again.
        let mut reply = waiter.read();
        while reply == Reply::NilArray {
            reply = waiter.call(WAIT_FOR_EVER);
        }
        assert_eq!(deliveries(value_of(reply))[0].id, "a");
        let left: usize = ask!(con, "LLEN", PENDING);
        assert_eq!(left, 0);
    }
}

/// So many dead letters that cannot come back, because their ids are in use.
fn bury_live_ids(con: &mut Connection, count: usize) {
    let script = "for n = 1, ARGV[1] do \
                      local id = 'm' .. n \
                      redis.call('LPUSH', KEYS[1], id) \
                      redis.call('HSET', KEYS[2], id, 'dead', id .. ':queue', ARGV[2]) \
                      redis.call('HSET', KEYS[3], id, 'live', id .. ':queue', ARGV[2]) \
                  end";
    ok!(con, "EVAL", script, 3, DLQ, DLQ_MAP, MAP, count, QUEUE);
}

#[test]
fn one_redrive_among_very_many_dead_letters_that_stay_does_bounded_work_and_others_reach_what_is_behind_them() {
    let server = Server::start();
    let mut con = server.con();
    let redrive = |con: &mut Connection| text_rows(ok!(con, "RMQ.REDRIVE", NS, "COUNT", 1));
    assert_ratio(20.0, [200_000, 2_000], |count| {
        ok!(con, "FLUSHALL");
        bury_live_ids(&mut con, count);
        let cost = server.cost(|| assert!(redrive(&mut con).is_empty()));

        ok!(con, "LPUSH", DLQ, "good");
        ok!(con, "HSET", DLQ_MAP, "good", "dead", "good:queue", QUEUE);
        let reached = (0..500).any(|_| redrive(&mut con) == [["good", "orders"]]);
        assert!(reached, "500 calls do not get behind {count} dead letters");
        cost
    });
}

#[test]
fn one_record_that_is_missing_does_not_make_every_call_walk_over_the_queue() {
    let server = Server::start();
    let mut con = server.con();
    assert_ratio(20.0, [300_000, 3_000], |count| {
        fill_errors(&mut con, count);
        ok!(con, "HDEL", "records", format!("m{}", count / 2));
        server.cost(|| drop(ok!(con, "RMQ.PARSEERR", "records", "errors", WORK, DUE, MAP, "new", "{", "q", "why", 1)))
    });
}

/// So many parse errors, and nothing else.
fn fill_errors(con: &mut Connection, count: usize) {
    let script = "for n = 1, ARGV[1] do \
                      redis.call('LPUSH', KEYS[1], 'm' .. n) \
                      redis.call('HSET', KEYS[2], 'm' .. n, '{}') \
                  end";
    ok!(con, "FLUSHALL");
    ok!(con, "EVAL", script, 2, "errors", "records", count);
}

/// Ten times the work may take 40 times as long; each of many by each of many would take a hundred times as long.
const NOT_QUADRATIC: f64 = 40.0;

#[test]
fn cutting_a_long_queue_with_ids_without_record_takes_one_pass_over_it() {
    let server = Server::start();
    let mut con = server.con();
    assert_ratio(NOT_QUADRATIC, [20_000, 2_000], |count| {
        fill_errors(&mut con, count);
        ok!(con, "HDEL", "records", format!("m{count}"), format!("m{}", count - 1));
        let cost = server.cost(|| {
            ok!(con, "RMQ.PARSEERR", "records", "errors", WORK, DUE, MAP, "new", "{", "q", "why", 1, "", 1500);
        });
        let kept: (usize, usize) = (ask!(con, "LLEN", "errors"), ask!(con, "HLEN", "records"));
        assert_eq!(kept, (1500, 1500));
        cost
    });
}

/// So many queues with one message and one id without message each, and one queue with as many messages.
fn fill_queues(con: &mut Connection, queues: usize) -> Vec<String> {
    let script = "for n = 1, ARGV[1] do \
                      redis.call('RMQ.PUBLISH', 'app', 'TO', 'q' .. n, 'm' .. n, 'p') \
                      redis.call('RMQ.PUBLISH', 'app', 'TO', 'all', 'n' .. n, 'p') \
                      redis.call('LPUSH', 'app:q' .. n .. ':pending', 'none') \
                  end";
    ok!(con, "EVAL", script, 0, queues);
    (1..=queues).map(|number| format!("m{number}")).collect()
}

#[test]
fn looking_up_messages_of_many_queues_takes_time_for_each_message_and_each_queue_but_not_for_each_pair() {
    let server = Server::builder().module_args(&["max-batch", "100000"]).start();
    let mut con = server.con();
    for command in ["RMQ.AUDIT", "RMQ.REPAIR", "RMQ.PEEK", "RMQ.CANCEL"] {
        println!("{command}");
        assert_ratio(NOT_QUADRATIC, [4_000, 400], |queues| {
            ok!(con, "FLUSHALL");
            let ids = fill_queues(&mut con, queues);
            let call = match command {
                "RMQ.PEEK" => command!(command, "app", "NOPAYLOAD", "IDS", &ids),
                "RMQ.CANCEL" => command!(command, "app", "IDS", &ids),
                _ => command!(command, "app"),
            };
            server.cost(|| drop(send!(con, &call).expect(command)))
        });
    }
}

#[test]
fn a_purge_of_many_queues_looks_once_at_what_is_left() {
    let server = Server::start();
    let mut con = server.con();
    let script = "for n = 1, ARGV[1] do \
                      redis.call('HSET', 'app:queues', 'q' .. n, '{}') \
                      redis.call('RMQ.PUBLISH', 'app', 'DELAY', 3600000, 'TO', 'q' .. n, 'm' .. n, 'p') \
                  end \
                  for n = 1, 1000 do \
                      redis.call('LPUSH', 'app:dlq', 'x' .. n) \
                      redis.call('HSET', 'app:dlq:data', 'x' .. n, 'p', 'x' .. n .. ':queue', 'app:failed') \
                  end";
    // A look at 1000 dead letters for each queue would take a hundred times as long for a hundred times as many queues.
    assert_ratio(40.0, [1_000, 10], |queues| {
        ok!(con, "FLUSHALL");
        ok!(con, "EVAL", script, 0, queues);
        let cost = server.cost(|| drop(ok!(con, "RMQ.PURGE", "app", "DELAYED")));
        let known: usize = ask!(con, "HLEN", "app:queues");
        assert_eq!(known, 0);
        cost
    });
}
