//! RMQ.ACK, RMQ.NACK and RMQ.EXTEND: whoever can show the current lease holds the message, and nobody else settles it.

mod common;
mod life;
use common::*;
use life::*;

use redis::{Connection, Value};
use std::collections::BTreeMap;

/// What is no lease at all.
const GARBAGE: [&str; 12] = [
    "",
    "x",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "1,5",
    " 1",
    "1 ",
    "1794797000000.123x",
    "1e999",
    "\u{661}",
];

fn nack(con: &mut Connection, delivery: &Delivery, delay_ms: i64) -> Value {
    ok!(
        con,
        "RMQ.NACK",
        MAP,
        DELAYS,
        DUE,
        WORK,
        &delivery.id,
        &delivery.lease,
        delay_ms
    )
}

fn extend(con: &mut Connection, id: &str, lease: &str, lease_ms: i64) -> Option<String> {
    match ok!(con, "RMQ.EXTEND", DUE, id, lease, lease_ms) {
        Value::Nil => None,
        lease => Some(text(lease)),
    }
}

/// The lease one microsecond later.
fn neighbour(lease: &str) -> String {
    let (ms, micros) = lease.split_once('.').unwrap();
    let next: i64 = format!("{ms}{micros}").parse::<i64>().unwrap() + 1;
    format!("{}.{:03}", next / 1000, next % 1000)
}

// ---- ACK

#[test]
fn an_acknowledged_message_leaves_the_system_as_a_completed_one_does() {
    let server = Server::start();
    let mut con = server.con();
    let other = take_new(&mut con, "other");
    let before = Snapshot::of(&mut con);
    let delivery = take_new(&mut con, "a");
    assert_eq!(ack(&mut con, &delivery), 1);
    before.assert_unchanged(&mut con);
    assert_eq!(ack(&mut con, &other), 1);
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    assert_eq!((counter(&server, "acked"), counter(&server, "fenced")), (2, 0));
}

#[test]
fn an_acknowledgement_by_another_lease_changes_nothing_and_says_zero() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    publish(&mut con, "pending");
    let before = Snapshot::of(&mut con);
    let tap = ReplicaTap::attach(&server);
    let watcher = Watcher::on(&server, &before.keys());
    let wrong = [
        neighbour(&delivery.lease),
        "0".into(),
        "-1".into(),
        "1e3".into(),
        "1794797000000.123".into(),
    ];
    for (count, lease) in wrong.iter().enumerate() {
        assert_eq!(
            ok!(con, "RMQ.ACK", MAP, WORK, DUE, "a", lease),
            Value::Int(0),
            "{lease}"
        );
        assert_eq!(counter(&server, "fenced"), count as u64 + 1);
    }
    for id in ["pending", "unknown"] {
        assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, id, &delivery.lease), Value::Int(0));
    }
    before.assert_unchanged(&mut con);
    assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
    assert!(watcher.untouched());
}

#[test]
fn many_messages_are_acknowledged_by_one_call_and_counted() {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..500 {
        publish(&mut con, &n.to_string());
    }
    let mut taken = reserve_up_to(&mut con, 500);
    Rng::seeded().shuffle(&mut taken);
    let words: Vec<&str> = taken.iter().flat_map(|d| [d.id.as_str(), d.lease.as_str()]).collect();
    assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, &words[..600]), Value::Int(300));
    let left: Vec<String> = taken[300..].iter().map(|d| d.id.clone()).collect();
    let mut in_work = Snapshot::of(&mut con).list(WORK);
    let mut sorted = left.clone();
    sorted.sort();
    in_work.sort();
    assert_eq!(in_work, sorted);
    assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, &words), Value::Int(200));
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
}

#[test]
fn the_same_delivery_twice_in_one_call_counts_once() {
    let server = Server::start();
    let mut con = server.con();
    let a = take_new(&mut con, "a");
    let b = take_new(&mut con, "b");
    let words = [&a.id, &a.lease, &b.id, &b.lease, &a.id, &a.lease];
    assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, &words[..]), Value::Int(2));
    assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, &words[..]), Value::Int(0));
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    assert_eq!((counter(&server, "acked"), counter(&server, "fenced")), (2, 4));
}

