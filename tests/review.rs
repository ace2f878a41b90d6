//! What a close look at the module's edges found: slots that move in one step, connections at the time of an unload,
//! scripts and ACL LOG, servers without the plain commands, an option without its value.

mod common;
use common::*;
use redis::ConnectionLike;
use std::time::Duration;

/// Moves the slot of `tag` to the other primary, by the way that the server has: in one step where it can.
fn move_slot(cluster: &Cluster, tag: &str) {
    let slot = cluster.slot_of(tag);
    let from = cluster.node_for_slot(slot);
    let nodes = cluster.primaries();
    let to = nodes.iter().find(|node| node.port() != from.port()).expect("another");
    let [from_id, to_id] = [from, to].map(|node| -> String { ask!(node.con(), "CLUSTER", "MYID") });
    match (from.is_valkey(), from.version()) {
        (true, (9.., ..)) => {
            ok!(
                from.con(),
                "CLUSTER",
                "MIGRATESLOTS",
                "SLOTSRANGE",
                slot,
                slot,
                "NODE",
                to_id
            );
        }
        (false, version) if version >= (8, 4, 0) => {
            ok!(to.con(), "CLUSTER", "MIGRATION", "IMPORT", slot, slot);
        }
        _ => {
            ok!(to.con(), "CLUSTER", "SETSLOT", slot, "IMPORTING", from_id);
            ok!(from.con(), "CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id);
            let keys: Vec<String> = ask!(from.con(), "CLUSTER", "GETKEYSINSLOT", slot, 100);
            for key in keys {
                ok!(from.con(), "MIGRATE", "127.0.0.1", to.port(), key, 0, 5000);
            }
            for node in [to, &from] {
                ok!(node.con(), "CLUSTER", "SETSLOT", slot, "NODE", &to_id);
            }
        }
    }
    let arrived = || cmd!(to.con(), "EXISTS", format!("{{{tag}}}m")).is_ok_and(|found| found == redis::Value::Int(1));
    assert!(eventually(deadline(), arrived), "the slot has moved");
}

#[test]
fn messages_go_with_their_slot_by_the_way_in_which_the_server_moves_slots() {
    let cluster = Cluster::start(2, 0);
    let old = cluster.node_for_key("{t}").port();
    let mut con = cluster.con();
    for n in 0..100 {
        ok!(con, "RMQ.PUBLISH", "{t}m", "{t}:pending", format!("a{n}"), "payload");
    }
    ok!(
        con,
        "RMQ.RESERVE",
        "{t}:pending",
        "{t}:processing",
        "{t}m",
        "{t}e",
        60000,
        "COUNT",
        40
    );
    move_slot(&cluster, "t");

    let node = cluster
        .primaries()
        .into_iter()
        .find(|node| node.port() != old)
        .expect("the other");
    let mut con = node.con();
    ok!(con, "RMQ.PUBLISH", "{t}m", "{t}:pending", "b", "payload");
    let lengths = ["{t}:pending", "{t}:processing"].map(|list| -> usize { ask!(con, "LLEN", list) });
    assert_eq!(lengths, [61, 40]);
    let leases: usize = ask!(con, "ZCARD", "{t}e");
    assert_eq!(leases, 40);
}

#[test]
fn an_unload_does_not_leave_commands_to_a_client_that_has_sent_them_behind_a_call_that_waits() {
    let server = Server::start();
    let mut waiting = Raw::connect(&server);
    waiting.send(&["BLPOP", "gate", "0"]);
    waiting.send(&["RMQ.PUBLISH", "m", "q:pending", "a", "payload"]);
    let blocked = || server.info("clients")["blocked_clients"] == "1";
    assert!(eventually(deadline(), blocked));
    // What was sent behind it has arrived, too.
    std::thread::sleep(Duration::from_millis(200));
    let mut con = server.unload();
    ok!(con, "LPUSH", "gate", "1");
    ok!(con, "PING");
    assert!(server.is_alive());
    let exists: i64 = ask!(con, "EXISTS", "m");
    assert_eq!(exists, 0);
}

#[test]
fn an_unload_is_refused_inside_of_a_transaction_that_does_more() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "MULTI");
    ok!(con, "MODULE", "UNLOAD", "rmq");
    ok!(con, "RMQ.PUBLISH", "m", "q:pending", "a", "payload");
    let exec = shown_replies(&mut con);
    assert!(exec[0].contains("Error unloading module"), "{exec:?}");
    assert!(exec[1].contains('a'), "{exec:?}");
    let pending: usize = ask!(con, "LLEN", "q:pending");
    assert_eq!(pending, 1);
}

