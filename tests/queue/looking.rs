//! What an operator asks: RMQ.STATS and RMQ.PEEK.

use crate::calls::*;
use crate::common::*;
use redis::{Connection, Value};
use std::collections::BTreeMap;

/// A map, in RESP2 a flat array, as text.
fn fields(reply: Value) -> BTreeMap<String, Value> {
    let words = items(reply);
    assert_eq!(words.len() % 2, 0, "{words:?}");
    words.chunks_exact(2).map(|pair| (text(pair[0].clone()), pair[1].clone())).collect()
}

/// The namespace's figures, and those of one queue.
fn stats(con: &mut Connection, queue: &str) -> (BTreeMap<String, Value>, BTreeMap<String, Value>) {
    let mut all = fields(ok!(con, "RMQ.STATS", "app"));
    let queue = fields(all.remove("queues").expect("queues")).remove(queue);
    (all, queue.map(fields).unwrap_or_default())
}

#[track_caller]
fn number(fields: &BTreeMap<String, Value>, name: &str) -> i64 {
    match fields.get(name) {
        Some(Value::Int(number)) => *number,
        other => panic!("{name}: {other:?}"),
    }
}

#[track_caller]
fn peek(con: &mut Connection, which: &str) -> Vec<BTreeMap<String, String>> {
    let rows = items(HERE.call(con, &format!("RMQ.PEEK app {which}")).unwrap());
    let readable = |(name, value)| (name, text(value));
    rows.into_iter().map(|row| fields(row).into_iter().map(readable).collect()).collect()
}

fn ids_of(rows: &[BTreeMap<String, String>]) -> Vec<&str> {
    rows.iter().map(|row| row["id"].as_str()).collect()
}

/// One message in every state, in the queue `orders`.
fn one_in_every_state(con: &mut Connection) {
    order(con, "dead");
    let dead = take(con);
    assert_eq!(nack(con, &dead, "DEAD ERROR boom"), "DEAD");
    order(con, "overdue");
    take_for(con, 1);
    order(con, "held");
    sleep_ms(3);
    // Without a RESERVE, which would take the overdue one back.
    ok!(con, "LMOVE", PENDING, WORK, "RIGHT", "LEFT");
    let now = server_time_ms(con);
    ok!(con, "ZADD", EXPIRES, format!("{}.5", now + HOUR), "held");
    ok!(con, "HSET", PAYLOADS, "held:attempts", format!("1-{now}000"));
    order(con, "pending");
    delayed_order(con, "delayed", HOUR);
    ok!(con, "HSET", PAYLOADS, "lost", "p", "lost:queue", "app:orders");
}

#[test]
fn stats_count_what_is_where_and_what_is_late() {
    let server = Server::start();
    let mut con = server.con();
    one_in_every_state(&mut con);
    ok!(con, "ZADD", DELAYS, 1000, "due", 2000, "due too");
    let (all, orders) = stats(&mut con, "orders");
    for (name, wanted) in
        [("delayed", 3), ("due", 2), ("next_due_in_ms", 0), ("leased", 2), ("overdue", 1), ("dead", 1)]
    {
        assert_eq!(number(&all, name), wanted, "{name}: {all:?}");
    }
    for (name, wanted) in [("pending", 1), ("processing", 2), ("attempts", 25), ("paused", 0), ("waiting_clients", 0)] {
        assert_eq!(number(&orders, name), wanted, "{name}: {orders:?}");
    }
    for (name, wanted) in
        [("published", 5), ("delivered", 2), ("acked", 0), ("died", 1), ("retried", 0), ("expired", 0)]
    {
        assert_eq!(number(&orders, name), wanted, "{name}: {orders:?}");
    }
    ok!(con, "ZREM", DELAYS, "due", "due too");
    let next = number(&stats(&mut con, "orders").0, "next_due_in_ms");
    assert!((HOUR - 60_000..=HOUR).contains(&next), "{next}");
}

