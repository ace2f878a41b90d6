//! RMQ.RESERVE: what it takes and in which order, what it writes, and what it drops. Waiting is in waiting.rs.

use crate::calls::*;
use crate::common::*;

#[test]
fn a_delivery_is_an_id_its_payload_a_receipt_a_number_and_the_short_name_of_the_queue() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    let before = server_time_ms(&mut con);
    let delivery = take_for(&mut con, 60_000);
    let after = server_time_ms(&mut con);
    let Delivery { id, payload, attempts, queue, .. } = delivery.clone();
    assert_eq!((id.as_str(), payload.as_str(), attempts, queue.as_str()), ("a", "payload of a", 1, "orders"));
    assert!(delivery.micros() >= before * 1000 && delivery.micros() <= after * 1000 + 999, "{delivery:?}");

    let now = Snapshot::of(&mut con);
    assert_eq!(now.keys(), [EXPIRES, WORK, PAYLOADS, QUEUES]);
    assert_eq!(now.list(WORK), ["a"]);
    assert_eq!(now.hash(PAYLOADS)["a:attempts"], delivery.receipt);
    assert_eq!(now.hash(PAYLOADS)["a:queue"], "app:orders");
    let lease = now.zset(EXPIRES)["a"];
    assert!(lease.fract() != 0.0, "{lease} is a whole number");
    assert!(lease >= (before + 60_000) as f64 && lease <= (after + 60_001) as f64, "{lease}");
    assert_eq!(counter(&server, "reserved"), 1);
}

#[test]
fn the_oldest_is_taken_first_and_the_oldest_in_processing_is_at_its_tail() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c", "d"] {
        order(&mut con, id);
    }
    assert_eq!(take(&mut con).id, "a");
    let taken = take_up_to(&mut con, 2);
    assert_eq!(ids(&taken), ["b", "c"]);
    assert_eq!(taken[0].micros(), taken[1].micros(), "the messages of one call share their time");
    assert_eq!(list(&mut con, WORK), ["c", "b", "a"]);
    assert_eq!(ids(&take_up_to(&mut con, 10)), ["d"]);
    assert_eq!(take_up_to(&mut con, 10), []);
}

#[test]
fn queues_are_emptied_in_the_order_in_which_they_are_named() {
    let server = Server::start();
    let mut con = server.con();
    let fill = |con: &mut redis::Connection| {
        ok!(con, "FLUSHALL");
        let published = [
            ("RMQ.PUBLISH app TO low l1 p l2 p", "[l1 l2]"),
            ("RMQ.PUBLISH app TO mid m1 p", "[m1]"),
            ("RMQ.PUBLISH app TO high h1 p h2 p", "[h1 h2]"),
        ];
        steps(con, &published);
    };
    for (count, from, wanted) in [
        (1, &["high", "mid", "low"][..], &["h1"][..]),
        (3, &["high", "mid", "low"], &["h1", "h2", "m1"]),
        (9, &["high", "mid", "low"], &["h1", "h2", "m1", "l1", "l2"]),
        (9, &["low", "none", "mid"], &["l1", "l2", "m1"]),
        (9, &["mid", "high", "mid", "mid"], &["m1", "h1", "h2"]),
        (1, &["none", "nor", "low"], &["l1"]),
    ] {
        fill(&mut con);
        let taken = reserve(&mut con, "app", HOUR, count, from);
        assert_eq!(ids(&taken), wanted, "{count} {from:?}");
        for delivery in &taken {
            assert!(delivery.queue.starts_with(&delivery.id[..1]), "{delivery:?}");
            assert_eq!(list(&mut con, &format!("app:{}:processing", delivery.queue)).len(), {
                taken.iter().filter(|other| other.queue == delivery.queue).count()
            });
        }
    }
}

