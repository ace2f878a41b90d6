//! The worker's wait is the clock: leases that run out, delays that come due, and the timers that wake who waits.

use crate::calls::*;
use crate::common::*;
use redis::Connection;
use std::time::{Duration, Instant};

/// Stores messages of `app:<queue>` with plain commands: many, in no list.
fn store(con: &mut Connection, queue: &str, ids: &[String]) {
    for ids in ids.chunks(5000) {
        let fields: Vec<String> =
            ids.iter().flat_map(|id| [id.clone(), "p".into(), format!("{id}:queue"), format!("app:{queue}")]).collect();
        ok!(con, "HSET", PAYLOADS, fields);
    }
}

/// Adds ids to a sorted set, the first with the lowest score.
fn due(con: &mut Connection, key: &str, first: f64, ids: &[String]) {
    let scores = |(n, id): (usize, &String)| [(first + n as f64).to_string(), id.clone()];
    ok!(con, "ZADD", key, ids.iter().enumerate().flat_map(scores).collect::<Vec<_>>());
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n:05}")).collect()
}

#[test]
fn a_lease_that_ran_out_brings_its_message_back_before_the_others_the_earliest_first() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c", "d"] {
        order(&mut con, id);
    }
    let taken = [(); 3].map(|()| take(&mut con));
    let deadline = server_time_ms(&mut con) as f64 - 40.5;
    ok!(con, "ZADD", EXPIRES, deadline, "a", deadline - 40.0, "b");
    // Whichever queue is asked for, the whole namespace's time is kept.
    tick(&mut con);
    assert_eq!(list(&mut con, PENDING), ["d", "a", "b"]);
    assert_eq!(list(&mut con, WORK), ["c"]);
    let (n, micros, error) = attempts_of(&mut con, "a");
    assert_eq!((n, error.as_deref()), (1, Some("lease ran out")));
    assert!((micros as f64 - deadline * 1000.0).abs() <= 1000.0, "{micros} and {deadline}");
    assert_eq!(Snapshot::of(&mut con).zset(EXPIRES).len(), 1);
    assert_eq!(ids(&take_up_to(&mut con, 2)), ["b", "a"]);
    assert_eq!(ack(&mut con, &taken[0]), 0);
    assert_eq!(counter(&server, "expired"), 2);
}

#[test]
fn a_deadline_of_what_is_not_in_processing_only_goes() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "pending");
    delayed_order(&mut con, "delayed", HOUR);
    ok!(con, "ZADD", EXPIRES, 1000, "pending", 1001, "delayed", 1002, "gone", 1003.5, "never");
    let before = Snapshot::of(&mut con);
    tick(&mut con);
    let after = Snapshot::of(&mut con);
    assert!(after.contents(EXPIRES).is_none());
    ok!(con, "ZADD", EXPIRES, 1000, "pending", 1001, "delayed", 1002, "gone", 1003.5, "never");
    before.assert_unchanged(&mut con);
    assert_eq!(counter(&server, "expired"), 0);
}

#[test]
fn due_messages_of_all_queues_go_to_the_left_of_their_pending_in_the_order_in_which_they_are_due() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "first");
    for (id, queue, at) in [("c", "orders", 3), ("a", "orders", 1), ("b", "mails", 2), ("z", "mails", 80)] {
        let at = at * 100_000_000_000i64;
        steps(&mut con, &[(&format!("RMQ.PUBLISH app AT {at} TO {queue} {id} p"), &format!("[{id}]"))]);
    }
    tick(&mut con);
    assert_eq!(list(&mut con, PENDING), ["c", "a", "first"]);
    assert_eq!(list(&mut con, "app:mails:pending"), ["b"]);
    let now = Snapshot::of(&mut con);
    assert_eq!(now.zset(DELAYS).len(), 1);
    assert_eq!(now.hash(QUEUES)["mails"], "{}");
    assert_eq!(counter(&server, "moved"), 3);
}

