//! Replicas and the AOF get plain commands with absolute times, one transaction per call, and need no module.

use crate::calls::*;
use crate::common::*;
use redis::Connection;
use std::sync::atomic::{AtomicBool, Ordering};

const HELD: &[&str] = &[
    "HSET app:payloads a pa a:queue app:orders a:attempts 1-1000 b pb b:queue app:orders b:attempts 2-1000",
    "LPUSH app:orders:processing a b",
    "ZADD app:expires 8000000000000.5 a 8000000000001.5 b",
    "HSET app:queues orders {}",
];
const READY: &[&str] = &[
    "HSET app:payloads a pa a:queue app:orders b pb b:queue app:orders",
    "LPUSH app:orders:pending a b",
    "HSET app:queues orders {}",
];
const DEAD: &[&str] = &[
    "HSET app:dlq:data a pa a:queue app:orders a:death {} b pb b:queue app:orders b:death {}",
    "LPUSH app:dlq a b",
    "HSET app:queues orders {}",
];

type Stream = &'static [&'static str];

/// What is there, a call, and what is sent for it, without MULTI and EXEC. `#` is any number.
const STREAMS: &[(Stream, &str, Stream)] = &[
    (
        &[],
        "RMQ.PUBLISH app TO orders a pa b pb",
        &[
            "HSET app:payloads a pa a:queue app:orders b pb b:queue app:orders",
            "LPUSH app:orders:pending a b",
            "HSET app:queues orders {}",
        ],
    ),
    (
        READY,
        "RMQ.PUBLISH app URGENT TO orders c pc",
        &["HSET app:payloads c pc c:queue app:orders", "RPUSH app:orders:pending c"],
    ),
    (READY, "RMQ.PUBLISH app TO orders a new", &[]),
    (READY, "RMQ.PUBLISH app TO mails a new", &[]),
    (
        &[],
        "RMQ.PUBLISH app DELAY 60000 TO orders a pa",
        &["HSET app:payloads a pa a:queue app:orders", "ZADD app:delays # a"],
    ),
    (
        READY,
        "RMQ.PUBLISH app ONCE 60000 TO orders c pc",
        &["HSET app:payloads c pc c:queue app:orders", "ZADD app:once # c", "LPUSH app:orders:pending c"],
    ),
    (
        READY,
        "RMQ.RESERVE app 60000 FROM orders",
        &[
            "RPOPLPUSH app:orders:pending app:orders:processing",
            "HSET app:payloads a:attempts 1-#",
            "ZADD app:expires # a",
        ],
    ),
    (
        READY,
        "RMQ.RESERVE app 60000 COUNT 5 FROM none orders",
        &[
            "RPOP app:orders:pending 2",
            "LPUSH app:orders:processing a b",
            "HSET app:payloads a:attempts 1-# b:attempts 1-#",
            "ZADD app:expires # a # b",
        ],
    ),
    (READY, "RMQ.RESERVE app 60000 FROM none", &[]),
    (
        HELD,
        "RMQ.ACK app a 1-1000 none 1-1",
        &["RPOP app:orders:processing", "ZREM app:expires a", "HDEL app:payloads a a:queue a:attempts"],
    ),
    (HELD, "RMQ.ACK app a 2-1000", &[]),
    (
        HELD,
        "RMQ.NACK app a 1-1000 DELAY 60000 ERROR boom PAYLOAD new",
        &[
            "RPOP app:orders:processing",
            "ZREM app:expires a",
            "HSET app:payloads a new a:attempts \"1-# boom\"",
            "ZADD app:delays # a",
        ],
    ),
    (
        HELD,
        "RMQ.NACK app b 2-1000 DEAD",
        &[
            "LREM app:orders:processing -1 b",
            "ZREM app:expires b",
            "HSET app:dlq:data b pb b:queue app:orders b:death <json>",
            "LPUSH app:dlq b",
            "HDEL app:payloads b b:queue b:attempts",
        ],
    ),
    (HELD, "RMQ.NACK app a 7-1000", &[]),
    (
        HELD,
        "RMQ.RELEASE app b 2-1000",
        &[
            "LREM app:orders:processing -1 b",
            "ZREM app:expires b",
            "RPUSH app:orders:pending b",
            "HSET app:payloads b:attempts 1-#",
        ],
    ),
    (HELD, "RMQ.EXTEND app 60000 a 1-1000 b 2-1000", &["ZADD app:expires # a # b"]),
    (HELD, "RMQ.EXTEND app 60000 a 1-1001", &[]),
    (
        DEAD,
        "RMQ.REDRIVE app COUNT 1",
        &[
            "RPOP app:dlq",
            "LPUSH app:orders:pending a",
            "HSET app:payloads a pa a:queue app:orders",
            "HDEL app:dlq:data a a:queue a:death",
        ],
    ),
    (DEAD, "RMQ.REDRIVE app IDS none", &[]),
    (&[], "RMQ.POLICY app orders ATTEMPTS 3", &["HSET app:queues orders <json>"]),
    (READY, "RMQ.POLICY app orders", &[]),
    (READY, "RMQ.POLICY app orders RESET", &[]),
];