#[test]
fn nothing_there_is_nil_in_both_protocols_and_changes_nothing() {
    let server = Server::start();
    let mut raw = Raw::connect(&server);
    let reserve = HERE.words("RMQ.RESERVE app 1000 COUNT 5 FROM orders mails");
    assert_eq!(raw.call_raw(&reserve), b"*-1\r\n");
    raw.call(&["HELLO", "3"]);
    assert_eq!(raw.call_raw(&reserve), b"_\r\n");
    assert_eq!(Snapshot::of(&mut server.con()).keys(), [""; 0]);
}

#[test]
fn a_message_that_was_moved_to_another_queue_belongs_to_the_queue_it_is_taken_from() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    ok!(con, "RENAME", PENDING, "app:mails:pending");
    let delivery = reserve(&mut con, "app", HOUR, 1, &["mails"]).remove(0);
    assert_eq!(delivery.queue, "mails");
    assert_eq!(Snapshot::of(&mut con).hash(PAYLOADS)["a:queue"], "app:mails");
    assert_eq!(release(&mut con, &delivery), 1);
    assert_eq!(list(&mut con, "app:mails:pending"), ["a"]);
}

#[test]
fn a_message_without_its_queue_field_is_delivered_and_gets_one() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", PAYLOADS, "a", "pa");
    ok!(con, "LPUSH", PENDING, "a");
    let delivery = take(&mut con);
    assert_eq!(Snapshot::of(&mut con).hash(PAYLOADS)["a:queue"], "app:orders");
    assert_eq!(ack(&mut con, &delivery), 1);
}

#[test]
fn attempts_are_counted_over_all_ways_back() {
    let server = Server::start();
    let mut con = server.con();
    assert_eq!(take_new(&mut con, "a").attempts, 1);
    for wanted in 2..6 {
        let (n, micros, _) = attempts_of(&mut con, "a");
        steps(&mut con, &[(&format!("RMQ.NACK app a {n}-{micros} DELAY 0"), "RETRY")]);
        assert_eq!(take(&mut con).attempts, wanted);
    }
}

#[test]
fn a_count_that_cannot_be_read_is_its_leading_digits_or_0() {
    let server = Server::start();
    let mut con = server.con();
    for (stored, wanted) in [
        ("7", 8),
        ("7-1700000000000000", 8),
        ("7-1700000000000000 boom", 8),
        ("7-soon boom", 8),
        ("3 boom", 4),
        ("12monkeys", 13),
        ("0-1700000000000000", 1),
        ("", 1),
        ("boom", 1),
        ("-5", 1),
        (" 5-1", 1),
    ] {
        ok!(con, "FLUSHALL");
        order(&mut con, "a");
        ok!(con, "HSET", PAYLOADS, "a:attempts", stored);
        let delivery = take(&mut con);
        assert_eq!(delivery.attempts, wanted, "{stored:?}");
        assert_eq!(ack(&mut con, &delivery), 1, "{stored:?}");
    }
    // No number is so large that a worker gets no message, or a negative count.
    for stored in ["9223372036854775807", "18446744073709551616-5", "99999999999999999999999-9999999999999999999999"] {
        order(&mut con, "a");
        ok!(con, "HSET", PAYLOADS, "a:attempts", stored);
        let delivery = take(&mut con);
        assert!(delivery.attempts > 0, "{stored}");
        assert_eq!(ack(&mut con, &delivery), 1, "{stored}");
    }
}

#[test]
fn ids_without_payload_are_dropped_and_do_not_count() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    ok!(con, "RPUSH", PENDING, "ghost", "spectre");
    ok!(con, "LPUSH", PENDING, "shade");
    ok!(con, "HSET", PAYLOADS, "ghost:queue", "app:orders", "ghost:attempts", "4-1");
    assert_eq!(ids(&take_up_to(&mut con, 2)), ["a"]);
    let now = Snapshot::of(&mut con);
    assert_eq!((now.list(PENDING).len(), now.list(WORK)), (0, vec!["a".to_string()]));
    assert!(!now.hash(PAYLOADS).keys().any(|field| field.starts_with("ghost")));
    assert_eq!(counter(&server, "dropped"), 3);
}