#[test]
fn one_call_takes_back_and_moves_at_most_a_hundred_each() {
    let server = Server::start();
    let mut con = server.con();
    let (late, stuck) = (names("d", 250), names("l", 250));
    for ids in [&late, &stuck] {
        store(&mut con, "orders", ids);
    }
    due(&mut con, DELAYS, 1000.0, &late);
    due(&mut con, EXPIRES, 1000.5, &stuck);
    ok!(con, "LPUSH", WORK, &stuck);
    for (call, wanted) in [(1, 100), (2, 200), (3, 250), (4, 250)] {
        tick(&mut con);
        let pending = list(&mut con, PENDING);
        let count = |prefix| pending.iter().filter(|id| id.starts_with(prefix)).count();
        assert_eq!((count('d'), count('l')), (wanted, wanted), "call {call}");
        assert_eq!(length(&mut con, WORK), 250 - wanted);
    }
    assert_eq!(take_up_to(&mut con, 500).len(), 500);
}

/// A message that the clock cannot move, by the plain commands that make it so.
const STUCK: [(&str, &str, &[&str]); 6] = [
    ("no queue", "x", &["HDEL app:payloads x:queue"]),
    ("another namespace's queue", "x", &["HSET app:payloads x:queue other:orders"]),
    ("a queue without namespace", "x", &["HSET app:payloads x:queue orders"]),
    ("a queue of a longer namespace", "x", &["HSET app:payloads x:queue app:orders:x"]),
    ("a namespace without queue", "x", &["HSET app:payloads x:queue app:"]),
    (
        "lists that are none",
        "x",
        &["HSET app:payloads x:queue app:bad", "SET app:bad:pending s", "SET app:bad:processing s"],
    ),
];

#[test]
fn a_message_that_cannot_be_moved_stays_costs_the_next_calls_nothing_and_hinders_nobody() {
    let server = Server::start();
    let mut con = server.con();
    for key in [DELAYS, EXPIRES] {
        for (about, id, setup) in STUCK {
            ok!(con, "FLUSHALL");
            ok!(con, "HSET", PAYLOADS, "x", "p", "x:queue", "app:orders", "good", "p", "good:queue", "app:orders");
            ok!(con, "LPUSH", WORK, "x", "good");
            ok!(con, "ZADD", key, 1000.5, id, 2000.5, "good");
            HERE.add(&mut con, setup);
            let before = Snapshot::of(&mut con);
            let skipped = counter(&server, "skipped");
            tick(&mut con);
            assert_eq!(list(&mut con, PENDING), ["good"], "{about} in {key}");
            assert_eq!(counter(&server, "skipped"), skipped + 1, "{about} in {key}");
            let until = score(&mut con, key, id).unwrap_or_else(|| panic!("{about}: gone from {key}"));
            let put_off = until - server_time_ms(&mut con) as f64;
            assert!((10_000.0..600_000.0).contains(&put_off), "{about} in {key}: put off by {put_off} ms");

            // Its fields and the lists of others are as they were.
            let after = Snapshot::of(&mut con);
            assert_eq!(after.hash(PAYLOADS)["x"], "p");
            assert_eq!(after.hash(PAYLOADS).get("x:queue"), before.hash(PAYLOADS).get("x:queue"));
            let foreign = |key: &String| !key.starts_with("app:");
            assert!(!after.keys().iter().any(foreign), "{about} in {key}: {:?}", after.keys());
            tick(&mut con);
            assert_eq!(counter(&server, "skipped"), skipped + 1, "{about} in {key}");

            // Mended, it moves like any other.
            ok!(con, "HSET", PAYLOADS, "x:queue", "app:orders");
            ok!(con, "ZADD", key, 1000.5, id);
            tick(&mut con);
            assert_eq!(score(&mut con, key, id), None, "{about} in {key}");
            assert!(list(&mut con, PENDING).contains(&id.to_string()), "{about} in {key}");
        }
    }
}

#[test]
fn a_holder_whose_message_could_not_be_taken_back_still_settles_it() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    let delivery = take_for(&mut con, 1);
    ok!(con, "HSET", PAYLOADS, "a:queue", "other:orders");
    sleep_ms(20);
    tick(&mut con);
    assert_eq!(ack(&mut con, &delivery), 1);
}

#[test]
fn ids_without_payload_are_dropped_by_the_clock_where_the_payloads_are_there() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "ZADD", DELAYS, 1000, "ghost");
    ok!(con, "ZADD", EXPIRES, 1000.5, "spectre");
    let before = Snapshot::of(&mut con);
    tick(&mut con);
    before.assert_unchanged(&mut con);
    order(&mut con, "a");
    tick(&mut con);
    assert_eq!(Snapshot::of(&mut con).keys(), [PENDING, PAYLOADS, QUEUES]);
}

