//! Bad input gets one clear error that names the argument, and changes nothing. Unusual but valid input is kept as it
//! is.

use crate::common::messages::LATER;
use crate::common::*;

use redis::Connection;
use std::collections::{BTreeMap, BTreeSet};

const TOO_LARGE: &str = "18446744073709551616";

/// One of the five commands: its keys in order, each with its type, then arguments with which a call succeeds.
struct Command {
    name: &'static str,
    keys: &'static [(&'static str, &'static str)],
    args: &'static [&'static str],
    /// How many arguments may follow those above; None for any number.
    more: Option<usize>,
}

const COMMANDS: [Command; 5] = [
    Command {
        name: "RMQ.COMPLETE",
        keys: &[("payload_map", "hash"), ("processing", "list"), ("expire_monitor", "sorted set")],
        args: &["a"],
        more: None,
    },
    Command {
        name: "RMQ.RETRY",
        keys: &[
            ("payload_map", "hash"),
            ("delay_tasks", "sorted set"),
            ("expire_monitor", "sorted set"),
            ("processing", "list"),
        ],
        args: &["a", "payload", "1"],
        more: Some(1),
    },
    Command {
        name: "RMQ.DELAYTICK",
        keys: &[("delay_tasks", "sorted set"), ("payload_map", "hash")],
        args: &["10"],
        more: Some(0),
    },
    Command {
        name: "RMQ.TIMEOUTS",
        keys: &[("expire_monitor", "sorted set"), ("payload_map", "hash")],
        args: &["*", "10"],
        more: None,
    },
    Command {
        name: "RMQ.PARSEERR",
        keys: &[
            ("parse_error_map", "hash"),
            ("parse_error_queue", "list"),
            ("processing", "list"),
            ("expire_monitor", "sorted set"),
            ("payload_map", "hash"),
        ],
        args: &["a", "payload", "topic", "error", "1700000000000"],
        more: Some(3),
    },
];

const TYPES: [&str; 6] = ["string", "list", "hash", "sorted set", "set", "stream"];

/// Makes a key of the type.
fn make(con: &mut Connection, key: &str, kind: &str) {
    match kind {
        "string" => ok!(con, "SET", key, "a"),
        "list" => ok!(con, "RPUSH", key, "a", "b"),
        "hash" => ok!(con, "HSET", key, "a", "x", "a:queue", "q"),
        "sorted set" => ok!(con, "ZADD", key, 1, "a"),
        "set" => ok!(con, "SADD", key, "a"),
        "stream" => ok!(con, "XADD", key, "1-1", "a", "x"),
        other => panic!("no type {other}"),
    };
}

/// A server on which every call of `COMMANDS` finds message `a` in each of its keys.
fn prepare(con: &mut Connection, command: &Command) {
    ok!(con, "FLUSHALL");
    for (role, kind) in command.keys {
        make(con, role, kind);
    }
    ok!(con, "RPUSH", "q:processing", "a");
}

/// A call of the command with its keys named by their roles.
fn call_of<'a>(command: &'a Command, keys: &[&'a str], args: &[&'a str]) -> Vec<&'a str> {
    [&[command.name][..], keys, args].concat()
}

fn roles(command: &Command) -> Vec<&'static str> {
    command.keys.iter().map(|(role, _)| *role).collect()
}

/// The call fails with just this error, changes no key and breaks no WATCH.
#[track_caller]
fn assert_refused(server: &Server, con: &mut Connection, call: &[&str], error: &str) {
    let before = Snapshot::with_ttls(con);
    // The words of the call are among its keys or no keys at all.
    let watcher = Watcher::on(
        server,
        &[&before.keys()[..], &call.iter().map(|word| word.to_string()).collect::<Vec<_>>()].concat(),
    );
    let reply = crate::common::call(con, call);
    let text = error_text(&reply.expect_err(&format!("{call:?} must fail")));
    assert_eq!(text, error, "{call:?}");
    assert!(watcher.untouched(), "{call:?}");
    before.assert_unchanged(con);
}

