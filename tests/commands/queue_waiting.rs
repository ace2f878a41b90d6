//! RMQ.RESERVE … BLOCK under hostile conditions: clients that go, keys that change their type, permission that is
//! withdrawn, a crowd; and what replicas, the AOF and listeners get of it.

use crate::common::messages::*;
use crate::common::resp::{encode, parse};
use crate::common::*;

use redis::Connection;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Only the payload, as a producer of another kind may store it.
fn store(con: &mut Connection, id: &str) {
    ok!(con, "HSET", MAP, id, format!("payload of {id}"), format!("{id}:queue"), QUEUE);
}

/// A waiter, and its client id.
fn waiter_with_id(server: &Server) -> (Waiter, i64) {
    let mut raw = Raw::connect(server);
    let Reply::Int(id) = raw.call(&["CLIENT", "ID"]) else { panic!("a client has an id") };
    raw.send(WAIT_FOR_EVER);
    assert!(eventually(deadline(), || blocked_clients(server) == 1));
    (Waiter { raw }, id)
}

#[test]
fn pushes_of_many_and_counts_serve_the_clients_in_the_order_of_their_arrival() {
    let server = Server::start();
    let mut con = server.con();
    let counts = ["1", "1", "3", "3", "1"];
    let wait =
        |count| Waiter::sending(&server, &["RMQ.RESERVE", NS, "1000", "COUNT", count, "BLOCK", "0", "FROM", "orders"]);
    let mut waiters: Vec<Waiter> = counts.into_iter().map(wait).collect();
    ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", &["0", "", "1", "", "2", "", "3", ""]);
    let served = |waiter: &mut Waiter| -> String { waiter.served().into_iter().map(|delivery| delivery.id).collect() };
    let ids: Vec<String> = waiters[..3].iter_mut().map(served).collect();
    assert_eq!(ids, ["0", "1", "23"]);
    assert!(waiters[3..].iter_mut().all(Waiter::is_waiting));
    ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", &["4", "", "5", "", "6", "", "7", "", "8", ""]);
    let ids: Vec<String> = waiters[3..].iter_mut().map(served).collect();
    assert_eq!(ids, ["456", "7"]);
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["8"]);
}

type Fill<'a> = Box<dyn Fn(&mut Connection) + 'a>;

/// Ways to fill the list that only the server's own commands know; `other` holds `a`.
const FILLINGS: &[&[&str]] = &[
    &["RPUSH", PENDING, "a"],
    &["LMOVE", "other", PENDING, "LEFT", "LEFT"],
    &["RPOPLPUSH", "other", PENDING],
    &["COPY", "other", PENDING],
    &["SORT", "other", "ALPHA", "STORE", PENDING],
    &["EVAL", "return redis.call('LPUSH', KEYS[1], 'a')", "1", PENDING],
    &["FCALL", "fill", "1", PENDING],
];

#[test]
fn whatever_fills_pending_serves_a_client_that_waits() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let code = "redis.register_function('fill', function(keys) return redis.call('LPUSH', keys[1], 'a') end)";
    ok!(con, "FUNCTION", "LOAD", format!("#!lua name=lib\n{code}"));
    let by_words = |words: &'static &[&str]| -> Fill { Box::new(|con| drop(call(con, words).unwrap())) };
    let mut fillings: Vec<Fill> = FILLINGS.iter().map(by_words).collect();
    fillings.push(Box::new(|con| {
        let dump = bulk(ok!(con, "DUMP", "other"));
        ok!(con, "RESTORE", PENDING, 0, dump);
    }));
    fillings.push(Box::new(|con| {
        ok!(con, "SELECT", 1);
        ok!(con, "LPUSH", PENDING, "a");
        ok!(con, "MOVE", PENDING, 0);
        ok!(con, "SELECT", 0);
    }));
    fillings.push(Box::new(|con| {
        let args = ("a", "payload of a", QUEUE, "9000000000000", "0");
        peer.call(con, "produce_normal_message", &[MAP, PENDING, DUE], args).unwrap();
    }));
    fillings.push(Box::new(|con| {
        peer.call(con, "produce_delay_message", &[MAP, DELAYS, ""], ("a", "payload of a", QUEUE, "0")).unwrap();
        peer.call(con, "process_delay_message", &[DELAYS, MAP], (1,)).unwrap();
    }));
    // Another client that waited itself.
    fillings.push(Box::new(|con| {
        ok!(con, "DEL", "other");
        let mut mover = Raw::connect(&server);
        mover.send(&["BLMOVE", "other", PENDING, "LEFT", "LEFT", "0"]);
        assert!(eventually(deadline(), || blocked_clients(&server) == 2));
        ok!(con, "LPUSH", "other", "a");
        assert_eq!(mover.read(), Reply::bulk("a"));
    }));
    for (number, fill) in fillings.iter().enumerate() {
        ok!(con, "FLUSHALL");
        let mut waiter = Waiter::start(&server);
        store(&mut con, "a");
        ok!(con, "LPUSH", "other", "a");
        fill(&mut con);
        assert_eq!(waiter.served_id(), "a", "{number}");
        assert_eq!(Snapshot::of(&mut con).list(WORK), ["a"], "{number}");
    }
}

