//! The peer's Lua scripts and the twins on the keys of a namespace: each step of a message may be done by any of them.

use crate::calls::*;
use crate::common::*;
use redis::{Connection, Value};
use std::time::Instant;

fn produce(peer: &Peer, con: &mut Connection, id: &str, deadline: i64) {
    let args = (id, "by a script", "app:orders", deadline, "0");
    peer.call(con, "produce_normal_message", &[PAYLOADS, PENDING, EXPIRES], args).unwrap();
}

#[test]
fn a_message_that_a_script_produced_is_delivered_and_settled_like_any_other() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let later = server_time_ms(&mut con) + HOUR;
    produce(&peer, &mut con, "a", later);
    let delivery = take(&mut con);
    assert_eq!((delivery.payload.as_str(), delivery.attempts), ("by a script", 1));
    assert!(score(&mut con, EXPIRES, "a").unwrap().fract() != 0.0);
    assert_eq!(nack(&mut con, &delivery, "DELAY 0"), "RETRY");
    let delivery = take(&mut con);
    assert_eq!((delivery.attempts, ack(&mut con, &delivery)), (2, 1));

    // Its deadline passes while it is pending: that only goes, and the message is delivered once.
    produce(&peer, &mut con, "b", 1000);
    tick(&mut con);
    assert_eq!((score(&mut con, EXPIRES, "b"), list(&mut con, PENDING)), (None, vec!["b".to_string()]));
    assert_eq!(ids(&take_up_to(&mut con, 5)), ["b"]);
}

#[test]
fn a_message_that_a_script_produced_anew_starts_at_0() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let later = server_time_ms(&mut con) + HOUR;
    produce(&peer, &mut con, "a", later);
    ok!(con, "HSET", PAYLOADS, "a:attempts", "6-1700000000000000 boom");
    let delivery = take(&mut con);
    assert_eq!(delivery.attempts, 1);
    // Produced again while it is held: the holder's receipt ends, and the copy is the message.
    produce(&peer, &mut con, "a", later);
    assert_eq!(ack(&mut con, &delivery), 0);
    let again = take(&mut con);
    assert_eq!((again.attempts, ack(&mut con, &delivery), ack(&mut con, &again)), (1, 0, 1));
}

#[test]
fn the_receipt_of_a_message_that_a_script_produced_anew_is_later_than_the_stored_time() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let later = server_time_ms(&mut con) + HOUR;
    let ahead = later * 1000;
    produce(&peer, &mut con, "a", later);
    ok!(con, "HSET", PAYLOADS, "a:attempts", format!("6-{ahead}"));
    let delivery = take(&mut con);
    assert!(delivery.micros() > ahead, "{delivery:?} is not later than {ahead}");
}

