//! RMQ.POLICY: attempts, backoff and pause; whose value counts, and what follows from it.

use crate::calls::*;
use crate::common::*;
use redis::Connection;
use std::time::Duration;

/// The effective policy as text.
fn policy(attempts: u64, first: u64, max: u64, paused: u64) -> String {
    format!("[attempts {attempts} backoff_first_ms {first} backoff_max_ms {max} paused {paused}]")
}

fn stored(con: &mut Connection, queue: &str) -> Option<serde_json::Value> {
    let value: Option<String> = ask!(con, "HGET", QUEUES, queue);
    value.map(|value| serde_json::from_str(&value).expect("stored JSON"))
}

#[test]
fn each_value_is_the_queues_own_else_the_namespaces_else_the_built_in_one() {
    let server = Server::start();
    let mut con = server.con();
    let calls = [
        ("RMQ.POLICY app orders", policy(25, 1000, 3_600_000, 0)),
        ("RMQ.POLICY app", "[]".into()),
        ("RMQ.POLICY app orders ATTEMPTS 3", policy(3, 1000, 3_600_000, 0)),
        ("RMQ.POLICY app orders BACKOFF 5 500", policy(3, 5, 500, 0)),
        ("RMQ.POLICY app orders ATTEMPTS 0 PAUSED yes", policy(0, 5, 500, 1)),
        ("RMQ.POLICY app orders paused NO", policy(0, 5, 500, 0)),
        ("RMQ.POLICY app * ATTEMPTS 7 BACKOFF 2 2", policy(7, 2, 2, 0)),
        ("RMQ.POLICY app orders", policy(0, 5, 500, 0)),
        ("RMQ.POLICY app mails", policy(7, 2, 2, 0)),
        ("RMQ.POLICY app mails ATTEMPTS 1", policy(1, 2, 2, 0)),
        ("RMQ.POLICY other mails", policy(25, 1000, 3_600_000, 0)),
        // Paused is whoever is paused itself or by the default.
        ("RMQ.POLICY app * PAUSED yes", policy(7, 2, 2, 1)),
        ("RMQ.POLICY app mails PAUSED no", policy(1, 2, 2, 1)),
        ("RMQ.POLICY app * PAUSED no", policy(7, 2, 2, 0)),
        ("RMQ.POLICY app mails", policy(1, 2, 2, 0)),
        ("RMQ.POLICY app orders RESET", policy(7, 2, 2, 0)),
        ("RMQ.POLICY app * RESET", policy(25, 1000, 3_600_000, 0)),
        ("RMQ.POLICY app mails", policy(1, 1000, 3_600_000, 0)),
    ];
    for (line, wanted) in calls {
        assert_eq!(say(&mut con, line), wanted, "{line}");
    }
}

