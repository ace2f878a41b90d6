//! What may happen to a server while clients wait in RESERVE: afterwards it lives, the clients that are still there are
//! served, and where nobody waits there is no timer.

use crate::common::*;
use crate::traffic::clock_ms;
use std::thread::sleep;
use std::time::Duration;

const CLIENTS: usize = 50;

struct Lab {
    server: Server,
    con: redis::Connection,
    waiters: Vec<Raw>,
}

impl Lab {
    /// Clients that wait, while a message is due in 200 ms and the lease of another runs out then.
    fn with_waiters() -> Lab {
        let server = Server::start();
        let con = server.con();
        let mut lab = Lab { server, con, waiters: Vec::new() };
        lab.wait(CLIENTS);
        lab.plant(200.0);
        lab
    }

    fn wait(&mut self, clients: usize) {
        let more = (0..clients).map(|_| {
            let mut waiter = Raw::connect(&self.server);
            waiter.send(&["RMQ.RESERVE", "app", "60000", "BLOCK", "0", "FROM", "urgent", "q"]);
            waiter
        });
        self.waiters.extend(more);
        self.expect("rmq_waiting_clients", self.waiters.len());
        self.expect("rmq_timers", 1);
    }

    fn plant(&mut self, in_ms: f64) {
        let due = (clock_ms() + in_ms).round();
        ok!(self.con, "RMQ.PUBLISH", "app", "AT", due as u64, "TO", "q", "delayed", "payload");
        ok!(self.con, "HSET", "app:payloads", "stuck", "payload", "stuck:queue", "app:q", "stuck:attempts", "1-1");
        ok!(self.con, "LPUSH", "app:q:processing", "stuck");
        ok!(self.con, "ZADD", "app:expires", due + 0.5, "stuck");
    }

    #[track_caller]
    fn expect(&self, gauge: &str, value: usize) {
        let as_expected = || self.server.info("rmq")[gauge] == value.to_string();
        assert!(eventually(deadline(), as_expected), "{gauge} is not {value}: {:?}", self.server.info("rmq"));
    }

    /// The first who wait, of all or of those that are left, get the two messages.
    #[track_caller]
    fn two_are_served(&mut self) {
        let mut ids: Vec<String> = self.waiters.drain(..2).map(|mut waiter| first_id(&waiter.read())).collect();
        ids.sort();
        assert_eq!(ids, ["delayed", "stuck"]);
        self.expect("rmq_waiting_clients", self.waiters.len());
    }

    /// When the clients go, the timer goes.
    #[track_caller]
    fn end(mut self) {
        self.waiters.clear();
        self.expect("rmq_waiting_clients", 0);
        self.expect("rmq_timers", 0);
        assert_eq!(self.server.info("rmq")["rmq_panics"], "0");
    }
}

fn first_id(reply: &Reply) -> String {
    match reply {
        Reply::Array(items) => first_id(&items[0]),
        other => String::from_utf8_lossy(other.bytes().unwrap_or_else(|| panic!("{other:?}"))).into_owned(),
    }
}

#[test]
fn the_first_who_wait_are_served_and_the_others_wait_on() {
    let mut lab = Lab::with_waiters();
    lab.two_are_served();
    lab.end();
}

#[test]
fn flushall_leaves_the_clients_waiting_for_what_comes_later() {
    for flush in ["FLUSHALL", "FLUSHDB"] {
        let mut lab = Lab::with_waiters();
        ok!(lab.con, flush);
        sleep(Duration::from_millis(300));
        assert_eq!(ok!(lab.con, "DBSIZE"), redis::Value::Int(0));
        lab.plant(100.0);
        lab.two_are_served();
        lab.end();
    }
}

/// The clients wait in database 0, wherever its keys are.
#[test]
fn after_swapdb_the_clients_are_served_from_the_database_they_chose() {
    let mut lab = Lab::with_waiters();
    ok!(lab.con, "SWAPDB", 0, 1);
    sleep(Duration::from_millis(1500));
    let here: usize = ask!(lab.con, "DBSIZE");
    assert_eq!(here, 0, "the messages are in database 1, where nobody waits");
    ok!(lab.con, "SWAPDB", 0, 1);
    lab.two_are_served();
    lab.end();
}

#[test]
fn a_deleted_user_leaves_no_client_and_no_timer() {
    let mut lab = Lab::with_waiters();
    ok!(lab.con, "ACL", "SETUSER", "worker", "on", ">secret", "+@all", "~app:*");
    let mut others: Vec<Raw> = (0..CLIENTS).map(|_| Raw::connect(&lab.server)).collect();
    for waiter in &mut others {
        waiter.call(&["AUTH", "worker", "secret"]);
        waiter.send(&["RMQ.RESERVE", "app", "60000", "BLOCK", "0", "FROM", "urgent", "q"]);
        waiter.send(&["RMQ.RESERVE", "other", "60000", "BLOCK", "0", "FROM", "q"]);
    }
    lab.expect("rmq_waiting_clients", 2 * CLIENTS);
    ok!(lab.con, "ACL", "DELUSER", "worker");
    lab.expect("rmq_waiting_clients", CLIENTS);
    for waiter in &mut others {
        assert!(matches!(waiter.try_read_raw(), Ok(None) | Err(_)), "the connection is closed");
    }
    lab.two_are_served();
    lab.end();
}

#[test]
fn client_unblock_ends_the_wait_with_nil_or_with_an_error() {
    let mut lab = Lab::with_waiters();
    let mut unblocked = Vec::new();
    for how in ["TIMEOUT", "ERROR"] {
        let mut waiter = Raw::connect(&lab.server);
        let Reply::Int(id) = waiter.call(&["CLIENT", "ID"]) else { panic!("no id") };
        waiter.send(&["RMQ.RESERVE", "app", "60000", "BLOCK", "0", "FROM", "q"]);
        unblocked.push((waiter, id, how));
    }
    lab.expect("rmq_waiting_clients", CLIENTS + 2);
    for (waiter, id, how) in &mut unblocked {
        assert_eq!(ok!(lab.con, "CLIENT", "UNBLOCK", *id, *how), redis::Value::Int(1));
        match waiter.read() {
            Reply::NilArray if *how == "TIMEOUT" => {}
            Reply::Error(text) if *how == "ERROR" && text.starts_with("UNBLOCKED ") => {}
            other => panic!("{how}: {other:?}"),
        }
    }
    lab.two_are_served();
    lab.end();
}

/// While writes are paused nothing is moved and nobody is served; afterwards all is as if it had been due now.
#[test]
fn client_pause_holds_the_timer_back() {
    for mode in ["WRITE", "ALL"] {
        let mut lab = Lab::with_waiters();
        let replica = Replica::of(&lab.server);
        replica.wait_synced();
        ok!(lab.con, "CLIENT", "PAUSE", 1500, mode);
        let before = replica.digest();
        sleep(Duration::from_millis(700));
        assert_eq!(replica.digest(), before, "{mode}: the pause is there so that the replica can catch up");
        lab.two_are_served();
        replica.wait_synced();
        assert_eq!(replica.digest(), lab.server.digest());
        lab.end();
    }
}

#[test]
fn clients_that_lose_their_connection_are_not_served_a_message_that_nobody_gets() {
    let mut lab = Lab::with_waiters();
    lab.waiters.drain(..CLIENTS - 10);
    lab.expect("rmq_waiting_clients", 10);
    lab.two_are_served();
    ok!(lab.con, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
    lab.waiters.clear();
    lab.end();
}
