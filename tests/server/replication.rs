//! Replicas and the AOF get plain commands with absolute times, one transaction per call, and need no module.

use crate::common::cases::*;
use crate::common::messages::{DELAYS, DLQ, DLQ_MAP, DUE, MAP, NS};
use crate::common::*;
use redis::Connection;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn each_command_sends_exactly_its_plain_effects_in_one_transaction() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    for (about, setup, step) in examples() {
        HERE.set_up(&mut con, setup);
        tap.commands_until_marker(&mut con);
        let now = server_time_ms(&mut con);
        HERE.run(&mut con, step);
        let sent = tap.commands_until_marker(&mut con);
        HERE.assert_stream(&about, step, now, &sent);
    }
}

#[test]
fn a_call_that_changes_nothing_sends_nothing_and_writes_nothing_to_the_aof() {
    let server = Server::builder().arg("appendonly", "yes").start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        tap.commands_until_marker(&mut con);
        let dirty = dirty(&server);
        let before = Snapshot::with_ttls(&mut con);
        let size = aof_size(&server);
        HERE.run(&mut con, &row.idle);
        assert_eq!(aof_size(&server), size, "{}", row.idle.call);
        assert_eq!(dirty, self::dirty(&server), "{}", row.idle.call);
        assert_eq!(tap.lines_until_marker(&mut con), [""; 0], "{}", row.idle.call);
        before.assert_unchanged(&mut con);
    }
}

fn dirty(server: &Server) -> String {
    server.info("persistence")["rdb_changes_since_last_save"].clone()
}

fn aof_size(server: &Server) -> String {
    server.info("persistence")["aof_current_size"].clone()
}

#[test]
fn every_change_counts_as_a_change_to_be_saved() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS.iter().filter(|row| !row.effect.stream.is_empty()) {
        HERE.set_up(&mut con, row.setup);
        let before = dirty(&server);
        HERE.run(&mut con, &row.effect);
        assert_ne!(dirty(&server), before, "{}", row.effect.call);
    }
}

#[test]
fn inside_of_multi_all_effects_share_the_transaction_of_the_caller() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        tap.commands_until_marker(&mut con);
        let now = server_time_ms(&mut con);
        ok!(con, "MULTI");
        ok!(con, "SET", "first", "1");
        HERE.call(&mut con, row.effect.call).unwrap();
        HERE.call(&mut con, row.idle.call).unwrap();
        ok!(con, "SET", "last", "1");
        ok!(con, "EXEC");
        let sent = tap.lines_until_marker(&mut con);
        let mut wanted = vec!["MULTI".to_string(), "SET first 1".into()];
        wanted.extend(row.effect.stream.iter().map(|line| HERE.text(line)));
        wanted.extend(["SET last 1".into(), "EXEC".into()]);
        let same = wanted.len() == sent.len() && wanted.iter().zip(&sent).all(|(w, s)| fits(w, s, now));
        assert!(same, "wanted {wanted:#?}\nsent {sent:#?}");
    }
}

#[test]
fn a_script_sends_the_plain_effects_of_the_commands_that_it_calls() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        tap.commands_until_marker(&mut con);
        let now = server_time_ms(&mut con);
        ok!(con, "EVAL", "return redis.call(unpack(ARGV))", 0, HERE.words(row.effect.call));
        HERE.assert_stream(row.name, &row.effect, now, &tap.commands_until_marker(&mut con));
    }
}

#[test]
fn a_large_batch_is_one_push_per_queue_and_one_removal() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    let ids: Vec<String> = (0..1000).map(|n| format!("id-{n:04}")).collect();
    for (n, id) in ids.iter().enumerate() {
        ok!(con, "HSET", "map", id, "p", format!("{id}:queue"), format!("q{}", n % 3));
        ok!(con, "ZADD", "delay", n, id);
    }
    tap.commands_until_marker(&mut con);
    ok!(con, "RMQ.DELAYTICK", "delay", "map", 1000);
    let of_queue = |queue: usize| {
        let ids: Vec<&str> = ids.iter().skip(queue).step_by(3).map(String::as_str).collect();
        format!("LPUSH q{queue}:pending {}", ids.join(" "))
    };
    // Ids leave delay_tasks together, in the order in which they were due.
    let wanted = [
        "MULTI".to_string(),
        of_queue(0),
        of_queue(1),
        of_queue(2),
        format!("ZREM delay {}", ids.join(" ")),
        "EXEC".into(),
    ];
    assert_eq!(tap.lines_until_marker(&mut con), wanted);
}

