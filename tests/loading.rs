//! Loading and unloading, on servers new enough and too old, from redis.conf and by command.

mod cases;
mod common;
use cases::*;
use common::process::{free_port, in_repository, spawn_bound_to_this_process, TempDir};
use common::server::{module, server_binary};
use common::*;
use redis::{Connection, ConnectionLike, Value};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const HERE: World = World("");

fn path() -> &'static str {
    module().to_str().expect("a path")
}

/// The module as MODULE LIST tells it: name, version, path, arguments.
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
    let told: BTreeMap<String, i64> = ask!(con, "CONFIG", "GET", "rmq.max-batch");
    told["rmq.max-batch"]
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
        assert_eq!(module["ver"], Value::Int(1));
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
    let server = Server::builder().without_module().start();
    let mut con = server.con();
    ok!(con, "MODULE", "LOAD", path(), "max-batch", 5);
    assert_eq!(batch(&mut con), 5);
    con = server.unload();
    ok!(con, "MODULE", "LOADEX", path(), "CONFIG", "rmq.max-batch", 6);
    assert_eq!(batch(&mut con), 6);
    con = server.unload();
    ok!(con, "MODULE", "LOADEX", path(), "ARGS", "max-batch", 7);
    assert_eq!(batch(&mut con), 7);
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
    // The last two are found out when the module has loaded already, and it is unloaded within the call.
    for (setting, value) in [("rmq.max-batch", 0), ("rmq.bogus", 1), ("other.setting", 1)] {
        err!(con, "MODULE", "LOADEX", path(), "CONFIG", setting, value);
        assert!(loaded(&mut con).is_none());
        ok!(con, "MULTI");
        ok!(con, "MODULE", "LOADEX", path(), "CONFIG", setting, value);
        ok!(con, "PING");
        let replies = con.req_command(&command!("EXEC")).expect("the server is there");
        assert!(matches!(
            &items(replies)[..],
            [Value::ServerError(_), Value::SimpleString(_)]
        ));
        assert!(loaded(&mut con).is_none());
    }
    // Nobody tells the code that is gone of a fork, or of a change of role.
    ok!(con, "BGSAVE");
    ok!(con, "REPLICAOF", "127.0.0.1", 1);
    ok!(con, "REPLICAOF", "NO", "ONE");
    assert!(server.is_alive());
    ok!(con, "MODULE", "LOAD", path());
    assert_eq!(batch(&mut con), 10_000);
}

#[test]
fn an_unloaded_module_takes_its_commands_with_it_and_leaves_the_data() {
    let server = Server::start();
    let mut con = server.con();
    HERE.set_up(&mut con, ROWS[0].setup);
    HERE.run(&mut con, &ROWS[0].effect);
    ok!(con, "CONFIG", "SET", "rmq.max-batch", 3);
    let data = Snapshot::of(&mut con);
    con = server.unload();
    assert!(loaded(&mut con).is_none());
    for row in ROWS {
        assert!(!server.supports(row.name), "{}", row.name);
        let reply = shown(HERE.call(&mut con, row.effect.call));
        assert!(reply.starts_with("ERR unknown command"), "{reply}");
    }
    assert!(server.info("rmq").is_empty());
    data.assert_unchanged(&mut con);

    // Loaded again it starts from the beginning.
    ok!(con, "MODULE", "LOAD", path());
    data.assert_unchanged(&mut con);
    assert_eq!(batch(&mut con), 10_000);
    assert_eq!(server.info("rmq")["rmq_completed"], "0");
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        HERE.run(&mut con, &row.effect);
    }
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
fn a_module_that_holds_a_waiting_client_is_not_unloaded() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiting = Raw::connect(&server);
    waiting.send(&HERE.words("RMQ.RESERVE q:pending q:processing map exp 60000 BLOCK 0"));
    assert!(eventually(deadline(), || server.info("clients")["blocked_clients"] == "1"));
    let error = err!(con, "MODULE", "UNLOAD", "rmq");
    assert!(error.contains("blocked clients"), "{error}");
    ok!(con, "RMQ.PUBLISH", "map", "q:pending", "a", "pa");
    assert!(matches!(waiting.read(), Reply::Array(messages) if messages.len() == 1));
    con = server.unload();
    assert!(loaded(&mut con).is_none());
}

#[test]
fn a_transaction_that_holds_a_queued_call_does_not_run_code_that_is_gone() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        let before = Snapshot::of(&mut con);
        let (mut holder, mut other) = (Raw::connect(&server), Raw::connect(&server));
        for raw in [&mut holder, &mut other] {
            raw.call(&["MULTI"]);
            raw.call(&["PING"]);
        }
        assert_eq!(
            holder.call(&HERE.words(row.effect.call)),
            Reply::Simple("QUEUED".into())
        );
        con = server.unload();
        holder.send(&["EXEC"]);
        assert!(matches!(holder.try_read_raw(), Ok(None)), "the connection is closed");
        assert_eq!(text(ok!(con, "PING")), "PONG");
        before.assert_unchanged(&mut con);
        ok!(con, "MODULE", "LOAD", path());
    }
    assert!(server.log().contains("rmq: unloaded; "), "{}", server.log());
}

