//! RMQ.AUDIT and RMQ.REPAIR: faults that plain commands plant are found and mended, and no message is lost.

use crate::calls::*;
use crate::common::*;
use std::collections::{BTreeMap, BTreeSet};

/// What AUDIT or REPAIR found on all pages: how often each kind.
fn all_pages(con: &mut redis::Connection, command: &str, count: usize) -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    let mut cursor = 0;
    for page in 0.. {
        assert!(page < 200_000, "the cursor never comes to an end");
        let mut reply = items(ok!(con, command, "app", "CURSOR", cursor, "COUNT", count));
        let faults = items(reply.pop().expect("two items"));
        cursor = redis::from_redis_value::<i64>(reply.pop().expect("two items")).expect("a cursor");
        for pair in faults.chunks_exact(2) {
            let kind = text(pair[0].clone());
            let fault = items(pair[1].clone());
            let count: i64 = redis::from_redis_value(fault[0].clone()).expect("a count");
            let shown = items(fault[1].clone()).len() as i64;
            assert_eq!(shown, count.min(10), "{kind}");
            *found.entry(kind).or_insert(0) += count;
        }
        if cursor == 0 {
            break;
        }
    }
    found
}

const QUEUES: [&str; 3] = ["orders", "mails", "jobs"];
/// One that nothing was published to: only a fault names it.
const UNKNOWN_QUEUE: &str = "unknown";

/// Every kind of fault that AUDIT knows.
const KINDS: [&str; 10] = [
    "dead_without_payload",
    "delayed_without_payload",
    "in_two_places",
    "lost",
    "orphan_fields",
    "pending_without_payload",
    "processing_without_payload",
    "stale_deadlines",
    "without_deadline",
    "wrong_queue",
];

/// A healthy namespace with messages in every state. Returns the ids of the dead letters.
fn fill(con: &mut redis::Connection, rng: &mut Rng, messages: usize) -> Vec<String> {
    for number in 0..messages {
        let queue = QUEUES[rng.below(QUEUES.len())];
        let id = format!("m-{number}");
        let payload = format!("payload of {id}");
        match rng.below(4) {
            0 => ok!(con, "RMQ.PUBLISH", "app", "DELAY", 3_600_000, "TO", queue, id, payload),
            _ => ok!(con, "RMQ.PUBLISH", "app", "TO", queue, id, payload),
        };
    }
    for queue in QUEUES {
        ok!(con, "RMQ.RESERVE", "app", 3_600_000, "COUNT", messages / 10, "FROM", queue);
    }
    let taken = items(ok!(con, "RMQ.RESERVE", "app", 3_600_000, "COUNT", messages / 20, "FROM", "orders"));
    let killed = taken.into_iter().map(|message| {
        let message = items(message);
        let id = text(message[0].clone());
        ok!(con, "RMQ.NACK", "app", &id, text(message[2].clone()), "DEAD", "ERROR", format!("why {id}"));
        id
    });
    killed.collect()
}

/// One fault by plain commands, anywhere.
fn plant(con: &mut redis::Connection, rng: &mut Rng, messages: usize, dead: &[String]) {
    let ghost = format!("ghost-{}", rng.below(messages));
    let id = match rng.below(5) {
        0 => ghost.clone(),
        _ => format!("m-{}", rng.below(messages)),
    };
    let letter = rng.pick(dead);
    let list = format!("app:{}:{}", QUEUES[rng.below(3)], ["pending", "processing"][rng.below(2)]);
    let queue = ["app:orders", "app:mails", "app:unknown", "other:orders", "orders", "app:"][rng.below(6)];
    let later = server_time_ms(con) + 3_600_000;
    match rng.below(19) {
        0 => ok!(con, "LPUSH", list, id),
        1 => ok!(con, "RPUSH", list, id),
        2 => ok!(con, "LREM", list, 0, id),
        3 => ok!(con, "ZREM", "app:expires", id),
        4 => ok!(con, "ZADD", "app:expires", later, id),
        5 => ok!(con, "ZREM", "app:delays", id),
        6 => ok!(con, "ZADD", "app:delays", later, id),
        // The payload goes, and so must everything else of the message.
        7 => ok!(con, "HDEL", "app:payloads", id),
        8 => ok!(con, "HDEL", "app:payloads", format!("{id}:queue")),
        9 => ok!(con, "HSET", "app:payloads", format!("{id}:queue"), queue),
        10 => ok!(con, "HSET", "app:payloads", format!("{ghost}:queue"), queue),
        11 => ok!(con, "HSET", "app:payloads", format!("{ghost}:attempts"), "1-1"),
        12 => ok!(con, "HSET", "app:dlq:data", format!("{ghost}:queue"), queue),
        13 => ok!(con, "HSET", "app:dlq:data", format!("{ghost}:death"), "{}"),
        14 => ok!(con, "LPUSH", "app:dlq", id),
        15 => ok!(con, "RPUSH", "app:dlq", letter),
        16 => ok!(con, "LREM", "app:dlq", 0, letter),
        17 => ok!(con, "LPUSH", "app:dlq", letter),
        _ if rng.chance(10) => ok!(con, "HDEL", "app:dlq:data", letter),
        _ => ok!(con, "LREM", "app:dlq", 1, letter),
    };
}