#[test]
fn what_is_stored_is_what_was_set_and_a_reset_forgets_it() {
    let server = Server::start();
    let mut con = server.con();
    steps(&mut con, &[("RMQ.POLICY app orders ATTEMPTS 3 PAUSED yes", "..."), ("RMQ.POLICY app * BACKOFF 1 9", "...")]);
    let orders = stored(&mut con, "orders").unwrap();
    assert_eq!((orders["attempts"].as_u64(), orders.as_object().unwrap().len()), (Some(3), 2));
    assert!(orders.get("paused").is_some());
    let default = stored(&mut con, "*").unwrap();
    assert_eq!(default, serde_json::json!({"backoff_first_ms": 1, "backoff_max_ms": 9}));
    ok!(con, "RMQ.POLICY", "app", "orders", "PAUSED", "no");
    assert_eq!(stored(&mut con, "orders").unwrap(), serde_json::json!({"attempts": 3}));

    // The list of what is stored, as a map in either protocol.
    let listed = say(&mut con, "RMQ.POLICY app");
    for part in ["orders [attempts 3]", "* [backoff_first_ms 1 backoff_max_ms 9]"] {
        assert!(listed.contains(part), "{listed}");
    }
    let mut resp3 = Raw::connect(&server);
    resp3.call(&["HELLO", "3"]);
    let Reply::Map(all) = resp3.call(&["RMQ.POLICY", "app"]) else { panic!("a map was expected") };
    assert!(all.contains(&(Reply::bulk("orders"), Reply::Map(vec![(Reply::bulk("attempts"), Reply::Int(3))]))));
    let Reply::Map(one) = resp3.call(&["RMQ.POLICY", "app", "orders"]) else { panic!("a map was expected") };
    assert_eq!((one.len(), &one[0]), (4, &(Reply::bulk("attempts"), Reply::Int(3))));

    ok!(con, "RMQ.POLICY", "app", "*", "RESET");
    assert_eq!(stored(&mut con, "*"), None);
    ok!(con, "RMQ.POLICY", "app", "orders", "RESET");
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    // A queue with a list stays known.
    order(&mut con, "a");
    steps(&mut con, &[("RMQ.POLICY app orders ATTEMPTS 3", "..."), ("RMQ.POLICY app orders RESET", "...")]);
    assert_eq!(stored(&mut con, "orders").unwrap(), serde_json::json!({}));
}

#[test]
fn a_publish_does_not_overwrite_a_policy() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.POLICY", "app", "orders", "ATTEMPTS", 3);
    let delivery = take_new(&mut con, "a");
    ack(&mut con, &delivery);
    order(&mut con, "b");
    assert_eq!(stored(&mut con, "orders").unwrap(), serde_json::json!({"attempts": 3}));
}

#[test]
fn a_message_whose_attempts_have_reached_the_limit_is_dead_when_it_fails() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.POLICY", "app", "orders", "ATTEMPTS", 2);
    for how in ["", "DELAY 0"] {
        let id = format!("a{}", how.len());
        order(&mut con, &id);
        assert_eq!(nack(&mut con, &take(&mut server.con()), "DELAY 0"), "RETRY", "{how:?}");
        let last = take(&mut con);
        assert_eq!(last.attempts, 2);
        assert_eq!(nack(&mut con, &last, how), "DEAD", "{how:?}");
        assert_eq!(death_of(&mut con, &id)["reason"], "attempts");
    }
    // Giving back is no failure.
    ok!(con, "RMQ.POLICY", "app", "orders", "ATTEMPTS", 1);
    let delivery = take_new(&mut con, "b");
    assert_eq!(release(&mut con, &delivery), 1);
    // A limit that is lowered counts from now on, one that is lifted as well.
    let delivery = take(&mut con);
    ok!(con, "RMQ.POLICY", "app", "orders", "ATTEMPTS", 0);
    assert_eq!(nack(&mut con, &delivery, "DELAY 0"), "RETRY");
    ok!(con, "HSET", PAYLOADS, "b:attempts", "100000-1");
    let delivery = take(&mut con);
    assert_eq!((delivery.attempts, nack(&mut con, &delivery, "DELAY 0")), (100_001, "RETRY".into()));
    let delivery = take(&mut con);
    ok!(con, "RMQ.POLICY", "app", "orders", "ATTEMPTS", 25);
    assert_eq!(nack(&mut con, &delivery, "DELAY 0"), "DEAD");
}

#[test]
fn a_lease_that_runs_out_counts_as_a_failed_attempt() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.POLICY", "app", "orders", "ATTEMPTS", 2);
    order(&mut con, "a");
    for attempt in 1..=2 {
        assert_eq!(take_for(&mut con, 5).attempts, attempt);
        sleep_ms(20);
        // Without any backoff.
        tick(&mut con);
        assert_eq!(list(&mut con, PENDING).len(), 2 - attempt as usize);
    }
    let death = death_of(&mut con, "a");
    assert_eq!((death["reason"].as_str(), death["attempts"].as_i64()), (Some("lease"), Some(2)));
    assert_eq!(Snapshot::of(&mut con).keys(), [DLQ, DLQ_DATA, QUEUES]);
}

