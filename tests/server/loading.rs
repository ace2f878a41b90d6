//! Loading the module, on servers new enough and too old, from redis.conf and by command.

use crate::common::cases::*;
use crate::common::process::{free_port, in_repository, spawn_bound_to_this_process, TempDir};
use crate::common::server::{module, server_binary};
use crate::common::*;
use redis::{Connection, ConnectionLike, Value};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

fn path() -> &'static str {
    module().to_str().expect("a path")
}

/// The module in MODULE LIST: name, version, path, arguments.
fn loaded(con: &mut Connection) -> Option<BTreeMap<String, Value>> {
    let modules = items(ok!(con, "MODULE", "LIST")).into_iter();
    let mut maps = modules.map(|module| {
        let words = items(module);
        let pairs = words.chunks(2).map(|pair| (text(pair[0].clone()), pair[1].clone()));
        pairs.collect::<BTreeMap<_, _>>()
    });
    maps.find(|module| module["name"] == Value::BulkString(b"rmq".into()))
}

fn batch(con: &mut Connection) -> i64 {
    let replied: BTreeMap<String, i64> = ask!(con, "CONFIG", "GET", "rmq.max-batch");
    replied["rmq.max-batch"]
}

#[test]
fn loadmodule_and_module_load_and_module_loadex_give_the_same_module() {
    let by_file = Server::start();
    let by_load = Server::builder().without_module().start();
    let by_loadex = Server::builder().without_module().start();
    assert!(loaded(&mut by_load.con()).is_none());
    ok!(by_load.con(), "MODULE", "LOAD", path());
    ok!(by_loadex.con(), "MODULE", "LOADEX", path());
    for server in [&by_file, &by_load, &by_loadex] {
        let mut con = server.con();
        let module = loaded(&mut con).expect("the module is loaded");
        assert_eq!(module["ver"], Value::Int(100));
        assert_eq!(text(module["path"].clone()), path());
        for row in ROWS {
            HERE.set_up(&mut con, row.setup);
            HERE.run(&mut con, &row.effect);
        }
        assert_eq!(server.info("rmq")["rmq_completed"], "1");
        assert_eq!(batch(&mut con), 10_000);
    }
}

#[test]
fn module_load_takes_arguments_and_module_loadex_settings() {
    for (load, words) in [
        ("LOAD", &["max-batch", "5"][..]),
        ("LOADEX", &["CONFIG", "rmq.max-batch", "5"]),
        ("LOADEX", &["ARGS", "max-batch", "5"]),
    ] {
        let server = Server::builder().without_module().start();
        let mut con = server.con();
        ok!(con, "MODULE", load, path(), words);
        assert_eq!(batch(&mut con), 5, "{load} {words:?}");
    }
}

#[test]
fn a_refused_load_leaves_nothing_behind() {
    let server = Server::builder().without_module().start();
    let mut con = server.con();
    for bad in [&["nonsense", "1"][..], &["max-batch", "0"], &["max-batch"]] {
        assert!(err!(con, "MODULE", "LOAD", path(), bad).starts_with("ERR Error loading the extension"));
        assert!(loaded(&mut con).is_none());
        assert!(!server.supports("rmq.complete"));
        let settings: BTreeMap<String, String> = ask!(con, "CONFIG", "GET", "rmq.*");
        assert!(settings.is_empty(), "{settings:?}");
    }
    // The server notices the last two only after the load, and unloads the module within the call.
    for (setting, value) in [("rmq.max-batch", 0), ("rmq.bogus", 1), ("other.setting", 1)] {
        err!(con, "MODULE", "LOADEX", path(), "CONFIG", setting, value);
        assert!(loaded(&mut con).is_none());
        ok!(con, "MULTI");
        ok!(con, "MODULE", "LOADEX", path(), "CONFIG", setting, value);
        ok!(con, "PING");
        let replies = con.req_command(&command!("EXEC")).expect("the server is there");
        assert!(matches!(&items(replies)[..], [Value::ServerError(_), Value::SimpleString(_)]));
        assert!(loaded(&mut con).is_none());
    }
    // The server must not call a module that is gone for a fork or a change of role.
    ok!(con, "BGSAVE");
    ok!(con, "REPLICAOF", "127.0.0.1", 1);
    ok!(con, "REPLICAOF", "NO", "ONE");
    assert!(server.is_alive());
    ok!(con, "MODULE", "LOAD", path());
    assert_eq!(batch(&mut con), 10_000);
}

#[test]
fn a_second_load_is_refused_and_the_first_goes_on() {
    let server = Server::start();
    let mut con = server.con();
    assert!(err!(con, "MODULE", "LOAD", path()).starts_with("ERR Error loading the extension"));
    HERE.set_up(&mut con, ROWS[0].setup);
    HERE.run(&mut con, &ROWS[0].effect);
    assert!(loaded(&mut con).is_some());
}

#[test]
fn a_server_that_is_too_old_refuses_the_module_and_says_why() {
    let binary = in_repository(".servers/redis-6/bin/redis-server");
    assert!(binary.exists(), "scripts/servers.sh redis-6 provides the old server");
    let log = Server::builder().server_binary(&binary).try_start().err().expect("no start");
    let line = log.lines().find(|line| line.contains("rmq: ")).unwrap_or_else(|| panic!("{log}"));
    for part in [
        "this server is too old: it has no API function RedisModule_",
        "Redis 7.0 or later, or Valkey 8 or later, is needed",
        "Not loaded",
    ] {
        assert!(line.contains(part), "{line}");
    }
    // At run time the server stays up.
    let server = Server::builder().server_binary(&binary).without_module().start();
    let mut con = server.con();
    assert!(err!(con, "MODULE", "LOAD", path()).starts_with("ERR Error loading the extension"));
    assert!(server.log().contains("rmq: this server is too old"));
    assert_eq!(text(ok!(con, "PING")), "PONG");
}

