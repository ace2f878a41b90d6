//! The same call from everywhere: MULTI, scripts, functions, RESP2 and RESP3, a replica, a server that is full.

use crate::common::cases::*;
use crate::common::*;
use redis::Value;
use std::collections::BTreeSet;

/// What a plain call leaves behind, to compare with. Times differ from call to call, so they are left out.
fn after_a_plain_call(server: &Server, row: &Row) -> Vec<String> {
    let mut con = server.con();
    HERE.set_up(&mut con, row.setup);
    HERE.run(&mut con, &row.effect);
    state(server)
}

/// All keys without times.
fn state(server: &Server) -> Vec<String> {
    let recent = server_time_ms(&mut server.con()) - 60_000;
    let after = Snapshot::of(&mut server.con());
    let mut lines = Vec::new();
    for key in after.keys() {
        lines.extend(after.list(&key).iter().enumerate().map(|(n, id)| format!("{key} {n} {id}")));
        lines
            .extend(after.hash(&key).iter().map(|(field, value)| format!("{key} {field} {}", timeless(value, recent))));
        lines.extend(after.zset(&key).keys().map(|id| format!("{key} {id}")));
    }
    lines
}

#[test]
fn a_call_inside_of_multi_replies_and_acts_as_alone() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        let wanted = after_a_plain_call(&server, row);
        HERE.set_up(&mut con, row.setup);
        let now = server_time_ms(&mut con);
        ok!(con, "MULTI");
        assert_eq!(shown(HERE.call(&mut con, row.effect.call)), "QUEUED");
        assert_eq!(shown(HERE.call(&mut con, row.idle.call)), "QUEUED");
        let replies = items(ok!(con, "EXEC"));
        HERE.assert_reply(&row.effect, now, Ok(replies[0].clone()));
        assert_eq!(state(&server), wanted, "{}", row.name);
        assert_eq!(replies.len(), 2);
    }
}

#[test]
fn a_discarded_transaction_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        let before = Snapshot::of(&mut con);
        ok!(con, "MULTI");
        HERE.call(&mut con, row.effect.call).unwrap();
        ok!(con, "DISCARD");
        before.assert_unchanged(&mut con);
    }
}

const LIBRARY: &str = "#!lua name=lib
redis.register_function('run', function(keys, args) return redis.call(unpack(args)) end)
redis.register_function{function_name='look', flags={'no-writes'},
    callback=function(keys, args) return redis.call(unpack(args)) end}";

/// A call through a script or a function, with its keys given as keys.
fn through(way: &[&str], row: &Row, step: &Step) -> Vec<String> {
    let mut words: Vec<String> = way.iter().map(ToString::to_string).collect();
    words.push(row.keys.len().to_string());
    words.extend(row.keys.iter().map(|key| HERE.text(key.key)));
    words.extend(HERE.words(step.call));
    words
}

#[test]
fn a_call_from_a_script_or_a_function_replies_and_acts_as_a_plain_one() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "FUNCTION", "LOAD", LIBRARY);
    let run = "return redis.call(unpack(ARGV))";
    let run_3 = "redis.setresp(3) return redis.call(unpack(ARGV))";
    let with_shebang = "#!lua\nreturn redis.call(unpack(ARGV))";
    let ways: [&[&str]; 4] = [&["EVAL", run], &["EVAL", run_3], &["EVAL", with_shebang], &["FCALL", "run"]];
    for row in ROWS {
        let wanted = after_a_plain_call(&server, row);
        // In Lua a map has no order, and in RESP3 a table ends at the first nil.
        let with_map = ["RMQ.CANCEL", "RMQ.POLICY", "RMQ.STATS", "RMQ.PEEK", "RMQ.AUDIT", "RMQ.REPAIR"];
        let has_order = |way: &&&[&str]| !with_map.contains(&row.name) || way[1] != run_3;
        for way in ways.iter().filter(has_order) {
            HERE.set_up(&mut con, row.setup);
            let now = server_time_ms(&mut con);
            let reply = call(&mut con, &through(way, row, &row.effect));
            HERE.assert_reply(&row.effect, now, reply);
            assert_eq!(state(&server), wanted, "{way:?} {}", row.name);

            HERE.set_up(&mut con, row.setup);
            let before = Snapshot::of(&mut con);
            let reply = call(&mut con, &through(way, row, &row.idle));
            HERE.assert_reply(&row.idle, now, reply);
            before.assert_unchanged(&mut con);
        }
    }
}