#[test]
fn the_same_id_by_a_stale_and_the_current_lease_in_one_call_is_acknowledged_once() {
    let server = Server::start();
    let mut con = server.con();
    for order in [[0, 1], [1, 0]] {
        let current = take_new(&mut con, "a");
        let leases = [neighbour(&current.lease), current.lease.clone()];
        let words = ["a", &leases[order[0]], "a", &leases[order[1]]];
        assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, &words), Value::Int(1));
        assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    }
}

#[test]
fn of_current_and_stale_leases_in_one_call_the_current_ones_are_acknowledged_and_counted() {
    let server = Server::start();
    let mut con = server.con();
    let taken: Vec<Delivery> = (0..6).map(|n| take_new(&mut con, &n.to_string())).collect();
    let shown: Vec<String> = taken
        .iter()
        .enumerate()
        .map(|(n, d)| {
            if n % 2 == 0 {
                d.lease.clone()
            } else {
                neighbour(&d.lease)
            }
        })
        .collect();
    let words: Vec<&str> = taken
        .iter()
        .zip(&shown)
        .flat_map(|(d, lease)| [d.id.as_str(), lease])
        .collect();
    assert_eq!(
        ok!(con, "RMQ.ACK", MAP, WORK, DUE, words, "unknown", "5"),
        Value::Int(3)
    );
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(WORK), ["5", "3", "1"]);
    assert_eq!(after.zset(DUE).into_keys().collect::<Vec<_>>(), ["1", "3", "5"]);
    assert_eq!(after.hash(MAP).len(), 9);
}

#[test]
fn one_occurrence_in_processing_goes_with_each_acknowledged_message() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    ok!(con, "LPUSH", WORK, "a", "x");
    assert_eq!(ack(&mut con, &delivery), 1);
    assert_eq!(Snapshot::of(&mut con).list(WORK), ["x", "a"]);
}

#[test]
fn what_was_acknowledged_is_acknowledged_on_a_replica() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    let taken: Vec<Delivery> = (0..40).map(|n| take_new(&mut con, &n.to_string())).collect();
    ok!(con, "LPUSH", WORK, "3", "x", "7");
    let words: Vec<&str> = taken
        .iter()
        .step_by(3)
        .flat_map(|d| [d.id.as_str(), d.lease.as_str()])
        .collect();
    assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, words), Value::Int(14));
    assert_eq!(ack(&mut con, &taken[1]), 1);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

// ---- NACK

#[test]
fn a_message_given_back_is_due_at_server_time_plus_its_delay_with_its_payload_as_it_was() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let earliest = server_time_ms(&mut con);
    assert_eq!(nack(&mut con, &delivery, 60_000), Value::Int(1));
    let latest = server_time_ms(&mut con);
    let after = Snapshot::of(&mut con);
    let due = after.zset(DELAYS)["a"];
    assert!((earliest + 60_000..=latest + 60_000).contains(&(due as i64)), "{due}");
    assert_eq!(after.keys(), [DELAYS, MAP]);
    let stored = [("a", "payload of a"), ("a:attempts", "1"), ("a:queue", QUEUE)];
    assert_eq!(
        after.hash(MAP),
        BTreeMap::from(stored.map(|(f, v)| (f.to_string(), v.to_string())))
    );
    assert_eq!(counter(&server, "nacked"), 1);
}

#[test]
fn a_message_given_back_with_a_payload_is_delivered_with_it() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let words = ["payload", "new\r\n\0"];
    let reply = ok!(con, "RMQ.NACK", MAP, DELAYS, DUE, WORK, "a", &delivery.lease, 0, &words);
    assert_eq!(reply, Value::Int(1));
    assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 5)), [["a", QUEUE]]);
    let again = reserve(&mut con);
    assert_eq!((again.payload.as_str(), again.attempts), ("new\r\n\0", 2));
}

