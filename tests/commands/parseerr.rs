//! RMQ.PARSEERR parse_error_map parse_error_queue processing expire_monitor payload_map id payload topic error
//! timestamp [expire_days [max_count [supports_hexpire]]]

use crate::common::messages::{DUE, MAP, WORK};
use crate::common::*;

use base64::Engine;
use redis::Connection;
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

const RECORDS: &str = "mx-rmq:errors:data";
const QUEUE: &str = "mx-rmq:errors";
const KEYS: [&str; 5] = [RECORDS, QUEUE, WORK, DUE, MAP];
const TRUNCATED: &str = "...[truncated]";
const DAY_MS: i64 = 86_400_000;

fn quarantine(con: &mut Connection, id: &str, limits: &[&str]) {
    ok!(con, "RMQ.PARSEERR", &KEYS, id, format!("payload of {id}"), "orders", "why", "1700000000000", limits);
}

fn record(con: &mut Connection, id: impl redis::ToRedisArgs) -> Value {
    let json: Vec<u8> = ask!(con, "HGET", RECORDS, id);
    serde_json::from_slice(&json).unwrap_or_else(|e| panic!("{e}: {}", json.escape_ascii()))
}

fn queue(con: &mut Connection) -> Vec<String> {
    strings(ok!(con, "LRANGE", QUEUE, 0, -1))
}

/// The ids that have a record, sorted.
fn recorded(con: &mut Connection) -> BTreeSet<String> {
    ask!(con, "HKEYS", RECORDS)
}

fn set<const N: usize>(ids: [&str; N]) -> BTreeSet<String> {
    ids.into_iter().map(String::from).collect()
}

/// The record of `payload` and `error`, after a call that stores it.
fn stored(con: &mut Connection, payload: &[u8], error: &[u8]) -> Value {
    ok!(con, "RMQ.PARSEERR", &KEYS, "a", payload, "orders", error, "1700000000000");
    record(con, "a")
}

#[test]
fn the_record_says_what_came_with_which_error_and_when() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.PARSEERR", &KEYS, "m-1", "{\"broken\": ", "orders", "unexpected \"end\"", "1700000000123");
    assert_eq!(
        record(&mut con, "m-1"),
        json!({
            "original_payload": "{\"broken\": ",
            "error_type": "parse_error",
            "error_message": "unexpected \"end\"",
            "topic": "orders",
            "timestamp": "1700000000123",
            "message_id": "m-1",
            "original_payload_bytes": 11,
        })
    );
    assert_eq!(queue(&mut con), ["m-1"]);
    assert_eq!(counter(&server, "quarantined"), 1);
}

#[test]
fn the_reply_is_ok() {
    let server = Server::start();
    let mut call: Vec<&str> = vec!["rmq.parseerr"];
    call.extend(KEYS);
    call.extend(["a", "payload", "orders", "why", "1"]);
    assert_eq!(Raw::connect(&server).call_raw(&call), b"+OK\r\n");
}

#[test]
fn every_trace_of_the_message_leaves_the_working_keys_and_no_other_message_does() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c"] {
        let own = [format!("{id}:queue"), format!("{id}:attempts")];
        ok!(con, "HSET", MAP, id, "payload", &own[0], "mx-rmq:orders", &own[1], 2);
        ok!(con, "LPUSH", WORK, id);
        ok!(con, "ZADD", DUE, 1000, id);
    }
    quarantine(&mut con, "b", &[]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(WORK), ["c", "a"]);
    assert_eq!(after.zset(DUE).into_keys().collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(
        after.hash(MAP).into_keys().collect::<Vec<_>>(),
        ["a", "a:attempts", "a:queue", "c", "c:attempts", "c:queue"]
    );
    quarantine(&mut con, "a", &[]);
    quarantine(&mut con, "c", &[]);
    assert_eq!(Snapshot::of(&mut con).keys(), [QUEUE, RECORDS]);
    assert_eq!(queue(&mut con), ["c", "a", "b"]);
}

