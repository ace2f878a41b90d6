//! The module's settings, wherever they are given, and the counters of INFO rmq.

use crate::common::cases::*;
use crate::common::*;
use redis::Connection;
use std::collections::BTreeMap;

/// Each setting with its default and its range.
const SETTINGS: &[(&str, i64, i64, i64)] = &[
    ("max-batch", 10_000, 1, 1_000_000),
    ("parse-error-payload-limit", 4096, 0, 64 << 20),
    ("parse-error-message-limit", 256, 0, 1 << 20),
    ("error-limit", 1024, 0, 1 << 20),
];

fn value(con: &mut Connection, name: &str) -> i64 {
    let replied: BTreeMap<String, i64> = ask!(con, "CONFIG", "GET", format!("rmq.{name}"));
    assert_eq!(replied.len(), 1, "rmq.{name}");
    replied[&format!("rmq.{name}")]
}

#[test]
fn the_settings_are_those_of_the_contract_with_their_defaults() {
    let server = Server::start();
    let mut con = server.con();
    let replied: BTreeMap<String, i64> = ask!(con, "CONFIG", "GET", "rmq.*");
    let wanted: BTreeMap<String, i64> = SETTINGS.iter().map(|s| (format!("rmq.{}", s.0), s.1)).collect();
    assert_eq!(replied, wanted);
}

#[test]
fn config_set_takes_what_is_in_range_and_nothing_else() {
    let server = Server::start();
    let mut con = server.con();
    for (name, default, min, max) in SETTINGS {
        let full = format!("rmq.{name}");
        for good in [min, max, default] {
            ok!(con, "CONFIG", "SET", &full, good);
            assert_eq!(value(&mut con, name), *good);
        }
        for bad in [(min - 1).to_string(), (max + 1).to_string(), "1.5".into(), "abc".into(), "".into()] {
            let error = err!(con, "CONFIG", "SET", &full, &bad);
            assert!(error.starts_with("ERR "), "{error}");
            assert_eq!(value(&mut con, name), *default, "{full} {bad:?}");
        }
    }
    err!(con, "CONFIG", "SET", "rmq.no-such-setting", 1);
}

#[test]
fn settings_can_be_given_in_the_configuration_file() {
    let mut builder = Server::builder();
    for (n, (name, ..)) in SETTINGS.iter().enumerate() {
        builder = builder.config_line(&format!("rmq.{name} {}", n + 5));
    }
    let server = builder.start();
    for (n, (name, ..)) in SETTINGS.iter().enumerate() {
        assert_eq!(value(&mut server.con(), name), n as i64 + 5);
    }
}

#[test]
fn a_bad_setting_in_the_configuration_file_stops_the_start_and_names_it() {
    for bad in ["0", "-1", "abc", "1000001"] {
        let log = Server::builder()
            .config_line(&format!("rmq.max-batch {bad}"))
            .try_start()
            .err()
            .unwrap_or_else(|| panic!("rmq.max-batch {bad} was taken"));
        assert!(log.contains("rmq.max-batch"), "{log}");
    }
}

#[test]
fn settings_can_be_arguments_of_loadmodule_with_or_without_the_prefix() {
    let args =
        ["max-batch", "7", "rmq.parse-error-payload-limit", "8", "PARSE-ERROR-MESSAGE-LIMIT", "9", "error-limit", "10"];
    let server = Server::builder().module_args(&args).start();
    let mut con = server.con();
    for (n, (name, ..)) in SETTINGS.iter().enumerate() {
        assert_eq!(value(&mut con, name), n as i64 + 7);
    }
}

#[test]
fn a_line_of_the_configuration_file_wins_over_an_argument_of_loadmodule() {
    let server = Server::builder().module_args(&["max-batch", "7"]).config_line("rmq.max-batch 70").start();
    assert_eq!(value(&mut server.con(), "max-batch"), 70);
}

#[test]
fn a_bad_argument_of_loadmodule_stops_the_start_and_is_named() {
    let bad: [(&[&str], &str); 5] = [
        (&["nonsense", "1"], "rmq: not loaded: unknown argument 'nonsense'"),
        (&["max-batch"], "rmq: not loaded: max-batch must be followed by an integer from 1 to 1000000"),
        (&["max-batch", "0"], "max-batch must be followed by an integer from 1 to 1000000"),
        (&["max-batch", "ten"], "max-batch must be followed by an integer from 1 to 1000000"),
        (
            &["max-batch", "5", "parse-error-message-limit", "-1"],
            "parse-error-message-limit must be followed by an integer from 0 to 1048576",
        ),
    ];
    for (args, line) in bad {
        let log = Server::builder().module_args(args).try_start().err().unwrap_or_else(|| panic!("{args:?} was taken"));
        assert!(log.contains(line), "{args:?}: {log}");
    }
}

