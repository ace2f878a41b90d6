//! README.md and docs/ are correct: their redis-cli sessions, calls from programs, tables and links are tried here.

use crate::common::cases::{Needs, ROWS};
use crate::common::process::{free_port, in_repository, spawn_bound_to_this_process};
use crate::common::server::server_binary;
use crate::common::*;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const PROMPT: &str = "127.0.0.1:6379> ";

#[test]
fn the_redis_cli_sessions_of_the_documentation_give_the_replies_that_they_show() {
    let commands: usize = pages().iter().map(|page| page.play(PROMPT, &Server::start())).sum();
    assert!(commands >= 50, "only {commands} commands were found in the documentation");
}

#[test]
fn the_sessions_on_a_cluster_give_the_replies_that_they_show() {
    let cluster = Cluster::start(2, 0);
    let node = cluster.node_for_key("{app}");
    let other = cluster.nodes().iter().find(|other| other.port() != node.port()).expect("two nodes");
    let slot = cluster.slot_of("{moving}");
    assert_eq!(cluster.node_for_slot(slot).port(), other.port(), "choose another tag");
    let source: String = ask!(other.con(), "CLUSTER", "MYID");
    ok!(node.con(), "CLUSTER", "SETSLOT", slot, "IMPORTING", source);
    assert_eq!(page("docs/troubleshooting.md").play("127.0.0.1:7000> ", node), 4);
}

/// What the pages' other sessions left on a primary is looked at on its replica, once the primary has died.
#[test]
fn the_session_after_a_failover_gives_the_replies_that_it_shows_on_the_promoted_replica() {
    let primary = Server::start();
    let replica = Replica::with_module_of(&primary);
    let page = page("docs/troubleshooting.md");
    assert!(page.play(PROMPT, &primary) > 10);
    let receipt: String = ask!(primary.con(), "HGET", "app:payloads", "order-1:attempts");
    replica.wait_synced();
    primary.kill9();
    replica.promote();
    assert_eq!(page.play("127.0.0.1:6380> ", &replica), 1);
    // What the page says of it.
    let info = replica.info("rmq");
    assert_eq!((&*info["rmq_published"], &*info["rmq_reserved"]), ("0", "0"));
    assert_eq!(ok!(replica.con(), "RMQ.ACK", "app", "order-1", receipt), redis::Value::Int(1));
}

#[test]
fn the_readme_leads_with_publish_reserve_and_ack() {
    let session = page("README.md").sessions(PROMPT).concat();
    let first: Vec<&str> = session.iter().filter_map(|(line, _)| line.split(' ').next()).collect();
    assert_eq!(first[..3], ["RMQ.PUBLISH", "RMQ.RESERVE", "RMQ.ACK"]);
    assert_eq!(session[2].1, "(integer) 1");
}

#[test]
fn the_worker_of_the_readme_works_through_failures() {
    let server = Server::start();
    let mut con = server.con();
    let python = in_repository(".servers/python/bin/python");
    assert!(python.exists(), "run `scripts/servers.sh python` first, as `make test` does");
    let code = page("README.md").block("python");
    assert!(code.lines().count() <= 13, "a short worker");
    let here = format!("redis.Redis(port={}, ", server.port());
    assert_eq!(code.matches("redis.Redis(").count(), 1);
    let handle = "seen = []\ndef handle(payload):\n    seen.append(payload)\n    if seen.count(payload) < 2: raise Exception('again')\n";
    ok!(con, "RMQ.POLICY", "app", "*", "BACKOFF", 10, 10);
    ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "one", "1", "two", "2");
    ok!(con, "RMQ.PUBLISH", "app", "DELAY", 200, "TO", "urgent", "three", "3");

    let mut worker = Command::new(python);
    worker.arg("-c").arg(format!("{handle}{}", code.replace("redis.Redis(", &here))).stdin(Stdio::null());
    let mut worker = spawn_bound_to_this_process(worker).expect("python runs");

    let is_settled = || server.info("rmq")["rmq_acked"] == "3";
    assert!(eventually(std::time::Duration::from_secs(60), is_settled), "{:?}", server.info("rmq"));
    worker.kill().expect("SIGKILL");
    worker.wait().expect("it is dead");
    assert_eq!(server.info("rmq")["rmq_nacked"], "3");
    assert_eq!(Snapshot::of(&mut con).keys(), ["app:queues"]);
}

