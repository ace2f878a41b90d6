//! Tests of the test harness itself, on servers without the module.

use crate::common::*;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

fn plain_server() -> Server {
    Server::builder().without_module().start()
}

#[test]
fn a_server_starts_answers_and_is_gone_when_dropped() {
    let server = plain_server();
    let mut con = server.con();
    assert_eq!(text(ok!(con, "PING")), "PONG");
    assert!(server.version() >= (7, 0, 0));
    assert!(server.supports("lpush") && !server.supports("no-such-command"));
    assert!(server.used_memory() > 0);
    assert!(server.log().contains("Ready to accept connections"));
    ok!(con, "LPUSH", "p", "a", "b");
    assert_eq!(server.commandstats("LPUSH").calls, 1);
    assert_eq!(server.commandstats("never-called").calls, 0);

    let (pid, dir) = (server.pid(), server.dir().to_path_buf());
    assert!(dir.exists());
    drop(server);
    assert!(!dir.exists());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = std::thread::spawn(plain_server).join().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(server.is_alive());
    assert_eq!(text(ok!(server.con(), "PING")), "PONG");
}

#[test]
fn a_server_dies_when_its_test_panics() {
    let pid = std::thread::spawn(|| {
        let server = plain_server();
        let pid = server.pid();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _moved = server;
            panic!("on purpose");
        }))
        .unwrap_err();
        pid
    })
    .join()
    .unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
