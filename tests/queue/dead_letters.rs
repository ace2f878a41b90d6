//! Dead letters: why a message died, and RMQ.REDRIVE, which brings it back.

use crate::calls::*;
use crate::common::*;
use redis::Connection;

/// Publishes, takes and rejects messages of a queue, the first dying first.
fn bury(con: &mut Connection, queue: &str, ids: &[&str]) {
    for id in ids {
        publish(con, "app", queue, id);
        let delivery = reserve(con, "app", HOUR, 1, &[queue]).remove(0);
        assert_eq!(nack(con, &delivery, &format!("DEAD ERROR boom-{id}")), "DEAD");
    }
}

#[test]
fn a_dead_letter_keeps_payload_queue_and_the_reason_of_its_death() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    assert_eq!(nack(&mut con, &delivery, "DELAY 0 ERROR first"), "RETRY");
    let delivery = take(&mut con);
    let before = server_time_ms(&mut con);
    assert_eq!(nack(&mut con, &delivery, "DEAD ERROR last PAYLOAD new"), "DEAD");
    let after = server_time_ms(&mut con);
    let now = Snapshot::of(&mut con);
    assert_eq!(now.keys(), [DLQ, DLQ_DATA, QUEUES]);
    assert_eq!(now.list(DLQ), ["a"]);
    let data = now.hash(DLQ_DATA);
    assert_eq!(data.keys().collect::<Vec<_>>(), ["a", "a:death", "a:queue"]);
    assert_eq!((data["a"].as_str(), data["a:queue"].as_str()), ("new", "app:orders"));
    let death = death_of(&mut con, "a");
    assert_eq!(death["reason"], "rejected");
    assert_eq!(death["error"], "last");
    assert_eq!(death["attempts"], 2);
    let at = death["at"].as_i64().expect("a whole number");
    assert!(at >= before && at <= after, "{at}");
    assert_eq!(counter(&server, "died"), 1);
}

#[test]
fn the_last_error_is_kept_where_the_end_brings_none() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.POLICY", "app", "orders", "ATTEMPTS", 2);
    for (id, end) in [("a", ""), ("b", "DEAD"), ("c", "ERROR boom")] {
        let delivery = take_new(&mut con, id);
        nack(&mut con, &delivery, if id == "c" { "DELAY 0" } else { "DELAY 0 ERROR boom" });
        let delivery = take(&mut con);
        assert_eq!(nack(&mut con, &delivery, end), "DEAD");
        assert_eq!(death_of(&mut con, id)["error"], "boom", "{id}");
    }
    for (id, error) in [("d", "boom"), ("e", "lease ran out")] {
        let delivery = take_new(&mut con, id);
        nack(&mut con, &delivery, if id == "d" { "DELAY 0 ERROR boom" } else { "DELAY 0" });
        assert_eq!(reserve(&mut con, "app", 1, 1, &["orders"]).len(), 1);
        assert!(eventually(deadline(), || {
            assert_eq!(reserve(&mut con, "app", HOUR, 1, &["orders"]).len(), 0);
            counter(&server, "died") == if id == "d" { 4 } else { 5 }
        }));
        let death = death_of(&mut con, id);
        assert_eq!((death["reason"].as_str(), death["error"].as_str()), (Some("lease"), Some(error)), "{id}");
    }
}

#[test]
fn a_second_death_replaces_the_first_and_the_id_stands_once_at_the_left() {
    let server = Server::start();
    let mut con = server.con();
    bury(&mut con, "orders", &["a", "b"]);
    publish(&mut con, "app", "mails", "a");
    let delivery = reserve(&mut con, "app", HOUR, 1, &["mails"]).remove(0);
    assert_eq!(nack(&mut con, &delivery, "DEAD PAYLOAD second"), "DEAD");
    let now = Snapshot::of(&mut con);
    assert_eq!(now.list(DLQ), ["a", "b"]);
    assert_eq!((now.hash(DLQ_DATA)["a"].as_str(), now.hash(DLQ_DATA)["a:queue"].as_str()), ("second", "app:mails"));
    assert_ne!(death_of(&mut con, "a")["error"], "boom-a");
}

