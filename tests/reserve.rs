//! RMQ.RESERVE pending processing payload_map expire_monitor lease_ms [COUNT n] [BLOCK ms], where it does not wait

mod common;
mod life;
use common::*;
use life::*;

use redis::Value;
use std::collections::BTreeMap;

fn ids(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|delivery| delivery.id.as_str()).collect()
}

#[test]
fn a_reserved_message_is_moved_leased_counted_and_told_in_one_step() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    publish(&mut con, "b");
    let delivery = reserve(&mut con);
    assert_eq!(
        (delivery.id.as_str(), delivery.payload.as_str(), delivery.attempts),
        ("a", "payload of a", 1)
    );
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(PENDING), ["b"]);
    assert_eq!(after.list(WORK), ["a"]);
    assert_eq!(
        after.zset(DUE),
        BTreeMap::from([("a".into(), delivery.lease.parse().unwrap())])
    );
    assert_eq!(after.hash(MAP)["a:attempts"], "1");
    assert_eq!(after.hash(MAP).len(), 5);
    assert_eq!(counter(&server, "reserved"), 1);
}

#[test]
fn the_oldest_messages_are_taken_first_and_stand_in_processing_as_if_moved_one_by_one() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c", "d", "e"] {
        publish(&mut con, id);
    }
    assert_eq!(ids(&reserve_up_to(&mut con, 3)), ["a", "b", "c"]);
    assert_eq!(ids(&reserve_up_to(&mut con, 1)), ["d"]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(WORK), ["d", "c", "b", "a"]);
    assert_eq!(after.list(PENDING), ["e"]);
}

#[test]
fn without_count_one_message_is_taken_and_with_it_at_most_so_many() {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..10 {
        publish(&mut con, &n.to_string());
    }
    let one = deliveries(ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000));
    assert_eq!(ids(&one), ["0"]);
    assert_eq!(ids(&reserve_up_to(&mut con, 4)), ["1", "2", "3", "4"]);
    assert_eq!(reserve_up_to(&mut con, 100).len(), 5);
    assert_eq!(reserve_up_to(&mut con, 100), []);
}

#[test]
fn a_count_above_the_largest_batch_is_lowered_to_it() {
    let server = Server::builder().config_line("rmq.max-batch 3").start();
    let mut con = server.con();
    for n in 0..10 {
        publish(&mut con, &n.to_string());
    }
    assert_eq!(reserve_up_to(&mut con, 9_000_000_000_000).len(), 3);
    assert_eq!(reserve_up_to(&mut con, 2).len(), 2);
}

#[test]
fn where_there_is_nothing_the_reply_is_a_nil_array_or_null() {
    let server = Server::start();
    let mut raw = Raw::connect(&server);
    let command = ["RMQ.RESERVE", PENDING, WORK, MAP, DUE, "1000"];
    assert_eq!(raw.call_raw(&command), b"*-1\r\n");
    raw.call(&["HELLO", "3"]);
    assert_eq!(raw.call_raw(&command), b"_\r\n");
    assert_eq!(Snapshot::of(&mut server.con()).keys(), [""; 0]);
}

#[test]
fn the_reply_is_an_array_of_id_payload_lease_and_attempts_in_either_protocol() {
    let server = Server::start();
    let mut con = server.con();
    let mut raw = Raw::connect(&server);
    for protocol in ["2", "3"] {
        raw.call(&["HELLO", protocol]);
        publish(&mut con, protocol);
        let reply = raw.call(&["RMQ.RESERVE", PENDING, WORK, MAP, DUE, "1000"]);
        let lease: String = ask!(con, "ZSCORE", DUE, protocol);
        let Reply::Array(rows) = &reply else {
            panic!("{reply:?}")
        };
        let [Reply::Array(row)] = &rows[..] else {
            panic!("{rows:?}")
        };
        let Reply::Bulk(told) = &row[2] else { panic!("{row:?}") };
        let number = |text: &[u8]| -> f64 { std::str::from_utf8(text).unwrap().parse().unwrap() };
        assert_eq!(number(told), number(lease.as_bytes()));
        assert_eq!(row[0], Reply::bulk(protocol));
        assert_eq!(row[1], Reply::bulk(format!("payload of {protocol}")));
        assert_eq!(row[3], Reply::Int(1));
        assert_eq!(row.len(), 4);
    }
}

