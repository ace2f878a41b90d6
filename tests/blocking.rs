//! RMQ.RESERVE … BLOCK: who is served, by what, and what frees a client that waits.

mod common;
mod life;
use common::resp::{encode, parse};
use common::*;
use life::*;

use redis::{Connection, Value};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Only the payload, as a producer of another kind may store it.
fn store(con: &mut Connection, id: &str) {
    ok!(
        con,
        "HSET",
        MAP,
        id,
        format!("payload of {id}"),
        format!("{id}:queue"),
        QUEUE
    );
}

fn client_id(raw: &mut Raw) -> i64 {
    match raw.call(&["CLIENT", "ID"]) {
        Reply::Int(id) => id,
        other => panic!("{other:?}"),
    }
}

/// A waiter of which the server's number is known.
fn waiter_with_id(server: &Server) -> (Waiter, i64) {
    let before = blocked_clients(server);
    let mut raw = Raw::connect(server);
    let id = client_id(&mut raw);
    raw.send(WAIT_FOR_EVER);
    assert!(eventually(deadline(), || blocked_clients(server) == before + 1));
    (Waiter { raw }, id)
}

#[test]
fn a_message_that_is_there_is_taken_at_once() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    let taken = deliveries(ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000, "BLOCK", 0));
    assert_eq!(taken[0].id, "a");
    assert_eq!(blocked_clients(&server), 0);
}

#[test]
fn a_waiting_client_gets_what_it_would_have_got_at_once() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    publish(&mut con, "a");
    let served = waiter.served();
    let after = Snapshot::of(&mut con);
    assert_eq!(after.zset(DUE)["a"], served[0].lease.parse::<f64>().unwrap());
    assert_eq!(after.list(WORK), ["a"]);
    assert_eq!(after.list(PENDING), [""; 0]);
    assert_eq!(after.hash(MAP)["a:attempts"], "1");
    assert_eq!(
        (served[0].payload.as_str(), served[0].attempts, served.len()),
        ("payload of a", 1, 1)
    );
    assert_eq!(ack(&mut con, &served[0]), 1);
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    assert_eq!(counter(&server, "reserved"), 1);
}

#[test]
fn clients_are_served_in_the_order_of_their_arrival_by_pushes_one_by_one() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiters: Vec<Waiter> = (0..5).map(|_| Waiter::start(&server)).collect();
    for (n, waiter) in waiters.iter_mut().enumerate() {
        publish(&mut con, &n.to_string());
        assert_eq!(waiter.served_id(), n.to_string());
    }
}

#[test]
fn clients_are_served_in_the_order_of_their_arrival_by_one_push_of_many() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiters: Vec<Waiter> = (0..5).map(|_| Waiter::start(&server)).collect();
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "0", "", "1", "", "2", "");
    for (n, waiter) in waiters[..3].iter_mut().enumerate() {
        assert_eq!(waiter.served_id(), n.to_string());
    }
    assert!(waiters[3..].iter_mut().all(Waiter::is_waiting));
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "3", "", "4", "", "5", "");
    for (n, waiter) in waiters[3..].iter_mut().enumerate() {
        assert_eq!(waiter.served_id(), (n + 3).to_string());
    }
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["5"]);
}

#[test]
fn a_client_that_waits_again_stands_behind_those_that_wait_already() {
    let server = Server::start();
    let mut con = server.con();
    let mut first = Waiter::start(&server);
    let mut second = Waiter::start(&server);
    publish(&mut con, "a");
    assert_eq!(first.served_id(), "a");
    first.raw.send(WAIT_FOR_EVER);
    assert!(eventually(deadline(), || blocked_clients(&server) == 2));
    publish(&mut con, "b");
    assert_eq!(second.served_id(), "b");
    publish(&mut con, "c");
    assert_eq!(first.served_id(), "c");
}

#[test]
fn a_client_with_a_count_takes_what_there_is_and_the_next_gets_the_rest() {
    let server = Server::start();
    let mut con = server.con();
    let three = [WAIT_FOR_EVER, &["COUNT", "3"]].concat();
    let mut first = Waiter::sending(&server, &three);
    let mut second = Waiter::sending(&server, &three);
    let mut third = Waiter::sending(&server, &three);
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "", "b", "", "c", "", "d", "");
    let ids = |waiter: &mut Waiter| -> Vec<String> { waiter.served().into_iter().map(|d| d.id).collect() };
    assert_eq!(ids(&mut first), ["a", "b", "c"]);
    assert_eq!(ids(&mut second), ["d"]);
    assert!(third.is_waiting());
}

