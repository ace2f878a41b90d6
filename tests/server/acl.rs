//! ACL: the command, each of its keys and each derived key need permission, however the call is made.

use crate::common::cases::*;
use crate::common::*;
use redis::{Cmd, Connection, Value};

/// The rules that a call of the row's effect needs, and no more.
struct Rules {
    command: String,
    keys: Vec<String>,
    derived: Vec<String>,
}

impl Rules {
    fn of(row: &Row) -> Rules {
        let rule = |key: &Key| key.needs.rule(&HERE.text(key.key));
        Rules {
            command: format!("+{}", row.name.to_lowercase()),
            keys: row.keys.iter().map(rule).collect(),
            derived: row.derived.iter().map(rule).collect(),
        }
    }

    /// Makes the user `eve` with these rules, and connects her.
    fn eve(&self, server: &Server) -> Connection {
        let mut rules = vec![self.command.clone()];
        rules.extend(self.keys.iter().chain(&self.derived).cloned());
        eve(server, &rules)
    }
}

fn eve(server: &Server, rules: &[String]) -> Connection {
    ok!(server.con(), "ACL", "SETUSER", "eve", "reset", "on", ">pw", rules);
    server.con_as("eve", "pw")
}

/// The row's effect is refused for this user and changes nothing.
#[track_caller]
fn assert_refused(server: &Server, row: &Row, eve: &mut Connection, why: &str) -> String {
    let mut con = server.con();
    HERE.set_up(&mut con, row.setup);
    let before = Snapshot::with_ttls(&mut con);
    let reply = shown(HERE.call(eve, row.effect.call));
    assert!(reply.starts_with("NOPERM "), "{} {why}: {reply}", row.name);
    before.assert_unchanged(&mut con);
    reply
}

#[track_caller]
fn assert_allowed(server: &Server, row: &Row, eve: &mut Connection) {
    let mut con = server.con();
    HERE.set_up(&mut con, row.setup);
    let now = server_time_ms(&mut con);
    let reply = HERE.call(eve, row.effect.call);
    HERE.assert_reply(&row.effect, now, reply);
}

#[test]
fn the_permissions_that_the_key_specs_name_are_enough() {
    let server = Server::start();
    for row in ROWS {
        assert_allowed(&server, row, &mut Rules::of(row).eve(&server));
    }
}

#[test]
fn a_user_without_the_command_is_refused() {
    let server = Server::start();
    for row in ROWS {
        let without = ["+@all", &format!("-{}", row.name.to_lowercase()), "~*"].map(String::from);
        assert_refused(&server, row, &mut eve(&server, &without), "without the command");
    }
}

#[test]
fn a_user_without_one_of_the_keys_is_refused() {
    let server = Server::start();
    for row in ROWS {
        for (n, key) in row.keys.iter().enumerate() {
            let mut rules = Rules::of(row);
            rules.keys.remove(n);
            assert_refused(&server, row, &mut rules.eve(&server), key.role);
        }
    }
}

#[test]
fn a_user_with_the_other_half_of_a_permission_is_refused() {
    let server = Server::start();
    for row in ROWS {
        for (n, key) in row.keys.iter().enumerate() {
            for half in key.needs.halves() {
                let mut rules = Rules::of(row);
                rules.keys[n] = half.rule(&HERE.text(key.key));
                let why = format!("{} with {half:?} alone", key.role);
                assert_refused(&server, row, &mut rules.eve(&server), &why);
            }
        }
    }
}

#[test]
fn a_user_with_read_only_keys_may_only_read() {
    let server = Server::start();
    for row in ROWS {
        let mut eve = eve(&server, &["+@all".into(), "%R~*".into()]);
        if row.writes() {
            assert_refused(&server, row, &mut eve, "with read-only keys");
        } else {
            assert_allowed(&server, row, &mut eve);
        }
    }
}

