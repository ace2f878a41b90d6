//! Ending, postponing and clearing: RMQ.CANCEL, RMQ.RESCHEDULE and RMQ.PURGE. At the end, what all commands for looking and
//! mending do with keys of another type, and with a wrong name.

use crate::calls::*;
use crate::common::*;
use redis::Connection;

/// A dead letter, with its reason.
fn bury(con: &mut Connection, queue: &str, id: &str) {
    publish(con, "app", queue, id);
    let delivery = reserve(con, "app", HOUR, 1, &[queue]).remove(0);
    assert_eq!(delivery.id, id);
    assert_eq!(nack(con, &delivery, "DEAD"), "DEAD");
}

/// Nothing but what the namespace remembers of its queues.
#[track_caller]
fn assert_gone(con: &mut Connection) {
    let left: Vec<String> = ask!(con, "KEYS", "*");
    assert!(left.iter().all(|key| key == QUEUES), "{left:?}");
}

#[test]
fn cancel_ends_a_message_in_any_state_with_every_trace() {
    let server = Server::start();
    let mut con = server.con();
    bury(&mut con, "orders", "dead");
    let held = take_new(&mut con, "held");
    order(&mut con, "pending");
    delayed_order(&mut con, "delayed", HOUR);
    ok!(con, "HSET", PAYLOADS, "lost", "p", "lost:queue", "app:orders");
    steps(
        &mut con,
        &[(
            "RMQ.CANCEL app IDS held pending none delayed lost dead held",
            "[processing pending nil delayed lost dead nil]",
        )],
    );
    assert_gone(&mut con);
    assert_eq!(counter(&server, "cancelled"), 5);
    // Its holder learns it.
    assert_eq!((extend(&mut con, &held, HOUR), ack(&mut con, &held)), (0, 0));
    assert_eq!(nack(&mut con, &held, ""), "nil");
    // The ids can be used again, and are there once.
    for id in ["held", "pending", "delayed", "lost", "dead"] {
        order(&mut con, id);
    }
    assert_eq!(ids(&take_up_to(&mut con, 10)), ["held", "pending", "delayed", "lost", "dead"]);
}

#[test]
fn cancel_waiting_leaves_alone_what_somebody_holds() {
    let server = Server::start();
    let mut con = server.con();
    let held = take_new(&mut con, "held");
    order(&mut con, "pending");
    delayed_order(&mut con, "delayed", HOUR);
    bury(&mut con, "mails", "dead");
    steps(&mut con, &[("RMQ.CANCEL app waiting ids held pending delayed dead", "[nil pending delayed dead]")]);
    assert_eq!(ack(&mut con, &held), 1);
    assert_gone(&mut con);
}

#[test]
fn a_cancelled_id_is_accepted_again_although_it_was_published_once() {
    let server = Server::start();
    let mut con = server.con();
    for line in ["RMQ.PURGE app PENDING orders", "RMQ.CANCEL app IDS a"] {
        steps(
            &mut con,
            &[
                ("RMQ.PUBLISH app ONCE 60000 TO orders a p", "[a]"),
                ("RMQ.PUBLISH app ONCE 60000 TO orders a p", "[nil]"),
                (line, if line.contains("PURGE") { "1" } else { "[pending]" }),
                ("RMQ.PUBLISH app ONCE 60000 TO orders a p", "[a]"),
                ("RMQ.CANCEL app IDS a", "[pending]"),
            ],
        );
    }
    assert_gone(&mut con);
}

#[test]
fn a_live_and_a_dead_message_of_one_id_go_together() {
    let server = Server::start();
    let mut con = server.con();
    bury(&mut con, "orders", "a");
    bury(&mut con, "orders", "b");
    order(&mut con, "a");
    steps(&mut con, &[("RMQ.CANCEL app IDS a", "[pending]")]);
    let now = Snapshot::of(&mut con);
    assert_eq!(now.keys(), [DLQ, DLQ_DATA, QUEUES]);
    assert_eq!(now.list(DLQ), ["b"]);
    assert_eq!(now.hash(DLQ_DATA).keys().collect::<Vec<_>>(), ["b", "b:death", "b:queue"]);
}

