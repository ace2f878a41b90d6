//! Namespaces: the names of the keys, routing, hash tags and permission.

use crate::calls::*;
use crate::common::*;
use redis::{Connection, Value};

/// Every command that takes a namespace. The last one needs a single key, the others several.
const LINES: &[&str] = &[
    "RMQ.PUBLISH <ns> TO orders x p",
    "RMQ.RESERVE <ns> 1000 FROM orders",
    "RMQ.ACK <ns> a 1-1",
    "RMQ.NACK <ns> a 1-1",
    "RMQ.RELEASE <ns> a 1-1",
    "RMQ.EXTEND <ns> 1000 a 1-1",
    "RMQ.REDRIVE <ns> COUNT 1",
    "RMQ.STATS <ns>",
    "RMQ.PEEK <ns> IDS a",
    "RMQ.CANCEL <ns> IDS a",
    "RMQ.RESCHEDULE <ns> 5 IDS b",
    "RMQ.PURGE <ns> PENDING orders",
    "RMQ.AUDIT <ns>",
    "RMQ.REPAIR <ns>",
    "RMQ.POLICY <ns> orders ATTEMPTS 1",
];

#[test]
fn all_keys_follow_from_the_namespace_and_the_queue() {
    let server = Server::start();
    let mut con = server.con();
    for (ns, prefix) in [("app", "app:"), ("", ""), ("a:b", "a:b:"), ("{app}", "{app}:"), (" %s", " %s:"), (":", "::")]
    {
        ok!(con, "FLUSHALL");
        for id in ["dead", "held", "pending"] {
            publish(&mut con, ns, "orders", id);
        }
        ok!(con, "RMQ.PUBLISH", ns, "DELAY", HOUR, "ONCE", HOUR, "TO", "mails", "delayed", "p");
        let taken = reserve(&mut con, ns, HOUR, 2, &["orders"]);
        assert_eq!(bulk(ok!(con, "RMQ.NACK", ns, "dead", &taken[0].receipt, "DEAD")), b"DEAD");
        let now = Snapshot::of(&mut con);
        let names = [
            "delays",
            "dlq",
            "dlq:data",
            "expires",
            "once",
            "orders:pending",
            "orders:processing",
            "payloads",
            "queues",
        ];
        assert_eq!(now.keys(), names.map(|name| format!("{prefix}{name}")));
        let key = |name: &str| format!("{prefix}{name}");
        assert_eq!(now.hash(&key("payloads"))["delayed:queue"], key("mails"));
        assert_eq!(now.hash(&key("dlq:data"))["dead:queue"], key("orders"));
        // The clock and REDRIVE find their way back.
        assert_eq!(text_rows(ok!(con, "RMQ.REDRIVE", ns, "COUNT", 1)), [["dead", "orders"]]);
        ok!(con, "ZADD", key("delays"), 1000, "delayed");
        assert_eq!(ids(&reserve(&mut con, ns, HOUR, 9, &["mails", "orders"])), ["delayed", "pending", "dead"]);
    }
}

#[test]
fn namespaces_share_nothing_also_where_one_is_the_beginning_of_another() {
    let server = Server::start();
    let mut con = server.con();
    let spaces = ["app", "app:orders", "app:orders:pending", "", "orders"];
    for ns in spaces {
        publish(&mut con, ns, "orders", "a");
    }
    for ns in spaces {
        let taken = reserve(&mut con, ns, HOUR, 9, &["orders"]);
        assert_eq!(ids(&taken), ["a"], "{ns}");
        assert_eq!(ok!(con, "RMQ.ACK", ns, "a", &taken[0].receipt), Value::Int(1));
    }
}

#[test]
fn the_namespace_is_no_key_but_routes() {
    let server = Server::start();
    let mut con = server.con();
    for line in LINES {
        let words = HERE.words(&line.replace("<ns>", "app"));
        let error = err!(con, "COMMAND", "GETKEYS", &words);
        assert!(error.contains("no key arguments"), "{line}: {error}");
        let info = items(items(ok!(con, "COMMAND", "INFO", &words[0])).remove(0));
        assert_eq!(info[3..6], [Value::Int(1), Value::Int(1), Value::Int(1)], "{line}");
        let specs = format!("{:?}", info[8]).to_lowercase();
        assert!(specs.contains("not_key"), "{line}: {specs}");
        assert_eq!(items(info[8].clone()).len(), 1, "{line}");
        let docs = say(&mut con, &format!("COMMAND DOCS {}", words[0]));
        assert!(docs.contains("summary") && docs.contains("complexity") && docs.contains("arguments"), "{docs}");
    }
    assert!(!server.supports("rmq.schedule"));
}