#[test]
fn redrive_brings_the_oldest_back_to_the_left_of_their_own_pending() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "z");
    bury(&mut con, "mails", &["m1", "m2"]);
    ok!(con, "RMQ.POLICY", "app", "orders", "PAUSED", "no");
    let held = take(&mut con);
    bury(&mut con, "orders", &["o1", "o2", "o3"]);
    release(&mut con, &held);
    steps(
        &mut con,
        &[
            ("RMQ.REDRIVE app COUNT 3", "[[m1 mails] [m2 mails] [o1 orders]]"),
            ("RMQ.REDRIVE app COUNT 9 QUEUE mails", "[]"),
            ("RMQ.REDRIVE app COUNT 1 QUEUE orders", "[[o2 orders]]"),
            ("RMQ.REDRIVE app COUNT 9", "[[o3 orders]]"),
            ("RMQ.REDRIVE app COUNT 9", "[]"),
        ],
    );
    let now = Snapshot::of(&mut con);
    assert_eq!(now.list(PENDING), ["o3", "o2", "o1", "z"]);
    assert_eq!(now.list("app:mails:pending"), ["m2", "m1"]);
    assert!(now.contents(DLQ).is_none() && now.contents(DLQ_DATA).is_none());
    let again = take_up_to(&mut con, 2).remove(1);
    assert_eq!((again.id.as_str(), again.attempts, again.payload.as_str()), ("o1", 1, "payload of o1"));
    assert_eq!(counter(&server, "redriven"), 5);
}

#[test]
fn redrive_of_named_ids_takes_these_and_no_others() {
    let server = Server::start();
    let mut con = server.con();
    bury(&mut con, "orders", &["a", "b", "c", "d"]);
    steps(&mut con, &[("RMQ.REDRIVE app IDS c none a c", "[[c orders] [a orders]]")]);
    assert_eq!(list(&mut con, DLQ), ["d", "b"]);
    assert_eq!(list(&mut con, PENDING), ["a", "c"]);
    // The words of REDRIVE may be ids.
    bury(&mut con, "mails", &["COUNT"]);
    steps(&mut con, &[("RMQ.REDRIVE app IDS COUNT", "[[COUNT mails]]"), ("RMQ.REDRIVE app IDS none", "[]")]);
}

#[test]
fn a_dead_letter_that_is_in_no_list_is_redriven_by_its_id() {
    let server = Server::start();
    let mut con = server.con();
    bury(&mut con, "orders", &["a", "b"]);
    ok!(con, "LREM", DLQ, 0, "a");
    steps(&mut con, &[("RMQ.REDRIVE app IDS a b", "[[a orders] [b orders]]")]);
    assert_eq!(list(&mut con, PENDING), ["b", "a"]);
    assert_eq!((counter(&server, "redriven"), counter(&server, "stale")), (2, 0));
}

#[test]
fn a_dead_letter_whose_id_is_live_again_stays_and_hinders_nobody() {
    let server = Server::start();
    let mut con = server.con();
    bury(&mut con, "orders", &["a", "b"]);
    order(&mut con, "a");
    let before = Snapshot::of(&mut con);
    steps(&mut con, &[("RMQ.REDRIVE app IDS a", "[]")]);
    before.assert_unchanged(&mut con);
    steps(&mut con, &[("RMQ.REDRIVE app COUNT 1", "[[b orders]]")]);
    let now = Snapshot::of(&mut con);
    assert_eq!(now.list(DLQ), ["a"]);
    assert_eq!(now.hash(PAYLOADS)["a"], "payload of a");
}

#[test]
fn a_bad_dead_letter_stays_and_hinders_nobody() {
    let server = Server::start();
    let mut con = server.con();
    for (about, setup) in [
        ("no queue", &["HDEL app:dlq:data bad:queue"][..]),
        ("a foreign queue", &["HSET app:dlq:data bad:queue other:orders"]),
        ("a list that is none", &["HSET app:dlq:data bad:queue app:x", "SET app:x:pending s"]),
    ] {
        ok!(con, "FLUSHALL");
        bury(&mut con, "orders", &["bad", "good"]);
        HERE.add(&mut con, setup);
        steps(&mut con, &[("RMQ.REDRIVE app COUNT 5", "[[good orders]]")]);
        let now = Snapshot::of(&mut con);
        assert_eq!(now.list(DLQ), ["bad"], "{about}");
        assert_eq!(now.hash(DLQ_DATA)["bad"], "payload of bad", "{about}");
        assert!(now.contents("other:orders:pending").is_none());
    }
    // Where all their data are missing, nothing is dropped.
    ok!(con, "FLUSHALL");
    ok!(con, "LPUSH", DLQ, "a", "b");
    let before = Snapshot::of(&mut con);
    steps(&mut con, &[("RMQ.REDRIVE app COUNT 5", "[]"), ("RMQ.REDRIVE app IDS a", "[]")]);
    before.assert_unchanged(&mut con);
}