#[test]
fn a_script_can_catch_an_error_and_go_on() {
    let server = Server::start();
    let mut con = server.con();
    let script = "local r = redis.pcall('RMQ.RETRY', 'm', 'd', 'e', 'p', 'none', 'x', '1') return r.err";
    assert!(text(ok!(con, "EVAL", script, 0)).starts_with("NOMSG "));
    let script = "local r = redis.pcall('RMQ.DELAYTICK', 'd', 'm', '0') return r.err";
    assert_eq!(text(ok!(con, "EVAL", script, 0)), "ERR batch must be a positive integer");
}

#[test]
fn read_only_scripts_and_functions_may_only_read() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "FUNCTION", "LOAD", LIBRARY);
    let ways: [&[&str]; 3] = [
        &["EVAL_RO", "return redis.call(unpack(ARGV))"],
        &["FCALL_RO", "look"],
        &["EVAL", "#!lua flags=no-writes\nreturn redis.call(unpack(ARGV))"],
    ];
    for row in ROWS {
        for way in ways {
            HERE.set_up(&mut con, row.setup);
            let before = Snapshot::of(&mut con);
            let now = server_time_ms(&mut con);
            let reply = call(&mut con, &through(way, row, &row.effect));
            if row.writes() {
                let reply = shown(reply);
                assert!(reply.contains("Write commands are not allowed"), "{}: {reply}", row.name);
            } else {
                HERE.assert_reply(&row.effect, now, reply);
            }
            before.assert_unchanged(&mut con);
        }
    }
}

#[test]
fn blocking_is_ignored_inside_of_multi_and_scripts() {
    let server = Server::start();
    let mut con = server.con();
    let words = HERE.words("RMQ.RESERVE ns 1000 BLOCK 0 FROM q");
    ok!(con, "MULTI");
    call(&mut con, &words).unwrap();
    assert_eq!(items(ok!(con, "EXEC")), [Value::Nil]);
    assert_eq!(ok!(con, "EVAL", "return redis.call(unpack(ARGV))", 0, &words), Value::Nil);
    ok!(con, "FUNCTION", "LOAD", LIBRARY);
    assert_eq!(ok!(con, "FCALL", "run", 0, &words), Value::Nil);
    assert_eq!(server.info("clients")["blocked_clients"], "0");
}

/// A reply as RESP2 gives it, with the two ways to say nil made one, and without times, which differ from call to call.
fn plain(reply: Reply, now: i64) -> Reply {
    match reply {
        Reply::NilBulk | Reply::NilArray => Reply::Null,
        Reply::Array(items) => Reply::Array(without_ages(items.into_iter().map(|item| plain(item, now)).collect())),
        Reply::Map(pairs) => {
            let items = pairs.into_iter().flat_map(|(key, value)| [plain(key, now), plain(value, now)]);
            Reply::Array(without_ages(items.collect()))
        }
        Reply::Bulk(bytes) => Reply::bulk(timeless(&String::from_utf8_lossy(&bytes), now)),
        other => other,
    }
}

/// The ages in RMQ.STATS differ from call to call.
fn without_ages(mut items: Vec<Reply>) -> Vec<Reply> {
    for index in 1..items.len() {
        if items[index - 1] == Reply::bulk("idle_ms") {
            items[index] = Reply::Null;
        }
    }
    items
}

#[test]
fn resp2_and_resp3_give_the_same_reply_type_by_type() {
    let server = Server::start();
    let mut con = server.con();
    let (mut two, mut three) = (Raw::connect(&server), Raw::connect(&server));
    three.call(&["HELLO", "3"]);
    for (about, setup, step) in examples() {
        // The time to wait differs from call to call, and is no bulk string.
        if step.reply.contains("<number>") {
            continue;
        }
        let now = server_time_ms(&mut con);
        HERE.set_up(&mut con, setup);
        let in_two = plain(two.call(&HERE.words(step.call)), now);
        HERE.set_up(&mut con, setup);
        let in_three = plain(three.call(&HERE.words(step.call)), now);
        assert_eq!(in_two, in_three, "{about}");
    }
}

