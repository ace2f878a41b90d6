//! Other clients see what they would see of the plain commands: keyspace notifications, blocked clients, client-side
//! caches.

use crate::common::cases::*;
use crate::common::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The events of each key, in their order.
fn by_key(events: Vec<(String, String)>) -> BTreeMap<String, Vec<String>> {
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (event, key) in events {
        by_key.entry(key).or_default().push(event);
    }
    by_key
}

/// The keys that a stream of plain commands names.
fn keys_of(step: &Step) -> BTreeSet<String> {
    let keys = |line: &&str| {
        let words = HERE.words(line);
        let past = if words[0] == "RPOPLPUSH" { 3 } else { 2 };
        words[1..past].to_vec()
    };
    step.stream.iter().flat_map(keys).collect()
}

#[test]
fn each_key_has_the_events_of_the_plain_commands_in_their_order() {
    let (server, plain) = (Server::start(), Server::builder().without_module().start());
    let (mut con, mut plain_con) = (server.con(), plain.con());
    let (mut events, mut plain_events) = (Events::subscribe(&server), Events::subscribe(&plain));
    let tap = ReplicaTap::attach(&server);
    for (about, setup, step) in examples() {
        HERE.set_up(&mut con, setup);
        HERE.set_up(&mut plain_con, setup);
        events.until_marker(&mut con);
        plain_events.until_marker(&mut plain_con);
        tap.commands_until_marker(&mut con);

        HERE.run(&mut con, step);
        for command in tap.commands_until_marker(&mut con) {
            call(&mut plain_con, &command).unwrap();
        }
        let seen = by_key(events.until_marker(&mut con));
        let wanted = by_key(plain_events.until_marker(&mut plain_con));
        assert_eq!(seen, wanted, "{about}: {}", step.call);
        assert_eq!(seen.keys().cloned().collect::<BTreeSet<_>>(), keys_of(step), "{about}");
    }
}

#[test]
fn a_key_that_becomes_empty_has_a_del_event_after_its_last_removal() {
    let server = Server::start();
    let mut con = server.con();
    let mut events = Events::subscribe(&server);
    HERE.set_up(&mut con, &["HSET m a pa a:queue q", "LPUSH p a", "ZADD e 1 a"]);
    events.until_marker(&mut con);
    ok!(con, "RMQ.COMPLETE", "m", "p", "e", "a");
    let seen = by_key(events.until_marker(&mut con));
    assert_eq!(seen["p"], ["rpop", "del"]);
    assert_eq!(seen["e"], ["zrem", "del"]);
    assert_eq!(seen["m"], ["hdel", "del"]);
    assert_eq!(ok!(con, "DBSIZE"), redis::Value::Int(0));
}

#[test]
fn a_call_that_changes_nothing_has_no_event() {
    let server = Server::start();
    let mut con = server.con();
    let mut events = Events::subscribe(&server);
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        events.until_marker(&mut con);
        HERE.run(&mut con, &row.idle);
        assert_eq!(events.lines_until_marker(&mut con), [""; 0], "{}", row.idle.call);
    }
}

#[test]
fn events_come_from_multi_and_from_scripts_too() {
    let server = Server::start();
    let mut con = server.con();
    let mut events = Events::subscribe(&server);
    for row in ROWS {
        let mut seen = Vec::new();
        for way in ["plain", "multi", "script"] {
            HERE.set_up(&mut con, row.setup);
            events.until_marker(&mut con);
            match way {
                "plain" => drop(HERE.call(&mut con, row.effect.call).unwrap()),
                "multi" => {
                    ok!(con, "MULTI");
                    HERE.call(&mut con, row.effect.call).unwrap();
                    ok!(con, "EXEC");
                }
                _ => {
                    let words = HERE.words(row.effect.call);
                    ok!(con, "EVAL", "return redis.call(unpack(ARGV))", 0, words);
                }
            }
            seen.push(events.lines_until_marker(&mut con));
        }
        assert!(seen.iter().all(|lines| *lines == seen[0]), "{}: {seen:?}", row.name);
        assert_eq!(seen[0].is_empty(), row.effect.stream.is_empty(), "{}", row.name);
    }
}

const PENDING: &str = "ns:q:pending";
const WORK: &str = "ns:q:processing";
const RESERVE: &[&str] = &["RMQ.RESERVE", "ns", "60000", "BLOCK", "0", "FROM", "q"];

/// The calls that fill the pending list with `a` and `b` from the keys given.
const FILLERS: &[(&str, &[&str])] = &[
    ("RMQ.PUBLISH ns TO q a pa b pb", &[]),
    (
        "RMQ.RELEASE ns a 1-1 b 1-1",
        &[
            "HSET ns:payloads a pa a:queue ns:q a:attempts 1-1 b pb b:queue ns:q b:attempts 1-1",
            "ZADD ns:expires 8000000000000.5 a 8000000000000.5 b",
        ],
    ),
    ("RMQ.REDRIVE ns COUNT 10", &["HSET ns:dlq:data a pa a:queue ns:q b pb b:queue ns:q", "LPUSH ns:dlq a b"]),
];