#[test]
fn a_user_without_one_of_the_derived_keys_is_refused_and_it_is_named() {
    let server = Server::start();
    for row in rows_with_derived_keys() {
        for (n, key) in row.derived.iter().enumerate() {
            let name = HERE.text(key.key);
            for rule in [None].into_iter().chain(key.needs.halves().iter().map(|half| Some(half.rule(&name)))) {
                let mut rules = Rules::of(row);
                rules.derived.remove(n);
                rules.derived.extend(rule.clone());
                let error = assert_refused(&server, row, &mut rules.eve(&server), "without a derived key");
                let wanted = format!("NOPERM no permission to access the key '{name}'");
                assert_eq!(error, wanted, "{} with {rule:?}", row.name);
            }
        }
    }
}

/// The entries of ACL LOG, newest first, as field and value.
fn acl_log(con: &mut Connection) -> Vec<Vec<(String, String)>> {
    let entry = |entry: Value| {
        let words: Vec<String> = items(entry)
            .into_iter()
            .map(|word| match word {
                Value::Double(number) => number.to_string(),
                word => text(word),
            })
            .collect();
        words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    };
    items(ok!(con, "ACL", "LOG")).into_iter().map(entry).collect()
}

#[test]
fn a_refused_derived_key_is_in_the_acl_log() {
    let server = Server::start();
    let mut con = server.con();
    for row in rows_with_derived_keys() {
        let mut rules = Rules::of(row);
        rules.derived.clear();
        let mut eve = rules.eve(&server);
        ok!(con, "ACL", "LOG", "RESET");
        assert_refused(&server, row, &mut eve, "without a derived key");
        let log = acl_log(&mut con);
        assert_eq!(log.len(), 1, "{}: {log:?}", row.name);
        for (field, value) in [("reason", "key"), ("username", "eve"), ("count", "1")] {
            assert!(log[0].contains(&(field.into(), value.into())), "{}: {log:?}", row.name);
        }
        let names_it = |key: &Key| log[0].contains(&("object".into(), HERE.text(key.key)));
        assert!(row.derived.iter().any(names_it), "{}: {log:?}", row.name);
    }
}

#[test]
fn a_dry_run_gives_the_same_answer_as_the_call() {
    let server = Server::start();
    let mut con = server.con();
    for row in ROWS {
        let rules = Rules::of(row);
        rules.eve(&server);
        let words = HERE.words(row.effect.call);
        assert_eq!(text(ok!(con, "ACL", "DRYRUN", "eve", &words)), "OK", "{}", row.name);
        for (n, key) in row.keys.iter().enumerate() {
            let mut rules = Rules::of(row);
            rules.keys.remove(n);
            rules.eve(&server);
            let said = text(ok!(con, "ACL", "DRYRUN", "eve", &words));
            assert!(said.contains(&format!("'{}'", HERE.text(key.key))), "{}: {said}", row.name);
        }
        ok!(con, "ACL", "SETUSER", "eve", "reset", "on", "~*", "+get");
        let said = text(ok!(con, "ACL", "DRYRUN", "eve", &words));
        assert!(said.to_lowercase().contains(&row.name.to_lowercase()), "{said}");
    }
}

#[test]
fn selectors_grant_what_they_say() {
    let server = Server::start();
    for row in ROWS {
        let rules = Rules::of(row);
        let all: Vec<String> = rules.keys.iter().chain(&rules.derived).cloned().collect();
        let whole = format!("({} {})", rules.command, all.join(" "));
        assert_allowed(&server, row, &mut eve(&server, &[whole]));

        // Neither of two selectors has both the command and its keys.
        let split = [format!("({} ~other)", rules.command), format!("(+get {})", all.join(" "))];
        // In a namespace the keys are no arguments, and the server has no check of a command and such a key together.
        if !row.keys.is_empty() {
            assert_refused(&server, row, &mut eve(&server, &split), "with a split selector");
        }

        let no_derived = format!("({} {})", rules.command, rules.keys.join(" "));
        let mut eve = eve(&server, &[no_derived]);
        if row.derived.is_empty() {
            assert_allowed(&server, row, &mut eve);
        } else {
            assert_refused(&server, row, &mut eve, "with a selector that lacks a derived key");
        }
    }
}