#[test]
fn a_client_that_repeats_its_last_call_after_the_module_is_gone_meets_no_code_that_is_gone() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        let mut client = Raw::connect(&server);
        client.call(&HERE.words(row.idle.call));
        con = server.unload();
        let before = Snapshot::of(&mut con);
        // Where the server would have kept the command, the connection is closed; elsewhere it goes on.
        client.send(&HERE.words(row.idle.call));
        match client.try_read_raw() {
            Ok(None) => {}
            Ok(Some(reply)) => assert!(reply.starts_with(b"-ERR unknown command"), "{}", row.name),
            Err(e) => panic!("{}: {e}", row.name),
        }
        let again = shown(HERE.call(&mut con, row.effect.call));
        assert!(again.starts_with("ERR unknown command"), "{again}");
        before.assert_unchanged(&mut con);
        ok!(con, "MODULE", "LOAD", path());
    }
}

#[test]
fn an_unload_inside_of_a_transaction_answers_its_caller() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "MULTI");
    ok!(con, "MODULE", "UNLOAD", "rmq");
    let replies = items(ok!(con, "EXEC"));
    assert_eq!(text(replies[0].clone()), "OK");
    assert!(loaded(&mut server.con()).is_none());
}

#[test]
fn loading_and_unloading_under_traffic_loses_nothing() {
    const ROUNDS: usize = 30;
    let server = Server::start();
    let done = AtomicBool::new(false);
    let published = std::thread::scope(|scope| {
        let traffic = |producer: usize| {
            let (server, done) = (&server, &done);
            scope.spawn(move || {
                let mut con = server.con();
                let mut published = Vec::new();
                loop {
                    let id = format!("{producer}-{}", published.len());
                    match cmd!(con, "RMQ.PUBLISH", "map", "q:pending", &id, "payload") {
                        // Nil where a reply was lost with its connection, which the unload may close. The last one is
                        // waited for: it may have arrived although its reply was lost.
                        Ok(_) => {
                            published.push(id);
                            if done.load(Ordering::Relaxed) {
                                break;
                            }
                        }
                        Err(e) if e.is_io_error() => con = server.con(),
                        Err(e) => assert!(error_text(&e).starts_with("ERR unknown command"), "{e}"),
                    }
                }
                published
            })
        };
        let producers = [traffic(0), traffic(1)];
        for _ in 0..ROUNDS {
            std::thread::sleep(Duration::from_millis(10));
            let mut con = server.unload();
            std::thread::sleep(Duration::from_millis(2));
            ok!(con, "MODULE", "LOAD", path());
        }
        done.store(true, Ordering::Relaxed);
        producers.map(|producer| producer.join().expect("a producer")).concat()
    });
    assert!(published.len() > ROUNDS, "{}", published.len());
    let mut con = server.con();
    let mut pending: Vec<String> = ask!(con, "LRANGE", "q:pending", 0, -1);
    let mut published = published;
    published.sort();
    pending.sort();
    assert_eq!(pending, published);
    assert_eq!(ok!(con, "HLEN", "map"), Value::Int(2 * published.len() as i64));
}

#[test]
fn a_server_that_is_too_old_refuses_the_module_and_says_why() {
    let binary = in_repository(".servers/redis-6/bin/redis-server");
    assert!(binary.exists(), "scripts/servers.sh redis-6 provides the old server");
    let log = Server::builder()
        .server_binary(&binary)
        .try_start()
        .err()
        .expect("no start");
    let line = log
        .lines()
        .find(|line| line.contains("rmq: "))
        .unwrap_or_else(|| panic!("{log}"));
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
        let told: BTreeMap<String, String> = ask!(con, "CONFIG", "GET", "appendonly");
        assert_eq!(told["appendonly"], "yes");
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
    // Every commented line that could be a setting, taken in.
    let with_settings = example.replace("\n#rmq.", "\nrmq.");
    start_with(&with_settings, |con| {
        let told: BTreeMap<String, String> = ask!(con, "CONFIG", "GET", "rmq.*");
        assert_eq!(told, defaults);
    });
}

#[test]
fn config_rewrite_keeps_the_module_and_its_settings_for_the_next_start() {
    let server = Server::builder().module_args(&["max-batch", "7"]).start();
    let mut con = server.con();
    ok!(
        con,
        "CONFIG",
        "SET",
        "rmq.max-batch",
        123,
        "rmq.parse-error-message-limit",
        45
    );
    ok!(con, "CONFIG", "REWRITE");
    let rewritten = std::fs::read_to_string(server.dir().join("server.conf")).unwrap();
    server.stop();
    start_with(&rewritten, |con| {
        assert!(loaded(con).is_some());
        let told: BTreeMap<String, String> = ask!(con, "CONFIG", "GET", "rmq.*");
        assert_eq!(told["rmq.max-batch"], "123");
        assert_eq!(told["rmq.parse-error-message-limit"], "45");
        assert_eq!(told["rmq.parse-error-payload-limit"], "4096");
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