#[test]
fn the_backoff_doubles_up_to_its_limit_with_up_to_a_tenth_at_random() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.POLICY", "app", "orders", "BACKOFF", 100_000, 1_000_000, "ATTEMPTS", 0);
    let mut shares = std::collections::BTreeSet::new();
    for round in 0..12 {
        for (attempt, wanted) in
            [(1, 100_000), (2, 200_000), (3, 400_000), (4, 800_000), (5, 1_000_000), (60, 1_000_000)]
        {
            let id = format!("{round}-{attempt}");
            order(&mut con, &id);
            ok!(con, "HSET", PAYLOADS, format!("{id}:attempts"), format!("{}-1", attempt - 1));
            let delivery = take(&mut con);
            let now = server_time_ms(&mut con);
            assert_eq!(nack(&mut con, &delivery, ""), "RETRY");
            let delay = score(&mut con, DELAYS, &id).unwrap() - now as f64;
            let most = wanted as f64 * 1.1 + 2000.0;
            assert!(delay >= wanted as f64 && delay <= most, "attempt {attempt}: {delay} ms");
            shares.insert((delay / wanted as f64 * 200.0) as i64);
        }
    }
    assert!(shares.len() > 5, "no randomness in {shares:?}");
    // DELAY is taken as it is.
    let delivery = take_new(&mut con, "exact");
    let now = server_time_ms(&mut con);
    nack(&mut con, &delivery, "DELAY 777");
    let delay = score(&mut con, DELAYS, "exact").unwrap() as i64 - now;
    assert!((777..2777).contains(&delay), "{delay}");
}

#[test]
fn a_paused_queue_gives_nothing_while_all_else_goes_on() {
    let server = Server::start();
    let mut con = server.con();
    for whom in ["orders", "*"] {
        ok!(con, "FLUSHALL");
        let [held, other] = ["held", "other"].map(|id| take_new(&mut con, id));
        steps(&mut con, &[(&format!("RMQ.POLICY app {whom} PAUSED yes"), "...")]);
        order(&mut con, "a");
        delayed_order(&mut con, "b", 0);
        assert_eq!(take_up_to(&mut con, 9), [], "{whom}");
        assert_eq!(list(&mut con, PENDING), ["b", "a"], "time goes on");
        assert_eq!((extend(&mut con, &held, HOUR), ack(&mut con, &held)), (1, 1));
        assert_eq!(nack(&mut con, &other, "DELAY 0"), "RETRY");
        publish(&mut con, "app", "mails", "m");
        let taken = reserve(&mut con, "app", HOUR, 9, &["orders", "mails"]);
        assert_eq!(ids(&taken), if whom == "*" { vec![] } else { vec!["m"] });
        steps(&mut con, &[(&format!("RMQ.POLICY app {whom} PAUSED no"), "...")]);
        assert_eq!(ids(&take_up_to(&mut con, 9)), ["a", "b", "other"]);
    }
}

#[test]
fn who_waits_for_a_paused_queue_waits_until_it_goes_on() {
    let server = Server::start();
    let mut con = server.con();
    for (pause, resume) in [
        ("RMQ.POLICY app orders PAUSED yes", "RMQ.POLICY app orders PAUSED no"),
        ("RMQ.POLICY app * PAUSED yes", "RMQ.POLICY app * PAUSED no"),
        ("RMQ.POLICY app orders PAUSED yes", "RMQ.POLICY app orders RESET"),
        ("RMQ.POLICY app * PAUSED yes", "RMQ.POLICY app * RESET"),
    ] {
        ok!(con, "FLUSHALL");
        // One began to wait before the pause, one after it, and one wants another queue as well.
        let mut waiters = vec![Waiter::start(&server)];
        HERE.add(&mut con, &[pause]);
        waiters.push(Waiter::start(&server));
        waiters.push(Waiter::from(&server, "orders mails"));
        steps(&mut con, &[("RMQ.PUBLISH app TO orders a p b p", "[a b]")]);
        delayed_order(&mut con, "c", 0);
        sleep_ms(1200);
        assert!(waiters.iter_mut().all(Waiter::is_waiting), "{pause}");
        HERE.add(&mut con, &[resume]);
        let served: Vec<String> = waiters.iter_mut().map(Waiter::served_id).collect();
        assert_eq!(served, ["a", "b", "c"], "{resume}");
    }
}

