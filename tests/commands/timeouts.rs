//! RMQ.TIMEOUTS expire_monitor payload_map target_time batch [ALL] [CLAIM ms]

use crate::common::messages::{DUE, LATER, MAP};
use crate::common::*;

use redis::Connection;
use std::collections::BTreeSet;

const NO_ROWS: [[&str; 3]; 0] = [];

/// A message that is stored and watched, but is in no list.
fn watch(con: &mut Connection, id: &str, queue: &str, deadline: impl redis::ToRedisArgs) {
    ok!(con, "HSET", MAP, id, format!("payload of {id}"), format!("{id}:queue"), queue);
    ok!(con, "ZADD", DUE, deadline, id);
}

/// A message in work.
fn work(con: &mut Connection, id: &str, queue: &str, deadline: impl redis::ToRedisArgs) {
    watch(con, id, queue, deadline);
    ok!(con, "LPUSH", format!("{queue}:processing"), id);
}

fn row(id: &str, queue: &str) -> [String; 3] {
    [id.into(), format!("payload of {id}"), queue.into()]
}

fn timeouts(con: &mut Connection, target: &str, batch: i64, options: &[&str]) -> Vec<Vec<String>> {
    text_rows(ok!(con, "RMQ.TIMEOUTS", DUE, MAP, target, batch, options))
}

fn ids(rows: &[Vec<String>]) -> Vec<&str> {
    rows.iter().map(|row| row[0].as_str()).collect()
}

fn watched(con: &mut Connection) -> Vec<String> {
    strings(ok!(con, "ZRANGE", DUE, 0, -1))
}

#[test]
fn a_stuck_message_leaves_processing_and_expire_monitor_and_is_reported_with_payload_and_queue() {
    let server = Server::start();
    let mut con = server.con();
    work(&mut con, "a", "q", 1);
    work(&mut con, "b", "q", LATER);
    work(&mut con, "c", "q", 3);
    let payloads = Snapshot::of(&mut con).hash(MAP);
    assert_eq!(timeouts(&mut con, "*", 10, &[]), [row("a", "q"), row("c", "q")]);
    assert_eq!(list(&mut con, "q:processing"), ["b"]);
    assert_eq!(watched(&mut con), ["b"]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.hash(MAP), payloads, "the caller still needs the payload");
    assert_eq!(after.keys(), [DUE, MAP, "q:processing"]);
    assert_eq!(timeouts(&mut con, "*", 10, &[]), NO_ROWS);
    assert_eq!(counter(&server, "reclaimed"), 2);
}

#[test]
fn the_reply_is_an_array_of_id_payload_and_queue() {
    let server = Server::start();
    let mut con = server.con();
    work(&mut con, "12", "q", 1);
    let mut raw = Raw::connect(&server);
    assert_eq!(
        raw.call_raw(&["rmq.timeouts", DUE, MAP, "*", "10"]),
        b"*1\r\n*3\r\n$2\r\n12\r\n$13\r\npayload of 12\r\n$1\r\nq\r\n"
    );
    assert_eq!(raw.call_raw(&["RMQ.TIMEOUTS", DUE, MAP, "*", "10"]), b"*0\r\n");
}

#[test]
fn an_id_whose_payload_or_queue_is_missing_leaves_expire_monitor_and_is_never_reported() {
    for options in [&[][..], &["ALL"], &["CLAIM", "1000"], &["ALL", "CLAIM", "1000"]] {
        let server = Server::start();
        let mut con = server.con();
        ok!(con, "ZADD", DUE, 1, "nothing", 2, "no queue", 3, "no payload", LATER, "later");
        ok!(con, "HSET", MAP, "no queue", "payload", "no payload:queue", "q");
        ok!(con, "RPUSH", "q:processing", "nothing", "no queue", "no payload");
        let before = Snapshot::of(&mut con);
        assert_eq!(timeouts(&mut con, "*", 10, options), NO_ROWS, "{options:?}");
        assert_eq!(watched(&mut con), ["later"]);
        let after = Snapshot::of(&mut con);
        assert_eq!(after.list("q:processing"), before.list("q:processing"));
        assert_eq!(after.hash(MAP), before.hash(MAP));
        assert_eq!(counter(&server, "stale"), 3);
    }
}

