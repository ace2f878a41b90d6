//! README.md and docs/ tell the truth: their redis-cli sessions, calls from programs, tables and links are tried here.

mod common;
use common::process::in_repository;
use common::server::server_binary;
use common::*;

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROMPT: &str = "127.0.0.1:6379> ";

#[test]
fn the_redis_cli_sessions_of_the_documentation_give_the_replies_that_they_show() {
    let mut commands = 0;
    for page in pages() {
        let server = Server::start();
        let mut names = Names::default();
        for (command, expected) in page.session() {
            let command = names.translate(&command);
            let reply = redis_cli(&server, &command);
            if let Err(difference) = names.learn(&expected, &reply) {
                panic!(
                    "{}\n{PROMPT}{command}\nshown:\n{expected}\ntrue:\n{reply}\n{difference}",
                    page.path.display()
                );
            }
            commands += 1;
        }
    }
    assert!(
        commands >= 50,
        "only {commands} commands were found in the documentation"
    );
}

#[test]
fn the_readme_leads_with_publish_reserve_and_ack() {
    let session = page("README.md").session();
    let first: Vec<&str> = session.iter().filter_map(|(line, _)| line.split(' ').next()).collect();
    assert_eq!(first[..3], ["RMQ.PUBLISH", "RMQ.RESERVE", "RMQ.ACK"]);
    assert_eq!(session[2].1, "(integer) 1");
}

#[test]
fn the_python_call_of_the_readme_settles_its_message() {
    let server = Server::start();
    let python = in_repository(".servers/python/bin/python");
    assert!(
        python.exists(),
        "run `scripts/servers.sh python` first, as `make test` does"
    );
    let code = page("README.md").block("python");
    let here = format!("redis.Redis(port={})", server.port());
    assert_eq!(code.matches("redis.Redis()").count(), 1);

    let output = Command::new(python)
        .arg("-c")
        .arg(code.replace("redis.Redis()", &here))
        .output();

    succeeded(&output.expect("python runs"));
    assert_settled(&server);
}

#[test]
fn the_rust_call_of_the_readme_settles_its_message() {
    let trimmed = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let shown = trimmed(&page("README.md").block("rust"));
    let compiled = trimmed(&std::fs::read_to_string(in_repository("tests/readme.rs")).unwrap());
    assert!(
        compiled.contains(&shown),
        "README.md shows another call than this file compiles:\n{shown}"
    );
    let server = Server::start();

    the_rust_call(&format!("redis://127.0.0.1:{}", server.port())).unwrap();

    assert_settled(&server);
}

/// What README.md shows, word for word.
#[rustfmt::skip]
fn the_rust_call(url: &str) -> redis::RedisResult<()> {
    let mut con = redis::Client::open(url)?.get_connection()?;
    let message = ("app:payloads", "app:mail:pending", "*", "hello");
    let _id: String = redis::cmd("RMQ.PUBLISH").arg(message).query(&mut con)?;
    let keys = ("app:mail:pending", "app:mail:processing", "app:payloads", "app:expires");
    let taken: Vec<(String, Vec<u8>, String, u64)> =
        redis::cmd("RMQ.RESERVE").arg(keys).arg((30000, "BLOCK", 1000)).query(&mut con)?;
    for (id, _payload, lease, _attempts) in taken {
        let keys = ("app:payloads", "app:mail:processing", "app:expires");
        let _acked: u64 = redis::cmd("RMQ.ACK").arg(keys).arg((id, lease)).query(&mut con)?;
    }
    Ok(())
}

fn assert_settled(server: &Server) {
    let info = server.info("rmq");
    let did = ["rmq_published", "rmq_reserved", "rmq_acked"].map(|field| info[field].as_str());
    assert_eq!(did, ["1", "1", "1"]);
    assert!(Snapshot::of(&mut server.con()).keys().is_empty());
}