#[test]
fn stats_of_named_queues_show_these_and_the_policy_in_force() {
    let server = Server::start();
    let mut con = server.con();
    for queue in ["orders", "mails", "urgent"] {
        publish(&mut con, "app", queue, &format!("{queue}-1"));
    }
    ok!(con, "RMQ.POLICY", "app", "mails", "ATTEMPTS", 3, "PAUSED", "yes");
    let names = |reply| fields(fields(reply).remove("queues").unwrap()).into_keys().collect::<Vec<_>>();
    assert_eq!(names(ok!(con, "RMQ.STATS", "app")), ["mails", "orders", "urgent"]);
    assert_eq!(names(ok!(con, "RMQ.STATS", "app", "mails", "nothing")), ["mails", "nothing"]);
    let twice = ok!(con, "RMQ.STATS", "app", "orders", "mails", "orders");
    let twice = items(items(twice).pop().expect("queues"));
    assert_eq!(twice.iter().step_by(2).map(|name| text(name.clone())).collect::<Vec<_>>(), ["orders", "mails"]);
    let mails = stats(&mut con, "mails").1;
    assert_eq!((number(&mails, "attempts"), number(&mails, "paused")), (3, 1));
    steps(
        &mut con,
        &[
            ("RMQ.STATS app a:b", "ERR queue must not be empty, ..."),
            ("RMQ.STATS app *", "ERR queue must not be empty, ..."),
            ("RMQ.STATS", "ERR wrong number of arguments ..."),
        ],
    );
    assert_eq!(
        say(&mut con, "RMQ.STATS none"),
        "[delayed 0 due 0 next_due_in_ms nil leased 0 overdue 0 dead 0 queues []]"
    );
}

#[test]
fn a_list_of_another_type_hides_no_other_queue() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    publish(&mut con, "app", "mails", "m");
    ok!(con, "SET", "app:mails:processing", "no list");
    ok!(con, "HSET", PAYLOADS, "lost", "p", "lost:queue", "app:orders");
    assert_eq!(number(&stats(&mut con, "orders").1, "pending"), 1);
    let mails = stats(&mut con, "mails").1;
    assert_eq!((number(&mails, "pending"), &mails["processing"]), (1, &Value::Nil));
    ok!(con, "DEL", "app:mails:pending");
    ok!(con, "SET", "app:mails:pending", "no list");
    let mails = stats(&mut con, "mails").1;
    assert_eq!([&mails["pending"], &mails["next_age_ms"]], [&Value::Nil; 2]);
    steps(
        &mut con,
        &[
            ("RMQ.STATS app orders mails", "WRONGTYPE the key 'app:mails:pending' must be a list"),
            ("RMQ.PEEK app IDS m", "WRONGTYPE the key 'app:mails:pending' must be a list"),
            ("RMQ.PEEK app IDS lost", "[[id lost state lost ..."),
            ("RMQ.CANCEL app IDS lost", "[lost]"),
        ],
    );
}

#[test]
fn the_counters_of_a_queue_follow_its_messages_and_are_its_own() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.POLICY", "app", "*", "ATTEMPTS", 3);
    for id in ["a", "b", "c"] {
        order(&mut con, id);
    }
    publish(&mut con, "app", "mails", "m");
    publish(&mut con, "other", "orders", "o");
    let [a, b, c] = <[_; 3]>::try_from(take_up_to(&mut con, 3)).expect("three");
    assert_eq!(ack(&mut con, &a), 1);
    assert_eq!(nack(&mut con, &b, "DELAY 0"), "RETRY");
    assert_eq!(nack(&mut con, &c, "DEAD"), "DEAD");
    for _ in 0..2 {
        take_for(&mut con, 1);
        sleep_ms(3);
    }
    tick(&mut con);
    let orders = stats(&mut con, "orders").1;
    let counts = ["published", "delivered", "acked", "retried", "expired", "died"].map(|name| number(&orders, name));
    // b was delivered three times; its last lease was the death of it.
    assert_eq!(counts, [3, 5, 1, 1, 2, 2], "{orders:?}");
    let mails = stats(&mut con, "mails").1;
    assert_eq!((number(&mails, "published"), number(&mails, "delivered")), (1, 0));
    // Another database has others.
    ok!(con, "SELECT", 1);
    assert_eq!(
        number(
            &fields(
                fields(fields(ok!(con, "RMQ.STATS", "app", "orders")).remove("queues").unwrap())
                    .remove("orders")
                    .unwrap()
            ),
            "published"
        ),
        0
    );
}

