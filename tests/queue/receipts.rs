//! RMQ.ACK, NACK, RELEASE and EXTEND: who holds the receipt settles the message, and nobody else.

use crate::calls::*;
use crate::common::*;
use redis::{Connection, Value};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

/// Every way to settle with a receipt, and what each replies where it is not current.
const SETTLE: [(&str, &str); 7] = [
    ("RMQ.ACK app <id> <receipt>", "0"),
    ("RMQ.NACK app <id> <receipt>", "nil"),
    ("RMQ.NACK app <id> <receipt> DEAD ERROR boom", "nil"),
    ("RMQ.NACK app <id> <receipt> DELAY 0 PAYLOAD new", "nil"),
    ("RMQ.RELEASE app <id> <receipt>", "0"),
    ("RMQ.EXTEND app 60000 <id> <receipt>", "[0]"),
    ("RMQ.EXTEND app 60000 <id> <receipt> <id> <receipt>", "[0 0]"),
];

/// None of them does anything with this receipt, and each is counted.
#[track_caller]
fn assert_fenced(server: &Server, con: &mut Connection, id: &str, receipt: &str) {
    let before = Snapshot::of(con);
    for (line, wanted) in SETTLE {
        let fenced = counter(server, "fenced");
        let line = line.replace("<id>", id).replace("<receipt>", receipt);
        let reply = say(con, &line);
        assert_eq!(reply, wanted, "{line}");
        before.assert_unchanged(con);
        assert!(counter(server, "fenced") > fenced, "{line} was not counted");
    }
}

#[test]
fn ack_leaves_no_trace_and_replies_how_many() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c"] {
        order(&mut con, id);
    }
    publish(&mut con, "app", "mails", "d");
    let taken = reserve(&mut con, "app", HOUR, 9, &["orders", "mails"]);
    let pairs = |ids: &str| -> String {
        let find = |id: char| taken.iter().find(|delivery| delivery.id == id.to_string()).unwrap();
        ids.chars().map(|id| format!(" {} {}", id, find(id).receipt)).collect()
    };
    steps(&mut con, &[(&format!("RMQ.ACK app{}", pairs("b")), "1"), (&format!("RMQ.ACK app{}", pairs("b")), "0")]);
    assert_eq!(list(&mut con, WORK), ["c", "a"]);
    // Those whose receipt is current, each once, of several queues, also beside stale ones.
    steps(&mut con, &[(&format!("RMQ.ACK app{} none 1-1 c 1-1", pairs("adab")), "2")]);
    assert_eq!(list(&mut con, WORK), ["c"]);
    steps(&mut con, &[(&format!("RMQ.ACK app{}", pairs("c")), "1")]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.keys(), [QUEUES]);
    assert_eq!(counter(&server, "acked"), 4);
}

#[test]
fn a_receipt_that_is_not_the_current_one_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let first = take_new(&mut con, "a");
    let (n, micros) = parts(&first.receipt);
    for other in [format!("{n}-{}", micros - 1), format!("{n}-{}", micros + 1), format!("{}-{micros}", n + 1)] {
        assert_fenced(&server, &mut con, "a", &other);
    }
    assert_fenced(&server, &mut con, "unknown", &first.receipt);
    // Given back: pending, with nobody's receipt.
    assert_eq!(release(&mut con, &first), 1);
    assert_fenced(&server, &mut con, "a", &first.receipt);
    let (n, micros, _) = attempts_of(&mut con, "a");
    assert_fenced(&server, &mut con, "a", &format!("{n}-{micros}"));
    // With the next holder.
    let second = take(&mut con);
    assert_fenced(&server, &mut con, "a", &first.receipt);
    // Delayed.
    assert_eq!(nack(&mut con, &second, "DELAY 3600000"), "RETRY");
    assert_fenced(&server, &mut con, "a", &second.receipt);
    let (n, micros, _) = attempts_of(&mut con, "a");
    assert_fenced(&server, &mut con, "a", &format!("{n}-{micros}"));
}