#[test]
fn one_occurrence_leaves_processing_wherever_it_stands() {
    let server = Server::start();
    let mut con = server.con();
    let ids: Vec<String> = (0..1000).map(|n| format!("m{n}")).collect();
    for place in [0, 300, 500, 999] {
        ok!(con, "DEL", WORK);
        ok!(con, "RPUSH", WORK, &ids);
        quarantine(&mut con, &ids[place], &[]);
        let mut rest = ids.clone();
        rest.remove(place);
        assert_eq!(Snapshot::of(&mut con).list(WORK), rest);
    }
    ok!(con, "DEL", WORK);
    ok!(con, "RPUSH", WORK, "a", "a");
    quarantine(&mut con, "a", &[]);
    assert_eq!(Snapshot::of(&mut con).list(WORK), ["a"]);
}

#[test]
fn the_record_is_valid_json_for_any_bytes_in_any_argument() {
    let server = Server::start();
    let mut con = server.con();
    let mut rng = Rng::seeded();
    let mut texts: Vec<Vec<u8>> = [
        &b""[..],
        b"\0",
        b"\r\n",
        b"%s%n%d",
        b"\"",
        b"\\",
        b"\\\"}{",
        b"\x01\x1f\x7f\x80",
        b"\xff\xfe",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        "\u{2028}\u{2029}\u{fffd}\u{1f600}".as_bytes(),
        b"</script>",
        b"null",
    ]
    .iter()
    .map(|text| text.to_vec())
    .collect();
    texts.extend((0..200).map(|n| rng.bytes(n)));
    for text in &texts {
        // An id may be anything but one of payload_map's own fields.
        ok!(con, "RMQ.PARSEERR", &KEYS, text, text, text, text, text);
        let record = record(&mut con, text);
        let readable = String::from_utf8_lossy(text);
        for field in ["original_payload", "error_message", "topic", "timestamp", "message_id"] {
            assert_eq!(record[field], readable.as_ref(), "{field}");
        }
        assert_eq!(record["error_type"], "parse_error");
        assert_eq!(record["original_payload_bytes"], text.len());
        let names = record.as_object().unwrap().len();
        match std::str::from_utf8(text) {
            Ok(_) => assert_eq!(names, 7),
            Err(_) => {
                let exact = record["original_payload_base64"].as_str().unwrap();
                assert_eq!(base64::engine::general_purpose::STANDARD.decode(exact).unwrap(), *text);
                assert_eq!(names, 8);
            }
        }
    }
    let all: BTreeSet<Vec<u8>> = ask!(con, "HKEYS", RECORDS);
    assert_eq!(all, texts.iter().cloned().collect());
}

#[test]
fn payload_and_error_message_are_limited_to_4096_and_256_bytes_and_marked() {
    let server = Server::start();
    let mut con = server.con();
    let text = |length: usize| "x".repeat(length).into_bytes();
    let whole = stored(&mut con, &text(4096), &text(256));
    assert_eq!(whole["original_payload"], "x".repeat(4096));
    assert_eq!(whole["error_message"], "x".repeat(256));

    let cut = stored(&mut con, &text(4097), &text(257));
    assert_eq!(cut["original_payload"], "x".repeat(4096) + TRUNCATED);
    assert_eq!(cut["error_message"], "x".repeat(256) + TRUNCATED);
    assert_eq!(cut["original_payload_bytes"], 4097);

    let cut = stored(&mut con, &text(1_000_000), &text(1_000_000));
    assert_eq!(cut["original_payload"].as_str().unwrap().len(), 4096 + TRUNCATED.len());
    assert_eq!(cut["error_message"].as_str().unwrap().len(), 256 + TRUNCATED.len());
    assert_eq!(cut["original_payload_bytes"], 1_000_000);
}

#[test]
fn text_is_cut_at_a_character_and_never_in_it() {
    let server = Server::start();
    let mut con = server.con();
    for character in ["é", "€", "😀"] {
        for lead in 0..4 {
            let text = "x".repeat(lead) + &character.repeat(3000);
            let cut = stored(&mut con, text.as_bytes(), text.as_bytes());
            for (field, limit) in [("original_payload", 4096), ("error_message", 256)] {
                let kept = cut[field].as_str().unwrap().strip_suffix(TRUNCATED).unwrap();
                assert!(text.starts_with(kept));
                assert!(kept.len() <= limit && limit < kept.len() + character.len(), "{}", kept.len());
            }
            assert!(cut.get("original_payload_base64").is_none());
            assert_eq!(cut["original_payload_bytes"], text.len());
        }
    }
}