#[test]
fn a_client_waits_until_anything_fills_pending() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    type Filling<'a> = (&'a str, &'a dyn Fn(&mut Connection));
    let payload_then = |con: &mut Connection, words: &[&str]| {
        store(con, "a");
        call(con, words).unwrap();
    };
    let fillings: &[Filling] = &[
        ("PUBLISH", &|con| publish(con, "a")),
        ("PUBLISH URGENT", &|con| {
            ok!(con, "RMQ.PUBLISH", MAP, PENDING, "URGENT", "a", "");
        }),
        ("DELAYTICK", &|con| {
            ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, "a", "", QUEUE, 0);
            ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 1);
        }),
        ("REDRIVE", &|con| {
            ok!(con, "HSET", DLQ_MAP, "a", "", "a:queue", QUEUE);
            ok!(con, "LPUSH", DLQ, "a");
            ok!(con, "RMQ.REDRIVE", DLQ, DLQ_MAP, MAP, 1);
        }),
        ("LPUSH", &|con| payload_then(con, &["LPUSH", PENDING, "a"])),
        ("RPUSH", &|con| payload_then(con, &["RPUSH", PENDING, "a"])),
        ("LMOVE", &|con| {
            ok!(con, "LPUSH", "other", "a");
            payload_then(con, &["LMOVE", "other", PENDING, "LEFT", "LEFT"]);
        }),
        ("RPOPLPUSH", &|con| {
            ok!(con, "LPUSH", "other", "a");
            payload_then(con, &["RPOPLPUSH", "other", PENDING]);
        }),
        ("RENAME", &|con| {
            ok!(con, "LPUSH", "other", "a");
            payload_then(con, &["RENAME", "other", PENDING]);
        }),
        ("RESTORE", &|con| {
            store(con, "a");
            ok!(con, "LPUSH", "other", "a");
            let dump = bulk(ok!(con, "DUMP", "other"));
            ok!(con, "RESTORE", PENDING, 0, dump);
        }),
        ("COPY", &|con| {
            ok!(con, "LPUSH", "other", "a");
            payload_then(con, &["COPY", "other", PENDING]);
        }),
        ("MOVE", &|con| {
            store(con, "a");
            ok!(con, "SELECT", 1);
            ok!(con, "LPUSH", PENDING, "a");
            ok!(con, "MOVE", PENDING, 0);
            ok!(con, "SELECT", 0);
        }),
        ("SWAPDB", &|con| {
            ok!(con, "SELECT", 1);
            store(con, "a");
            ok!(con, "LPUSH", PENDING, "a");
            ok!(con, "SWAPDB", 0, 1);
            ok!(con, "SELECT", 0);
        }),
        ("SORT … STORE", &|con| {
            ok!(con, "LPUSH", "other", "a");
            payload_then(con, &["SORT", "other", "ALPHA", "STORE", PENDING]);
        }),
        ("EVAL", &|con| {
            let script = "redis.call('HSET', KEYS[1], 'a', 'p'); return redis.call('LPUSH', KEYS[2], 'a')";
            ok!(con, "EVAL", script, 2, MAP, PENDING);
        }),
        ("a script that publishes", &|con| {
            ok!(
                con,
                "EVAL",
                "return redis.call('RMQ.PUBLISH', KEYS[1], KEYS[2], 'a', 'p')",
                2,
                MAP,
                PENDING
            );
        }),
        ("the peer's producer", &|con| {
            let args = ("a", "p", QUEUE, "9999999999999", "0");
            peer.call(con, "produce_normal_message", &[MAP, PENDING, DUE], args)
                .unwrap();
        }),
        ("the peer's tick", &|con| {
            let args = ("a", "p", QUEUE, "0");
            peer.call(con, "produce_delay_message", &[MAP, DELAYS, ""], args)
                .unwrap();
            peer.call(con, "process_delay_message", &[DELAYS, MAP], (1,)).unwrap();
        }),
        ("MULTI/EXEC, the payload after the push", &|con| {
            ok!(con, "MULTI");
            ok!(con, "LPUSH", PENDING, "a");
            ok!(con, "HSET", MAP, "a", "p");
            ok!(con, "EXEC");
        }),
        ("MULTI/EXEC with PUBLISH", &|con| {
            ok!(con, "MULTI");
            ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "p");
            ok!(con, "PING");
            ok!(con, "EXEC");
        }),
        ("another client that waited itself", &|con| {
            store(con, "a");
            let port: Vec<String> = ask!(con, "CONFIG", "GET", "port");
            let mut mover = Raw::try_connect(port[1].parse().unwrap()).unwrap();
            mover.send(&["BLMOVE", "other", PENDING, "LEFT", "LEFT", "0"]);
            assert!(eventually(deadline(), || {
                let clients: String = ask!(con, "INFO", "clients");
                clients.contains("blocked_clients:2")
            }));
            ok!(con, "LPUSH", "other", "a");
            assert_eq!(mover.read(), Reply::bulk("a"));
        }),
    ];
    for (name, fill) in fillings {
        ok!(con, "FLUSHALL");
        let mut waiter = Waiter::start(&server);
        fill(&mut con);
        let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waiter.served_id()));
        assert_eq!(served.as_deref().ok(), Some("a"), "{name} did not wake the client");
        assert_eq!(Snapshot::of(&mut con).list(WORK), ["a"], "{name}");
    }
}