#[test]
fn record_expiry_is_replicated_as_an_absolute_time() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    let now = server_time_ms(&mut con);
    ok!(con, "RMQ.PARSEERR", "errors", "ids", "p", "e", "m", "a", "pa", "t", "boom", 1, 7);
    let sent = tap.lines_until_marker(&mut con);
    assert_eq!(sent.len(), 5, "{sent:?}");
    let expiry = sent.iter().find(|line| line.contains("PEXPIREAT")).expect("an expiry");
    let at: i64 = if server.supports("hpexpireat") {
        let at = expiry.strip_prefix("HPEXPIREAT errors ").and_then(|rest| rest.strip_suffix(" FIELDS 1 a"));
        let stored: Vec<i64> = ask!(con, "HPEXPIRETIME", "errors", "FIELDS", 1, "a");
        let at = at.expect(expiry).parse().unwrap();
        assert_eq!(stored, [at]);
        at
    } else {
        let at = expiry.strip_prefix("PEXPIREAT errors ").expect(expiry).parse().unwrap();
        let stored: i64 = ask!(con, "PEXPIRETIME", "errors");
        assert_eq!(stored, at);
        at
    };
    let days = 7 * 86_400_000;
    assert!(at >= now + days && at <= server_time_ms(&mut con) + days);
}

#[test]
fn times_reach_replicas_to_the_last_digit() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    HERE.set_up(&mut con, &["HSET map a pa a:queue q", "LPUSH q:processing a", "ZADD exp 1 a"]);
    tap.commands_until_marker(&mut con);
    for call in ["RMQ.TIMEOUTS exp map * 10 CLAIM 60000", "RMQ.RETRY map delay exp q:processing a new 0.1234567"] {
        HERE.call(&mut con, call).unwrap();
        let sent = tap.commands_until_marker(&mut con);
        let zadd = sent.iter().find(|command| command[0] == b"ZADD").expect("a ZADD");
        let key = String::from_utf8_lossy(&zadd[1]).into_owned();
        let sent: f64 = String::from_utf8_lossy(&zadd[2]).parse().unwrap();
        let stored: f64 = ask!(con, "ZSCORE", &key, "a");
        assert_eq!(stored.to_bits(), sent.to_bits(), "{call}");
    }
}

#[test]
fn bytes_of_any_kind_are_replicated_unharmed() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    let id: &[u8] = b"\0\r\n%s\xff id";
    let queue: &[u8] = b"q \0\r\n%n\xfe";
    let field = [id, b":queue"].concat();
    let processing = [queue, b":processing"].concat();
    ok!(con, "HSET", "map", id, b"\xff\0", &field, queue);
    ok!(con, "LPUSH", &processing, id);
    ok!(con, "RMQ.RETRY", "map", "delay", "exp", &processing, id, b"%s\r\n\0\xff", 0);
    assert_eq!(rows(ok!(con, "RMQ.DELAYTICK", "delay", "map", 1)), [[id, queue]]);
    let pending = [queue, b":pending"].concat();
    assert_eq!(bulk(ok!(con, "RPOPLPUSH", &pending, &processing)), id);
    ok!(con, "ZADD", "exp", 1, id);
    assert_eq!(rows(ok!(con, "RMQ.TIMEOUTS", "exp", "map", "*", 1))[0][1], b"%s\r\n\0\xff");
    let error: &[u8] = b"\0\"\\\r\n\xff";
    ok!(con, "RMQ.PARSEERR", "errors", "ids", &processing, "exp", "map", id, error, error, error, error);
    replica.wait_synced();
    Snapshot::of(&mut con).assert_same(&Snapshot::of(&mut replica.con()));
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn a_reserve_that_waited_sends_its_effects_in_a_transaction_after_the_push_that_woke_it() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    HERE.add(&mut con, &["HSET ns:payloads a pa a:queue ns:q ghost:queue ns:q", "HSET ns:queues q {}"]);
    tap.commands_until_marker(&mut con);
    let mut waiting = Raw::connect(&server);
    let reserve = command!("RMQ.RESERVE", "ns", 60_000, "BLOCK", 0, "FROM", "q");
    waiting.send_cmd(&reserve);
    assert!(eventually(deadline(), || server.info("clients")["blocked_clients"] == "1"));

    // Only an id without payload: it is dropped, and the client goes on waiting.
    ok!(con, "LPUSH", "ns:q:pending", "ghost");
    let sent = tap.lines_until_marker(&mut con);
    let dropped = ["LPUSH ns:q:pending ghost", "MULTI", "RPOP ns:q:pending", "HDEL ns:payloads ghost:queue", "EXEC"];
    assert_eq!(sent, dropped);
    if !server.is_valkey() && server.version() < (7, 2, 0) {
        // Redis 7.0 cannot let a client wait on after a change: it gets nil.
        assert_eq!(waiting.read(), Reply::NilArray);
        waiting.send_cmd(&reserve);
    }
    assert!(eventually(deadline(), || server.info("clients")["blocked_clients"] == "1"));

    let now = server_time_ms(&mut con);
    ok!(con, "LPUSH", "ns:q:pending", "a");
    let Reply::Array(served) = waiting.read() else {
        panic!("one message was expected");
    };
    assert_eq!(served.len(), 1);
    let sent = tap.lines_until_marker(&mut con);
    let wanted = [
        "LPUSH ns:q:pending a",
        "MULTI",
        "RPOPLPUSH ns:q:pending ns:q:processing",
        "HSET ns:payloads a:attempts 1-<time>",
        "ZADD ns:expires <time> a",
        "EXEC",
    ];
    assert_eq!(sent.len(), wanted.len(), "{sent:#?}");
    assert!(wanted.iter().zip(&sent).all(|(w, s)| fits(w, s, now)), "{sent:#?}");
}