#[test]
fn a_queue_with_the_prefix_of_another_user_gives_no_access_to_it() {
    let server = Server::start();
    let mut con = server.con();
    let (mine, yours) = (World("mine:"), "yours:bank");
    for row in twins_with_derived_keys() {
        let rules = [format!("+{}", row.name.to_lowercase()), "~mine:*".into()];
        let mut eve = eve(&server, &rules);
        // Allowed on her own keys.
        mine.set_up(&mut con, row.setup);
        let now = server_time_ms(&mut con);
        let reply = mine.call(&mut eve, row.effect.call);
        mine.assert_reply(&row.effect, now, reply);

        // Then a message names a queue of another user, whose lists exist.
        mine.set_up(&mut con, row.setup);
        ok!(con, "LPUSH", "yours:bank:pending", "x");
        ok!(con, "LPUSH", "yours:bank:processing", "a", "x");
        ok!(con, "HSET", "mine:map", "a:queue", yours);
        let before = Snapshot::of(&mut con);
        let reply = shown(mine.call(&mut eve, row.effect.call));
        assert!(reply.starts_with("NOPERM no permission to access the key 'yours:bank:p"), "{reply}");
        before.assert_unchanged(&mut con);
    }
}

#[test]
fn hostile_bytes_in_a_queue_name_reach_neither_the_error_nor_the_acl_log_unescaped() {
    let server = Server::start();
    let mut con = server.con();
    let mut eve = eve(&server, &["+ping", "+rmq.delaytick", "~delay", "~map"].map(String::from));
    ok!(con, "HSET", "map", "a", "pa", "a:queue", b"x\r\n+OK\r\n\0%s%n\xff");
    ok!(con, "ZADD", "delay", 1, "a");
    let error = err!(eve, "RMQ.DELAYTICK", "delay", "map", 10);
    assert_eq!(error, "NOPERM no permission to access the key 'x\\r\\n+OK\\r\\n\\x00%s%n\\xff:pending'");
    assert_eq!(text(ok!(eve, "PING")), "PONG");
}

#[test]
fn categories_grant_the_commands_where_the_server_lets_modules_have_them() {
    let server = Server::start();
    // Redis 7.2 and Valkey 8 let a module say the categories of its commands; before, users name the command.
    let has_categories = server.is_valkey() || server.version() >= (7, 2, 0);
    for row in ROWS {
        let category = if row.writes() { "@write" } else { "@read" };
        let mut eve = eve(&server, &[format!("+{category}"), "~*".into()]);
        if has_categories {
            assert_allowed(&server, row, &mut eve);
            let listed: Vec<String> = ask!(server.con(), "ACL", "CAT", &category[1..]);
            let lists_it = |name: &String| name.eq_ignore_ascii_case(row.name);
            assert!(listed.iter().any(lists_it), "{} in {listed:?}", row.name);
        } else {
            assert_refused(&server, row, &mut eve, "by category");
        }
        let mut eve = self::eve(&server, &["+@all".into(), "-@write".into(), "-@read".into(), "~*".into()]);
        if has_categories {
            assert_refused(&server, row, &mut eve, "with the category taken away");
        } else {
            assert_allowed(&server, row, &mut eve);
        }
    }
}

/// Ways in which a script calls a command; eve may call the script.
const SCRIPTS: [&str; 2] = ["EVAL", "FCALL"];

fn by_script(way: &str, row: &Row) -> Vec<String> {
    let mut words: Vec<String> = match way {
        "EVAL" => vec!["EVAL".into(), "return redis.call(unpack(ARGV))".into(), "0".into()],
        _ => vec!["FCALL".into(), "run".into(), "0".into()],
    };
    words.extend(HERE.words(row.effect.call));
    words
}

