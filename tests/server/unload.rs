//! MODULE UNLOAD is refused: a server does not check who still holds a pointer to a command of the module. Only a load
//! that fails is undone.

use crate::common::messages::*;
use crate::common::resp::encode;
use crate::common::*;
use std::time::Duration;

const UNLOAD: &[&str] = &["MODULE", "UNLOAD", "rmq"];
const PUBLISH: &[&str] = &["RMQ.PUBLISH", NS, "TO", "orders", "a", "payload"];

fn published() -> Reply {
    Reply::Array(vec![Reply::bulk("a")])
}

fn path() -> &'static str {
    server::module().to_str().expect("a path")
}

#[track_caller]
fn assert_error(reply: &Reply) {
    assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
}

#[track_caller]
fn assert_logged(server: &Server) {
    assert!(server.log().contains("rmq: not unloaded"), "{}", server.log());
}

#[test]
fn module_unload_is_refused_and_the_module_still_works() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "before");
    for _ in 0..3 {
        err!(con, "MODULE", "UNLOAD", "rmq");
    }
    assert_logged(&server);
    assert!(server.supports("rmq.reserve"));
    let delivery = reserve(&mut con);
    assert_eq!((delivery.id.as_str(), ack(&mut con, &delivery)), ("before", 1));
    assert_eq!(counter(&server, "acked"), 1);
    server.restart();
    assert!(server.supports("rmq.reserve"));
}

/// With one tick per second the server has run nothing but these calls since the load.
#[test]
fn module_unload_is_refused_right_after_the_load_too() {
    let server = Server::builder().without_module().arg("hz", "1").start();
    let mut client = Raw::connect(&server);
    client.call(&["MODULE", "LOAD", path()]);
    assert_error(&client.call(UNLOAD));
    assert_eq!(client.call(PUBLISH), published());
    assert_logged(&server);
}

#[test]
fn module_unload_in_a_transaction_is_refused_and_the_calls_around_it_run() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for command in [&["MULTI"], PUBLISH, UNLOAD, &["RMQ.NEXTDELAY", DELAYS]] {
        client.call(command);
    }
    let Reply::Array(replies) = client.call(&["EXEC"]) else { panic!("the transaction runs") };
    assert_eq!(replies[0], published());
    assert_error(&replies[1]);
    assert!(!matches!(replies[2], Reply::Error(_)), "{replies:?}");
    assert_logged(&server);
}

#[test]
fn a_call_that_is_queued_in_a_transaction_runs_after_a_refused_unload() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.call(&["MULTI"]);
    assert_eq!(client.call(PUBLISH), Reply::Simple("QUEUED".into()));
    err!(server.con(), "MODULE", "UNLOAD", "rmq");
    assert_eq!(client.call(&["EXEC"]), Reply::Array(vec![published()]));
}

/// Redis 8.4 and Valkey 9 look up the commands of a pipeline when they read it, before the first of them runs.
#[test]
fn module_unload_in_a_pipeline_is_refused_and_the_calls_behind_it_run() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.send_bytes(&[encode(UNLOAD), encode(PUBLISH), encode(&["PING"])].concat());
    assert_error(&client.read());
    assert_eq!(client.read(), published());
    assert_eq!(client.read(), Reply::Simple("PONG".into()));
    assert_logged(&server);
}

#[test]
fn module_unload_with_a_blocked_client_is_refused_and_the_client_is_served() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    err!(con, "MODULE", "UNLOAD", "rmq");
    publish(&mut con, "a");
    assert_eq!(waiter.served_id(), "a");
    // Neither is it allowed when nobody waits any more.
    err!(con, "MODULE", "UNLOAD", "rmq");
    assert_logged(&server);
    assert_eq!(Snapshot::of(&mut con).list(WORK), ["a"]);
}

/// I/O threads look up commands that the main thread runs later.
#[test]
fn a_server_with_io_threads_survives_attempts_to_unload_under_traffic() {
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
    assert_eq!(Snapshot::of(&mut server.con()).list(PENDING), ["a"]);
    assert!(server.supports("rmq.reserve"));
}

/// The server loads the module first, finds the setting unknown, and unloads the module within the call.
#[test]
fn a_load_with_an_unknown_setting_is_undone_whatever_other_clients_do() {
    let server = Server::builder().without_module().start();
    let mut other = Raw::connect(&server);
    other.call(&["MODULE", "UNLOAD", "nosuch"]);
    // The first half of a command.
    other.send_bytes(b"*3\r\n$3\r\nSET\r\n$30\r\nabcdefghijklmnopqrstuvwxyz1234\r\n$3\r\n");
    std::thread::sleep(Duration::from_millis(100));
    let mut con = server.con();
    err!(con, "MODULE", "LOADEX", path(), "CONFIG", "rmq.bogus", 1);
    assert!(!server.supports("rmq.reserve"));
    ok!(con, "MODULE", "LOAD", path());
    assert!(server.supports("rmq.reserve"));
    // A module that was loaded in the second attempt stays like any other.
    err!(con, "MODULE", "UNLOAD", "rmq");
    assert_logged(&server);
}