#[test]
fn nil_and_ok_are_exact_to_the_byte() {
    let server = Server::start();
    let mut raw = Raw::connect(&server);
    raw.call(&["HSET", "ns:payloads", "a", "pa", "a:queue", "ns:q"]);
    let reserve = ["RMQ.RESERVE", "ns", "1000", "FROM", "q"];
    let publish = ["RMQ.PUBLISH", "ns", "TO", "q", "a", "pa"];
    let nack = ["RMQ.NACK", "ns", "a", "1-1"];
    let policy = ["RMQ.POLICY", "ns", "q"];
    let complete = ["RMQ.COMPLETE", "map", "p", "exp", "none"];
    let tick = ["RMQ.DELAYTICK", "d", "map", "1"];
    assert_eq!(raw.call_raw(&reserve), b"*-1\r\n");
    assert_eq!(raw.call_raw(&publish), b"*1\r\n$-1\r\n");
    assert_eq!(raw.call_raw(&nack), b"$-1\r\n");
    assert!(raw.call_raw(&policy).starts_with(b"*8\r\n$8\r\nattempts\r\n:25\r\n"));
    assert_eq!(raw.call_raw(&complete), b"+OK\r\n");
    assert_eq!(raw.call_raw(&tick), b"*0\r\n");
    raw.call(&["HELLO", "3"]);
    assert_eq!(raw.call_raw(&reserve), b"_\r\n");
    assert_eq!(raw.call_raw(&publish), b"*1\r\n_\r\n");
    assert_eq!(raw.call_raw(&nack), b"_\r\n");
    assert!(raw.call_raw(&policy).starts_with(b"%4\r\n$8\r\nattempts\r\n:25\r\n"));
    assert_eq!(raw.call_raw(&complete), b"+OK\r\n");
    assert_eq!(raw.call_raw(&tick), b"*0\r\n");
}

#[test]
fn a_read_only_replica_refuses_what_writes_and_serves_what_reads() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::with_module_of(&server);
    let mut there = replica.con();
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        replica.wait_synced();
        let before = Snapshot::of(&mut there);
        let now = server_time_ms(&mut con);
        let reply = HERE.call(&mut there, row.effect.call);
        let by_script = cmd!(there, "EVAL", "return redis.call(unpack(ARGV))", 0, HERE.words(row.effect.call));
        if row.writes() {
            assert!(shown(reply).starts_with("READONLY "), "{}", row.name);
            let by_script = shown(by_script);
            assert!(by_script.contains("READONLY") || by_script.contains("read only replica"), "{by_script}");
        } else {
            HERE.assert_reply(&row.effect, now, reply);
            HERE.assert_reply(&row.effect, now, by_script);
        }
        before.assert_unchanged(&mut there);
    }
    replica.promote();
    for row in ROWS {
        HERE.set_up(&mut there, row.setup);
        HERE.run(&mut there, &row.effect);
    }
}

/// Puts the server over its limit for as long as the closure runs; the keys are made before.
fn over_the_limit(server: &Server, setup: &[&str], then: impl FnOnce()) {
    let mut con = server.con();
    ok!(con, "CONFIG", "SET", "maxmemory", 0);
    HERE.set_up(&mut con, setup);
    ok!(con, "CONFIG", "SET", "maxmemory", 1);
    then();
    ok!(con, "CONFIG", "SET", "maxmemory", 0);
}

#[test]
fn over_maxmemory_what_adds_data_is_refused_and_what_drains_goes_on() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        over_the_limit(&server, row.setup, || {
            let before = Snapshot::of(&mut con);
            let now = server_time_ms(&mut con);
            let reply = HERE.call(&mut con, row.effect.call);
            if row.adds_data {
                let reply = shown(reply);
                assert!(reply.starts_with("OOM command not allowed"), "{}: {reply}", row.name);
                before.assert_unchanged(&mut con);
            } else {
                HERE.assert_reply(&row.effect, now, reply);
            }
        });
        // Below the limit again, everything works.
        HERE.set_up(&mut con, row.setup);
        HERE.run(&mut con, &row.effect);
    }
}

#[test]
fn over_maxmemory_the_five_commands_are_divided_as_promised() {
    let refused = |name: &str| ROWS.iter().find(|row| row.name == name).expect("a row").adds_data;
    assert!(refused("RMQ.RETRY") && refused("RMQ.PARSEERR"));
    assert!(!refused("RMQ.COMPLETE") && !refused("RMQ.DELAYTICK") && !refused("RMQ.TIMEOUTS"));
}

#[test]
fn over_maxmemory_the_same_holds_in_scripts() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        over_the_limit(&server, row.setup, || {
            let before = Snapshot::of(&mut con);
            let now = server_time_ms(&mut con);
            let words = HERE.words(row.effect.call);
            let reply = cmd!(con, "EVAL", "return redis.call(unpack(ARGV))", 0, words);
            if row.adds_data {
                let reply = shown(reply);
                assert!(reply.starts_with("OOM "), "{}: {reply}", row.name);
                before.assert_unchanged(&mut con);
            } else {
                HERE.assert_reply(&row.effect, now, reply);
            }
        });
    }
}