#[test]
fn a_function_wakes_a_client_too() {
    let server = Server::start();
    let mut con = server.con();
    let code = "#!lua name=lib\nredis.register_function('fill', function(keys) \
                redis.call('HSET', keys[1], 'a', 'p'); return redis.call('LPUSH', keys[2], 'a') end)";
    ok!(con, "FUNCTION", "LOAD", code);
    let mut waiter = Waiter::start(&server);
    ok!(con, "FCALL", "fill", 2, MAP, PENDING);
    assert_eq!(waiter.served_id(), "a");
}

#[test]
fn when_time_is_up_the_reply_is_nil_and_later_messages_stay_pending() {
    let server = Server::start();
    let mut con = server.con();
    let mut raw = Raw::connect(&server);
    let command = ["RMQ.RESERVE", PENDING, WORK, MAP, DUE, "1000", "BLOCK", "80"];
    let start = Instant::now();
    assert_eq!(raw.call_raw(&command), b"*-1\r\n");
    assert!(start.elapsed() >= Duration::from_millis(80));
    raw.call(&["HELLO", "3"]);
    assert_eq!(raw.call_raw(&command), b"_\r\n");
    publish(&mut con, "a");
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["a"]);
    assert_eq!(raw.call(&["PING"]), Reply::Simple("PONG".into()));
    assert_eq!(blocked_clients(&server), 0);
}

#[test]
fn block_0_waits_on_where_a_timeout_would_long_have_come() {
    let server = Server::start();
    let mut for_ever = Waiter::start(&server);
    let mut for_a_while = Waiter::sending(
        &server,
        &["RMQ.RESERVE", PENDING, WORK, MAP, DUE, "1000", "BLOCK", "300"],
    );
    assert_eq!(for_a_while.served(), []);
    assert!(for_ever.is_waiting());
    publish(&mut server.con(), "a");
    assert_eq!(for_ever.served_id(), "a");
}

#[test]
fn client_unblock_frees_a_client_with_nil_or_with_an_error() {
    let server = Server::start();
    let mut con = server.con();
    let (mut waiter, id) = waiter_with_id(&server);
    let (mut other, other_id) = waiter_with_id(&server);
    assert_eq!(ok!(con, "CLIENT", "UNBLOCK", id), Value::Int(1));
    assert_eq!(waiter.raw.read(), Reply::NilArray);
    assert_eq!(ok!(con, "CLIENT", "UNBLOCK", other_id, "ERROR"), Value::Int(1));
    assert_eq!(
        other.raw.read(),
        Reply::Error("UNBLOCKED client unblocked via CLIENT UNBLOCK".into())
    );
    let (mut third, third_id) = waiter_with_id(&server);
    assert_eq!(ok!(con, "CLIENT", "UNBLOCK", third_id, "TIMEOUT"), Value::Int(1));
    assert_eq!(third.raw.read(), Reply::NilArray);

    publish(&mut con, "a");
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["a"]);
    for mut freed in [waiter, other, third] {
        assert_eq!(freed.raw.call(&["PING"]), Reply::Simple("PONG".into()));
    }
}

#[test]
fn a_client_that_is_unblocked_and_pushed_to_in_one_transaction_takes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let (mut waiter, id) = waiter_with_id(&server);
    ok!(con, "MULTI");
    ok!(con, "CLIENT", "UNBLOCK", id);
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "");
    ok!(con, "EXEC");
    assert_eq!(waiter.raw.read(), Reply::NilArray);
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["a"]);
    assert_eq!(reserve(&mut con).id, "a");
}

#[test]
fn nothing_is_taken_for_a_client_that_hung_up() {
    let server = Server::start();
    let mut con = server.con();
    drop(Waiter::start(&server));
    assert!(eventually(deadline(), || blocked_clients(&server) == 0));
    publish(&mut con, "a");
    let after = Snapshot::of(&mut con);
    assert_eq!((after.list(PENDING), after.list(WORK)), (vec!["a".to_string()], vec![]));
    assert_eq!(reserve(&mut con).attempts, 1);
}

#[test]
fn a_message_for_a_client_that_hung_up_goes_to_the_next_that_waits() {
    let server = Server::start();
    let mut con = server.con();
    let gone = Waiter::start(&server);
    let mut next = Waiter::start(&server);
    drop(gone);
    assert!(eventually(deadline(), || blocked_clients(&server) == 1));
    publish(&mut con, "a");
    assert_eq!(next.served_id(), "a");
}

#[test]
fn a_client_that_is_killed_in_the_transaction_that_pushes_takes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let (mut killed, id) = waiter_with_id(&server);
    ok!(con, "MULTI");
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "");
    ok!(con, "CLIENT", "KILL", "ID", id);
    ok!(con, "EXEC");
    assert_eq!(killed.raw.try_read_raw().unwrap(), None);
    let after = Snapshot::of(&mut con);
    assert_eq!((after.list(PENDING), after.list(WORK)), (vec!["a".to_string()], vec![]));

    ok!(con, "FLUSHALL");
    let (mut killed, id) = waiter_with_id(&server);
    let mut next = Waiter::start(&server);
    ok!(con, "MULTI");
    ok!(con, "CLIENT", "KILL", "ID", id);
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "b", "");
    ok!(con, "EXEC");
    assert_eq!(next.served_id(), "b");
    assert_eq!(killed.raw.try_read_raw().unwrap(), None);
}