/// Runs a program of the guide against the server, after lines that define what it leaves open, until it has settled so
/// many; how many connections it has opened until then.
fn run_program_of_the_guide(server: &Server, constructor: &str, before: &str, acked: usize) -> u64 {
    let mut con = server.con();
    let programs = page("docs/guide.md").blocks();
    let mut programs = programs.iter().filter(|(language, code)| language == "python" && code.contains(constructor));
    let (Some((_, code)), None) = (programs.next(), programs.next()) else { panic!("one program with {constructor}") };
    let here = format!("{constructor}port={}, ", server.port());
    let mut field = |section: &str, name: &str| -> u64 {
        let info: String = ask!(con, "INFO", section);
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {info}"))
    };
    let connections = field("stats", "total_connections_received");
    let mut program = Command::new(in_repository(".servers/python/bin/python"));
    program.arg("-c").arg(format!("{before}{}", code.replace(constructor, &here))).stdin(Stdio::null());
    let mut program = spawn_bound_to_this_process(program).expect("python runs; `scripts/servers.sh python` makes it");
    let mut ended = None;
    let is_over = || {
        ended = program.try_wait().expect("its state");
        ended.is_some() || field("rmq", "rmq_acked") >= acked as u64
    };
    assert!(eventually(std::time::Duration::from_secs(60), is_over), "not all is settled");
    assert!(ended.is_none(), "the program ended: {ended:?}");
    let connections = field("stats", "total_connections_received") - connections;
    program.kill().expect("SIGKILL");
    program.wait().expect("it is dead");
    connections
}

/// Each message fails the first time.
const HANDLE: &str = "
seen = []
def handle(payload):
    seen.append(payload)
    if seen.count(payload) < 2: raise Exception('again')
";

#[test]
fn the_worker_of_the_guide_with_one_write_for_ack_and_reserve_works_through_failures() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.POLICY", "app", "*", "BACKOFF", 10, 10);
    ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", "one", "1", "two", "2");
    ok!(con, "RMQ.PUBLISH", "app", "DELAY", 200, "TO", "urgent", "three", "3");
    assert_eq!(run_program_of_the_guide(&server, "redis.Redis(", HANDLE, 3), 1, "connections");
    let info = server.info("rmq");
    assert_eq!((&*info["rmq_acked"], &*info["rmq_nacked"], &*info["rmq_expired"]), ("3", "3", "0"));
    assert_eq!(Snapshot::of(&mut con).keys(), ["app:queues"]);
}

/// Nobody's work ends before fifty are in hand; the program ends if there is one more. One in ten fails the first time.
const FIFTY_AT_ONCE: &str = "
import asyncio, os
fifty, in_hand, seen = asyncio.Event(), 0, set()
async def handle(payload):
    global in_hand
    in_hand += 1
    if in_hand > 50: os._exit(3)
    if in_hand == 50: fifty.set()
    await fifty.wait()
    await asyncio.sleep(0.01)
    in_hand -= 1
    if payload.endswith(b'7') and payload not in seen:
        seen.add(payload)
        raise Exception('again')
";

#[test]
fn the_program_of_the_guide_for_fifty_jobs_at_once_has_fifty_in_hand_with_two_connections() {
    const MESSAGES: usize = 300;
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.POLICY", "app", "*", "BACKOFF", 10, 10);
    for n in 0..MESSAGES {
        ok!(con, "RMQ.PUBLISH", "app", "TO", if n % 2 == 0 { "orders" } else { "urgent" }, n, n);
    }
    let connections = run_program_of_the_guide(&server, "redis.asyncio.Redis(", FIFTY_AT_ONCE, MESSAGES);
    let info = server.info("rmq");
    assert_eq!((&*info["rmq_acked"], &*info["rmq_nacked"], &*info["rmq_expired"]), ("300", "30", "0"));
    assert_eq!(Snapshot::of(&mut con).keys(), ["app:queues"]);
    assert!(connections <= 2, "{connections} connections");
}