#[test]
fn config_resetstat_sets_the_counters_to_0_and_nothing_else_does() {
    let server = Server::start();
    let mut con = server.con();
    for id in 0..5 {
        order(&mut con, &format!("{id}"));
    }
    // Calls of every kind: the server counts some of them in other ways.
    ok!(con, "EVAL", "return redis.call('RMQ.PUBLISH', 'app', 'TO', 'orders', 'script', 'p')", 0);
    let mut transaction = redis::pipe();
    transaction.atomic().add_command(command!("RMQ.PUBLISH", "app", "TO", "orders", "multi", "p"));
    let _: Value = transaction.query(&mut con).unwrap();
    say(&mut con, "RMQ.PUBLISH app TO orders a b c");
    say(&mut con, "RMQ.PUBLISH");
    let mut waiter = Waiter::from(&server, "nothing");
    publish(&mut con, "app", "nothing", "x");
    waiter.served_one();
    let held = take_up_to(&mut con, 100);
    assert_eq!(held.len(), 7);
    for _ in 0..3 {
        assert_eq!(number(&stats(&mut con, "orders").1, "published"), 7);
        assert_eq!(counter(&server, "published"), 8);
    }
    // STATS looks once a second, INFO always.
    ok!(con, "CONFIG", "RESETSTAT");
    assert!(eventually(deadline(), || number(&stats(&mut con, "orders").1, "published") == 0));
    let orders = stats(&mut con, "orders").1;
    assert_eq!((number(&orders, "published"), number(&orders, "delivered")), (0, 0));
    assert!(number(&orders, "idle_ms") >= 0);
    assert_eq!(counter(&server, "published"), 0);
    order(&mut con, "new");
    assert_eq!(number(&stats(&mut con, "orders").1, "published"), 1);
    ok!(con, "CONFIG", "RESETSTAT");
    assert_eq!(counter(&server, "published"), 0);
    assert_eq!(number(&stats(&mut con, "orders").1, "published"), 0);
    // Where only commands ran that may wait.
    assert_eq!(take_up_to(&mut con, 100).len(), 1);
    assert_eq!(counter(&server, "reserved"), 1);
    ok!(con, "CONFIG", "RESETSTAT");
    assert_eq!(counter(&server, "reserved"), 0);
    // Where commands of both kinds ran, it is noticed once.
    order(&mut con, "a");
    (0..5).for_each(|_| drop(take_up_to(&mut con, 1)));
    assert_eq!((counter(&server, "published"), counter(&server, "reserved")), (1, 1));
    ok!(con, "CONFIG", "RESETSTAT");
    assert_eq!(counter(&server, "published"), 0);
    order(&mut con, "b");
    take_up_to(&mut con, 1);
    for _ in 0..2 {
        assert_eq!((counter(&server, "published"), counter(&server, "reserved")), (1, 1));
    }
}