#[ignore = "the next test runs it, in a process that it kills"]
fn helper_that_starts_a_server_and_waits() {
    let server = plain_server();
    println!("pid={} {}", server.pid(), server.dir().display());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_server_dies_when_the_process_of_its_test_is_killed() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "harness::helper_that_starts_a_server_and_waits"])
        .args(["--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    let announced = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("pid=")?.1.to_string()))
        .expect("the server's pid");
    let (pid, dir) = announced.split_once(' ').unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    // The process that reaps orphans may be slow.
    let is_dead = || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.contains(") Z "),
        Err(_) => true,
    };
    assert!(eventually(deadline(), is_dead));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_server_that_cannot_start_gives_its_log() {
    let builder = Server::builder().without_module();
    let log = builder.clone().config_line("no-such-setting 1").try_start().err().expect("a server that does not start");
    assert!(log.contains("no-such-setting"), "{log}");

    let missing = builder.config_line("loadmodule /no/such/module.so").try_start();
    assert!(missing.err().expect("no start").contains("/no/such/module.so"));
}

#[test]
fn a_killed_server_restarts_with_what_its_aof_kept() {
    let server = Server::builder().without_module().arg("appendonly", "yes").config_line("appendfsync always").start();
    let (port, pid) = (server.port(), server.pid());
    ok!(server.con(), "SET", "a", "b");
    server.kill9();
    assert!(!server.is_alive() && server.try_con().is_err());
    server.restart();
    assert!(server.port() == port && server.pid() != pid);
    assert_eq!(text(ok!(server.con(), "GET", "a")), "b");
    server.restart();
    assert_eq!(text(ok!(server.con(), "GET", "a")), "b");
    server.stop();
    assert!(!server.is_alive());
}

#[test]
fn arguments_of_any_kind_arrive_as_they_are() {
    let server = plain_server();
    let mut con = server.con();
    let owned = String::from("owned");
    let bytes: &[u8] = b"\0\r\n\xff%s";
    ok!(con, "RPUSH", "p", "text", &owned, bytes, b"array", 5, -1.5, vec!["x", "y"]);
    let got: Vec<Vec<u8>> = ask!(con, "LRANGE", "p", 0, -1);
    let wanted: [&[u8]; 8] = [b"text", b"owned", bytes, b"array", b"5", b"-1.5", b"x", b"y"];
    assert_eq!(got, wanted);
    assert_eq!(text(call(&mut con, &["LINDEX", "p", "0"]).unwrap()), "text");

    fn through_a_reference(con: &mut redis::Connection) -> i64 {
        ask!(con, "LLEN", "p")
    }
    assert_eq!(through_a_reference(&mut con), 8);
    assert_eq!(strings(ok!(con, "LRANGE", "p", 0, 1)), ["text", "owned"]);
    let nested = ok!(con, "EVAL", "return {{'a', '1'}, {'b', '2'}}", 0);
    assert_eq!(rows(nested.clone())[1], [b"b", b"2"]);
    assert_eq!(text_rows(nested)[0], ["a", "1"]);
    let now = server_time_ms(&mut con);
    assert!(now > 1_600_000_000_000);
}

#[test]
fn an_error_reads_as_the_server_sent_it() {
    let server = plain_server();
    let mut con = server.con();
    ok!(con, "SET", "s", "1");
    let wrong_type = "WRONGTYPE Operation against a key holding the wrong kind of value";
    assert_eq!(err!(con, "LPUSH", "s", "x"), wrong_type);
    assert_eq!(error_text(&cmd!(con, "LPUSH", "s", "x").unwrap_err()), wrong_type);
    assert_eq!(err!(con, "GET"), "ERR wrong number of arguments for 'get' command");
    assert!(err!(server.con_resp3(), "LPUSH", "s", "x").starts_with("WRONGTYPE "));
    let exec = |con: &mut redis::Connection| {
        ok!(con, "MULTI");
        ok!(con, "LPUSH", "s", "x");
        ok!(con, "PING");
        items(ok!(con, "EXEC")).len()
    };
    assert_eq!(exec(&mut con), 2);

    ok!(con, "ACL", "SETUSER", "eve", "on", ">pw", "~*", "+get");
    let mut eve = server.con_as("eve", "pw");
    assert_eq!(text(ok!(eve, "GET", "s")), "1");
    assert!(err!(eve, "SET", "s", "2").starts_with("NOPERM "));
}

#[test]
fn raw_replies_are_exact_to_the_byte() {
    let server = plain_server();
    let mut raw = Raw::connect(&server);
    assert_eq!(raw.call_raw(&["PING"]), b"+PONG\r\n");
    assert_eq!(raw.call_raw(&["GET", "none"]), b"$-1\r\n");
    assert_eq!(raw.call(&["LPUSH", "p", "a\r\nb"]), Reply::Int(1));
    assert_eq!(raw.call(&["LRANGE", "p", "0", "-1"]), Reply::Array(vec![Reply::bulk("a\r\nb")]));
    assert_eq!(raw.call_cmd(&command!("LPUSH", "p", 5)), Reply::Int(2));
    assert!(matches!(raw.call(&["GET", "p"]), Reply::Error(e) if e.starts_with("WRONGTYPE")));

    raw.send(&["BLPOP", "q", "0"]);
    assert!(raw.is_silent_for(Duration::from_millis(100)));
    ok!(server.con(), "LPUSH", "q", "x");
    assert_eq!(raw.read(), Reply::Array(vec![Reply::bulk("q"), Reply::bulk("x")]));

    raw.call(&["HELLO", "3"]);
    assert_eq!(raw.call_raw(&["GET", "none"]), b"_\r\n");
    raw.call(&["HSET", "h", "f", "v"]);
    assert_eq!(raw.call(&["HGETALL", "h"]), Reply::Map(vec![(Reply::bulk("f"), Reply::bulk("v"))]));
}

#[test]
fn a_tap_receives_exactly_what_is_propagated() {
    for diskless in ["yes", "no"] {
        let server = Server::builder().without_module().arg("repl-diskless-sync", diskless).start();
        let mut con = server.con();
        ok!(con, "SET", "before", "x".repeat(100_000));
        let tap = ReplicaTap::attach(&server);
        assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);

        ok!(con, "SET", "a", "b");
        ok!(con, "GET", "a");
        ok!(con, "DEL", "none");
        ok!(con, "MULTI");
        ok!(con, "RPUSH", "p", "one two", "");
        ok!(con, "LREM", "p", 1, "");
        ok!(con, "EXEC");
        assert_eq!(
            tap.lines_until_marker(&mut con),
            ["SET a b", "MULTI", "RPUSH p \"one two\" \"\"", "LREM p 1 \"\"", "EXEC"]
        );
        assert_eq!(tap.commands_until_marker(&mut con).len(), 0);
        assert_eq!(ok!(con, "WAIT", 1, 5000), redis::Value::Int(1));
    }
}