#[test]
fn the_lease_is_the_score_to_the_last_bit_and_its_string_holds_the_message() {
    let server = Server::start();
    let mut con = server.con();
    for round in 0..300 {
        let lease_ms = 1 + round * 7919;
        let id = format!("m{round}");
        publish(&mut con, &id);
        let earliest = server_time_ms(&mut con);
        let reply = ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, lease_ms);
        let latest = server_time_ms(&mut con);
        let delivery = deliveries(reply).remove(0);
        let score: f64 = ask!(con, "ZSCORE", DUE, &id);
        let lease: f64 = delivery.lease.parse().unwrap();
        assert_eq!(lease.to_bits(), score.to_bits(), "{}", delivery.lease);
        assert!(
            (earliest + lease_ms..=latest + lease_ms).contains(&(lease as i64)),
            "{lease}"
        );
        let (_, decimals) = delivery.lease.split_once('.').expect("microseconds");
        assert_eq!(decimals.len(), 3);
        // A client that reads the score and shows it as text holds the message as well.
        let shown = if round % 2 == 0 {
            delivery.lease.clone()
        } else {
            score.to_string()
        };
        assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, &id, shown), Value::Int(1));
    }
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
}

#[test]
fn a_lease_survives_a_save_and_a_replica() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::with_module_of(&server);
    let held: Vec<Delivery> = (0..50).map(|n| take_new(&mut con, &n.to_string())).collect();
    ok!(con, "DEBUG", "RELOAD");
    replica.wait_synced();
    replica.promote();
    for delivery in &held {
        assert_eq!(ack(&mut con, delivery), 1, "{delivery:?}");
        assert_eq!(ack(&mut replica.con(), delivery), 1, "{delivery:?}");
    }
}

#[test]
fn messages_taken_by_different_calls_have_different_leases() {
    let server = Server::start();
    let mut con = server.con();
    let leases: std::collections::BTreeSet<String> =
        (0..500).map(|n| take_new(&mut con, &n.to_string()).lease).collect();
    assert_eq!(leases.len(), 500);
}

#[test]
fn attempts_are_counted_across_redeliveries_of_every_kind() {
    let server = Server::start();
    let mut con = server.con();
    let first = take_new(&mut con, "a");
    assert_eq!(first.attempts, 1);
    ok!(con, "RMQ.NACK", MAP, DELAYS, DUE, WORK, "a", &first.lease, 0);
    ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 9);
    assert_eq!(reserve(&mut con).attempts, 2);
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "a", "new payload", 0);
    ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 9);
    assert_eq!(reserve(&mut con).attempts, 3);
    ok!(con, "RMQ.TIMEOUTS", DUE, MAP, "9e15", 9);
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, WORK, "a", "new payload", 0);
    ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 9);
    let fourth = reserve(&mut con);
    assert_eq!((fourth.attempts, fourth.payload.as_str()), (4, "new payload"));
    ok!(con, "LMOVE", WORK, PENDING, "LEFT", "RIGHT");
    assert_eq!(reserve(&mut con).attempts, 5);
    assert_eq!(text(ok!(con, "HGET", MAP, "a:attempts")), "5");
}

#[test]
fn attempts_that_are_no_count_start_at_one() {
    let server = Server::start();
    let mut con = server.con();
    for (number, garbage) in ["x", "", "-3", "1.5", "99999999999999999999", "\u{661}"]
        .iter()
        .enumerate()
    {
        let id = number.to_string();
        publish(&mut con, &id);
        ok!(con, "HSET", MAP, format!("{id}:attempts"), garbage);
        assert_eq!(reserve(&mut con).attempts, 1, "{garbage:?}");
    }
    publish(&mut con, "most");
    ok!(con, "HSET", MAP, "most:attempts", i64::MAX);
    assert_eq!(reserve(&mut con).attempts, i64::MAX);
}

/// TIMEOUTS finds the list of an overdue message by its `<id>:queue`; one that nobody wrote would be lost with its worker.
#[test]
fn a_message_that_was_filled_in_by_hand_without_queue_comes_back_when_its_worker_dies() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    ok!(con, "HSET", MAP, "a", "A", "b", "B", "b:queue", "elsewhere");
    ok!(con, "LPUSH", PENDING, "a", "b");
    let taken = ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1, "COUNT", 2);
    assert_eq!(items(taken).len(), 2);
    let map = Snapshot::of(&mut con).hash(MAP);
    assert_eq!(map["a:queue"], QUEUE);
    assert_eq!(map["b:queue"], "elsewhere", "one that is there stays");
    let back = || text_rows(ok!(server.con(), "RMQ.TIMEOUTS", DUE, MAP, "*", 10, "CLAIM", 1000));
    assert!(eventually(deadline(), || back() == [["a", "A", QUEUE]]));
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn no_queue_is_made_up_for_a_processing_list_that_is_not_named_after_one() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", "m", "a", "A");
    ok!(con, "LPUSH", "p", "a");
    ok!(con, "RMQ.RESERVE", "p", "w", "m", "e", 1000);
    let fields: Vec<String> = Snapshot::of(&mut con).hash("m").into_keys().collect();
    assert_eq!(fields, ["a", "a:attempts"]);
}

