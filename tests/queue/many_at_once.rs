//! Bounded work: many messages due at once, many clients that wait, many messages that are not due, little memory.

use crate::calls::*;
use crate::common::*;
use redis::{Connection, Value};
use std::collections::BTreeSet;
use std::time::Duration;

/// Stores messages of `orders` by script and gives them scores: `ARGV` is count, first score, step, sorted set.
const STORE: &str = "
for n = 1, ARGV[1] do
    local id = 'm' .. n
    redis.call('HSET', 'app:payloads', id, 'p', id .. ':queue', 'app:orders')
    redis.call('ZADD', ARGV[4], ARGV[2] + n * ARGV[3], id)
end
return redis.call('HSET', 'app:queues', 'orders', '{}')";

fn store(con: &mut Connection, count: usize, first: f64, step: f64, zset: &str) {
    ok!(con, "EVAL", STORE, 0, count, first, step, zset);
}

/// Of the server's processor time, what no call and no step of a timer may take with 20,000 due at once.
const BOUND_US: u64 = 20_000;
const DUE: usize = 20_000;

#[test]
fn twenty_thousand_messages_that_come_due_at_once_reach_one_worker() {
    let server = Server::start();
    let mut con = server.con();
    let at = server_time_ms(&mut con) + 1500;
    store(&mut con, DUE, at as f64, 0.0, DELAYS);
    let mut seen = BTreeSet::new();
    while seen.len() < DUE {
        let taken =
            deliveries(HERE.call(&mut con, "RMQ.RESERVE app 3600000 COUNT 100 BLOCK 5000 FROM orders").unwrap());
        assert!(!taken.is_empty(), "the rest after {} does not come", seen.len());
        let pairs: Vec<&str> = taken.iter().flat_map(|d| [d.id.as_str(), d.receipt.as_str()]).collect();
        assert_eq!(ok!(con, "RMQ.ACK", "app", pairs), Value::Int(taken.len() as i64));
        assert!(taken.into_iter().all(|delivery| seen.insert(delivery.id)), "delivered twice");
    }
    assert_eq!(Snapshot::of(&mut con).keys(), [QUEUES]);
}

/// 20,000 messages that are due at `at`: delayed ones, or with leases that run out then, all in one processing list.
fn all_due(con: &mut Connection, zset: &str, at: f64) {
    store(con, DUE, at, 0.0, zset);
    if zset == EXPIRES {
        let ids: Vec<String> = (1..=DUE).map(|n| format!("m{n}")).collect();
        ok!(con, "LPUSH", WORK, ids);
    }
}

/// The most that a RESERVE, or an ACK of what it took, used until all was done.
fn most_of_a_call(zset: &str) -> u64 {
    let server = Server::start();
    let mut con = server.con();
    all_due(&mut con, zset, 1000.5);
    let (mut most, mut done) = (0, 0);
    let mut before = server.on_processor();
    let mut used = || {
        let now = server.on_processor();
        most = most.max(now - std::mem::replace(&mut before, now));
    };
    while done < DUE {
        let taken = take_up_to(&mut con, 100);
        used();
        let pairs: Vec<&str> = taken.iter().flat_map(|d| [d.id.as_str(), d.receipt.as_str()]).collect();
        assert_eq!(ok!(con, "RMQ.ACK", "app", pairs), Value::Int(taken.len() as i64));
        used();
        assert!(!taken.is_empty());
        done += taken.len();
    }
    most
}

/// The most that was used between two looks while the timer of a client that waits for something else moved all, step by
/// step: one step, or several where the looks came late.
fn most_of_a_step(zset: &str) -> u64 {
    let server = Server::start();
    let mut con = server.con();
    let at = server_time_ms(&mut con) as f64 + 500.5;
    all_due(&mut con, zset, at);
    let (mut most, mut moved, mut looks) = (0, 0, 0);
    let mut before = server.on_processor();
    let _waiter = Waiter::from(&server, "nothing");
    while moved < DUE {
        let now_moved = length(&mut con, PENDING);
        assert_eq!(now_moved % 100, 0, "a step moves a hundred");
        // A step after this look counts here, and shows in the next.
        let now = server.on_processor();
        most = most.max(now - before);
        looks += usize::from(now_moved > moved);
        (moved, before) = (now_moved, now);
    }
    println!("{zset}: {} steps, seen in {looks} looks", DUE / 100);
    most
}