#[test]
fn a_long_payload_that_is_not_utf8_keeps_its_first_bytes_exactly() {
    let server = Server::start();
    let mut con = server.con();
    let payload: Vec<u8> = (0..5000u32).map(|n| (n * 7 % 251) as u8).collect();
    let cut = stored(&mut con, &payload, b"");
    let exact =
        base64::engine::general_purpose::STANDARD.decode(cut["original_payload_base64"].as_str().unwrap()).unwrap();
    assert!(payload.starts_with(&exact) && (4093..=4096).contains(&exact.len()));
    assert!(cut["original_payload"].as_str().unwrap().ends_with(TRUNCATED));
    assert_eq!(cut["original_payload_bytes"], 5000);
}

#[test]
fn the_limits_are_settings_that_hold_from_the_next_call_on() {
    let server = Server::start();
    let mut con = server.con();
    for (payload, message) in [(10, 5), (0, 0), (5000, 300)] {
        ok!(con, "CONFIG", "SET", "rmq.parse-error-payload-limit", payload);
        ok!(con, "CONFIG", "SET", "rmq.parse-error-message-limit", message);
        let cut = stored(&mut con, &b"x".repeat(6000), &b"y".repeat(400));
        assert_eq!(cut["original_payload"], "x".repeat(payload) + TRUNCATED);
        assert_eq!(cut["error_message"], "y".repeat(message) + TRUNCATED);
    }
    let builder =
        Server::builder().config_line("rmq.parse-error-payload-limit 3").config_line("rmq.parse-error-message-limit 2");
    let server = builder.start();
    let cut = stored(&mut server.con(), b"xxxx", b"yyy");
    assert_eq!(cut["original_payload"], String::from("xxx") + TRUNCATED);
    assert_eq!(cut["error_message"], String::from("yy") + TRUNCATED);
}

#[test]
fn after_the_call_exactly_the_newest_max_count_records_remain_in_list_and_hash_alike() {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..10 {
        quarantine(&mut con, &format!("m{n}"), &["", "3"]);
        let newest: Vec<String> = (0..=n).rev().take(3).map(|n| format!("m{n}")).collect();
        assert_eq!(queue(&mut con), newest);
        assert_eq!(recorded(&mut con), newest.into_iter().collect());
    }
    assert_eq!(counter(&server, "trimmed"), 7);
    quarantine(&mut con, "last", &["", "1"]);
    assert_eq!(queue(&mut con), ["last"]);
    assert_eq!(recorded(&mut con), set(["last"]));
}

#[test]
fn without_max_count_or_with_a_large_one_every_record_stays() {
    let server = Server::start();
    let mut con = server.con();
    for n in 0..300 {
        let limits: &[&str] = match n % 3 {
            0 => &[],
            1 => &["", ""],
            _ => &["", "9223372036854775807"],
        };
        quarantine(&mut con, &format!("m{n}"), limits);
    }
    assert_eq!((queue(&mut con).len(), recorded(&mut con).len()), (300, 300));
    assert_eq!(counter(&server, "trimmed"), 0);
}

#[test]
fn the_first_trim_of_a_long_queue_is_exact_too() {
    let server = Server::start();
    let mut con = server.con();
    for (length, max_count) in [(2500, 10), (5000, 1), (1001, 1000), (12_345, 2345)] {
        let old: Vec<String> = (0..length).map(|n| format!("old{n}")).collect();
        for chunk in old.chunks(1000) {
            ok!(con, "LPUSH", QUEUE, chunk);
            let records: Vec<(&String, &str)> = chunk.iter().map(|id| (id, "{}")).collect();
            ok!(con, "HSET", RECORDS, records);
        }
        quarantine(&mut con, "new", &["", &max_count.to_string()]);
        let mut newest = vec![String::from("new")];
        newest.extend(old.iter().rev().take(max_count - 1).cloned());
        assert!(queue(&mut con) == newest, "{length} to {max_count}");
        assert!(recorded(&mut con) == newest.into_iter().collect());
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn ids_whose_record_was_deleted_do_not_count_against_max_count() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    for id in ["a", "b", "c", "d", "e"] {
        quarantine(&mut con, id, &[]);
    }
    ok!(con, "HDEL", RECORDS, "c", "d");
    quarantine(&mut con, "f", &["", "4"]);
    assert_eq!(queue(&mut con), ["f", "e", "b", "a"]);
    assert_eq!(recorded(&mut con), set(["a", "b", "e", "f"]));
    quarantine(&mut con, "g", &["", "4"]);
    assert_eq!(queue(&mut con), ["g", "f", "e", "b"]);
    assert_eq!(recorded(&mut con), set(["b", "e", "f", "g"]));
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn the_same_id_again_replaces_its_record_and_is_once_at_the_head() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c", "d"] {
        quarantine(&mut con, id, &[]);
    }
    for (id, order) in [("d", ["d", "c", "b", "a"]), ("a", ["a", "d", "c", "b"]), ("c", ["c", "a", "d", "b"])] {
        ok!(con, "RMQ.PARSEERR", &KEYS, id, "second", "orders", "why", 1, "", 4);
        assert_eq!(queue(&mut con), order);
        assert_eq!(record(&mut con, id)["original_payload"], "second");
    }
    assert_eq!(recorded(&mut con).len(), 4);
    assert_eq!(counter(&server, "trimmed"), 0);
}