fn command(name: &str) -> &'static Command {
    COMMANDS.iter().find(|command| command.name == name).unwrap()
}

/// Each argument of a call that is bad in turn, with the error that it must get.
#[track_caller]
fn assert_bad_argument(server: &Server, name: &str, good: &[&str], position: usize, bad: &[&str], error: &str) {
    let mut con = server.con();
    let command = command(name);
    prepare(&mut con, command);
    for bad in bad {
        let mut args = good.to_vec();
        args[position] = bad;
        assert_refused(server, &mut con, &call_of(command, &roles(command), &args), error);
    }
    // The control: with a good argument in the same place the same call succeeds.
    crate::common::call(&mut con, &call_of(command, &roles(command), good)).unwrap();
}

#[test]
fn a_call_with_good_input_goes_through_and_changes_something() {
    let server = Server::start();
    let mut con = server.con();
    for command in &COMMANDS {
        prepare(&mut con, command);
        let before = Snapshot::of(&mut con);
        crate::common::call(&mut con, &call_of(command, &roles(command), command.args)).unwrap();
        assert_ne!(before, Snapshot::of(&mut con), "{}", command.name);
    }
}

#[test]
fn a_wrong_number_of_arguments_is_refused() {
    let server = Server::start();
    let mut con = server.con();
    for command in &COMMANDS {
        prepare(&mut con, command);
        let error = format!("ERR wrong number of arguments for '{}' command", command.name);
        let whole = call_of(command, &roles(command), command.args);
        for length in 1..whole.len() {
            assert_refused(&server, &mut con, &whole[..length], &error);
        }
        if let Some(more) = command.more {
            let long = [&whole[..], &vec!["1"; more + 1]].concat();
            assert_refused(&server, &mut con, &long, &error);
            let longer = [&whole[..], &vec!["1"; more + 50]].concat();
            assert_refused(&server, &mut con, &longer, &error);
        }
    }
}

const NOT_POSITIVE_INTEGERS: [&str; 14] = [
    "0",
    "-1",
    "1.5",
    "abc",
    TOO_LARGE,
    "9223372036854775808",
    "-9223372036854775809",
    "",
    " 1",
    "1 ",
    "+1",
    "1e3",
    "0x10",
    "nan",
];

#[test]
fn a_batch_that_is_no_positive_integer_is_refused() {
    let server = Server::start();
    let error = "ERR batch must be a positive integer";
    assert_bad_argument(&server, "RMQ.DELAYTICK", &["1"], 0, &NOT_POSITIVE_INTEGERS, error);
    assert_bad_argument(&server, "RMQ.TIMEOUTS", &["*", "1"], 1, &NOT_POSITIVE_INTEGERS, error);
}

#[test]
fn a_delay_that_is_negative_no_number_or_too_large_is_refused() {
    let server = Server::start();
    let bad = [
        "-1", "-0.001", "-inf", "nan", "NaN", "-nan", "inf", "+inf", "Infinity", "1e300", "1e999", "1e13", TOO_LARGE,
        "abc", "", " 1", "1 ", "1,5", "0x10", "1.5.5", "1e", ".", "--1", "1s",
    ];
    let error = "ERR delay must be a number of seconds, 0 or more, that ends before the year 2248";
    assert_bad_argument(&server, "RMQ.RETRY", &["a", "payload", "0.5"], 2, &bad, error);
}

#[test]
fn a_target_time_that_is_no_time_is_refused() {
    let server = Server::start();
    let bad = ["", "-1", "nan", "inf", "+inf", "abc", "**", " *", "1e999", "1 ", "0x10"];
    let error = "ERR target_time must be a Unix time in milliseconds, or * for the server's clock";
    assert_bad_argument(&server, "RMQ.TIMEOUTS", &["1700000000000", "10"], 0, &bad, error);
}

