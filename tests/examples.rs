//! The worked consumers of examples/ run against a real server, and do what they promise.

mod common;
use common::process::{in_repository, spawn_bound_to_this_process};
use common::*;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longer than any backoff or tick of the examples, many times over.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_python_consumer_processes_retries_and_gives_up() {
    a_consumer_processes_retries_and_gives_up(python);
}

#[test]
fn the_python_consumer_finishes_the_message_in_hand_when_told_to_stop() {
    a_consumer_finishes_the_message_in_hand_when_told_to_stop(python);
}

#[test]
fn the_rust_consumer_processes_retries_and_gives_up() {
    a_consumer_processes_retries_and_gives_up(rust);
}

#[test]
fn the_rust_consumer_finishes_the_message_in_hand_when_told_to_stop() {
    a_consumer_finishes_the_message_in_hand_when_told_to_stop(rust);
}

#[test]
fn both_examples_are_shorter_than_60_lines() {
    for name in ["consumer.py", "consumer.rs"] {
        let text = std::fs::read_to_string(in_repository("examples").join(name)).unwrap();
        assert!(text.lines().count() < 60, "{name}");
    }
}

fn a_consumer_processes_retries_and_gives_up(consumer: fn() -> Command) {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..20 {
        publish(&server, &format!("easy-{n}"), "{}");
    }
    publish(&server, "flaky", r#"{"fails": 2}"#);
    publish(&server, "hopeless", r#"{"fails": 99}"#);
    publish(&server, "not-json", "{");
    // Two deliveries to workers that die: one message for the first time, one once too often.
    publish_urgent(&server, "orphan", "{}");
    reserve_and_die(&server, 1);
    publish_urgent(&server, "killer", "{}");
    ok!(con, "HSET", "app:payloads", "killer:attempts", 2);
    reserve_and_die(&server, 3);

    let mut worker = start(&server, consumer());
    let idle = || {
        let mut con = server.con();
        [
            "app:orders:pending",
            "app:orders:processing",
            "app:delays",
            "app:expires",
            "app:payloads",
        ]
        .iter()
        .all(|key| ask::<i64>(&mut con, "EXISTS", key) == 0)
    };
    assert!(
        eventually(PATIENCE, idle),
        "messages are left: {:?}",
        Snapshot::of(&mut con).keys()
    );
    stop(&mut worker);

    let mut dead = strings(ok!(con, "LRANGE", "app:dlq", 0, -1));
    dead.sort();
    assert_eq!(dead, ["hopeless", "killer", "not-json"]);
    let payload: String = ask!(con, "HGET", "app:dlq:data", "hopeless");
    assert_eq!(payload, r#"{"fails": 99}"#);
    let info = server.info("rmq");
    assert_eq!(
        info["rmq_acked"], "22",
        "twenty easy ones, the flaky one and the orphan"
    );
    assert_eq!(info["rmq_nacked"], "6", "two of flaky, hopeless and not-json each");
    assert_eq!(info["rmq_dead_lettered"], "3");
    assert_eq!(info["rmq_fenced"], "0");
}

fn a_consumer_finishes_the_message_in_hand_when_told_to_stop(consumer: fn() -> Command) {
    let server = Server::start();
    let mut con = server.con();
    publish(&server, "long", r#"{"work_ms": 1500}"#);
    let mut worker = start(&server, consumer());
    let in_hand = || ask::<i64>(&mut server.con(), "LLEN", "app:orders:processing") == 1;
    assert!(eventually(PATIENCE, in_hand));

    stop(&mut worker);

    assert!(
        Snapshot::of(&mut con).keys().is_empty(),
        "the message was acknowledged before the end"
    );
    assert_eq!(server.info("rmq")["rmq_acked"], "1");
}

fn ask<T: redis::FromRedisValue>(con: &mut redis::Connection, command: &str, key: &str) -> T {
    ask!(con, command, key)
}

fn publish(server: &Server, id: &str, payload: &str) {
    ok!(
        server.con(),
        "RMQ.PUBLISH",
        "app:payloads",
        "app:orders:pending",
        id,
        payload
    );
}

fn publish_urgent(server: &Server, id: &str, payload: &str) {
    ok!(
        server.con(),
        "RMQ.PUBLISH",
        "app:payloads",
        "app:orders:pending",
        "URGENT",
        id,
        payload
    );
}

/// Takes the next message under a lease of a millisecond; it is delivered for the n-th time.
fn reserve_and_die(server: &Server, attempts: i64) {
    let (pending, processing) = ("app:orders:pending", "app:orders:processing");
    let reply = ok!(
        server.con(),
        "RMQ.RESERVE",
        pending,
        processing,
        "app:payloads",
        "app:expires",
        1
    );
    let delivery = items(items(reply).remove(0));
    assert_eq!(delivery[3], redis::Value::Int(attempts));
}

fn python() -> Command {
    let python = in_repository(".servers/python/bin/python");
    assert!(
        python.exists(),
        "run `scripts/servers.sh python` first, as `make test` does"
    );
    let mut command = Command::new(python);
    command.arg(in_repository("examples/consumer.py"));
    command
}

/// `cargo test --test` does not build examples; this does, with what the tests have compiled already.
fn rust() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "test", "--example", "consumer"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "the example does not compile"
    );
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| in_repository("target"), PathBuf::from);
    Command::new(target.join("debug/examples/consumer"))
}

fn start(server: &Server, mut consumer: Command) -> Child {
    consumer
        .env("REDIS_URL", format!("redis://127.0.0.1:{}", server.port()))
        .stdin(Stdio::null());
    spawn_bound_to_this_process(consumer).expect("the consumer starts")
}

/// Asks as a supervisor does. The consumer must end by itself, and well.
fn stop(worker: &mut Child) {
    // SAFETY: the process is this test's child and not waited for yet, so the id is its own.
    assert_eq!(unsafe { libc::kill(worker.id() as i32, libc::SIGTERM) }, 0);
    let mut status = None;
    let ended = eventually(PATIENCE, || {
        status = worker.try_wait().expect("the consumer can be waited for");
        status.is_some()
    });
    assert!(ended && status.is_some_and(|status| status.success()), "{status:?}");
}
