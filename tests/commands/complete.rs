//! RMQ.COMPLETE payload_map processing expire_monitor id [id …]

use crate::common::messages::{DUE, MAP, WORK};
use crate::common::*;

use redis::{Connection, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Puts messages into work in this order, so that the first is the oldest and is at the right end.
fn take_into_work<I: AsRef<str>>(con: &mut Connection, ids: &[I]) {
    for (place, id) in ids.iter().enumerate() {
        let id = id.as_ref();
        ok!(con, "HSET", MAP, id, format!("payload of {id}"), format!("{id}:queue"), "mx-rmq:orders");
        ok!(con, "LPUSH", WORK, id);
        ok!(con, "ZADD", DUE, 1_000 + place, id);
    }
}

fn fill_list<I: AsRef<[u8]>>(con: &mut Connection, key: &str, left_to_right: &[I]) {
    ok!(con, "DEL", key);
    for chunk in left_to_right.chunks(1000) {
        let chunk: Vec<&[u8]> = chunk.iter().map(AsRef::as_ref).collect();
        ok!(con, "RPUSH", key, chunk);
    }
}

fn list(con: &mut Connection, key: &str) -> Vec<Vec<u8>> {
    ask!(con, "LRANGE", key, 0, -1)
}

/// How a server may lay out a list: entries or bytes a node, and nodes at each end that stay uncompressed.
const LAYOUTS: [(i64, i64); 5] = [(-2, 0), (1, 0), (4, 1), (128, 2), (-1, 1)];

fn set_layout(con: &mut Connection, (node, compress): (i64, i64)) {
    ok!(con, "CONFIG", "SET", "list-max-listpack-size", node);
    ok!(con, "CONFIG", "SET", "list-compress-depth", compress);
}

/// Ids in every shape that a list stores differently: integers of each width, short and long text, ids too large for a
/// listpack node.
fn ids_of_every_shape(count: usize) -> Vec<Vec<u8>> {
    (0..count as i64)
        .map(|n| match n % 8 {
            0 => n.to_string(),
            1 => (-n).to_string(),
            2 => format!("0{n}"),
            3 => (i64::MAX - n).to_string(),
            4 => format!("{n:08}-7cf1-4b4e-9b0a-0123456789ab"),
            5 => format!("{n}.0"),
            6 if n % 16 == 6 => format!("{n}{}", "x".repeat(9000)),
            6 => format!("{n}{}", "y".repeat(300)),
            _ => format!("m{n}"),
        })
        .map(String::into_bytes)
        .collect()
}

fn without(ids: &[Vec<u8>], place: usize) -> Vec<Vec<u8>> {
    let mut rest = ids.to_vec();
    rest.remove(place);
    rest
}

#[test]
fn a_completed_message_leaves_processing_expire_monitor_and_payload_map_and_no_other_message_does() {
    let server = Server::start();
    let mut con = server.con();
    take_into_work(&mut con, &["a", "b", "c"]);
    ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, "b");

    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(WORK), ["c", "a"]);
    assert_eq!(after.zset(DUE), BTreeMap::from([("a".into(), 1000.0), ("c".into(), 1002.0)]));
    let fields: Vec<String> = after.hash(MAP).into_keys().collect();
    assert_eq!(fields, ["a", "a:queue", "c", "c:queue"]);
    assert_eq!(after.hash(MAP)["a"], "payload of a");
    assert_eq!(after.keys().len(), 3);
}

#[test]
fn the_reply_is_ok_whether_the_message_was_there_or_not() {
    let server = Server::start();
    take_into_work(&mut server.con(), &["a"]);
    let mut raw = Raw::connect(&server);
    for _ in 0..2 {
        assert_eq!(raw.call_raw(&["RMQ.COMPLETE", MAP, WORK, DUE, "a"]), b"+OK\r\n");
    }
    assert_eq!(raw.call_raw(&["rmq.complete", MAP, WORK, DUE, "x", "y"]), b"+OK\r\n");
}