#[test]
fn the_age_of_the_next_message_counts_from_when_it_could_be_taken() {
    let server = Server::start();
    let mut con = server.con();
    let age = |con: &mut Connection| match &stats(con, "orders").1["next_age_ms"] {
        Value::Nil => None,
        age => Some(redis::from_redis_value::<i64>(age.clone()).unwrap()),
    };
    // An id of the producer's own contains no time, and it was never delivered.
    order(&mut con, "own");
    assert_eq!(age(&mut con), None);
    let own = take(&mut con);
    assert_eq!(age(&mut con), None);
    sleep_ms(60);
    // A lease that runs out, or is given back.
    release(&mut con, &own);
    assert!(age(&mut con).is_some_and(|ms| ms < 60), "{:?}", age(&mut con));
    let own = take(&mut con);
    ack(&mut con, &own);
    // The server's own ids contain a time.
    ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "*", "p");
    sleep_ms(30);
    let waited = age(&mut con).expect("the id contains a time");
    assert!((30..3000).contains(&waited), "{waited}");
    let made = take(&mut con);
    ack(&mut con, &made);
    // One that was delayed could not be taken before its time.
    ok!(con, "RMQ.PUBLISH", "app", "DELAY", 300, "TO", "orders", "*", "p");
    assert_eq!(age(&mut con), None);
    sleep_ms(320);
    tick(&mut con);
    let waited = age(&mut con).expect("the id contains a time");
    assert!((0..280).contains(&waited), "{waited}");
    // Nobody can have waited for a negative time.
    let future = server_time_ms(&mut con) + HOUR;
    ok!(con, "HSET", PAYLOADS, "x", "p", "x:attempts", format!("1-{}000", future));
    ok!(con, "RPUSH", PENDING, "x");
    assert_eq!(age(&mut con), Some(0));
}

#[test]
fn stats_show_who_waits_and_since_when_nobody_asked() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    let idle = |con: &mut Connection, queue: &str| stats(con, queue).1["idle_ms"].clone();
    assert_eq!(idle(&mut con, "orders"), Value::Nil);
    take(&mut con);
    sleep_ms(30);
    let waited: i64 = redis::from_redis_value(idle(&mut con, "orders")).unwrap();
    assert!((30..3000).contains(&waited), "{waited}");
    let waiter = Waiter::from(&server, "orders mails");
    let _other = Waiter::from(&server, "orders");
    sleep_ms(30);
    let orders = stats(&mut con, "orders").1;
    assert_eq!((number(&orders, "waiting_clients"), number(&orders, "idle_ms")), (2, 0));
    drop(waiter);
    assert!(eventually(deadline(), || number(&stats(&mut con, "orders").1, "waiting_clients") == 1));
}

#[test]
fn stats_take_the_same_time_whatever_the_number_of_messages() {
    let server = Server::start();
    let mut con = server.con();
    // In databases of their own, for the turns of the measurement.
    let fill = |con: &mut Connection, database: usize, messages: usize| {
        ok!(con, "SELECT", database);
        for queue in 0..10 {
            let mut publish = command!("RMQ.PUBLISH", "app", "TO", format!("q{queue}"));
            let mut delay = command!("RMQ.PUBLISH", "app", "DELAY", HOUR, "TO", format!("q{queue}"));
            for message in 0..messages {
                publish.arg(format!("{queue}-{message}")).arg("payload");
                delay.arg(format!("{queue}-{message}-later")).arg("payload");
            }
            let _: (Value, Value) = redis::pipe().add_command(publish).add_command(delay).query(con).unwrap();
        }
    };
    fill(&mut con, 0, 10);
    fill(&mut con, 1, 10_000);
    // With work for each message it would take a hundred times as long.
    assert_ratio(3.0, [1, 0], |database: usize| {
        ok!(con, "SELECT", database);
        server.cost(|| (0..200).for_each(|_| drop(ok!(con, "RMQ.STATS", "app"))))
    });
}

/// Stores messages of ten queues by script, a third of them each pending, delayed and leased.
const STORE: &str = "
for n = 1, ARGV[1] do
    local id, queue = 'm' .. n, 'app:q' .. n % 10
    redis.call('HSET', 'app:payloads', id, 'p', id .. ':queue', queue)
    if n % 3 == 0 then
        redis.call('LPUSH', queue .. ':pending', id)
    elseif n % 3 == 1 then
        redis.call('ZADD', 'app:delays', n % 2 == 0 and n or 8e12 + n, id)
    else
        redis.call('LPUSH', queue .. ':processing', id)
        redis.call('ZADD', 'app:expires', n % 2 == 0 and n + 0.5 or 8e12 + 0.5, id)
    end