#[test]
fn a_value_that_cannot_be_read_counts_as_absent_and_the_log_says_so() {
    let server = Server::start();
    let mut con = server.con();
    let built_in = policy(25, 1000, 3_600_000, 0);
    for value in [
        "",
        "nonsense",
        "[]",
        "3",
        "null",
        "{",
        "{\"attempts\":\"3\"}",
        "{\"attempts\":-1}",
        "{\"attempts\":1.5}",
        "{\"attempts\":1e99}",
        "{\"backoff_first_ms\":true}",
        "{\"paused\":\"perhaps\"}",
        "{\"unknown\":1}",
    ] {
        ok!(con, "HSET", QUEUES, "orders", value);
        assert_eq!(say(&mut con, "RMQ.POLICY app orders"), built_in, "{value}");
        let delivery = take_new(&mut con, "a");
        assert_eq!(ack(&mut con, &delivery), 1, "{value}");
    }
    ok!(con, "HSET", QUEUES, "orders", b"\xff\0{".as_slice());
    assert_eq!(say(&mut con, "RMQ.POLICY app orders"), built_in);
    assert!(server.log().contains("policy"), "{}", server.log());
    // What can be read beside it counts, and setting one value mends the rest.
    ok!(con, "HSET", QUEUES, "orders", "{\"attempts\":3,\"backoff_first_ms\":\"x\"}");
    assert_eq!(say(&mut con, "RMQ.POLICY app orders"), policy(3, 1000, 3_600_000, 0));
    assert_eq!(say(&mut con, "RMQ.POLICY app orders BACKOFF 1 2"), policy(3, 1, 2, 0));
    // A change by a plain command counts at once.
    ok!(con, "HSET", QUEUES, "orders", "{\"attempts\":1}");
    let delivery = take_new(&mut con, "b");
    assert_eq!(nack(&mut con, &delivery, "DELAY 0"), "DEAD");
}

#[test]
fn each_policy_that_cannot_be_read_is_logged_sooner_or_later() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", QUEUES, "one", "{bad", "two", "[also bad]");
    let read = |con: &mut Connection| ["one", "two"].map(|queue| drop(ok!(con, "RMQ.POLICY", "app", queue)));
    read(&mut con);
    assert!(server.log().contains("'{bad'"), "{}", server.log());
    // The log is silent for ten seconds.
    let both = || {
        read(&mut con);
        server.log().contains("'[also bad]'")
    };
    assert!(eventually(Duration::from_secs(30), both), "{}", server.log());
}

#[test]
fn while_a_slot_moves_reset_forgets_no_queue_whose_list_is_on_the_other_node() {
    let cluster = Cluster::start(2, 0);
    let ns = "{t}";
    let mut con = cluster.node_for_key(ns).con();
    publish(&mut con, ns, "orders", "a");
    ok!(con, "RMQ.POLICY", ns, "orders", "ATTEMPTS", 3);
    Moving::begin(&cluster, ns).move_key("{t}:orders:pending");
    let reply = say(&mut con, "RMQ.POLICY {t} orders RESET");
    assert!(reply.starts_with("ASK ") || reply.starts_with("TRYAGAIN "), "{reply}");
    let stored: String = ask!(con, "HGET", "{t}:queues", "orders");
    assert_eq!(stored, "{\"attempts\":3}");
}