#[test]
fn an_empty_name_for_processing_is_refused_because_no_command_could_settle_what_stands_there() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    let before = Snapshot::of(&mut con);
    let error = err!(con, "RMQ.RESERVE", PENDING, "", MAP, DUE, 1000);
    assert_eq!(error, "ERR processing must be a key, not empty");
    before.assert_unchanged(&mut con);
}

#[test]
fn ids_without_payload_are_dropped_on_the_way_with_all_that_is_left_of_them() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RPUSH", PENDING, "ghost3", "b", "ghost2", "a", "ghost1");
    ok!(
        con,
        "HSET",
        MAP,
        "a",
        "A",
        "b",
        "B",
        "ghost1:queue",
        QUEUE,
        "ghost2:attempts",
        4
    );
    assert_eq!(ids(&reserve_up_to(&mut con, 1)), ["a"]);
    assert_eq!(Snapshot::of(&mut con).list(PENDING), ["ghost3", "b", "ghost2"]);
    assert_eq!(ids(&reserve_up_to(&mut con, 5)), ["b"]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(WORK), ["b", "a"]);
    assert_eq!(after.keys(), [DUE, WORK, MAP]);
    let left: Vec<String> = after.hash(MAP).into_keys().collect();
    assert_eq!(left, ["a", "a:attempts", "a:queue", "b", "b:attempts", "b:queue"]);
    assert_eq!(counter(&server, "dropped"), 3);
    assert_eq!(counter(&server, "reserved"), 2);
}

#[test]
fn a_pending_list_of_nothing_but_ids_without_payload_is_emptied_and_the_reply_is_nil() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    for n in 0..9_000 {
        ok!(con, "LPUSH", PENDING, n);
    }
    let tap = ReplicaTap::attach(&server);
    assert_eq!(reserve_up_to(&mut con, 1), []);
    assert_eq!(tap.lines_until_marker(&mut con), [format!("RPOP {PENDING} 9000")]);
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn an_id_that_stands_twice_in_pending_is_delivered_twice_and_the_later_lease_holds() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    ok!(con, "LPUSH", PENDING, "a");
    let first = reserve(&mut con);
    let second = reserve(&mut con);
    assert_eq!((first.attempts, second.attempts), (1, 2));
    assert_eq!(ack(&mut con, &first), 0);
    assert_eq!(ack(&mut con, &second), 1);
    ok!(con, "LPUSH", PENDING, "a");
    assert_eq!(reserve_up_to(&mut con, 1), []);
}

#[test]
fn an_id_that_stands_twice_in_pending_is_counted_twice_by_one_call_too() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    ok!(con, "LPUSH", PENDING, "a");
    let both = reserve_up_to(&mut con, 5);
    assert_eq!(ids(&both), ["a", "a"]);
    assert_eq!((both[0].attempts, both[1].attempts), (1, 2));
    assert_eq!(text(ok!(con, "HGET", MAP, "a:attempts")), "2");
    assert_eq!(Snapshot::of(&mut con).list(WORK), ["a", "a"]);
}

#[test]
fn the_stream_of_a_reserve_is_one_transaction_of_plain_commands() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    publish(&mut con, "b");
    ok!(con, "RPUSH", PENDING, "ghost");
    ok!(con, "HSET", MAP, "ghost:queue", QUEUE);
    let tap = ReplicaTap::attach(&server);
    let taken = reserve_up_to(&mut con, 2);
    let lease = &taken[0].lease;
    assert_eq!(&taken[1].lease, lease);
    assert_eq!(
        tap.lines_until_marker(&mut con),
        [
            "MULTI".into(),
            format!("RPOP {PENDING} 3"),
            format!("LPUSH {WORK} a b"),
            format!("HSET {MAP} a:attempts 1 b:attempts 1"),
            format!("HDEL {MAP} ghost:queue"),
            format!("ZADD {DUE} {lease} a {lease} b"),
            "EXEC".into()
        ]
    );
    assert_eq!(reserve_up_to(&mut con, 2), []);
    assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
}