#[test]
fn many_stuck_messages_do_not_hide_what_is_due_behind_them() {
    let server = Server::start();
    let mut con = server.con();
    let stuck = names("s", 2000);
    store(&mut con, "bad", &stuck);
    ok!(con, "SET", "app:bad:pending", "not a list");
    due(&mut con, DELAYS, 1000.0, &stuck);
    order(&mut con, "a");
    let delivery = take(&mut con);
    ok!(con, "ZADD", DELAYS, 9000, "a");
    ok!(con, "LREM", WORK, 1, "a");
    let mut calls = 0;
    while length(&mut con, PENDING) == 0 {
        tick(&mut con);
        calls += 1;
        assert!(calls <= 21, "the message behind {} stuck ones is not reached", stuck.len());
    }
    assert_eq!(delivery.id, take(&mut con).id);
}

/// 300 ms, less what rounding to ms may take.
const DUE: Duration = Duration::from_millis(298);

/// The id and the receipt of the message `a`, which somebody holds.
fn held(con: &mut Connection) -> String {
    let (n, micros, _) = attempts_of(con, "a");
    format!("a {n}-{micros}")
}

fn hold(con: &mut Connection) {
    take_new(con, "a");
}

fn nothing(_: &mut Connection) {}

fn store_a(con: &mut Connection) {
    ok!(con, "HSET", PAYLOADS, "a", "p", "a:queue", "app:orders");
}

type Doing = fn(&mut Connection);

/// What is there before a worker waits, and what happens then; `a` is due 300 ms after the latter, or after the
/// former where nothing happens then.
const COMES_DUE: &[(&str, Doing, Option<Doing>)] = &[
    ("a delay", nothing, Some(|con| delayed_order(con, "a", 300))),
    ("a delay that was there before", |con| delayed_order(con, "a", 300), None),
    ("a delay before another", |con| delayed_order(con, "z", HOUR), Some(|con| delayed_order(con, "a", 300))),
    (
        "a time",
        nothing,
        Some(|con| {
            let at = server_time_ms(con) + 300;
            ok!(con, "RMQ.PUBLISH", "app", "AT", at, "TO", "orders", "a", "p");
        }),
    ),
    (
        "a delay from a script",
        nothing,
        Some(|con| {
            let publish = "return redis.call('RMQ.PUBLISH', 'app', 'DELAY', '300', 'TO', 'orders', 'a', 'p')";
            ok!(con, "EVAL", publish, 0);
        }),
    ),
    (
        "a delay from a transaction",
        nothing,
        Some(|con| {
            ok!(con, "MULTI");
            ok!(con, "RMQ.PUBLISH", "app", "DELAY", 300, "TO", "orders", "a", "p");
            ok!(con, "EXEC");
        }),
    ),
    (
        "a NACK with a delay",
        hold,
        Some(|con| {
            let line = format!("RMQ.NACK app {} DELAY 300", held(con));
            steps(con, &[(&line, "RETRY")]);
        }),
    ),
    (
        "a NACK with the policy's backoff",
        hold,
        Some(|con| {
            let line = format!("RMQ.NACK app {}", held(con));
            steps(con, &[("RMQ.POLICY app orders BACKOFF 300 300", "..."), (&line, "RETRY")]);
        }),
    ),
    (
        "a lease",
        |con| {
            order(con, "a");
            take_for(con, 300);
        },
        None,
    ),
    (
        "a lease that is cut short",
        hold,
        Some(|con| {
            let line = format!("RMQ.EXTEND app 300 {}", held(con));
            steps(con, &[(&line, "[1]")]);
        }),
    ),
    (
        "a plain ZADD that makes the set",
        store_a,
        Some(|con| {
            let at = server_time_ms(con) + 300;
            ok!(con, "ZADD", DELAYS, at, "a");
        }),
    ),
    (
        "a plain ZADD into the set",
        |con| delayed_order(con, "z", HOUR),
        Some(|con| {
            store_a(con);
            let at = server_time_ms(con) + 300;
            ok!(con, "ZADD", DELAYS, at, "a");
        }),
    ),
    (
        "a deadline that is moved by a plain ZADD",
        hold,
        Some(|con| {
            let at = server_time_ms(con) as f64 + 300.5;
            ok!(con, "ZADD", EXPIRES, at, "a");
        }),
    ),
];