#[test]
fn an_id_that_is_used_again_is_not_settled_by_a_holder_of_its_former_life() {
    let server = Server::start();
    let mut con = server.con();
    let former = take_new(&mut con, "a");
    assert_eq!(ack(&mut con, &former), 1);
    assert_fenced(&server, &mut con, "a", &former.receipt);
    order(&mut con, "a");
    assert_fenced(&server, &mut con, "a", &former.receipt);
    let current = take(&mut con);
    assert_eq!(current.attempts, former.attempts);
    assert_fenced(&server, &mut con, "a", &former.receipt);
    assert_eq!(ack(&mut con, &current), 1);
}

#[test]
fn a_deadline_that_is_a_whole_number_or_gone_ends_the_receipt() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    ok!(con, "ZADD", EXPIRES, server_time_ms(&mut con) + HOUR, "a");
    assert_fenced(&server, &mut con, "a", &delivery.receipt);
    ok!(con, "ZREM", EXPIRES, "a");
    assert_fenced(&server, &mut con, "a", &delivery.receipt);
}

#[test]
fn a_receipt_is_current_past_its_deadline_until_the_message_is_taken_back() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b"] {
        order(&mut con, id);
    }
    let taken = reserve(&mut con, "app", 1, 2, &["orders"]);
    let [late, too_late] = [&taken[0], &taken[1]];
    sleep_ms(50);
    assert_eq!(ack(&mut con, late), 1);
    tick(&mut con);
    assert_fenced(&server, &mut con, "b", &too_late.receipt);
    assert_eq!(take(&mut con).id, "b");
}

#[test]
fn extend_gives_a_new_deadline_and_keeps_the_receipt() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    order(&mut con, "b");
    let other = take(&mut con);
    let attempts = attempts_of(&mut con, "a");
    // Longer, shorter, and as it was.
    for lease in [3 * HOUR, 60_000, HOUR] {
        let now = server_time_ms(&mut con);
        assert_eq!(extend(&mut con, &delivery, lease), 1);
        let deadline = score(&mut con, EXPIRES, "a").unwrap();
        assert!(deadline >= (now + lease) as f64 && deadline < (now + lease + 2000) as f64);
        assert!(deadline.fract() != 0.0, "{deadline}");
        assert_eq!(attempts_of(&mut con, "a"), attempts);
    }
    let line = format!("RMQ.EXTEND app 7200000 a {} none 1-1 b {}", delivery.receipt, other.receipt);
    steps(&mut con, &[(&line, "[1 0 1]")]);
    assert_eq!(counter(&server, "extended"), 5);
    assert_eq!((ack(&mut con, &delivery), ack(&mut con, &other)), (1, 1));
    assert_eq!(extend(&mut con, &delivery, HOUR), 0);
}

#[test]
fn a_heartbeat_of_another_thread_never_spoils_an_ack() {
    const ROUNDS: usize = 10_000;
    let server = Server::start();
    let current: Mutex<Option<Delivery>> = Mutex::new(None);
    let done = AtomicBool::new(false);
    let beats = std::thread::scope(|scope| {
        let heart = scope.spawn(|| {
            let mut con = server.con();
            let mut beats = 0;
            while !done.load(Ordering::Relaxed) {
                let delivery = current.lock().unwrap().clone();
                if let Some(delivery) = delivery {
                    beats += extend(&mut con, &delivery, HOUR);
                }
            }
            beats
        });
        let stop = Stop(&done);
        let mut con = server.con();
        for n in 0..ROUNDS {
            let delivery = take_new(&mut con, &n.to_string());
            *current.lock().unwrap() = Some(delivery.clone());
            if n % 2 == 0 {
                extend(&mut con, &delivery, HOUR);
            }
            assert_eq!(ack(&mut con, &delivery), 1, "round {n}");
        }
        drop(stop);
        heart.join().unwrap()
    });
    assert!(beats > 100, "only {beats} heartbeats met a message");
    assert_eq!(Snapshot::of(&mut server.con()).keys(), [QUEUES]);
}