#[test]
fn cancel_removes_every_copy_and_finds_what_has_strayed() {
    let server = Server::start();
    let mut con = server.con();
    for id in 0..8 {
        order(&mut con, &format!("{id}"));
    }
    // Twice in its list, also delayed, and in the list of another queue.
    ok!(con, "LPUSH", PENDING, "1", "3", "1");
    ok!(con, "ZADD", DELAYS, 1000, "1");
    publish(&mut con, "app", "mails", "m");
    ok!(con, "LREM", PENDING, 0, "2");
    ok!(con, "RPUSH", "app:mails:pending", "2");
    // Without `<id>:queue`.
    ok!(con, "HDEL", PAYLOADS, "4:queue");
    let few = "RMQ.CANCEL app IDS 1 2 4";
    let many = "RMQ.CANCEL app IDS 3 5 6 7 none other";
    steps(&mut con, &[(few, "[pending pending pending]"), (many, "[pending pending pending pending nil nil]")]);
    assert_eq!(list(&mut con, PENDING), ["0"]);
    assert_eq!(list(&mut con, "app:mails:pending"), ["m"]);
    let now = Snapshot::of(&mut con);
    assert_eq!(now.hash(PAYLOADS).keys().collect::<Vec<_>>(), ["0", "0:queue", "m", "m:queue"]);
    assert!(now.contents(DELAYS).is_none());
}

#[test]
fn where_the_payloads_are_missing_nothing_is_cancelled_or_purged() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c"] {
        order(&mut con, id);
    }
    take(&mut con);
    delayed_order(&mut con, "d", HOUR);
    bury(&mut con, "mails", "e");
    ok!(con, "DEL", PAYLOADS, DLQ_DATA);
    let before = Snapshot::of(&mut con);
    steps(
        &mut con,
        &[
            ("RMQ.CANCEL app IDS a b d e", "[nil nil nil nil]"),
            ("RMQ.PURGE app PENDING orders", "0"),
            ("RMQ.PURGE app DELAYED", "0"),
            ("RMQ.PURGE app DEAD", "0"),
            ("RMQ.RESCHEDULE app 0 IDS a d", "[0 0]"),
            ("RMQ.PURGE typo PENDING orders", "0"),
        ],
    );
    before.assert_unchanged(&mut con);
    assert!(counter(&server, "skipped") >= 4);
}

#[test]
fn reschedule_makes_a_message_due_later_or_now() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "pending");
    delayed_order(&mut con, "delayed", HOUR);
    delayed_order(&mut con, "other", HOUR);
    let now = server_time_ms(&mut con);
    steps(&mut con, &[("RMQ.RESCHEDULE app 60000 IDS pending delayed", "[1 1]")]);
    for id in ["pending", "delayed"] {
        let due = score(&mut con, DELAYS, id).expect("it is delayed");
        assert!((59_000.0..=70_000.0).contains(&(due - now as f64)), "{due}");
        assert_eq!(attempts_of(&mut con, id), (0, due as i64 * 1000, None));
    }
    assert_eq!(length(&mut con, PENDING), 0);
    assert!(take_up_to(&mut con, 5).is_empty());
    // Now.
    steps(&mut con, &[("RMQ.RESCHEDULE app 0 IDS delayed pending delayed", "[1 1 1]")]);
    let taken = take_up_to(&mut con, 5);
    assert_eq!(
        taken.iter().map(|delivery| (delivery.id.as_str(), delivery.attempts)).collect::<Vec<_>>(),
        [("delayed", 1), ("pending", 1)]
    );
    assert_eq!(counter(&server, "rescheduled"), 4);
    // Not what is held, dead, lost or unknown.
    bury(&mut con, "mails", "dead");
    ok!(con, "HSET", PAYLOADS, "lost", "p", "lost:queue", "app:orders");
    let before = Snapshot::of(&mut con);
    steps(&mut con, &[("RMQ.RESCHEDULE app 5 IDS delayed dead lost none", "[0 0 0 0]")]);
    before.assert_unchanged(&mut con);
}

