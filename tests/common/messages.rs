//! Publishing, reserving and settling messages: the keys and calls that the tests of the commands share.

use crate::common::*;
use redis::{ConnectionLike, Value};
use std::time::Duration;

pub const NS: &str = "mx-rmq";
pub const MAP: &str = "mx-rmq:payloads";
pub const QUEUE: &str = "mx-rmq:orders";
pub const PENDING: &str = "mx-rmq:orders:pending";
pub const WORK: &str = "mx-rmq:orders:processing";
pub const DUE: &str = "mx-rmq:expires";
pub const DELAYS: &str = "mx-rmq:delays";
pub const QUEUES: &str = "mx-rmq:queues";
pub const DLQ: &str = "mx-rmq:dlq";
pub const DLQ_MAP: &str = "mx-rmq:dlq:data";

/// Far in the future, in ms: the year 2255.
pub const LATER: i64 = 9_000_000_000_000;
/// Longer than any test runs.
pub const HOUR: i64 = 3_600_000;

/// One row of what RESERVE replies.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub id: String,
    pub payload: String,
    pub receipt: String,
    pub attempts: i64,
    pub queue: String,
}

impl Delivery {
    fn from_row(row: Value) -> Delivery {
        let [id, payload, receipt, attempts, queue]: [Value; 5] =
            items(row).try_into().expect("five things a delivery");
        let Value::Int(attempts) = attempts else { panic!("attempts must be an integer, not {attempts:?}") };
        let strings = [id, payload, receipt, queue].map(|value| match value {
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => panic!("a bulk string was expected, not {other:?}"),
        });
        let [id, payload, receipt, queue] = strings;
        let delivery = Delivery { id, payload, receipt, attempts, queue };
        assert_eq!(delivery.count(), attempts, "{delivery:?}");
        delivery
    }

    /// The number of deliveries in the receipt.
    pub fn count(&self) -> i64 {
        parts(&self.receipt).0
    }

    /// The time of delivery in the receipt, in µs.
    pub fn micros(&self) -> i64 {
        parts(&self.receipt).1
    }
}

/// `2-1794891056259224` taken apart.
#[track_caller]
pub fn parts(receipt: &str) -> (i64, i64) {
    let parts = receipt.split_once('-').and_then(|(n, micros)| Some((n.parse().ok()?, micros.parse().ok()?)));
    parts.unwrap_or_else(|| panic!("{receipt:?} is no receipt"))
}

/// What RESERVE replied; none for nil.
#[track_caller]
pub fn deliveries(reply: Value) -> Vec<Delivery> {
    match reply {
        Value::Nil => Vec::new(),
        rows => {
            let rows = items(rows);
            assert!(!rows.is_empty(), "an empty array is never the reply");
            rows.into_iter().map(Delivery::from_row).collect()
        }
    }
}

pub fn publish(con: &mut impl ConnectionLike, id: &str) {
    let reply = ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", id, format!("payload of {id}"));
    assert_eq!(strings(reply), [id]);
}

pub fn reserve_up_to(con: &mut impl ConnectionLike, count: usize) -> Vec<Delivery> {
    deliveries(ok!(con, "RMQ.RESERVE", NS, HOUR, "COUNT", count, "FROM", "orders"))
}

/// The one message that must be there.
#[track_caller]
pub fn reserve(con: &mut impl ConnectionLike) -> Delivery {
    reserve_up_to(con, 1).pop().expect("a pending message")
}

/// Publishes and reserves.
pub fn take_new(con: &mut impl ConnectionLike, id: &str) -> Delivery {
    publish(con, id);
    let delivery = reserve(con);
    assert_eq!(delivery.id, id);
    delivery
}

pub fn ack(con: &mut impl ConnectionLike, delivery: &Delivery) -> i64 {
    ask!(con, "RMQ.ACK", NS, &delivery.id, &delivery.receipt)
}

/// A RESERVE … BLOCK on a connection of its own.
pub struct Waiter {
    pub raw: Raw,
}

pub const WAIT_FOR_EVER: &[&str] = &["RMQ.RESERVE", NS, "3600000", "BLOCK", "0", "FROM", "orders"];

impl Waiter {
    /// Returns when the server holds the client.
    pub fn start(server: &Server) -> Waiter {
        Waiter::sending(server, WAIT_FOR_EVER)
    }

    pub fn sending(server: &Server, command: &[&str]) -> Waiter {
        let before = blocked_clients(server);
        let mut raw = Raw::connect(server);
        raw.send(command);
        assert!(eventually(deadline(), || blocked_clients(server) == before + 1), "the client does not wait");
        Waiter { raw }
    }

    /// What the server sends in the end.
    #[track_caller]
    pub fn served(&mut self) -> Vec<Delivery> {
        deliveries(value_of(self.raw.read()))
    }

    #[track_caller]
    pub fn served_id(&mut self) -> String {
        let served = self.served();
        assert_eq!(served.len(), 1, "{served:?}");
        served[0].id.clone()
    }

    pub fn is_waiting(&mut self) -> bool {
        self.raw.is_silent_for(Duration::from_millis(60))
    }
}

/// The clients that the server holds. INFO also counts one without connection, which the module has on Redis 7.0 for a moment.
pub fn blocked_clients(server: &Server) -> u64 {
    let clients = text(ok!(server.con(), "CLIENT", "LIST"));
    let flags = |line: &str| line.split(' ').any(|word| word.strip_prefix("flags=").is_some_and(|f| f.contains('b')));
    clients.lines().filter(|line| flags(line)).count() as u64
}

/// A raw reply, as the client library would give it.
pub fn value_of(reply: Reply) -> Value {
    match reply {
        Reply::Array(items) => Value::Array(items.into_iter().map(value_of).collect()),
        Reply::Bulk(bytes) => Value::BulkString(bytes),
        Reply::Int(number) => Value::Int(number),
        Reply::Simple(text) => Value::SimpleString(text),
        Reply::NilArray | Reply::NilBulk | Reply::Null => Value::Nil,
        other => panic!("an ordinary reply was expected, not {other:?}"),
    }
}