/// The messages of a hash, by id, with all that belongs to them there. What has no payload is no message.
fn messages_in(con: &mut redis::Connection, key: &str, fields: &[&str]) -> BTreeMap<String, Vec<Option<String>>> {
    let stored = Snapshot::of(con).hash(key);
    let ids = stored.keys().filter(|field| !field.contains(':'));
    let message = |id: &String| {
        let more = fields.iter().map(|field| stored.get(&format!("{id}:{field}")).cloned());
        (id.clone(), [Some(stored[id].clone())].into_iter().chain(more).collect())
    };
    ids.map(message).collect()
}

/// Messages whose queue is told by nothing: neither by `<id>:queue` nor by a list that they are in.
fn of_no_queue(con: &mut redis::Connection, ids: impl Iterator<Item = String>) -> BTreeSet<String> {
    let now = Snapshot::of(con);
    let fields = now.hash("app:payloads");
    let is_ours = |queue: &String| queue.strip_prefix("app:").is_some_and(|short| !short.is_empty());
    let lists: BTreeSet<String> =
        QUEUES.iter().flat_map(|queue| ["pending", "processing"].map(|list| format!("app:{queue}:{list}"))).collect();
    let listed: BTreeSet<String> = lists.iter().flat_map(|list| now.list(list)).collect();
    ids.filter(|id| !fields.get(&format!("{id}:queue")).is_some_and(is_ours) && !listed.contains(id)).collect()
}

#[test]
fn thousands_of_random_faults_are_mended_and_no_message_is_lost() {
    const MESSAGES: usize = 400;
    let server = Server::builder().arg("appendonly", "yes").start();
    let replica = Replica::started_as(Server::builder().without_module(), &server);
    let mut con = server.con();
    let mut rng = Rng::seeded();
    for page in [1, 7, 100, 10_000] {
        ok!(con, "FLUSHALL");
        let dead = fill(&mut con, &mut rng, MESSAGES);
        assert_eq!(all_pages(&mut con, "RMQ.AUDIT", page), BTreeMap::new(), "a healthy namespace has no fault");
        for _ in 0..1500 {
            plant(&mut con, &mut rng, MESSAGES, &dead);
        }
        // What is there now has to come out in the end: nothing that REPAIR does may change it.
        let stored: BTreeMap<String, String> = messages_in(&mut con, "app:payloads", &[])
            .into_iter()
            .map(|(id, mut message)| (id, message.remove(0).expect("a payload")))
            .collect();
        let letters = messages_in(&mut con, "app:dlq:data", &["queue", "death"]);
        assert!(stored.len() > MESSAGES / 2 && stored.len() < MESSAGES - dead.len(), "{} messages", stored.len());
        assert!(!letters.is_empty() && letters.len() < dead.len(), "{} dead letters", letters.len());
        let queueless = of_no_queue(&mut con, stored.keys().cloned());
        assert!(!queueless.is_empty());
        let planted = all_pages(&mut con, "RMQ.AUDIT", 10_000);
        assert_eq!(planted.keys().map(String::as_str).collect::<Vec<_>>(), KINDS, "{planted:?}");

        all_pages(&mut con, "RMQ.REPAIR", page);
        // Nobody but its owner knows where a message without a queue belongs: it stays, and is reported still.
        let left = all_pages(&mut con, "RMQ.AUDIT", page);
        let about = format!("pages of {page}, planted {planted:?}, left {left:?}");
        assert!(left.keys().all(|kind| kind == "lost" || kind == "wrong_queue"), "{about}");
        assert_eq!(left.values().sum::<i64>(), queueless.len() as i64, "{about}: {queueless:?}");
        for id in &queueless {
            ok!(con, "HSET", "app:payloads", format!("{id}:queue"), "app:jobs");
        }
        all_pages(&mut con, "RMQ.REPAIR", page);
        assert_eq!(all_pages(&mut con, "RMQ.AUDIT", page), BTreeMap::new(), "{about}");
        replica.wait_synced();
        assert_eq!(replica.digest(), server.digest());

        // The dead letters are what they were, each in the list once, and nothing else is there.
        assert_eq!(messages_in(&mut con, "app:dlq:data", &["queue", "death"]), letters);
        let mut listed: Vec<String> = ask!(con, "LRANGE", "app:dlq", 0, -1);
        listed.sort();
        assert_eq!(listed, letters.keys().cloned().collect::<Vec<_>>());
        let fields: usize = ask!(con, "HLEN", "app:dlq:data");
        assert_eq!(fields, 3 * letters.len());
        // Every message that was stored is delivered once.
        assert_eq!(drained(&mut con), stored);
        assert_eq!(Snapshot::of(&mut con).keys(), ["app:dlq", "app:dlq:data", "app:queues"]);
        assert_eq!(messages_in(&mut con, "app:dlq:data", &["queue", "death"]), letters);
    }
}

