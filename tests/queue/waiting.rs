//! RMQ.RESERVE … BLOCK: who is served, by what, in which order, and what ends a wait.

use crate::calls::*;
use crate::common::*;
use redis::{Connection, Value};
use std::time::{Duration, Instant};

#[test]
fn a_waiting_client_gets_what_it_would_have_got_at_once() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    order(&mut con, "a");
    let delivery = waiter.served_one();
    assert_eq!((delivery.payload.as_str(), delivery.attempts, delivery.queue.as_str()), ("payload of a", 1, "orders"));
    let now = Snapshot::of(&mut con);
    assert_eq!(now.list(WORK), ["a"]);
    assert_eq!(now.hash(PAYLOADS)["a:attempts"], delivery.receipt);
    assert!(now.zset(EXPIRES)["a"].fract() != 0.0);
    assert_eq!(ack(&mut con, &delivery), 1);
    assert_eq!(Snapshot::of(&mut con).keys(), [QUEUES]);
}

#[test]
fn a_wait_ends_with_nil_when_its_time_is_up_or_by_client_unblock() {
    let server = Server::start();
    let mut con = server.con();
    let mut raw = Raw::connect(&server);
    let wait = HERE.words("RMQ.RESERVE app 1000 BLOCK 80 FROM orders mails");
    let start = Instant::now();
    assert_eq!(raw.call_raw(&wait), b"*-1\r\n");
    assert!(start.elapsed() >= Duration::from_millis(80));
    raw.call(&["HELLO", "3"]);
    assert_eq!(raw.call_raw(&wait), b"_\r\n");

    for (how, wanted) in [
        (&[][..], Reply::NilArray),
        (&["TIMEOUT"], Reply::NilArray),
        (&["ERROR"], Reply::Error("UNBLOCKED client unblocked via CLIENT UNBLOCK".into())),
    ] {
        let mut waiter = Waiter::from(&server, "orders mails");
        assert_eq!(ok!(con, "CLIENT", "UNBLOCK", waiter.client, how), Value::Int(1));
        assert_eq!(waiter.raw.read(), wanted);
        assert_eq!(waiter.raw.call(&["PING"]), Reply::Simple("PONG".into()));
    }
    order(&mut con, "a");
    assert_eq!(list(&mut con, PENDING), ["a"]);
    assert_eq!(blocked_clients(&server), 0);
}

#[test]
fn what_is_there_already_is_taken_at_once_from_any_of_the_queues() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "app", "low", "a");
    let taken = deliveries(HERE.call(&mut con, "RMQ.RESERVE app 1000 BLOCK 0 FROM high mid low").unwrap());
    assert_eq!(ids(&taken), ["a"]);
}

#[test]
fn in_a_transaction_or_a_script_nobody_waits() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "MULTI");
    HERE.call(&mut con, "RMQ.RESERVE app 1000 BLOCK 0 FROM orders mails").unwrap();
    assert_eq!(shown(cmd!(con, "EXEC")), "[nil]");
    let script = "return redis.call('RMQ.RESERVE', 'app', '1000', 'BLOCK', '0', 'FROM', 'orders')";
    assert_eq!(ok!(con, "EVAL", script, 0), Value::Nil);
    order(&mut con, "a");
    assert_eq!(ids(&deliveries(ok!(con, "EVAL", script, 0))), ["a"]);
}

#[test]
fn a_client_that_has_subscribed_waits_or_has_nil_at_once_and_leaves_nothing_behind() {
    let server = Server::start();
    let mut con = server.con();
    let mut raw = Raw::connect(&server);
    raw.call(&["HELLO", "3"]);
    raw.call(&["SUBSCRIBE", "news"]);
    if server.is_valkey() {
        assert_eq!(raw.call(&HERE.words(WAIT)), Reply::Null);
    } else {
        let mut waiter = Waiter::on(raw, &server, WAIT);
        order(&mut con, "a");
        assert_eq!(waiter.served_id(), "a");
    }
    assert!(eventually(deadline(), || counter(&server, "waiting_clients") == 0));
    assert_eq!(counter(&server, "timers"), 0);
}

