//! RMQ.PUBLISH payload_map pending [URGENT] id payload [id payload …],
//! RMQ.SCHEDULE payload_map delay_tasks id payload queue delay_ms [AT] and RMQ.NEXTDELAY delay_tasks

mod common;
mod life;
use common::*;
use life::*;

use redis::Value;
use std::collections::{BTreeMap, BTreeSet};

fn fields(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(f, v)| (f.to_string(), v.to_string())).collect()
}

#[test]
fn a_published_message_has_payload_and_queue_stored_and_its_id_stands_at_the_left_of_pending() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "first");
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "b", "second");
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(PENDING), ["b", "a"]);
    let stored = fields(&[("a", "first"), ("a:queue", QUEUE), ("b", "second"), ("b:queue", QUEUE)]);
    assert_eq!(after.hash(MAP), stored);
    assert_eq!(after.keys().len(), 2);
    assert_eq!(counter(&server, "published"), 2);
}

#[test]
fn the_queue_is_the_name_of_pending_without_its_suffix() {
    let server = Server::start();
    let mut con = server.con();
    for queue in ["orders", "mx-rmq:{tag}:orders", "q:pending", "", "with blank"] {
        ok!(con, "FLUSHALL");
        let pending = format!("{queue}:pending");
        ok!(con, "RMQ.PUBLISH", "m", &pending, "a", "payload");
        assert_eq!(Snapshot::of(&mut con).hash("m")["a:queue"], queue);
        assert_eq!(Snapshot::of(&mut con).list(&pending), ["a"]);
    }
}

#[test]
fn a_pending_key_of_another_name_is_an_error_and_nothing_is_written() {
    let server = Server::start();
    let mut con = server.con();
    for name in [
        "orders",
        "orders:processing",
        "orders:pendin",
        "orders:PENDING",
        "pending",
        "",
    ] {
        let error = err!(con, "RMQ.PUBLISH", MAP, name, "a", "payload");
        assert_eq!(error, "ERR pending must be a key that ends in ':pending'", "{name:?}");
    }
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
}

#[test]
fn messages_are_taken_in_the_order_of_their_publication_and_urgent_ones_next() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "", "b", "");
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "c", "");
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "URGENT", "now", "");
    let taken: Vec<String> = reserve_up_to(&mut con, 9).into_iter().map(|d| d.id).collect();
    assert_eq!(taken, ["now", "a", "b", "c"]);
}

#[test]
fn several_urgent_messages_are_pushed_to_the_right_one_after_the_other() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "");
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "uRgEnT", "x", "", "y", "");
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["a", "x", "y"]);
}

#[test]
fn the_word_urgent_is_an_id_where_an_id_stands() {
    let server = Server::start();
    let mut con = server.con();
    assert_eq!(
        text(ok!(con, "RMQ.PUBLISH", MAP, PENDING, "URGENT", "payload")),
        "URGENT"
    );
    let both = ok!(con, "RMQ.PUBLISH", MAP, PENDING, "URGENT", "urgent", "a", "b", "c");
    assert_eq!(strings(both), ["urgent", "b"]);
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["URGENT", "urgent", "b"]);
    assert_eq!(Snapshot::of(&mut con).hash(MAP)["urgent"], "a");
}

#[test]
fn one_message_is_answered_by_its_id_and_several_by_an_array() {
    let server = Server::start();
    let mut raw = Raw::connect(&server);
    let one = |id| ["RMQ.PUBLISH", MAP, PENDING, id, "payload"];
    assert_eq!(raw.call_raw(&one("a")), b"$1\r\na\r\n");
    assert_eq!(raw.call_raw(&one("a")), b"$-1\r\n");
    let several = ["RMQ.PUBLISH", MAP, PENDING, "b", "", "a", "", "c", ""];
    assert_eq!(raw.call_raw(&several), b"*3\r\n$1\r\nb\r\n$-1\r\n$1\r\nc\r\n");
    assert_eq!(raw.call_raw(&several), b"*3\r\n$-1\r\n$-1\r\n$-1\r\n");
    raw.call(&["HELLO", "3"]);
    assert_eq!(raw.call_raw(&one("a")), b"_\r\n");
    assert_eq!(raw.call_raw(&several), b"*3\r\n_\r\n_\r\n_\r\n");
}