/// Lets every lease and every delay of the namespace run out, and takes and settles all messages: payloads by id.
fn drained(con: &mut redis::Connection) -> BTreeMap<String, String> {
    for zset in ["app:expires", "app:delays"] {
        let members: Vec<String> = ask!(con, "ZRANGE", zset, 0, -1);
        for member in members {
            ok!(con, "ZADD", zset, if zset == "app:expires" { "1000.5" } else { "1000" }, member);
        }
    }
    let mut delivered = BTreeMap::new();
    loop {
        let reply = ok!(con, "RMQ.RESERVE", "app", 3_600_000, "COUNT", 50, "FROM", &QUEUES, UNKNOWN_QUEUE);
        if reply == redis::Value::Nil {
            return delivered;
        }
        for message in items(reply) {
            let message = items(message);
            let [id, payload, receipt] = [0, 1, 2].map(|part| text(message[part].clone()));
            assert_eq!(ok!(con, "RMQ.ACK", "app", &id, receipt), redis::Value::Int(1), "{id}");
            assert_eq!(delivered.insert(id.clone(), payload), None, "{id} was delivered twice");
        }
    }
}

#[test]
fn where_the_payloads_are_missing_as_a_whole_nothing_is_dropped() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "a", "p", "b", "p");
    ok!(con, "RMQ.PUBLISH", "app", "DELAY", 3_600_000, "TO", "orders", "c", "p");
    ok!(con, "RENAME", "app:payloads", "away");
    let before = Snapshot::of(&mut con);
    let found = all_pages(&mut con, "RMQ.REPAIR", 100);
    assert_eq!(found["pending_without_payload"], 2);
    assert_eq!(found["delayed_without_payload"], 1);
    before.assert_unchanged(&mut con);
    ok!(con, "RENAME", "away", "app:payloads");
    assert_eq!(all_pages(&mut con, "RMQ.AUDIT", 100), BTreeMap::new());
}

#[test]
fn a_pending_list_of_another_type_hides_no_message_in_processing() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "a", "p");
    ok!(con, "RMQ.RESERVE", "app", 60_000, "FROM", "orders");
    ok!(con, "SET", "app:orders:pending", "no list");
    assert_eq!(all_pages(&mut con, "RMQ.AUDIT", 100), BTreeMap::new());
    ok!(con, "HSET", "app:payloads", "a:queue", "app:mails");
    assert_eq!(all_pages(&mut con, "RMQ.REPAIR", 100), BTreeMap::from([("wrong_queue".into(), 1)]));
    let queue: String = ask!(con, "HGET", "app:payloads", "a:queue");
    assert_eq!(queue, "app:orders");
}

#[test]
fn an_audit_reports_nothing_while_workers_work() {
    let server = Server::start();
    let worker = |seed: u64| {
        let mut con = server.con();
        std::thread::spawn(move || {
            for number in 0..1500 {
                let id = format!("{seed}-{number}");
                let delay = if number % 5 == 0 { 1 } else { 0 };
                ok!(con, "RMQ.PUBLISH", "app", "DELAY", delay, "TO", "orders", id, "p");
                let reply = ok!(con, "RMQ.RESERVE", "app", 5 + number % 50, "FROM", "orders");
                if reply == redis::Value::Nil {
                    continue;
                }
                for message in items(reply) {
                    let message = items(message);
                    let (id, receipt) = (text(message[0].clone()), text(message[2].clone()));
                    match number % 4 {
                        0 => ok!(con, "RMQ.NACK", "app", id, receipt, "DELAY", 1),
                        1 => ok!(con, "RMQ.RELEASE", "app", id, receipt),
                        2 => ok!(con, "RMQ.EXTEND", "app", 3, id, receipt),
                        _ => ok!(con, "RMQ.ACK", "app", id, receipt),
                    };
                }
            }
        })
    };
    let workers = [worker(1), worker(2)];
    let mut con = server.con();
    let mut audits = 0;
    while audits < 5 || workers.iter().any(|worker| !worker.is_finished()) {
        assert_eq!(all_pages(&mut con, "RMQ.AUDIT", 50), BTreeMap::new());
        audits += 1;
    }
    workers.into_iter().for_each(|worker| worker.join().expect("a worker"));
}