#[test]
fn a_server_that_becomes_a_replica_frees_its_clients_with_an_error() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    ok!(con, "REPLICAOF", "127.0.0.1", 1);
    let reply = waiter.raw.read();
    let Reply::Error(error) = &reply else {
        panic!("{reply:?}")
    };
    assert!(
        error.starts_with("UNBLOCKED force unblock from blocking operation"),
        "{error}"
    );
    assert_eq!(blocked_clients(&server), 0);

    ok!(con, "REPLICAOF", "NO", "ONE");
    publish(&mut con, "a");
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["a"]);
    let mut waiter = Waiter::sending(
        &server,
        &["RMQ.RESERVE", "x:pending", WORK, MAP, DUE, "1000", "BLOCK", "0"],
    );
    ok!(con, "RMQ.PUBLISH", MAP, "x:pending", "b", "");
    assert_eq!(waiter.served_id(), "b");
}

#[test]
fn a_replica_refuses_to_wait() {
    let server = Server::start();
    let replica = Replica::with_module_of(&server);
    let error = err!(replica.con(), "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000, "BLOCK", 0);
    assert!(error.starts_with("READONLY"), "{error}");
}

#[test]
fn a_key_that_is_deleted_again_in_the_same_transaction_leaves_the_client_waiting_for_the_next_push() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    store(&mut con, "a");
    for deletion in [
        &["DEL", PENDING][..],
        &["UNLINK", PENDING],
        &["RPOP", PENDING],
        &["FLUSHALL"],
    ] {
        ok!(con, "MULTI");
        ok!(con, "LPUSH", PENDING, "a");
        call(&mut con, deletion).unwrap();
        ok!(con, "EXEC");
        assert!(waiter.is_waiting(), "{deletion:?}");
    }
    ok!(con, "DEL", PENDING);
    publish(&mut con, "b");
    assert_eq!(waiter.served_id(), "b");
}

#[test]
fn a_wrong_type_at_wake_up_is_the_reply_and_loses_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let cases = [
        (WORK, "WRONGTYPE processing must be a list"),
        (MAP, "WRONGTYPE payload_map must be a hash"),
        (DUE, "WRONGTYPE expire_monitor must be a sorted set"),
    ];
    for (key, expected) in cases {
        ok!(con, "FLUSHALL");
        let mut waiter = Waiter::start(&server);
        ok!(con, "SET", key, "x");
        let before = Snapshot::of(&mut con);
        ok!(con, "LPUSH", PENDING, "a");
        assert_eq!(waiter.raw.read(), Reply::Error(expected.into()));
        ok!(con, "RPOP", PENDING);
        before.assert_unchanged(&mut con);
    }
}

#[test]
fn a_message_that_one_client_could_not_take_goes_to_the_next() {
    let server = Server::start();
    let mut con = server.con();
    let mut wrong = Waiter::sending(
        &server,
        &["RMQ.RESERVE", PENDING, "wrong", MAP, DUE, "1000", "BLOCK", "0"],
    );
    let mut right = Waiter::start(&server);
    ok!(con, "SET", "wrong", "x");
    publish(&mut con, "a");
    assert_eq!(
        wrong.raw.read(),
        Reply::Error("WRONGTYPE processing must be a list".into())
    );
    assert_eq!(right.served_id(), "a");
    assert_eq!(counter(&server, "reserved"), 1);
}

#[test]
fn a_pending_key_of_another_type_leaves_the_client_waiting() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    store(&mut con, "a");
    for other in [
        &["SET", PENDING, "a"][..],
        &["ZADD", PENDING, "1", "a"],
        &["XADD", PENDING, "*", "a", "a"],
        &["HSET", PENDING, "a", "a"],
        &["SADD", PENDING, "a"],
    ] {
        call(&mut con, other).unwrap();
        assert!(waiter.is_waiting(), "{other:?}");
        ok!(con, "DEL", PENDING);
    }
    ok!(con, "SET", PENDING, "a");
    ok!(con, "LPUSH", "other", "a");
    ok!(con, "RENAME", "other", PENDING);
    assert_eq!(waiter.served_id(), "a");
}

#[test]
fn inside_a_transaction_or_a_script_nobody_waits() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "MULTI");
    ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000, "BLOCK", 0);
    assert_eq!(items(ok!(con, "EXEC")), [Value::Nil]);
    let script = "return {redis.call('RMQ.RESERVE', KEYS[1], KEYS[2], KEYS[3], KEYS[4], 1000, 'BLOCK', 0)}";
    assert_eq!(
        items(ok!(con, "EVAL", script, 4, PENDING, WORK, MAP, DUE)),
        [Value::Nil]
    );
    let code = format!("#!lua name=lib\nredis.register_function('f', function(KEYS) {script} end)");
    ok!(con, "FUNCTION", "LOAD", code);
    assert_eq!(items(ok!(con, "FCALL", "f", 4, PENDING, WORK, MAP, DUE)), [Value::Nil]);
    assert_eq!(blocked_clients(&server), 0);
    publish(&mut con, "a");
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["a"]);
}