#[test]
fn an_unknown_option_is_refused_by_its_name() {
    let server = Server::start();
    let mut con = server.con();
    let timeouts = command("RMQ.TIMEOUTS");
    prepare(&mut con, timeouts);
    for (options, unknown) in [
        (&["SOME"][..], "SOME"),
        (&[""], ""),
        (&["ALL", "5"], "5"),
        (&["CLAIM", "5", "6"], "6"),
        (&["ALLL"], "ALLL"),
        (&["*"], "*"),
        (&["\r\n+OK\0%s%n"], "\\r\\n+OK\\x00%s%n"),
    ] {
        let args = [timeouts.args, options].concat();
        let error = format!("ERR unknown option '{unknown}'");
        assert_refused(&server, &mut con, &call_of(timeouts, &roles(timeouts), &args), &error);
    }
}

#[test]
fn an_option_given_twice_or_without_its_value_is_refused_by_its_name() {
    let server = Server::start();
    let mut con = server.con();
    let timeouts = command("RMQ.TIMEOUTS");
    prepare(&mut con, timeouts);
    for (options, error) in [
        (&["ALL", "ALL"][..], "ERR option ALL must be given once only"),
        (&["ALL", "CLAIM", "5", "all"], "ERR option ALL must be given once only"),
        (&["CLAIM", "5", "CLAIM", "5"], "ERR option CLAIM must be given once only"),
        (&["CLAIM", "5", "ALL", "claim"], "ERR option CLAIM must be given once only"),
        (&["CLAIM"], "ERR option CLAIM must be followed by its value"),
        (&["ALL", "claim"], "ERR option CLAIM must be followed by its value"),
    ] {
        let args = [timeouts.args, options].concat();
        assert_refused(&server, &mut con, &call_of(timeouts, &roles(timeouts), &args), error);
    }
}

#[test]
fn a_claim_that_is_no_span_of_milliseconds_is_refused() {
    let server = Server::start();
    let mut bad = NOT_POSITIVE_INTEGERS.to_vec();
    bad.extend(["1000000000001", "ALL"]);
    let error = "ERR CLAIM must be a positive integer of milliseconds, at most 1000000000000";
    assert_bad_argument(&server, "RMQ.TIMEOUTS", &["*", "10", "CLAIM", "1"], 3, &bad, error);
}

#[test]
fn a_limit_of_parseerr_that_is_none_is_refused_by_its_name() {
    let server = Server::start();
    let good = ["a", "payload", "topic", "error", "1", "7", "10", "1"];
    let days = ["0", "-1", "nan", "inf", "-inf", "abc", "36501", "1e300", TOO_LARGE, " 1", "7d", "0x10"];
    let error = "ERR expire_days must be a positive number of days, at most 36500, or empty";
    assert_bad_argument(&server, "RMQ.PARSEERR", &good, 5, &days, error);
    let counts: Vec<&str> = NOT_POSITIVE_INTEGERS.into_iter().filter(|bad| !bad.is_empty()).collect();
    let error = "ERR max_count must be a positive integer, or empty";
    assert_bad_argument(&server, "RMQ.PARSEERR", &good, 6, &counts, error);
    let error = "ERR supports_hexpire must be 0, 1 or empty";
    assert_bad_argument(&server, "RMQ.PARSEERR", &good, 7, &["2", "-1", "yes", "true", "01", " "], error);
}

#[test]
fn a_key_of_the_wrong_type_in_any_position_is_refused_by_its_role() {
    let server = Server::start();
    let mut con = server.con();
    let mut tried = 0;
    for command in &COMMANDS {
        for (position, (role, expected)) in command.keys.iter().enumerate() {
            for wrong in TYPES.into_iter().filter(|kind| kind != expected) {
                prepare(&mut con, command);
                make(&mut con, "bad", wrong);
                let mut keys = roles(command);
                keys[position] = "bad";
                let error = format!("WRONGTYPE {role} must be a {expected}");
                assert_refused(&server, &mut con, &call_of(command, &keys, command.args), &error);
                // Nor does it matter whether the other keys exist.
                ok!(con, "DEL", roles(command));
                assert_refused(&server, &mut con, &call_of(command, &keys, command.args), &error);
                tried += 1;
            }
        }
    }
    assert_eq!(tried, (3 + 4 + 2 + 2 + 5) * 5);
}

