//! The programs of examples/ run against a real server, and do what their comments promise: workers may be killed at any
//! time, and every message is processed; mx-rmq runs on the commands as on its Lua scripts.

use crate::common::process::{in_repository, spawn_bound_to_this_process};
use crate::common::*;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than the lease of the examples, 10 s, and the work that is left then.
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn python_workers_are_killed_and_every_message_is_processed() {
    workers_are_killed_and_every_message_is_processed(|| python("examples/worker.py"));
}

#[test]
fn python_workers_end_with_an_error_and_started_again_lose_nothing() {
    workers_end_with_an_error_and_started_again_lose_nothing(|| python("examples/worker.py"));
    workers_end_with_an_error_and_started_again_lose_nothing(|| python("examples/heartbeat.py"));
}

#[test]
fn python_workers_with_a_heartbeat_are_killed_and_every_message_is_processed() {
    workers_are_killed_and_every_message_is_processed(|| python("examples/heartbeat.py"));
}

#[test]
fn node_workers_are_killed_and_every_message_is_processed() {
    let Some(modules) = node_modules() else { return };
    workers_are_killed_and_every_message_is_processed(|| node(&modules));
}

#[test]
fn node_workers_end_with_an_error_and_started_again_lose_nothing() {
    let Some(modules) = node_modules() else { return };
    workers_end_with_an_error_and_started_again_lose_nothing(|| node(&modules));
}

#[test]
fn go_workers_are_killed_and_every_message_is_processed() {
    let Some(worker) = built_go_worker("worker-go") else { return };
    workers_are_killed_and_every_message_is_processed(|| Command::new(&worker));
}

#[test]
fn go_workers_end_with_an_error_and_started_again_lose_nothing() {
    let Some(worker) = built_go_worker("worker-go-again") else { return };
    workers_end_with_an_error_and_started_again_lose_nothing(|| Command::new(&worker));
}

#[test]
fn rust_workers_are_killed_and_every_message_is_processed() {
    let worker = built_worker();
    workers_are_killed_and_every_message_is_processed(|| Command::new(&worker));
}

#[test]
fn rust_workers_end_with_an_error_and_started_again_lose_nothing() {
    let worker = built_worker();
    workers_end_with_an_error_and_started_again_lose_nothing(|| Command::new(&worker));
}

#[test]
fn a_heartbeat_keeps_a_message_that_takes_longer_than_its_lease() {
    let server = Server::start();
    publish(&server, "orders", "long", r#"{"work_ms": 6000}"#);
    let _workers = [start(&server, python("examples/heartbeat.py")), start(&server, python("examples/heartbeat.py"))];
    assert!(eventually(PATIENCE, || is_settled(&server)));
    let info = server.info("rmq");
    assert_eq!((&*info["rmq_reserved"], &*info["rmq_acked"], &*info["rmq_expired"]), ("1", "1", "0"));
}

#[test]
fn the_examples_are_as_short_as_promised() {
    for (name, most) in [("worker.py", 15), ("worker.js", 15), ("worker.rs", 25), ("worker.go", 40), ("top.py", 99)] {
        let text = std::fs::read_to_string(in_repository("examples").join(name)).unwrap();
        assert!(text.lines().count() <= most, "{name}");
    }
}

#[test]
fn top_shows_the_queues_in_a_terminal_of_80_columns_until_ctrl_c() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "*", "1", "*", "2", "*", "3");
    ok!(con, "RMQ.PUBLISH", "app", "DELAY", 3_600_000, "TO", "orders", "later", "4");
    ok!(con, "RMQ.RESERVE", "app", 1, "FROM", "orders");
    let receipt = text(items(items(ok!(con, "RMQ.RESERVE", "app", 60_000, "FROM", "orders")).remove(0)).remove(2));
    let id: String = ask!(con, "LINDEX", "app:orders:processing", 0);
    ok!(con, "RMQ.NACK", "app", id, receipt, "DEAD");
    ok!(con, "RMQ.POLICY", "app", "a-queue-with-a-name-that-is-too-long", "PAUSED", "yes");
    // The length of this one is nil.
    ok!(con, "HSET", "app:queues", "no-list", "{}");
    ok!(con, "SET", "app:no-list:pending", "no list");
    let mut terminal = Terminal::of(&server, "examples/top.py --interval 0.1");

    let wanted =
        ["delayed 1 (0 due, next in ", "dead 1", "waiting  in work", "0/s", "orders   ", "paused", "no-list   "];
    let is_there = || wanted.iter().all(|text| terminal.shown().contains(text));
    assert!(eventually(PATIENCE, is_there), "{}", terminal.shown());
    server.kill9();
    assert!(eventually(PATIENCE, || terminal.shown().contains("refused")), "{}", terminal.shown());
    server.restart();
    assert!(eventually(PATIENCE, || terminal.shown().contains("dead 0")), "it goes on: {}", terminal.shown());
    terminal.keys.write_all(b"\x03").unwrap();

    let status = terminal.process.wait().expect("it ends");
    let restored = "\x1b[?25h\x1b[?1049l";
    assert!(eventually(PATIENCE, || terminal.shown().ends_with(restored)), "{:?}", terminal.shown());
    let shown = terminal.shown();
    assert!(status.success() && !shown.contains("Traceback"), "{status}\n{shown}");
    let widest = shown.lines().map(|line| visible(line).chars().count()).max();
    assert!(widest <= Some(79), "{widest:?} columns: {shown}");
}