#[test]
fn what_make_run_prints_can_be_typed() {
    let port = free_port();
    let mut run = Command::new("bash");
    run.arg(in_repository("scripts/run.sh"))
        .env("PORT", port.to_string())
        .env("RMQ_SERVER", server_binary())
        .env("RMQ_MODULE", server::module())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut run = spawn_bound_to_this_process(run).expect("bash runs");
    let mut lines = std::io::BufReader::new(run.stdout.take().unwrap()).lines();
    let mut typed: Vec<String> = Vec::new();
    while typed.len() < 3 {
        let line = lines.next().expect("three commands").expect("text");
        typed.extend(line.strip_prefix("  redis-cli ").map(str::to_string));
    }
    let is_up = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    assert!(eventually(std::time::Duration::from_secs(20), is_up));

    let folder = std::env::temp_dir().join(format!("rmq-run-{port}"));
    let replies: Vec<String> = typed
        .iter()
        .map(|line| {
            let line = line.replace("/tmp/reserved", &folder.display().to_string());
            let shell = Command::new("bash").args(["-c", &format!("{} {line}", cli().display())]).output();
            succeeded(&shell.expect("bash runs"))
        })
        .collect();
    std::fs::remove_file(folder).ok();
    run.kill().expect("SIGKILL");
    run.wait().expect("it is dead");
    assert_eq!(replies[0], "order-1\n");
    assert!(replies[1].starts_with("order-1\n{\"total\": 42}\n1-"), "{}", replies[1]);
    assert_eq!(replies[2], "1\n");
}

#[test]
fn before_and_after_differ_only_in_the_name_of_the_command() {
    let server = Server::start();
    let lines = page("docs/migrating.md").block("diff");
    let mut scripts = 0;
    let mut before = None;
    for line in lines.lines() {
        if let Some(call) = line.strip_prefix("-EVALSHA <sha> ") {
            before = call.split_once(' ');
        } else if let Some(call) = line.strip_prefix('+') {
            let (keys, arguments) = before.take().expect("a line before");
            let command: Vec<&str> = call.split(' ').collect();
            assert_eq!(command[1..].join(" "), arguments);
            let named: Vec<String> = ask!(server.con(), "COMMAND", "GETKEYS", command.as_slice());
            assert_eq!(named.len().to_string(), keys, "{call}");
            assert_eq!(named, command[1..=named.len()], "{call}");
            scripts += 1;
        }
    }
    assert_eq!(scripts, 7);
}

#[test]
fn the_demo_plays_the_life_of_messages_and_ends_well() {
    let demo = Command::new("bash")
        .arg(in_repository("scripts/demo.sh"))
        .env("RMQ_SERVER", server_binary())
        .env("RMQ_MODULE", server::module())
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let shown = succeeded(&demo);
    for name in ["PUBLISH", "RESERVE", "ACK", "NACK", "EXTEND", "REDRIVE", "POLICY", "PUBLISH app DELAY"] {
        assert!(shown.contains(&format!("\n> RMQ.{name} ")), "no RMQ.{name} in:\n{shown}");
    }
    assert!(
        shown.contains("delayed 1 (0 due, next in ") && shown.contains("\ndead 1\n"),
        "no look at the queues:\n{shown}"
    );
    let port = shown.split("port ").nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    let port: u16 = port.and_then(|port| port.parse().ok()).expect("the demo prints its port");
    assert!(
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err(),
        "the demo left its server running on port {port}"
    );
}

#[test]
fn the_reference_has_every_command_with_its_arguments_and_complexity() {
    let server = Server::start();
    let reference = page("docs/commands.md").text;
    let readme = page("README.md").text;
    let commands = strings(ok!(server.con(), "COMMAND", "LIST", "FILTERBY", "MODULE", "rmq"));
    assert_eq!(commands.len(), 22);
    for name in commands {
        let name = name.to_uppercase();
        assert!(readme.contains(&name), "README.md has no {name}");
        let (_, section) =
            reference.split_once(&format!("\n## {name}\n")).unwrap_or_else(|| panic!("docs/commands.md has no {name}"));
        let section = section.split("\n## ").next().unwrap();
        let docs = fields(items(ok!(server.con(), "COMMAND", "DOCS", &name)).remove(1));
        let complexity = text(docs["complexity"].clone());
        assert!(section.contains(&complexity), "{name}: the complexity is\n{complexity}");
        let syntax = section.lines().find(|line| line.starts_with(&name)).expect("a syntax line");
        let mut rest = syntax;
        for word in words_of(&docs["arguments"]) {
            let found = rest.find(&word).unwrap_or_else(|| panic!("{syntax}\nhas no {word}, or too early"));
            rest = &rest[found + word.len()..];
        }
    }
}