#[test]
fn a_wrong_type_is_found_before_anything_else_is_looked_for() {
    let server = Server::start();
    let mut con = server.con();
    let retry = command("RMQ.RETRY");
    for position in 0..retry.keys.len() {
        ok!(con, "FLUSHALL");
        make(&mut con, "bad", "string");
        let mut keys = roles(retry);
        keys[position] = "bad";
        let (role, expected) = retry.keys[position];
        let error = format!("WRONGTYPE {role} must be a {expected}");
        let unknown = call_of(retry, &keys, &["nobody", "payload", "1"]);
        assert_refused(&server, &mut con, &unknown, &error);
    }
}

#[test]
fn the_same_key_in_two_roles_is_refused_by_both_names() {
    let server = Server::start();
    let mut con = server.con();
    let mut tried = 0;
    for command in &COMMANDS {
        let count = command.keys.len();
        for (one, other) in (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other))) {
            let error = format!("ERR {} and {} must be different keys", command.keys[one].0, command.keys[other].0);
            // Whether it is missing or has any type; and whatever its name is.
            for name in ["shared", "", "\0\r\n%s"] {
                for kind in [None].into_iter().chain(TYPES.map(Some)) {
                    prepare(&mut con, command);
                    if let Some(kind) = kind {
                        make(&mut con, name, kind);
                    }
                    let mut keys = roles(command);
                    (keys[one], keys[other]) = (name, name);
                    assert_refused(&server, &mut con, &call_of(command, &keys, command.args), &error);
                    tried += 1;
                }
            }
        }
    }
    assert_eq!(tried, (3 + 6 + 1 + 1 + 10) * 3 * 7);
}

#[test]
fn all_keys_the_same_is_refused_and_the_server_lives() {
    let server = Server::start();
    let mut con = server.con();
    for command in &COMMANDS {
        for name in ["", "x"] {
            let keys = vec![name; command.keys.len()];
            let error = format!("ERR {} and {} must be different keys", command.keys[0].0, command.keys[1].0);
            assert_refused(&server, &mut con, &call_of(command, &keys, command.args), &error);
        }
    }
    assert!(server.is_alive());
}

#[test]
fn ids_that_look_like_fields_of_payload_map_are_refused_by_the_commands_that_write_them() {
    let server = Server::start();
    let error = "ERR id must not end in ':queue', ':attempts' or ':death', which the hashes use for their own fields";
    let bad = ["a:queue", ":queue", "a:attempts", ":attempts", "a:queue:queue", "\0:queue", "a:death"];
    assert_bad_argument(&server, "RMQ.RETRY", &["a", "payload", "1"], 0, &bad, error);
    let parse_error = ["a", "payload", "topic", "error", "1"];
    assert_bad_argument(&server, "RMQ.PARSEERR", &parse_error, 0, &bad, error);
}

#[test]
fn ids_that_only_resemble_those_fields_are_as_good_as_any() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["queue", "a:queues", "a:Queue", ":queue:1", "a:attempt", "attempts"] {
        ok!(con, "HSET", "payload_map", id, "x", format!("{id}:queue"), "q");
        ok!(con, "RMQ.RETRY", roles(command("RMQ.RETRY")), id, "payload", 0);
        ok!(con, "RMQ.PARSEERR", roles(command("RMQ.PARSEERR")), id, "payload", "t", "e", 1);
        ok!(con, "RMQ.COMPLETE", "payload_map", "processing", "expire_monitor", id);
    }
}