#[test]
fn the_same_id_again_is_found_anywhere_in_a_long_queue() {
    let server = Server::start();
    let mut con = server.con();
    let mut expected: Vec<String> = (0..2000).map(|n| format!("m{n}")).collect();
    for id in expected.iter().rev() {
        quarantine(&mut con, id, &[]);
    }
    for place in [0, 1, 7, 8, 20, 1000, 1980, 1991, 1992, 1998, 1999] {
        let id = expected.remove(place);
        quarantine(&mut con, &id, &[]);
        expected.insert(0, id);
        assert!(queue(&mut con) == expected, "{place}");
    }
}

#[test]
fn the_same_id_again_is_queued_once_although_its_record_was_gone() {
    let server = Server::start();
    let mut con = server.con();
    for id in ["a", "b", "c"] {
        quarantine(&mut con, id, &[]);
    }
    ok!(con, "HDEL", RECORDS, "b");
    quarantine(&mut con, "b", &[]);
    assert_eq!(queue(&mut con), ["b", "c", "a"]);
    assert_eq!(recorded(&mut con), set(["a", "b", "c"]));
}

/// When the record of `id` expires: by field expiry where the server has it, else with the whole hash.
fn expires_at(server: &Server, con: &mut Connection, id: &str) -> i64 {
    if server.supports("hexpire") {
        let times: Vec<i64> = ask!(con, "HPEXPIRETIME", RECORDS, "FIELDS", 1, id);
        let hash: i64 = ask!(con, "PEXPIRETIME", RECORDS);
        assert_eq!(hash, -1, "only the field expires");
        times[0]
    } else {
        ask!(con, "PEXPIRETIME", RECORDS)
    }
}

