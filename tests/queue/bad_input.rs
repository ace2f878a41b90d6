//! Bad input: one clear error that names the argument, and nothing changes.

use crate::calls::*;
use crate::common::*;

const WRONG_COUNT: &str = "ERR wrong number of arguments";

/// A call, how its error begins, and the words that must be in it, so that it names the argument. `<a>` is the id and the receipt of a message
/// that is held.
const BAD: &[(&str, &str, &str)] = &[
    // PUBLISH
    ("RMQ.PUBLISH app", "ERR ", "TO"),
    ("RMQ.PUBLISH app orders x p y", "ERR ", "TO"),
    ("RMQ.PUBLISH app URGENT orders x p", "ERR ", "TO"),
    ("RMQ.PUBLISH app DELAY 5 ONCE 5 URGENT", "ERR ", "TO"),
    ("RMQ.PUBLISH app TO orders", "ERR ", "TO"),
    ("RMQ.PUBLISH app TO orders x", "ERR ", "TO payload"),
    ("RMQ.PUBLISH app TO orders x p y", "ERR ", "payload"),
    ("RMQ.PUBLISH app TO orders URGENT x p", "ERR ", "URGENT TO"),
    ("RMQ.PUBLISH app TO orders DELAY 5 x p y", "ERR ", "DELAY TO"),
    ("RMQ.PUBLISH app TO \"\" x p", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    ("RMQ.PUBLISH app TO * x p", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    ("RMQ.PUBLISH app TO a:b x p", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    ("RMQ.PUBLISH app TO : x p", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    ("RMQ.PUBLISH app DELAY TO orders x p", "ERR ", "DELAY"),
    ("RMQ.PUBLISH app DELAY -1 TO orders x p", "ERR DELAY must ", "integer milliseconds"),
    ("RMQ.PUBLISH app DELAY 1.5 TO orders x p", "ERR DELAY must ", "integer milliseconds"),
    ("RMQ.PUBLISH app DELAY 99999999999999999999 TO orders x p", "ERR DELAY must ", "integer milliseconds"),
    ("RMQ.PUBLISH app DELAY 9223372036854775807 TO orders x p", "ERR DELAY must ", "integer milliseconds"),
    ("RMQ.PUBLISH app AT 1794891056 TO orders x p", "ERR AT must ", "milliseconds"),
    ("RMQ.PUBLISH app AT 99999999999 TO orders x p", "ERR AT must ", "milliseconds"),
    ("RMQ.PUBLISH app AT -5 TO orders x p", "ERR AT must ", "milliseconds"),
    ("RMQ.PUBLISH app AT soon TO orders x p", "ERR AT must ", "milliseconds"),
    ("RMQ.PUBLISH app AT 9223372036854775807 TO orders x p", "ERR AT must ", "milliseconds"),
    ("RMQ.PUBLISH app ONCE 0 TO orders x p", "ERR ONCE must ", "positive milliseconds"),
    ("RMQ.PUBLISH app ONCE -1 TO orders x p", "ERR ONCE must ", "positive milliseconds"),
    ("RMQ.PUBLISH app ONCE ever TO orders x p", "ERR ONCE must ", "positive milliseconds"),
    ("RMQ.PUBLISH app ONCE 60000 TO orders * p", "ERR ", "ONCE"),
    ("RMQ.PUBLISH app URGENT DELAY 5 TO orders x p", "ERR ", "URGENT DELAY"),
    ("RMQ.PUBLISH app URGENT AT 8000000000000 TO orders x p", "ERR ", "URGENT AT"),
    ("RMQ.PUBLISH app DELAY 5 AT 8000000000000 TO orders x p", "ERR ", "DELAY AT"),
    ("RMQ.PUBLISH app SOON TO orders x p", "ERR ", "SOON"),
    ("RMQ.PUBLISH app TO orders x:queue p", "ERR id must not end in ", ":queue"),
    ("RMQ.PUBLISH app TO orders ok p x:attempts p", "ERR id must not end in ", ":attempts"),
    ("RMQ.PUBLISH app DELAY 5 TO orders x:death p", "ERR id must not end in ", ":death"),
    // RESERVE
    ("RMQ.RESERVE app", WRONG_COUNT, "'RMQ.RESERVE'"),
    ("RMQ.RESERVE app 1000", "ERR ", "FROM"),
    ("RMQ.RESERVE app 1000 orders mails", "ERR ", "FROM"),
    ("RMQ.RESERVE app 1000 COUNT 5", "ERR ", "FROM"),
    ("RMQ.RESERVE app 1000 COUNT 5 FROM", "ERR ", "FROM"),
    ("RMQ.RESERVE app 0 FROM orders", "ERR lease_ms must ", "positive milliseconds"),
    ("RMQ.RESERVE app -1 FROM orders", "ERR lease_ms must ", "positive milliseconds"),
    ("RMQ.RESERVE app 1.5 FROM orders", "ERR lease_ms must ", "positive milliseconds"),
    ("RMQ.RESERVE app long FROM orders", "ERR lease_ms must ", "positive milliseconds"),
    ("RMQ.RESERVE app 9223372036854775807 FROM orders", "ERR lease_ms must ", "positive milliseconds"),
    ("RMQ.RESERVE app 1000 COUNT 0 FROM orders", "ERR COUNT must ", "positive integer"),
    ("RMQ.RESERVE app 1000 COUNT x FROM orders", "ERR COUNT must ", "positive integer"),
    ("RMQ.RESERVE app 1000 BLOCK -1 FROM orders", "ERR BLOCK must ", "integer milliseconds"),
    ("RMQ.RESERVE app 1000 BLOCK x FROM orders", "ERR BLOCK must ", "integer milliseconds"),
    ("RMQ.RESERVE app 1000 BLOCK FROM orders", "ERR ", "BLOCK"),
    ("RMQ.RESERVE app 1000 SOON FROM orders", "ERR ", "SOON"),
    ("RMQ.RESERVE app 1000 FROM orders COUNT 5", "ERR ", "FROM"),
    ("RMQ.RESERVE app 1000 FROM orders BLOCK 5", "ERR ", "FROM"),
    ("RMQ.RESERVE app 1000 FROM orders mails block 0", "ERR ", "FROM"),
    ("RMQ.RESERVE app 1000 FROM \"\"", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    ("RMQ.RESERVE app 1000 FROM *", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    ("RMQ.RESERVE app 1000 FROM orders a:b", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    // ACK, RELEASE, EXTEND
    ("RMQ.ACK app", WRONG_COUNT, "'RMQ.ACK'"),
    ("RMQ.ACK app a", WRONG_COUNT, "'RMQ.ACK'"),
    ("RMQ.ACK app <a> b", WRONG_COUNT, "'RMQ.ACK'"),
    ("RMQ.RELEASE app a", WRONG_COUNT, "'RMQ.RELEASE'"),
    ("RMQ.RELEASE app <a> b", WRONG_COUNT, "'RMQ.RELEASE'"),
    ("RMQ.EXTEND app 1000", WRONG_COUNT, "'RMQ.EXTEND'"),
    ("RMQ.EXTEND app 1000 <a> b", WRONG_COUNT, "'RMQ.EXTEND'"),
    ("RMQ.EXTEND app 0 <a>", "ERR lease_ms must ", "positive milliseconds"),
    ("RMQ.EXTEND app -5 <a>", "ERR lease_ms must ", "positive milliseconds"),
    ("RMQ.EXTEND app x <a>", "ERR lease_ms must ", "positive milliseconds"),
    // NACK
    ("RMQ.NACK app a", WRONG_COUNT, "'RMQ.NACK'"),
    ("RMQ.NACK app <a> DEAD DELAY 5", "ERR ", "DEAD DELAY"),
    ("RMQ.NACK app <a> DELAY 5 DEAD", "ERR ", "DEAD DELAY"),
    ("RMQ.NACK app <a> DELAY", "ERR ", "DELAY"),
    ("RMQ.NACK app <a> DELAY -1", "ERR DELAY must ", "integer milliseconds"),
    ("RMQ.NACK app <a> DELAY x", "ERR DELAY must ", "integer milliseconds"),
    ("RMQ.NACK app <a> ERROR", "ERR ", "ERROR"),
    ("RMQ.NACK app <a> PAYLOAD", "ERR ", "PAYLOAD"),
    ("RMQ.NACK app <a> AGAIN", "ERR ", "AGAIN"),
    // REDRIVE
    ("RMQ.REDRIVE app", "ERR ", "COUNT IDS"),
    ("RMQ.REDRIVE app COUNT", "ERR ", "COUNT"),
    ("RMQ.REDRIVE app COUNT 0", "ERR COUNT must ", "positive integer"),
    ("RMQ.REDRIVE app COUNT x", "ERR COUNT must ", "positive integer"),
    ("RMQ.REDRIVE app IDS", "ERR ", "IDS must be followed by at least one id"),
    ("RMQ.REDRIVE app d", "ERR ", "'d'"),
    ("RMQ.REDRIVE app QUEUE orders", "ERR ", "COUNT"),
    ("RMQ.REDRIVE app COUNT 1 QUEUE", "ERR ", "QUEUE"),
    ("RMQ.REDRIVE app COUNT 1 QUEUE a:b", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    ("RMQ.REDRIVE app COUNT 1 QUEUE *", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    ("RMQ.REDRIVE app COUNT 1 IDS d", "ERR ", "IDS"),
    // POLICY
    ("RMQ.POLICY", WRONG_COUNT, "'RMQ.POLICY'"),
    ("RMQ.POLICY app \"\" ATTEMPTS 1", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    ("RMQ.POLICY app a:b ATTEMPTS 1", "ERR queue must ", "empty '*' COUNT BLOCK ':'"),
    ("RMQ.POLICY app orders ATTEMPTS", "ERR ", "ATTEMPTS"),
    ("RMQ.POLICY app orders ATTEMPTS -1", "ERR ATTEMPTS must ", "integer"),
    ("RMQ.POLICY app orders ATTEMPTS many", "ERR ATTEMPTS must ", "integer"),
    ("RMQ.POLICY app orders BACKOFF 5", "ERR ", "BACKOFF must be followed by its two values"),
    ("RMQ.POLICY app orders BACKOFF", "ERR ", "BACKOFF must be followed by its two values"),
    ("RMQ.POLICY app orders BACKOFF 5 4", "ERR BACKOFF ", "milliseconds"),
    ("RMQ.POLICY app orders BACKOFF -1 5", "ERR BACKOFF ", "milliseconds"),
    ("RMQ.POLICY app orders BACKOFF x 5", "ERR BACKOFF ", "milliseconds"),
    ("RMQ.POLICY app orders ATTEMPTS 3 BACKOFF 1 9223372036854775807", "ERR BACKOFF ", "milliseconds"),
    ("RMQ.POLICY app orders PAUSED", "ERR ", "PAUSED"),
    ("RMQ.POLICY app orders PAUSED maybe", "ERR PAUSED must ", "yes no"),
    ("RMQ.POLICY app orders ATTEMPTS 3 PAUSED 2", "ERR PAUSED must ", "yes no"),
    ("RMQ.POLICY app orders LIMIT 3", "ERR ", "LIMIT"),
    ("RMQ.POLICY app orders RESET ATTEMPTS 3", "ERR ", "RESET"),
    ("RMQ.POLICY app orders ATTEMPTS 3 RESET", "ERR ", "RESET"),
];

/// A message in every place: `a` is held, `b` pending, `c` delayed, `d` dead. The id and receipt of `a`.
fn fill(con: &mut redis::Connection) -> String {
    let dead = take_new(con, "d");
    assert_eq!(nack(con, &dead, "DEAD"), "DEAD");
    let held = take_new(con, "a");
    order(con, "b");
    delayed_order(con, "c", HOUR);
    format!("a {}", held.receipt)
}

#[test]
fn each_bad_input_is_one_error_that_names_the_argument_and_nothing_changes() {
    let server = Server::start();
    let mut con = server.con();
    let held = fill(&mut con);
    let before = Snapshot::of(&mut con);
    let mut wrong = Vec::new();
    for (line, start, words) in BAD {
        let reply = say(&mut con, &line.replace("<a>", &held));
        if !reply.starts_with(start) || !words.split(' ').all(|word| reply.contains(word)) {
            wrong.push(format!("{line}\n    wanted {start}... {words}\n    got    {reply}"));
        }
        before.assert_unchanged(&mut con);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_receipt_that_is_none_is_an_error_and_settles_nothing_beside_it() {
    let server = Server::start();
    let mut con = server.con();
    let held = fill(&mut con);
    let before = Snapshot::of(&mut con);
    let none = [
        "\"\"",
        "x",
        "1",
        "1-",
        "-1",
        "1-x",
        "x-1",
        "1--1",
        "+1-1",
        "1-1-1",
        "1.5-1",
        "1-1.5",
        "0x1-1",
        "١-١",
        "1-1.",
        "1794891056259.5",
    ];
    for receipt in none {
        for line in
            ["RMQ.ACK app <a> b <r>", "RMQ.NACK app b <r>", "RMQ.RELEASE app b <r> <a>", "RMQ.EXTEND app 5 b <r> <a>"]
        {
            let line = line.replace("<a>", &held).replace("<r>", receipt);
            let reply = say(&mut con, &line);
            assert!(reply.starts_with("ERR receipt must "), "{line}: {reply}");
            before.assert_unchanged(&mut con);
        }
    }
}

#[test]
fn a_key_of_the_wrong_type_is_an_error_and_nothing_changes() {
    let server = Server::start();
    let mut con = server.con();
    assert_wrong_types(
        &mut con,
        &[
            ("RMQ.PUBLISH app TO orders x p", &[PAYLOADS, PENDING]),
            ("RMQ.PUBLISH app DELAY 5 TO orders x p", &[PAYLOADS, DELAYS]),
            ("RMQ.PUBLISH app ONCE 60000 TO orders x p", &[PAYLOADS, PENDING, ONCE]),
            ("RMQ.RESERVE app 1000 FROM orders", &[PAYLOADS, EXPIRES, DELAYS, PENDING, WORK]),
            ("RMQ.RESERVE app 1000 BLOCK 0 FROM nothing orders", &[PAYLOADS, EXPIRES, DELAYS, PENDING, WORK]),
            ("RMQ.ACK app <a>", &[PAYLOADS, EXPIRES]),
            ("RMQ.NACK app <a>", &[PAYLOADS, EXPIRES, DELAYS]),
            ("RMQ.NACK app <a> DEAD", &[PAYLOADS, EXPIRES, DLQ, DLQ_DATA]),
            ("RMQ.RELEASE app <a>", &[PAYLOADS, EXPIRES, PENDING]),
            ("RMQ.EXTEND app 1000 <a>", &[PAYLOADS, EXPIRES]),
            ("RMQ.REDRIVE app IDS d", &[PAYLOADS, DLQ, DLQ_DATA]),
            ("RMQ.POLICY app orders ATTEMPTS 1", &[QUEUES]),
        ],
    );
}

#[test]
fn a_message_is_not_settled_while_its_processing_list_is_of_another_type() {
    let server = Server::start();
    let calls = ["RMQ.ACK app <a>", "RMQ.NACK app <a>", "RMQ.NACK app <a> DEAD", "RMQ.RELEASE app <a>"];
    assert_wrong_types(&mut server.con(), &calls.map(|call| (call, &[WORK][..])));
}

/// Calls, and the keys whose wrong type each must find.
#[track_caller]
fn assert_wrong_types(con: &mut redis::Connection, calls: &[(&str, &[&str])]) {
    let mut wrong = Vec::new();
    for (line, keys) in calls {
        for key in *keys {
            ok!(con, "FLUSHALL");
            let held = fill(con);
            ok!(con, "DEL", *key);
            ok!(con, "SET", *key, "of another type");
            let before = Snapshot::of(con);
            let reply = say(con, &line.replace("<a>", &held));
            let changed = before.diff(&Snapshot::of(con));
            if !reply.starts_with("WRONGTYPE ") || !changed.is_empty() {
                wrong.push(format!("{line} with {key}: {reply}; changed {changed:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_wrong_namespace_finds_nothing_and_harms_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let held = fill(&mut con);
    let before = Snapshot::of(&mut con);
    for ns in ["ap", "app2", "app:orders", "\"\"", "APP"] {
        for (line, wanted) in [
            ("RMQ.RESERVE <ns> 1000 FROM orders", "nil"),
            ("RMQ.ACK <ns> <a>", "0"),
            ("RMQ.NACK <ns> <a> DEAD", "nil"),
            ("RMQ.RELEASE <ns> <a>", "0"),
            ("RMQ.EXTEND <ns> 1000 <a>", "[0]"),
            ("RMQ.REDRIVE <ns> COUNT 9", "[]"),
            ("RMQ.POLICY <ns>", "[]"),
        ] {
            steps(&mut con, &[(&line.replace("<ns>", ns).replace("<a>", &held), wanted)]);
            before.assert_unchanged(&mut con);
        }
    }
}

#[test]
fn the_former_forms_with_keys_are_errors() {
    let server = Server::start();
    let mut con = server.con();
    for line in [
        "RMQ.PUBLISH app:payloads app:orders:pending a pa",
        "RMQ.RESERVE app:orders:pending app:orders:processing app:payloads app:expires 1000",
        "RMQ.SCHEDULE app:payloads app:delays a pa app:orders 5",
        "RMQ.NACK app:payloads app:delays app:expires app:orders:processing a 1000.5 0",
        "RMQ.EXTEND app:expires a 1000.5 60000",
        "RMQ.REDRIVE app:dlq app:dlq:data app:payloads 5",
    ] {
        assert!(HERE.call(&mut con, line).is_err(), "{line}");
        assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    }
}