#[test]
fn released_messages_are_as_if_they_had_not_been_delivered() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c", "d"] {
        order(&mut con, id);
    }
    let taken = take_up_to(&mut con, 3);
    let before = server_time_ms(&mut con);
    let pairs: Vec<&str> = [&taken[2], &taken[0], &taken[0]].iter().flat_map(|d| [&*d.id, &*d.receipt]).collect();
    assert_eq!(ok!(con, "RMQ.RELEASE", "app", pairs, "none", "1-1"), Value::Int(2));
    // To the right of pending, the first named taken first.
    assert_eq!(list(&mut con, PENDING), ["d", "a", "c"]);
    assert_eq!(list(&mut con, WORK), ["b"]);
    let (n, micros, error) = attempts_of(&mut con, "c");
    assert_eq!((n, error), (0, None));
    assert!(micros >= before * 1000 && micros <= server_time_ms(&mut con) * 1000 + 999, "{micros}");
    assert_eq!(score(&mut con, EXPIRES, "a"), None);
    let again = take_up_to(&mut con, 3);
    let counts: Vec<(&str, i64)> = again.iter().map(|d| (d.id.as_str(), d.attempts)).collect();
    assert_eq!(counts, [("c", 1), ("a", 1), ("d", 1)]);
    assert!(again[0].receipt != taken[2].receipt);
    assert_eq!(counter(&server, "released"), 2);
}

#[test]
fn a_release_keeps_the_count_and_the_error_of_the_attempts_before() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    assert_eq!(nack(&mut con, &delivery, "DELAY 0 ERROR boom"), "RETRY");
    let delivery = take(&mut con);
    assert_eq!(delivery.attempts, 2);
    let leased = attempts_of(&mut con, "a");
    assert_eq!(leased, (2, delivery.micros(), Some("boom".into())));
    assert_eq!(release(&mut con, &delivery), 1);
    let (n, _, error) = attempts_of(&mut con, "a");
    assert_eq!((n, error.as_deref()), (1, Some("boom")));
    assert_eq!(take(&mut con).attempts, 2);
}

#[test]
fn nack_puts_a_message_off_with_its_error_and_a_new_payload() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    let before = server_time_ms(&mut con);
    assert_eq!(nack(&mut con, &delivery, "DELAY 60000 PAYLOAD new ERROR boom"), "RETRY");
    let after = server_time_ms(&mut con);
    let now = Snapshot::of(&mut con);
    assert_eq!(now.keys(), [DELAYS, PAYLOADS, QUEUES]);
    assert_eq!(now.hash(PAYLOADS)["a"], "new");
    let due = now.zset(DELAYS)["a"];
    assert!(due >= (before + 60_000) as f64 && due <= (after + 60_001) as f64);
    // Since when it can be taken: its due time.
    let (n, micros, error) = attempts_of(&mut con, "a");
    assert_eq!((n, error.as_deref()), (1, Some("boom")));
    assert!((micros as f64 - due * 1000.0).abs() <= 1000.0, "{micros} and {due}");
    assert_eq!(counter(&server, "nacked"), 1);
}

#[test]
fn an_error_text_may_be_any_bytes_and_is_cut_at_a_character_when_it_is_stored() {
    let server = Server::start();
    let mut con = server.con();
    let long = format!("{}é and more", "x".repeat(1023));
    let cases: [(&[u8], &[u8]); 5] = [
        (b"two words", b"two words"),
        (b"", b""),
        (b"\0\r\n%s\"\\", b"\0\r\n%s\"\\"),
        (b"\xff\xfe", b"\xff\xfe"),
        (long.as_bytes(), &[b'x'; 1023]),
    ];
    order(&mut con, "a");
    for (text, wanted) in cases {
        let delivery = take(&mut con);
        let reply = ok!(con, "RMQ.NACK", "app", "a", &delivery.receipt, "ERROR", text, "DELAY", 0);
        assert_eq!(bulk(reply), b"RETRY");
        let field = bulk(ok!(con, "HGET", PAYLOADS, "a:attempts"));
        let stored = field.iter().position(|b| *b == b' ').map_or(&b""[..], |at| &field[at + 1..]);
        let shown = String::from_utf8_lossy(stored);
        // Bytes that are no text may be stored as they are or made readable, but never break the record.
        assert!(stored == wanted || (text == b"\xff\xfe" && shown.contains('\u{fffd}')), "{text:?}: {shown:?}");
    }
    let delivery = take(&mut con);
    assert_eq!(nack(&mut con, &delivery, "DEAD"), "DEAD");
    assert_eq!(death_of(&mut con, "a")["reason"], "rejected");

    ok!(con, "CONFIG", "SET", "rmq.error-limit", 16);
    let delivery = take_new(&mut con, "b");
    assert_eq!(nack(&mut con, &delivery, "DELAY 0 ERROR äöüäöüäöüäöü"), "RETRY");
    assert_eq!(attempts_of(&mut con, "b").2.as_deref(), Some("äöüäöüäö"));
}