#[test]
fn the_table_of_keys_has_every_key_that_a_command_of_the_queue_asks_for() {
    let reference = page("docs/commands.md").text;
    let columns = ["payloads", "expires", "delays", "queues"];
    for row in ROWS.iter().filter(|row| row.is_of_queue()) {
        let start = format!("| {} |", row.name);
        let line = reference.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row {start}"));
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        for key in row.derived {
            let name = key.key.trim_start_matches("@ns:");
            let (cell, word) = match columns.iter().position(|column| *column == name) {
                Some(column) => (cells[2 + column], ""),
                None if name.ends_with(":pending") => (cells[6], "pending"),
                None if name.ends_with(":processing") => (cells[6], "processing"),
                None => (cells[7], name),
            };
            let reads_only = key.needs == Needs::Read;
            assert!(cell.contains(word) && !cell.is_empty(), "{}: {name} is not in '{cell}'", row.name);
            assert!(reads_only || cell.contains("rw"), "{}: {name} is written, not '{cell}'", row.name);
        }
    }
}

#[test]
fn the_documentation_names_every_info_field_and_every_setting_with_its_default() {
    let server = Server::start();
    let readme = page("README.md").text;
    for field in server.info("rmq").keys() {
        assert!(readme.contains(&format!("`{field}`")), "README.md has no {field}");
    }
    let settings: HashMap<String, String> = ask!(server.con(), "CONFIG", "GET", "rmq.*");
    assert_eq!(settings.len(), 4);
    for (name, default) in settings {
        assert!(readme.contains(&format!("| `{name}` | {default} |")), "README.md: {name} is {default}");
    }
}

#[test]
fn the_server_that_the_readme_calls_too_old_refuses_the_module_and_says_why() {
    let binary = in_repository(".servers/redis-6/bin/redis-server");
    assert!(binary.exists(), "run `scripts/servers.sh redis-6` first, as `make test` does");
    let log = Server::builder().server_binary(binary).try_start().err().expect("it does not start");
    assert!(log.contains("rmq: this server is too old: it has no API function"), "{log}");
}

#[test]
fn every_link_of_the_documentation_leads_to_a_file_and_a_heading() {
    for page in pages() {
        for link in page.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.path.clone() } else { page.path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", page.path.display());
            if !heading.is_empty() {
                let text = std::fs::read_to_string(&target).expect("a page");
                let is_it = |line: &str| line.starts_with('#') && anchor(line) == heading;
                assert!(text.lines().any(is_it), "{}: {link}", page.path.display());
            }
        }
    }
}

/// What GitHub calls a heading in links.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn a_backup_is_restored_as_operating_says() {
    let server = Server::start();
    ok!(server.con(), "RMQ.PUBLISH", "app", "TO", "orders", "order-1", "one", "order-2", "two");
    ok!(server.con(), "RMQ.PUBLISH", "app", "DELAY", 1, "TO", "orders", "order-3", "three");
    ok!(server.con(), "RMQ.RESERVE", "app", 1, "FROM", "orders");
    let restored = Server::start();
    restored.stop();
    let file = restored.dir().join("dump.rdb");
    let port = server.port().to_string();
    succeeded(&Command::new(cli()).args(["-p", &port, "--rdb"]).arg(file).output().expect("redis-cli runs"));

    restored.restart();
    ok!(restored.con(), "CONFIG", "SET", "appendonly", "yes");
    let is_written = || {
        let info = restored.info("persistence");
        info["aof_rewrite_in_progress"] == "0" && info["aof_last_bgrewrite_status"] == "ok"
    };
    assert!(eventually(std::time::Duration::from_secs(60), is_written), "{:?}", restored.info("persistence"));

    let taken = items(ok!(restored.con(), "RMQ.RESERVE", "app", 60_000, "COUNT", 9, "FROM", "orders"));
    let mut ids: Vec<String> = taken.into_iter().map(|message| text(items(message).remove(0))).collect();
    ids.sort();
    assert_eq!(ids, ["order-1", "order-2", "order-3"]);
}

// ---- pages

struct Page {
    path: PathBuf,
    text: String,
}

fn page(name: &str) -> Page {
    let path = in_repository(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
    Page { path, text }
}

fn pages() -> Vec<Page> {
    let mut names = vec!["README.md".to_string()];
    for entry in std::fs::read_dir(in_repository("docs")).expect("docs/").flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.ends_with(".md") {
            names.push(format!("docs/{name}"));
        }
    }
    names.iter().map(|name| page(name)).collect()
}