#[test]
fn an_id_that_exists_already_is_left_alone_wherever_the_message_is() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, "delayed", "original", QUEUE, HOUR);
    take_new(&mut con, "working");
    publish(&mut con, "pending");
    let before = Snapshot::of(&mut con);
    let tap = ReplicaTap::attach(&server);
    let watcher = Watcher::on(&server, &before.keys());
    for id in ["delayed", "working", "pending"] {
        assert_eq!(ok!(con, "RMQ.PUBLISH", MAP, PENDING, id, "other"), Value::Nil);
        assert_eq!(ok!(con, "RMQ.PUBLISH", MAP, PENDING, "URGENT", id, "other"), Value::Nil);
        assert_eq!(
            ok!(con, "RMQ.PUBLISH", MAP, "mx-rmq:bills:pending", id, "other"),
            Value::Nil
        );
        assert_eq!(ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, id, "other", QUEUE, 0), Value::Nil);
    }
    before.assert_unchanged(&mut con);
    assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
    assert!(watcher.untouched());
}

#[test]
fn of_several_messages_the_new_ones_are_published_and_the_others_left_alone() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "b");
    let reply = ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "1", "b", "2", "c", "3");
    assert_eq!(
        reply,
        Value::Array(vec![
            Value::BulkString(b"a".into()),
            Value::Nil,
            Value::BulkString(b"c".into())
        ])
    );
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(PENDING), ["c", "a", "b"]);
    assert_eq!(after.hash(MAP)["b"], "payload of b");
    assert_eq!(after.hash(MAP)["c"], "3");
    assert_eq!(counter(&server, "published"), 3);
}

#[test]
fn an_id_twice_in_one_call_is_published_once_with_its_first_payload() {
    let server = Server::start();
    let mut con = server.con();
    let reply = ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "first", "a", "second");
    assert_eq!(reply, Value::Array(vec![Value::BulkString(b"a".into()), Value::Nil]));
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(PENDING), ["a"]);
    assert_eq!(after.hash(MAP), fields(&[("a", "first"), ("a:queue", QUEUE)]));
}

#[test]
fn ids_that_the_server_makes_are_unique_and_sort_by_time_in_one_call_and_across_calls() {
    let server = Server::start();
    let mut con = server.con();
    let mut made: Vec<String> = Vec::new();
    for round in 0..50 {
        made.push(text(ok!(con, "RMQ.PUBLISH", MAP, PENDING, "*", "one")));
        let several = strings(ok!(server.con(), "RMQ.PUBLISH", MAP, PENDING, vec!["*"; 20]));
        assert_eq!(several.len(), 10);
        made.extend(several);
        if round % 10 == 0 {
            made.push(text(ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, "*", "later", QUEUE, 0)));
        }
    }
    assert!(made.windows(2).all(|pair| pair[0] < pair[1]), "{made:?}");
    let after = Snapshot::of(&mut con);
    let stored: BTreeSet<String> = after.hash(MAP).into_keys().filter(|f| !f.ends_with(":queue")).collect();
    assert_eq!(stored, made.iter().cloned().collect());
    assert_eq!(after.list(PENDING).len() + after.zset(DELAYS).len(), made.len());
}

#[test]
fn an_id_that_the_server_made_may_stand_among_given_ones() {
    let server = Server::start();
    let mut con = server.con();
    let ids = strings(ok!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "1", "*", "2", "b", "3"));
    assert_eq!((ids[0].as_str(), ids[2].as_str()), ("a", "b"));
    let payloads: Vec<String> = reserve_up_to(&mut con, 3).into_iter().map(|d| d.payload).collect();
    assert_eq!(payloads, ["1", "2", "3"]);
}