#[test]
fn a_user_without_permission_is_refused_and_does_not_wait() {
    let server = Server::start();
    let mut con = server.con();
    let keys = [PENDING, WORK, MAP, DUE];
    for missing in keys {
        ok!(con, "ACL", "SETUSER", "bob", "reset", "on", ">pw", "+@all");
        for key in keys.iter().filter(|key| **key != missing) {
            ok!(con, "ACL", "SETUSER", "bob", format!("~{key}"));
        }
        let error = err!(server.con_as("bob", "pw"), "RMQ.RESERVE", &keys, 1000, "BLOCK", 0);
        assert!(error.starts_with("NOPERM"), "{missing}: {error}");
    }
    assert_eq!(blocked_clients(&server), 0);
}

#[test]
fn a_client_that_lost_its_permission_while_it_waited_gets_an_error_and_the_message_goes_to_the_next() {
    let server = Server::start();
    let mut con = server.con();
    let rules = ["resetkeys", "-@all", "-rmq.reserve", "resetkeys %R~*"];
    for rule in rules {
        ok!(con, "FLUSHALL");
        ok!(con, "ACL", "SETUSER", "bob", "reset", "on", ">pw", "+@all", "~*");
        let mut raw = Raw::connect(&server);
        assert_eq!(raw.call(&["AUTH", "bob", "pw"]), Reply::Simple("OK".into()));
        raw.send(WAIT_FOR_EVER);
        assert!(eventually(deadline(), || blocked_clients(&server) == 1));
        let mut next = Waiter::start(&server);
        ok!(con, "ACL", "SETUSER", "bob", rule.split(' ').collect::<Vec<_>>());
        ok!(con, "ACL", "LOG", "RESET");
        publish(&mut con, "a");
        let withdrawn = "NOPERM the permission to run this command on these keys was withdrawn while the client waited";
        assert_eq!(raw.read(), Reply::Error(withdrawn.into()), "{rule}");
        assert_eq!(next.served_id(), "a");
        assert_eq!(items(ok!(con, "ACL", "LOG")).len(), 1);
    }
    ok!(con, "FLUSHALL");
    ok!(con, "ACL", "SETUSER", "bob", "reset", "on", ">pw", "+@all", "~*");
    let mut raw = Raw::connect(&server);
    raw.call(&["AUTH", "bob", "pw"]);
    raw.send(WAIT_FOR_EVER);
    assert!(eventually(deadline(), || blocked_clients(&server) == 1));
    ok!(
        con,
        "ACL",
        "SETUSER",
        "bob",
        "resetkeys",
        format!("%RW~{PENDING}"),
        format!("%W~{WORK}")
    );
    ok!(con, "ACL", "SETUSER", "bob", format!("%RW~{MAP}"), format!("%W~{DUE}"));
    publish(&mut con, "b");
    assert_eq!(deliveries(value_of(raw.read()))[0].id, "b");
}

#[test]
fn the_effects_of_serving_a_waiting_client_are_replicated_once_after_what_woke_it() {
    let server = Server::start();
    let mut con = server.con();
    store(&mut con, "a");
    store(&mut con, "b");
    let mut first = Waiter::start(&server);
    let mut second = Waiter::start(&server);
    let tap = ReplicaTap::attach(&server);
    ok!(con, "LPUSH", PENDING, "a", "b");
    let (one, two) = (first.served().remove(0), second.served().remove(0));
    let effects = |delivery: &Delivery| {
        let Delivery { id, lease, .. } = delivery;
        [
            format!("LMOVE {PENDING} {WORK} RIGHT LEFT"),
            format!("HSET {MAP} {id}:attempts 1"),
            format!("ZADD {DUE} {lease} {id}"),
        ]
    };
    // Where a server draws the line between two transactions is its own affair.
    let heard: Vec<String> = tap.lines_until_marker(&mut con);
    let opened = heard.iter().filter(|line| *line == "MULTI").count();
    assert!(opened >= 1 && opened == heard.iter().filter(|line| *line == "EXEC").count());
    let commands: Vec<String> = heard
        .into_iter()
        .filter(|line| line != "MULTI" && line != "EXEC")
        .collect();
    let mut expected = vec![format!("LPUSH {PENDING} a b")];
    expected.extend(effects(&one));
    expected.extend(effects(&two));
    assert_eq!(commands, expected);
}

#[test]
fn what_a_waiting_client_was_served_reaches_a_replica_without_the_module_and_the_aof() {
    let server = Server::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    let mut waiters: Vec<Waiter> = (0..6)
        .map(|n| Waiter::sending(&server, &[WAIT_FOR_EVER, &["COUNT", ["1", "2"][n % 2]]].concat()))
        .collect();
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "1", "b", "2", "c", "3");
    store(&mut con, "d");
    ok!(con, "RPUSH", PENDING, "d", "ghost");
    ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, "e", "", QUEUE, 0);
    ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 5);
    ok!(con, "MULTI");
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "f", "");
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "g", "", "h", "");
    ok!(con, "EXEC");
    let served: usize = waiters.iter_mut().map(|waiter| waiter.served().len()).sum();
    assert_eq!(served, 8);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
    let before = Snapshot::of(&mut con);
    server.restart();
    before.assert_unchanged(&mut server.con());
}