#[test]
fn reschedule_keeps_attempts_and_error_and_wakes_who_waits() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    assert_eq!(nack(&mut con, &delivery, "DELAY 3600000 ERROR boom"), "RETRY");
    let mut waiter = Waiter::start(&server);
    assert!(waiter.is_waiting());
    steps(&mut con, &[("RMQ.RESCHEDULE app 0 IDS a", "[1]")]);
    let again = waiter.served_one();
    assert_eq!((again.id.as_str(), again.attempts), ("a", 2));
    assert_eq!(attempts_of(&mut con, "a").2.as_deref(), Some("boom"));
    // A little later, too, without anybody asking.
    assert_eq!(nack(&mut con, &again, "DELAY 3600000"), "RETRY");
    let mut waiter = Waiter::start(&server);
    let started = std::time::Instant::now();
    steps(&mut con, &[("RMQ.RESCHEDULE app 200 IDS a", "[1]")]);
    assert_eq!(waiter.served_one().attempts, 3);
    assert!(started.elapsed().as_millis() >= 200);
}

#[test]
fn purge_clears_a_queue_oldest_first_and_leaves_no_payload() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c", "d"] {
        order(&mut con, id);
    }
    publish(&mut con, "app", "mails", "m");
    let held = take(&mut con);
    steps(&mut con, &[("RMQ.PURGE app COUNT 2 PENDING orders", "2")]);
    assert_eq!(list(&mut con, PENDING), ["d"]);
    steps(&mut con, &[("RMQ.PURGE app PENDING orders", "1"), ("RMQ.PURGE app PENDING orders", "0")]);
    let now = Snapshot::of(&mut con);
    assert_eq!(now.hash(PAYLOADS).keys().collect::<Vec<_>>(), ["a", "a:attempts", "a:queue", "m", "m:queue"]);
    // The queue is there while a message of it is in work.
    assert_eq!(now.hash(QUEUES).keys().collect::<Vec<_>>(), ["mails", "orders"]);
    assert_eq!(ack(&mut con, &held), 1);
    steps(&mut con, &[("RMQ.PURGE app PENDING orders", "0"), ("RMQ.PURGE app PENDING mails", "1")]);
    assert_eq!(Snapshot::of(&mut con).keys(), [] as [&str; 0]);
    assert_eq!(counter(&server, "purged"), 4);
}

#[test]
fn purge_of_delayed_and_dead_takes_all_queues_or_one() {
    let server = Server::start();
    let mut con = server.con();
    for (n, queue) in ["orders", "mails", "orders", "mails", "orders"].iter().enumerate() {
        bury(&mut con, queue, &format!("dead-{n}"));
        ok!(con, "RMQ.PUBLISH", "app", "DELAY", HOUR + n as i64, "TO", queue, format!("delayed-{n}"), "p");
    }
    steps(&mut con, &[("RMQ.PURGE app COUNT 2 DEAD orders", "2"), ("RMQ.PURGE app COUNT 2 DELAYED orders", "2")]);
    assert_eq!(list(&mut con, DLQ), ["dead-4", "dead-3", "dead-1"]);
    let delayed: Vec<String> = ask!(con, "ZRANGE", DELAYS, 0, -1);
    assert_eq!(delayed, ["delayed-1", "delayed-3", "delayed-4"]);
    steps(&mut con, &[("RMQ.PURGE app DEAD", "3"), ("RMQ.PURGE app DELAYED", "3"), ("RMQ.PURGE app DEAD", "0")]);
    assert_eq!(Snapshot::of(&mut con).keys(), [] as [&str; 0]);
}

#[test]
fn a_policy_keeps_a_purged_queue_known() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    ok!(con, "RMQ.POLICY", "app", "orders", "ATTEMPTS", 3);
    delayed_order(&mut con, "d", HOUR);
    publish(&mut con, "app", "mails", "m");
    ok!(con, "RMQ.PUBLISH", "app", "DELAY", HOUR, "TO", "mails", "later", "p");
    steps(&mut con, &[("RMQ.PURGE app PENDING orders", "1"), ("RMQ.PURGE app PENDING mails", "1")]);
    let known: Vec<String> = ask!(con, "HKEYS", QUEUES);
    assert_eq!(known, ["orders", "mails"]);
    steps(&mut con, &[("RMQ.PURGE app DELAYED", "2")]);
    let known: Vec<String> = ask!(con, "HKEYS", QUEUES);
    assert_eq!(known, ["orders"]);
}