impl Page {
    /// The fenced blocks: language and content.
    fn blocks(&self) -> Vec<(String, String)> {
        let parts: Vec<&str> = self.text.split("\n```").collect();
        assert!(parts.len() % 2 == 1, "{}: a fence is not closed", self.path.display());
        let inside = parts.iter().skip(1).step_by(2);
        inside
            .map(|block| block.split_once('\n').unwrap_or((block, "")))
            .map(|(language, content)| (language.to_string(), content.to_string()))
            .collect()
    }

    /// The one block in this language.
    fn block(&self, language: &str) -> String {
        let mut found = self.blocks();
        found.retain(|(of, _)| of == language);
        assert_eq!(found.len(), 1, "blocks of {language}");
        found.remove(0).1
    }

    /// The sessions with this prompt: commands, each with the reply below it.
    fn sessions(&self, prompt: &str) -> Vec<Vec<(String, String)>> {
        let mut sessions = Vec::new();
        for (_, block) in self.blocks().into_iter().filter(|(_, block)| block.starts_with(prompt)) {
            let mut session: Vec<(String, String)> = Vec::new();
            for line in block.lines() {
                match line.strip_prefix(prompt) {
                    Some(command) => session.push((command.to_string(), String::new())),
                    None => {
                        let (_, reply) = session.last_mut().expect("a command comes first");
                        *reply += if reply.is_empty() { "" } else { "\n" };
                        *reply += line;
                    }
                }
            }
            sessions.push(session);
        }
        sessions
    }

    /// Types the sessions into redis-cli, one after the other, and compares the replies: how many commands these are.
    fn play(&self, prompt: &str, server: &Server) -> usize {
        let options: &[&str] = if self.text.contains("`redis-cli -3`") { &["-3"] } else { &[] };
        let mut names = Names::default();
        let mut commands = 0;
        for session in self.sessions(prompt) {
            // Each line has a redis-cli of its own, so that AUTH or ASKING is sent again.
            let mut login = String::new();
            for (command, expected) in session {
                let command = names.translate(&command);
                let printed = redis_cli(server, options, &format!("{login}{command}"));
                let reply = if login.is_empty() { &printed } else { printed.strip_prefix("OK\n").unwrap_or(&printed) };
                if let Err(difference) = names.learn(&without_ages(&expected), &without_ages(reply)) {
                    let page = self.path.display();
                    panic!("{page}\n{prompt}{command}\nshown:\n{expected}\ntrue:\n{reply}\n{difference}");
                }
                if command.starts_with("AUTH ") || command == "ASKING" {
                    login = format!("{command}\n");
                }
                commands += 1;
            }
        }
        commands
    }
}

/// The text without the ages that differ from run to run: `"idle_ms" => (integer) 5` of RESP3, and in RESP2, where the name
/// is on the line before.
fn without_ages(text: &str) -> String {
    let names = ["\"next_age_ms\"", "\"idle_ms\"", "\"next_due_in_ms\""];
    let mut before = "";
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim_end) {
        let is_age = names.iter().any(|name| line.contains(name) || before.ends_with(name));
        lines.push(match line.split_once("(integer) ") {
            Some((start, _)) if is_age => format!("{start}(integer)"),
            _ => line.to_string(),
        });
        before = line;
    }
    lines.join("\n")
}

fn cli() -> PathBuf {
    let beside = server_binary().with_file_name("redis-cli");
    if beside.exists() {
        beside
    } else {
        "redis-cli".into()
    }
}