#[test]
fn in_a_cluster_a_namespace_without_a_hash_tag_is_refused_with_advice() {
    let cluster = Cluster::start(1, 0);
    let mut con = cluster.nodes()[0].con();
    for ns in ["app", "\"\"", "a:b", "{}app", "{app", "app}"] {
        for line in LINES {
            let reply = say(&mut con, &line.replace("<ns>", ns));
            assert!(reply.starts_with("CROSSSLOT "), "{ns} {line}: {reply}");
            assert!(reply.contains('{') && reply.contains('}'), "{ns} {line} gives no advice: {reply}");
        }
    }
    assert_eq!(Snapshot::of(&mut con).keys(), [""; 0]);
    for ns in ["{app}", "x:{app}", "{app}:y", "{a:b}"] {
        publish(&mut con, ns, "orders", "a");
        publish(&mut con, ns, "{other}", "b");
        let taken = reserve(&mut con, ns, HOUR, 9, &["{other}", "orders"]);
        assert_eq!(ids(&taken), ["b", "a"], "{ns}");
        assert_eq!(ok!(con, "RMQ.ACK", ns, "a", &taken[1].receipt), Value::Int(1));
    }
}

#[test]
fn a_cluster_routes_by_the_namespace_and_a_worker_waits_where_it_lives() {
    let cluster = Cluster::start(3, 0);
    let mut con = cluster.con();
    let mut owners = std::collections::BTreeSet::new();
    for ns in ["{one}", "{two}", "{three}", "{four}", "{five}"] {
        let owner = cluster.node_for_key(ns);
        owners.insert(owner.port());
        let mut waiter = Waiter::sending(owner, &format!("RMQ.RESERVE {ns} 60000 BLOCK 0 FROM mails orders"));
        ok!(con, "RMQ.PUBLISH", ns, "DELAY", 100, "TO", "orders", "a", "p");
        let delivery = waiter.served_one();
        assert_eq!(ok!(con, "RMQ.ACK", ns, "a", &delivery.receipt), Value::Int(1));
    }
    assert!(owners.len() > 1, "the namespaces fell on one node");
}

#[test]
fn a_node_that_does_not_own_the_namespace_says_who_does() {
    let cluster = Cluster::start(2, 0);
    for ns in ["{one}", "{two}"] {
        let owner = cluster.node_for_key(ns);
        let other = cluster.nodes().iter().find(|node| node.port() != owner.port()).unwrap();
        let moved = format!("MOVED {} 127.0.0.1:{}", cluster.slot_of(ns), owner.port());
        for line in LINES {
            assert_eq!(say(&mut other.con(), &line.replace("<ns>", ns)), moved, "{line}");
        }
    }
}

#[test]
fn while_its_slot_moves_key_by_key_nothing_is_written_on_either_node() {
    let cluster = Cluster::start(2, 0);
    // The payloads move first, or last: every call needs them and another key.
    for (ns, first) in [("{t}", true), ("{u}", false)] {
        let old = cluster.node_for_key(ns);
        let mut con = old.con();
        publish(&mut con, ns, "orders", "a");
        let held = reserve(&mut con, ns, HOUR, 1, &["orders"]).remove(0);
        publish(&mut con, ns, "orders", "b");
        ok!(con, "RMQ.PUBLISH", ns, "DELAY", 1500, "TO", "mails", "c", "p");
        let mut waiter = Waiter::sending(old, &format!("RMQ.RESERVE {ns} 60000 BLOCK 0 FROM mails"));

        let moving = Moving::begin(&cluster, ns);
        let keys = moving.keys();
        assert_eq!(keys.len(), 6);
        let (now, later): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| key.ends_with("payloads") == first);
        now.iter().for_each(|key| moving.move_key(key));

        let digests = moving.digests();
        let mut importing = Raw::connect(moving.to);
        for line in &LINES[..LINES.len() - 1] {
            let line = line.replace("<ns>", ns).replace(" a 1-1", &format!(" a {}", held.receipt));
            let reply = say(&mut con, &line);
            assert!(reply.starts_with("ASK ") || reply.starts_with("TRYAGAIN "), "{line}: {reply}");
            importing.call(&["ASKING"]);
            let reply = importing.call(&HERE.words(&line));
            assert!(matches!(&reply, Reply::Error(e) if e.starts_with("TRYAGAIN ")), "{line}: {reply:?}");
        }
        // Due meanwhile: the waiting client and its timer leave everything alone.
        let silent = waiter.raw.is_silent_for(std::time::Duration::from_millis(2500));
        assert!(silent, "the waiting client got {:?}", waiter.raw.try_read_raw());
        assert_eq!(moving.digests(), digests);

        later.iter().for_each(|key| moving.move_key(key));
        moving.end(&cluster);
        assert!(matches!(waiter.raw.read(), Reply::Error(e) if e.starts_with("MOVED ")));
        let mut con = moving.to.con();
        assert_eq!(ok!(con, "RMQ.ACK", ns, "a", &held.receipt), Value::Int(1));
        assert_eq!(ids(&reserve(&mut con, ns, HOUR, 9, &["orders", "mails"])), ["b", "c"]);
    }
}