/// Whether a line is what a pattern wants: `#` is any number, `<json>` a quoted or bare object.
fn is_like(pattern: &str, line: &str) -> bool {
    let (pattern, line): (Vec<_>, Vec<_>) = (pattern.split(' ').collect(), line.split(' ').collect());
    let word = |(pattern, word): (&&str, &&str)| match pattern.split_once('#') {
        Some((start, end)) => {
            let number = word.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
            number.is_some_and(|number| number.parse::<f64>().is_ok())
        }
        None if *pattern == "<json>" => word.contains('{') && word.contains('}'),
        None => pattern == word,
    };
    pattern.len() == line.len() && pattern.iter().zip(&line).all(word)
}

/// Why what was sent is not what is wanted.
fn difference(about: &str, wanted: &[&str], sent: &[String]) -> Option<String> {
    let mut wanted = wanted.to_vec();
    if wanted.len() > 1 {
        wanted.insert(0, "MULTI");
        wanted.push("EXEC");
    }
    let same = wanted.len() == sent.len() && wanted.iter().zip(sent).all(|(wanted, sent)| is_like(wanted, sent));
    (!same).then(|| format!("{about}\n  wanted {wanted:#?}\n  sent   {sent:#?}"))
}

#[test]
fn each_command_sends_exactly_its_plain_effects_in_one_transaction() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    let mut different = Vec::new();
    for (setup, call, wanted) in STREAMS {
        HERE.set_up(&mut con, setup);
        tap.commands_until_marker(&mut con);
        let _ = HERE.call(&mut con, call);
        different.extend(difference(call, wanted, &tap.lines_until_marker(&mut con)));
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

const OVERDUE: &[&str] = &[
    "HSET app:payloads a pa a:queue app:orders a:attempts 1-1000 b pb b:queue app:orders b:attempts 25-1000",
    "LPUSH app:orders:processing a b",
    "ZADD app:expires 1000.5 a 2000.5 b 3000 stale",
    "HSET app:payloads c pc c:queue app:mails stale ps stale:queue app:orders",
    "ZADD app:delays 1000 c",
];

/// What the clock sends for these, in any order: each key's change once.
#[track_caller]
fn assert_clock_sent(sent: &[String]) {
    assert_eq!((sent[0].as_str(), sent[sent.len() - 1].as_str()), ("MULTI", "EXEC"), "{sent:#?}");
    for wanted in [
        "LPUSH app:mails:pending c",
        "ZREM app:delays c",
        "RPUSH app:orders:pending a",
        "ZREM app:expires a b stale",
        "LPUSH app:dlq b",
        "HDEL app:payloads b b:queue b:attempts",
    ] {
        assert!(sent.iter().any(|line| line == wanted), "{wanted} is not in {sent:#?}");
    }
    assert!(sent.iter().any(|line| line.contains("a:attempts \"1-1000500 lease ran out\"")), "{sent:#?}");
    let plain = ["MULTI", "EXEC", "LPUSH", "RPUSH", "ZREM", "HSET", "HDEL", "LREM", "RPOP", "LPOP"];
    assert!(sent.iter().all(|line| plain.contains(&line.split(' ').next().unwrap())), "{sent:#?}");
}

#[test]
fn what_the_clock_does_is_sent_in_one_transaction_by_a_reserve_and_by_a_timer() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    HERE.set_up(&mut con, OVERDUE);
    tap.commands_until_marker(&mut con);
    tick(&mut con);
    assert_clock_sent(&tap.lines_until_marker(&mut con));

    HERE.set_up(&mut con, &[]);
    let _waiter = Waiter::from(&server, "nothing");
    ok!(con, "MULTI");
    HERE.add(&mut con, OVERDUE);
    ok!(con, "EXEC");
    tap.commands_until_marker(&mut con);
    assert!(eventually(SOON, || length(&mut con, "app:mails:pending") == 1));
    assert_clock_sent(&tap.lines_until_marker(&mut con));
}

#[test]
fn a_wait_and_its_timers_send_nothing_while_nothing_is_due() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    delayed_order(&mut con, "a", HOUR);
    take_new(&mut con, "b");
    tap.commands_until_marker(&mut con);
    let watcher = Watcher::on(&server, &[PENDING, WORK, PAYLOADS, EXPIRES, DELAYS, QUEUES]);
    let _waiters = [Waiter::start(&server), Waiter::from(&server, "mails")];
    sleep_ms(2300);
    assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
    assert!(watcher.untouched());
}

#[test]
fn a_client_that_waited_is_served_in_a_transaction_after_what_woke_it() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    HERE.add(&mut con, &["HSET app:queues orders {}", "HSET app:payloads z p"]);
    let mut waiter = Waiter::start(&server);
    tap.commands_until_marker(&mut con);
    order(&mut con, "a");
    waiter.served_one();
    let sent = tap.lines_until_marker(&mut con);
    let served = [
        "RPOPLPUSH app:orders:pending app:orders:processing",
        "HSET app:payloads a:attempts 1-#",
        "ZADD app:expires # a",
    ];
    assert_eq!(sent.iter().filter(|line| *line == "MULTI").count(), 2, "{sent:#?}");
    assert_eq!(difference("serving", &served, &sent[sent.len() - 5..]), None);
}