#[test]
fn a_reserve_that_finds_only_ids_without_payload_sends_their_removal_before_it_waits() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    HERE.add(&mut con, &["HSET ns:payloads other x", "LPUSH ns:q:pending ghost spectre"]);
    tap.commands_until_marker(&mut con);
    let mut waiting = Raw::connect(&server);
    waiting.send_cmd(&command!("RMQ.RESERVE", "ns", 60_000, "BLOCK", 0, "FROM", "q"));
    assert!(eventually(deadline(), || server.info("clients")["blocked_clients"] == "1"));
    assert_eq!(tap.lines_until_marker(&mut con), ["RPOP ns:q:pending 2"]);
}

#[test]
fn what_is_written_survives_a_reload_and_a_rewrite_of_the_aof_in_the_middle_of_traffic() {
    let server = Server::builder().arg("appendonly", "yes").start();
    let mut con = server.con();
    let mut life = Life::new(Rng::seeded());
    for _ in 0..3 {
        (0..300).for_each(|_| life.step(&mut con));
        ok!(con, "BGREWRITEAOF");
        (0..300).for_each(|_| life.step(&mut con));
        let rewritten = || server.info("persistence")["aof_rewrite_in_progress"] == "0";
        assert!(eventually(deadline(), rewritten));
        assert_eq!(server.info("persistence")["aof_last_bgrewrite_status"], "ok");
        let digest = server.digest();
        ok!(con, "DEBUG", "RELOAD");
        assert_eq!(server.digest(), digest);
        (0..100).for_each(|_| life.step(&mut con));
        let digest = server.digest();
        ok!(con, "DEBUG", "LOADAOF");
        assert_eq!(server.digest(), digest);
    }
}

#[test]
fn ids_scattered_over_a_long_list_with_duplicates_leave_the_same_list_on_a_replica() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    let mut rng = Rng::seeded();
    for round in 0..30 {
        ok!(con, "DEL", "q:processing", "map", "exp", "delay");
        let mut ids: Vec<String> = (0..700).map(|n| format!("id-{n}")).collect();
        ids.extend((0..300).map(|n| format!("id-{}", n * 2)));
        rng.shuffle(&mut ids);
        ok!(con, "RPUSH", "q:processing", &ids);
        let (mut deadlines, mut messages) = (Vec::new(), Vec::new());
        for n in 0..700 {
            deadlines.extend([rng.below(1000).to_string(), format!("id-{n}")]);
            messages.extend([format!("id-{n}"), "x".into(), format!("id-{n}:queue"), "q".into()]);
        }
        ok!(con, "ZADD", "exp", deadlines);
        ok!(con, "HSET", "map", messages);
        ok!(con, "RMQ.RETRY", "map", "delay", "exp", "q:processing", rng.pick(&ids), "new", 1);
        let chosen: Vec<String> = (0..1 + rng.below(200)).map(|_| rng.pick(&ids).clone()).collect();
        ok!(con, "RMQ.COMPLETE", "map", "q:processing", "exp", &chosen);
        let batch = 1 + rng.below(300);
        ok!(con, "RMQ.TIMEOUTS", "exp", "map", "*", batch);
        replica.wait_synced();
        assert_eq!(replica.digest(), server.digest(), "round {round}");
        let left: Vec<String> = ask!(con, "LRANGE", "q:processing", 0, -1);
        assert!(left.iter().all(|id| id.starts_with("id-")), "round {round}");
    }
}