/// The bound holds for the largest of all calls and steps of a run, so none that does more than its share goes unnoticed.
#[test]
fn with_20_000_due_at_once_no_call_and_no_step_of_a_timer_takes_20_ms_of_the_processor() {
    for zset in [DELAYS, EXPIRES] {
        for (what, most) in [("a call", most_of_a_call as fn(&str) -> u64), ("a step of the timer", most_of_a_step)] {
            assert_below(BOUND_US, || {
                let most = most(zset);
                println!("{zset}: {what} took at most {most} µs of the processor");
                most
            });
        }
    }
}

#[test]
fn twenty_thousand_leases_that_ran_out_come_back_a_bounded_number_a_call() {
    let server = Server::start();
    let mut con = server.con();
    store(&mut con, DUE, 1000.5, 1.0, EXPIRES);
    let ids: Vec<String> = (1..=DUE).map(|n| format!("m{n}")).collect();
    ok!(con, "LPUSH", WORK, ids);
    for call in 1..=DUE / 100 {
        tick(&mut con);
        assert_eq!(length(&mut con, PENDING), call * 100);
    }
    assert_eq!(length(&mut con, WORK), 0);
}

#[test]
fn of_a_thousand_who_wait_one_is_served_and_the_others_cost_next_to_nothing() {
    const WAITING: usize = 1000;
    const MESSAGES: usize = 50;
    let cpu = |server: &Server| -> f64 {
        let info = server.info("cpu");
        ["used_cpu_user", "used_cpu_sys"].iter().map(|field| info[*field].parse::<f64>().unwrap()).sum()
    };
    let server = Server::start();
    let mut con = server.con();
    let mut waiting: Vec<Raw> = (0..WAITING).map(|_| Raw::connect(&server)).collect();
    for (n, raw) in waiting.iter_mut().enumerate() {
        raw.send(&HERE.words(WAIT));
        // In this order.
        assert!(n % 100 > 0 || eventually(deadline(), || blocked_clients(&server) == n as u64 + 1));
    }
    assert!(eventually(deadline(), || blocked_clients(&server) == WAITING as u64));
    let before = cpu(&server);
    for n in 0..MESSAGES {
        delayed_order(&mut con, &n.to_string(), 20);
        assert!(eventually(SOON, || length(&mut con, WORK) == n + 1), "message {n} is not delivered");
    }
    let spent = cpu(&server) - before;
    assert_eq!(blocked_clients(&server), (WAITING - MESSAGES) as u64);
    // Who came first was served: all of the first hundred and none of the last.
    let served = |raw: &mut Raw| !raw.is_silent_for(Duration::from_millis(1));
    assert_eq!(waiting[..100].iter_mut().filter_map(|raw| served(raw).then_some(())).count(), MESSAGES);
    assert!(spent < 2.0, "{MESSAGES} messages took {spent} s of the processor");
}

#[test]
fn a_million_messages_that_are_not_due_cost_a_reserve_nothing() {
    let server = Server::start();
    let mut con = server.con();
    // In databases of their own, for the turns of the measurement. Nor do as many leases that still run cost anything.
    let [few, delayed, leased] = [(0, 100, DELAYS), (1, 1_000_000, DELAYS), (2, 1_000_000, EXPIRES)].map(|at| {
        ok!(con, "SELECT", at.0);
        store(&mut con, at.1, 8e12, 1.0, at.2);
        at.0
    });
    for many in [delayed, leased] {
        assert_ratio(4.0, [many, few], |database: i32| {
            ok!(con, "SELECT", database);
            (0..500)
                .map(|n| {
                    order(&mut con, &format!("x{n}"));
                    let mut delivery = None;
                    let cost = server.cost(|| delivery = Some(take(&mut con)));
                    assert_eq!(ack(&mut con, &delivery.unwrap()), 1);
                    cost
                })
                .sum()
        });
    }
}