#[test]
fn a_replica_ends_with_the_same_digest() {
    let server = plain_server();
    let mut con = server.con();
    ok!(con, "RPUSH", "p", "a", "b");
    let replica = Replica::of(&server);
    assert_eq!(replica.digest(), server.digest());

    ok!(con, "HSET", "h", "f", "v");
    ok!(con, "ZADD", "z", 1.5, "m");
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
    assert!(err!(replica.con(), "SET", "a", "b").starts_with("READONLY "));

    server.kill9();
    replica.promote();
    ok!(replica.con(), "SET", "a", "b");
}

#[test]
fn events_come_in_order_up_to_the_marker() {
    let server = plain_server();
    let mut con = server.con();
    let mut events = Events::subscribe(&server);
    ok!(con, "RPUSH", "p", "a");
    ok!(con, "LREM", "p", 1, "a");
    let pair = |event: &str, key: &str| (event.to_string(), key.to_string());
    assert_eq!(events.until_marker(&mut con), [pair("rpush", "p"), pair("lrem", "p"), pair("del", "p")]);
    ok!(con, "GET", "p");
    assert_eq!(events.until_marker(&mut con), []);
    ok!(con, "SET", "a", "b");
    assert_eq!(events.lines_until_marker(&mut con), ["set a"]);
}

#[test]
fn a_watcher_reports_whether_keys_were_touched() {
    let server = plain_server();
    let mut con = server.con();
    ok!(con, "RPUSH", "p", "a");

    let watcher = Watcher::on(&server, &["p", "q"]);
    ok!(con, "LREM", "p", 1, "none");
    ok!(con, "LRANGE", "p", 0, -1);
    assert!(watcher.untouched());

    let watcher = Watcher::on(&server, &["p", "q"]);
    ok!(con, "SET", "q", "1");
    assert!(watcher.touched());
}

#[test]
fn a_snapshot_shows_what_changed() {
    let server = plain_server();
    for mut con in [server.con(), server.con_resp3()] {
        ok!(con, "FLUSHALL");
        ok!(con, "RPUSH", "p", "a", "b");
        ok!(con, "ZADD", "z", 1.5, "m");
        ok!(con, "HSET", "h", "f", b"\xff\0".as_slice());
        ok!(con, "SADD", "s", "x", "y");
        ok!(con, "SET", "t", "v", "EX", 1000);
        ok!(con, "XADD", "x", "*", "f", "v");
        let before = Snapshot::with_ttls(&mut con);
        before.assert_same(&Snapshot::with_ttls(&mut con));
        before.assert_unchanged(&mut con);
        assert_eq!(before.keys(), ["h", "p", "s", "t", "x", "z"]);
        assert_eq!(before.list("p"), ["a", "b"]);
        assert_eq!(before.zset("z")["m"], 1.5);

        ok!(con, "EXPIRE", "s", 1000);
        let changed = std::panic::AssertUnwindSafe(|| before.assert_unchanged(&mut con));
        assert!(std::panic::catch_unwind(changed).is_err());

        ok!(con, "LPOP", "p");
        ok!(con, "ZADD", "z", 2, "m");
        ok!(con, "PERSIST", "t");
        ok!(con, "DEL", "h");
        let diff = before.diff(&Snapshot::with_ttls(&mut con)).join("\n");
        for line in [
            "- \"h\" hash \"f\" b\"\\xff\\x00\"",
            "- \"p\" list [0] \"a\"",
            "+ \"p\" list [0] \"b\"",
            "- \"p\" list [1] \"b\"",
            "- \"z\" zset \"m\" 1.5",
            "+ \"z\" zset \"m\" 2",
            "- \"t\" expires at",
        ] {
            assert!(diff.contains(line), "{line} is not in:\n{diff}");
        }
    }
}