#[test]
fn wrong_types_and_equal_keys_are_named_and_change_nothing() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    ok!(con, "SET", "text", "x");
    let before = Snapshot::of(&mut con);
    let keys = [PENDING, WORK, MAP, DUE];
    let names = ["pending", "processing", "payload_map", "expire_monitor"];
    let types = ["list", "list", "hash", "sorted set"];
    for place in 0..4 {
        let mut with_wrong_type = keys;
        with_wrong_type[place] = "text";
        let error = err!(con, "RMQ.RESERVE", &with_wrong_type, 1000);
        assert_eq!(error, format!("WRONGTYPE {} must be a {}", names[place], types[place]));
        let error = err!(con, "RMQ.RESERVE", &with_wrong_type, 1000, "BLOCK", 0);
        assert_eq!(error, format!("WRONGTYPE {} must be a {}", names[place], types[place]));
        for other in 0..place {
            let mut equal = keys;
            equal[place] = keys[other];
            let error = err!(con, "RMQ.RESERVE", &equal, 1000);
            assert_eq!(
                error,
                format!("ERR {} and {} must be different keys", names[other], names[place])
            );
        }
    }
    before.assert_unchanged(&mut con);
}

#[test]
fn bad_numbers_and_options_are_named_and_change_nothing() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    let before = Snapshot::of(&mut con);
    let mut error = |words: &[&str]| err!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, words);
    for bad in ["0", "-1", "1.5", "", "x", "1000000000001", "9223372036854775808", " 1"] {
        assert!(
            error(&[bad]).starts_with("ERR lease_ms must be a positive integer"),
            "{bad:?}"
        );
    }
    for bad in ["0", "-1", "1.5", "", "x", "9223372036854775808", " 1"] {
        assert_eq!(
            error(&["1", "COUNT", bad]),
            "ERR COUNT must be a positive integer",
            "{bad:?}"
        );
    }
    for bad in ["-1", "1.5", "", "x", "1000000000001"] {
        assert!(
            error(&["1", "BLOCK", bad]).starts_with("ERR BLOCK must be an integer"),
            "{bad:?}"
        );
    }
    assert_eq!(error(&["1", "LIMIT", "5"]), "ERR unknown option 'LIMIT'");
    assert_eq!(error(&["1", "COUNT"]), "ERR option COUNT must be followed by its value");
    assert_eq!(error(&["1", "BLOCK"]), "ERR option BLOCK must be followed by its value");
    assert_eq!(
        error(&["1", "COUNT", "1", "count", "1"]),
        "ERR option COUNT must be given once only"
    );
    assert!(error(&[]).starts_with("ERR wrong number of arguments"));
    before.assert_unchanged(&mut con);
}

#[test]
fn options_come_in_any_order_and_case() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c", "d"] {
        publish(&mut con, id);
    }
    for words in [["BLOCK", "0", "count", "2"], ["Count", "2", "block", "0"]] {
        let taken = deliveries(ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000, &words));
        assert_eq!(taken.len(), 2);
    }
}

#[test]
fn a_message_that_the_queue_field_lacks_is_reserved_all_the_same() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", MAP, "a", "payload");
    ok!(con, "LPUSH", PENDING, "a");
    let delivery = reserve(&mut con);
    assert_eq!(
        ok!(con, "RMQ.NACK", MAP, DELAYS, DUE, WORK, "a", &delivery.lease, 0),
        Value::Int(1)
    );
    assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 1)), [["a", QUEUE]]);
}

#[test]
fn reserving_is_not_refused_over_the_memory_limit() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    ok!(con, "CONFIG", "SET", "maxmemory", 1);
    let delivery = reserve(&mut con);
    assert_eq!(ack(&mut con, &delivery), 1);
}

#[test]
fn an_old_deadline_of_the_message_is_replaced_by_the_lease() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    ok!(con, "ZADD", DUE, 5, "a");
    let delivery = reserve(&mut con);
    assert_eq!(
        Snapshot::of(&mut con).zset(DUE)["a"],
        delivery.lease.parse::<f64>().unwrap()
    );
    assert_eq!(ok!(con, "RMQ.ACK", MAP, WORK, DUE, "a", 5), Value::Int(0));
    assert_eq!(ack(&mut con, &delivery), 1);
}

#[test]
fn inside_a_transaction_and_a_script_a_message_is_reserved_too() {
    let server = Server::start();
    let mut con = server.con();
    publish(&mut con, "a");
    publish(&mut con, "b");
    ok!(con, "MULTI");
    ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000);
    ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000, "BLOCK", 0);
    ok!(con, "RMQ.RESERVE", PENDING, WORK, MAP, DUE, 1000, "BLOCK", 0);
    let replies = items(ok!(con, "EXEC"));
    assert_eq!(ids(&deliveries(replies[0].clone())), ["a"]);
    assert_eq!(ids(&deliveries(replies[1].clone())), ["b"]);
    assert_eq!(replies[2], Value::Nil);
    publish(&mut con, "c");
    let script = "return redis.call('RMQ.RESERVE', KEYS[1], KEYS[2], KEYS[3], KEYS[4], 1000)";
    let taken = deliveries(ok!(con, "EVAL", script, 4, PENDING, WORK, MAP, DUE));
    assert_eq!(ids(&taken), ["c"]);
}