#[test]
fn a_message_without_its_queue_is_given_back_to_the_queue_of_its_processing_list() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    ok!(con, "HDEL", MAP, "a:queue");
    assert_eq!(nack(&mut con, &delivery, 0), Value::Int(1));
    assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 5)), [["a", QUEUE]]);
}

#[test]
fn a_message_is_given_back_without_a_processing_list_named() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let reply = ok!(con, "RMQ.NACK", MAP, DELAYS, DUE, "", "a", &delivery.lease, 0);
    assert_eq!(reply, Value::Int(1));
    assert_eq!(Snapshot::of(&mut con).list(WORK), ["a"]);
    assert_eq!(Snapshot::of(&mut con).zset(DUE).len(), 0);
}

#[test]
fn giving_back_by_another_lease_changes_nothing_and_says_zero() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let before = Snapshot::of(&mut con);
    for (id, lease) in [("a", neighbour(&delivery.lease)), ("unknown", delivery.lease.clone())] {
        for options in [&[][..], &["PAYLOAD", "other"]] {
            let reply = ok!(con, "RMQ.NACK", MAP, DELAYS, DUE, WORK, id, &lease, 0, options);
            assert_eq!(reply, Value::Int(0));
        }
    }
    before.assert_unchanged(&mut con);
    assert_eq!((counter(&server, "nacked"), counter(&server, "fenced")), (0, 4));
}

#[test]
fn a_lease_without_a_message_gives_nothing_back() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "ZADD", DUE, "5.5", "gone");
    let before = Snapshot::of(&mut con);
    let error = err!(con, "RMQ.NACK", MAP, DELAYS, DUE, WORK, "gone", "5.5", 0);
    assert!(error.starts_with("NOMSG "), "{error}");
    before.assert_unchanged(&mut con);
}

#[test]
fn giving_back_works_over_the_memory_limit_unless_it_brings_a_payload() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    ok!(con, "CONFIG", "SET", "maxmemory", 1);
    let before = Snapshot::of(&mut con);
    let error = err!(
        con,
        "RMQ.NACK",
        MAP,
        DELAYS,
        DUE,
        WORK,
        "a",
        &delivery.lease,
        0,
        "PAYLOAD",
        "x"
    );
    assert!(error.starts_with("OOM "), "{error}");
    before.assert_unchanged(&mut con);
    assert_eq!(nack(&mut con, &delivery, 0), Value::Int(1));
}

// ---- EXTEND

#[test]
fn an_extended_lease_is_a_new_deadline_from_now_and_replaces_the_old_one() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let earliest = server_time_ms(&mut con);
    let lease = extend(&mut con, "a", &delivery.lease, 5000).expect("a new lease");
    let latest = server_time_ms(&mut con);
    let deadline: f64 = lease.parse().unwrap();
    assert!(
        (earliest + 5000..=latest + 5000).contains(&(deadline as i64)),
        "{lease}"
    );
    let score: f64 = ask!(con, "ZSCORE", DUE, "a");
    assert_eq!(score.to_bits(), deadline.to_bits());
    assert_eq!(ack(&mut con, &delivery), 0);
    assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, "a", lease), Value::Int(1));
    assert_eq!(counter(&server, "extended"), 1);
}

#[test]
fn leases_are_extended_in_a_chain_of_which_only_the_last_holds() {
    let server = Server::start();
    let mut con = server.con();
    let mut chain = vec![take_new(&mut con, "a").lease];
    for round in 0..50 {
        let newest = extend(&mut con, "a", chain.last().unwrap(), 1 + HOUR + round).expect("a new lease");
        chain.push(newest);
    }
    let before = Snapshot::of(&mut con);
    let (last, stale) = chain.split_last().unwrap();
    for lease in stale {
        assert_eq!(extend(&mut con, "a", lease, HOUR), None);
        assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, "a", lease), Value::Int(0));
    }
    before.assert_unchanged(&mut con);
    assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, "a", last), Value::Int(1));
}