#[test]
fn the_count_of_attempts_goes_with_the_message() {
    let server = Server::start();
    let mut con = server.con();
    take_into_work(&mut con, &["a", "b", "c"]);
    ok!(con, "HSET", MAP, "a:attempts", 3, "b:attempts", 1, "c:attempts", 2);
    ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, "a");
    ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, "b", "x");
    let fields: Vec<String> = Snapshot::of(&mut con).hash(MAP).into_keys().collect();
    assert_eq!(fields, ["c", "c:attempts", "c:queue"]);
}

#[test]
fn the_last_message_takes_the_keys_with_it() {
    let server = Server::start();
    let mut con = server.con();
    for ids in [&["a"][..], &["a", "b", "c"]] {
        take_into_work(&mut con, ids);
        ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, ids);
        assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    }
}

#[test]
fn every_trace_of_a_message_is_removed_where_only_one_is_left() {
    let server = Server::start();
    let mut con = server.con();
    let traces: [&[&str]; 5] = [
        &["LPUSH", WORK, "a"],
        &["ZADD", DUE, "5", "a"],
        &["HSET", MAP, "a", "payload"],
        &["HSET", MAP, "a:queue", "mx-rmq:orders"],
        &["HSET", MAP, "a:attempts", "2"],
    ];
    for (done, trace) in traces.iter().enumerate() {
        for ids in [&["a"][..], &["x", "a", "y"]] {
            take_into_work(&mut con, &["other"]);
            let before = Snapshot::of(&mut con);
            call(&mut con, trace).unwrap();
            ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, ids);
            before.assert_unchanged(&mut con);
            ok!(con, "FLUSHALL");
        }
        assert_eq!(counter(&server, "completed"), 2 * (done as u64 + 1), "INFO counts the message");
    }
}

#[test]
fn an_id_is_removed_at_any_place_of_a_list_of_any_length_and_layout() {
    let server = Server::start();
    let mut con = server.con();
    for layout in LAYOUTS {
        set_layout(&mut con, layout);
        for length in [1, 2, 8, 9, 15, 16, 17, 18, 33, 130, 1000] {
            let ids = ids_of_every_shape(length);
            fill_list(&mut con, "list", &ids);
            let near = |place: usize| [place.saturating_sub(1), place, place + 1];
            let places: BTreeSet<usize> = [0, 7, length / 3, length / 2, length.saturating_sub(8), length - 1]
                .into_iter()
                .flat_map(near)
                .filter(|place| *place < length)
                .collect();
            for place in places {
                ok!(con, "COPY", "list", WORK, "REPLACE");
                ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, &ids[place]);
                assert!(list(&mut con, WORK) == without(&ids, place), "{place} of {length}, {layout:?}");
            }
        }
    }
}

#[test]
fn an_id_is_removed_at_any_place_of_twenty_thousand() {
    let server = Server::start();
    let mut con = server.con();
    for (layout, integers) in [((-2, 0), true), ((-2, 0), false), ((4, 1), true), ((128, 2), false)] {
        set_layout(&mut con, layout);
        let ids: Vec<Vec<u8>> = (0..20_000)
            .map(|n| match integers {
                true => n.to_string(),
                false => format!("{n:08}-7cf1-4b4e-9b0a-0123456789ab"),
            })
            .map(String::into_bytes)
            .collect();
        fill_list(&mut con, "list", &ids);
        for place in [0, 1, 7, 8, 9, 5_000, 9_999, 10_000, 19_991, 19_992, 19_998, 19_999] {
            ok!(con, "COPY", "list", WORK, "REPLACE");
            ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, &ids[place]);
            assert!(list(&mut con, WORK) == without(&ids, place), "{place}, {layout:?}");
        }
    }
}

#[test]
fn only_one_occurrence_in_processing_goes_with_each_mention_of_an_id() {
    let server = Server::start();
    let mut con = server.con();
    let twice = ["a", "b", "a", "c"];
    for (ids, rest) in [
        (&["a"][..], ["a", "b", "c"].as_slice()),
        (&["a", "x"], &["a", "b", "c"]),
        (&["a", "a"], &["b", "c"]),
        (&["a", "b", "a", "a", "b"], &["c"]),
    ] {
        fill_list(&mut con, WORK, &twice);
        ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, ids);
        let mut left = strings(ok!(con, "LRANGE", WORK, 0, -1));
        left.sort();
        assert_eq!(left, rest, "{ids:?}");
    }
    assert_eq!(counter(&server, "completed"), 1 + 1 + 1 + 2, "INFO counts messages");
}