end
for queue = 0, 9 do redis.call('HSET', 'app:queues', 'q' .. queue, '{}') end";

/// Reads by plain commands what STATS replies with, but for the policies and what is kept in memory.
const READ: &str = "
local figures = {redis.call('ZCARD', 'app:delays'), redis.call('ZCARD', 'app:expires'), redis.call('LLEN', 'app:dlq'),
    redis.call('ZCOUNT', 'app:delays', '-inf', ARGV[1]), redis.call('ZCOUNT', 'app:expires', '-inf', ARGV[1])}
for _, queue in ipairs(redis.call('HKEYS', 'app:queues')) do
    local pending = 'app:' .. queue .. ':pending'
    local id = redis.call('LINDEX', pending, -1)
    table.insert(figures, {redis.call('LLEN', pending), redis.call('LLEN', 'app:' .. queue .. ':processing'), id,
        redis.call('HGET', 'app:payloads', id .. ':attempts')})
end
return figures";

#[test]
fn stats_of_a_million_messages_in_ten_queues_cost_no_more_than_a_script_that_reads_the_same() {
    const MESSAGES: i64 = 1_000_000;
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "EVAL", STORE, 0, MESSAGES);
    let now = server_time_ms(&mut con);
    // By the server's clock; the quickest of some hundred calls, as others use the machine, too.
    assert_ratio(1.0, ["RMQ.STATS", "EVAL"], |command| {
        let call = |_| {
            ok!(con, "CONFIG", "RESETSTAT");
            match command {
                "EVAL" => ok!(con, "EVAL", READ, 0, now),
                _ => ok!(con, "RMQ.STATS", "app"),
            };
            server.commandstats(command).usec
        };
        let quickest = (0..300).map(call).min().unwrap();
        println!("{command} of ten queues, {MESSAGES} messages: {quickest} µs");
        assert!(quickest > 0, "it was not measured");
        quickest
    });
    let whole = stats(&mut con, "q0").0;
    let pending: i64 = (0..10).map(|n| number(&stats(&mut con, &format!("q{n}")).1, "pending")).sum();
    assert_eq!(pending + number(&whole, "delayed") + number(&whole, "leased"), MESSAGES, "{whole:?}");
    assert!(number(&whole, "due") > 100_000 && number(&whole, "overdue") > 100_000, "{whole:?}");
}

#[test]
fn peek_shows_every_state_with_what_applies_to_it() {
    let server = Server::start();
    let mut con = server.con();
    one_in_every_state(&mut con);
    let now = server_time_ms(&mut con);
    for (which, id, state, times) in [
        ("PENDING orders", "pending", "pending", &[][..]),
        ("PROCESSING orders", "overdue", "processing", &["since_ms", "deadline_ms"]),
        ("DELAYED", "delayed", "delayed", &["due_ms"]),
        ("OVERDUE", "overdue", "processing", &["since_ms", "deadline_ms"]),
        ("DEAD orders", "dead", "dead", &["since_ms"]),
        ("IDS lost", "lost", "lost", &[]),
        ("IDS held", "held", "processing", &["since_ms", "deadline_ms"]),
    ] {
        let rows = peek(&mut con, which);
        let row = rows.first().unwrap_or_else(|| panic!("{which} shows nothing"));
        assert_eq!(
            (row["id"].as_str(), row["state"].as_str(), row["queue"].as_str()),
            (id, state, "orders"),
            "{which}"
        );
        let payload = if id == "lost" || id == "delayed" { "p".into() } else { format!("payload of {id}") };
        assert_eq!(row["payload"], payload, "{which}");
        for time in ["since_ms", "due_ms", "deadline_ms"] {
            assert_eq!(row.contains_key(time), times.contains(&time), "{which}: {row:?}");
            if let Some(ms) = row.get(time) {
                assert!((ms.parse::<i64>().unwrap() - now).abs() <= HOUR + 60_000, "{which}: {row:?}");
            }
        }
        let [without] = &peek(&mut con, &format!("NOPAYLOAD COUNT 1 {which}").replace("COUNT 1 IDS", "IDS"))[..] else {
            panic!("one row");
        };
        assert!(!without.contains_key("payload") && without.len() == row.len() - 1);
    }
    let dead = peek(&mut con, "DEAD").remove(0);
    assert_eq!((dead["error"].as_str(), dead["death"].as_str(), dead["attempts"].as_str()), ("boom", "rejected", "1"));
    assert_eq!(ids_of(&peek(&mut con, "PROCESSING orders")), ["overdue", "held"]);
    assert_eq!(say(&mut con, "RMQ.PEEK app NOPAYLOAD IDS none"), "[nil]");
}