/// A user of these keys, who may call everything.
fn eve(server: &Server, keys: &[&str]) -> Connection {
    let rule = |key: &&str| if *key == QUEUES { format!("%R~{key}") } else { format!("~{key}") };
    let rules: Vec<String> = keys.iter().map(rule).collect();
    ok!(server.con(), "ACL", "SETUSER", "eve", "reset", "on", ">pw", "+@all", rules);
    server.con_as("eve", "pw")
}

/// What every command of the queue `orders` asks for.
const COMMON: [&str; 6] = [PAYLOADS, EXPIRES, DELAYS, QUEUES, PENDING, WORK];

/// Calls, the keys that they need beside the common ones, and those that they are refused without.
const PERMISSIONS: &[(&str, &[&str], &[&str])] = &[
    ("RMQ.PUBLISH app TO orders x p", &[], &[PAYLOADS, QUEUES, PENDING]),
    ("RMQ.PUBLISH app DELAY 5 TO orders x p", &[], &[PAYLOADS, DELAYS]),
    ("RMQ.PUBLISH app ONCE 60000 TO orders x p", &[ONCE], &[ONCE, PAYLOADS, PENDING]),
    ("RMQ.RESERVE app 1000 FROM orders", &[], &COMMON),
    ("RMQ.RESERVE app 1000 BLOCK 0 FROM orders", &[], &COMMON),
    ("RMQ.ACK app <a>", &[], &[PAYLOADS, EXPIRES, WORK]),
    ("RMQ.NACK app <a>", &[DLQ, DLQ_DATA], &[PAYLOADS, EXPIRES, DELAYS, QUEUES, WORK, DLQ, DLQ_DATA]),
    ("RMQ.NACK app <a> DEAD", &[DLQ, DLQ_DATA], &[PAYLOADS, EXPIRES, WORK, DLQ, DLQ_DATA]),
    ("RMQ.RELEASE app <a>", &[], &[PAYLOADS, EXPIRES, WORK, PENDING]),
    ("RMQ.EXTEND app 1000 <a>", &[], &[PAYLOADS, EXPIRES]),
    ("RMQ.REDRIVE app COUNT 1", &[DLQ, DLQ_DATA], &[PAYLOADS, PENDING, DLQ, DLQ_DATA]),
    ("RMQ.POLICY app orders", &[], &[QUEUES]),
    ("RMQ.STATS app", &[DLQ, DLQ_DATA], &[PAYLOADS, EXPIRES, DELAYS, QUEUES, PENDING, WORK, DLQ, DLQ_DATA]),
    ("RMQ.PEEK app IDS b", &[DLQ, DLQ_DATA], &[PAYLOADS, EXPIRES, DELAYS, QUEUES, PENDING, WORK, DLQ, DLQ_DATA]),
    (
        "RMQ.CANCEL app IDS b",
        &[DLQ, DLQ_DATA, ONCE],
        &[PAYLOADS, EXPIRES, DELAYS, QUEUES, PENDING, WORK, DLQ, DLQ_DATA, ONCE],
    ),
    (
        "RMQ.RESCHEDULE app 5 IDS b",
        &[DLQ, DLQ_DATA],
        &[PAYLOADS, EXPIRES, DELAYS, QUEUES, PENDING, WORK, DLQ, DLQ_DATA],
    ),
    (
        "RMQ.PURGE app PENDING orders",
        &[DLQ, DLQ_DATA, ONCE],
        &[PAYLOADS, EXPIRES, DELAYS, QUEUES, PENDING, WORK, DLQ, DLQ_DATA, ONCE],
    ),
    ("RMQ.AUDIT app", &[DLQ, DLQ_DATA], &[PAYLOADS, EXPIRES, DELAYS, QUEUES, PENDING, WORK, DLQ, DLQ_DATA]),
    ("RMQ.REPAIR app", &[DLQ, DLQ_DATA], &[PAYLOADS, EXPIRES, DELAYS, QUEUES, PENDING, WORK, DLQ, DLQ_DATA]),
];