/// A line typed into redis-cli, and what it prints at a terminal.
fn redis_cli(server: &Server, options: &[&str], line: &str) -> String {
    let mut cli = Command::new(cli())
        .args(options)
        .args(["--no-raw", "-h", "127.0.0.1", "-p", &server.port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("redis-cli runs");
    cli.stdin.take().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    let printed = succeeded(&cli.wait_with_output().unwrap()).trim_end().replace('\r', "");
    // Below a reply that took more than half a second it prints the time.
    let is_time = |line: &str| line.starts_with('(') && line.ends_with("s)") && line.contains('.');
    match printed.rsplit_once('\n') {
        Some((reply, last)) if is_time(last) => reply.to_string(),
        _ => printed,
    }
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    stdout
}

// ---- what differs from run to run

/// Receipts, times and ids that the server made: the documentation shows those of one run. The same name has the
/// same value throughout a page; everything else must be equal.
#[derive(Default)]
struct Names(HashMap<String, String>);

#[derive(PartialEq, Debug)]
enum Shape {
    /// 2-1794891056259224, with the number of the attempt
    Receipt(u32),
    /// 1794799235774
    Time,
    /// 06605c26bdda1a-9c93bc4a9e
    Id,
}

fn shape(word: &str) -> Option<Shape> {
    let digits = |text: &str, count: usize| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    let hex = |text: &str, count: usize| text.len() == count && text.bytes().all(|b| b.is_ascii_hexdigit());
    if digits(word, 13) {
        return Some(Shape::Time);
    }
    if let Some((attempt, _)) = word.split_once('-').filter(|(_, micros)| digits(micros, 16)) {
        return attempt.parse().ok().map(Shape::Receipt);
    }
    let is_id = word.split_once('-').is_some_and(|(time, rest)| hex(time, 14) && hex(rest, 10));
    is_id.then_some(Shape::Id)
}

/// Runs of letters, digits, points and dashes, and what is between them, in turn.
fn words(text: &str) -> Vec<&str> {
    let in_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let mut words = Vec::new();
    let mut start = 0;
    let mut inside = None;
    for (at, c) in text.char_indices() {
        if inside.is_some_and(|inside| inside != in_word(c)) {
            words.push(&text[start..at]);
            start = at;
        }
        inside = Some(in_word(c));
    }
    words.push(&text[start..]);
    words
}

impl Names {
    fn translate(&self, command: &str) -> String {
        let known = |word| self.0.get(word).map_or(word, String::as_str);
        words(command).into_iter().map(known).collect()
    }

    fn learn(&mut self, shown: &str, reply: &str) -> Result<(), String> {
        let (shown, reply) = (words(shown), words(reply));
        if shown.len() != reply.len() {
            return Err("there is more or less than shown".into());
        }
        for (shown, word) in shown.into_iter().zip(reply) {
            let equal = match shape(shown) {
                None => shown == word,
                Some(kind) => {
                    let name = self.0.entry(shown.into()).or_insert_with(|| word.into());
                    name == word && shape(word) == Some(kind)
                }
            };
            if !equal {
                return Err(format!("'{word}' instead of '{shown}'"));
            }
        }
        Ok(())
    }
}

#[test]
fn a_session_is_compared_word_for_word_but_for_receipts_times_and_ids() {
    let mut names = Names::default();
    let shown = "1) \"a\"\n2) \"1-1111111111111111\"";
    assert_eq!(names.learn(shown, "1) \"a\"\n2) \"1-2222222222222222\""), Ok(()));
    assert_eq!(names.translate("X a 1-1111111111111111"), "X a 1-2222222222222222");
    assert!(names.learn(shown, "1) \"b\"\n2) \"1-2222222222222222\"").is_err());
    assert!(names.learn(shown, "1) \"a\"\n2) \"1-3333333333333333\"").is_err());
    assert!(names.learn("\"1-1111111111111112\"", "\"2-4444444444444444\"").is_err());
    assert!(names.learn("(integer) 1", "(integer) 2").is_err());
    assert!(names.learn("\"1-1111111111111113\"", "\"soon\"").is_err());
    assert!(names.learn("OK", "OK OK").is_err());
}

// ---- COMMAND DOCS

/// A flat array of names and values.
fn fields(value: redis::Value) -> HashMap<String, redis::Value> {
    let mut values = items(value).into_iter();
    let mut fields = HashMap::new();
    while let (Some(name), Some(value)) = (values.next(), values.next()) {
        fields.insert(text(name), value);
    }
    fields
}

/// The words of a command's syntax in their order: tokens, and the names of the arguments that have a value.
fn words_of(arguments: &redis::Value) -> Vec<String> {
    let mut words = Vec::new();
    for argument in items(arguments.clone()) {
        let argument = fields(argument);
        let of = |name: &str| argument.get(name).map(|value| text(value.clone()));
        match (of("token"), argument.get("arguments")) {
            (Some(token), _) => words.push(token),
            (None, Some(inner)) => words.extend(words_of(inner)),
            (None, None) => words.extend(of("name")),
        }
    }
    words
}