#[test]
fn before_and_after_differ_only_in_the_name_of_the_command() {
    let server = Server::start();
    let lines = page("README.md").block("diff");
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
fn the_demo_shows_every_command_of_the_scripts_and_ends_well() {
    let demo = Command::new("bash")
        .arg(in_repository("scripts/demo.sh"))
        .env("RMQ_SERVER", server_binary())
        .env("RMQ_MODULE", common::server::module())
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let shown = succeeded(&demo);
    for name in [
        "PUBLISH",
        "RESERVE",
        "ACK",
        "COMPLETE",
        "RETRY",
        "DELAYTICK",
        "TIMEOUTS",
        "PARSEERR",
    ] {
        assert!(
            shown.contains(&format!("\n> RMQ.{name} ")),
            "no RMQ.{name} in:\n{shown}"
        );
    }
    let port = shown
        .split("port ")
        .nth(1)
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    let port: u16 = port
        .and_then(|port| port.parse().ok())
        .expect("the demo tells its port");
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
    assert_eq!(commands.len(), 14);
    for name in commands {
        let name = name.to_uppercase();
        assert!(readme.contains(&name), "README.md has no {name}");
        let (_, section) = reference
            .split_once(&format!("\n## {name}\n"))
            .unwrap_or_else(|| panic!("docs/commands.md has no {name}"));
        let section = section.split("\n## ").next().unwrap();
        let docs = fields(items(ok!(server.con(), "COMMAND", "DOCS", &name)).remove(1));
        let complexity = text(docs["complexity"].clone());
        assert!(section.contains(&complexity), "{name}: the complexity is\n{complexity}");
        let syntax = section
            .lines()
            .find(|line| line.starts_with(&name))
            .expect("a syntax line");
        let mut rest = syntax;
        for word in words_of(&docs["arguments"]) {
            let found = rest
                .find(&word)
                .unwrap_or_else(|| panic!("{syntax}\nhas no {word}, or too early"));
            rest = &rest[found + word.len()..];
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
    assert_eq!(settings.len(), 3);
    for (name, default) in settings {
        assert!(
            readme.contains(&format!("| `{name}` | {default} |")),
            "README.md: {name} is {default}"
        );
    }
}

#[test]
fn the_server_that_the_readme_calls_too_old_refuses_the_module_and_says_why() {
    let binary = in_repository(".servers/redis-6/bin/redis-server");
    assert!(
        binary.exists(),
        "run `scripts/servers.sh redis-6` first, as `make test` does"
    );
    let log = Server::builder()
        .server_binary(binary)
        .try_start()
        .err()
        .expect("it does not start");
    assert!(
        log.contains("rmq: this server is too old: it has no API function"),
        "{log}"
    );
}

#[test]
fn every_link_of_the_documentation_leads_to_a_file() {
    for page in pages() {
        for link in page.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            let target = page.path.parent().unwrap().join(file);
            assert!(file.is_empty() || target.exists(), "{}: {link}", page.path.display());
        }
    }
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

    /// Commands behind the prompt, each with the reply below it.
    fn session(&self) -> Vec<(String, String)> {
        let mut session: Vec<(String, String)> = Vec::new();
        for (_, block) in self.blocks() {
            if !block.starts_with(PROMPT) {
                continue;
            }
            for line in block.lines() {
                match line.strip_prefix(PROMPT) {
                    Some(command) => session.push((command.to_string(), String::new())),
                    None => {
                        let (_, reply) = session.last_mut().expect("a command comes first");
                        *reply += if reply.is_empty() { "" } else { "\n" };
                        *reply += line;
                    }
                }
            }
        }
        session
    }
}

/// A line typed into redis-cli, and what it prints at a terminal.
fn redis_cli(server: &Server, line: &str) -> String {
    let beside = server_binary().with_file_name("redis-cli");
    let binary = if beside.exists() {
        beside
    } else {
        Path::new("redis-cli").into()
    };
    let mut cli = Command::new(binary)
        .args(["--no-raw", "-h", "127.0.0.1", "-p", &server.port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("redis-cli runs");
    cli.stdin
        .take()
        .unwrap()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
    succeeded(&cli.wait_with_output().unwrap()).trim_end().replace('\r', "")
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    stdout
}

// ---- what differs from run to run

/// Leases, times and ids that the server made: the documentation shows those of one run. The same name stands for the
/// same value throughout a page; everything else must be equal.
#[derive(Default)]
struct Names(HashMap<String, String>);

#[derive(PartialEq, Debug)]
enum Shape {
    /// 1794799235774.382
    Lease,
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
    if word
        .split_once('.')
        .is_some_and(|(ms, us)| digits(ms, 13) && digits(us, 3))
    {
        return Some(Shape::Lease);
    }
    let is_id = word
        .split_once('-')
        .is_some_and(|(time, rest)| hex(time, 14) && hex(rest, 10));
    is_id.then_some(Shape::Id)
}

/// Runs of letters, digits, points and dashes, and what stands between them, in turn.
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
fn a_session_is_compared_word_for_word_but_for_leases_times_and_ids() {
    let mut names = Names::default();
    let shown = "1) \"a\"\n2) \"1111111111111.111\"";
    assert_eq!(names.learn(shown, "1) \"a\"\n2) \"2222222222222.222\""), Ok(()));
    assert_eq!(names.translate("X a 1111111111111.111"), "X a 2222222222222.222");
    assert!(names.learn(shown, "1) \"b\"\n2) \"2222222222222.222\"").is_err());
    assert!(names.learn(shown, "1) \"a\"\n2) \"3333333333333.333\"").is_err());
    assert!(names.learn("(integer) 1", "(integer) 2").is_err());
    assert!(names.learn("\"1111111111112.111\"", "\"soon\"").is_err());
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
