//! Calling the queue's commands, and taking their replies apart.

pub use crate::common::cases::{fits, shown, HERE};
pub use crate::common::messages::{blocked_clients, deliveries, parts, value_of, Delivery, HOUR};
use crate::common::*;
use redis::ConnectionLike;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub const PAYLOADS: &str = "app:payloads";
pub const PENDING: &str = "app:orders:pending";
pub const WORK: &str = "app:orders:processing";
pub const EXPIRES: &str = "app:expires";
pub const DELAYS: &str = "app:delays";
pub const QUEUES: &str = "app:queues";
pub const DLQ: &str = "app:dlq";
pub const DLQ_DATA: &str = "app:dlq:data";
pub const ONCE: &str = "app:once";

/// Long enough for a noisy machine, and for what is looked at once a second.
pub const SOON: Duration = Duration::from_millis(3500);

pub fn ids(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|delivery| delivery.id.as_str()).collect()
}

/// Calls a line of words, where `""` is the empty one; the reply as text: `[a nil]`, `OK`, or the error.
pub fn say(con: &mut impl ConnectionLike, line: &str) -> String {
    shown(HERE.call(con, line))
}

/// Calls line after line, and compares the replies; `...` is any rest.
#[track_caller]
pub fn steps(con: &mut impl ConnectionLike, steps: &[(&str, &str)]) {
    for (line, wanted) in steps {
        let reply = say(con, line);
        assert!(fits(wanted, &reply, 0), "{line}\n  wanted {wanted}\n  got    {reply}");
    }
}

#[track_caller]
pub fn publish(con: &mut impl ConnectionLike, ns: &str, queue: &str, id: &str) {
    let reply = ok!(con, "RMQ.PUBLISH", ns, "TO", queue, id, format!("payload of {id}"));
    assert_eq!(strings(reply), [id]);
}

/// Publishes to `orders` of `app`.
#[track_caller]
pub fn order(con: &mut impl ConnectionLike, id: &str) {
    publish(con, "app", "orders", id);
}

/// Publishes to `orders` with a delay.
#[track_caller]
pub fn delayed_order(con: &mut impl ConnectionLike, id: &str, delay: i64) {
    assert_eq!(strings(ok!(con, "RMQ.PUBLISH", "app", "DELAY", delay, "TO", "orders", id, "p")), [id]);
}

#[track_caller]
pub fn reserve(con: &mut impl ConnectionLike, ns: &str, lease: i64, count: usize, from: &[&str]) -> Vec<Delivery> {
    deliveries(ok!(con, "RMQ.RESERVE", ns, lease, "COUNT", count, "FROM", from))
}

/// Up to so many of `orders`, for an hour.
#[track_caller]
pub fn take_up_to(con: &mut impl ConnectionLike, count: usize) -> Vec<Delivery> {
    reserve(con, "app", HOUR, count, &["orders"])
}

/// The next of `orders`, which must be there, for some ms.
#[track_caller]
pub fn take_for(con: &mut impl ConnectionLike, lease: i64) -> Delivery {
    reserve(con, "app", lease, 1, &["orders"]).pop().expect("a message that is pending")
}

#[track_caller]
pub fn take(con: &mut impl ConnectionLike) -> Delivery {
    take_for(con, HOUR)
}

/// Publishes to `orders` and takes it.
#[track_caller]
pub fn take_new(con: &mut impl ConnectionLike, id: &str) -> Delivery {
    order(con, id);
    let delivery = take(con);
    assert_eq!(delivery.id, id);
    delivery
}

/// Lets the clock of `app` run once, from a queue that has nothing.
pub fn tick(con: &mut impl ConnectionLike) {
    assert_eq!(say(con, "RMQ.RESERVE app 1000 FROM nothing"), "nil");
}

pub fn ack(con: &mut impl ConnectionLike, delivery: &Delivery) -> i64 {
    ask!(con, "RMQ.ACK", "app", &delivery.id, &delivery.receipt)
}

/// `RETRY`, `DEAD`, `nil` or the error; with further words such as `DELAY 5`.
pub fn nack(con: &mut impl ConnectionLike, delivery: &Delivery, more: &str) -> String {
    say(con, &format!("RMQ.NACK app {} {} {more}", delivery.id, delivery.receipt))
}

pub fn release(con: &mut impl ConnectionLike, delivery: &Delivery) -> i64 {
    ask!(con, "RMQ.RELEASE", "app", &delivery.id, &delivery.receipt)
}