#[test]
fn a_client_that_is_freed_or_killed_in_the_transaction_that_pushes_takes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    for (end, freed) in [(&["UNBLOCK"][..], true), (&["KILL", "ID"], false)] {
        for push_first in [false, true] {
            ok!(con, "FLUSHALL");
            let (mut waiter, id) = waiter_with_id(&server);
            ok!(con, "MULTI");
            if push_first {
                ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", "a", "");
            }
            ok!(con, "CLIENT", end, id);
            if !push_first {
                ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", "a", "");
            }
            ok!(con, "EXEC");
            match freed {
                true => assert_eq!(waiter.raw.read(), Reply::NilArray),
                false => assert_eq!(waiter.raw.try_read_raw().unwrap(), None),
            }
            let after = Snapshot::of(&mut con);
            assert_eq!((after.list(PENDING), after.list(WORK)), (vec!["a".to_string()], vec![]));
            assert_eq!(reserve(&mut con).attempts, 1);
        }
    }
}

#[test]
fn a_key_that_is_deleted_again_in_the_same_transaction_leaves_the_client_waiting_for_the_next_push() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    store(&mut con, "a");
    for deletion in [&["DEL", PENDING][..], &["UNLINK", PENDING], &["RPOP", PENDING]] {
        ok!(con, "MULTI");
        ok!(con, "LPUSH", PENDING, "a");
        call(&mut con, deletion).unwrap();
        ok!(con, "EXEC");
        assert!(waiter.is_waiting(), "{deletion:?}");
    }
    publish(&mut con, "b");
    assert_eq!(waiter.served_id(), "b");
}