#[test]
fn peek_pages_from_what_comes_next() {
    let server = Server::start();
    let mut con = server.con();
    for number in 0..25 {
        order(&mut con, &format!("o{number:02}"));
        delayed_order(&mut con, &format!("d{number:02}"), HOUR + number);
        ok!(
            con,
            "HSET",
            DLQ_DATA,
            format!("x{number:02}"),
            "p",
            format!("x{number:02}:queue"),
            if number % 2 == 0 { "app:orders" } else { "app:mails" }
        );
        ok!(con, "LPUSH", DLQ, format!("x{number:02}"));
    }
    let range = |letter: &str, numbers: std::ops::Range<usize>, step: usize| {
        numbers.step_by(step).map(|number| format!("{letter}{number:02}")).collect::<Vec<_>>()
    };
    for (which, wanted) in [
        ("PENDING orders", range("o", 0..10, 1)),
        ("COUNT 3 OFFSET 4 PENDING orders", range("o", 4..7, 1)),
        ("OFFSET 20 PENDING orders", range("o", 20..25, 1)),
        ("OFFSET 25 PENDING orders", vec![]),
        ("OFFSET 9999999999 PENDING orders", vec![]),
        ("COUNT 3 DELAYED", range("d", 0..3, 1)),
        ("COUNT 3 OFFSET 22 DELAYED orders", range("d", 22..25, 1)),
        ("DELAYED mails", vec![]),
        ("COUNT 100 DEAD", range("x", 0..25, 1)),
        ("COUNT 4 OFFSET 10 DEAD", range("x", 10..14, 1)),
        ("COUNT 3 OFFSET 2 DEAD mails", range("x", 5..10, 2)),
    ] {
        assert_eq!(ids_of(&peek(&mut con, which)), wanted, "{which}");
    }
}

#[test]
fn ids_without_message_take_no_place_on_a_page() {
    let server = Server::start();
    let mut con = server.con();
    let now = server_time_ms(&mut con);
    for number in 0..15 {
        ok!(con, "ZADD", DELAYS, number, format!("none{number}"));
        ok!(con, "ZADD", EXPIRES, number, format!("none{number}"));
        for list in [PENDING, WORK, DLQ] {
            ok!(con, "RPUSH", list, format!("none{number}"));
        }
    }
    for number in 0..3 {
        for id in ["o", "w", "d", "x"].map(|letter| format!("{letter}{number}")) {
            let map = if id.starts_with('x') { DLQ_DATA } else { PAYLOADS };
            ok!(con, "HSET", map, &id, "p", format!("{id}:queue"), "app:orders");
        }
        ok!(con, "LPUSH", PENDING, format!("o{number}"));
        ok!(con, "LPUSH", WORK, format!("w{number}"));
        ok!(con, "ZADD", EXPIRES, now - 10 + number, format!("w{number}"));
        ok!(con, "ZADD", DELAYS, now + HOUR + number, format!("d{number}"));
        ok!(con, "LPUSH", DLQ, format!("x{number}"));
    }
    let states =
        [("PENDING orders", "o"), ("PROCESSING orders", "w"), ("OVERDUE", "w"), ("DELAYED", "d"), ("DEAD", "x")];
    for (which, letter) in states {
        let page = |con: &mut Connection, words: &str| {
            let rows = peek(con, &format!("{words} {which}"));
            ids_of(&rows).iter().map(|id| id.replace(letter, "")).collect::<Vec<_>>().concat()
        };
        assert_eq!(page(&mut con, "COUNT 2"), "01", "{which}");
        assert_eq!(page(&mut con, "COUNT 2 OFFSET 2"), "2", "{which}");
        assert_eq!(page(&mut con, ""), "012", "{which}");
    }
}