#[test]
fn an_extension_is_told_as_a_string_or_nil() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let mut raw = Raw::connect(&server);
    let reply = raw.call(&["RMQ.EXTEND", DUE, "a", &delivery.lease, "1000"]);
    assert!(matches!(&reply, Reply::Bulk(_)), "{reply:?}");
    assert_eq!(
        raw.call_raw(&["RMQ.EXTEND", DUE, "a", &delivery.lease, "1000"]),
        b"$-1\r\n"
    );
    assert_eq!(raw.call_raw(&["RMQ.EXTEND", "none", "a", "1", "1000"]), b"$-1\r\n");
    raw.call(&["HELLO", "3"]);
    assert_eq!(
        raw.call_raw(&["RMQ.EXTEND", DUE, "a", &delivery.lease, "1000"]),
        b"_\r\n"
    );
}

#[test]
fn a_shorter_extension_brings_the_deadline_nearer() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let shorter = extend(&mut con, "a", &delivery.lease, 1).expect("a new lease");
    assert!(shorter.parse::<f64>().unwrap() < delivery.lease.parse::<f64>().unwrap());
    assert!(eventually(deadline(), || {
        text_rows(ok!(server.con(), "RMQ.TIMEOUTS", DUE, MAP, "*", 5)) == [["a", "payload of a", QUEUE]]
    }));
}

#[test]
fn an_extended_message_is_not_taken_back_at_its_old_deadline() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let lease = extend(&mut con, "a", &delivery.lease, 2 * HOUR).expect("a new lease");
    let taken = ok!(con, "RMQ.TIMEOUTS", DUE, MAP, &delivery.lease, 5);
    assert_eq!(rows(taken), Vec::<Vec<Vec<u8>>>::new());
    assert_eq!(
        text_rows(ok!(con, "RMQ.TIMEOUTS", DUE, MAP, lease, 5)),
        [["a", "payload of a", QUEUE]]
    );
}

#[test]
fn an_extension_reaches_replicas_as_the_lease_that_was_told() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let tap = ReplicaTap::attach(&server);
    let lease = extend(&mut con, "a", &delivery.lease, 5000).unwrap();
    assert_eq!(extend(&mut con, "a", &delivery.lease, 5000), None);
    let heard: Vec<String> = tap.lines_until_marker(&mut con);
    let commands: Vec<&String> = heard
        .iter()
        .filter(|line| *line != "MULTI" && *line != "EXEC")
        .collect();
    assert_eq!(commands, [&format!("ZADD {DUE} {lease} a")]);
}

// ---- input

#[test]
fn what_is_no_lease_gets_an_error_that_names_it_and_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let before = Snapshot::of(&mut con);
    for bad in GARBAGE {
        let calls = [
            command!("RMQ.ACK", MAP, WORK, DUE, "a", bad),
            command!("RMQ.ACK", MAP, WORK, DUE, "a", &delivery.lease, "b", bad),
            command!("RMQ.NACK", MAP, DELAYS, DUE, WORK, "a", bad, 0),
            command!("RMQ.EXTEND", DUE, "a", bad, 1000),
            command!("RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, "a", "", "LEASE", bad),
        ];
        for call in calls {
            let error = top_error(redis::ConnectionLike::req_command(&mut con, &call)).unwrap_err();
            let line = line(&call.args_iter().map(|arg| format!("{arg:?}")).collect::<Vec<_>>());
            assert_eq!(
                error_text(&error),
                "ERR lease must be a lease as RMQ.RESERVE returned it",
                "{line}"
            );
        }
    }
    before.assert_unchanged(&mut con);
}