/// Ways in which another takes a held message over or finishes it, on the keys of `app`.
type Takeover = (&'static str, fn(&Peer, &mut Connection));
const TAKEOVERS: &[Takeover] = &[
    ("CLAIM", |_, con| {
        let far = server_time_ms(con) + 2 * HOUR;
        let claimed = text_rows(ok!(con, "RMQ.TIMEOUTS", EXPIRES, PAYLOADS, far, 10, "CLAIM", HOUR));
        assert_eq!(claimed[0][0], "a");
        assert!(score(con, EXPIRES, "a").unwrap().fract() == 0.0);
    }),
    ("TIMEOUTS and RETRY", |_, con| {
        let far = server_time_ms(con) + 2 * HOUR;
        ok!(con, "RMQ.TIMEOUTS", EXPIRES, PAYLOADS, far, 10);
        ok!(con, "RMQ.RETRY", PAYLOADS, DELAYS, EXPIRES, WORK, "a", "new", 3600);
    }),
    ("TIMEOUTS", |_, con| {
        let far = server_time_ms(con) + 2 * HOUR;
        ok!(con, "RMQ.TIMEOUTS", EXPIRES, PAYLOADS, far, 10);
    }),
    ("the script of TIMEOUTS", |peer, con| {
        let far = server_time_ms(con) + 2 * HOUR;
        peer.call(con, "handle_timeout_message", &[EXPIRES, PAYLOADS], (far, 10)).unwrap();
    }),
    ("COMPLETE", |_, con| drop(ok!(con, "RMQ.COMPLETE", PAYLOADS, WORK, EXPIRES, "a"))),
    ("the script of COMPLETE", |peer, con| {
        peer.call(con, "complete_message", &[PAYLOADS, WORK, EXPIRES], "a").unwrap();
    }),
    ("the script of RETRY", |peer, con| {
        peer.call(con, "retry_message", &[PAYLOADS, DELAYS, EXPIRES, WORK], ("a", "new", 3600, "orders")).unwrap();
    }),
    ("DEADLETTER", |_, con| {
        ok!(con, "RMQ.DEADLETTER", DLQ_DATA, DLQ, EXPIRES, PAYLOADS, WORK, "a", "last");
    }),
    ("the script of DEADLETTER", |peer, con| {
        let keys = [DLQ_DATA, DLQ, EXPIRES, PAYLOADS, WORK];
        peer.call(con, "move_to_dlq", &keys, ("a", "last", "orders")).unwrap();
    }),
    ("PARSEERR", |_, con| {
        let keys = ["app:errors:data", "app:errors", WORK, EXPIRES, PAYLOADS];
        ok!(con, "RMQ.PARSEERR", &keys, "a", "p", "orders", "boom", 1);
    }),
];

#[test]
fn whoever_takes_a_message_over_ends_its_receipt() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    for (about, take_over) in TAKEOVERS {
        ok!(con, "FLUSHALL");
        let delivery = take_new(&mut con, "a");
        take_over(&peer, &mut con);
        let before = Snapshot::of(&mut con);
        let replies = [
            extend(&mut con, &delivery, HOUR).to_string(),
            release(&mut con, &delivery).to_string(),
            nack(&mut con, &delivery, "DEAD"),
            nack(&mut con, &delivery, "DELAY 0"),
            ack(&mut con, &delivery).to_string(),
        ];
        assert_eq!(replies, ["0", "0", "nil", "nil", "0"], "{about}");
        before.assert_unchanged(&mut con);
        // An id that is used again is a new message.
        if before.hash(PAYLOADS).contains_key("a") {
            continue;
        }
        let again = take_new(&mut con, "a");
        assert_eq!((again.attempts, ack(&mut con, &delivery), ack(&mut con, &again)), (1, 0, 1), "{about}");
    }
}

#[test]
fn a_claimed_message_comes_back_when_its_claim_runs_out() {
    let server = Server::start();
    let mut con = server.con();
    take_new(&mut con, "a");
    let far = server_time_ms(&mut con) + 2 * HOUR;
    ok!(con, "RMQ.TIMEOUTS", EXPIRES, PAYLOADS, far, 10, "CLAIM", 300);
    let mut waiter = Waiter::start(&server);
    assert_eq!(waiter.served_one().attempts, 2);
}

#[test]
fn delays_of_scripts_commands_and_twins_are_moved_by_any_of_them() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    type Step<'a> = &'a dyn Fn(&mut Connection);
    let delay: [Step; 3] = [
        &|con| {
            let args = ("a", "p", "app:orders", "0");
            peer.call(con, "produce_delay_message", &[PAYLOADS, DELAYS, ""], args).unwrap();
        },
        &|con| delayed_order(con, "a", 0),
        &|con| {
            let delivery = take_new(con, "a");
            nack(con, &delivery, "DELAY 0");
        },
    ];
    let moves: [Step; 3] = [
        &|con| {
            let moved = peer.call(con, "process_delay_message", &[DELAYS, PAYLOADS], 10).unwrap();
            assert_eq!(text_rows(moved), [["a", "app:orders"]]);
        },
        &|con| assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, PAYLOADS, 10)), [["a", "app:orders"]]),
        &|con| tick(con),
    ];
    for delay in delay {
        for step in moves {
            ok!(con, "FLUSHALL");
            delay(&mut con);
            sleep_ms(2);
            step(&mut con);
            assert_eq!(list(&mut con, PENDING), ["a"]);
            let delivery = take(&mut con);
            assert_eq!(ack(&mut con, &delivery), 1);
        }
    }
    // What a script puts off wakes a waiting worker.
    let mut waiter = Waiter::start(&server);
    let args = ("late", "p", "app:orders", "1");
    peer.call(&mut con, "produce_delay_message", &[PAYLOADS, DELAYS, ""], args).unwrap();
    waiter.since = Instant::now();
    let (delivery, after) = waiter.served_after(std::time::Duration::from_millis(990));
    assert_eq!(delivery.id, "late");
    assert!(after < 2 * SOON, "{after:?}");
}

