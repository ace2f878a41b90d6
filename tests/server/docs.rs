//! COMMAND DOCS, COMMAND INFO and COMMAND GETKEYS are correct for every command.

use crate::common::cases::*;
use crate::common::*;
use redis::{Connection, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A RESP2 map: field, value, field, value.
fn map(value: Value) -> BTreeMap<String, Value> {
    let mut map = BTreeMap::new();
    let mut words = items(value).into_iter();
    while let (Some(field), Some(value)) = (words.next(), words.next()) {
        map.insert(text(field), value);
    }
    map
}

fn docs(con: &mut Connection, name: &str) -> BTreeMap<String, Value> {
    let mut all = map(ok!(con, "COMMAND", "DOCS", name));
    assert_eq!(all.len(), 1, "{name}");
    map(all.pop_first().expect("the docs").1)
}

fn set(value: &Value) -> BTreeSet<String> {
    strings(value.clone()).into_iter().map(|word| word.to_lowercase()).collect()
}

#[test]
fn every_command_of_the_module_is_in_the_table_of_the_tests() {
    let server = Server::start();
    let listed: Vec<String> = ask!(server.con(), "COMMAND", "LIST", "FILTERBY", "MODULE", "rmq");
    let listed: BTreeSet<String> = listed.iter().map(|name| name.to_uppercase()).collect();
    let table: BTreeSet<String> = ROWS.iter().map(|row| row.name.to_string()).collect();
    assert_eq!(listed, table);
    assert_eq!(table.len(), ROWS.len());
}

/// A list of documented arguments as a line of syntax.
fn syntax(arguments: &Value) -> String {
    let arguments = items(arguments.clone()).into_iter().map(map);
    arguments.map(|argument| argument_syntax(&argument)).collect::<Vec<_>>().join(" ")
}

fn argument_syntax(argument: &BTreeMap<String, Value>) -> String {
    let flags = argument.get("flags").map(set).unwrap_or_default();
    let name = text(argument["name"].clone());
    let token = argument.get("token").map(|token| text(token.clone()));
    let (inner, token) = match text(argument["type"].clone()).as_str() {
        "pure-token" => (token.expect("a token"), None),
        "block" => (syntax(&argument["arguments"]), token),
        "oneof" => {
            let choices = items(argument["arguments"].clone()).into_iter().map(map);
            (choices.map(|choice| argument_syntax(&choice)).collect::<Vec<_>>().join("|"), token)
        }
        _ => (name, token),
    };
    let inner = if flags.contains("multiple") { format!("{inner} [{inner} ...]") } else { inner };
    let inner = token.map_or(inner.clone(), |token| format!("{token} {inner}"));
    if flags.contains("optional") {
        format!("[{inner}]")
    } else {
        inner
    }
}

#[test]
fn command_docs_has_summary_complexity_version_and_syntax_of_every_command() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        let docs = docs(&mut con, row.name);
        let field = |name: &str| text(docs[name].clone());
        assert!(field("summary").ends_with('.'), "{}", row.name);
        assert!(field("complexity").starts_with("O("), "{}", row.name);
        assert_eq!(field("since"), env!("CARGO_PKG_VERSION"), "{}", row.name);
        assert_eq!(field("module"), "rmq");
        assert_eq!(syntax(&docs["arguments"]), row.syntax, "{}", row.name);
    }
}

#[test]
fn command_docs_ties_each_key_argument_to_its_key_spec() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        let arguments = items(docs(&mut con, row.name).remove("arguments").unwrap());
        let keys: Vec<(String, i64)> = arguments
            .into_iter()
            .map(map)
            .filter(|argument| text(argument["type"].clone()) == "key")
            .map(|argument| {
                let index = redis::from_redis_value(argument["key_spec_index"].clone()).unwrap();
                (text(argument["name"].clone()), index)
            })
            .collect();
        let wanted: Vec<(String, i64)> = (0..).zip(row.keys).map(|(n, key)| (key.role.to_string(), n)).collect();
        assert_eq!(keys, wanted, "{}", row.name);
    }
}