#[test]
fn max_batch_lowers_every_larger_batch() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "CONFIG", "SET", "rmq.max-batch", 3);
    let ids: Vec<String> = (0..10).map(|n| format!("id-{n}")).collect();
    for id in &ids {
        ok!(con, "HSET", "ns:payloads", id, "p", format!("{id}:queue"), "ns:q");
        ok!(con, "ZADD", "ns:delays", 1, id);
        ok!(con, "ZADD", "ns:expires", 1, id);
        ok!(con, "LPUSH", "ns:q:processing", id);
        ok!(con, "HSET", "ns:dlq:data", format!("dead-{id}"), "p", format!("dead-{id}:queue"), "ns:q");
        ok!(con, "LPUSH", "ns:dlq", format!("dead-{id}"));
    }
    for batch in ["3", "4", "10000", "9223372036854775807"] {
        let before: i64 = ask!(con, "ZCARD", "ns:delays");
        let moved = rows(ok!(con, "RMQ.DELAYTICK", "ns:delays", "ns:payloads", batch)).len();
        assert_eq!(moved as i64, before.min(3), "batch {batch}");
    }
    assert_eq!(rows(ok!(con, "RMQ.TIMEOUTS", "ns:expires", "ns:payloads", "*", 10_000)).len(), 3);
    assert_eq!(rows(ok!(con, "RMQ.TIMEOUTS", "ns:expires", "ns:payloads", "*", 2)).len(), 2);
    assert_eq!(rows(ok!(con, "RMQ.REDRIVE", "ns", "COUNT", 10_000)).len(), 3);
    let reserved = ok!(con, "RMQ.RESERVE", "ns", 1000, "COUNT", 10_000, "FROM", "q");
    assert_eq!(items(reserved).len(), 3);
}

#[test]
fn the_limits_of_a_record_are_those_in_force_at_the_call() {
    let server = Server::start();
    let mut con = server.con();
    let record = |con: &mut Connection| {
        let payload = "p".repeat(10_000);
        let error = "e".repeat(10_000);
        ok!(con, "RMQ.PARSEERR", "errors", "ids", "p", "e", "m", "a", payload, "t", error, 1);
        let record: String = ask!(con, "HGET", "errors", "a");
        (record.matches('p').count(), record.matches("eee").count())
    };
    let (payload, error) = record(&mut con);
    assert!((4096..4200).contains(&payload), "{payload}");
    assert!((80..90).contains(&error), "{error}");
    ok!(con, "CONFIG", "SET", "rmq.parse-error-payload-limit", 100, "rmq.parse-error-message-limit", 30);
    let (payload, error) = record(&mut con);
    assert!((100..120).contains(&payload), "{payload}");
    assert_eq!(error, 10);
    ok!(con, "CONFIG", "SET", "rmq.parse-error-payload-limit", 20_000, "rmq.parse-error-message-limit", 20_000);
    let (payload, _) = record(&mut con);
    assert!(payload >= 10_000, "{payload}");
}

/// What INFO rmq counts.
fn counters(server: &Server) -> BTreeMap<String, i64> {
    let info = server.info("rmq").into_iter();
    info.filter_map(|(name, value)| Some((name.strip_prefix("rmq_")?.to_string(), value.parse().unwrap()))).collect()
}

/// Counters, and by how much they rise.
type Rises = &'static [(&'static str, i64)];

/// The counters that rise by an example of the table, by how much.
fn rises(server: &Server, setup: &[&str], call: &str) -> BTreeMap<String, i64> {
    let mut con = server.con();
    HERE.set_up(&mut con, setup);
    let before = counters(server);
    let _ = HERE.call(&mut con, call);
    let after = counters(server).into_iter();
    after.map(|(name, count)| (name.clone(), count - before[&name])).filter(|(_, rise)| *rise != 0).collect()
}

