//! Lua workers and these commands on the same keys: each step of a message may be done by either, in every
//! mixture.

use crate::common::messages::*;
use crate::common::*;

use redis::Connection;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Later than any deadline: 'now' for those who look for timed-out messages.
const FAR: &str = "9000000000000";

#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Script,
    Command,
}
use By::{Command, Script};

const EITHER: [By; 2] = [Script, Command];

#[derive(Clone, Copy, Debug)]
enum Produce {
    Now(By),
    Urgent(By),
    /// Delayed by nothing, and ticked into pending.
    Delayed(By, By),
}

#[derive(Clone, Copy, Debug)]
enum Complete {
    Script,
    Command,
    Ack,
}
const COMPLETES: [Complete; 3] = [Complete::Script, Complete::Command, Complete::Ack];

/// What happens to a message between its first delivery and its last.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    /// The worker gives it back.
    Retry(Again, By),
    /// The worker dies; the reaper finds the message and retries it.
    Timeout(Find, By, By),
    /// The worker gives it up; it is redriven.
    Dead(Bury),
}

#[derive(Clone, Copy, Debug)]
enum Again {
    Script,
    Command,
    Nack,
    NackWithPayload,
}

#[derive(Clone, Copy, Debug)]
enum Find {
    Script,
    Command,
    All,
    Claim,
}

#[derive(Clone, Copy, Debug)]
enum Bury {
    Script,
    Command,
    Nack,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    produce: Produce,
    take: By,
    trouble: Trouble,
    /// Ignored where there was no trouble.
    take_again: By,
    complete: Complete,
}

fn all_lives() -> Vec<Life> {
    let mut produces = Vec::new();
    for by in EITHER {
        produces.extend([Produce::Now(by), Produce::Urgent(by)]);
        produces.extend(EITHER.map(|tick| Produce::Delayed(by, tick)));
    }
    let mut troubles = Vec::new();
    for tick in EITHER {
        for again in [Again::Script, Again::Command, Again::Nack, Again::NackWithPayload] {
            troubles.push(Trouble::Retry(again, tick));
        }
        for find in [Find::Script, Find::Command, Find::All, Find::Claim] {
            troubles.extend(EITHER.map(|retry| Trouble::Timeout(find, retry, tick)));
        }
    }
    troubles.extend([Bury::Script, Bury::Command, Bury::Nack].map(Trouble::Dead));

    let mut lives = Vec::new();
    for &produce in &produces {
        for take in EITHER {
            for complete in COMPLETES {
                let trouble = Trouble::None;
                lives.push(Life { produce, take, trouble, take_again: take, complete });
                for &trouble in &troubles {
                    let life = |take_again| Life { produce, take, trouble, take_again, complete };
                    lives.extend(EITHER.map(life));
                }
            }
        }
    }
    // Only who took a message by RESERVE has a receipt.
    lives.retain(|life| {
        let by_receipt =
            matches!(life.trouble, Trouble::Retry(Again::Nack | Again::NackWithPayload, _) | Trouble::Dead(Bury::Nack));
        (life.take == Command || !by_receipt) && (life.take_again == Command || !matches!(life.complete, Complete::Ack))
    });
    lives
}

/// One message, and what must be true of it.
struct Message<'a> {
    con: &'a mut Connection,
    peer: &'a Peer,
    id: &'a str,
    payload: String,
    /// Deliveries by RESERVE since the message began, or began afresh.
    reserved: i64,
    receipt: String,
}