#[test]
fn peek_follows_a_message_through_its_life_whoever_moves_it() {
    let server = Server::start();
    let mut con = server.con();
    let state = |con: &mut Connection| peek(con, "IDS a").remove(0)["state"].clone();
    delayed_order(&mut con, "a", 0);
    assert_eq!(state(&mut con), "delayed");
    ok!(con, "RMQ.DELAYTICK", DELAYS, PAYLOADS, 10);
    assert_eq!(state(&mut con), "pending");
    // A consumer of the scripts dies between its two steps.
    ok!(con, "LMOVE", PENDING, WORK, "RIGHT", "LEFT");
    let row = peek(&mut con, "IDS a").remove(0);
    assert_eq!(row["state"], "processing");
    assert!(!row.contains_key("deadline_ms"));
    ok!(con, "ZADD", EXPIRES, 1000, "a");
    assert_eq!(ids_of(&peek(&mut con, "OVERDUE orders")), ["a"]);
    ok!(con, "RMQ.RETRY", PAYLOADS, DELAYS, EXPIRES, WORK, "a", "new payload", 60);
    let row = peek(&mut con, "IDS a").remove(0);
    assert_eq!((row["state"].as_str(), row["payload"].as_str()), ("delayed", "new payload"));
    // The live one where an id is live and dead.
    ok!(con, "HSET", DLQ_DATA, "a", "dead", "a:queue", "app:orders");
    ok!(con, "LPUSH", DLQ, "a");
    assert_eq!(state(&mut con), "delayed");
    assert_eq!(peek(&mut con, "DEAD").remove(0)["payload"], "dead");
    // A pending message of mx-rmq's producer has a deadline, and is not held for that.
    ok!(con, "HSET", PAYLOADS, "script", "p", "script:queue", "app:orders");
    ok!(con, "LPUSH", PENDING, "script");
    ok!(con, "ZADD", EXPIRES, 1000, "script");
    assert_eq!(peek(&mut con, "OVERDUE").remove(0)["state"], "pending");
    // In another list than its own.
    ok!(con, "HSET", QUEUES, "orders", "{}");
    ok!(con, "HSET", PAYLOADS, "strayed", "p", "strayed:queue", "app:nowhere");
    ok!(con, "RPUSH", PENDING, "strayed");
    assert_eq!(peek(&mut con, "IDS strayed").remove(0)["state"], "pending");
    // Ids without message are left out.
    ok!(con, "RPUSH", PENDING, "stale");
    assert_eq!(ids_of(&peek(&mut con, "PENDING orders")), ["strayed", "script"]);
}

