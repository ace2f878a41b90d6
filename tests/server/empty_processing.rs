//! An empty processing is no key: a cluster asks for no slot of it, ACL for no permission, and COMMAND GETKEYS leaves it out.

use crate::common::*;

use redis::{Cmd, Connection, Value};
use std::collections::BTreeSet;

#[track_caller]
fn assert_ok(con: &mut Connection, call: &Cmd) {
    let reply = send!(con, call).unwrap_or_else(|e| commands::failed(call, &e));
    assert_eq!(reply, Value::Okay, "{}", line_of(call));
}

/// A user with every command and these keys only.
fn eve(server: &Server, keys: &str) -> Connection {
    ok!(server.con(), "ACL", "SETUSER", "eve", "reset", "on", ">pw", "+@all", keys);
    server.con_as("eve", "pw")
}

/// Calls that name no processing list, in a namespace, and what COMMAND GETKEYS has to say of each: every key but that.
fn calls_without_processing(prefix: &str) -> Vec<(Cmd, Vec<String>)> {
    let key = |name: &str| format!("{prefix}{name}");
    let [map, delays, due] = ["map", "delays", "due"].map(key);
    let [dead, dlq, records, errors] = ["dead", "dlq", "records", "errors"].map(key);
    vec![
        (command!("RMQ.RETRY", &map, &delays, &due, "", "a", "again", 0), vec![map.clone(), delays, due.clone()]),
        (
            command!("RMQ.DEADLETTER", &dead, &dlq, &due, &map, "", "b", "dead"),
            vec![dead, dlq, due.clone(), map.clone()],
        ),
        (command!("RMQ.COMPLETE", &map, "", &due, "c"), vec![map.clone(), due.clone()]),
        (
            command!("RMQ.PARSEERR", &records, &errors, "", &due, &map, "d", "{", "q", "why", 1),
            vec![records, errors, due, map],
        ),
    ]
}

/// The words of a call, with this name where it names no processing list.
fn with_processing(call: &Cmd, name: &[u8]) -> Vec<Vec<u8>> {
    let word = |arg: redis::Arg<&[u8]>| match arg {
        redis::Arg::Simple(b"") => name.to_vec(),
        redis::Arg::Simple(bytes) => bytes.to_vec(),
        _ => panic!("a cursor"),
    };
    call.args_iter().map(word).collect()
}

fn fill_map(con: &mut Connection, prefix: &str) {
    for id in ["a", "b", "c", "d"] {
        let queue = format!("{id}:queue");
        ok!(con, "HSET", format!("{prefix}map"), id, "payload", queue, format!("{prefix}q"));
    }
}

#[test]
fn an_empty_processing_is_no_key_for_a_cluster() {
    let cluster = Cluster::start(1, 0);
    let mut con = cluster.nodes()[0].con();
    fill_map(&mut con, "{t}:");
    for (call, _) in calls_without_processing("{t}:") {
        assert_ok(&mut con, &call);
    }
    let left: BTreeSet<String> = ask!(con, "HKEYS", "{t}:map");
    assert_eq!(left, BTreeSet::from(["a".into(), "a:queue".into()]));
}

#[test]
fn a_processing_list_in_another_slot_is_still_crossslot() {
    let cluster = Cluster::start(1, 0);
    let mut con = cluster.nodes()[0].con();
    fill_map(&mut con, "{t}:");
    for call in [
        command!("RMQ.RETRY", "{t}:map", "{t}:delays", "{t}:due", "{u}:work", "a", "again", 0),
        command!("RMQ.DEADLETTER", "{t}:dead", "{t}:dlq", "{t}:due", "{t}:map", "{u}:work", "b", "dead"),
        command!("RMQ.COMPLETE", "{t}:map", "{u}:work", "{t}:due", "c"),
        command!("RMQ.PARSEERR", "{t}:r", "{t}:e", "{u}:work", "{t}:due", "{t}:map", "d", "{", "q", "why", 1),
    ] {
        let error = commands::error_of(&call, send!(con, &call));
        assert!(error.starts_with("CROSSSLOT "), "{}: {error}", line_of(&call));
    }
}

#[test]
fn an_empty_processing_needs_no_permission() {
    let server = Server::start();
    fill_map(&mut server.con(), "app:");
    let mut eve = eve(&server, "~app:*");
    for (call, _) in calls_without_processing("app:") {
        assert_ok(&mut eve, &call);
    }
}

#[test]
fn a_processing_list_needs_permission_wherever_it_stands() {
    let server = Server::start();
    let mut con = server.con();
    fill_map(&mut con, "app:");
    let mut eve = eve(&server, "~app:*");
    for (call, keys) in calls_without_processing("app:") {
        let args = with_processing(&call, b"web:work");
        let error = commands::call(&mut eve, &args).expect_err("a refusal");
        assert!(error_text(&error).starts_with("NOPERM "), "{}", error_text(&error));
        let keys_found: BTreeSet<String> = ask!(con, "COMMAND", "GETKEYS", &args);
        assert!(keys_found.contains("web:work") && keys_found.len() == keys.len() + 1, "{keys_found:?}");
    }
}

#[test]
fn command_getkeys_leaves_an_empty_processing_out() {
    let server = Server::start();
    let mut con = server.con();
    for (call, keys) in calls_without_processing("app:") {
        let keys_found: Vec<String> = ask!(con, "COMMAND", "GETKEYS", with_processing(&call, b""));
        assert_eq!(keys_found, keys, "{}", line_of(&call));
    }
}