impl Message<'_> {
    fn script(&mut self, name: &str, keys: &[&str], args: &[&str]) -> redis::Value {
        self.peer.call(self.con, name, keys, args).unwrap()
    }

    fn produce(&mut self, produce: Produce) {
        let (id, payload) = (self.id, self.payload.clone());
        let normal = [MAP, PENDING, DUE];
        match produce {
            Produce::Now(Script) => {
                self.script("produce_normal_message", &normal, &[id, &payload, QUEUE, FAR, "0"]);
            }
            Produce::Urgent(Script) => {
                self.script("produce_normal_message", &normal, &[id, &payload, QUEUE, FAR, "1"]);
            }
            Produce::Now(Command) => {
                ok!(self.con, "RMQ.PUBLISH", NS, "TO", "orders", id, payload);
            }
            Produce::Urgent(Command) => {
                ok!(self.con, "RMQ.PUBLISH", NS, "URGENT", "TO", "orders", id, payload);
            }
            Produce::Delayed(by, tick) => {
                match by {
                    Script => {
                        self.script("produce_delay_message", &[MAP, DELAYS, ""], &[id, &payload, QUEUE, "0"]);
                    }
                    Command => {
                        ok!(self.con, "RMQ.PUBLISH", NS, "DELAY", 0, "TO", "orders", id, payload);
                    }
                }
                self.tick(tick);
            }
        }
    }

    fn tick(&mut self, by: By) {
        let next = match by {
            Script => self.script("get_next_delay_task", &[DELAYS], &[]),
            Command => ok!(self.con, "RMQ.NEXTDELAY", DELAYS),
        };
        assert_eq!(text(items(next).remove(0)), "EXPIRED");
        let moved = match by {
            Script => self.script("process_delay_message", &[DELAYS, MAP], &["10"]),
            Command => ok!(self.con, "RMQ.DELAYTICK", DELAYS, MAP, 10),
        };
        assert_eq!(text_rows(moved), [[self.id, QUEUE]]);
    }

    /// By RESERVE, or as the peer's consumer does it.
    fn take(&mut self, by: By) {
        match by {
            Command => {
                let delivery = reserve(self.con);
                self.reserved += 1;
                assert_eq!((delivery.id.as_str(), delivery.attempts), (self.id, self.reserved));
                assert_eq!(delivery.payload, self.payload);
                self.receipt = delivery.receipt;
            }
            Script => {
                let id = text(ok!(self.con, "LMOVE", PENDING, WORK, "RIGHT", "LEFT"));
                assert_eq!(id, self.id);
                assert_eq!(text(ok!(self.con, "HGET", MAP, &id)), self.payload);
                let until = server_time_ms(self.con) + HOUR;
                ok!(self.con, "ZADD", DUE, until, id);
            }
        }
        let now = Snapshot::of(self.con);
        assert_eq!(now.list(WORK), [self.id]);
        assert_eq!(now.list(PENDING), [""; 0]);
        assert_eq!(now.zset(DUE).len(), 1);
    }

    fn complete(&mut self, how: Complete) {
        let id = self.id;
        match how {
            Complete::Script => {
                self.script("complete_message", &[MAP, WORK, DUE], &[id]);
            }
            Complete::Command => {
                ok!(self.con, "RMQ.COMPLETE", MAP, WORK, DUE, id);
            }
            Complete::Ack => {
                let acked = ok!(self.con, "RMQ.ACK", NS, id, &self.receipt);
                assert_eq!(acked, redis::Value::Int(1));
            }
        }
    }

    fn retry(&mut self, how: Again) {
        let (id, receipt) = (self.id, self.receipt.clone());
        if !matches!(how, Again::Nack) {
            self.payload += "+retry";
        }
        let payload = self.payload.clone();
        let keys = [MAP, DELAYS, DUE, WORK];
        match how {
            Again::Script => {
                self.script("retry_message", &keys, &[id, &payload, "0", "orders"]);
            }
            Again::Command => {
                ok!(self.con, "RMQ.RETRY", &keys, id, payload, 0, "orders");
            }
            Again::Nack => assert_eq!(text(ok!(self.con, "RMQ.NACK", NS, id, receipt, "DELAY", 0)), "RETRY"),
            Again::NackWithPayload => {
                let reply = ok!(self.con, "RMQ.NACK", NS, id, receipt, "DELAY", 0, "PAYLOAD", payload);
                assert_eq!(text(reply), "RETRY");
            }
        }
        assert_eq!(keys_but_queues(self.con), [DELAYS, MAP]);
    }

    fn find_timed_out(&mut self, how: Find) {
        let found = match how {
            Find::Script => self.script("handle_timeout_message", &[DUE, MAP], &[FAR, "10"]),
            Find::Command => ok!(self.con, "RMQ.TIMEOUTS", DUE, MAP, FAR, 10),
            Find::All => ok!(self.con, "RMQ.TIMEOUTS", DUE, MAP, FAR, 10, "ALL"),
            Find::Claim => ok!(self.con, "RMQ.TIMEOUTS", DUE, MAP, FAR, 10, "CLAIM", HOUR),
        };
        assert_eq!(text_rows(found), [[self.id, &self.payload, QUEUE]]);
    }

    fn bury_and_redrive(&mut self, how: Bury) {
        self.payload += "+dead";
        let (id, payload, receipt) = (self.id, self.payload.clone(), self.receipt.clone());
        let keys = [DLQ_MAP, DLQ, DUE, MAP, WORK];
        match how {
            Bury::Script => {
                self.script("move_to_dlq", &keys, &[id, &payload, "orders"]);
            }
            Bury::Command => {
                ok!(self.con, "RMQ.DEADLETTER", &keys, id, payload, "orders");
            }
            Bury::Nack => {
                let reply = ok!(self.con, "RMQ.NACK", NS, id, receipt, "DEAD", "PAYLOAD", payload);
                assert_eq!(text(reply), "DEAD");
            }
        }
        let now = Snapshot::of(self.con);
        assert_eq!(now.list(DLQ), [id]);
        assert_eq!(now.hash(DLQ_MAP)[&format!("{id}:queue")], QUEUE);
        let moved = ok!(self.con, "RMQ.REDRIVE", NS, "COUNT", 10);
        assert_eq!(text_rows(moved), [[id, "orders"]]);
        self.reserved = 0;
    }
}