/// All of `part` is in `whole`, in the same order.
fn is_subsequence(part: &[Vec<u8>], whole: &[Vec<u8>]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|element| rest.any(|other| other == element))
}

fn count(ids: &[Vec<u8>]) -> BTreeMap<&[u8], usize> {
    let mut counts = BTreeMap::new();
    for id in ids {
        *counts.entry(id.as_slice()).or_default() += 1;
    }
    counts
}

#[test]
fn many_ids_in_one_call_leave_exactly_the_others_in_their_order() {
    let server = Server::start();
    let mut con = server.con();
    let mut rng = Rng::seeded();
    for round in 0..60 {
        set_layout(&mut con, *rng.pick(&LAYOUTS));
        let length = *rng.pick(&[1, 2, 16, 17, 40, 300, 1000]);
        let mut ids = ids_of_every_shape(length);
        // Some are in the list twice or more.
        for _ in 0..length / 10 {
            let again = rng.pick(&ids).clone();
            let place = rng.below(ids.len());
            ids[place] = again;
        }
        fill_list(&mut con, WORK, &ids);
        let distinct: BTreeSet<&Vec<u8>> = ids.iter().collect();
        let scored: Vec<(usize, &Vec<u8>)> = distinct.iter().copied().enumerate().collect();
        let fields: Vec<(&Vec<u8>, &str)> = distinct.iter().map(|id| (*id, "payload")).collect();
        for chunk in 0..distinct.len().div_ceil(500) {
            let part = |len: usize| chunk * 500..len.min((chunk + 1) * 500);
            ok!(con, "ZADD", DUE, &scored[part(scored.len())]);
            ok!(con, "HSET", MAP, &fields[part(fields.len())]);
        }

        // Known ids, each perhaps several times, and some unknown ones.
        let mut wanted: Vec<Vec<u8>> = (0..1 + rng.below(length)).map(|_| rng.pick(&ids).clone()).collect();
        wanted.extend((0..rng.below(5)).map(|n| format!("unknown {n}").into_bytes()));
        rng.shuffle(&mut wanted);
        ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, &wanted);

        let rest = list(&mut con, WORK);
        assert!(is_subsequence(&rest, &ids), "round {round}: the order changed");
        let (had, called, has) = (count(&ids), count(&wanted), count(&rest));
        for (id, had) in had {
            let left = had.saturating_sub(called.get(id).copied().unwrap_or(0));
            assert_eq!(has.get(id).copied().unwrap_or(0), left, "round {round}");
        }
        let monitored: BTreeSet<Vec<u8>> = ask!(con, "ZRANGE", DUE, 0, -1);
        let stored: BTreeSet<Vec<u8>> = ask!(con, "HKEYS", MAP);
        let kept: BTreeSet<Vec<u8>> =
            distinct.into_iter().filter(|id| !called.contains_key(id.as_slice())).cloned().collect();
        assert!(monitored == kept && stored == kept, "round {round}");
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn all_of_twenty_thousand_can_go_in_one_call() {
    let server = Server::start();
    let mut con = server.con();
    let mut ids = ids_of_every_shape(20_000);
    fill_list(&mut con, WORK, &ids);
    Rng::seeded().shuffle(&mut ids);
    let (last, others) = ids.split_last().unwrap();
    ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, others);
    assert!(list(&mut con, WORK) == std::slice::from_ref(last));
    assert_eq!(counter(&server, "completed"), 19_999);
}