#[test]
fn serving_a_waiting_client_fires_the_events_of_the_plain_commands() {
    let server = Server::start();
    let mut con = server.con();
    store(&mut con, "a");
    let mut waiter = Waiter::start(&server);
    let mut events = Events::subscribe(&server);
    ok!(con, "LPUSH", PENDING, "a");
    assert_eq!(waiter.served_id(), "a");
    let mut heard = events.lines_until_marker(&mut con);
    assert_eq!(heard.remove(0), format!("lpush {PENDING}"));
    let place = |line: String| heard.iter().position(|heard| *heard == line);
    assert!(place(format!("rpop {PENDING}")) < place(format!("del {PENDING}")));
    heard.sort();
    let mut expected = [
        format!("rpop {PENDING}"),
        format!("del {PENDING}"),
        format!("lpush {WORK}"),
        format!("hset {MAP}"),
        format!("zadd {DUE}"),
    ];
    expected.sort();
    assert_eq!(heard, expected);
}

#[test]
fn a_client_that_times_out_or_waits_on_fires_no_event_breaks_no_watch_and_sends_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    let mut events = Events::subscribe(&server);
    let tap = ReplicaTap::attach(&server);
    let watcher = Watcher::on(&server, &[PENDING, WORK, MAP, DUE]);
    assert_eq!(
        ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000, "BLOCK", 1),
        Value::Nil
    );
    assert!(watcher.untouched());
    // Each marker is heard by the other: the tap comes first.
    assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
    assert_eq!(events.lines_until_marker(&mut con), [""; 0]);
    assert!(waiter.is_waiting());
}

#[test]
fn a_client_that_is_served_touches_watched_keys() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    let watchers = [WORK, DUE].map(|key| Watcher::on(&server, &[key]));
    publish(&mut con, "a");
    waiter.served();
    for watcher in watchers {
        assert!(watcher.touched());
    }
}

/// Redis 7.0 cannot replicate what a client changed that goes on waiting; there the client is freed with nil.
fn may_change_and_wait(server: &Server) -> bool {
    server.is_valkey() || server.version() >= (7, 2, 0)
}

#[test]
fn a_client_that_finds_only_ids_without_payload_goes_on_waiting_and_their_removal_is_replicated() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    ok!(con, "HSET", MAP, "ghost1:queue", QUEUE, "ghost1:attempts", 1);
    let mut waiter = Waiter::start(&server);
    let mut second = Waiter::start(&server);
    let tap = ReplicaTap::attach(&server);
    ok!(con, "LPUSH", PENDING, "ghost1", "ghost2");
    let heard = tap.lines_until_marker(&mut con);
    let commands: Vec<&String> = heard
        .iter()
        .filter(|line| *line != "MULTI" && *line != "EXEC")
        .collect();
    assert_eq!(
        commands,
        [
            &format!("LPUSH {PENDING} ghost1 ghost2"),
            &format!("RPOP {PENDING} 2"),
            &format!("HDEL {MAP} ghost1:queue ghost1:attempts"),
        ]
    );
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    assert_eq!(counter(&server, "dropped"), 2);
    if may_change_and_wait(&server) {
        assert!(waiter.is_waiting());
        publish(&mut con, "a");
        assert_eq!(waiter.served_id(), "a");
    } else {
        assert_eq!(waiter.raw.read(), Reply::NilArray);
    }
    publish(&mut con, "b");
    assert_eq!(second.served_id(), "b");
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn the_module_is_not_unloaded_while_a_client_waits_and_is_afterwards() {
    let server = Server::start();
    let mut con = server.con();
    let (mut waiter, id) = waiter_with_id(&server);
    let error = err!(con, "MODULE", "UNLOAD", "rmq");
    assert!(error.contains("blocked clients"), "{error}");
    publish(&mut con, "a");
    assert_eq!(waiter.served_id(), "a");
    waiter.raw.send(WAIT_FOR_EVER);
    assert!(eventually(deadline(), || blocked_clients(&server) == 1));
    ok!(con, "CLIENT", "UNBLOCK", id);
    assert_eq!(waiter.raw.read(), Reply::NilArray);
    drop(Waiter::start(&server));
    assert!(eventually(deadline(), || blocked_clients(&server) == 0));
    con = server.unload();
    let error = err!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000);
    assert!(error.starts_with("ERR unknown command"), "{error}");
    assert_eq!(Snapshot::of(&mut con).list(WORK), ["a"]);
}