/// Takes a message from publishing to settlement. Only the count of attempts may be left, if a script settled the
/// message.
fn live(con: &mut Connection, peer: &Peer, id: &str, life: Life) {
    let mut message =
        Message { con, peer, id, payload: format!("payload of {id}"), reserved: 0, receipt: String::new() };
    message.produce(life.produce);
    message.take(life.take);
    match life.trouble {
        Trouble::None => {}
        Trouble::Retry(again, tick) => {
            message.retry(again);
            message.tick(tick);
        }
        Trouble::Timeout(find, retry, tick) => {
            message.find_timed_out(find);
            message.retry(if retry == Script { Again::Script } else { Again::Command });
            message.tick(tick);
        }
        Trouble::Dead(bury) => message.bury_and_redrive(bury),
    }
    if !matches!(life.trouble, Trouble::None) {
        message.take(life.take_again);
    }
    message.complete(life.complete);

    let reserved = message.reserved;
    if reserved > 0 && matches!(life.complete, Complete::Script) {
        let left = Snapshot::of(con).hash(MAP);
        assert_eq!(left.len(), 1);
        assert!(left[&format!("{id}:attempts")].starts_with(&format!("{reserved}-")), "{left:?}");
        ok!(con, "DEL", MAP);
    }
    assert_eq!(keys_but_queues(con), [""; 0]);
}

/// The list of the queues stays.
fn keys_but_queues(con: &mut Connection) -> Vec<String> {
    Snapshot::of(con).keys().into_iter().filter(|key| key != QUEUES).collect()
}

#[test]
fn a_message_lives_its_whole_life_in_every_mixture_of_scripts_and_commands_and_leaves_nothing_else() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let lives = all_lives();
    assert!(lives.len() > 1800, "{}", lives.len());
    for (number, life) in lives.into_iter().enumerate() {
        let id = format!("m{number}");
        let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| live(&mut con, &peer, &id, life)));
        assert!(lived.is_ok(), "this life went wrong: {life:?}");
    }
}

