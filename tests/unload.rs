//! The server drops the module's commands without a look at who still has a pointer to one. Here somebody has, in every way
//! that a server knows, and no server goes down: the connection is closed, or the module stays.

mod common;
use common::resp::encode;
use common::server::module;
use common::*;

use redis::Connection;
use std::time::Duration;

const PUBLISH: &[&str] = &["RMQ.PUBLISH", "m", "q:pending", "a", "payload"];

fn path() -> &'static str {
    module().to_str().expect("a path")
}

/// A server that tells no module that time goes by for a whole second.
fn slow_clock() -> Server {
    Server::builder().without_module().arg("hz", "1").start()
}

fn is_loaded(con: &mut Connection) -> bool {
    cmd!(con, "RMQ.NEXTDELAY", "d").is_ok()
}

/// What is sent gets a reply or the end of the connection; then the server is still there.
fn assert_harmless(server: &Server, client: &mut Raw, words: &[&str]) {
    client.send(words);
    let _ = client.try_read_raw();
    assert!(server.is_alive());
    ok!(server.con(), "PING");
}

/// Sends the first bytes of a command that never comes.
fn send_half_a_command(client: &mut Raw) {
    client.send_bytes(b"*3\r\n$3\r\nSET\r\n$30\r\nabcdefghijklmnopqrstuvwxyz1234\r\n$3\r\n");
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn a_transaction_that_unloads_and_does_more_is_refused_right_after_the_load_too() {
    let server = slow_clock();
    let mut client = Raw::connect(&server);
    client.call(&["MODULE", "LOAD", path()]);
    client.call(&["MULTI"]);
    client.call(&["MODULE", "UNLOAD", "rmq"]);
    client.call(PUBLISH);
    let Reply::Array(replies) = client.call(&["EXEC"]) else {
        panic!("the transaction runs");
    };
    assert!(matches!(replies[0], Reply::Error(_)), "{replies:?}");
    assert_eq!(replies[1], Reply::bulk("a"));
}

#[test]
fn a_call_that_was_queued_right_after_the_load_is_not_run_after_an_unload_in_a_transaction() {
    let server = slow_clock();
    let (mut one, mut other) = (Raw::connect(&server), Raw::connect(&server));
    one.call(&["MODULE", "LOAD", path()]);
    other.call(&["MULTI"]);
    assert_eq!(other.call(PUBLISH), Reply::Simple("QUEUED".into()));
    one.call(&["MULTI"]);
    one.call(&["MODULE", "UNLOAD", "rmq"]);
    one.call(&["EXEC"]);
    assert_harmless(&server, &mut other, &["EXEC"]);
    assert!(!is_loaded(&mut server.con()));
}

#[test]
fn a_client_that_loaded_the_module_and_has_sent_half_a_command_since_hides_nobody() {
    let server = Server::builder().without_module().start();
    let (mut loader, mut holder) = (Raw::connect(&server), Raw::connect(&server));
    loader.call(&["MODULE", "LOAD", path()]);
    send_half_a_command(&mut loader);
    holder.call(&["MULTI"]);
    holder.call(PUBLISH);
    server.unload();
    assert_harmless(&server, &mut holder, &["EXEC"]);
}

#[test]
fn a_transaction_that_waits_for_the_end_of_a_pause_does_not_run_code_that_is_gone() {
    let server = Server::start();
    let mut holder = Raw::connect(&server);
    holder.call(&["MULTI"]);
    holder.call(PUBLISH);
    let mut con = server.con();
    ok!(con, "CLIENT", "PAUSE", 100_000, "WRITE");
    holder.send(&["EXEC"]);
    let waits = || server.info("clients")["blocked_clients"] != "0";
    // Some servers do not count those that a pause holds.
    let _ = eventually(Duration::from_millis(300), waits);
    let mut con = server.unload();
    ok!(con, "CLIENT", "UNPAUSE");
    let _ = holder.try_read_raw();
    assert!(server.is_alive());
    ok!(con, "PING");
}

#[test]
fn where_two_connections_may_have_asked_for_the_unload_it_is_refused() {
    let server = Server::start();
    let mut caller = Raw::connect(&server);
    let mut other = Raw::connect(&server);
    other.call(&["MODULE", "UNLOAD", "nosuch"]);
    send_half_a_command(&mut other);
    let mut both = encode(&["MODULE", "UNLOAD", "rmq"]);
    both.extend(encode(PUBLISH));
    caller.send_bytes(&both);
    assert!(matches!(caller.read(), Reply::Error(_)));
    assert_eq!(caller.read(), Reply::bulk("a"));
    drop(other);
    let alone = || cmd!(server.con(), "MODULE", "UNLOAD", "rmq").is_ok();
    assert!(eventually(deadline(), alone));
}

#[test]
fn a_client_that_has_sent_half_a_command_after_a_transaction_is_not_taken_for_the_one_that_unloads() {
    let server = Server::start();
    let mut caller = Raw::connect(&server);
    let mut other = Raw::connect(&server);
    other.call(&["MULTI"]);
    other.call(&["PING"]);
    other.call(&["EXEC"]);
    send_half_a_command(&mut other);
    let mut both = encode(&["MODULE", "UNLOAD", "rmq"]);
    both.extend(encode(PUBLISH));
    caller.send_bytes(&both);
    let _ = (caller.try_read_raw(), caller.try_read_raw());
    assert!(server.is_alive());
    ok!(server.con(), "PING");
}

#[test]
fn a_load_with_an_unknown_setting_is_undone_whoever_else_is_there() {
    let server = Server::builder().without_module().start();
    let mut other = Raw::connect(&server);
    other.call(&["MODULE", "UNLOAD", "nosuch"]);
    send_half_a_command(&mut other);
    let mut con = server.con();
    err!(con, "MODULE", "LOADEX", path(), "CONFIG", "rmq.bogus", 1);
    assert!(!is_loaded(&mut con));
    ok!(con, "MODULE", "LOAD", path());
    assert!(is_loaded(&mut con));
}

/// Redis 8.4 and Valkey 9 look up what they read ahead. A call of few bytes, since the bytes are what is seen of it.
#[test]
fn a_short_call_behind_an_unload_in_a_transaction_does_not_run_code_that_is_gone() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let mut all = Vec::new();
    for command in [
        &["MULTI"][..],
        &["MODULE", "UNLOAD", "rmq"],
        &["EXEC"],
        &["RMQ.PUBLISH", "", "", "", ""],
    ] {
        all.extend(encode(command));
    }
    client.send_bytes(&all);
    for _ in 0..4 {
        let _ = client.try_read_raw();
    }
    assert!(server.is_alive());
    ok!(server.con(), "PING");
}

#[test]
fn the_module_stays_where_it_cannot_see_who_holds_what() {
    for (setting, value, why) in [
        ("rename-command", "CLIENT \"\"", "does not list its clients"),
        (
            "rename-command",
            "CONFIG \"\"",
            "does not tell with how many threads it reads",
        ),
        ("io-threads", "2", "reads with several threads"),
    ] {
        let server = Server::builder().config_line(&format!("{setting} {value}")).start();
        let mut con = server.con();
        err!(con, "MODULE", "UNLOAD", "rmq");
        assert!(is_loaded(&mut con), "{setting} {value}");
        assert!(server.log().contains(why), "{setting} {value}");
    }
}

/// Threads that read look up commands that run later.
#[test]
fn a_server_with_several_threads_survives_attempts_to_unload_under_traffic() {
    let server = Server::builder().config_line("io-threads 3").start();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Raw::connect(&server);
                let calls = encode(PUBLISH).repeat(50);
                for _ in 0..200 {
                    client.send_bytes(&calls);
                    for _ in 0..50 {
                        client.read();
                    }
                }
            });
        }
        for _ in 0..20 {
            err!(server.con(), "MODULE", "UNLOAD", "rmq");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(is_loaded(&mut server.con()));
}