#[test]
fn expire_days_sets_when_the_record_goes_by_the_servers_clock() {
    let server = Server::start();
    let mut con = server.con();
    for (days, ms) in [("7", 7 * DAY_MS), ("0.5", DAY_MS / 2), ("1e-3", DAY_MS / 1000), ("365", 365 * DAY_MS)] {
        let before = server_time_ms(&mut con);
        quarantine(&mut con, "a", &[days]);
        let after = server_time_ms(&mut con);
        let at = expires_at(&server, &mut con, "a");
        assert!((before + ms..=after + ms).contains(&at), "{days}: {before} {at} {after}");
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn without_expire_days_no_record_expires() {
    let server = Server::start();
    let mut con = server.con();
    for limits in [&[][..], &[""], &["", "", ""], &["", "5", "1"], &["", "", "0"]] {
        quarantine(&mut con, "a", limits);
        assert_eq!(expires_at(&server, &mut con, "a"), -1);
    }
}

#[test]
fn each_record_expires_by_itself_where_fields_can_and_else_the_first_sets_the_time_for_all() {
    let server = Server::start();
    let mut con = server.con();
    quarantine(&mut con, "a", &["1"]);
    let first = expires_at(&server, &mut con, "a");
    quarantine(&mut con, "b", &["30", "", "1"]);
    let second = expires_at(&server, &mut con, "b");
    quarantine(&mut con, "c", &[]);
    let none = expires_at(&server, &mut con, "c");
    assert_eq!(expires_at(&server, &mut con, "a"), first);
    if server.supports("hexpire") {
        assert!(second - first >= 29 * DAY_MS && none == -1);
    } else {
        assert_eq!((second, none), (first, first), "a hash with a TTL keeps it");
    }
}

#[test]
fn supports_hexpire_0_sets_the_time_of_the_whole_hash_if_it_has_none_yet() {
    let server = Server::start();
    let mut con = server.con();
    let before = server_time_ms(&mut con);
    quarantine(&mut con, "a", &["2", "", "0"]);
    let after = server_time_ms(&mut con);
    let first: i64 = ask!(con, "PEXPIRETIME", RECORDS);
    assert!((before + 2 * DAY_MS..=after + 2 * DAY_MS).contains(&first));
    quarantine(&mut con, "b", &["9", "", "0"]);
    quarantine(&mut con, "c", &["", "", "0"]);
    let still: i64 = ask!(con, "PEXPIRETIME", RECORDS);
    assert_eq!(still, first);
    if server.supports("hexpire") {
        let fields: Vec<i64> = ask!(con, "HPEXPIRETIME", RECORDS, "FIELDS", 3, "a", "b", "c");
        assert_eq!(fields, [-1, -1, -1]);
    }
}

#[test]
fn the_same_id_again_gets_the_time_of_the_new_record() {
    let server = Server::start();
    let mut con = server.con();
    quarantine(&mut con, "a", &["1"]);
    let first = expires_at(&server, &mut con, "a");
    quarantine(&mut con, "a", &["3"]);
    let second = expires_at(&server, &mut con, "a");
    quarantine(&mut con, "a", &[]);
    let third = expires_at(&server, &mut con, "a");
    if server.supports("hexpire") {
        assert!(second - first >= 2 * DAY_MS && third == -1);
    } else {
        assert_eq!((second, third), (first, first));
    }
}

#[test]
fn an_empty_optional_argument_is_as_good_as_none() {
    let server = Server::start();
    let mut con = server.con();
    for limits in [&[][..], &[""], &["", ""], &["", "", ""]] {
        quarantine(&mut con, "a", limits);
        quarantine(&mut con, "b", limits);
        assert_eq!(queue(&mut con), ["b", "a"], "{limits:?}");
        assert_eq!(expires_at(&server, &mut con, "b"), -1, "{limits:?}");
        ok!(con, "FLUSHALL");
    }
    quarantine(&mut con, "a", &["7", "", ""]);
    assert!(expires_at(&server, &mut con, "a") > 0);
    quarantine(&mut con, "b", &["", "1", ""]);
    assert_eq!(queue(&mut con), ["b"]);
}

#[test]
fn ids_whose_record_has_expired_leave_the_tail_of_the_queue() {
    let server = Server::start();
    let mut con = server.con();
    // As short as can be: a second.
    for id in ["a", "b", "c"] {
        quarantine(&mut con, id, &["1e-9"]);
    }
    if server.supports("hexpire") {
        quarantine(&mut con, "d", &["7"]);
        quarantine(&mut con, "e", &[]);
    }
    let mut gone = |id: &str| {
        let there: bool = ask!(con, "HEXISTS", RECORDS, id);
        !there
    };
    assert!(eventually(deadline(), || gone("a") && gone("b") && gone("c")));
    quarantine(&mut con, "new", &[]);
    if server.supports("hexpire") {
        assert_eq!(queue(&mut con), ["new", "e", "d"]);
        assert_eq!(recorded(&mut con), set(["new", "e", "d"]));
    } else {
        assert_eq!(queue(&mut con), ["new"]);
        assert_eq!(recorded(&mut con), set(["new"]));
    }
    assert_eq!(counter(&server, "trimmed"), 3);
}

#[test]
fn an_id_whose_record_has_expired_is_queued_once_when_it_comes_again() {
    let server = Server::start();
    let mut con = server.con();
    quarantine(&mut con, "a", &["1e-9"]);
    quarantine(&mut con, "b", &["7"]);
    assert!(eventually(deadline(), || {
        let there: bool = ask!(con, "HEXISTS", RECORDS, "a");
        !there
    }));
    quarantine(&mut con, "a", &[]);
    // Where the whole hash expired, b went with it.
    let expected: &[&str] = if server.supports("hexpire") { &["a", "b"] } else { &["a"] };
    assert_eq!(queue(&mut con), expected);
}

#[test]
fn a_bounded_number_of_ids_without_record_leaves_per_call_until_all_have() {
    let server = Server::start();
    let mut con = server.con();
    let old: Vec<String> = (0..1000).map(|n| format!("old{n}")).collect();
    ok!(con, "LPUSH", QUEUE, &old);
    quarantine(&mut con, "m0", &[]);
    let left = queue(&mut con).len();
    assert!((501..1001).contains(&left), "{left} left of 1001");
    let mut calls = 1;
    while queue(&mut con).len() > calls {
        quarantine(&mut con, &format!("m{calls}"), &[]);
        calls += 1;
        assert!(calls < 1000);
    }
    let newest: Vec<String> = (0..calls).rev().map(|n| format!("m{n}")).collect();
    assert_eq!(queue(&mut con), newest);
    assert_eq!(recorded(&mut con).len(), calls);
}

#[test]
fn a_message_that_is_in_no_working_key_is_recorded_all_the_same() {
    let server = Server::start();
    let mut con = server.con();
    quarantine(&mut con, "a", &["7", "10", "1"]);
    assert_eq!(Snapshot::of(&mut con).keys(), [QUEUE, RECORDS]);
    assert_eq!(record(&mut con, "a")["original_payload"], "payload of a");
}

#[test]
fn an_id_that_is_queued_several_times_is_queued_once_afterwards_and_displaces_no_other() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RPUSH", "eq", "a", "b", "a");
    ok!(con, "HSET", "em", "a", 1, "b", 2);
    ok!(con, "RMQ.PARSEERR", "em", "eq", "p", "e", "m", "a", "{", "t", "bad", 1, "", 2);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list("eq"), ["a", "b"]);
    let records: Vec<String> = after.hash("em").into_keys().collect();
    assert_eq!(records, ["a", "b"]);
}