#[test]
fn every_mixture_ends_the_same_on_a_replica_without_the_module() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let replica = Replica::of(&server);
    let mut lives = all_lives();
    let mut rng = Rng::seeded();
    rng.shuffle(&mut lives);
    for (number, life) in lives.into_iter().take(300).enumerate() {
        live(&mut con, &peer, &format!("m{number}"), life);
        if number % 50 == 49 {
            replica.wait_synced();
            assert_eq!(replica.digest(), server.digest());
        }
    }
}

#[test]
fn attempts_that_a_script_left_do_not_count_for_a_message_that_a_command_brings_under_the_same_id() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let leave_attempts = |con: &mut Connection| {
        take_new(con, "a");
        peer.call(con, "complete_message", &[MAP, WORK, DUE], ("a",)).unwrap();
        assert_eq!(Snapshot::of(con).hash(MAP).into_keys().collect::<Vec<_>>(), ["a:attempts"]);
    };
    leave_attempts(&mut con);
    assert_eq!(take_new(&mut con, "a").attempts, 1);
    ok!(con, "FLUSHALL");
    leave_attempts(&mut con);
    ok!(con, "RMQ.PUBLISH", NS, "DELAY", 0, "TO", "orders", "a", "");
    assert_eq!(reserve(&mut con).attempts, 1);
    ok!(con, "FLUSHALL");
    leave_attempts(&mut con);
    ok!(con, "HSET", DLQ_MAP, "a", "", "a:queue", QUEUE);
    ok!(con, "LPUSH", DLQ, "a");
    ok!(con, "RMQ.REDRIVE", NS, "COUNT", 1);
    assert_eq!(reserve(&mut con).attempts, 1);
}

#[test]
fn a_message_that_the_peer_published_and_nobody_took_is_not_reported_as_timed_out() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let args = ("a", "payload", QUEUE, "1000", "0");
    peer.call(&mut con, "produce_normal_message", &[MAP, PENDING, DUE], args).unwrap();
    let found = ok!(con, "RMQ.TIMEOUTS", DUE, MAP, "*", 10);
    assert_eq!(items(found), []);
    let delivery = reserve(&mut con);
    assert_eq!((delivery.id.as_str(), delivery.attempts), ("a", 1));
    assert_eq!(ack(&mut con, &delivery), 1);
    assert_eq!(keys_but_queues(&mut con), [""; 0]);
}