#[test]
fn whatever_comes_due_wakes_a_waiting_worker_neither_early_nor_late() {
    let server = Server::start();
    let mut con = server.con();
    for (about, before, meanwhile) in COMES_DUE {
        println!("{about}");
        // A plain command signals nobody: the look once a second finds what it did.
        let late = if about.contains("plain") { 2000 } else { 900 };
        assert_below(late, || {
            ok!(con, "FLUSHALL");
            let start = Instant::now();
            before(&mut con);
            let mut waiter = Waiter::start(&server);
            waiter.since = start;
            if let Some(meanwhile) = meanwhile {
                waiter.since = Instant::now();
                meanwhile(&mut con);
            }
            let (delivery, after) = waiter.served_after(DUE);
            assert_eq!((delivery.id.as_str(), delivery.queue.as_str()), ("a", "orders"), "{about}");
            assert_eq!(ack(&mut con, &delivery), 1, "{about}");
            after.as_millis() as u64
        });
    }
}

#[test]
fn a_lease_that_a_waiting_client_was_given_wakes_the_next_when_it_runs_out() {
    let server = Server::start();
    let mut con = server.con();
    assert_below(900, || {
        ok!(con, "FLUSHALL");
        let mut first = Waiter::sending(&server, "RMQ.RESERVE app 300 BLOCK 0 FROM orders");
        let mut second = Waiter::start(&server);
        second.since = Instant::now();
        order(&mut con, "a");
        assert_eq!(first.served_one().attempts, 1);
        let (delivery, after) = second.served_after(DUE);
        assert_eq!(delivery.attempts, 2);
        after.as_millis() as u64
    });
}

#[test]
fn most_messages_are_delivered_when_they_are_due_and_not_at_the_next_full_second() {
    let server = Server::start();
    let mut con = server.con();
    let mut n = 0;
    let mut lateness = || {
        n += 1;
        let mut waiter = Waiter::start(&server);
        let at = server_time_ms(&mut con) + 200;
        ok!(con, "RMQ.PUBLISH", "app", "AT", at, "TO", "orders", n, "p");
        waiter.served_one().micros() - at * 1000
    };
    assert_below(50_000, || {
        let mut late: Vec<i64> = (0..21).map(|_| lateness()).collect();
        late.sort_unstable();
        assert!(late[0] >= 0, "{late:?} µs");
        late[10] as u64
    });
}

#[test]
fn info_tells_how_late_a_timer_was_once() {
    let server = Server::start();
    let mut con = server.con();
    let late = |con: &mut Connection| -> i64 {
        let info: String = ask!(con, "INFO", "rmq");
        let line = info.lines().find_map(|line| line.strip_prefix("rmq_worst_wakeup_lateness_ms:"));
        line.and_then(|number| number.trim().parse().ok()).expect("a number")
    };
    let mut waiter = Waiter::start(&server);
    let since = Instant::now();
    delayed_order(&mut con, "a", 200);
    late(&mut con);
    // Something is due while the server does something else for a long time.
    ok!(con, "DEBUG", "SLEEP", 1.5);
    assert_eq!(waiter.served_id(), "a");
    let elapsed = since.elapsed().as_millis() as i64;
    let lateness = late(&mut con);
    // 1300 ms at least, if the machine did not pause for more than a second between the first two commands.
    assert!((1000..=elapsed).contains(&lateness), "{lateness} ms of {elapsed}");
    assert_eq!(late(&mut con), 0, "it starts again, and nobody waits any more");
}