/// What EXEC answers, errors included.
fn shown_replies(con: &mut redis::Connection) -> Vec<String> {
    let replies = con.req_command(&command!("EXEC")).expect("the server is there");
    items(replies).iter().map(|reply| format!("{reply:?}")).collect()
}

/// Redis 8.4 and Valkey 9 look up what they read ahead, and would run code that is gone. Where that can be seen the module
/// stays; Valkey shows it to nobody, so that the connection runs nothing after the unload.
#[test]
fn an_unload_with_calls_of_the_module_behind_it_in_one_pipeline_takes_no_server_down() {
    let server = Server::start();
    let mut pipe = redis::pipe();
    pipe.add_command(command!("MODULE", "UNLOAD", "rmq"));
    for _ in 0..3 {
        pipe.add_command(command!("RMQ.PUBLISH", "m", "q:pending", "a", "payload"));
        pipe.add_command(command!("PING"));
    }
    let mut raw = Raw::connect(&server);
    raw.send_bytes(&pipe.get_packed_pipeline());
    let unloaded = raw.read();
    let mut con = server.con();
    assert!(eventually(deadline(), || cmd!(con, "PING").is_ok()));
    let stayed = cmd!(con, "RMQ.NEXTDELAY", "d").is_ok();
    assert_eq!(stayed, !server.is_valkey() && server.version() >= (8, 4, 0));
    assert_eq!(unloaded == Reply::Simple("OK".into()), !stayed, "{unloaded:?}");
    let pending: usize = ask!(con, "LLEN", "q:pending");
    assert_eq!(pending, usize::from(stayed));
    assert!(server.is_alive());
}

#[test]
fn a_script_that_may_do_what_it_does_leaves_nothing_in_acl_log() {
    let server = Server::start();
    let mut con = server.con();
    ok!(
        con,
        "ACL",
        "SETUSER",
        "u",
        "on",
        ">pw",
        "~*",
        "+eval",
        "+rmq.delaytick",
        "+hello",
        "+client"
    );
    ok!(con, "HSET", "m", "a:queue", "q");
    ok!(con, "ZADD", "d", 1, "a");
    let script = "return redis.call('RMQ.DELAYTICK', KEYS[1], KEYS[2], 10)";
    let moved = text_rows(ok!(server.con_as("u", "pw"), "EVAL", script, 2, "d", "m"));
    assert_eq!(moved, [["a", "q"]]);
    let refused: Vec<redis::Value> = ask!(con, "ACL", "LOG");
    assert_eq!(refused, []);
}

/// Redis 7.0 kept telling it of forks.
#[test]
fn a_module_that_was_refused_while_the_server_ran_is_not_called_any_more() {
    let server = Server::builder()
        .without_module()
        .config_line("rename-command LPOS \"\"")
        .start();
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
    for command in ["LREM", "LMOVE", "HDEL", "ZADD", "LPOS"] {
        let server = Server::builder().config_line(&format!("rename-command {command} \"\""));
        let log = server.try_start().err().expect("the module is refused");
        assert!(
            log.contains(&format!("the server's {command} is renamed or switched off")),
            "{log}"
        );
    }
}

#[test]
fn a_dead_letter_with_a_forgotten_lease_is_refused_and_not_settled_without_one() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "RMQ.PUBLISH", "m", "q:pending", "a", "payload");
    ok!(con, "RMQ.RESERVE", "q:pending", "q:processing", "m", "e", 60000);
    let before = Snapshot::of(&mut con);
    for word in ["LEASE", "lease"] {
        let error = err!(
            con,
            "RMQ.DEADLETTER",
            "dm",
            "dq",
            "e",
            "m",
            "q:processing",
            "a",
            "payload",
            word
        );
        assert_eq!(error, "ERR option LEASE must be followed by its value");
    }
    before.assert_unchanged(&mut con);
    ok!(
        con,
        "RMQ.DEADLETTER",
        "dm",
        "dq",
        "e",
        "m",
        "q:processing",
        "a",
        "payload",
        "topic"
    );
}