#[test]
fn a_copy_of_a_held_message_is_purged_and_the_message_is_not() {
    let server = Server::start();
    let mut con = server.con();
    let held = take_new(&mut con, "a");
    ok!(con, "LPUSH", PENDING, "a", "stale");
    ok!(con, "ZADD", DELAYS, 1000, "a");
    steps(&mut con, &[("RMQ.PURGE app PENDING orders", "0"), ("RMQ.PURGE app DELAYED", "0")]);
    let now = Snapshot::of(&mut con);
    assert!(now.contents(PENDING).is_none() && now.contents(DELAYS).is_none());
    assert_eq!(ack(&mut con, &held), 1);
    // Messages of mx-rmq's producer have deadlines while they wait, and go.
    ok!(con, "HSET", PAYLOADS, "script", "p", "script:queue", "app:orders");
    ok!(con, "LPUSH", PENDING, "script");
    ok!(con, "ZADD", EXPIRES, 1000, "script");
    steps(&mut con, &[("RMQ.PURGE app PENDING orders", "1")]);
    assert_eq!(Snapshot::of(&mut con).keys(), [] as [&str; 0]);
}

#[test]
fn however_many_copies_of_a_held_message_are_purged_the_message_is_not() {
    let server = Server::start();
    let mut con = server.con();
    let held = take_new(&mut con, "a");
    ok!(con, "LPUSH", PENDING, "a", "a", "a");
    steps(&mut con, &[("RMQ.PURGE app PENDING orders", "0")]);
    assert_eq!(length(&mut con, PENDING), 0);
    assert_eq!(ack(&mut con, &held), 1);
}

#[test]
fn one_call_purges_a_batch_and_calls_until_0_purge_all() {
    let server = Server::builder().module_args(&["max-batch", "100"]).start();
    let mut con = server.con();
    for block in 0..5 {
        for (option, queue) in [("URGENT", "orders"), ("", "mails")] {
            let line = format!("RMQ.PUBLISH app {option} TO {queue}");
            let messages: String = (0..50).map(|n| format!(" {queue}-{block}-{n} p")).collect();
            say(&mut con, &(line + &messages));
            let line = format!("RMQ.PUBLISH app DELAY {} TO {queue}", HOUR + block);
            let messages: String = (0..50).map(|n| format!(" later-{queue}-{block}-{n} p")).collect();
            say(&mut con, &(line + &messages));
        }
    }
    // Very many stale ids stand behind the messages.
    for _ in 0..150 {
        ok!(con, "LPUSH", PENDING, (0..100).map(|n| format!("stale-{n}")).collect::<Vec<_>>());
    }
    for which in ["PENDING orders", "DELAYED orders", "PENDING mails", "DELAYED"] {
        let mut purged = Vec::new();
        loop {
            match say(&mut con, &format!("RMQ.PURGE app COUNT 5000 {which}")).parse::<usize>().expect("a number") {
                0 => break,
                count => purged.push(count),
            }
        }
        assert_eq!(purged, [100, 100, 50], "{which}");
    }
    // A missing hash of payloads proves nothing; where there is one, ids without message go with the next purge.
    let left = length(&mut con, PENDING);
    assert!((1..10_000).contains(&left), "{left}");
    steps(&mut con, &[("RMQ.PURGE app PENDING orders", "0")]);
    assert_eq!(length(&mut con, PENDING), left);
    publish(&mut con, "app", "mails", "m");
    steps(&mut con, &[("RMQ.PURGE app PENDING orders", "0"), ("RMQ.PURGE app PENDING mails", "1")]);
    assert_eq!(Snapshot::of(&mut con).keys(), [] as [&str; 0]);
}