#[test]
fn the_log_says_that_ids_without_payload_were_dropped_but_not_for_each() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    let before = server.log().lines().count();
    ok!(con, "LPUSH", PENDING, (0..50).map(|n| format!("ghost-{n}")).collect::<Vec<_>>());
    take_up_to(&mut con, 9);
    ok!(con, "LPUSH", PENDING, "spectre");
    take_up_to(&mut con, 9);
    let log = server.log();
    let lines: Vec<&str> = log.lines().skip(before).filter(|line| line.contains("payload")).collect();
    assert_eq!(lines.len(), 1, "{log}");
}

#[test]
fn where_the_payloads_are_missing_as_a_whole_nothing_is_dropped() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "LPUSH", PENDING, "a", "b");
    ok!(con, "ZADD", DELAYS, 1000, "c");
    ok!(con, "ZADD", EXPIRES, 1000.5, "d");
    ok!(con, "LPUSH", WORK, "d");
    let before = Snapshot::of(&mut con);
    for _ in 0..3 {
        assert_eq!(take_up_to(&mut con, 5), []);
    }
    before.assert_unchanged(&mut con);
    assert_eq!(counter(&server, "dropped"), 0);
    // Once they are there, all goes on.
    for id in ["a", "b", "c", "d"] {
        ok!(con, "HSET", PAYLOADS, id, "p", format!("{id}:queue"), "app:orders");
    }
    let mut taken: Vec<String> = take_up_to(&mut con, 5).into_iter().map(|delivery| delivery.id).collect();
    taken.sort();
    assert_eq!(taken, ["a", "b", "c", "d"]);
}

#[test]
fn a_second_copy_of_an_id_whose_lease_runs_is_dropped_and_the_holder_keeps_it() {
    let server = Server::start();
    let mut con = server.con();
    let holder = take_new(&mut con, "a");
    ok!(con, "LPUSH", PENDING, "a", "a");
    order(&mut con, "b");
    assert_eq!(ids(&take_up_to(&mut con, 5)), ["b"]);
    assert_eq!(length(&mut con, PENDING), 0);
    assert_eq!(ack(&mut con, &holder), 1);

    // Twice in pending is delivered once.
    order(&mut con, "c");
    ok!(con, "LPUSH", PENDING, "c");
    let taken = take_up_to(&mut con, 5);
    assert_eq!(ids(&taken), ["c"]);
    assert_eq!(ack(&mut con, &taken[0]), 1);
    assert_eq!(Snapshot::of(&mut con).list(WORK), ["b"]);
}

#[test]
fn a_new_receipt_is_later_than_all_before_also_where_the_stored_time_is_ahead() {
    let server = Server::start();
    let mut con = server.con();
    let mut last = 0;
    for n in 0..300 {
        let delivery = take_new(&mut con, &n.to_string());
        assert!(delivery.micros() > last, "{delivery:?} after {last}");
        last = delivery.micros();
    }
    // As after a clock that was set back by an hour.
    let ahead = (server_time_ms(&mut con) + HOUR) * 1000;
    order(&mut con, "a");
    ok!(con, "HSET", PAYLOADS, "a:attempts", format!("1-{ahead}"));
    let delivery = take(&mut con);
    assert!(delivery.micros() > ahead, "{delivery:?} after {ahead}");
    // The deadline is the clock's all the same.
    let lease = score(&mut con, EXPIRES, "a").unwrap();
    assert!(lease < (server_time_ms(&mut con) + HOUR + 2) as f64, "{lease}");
    assert_eq!(nack(&mut con, &delivery, "DELAY 0"), "RETRY");
    let next = take(&mut con);
    assert_eq!((ack(&mut con, &delivery), ack(&mut con, &next)), (0, 1));
}

#[test]
fn words_are_read_in_any_case_and_options_in_any_order() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    order(&mut con, "b");
    for line in ["rmq.reserve app 1000 block 5 count 1 from orders", "RMQ.RESERVE app 1000 Count 1 Block 0 From orders"]
    {
        assert_eq!(deliveries(HERE.call(&mut con, line).unwrap()).len(), 1, "{line}");
    }
}