/// The same, from keys that a client which begins to wait would take from at once.
const CLOCKS: &[(&str, &[&str])] = &[
    (
        "RMQ.DELAYTICK ns:delays ns:payloads 10",
        &["HSET ns:payloads a pa a:queue ns:q b pb b:queue ns:q", "ZADD ns:delays 1 a 2 b"],
    ),
    (
        "RMQ.RESERVE ns 60000 FROM none",
        &["HSET ns:payloads a pa a:queue ns:q b pb b:queue ns:q", "ZADD ns:delays 1 a 2 b"],
    ),
];

fn blocked(server: &Server, count: usize) -> bool {
    eventually(deadline(), || server.info("clients")["blocked_clients"] == count.to_string())
}

#[test]
fn consumers_that_block_on_pending_wake_first_come_first_served() {
    let server = Server::start();
    let mut con = server.con();
    for (filler, setup) in FILLERS.iter().chain(CLOCKS) {
        HERE.set_up(&mut con, setup);
        let mut first = Raw::connect(&server);
        first.send(&["BLMOVE", PENDING, WORK, "RIGHT", "LEFT", "0"]);
        assert!(blocked(&server, 1));
        let mut second = Raw::connect(&server);
        second.send(&["BRPOP", PENDING, "0"]);
        assert!(blocked(&server, 2));
        let mut third = Raw::connect(&server);
        third.send(&["BRPOP", PENDING, "0"]);
        assert!(blocked(&server, 3));

        HERE.call(&mut con, filler).unwrap();
        assert_eq!(first.read(), Reply::bulk("a"), "{filler}");
        assert_eq!(second.read(), Reply::Array(vec![Reply::bulk(PENDING), Reply::bulk("b")]));
        assert!(third.is_silent_for(Duration::from_millis(50)));
        let after = Snapshot::of(&mut con);
        assert_eq!(after.list(WORK), ["a"]);
        assert!(after.list(PENDING).is_empty());
        drop(third);
        assert!(blocked(&server, 0));
    }
}

#[test]
fn blocked_consumers_are_woken_by_a_call_inside_multi_or_a_script() {
    let server = Server::start();
    let mut con = server.con();
    for (filler, setup) in FILLERS.iter().chain(CLOCKS) {
        for way in ["multi", "script"] {
            HERE.set_up(&mut con, setup);
            let mut waiting = Raw::connect(&server);
            waiting.send(&["BLMOVE", PENDING, WORK, "RIGHT", "LEFT", "0"]);
            assert!(blocked(&server, 1));
            if way == "multi" {
                ok!(con, "MULTI");
                HERE.call(&mut con, filler).unwrap();
                ok!(con, "EXEC");
            } else {
                ok!(con, "EVAL", "return redis.call(unpack(ARGV))", 0, HERE.words(filler));
            }
            assert_eq!(waiting.read(), Reply::bulk("a"), "{filler} by {way}");
        }
    }
}

#[test]
fn a_waiting_reserve_wakes_by_whatever_fills_pending() {
    let server = Server::start();
    let mut con = server.con();
    let fill_by_hand: &[(&str, &[&str])] = &[
        ("LPUSH ns:q:pending b a", &["HSET ns:payloads a pa b pb"]),
        ("RPUSH ns:q:pending b a", &["HSET ns:payloads a pa b pb"]),
        ("RENAME other ns:q:pending", &["HSET ns:payloads a pa b pb", "RPUSH other b a"]),
        ("LMOVE other ns:q:pending LEFT LEFT", &["HSET ns:payloads a pa", "RPUSH other a b"]),
    ];
    for (filler, setup) in FILLERS.iter().chain(fill_by_hand) {
        HERE.set_up(&mut con, setup);
        let mut waiting = Raw::connect(&server);
        waiting.send(RESERVE);
        assert!(blocked(&server, 1));
        HERE.call(&mut con, filler).unwrap();
        let reply = waiting.read();
        let Reply::Array(messages) = &reply else {
            panic!("{filler}: {reply:?}");
        };
        let Reply::Array(message) = &messages[0] else {
            panic!("{filler}: {reply:?}");
        };
        assert_eq!(messages.len(), 1);
        // What LPUSH put in first is the oldest; RPUSH puts the next one to be taken last.
        let wanted = if filler.starts_with("LPUSH") { "b" } else { "a" };
        assert_eq!(message[0], Reply::bulk(wanted), "{filler}");
        assert_eq!(Snapshot::of(&mut con).list(WORK), [wanted]);
        assert!(blocked(&server, 0));
    }
}