#[test]
fn every_command_with_a_namespace_is_among_the_lines() {
    let server = Server::start();
    let mut con = server.con();
    let names: Vec<String> = ask!(con, "COMMAND", "LIST", "FILTERBY", "MODULE", "rmq");
    let has_namespace = |name: &String| say(&mut con, &format!("COMMAND DOCS {name}")).contains("namespace");
    let mut listed: Vec<String> = names.into_iter().filter(has_namespace).map(|name| name.to_uppercase()).collect();
    let mut lines: Vec<&str> = LINES.iter().filter_map(|line| line.split(' ').next()).collect();
    listed.sort();
    lines.sort();
    assert_eq!(lines, listed);
}

#[test]
fn permission_is_asked_for_each_key_and_a_refusal_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let fill = |con: &mut Connection| {
        ok!(con, "FLUSHALL");
        let dead = take_new(con, "d");
        nack(con, &dead, "DEAD");
        let held = take_new(con, "a");
        order(con, "b");
        format!("a {}", held.receipt)
    };
    for (line, more, needed) in PERMISSIONS {
        let all = [&COMMON[..], more].concat();
        let held = fill(&mut con);
        let reply = say(&mut eve(&server, &all), &line.replace("<a>", &held));
        assert!(!["NOPERM", "ERR", "nil", "0", "[]"].iter().any(|bad| reply.starts_with(bad)), "{line}: {reply}");
        for key in *needed {
            let held = fill(&mut con);
            let rest: Vec<&str> = all.iter().copied().filter(|other| other != key).collect();
            let before = Snapshot::of(&mut con);
            let reply = say(&mut eve(&server, &rest), &line.replace("<a>", &held));
            assert!(reply.starts_with("NOPERM "), "{line} without {key}: {reply}");
            assert!(reply.contains(key), "{line} does not name {key}: {reply}");
            before.assert_unchanged(&mut con);
        }
    }
}

#[test]
fn a_user_of_the_namespace_may_do_everything_in_it_and_nothing_beside() {
    let server = Server::start();
    ok!(server.con(), "ACL", "SETUSER", "eve", "on", ">pw", "+@all", "~app:*");
    let mut eve = server.con_as("eve", "pw");
    ok!(eve, "RMQ.POLICY", "app", "orders", "ATTEMPTS", 2);
    ok!(eve, "RMQ.PUBLISH", "app", "ONCE", HOUR, "TO", "orders", "a", "p");
    let delivery = take(&mut eve);
    assert_eq!((extend(&mut eve, &delivery, HOUR), release(&mut eve, &delivery)), (1, 1));
    let delivery = take(&mut eve);
    assert_eq!(nack(&mut eve, &delivery, "DEAD"), "DEAD");
    steps(&mut eve, &[("RMQ.REDRIVE app COUNT 1", "[[a orders]]")]);
    let delivery = take(&mut eve);
    assert_eq!(ack(&mut eve, &delivery), 1);
    for line in LINES {
        for ns in ["other", "\"\"", "app2"] {
            let reply = say(&mut eve, &line.replace("<ns>", ns));
            assert!(reply.starts_with("NOPERM "), "{line} {ns}: {reply}");
        }
    }
}

#[test]
fn a_user_of_one_queue_keeps_the_time_of_all_and_takes_from_its_own() {
    let server = Server::start();
    let mut con = server.con();
    steps(&mut con, &[("RMQ.PUBLISH app DELAY 0 TO mails m p", "[m]")]);
    let mut eve = eve(&server, &COMMON);
    for line in ["RMQ.RESERVE app 1000 FROM orders mails", "RMQ.PUBLISH app TO mails x p"] {
        assert!(say(&mut eve, line).starts_with("NOPERM "), "{line}");
    }
    assert_eq!(say(&mut eve, "RMQ.RESERVE app 1000 FROM orders"), "nil");
    assert_eq!(list(&mut con, "app:mails:pending"), ["m"]);
    let held = reserve(&mut con, "app", HOUR, 1, &["mails"]).remove(0);
    let before = Snapshot::of(&mut con);
    assert!(say(&mut eve, &format!("RMQ.ACK app m {}", held.receipt)).starts_with("NOPERM "));
    before.assert_unchanged(&mut con);
}