#[test]
fn a_purge_gets_behind_ids_without_message_and_copies_of_held_ones_in_one_call() {
    let server = Server::start();
    let mut con = server.con();
    let held = take_new(&mut con, "held");
    bury(&mut con, "mails", "dead");
    order(&mut con, "a");
    delayed_order(&mut con, "d", HOUR);
    let stale: Vec<String> = (0..3000).map(|number| format!("stale-{number}")).collect();
    ok!(con, "RPUSH", PENDING, &stale, "held");
    ok!(con, "RPUSH", DLQ, &stale);
    let scores: Vec<String> = stale.iter().flat_map(|id| ["1".into(), id.clone()]).collect();
    ok!(con, "ZADD", DELAYS, scores, 1, "held");
    for which in ["PENDING orders", "DELAYED", "DEAD"] {
        let line = format!("RMQ.PURGE app COUNT 10 {which}");
        steps(&mut con, &[(&line, "1"), (&line, "0")]);
    }
    assert_eq!(ack(&mut con, &held), 1);
    let left = Snapshot::of(&mut con).keys().to_vec();
    assert!(left.iter().all(|key| *key == QUEUES), "{left:?}");
}

#[test]
fn an_id_whose_dead_letter_is_purged_is_accepted_again_unless_it_is_live() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["gone", "live"] {
        steps(&mut con, &[(&format!("RMQ.PUBLISH app ONCE {HOUR} TO orders {id} p"), &format!("[{id}]"))]);
        let delivery = take(&mut con);
        assert_eq!(nack(&mut con, &delivery, "DEAD"), "DEAD");
    }
    order(&mut con, "live");
    steps(
        &mut con,
        &[
            ("RMQ.PURGE app DEAD", "2"),
            ("RMQ.CANCEL app IDS other", "[nil]"),
            ("RMQ.PUBLISH app ONCE 60000 TO orders gone p", "[gone]"),
        ],
    );
    let held = take(&mut con);
    assert_eq!((held.id.as_str(), ack(&mut con, &held)), ("live", 1));
    steps(&mut con, &[("RMQ.PUBLISH app ONCE 60000 TO orders live p", "[nil]")]);
}

#[test]
fn a_purged_queue_is_forgotten_although_others_have_many_messages() {
    let server = Server::start();
    let mut con = server.con();
    let script = "for n = 1, ARGV[1] do \
                      redis.call('RMQ.PUBLISH', 'app', 'DELAY', 3600000, 'TO', 'later', 'd' .. n, 'p') \
                      redis.call('LPUSH', 'app:dlq', 'x' .. n) \
                      redis.call('HSET', 'app:dlq:data', 'x' .. n, 'p', 'x' .. n .. ':queue', 'app:failed') \
                  end";
    ok!(con, "EVAL", script, 0, 5000);
    for queue in ["orders", "later", "failed"] {
        publish(&mut con, "app", queue, queue);
        assert_eq!(say(&mut con, &format!("RMQ.PURGE app PENDING {queue}")), "1");
    }
    let known: Vec<String> = ask!(con, "HKEYS", QUEUES);
    assert_eq!(known, ["later", "failed"]);
}

#[test]
fn a_copy_in_the_list_of_another_queue_outlives_a_cancel_until_a_repair() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    publish(&mut con, "app", "mails", "m");
    ok!(con, "LPUSH", "app:mails:pending", "a");
    steps(
        &mut con,
        &[
            ("RMQ.CANCEL app IDS a", "[pending]"),
            ("RMQ.AUDIT app", "[0 [pending_without_payload [1 [a]]]]"),
            ("RMQ.REPAIR app", "[0 [pending_without_payload [1 [a]]]]"),
            ("LRANGE app:mails:pending 0 -1", "[m]"),
        ],
    );
}