#[test]
fn attempts_that_a_script_left_behind_are_forgotten_by_a_new_message_of_that_id() {
    let server = Server::start();
    let mut con = server.con();
    ok!(
        con,
        "HSET",
        MAP,
        "a:attempts",
        7,
        "b:attempts",
        8,
        "c:attempts",
        9,
        "kept:attempts",
        3,
        "kept",
        ""
    );
    publish(&mut con, "a");
    ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, "b", "", QUEUE, 0);
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "x", "", "c", "", "kept", "");
    let after = Snapshot::of(&mut con).hash(MAP);
    let counts: Vec<&str> = after
        .keys()
        .map(String::as_str)
        .filter(|f| f.ends_with(":attempts"))
        .collect();
    assert_eq!(counts, ["kept:attempts"]);
    assert_eq!(reserve(&mut con).attempts, 1);
}

#[test]
fn forgotten_attempts_are_forgotten_on_a_replica_too() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", MAP, "a:attempts", 7, "b:attempts", 7);
    let replica = Replica::of(&server);
    publish(&mut con, "a");
    ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, "b", "", QUEUE, 0);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
    assert_eq!(Snapshot::of(&mut replica.con()).hash(MAP).len(), 4);
}

#[test]
fn ids_that_end_in_queue_or_attempts_are_refused_wherever_they_stand_in_the_call() {
    let server = Server::start();
    let mut con = server.con();
    let refused = "ERR id must not end in ':queue' or ':attempts', which payload_map uses for its own fields";
    for id in ["a:queue", "a:attempts", ":queue", ":attempts"] {
        assert_eq!(err!(con, "RMQ.PUBLISH", MAP, PENDING, id, ""), refused);
        assert_eq!(
            err!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "", "b", "", id, ""),
            refused
        );
        assert_eq!(err!(con, "RMQ.PUBLISH", MAP, PENDING, "URGENT", id, ""), refused);
        assert_eq!(err!(con, "RMQ.SCHEDULE", MAP, DELAYS, id, "", QUEUE, 0), refused);
    }
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    for id in ["queue", "a:queue:1", "attempts", "a:Queue", "a:queues"] {
        publish(&mut con, id);
    }
}

#[test]
fn a_call_with_a_word_too_many_or_too_few_is_refused() {
    let server = Server::start();
    let mut con = server.con();
    let arity = "ERR wrong number of arguments for 'RMQ.PUBLISH' command";
    let calls: [&[&str]; 5] = [
        &["RMQ.PUBLISH", MAP, PENDING, "a", "1", "b"],
        &["RMQ.PUBLISH", MAP, PENDING, "SOON", "a", "1"],
        &["RMQ.PUBLISH", MAP, PENDING, "URGENT"],
        &["RMQ.PUBLISH", MAP, PENDING],
        &["RMQ.PUBLISH", MAP],
    ];
    for words in calls {
        let error = error_text(&call(&mut con, words).unwrap_err());
        assert!(error.eq_ignore_ascii_case(arity), "{words:?}: {error}");
    }
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
}