#[test]
fn without_anybody_who_waits_nothing_moves() {
    let server = Server::start();
    let mut con = server.con();
    type Ending = (&'static str, fn(&Server, Waiter));
    let endings: &[Ending] = &[
        ("served", |server, mut waiter| {
            order(&mut server.con(), "b");
            assert_eq!(waiter.served_id(), "b");
        }),
        ("unblocked", |server, mut waiter| {
            ok!(server.con(), "CLIENT", "UNBLOCK", waiter.client);
            assert_eq!(waiter.served(), []);
        }),
        ("killed", |server, waiter| drop(ok!(server.con(), "CLIENT", "KILL", "ID", waiter.client))),
        ("hung up", |_, waiter| drop(waiter)),
    ];
    for (about, end) in endings {
        ok!(con, "FLUSHALL");
        let waiter = Waiter::start(&server);
        delayed_order(&mut con, "a", 400);
        end(&server, waiter);
        assert!(eventually(deadline(), || blocked_clients(&server) == 0), "{about}");
        let before = Snapshot::of(&mut con);
        if before.list(PENDING).is_empty() {
            sleep_ms(1600);
            before.assert_unchanged(&mut con);
        }
        let due = take_up_to(&mut con, 1);
        assert_eq!(ids(&due), ["a"], "{about}");
    }
}

#[test]
fn a_waiting_worker_keeps_the_time_of_all_queues_and_gets_only_its_own() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::from(&server, "mails");
    delayed_order(&mut con, "a", 200);
    assert!(eventually(SOON, || length(&mut con, PENDING) == 1));
    assert!(waiter.is_waiting());
    let holder = take(&mut con);
    assert_eq!(extend(&mut con, &holder, 100), 1);
    assert!(eventually(SOON, || length(&mut con, PENDING) == 1));
    assert!(waiter.is_waiting());
    steps(&mut con, &[("RMQ.PUBLISH app DELAY 100 TO mails b p", "[b]")]);
    assert_eq!(waiter.served_id(), "b");
}

#[test]
fn more_than_one_batch_follows_without_anybody_asking() {
    let server = Server::start();
    let mut con = server.con();
    let many = names("d", 1000);
    store(&mut con, "orders", &many);
    let _waiter = Waiter::from(&server, "mails");
    let at = server_time_ms(&mut con) + 300;
    for id in &many {
        ok!(con, "ZADD", DELAYS, at, id);
    }
    // A delay that the commands know of, so that a timer is set for the same time.
    delayed_order(&mut con, "last", 300);
    assert!(eventually(Duration::from_secs(4), || length(&mut con, PENDING) == 1001), "{}", length(&mut con, PENDING));
}

#[test]
fn databases_and_namespaces_have_timers_of_their_own() {
    let server = Server::start();
    let worlds = [(0, "app"), (1, "app"), (0, "other"), (7, "other"), (0, "")];
    let mut waiters: Vec<Waiter> = worlds
        .iter()
        .map(|(db, ns)| {
            let mut raw = Raw::connect(&server);
            raw.call(&["SELECT", &db.to_string()]);
            let ns = if ns.is_empty() { "\"\"" } else { ns };
            Waiter::on(raw, &server, &format!("RMQ.RESERVE {ns} 60000 BLOCK 0 FROM orders"))
        })
        .collect();
    let mut con = server.con();
    for (n, (db, ns)) in worlds.iter().enumerate().rev() {
        ok!(con, "SELECT", *db);
        let id = format!("{db}-{ns}");
        ok!(con, "RMQ.PUBLISH", *ns, "DELAY", 100 + 50 * n, "TO", "orders", &id, "p");
    }
    for (waiter, (db, ns)) in waiters.iter_mut().zip(worlds) {
        assert_eq!(waiter.served_soon().id, format!("{db}-{ns}"));
    }
}

/// Whether the waiter is still without its due message, which nobody has touched.
#[track_caller]
fn assert_held_back(con: &mut Connection, waiter: &mut Waiter, about: &str) {
    let before = Snapshot::of(con);
    assert!(score(con, DELAYS, "a").is_some(), "{about}");
    assert!(waiter.raw.is_silent_for(Duration::from_millis(1500)), "{about}");
    before.assert_unchanged(con);
}

#[test]
fn a_timer_does_nothing_where_a_write_would_be_refused() {
    let server = Server::builder().config_line("save 3600 1000000").start();
    let mut con = server.con();
    for (about, refuse, allow) in [
        ("NOREPLICAS", &["CONFIG SET min-replicas-to-write 1"][..], &["CONFIG SET min-replicas-to-write 0"][..]),
        ("MISCONF", &["BGSAVE"], &["CONFIG SET stop-writes-on-bgsave-error no"]),
    ] {
        ok!(con, "FLUSHALL");
        let mut waiter = Waiter::start(&server);
        // A folder in the place of the file lets the next save fail.
        let _ = std::fs::remove_file(server.dir().join("dump.rdb"));
        let _ = std::fs::create_dir(server.dir().join("dump.rdb"));
        delayed_order(&mut con, "a", 700);
        HERE.add(&mut con, refuse);
        let refused = || error_text(&cmd!(server.con(), "SET", "x", 1).err().unwrap()).starts_with(about);
        let is_refused = || cmd!(server.con(), "SET", "x", 1).is_err();
        assert!(eventually(Duration::from_millis(600), is_refused) && refused(), "{about}");
        assert_held_back(&mut con, &mut waiter, about);
        HERE.add(&mut con, allow);
        assert_eq!(waiter.served_id(), "a", "{about}");
    }
}