#[test]
fn a_client_in_wait_answers_what_it_was_sent_meanwhile_in_order() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    waiter.raw.send(&["PING"]);
    waiter.raw.send(WAIT_FOR_EVER);
    waiter.raw.send(&["ECHO", "end"]);
    publish(&mut con, "a");
    assert_eq!(waiter.served_id(), "a");
    assert_eq!(waiter.raw.read(), Reply::Simple("PONG".into()));
    publish(&mut con, "b");
    assert_eq!(waiter.served_id(), "b");
    assert_eq!(waiter.raw.read(), Reply::bulk("end"));
}

#[test]
fn clients_of_this_and_of_the_plain_commands_wait_on_one_list_and_each_message_goes_to_one() {
    let server = Server::start();
    let mut con = server.con();
    let blmove: &[&str] = &["BLMOVE", PENDING, WORK, "RIGHT", "LEFT", "0"];
    let mut ours: Vec<Waiter> = Vec::new();
    let mut plain: Vec<Waiter> = Vec::new();
    for _ in 0..4 {
        ours.push(Waiter::start(&server));
        plain.push(Waiter::sending(&server, blmove));
    }
    for n in 0..8 {
        publish(&mut con, &n.to_string());
    }
    let mut served: Vec<String> = ours.iter_mut().map(Waiter::served_id).collect();
    served.extend(plain.iter_mut().map(|waiter| text(value_of(waiter.raw.read()))));
    served.sort();
    assert_eq!(served, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(Snapshot::of(&mut con).list(WORK).len(), 8);
}

#[test]
fn clients_that_wait_for_different_queues_get_only_their_own() {
    let server = Server::start();
    let mut con = server.con();
    let wait = |queue: &str| {
        let (pending, work) = (format!("{queue}:pending"), format!("{queue}:processing"));
        Waiter::sending(
            &server,
            &["RMQ.RESERVE", &pending, &work, MAP, DUE, "1000", "BLOCK", "0"],
        )
    };
    let mut waiters: Vec<Waiter> = ["x", "y", "z"].into_iter().map(wait).collect();
    for (id, queue) in [("1", "z"), ("2", "x")] {
        ok!(con, "RMQ.PUBLISH", MAP, format!("{queue}:pending"), id, "");
    }
    assert_eq!(waiters[2].served_id(), "1");
    assert_eq!(waiters[0].served_id(), "2");
    assert!(waiters[1].is_waiting());
}

#[test]
fn a_client_in_another_database_is_not_served() {
    let server = Server::start();
    let mut con = server.con();
    let mut raw = Raw::connect(&server);
    raw.call(&["SELECT", "1"]);
    raw.send(WAIT_FOR_EVER);
    assert!(eventually(deadline(), || blocked_clients(&server) == 1));
    publish(&mut con, "a");
    assert!(raw.is_silent_for(Duration::from_millis(60)));
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["a"]);
    ok!(con, "SELECT", 1);
    publish(&mut con, "b");
    assert_eq!(deliveries(value_of(raw.read()))[0].id, "b");
}

#[test]
fn a_server_with_waiting_clients_shuts_down_and_hangs_up() {
    let server = Server::start();
    let mut waiter = Waiter::start(&server);
    server.stop();
    assert_eq!(waiter.raw.try_read_raw().unwrap(), None);
}

/// What the consumers of the test below have received.
struct Tally {
    times: Vec<AtomicU32>,
    deliveries: AtomicUsize,
    not_acked: AtomicUsize,
    redelivered: AtomicUsize,
}