#[test]
fn other_bad_input_gets_an_error_that_names_it_and_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let lease = take_new(&mut con, "a").lease;
    ok!(con, "SET", "text", "x");
    let before = Snapshot::of(&mut con);
    for bad in ["-1", "1.5", "", "x", "1000000000001"] {
        let error = err!(con, "RMQ.NACK", MAP, DELAYS, DUE, WORK, "a", &lease, bad);
        assert!(error.starts_with("ERR delay_ms must be an integer"), "{bad:?}: {error}");
    }
    for bad in ["0", "-1", "1.5", "", "x", "1000000000001"] {
        let error = err!(con, "RMQ.EXTEND", DUE, "a", &lease, bad);
        assert!(
            error.starts_with("ERR lease_ms must be a positive integer"),
            "{bad:?}: {error}"
        );
    }
    let mut expect = |expected: &str, words: &[&str]| {
        let error = error_text(&call(&mut con, words).unwrap_err());
        assert!(error.starts_with(expected), "{words:?}: {error}");
    };
    let lease = lease.as_str();
    expect("ERR wrong number", &["RMQ.ACK", MAP, WORK, DUE, "a"]);
    expect("ERR wrong number", &["RMQ.ACK", MAP, WORK, DUE, "a", lease, "b"]);
    expect("ERR wrong number", &["RMQ.EXTEND", DUE, "a", lease]);
    expect("ERR wrong number", &["RMQ.EXTEND", DUE, "a", lease, "1", "x"]);
    expect(
        "ERR unknown option 'x'",
        &["RMQ.NACK", MAP, DELAYS, DUE, WORK, "a", lease, "0", "x"],
    );
    expect(
        "ERR option PAYLOAD must be followed by its value",
        &["RMQ.NACK", MAP, DELAYS, DUE, WORK, "a", lease, "0", "PAYLOAD"],
    );
    expect(
        "ERR id must not end",
        &["RMQ.NACK", MAP, DELAYS, DUE, WORK, "a:queue", lease, "0"],
    );
    expect("WRONGTYPE payload_map", &["RMQ.ACK", "text", WORK, DUE, "a", lease]);
    expect("WRONGTYPE processing", &["RMQ.ACK", MAP, "text", DUE, "a", lease]);
    expect("WRONGTYPE expire_monitor", &["RMQ.ACK", MAP, WORK, "text", "a", lease]);
    expect(
        "WRONGTYPE payload_map",
        &["RMQ.NACK", "text", DELAYS, DUE, WORK, "a", lease, "0"],
    );
    expect(
        "WRONGTYPE delay_tasks",
        &["RMQ.NACK", MAP, "text", DUE, WORK, "a", lease, "0"],
    );
    expect(
        "WRONGTYPE expire_monitor",
        &["RMQ.NACK", MAP, DELAYS, "text", WORK, "a", lease, "0"],
    );
    expect(
        "WRONGTYPE processing",
        &["RMQ.NACK", MAP, DELAYS, DUE, "text", "a", lease, "0"],
    );
    expect("WRONGTYPE expire_monitor", &["RMQ.EXTEND", "text", "a", lease, "1"]);
    expect(
        "ERR payload_map and expire_monitor",
        &["RMQ.ACK", MAP, WORK, MAP, "a", lease],
    );
    expect(
        "ERR delay_tasks and expire_monitor",
        &["RMQ.NACK", MAP, DUE, DUE, WORK, "a", lease, "0"],
    );
    before.assert_unchanged(&mut con);
}

// ---- fencing

/// Every way in which a worker may settle or keep a message, by a lease: all of them must say no and do nothing.
fn assert_fenced(con: &mut Connection, delivery: &Delivery) {
    let Delivery { id, lease, .. } = delivery;
    let before = Snapshot::with_ttls(con);
    assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, id, lease), Value::Int(0));
    assert_eq!(
        ok!(con, "RMQ.NACK", MAP, DELAYS, DUE, WORK, id, lease, 0),
        Value::Int(0)
    );
    let with_payload = ok!(con, "RMQ.NACK", MAP, DELAYS, DUE, WORK, id, lease, 0, "PAYLOAD", "stolen");
    assert_eq!(with_payload, Value::Int(0));
    assert_eq!(ok!(con, "RMQ.EXTEND", DUE, id, lease, HOUR), Value::Nil);
    let dead = ok!(
        con,
        "RMQ.DEADLETTER",
        DLQ_MAP,
        DLQ,
        DUE,
        MAP,
        WORK,
        id,
        "dead",
        "LEASE",
        lease
    );
    assert_eq!(dead, Value::Int(0));
    let dead = ok!(
        con,
        "RMQ.DEADLETTER",
        DLQ_MAP,
        DLQ,
        DUE,
        MAP,
        WORK,
        id,
        "dead",
        "orders",
        "LEASE",
        lease
    );
    assert_eq!(dead, Value::Int(0));
    before.assert_unchanged(con);
}