#[test]
fn an_error_sends_nothing_to_replicas_and_fires_no_event() {
    let server = Server::start();
    let mut con = server.con();
    for command in &COMMANDS {
        prepare(&mut con, command);
        make(&mut con, "bad", "set");
        let names = roles(command);
        let whole = call_of(command, &names, command.args);
        let mut calls = vec![whole[..whole.len() - 1].to_vec()];
        for position in 0..names.len() {
            let mut keys = names.clone();
            keys[position] = "bad";
            calls.push(call_of(command, &keys, command.args));
            keys[position] = names[(position + 1) % names.len()];
            calls.push(call_of(command, &keys, command.args));
        }
        let tap = ReplicaTap::attach(&server);
        let mut events = Events::subscribe(&server);
        for call in calls {
            assert!(crate::common::call(&mut con, &call).is_err(), "{call:?}");
        }
        assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
        assert_eq!(events.lines_until_marker(&mut con), [""; 0]);
        // The control: both receive the good call.
        crate::common::call(&mut con, &whole).unwrap();
        assert!(!events.lines_until_marker(&mut con).is_empty());
        assert!(tap.lines_until_marker(&mut con).len() > 2, "{}", command.name);
    }
}

#[test]
fn every_error_leaves_the_connection_in_step() {
    let server = Server::start();
    let mut raw = Raw::connect(&server);
    for junk in ["\r\n", "\0", "%s%n", "+OK\r\n-ERR x\r\n", "\u{1f600}", &"x".repeat(100_000)] {
        let reply = raw.call(&["RMQ.TIMEOUTS", "e", "m", "*", "10", junk]);
        let Reply::Error(text) = reply else { panic!("{reply:?}") };
        assert!(text.starts_with("ERR unknown option '") && text.len() < 1000, "{text:?}");
        assert_eq!(raw.call_raw(&["PING"]), b"+PONG\r\n");
    }
}

/// Ids, payloads and queues that break programs which take bytes for text.
fn hostile_bytes() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [
        &b"\0"[..],
        b"a\0b",
        b"\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"%s%n%d%%",
        b"\xff\xfe\xc0\x80",
        b"\xed\xa0\x80",
        b"",
        b" ",
        b"'\"\\",
        b"{a}{b",
        b"-0",
        b"9223372036854775808",
        b"007",
    ]
    .iter()
    .map(|bytes| bytes.to_vec())
    .collect();
    all.push((0..=255).collect());
    all
}

/// One message through all five commands; every reply and key must hold the very bytes.
fn walk(con: &mut Connection, id: &[u8], payload: &[u8], queue: &[u8], topic: &[u8]) {
    let field = [id, b":queue"].concat();
    let pending = [queue, b":pending"].concat();
    let processing = [queue, b":processing"].concat();
    let same = |got: &[u8], wanted: &[u8]| assert!(got == wanted, "{} bytes differ", wanted.len());
    ok!(con, "LPUSH", &processing, id);

    // RETRY restores the queue, DELAYTICK reads it.
    ok!(con, "RMQ.RETRY", "m", "d", "e", &processing, id, payload, 0, topic);
    let stored: Vec<u8> = ask!(con, "HGET", "m", id);
    same(&stored, payload);
    let moved = rows(ok!(con, "RMQ.DELAYTICK", "d", "m", 10));
    assert_eq!(moved.len(), 1);
    same(&moved[0][0], id);
    same(&moved[0][1], queue);

    let taken: Vec<u8> = ask!(con, "LMOVE", &pending, &processing, "RIGHT", "LEFT");
    same(&taken, id);
    ok!(con, "ZADD", "e", 1, id);
    for options in [&["CLAIM", "1"][..], &[]] {
        let replied = rows(ok!(con, "RMQ.TIMEOUTS", "e", "m", LATER, 10, options));
        assert_eq!(replied.len(), 1);
        same(&replied[0][0], id);
        same(&replied[0][1], payload);
        same(&replied[0][2], queue);
    }

    ok!(con, "LPUSH", &processing, id);
    ok!(con, "RMQ.PARSEERR", "pm", "pq", &processing, "e", "m", id, payload, topic, payload, topic, "", 5);
    let head: Vec<u8> = ask!(con, "LINDEX", "pq", 0);
    same(&head, id);
    let record: Vec<u8> = ask!(con, "HGET", "pm", id);
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["original_payload_bytes"], payload.len());
    assert!(record["message_id"] == String::from_utf8_lossy(id).as_ref());
    assert!(record["topic"] == String::from_utf8_lossy(topic).as_ref());

    ok!(con, "HSET", "m", id, payload, &field, queue);
    ok!(con, "LPUSH", &processing, id, "other");
    ok!(con, "ZADD", "e", 1, id);
    ok!(con, "RMQ.COMPLETE", "m", &processing, "e", id);
    let left: Vec<Vec<u8>> = ask!(con, "LRANGE", &processing, 0, -1);
    assert!(left == [b"other"]);
    let exist: i64 = ask!(con, "EXISTS", "m", "e", "d", &pending);
    assert_eq!(exist, 0);
    ok!(con, "FLUSHALL");
}