#[test]
fn many_receipts_in_one_call_cost_one_pass_over_the_list() {
    let server = Server::start();
    let mut con = server.con();
    let mut rng = Rng::seeded();
    // A pass for each would take 400 times as long.
    assert_ratio(100.0, [10_000, 500], |count| {
        for n in 0..count {
            order(&mut con, &n.to_string());
        }
        let mut taken = take_up_to(&mut con, count);
        rng.shuffle(&mut taken);
        let pairs: Vec<&str> = taken.iter().flat_map(|d| [d.id.as_str(), d.receipt.as_str()]).collect();
        server.cost(|| assert_eq!(ok!(con, "RMQ.ACK", "app", pairs), Value::Int(count as i64)))
    });
}

#[test]
fn over_the_memory_limit_only_what_adds_data_is_refused() {
    let server = Server::start();
    let mut con = server.con();
    let dead = take_new(&mut con, "dead");
    nack(&mut con, &dead, "DEAD");
    let [a, b, c] = ["a", "b", "c"].map(|id| take_new(&mut con, id));
    order(&mut con, "d");
    delayed_order(&mut con, "due", 0);
    ok!(con, "CONFIG", "SET", "maxmemory", 1);
    let before = Snapshot::of(&mut con);
    let with_payload = format!("RMQ.NACK app a {} PAYLOAD new", a.receipt);
    let refused =
        ["RMQ.PUBLISH app TO orders x p", "RMQ.PUBLISH app DELAY 5 TO orders x p", "RMQ.POLICY app orders PAUSED yes"];
    for line in refused.into_iter().chain([with_payload.as_str()]) {
        let reply = say(&mut con, line);
        assert!(reply.starts_with("OOM "), "{line}: {reply}");
        before.assert_unchanged(&mut con);
    }
    assert_eq!(extend(&mut con, &a, HOUR), 1);
    assert_eq!(nack(&mut con, &a, "DELAY 3600000 ERROR boom"), "RETRY");
    assert_eq!(attempts_of(&mut con, "a").2, None, "the text is left out");
    assert_eq!((ack(&mut con, &b), release(&mut con, &c)), (1, 1));
    steps(&mut con, &[("RMQ.REDRIVE app COUNT 1", "[[dead orders]]")]);
    assert_eq!(ids(&take_up_to(&mut con, 9)), ["c", "d", "dead", "due"]);
    let held = attempts_of(&mut con, "d");
    steps(&mut con, &[(&format!("RMQ.NACK app d {}-{} DEAD ERROR boom", held.0, held.1), "DEAD")]);

    // Time goes on for who waits.
    let mut waiter = Waiter::start(&server);
    let held = attempts_of(&mut con, "c");
    steps(&mut con, &[(&format!("RMQ.NACK app c {}-{} DELAY 50", held.0, held.1), "RETRY")]);
    assert_eq!(waiter.served_id(), "c");
}

#[test]
fn names_that_clients_send_do_not_fill_the_memory() {
    let server = Server::start();
    let mut con = server.con();
    let ask = |con: &mut Connection, ns: &str, queue: &str| {
        assert_eq!(ok!(con, "RMQ.RESERVE", ns, 1000, "FROM", queue), Value::Nil);
        ok!(con, "RMQ.PEEK", ns, "PENDING", queue);
    };
    ask(&mut con, "app", "orders");
    let before = server.used_memory();
    let long = "q".repeat(2_000_000);
    for n in 0..20 {
        ask(&mut con, "app", &format!("{long}{n}"));
        ask(&mut con, &format!("{long}{n}"), "orders");
    }
    let name = "n".repeat(200);
    for n in 0..30_000 {
        ask(&mut con, &format!("{name}{}", n % 300), &format!("{name}{n}"));
    }
    drop(con);
    let grown = server.used_memory().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes");
}

/// Redis 8.6 aborts where a string has more references than it can count, and each message of a call may hold one.
#[test]
fn a_call_with_millions_of_messages_is_refused() {
    let server = Server::start();
    let mut con = server.con();
    let before = Snapshot::of(&mut con);
    let mut raw = Raw::connect(&server);
    let words = 2 * 1_000_010;
    let mut bytes = format!("*{}\r\n$11\r\nRMQ.PUBLISH\r\n$3\r\napp\r\n$2\r\nTO\r\n$6\r\norders\r\n", 4 + words);
    bytes += &"$1\r\n*\r\n".repeat(words);
    raw.send_bytes(bytes.as_bytes());
    assert_eq!(raw.read(), Reply::Error("ERR a call can have at most 2000010 arguments".into()));
    before.assert_unchanged(&mut con);
}