#[test]
fn peek_says_what_is_wrong_with_its_words() {
    let server = Server::start();
    let mut con = server.con();
    order(&mut con, "a");
    let before = Snapshot::of(&mut con);
    steps(
        &mut con,
        &[
            (
                "RMQ.PEEK app",
                "ERR PENDING, PROCESSING, DELAYED, OVERDUE, DEAD or IDS must be given, followed by a queue or ids",
            ),
            ("RMQ.PEEK app PENDING", "ERR PENDING must be followed by a queue"),
            ("RMQ.PEEK app IDS", "ERR IDS must be followed by at least one id"),
            ("RMQ.PEEK app PENDING a:b", "ERR queue must not be empty, ..."),
            ("RMQ.PEEK app PENDING orders more", "ERR unknown option 'more'"),
            ("RMQ.PEEK app DEAD NOPAYLOAD", "ERR option NOPAYLOAD must come before DEAD"),
            ("RMQ.PEEK app DEAD COUNT 5", "ERR option COUNT must come before DEAD"),
            ("RMQ.PEEK app PENDING orders offset 5", "ERR option OFFSET must come before PENDING"),
            ("RMQ.PEEK app IDS none NOPAYLOAD", "[nil nil]"),
            ("RMQ.PEEK app COUNT 0 DEAD", "ERR COUNT must be a positive integer"),
            ("RMQ.PEEK app OFFSET -1 DEAD", "ERR OFFSET must be an integer, 0 or more"),
            ("RMQ.PEEK app OFFSET 1 IDS a", "ERR OFFSET and IDS must not be given together"),
            ("RMQ.PEEK app COUNT 1 IDS a", "ERR COUNT and IDS must not be given together"),
            ("RMQ.PEEK app FIRST DEAD", "ERR unknown option 'FIRST'"),
            ("RMQ.PEEK app BACKWARDS", "ERR unknown option 'BACKWARDS'"),
            ("RMQ.PEEK app nopayload pending orders", "[[id a state pending queue orders attempts 0]]"),
        ],
    );
    before.assert_unchanged(&mut con);
    ok!(con, "SET", "app:mails:pending", "x");
    steps(&mut con, &[("RMQ.PEEK app PENDING mails", "WRONGTYPE the key 'app:mails:pending' must be a list")]);
}

#[test]
fn a_look_changes_nothing_and_works_on_a_replica_and_in_resp3() {
    let server = Server::start();
    let mut con = server.con();
    one_in_every_state(&mut con);
    let before = Snapshot::of(&mut con);
    let looks = [
        "RMQ.STATS app",
        "RMQ.STATS app orders nothing",
        "RMQ.PEEK app COUNT 100 PENDING orders",
        "RMQ.PEEK app PROCESSING orders",
        "RMQ.PEEK app DELAYED",
        "RMQ.PEEK app OVERDUE",
        "RMQ.PEEK app DEAD",
        "RMQ.PEEK app IDS pending held delayed dead lost none",
    ];
    ok!(con, "WATCH", PAYLOADS, PENDING, WORK, EXPIRES, DELAYS, QUEUES, DLQ, DLQ_DATA);
    looks.iter().for_each(|look| assert!(say(&mut con, look).starts_with('['), "{look}"));
    before.assert_unchanged(&mut con);
    let _: () =
        redis::pipe().atomic().cmd("PING").ignore().query(&mut con).expect("nothing that is watched has changed");

    let replica = Server::start();
    let mut on_replica = replica.con();
    ok!(on_replica, "REPLICAOF", "127.0.0.1", server.port());
    assert!(eventually(deadline(), || length(&mut on_replica, DLQ) == 1));
    let peeks = &looks[2..];
    for look in peeks {
        assert_eq!(say(&mut on_replica, look), say(&mut con, look), "{look}");
    }
    assert!(say(&mut on_replica, "RMQ.STATS app").starts_with("[delayed 1 due 0 "));
    assert!(say(&mut on_replica, "RMQ.CANCEL app IDS pending").starts_with("READONLY"));

    let mut raw = Raw::connect(&server);
    raw.call(&["HELLO", "3"]);
    for look in [looks[0], looks[2]] {
        let Reply::Map(_) = (match raw.call(&HERE.words(look)) {
            Reply::Array(mut rows) => rows.remove(0),
            other => other,
        }) else {
            panic!("{look}: a map in RESP3");
        };
    }
}