#[test]
fn ids_payloads_topics_and_queues_of_any_bytes_pass_unharmed() {
    let server = Server::start();
    let mut con = server.con();
    let hostile = hostile_bytes();
    for bytes in &hostile {
        walk(&mut con, bytes, b"payload", b"q", b"topic");
        walk(&mut con, b"id", bytes, b"q", b"topic");
        walk(&mut con, b"id", b"payload", bytes, b"topic");
        walk(&mut con, bytes, bytes, bytes, bytes);
    }
    let mut rng = Rng::seeded();
    for length in 1..60 {
        let [id, payload, queue] = [length, 3 * length, length].map(|length| rng.bytes(length));
        walk(&mut con, &id, &payload, &queue, &payload);
    }
}

#[test]
fn many_ids_of_any_bytes_are_distinguished_in_one_call() {
    let server = Server::start();
    let mut con = server.con();
    let mut ids = hostile_bytes();
    ids.extend((0..=255u8).map(|byte| vec![byte, byte]));
    for id in &ids {
        ok!(con, "HSET", "m", id, id, [id, &b":queue"[..]].concat(), "q");
        ok!(con, "LPUSH", "q:processing", id);
        ok!(con, "ZADD", "d", 1, id);
        ok!(con, "ZADD", "e", 1, id);
    }
    let all: BTreeSet<Vec<u8>> = ids.iter().cloned().collect();
    let first = |rows: Vec<Vec<Vec<u8>>>| -> BTreeSet<Vec<u8>> { rows.into_iter().map(|row| row[0].clone()).collect() };
    assert_eq!(first(rows(ok!(con, "RMQ.DELAYTICK", "d", "m", 1000))), all);
    let replied = rows(ok!(con, "RMQ.TIMEOUTS", "e", "m", "*", 1000, "CLAIM", 1));
    assert!(replied.iter().all(|row| row[0] == row[1]));
    assert_eq!(first(replied), all);
    let (half, rest) = ids.split_at(ids.len() / 2);
    ok!(con, "RMQ.COMPLETE", "m", "q:processing", "e", half);
    let left: Vec<Vec<u8>> = ask!(con, "LRANGE", "q:processing", 0, -1);
    assert_eq!(left.iter().collect::<BTreeSet<_>>(), rest.iter().collect());
    ok!(con, "RMQ.COMPLETE", "m", "q:processing", "e", rest);
    assert_eq!(Snapshot::of(&mut con).keys(), ["q:pending"]);
}