#[test]
fn producers_workers_and_tickers_of_both_kinds_run_at_once_and_every_message_is_completed_once() {
    const MESSAGES: usize = 4000;
    let server = Server::start();
    let peer = Peer::load(&mut server.con());
    let completed = AtomicUsize::new(0);
    let produced = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    let times: Vec<AtomicUsize> = (0..MESSAGES).map(|_| AtomicUsize::new(0)).collect();
    let mut seed = Rng::seeded();

    /// When a thread ends, on a panic too, the others end.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    std::thread::scope(|scope| {
        let _done = Done(&done);
        let (server, peer, completed, produced, done, times) = (&server, &peer, &completed, &produced, &done, &times);
        for by in EITHER {
            let mut rng = seed.fork();
            scope.spawn(move || {
                let mut con = server.con();
                while !done.load(Ordering::Relaxed) {
                    let number = produced.fetch_add(1, Ordering::Relaxed);
                    if number >= MESSAGES {
                        break;
                    }
                    let id = number.to_string();
                    match (by, rng.chance(30)) {
                        (Script, false) => {
                            let args = (&id, "payload", QUEUE, FAR, "0");
                            peer.call(&mut con, "produce_normal_message", &[MAP, PENDING, DUE], args).unwrap();
                        }
                        (Script, true) => {
                            let args = (&id, "payload", QUEUE, "0");
                            peer.call(&mut con, "produce_delay_message", &[MAP, DELAYS, ""], args).unwrap();
                        }
                        (Command, false) => {
                            ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", id, "payload");
                        }
                        (Command, true) => {
                            ok!(con, "RMQ.PUBLISH", NS, "DELAY", 0, "TO", "orders", id, "payload");
                        }
                    }
                }
            });
            scope.spawn(move || {
                let mut con = server.con();
                while !done.load(Ordering::Relaxed) {
                    match by {
                        Script => peer.call(&mut con, "process_delay_message", &[DELAYS, MAP], (7,)).unwrap(),
                        Command => ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 7),
                    };
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
        }
        for take in [Script, Command, Script, Command] {
            let mut rng = seed.fork();
            scope.spawn(move || {
                let mut con = server.con();
                while !done.load(Ordering::Relaxed) {
                    let (id, receipt) = match take {
                        Command => {
                            let reply = ok!(con, "RMQ.RESERVE", NS, HOUR, "BLOCK", 20, "FROM", "orders");
                            let Some(delivery) = deliveries(reply).pop() else {
                                continue;
                            };
                            (delivery.id, Some(delivery.receipt))
                        }
                        Script => {
                            let reply = ok!(con, "BLMOVE", PENDING, WORK, "RIGHT", "LEFT", "0.02");
                            if reply == redis::Value::Nil {
                                continue;
                            }
                            let id = text(reply);
                            ok!(con, "ZADD", DUE, server_time_ms(&mut con) + HOUR, &id);
                            (id, None)
                        }
                    };
                    let number: usize = id.parse().unwrap();
                    match (rng.below(6), receipt) {
                        (0, _) => {
                            let keys = [MAP, DELAYS, DUE, WORK];
                            peer.call(&mut con, "retry_message", &keys, (&id, "again", "0", "")).unwrap();
                            continue;
                        }
                        (1, Some(receipt)) => {
                            assert_eq!(text(ok!(con, "RMQ.NACK", NS, &id, receipt, "DELAY", 0)), "RETRY");
                            continue;
                        }
                        (4 | 5, Some(receipt)) => {
                            assert_eq!(ok!(con, "RMQ.ACK", NS, &id, receipt), redis::Value::Int(1));
                        }
                        (1..=3, _) => {
                            peer.call(&mut con, "complete_message", &[MAP, WORK, DUE], (&id,)).unwrap();
                        }
                        _ => {
                            ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, &id);
                        }
                    }
                    times[number].fetch_add(1, Ordering::Relaxed);
                    completed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let all = || completed.load(Ordering::Relaxed) >= MESSAGES;
        let finished = eventually(deadline() * 2, all);
        assert!(finished, "{} of {MESSAGES} were completed", completed.load(Ordering::Relaxed));
    });

    let wrong = times.iter().filter(|times| times.load(Ordering::Relaxed) != 1).count();
    assert_eq!((wrong, completed.load(Ordering::Relaxed)), (0, MESSAGES));
    let left = Snapshot::of(&mut server.con());
    assert!(left.keys().iter().all(|key| key == MAP || key == QUEUES), "{:?}", left.keys());
    assert!(left.hash(MAP).keys().all(|field| field.ends_with(":attempts")));
}

#[test]
fn a_message_that_scripts_completed_and_produced_again_starts_afresh() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    for life in 0..3 {
        let produced = peer.call(
            &mut con,
            "produce_normal_message",
            &[MAP, PENDING, DUE],
            &["again", "payload", QUEUE, FAR, "0"][..],
        );
        produced.unwrap();
        let delivery = reserve(&mut con);
        assert_eq!((delivery.id.as_str(), delivery.attempts), ("again", 1), "life {life}");
        // The script does not know the count, and leaves it.
        peer.call(&mut con, "complete_message", &[MAP, WORK, DUE], &["again"][..]).unwrap();
        let left: Vec<String> = ask!(con, "HKEYS", MAP);
        assert_eq!(left, ["again:attempts"]);
    }
}

#[test]
fn a_message_that_is_put_back_into_pending_by_hand_counts_on() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    for attempts in 1..=4 {
        assert_eq!(reserve(&mut con).attempts, attempts);
        ok!(con, "LMOVE", WORK, PENDING, "RIGHT", "LEFT");
    }
}