#[test]
fn a_nack_without_an_error_keeps_the_last_one() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    nack(&mut con, &delivery, "DELAY 0 ERROR boom");
    let delivery = take(&mut con);
    nack(&mut con, &delivery, "DELAY 0");
    assert_eq!(attempts_of(&mut con, "a").2.as_deref(), Some("boom"));
    let delivery = take(&mut con);
    nack(&mut con, &delivery, "DELAY 0 ERROR worse");
    assert_eq!(attempts_of(&mut con, "a").2.as_deref(), Some("worse"));
}

#[test]
fn without_its_queue_a_message_can_only_be_finished() {
    let server = Server::start();
    let mut con = server.con();
    for foreign in [None, Some("other:orders"), Some("orders"), Some("app:x:y"), Some("")] {
        for (line, done) in [
            ("RMQ.NACK app a <receipt>", false),
            ("RMQ.NACK app a <receipt> DELAY 5", false),
            ("RMQ.RELEASE app a <receipt>", false),
            ("RMQ.ACK app a <receipt>", true),
            ("RMQ.NACK app a <receipt> DEAD", true),
        ] {
            ok!(con, "FLUSHALL");
            let delivery = take_new(&mut con, "a");
            match foreign {
                None => ok!(con, "HDEL", PAYLOADS, "a:queue"),
                Some(queue) => ok!(con, "HSET", PAYLOADS, "a:queue", queue),
            };
            let before = Snapshot::of(&mut con);
            let line = line.replace("<receipt>", &delivery.receipt);
            let reply = say(&mut con, &line);
            if done {
                assert!(["1", "DEAD"].contains(&reply.as_str()), "{foreign:?} {line}: {reply}");
                let after = Snapshot::of(&mut con);
                assert!(after.contents(PAYLOADS).is_none() && after.contents(EXPIRES).is_none(), "{foreign:?} {line}");
            } else {
                assert!(reply.starts_with("ERR "), "{foreign:?} {line}: {reply}");
                assert!(reply.contains("queue"), "{foreign:?} {line}: {reply}");
                before.assert_unchanged(&mut con);
            }
        }
    }
}

#[test]
fn a_bad_message_in_a_release_of_several_changes_none() {
    let server = Server::start();
    let mut con = server.con();
    let [a, b] = [take_new(&mut con, "a"), take_new(&mut con, "b")];
    ok!(con, "HDEL", PAYLOADS, "b:queue");
    let before = Snapshot::of(&mut con);
    let error = say(&mut con, &format!("RMQ.RELEASE app a {} b {}", a.receipt, b.receipt));
    assert!(error.starts_with("ERR "), "{error}");
    before.assert_unchanged(&mut con);
}

#[test]
fn settling_works_in_a_transaction_and_in_a_script() {
    let server = Server::start();
    let mut con = server.con();
    let [a, b, c] = ["a", "b", "c"].map(|id| take_new(&mut con, id));
    ok!(con, "MULTI");
    ok!(con, "RMQ.EXTEND", "app", HOUR, "a", &a.receipt);
    ok!(con, "RMQ.ACK", "app", "a", &a.receipt);
    ok!(con, "RMQ.NACK", "app", "b", &b.receipt, "DELAY", 0);
    ok!(con, "RMQ.RELEASE", "app", "c", &c.receipt);
    assert_eq!(shown(cmd!(con, "EXEC")), "[[1] 1 RETRY 1]");
    let again = take_up_to(&mut con, 2);
    assert_eq!(ids(&again), ["c", "b"]);
    let script = "return redis.call('RMQ.NACK', 'app', 'b', ARGV[1], 'DEAD')";
    // A status reply, as from the server's own commands.
    assert_eq!(ok!(con, "EVAL", script, 0, &again[1].receipt), Value::SimpleString("DEAD".into()));
}