#[test]
fn a_wrong_type_or_the_same_key_twice_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "SET", "text:pending", "x");
    ok!(con, "SET", "text", "x");
    let before = Snapshot::of(&mut con);
    let error = err!(con, "RMQ.PUBLISH", MAP, "text:pending", "a", "");
    assert_eq!(error, "WRONGTYPE pending must be a list");
    let error = err!(con, "RMQ.PUBLISH", "text", PENDING, "a", "");
    assert_eq!(error, "WRONGTYPE payload_map must be a hash");
    let error = err!(con, "RMQ.PUBLISH", "x:pending", "x:pending", "a", "");
    assert_eq!(error, "ERR payload_map and pending must be different keys");
    let error = err!(con, "RMQ.SCHEDULE", "text", DELAYS, "a", "", QUEUE, 0);
    assert_eq!(error, "WRONGTYPE payload_map must be a hash");
    let error = err!(con, "RMQ.SCHEDULE", MAP, "text", "a", "", QUEUE, 0);
    assert_eq!(error, "WRONGTYPE delay_tasks must be a sorted set");
    let error = err!(con, "RMQ.SCHEDULE", MAP, MAP, "a", "", QUEUE, 0);
    assert_eq!(error, "ERR payload_map and delay_tasks must be different keys");
    before.assert_unchanged(&mut con);
}

#[test]
fn ids_payloads_and_queues_are_bytes() {
    let server = Server::start();
    let mut con = server.con();
    let words: [&[u8]; 6] = [
        b"",
        b"nul\0nul",
        b"cr\r\nlf",
        b"%s%n",
        b"\xff\xfe\x80",
        "é🦀".as_bytes(),
    ];
    for id in words {
        for payload in words {
            ok!(con, "FLUSHALL");
            assert_eq!(bulk(ok!(con, "RMQ.PUBLISH", MAP, PENDING, id, payload)), id);
            let row = items(items(ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000)).remove(0));
            assert_eq!(
                (bulk(row[0].clone()), bulk(row[1].clone())),
                (id.to_vec(), payload.to_vec())
            );
            ok!(con, "FLUSHALL");
            let queue = payload;
            assert_eq!(bulk(ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, id, payload, queue, 0)), id);
            let moved = rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 1));
            assert_eq!(moved, [[id.to_vec(), queue.to_vec()]]);
        }
    }
}

#[test]
fn a_payload_of_64_mib_passes_through_unharmed() {
    let server = Server::start();
    let mut con = server.con();
    let mut payload = Rng::from_seed(5).bytes(1 << 20).repeat(64);
    payload[..4].copy_from_slice(b"\0\r\n\xff");
    ok!(con, "RMQ.PUBLISH", MAP, PENDING, "large", &payload);
    let row = items(items(ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000)).remove(0));
    assert!(bulk(row[1].clone()) == payload);
}

#[test]
fn new_messages_are_refused_over_the_memory_limit_and_nothing_is_written() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "SET", "x", "x");
    ok!(con, "CONFIG", "SET", "maxmemory", 1);
    assert!(err!(con, "RMQ.PUBLISH", MAP, PENDING, "a", "").starts_with("OOM "));
    assert!(err!(con, "RMQ.SCHEDULE", MAP, DELAYS, "a", "", QUEUE, 0).starts_with("OOM "));
    assert_eq!(Snapshot::of(&mut con).keys(), ["x"]);
}

#[test]
fn a_scheduled_message_is_due_at_server_time_plus_its_delay() {
    let server = Server::start();
    let mut con = server.con();
    let earliest = server_time_ms(&mut con);
    assert_eq!(
        text(ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, "a", "payload", QUEUE, 90_000)),
        "a"
    );
    let latest = server_time_ms(&mut con);
    let after = Snapshot::of(&mut con);
    let due = after.zset(DELAYS)["a"];
    assert!((earliest + 90_000..=latest + 90_000).contains(&(due as i64)), "{due}");
    assert_eq!(due, due.trunc());
    assert_eq!(after.hash(MAP), fields(&[("a", "payload"), ("a:queue", QUEUE)]));
    assert_eq!(after.keys().len(), 2);
    assert_eq!(counter(&server, "scheduled"), 1);
}

#[test]
fn with_at_a_scheduled_message_is_due_at_that_unix_time() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, "past", "", QUEUE, 0, "AT");
    ok!(
        con,
        "RMQ.SCHEDULE",
        MAP,
        DELAYS,
        "future",
        "",
        QUEUE,
        4_102_444_800_123i64,
        "at"
    );
    let due = Snapshot::of(&mut con).zset(DELAYS);
    assert_eq!(
        due,
        BTreeMap::from([("past".into(), 0.0), ("future".into(), 4_102_444_800_123.0)])
    );
    assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 9)), [["past", QUEUE]]);
}