#[test]
fn a_reserve_that_waited_has_the_events_of_the_plain_commands() {
    let server = Server::start();
    let mut con = server.con();
    let mut events = Events::subscribe(&server);
    HERE.add(&mut con, &["HSET ns:payloads a pa a:queue ns:q", "HSET ns:queues q {}"]);
    let mut waiting = Raw::connect(&server);
    waiting.send(RESERVE);
    assert!(blocked(&server, 1));
    events.until_marker(&mut con);
    ok!(con, "LPUSH", PENDING, "a");
    waiting.read();
    let seen = by_key(events.until_marker(&mut con));
    assert_eq!(seen[PENDING], ["lpush", "rpop", "del"]);
    assert_eq!(seen[WORK], ["lpush"]);
    assert_eq!(seen["ns:payloads"], ["hset"]);
    assert_eq!(seen["ns:expires"], ["zadd"]);
    assert_eq!(seen.len(), 4);
}

/// A RESP3 connection whose reads are tracked.
struct Cache {
    raw: Raw,
}

impl Cache {
    fn new(server: &Server, options: &[&str]) -> Cache {
        let mut raw = Raw::connect(server);
        raw.call(&["HELLO", "3"]);
        let tracking = [&["CLIENT", "TRACKING", "ON"], options].concat();
        assert_eq!(raw.call(&tracking), Reply::Simple("OK".into()));
        Cache { raw }
    }

    /// Caches the contents of keys, so that changes of them cause invalidations.
    fn read_keys<'a>(&mut self, server: &Server, keys: impl Iterator<Item = &'a str>) {
        let mut con = server.con();
        for key in keys {
            let kind = text(ok!(con, "TYPE", key));
            match kind.as_str() {
                "hash" => self.raw.call(&["HGETALL", key]),
                "zset" => self.raw.call(&["ZRANGE", key, "0", "-1"]),
                "list" => self.raw.call(&["LRANGE", key, "0", "-1"]),
                _ => self.raw.call(&["GET", key]),
            };
        }
    }

    /// The keys that were invalidated so far.
    fn invalid(&mut self) -> BTreeSet<String> {
        let mut invalid = BTreeSet::new();
        self.raw.send(&["PING"]);
        loop {
            match self.raw.read() {
                Reply::Push(push) => {
                    assert_eq!(push[0], Reply::bulk("invalidate"));
                    let Reply::Array(keys) = &push[1] else {
                        panic!("keys were expected: {push:?}");
                    };
                    let name = |key: &Reply| String::from_utf8_lossy(key.bytes().unwrap()).into_owned();
                    invalid.extend(keys.iter().map(name));
                }
                Reply::Simple(pong) if pong == "PONG" => return invalid,
                other => panic!("an invalidation was expected, not {other:?}"),
            }
        }
    }
}

#[test]
fn caching_clients_get_invalidations_for_exactly_the_keys_that_changed() {
    let server = Server::start();
    let mut con = server.con();
    for (about, setup, step) in examples() {
        HERE.set_up(&mut con, setup);
        let mut cache = Cache::new(&server, &[]);
        let mut keys: BTreeSet<String> = Snapshot::of(&mut con).keys().into_iter().collect();
        // A key that is not there yet can be cached as empty.
        keys.extend(keys_of(step));
        cache.read_keys(&server, keys.iter().map(String::as_str));
        HERE.run(&mut con, step);
        assert_eq!(cache.invalid(), keys_of(step), "{about}: {}", step.call);
    }
}

#[test]
fn caching_clients_in_broadcast_mode_get_invalidations_for_exactly_the_keys_that_changed() {
    let server = Server::start();
    let mut con = server.con();
    for (about, setup, step) in examples() {
        HERE.set_up(&mut con, setup);
        let mut cache = Cache::new(&server, &["BCAST"]);
        HERE.run(&mut con, step);
        assert_eq!(cache.invalid(), keys_of(step), "{about}: {}", step.call);
    }
}

#[test]
fn a_caller_that_caches_gets_invalidations_for_its_own_changes_unless_noloop_is_set() {
    let server = Server::start();
    let mut con = server.con();
    for (options, received) in [(&[][..], true), (&["NOLOOP"][..], false)] {
        HERE.set_up(&mut con, &["HSET m a pa a:queue q", "LPUSH p a", "ZADD e 1 a"]);
        let mut cache = Cache::new(&server, options);
        cache.read_keys(&server, ["m", "p", "e"].into_iter());
        cache.raw.send(&["RMQ.COMPLETE", "m", "p", "e", "a"]);
        let mut invalid = BTreeSet::new();
        loop {
            match cache.raw.read() {
                Reply::Simple(ok) => break assert_eq!(ok, "OK"),
                Reply::Push(push) => {
                    let Reply::Array(keys) = &push[1] else { panic!("{push:?}") };
                    let name = |key: &Reply| String::from_utf8_lossy(key.bytes().unwrap()).into_owned();
                    invalid.extend(keys.iter().map(name));
                }
                other => panic!("{other:?}"),
            }
        }
        invalid.extend(cache.invalid());
        let wanted = if received { vec!["e", "m", "p"] } else { vec![] };
        assert_eq!(invalid.iter().map(String::as_str).collect::<Vec<_>>(), wanted, "{options:?}");
    }
}
