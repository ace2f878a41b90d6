//! A panic in a command never takes the server down: it becomes an error reply, a log line and a count.

use crate::common::*;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The module with a command that panics, from a debug build: release builds do not have it.
fn module_that_panics() -> PathBuf {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE
        .get_or_init(|| {
            let target =
                std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| process::in_repository("target"), PathBuf::from);
            let status = Command::new(env!("CARGO"))
                .args(["build", "--features", "panic-probe"])
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .status()
                .expect("cargo runs");
            assert!(status.success(), "the module with the panic probe does not build");
            target.join("debug/librmq.so")
        })
        .clone()
}

fn server_that_panics() -> Server {
    Server::builder().without_module().arg("loadmodule", module_that_panics().to_str().unwrap()).start()
}

#[test]
fn a_panic_becomes_an_error_reply_a_log_line_and_a_count() {
    let server = server_that_panics();
    let mut con = server.con();
    for call in 1..=3 {
        let error = err!(con, "RMQ.PANIC", "list");
        assert_eq!(error, "ERR internal error in the rmq module, see the server's log");
        assert_eq!(server.info("rmq")["rmq_panics"], call.to_string());
    }
    let log = server.log();
    let line =
        log.lines().find(|line| line.contains("rmq: internal error: panicked at ")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(" src/commands/panic_probe.rs:"), "{line}");
    assert!(line.ends_with(": probe with 1 arguments, a NUL \\0 and a %s"), "{line}");
    assert_eq!(text(ok!(con, "PING")), "PONG");
}

#[test]
fn after_a_panic_the_key_it_held_is_usable_and_what_it_wrote_reached_the_replica() {
    let server = server_that_panics();
    let mut con = server.con();
    let replica = Replica::of(&server);
    err!(con, "RMQ.PANIC", "list", "WRITE");
    ok!(con, "RPUSH", "list", "x");
    assert_eq!(strings(ok!(con, "LRANGE", "list", 0, -1)), ["list", "x"]);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn a_panic_inside_multi_and_inside_lua_leaves_the_rest_of_them_running() {
    let server = server_that_panics();
    let mut con = server.con();
    ok!(con, "MULTI");
    ok!(con, "SET", "a", 1);
    ok!(con, "RMQ.PANIC", "list");
    ok!(con, "SET", "b", 2);
    let replies = items(ok!(con, "EXEC"));
    assert_eq!(replies.len(), 3);
    let caught =
        text(ok!(con, "EVAL", "local reply = redis.pcall('RMQ.PANIC', KEYS[1]) return reply['err']", 1, "list"));
    assert!(caught.contains("internal error in the rmq module"), "{caught}");
    assert_eq!(strings(ok!(con, "MGET", "a", "b")), ["1", "2"]);
}