/// Encodings that a server chooses for small keys, and those for large ones.
const SMALL: &[(&str, &str)] = &[
    ("list-max-listpack-size", "-2"),
    ("hash-max-listpack-entries", "100000"),
    ("hash-max-listpack-value", "100000"),
    ("zset-max-listpack-entries", "100000"),
];
const LARGE: &[(&str, &str)] = &[
    ("list-max-listpack-size", "3"),
    ("list-compress-depth", "1"),
    ("hash-max-listpack-entries", "0"),
    ("zset-max-listpack-entries", "0"),
];

#[test]
fn after_thousands_of_random_calls_a_replica_and_an_aof_without_the_module_hold_the_same_in_small_encodings() {
    same_digest_everywhere(SMALL, &["listpack", "ziplist"]);
}

#[test]
fn after_thousands_of_random_calls_a_replica_and_an_aof_without_the_module_hold_the_same_in_large_encodings() {
    same_digest_everywhere(LARGE, &["hashtable", "skiplist"]);
}

fn same_digest_everywhere(settings: &[(&str, &str)], encodings: &[&str]) {
    const CALLS: usize = 5000;
    /// How many more there may be until every command has had its effects: which have one is random.
    const CALLS_MAX: usize = 5 * CALLS;
    let with = |mut builder: Builder| {
        for (name, value) in settings {
            builder = builder.arg(name, value);
        }
        builder
    };
    let server = with(Server::builder().arg("appendonly", "yes")).start();
    let replica = Replica::started_as(with(Server::builder().without_module()), &server);
    let mut con = server.con();
    let mut life = Life::new(Rng::seeded());
    // A key may be missing at one moment or another.
    let mut keys_seen = BTreeSet::new();
    for n in 0..CALLS_MAX {
        if n >= CALLS && life.without_enough_effects().is_none() {
            break;
        }
        life.step(&mut con);
        if n % 500 == 0 {
            replica.wait_synced();
            assert_eq!(replica.digest(), server.digest(), "after {n} calls");
        }
        if n % 50 == 0 {
            for key in [MAP, DELAYS] {
                let Some(encoding): Option<String> = ask!(con, "OBJECT", "ENCODING", key) else { continue };
                assert!(encodings.contains(&encoding.as_str()), "{key} is a {encoding}");
                keys_seen.insert(key);
            }
        }
    }
    assert_eq!(keys_seen.len(), 2, "only {keys_seen:?} was there");
    life.assert_all_had_an_effect(&server);
    replica.wait_synced();
    let (digest, keys) = (server.digest(), Snapshot::with_ttls(&mut con));
    keys.assert_same(&Snapshot::with_ttls(&mut replica.con()));
    assert_eq!(replica.digest(), digest);

    // The server's folder outlives its process.
    server.stop();
    let folder = server.dir().to_str().expect("a path").to_string();
    let plain = with(Server::builder().without_module()).arg("appendonly", "yes").arg("dir", &folder).start();
    keys.assert_same(&Snapshot::with_ttls(&mut plain.con()));
    assert_eq!(plain.digest(), digest);
}

/// Random operations on random messages, by the module's commands and by the plain ones that fill its keys.
struct Life {
    rng: Rng,
    effects: BTreeMap<&'static str, usize>,
}