#[test]
fn a_cluster_of_three_primaries_comes_up() {
    let cluster = Cluster::start_as(Server::builder().without_module(), 3, 0);
    assert_eq!(cluster.nodes().len(), 3);
    assert_eq!(cluster.primaries().len(), 3);
    let mut con = cluster.con();
    for i in 0..20 {
        ok!(con, "SET", format!("{{tag-{i}}}:key"), i);
    }
    for i in 0..20 {
        let key = format!("{{tag-{i}}}:key");
        let mut owner = cluster.node_for_key(&key).con();
        assert_eq!(text(ok!(owner, "GET", &key)), i.to_string());
    }

    let node = cluster.node_for_key("{a}");
    let tap = ReplicaTap::attach(node);
    let mut con = node.con();
    ok!(con, "SET", "{a}b", "c");
    let received = tap.commands_until_key_marker(&mut con, "{a}marker");
    assert_eq!(line(&received[0]), "SET {a}b c");
}

#[test]
fn a_replica_takes_over_from_a_killed_primary() {
    let cluster = Cluster::start_as(Server::builder().without_module(), 3, 1);
    let victim = cluster.node_for_key("{a}b");
    let victims_port = victim.port();
    let heir = cluster.replicas_of(victim)[0];
    // WAIT is for what its own connection wrote.
    let mut con = victim.con();
    ok!(con, "SET", "{a}b", "c");
    assert!(eventually(deadline(), || ok!(con, "WAIT", 1, 1000) == redis::Value::Int(1)));
    let index = cluster.nodes().iter().position(|n| n.port() == victims_port);
    cluster.kill(index.unwrap());
    assert!(eventually(deadline(), || heir.is_primary()));
    cluster.wait_ok();
    assert!(eventually(deadline(), || cluster.node_for_key("{a}b").port() == heir.port()));
    assert_eq!(text(ok!(cluster.con(), "GET", "{a}b")), "c");
}

#[test]
fn a_cluster_too_small_for_redis_cli_is_made_by_hand() {
    let cluster = Cluster::start_as(Server::builder().without_module(), 2, 1);
    assert_eq!(cluster.replicas_of(&cluster.nodes()[0]).len(), 1);
    ok!(cluster.con(), "SET", "a", "b");
}

#[test]
fn the_peers_scripts_run_by_name() {
    let server = plain_server();
    let mut con = server.con();
    let peer = Peer::load(&mut con);
    for name in [
        "complete_message",
        "retry_message",
        "process_delay_message",
        "handle_timeout_message",
        "move_to_dlq",
        "get_next_delay_task",
    ] {
        assert!(peer.names().contains(&name), "{name} is missing");
    }
    ok!(con, "HSET", "m", "id", "payload", "id:queue", "q");
    ok!(con, "LPUSH", "p", "id");
    for _ in 0..2 {
        let reply = peer.call(&mut con, "complete_message", &["m", "p", "e"], ("id",));
        assert_eq!(text(reply.unwrap()), "OK");
        assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
        ok!(con, "SCRIPT", "FLUSH");
    }
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let draw = |mut rng: Rng| (0..10).map(|_| rng.below(1000)).collect::<Vec<_>>();
    assert_eq!(draw(Rng::from_seed(7)), draw(Rng::from_seed(7)));
    assert_ne!(draw(Rng::from_seed(7)), draw(Rng::from_seed(8)));
    let mut rng = Rng::seeded();
    assert!((0..1000).all(|_| (-3..4).contains(&rng.range(-3..4))));
    let mut items: Vec<_> = (0..50).collect();
    rng.shuffle(&mut items);
    assert!(items.iter().sum::<i32>() == 49 * 25 && items.contains(rng.clone().pick(&items)));
    assert_eq!(rng.bytes(9).len(), 9);
}

#[test]
fn eventually_gives_up_at_its_deadline() {
    let mut tries = 0;
    assert!(eventually(Duration::from_secs(5), || {
        tries += 1;
        tries == 3
    }));
    assert!(!eventually(Duration::from_millis(20), || false));
}