#[test]
fn completing_again_touches_no_key_fires_no_event_and_sends_nothing() {
    let server = Server::start();
    let mut con = server.con();
    take_into_work(&mut con, &["a", "b"]);
    ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, "a");
    let dirty = |server: &Server| server.info("persistence")["rdb_changes_since_last_save"].clone();

    for keys in [[MAP, WORK, DUE], ["no-map", "no-list", "no-set"]] {
        let [map, work, due] = keys;
        let before = Snapshot::of(&mut con);
        let tap = ReplicaTap::attach(&server);
        let mut events = Events::subscribe(&server);
        let watcher = Watcher::on(&server, &keys);
        let changes = dirty(&server);
        ok!(con, "RMQ.COMPLETE", map, work, due, "a");
        ok!(con, "RMQ.COMPLETE", map, work, due, "a", "x", "a");
        assert_eq!(dirty(&server), changes);
        assert!(watcher.untouched());
        assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
        assert_eq!(events.lines_until_marker(&mut con), [""; 0]);
        before.assert_unchanged(&mut con);
    }
    assert_eq!(counter(&server, "completed"), 1);
}

#[test]
fn a_completion_breaks_a_watch_on_the_keys_it_changes_and_on_no_other() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "HSET", MAP, "a", "payload");
    ok!(con, "LPUSH", WORK, "b");
    ok!(con, "ZADD", DUE, 1, "c");
    let [map, work, due] = [MAP, WORK, DUE].map(|key| Watcher::on(&server, &[key]));
    ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, "a");
    assert!(map.touched() && work.untouched() && due.untouched());
}

#[test]
fn a_message_is_found_in_a_small_and_in_a_large_encoding_alike() {
    let server = Server::start();
    let mut con = server.con();
    for (count, encoding) in [(3, "listpack"), (600, "skiplist")] {
        let ids: Vec<String> = (0..count).map(|n| format!("m{n}")).collect();
        take_into_work(&mut con, &ids);
        assert_eq!(text(ok!(con, "OBJECT", "ENCODING", DUE)), encoding);
        ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, "m1");
        ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, "m0", "m0", "nobody");
        let after = Snapshot::of(&mut con);
        let expected: Vec<String> = ids[2..].iter().rev().cloned().collect();
        assert_eq!(after.list(WORK), expected);
        assert_eq!(after.zset(DUE).len(), count - 2);
        assert_eq!(after.hash(MAP).len(), 2 * (count - 2));
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn many_ids_in_one_call_cost_one_pass_over_the_list_and_not_one_each() {
    let server = Server::start();
    let mut con = server.con();
    let ids: Vec<Vec<u8>> = (0..20_000).map(|n| format!("{n:08}-7cf1-4b4e-9b0a-0123456789ab").into_bytes()).collect();
    // From the middle, where no end is near.
    let wanted: Vec<Vec<u8>> = ids[9_000..11_000].iter().step_by(4).cloned().collect();
    // Together, and one by one.
    assert_ratio(0.2, [wanted.len(), 1], |at_once| {
        fill_list(&mut con, WORK, &ids);
        let cost = server.cost(|| {
            for ids in wanted.chunks(at_once) {
                ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, ids);
            }
        });
        let length: usize = ask!(con, "LLEN", WORK);
        assert_eq!(length, ids.len() - wanted.len());
        cost
    });
}

#[test]
fn the_oldest_and_the_newest_of_a_long_list_are_found_without_a_search() {
    let server = Server::start();
    let mut con = server.con();
    let ids: Vec<Vec<u8>> = (0..50_000).map(|n| format!("{n:08}-7cf1-4b4e-9b0a-0123456789ab").into_bytes()).collect();
    let newest = |n: usize| n;
    let oldest = |n: usize| 49_999 - n;
    // In an order in which none is next to the previous one.
    let middle = |n: usize| 25_000 + n * 73 % 200;
    for end in [newest, oldest] {
        assert_ratio(0.25, [end, middle], |place| {
            fill_list(&mut con, WORK, &ids);
            let cost = server.cost(|| {
                for n in 0..200 {
                    assert_eq!(ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, &ids[place(n)]), Value::Okay);
                }
            });
            let length: usize = ask!(con, "LLEN", WORK);
            assert_eq!(length, ids.len() - 200);
            cost
        });
    }
}
