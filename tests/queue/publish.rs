//! RMQ.PUBLISH: now, urgent, later, once; and which ids are left alone.

use crate::calls::*;
use crate::common::*;
use redis::Value;

#[test]
fn a_message_is_a_payload_its_queue_and_a_place_at_the_left_of_pending() {
    let server = Server::start();
    let mut con = server.con();
    steps(&mut con, &[("RMQ.PUBLISH app TO orders a pa", "[a]"), ("RMQ.PUBLISH app TO orders b pb c pc", "[b c]")]);
    let now = Snapshot::of(&mut con);
    assert_eq!(now.keys(), [PENDING, PAYLOADS, QUEUES]);
    assert_eq!(now.list(PENDING), ["c", "b", "a"]);
    let fields: Vec<String> = now.hash(PAYLOADS).into_iter().map(|(field, value)| format!("{field}={value}")).collect();
    assert_eq!(fields, ["a=pa", "a:queue=app:orders", "b=pb", "b:queue=app:orders", "c=pc", "c:queue=app:orders"]);
    assert_eq!(now.hash(QUEUES)["orders"], "{}");
    assert_eq!(counter(&server, "published"), 3);
}

#[test]
fn urgent_messages_are_taken_before_the_others_the_first_named_first() {
    let server = Server::start();
    let mut con = server.con();
    steps(
        &mut con,
        &[
            ("RMQ.PUBLISH app TO orders a pa", "[a]"),
            ("RMQ.PUBLISH app URGENT TO orders b pb c pc", "[b c]"),
            ("RMQ.PUBLISH app urgent to orders d pd", "[d]"),
        ],
    );
    assert_eq!(ids(&take_up_to(&mut con, 10)), ["d", "b", "c", "a"]);
}

#[test]
fn a_delayed_message_is_due_on_the_servers_clock_and_not_pending_before() {
    let server = Server::start();
    let mut con = server.con();
    let before = server_time_ms(&mut con);
    delayed_order(&mut con, "a", HOUR);
    let after = server_time_ms(&mut con);
    let due = score(&mut con, DELAYS, "a").expect("a due time") as i64;
    assert!(due >= before + HOUR && due <= after + HOUR + 1);
    assert_eq!(take_up_to(&mut con, 1), []);
    assert_eq!(length(&mut con, PENDING), 0);

    let at = after + 2 * HOUR;
    steps(&mut con, &[(&format!("RMQ.PUBLISH app AT {at} TO orders b pb"), "[b]")]);
    assert_eq!(score(&mut con, DELAYS, "b"), Some(at as f64));
    // The smallest number that is no time in seconds; long past, so the next RESERVE delivers it.
    steps(&mut con, &[("RMQ.PUBLISH app AT 100000000000 TO orders c pc", "[c]")]);
    assert_eq!(score(&mut con, DELAYS, "c"), Some(1e11));
    assert_eq!(take(&mut con).id, "c");
    delayed_order(&mut con, "now", 0);
    assert_eq!(take(&mut con).id, "now");
    assert_eq!(Snapshot::of(&mut con).hash(QUEUES)["orders"], "{}");
}

#[test]
fn an_id_that_the_server_makes_is_new_and_sorts_by_time() {
    let server = Server::start();
    let mut con = server.con();
    let mut made = Vec::new();
    for _ in 0..200 {
        made.extend(strings(ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "*", "p", "*", "p")));
    }
    assert_eq!(made.len(), 400);
    assert!(made.windows(2).all(|pair| pair[0] < pair[1]), "{made:?}");
    assert!(made.iter().all(|id| id.is_ascii() && !id.contains([':', ' '])), "{:?}", made[0]);
    let delayed = strings(ok!(con, "RMQ.PUBLISH", "app", "DELAY", HOUR, "TO", "orders", "*", "p"));
    assert!(score(&mut con, DELAYS, &delayed[0]).is_some());
}

#[test]
fn an_id_that_is_there_is_left_alone_wherever_it_is() {
    let server = Server::start();
    let mut con = server.con();
    delayed_order(&mut con, "delayed", HOUR);
    take_new(&mut con, "leased");
    order(&mut con, "pending");
    let before = Snapshot::of(&mut con);
    for how in ["", "URGENT", "DELAY 5", "AT 8000000000000", "ONCE 60000"] {
        let line = format!("RMQ.PUBLISH app {how} TO orders delayed x leased x pending x");
        steps(&mut con, &[(&line, "[nil nil nil]")]);
        before.assert_unchanged(&mut con);
    }
    assert_eq!(counter(&server, "published"), 3);
    // Twice in one call is once, with the first payload.
    steps(&mut con, &[("RMQ.PUBLISH app TO orders new first pending x new second", "[new nil nil]")]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.hash(PAYLOADS)["new"], "first");
    assert_eq!(after.list(PENDING), ["new", "pending"]);
}

#[test]
fn an_id_of_another_queue_is_an_error_that_names_both_and_nothing_is_written() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    let before = Snapshot::of(&mut con);
    for how in ["", "URGENT", "DELAY 5", "ONCE 60000"] {
        let error = say(&mut con, &format!("RMQ.PUBLISH app {how} TO mails new pn a pa"));
        assert!(error.starts_with("EXISTS "), "{how}: {error}");
        assert!(error.contains("'a'") && error.contains("orders"), "{how}: {error}");
        before.assert_unchanged(&mut con);
    }
}

