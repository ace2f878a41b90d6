//! RMQ.NEXTDELAY delay_tasks

use crate::common::messages::*;
use crate::common::*;
use redis::Value;

#[test]
fn without_a_task_the_next_delay_is_no_task() {
    let server = Server::start();
    assert_eq!(Raw::connect(&server).call_raw(&["RMQ.NEXTDELAY", DELAYS]), b"*1\r\n$7\r\nNO_TASK\r\n");
}

#[test]
fn a_task_that_is_due_is_reported_as_expired_with_its_due_time_and_id() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "ZADD", DELAYS, 2000, "b", 1000, "a");
    let mut raw = Raw::connect(&server);
    assert_eq!(raw.call_raw(&["RMQ.NEXTDELAY", DELAYS]), b"*3\r\n$7\r\nEXPIRED\r\n:1000\r\n$1\r\na\r\n");
}

#[test]
fn a_task_of_the_future_is_reported_as_waiting_with_the_time_to_wait_its_due_time_and_its_id() {
    let server = Server::start();
    let mut con = server.con();
    let due = server_time_ms(&mut con) + HOUR;
    ok!(con, "ZADD", DELAYS, due + 1, "b", due, "a");
    let before = server_time_ms(&mut con);
    let reply = Raw::connect(&server).call(&["RMQ.NEXTDELAY", DELAYS]);
    let after = server_time_ms(&mut con);
    let Reply::Array(words) = reply else { panic!("{reply:?}") };
    assert_eq!(words[0], Reply::bulk("WAITING"));
    let Reply::Int(wait) = words[1] else { panic!("{words:?}") };
    assert!((due - after..=due - before).contains(&wait), "{wait}");
    assert_eq!(words[2..], [Reply::Int(due), Reply::bulk("a")]);
}

#[test]
fn the_next_delay_is_what_the_script_says() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let now = server_time_ms(&mut con);
    let tasks = [None, Some(0.0), Some(1500.75), Some(now as f64), Some((now + HOUR) as f64 + 0.5)];
    for due in tasks {
        ok!(con, "DEL", DELAYS);
        if let Some(due) = due {
            ok!(con, "ZADD", DELAYS, due, "id");
        }
        // The time to wait differs by the time between the two calls.
        let replied = |reply: Value| {
            let mut words = items(reply);
            let wait = (words.len() == 4).then(|| words.remove(1));
            (wait.map(|wait| matches!(wait, Value::Int(ms) if ms > 0)), words)
        };
        let script = replied(peer.call(&mut con, "get_next_delay_task", &[DELAYS], &[""; 0]).unwrap());
        assert_eq!(replied(ok!(con, "RMQ.NEXTDELAY", DELAYS)), script, "{due:?}");
        assert_eq!(script.0, due.filter(|due| *due > now as f64).map(|_| true));
    }
}

#[test]
fn the_next_delay_is_only_read_so_a_replica_answers_too() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "ZADD", DELAYS, 1000, "a");
    let replica = Replica::with_module_of(&server);
    assert_eq!(strings(ok!(replica.con(), "RMQ.NEXTDELAY", DELAYS)), ["EXPIRED", "1000", "a"]);
    let watcher = Watcher::on(&server, &[DELAYS]);
    ok!(con, "RMQ.NEXTDELAY", DELAYS);
    assert!(watcher.untouched());
    ok!(con, "ACL", "SETUSER", "bob", "on", ">pw", "+@all", "%R~*");
    ok!(server.con_as("bob", "pw"), "RMQ.NEXTDELAY", DELAYS);
}

#[test]
fn a_next_delay_of_another_type_is_an_error() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "SET", "text", "x");
    assert_eq!(err!(con, "RMQ.NEXTDELAY", "text"), "WRONGTYPE delay_tasks must be a sorted set");
    assert!(err!(con, "RMQ.NEXTDELAY").starts_with("ERR wrong number of arguments"));
    assert!(err!(con, "RMQ.NEXTDELAY", "a", "b").starts_with("ERR wrong number of arguments"));
}