#[test]
fn a_scheduled_message_is_answered_by_its_id_or_nil() {
    let server = Server::start();
    let mut raw = Raw::connect(&server);
    let schedule = ["RMQ.SCHEDULE", MAP, DELAYS, "a", "", QUEUE, "5"];
    assert_eq!(raw.call_raw(&schedule), b"$1\r\na\r\n");
    assert_eq!(raw.call_raw(&schedule), b"$-1\r\n");
    raw.call(&["HELLO", "3"]);
    assert_eq!(raw.call_raw(&schedule), b"_\r\n");
}

#[test]
fn a_scheduled_message_that_is_due_is_ticked_into_its_queue_and_reserved() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, "a", "payload", QUEUE, 0);
    ok!(con, "RMQ.SCHEDULE", MAP, DELAYS, "later", "payload", QUEUE, HOUR);
    assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 9)), [["a", QUEUE]]);
    let delivery = reserve(&mut con);
    assert_eq!(
        (delivery.id.as_str(), delivery.payload.as_str(), delivery.attempts),
        ("a", "payload", 1)
    );
    assert_eq!(ack(&mut con, &delivery), 1);
    assert_eq!(ok!(con, "RMQ.PUBLISH", MAP, PENDING, "later", ""), Value::Nil);
}

#[test]
fn schedule_needs_permission_to_push_into_the_queue_and_writes_nothing_without() {
    let server = Server::start();
    let mut con = server.con();
    ok!(
        con,
        "ACL",
        "SETUSER",
        "bob",
        "on",
        ">pw",
        "+@all",
        "~m",
        "~d",
        "~mine:pending",
        "%R~read:pending"
    );
    let mut bob = server.con_as("bob", "pw");
    let before = Snapshot::of(&mut con);
    for queue in ["theirs", "read"] {
        let error = err!(bob, "RMQ.SCHEDULE", "m", "d", "a", "", queue, 0);
        assert_eq!(
            error,
            format!("NOPERM no permission to access the derived key '{queue}:pending'")
        );
    }
    before.assert_unchanged(&mut con);
    assert_eq!(text(ok!(bob, "RMQ.SCHEDULE", "m", "d", "a", "", "mine", 0)), "a");
}

#[test]
fn bad_delays_and_options_get_an_error_that_names_them_and_change_nothing() {
    let server = Server::start();
    let mut con = server.con();
    for bad in [
        "-1",
        "1.5",
        "",
        "x",
        "+1",
        "1 ",
        "9223372036854775808",
        "1000000000001",
        "nan",
    ] {
        let error = err!(con, "RMQ.SCHEDULE", MAP, DELAYS, "a", "", QUEUE, bad);
        assert!(
            error.starts_with("ERR delay_ms must be an integer of milliseconds"),
            "{bad:?}: {error}"
        );
    }
    for bad in ["-1", "1.5", "", "9223372036854775807"] {
        let error = err!(con, "RMQ.SCHEDULE", MAP, DELAYS, "a", "", QUEUE, bad, "AT");
        assert_eq!(error, "ERR delay_ms must be a Unix time in milliseconds", "{bad:?}");
    }
    let error = err!(con, "RMQ.SCHEDULE", MAP, DELAYS, "a", "", QUEUE, 0, "IN");
    assert_eq!(error, "ERR unknown option 'IN'");
    let error = err!(con, "RMQ.SCHEDULE", MAP, DELAYS, "a", "", QUEUE, 0, "AT", "at");
    assert_eq!(error, "ERR option AT must be given once only");
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
}