#[test]
fn an_id_that_is_not_in_processing_leaves_expire_monitor_only_and_is_not_reported() {
    for options in [&[][..], &["CLAIM", "1000"]] {
        let server = Server::start();
        let mut con = server.con();
        watch(&mut con, "done", "q", 1);
        watch(&mut con, "pending", "q", 2);
        watch(&mut con, "alone", "empty", 3);
        work(&mut con, "other", "q", LATER);
        work(&mut con, "elsewhere", "q2", LATER);
        ok!(con, "HSET", MAP, "elsewhere:queue", "q");
        ok!(con, "ZADD", DUE, 4, "elsewhere");
        ok!(con, "LPUSH", "q:pending", "pending");
        let before = Snapshot::of(&mut con);
        assert_eq!(timeouts(&mut con, "*", 10, options), NO_ROWS);
        assert_eq!(watched(&mut con), ["other"]);
        let after = Snapshot::of(&mut con);
        for key in ["q:processing", "q2:processing", "q:pending"] {
            assert_eq!(after.list(key), before.list(key));
        }
        assert_eq!(after.hash(MAP), before.hash(MAP));
        assert_eq!((counter(&server, "stale"), counter(&server, "reclaimed"), counter(&server, "claimed")), (4, 0, 0));
    }
}

#[test]
fn with_all_an_id_that_is_not_in_processing_is_reported_too() {
    let server = Server::start();
    let mut con = server.con();
    watch(&mut con, "a", "q", 1);
    work(&mut con, "b", "q", 2);
    watch(&mut con, "c", "q", 3);
    ok!(con, "LPUSH", "q:pending", "c");
    assert_eq!(timeouts(&mut con, "*", 10, &["ALL"]), [row("a", "q"), row("b", "q"), row("c", "q")]);
    assert_eq!(Snapshot::of(&mut con).keys(), [MAP, "q:pending"]);
    assert_eq!(list(&mut con, "q:pending"), ["c"]);
}

#[test]
fn the_earliest_deadline_comes_first_across_all_queues() {
    let server = Server::start();
    let mut con = server.con();
    work(&mut con, "d", "q1", "4");
    work(&mut con, "b", "q2", "2");
    work(&mut con, "c", "q1", "3.5");
    work(&mut con, "a", "q3", "-inf");
    work(&mut con, "later", "q2", LATER);
    assert_eq!(timeouts(&mut con, "*", 10, &[]), [row("a", "q3"), row("b", "q2"), row("c", "q1"), row("d", "q1")]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.keys(), [DUE, MAP, "q2:processing"]);
    assert_eq!(after.list("q2:processing"), ["later"]);
}

#[test]
fn a_deadline_of_just_the_target_time_is_expired_and_a_later_one_is_not() {
    let server = Server::start();
    let mut con = server.con();
    work(&mut con, "a", "q", 999);
    work(&mut con, "b", "q", 1000);
    work(&mut con, "c", "q", "1000.001");
    work(&mut con, "d", "q", 1001);
    assert_eq!(ids(&timeouts(&mut con, "0", 10, &[])), [""; 0]);
    assert_eq!(ids(&timeouts(&mut con, "1000", 10, &[])), ["a", "b"]);
    assert_eq!(ids(&timeouts(&mut con, "1000.5", 10, &[])), ["c"]);
    assert_eq!(ids(&timeouts(&mut con, "1000.999", 10, &[])), [""; 0]);
    assert_eq!(ids(&timeouts(&mut con, "1001", 10, &[])), ["d"]);
}

#[test]
fn a_target_time_in_the_future_takes_back_what_has_time_left() {
    let server = Server::start();
    let mut con = server.con();
    work(&mut con, "a", "q", LATER);
    work(&mut con, "never", "q", "+inf");
    assert_eq!(timeouts(&mut con, &LATER.to_string(), 10, &[]), [row("a", "q")]);
    assert_eq!(list(&mut con, "q:processing"), ["never"]);
}

#[test]
fn a_star_is_the_servers_clock() {
    let server = Server::start();
    let mut con = server.con();
    let now = server_time_ms(&mut con);
    work(&mut con, "now", "q", now);
    work(&mut con, "in an hour", "q", now + 3_600_000);
    assert_eq!(timeouts(&mut con, "*", 10, &[]), [row("now", "q")]);
    assert_eq!(watched(&mut con), ["in an hour"]);
}