/// A server that does not sweep up expired fields by itself; none where fields cannot expire.
fn server_that_does_not_sweep() -> Option<Server> {
    let server = Server::start();
    if !server.supports("hpexpire") {
        return None;
    }
    ok!(server.con(), "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    Some(server)
}

fn let_expire(con: &mut Connection, ids: &[&str]) {
    ok!(con, "HPEXPIRE", RECORDS, 1, "FIELDS", ids.len(), ids);
    sleep(Duration::from_millis(10));
}

/// Queue and map hold these, and nothing else.
#[track_caller]
fn assert_in_quarantine(con: &mut Connection, newest_first: &[&str]) {
    assert_eq!(queue(con), newest_first);
    assert_eq!(recorded(con), newest_first.iter().map(ToString::to_string).collect());
}

#[test]
fn an_id_whose_record_has_expired_but_is_not_swept_up_stands_once_when_it_comes_again() {
    let Some(server) = server_that_does_not_sweep() else { return };
    let mut con = server.con();
    for limits in [&[][..], &["7"], &["", "3"], &["", "100"]] {
        for id in ["a", "b", "c"] {
            quarantine(&mut con, id, &[]);
        }
        let_expire(&mut con, &["b"]);
        quarantine(&mut con, "b", limits);
        assert_in_quarantine(&mut con, &["b", "c", "a"]);
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn trimming_never_deletes_the_record_that_the_call_has_written() {
    let Some(server) = server_that_does_not_sweep() else { return };
    let mut con = server.con();
    for (max_count, left) in [("1", &["b"][..]), ("2", &["b", "c"])] {
        for id in ["a", "b", "c"] {
            quarantine(&mut con, id, &[]);
        }
        let_expire(&mut con, &["b"]);
        quarantine(&mut con, "b", &["", max_count]);
        assert_in_quarantine(&mut con, left);
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn an_expired_record_that_is_not_swept_up_takes_the_place_of_no_living_one() {
    let Some(server) = server_that_does_not_sweep() else { return };
    let replica = Replica::of(&server);
    let mut con = server.con();
    for id in ["a", "b", "c"] {
        quarantine(&mut con, id, &[]);
    }
    let_expire(&mut con, &["b"]);
    quarantine(&mut con, "d", &["", "3"]);
    assert_in_quarantine(&mut con, &["d", "c", "a"]);
    replica.wait_synced();
    assert_eq!(queue(&mut replica.con()), ["d", "c", "a"]);
}

#[test]
fn fields_that_have_expired_do_not_make_queue_and_map_look_alike() {
    let Some(server) = server_that_does_not_sweep() else { return };
    let mut con = server.con();
    // Valkey 9 does not delete the field of a, so that there are as many fields as ids.
    quarantine(&mut con, "a", &[]);
    let_expire(&mut con, &["a"]);
    quarantine(&mut con, "b", &["", "1"]);
    ok!(con, "HDEL", RECORDS, "b");
    quarantine(&mut con, "b", &["", "1"]);
    assert_in_quarantine(&mut con, &["b"]);
    ok!(con, "FLUSHALL");
    quarantine(&mut con, "b", &["", "1"]);
    quarantine(&mut con, "c", &[]);
    let_expire(&mut con, &["b"]);
    ok!(con, "HDEL", RECORDS, "c");
    quarantine(&mut con, "c", &["", "3"]);
    assert_in_quarantine(&mut con, &["c"]);
}

#[test]
fn whatever_has_expired_exactly_the_newest_living_records_remain() {
    let Some(server) = server_that_does_not_sweep() else { return };
    let mut con = server.con();
    let mut rng = Rng::seeded();
    for round in 0..100 {
        let count = 1 + rng.below(11);
        let ids: Vec<String> = (0..count).map(|number| format!("m{number}")).collect();
        for id in &ids {
            quarantine(&mut con, id, &[]);
        }
        let (expired, living): (Vec<&str>, Vec<&str>) = ids.iter().map(String::as_str).partition(|_| rng.below(2) == 0);
        if !expired.is_empty() {
            let_expire(&mut con, &expired);
        }
        // A new one, or one that has been there.
        let comes = if rng.below(2) == 0 { "new" } else { ids[rng.below(ids.len())].as_str() };
        let max_count = 1 + rng.below(11);
        quarantine(&mut con, comes, &["", &max_count.to_string()]);
        let mut expected = vec![comes];
        expected.extend(living.iter().rev().filter(|id| **id != comes));
        expected.truncate(max_count);
        println!("round {round}: of {ids:?} {expired:?} have expired; then {comes} comes, max_count {max_count}");
        let recorded = recorded(&mut con);
        assert_eq!(recorded, expected.iter().map(ToString::to_string).collect());
        // Where there is room, an expired id may stand among the others for a while.
        let standing = queue(&mut con);
        assert!(standing.len() <= max_count, "{standing:?}");
        let alive: Vec<&String> = standing.iter().filter(|id| recorded.contains(*id)).collect();
        assert_eq!(alive, expected);
        ok!(con, "FLUSHALL");
    }
}

#[test]
fn the_topic_of_a_record_is_cut_like_the_error_message() {
    let server = Server::start();
    let mut con = server.con();
    let mut topic_of = |topic: &str| {
        ok!(con, "RMQ.PARSEERR", &KEYS, "a", "{", topic, "why", 1);
        record(&mut con, "a")["topic"].as_str().expect("a topic").to_string()
    };
    assert_eq!(topic_of(&"x".repeat(256)), "x".repeat(256));
    assert_eq!(topic_of(&"x".repeat(257)), "x".repeat(256) + TRUNCATED);
    assert_eq!(topic_of(&"é".repeat(1_000_000)), "é".repeat(128) + TRUNCATED);
    assert_eq!(topic_of(&("x".to_string() + &"é".repeat(200))), "x".to_string() + &"é".repeat(127) + TRUNCATED);
    ok!(server.con(), "CONFIG", "SET", "rmq.parse-error-message-limit", 3);
    assert_eq!(topic_of("orders"), "ord...[truncated]");
}

#[test]
fn the_timestamp_of_a_record_is_cut_like_the_error_message_but_no_shorter_than_64_bytes() {
    let server = Server::start();
    let mut con = server.con();
    let mut timestamp_of = |timestamp: &str| {
        ok!(con, "RMQ.PARSEERR", &KEYS, "a", "{", "orders", "why", timestamp);
        record(&mut con, "a")["timestamp"].as_str().expect("a timestamp").to_string()
    };
    assert_eq!(timestamp_of(&"1".repeat(1_000_000)), "1".repeat(256) + TRUNCATED);
    ok!(server.con(), "CONFIG", "SET", "rmq.parse-error-message-limit", 3);
    assert_eq!(timestamp_of("1700000000000"), "1700000000000");
    assert_eq!(timestamp_of(&"1".repeat(65)), "1".repeat(64) + TRUNCATED);
}