type Filling = (&'static str, fn(&mut Connection));

/// Everything that can fill a pending list; the message is `a`.
const FILLINGS: &[Filling] = &[
    ("PUBLISH", |con| order(con, "a")),
    ("PUBLISH URGENT", |con| drop(ok!(con, "RMQ.PUBLISH", "app", "URGENT", "TO", "orders", "a", "p"))),
    ("PUBLISH in a transaction", |con| {
        ok!(con, "MULTI");
        ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "a", "p");
        ok!(con, "PING");
        ok!(con, "EXEC");
    }),
    ("PUBLISH in a script", |con| {
        ok!(con, "EVAL", "return redis.call('RMQ.PUBLISH', 'app', 'TO', 'orders', 'a', 'p')", 0);
    }),
    ("RELEASE", |con| {
        publish(con, "app", "mails", "a");
        let delivery = reserve(con, "app", HOUR, 1, &["mails"]).remove(0);
        ok!(con, "HSET", PAYLOADS, "a:queue", "app:orders");
        assert_eq!(release(con, &delivery), 1);
    }),
    ("REDRIVE", |con| {
        ok!(con, "HSET", DLQ_DATA, "a", "p", "a:queue", "app:orders");
        ok!(con, "LPUSH", DLQ, "a");
        ok!(con, "RMQ.REDRIVE", "app", "COUNT", 1);
    }),
    ("DELAYTICK", |con| {
        ok!(con, "HSET", PAYLOADS, "a", "p", "a:queue", "app:orders");
        ok!(con, "ZADD", DELAYS, 1000, "a");
        ok!(con, "RMQ.DELAYTICK", DELAYS, PAYLOADS, 1);
    }),
    ("a plain push", |con| {
        ok!(con, "HSET", PAYLOADS, "a", "p");
        ok!(con, "LPUSH", PENDING, "a");
    }),
    ("a payload after its push, in one transaction", |con| {
        ok!(con, "MULTI");
        ok!(con, "LPUSH", PENDING, "a");
        ok!(con, "HSET", PAYLOADS, "a", "p");
        ok!(con, "EXEC");
    }),
    ("RENAME", |con| {
        ok!(con, "HSET", PAYLOADS, "a", "p");
        ok!(con, "LPUSH", "other", "a");
        ok!(con, "RENAME", "other", PENDING);
    }),
    ("SWAPDB", |con| {
        ok!(con, "SELECT", 1);
        order(con, "a");
        ok!(con, "SWAPDB", 0, 1);
        ok!(con, "SELECT", 0);
    }),
];

#[test]
fn whatever_fills_one_of_several_queues_serves_who_waits() {
    let server = Server::start();
    let mut con = server.con();
    for (about, fill) in FILLINGS {
        for from in ["orders", "first orders", "first second orders last"] {
            ok!(con, "FLUSHALL");
            let mut waiter = Waiter::from(&server, from);
            fill(&mut con);
            let delivery = waiter.served_one();
            assert_eq!((delivery.id.as_str(), delivery.queue.as_str()), ("a", "orders"), "{about}, from {from}");
            assert_eq!(list(&mut con, WORK), ["a"], "{about}, from {from}");
            assert_eq!(ack(&mut con, &delivery), 1, "{about}, from {from}");
        }
    }
}

#[test]
fn of_several_queues_that_fill_at_once_the_first_named_wins() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::from(&server, "high mid low");
    ok!(con, "MULTI");
    for queue in ["low", "mid", "high"] {
        ok!(con, "RMQ.PUBLISH", "app", "TO", queue, queue, "p");
    }
    ok!(con, "EXEC");
    assert_eq!(waiter.served_id(), "high");
    assert_eq!(take_from(&mut con, "high mid low"), ["mid", "low"]);

    // With a count it takes on, by priority.
    let mut waiter = Waiter::sending(&server, "RMQ.RESERVE app 1000 COUNT 3 BLOCK 0 FROM high low");
    ok!(con, "MULTI");
    steps(&mut con, &[("RMQ.PUBLISH app TO low l1 p l2 p l3 p", "QUEUED"), ("RMQ.PUBLISH app TO high h1 p", "QUEUED")]);
    ok!(con, "EXEC");
    assert_eq!(ids(&waiter.served()), ["h1", "l1", "l2"]);
}

fn take_from(con: &mut Connection, queues: &str) -> Vec<String> {
    let taken = reserve(con, "app", HOUR, 9, &queues.split(' ').collect::<Vec<_>>());
    taken.into_iter().map(|delivery| delivery.id).collect()
}