/// A reserves for a moment, and the moment passes.
fn reserve_and_expire(server: &Server, con: &mut Connection) -> Delivery {
    publish(con, "job");
    let reply = ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1);
    let delivery = deliveries(reply).remove(0);
    let until: f64 = delivery.lease.parse().unwrap();
    let mut clock = server.con();
    assert!(eventually(deadline(), || server_time_ms(&mut clock) as f64 > until));
    delivery
}

/// The ways in which B settles what it holds; each must work although A was there before.
const SETTLEMENTS: [&str; 4] = ["ack", "nack", "extend", "deadletter"];

fn assert_holds(con: &mut Connection, delivery: &Delivery, settlement: &str) {
    let Delivery { id, lease, .. } = delivery;
    match settlement {
        "ack" => {
            assert_eq!(ack(con, delivery), 1);
            assert_eq!(Snapshot::of(con).keys(), [""; 0]);
        }
        "nack" => {
            assert_eq!(nack(con, delivery, HOUR), Value::Int(1));
            assert_eq!(Snapshot::of(con).keys(), [DELAYS, MAP]);
        }
        "extend" => {
            let longer = extend(con, id, lease, HOUR).expect("a new lease");
            assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, id, longer), Value::Int(1));
            assert_eq!(Snapshot::of(con).keys(), [""; 0]);
        }
        _ => {
            let dead = ok!(
                con,
                "RMQ.DEADLETTER",
                DLQ_MAP,
                DLQ,
                DUE,
                MAP,
                WORK,
                id,
                "dead",
                "LEASE",
                lease
            );
            assert_eq!(dead, Value::Int(1));
            assert_eq!(Snapshot::of(con).keys(), [DLQ, DLQ_MAP]);
        }
    }
}

#[test]
fn a_worker_given_up_for_dead_cannot_touch_the_delivery_of_another_after_timeouts_retry_and_tick() {
    let server = Server::start();
    let mut con = server.con();
    for settlement in SETTLEMENTS {
        ok!(con, "FLUSHALL");
        let a = reserve_and_expire(&server, &mut con);
        let back = text_rows(ok!(con, "RMQ.TIMEOUTS", DUE, MAP, "*", 10));
        assert_eq!(back, [["job", "payload of job", QUEUE]]);
        assert_fenced(&mut con, &a);
        ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "job", "payload of job", 0);
        assert_fenced(&mut con, &a);
        assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 10)), [["job", QUEUE]]);
        assert_fenced(&mut con, &a);
        let b = reserve(&mut con);
        assert_eq!(
            (b.id.as_str(), b.payload.as_str(), b.attempts),
            ("job", "payload of job", 2)
        );
        assert_ne!(a.lease, b.lease);
        assert_fenced(&mut con, &a);
        assert_holds(&mut con, &b, settlement);
        assert_fenced(&mut con, &a);
    }
    assert_eq!(counter(&server, "fenced"), 4 * 5 * 6);
}

#[test]
fn a_worker_given_up_for_dead_cannot_touch_a_message_that_was_claimed() {
    let server = Server::start();
    let mut con = server.con();
    for settlement in SETTLEMENTS {
        ok!(con, "FLUSHALL");
        let a = reserve_and_expire(&server, &mut con);
        let back = text_rows(ok!(con, "RMQ.TIMEOUTS", DUE, MAP, "*", 10, "CLAIM", HOUR));
        assert_eq!(back, [["job", "payload of job", QUEUE]]);
        assert_eq!(Snapshot::of(&mut con).list(WORK), ["job"]);
        assert_fenced(&mut con, &a);
        ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "job", "payload of job", 0);
        assert_fenced(&mut con, &a);
        assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 10)), [["job", QUEUE]]);
        let b = reserve(&mut con);
        assert_eq!(b.attempts, 2);
        assert_fenced(&mut con, &a);
        assert_holds(&mut con, &b, settlement);
        assert_fenced(&mut con, &a);
    }
}