#[track_caller]
pub fn extend(con: &mut impl ConnectionLike, delivery: &Delivery, lease: i64) -> i64 {
    let extended: Vec<i64> = ask!(con, "RMQ.EXTEND", "app", lease, &delivery.id, &delivery.receipt);
    assert_eq!(extended.len(), 1);
    extended[0]
}

/// `<id>:attempts`, taken apart: the number, the µs, and the text after the blank.
#[track_caller]
pub fn attempts_of(con: &mut impl ConnectionLike, id: &str) -> (i64, i64, Option<String>) {
    let field: Option<String> = ask!(con, "HGET", PAYLOADS, format!("{id}:attempts"));
    let field = field.unwrap_or_else(|| panic!("{id}:attempts is missing"));
    let (receipt, error) = match field.split_once(' ') {
        Some((receipt, error)) => (receipt.to_string(), Some(error.to_string())),
        None => (field, None),
    };
    let (n, micros) = parts(&receipt);
    (n, micros, error)
}

/// The record of a dead letter, which must be one JSON object.
#[track_caller]
pub fn death_of(con: &mut impl ConnectionLike, id: &str) -> serde_json::Value {
    let record = bulk(ok!(con, "HGET", DLQ_DATA, format!("{id}:death")));
    let record: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&record).expect("a JSON object");
    record.into()
}

/// The score of an id in a sorted set.
pub fn score(con: &mut impl ConnectionLike, key: &str, id: &str) -> Option<f64> {
    ask!(con, "ZSCORE", key, id)
}

pub fn length(con: &mut impl ConnectionLike, key: &str) -> usize {
    ask!(con, "LLEN", key)
}

pub fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Tells threads to stop when it goes, also when a test fails.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A RESERVE … BLOCK on a connection of its own.
pub struct Waiter {
    pub raw: Raw,
    pub client: i64,
    pub since: Instant,
}

pub const WAIT: &str = "RMQ.RESERVE app 3600000 BLOCK 0 FROM orders";

impl Waiter {
    /// Waits for `orders` without end.
    #[track_caller]
    pub fn start(server: &Server) -> Waiter {
        Waiter::sending(server, WAIT)
    }

    /// Waits for these queues, by priority.
    #[track_caller]
    pub fn from(server: &Server, queues: &str) -> Waiter {
        Waiter::sending(server, &format!("RMQ.RESERVE app 3600000 BLOCK 0 FROM {queues}"))
    }

    /// Returns when the server holds the client.
    #[track_caller]
    pub fn sending(server: &Server, line: &str) -> Waiter {
        Waiter::on(Raw::connect(server), server, line)
    }

    #[track_caller]
    pub fn on(mut raw: Raw, server: &Server, line: &str) -> Waiter {
        let before = blocked_clients(server);
        let Reply::Int(client) = raw.call(&["CLIENT", "ID"]) else { panic!("a client has an id") };
        let since = Instant::now();
        raw.send(&HERE.words(line));
        assert!(eventually(deadline(), || blocked_clients(server) == before + 1), "the client does not wait: {line}");
        Waiter { raw, client, since }
    }

    /// Waits once more.
    pub fn again(self, server: &Server) -> Waiter {
        Waiter::on(self.raw, server, WAIT)
    }

    /// What the server sends in the end.
    #[track_caller]
    pub fn served(&mut self) -> Vec<Delivery> {
        deliveries(value_of(self.raw.read()))
    }

    #[track_caller]
    pub fn served_id(&mut self) -> String {
        self.served_one().id
    }

    #[track_caller]
    pub fn served_one(&mut self) -> Delivery {
        let mut served = self.served();
        assert_eq!(served.len(), 1, "{served:?}");
        served.remove(0)
    }

    /// Served not before `due` has passed since it began to wait; and after how long.
    #[track_caller]
    pub fn served_after(&mut self, due: Duration) -> (Delivery, Duration) {
        let delivery = self.served_one();
        let after = self.since.elapsed();
        assert!(after >= due, "{delivery:?} came after {after:?}, before it was due");
        (delivery, after)
    }

    #[track_caller]
    pub fn served_soon(&mut self) -> Delivery {
        self.raw.set_timeout(SOON);
        self.served_one()
    }

    pub fn is_waiting(&mut self) -> bool {
        self.raw.is_silent_for(Duration::from_millis(60))
    }
}