#[test]
fn a_plain_consumer_takes_what_was_published_and_the_clock_leaves_it_alone() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    assert_eq!(bulk(ok!(con, "LMOVE", PENDING, WORK, "RIGHT", "LEFT")), b"a");
    let until = server_time_ms(&mut con) + 200;
    ok!(con, "ZADD", EXPIRES, until, "a");
    let before = Snapshot::of(&mut con);
    tick(&mut con);
    before.assert_unchanged(&mut con);
    // It died: the message comes back.
    let mut waiter = Waiter::start(&server);
    assert_eq!(waiter.served_id(), "a");
}

#[test]
fn in_every_mixture_of_scripts_twins_and_commands_each_message_ends_once() {
    const MESSAGES: usize = 400;
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let mut rng = Rng::seeded();
    let mut ended = 0;
    ok!(con, "RMQ.POLICY", "app", "*", "ATTEMPTS", 0);
    for n in 0..MESSAGES {
        let id = format!("m{n}");
        match rng.below(4) {
            0 => order(&mut con, &id),
            1 => delayed_order(&mut con, &id, rng.below(30) as i64),
            2 => {
                let deadline = server_time_ms(&mut con) + rng.range(1..2000);
                produce(&peer, &mut con, &id, deadline);
            }
            _ => {
                let args = (&id, "p", "app:orders", "0");
                peer.call(&mut con, "produce_delay_message", &[PAYLOADS, DELAYS, ""], args).unwrap();
            }
        }
    }
    let deadline = Instant::now() + std::time::Duration::from_secs(60);
    while ended < MESSAGES {
        assert!(Instant::now() < deadline, "{} of {MESSAGES} ended: {:?}", ended, Snapshot::of(&mut con));
        match rng.below(12) {
            0 => drop(ok!(con, "RMQ.DELAYTICK", DELAYS, PAYLOADS, 1 + rng.below(5))),
            1 => drop(peer.call(&mut con, "process_delay_message", &[DELAYS, PAYLOADS], 1 + rng.below(5)).unwrap()),
            2 => {
                // The reaper of the scripts: it retries what it finds.
                let now = server_time_ms(&mut con);
                let found = if rng.chance(50) {
                    text_rows(ok!(con, "RMQ.TIMEOUTS", EXPIRES, PAYLOADS, now, 3, "CLAIM", 50))
                } else {
                    text_rows(ok!(con, "RMQ.TIMEOUTS", EXPIRES, PAYLOADS, now, 3))
                };
                for row in found {
                    ok!(con, "RMQ.RETRY", PAYLOADS, DELAYS, EXPIRES, WORK, &row[0], &row[1], 0);
                }
            }
            3 => {
                // A worker of the scripts.
                let id = ok!(con, "LMOVE", PENDING, WORK, "RIGHT", "LEFT");
                if id == Value::Nil {
                    continue;
                }
                let id = text(id);
                let until = server_time_ms(&mut con) + 60_000;
                ok!(con, "ZADD", EXPIRES, until, &id);
                if rng.chance(50) {
                    peer.call(&mut con, "complete_message", &[PAYLOADS, WORK, EXPIRES], &id).unwrap();
                    ok!(con, "HDEL", PAYLOADS, format!("{id}:attempts"));
                    ended += 1;
                } else {
                    let keys = [PAYLOADS, DELAYS, EXPIRES, WORK];
                    peer.call(&mut con, "retry_message", &keys, (&id, "p", 0, "orders")).unwrap();
                }
            }
            _ => {
                for delivery in reserve(&mut con, "app", 30, 3, &["orders"]) {
                    match rng.below(6) {
                        0 => assert_eq!(nack(&mut con, &delivery, "DELAY 10"), "RETRY"),
                        1 => assert_eq!(release(&mut con, &delivery), 1),
                        // The worker dies.
                        2 => {}
                        _ => {
                            assert_eq!(ack(&mut con, &delivery), 1);
                            ended += 1;
                        }
                    }
                }
            }
        }
    }
    let left = Snapshot::of(&mut con);
    assert_eq!(left.keys(), [QUEUES], "{left:?}");
}