#[test]
fn an_id_and_a_payload_of_64_mib_pass_unharmed() {
    let server = Server::start();
    let mut con = server.con();
    let mut large: Vec<u8> = (0..64u32 << 20).map(|n| b'a' + (n % 23) as u8).collect();
    large[..4].copy_from_slice(b"\0\r\n\xff");
    walk(&mut con, b"id", &large, b"q", b"topic");
    walk(&mut con, &large, b"payload", b"q", b"topic");
    assert!(server.is_alive());
}

/// A ZSET of ids to be moved or taken back, and the derived key that the command opens for each.
struct Tick {
    name: &'static str,
    zset: &'static str,
    suffix: &'static str,
    args: &'static [&'static str],
}

const TICKS: [Tick; 3] = [
    Tick { name: "RMQ.DELAYTICK", zset: "d", suffix: ":pending", args: &[] },
    Tick { name: "RMQ.TIMEOUTS", zset: "e", suffix: ":processing", args: &["*"] },
    Tick { name: "RMQ.TIMEOUTS", zset: "e", suffix: ":processing", args: &["99999"] },
];

impl Tick {
    fn add(&self, con: &mut Connection, id: &str, queue: &str, score: usize) {
        ok!(con, "HSET", "m", id, "payload", format!("{id}:queue"), queue);
        ok!(con, "ZADD", self.zset, score, id);
        if self.suffix == ":processing" && queue.starts_with("good") {
            ok!(con, "LPUSH", format!("{queue}:processing"), id);
        }
    }

    /// The ids that the command replies.
    fn run(&self, con: &mut Connection, batch: usize) -> Vec<String> {
        let reply = ok!(con, self.name, self.zset, "m", self.args, batch);
        text_rows(reply).into_iter().map(|row| row[0].clone()).collect()
    }
}

fn lines_about_skipping(server: &Server) -> usize {
    server.log().lines().filter(|line| line.contains("cannot be used: it has another type or role")).count()
}

#[test]
fn one_bad_queue_never_blocks_the_others_and_its_ids_stay_where_they_are() {
    for tick in &TICKS {
        for wrong in TYPES.into_iter().filter(|kind| *kind != "list") {
            let server = Server::start();
            let mut con = server.con();
            let bad = format!("bad{}", tick.suffix);
            make(&mut con, &bad, wrong);
            for (score, (id, queue)) in
                [("b1", "bad"), ("g1", "good1"), ("b2", "bad"), ("g2", "good2"), ("b3", "bad"), ("g3", "good1")]
                    .into_iter()
                    .enumerate()
            {
                tick.add(&mut con, id, queue, score);
            }
            let before = Snapshot::of(&mut con);
            assert_eq!(tick.run(&mut con, 10), ["g1", "g2", "g3"], "{} {wrong}", tick.name);
            let after = Snapshot::of(&mut con);
            let expected: BTreeMap<String, f64> =
                [("b1", 0.0), ("b2", 2.0), ("b3", 4.0)].map(|(id, score)| (id.into(), score)).into();
            assert_eq!(after.zset(tick.zset), expected);
            assert_eq!(after.contents(&bad), before.contents(&bad));
            assert_eq!(after.hash("m"), before.hash("m"));
            assert_eq!(counter(&server, "skipped"), 3);
            assert_eq!(lines_about_skipping(&server), 1);
            assert!(server.log().contains(&format!("'{bad}'")), "the log names the key");

            // Once the key has the right type, they are moved as usual.
            ok!(con, "DEL", &bad);
            if tick.suffix == ":processing" {
                ok!(con, "RPUSH", &bad, "b1", "b2", "b3");
            }
            assert_eq!(tick.run(&mut con, 10), ["b1", "b2", "b3"]);
            assert_eq!(counter(&server, "skipped"), 3);
        }
    }
}