#[test]
fn pick_up_from_the_last_queue_is_as_quick_as_from_the_first() {
    let server = Server::start();
    let mut con = server.con();
    let mut n = 0;
    let mut pick_up = |queue: &str| {
        let mut waiter = Waiter::from(&server, "a b c d e f g h");
        let start = Instant::now();
        n += 1;
        publish(&mut con, "app", queue, &n.to_string());
        waiter.served_one();
        start.elapsed().as_micros() as u64
    };
    // A look once a second, or at one queue after the other, would show.
    assert_ratio(3.0, ["h", "a"], |queue| (0..10).map(|_| pick_up(queue)).min().unwrap());
    assert_below(50_000, || (0..10).map(|_| pick_up("h")).max().unwrap());
}

#[test]
fn who_came_first_is_served_first_among_those_who_want_the_queue() {
    let server = Server::start();
    let mut con = server.con();
    let mut only_a = Waiter::from(&server, "a");
    let mut both = Waiter::from(&server, "b a");
    let mut only_b = Waiter::from(&server, "b");
    let mut late_a = Waiter::from(&server, "c a");
    publish(&mut con, "app", "b", "1");
    assert_eq!(both.served_id(), "1");
    publish(&mut con, "app", "b", "2");
    assert_eq!(only_b.served_id(), "2");
    assert!(only_a.is_waiting() && late_a.is_waiting());
    steps(&mut con, &[("RMQ.PUBLISH app TO a 3 p 4 p 5 p", "[3 4 5]")]);
    assert_eq!((only_a.served_id(), late_a.served_id()), ("3".into(), "4".into()));
    assert_eq!(list(&mut con, "app:a:pending"), ["5"]);
}

/// Ways in which the queues a and b get the messages 1 and 2 at once.
const FILL_BOTH: [(&str, &[&str]); 3] = [
    ("a transaction", &["MULTI", "RMQ.PUBLISH app TO a 1 p", "RMQ.PUBLISH app TO b 2 p", "EXEC"]),
    ("a timer", &["MULTI", "RMQ.PUBLISH app DELAY 100 TO a 1 p", "RMQ.PUBLISH app DELAY 100 TO b 2 p", "EXEC"]),
    ("the end of a pause", &["RMQ.PUBLISH app TO a 1 p", "RMQ.PUBLISH app TO b 2 p", "RMQ.POLICY app * PAUSED no"]),
];

#[test]
fn who_came_first_for_a_queue_is_served_first_also_when_other_queues_fill_at_once() {
    let server = Server::start();
    let mut con = server.con();
    for (about, lines) in FILL_BOTH {
        // The server asks the second client first, because of the queue a.
        for second in ["FROM b a", "FROM a b", "COUNT 2 BLOCK 0 FROM a b"] {
            ok!(con, "FLUSHALL");
            ok!(con, "RMQ.POLICY", "app", "*", "PAUSED", if about == "the end of a pause" { "yes" } else { "no" });
            let mut first = Waiter::from(&server, "b");
            let block = if second.contains("BLOCK") { "" } else { "BLOCK 0" };
            let mut second_waiter = Waiter::sending(&server, &format!("RMQ.RESERVE app 3600000 {block} {second}"));
            HERE.add(&mut con, lines);
            assert_eq!(first.served_id(), "2", "{about}, {second}");
            assert_eq!(second_waiter.served_id(), "1", "{about}, {second}");
        }
    }
}

#[test]
fn who_was_killed_while_it_waited_holds_nobody_up() {
    let server = Server::start();
    let mut con = server.con();
    let killed = Waiter::from(&server, "b");
    let mut next = Waiter::from(&server, "b a");
    ok!(con, "MULTI");
    ok!(con, "CLIENT", "KILL", "ID", killed.client);
    steps(&mut con, &[("RMQ.PUBLISH app TO b 2 p", "QUEUED"), ("RMQ.PUBLISH app TO a 1 p", "QUEUED")]);
    ok!(con, "EXEC");
    assert_eq!(next.served_id(), "2");
}

#[test]
fn what_comes_due_goes_to_who_waits_already_and_not_to_who_begins_to_wait() {
    let server = Server::start();
    let mut con = server.con();
    for queues in ["orders", "mails orders"] {
        ok!(con, "FLUSHALL");
        let mut first = Waiter::start(&server);
        delayed_order(&mut con, "a", 20);
        // Nobody looks at the timer while the server sleeps, and then the later client comes before it.
        let mut later = Raw::connect(&server);
        let mut bytes = resp::encode(&HERE.words("DEBUG SLEEP 0.1"));
        bytes.extend(resp::encode(&HERE.words(&format!("RMQ.RESERVE app 3600000 BLOCK 0 FROM {queues}"))));
        later.send_bytes(&bytes);
        assert_eq!(later.read(), Reply::Simple("OK".into()));
        assert_eq!(first.served_id(), "a", "{queues}");
        order(&mut con, "b");
        assert_eq!(deliveries(value_of(later.read()))[0].id, "b", "{queues}");
    }
}