#[test]
fn bad_arguments_of_an_audit_are_named() {
    let server = Server::start();
    let mut con = server.con();
    for command in ["RMQ.AUDIT", "RMQ.REPAIR"] {
        for (words, wanted) in [
            (&["app", "CURSOR", "x"][..], "ERR CURSOR must be an integer, 0 or more"),
            (&["app", "CURSOR", "9223372036854775807"], "ERR CURSOR must be 0, or a cursor that the command returned"),
            (&["app", "COUNT", "0"], "ERR COUNT must be a positive integer"),
            (&["app", "orders"], "ERR unknown option 'orders'"),
        ] {
            let error = redis::cmd(command).arg(words).query::<redis::Value>(&mut con).unwrap_err();
            assert_eq!(error_text(&error), wanted, "{command} {words:?}");
        }
    }
}

#[test]
fn a_dead_letter_whose_id_ends_like_a_field_is_kept_by_a_repair() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["foo:death", "bar:queue"] {
        ok!(con, "HSET", DLQ_DATA, id, "precious");
        ok!(con, "LPUSH", DLQ, id);
    }
    let before = Snapshot::of(&mut con);
    assert_eq!(all_pages(&mut con, "RMQ.REPAIR", 100), BTreeMap::new());
    before.assert_unchanged(&mut con);
    // In no list it is what it looks like.
    ok!(con, "LREM", DLQ, 0, "foo:death");
    assert_eq!(all_pages(&mut con, "RMQ.REPAIR", 100), BTreeMap::from([("orphan_fields".into(), 1)]));
}

#[test]
fn a_field_of_a_message_is_no_message_wherever_its_name_stands() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["held", "dead"] {
        order(&mut con, id);
    }
    let held = take(&mut con);
    let dead = take(&mut con);
    assert_eq!(nack(&mut con, &dead, "DEAD"), "DEAD");
    delayed_order(&mut con, "delayed", HOUR);
    publish(&mut con, "app", "mails", "mail");
    let fields = Snapshot::of(&mut con);
    let misplace = |con: &mut redis::Connection| {
        ok!(con, "RPUSH", PENDING, "held:attempts", "delayed:queue");
        ok!(con, "LPUSH", WORK, "mail:queue");
        ok!(con, "ZADD", DELAYS, 1000, "held:queue");
        ok!(con, "ZADD", EXPIRES, 1000, "delayed:queue");
        ok!(con, "RPUSH", DLQ, "dead:queue", "dead:death");
    };
    let assert_no_field_is_changed = |con: &mut redis::Connection| {
        let now = Snapshot::of(con);
        assert_eq!(now.hash(PAYLOADS), fields.hash(PAYLOADS));
        assert_eq!(now.hash(DLQ_DATA), fields.hash(DLQ_DATA));
    };

    misplace(&mut con);
    let looks = ["PENDING orders", "DELAYED orders", "OVERDUE", "DEAD"].map(|which| format!("NOPAYLOAD {which}"));
    let shown = looks.map(|which| say(&mut con, &format!("RMQ.PEEK app {which}")));
    for (rows, id) in shown.iter().zip(["", "delayed", "", "dead"]) {
        assert!(fits(&if id.is_empty() { "[]".into() } else { format!("[[id {id} ...") }, rows, 0), "{rows}");
        assert!(!rows.contains("id held:") && !rows.contains("id dead:"), "{rows}");
    }
    steps(&mut con, &[("RMQ.PEEK app IDS held:attempts delayed:queue dead:death", "[nil nil nil]")]);
    steps(&mut con, &[("RMQ.RESCHEDULE app 0 IDS held:attempts delayed:queue", "[0 0]")]);
    let wanted = [
        ("pending_without_payload", 2),
        ("processing_without_payload", 1),
        ("delayed_without_payload", 1),
        ("stale_deadlines", 1),
        ("dead_without_payload", 2),
    ];
    let wanted = BTreeMap::from(wanted.map(|(kind, count)| (kind.to_string(), count)));
    assert_eq!(all_pages(&mut con, "RMQ.AUDIT", 100), wanted);
    assert_eq!(all_pages(&mut con, "RMQ.REPAIR", 100), wanted);
    assert_no_field_is_changed(&mut con);
    assert_eq!(all_pages(&mut con, "RMQ.AUDIT", 100), BTreeMap::new());

    misplace(&mut con);
    steps(&mut con, &[("RMQ.PURGE app PENDING orders", "0"), ("RMQ.PURGE app DEAD mails", "0")]);
    assert_no_field_is_changed(&mut con);
    assert_eq!((list(&mut con, PENDING), list(&mut con, DLQ)), (vec![], vec!["dead".into()]));

    misplace(&mut con);
    ok!(con, "ZREM", DELAYS, "held:queue");
    assert_eq!(say(&mut con, "RMQ.RESERVE app 60000 COUNT 5 FROM orders"), "nil");
    assert_no_field_is_changed(&mut con);
    assert_eq!((ack(&mut con, &held), list(&mut con, PENDING)), (1, vec![]));
}