#[test]
fn a_dead_letter_does_not_hinder_its_id() {
    let server = Server::start();
    let mut con = server.con();
    let delivery = take_new(&mut con, "a");
    assert_eq!(nack(&mut con, &delivery, "DEAD"), "DEAD");
    publish(&mut con, "app", "mails", "a");
    assert_eq!(Snapshot::of(&mut con).list(DLQ), ["a"]);
}

#[test]
fn once_refuses_an_id_again_also_when_it_is_done_until_its_time_is_over() {
    let server = Server::start();
    let mut con = server.con();
    let once = "RMQ.PUBLISH app ONCE 400 TO orders a pa b pb";
    let published = std::time::Instant::now();
    steps(&mut con, &[(once, "[a b]"), (once, "[nil nil]")]);
    for delivery in take_up_to(&mut con, 2) {
        assert_eq!(ack(&mut con, &delivery), 1);
    }
    let before = Snapshot::of(&mut con);
    let again = say(&mut con, once);
    if published.elapsed().as_millis() < 400 {
        assert_eq!(again, "[nil nil]");
        before.assert_unchanged(&mut con);
    }
    assert!(counter(&server, "once") >= 2);
    sleep_ms(450);
    steps(&mut con, &[(once, "[a b]")]);
    assert_eq!(list(&mut con, PENDING), ["b", "a"]);
}

#[test]
fn once_holds_only_for_those_who_ask_for_it() {
    let server = Server::start();
    let mut con = server.con();
    let once = "RMQ.PUBLISH app ONCE 3600000 TO orders a pa";
    let plain = "RMQ.PUBLISH app TO orders a pa";
    steps(&mut con, &[(once, "[a]"), ("RMQ.PUBLISH app ONCE 3600000 DELAY 3600000 TO orders d pd", "[d]")]);
    let done = take(&mut con);
    ack(&mut con, &done);
    // One that is published without ONCE is accepted, and one that never had ONCE is no hindrance.
    steps(&mut con, &[(once, "[nil]"), (plain, "[a]")]);
    let done = take(&mut con);
    ack(&mut con, &done);
    order(&mut con, "b");
    let done = take(&mut con);
    ack(&mut con, &done);
    steps(&mut con, &[("RMQ.PUBLISH app ONCE 3600000 TO orders a x b pb d x", "[nil b nil]")]);
    // Another namespace knows nothing of it.
    steps(&mut con, &[("RMQ.PUBLISH other ONCE 3600000 TO orders a pa", "[a]")]);
}

#[test]
fn what_once_remembers_does_not_grow_for_ever() {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..2000 {
        ok!(con, "RMQ.PUBLISH", "app", "ONCE", 1, "TO", "orders", n, "p");
    }
    sleep_ms(20);
    for n in 2000..3000 {
        ok!(con, "RMQ.PUBLISH", "app", "ONCE", HOUR, "TO", "orders", n, "p");
    }
    let remembered: usize = ask!(con, "ZCARD", ONCE);
    assert!((1000..1500).contains(&remembered), "{remembered} remembered");
}

#[test]
fn ids_payloads_and_queues_are_bytes() {
    let server = Server::start();
    let mut con = server.con();
    let nasty: &[u8] = b"\0\r\n%s %n\xff\xfe\"\\";
    let large = vec![0xfe; 8 << 20];
    for (id, payload) in [(nasty, nasty), (b"empty", b""), (b" ", b" "), (b"large", &large), (b"TO", b"FROM")] {
        let reply = ok!(con, "RMQ.PUBLISH", "app", "TO", nasty, id, payload);
        assert_eq!(reply, Value::Array(vec![Value::BulkString(id.to_vec())]));
        let row = items(items(ok!(con, "RMQ.RESERVE", "app", HOUR, "FROM", nasty)).remove(0));
        let [got, content, receipt, _, queue]: [Value; 5] = row.try_into().unwrap();
        assert_eq!((bulk(got), bulk(queue)), (id.to_vec(), nasty.to_vec()));
        assert!(bulk(content) == payload, "the payload of {id:?} changed");
        assert_eq!(ok!(con, "RMQ.ACK", "app", id, bulk(receipt)), Value::Int(1));
    }
    assert_eq!(Snapshot::of(&mut con).keys(), [QUEUES]);
}

#[test]
fn what_is_left_of_a_former_life_of_an_id_does_not_count() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", PAYLOADS, "a:attempts", "7-1700000000000000 boom");
    let delivery = take_new(&mut con, "a");
    assert_eq!(delivery.attempts, 1);
}

#[test]
fn publish_works_in_a_transaction_and_in_a_script() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "MULTI");
    ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "a", "pa");
    ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "a", "pa");
    assert_eq!(shown(cmd!(con, "EXEC")), "[[a] [nil]]");
    let step = "local acked = redis.call('RMQ.ACK', 'app', ARGV[1], ARGV[2])
                if acked == 1 then return redis.call('RMQ.PUBLISH', 'app', 'TO', 'mails', ARGV[1], 'next') end";
    let delivery = take(&mut con);
    assert_eq!(shown(cmd!(con, "EVAL", step, 0, "a", &delivery.receipt)), "[a]");
    assert_eq!(shown(cmd!(con, "EVAL", step, 0, "a", &delivery.receipt)), "nil");
    assert_eq!(list(&mut con, "app:mails:pending"), ["a"]);
}