#[test]
fn options_come_in_any_order_and_in_any_case() {
    let server = Server::start();
    let mut con = server.con();
    for (options, all, claim) in [
        (&["all"][..], true, false),
        (&["All", "cLaIm", "600000"], true, true),
        (&["CLAIM", "600000", "ALL"], true, true),
        (&["claim", "600000"], false, true),
        (&[], false, false),
    ] {
        work(&mut con, "stuck", "q", 1);
        watch(&mut con, "done", "q", 2);
        let expected: &[&str] = if all { &["stuck", "done"] } else { &["stuck"] };
        assert_eq!(ids(&timeouts(&mut con, "*", 10, options)), expected, "{options:?}");
        let left: &[&str] = if claim { &["stuck"] } else { &[] };
        assert_eq!(watched(&mut con), left, "{options:?}");
        assert_eq!(list(&mut con, "q:processing"), left, "{options:?}");
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn with_claim_a_stuck_message_stays_in_processing_under_a_new_deadline() {
    let server = Server::start();
    let mut con = server.con();
    work(&mut con, "a", "q", 1);
    work(&mut con, "b", "q", LATER);
    work(&mut con, "c", "q2", 2);
    let before = Snapshot::of(&mut con);
    let earliest = server_time_ms(&mut con) as f64 + 600_000.0;
    let rows = timeouts(&mut con, "*", 10, &["CLAIM", "600000"]);
    let latest = server_time_ms(&mut con) as f64 + 600_001.0;
    assert_eq!(rows, [row("a", "q"), row("c", "q2")]);

    let after = Snapshot::of(&mut con);
    for key in ["q:processing", "q2:processing"] {
        assert_eq!(after.list(key), before.list(key));
    }
    assert_eq!(after.hash(MAP), before.hash(MAP));
    let deadlines = after.zset(DUE);
    assert_eq!((deadlines.len(), deadlines["b"]), (3, LATER as f64));
    for id in ["a", "c"] {
        assert!(earliest <= deadlines[id] && deadlines[id] < latest, "{deadlines:?}");
    }
    // The claim holds: it is reported to no other reaper meanwhile.
    assert_eq!(timeouts(&mut con, "*", 10, &["CLAIM", "600000"]), NO_ROWS);
    assert_eq!((counter(&server, "claimed"), counter(&server, "reclaimed")), (2, 0));
}

#[test]
fn a_claimed_message_is_reported_again_after_ms_if_the_caller_died() {
    let server = Server::start();
    let mut con = server.con();
    work(&mut con, "a", "q", 1);
    for _ in 0..3 {
        let mut rows = Vec::new();
        assert!(eventually(deadline(), || {
            rows = timeouts(&mut con, "*", 10, &["CLAIM", "20"]);
            !rows.is_empty()
        }));
        assert_eq!(rows, [row("a", "q")]);
        assert_eq!(list(&mut con, "q:processing"), ["a"]);
    }
}

#[test]
fn a_claimed_message_is_settled_by_retry_complete_or_parseerr_and_then_reported_no_more() {
    let server = Server::start();
    let mut con = server.con();
    for settle in ["RETRY", "COMPLETE", "PARSEERR"] {
        work(&mut con, "a", "q", 1);
        assert_eq!(timeouts(&mut con, "*", 10, &["CLAIM", "1"]), [row("a", "q")]);
        match settle {
            "RETRY" => ok!(con, "RMQ.RETRY", MAP, "delays", DUE, "q:processing", "a", "again", 60),
            "COMPLETE" => ok!(con, "RMQ.COMPLETE", MAP, "q:processing", DUE, "a"),
            _ => ok!(
                con,
                "RMQ.PARSEERR",
                "errors",
                "error-queue",
                "q:processing",
                DUE,
                MAP,
                "a",
                "payload",
                "q",
                "why",
                1
            ),
        };
        let after = Snapshot::of(&mut con);
        assert_eq!((after.zset(DUE).len(), after.list("q:processing").len()), (0, 0), "{settle}");
        assert_eq!(timeouts(&mut con, &LATER.to_string(), 10, &["ALL"]), NO_ROWS);
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn at_most_batch_messages_are_taken_and_the_next_call_goes_on_behind_them() {
    for options in [&[][..], &["CLAIM", "600000"], &["ALL"]] {
        let server = Server::start();
        let mut con = server.con();
        for n in 0..5 {
            work(&mut con, &format!("m{n}"), "q", n);
        }
        assert_eq!(ids(&timeouts(&mut con, "*", 2, options)), ["m0", "m1"]);
        assert_eq!(ids(&timeouts(&mut con, "*", 1, options)), ["m2"]);
        assert_eq!(ids(&timeouts(&mut con, "*", 100, options)), ["m3", "m4"]);
        assert_eq!(ids(&timeouts(&mut con, "*", 100, options)), [""; 0]);
    }
}

#[test]
fn the_batch_counts_ids_that_are_dropped_or_not_reported() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "ZADD", DUE, 1, "orphan");
    watch(&mut con, "done", "q", 2);
    work(&mut con, "a", "q", 3);
    work(&mut con, "b", "q", 4);
    assert_eq!(timeouts(&mut con, "*", 2, &[]), NO_ROWS);
    assert_eq!(watched(&mut con), ["a", "b"]);
    assert_eq!(timeouts(&mut con, "*", 1, &[]), [row("a", "q")]);
    assert_eq!(watched(&mut con), ["b"]);
}

#[test]
fn a_larger_batch_than_max_batch_is_lowered_to_it() {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..12 {
        work(&mut con, &format!("m{n}"), "q", n);
    }
    ok!(con, "CONFIG", "SET", "rmq.max-batch", 5);
    assert_eq!(timeouts(&mut con, "*", i64::MAX, &[]).len(), 5);
    assert_eq!(timeouts(&mut con, "*", 6, &["CLAIM", "600000"]).len(), 5);
    ok!(con, "CONFIG", "SET", "rmq.max-batch", 10000);
    assert_eq!(timeouts(&mut con, "*", 6, &[]).len(), 2);
}

#[test]
fn one_occurrence_leaves_processing() {
    let server = Server::start();
    let mut con = server.con();
    for (left_to_right, rest) in [(&["a", "b", "a"][..], ["a", "b"].as_slice()), (&["a", "a", "a"], &["a", "a"])] {
        watch(&mut con, "a", "q", 1);
        ok!(con, "RPUSH", "q:processing", left_to_right);
        assert_eq!(timeouts(&mut con, "*", 10, &[]), [row("a", "q")]);
        let mut left = list(&mut con, "q:processing");
        left.sort();
        assert_eq!(left, rest);
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn with_nothing_expired_no_key_is_touched_nothing_fired_and_nothing_sent() {
    let server = Server::start();
    let mut con = server.con();
    work(&mut con, "a", "q", LATER);
    for keys in [[DUE, MAP], ["none", "no-map"]] {
        let before = Snapshot::of(&mut con);
        let tap = ReplicaTap::attach(&server);
        let mut events = Events::subscribe(&server);
        let watcher = Watcher::on(&server, &[keys[0], keys[1], "q:processing"]);
        for options in [&[][..], &["ALL"], &["CLAIM", "5"]] {
            assert_eq!(items(ok!(con, "RMQ.TIMEOUTS", keys[0], keys[1], "*", 10, options)).len(), 0);
        }
        assert!(watcher.untouched());
        assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
        assert_eq!(events.lines_until_marker(&mut con), [""; 0]);
        before.assert_unchanged(&mut con);
    }
}

#[test]
fn every_expired_message_is_reported_exactly_once_in_every_encoding_and_list_layout() {
    let server = Server::start();
    let mut con = server.con();
    let mut rng = Rng::seeded();
    for (count, encoding) in [(90, "listpack"), (2500, "skiplist")] {
        for (node, compress) in [(-2, 0), (1, 0), (4, 1), (128, 2)] {
            ok!(con, "CONFIG", "SET", "list-max-listpack-size", node);
            ok!(con, "CONFIG", "SET", "list-compress-depth", compress);
            let mut stuck = BTreeSet::new();
            let mut healthy = vec![Vec::new(); 3];
            for n in 0..count {
                let id = match n % 3 {
                    0 => n.to_string(),
                    1 => format!("m{n}"),
                    _ => format!("{n}{}", "x".repeat(rng.below(60))),
                };
                let queue = rng.below(3);
                match rng.below(4) {
                    0 => {
                        work(&mut con, &id, &format!("q{queue}"), LATER);
                        healthy[queue].insert(0, id);
                    }
                    1 => watch(&mut con, &id, &format!("q{queue}"), rng.below(50)),
                    _ => {
                        work(&mut con, &id, &format!("q{queue}"), rng.below(50));
                        stuck.insert(id);
                    }
                }
            }
            assert_eq!(text(ok!(con, "OBJECT", "ENCODING", DUE)), encoding);
            let mut replied = Vec::new();
            let mut taken = 0;
            while taken < count - healthy.iter().map(Vec::len).sum::<usize>() {
                let before = watched(&mut con).len();
                let batch = 1 + rng.below(count / 3);
                let rows = timeouts(&mut con, "*", batch as i64, &[]);
                taken += before - watched(&mut con).len();
                assert!(rows.len() <= batch);
                replied.extend(rows);
            }
            let distinct: BTreeSet<String> = replied.iter().map(|row| row[0].clone()).collect();
            assert!(replied.len() == stuck.len() && distinct == stuck);
            assert!(replied.iter().all(|row| row[1] == format!("payload of {}", row[0])));
            for (queue, healthy) in healthy.iter().enumerate() {
                assert!(&list(&mut con, &format!("q{queue}:processing")) == healthy);
            }
            ok!(con, "FLUSHALL");
        }
    }
}

#[test]
fn a_hundred_times_the_batch_costs_no_hundred_times_as_much_over_the_same_list() {
    let server = Server::start();
    let mut con = server.con();
    let all: Vec<String> = (0..20_000).map(|n| format!("{n:08}-7cf1-4b4e-9b0a-0123456789ab")).collect();
    assert_ratio(25.0, [1000, 10], |batch| {
        ok!(con, "FLUSHALL");
        for chunk in all.chunks(1000) {
            ok!(con, "RPUSH", "q:processing", chunk);
        }
        // The newest, so that the whole list has to be looked at.
        for (place, id) in all[..batch].iter().enumerate() {
            watch(&mut con, id, "q", place);
        }
        server.cost(|| assert_eq!(timeouts(&mut con, "*", batch as i64, &[]).len(), batch))
    });
}