#[test]
fn who_waits_again_queues_behind_the_others_also_for_what_a_timer_brings() {
    let server = Server::start();
    let mut con = server.con();
    let mut first = Waiter::start(&server);
    let mut second = Waiter::start(&server);
    delayed_order(&mut con, "a", 50);
    assert_eq!(first.served_id(), "a");
    let mut first = first.again(&server);
    delayed_order(&mut con, "b", 50);
    assert_eq!(second.served_id(), "b");
    delayed_order(&mut con, "c", 50);
    assert_eq!(first.served_id(), "c");
}

#[test]
fn several_messages_that_come_due_together_go_one_to_each_who_waits() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiters: Vec<Waiter> = (0..5).map(|_| Waiter::start(&server)).collect();
    let at = server_time_ms(&mut con) + 300;
    for id in ["a", "b", "c"] {
        ok!(con, "RMQ.PUBLISH", "app", "AT", at, "TO", "orders", id, "p");
    }
    let served: Vec<String> = waiters[..3].iter_mut().map(Waiter::served_id).collect();
    assert_eq!(served, ["a", "b", "c"]);
    assert!(waiters[3..].iter_mut().all(Waiter::is_waiting));
}

#[test]
fn a_client_that_went_away_takes_nothing_and_the_next_is_served() {
    let server = Server::start();
    let mut con = server.con();
    drop(Waiter::start(&server));
    assert!(eventually(deadline(), || blocked_clients(&server) == 0));
    order(&mut con, "a");
    assert_eq!(list(&mut con, PENDING), ["a"]);
    assert_eq!(take(&mut con).attempts, 1);

    let killed = Waiter::start(&server);
    let mut next = Waiter::start(&server);
    ok!(con, "MULTI");
    ok!(con, "CLIENT", "KILL", "ID", killed.client);
    ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "b", "p");
    ok!(con, "EXEC");
    assert_eq!(next.served_one().attempts, 1);
}

#[test]
fn clients_that_a_timer_asked_in_vain_may_be_killed() {
    // With an AOF, as what a timer does has to be written.
    let server = Server::builder().arg("appendonly", "yes").start();
    let mut con = server.con();
    let mut waiters: Vec<Waiter> = (0..3).map(|_| Waiter::start(&server)).collect();
    ok!(con, "RMQ.PUBLISH", "app", "DELAY", 20, "TO", "orders", "a", "p");
    assert_eq!(waiters[0].served_id(), "a");
    for waiter in &waiters[1..] {
        assert_eq!(ok!(con, "CLIENT", "KILL", "ID", waiter.client), Value::Int(1));
    }
    // Their memory is used for something else.
    for number in 0..3000 {
        ok!(con, "SET", format!("key-{number}"), "z".repeat(600 + number % 400));
    }
    let mut waiter = Waiter::start(&server);
    ok!(con, "RMQ.PUBLISH", "app", "DELAY", 20, "TO", "orders", "b", "p");
    assert_eq!(waiter.served_id(), "b");
    assert!(eventually(deadline(), || blocked_clients(&server) == 0));
}

#[test]
fn flushall_leaves_clients_waiting_and_later_messages_reach_them() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::from(&server, "mails orders");
    for flush in ["FLUSHALL", "FLUSHDB"] {
        ok!(con, "MULTI");
        ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "gone", "p");
        ok!(con, flush);
        ok!(con, "EXEC");
        assert!(waiter.is_waiting(), "{flush}");
    }
    order(&mut con, "a");
    assert_eq!(waiter.served_id(), "a");
}