#[test]
fn bad_words_are_refused_and_change_nothing() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    delayed_order(&mut con, "d", HOUR);
    let before = Snapshot::of(&mut con);
    steps(
        &mut con,
        &[
            ("RMQ.CANCEL app", "ERR IDS must be given, followed by at least one id"),
            ("RMQ.CANCEL app IDS", "ERR IDS must be followed by at least one id"),
            ("RMQ.CANCEL app a d", "ERR IDS must be given, followed by at least one id"),
            ("RMQ.CANCEL app ALL IDS a", "ERR unknown option 'ALL'"),
            ("RMQ.RESCHEDULE app IDS a", "ERR delay_ms must be an integer of milliseconds from 0 to 1000000000000"),
            ("RMQ.RESCHEDULE app -1 IDS a", "ERR delay_ms must be an integer of milliseconds from 0 to 1000000000000"),
            ("RMQ.RESCHEDULE app 5 a", "ERR IDS must be given, followed by at least one id"),
            ("RMQ.RESCHEDULE app 5 NOW IDS a", "ERR unknown option 'NOW'"),
            (
                "RMQ.PURGE app",
                "ERR PENDING, DELAYED or DEAD must be given, followed by a queue (needed for PENDING only)",
            ),
            ("RMQ.PURGE app PENDING", "ERR PENDING must be followed by a queue"),
            ("RMQ.PURGE app PENDING *", "ERR queue must not be empty, ..."),
            ("RMQ.PURGE app PROCESSING orders", "ERR unknown option 'PROCESSING'"),
            ("RMQ.PURGE app COUNT 0 DELAYED", "ERR COUNT must be a positive integer"),
            ("RMQ.PURGE app DELAYED orders mails", "ERR unknown option 'mails'"),
            ("RMQ.PURGE app DEAD COUNT 5", "ERR option COUNT must come before DEAD"),
            ("RMQ.PURGE app PENDING orders count 5", "ERR option COUNT must come before PENDING"),
        ],
    );
    before.assert_unchanged(&mut con);
    // A list that is none stops the call before anything has changed.
    ok!(con, "SET", WORK, "x");
    let before = Snapshot::of(&mut con);
    for line in ["RMQ.CANCEL app IDS a d", "RMQ.RESCHEDULE app 5 IDS a d", "RMQ.STATS app orders"] {
        steps(&mut con, &[(line, "WRONGTYPE the key 'app:orders:processing' must be a list")]);
    }
    before.assert_unchanged(&mut con);
}

const LOOKING_AND_MENDING: &[&str] = &[
    "RMQ.STATS app",
    "RMQ.STATS app orders",
    "RMQ.PEEK app PENDING orders",
    "RMQ.PEEK app PROCESSING orders",
    "RMQ.PEEK app DELAYED",
    "RMQ.PEEK app OVERDUE orders",
    "RMQ.PEEK app DEAD",
    "RMQ.PEEK app IDS held pending delayed dead",
    "RMQ.CANCEL app IDS held pending delayed dead",
    "RMQ.CANCEL app WAITING IDS held pending delayed dead",
    "RMQ.RESCHEDULE app 60000 IDS held pending delayed dead",
    "RMQ.PURGE app PENDING orders",
    "RMQ.PURGE app DELAYED",
    "RMQ.PURGE app DELAYED orders",
    "RMQ.PURGE app DEAD",
    "RMQ.PURGE app DEAD orders",
    "RMQ.AUDIT app",
    "RMQ.REPAIR app",
];

fn one_in_every_state(con: &mut Connection) {
    ok!(con, "FLUSHALL");
    bury(con, "orders", "dead");
    take_new(con, "held");
    ok!(con, "RMQ.PUBLISH", "app", "ONCE", HOUR, "TO", "orders", "pending", "p");
    delayed_order(con, "delayed", HOUR);
}

/// Whether a call needs a key to be what it should be.
fn needs(line: &str, key: &str) -> bool {
    let starts = |names: &[&str]| names.iter().any(|name| line.starts_with(name));
    let every = ["RMQ.STATS app orders", "RMQ.PEEK app IDS", "RMQ.CANCEL", "RMQ.RESCHEDULE"];
    match key {
        ONCE => starts(&["RMQ.CANCEL", "RMQ.PURGE"]),
        PENDING => starts(&every) || starts(&["RMQ.PEEK app PENDING", "RMQ.PURGE app PENDING"]),
        WORK => starts(&every) || starts(&["RMQ.PEEK app PROCESSING", "RMQ.PURGE app PENDING"]),
        _ => true,
    }
}