type Operation = (&'static str, fn(&mut Rng, &mut Connection) -> redis::Cmd);

fn id(rng: &mut Rng) -> String {
    format!("id-{}", rng.below(150))
}

fn ids(rng: &mut Rng) -> Vec<String> {
    (0..1 + rng.below(6)).map(|_| id(rng)).collect()
}

fn queue(rng: &mut Rng) -> &'static str {
    ["q", "r"][rng.below(2)]
}

fn list(rng: &mut Rng, state: &str) -> String {
    format!("{NS}:{}:{state}", queue(rng))
}

fn processing(rng: &mut Rng) -> String {
    list(rng, "processing")
}

/// One line per command.
const OPERATIONS: &[Operation] = &[
    ("HSET", |rng, _| {
        let (id, length) = (id(rng), rng.below(40));
        let queue = format!("{NS}:{}", queue(rng));
        command!("HSET", MAP, &id, rng.bytes(length), format!("{id}:queue"), queue)
    }),
    ("LPUSH", |rng, _| command!("LPUSH", list(rng, "pending"), ids(rng))),
    ("LMOVE", |rng, _| {
        let queue = queue(rng);
        command!("LMOVE", format!("{NS}:{queue}:pending"), format!("{NS}:{queue}:processing"), "RIGHT", "LEFT")
    }),
    ("ZADD", |rng, _| {
        let score = rng.below(5000) as f64 + 0.5;
        command!("ZADD", DUE, score, id(rng))
    }),
    ("RMQ.COMPLETE", |rng, _| command!("RMQ.COMPLETE", MAP, processing(rng), DUE, ids(rng))),
    ("RMQ.RETRY", |rng, _| {
        let (length, delay) = (rng.below(40), [0.0, 0.001, 3600.5][rng.below(3)]);
        command!("RMQ.RETRY", MAP, DELAYS, DUE, processing(rng), id(rng), rng.bytes(length), delay)
    }),
    ("RMQ.DELAYTICK", |rng, _| command!("RMQ.DELAYTICK", DELAYS, MAP, 1 + rng.below(4))),
    ("RMQ.TIMEOUTS", |rng, _| {
        let mut command = command!("RMQ.TIMEOUTS", DUE, MAP, "*", 1 + rng.below(4));
        match rng.below(3) {
            0 => {}
            1 => drop(command.arg("ALL")),
            _ => drop(command.arg("CLAIM").arg(1 + rng.below(1000))),
        }
        command
    }),
    ("RMQ.PARSEERR", |rng, _| {
        let (length, days) = (rng.below(40), ["", "1", "0.5"][rng.below(3)]);
        let (most, hexpire) = (["", "5", "20"][rng.below(3)], ["", "0"][rng.below(2)]);
        let mut command = command!("RMQ.PARSEERR", "errors", "error-ids", processing(rng), DUE, MAP, id(rng));
        command.arg(rng.bytes(length)).arg("topic").arg("boom").arg(5);
        command.arg(days).arg(most).arg(hexpire);
        command
    }),
    ("RMQ.PUBLISH", |rng, _| {
        let mut command = command!("RMQ.PUBLISH", NS);
        match rng.below(4) {
            0 => drop(command.arg("URGENT")),
            1 => drop(command.arg("DELAY").arg(rng.below(3))),
            _ => {}
        }
        if rng.chance(30) {
            command.arg("ONCE").arg(1 + rng.below(20));
        }
        command.arg("TO").arg(queue(rng));
        for id in ids(rng) {
            command.arg(id).arg(rng.bytes(5));
        }
        command
    }),
    ("RMQ.RESERVE", |rng, _| {
        let mut command = command!("RMQ.RESERVE", NS, 1 + rng.below(50), "COUNT", 1 + rng.below(4), "FROM");
        command.arg(queue(rng)).arg(queue(rng));
        command
    }),
    ("RMQ.ACK", |rng, con| command!("RMQ.ACK", NS, held(rng, con))),
    ("RMQ.NACK", |rng, con| {
        let mut command = command!("RMQ.NACK", NS, &held(rng, con)[..2]);
        match rng.below(3) {
            0 => drop(command.arg("DEAD")),
            1 => drop(command.arg("DELAY").arg(rng.below(3))),
            _ => {}
        }
        if rng.chance(50) {
            command.arg("PAYLOAD").arg(rng.bytes(5)).arg("ERROR").arg(rng.bytes(5));
        }
        command
    }),
    ("RMQ.RELEASE", |rng, con| command!("RMQ.RELEASE", NS, held(rng, con))),
    ("RMQ.EXTEND", |rng, con| {
        let span = 1 + rng.below(50);
        command!("RMQ.EXTEND", NS, span, held(rng, con))
    }),
    ("RMQ.DEADLETTER", |rng, _| command!("RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, processing(rng), id(rng), "last")),
    ("RMQ.REDRIVE", |rng, _| match rng.below(2) {
        0 => command!("RMQ.REDRIVE", NS, "IDS", ids(rng)),
        _ => command!("RMQ.REDRIVE", NS, "COUNT", 1 + rng.below(4)),
    }),
    ("RMQ.CANCEL", |rng, _| match rng.below(2) {
        0 => command!("RMQ.CANCEL", NS, "WAITING", "IDS", ids(rng)),
        _ => command!("RMQ.CANCEL", NS, "IDS", id(rng)),
    }),
    ("RMQ.RESCHEDULE", |rng, _| command!("RMQ.RESCHEDULE", NS, [0, 1, 3_600_000][rng.below(3)], "IDS", ids(rng))),
    ("RMQ.PURGE", |rng, _| {
        let mut command = command!("RMQ.PURGE", NS, "COUNT", 1 + rng.below(3));
        match rng.below(12) {
            0..4 => drop(command.arg("PENDING").arg(queue(rng))),
            4 => drop(command.arg("DELAYED")),
            5..8 => drop(command.arg("DEAD").arg(queue(rng))),
            _ => drop(command.arg("DEAD")),
        }
        command
    }),
    ("RMQ.REPAIR", |rng, _| command!("RMQ.REPAIR", NS, "CURSOR", 0, "COUNT", 1 + rng.below(200))),
    ("RMQ.POLICY", |rng, _| {
        let mut command = command!("RMQ.POLICY", NS, queue(rng));
        match rng.below(4) {
            0 => drop(command.arg("RESET")),
            1 => drop(command.arg("BACKOFF").arg(0).arg(rng.below(3))),
            _ => drop(command.arg("ATTEMPTS").arg(1 + rng.below(5))),
        }
        command
    }),
];

/// Some messages in work with their receipts, where they have one, and some others.
fn held(rng: &mut Rng, con: &mut Connection) -> Vec<String> {
    let mut ids = ids(rng);
    let in_work: Vec<String> = ask!(con, "LRANGE", processing(rng), 0, 20);
    if !in_work.is_empty() {
        ids.insert(0, rng.pick(&in_work).clone());
    }
    let mut pairs = Vec::new();
    for id in ids {
        // The text after the blank may be any bytes.
        let field: Option<Vec<u8>> = ask!(con, "HGET", MAP, format!("{id}:attempts"));
        let receipt = field.map(|field| String::from_utf8_lossy(&field).split(' ').next().unwrap().to_string());
        pairs.extend([id, receipt.unwrap_or_else(|| "1-1".into())]);
    }
    pairs
}

impl Life {
    fn new(rng: Rng) -> Life {
        let effects = OPERATIONS.iter().map(|(name, _)| (*name, 0)).collect();
        Life { rng, effects }
    }

    fn step(&mut self, con: &mut Connection) {
        let (name, make) = *self.rng.pick(OPERATIONS);
        let command = make(&mut self.rng, con);
        match send!(con, &command) {
            Ok(redis::Value::Nil | redis::Value::Int(0)) => {}
            Ok(redis::Value::Array(items)) if items.is_empty() => {}
            Ok(_) => *self.effects.get_mut(name).expect("a known command") += 1,
            Err(e) => {
                let known = ["NOMSG ", "EXISTS "].iter().any(|start| error_text(&e).starts_with(start));
                assert!(known, "{}: {e}", line_of(&command));
            }
        }
    }

    /// A command that has changed too little for equal digests to prove anything.
    fn without_enough_effects(&self) -> Option<&'static str> {
        let has_enough = |row: &&Row| self.effects.get(row.name).is_some_and(|n| *n > 20);
        ROWS.iter().filter(|row| row.writes()).find(|row| !has_enough(row)).map(|row| row.name)
    }

    fn assert_all_had_an_effect(&self, server: &Server) {
        assert_eq!(self.without_enough_effects(), None, "{:?}", self.effects);
        assert_eq!(server.info("rmq")["rmq_panics"], "0");
    }
}