#[test]
fn an_audit_of_more_than_65536_queues_comes_to_an_end() {
    let server = Server::start();
    let mut con = server.con();
    let script = "for n = 100001, 165600 do redis.call('HSET', 'app:queues', 'q' .. n, '{}') end \
                  for n = 165541, 165600 do \
                      redis.call('RMQ.PUBLISH', 'app', 'TO', 'q' .. n, 'm' .. n, 'p') \
                      redis.call('RPUSH', 'app:q' .. n .. ':pending', 'none') \
                  end";
    ok!(con, "EVAL", script, 0);
    let (mut cursor, mut pages) = (0, 0);
    while pages == 0 || cursor != 0 {
        let mut reply = items(ok!(con, "RMQ.AUDIT", "app", "CURSOR", cursor, "COUNT", 50));
        cursor = redis::from_redis_value::<i64>(reply.remove(0)).expect("a cursor");
        pages += 1;
        assert!(pages < 20, "the cursor never comes to an end");
    }
    assert!(pages > 3, "{pages} pages");
}

#[test]
fn a_lost_message_whose_pending_list_is_none_stays_and_the_log_says_why() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    ok!(con, "DEL", PENDING);
    ok!(con, "SET", PENDING, "no list");
    let before = Snapshot::of(&mut con);
    assert_eq!(all_pages(&mut con, "RMQ.REPAIR", 100), BTreeMap::from([("lost".into(), 1)]));
    before.assert_unchanged(&mut con);
    assert_eq!(counter(&server, "repaired"), 0);
    let log = server.log();
    assert!(log.contains("because 'app:orders:pending' cannot be used: it has another type or role"), "{log}");
    assert!(!log.contains("does not say which queue"), "{log}");
    // The queue is unknown.
    ok!(con, "HDEL", PAYLOADS, "a:queue");
    assert_eq!(all_pages(&mut con, "RMQ.REPAIR", 100), BTreeMap::from([("lost".into(), 1)]));
    let log = server.log();
    assert!(log.contains("because 'app:payloads' does not say which queue they belong to"), "{log}");
}

#[test]
fn a_deadline_that_never_comes_is_none() {
    let server = Server::start();
    let mut con = server.con();
    // The other one is in microseconds.
    for never in ["+inf", "1794891056259224"] {
        ok!(con, "FLUSHALL");
        order(&mut con, "a");
        ok!(con, "LMOVE", PENDING, WORK, "RIGHT", "LEFT");
        ok!(con, "ZADD", EXPIRES, never, "a");
        assert_eq!(all_pages(&mut con, "RMQ.REPAIR", 100), BTreeMap::from([("without_deadline".into(), 1)]), "{never}");
        let deadline: f64 = ask!(con, "ZSCORE", EXPIRES, "a");
        assert!(deadline < (server_time_ms(&mut con) + 20_000) as f64, "{never}");

        // Of two places the one that it can be taken from stays.
        ok!(con, "ZADD", EXPIRES, never, "a");
        ok!(con, "RPUSH", PENDING, "a");
        assert_eq!(all_pages(&mut con, "RMQ.REPAIR", 100), BTreeMap::from([("in_two_places".into(), 1)]), "{never}");
        assert_eq!(all_pages(&mut con, "RMQ.AUDIT", 100), BTreeMap::new(), "{never}");
        assert_eq!(take(&mut con).id, "a", "{never}");
    }
}