#[test]
fn a_user_that_is_deleted_while_it_waits_loses_no_message() {
    let server = Server::start();
    let mut con = server.con();
    let user = |con: &mut Connection| drop(ok!(con, "ACL", "SETUSER", "eve", "on", ">pw", "~app:*", "+@all"));
    let as_eve = |server: &Server| {
        let mut raw = Raw::connect(server);
        raw.call(&["AUTH", "eve", "pw"]);
        Waiter::on(raw, server, WAIT)
    };
    for end in ["ACL DELUSER eve", "ACL SETUSER eve resetkeys ~other:*"] {
        for due in ["", "DELAY 100"] {
            ok!(con, "FLUSHALL");
            user(&mut con);
            let mut eve = as_eve(&server);
            let mut next = Waiter::start(&server);
            HERE.add(&mut con, &[end, &format!("RMQ.PUBLISH app {due} TO orders a p")]);
            // She gets an error or is hung up on; the message goes to who may have it.
            assert_eq!(next.served_one().attempts, 1, "{end} {due}");
            match eve.raw.try_read_raw() {
                Ok(None) => {}
                Ok(Some(reply)) => assert!(reply.starts_with(b"-NOPERM"), "{end}: {}", reply.escape_ascii()),
                Err(e) => panic!("{end}: {e}"),
            }
        }
    }
    assert!(server.is_alive());
}

#[test]
fn a_pause_of_all_clients_holds_deliveries_back_and_loses_none() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    delayed_order(&mut con, "a", 100);
    ok!(con, "CLIENT", "PAUSE", 800, "ALL");
    waiter.since = Instant::now();
    let (delivery, _) = waiter.served_after(Duration::from_millis(700));
    assert_eq!(ack(&mut con, &delivery), 1);
}

#[test]
fn a_server_that_becomes_a_replica_frees_its_clients_and_a_replica_refuses_to_wait() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::from(&server, "orders mails");
    ok!(con, "REPLICAOF", "127.0.0.1", 1);
    assert!(matches!(waiter.raw.read(), Reply::Error(error) if error.starts_with("UNBLOCKED ")));
    let error = say(&mut con, WAIT);
    assert!(error.starts_with("READONLY "), "{error}");
}

#[test]
fn a_client_in_another_database_or_namespace_is_not_served() {
    let server = Server::start();
    let mut con = server.con();
    let mut other_database = Raw::connect(&server);
    other_database.call(&["SELECT", "1"]);
    let mut waiters = [
        Waiter::on(other_database, &server, WAIT),
        Waiter::sending(&server, "RMQ.RESERVE other 1000 BLOCK 0 FROM orders"),
        Waiter::sending(&server, "RMQ.RESERVE app:orders 1000 BLOCK 0 FROM orders"),
        Waiter::sending(&server, "RMQ.RESERVE \"\" 1000 BLOCK 0 FROM orders"),
        Waiter::from(&server, "mails"),
    ];
    order(&mut con, "a");
    delayed_order(&mut con, "b", 50);
    sleep_ms(1300);
    assert!(waiters.iter_mut().all(Waiter::is_waiting));
    assert_eq!(ids(&take_up_to(&mut con, 5)), ["a", "b"]);
}

#[test]
fn an_ack_before_a_wait_in_the_same_write_is_answered_at_once() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let mut raw = Raw::connect(&server);
    let mut bytes = command!("RMQ.ACK", "app", "a", &delivery.receipt).get_packed_command();
    let wait = HERE.words(WAIT);
    bytes.extend(resp::encode(&wait));
    raw.send_bytes(&bytes);
    assert_eq!(raw.read(), Reply::Int(1));
    order(&mut con, "b");
    assert_eq!(deliveries(value_of(raw.read()))[0].id, "b");
}

/// A process that stands still, and goes on when this is dropped.
struct Stopped(u32);

impl Stopped {
    fn now(server: &Server) -> Stopped {
        let stopped = Stopped(server.pid());
        stopped.signal(libc::SIGSTOP);
        stopped
    }

    fn signal(&self, signal: i32) {
        // SAFETY: sends a signal to a child of this process, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0 as i32, signal) }, 0);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
    }
}

/// The server takes WAIT's offset from the client's last command. That of a client that waits began before the delivery, and
/// the replica has all that was written before.
#[test]
fn wait_after_a_reserve_that_waited_covers_the_delivery() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    for round in 0..3 {
        for by_timer in [false, true] {
            let id = format!("{round}-{by_timer}");
            let mut waiter = Waiter::start(&server);
            if by_timer {
                // Only what the timer and the delivery write is not replicated.
                delayed_order(&mut con, &id, 1500);
            }
            // The primary must know that the replica has all of this, or WAIT would be right by chance.
            ok!(con, "SET", "written", &id);
            assert_eq!(ok!(con, "WAIT", 1, 10_000), Value::Int(1));
            let stopped = Stopped::now(&replica);
            if !by_timer {
                order(&mut con, &id);
            }
            assert_eq!(waiter.served_id(), id);
            assert_eq!(waiter.raw.call(&["WAIT", "1", "200"]), Reply::Int(0), "{id}: the replica stands still");
            drop(stopped);
            let most = (deadline().as_millis() / 2).to_string();
            assert_eq!(waiter.raw.call(&["WAIT", "1", &most]), Reply::Int(1), "{id}");
            let held: Option<f64> = ask!(replica.con(), "ZSCORE", "app:expires", &id);
            assert!(held.is_some(), "{id}: WAIT returned before the delivery was on the replica");
        }
    }
}