#[test]
fn command_info_has_arity_flags_keys_and_categories() {
    let server = Server::start();
    let mut con = server.con();
    let has_categories = server.is_valkey() || server.version() >= (7, 2, 0);
    for row in ROWS {
        let info = items(items(ok!(con, "COMMAND", "INFO", row.name)).remove(0));
        let number = |n: usize| -> i64 { redis::from_redis_value(info[n].clone()).unwrap() };
        // The words that the syntax asks for, the command's name among them.
        let least = 1 + words_asked_for(row.syntax);
        let open = row.syntax.contains('[');
        assert_eq!(number(1), if open { -least } else { least }, "{}", row.name);

        let flags = set(&info[2]);
        for (flag, wanted) in [
            ("write", row.writes()),
            ("readonly", !row.writes()),
            ("denyoom", row.adds_data),
            ("blocking", row.syntax.contains("BLOCK")),
            ("module", true),
            ("noscript", false),
            ("admin", false),
        ] {
            assert_eq!(flags.contains(flag), wanted, "{} {flag}: {flags:?}", row.name);
        }
        // Clients route by the namespace, which is no key.
        let last = if row.is_of_queue() { 1 } else { row.keys.len() as i64 };
        assert_eq!((number(3), number(4), number(5)), (1, last, 1), "{}", row.name);

        let categories = set(&info[6]);
        for (category, wanted) in [("@write", row.writes()), ("@read", !row.writes())] {
            assert_eq!(categories.contains(category), wanted && has_categories, "{} {categories:?}", row.name);
        }
        if has_categories {
            assert_eq!(categories.contains("@blocking"), row.syntax.contains("BLOCK"), "{}", row.name);
            assert!(categories.contains("@fast") != categories.contains("@slow"), "{}", row.name);
            assert_eq!(categories.contains("@fast"), flags.contains("fast"), "{}", row.name);
        }
    }
}

/// Words outside of brackets, up to a keyword: the command itself says that one is missing.
fn words_asked_for(syntax: &str) -> i64 {
    let mut depth = 0;
    let mut count = 0;
    for word in syntax.split(' ') {
        depth += word.matches('[').count();
        if depth == 0 && word.chars().all(|c| c.is_ascii_uppercase()) {
            break;
        }
        count += i64::from(depth == 0);
        depth -= word.matches(']').count();
    }
    count
}

#[test]
fn the_documented_arity_is_the_one_that_is_enforced() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        let wrong = format!("ERR wrong number of arguments for '{}' command", row.name.to_lowercase());
        let words = HERE.words(row.effect.call);
        let least = 1 + words_asked_for(row.syntax) as usize;
        for count in 1..least {
            let reply = shown(call(&mut con, &words[..count])).to_lowercase();
            assert_eq!(reply, wrong.to_lowercase(), "{} with {count} words", row.name);
        }
        let info = items(items(ok!(con, "COMMAND", "INFO", row.name)).remove(0));
        if info[1] == Value::Int(least as i64) {
            let more = [words, vec!["more".into()]].concat();
            let reply = shown(call(&mut con, &more)).to_lowercase();
            assert_eq!(reply, wrong.to_lowercase(), "{} with a word too many", row.name);
        }
    }
}

#[test]
fn command_getkeys_finds_the_keys_of_every_example() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        if row.is_of_queue() {
            let reply = shown(call(&mut con, &words_of_getkeys(row)));
            assert_eq!(reply, "ERR The command has no key arguments", "{}", row.name);
            continue;
        }
        for (about, _, step) in row.examples() {
            let words = HERE.words(step.call);
            let keys: Vec<String> = ask!(con, "COMMAND", "GETKEYS", &words);
            assert_eq!(keys, words[1..=row.keys.len()], "{about}");
        }
        let keys: Vec<String> = ask!(con, "COMMAND", "GETKEYS", HERE.words(row.effect.call));
        let wanted: Vec<String> = row.keys.iter().map(|key| HERE.text(key.key)).collect();
        assert_eq!(keys, wanted, "{}", row.name);
    }
}

fn words_of_getkeys(row: &Row) -> Vec<String> {
    [vec!["COMMAND".into(), "GETKEYS".into()], HERE.words(row.effect.call)].concat()
}

#[test]
fn command_getkeysandflags_says_what_each_key_is_needed_for() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS.iter().filter(|row| !row.is_of_queue()) {
        let replied = items(ok!(con, "COMMAND", "GETKEYSANDFLAGS", HERE.words(row.effect.call)));
        assert_eq!(replied.len(), row.keys.len());
        for (replied, key) in replied.into_iter().zip(row.keys) {
            let replied = items(replied);
            assert_eq!(text(replied[0].clone()), HERE.text(key.key));
            let flags = set(&replied[1]);
            let changes = ["insert", "update", "delete"].iter().any(|flag| flags.contains(*flag));
            let reads = flags.contains("access");
            let mode = if key.needs == Needs::Read { "ro" } else { "rw" };
            assert!(flags.contains(mode), "{} {}: {flags:?}", row.name, key.role);
            assert_eq!(
                (reads, changes),
                (key.needs != Needs::Write, key.needs != Needs::Read),
                "{} {}: {flags:?}",
                row.name,
                key.role
            );
        }
    }
}

#[test]
fn a_call_touches_no_key_that_is_neither_documented_nor_derived() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    for row in ROWS {
        HERE.set_up(&mut con, row.setup);
        tap.commands_until_marker(&mut con);
        HERE.run(&mut con, &row.effect);
        let known: BTreeSet<String> = row.keys.iter().chain(row.derived).map(|key| HERE.text(key.key)).collect();
        for command in tap.commands_until_marker(&mut con) {
            if let Some(key) = command.get(1) {
                assert!(known.contains(&*String::from_utf8_lossy(key)), "{}: {}", row.name, line(&command));
            }
        }
    }
}