/// Starts a server with this file as its configuration, in a folder that looks like the built repository.
fn start_with(config: &str, then: impl FnOnce(&mut Connection)) {
    let folder = TempDir::new();
    let release = folder.path().join("target/release");
    std::fs::create_dir_all(&release).unwrap();
    std::os::unix::fs::symlink(module(), release.join("librmq.so")).unwrap();
    std::fs::write(folder.path().join("redis.conf"), config).unwrap();
    let (port, log) = (free_port(), folder.path().join("log"));
    let log_file = std::fs::File::create(&log).unwrap();
    let mut command = Command::new(server_binary());
    command
        .args(["redis.conf", "--port", &port.to_string()])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stderr(log_file.try_clone().unwrap())
        .stdout(log_file);
    let mut child = spawn_bound_to_this_process(command).unwrap();
    let client = redis::Client::open(("127.0.0.1", port)).unwrap();
    let mut con = None;
    let ready = eventually(deadline(), || {
        con = client.get_connection().ok();
        con.as_mut().is_some_and(|con| cmd!(con, "PING").is_ok())
    });
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        assert!(ready, "the server did not start:\n{log}");
        then(con.as_mut().expect("a connection"));
    }));
    let _ = child.kill();
    let _ = child.wait();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn example() -> String {
    std::fs::read_to_string(in_repository("redis.conf.example")).unwrap()
}

#[test]
fn the_example_configuration_starts_a_server_with_the_module() {
    start_with(&example(), |con| {
        assert!(loaded(con).is_some());
        assert_eq!(batch(con), 10_000);
        for row in ROWS {
            HERE.set_up(con, row.setup);
            HERE.run(con, &row.effect);
        }
        let replied: BTreeMap<String, String> = ask!(con, "CONFIG", "GET", "appendonly");
        assert_eq!(replied["appendonly"], "yes");
    });
}

#[test]
fn the_example_configuration_shows_every_setting_with_its_default_in_a_line_that_works() {
    let server = Server::start();
    let defaults: BTreeMap<String, String> = ask!(server.con(), "CONFIG", "GET", "rmq.*");
    let example = example();
    for (name, value) in &defaults {
        let line = format!("#{name} {value}");
        assert!(example.lines().any(|l| l == line), "{line}");
    }
    // Every commented setting, switched on.
    let with_settings = example.replace("\n#rmq.", "\nrmq.");
    start_with(&with_settings, |con| {
        let replied: BTreeMap<String, String> = ask!(con, "CONFIG", "GET", "rmq.*");
        assert_eq!(replied, defaults);
    });
}

#[test]
fn config_rewrite_keeps_the_module_and_its_settings_for_the_next_start() {
    let server = Server::builder().module_args(&["max-batch", "7"]).start();
    let mut con = server.con();
    ok!(con, "CONFIG", "SET", "rmq.max-batch", 123, "rmq.parse-error-message-limit", 45);
    ok!(con, "CONFIG", "REWRITE");
    let rewritten = std::fs::read_to_string(server.dir().join("server.conf")).unwrap();
    server.stop();
    start_with(&rewritten, |con| {
        assert!(loaded(con).is_some());
        let replied: BTreeMap<String, String> = ask!(con, "CONFIG", "GET", "rmq.*");
        assert_eq!(replied["rmq.max-batch"], "123");
        assert_eq!(replied["rmq.parse-error-message-limit"], "45");
        assert_eq!(replied["rmq.parse-error-payload-limit"], "4096");
    });
}

#[test]
fn what_the_module_wrote_loads_from_an_rdb_without_the_module() {
    let server = Server::start();
    let mut con = server.con();
    let row = ROWS.iter().find(|row| row.name == "RMQ.PARSEERR").expect("a row");
    HERE.set_up(&mut con, row.setup);
    HERE.run(&mut con, &row.effect);
    let (data, digest) = (Snapshot::of(&mut con), server.digest());
    ok!(con, "SAVE");
    server.stop();
    let folder = server.dir().to_str().unwrap().to_string();
    let plain = Server::builder().without_module().arg("dir", &folder).start();
    data.assert_same(&Snapshot::of(&mut plain.con()));
    assert_eq!(plain.digest(), digest);
}

/// Redis 7.0 went on to call its handler for forks.
#[test]
fn a_module_that_was_refused_while_the_server_ran_is_not_called_any_more() {
    let server = Server::builder().without_module().config_line("rename-command LPOS \"\"").start();
    let mut con = server.con();
    let module = server::module().to_str().expect("a path");
    err!(con, "MODULE", "LOAD", module);
    ok!(con, "BGSAVE");
    let saved = || server.info("persistence")["rdb_bgsave_in_progress"] == "0";
    assert!(eventually(deadline(), saved));
    ok!(con, "REPLICAOF", "127.0.0.1", 1);
    ok!(con, "REPLICAOF", "NO", "ONE");
    ok!(con, "PING");
}

#[test]
fn a_server_without_one_of_the_plain_commands_that_effects_are_made_of_does_not_get_the_module() {
    for command in ["LREM", "RPOPLPUSH", "HDEL", "ZADD", "LPOS"] {
        let server = Server::builder().config_line(&format!("rename-command {command} \"\""));
        let log = server.try_start().err().expect("the module is refused");
        assert!(log.contains(&format!("the server's {command} is renamed or disabled")), "{log}");
    }
}