#[test]
fn info_rmq_counts_what_each_command_did() {
    let server = Server::start();
    let of = |name: &str| ROWS.iter().find(|row| row.name == name).expect("a row");
    let wanted: &[(&str, Rises, Rises)] = &[
        ("RMQ.COMPLETE", &[("completed", 1)], &[]),
        ("RMQ.RETRY", &[("retried", 1)], &[]),
        ("RMQ.DELAYTICK", &[("moved", 3), ("stale", 1)], &[]),
        ("RMQ.TIMEOUTS", &[("reclaimed", 1)], &[]),
        ("RMQ.PARSEERR", &[("quarantined", 1)], &[]),
        ("RMQ.PUBLISH", &[("published", 1)], &[]),
        ("RMQ.RESERVE", &[("reserved", 1)], &[]),
        ("RMQ.ACK", &[("acked", 1)], &[("fenced", 2)]),
        ("RMQ.NACK", &[("nacked", 1)], &[("fenced", 1)]),
        ("RMQ.RELEASE", &[("released", 1)], &[("fenced", 1)]),
        ("RMQ.EXTEND", &[("extended", 1)], &[("fenced", 2)]),
        ("RMQ.DEADLETTER", &[("dead_lettered", 1)], &[]),
        ("RMQ.REDRIVE", &[("redriven", 3)], &[]),
        ("RMQ.POLICY", &[], &[]),
        ("RMQ.STATS", &[], &[]),
        ("RMQ.PEEK", &[], &[]),
        ("RMQ.CANCEL", &[("cancelled", 3)], &[]),
        ("RMQ.RESCHEDULE", &[("rescheduled", 2)], &[]),
        ("RMQ.PURGE", &[("purged", 2)], &[]),
        ("RMQ.AUDIT", &[], &[]),
        ("RMQ.REPAIR", &[("repaired", 2)], &[]),
        ("RMQ.NEXTDELAY", &[], &[]),
    ];
    assert_eq!(wanted.len(), ROWS.len());
    for (name, effect, idle) in wanted {
        let row = of(name);
        let as_map = |counts: &[(&str, i64)]| counts.iter().map(|(n, c)| (n.to_string(), *c)).collect();
        let (effect, idle): (BTreeMap<_, _>, BTreeMap<_, _>) = (as_map(effect), as_map(idle));
        assert_eq!(rises(&server, row.setup, row.effect.call), effect, "{name}");
        assert_eq!(rises(&server, row.setup, row.idle.call), idle, "{name} idle");
    }
    let others: &[(&str, &[&str], Rises)] = &[
        ("RMQ.TIMEOUTS exp map * 10 CLAIM 1000", of("RMQ.TIMEOUTS").setup, &[("claimed", 2)]),
        ("RMQ.TIMEOUTS exp map * 10", &["HSET map a pa a:queue q", "ZADD exp 1 a 2 orphan"], &[("stale", 2)]),
        (
            "RMQ.DELAYTICK delay map 10",
            &["HSET map a pa a:queue q", "ZADD delay 1 a", "SET q:pending x"],
            &[("skipped", 1)],
        ),
        (
            "RMQ.PARSEERR errors ids p e m a pa t boom 1 \"\" 1",
            &["HSET errors x old y old", "LPUSH ids x y"],
            &[("quarantined", 1), ("trimmed", 2)],
        ),
        (
            "RMQ.RESERVE ns 1000 FROM q",
            &["HSET ns:payloads other x", "RPUSH ns:q:pending ghost spectre"],
            &[("dropped", 2)],
        ),
        ("RMQ.PUBLISH ns ONCE 1000 TO q a p b p", &["ZADD ns:once 9000000000000 a"], &[("published", 1), ("once", 1)]),
        ("RMQ.PUBLISH ns DELAY 1000 TO q a p b p", &[], &[("published", 2)]),
        (
            "RMQ.RESERVE ns 1000 FROM none",
            &[
                "HSET ns:payloads a p a:queue ns:q b p b:queue ns:q c p c:queue ns:q d p",
                "LPUSH ns:q:processing a b",
                "HSET ns:queues q {\"attempts\":1}",
                "HSET ns:payloads b:attempts 1-1",
                "ZADD ns:expires 1.5 a 2.5 b 3.5 gone",
                "ZADD ns:delays 1 c 2 d 3 gone",
            ],
            &[("expired", 2), ("died", 1), ("moved", 1), ("stale", 2), ("skipped", 1)],
        ),
        (
            "RMQ.NACK ns a 1-1 DEAD",
            &["HSET ns:payloads a p a:queue ns:q a:attempts 1-1", "ZADD ns:expires 1.5 a"],
            &[("nacked", 1), ("died", 1)],
        ),
    ];
    for (call, setup, wanted) in others {
        let wanted: BTreeMap<String, i64> = wanted.iter().map(|(n, c)| (n.to_string(), *c)).collect();
        assert_eq!(rises(&server, setup, call), wanted, "{call}");
    }
    assert_eq!(counters(&server)["panics"], 0);
}

#[test]
fn info_shows_the_section_by_its_name_and_among_the_modules_but_not_by_default() {
    let server = Server::start();
    let mut con = server.con();
    for (section, shown) in [("rmq", true), ("modules", true), ("everything", true), ("default", false)] {
        let info: String = ask!(con, "INFO", section);
        assert_eq!(info.contains("rmq_completed:0"), shown, "INFO {section}");
    }
    let info: String = ask!(con, "INFO", "rmq");
    assert!(info.starts_with("# rmq"), "{info}");
}