#[test]
fn an_error_after_the_clock_moved_something_leaves_no_difference() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    for bad in ["app:bad:pending", "app:bad:processing"] {
        HERE.set_up(&mut con, OVERDUE);
        ok!(con, "SET", bad, "not a list");
        let error = say(&mut con, "RMQ.RESERVE app 1000 FROM bad");
        assert!(error.starts_with("WRONGTYPE "), "{error}");
        replica.wait_synced();
        assert_eq!(replica.digest(), server.digest(), "{bad}");
    }
}

/// A random call; leases and delays are short, so that the clock has work.
fn step(rng: &mut Rng, con: &mut Connection) {
    let queue = *rng.pick(&["orders", "mails"]);
    let id = format!("id-{}", rng.below(200));
    let held: Option<Vec<u8>> = ask!(con, "HGET", PAYLOADS, format!("{id}:attempts"));
    let held = String::from_utf8_lossy(&held.unwrap_or_default()).into_owned();
    let receipt = held.split(' ').next().unwrap_or_default().to_string();
    let receipt = if receipt.is_empty() { "1-1".into() } else { receipt };
    let (n, bytes) = (rng.below(40), rng.below(30));
    let payload = rng.bytes(bytes);
    let command = match rng.below(16) {
        0 | 1 => command!("RMQ.PUBLISH", "app", "TO", queue, &id, payload, "*", "made"),
        2 => command!("RMQ.PUBLISH", "app", "URGENT", "TO", queue, &id, payload),
        3 => command!("RMQ.PUBLISH", "app", "DELAY", n, "TO", queue, &id, payload),
        4 => command!("RMQ.PUBLISH", "app", "ONCE", 1 + n, "TO", queue, &id, payload),
        5 | 6 => command!("RMQ.RESERVE", "app", 1 + n, "COUNT", 1 + n / 8, "FROM", "orders", "mails"),
        7 => command!("RMQ.ACK", "app", &id, &receipt, "other", "1-1"),
        8 => command!("RMQ.NACK", "app", &id, &receipt, "DELAY", n, "ERROR", payload),
        9 => command!("RMQ.NACK", "app", &id, &receipt, "PAYLOAD", payload),
        10 => command!("RMQ.NACK", "app", &id, &receipt, "DEAD", "ERROR", payload),
        11 => command!("RMQ.RELEASE", "app", &id, &receipt),
        12 => command!("RMQ.EXTEND", "app", 1 + n, &id, &receipt),
        13 => command!("RMQ.REDRIVE", "app", "COUNT", 1 + n / 8),
        14 => command!("RMQ.POLICY", "app", queue, "ATTEMPTS", 1 + n / 8, "BACKOFF", 1, 1 + n),
        _ => command!("RMQ.COMPLETE", PAYLOADS, format!("app:{queue}:processing"), EXPIRES, &id),
    };
    if let Err(e) = send!(con, &command) {
        let error = error_text(&e);
        assert!(error.starts_with("EXISTS ") || error.starts_with("ERR queue"), "{}: {error}", line_of(&command));
    }
}

#[test]
fn after_thousands_of_calls_under_waiters_a_replica_and_an_aof_without_the_module_hold_the_same() {
    for encodings in [("hash-max-listpack-entries", "1"), ("zset-max-listpack-entries", "100000")] {
        let with = |builder: Builder| builder.arg(encodings.0, encodings.1).arg("appendonly", "yes");
        let server = with(Server::builder()).start();
        let replica = Replica::of(&server);
        let mut con = server.con();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for wait in
                ["RMQ.RESERVE app 15 BLOCK 40 FROM orders", "RMQ.RESERVE app 9 COUNT 3 BLOCK 25 FROM mails orders"]
            {
                let (server, done) = (&server, &done);
                scope.spawn(move || {
                    let mut con = server.con();
                    while !done.load(Ordering::Relaxed) {
                        HERE.call(&mut con, wait).unwrap();
                    }
                });
            }
            let _stop = Stop(&done);
            let mut rng = Rng::seeded();
            (0..4000).for_each(|_| step(&mut rng, &mut con));
        });
        for name in ["published", "reserved", "expired", "moved", "died", "redriven", "released", "extended", "fenced"]
        {
            assert!(counter(&server, name) > 10, "{name} had no part in it: {:?}", server.info("rmq"));
        }
        assert_eq!(server.info("rmq")["rmq_panics"], "0");
        replica.wait_synced();
        let keys = Snapshot::of(&mut con);
        keys.assert_same(&Snapshot::of(&mut replica.con()));
        assert_eq!(replica.digest(), server.digest());
        let digest = server.digest();
        server.stop();
        let folder = server.dir().to_str().expect("a path").to_string();
        let plain = with(Server::builder().without_module()).arg("dir", &folder).start();
        assert_eq!(plain.digest(), digest);
    }
}