struct Consumer {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Consumer {
    fn connect(port: u16) -> Consumer {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.write_all(&encode(WAIT_FOR_EVER)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Consumer {
            socket,
            buffer: Vec::new(),
        }
    }

    /// Reads what has come; acknowledges a message and waits for the next in one go.
    fn work(&mut self, tally: &Tally) {
        let mut chunk = [0; 4096];
        loop {
            match self.socket.read(&mut chunk) {
                Ok(0) => panic!("the server hung up"),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
        while let Some((reply, length)) = parse(&self.buffer) {
            self.buffer.drain(..length);
            match reply {
                Reply::Int(acked) => {
                    tally.not_acked.fetch_add(1 - acked as usize, Ordering::Relaxed);
                }
                reply => {
                    let delivery = deliveries(value_of(reply)).remove(0);
                    let mut next = encode(&["RMQ.ACK", MAP, WORK, DUE, &delivery.id, &delivery.lease]);
                    next.extend(encode(WAIT_FOR_EVER));
                    self.socket.write_all(&next).unwrap();
                    let number: usize = delivery.id.parse().unwrap();
                    tally.times[number].fetch_add(1, Ordering::Relaxed);
                    tally
                        .redelivered
                        .fetch_add(usize::from(delivery.attempts != 1), Ordering::Relaxed);
                    tally.deliveries.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

fn work_until(stop: &AtomicBool, port: u16, consumers: usize, tally: &Tally) {
    let mut consumers: Vec<Consumer> = (0..consumers).map(|_| Consumer::connect(port)).collect();
    let mut polled: Vec<libc::pollfd> = consumers
        .iter()
        .map(|consumer| libc::pollfd {
            fd: consumer.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    while !stop.load(Ordering::Relaxed) {
        // SAFETY: the pointer and the length are those of the vector; the sockets are open.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 50) };
        assert!(ready >= 0);
        for (consumer, polled) in consumers.iter_mut().zip(&polled) {
            if polled.revents != 0 {
                consumer.work(tally);
            }
        }
    }
}

/// One burst of messages, by one of the ways in which they come.
fn burst(con: &mut Connection, way: usize, ids: std::ops::Range<usize>) {
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    match way {
        0 => {
            for chunk in ids.chunks(1000) {
                let words: Vec<&str> = chunk.iter().flat_map(|id| [id.as_str(), "payload"]).collect();
                ok!(con, "RMQ.PUBLISH", MAP, PENDING, words);
            }
        }
        1 => {
            for chunk in ids.chunks(1000) {
                let fields: Vec<&str> = chunk.iter().flat_map(|id| [id.as_str(), "payload"]).collect();
                ok!(con, "HSET", MAP, fields);
                ok!(con, "LPUSH", PENDING, chunk);
            }
        }
        2 => {
            let mut pipe = redis::pipe();
            for id in &ids {
                pipe.add_command(command!("RMQ.SCHEDULE", MAP, DELAYS, id, "payload", QUEUE, 0))
                    .ignore();
            }
            pipe.query::<()>(con).unwrap();
            ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, ids.len());
        }
        _ => {
            let mut pipe = redis::pipe();
            for id in &ids {
                pipe.add_command(command!("RMQ.PUBLISH", MAP, PENDING, id, "payload"))
                    .ignore();
            }
            pipe.query::<()>(con).unwrap();
        }
    }
}

#[test]
fn a_thousand_waiting_clients_get_a_hundred_thousand_messages_once_each_and_none_is_forgotten() {
    const CONSUMERS: usize = 1000;
    const MESSAGES: usize = 100_000;
    let server = Server::start();
    let mut con = server.con();
    let tally = Tally {
        times: (0..MESSAGES).map(|_| AtomicU32::new(0)).collect(),
        deliveries: AtomicUsize::new(0),
        not_acked: AtomicUsize::new(0),
        redelivered: AtomicUsize::new(0),
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        const THREADS: usize = 2;
        for _ in 0..THREADS {
            scope.spawn(|| work_until(&stop, server.port(), CONSUMERS / THREADS, &tally));
        }
        // However this ends, the consumers end with it.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        let all_wait = || blocked_clients(&server) == CONSUMERS as u64;
        assert!(eventually(deadline(), all_wait), "{} wait", blocked_clients(&server));

        let mut rng = Rng::seeded();
        let mut published = 0;
        for round in 0.. {
            if published == MESSAGES {
                break;
            }
            // Fewer than wait, as many, and many more. One push a message is slow where a server asks all that wait.
            let size = match round % 8 {
                _ if round % 4 == 3 => 1 + rng.below(100),
                0 => 1,
                1 => CONSUMERS,
                2 => CONSUMERS - 1,
                4 => CONSUMERS + 1,
                _ => 1 + rng.below(9000),
            };
            let size = size.min(MESSAGES - published);
            burst(&mut con, round % 4, published..published + size);
            published += size;
            // No further push comes before all are delivered: a message that nobody is woken for stays.
            if round % 3 != 2 {
                let delivered = || tally.deliveries.load(Ordering::Relaxed) >= published;
                assert!(
                    eventually(deadline(), delivered),
                    "of {published} messages {} were delivered while consumers waited",
                    tally.deliveries.load(Ordering::Relaxed)
                );
            }
        }
        assert!(eventually(deadline(), || counter(&server, "acked") >= MESSAGES as u64));
        assert!(eventually(deadline(), all_wait), "{} wait", blocked_clients(&server));
    });
    let wrong: Vec<(usize, u32)> = tally
        .times
        .iter()
        .map(|times| times.load(Ordering::Relaxed))
        .enumerate()
        .filter(|(_, times)| *times != 1)
        .collect();
    assert_eq!(wrong, []);
    assert_eq!(tally.not_acked.load(Ordering::Relaxed), 0);
    assert_eq!(tally.redelivered.load(Ordering::Relaxed), 0);
    assert_eq!(counter(&server, "reserved"), MESSAGES as u64);
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
}

#[test]
fn an_ack_is_answered_at_once_also_when_a_reserve_behind_it_in_the_same_write_waits() {
    let server = Server::start();
    let mut con = server.con();
    let held = take_new(&mut con, "a");
    let mut worker = Raw::connect(&server);
    worker.send(&["RMQ.ACK", MAP, WORK, DUE, &held.id, &held.lease]);
    worker.send(&["RMQ.RESERVE", PENDING, WORK, MAP, DUE, "60000", "BLOCK", "0"]);
    assert_eq!(worker.read(), Reply::Int(1));
    assert!(worker.is_silent_for(Duration::from_millis(50)));
    publish(&mut con, "b");
    let Reply::Array(rows) = worker.read() else {
        panic!("the message that came");
    };
    assert_eq!(rows.len(), 1);
}