#[test]
fn a_pause_of_writes_holds_the_clock_back() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    delayed_order(&mut con, "a", 100);
    ok!(con, "CLIENT", "PAUSE", 60_000, "WRITE");
    let offset = server.info("replication")["master_repl_offset"].clone();
    assert_held_back(&mut con, &mut waiter, "CLIENT PAUSE");
    assert_eq!(server.info("replication")["master_repl_offset"], offset);
    ok!(con, "CLIENT", "UNPAUSE");
    assert_eq!(waiter.served_soon().id, "a");
}

#[test]
fn a_server_that_became_a_replica_moves_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    delayed_order(&mut con, "a", 300);
    ok!(con, "REPLICAOF", "127.0.0.1", 1);
    assert!(matches!(waiter.raw.read(), Reply::Error(error) if error.starts_with("UNBLOCKED")));
    let before = Snapshot::of(&mut con);
    sleep_ms(1500);
    before.assert_unchanged(&mut con);
    // Promoted, it serves whoever asks; nobody has waited since.
    ok!(con, "REPLICAOF", "NO", "ONE");
    sleep_ms(1200);
    before.assert_unchanged(&mut con);
    assert_eq!(take(&mut con).id, "a");
}

#[test]
fn flushall_and_swapdb_under_a_waiter_leave_a_clock_that_goes_right() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    delayed_order(&mut con, "gone", 200);
    ok!(con, "FLUSHALL");
    assert!(waiter.raw.is_silent_for(Duration::from_millis(500)));
    delayed_order(&mut con, "a", 200);
    assert_eq!(waiter.served_id(), "a");

    // The delays of the other database become those of this one.
    let mut waiter = Waiter::start(&server);
    ok!(con, "SELECT", 1);
    delayed_order(&mut con, "b", 200);
    ok!(con, "SWAPDB", 0, 1);
    assert_eq!(waiter.served_soon().id, "b");
}

#[test]
fn payloads_that_arrive_after_their_ids_are_noticed() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    ok!(con, "LPUSH", PENDING, "a");
    assert!(waiter.is_waiting());
    ok!(con, "HSET", PAYLOADS, "a", "pa", "a:queue", "app:orders");
    assert_eq!(waiter.served_soon().payload, "pa");
}

/// A timer asks the server whether it may write, by a write that must change nothing.
#[test]
fn a_timer_with_nothing_to_do_changes_nothing_whatever_the_ids_are() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    let ids = ["rmq:no-such-member", "1", "0", "-1", "1 0", "-inf", ""];
    let held: Vec<Delivery> = ids.iter().map(|id| take_new(&mut con, id)).collect();
    let before = Snapshot::of(&mut con);
    let mut waiter = Waiter::from(&server, "mails");
    sleep_ms(1300);
    assert!(waiter.is_waiting());
    before.assert_unchanged(&mut con);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
    for delivery in &held {
        assert_eq!(extend(&mut con, delivery, HOUR), 1, "{:?}", delivery.id);
        assert_eq!(ack(&mut con, delivery), 1, "{:?}", delivery.id);
    }
}

#[test]
fn the_log_names_the_key_that_keeps_a_lease_from_being_taken_back() {
    for (key, policy) in [(PENDING, 25), (DLQ, 1), (DLQ_DATA, 1)] {
        let server = Server::start();
        let mut con = server.con();
        ok!(con, "RMQ.POLICY", "app", "orders", "ATTEMPTS", policy);
        order(&mut con, "a");
        take_for(&mut con, 1);
        ok!(con, "SET", key, "of another type");
        sleep_ms(5);
        tick(&mut con);
        assert_eq!(counter(&server, "skipped"), 1, "{key}");
        let log = server.log();
        let line = log.lines().find(|line| line.contains("stay where they are")).unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains(&format!("'{key}'")), "{line}");
    }
}