#[test]
fn dead_letters_of_the_twin_are_redriven_too() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    ok!(con, "RMQ.DEADLETTER", DLQ_DATA, DLQ, EXPIRES, PAYLOADS, WORK, "a", "last");
    assert_eq!(ack(&mut con, &delivery), 0);
    assert_eq!(Snapshot::of(&mut con).hash(DLQ_DATA).keys().collect::<Vec<_>>(), ["a", "a:queue"]);
    steps(&mut con, &[("RMQ.REDRIVE app COUNT 1", "[[a orders]]")]);
    let again = take(&mut con);
    assert_eq!((again.payload.as_str(), again.attempts), ("last", 1));
}

#[test]
fn redrive_wakes_who_waits_and_is_limited_to_a_batch() {
    let server = Server::builder().module_args(&["max-batch", "3"]).start();
    let mut con = server.con();
    bury(&mut con, "orders", &["a", "b", "c", "d"]);
    let mut waiter = Waiter::start(&server);
    assert_eq!(items(ok!(con, "RMQ.REDRIVE", "app", "COUNT", 1_000_000)).len(), 3);
    assert_eq!(waiter.served_id(), "a");
    assert_eq!(list(&mut con, DLQ), ["d"]);
}

/// Dead letters of a queue by plain commands, the first the oldest.
fn plant(con: &mut Connection, queue: &str, count: usize) {
    let ids: Vec<String> = (0..count).map(|n| format!("{queue}{n}")).collect();
    let fields = |id: &String| [id.clone(), "p".into(), format!("{id}:queue"), format!("app:{queue}")];
    ok!(con, "HSET", DLQ_DATA, ids.iter().flat_map(fields).collect::<Vec<_>>());
    ok!(con, "LPUSH", DLQ, ids);
}

#[test]
fn a_redrive_takes_the_oldest_although_an_earlier_one_stopped_half_way() {
    let server = Server::start();
    let mut con = server.con();
    // More of another queue than one call passes.
    plant(&mut con, "a", 1200);
    plant(&mut con, "b", 1500);
    steps(
        &mut con,
        &[
            ("RMQ.REDRIVE app COUNT 2 QUEUE b", "[]"),
            ("RMQ.PURGE app DEAD a", "1200"),
            ("RMQ.REDRIVE app COUNT 2 QUEUE b", "[[b0 b] [b1 b]]"),
        ],
    );
}

#[test]
fn a_second_death_keeps_nothing_of_the_first() {
    let server = Server::start();
    let mut con = server.con();
    bury(&mut con, "orders", &["a"]);
    publish(&mut con, "app", "mails", "a");
    let delivery = reserve(&mut con, "app", HOUR, 1, &["mails"]).remove(0);
    ok!(con, "HDEL", PAYLOADS, "a:queue");
    assert_eq!(nack(&mut con, &delivery, "DEAD"), "DEAD");
    assert!(!Snapshot::of(&mut con).hash(DLQ_DATA).contains_key("a:queue"), "it died in another queue than orders");
}

#[test]
fn redrives_of_one_queue_reach_all_its_letters_call_by_call_behind_many_of_another() {
    let server = Server::start();
    let mut con = server.con();
    plant(&mut con, "a", 1500);
    plant(&mut con, "b", 20);
    let mut redriven = Vec::new();
    for _ in 0..5 {
        redriven.push(items(ok!(con, "RMQ.REDRIVE", "app", "COUNT", 5, "QUEUE", "b")).len());
    }
    assert_eq!(redriven, [0, 5, 5, 5, 5]);
}