#[test]
fn a_list_that_is_none_while_a_client_waits_harms_nobody() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::from(&server, "orders mails");
    ok!(con, "SET", PENDING, "not a list");
    sleep_ms(1200);
    ok!(con, "DEL", PENDING);
    if waiter.is_waiting() {
        publish(&mut con, "app", "mails", "a");
        assert_eq!(waiter.served_id(), "a");
    } else {
        assert!(matches!(waiter.raw.read(), Reply::Error(error) if error.starts_with("WRONGTYPE ")));
    }
}

#[test]
fn plain_consumers_wait_beside_and_each_message_goes_to_one() {
    let server = Server::start();
    let mut con = server.con();
    let mut plain = Raw::connect(&server);
    plain.send(&["BLMOVE", PENDING, WORK, "RIGHT", "LEFT", "0"]);
    assert!(eventually(deadline(), || blocked_clients(&server) == 1));
    let mut waiter = Waiter::start(&server);
    delayed_order(&mut con, "a", 100);
    assert_eq!(plain.read(), Reply::bulk("a"));
    delayed_order(&mut con, "b", 100);
    assert_eq!(waiter.served_id(), "b");
}

#[test]
fn a_server_with_waiting_clients_and_timers_shuts_down() {
    let server = Server::start();
    let mut waiter = Waiter::start(&server);
    delayed_order(&mut server.con(), "a", 200);
    let mut raw = Raw::connect(&server);
    raw.send(&["SHUTDOWN", "NOSAVE"]);
    assert_eq!(waiter.raw.try_read_raw().unwrap(), None);
    assert!(eventually(deadline(), || !server.is_alive()));
    assert!(!server.log().contains("crashed"), "{}", server.log());
}

#[test]
fn many_workers_and_many_messages_of_many_kinds_meet_once_each() {
    const WORKERS: usize = 40;
    const MESSAGES: usize = 4000;
    let server = Server::start();
    let done = std::sync::Mutex::new(std::collections::BTreeMap::<String, usize>::new());
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (server, done) = (&server, &done);
            scope.spawn(move || {
                let mut con = server.con();
                let from = if worker % 2 == 0 { ["high", "low"] } else { ["low", "high"] };
                let mut rng = Rng::from_seed(worker as u64);
                loop {
                    let taken = deliveries(ok!(con, "RMQ.RESERVE", "app", 20_000, "BLOCK", 3000, "FROM", &from));
                    let Some(delivery) = taken.first() else { break };
                    match rng.below(10) {
                        0 => assert_eq!(nack(&mut con, delivery, "DELAY 20"), "RETRY"),
                        1 => assert_eq!(release(&mut con, delivery), 1),
                        2 => assert_eq!(extend(&mut con, delivery, 30), 1),
                        _ => {
                            assert_eq!(ack(&mut con, delivery), 1);
                            *done.lock().unwrap().entry(delivery.id.clone()).or_default() += 1;
                        }
                    }
                }
            });
        }
        let mut con = server.con();
        let mut rng = Rng::seeded();
        ok!(con, "RMQ.POLICY", "app", "*", "ATTEMPTS", 0);
        for n in 0..MESSAGES {
            let mut publish = command!("RMQ.PUBLISH", "app");
            if rng.chance(30) {
                publish.arg("DELAY").arg(rng.below(200));
            }
            publish.arg("TO").arg(["high", "low"][rng.below(2)]).arg(n).arg("p");
            send!(con, &publish).unwrap();
        }
    });
    let done = done.into_inner().unwrap();
    assert_eq!(done.len(), MESSAGES);
    assert!(done.values().all(|times| *times == 1));
    assert_eq!(Snapshot::of(&mut server.con()).keys(), [QUEUES]);
}