#[test]
fn the_script_for_prometheus_replies_with_names_and_numbers_in_turn() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "a", "1", "b", "2");
    let script = std::fs::read_to_string(in_repository("examples/prometheus.lua")).unwrap();

    // As redis_exporter calls it, by default and with -lua-script-read-only.
    for command in ["EVAL", "EVAL_RO"] {
        let values: HashMap<String, f64> = ask!(con, command, &script, 0, 0);
        assert_eq!(values["rmq_published"], 2.0);
        assert_eq!(values["rmq_ns_delayed,app"], 0.0);
        assert_eq!(values["rmq_queue_pending,app,orders"], 2.0);
        assert!(!values.contains_key("rmq_queue_idle_ms,app,orders"), "no worker has asked yet");
    }
}

/// A program of this repository in a terminal of 80 columns and 24 lines.
struct Terminal {
    process: Child,
    keys: ChildStdin,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn of(server: &Server, program: &str) -> Terminal {
        let line = format!("stty cols 80 rows 24; exec {:?}", python(program)).replace('"', "");
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("REDIS_URL", format!("redis://127.0.0.1:{}", server.port()));
        let mut process = spawn_bound_to_this_process({
            script.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
            script
        })
        .expect("script runs");
        let keys = process.stdin.take().expect("a pipe");
        let mut pipe = process.stdout.take().expect("a pipe");
        let output = Arc::new(Mutex::new(Vec::new()));
        let seen = output.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut bytes) {
                seen.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Terminal { process, keys, output }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }
}

/// A line without its escape sequences.
fn visible(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| {
        text + part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or("")
    })
}