const LIBRARY: &str = "#!lua name=lib
redis.register_function('run', function(keys, args) return redis.call(unpack(args)) end)";

#[test]
fn a_script_has_the_permissions_of_its_caller() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "FUNCTION", "LOAD", LIBRARY);
    for way in SCRIPTS {
        for row in ROWS {
            let mut rules = Rules::of(row);
            rules.command += &format!(" +{}", way.to_lowercase());
            let mut all: Vec<String> = rules.command.split(' ').map(String::from).collect();
            all.extend(rules.keys.iter().chain(&rules.derived).cloned());
            HERE.set_up(&mut con, row.setup);
            let now = server_time_ms(&mut con);
            let reply = call(&mut eve(&server, &all), &by_script(way, row));
            HERE.assert_reply(&row.effect, now, reply);

            // Every key is needed here too: those of the arguments, which the server words in its own ways, and
            // those that are derived.
            for (n, missing) in rules.keys.iter().chain(&rules.derived).enumerate() {
                let fewer: Vec<String> = all.iter().filter(|rule| *rule != missing).cloned().collect();
                let mut eve = eve(&server, &fewer);
                HERE.set_up(&mut con, row.setup);
                let before = Snapshot::of(&mut con);
                let reply = shown(call(&mut eve, &by_script(way, row)));
                let refused = if n < rules.keys.len() {
                    reply.starts_with("ERR ACL failure in script: No permissions to access a key")
                        || reply.contains("can't access at least one of the keys")
                } else {
                    reply.starts_with("NOPERM no permission to access the key")
                };
                assert!(refused, "{way} {} without {missing}: {reply}", row.name);
                before.assert_unchanged(&mut con);
            }
        }
    }
}

#[test]
fn a_call_inside_of_multi_is_checked_when_it_runs() {
    let server = Server::start();
    let mut con = server.con();
    for row in rows_with_derived_keys() {
        let mut rules = Rules::of(row);
        rules.command += " +multi +exec";
        let mut all: Vec<String> = rules.command.split(' ').map(String::from).collect();
        all.extend(rules.keys);
        let mut eve = eve(&server, &all);
        HERE.set_up(&mut con, row.setup);
        let before = Snapshot::of(&mut con);
        ok!(eve, "MULTI");
        HERE.call(&mut eve, row.effect.call).unwrap();
        let replies = shown(cmd!(eve, "EXEC"));
        assert!(replies.starts_with("[NOPERM no permission"), "{replies}");
        before.assert_unchanged(&mut con);
    }
}

#[test]
fn a_command_that_comes_from_the_aof_has_no_user_and_is_trusted() {
    for row in rows_with_derived_keys() {
        let folder = Server::builder().without_module().start();
        let mut aof = Vec::new();
        for line in row.setup.iter().chain([&row.effect.call]) {
            aof.extend(resp::encode(&HERE.words(line)));
        }
        aof.extend(resp::encode(&["SET", "loaded", "1"]));
        std::fs::write(folder.dir().join("appendonly.aof"), aof).unwrap();
        let server = Server::builder().arg("appendonly", "yes").arg("dir", folder.dir().to_str().unwrap()).start();
        let mut con = server.con();
        assert_eq!(text(ok!(con, "GET", "loaded")), "1", "{}", row.name);
        let loaded = Snapshot::of(&mut con);

        let called = Server::start();
        HERE.set_up(&mut called.con(), row.setup);
        HERE.run(&mut called.con(), &row.effect);
        ok!(called.con(), "SET", "loaded", "1");
        let now = Snapshot::of(&mut called.con());
        assert_eq!(loaded.keys(), now.keys(), "{}", row.name);
        for key in row.derived.iter().filter(|key| ["pending", "processing"].contains(&key.role)) {
            let key = HERE.text(key.key);
            assert_eq!(loaded.list(&key), now.list(&key), "{}: {key}", row.name);
        }
    }
}