#[test]
fn a_claimer_that_dies_is_fenced_by_the_next_claim() {
    let server = Server::start();
    let mut con = server.con();
    let a = reserve_and_expire(&server, &mut con);
    ok!(con, "RMQ.TIMEOUTS", DUE, MAP, "*", 10, "CLAIM", 1);
    let claim: String = ask!(con, "ZSCORE", DUE, "job");
    let claimed = Delivery {
        lease: claim,
        ..a.clone()
    };
    assert!(eventually(deadline(), || {
        !rows(ok!(server.con(), "RMQ.TIMEOUTS", DUE, MAP, "*", 10, "CLAIM", HOUR)).is_empty()
    }));
    assert_fenced(&mut con, &a);
    assert_fenced(&mut con, &claimed);
    let current: String = ask!(con, "ZSCORE", DUE, "job");
    assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, "job", current), Value::Int(1));
}

#[test]
fn a_worker_that_is_late_but_was_not_given_up_still_holds_its_message() {
    let server = Server::start();
    let mut con = server.con();
    let a = reserve_and_expire(&server, &mut con);
    assert_eq!(ack(&mut con, &a), 1);
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
}

#[test]
fn a_lease_does_not_hold_a_message_of_the_same_id_that_was_published_later() {
    let server = Server::start();
    let mut con = server.con();
    let first = take_new(&mut con, "job");
    assert_eq!(ack(&mut con, &first), 1);
    assert_fenced(&mut con, &first);
    publish(&mut con, "job");
    assert_fenced(&mut con, &first);
    let second = reserve(&mut con);
    assert_eq!(second.attempts, 1);
    assert_fenced(&mut con, &first);
    assert_eq!(ack(&mut con, &second), 1);
}

// ---- how leases are stored

#[test]
fn a_deadline_set_of_many_leases_is_not_in_the_compact_encoding_and_holds_the_leases_only() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    let encoding = |con: &mut Connection| text(ok!(con, "OBJECT", "ENCODING", DUE));
    let ids: Vec<String> = (0..100).map(|n| format!("m{n:02}")).collect();
    let mut held = Vec::new();
    for id in &ids[..10] {
        held.push(take_new(&mut con, id));
    }
    assert_eq!(encoding(&mut con), "listpack", "a handful is left as it is");
    let mut events = Events::subscribe(&server);
    for id in &ids[10..] {
        held.push(take_new(&mut con, id));
    }
    // Which of the calls does it, is not said.
    let mut acked = 0;
    while encoding(&mut con) != "skiplist" {
        acked += 1;
        assert!(acked < 1000, "it is still compact");
        let oldest = held.remove(0);
        assert_eq!(ack(&mut con, &oldest), 1);
        held.push(take_new(&mut con, &oldest.id));
    }
    let heard = events.lines_until_marker(&mut con);
    let times = |event: &str| heard.iter().filter(|line| **line == format!("{event} {DUE}")).count();
    assert_eq!((times("zadd"), times("zrem")), (90 + acked, acked));
    let leases: BTreeMap<String, String> = held.iter().map(|d| (d.id.clone(), d.lease.clone())).collect();
    let stored = Snapshot::of(&mut con).zset(DUE).len();
    assert_eq!(stored, leases.len());
    for (id, lease) in &leases {
        let score: f64 = ask!(con, "ZSCORE", DUE, id);
        assert_eq!(score, lease.parse::<f64>().unwrap());
    }
    replica.wait_synced();
    assert_eq!(server.digest(), replica.digest());
    for delivery in &held {
        assert_eq!(ack(&mut con, delivery), 1);
    }
    let left: Vec<String> = ask!(con, "KEYS", "*");
    assert_eq!(left, [""; 0]);
}