#[test]
fn a_key_of_another_type_is_one_error_and_nothing_changes() {
    let server = Server::start();
    let mut con = server.con();
    let mut wrong = Vec::new();
    for key in [PAYLOADS, EXPIRES, DELAYS, QUEUES, DLQ, DLQ_DATA, ONCE, PENDING, WORK] {
        for line in LOOKING_AND_MENDING {
            one_in_every_state(&mut con);
            ok!(con, "DEL", key);
            ok!(con, "SET", key, "of another type");
            let before = Snapshot::of(&mut con);
            let reply = say(&mut con, line);
            let changed = before.diff(&Snapshot::of(&mut con));
            let is_error = reply.starts_with("WRONGTYPE ") && reply.contains(&format!("'{key}'"));
            if needs(line, key) && (!is_error || !changed.is_empty()) {
                wrong.push(format!("{line} with {key}: {reply}; changed {changed:?}"));
            }
            // Where it needs the key not, it goes on, and leaves that one alone.
            let is_left = changed.iter().all(|line| !line.contains(&format!("{key:?}")));
            if !needs(line, key) && (reply.starts_with("WRONGTYPE ") || reply.starts_with("ERR ") || !is_left) {
                wrong.push(format!("{line} needs no {key}: {reply}; changed {changed:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(server.info("rmq")["rmq_panics"], "0");
}

#[test]
fn an_audit_passes_a_list_of_another_type_over_and_a_repair_loses_nothing() {
    let server = Server::start();
    let mut con = server.con();
    for (key, lost) in [(PENDING, "pending"), (WORK, "held")] {
        one_in_every_state(&mut con);
        // Of another queue, to be mended all the same.
        publish(&mut con, "app", "mails", "twice");
        ok!(con, "LPUSH", "app:mails:pending", "twice");
        ok!(con, "DEL", key);
        ok!(con, "SET", key, "of another type");
        let payloads = Snapshot::of(&mut con).hash(PAYLOADS);
        let faults = format!("[0 [lost [1 [{lost}]] in_two_places [1 [twice]]]]");
        steps(&mut con, &[("RMQ.AUDIT app", &faults), ("RMQ.REPAIR app", &faults)]);
        assert_eq!(Snapshot::of(&mut con).hash(PAYLOADS), payloads);
        assert_eq!(list(&mut con, "app:mails:pending"), ["twice"]);
        // The message comes back as soon as its list can.
        ok!(con, "DEL", key);
        say(&mut con, "RMQ.REPAIR app");
        steps(&mut con, &[("RMQ.AUDIT app", "[0 []]")]);
        assert!(list(&mut con, PENDING).contains(&lost.to_string()), "{key}");
    }
}

#[test]
fn a_wrong_namespace_shows_nothing_and_ends_nothing() {
    let server = Server::start();
    let mut con = server.con();
    one_in_every_state(&mut con);
    let before = Snapshot::of(&mut con);
    for ns in ["ap", "app2", "app:orders", "\"\"", "APP"] {
        for line in LOOKING_AND_MENDING {
            let wanted = match line.split(' ').next() {
                Some("RMQ.STATS") => "[delayed 0 due 0 next_due_in_ms nil leased 0 overdue 0 dead 0 queues [...",
                Some("RMQ.PEEK" | "RMQ.CANCEL") if line.contains("IDS") => "[nil nil nil nil]",
                Some("RMQ.PEEK") => "[]",
                Some("RMQ.RESCHEDULE") => "[0 0 0 0]",
                Some("RMQ.PURGE") => "0",
                _ => "[0 []]",
            };
            steps(&mut con, &[(&line.replace(" app", &format!(" {ns}")), wanted)]);
            before.assert_unchanged(&mut con);
        }
    }
}

#[test]
fn a_purge_that_cannot_see_who_holds_a_message_leaves_it_alone() {
    let server = Server::start();
    let mut con = server.con();
    for (copy, purge, expected) in [
        (["LPUSH", PENDING, "a"].as_slice(), "RMQ.PURGE app PENDING orders", "WRONGTYPE "),
        (&["ZADD", DELAYS, "5", "a"], "RMQ.PURGE app DELAYED", "0"),
    ] {
        ok!(con, "FLUSHALL");
        let held = take_new(&mut con, "a");
        ok!(con, copy[0], &copy[1..]);
        ok!(con, "RENAME", WORK, "away");
        ok!(con, "SET", WORK, "not a list");
        let reply = say(&mut con, purge);
        assert!(reply.starts_with(expected), "{purge}: {reply}");
        ok!(con, "RENAME", "away", WORK);
        assert_eq!(ack(&mut con, &held), 1, "{purge}");
    }
}