#[test]
fn a_script_that_may_do_what_it_does_leaves_nothing_in_acl_log() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "ACL", "SETUSER", "u", "on", ">pw", "~*", "+eval", "+rmq.delaytick", "+hello", "+client");
    ok!(con, "HSET", "m", "a:queue", "q");
    ok!(con, "ZADD", "d", 1, "a");
    let script = "return redis.call('RMQ.DELAYTICK', KEYS[1], KEYS[2], 10)";
    let moved = text_rows(ok!(server.con_as("u", "pw"), "EVAL", script, 2, "d", "m"));
    assert_eq!(moved, [["a", "q"]]);
    let refused: Vec<redis::Value> = ask!(con, "ACL", "LOG");
    assert_eq!(refused, []);
}

/// Messages of a queue in another namespace, and the calls that come upon it.
fn calls_that_meet_a_foreign_queue(con: &mut Connection) -> Vec<(Cmd, &'static str)> {
    for id in ["a", "b", "c", "d"] {
        ok!(con, "HSET", "app:map", id, "payload", format!("{id}:queue"), "web:q");
    }
    ok!(con, "ZADD", "app:delays", 1, "a");
    ok!(con, "ZADD", "app:due", 1, "b");
    ok!(con, "LPUSH", "web:q:processing", "b", "c", "d");
    vec![
        (command!("RMQ.DELAYTICK", "app:delays", "app:map", 10), "web:q:pending"),
        (command!("RMQ.TIMEOUTS", "app:due", "app:map", "*", 10, "CLAIM", 1), "web:q:processing"),
        (command!("RMQ.TIMEOUTS", "app:due", "app:map", "*", 10), "web:q:processing"),
        (command!("RMQ.RETRY", "app:map", "app:delays", "app:due", "app:work", "c", "again", 60), "web:q:processing"),
        (
            command!("RMQ.DEADLETTER", "app:dead", "app:dlq", "app:due", "app:map", "app:work", "d", "dead"),
            "web:q:processing",
        ),
    ]
}

#[test]
fn a_selector_that_does_not_grant_the_command_lends_it_no_derived_key() {
    let server = Server::start();
    let mut con = server.con();
    let calls = calls_that_meet_a_foreign_queue(&mut con);
    let before = Snapshot::of(&mut con);
    let tap = ReplicaTap::attach(&server);
    for selector in ["(~web:* +get)", "(~* +get)", "(%W~web:* +@all -@all +lpush +lrem)"] {
        let mut eve = eve(&server, &["+@all", "~app:*", selector].map(String::from));
        for (call, derived) in &calls {
            let error = commands::error_of(call, send!(eve, call));
            assert_eq!(error, format!("NOPERM no permission to access the key '{derived}'"), "{selector}");
        }
    }
    before.assert_unchanged(&mut con);
    assert_eq!(tap.lines_until_marker(&mut con), [""; 0]);
}

#[test]
fn a_selector_that_grants_the_command_and_its_keys_grants_derived_keys_too() {
    for rules in [
        // The user's own rules, whatever a selector adds.
        &["+@all", "~app:*", "~web:*", "(~other:* +get)"][..],
        &["+@all", "~app:*", "%W~web:*", "(~web:* +get)"],
        // A selector has all of it, and the user's own rules have nothing.
        &["(~app:* ~web:* +@all)"],
        &["(~app:* %W~web:* +@all)", "(~web:* +get)"],
    ] {
        let server = Server::start();
        let calls = calls_that_meet_a_foreign_queue(&mut server.con());
        let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
        let mut eve = eve(&server, &rules);
        for (call, _) in &calls {
            send!(eve, call).unwrap_or_else(|e| commands::failed(call, &e));
        }
    }
}