#[test]
fn over_maxmemory_the_same_holds_when_a_transaction_runs() {
    let server = Server::start();
    let (mut con, mut other) = (server.con(), server.con());
    for row in ROWS {
        ok!(other, "CONFIG", "SET", "maxmemory", 0);
        HERE.set_up(&mut other, row.setup);
        let before = Snapshot::of(&mut other);
        let now = server_time_ms(&mut other);
        // A server over its limit queues nothing at all, so the limit comes after.
        ok!(con, "MULTI");
        HERE.call(&mut con, row.effect.call).unwrap();
        ok!(other, "CONFIG", "SET", "maxmemory", 1);
        let replies = cmd!(con, "EXEC");
        if row.adds_data {
            let replies = shown(replies);
            assert!(replies.contains("OOM command not allowed"), "{}: {replies}", row.name);
            before.assert_unchanged(&mut other);
        } else {
            HERE.assert_reply(&row.effect, now, Ok(items(replies.unwrap())[0].clone()));
        }
    }
}

#[test]
fn over_maxmemory_a_nack_is_taken_but_not_a_larger_payload() {
    let server = Server::start();
    let mut con = server.con();
    let row = ROWS.iter().find(|row| row.name == "RMQ.NACK").unwrap();
    over_the_limit(&server, row.setup, || {
        let before = Snapshot::of(&mut con);
        let with_payload = format!("{} PAYLOAD new", row.effect.call);
        let reply = shown(HERE.call(&mut con, &with_payload));
        assert!(reply.starts_with("OOM "), "{reply}");
        before.assert_unchanged(&mut con);
        HERE.run(&mut con, &row.effect);
    });
}

/// The keys that a step changes.
fn changed_by(step: &Step) -> BTreeSet<String> {
    step.stream.iter().map(|line| HERE.words(line)[1].clone()).collect()
}

#[test]
fn a_watch_breaks_for_each_key_that_changes_and_for_no_other() {
    let server = Server::start();
    let mut con = server.con();
    for (about, setup, step) in examples() {
        HERE.set_up(&mut con, setup);
        let changes = changed_by(step);
        let mut keys: BTreeSet<String> = Snapshot::of(&mut con).keys().into_iter().collect();
        keys.extend(changes.iter().cloned());
        keys.insert("bystander".into());
        let watchers: Vec<_> = keys.iter().map(|key| (key, Watcher::on(&server, &[key]))).collect();
        HERE.run(&mut con, step);
        for (key, watcher) in watchers {
            assert_eq!(watcher.touched(), changes.contains(key), "{about}: {key}");
        }
    }
}

#[test]
fn a_call_that_changes_nothing_breaks_no_watch() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        let mut keys: Vec<String> = row.all_keys().map(|key| HERE.text(key.key)).collect();
        keys.extend(Snapshot::of(&mut con).keys());
        let watcher = Watcher::on(&server, &keys);
        HERE.run(&mut con, &row.idle);
        assert!(watcher.untouched(), "{}", row.idle.call);
    }
}

#[test]
fn keys_stay_in_the_database_that_was_selected() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        ok!(con, "SELECT", 0);
        HERE.set_up(&mut con, row.setup);
        let before = Snapshot::of(&mut con);
        ok!(con, "SELECT", 3);
        HERE.set_up(&mut con, row.setup);
        HERE.run(&mut con, &row.effect);
        ok!(con, "SELECT", 0);
        before.assert_unchanged(&mut con);
        for database in [0, 3] {
            ok!(con, "SELECT", database);
            ok!(con, "FLUSHDB");
        }
    }
}

#[test]
fn expired_keys_count_as_missing() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        let made = Snapshot::of(&mut con).keys();
        for key in &made {
            ok!(con, "PEXPIRE", key, 1);
        }
        std::thread::sleep(std::time::Duration::from_millis(3));
        let reply = shown(HERE.call(&mut con, row.effect.call));
        let empty_world = {
            let fresh = Server::start();
            shown(HERE.call(&mut fresh.con(), row.effect.call))
        };
        assert_eq!(reply, empty_world, "{}", row.name);
        for key in made {
            assert_eq!(ok!(con, "TTL", &key), ttl_of_a_new_or_missing_key(&mut con, &key), "{}: {key}", row.name);
        }
    }
}

/// An expired key that is written again has no expiry.
fn ttl_of_a_new_or_missing_key(con: &mut redis::Connection, key: &str) -> Value {
    match ok!(con, "EXISTS", key) {
        Value::Int(0) => Value::Int(-2),
        _ => Value::Int(-1),
    }
}