#[test]
fn a_wrong_type_at_wake_up_is_the_reply_and_loses_nothing() {
    let server = Server::start();
    let mut con = server.con();
    for key in [WORK, MAP, DUE, DELAYS, QUEUES] {
        ok!(con, "FLUSHALL");
        let mut waiter = Waiter::start(&server);
        ok!(con, "SET", key, "x");
        let before = Snapshot::of(&mut con);
        ok!(con, "LPUSH", PENDING, "a");
        let reply = waiter.raw.read();
        assert!(matches!(&reply, Reply::Error(error) if error.starts_with("WRONGTYPE ")), "{key}: {reply:?}");
        ok!(con, "RPOP", PENDING);
        before.assert_unchanged(&mut con);
    }
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
fn a_client_that_lost_its_permission_while_it_waited_gets_an_error_and_the_message_goes_to_the_next() {
    let server = Server::start();
    let mut con = server.con();
    let wait_as_bob = |con: &mut Connection| {
        ok!(con, "FLUSHALL");
        ok!(con, "ACL", "SETUSER", "bob", "reset", "on", ">pw", "+@all", "~*");
        let mut raw = Raw::connect(&server);
        assert_eq!(raw.call(&["AUTH", "bob", "pw"]), Reply::Simple("OK".into()));
        raw.send(WAIT_FOR_EVER);
        assert!(eventually(deadline(), || blocked_clients(&server) == 1));
        raw
    };
    for rule in ["resetkeys", "-@all", "-rmq.reserve", "resetkeys %R~*", "resetkeys %W~*"] {
        let mut bob = wait_as_bob(&mut con);
        let mut next = Waiter::start(&server);
        ok!(con, "ACL", "SETUSER", "bob", rule.split(' ').collect::<Vec<_>>());
        ok!(con, "ACL", "LOG", "RESET");
        publish(&mut con, "a");
        let reply = bob.read();
        assert!(matches!(&reply, Reply::Error(error) if error.starts_with("NOPERM ")), "{rule}: {reply:?}");
        assert_eq!(next.served_id(), "a");
        assert_eq!(items(ok!(con, "ACL", "LOG")).len(), 1, "{rule}");
    }
    // With just what it needs it is served.
    let mut bob = wait_as_bob(&mut con);
    let needed = [PENDING, WORK, MAP, DUE, DELAYS].map(|key| format!("~{key}"));
    ok!(con, "ACL", "SETUSER", "bob", "resetkeys", &needed, format!("%R~{QUEUES}"));
    publish(&mut con, "b");
    assert_eq!(deliveries(value_of(bob.read()))[0].id, "b");
}

#[test]
fn the_effects_of_serving_several_clients_are_replicated_once_after_what_woke_them() {
    let server = Server::start();
    let mut con = server.con();
    store(&mut con, "a");
    store(&mut con, "b");
    ok!(con, "HSET", QUEUES, "orders", "{}");
    let mut first = Waiter::start(&server);
    let mut second = Waiter::start(&server);
    let tap = ReplicaTap::attach(&server);
    ok!(con, "LPUSH", PENDING, "a", "b");
    let (one, two) = (first.served().remove(0), second.served().remove(0));
    let deadlines = Snapshot::of(&mut con).zset(DUE);
    let effects = |delivery: &Delivery| {
        let Delivery { id, receipt, .. } = delivery;
        [
            format!("RPOPLPUSH {PENDING} {WORK}"),
            format!("HSET {MAP} {id}:attempts {receipt}"),
            format!("ZADD {DUE} {} {id}", deadlines[id]),
        ]
    };
    // Servers differ in how they group effects into transactions.
    let received: Vec<String> = tap.lines_until_marker(&mut con);
    let opened = received.iter().filter(|line| *line == "MULTI").count();
    assert!(opened >= 1 && opened == received.iter().filter(|line| *line == "EXEC").count());
    let commands: Vec<String> = received.into_iter().filter(|line| line != "MULTI" && line != "EXEC").collect();
    let mut expected = vec![format!("LPUSH {PENDING} a b")];
    expected.extend(effects(&one));
    expected.extend(effects(&two));
    assert_eq!(commands, expected);
}

#[test]
fn what_waiting_clients_and_their_timers_did_reaches_a_replica_without_the_module_and_the_aof() {
    let server = Server::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", "held", "");
    deliveries(ok!(con, "RMQ.RESERVE", NS, 300, "FROM", "orders"));
    let wait =
        |count| Waiter::sending(&server, &["RMQ.RESERVE", NS, "60000", "COUNT", count, "BLOCK", "0", "FROM", "orders"]);
    let mut waiters: Vec<Waiter> = ["1", "2", "1", "2", "1", "2", "1"].into_iter().map(wait).collect();
    ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", &["a", "1", "b", "2", "c", "3"]);
    store(&mut con, "d");
    ok!(con, "RPUSH", PENDING, "d");
    ok!(con, "RMQ.PUBLISH", NS, "DELAY", 100, "TO", "orders", "e", "");
    ok!(con, "MULTI");
    ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", "f", "");
    ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", &["g", "", "h", ""]);
    ok!(con, "EXEC");
    let mut served: Vec<String> = waiters.iter_mut().flat_map(Waiter::served).map(|delivery| delivery.id).collect();
    served.sort();
    assert_eq!(served, ["a", "b", "c", "d", "e", "f", "g", "h", "held"]);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
    let before = Snapshot::of(&mut con);
    server.restart();
    before.assert_unchanged(&mut server.con());
}

#[test]
fn a_client_that_waits_fires_no_event_breaks_no_watch_and_sends_nothing_until_it_is_served() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    let mut events = Events::subscribe(&server);
    let tap = ReplicaTap::attach(&server);
    let keys = [PENDING, WORK, MAP, DUE, DELAYS, QUEUES];
    let watcher = Watcher::on(&server, &keys);
    // Longer than the timer's second.
    let reply = ok!(con, "RMQ.RESERVE", NS, 1000, "BLOCK", 1200, "FROM", "orders");
    assert_eq!(reply, redis::Value::Nil);
    assert!(watcher.untouched());
    // Each receives the marker of the other: the tap comes first.
    assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
    assert_eq!(events.lines_until_marker(&mut con), [""; 0]);
    let watchers = [WORK, DUE].map(|key| Watcher::on(&server, &[key]));
    publish(&mut con, "a");
    assert_eq!(waiter.served_id(), "a");
    assert!(watchers.into_iter().all(Watcher::touched));
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
        Consumer { socket, buffer: Vec::new() }
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
                    let mut next = encode(&["RMQ.ACK", NS, &delivery.id, &delivery.receipt]);
                    next.extend(encode(WAIT_FOR_EVER));
                    self.socket.write_all(&next).unwrap();
                    let number: usize = delivery.id.parse().unwrap();
                    tally.times[number].fetch_add(1, Ordering::Relaxed);
                    tally.redelivered.fetch_add(usize::from(delivery.attempts != 1), Ordering::Relaxed);
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
        .map(|consumer| libc::pollfd { fd: consumer.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 })
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
                ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", words);
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
            for chunk in ids.chunks(1000) {
                let words: Vec<&str> = chunk.iter().flat_map(|id| [id.as_str(), "payload"]).collect();
                ok!(con, "RMQ.PUBLISH", NS, "DELAY", 5, "TO", "orders", words);
            }
        }
        _ => {
            let mut pipe = redis::pipe();
            for id in &ids {
                pipe.add_command(command!("RMQ.PUBLISH", NS, "TO", "orders", id, "payload")).ignore();
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
        // The consumers end when this does, on a panic too.
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
            // No further push comes before all are delivered: a message for which no client is woken stays.
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
    assert_eq!(Snapshot::of(&mut con).keys(), [QUEUES]);
}