#[test]
fn without_a_task_the_next_delay_is_no_task() {
    let server = Server::start();
    assert_eq!(
        Raw::connect(&server).call_raw(&["RMQ.NEXTDELAY", DELAYS]),
        b"*1\r\n$7\r\nNO_TASK\r\n"
    );
}

#[test]
fn a_task_that_is_due_is_told_as_expired_with_its_due_time_and_id() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "ZADD", DELAYS, 2000, "b", 1000, "a");
    let mut raw = Raw::connect(&server);
    assert_eq!(
        raw.call_raw(&["RMQ.NEXTDELAY", DELAYS]),
        b"*3\r\n$7\r\nEXPIRED\r\n:1000\r\n$1\r\na\r\n"
    );
}

#[test]
fn a_task_of_the_future_is_told_as_waiting_with_the_time_to_wait_its_due_time_and_its_id() {
    let server = Server::start();
    let mut con = server.con();
    let due = server_time_ms(&mut con) + HOUR;
    ok!(con, "ZADD", DELAYS, due + 1, "b", due, "a");
    let before = server_time_ms(&mut con);
    let reply = Raw::connect(&server).call(&["RMQ.NEXTDELAY", DELAYS]);
    let after = server_time_ms(&mut con);
    let Reply::Array(words) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(words[0], Reply::bulk("WAITING"));
    let Reply::Int(wait) = words[1] else {
        panic!("{words:?}")
    };
    assert!((due - after..=due - before).contains(&wait), "{wait}");
    assert_eq!(words[2..], [Reply::Int(due), Reply::bulk("a")]);
}

#[test]
fn the_next_delay_is_what_the_script_says() {
    let server = Server::start();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    let now = server_time_ms(&mut con);
    let tasks = [
        None,
        Some(0.0),
        Some(1500.75),
        Some(now as f64),
        Some((now + HOUR) as f64 + 0.5),
    ];
    for due in tasks {
        ok!(con, "DEL", DELAYS);
        if let Some(due) = due {
            ok!(con, "ZADD", DELAYS, due, "id");
        }
        // The time to wait differs by the time between the two calls.
        let told = |reply: Value| {
            let mut words = items(reply);
            let wait = (words.len() == 4).then(|| words.remove(1));
            (wait.map(|wait| matches!(wait, Value::Int(ms) if ms > 0)), words)
        };
        let script = told(peer.call(&mut con, "get_next_delay_task", &[DELAYS], &[""; 0]).unwrap());
        assert_eq!(told(ok!(con, "RMQ.NEXTDELAY", DELAYS)), script, "{due:?}");
        assert_eq!(script.0, due.filter(|due| *due > now as f64).map(|_| true));
    }
}

#[test]
fn the_next_delay_is_only_read_so_a_replica_answers_too() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "ZADD", DELAYS, 1000, "a");
    let replica = Replica::with_module_of(&server);
    assert_eq!(
        strings(ok!(replica.con(), "RMQ.NEXTDELAY", DELAYS)),
        ["EXPIRED", "1000", "a"]
    );
    let watcher = Watcher::on(&server, &[DELAYS]);
    ok!(con, "RMQ.NEXTDELAY", DELAYS);
    assert!(watcher.untouched());
    ok!(con, "ACL", "SETUSER", "bob", "on", ">pw", "+@all", "%R~*");
    ok!(server.con_as("bob", "pw"), "RMQ.NEXTDELAY", DELAYS);
}

#[test]
fn a_next_delay_of_another_type_is_an_error() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "SET", "text", "x");
    assert_eq!(
        err!(con, "RMQ.NEXTDELAY", "text"),
        "WRONGTYPE delay_tasks must be a sorted set"
    );
    assert!(err!(con, "RMQ.NEXTDELAY").starts_with("ERR wrong number of arguments"));
    assert!(err!(con, "RMQ.NEXTDELAY", "a", "b").starts_with("ERR wrong number of arguments"));
}