#[test]
fn ids_behind_more_bad_ones_than_the_batch_do_not_starve() {
    for tick in &TICKS {
        let server = Server::start();
        let mut con = server.con();
        for n in 0..3 {
            make(&mut con, &format!("bad{n}{}", tick.suffix), "string");
        }
        for n in 0..500 {
            tick.add(&mut con, &format!("b{n}"), &format!("bad{}", n % 3), n);
        }
        for n in 0..5 {
            tick.add(&mut con, &format!("g{n}"), "good", 1000 + n);
        }
        assert_eq!(tick.run(&mut con, 1), ["g0"]);
        assert_eq!(tick.run(&mut con, 3), ["g1", "g2", "g3"]);
        // Nor do they count in a batch with room for one that is dropped.
        ok!(con, "ZADD", tick.zset, 100, "orphan");
        assert_eq!(tick.run(&mut con, 2), ["g4"]);
        assert_eq!(tick.run(&mut con, 1), [""; 0]);
        let left: usize = ask!(con, "ZCARD", tick.zset);
        assert_eq!(left, 500);
    }
}

#[test]
fn a_tick_that_only_skips_touches_no_key_and_sends_nothing() {
    for tick in &TICKS {
        let server = Server::start();
        let mut con = server.con();
        let bad = format!("bad{}", tick.suffix);
        make(&mut con, &bad, "hash");
        tick.add(&mut con, "b", "bad", 1);
        let before = Snapshot::of(&mut con);
        let tap = ReplicaTap::attach(&server);
        let mut events = Events::subscribe(&server);
        let watcher = Watcher::on(&server, &[tick.zset, "m", &bad]);
        assert_eq!(tick.run(&mut con, 10), [""; 0]);
        assert!(watcher.untouched());
        assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
        assert_eq!(events.lines_until_marker(&mut con), [""; 0]);
        before.assert_unchanged(&mut con);
    }
}

#[test]
fn a_bad_queue_is_counted_at_every_tick_but_logged_once_and_not_once_per_tick() {
    let server = Server::start();
    let mut con = server.con();
    for tick in &TICKS[..2] {
        make(&mut con, &format!("bad%s\r\n{}", tick.suffix), "string");
        tick.add(&mut con, "b1", "bad%s\r\n", 1);
        tick.add(&mut con, "b2", "bad%s\r\n", 2);
    }
    assert_eq!((counter(&server, "skipped"), lines_about_skipping(&server)), (0, 0));
    let start = std::time::Instant::now();
    for ticks in 1..=50 {
        for tick in &TICKS[..2] {
            assert_eq!(tick.run(&mut con, 10), [""; 0]);
        }
        assert_eq!(counter(&server, "skipped"), 4 * ticks);
    }
    // Again after ten seconds, should the machine be that slow.
    let most = 1 + start.elapsed().as_secs() as usize / 10;
    assert!((1..=most).contains(&lines_about_skipping(&server)));
    let line = "2 ids stay where they are, because 'bad%s\\r\\n:pending' cannot be used: it has another type or role";
    assert!(server.log().contains(line));
}

#[test]
fn a_derived_key_that_is_one_of_the_arguments_is_a_bad_queue_and_no_more() {
    let server = Server::start();
    let mut con = server.con();
    for (command, zset, map) in
        [("RMQ.DELAYTICK", "x:pending", "y:pending"), ("RMQ.TIMEOUTS", "x:processing", "y:processing")]
    {
        for queue in ["x", "y"] {
            ok!(con, "HSET", map, "b", "payload", "b:queue", queue, "g", "payload", "g:queue", "good");
            ok!(con, "ZADD", zset, 1, "b", 2, "g");
            ok!(con, "RPUSH", "good:processing", "g");
            let args: &[&str] = if command == "RMQ.TIMEOUTS" { &["*"] } else { &[] };
            let replied = text_rows(ok!(con, command, zset, map, args, 10));
            assert_eq!((replied.len(), replied[0][0].as_str()), (1, "g"));
            assert_eq!(strings(ok!(con, "ZRANGE", zset, 0, -1)), ["b"]);
            ok!(con, "FLUSHALL");
        }
    }
}