fn workers_are_killed_and_every_message_is_processed(worker: impl Fn() -> Command) {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.POLICY", "app", "*", "ATTEMPTS", 3, "BACKOFF", 50, 1000);
    for n in 0..40 {
        publish(&server, "orders", &format!("easy-{n}"), r#"{"work_ms": 200}"#);
    }
    ok!(con, "RMQ.PUBLISH", "app", "DELAY", 1500, "TO", "orders", "delayed", "{}");
    publish(&server, "orders", "flaky", r#"{"fails": 2}"#);
    publish(&server, "urgent", "hopeless", r#"{"fails": 99}"#);
    publish(&server, "urgent", "not-json", "{");

    let mut workers: Vec<Child> = (0..4).map(|_| start(&server, worker())).collect();
    let all_work = || ask::<i64>(&server, "LLEN", "app:orders:processing") == 4;
    assert!(eventually(PATIENCE, all_work), "four workers hold a message each");
    for killed in &mut workers[..2] {
        killed.kill().expect("SIGKILL");
        killed.wait().expect("it is dead");
    }
    workers.push(start(&server, worker()));

    assert!(eventually(PATIENCE, || is_settled(&server)), "left: {:?}", Snapshot::of(&mut con).keys());
    let mut dead = strings(ok!(con, "LRANGE", "app:dlq", 0, -1));
    dead.sort();
    assert_eq!(dead, ["hopeless", "not-json"]);
    let death: String = ask!(con, "HGET", "app:dlq:data", "hopeless:death");
    assert!(death.contains("asked to fail") && death.contains(r#""reason":"attempts""#), "{death}");
    let info = server.info("rmq");
    assert_eq!(info["rmq_acked"], "42", "the easy ones, the delayed and the flaky one");
    assert_eq!(info["rmq_nacked"], "8", "two of flaky, three of hopeless and not-json each");
    assert_ne!(info["rmq_expired"], "0", "the killed workers had messages");
    for worker in &mut workers {
        worker.kill().ok();
        worker.wait().ok();
    }
}

/// What a worker's supervisor does, the test does: it starts again what has ended.
fn workers_end_with_an_error_and_started_again_lose_nothing(worker: impl Fn() -> Command) {
    let without = Server::builder().without_module().start();
    let mut refused = worker();
    refused.stderr(Stdio::piped());
    let mut refused = start(&without, refused);
    assert!(eventually(PATIENCE, || refused.try_wait().expect("its state").is_some()), "it goes on without the module");
    let mut error = String::new();
    refused.stderr.take().expect("a pipe").read_to_string(&mut error).expect("text");
    assert!(!refused.wait().expect("its state").success() && error.contains("unknown command"), "{error}");

    let server = Server::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    for n in 0..40 {
        publish(&server, "orders", &n.to_string(), r#"{"work_ms": 200}"#);
    }
    let mut workers: Vec<Child> = (0..3).map(|_| start(&server, worker())).collect();
    let all_work = || ask::<i64>(&server, "LLEN", "app:orders:processing") == 3;
    assert!(eventually(PATIENCE, all_work), "three workers hold a message each");
    server.kill9();
    server.restart();

    let is_over = || {
        for ended in &mut workers {
            if let Some(status) = ended.try_wait().expect("its state") {
                assert!(!status.success(), "a supervisor would take this for the end of the work");
                *ended = start(&server, worker());
            }
        }
        is_settled(&server)
    };
    assert!(eventually(PATIENCE, is_over), "left: {:?}", Snapshot::of(&mut server.con()).keys());
    for worker in &mut workers {
        worker.kill().ok();
        worker.wait().ok();
    }
    assert_eq!(Snapshot::of(&mut server.con()).keys(), ["app:queues"]);
}

#[test]
fn mx_rmq_delivers_the_same_on_the_commands_as_on_its_scripts() {
    let on_scripts = application(&Server::start(), "lua");
    let server = Server::start();
    ok!(server.con(), "ACL", "SETUSER", "default", "-@scripting");

    let on_commands = application(&server, "adapter");

    assert_eq!(on_commands["deliveries"], on_scripts["deliveries"]);
    assert_eq!(on_commands["deliveries"]["hanging"], 2);
    assert_eq!(on_commands["deliveries"]["flaky"], 3);
    assert_eq!(on_commands["dead"], on_scripts["dead"]);
    assert_eq!(on_commands["dead"], serde_json::json!(["hopeless"]));
    // The script does not compile, and leaves such messages behind.
    assert_eq!(on_commands["errors"], serde_json::json!(["broken-0", "broken-1"]));
    let record: serde_json::Value =
        serde_json::from_str(on_commands["records"]["broken-1"].as_str().expect("a record")).expect("valid JSON");
    assert_eq!(record["original_payload"], r#"{"id": ""#);
    assert_eq!(on_commands["payloads"], serde_json::json!([]), "nothing is left");
    let keys = ["dlq", "dlq:data", "errors", "errors:data", "queues"].map(|key| format!("mx-rmq:{key}"));
    assert_eq!(on_commands["keys"], serde_json::json!(keys));
    // A second of delay: the scheduler was woken, and did not wait for its next look, after 300 s.
    assert!(on_commands["late"].as_f64().expect("seconds") < 20.0);
}

/// What the application of mx-rmq reports.
fn application(server: &Server, mode: &str) -> serde_json::Value {
    let path = [in_repository(".servers/peer"), in_repository("examples")].map(|path| path.display().to_string());
    let output = python("tests/server/mx_rmq_application.py")
        .args([&server.port().to_string(), mode])
        .env("PYTHONPATH", path.join(":"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{mode}: {log}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{mode}: {error}\n{log}"))
}

fn ask<T: redis::FromRedisValue>(server: &Server, command: &str, key: &str) -> T {
    ask!(server.con(), command, key)
}

fn is_settled(server: &Server) -> bool {
    ask::<i64>(server, "EXISTS", "app:payloads") == 0
}

fn publish(server: &Server, queue: &str, id: &str, payload: &str) {
    ok!(server.con(), "RMQ.PUBLISH", "app", "TO", queue, id, payload);
}

fn python(program: &str) -> Command {
    let python = in_repository(".servers/python/bin/python");
    assert!(python.exists(), "run `scripts/servers.sh python peer` first, as `make test` does");
    let mut command = Command::new(python);
    command.arg(in_repository(program));
    command
}

/// The libraries of examples/worker.js, if they could be downloaded.
fn node_modules() -> Option<PathBuf> {
    let modules = in_repository(".servers/node/node_modules");
    if !modules.exists() {
        eprintln!("left out: `scripts/servers.sh node` found no npm");
        return None;
    }
    Some(modules)
}

fn node(modules: &Path) -> Command {
    let mut node = Command::new("node");
    node.arg(in_repository("examples/worker.js")).env("NODE_PATH", modules);
    node
}

/// examples/worker.go as a program of this name, if Go could be downloaded.
fn built_go_worker(name: &str) -> Option<PathBuf> {
    let go = in_repository(".servers/go/bin/go");
    if !go.exists() {
        eprintln!("left out: `scripts/servers.sh go` found no packages of Go and go-redis");
        return None;
    }
    let worker = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let built = Command::new(go).args(["build", "-o"]).args([&worker, &in_repository("examples/worker.go")]).status();
    assert!(built.is_ok_and(|status| status.success()), "the example does not compile");
    Some(worker)
}

/// `cargo test --test` does not build examples; this does, with what the tests have compiled already.
fn built_worker() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "test", "--example", "worker"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "the example does not compile");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| in_repository("target"), PathBuf::from);
    Path::new(&target).join("debug/examples/worker")
}

fn start(server: &Server, mut worker: Command) -> Child {
    let address = format!("127.0.0.1:{}", server.port());
    worker.env("REDIS_URL", format!("redis://{address}")).env("REDIS_ADDR", address).stdin(Stdio::null());
    spawn_bound_to_this_process(worker).expect("the worker starts")
}
