//! No message is lost by a wrong name, by half a copy of the keys, by a queue that nobody knows, or by a processing list
//! that is not its own.

use crate::common::messages::*;
use crate::common::*;

use redis::{Cmd, Connection, Value};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn run(con: &mut Connection, command: &Cmd) -> redis::RedisResult<Value> {
    commands::top_error(redis::ConnectionLike::req_command(con, command))
}

#[track_caller]
fn run_ok(con: &mut Connection, command: &Cmd) -> Value {
    run(con, command).unwrap_or_else(|e| commands::failed(command, &e))
}

/// The call fails with an error that begins and goes on like this; no key changes and nothing is sent.
#[track_caller]
fn assert_refused(server: &Server, con: &mut Connection, command: &Cmd, prefix: &str, names: &str) {
    let mut admin = server.con();
    let before = Snapshot::of(&mut admin);
    let tap = ReplicaTap::attach(server);
    let error = error_of(command, run(con, command));
    assert!(error.starts_with(prefix) && error.contains(names), "{}: {error}", line_of(command));
    assert_eq!(tap.lines_until_marker(&mut admin), [""; 0], "{}", line_of(command));
    before.assert_unchanged(&mut admin);
}

// A map that is not there.

/// A name that is like that of the map.
const ABSENT: &str = "mx-rmq:payloadz";
/// Where the messages are meanwhile.
const ELSEWHERE: &str = "another name";
const MESSAGES: usize = 250;

/// A command that walks over ids and looks their messages up in a map that is not there.
struct Walk {
    words: &'static [&'static str],
    ids: &'static str,
    map: &'static str,
}

const WALKS: [Walk; 6] = [
    Walk { words: &["RMQ.DELAYTICK", DELAYS, ABSENT, "100"], ids: DELAYS, map: ABSENT },
    Walk { words: &["RMQ.TIMEOUTS", DUE, ABSENT, "*", "100"], ids: DUE, map: ABSENT },
    Walk { words: &["RMQ.TIMEOUTS", DUE, ABSENT, "*", "100", "ALL"], ids: DUE, map: ABSENT },
    Walk { words: &["RMQ.TIMEOUTS", DUE, ABSENT, "*", "100", "CLAIM", "3600000"], ids: DUE, map: ABSENT },
    Walk { words: &["RMQ.RESERVE", NS, "3600000", "COUNT", "100", "FROM", "orders"], ids: PENDING, map: MAP },
    Walk { words: &["RMQ.REDRIVE", NS, "COUNT", "100"], ids: DLQ, map: DLQ_MAP },
];

impl Walk {
    fn call(&self, con: &mut Connection) -> Value {
        commands::call(con, self.words).unwrap_or_else(|e| panic!("{:?}: {}", self.words, error_text(&e)))
    }

    /// The ids that a call hands out.
    fn reported(&self, con: &mut Connection) -> Vec<String> {
        match self.call(con) {
            Value::Nil => Vec::new(),
            rows => items(rows).into_iter().map(|row| text(items(row).remove(0))).collect(),
        }
    }

    /// Many messages whose ids the command meets, and whose map has another name.
    fn fill(&self, con: &mut Connection) {
        for number in 0..MESSAGES {
            let id = format!("m{number:03}");
            ok!(con, "HSET", ELSEWHERE, &id, "payload", format!("{id}:queue"), QUEUE);
            match self.ids {
                DELAYS => ok!(con, "ZADD", DELAYS, number, &id),
                DUE => {
                    ok!(con, "LPUSH", WORK, &id);
                    ok!(con, "ZADD", DUE, number, &id)
                }
                list => ok!(con, "LPUSH", list, &id),
            };
        }
    }
}

fn lines_that_name(server: &Server, key: &str) -> usize {
    server.log().lines().filter(|line| line.contains(key)).count()
}

#[test]
fn where_the_map_is_missing_every_id_stays_and_nothing_is_sent_or_touched() {
    for walk in WALKS {
        let server = Server::start();
        let mut con = server.con();
        walk.fill(&mut con);
        let before = Snapshot::of(&mut con);
        let tap = ReplicaTap::attach(&server);
        let watcher = Watcher::on(&server, &[DELAYS, DUE, PENDING, WORK, DLQ, DLQ_MAP, MAP, ABSENT]);
        for _ in 0..5 {
            assert_eq!(walk.reported(&mut con), [""; 0], "{:?}", walk.words);
        }
        before.assert_unchanged(&mut con);
        assert!(watcher.untouched(), "{:?}", walk.words);
        assert_eq!(tap.lines_until_marker(&mut con), [""; 0], "{:?}", walk.words);
    }
}

#[test]
fn ids_that_stay_for_want_of_the_map_count_as_skipped_and_the_log_names_it_but_not_with_every_call() {
    for walk in WALKS {
        let server = Server::start();
        let mut con = server.con();
        walk.fill(&mut con);
        for call in 1..=5 {
            let before = counter(&server, "skipped");
            walk.call(&mut con);
            let skipped = counter(&server, "skipped") - before;
            assert!((1..=MESSAGES as u64).contains(&skipped), "{:?}, call {call}: {skipped}", walk.words);
        }
        assert_eq!((counter(&server, "stale"), counter(&server, "dropped")), (0, 0), "{:?}", walk.words);
        assert_eq!(lines_that_name(&server, walk.map), 1, "{:?}", walk.words);
    }
}

#[test]
fn as_soon_as_the_map_is_there_every_message_is_delivered_once() {
    for walk in WALKS {
        let server = Server::start();
        let mut con = server.con();
        walk.fill(&mut con);
        for _ in 0..5 {
            walk.call(&mut con);
        }
        ok!(con, "RENAME", ELSEWHERE, walk.map);
        let mut reported = Vec::new();
        for _ in 0..MESSAGES.div_ceil(100) {
            reported.extend(walk.reported(&mut con));
        }
        reported.sort();
        let all: Vec<String> = (0..MESSAGES).map(|number| format!("m{number:03}")).collect();
        assert_eq!(reported, all, "{:?}", walk.words);
    }
}

#[test]
fn an_empty_walk_with_a_missing_map_says_and_counts_nothing() {
    for walk in WALKS {
        let server = Server::start();
        assert_eq!(walk.reported(&mut server.con()), [""; 0]);
        assert_eq!((counter(&server, "skipped"), lines_that_name(&server, walk.map)), (0, 0), "{:?}", walk.words);
    }
}

#[test]
fn an_id_that_the_map_does_not_know_is_dropped_where_there_is_a_map() {
    for walk in WALKS {
        let server = Server::start();
        let mut con = server.con();
        walk.fill(&mut con);
        ok!(con, "HSET", walk.map, "somebody else", "payload");
        for _ in 0..MESSAGES.div_ceil(100) {
            assert_eq!(walk.reported(&mut con), [""; 0], "{:?}", walk.words);
        }
        let left: bool = ask!(con, "EXISTS", walk.ids);
        assert!(!left, "{:?}", walk.words);
        assert_eq!(counter(&server, "skipped"), 0, "{:?}", walk.words);
    }
}

#[test]
fn with_block_a_reserve_that_finds_ids_but_no_map_waits_its_time_and_does_not_spin() {
    let server = Server::start();
    let mut con = server.con();
    ok!(con, "LPUSH", PENDING, "a", "b");
    let before = Snapshot::of(&mut con);
    let started = Instant::now();
    let reply = ok!(con, "RMQ.RESERVE", NS, 60000, "BLOCK", 300, "FROM", "orders");
    assert_eq!(reply, Value::Nil);
    assert!(started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());

    let mut waiter = Waiter::start(&server);
    let asked = counter(&server, "skipped");
    sleep(Duration::from_millis(500));
    // A look now and then is no spinning.
    assert!(counter(&server, "skipped") - asked <= 10, "{asked} ids skipped at first, then many more");
    assert!(waiter.is_waiting());
    before.assert_unchanged(&mut con);
}

#[test]
fn a_waiting_client_drops_nothing_that_comes_before_the_map_and_is_served_after_it() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiter = Waiter::start(&server);
    ok!(con, "LPUSH", PENDING, "a", "b");
    assert!(waiter.is_waiting());
    assert_eq!(list(&mut con, PENDING), ["b", "a"]);
    assert_eq!(counter(&server, "dropped"), 0);

    ok!(con, "HSET", MAP, "a", "payload", "b", "payload");
    assert_eq!(waiter.served_id(), "a");
}

// Half a copy of the keys.

const TAG: &str = "{m}";

fn tagged(name: &str) -> String {
    format!("{TAG}:{name}")
}

/// Messages in a pending list of the node that owns the tag.
fn fill_pending(node: &Server) {
    for number in 0..10 {
        let id = format!("m{number}");
        ok!(node.con(), "HSET", tagged("payloads"), &id, "payload", format!("{id}:queue"), tagged("q"));
        ok!(node.con(), "LPUSH", tagged("q:pending"), &id);
    }
}

fn reserve_tagged(options: &[&str]) -> Cmd {
    command!("RMQ.RESERVE", TAG, 3_600_000, options, "FROM", "q")
}

#[track_caller]
fn assert_all_ten_are_delivered_by(node: &Server) {
    let mut con = node.con();
    let taken = deliveries(run_ok(&mut con, &reserve_tagged(&["COUNT", "100"])));
    let ids: Vec<String> = taken.into_iter().map(|delivery| delivery.id).collect();
    let all: Vec<String> = (0..10).map(|number| format!("m{number}")).collect();
    assert_eq!(ids, all);
    assert_eq!(counter(node, "dropped"), 0);
}

#[test]
fn a_pending_list_that_moves_to_another_node_before_its_payloads_loses_nothing_to_a_client_that_waits_there() {
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of(TAG);
    let to = cluster.node_for_slot(slot);
    let from = cluster.nodes().iter().find(|node| node.port() != to.port()).unwrap();
    // A client waits where the slot was, is no more, and comes back to.
    let mut waiter = Raw::connect(to);
    waiter.send_cmd(&reserve_tagged(&["BLOCK", "0"]));
    assert!(eventually(deadline(), || blocked_clients(to) == 1));
    let mut there = to.con();
    ok!(there, "MULTI");
    let from_id = from.ask_cluster("MYID");
    ok!(there, "CLUSTER", "SETSLOT", slot, "NODE", &from_id);
    ok!(there, "CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id);
    ok!(there, "EXEC");
    ok!(from.con(), "CLUSTER", "SETSLOT", slot, "NODE", &from_id);
    fill_pending(from);
    ok!(from.con(), "CLUSTER", "SETSLOT", slot, "MIGRATING", to.ask_cluster("MYID"));
    let moving = Moving { from, to, slot };

    moving.move_key(&tagged("q:pending"));
    if !waiter.is_silent_for(Duration::from_millis(300)) {
        panic!("the client should wait, but was sent {:?}", waiter.read());
    }
    let copied: Vec<String> = {
        ok!(there, "ASKING");
        ask!(there, "LRANGE", tagged("q:pending"), 0, -1)
    };
    assert_eq!(copied.len(), 10, "{copied:?}");

    drop(waiter);
    moving.move_key(&tagged("payloads"));
    moving.end(&cluster);
    assert!(eventually(deadline(), || blocked_clients(to) == 0));
    assert_all_ten_are_delivered_by(to);
}

#[test]
fn a_replica_that_is_promoted_after_the_payloads_have_moved_on_drops_no_id() {
    let cluster = Cluster::start(2, 1);
    let from = cluster.node_for_key(TAG);
    let heir = cluster.replicas_of(from)[0];
    fill_pending(from);
    let moving = Moving::begin(&cluster, TAG);
    moving.move_key(&tagged("payloads"));
    let followed = || {
        let offset = |node: &Server, field: &str| node.info("replication")[field].clone();
        offset(heir, "slave_repl_offset") == offset(from, "master_repl_offset")
    };
    assert!(eventually(deadline(), followed));
    ok!(heir.con(), "CLUSTER", "FAILOVER", "TAKEOVER");
    assert!(eventually(deadline(), || heir.is_primary()));

    // On Valkey the new owner knows that the slot moves; on Redis it assumes that it has all of it.
    let mut here = heir.con();
    let answered = || match run(&mut here, &reserve_tagged(&["COUNT", "100"])) {
        Ok(reply) => reply == Value::Nil,
        Err(error) => ["ASK ", "TRYAGAIN "].iter().any(|word| error_text(&error).starts_with(word)),
    };
    assert!(eventually(deadline(), answered));
    let left: usize = ask!(heir.con(), "LLEN", tagged("q:pending"));
    assert_eq!(left, 10);

    // The move goes on.
    let moving = Moving::between(heir, moving.to, moving.slot);
    moving.move_key(&tagged("q:pending"));
    moving.end(&cluster);
    assert_all_ten_are_delivered_by(moving.to);
}

// A queue that nobody knows.

#[test]
fn retry_of_a_message_whose_queue_cannot_be_known_is_an_error_and_changes_nothing() {
    let server = Server::start();
    let mut con = server.con();
    for (processing, in_map) in [("", true), ("worklist", true), ("worklist", false), ("processing", true)] {
        ok!(con, "FLUSHALL");
        if in_map {
            ok!(con, "HSET", MAP, "a", "payload");
        }
        if !processing.is_empty() {
            ok!(con, "LPUSH", processing, "a");
        }
        ok!(con, "ZADD", DUE, 1, "a");
        let retry = command!("RMQ.RETRY", MAP, DELAYS, DUE, processing, "a", "again", 0);
        let watcher = Watcher::on(&server, &[MAP, DELAYS, DUE, "worklist", "processing"]);
        assert_refused(&server, &mut con, &retry, "ERR ", "queue");
        assert!(watcher.untouched());
        assert_eq!(counter(&server, "retried"), 0);
    }
    // Told its queue, it goes on.
    ok!(con, "HSET", MAP, "a:queue", QUEUE);
    ok!(con, "RMQ.RETRY", MAP, DELAYS, DUE, "processing", "a", "again", 0);
    assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 10)), [["a", QUEUE]]);
}

#[test]
fn a_message_that_is_done_is_still_nomsg_for_retry_although_its_queue_is_not_known() {
    let server = Server::start();
    let retry = command!("RMQ.RETRY", MAP, DELAYS, DUE, "", "a", "again", 0);
    assert_refused(&server, &mut server.con(), &retry, "NOMSG ", "settled");
}

// The processing list of the message's own queue.

/// Lists that a caller may name instead of the right one: missing, another queue's, none.
const WRONG_LISTS: [&str; 3] = ["orders:processing", "mx-rmq:others:processing", ""];

/// A message that was taken from its queue, is overdue, and was claimed.
fn claim(con: &mut Connection) {
    take_new(con, "a");
    ok!(con, "ZADD", DUE, 1, "a");
    ok!(con, "LPUSH", "mx-rmq:others:processing", "b");
    let claimed = text_rows(ok!(con, "RMQ.TIMEOUTS", DUE, MAP, "*", 10, "CLAIM", HOUR));
    assert_eq!(claimed, [["a", "payload of a", QUEUE]]);
}

fn retry(processing: &str) -> Cmd {
    command!("RMQ.RETRY", MAP, DELAYS, DUE, processing, "a", "again", 0)
}

fn bury(processing: &str) -> Cmd {
    command!("RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, processing, "a", "dead")
}

#[test]
fn a_claimed_message_that_is_retried_with_the_wrong_processing_list_is_delivered_once_and_leaves_no_trace() {
    for wrong in WRONG_LISTS {
        let server = Server::start();
        let mut con = server.con();
        claim(&mut con);
        run_ok(&mut con, &retry(wrong));
        assert_eq!(list(&mut con, WORK), [""; 0], "{wrong:?}");
        assert_eq!(list(&mut con, "mx-rmq:others:processing"), ["b"]);
        assert_eq!(text_rows(ok!(con, "RMQ.DELAYTICK", DELAYS, MAP, 10)), [["a", QUEUE]]);
        let delivery = reserve(&mut con);
        assert_eq!((delivery.id.as_str(), delivery.payload.as_str()), ("a", "again"));
        assert_eq!(reserve_up_to(&mut con, 10), []);
        ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, "a");
        assert_eq!(Snapshot::of(&mut con).keys(), ["mx-rmq:others:processing", QUEUES], "{wrong:?}");
    }
}

#[test]
fn a_message_that_is_given_up_with_the_wrong_processing_list_leaves_the_list_of_its_own_queue() {
    for wrong in WRONG_LISTS {
        let server = Server::start();
        let mut con = server.con();
        claim(&mut con);
        run_ok(&mut con, &bury(wrong));
        assert_eq!(Snapshot::of(&mut con).keys(), [DLQ, DLQ_MAP, "mx-rmq:others:processing", QUEUES], "{wrong:?}");
        assert_eq!(text_rows(ok!(con, "RMQ.REDRIVE", NS, "COUNT", 10)), [["a", "orders"]]);
        let delivery = reserve(&mut con);
        ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, delivery.id);
        assert_eq!(Snapshot::of(&mut con).keys(), ["mx-rmq:others:processing", QUEUES], "{wrong:?}");
    }
}

#[test]
fn an_id_that_stands_in_the_list_given_and_in_that_of_its_queue_leaves_both() {
    for settle in [retry, bury] {
        let server = Server::start();
        let mut con = server.con();
        claim(&mut con);
        ok!(con, "LPUSH", "mx-rmq:others:processing", "a");
        run_ok(&mut con, &settle("mx-rmq:others:processing"));
        assert_eq!(list(&mut con, WORK), [""; 0]);
        assert_eq!(list(&mut con, "mx-rmq:others:processing"), ["b"]);
    }
}

#[test]
fn replicas_and_listeners_are_notified_that_an_id_leaves_the_list_of_its_own_queue() {
    for settle in [retry, bury] {
        let server = Server::start();
        let mut con = server.con();
        claim(&mut con);
        let replica = Replica::of(&server);
        let tap = ReplicaTap::attach(&server);
        let mut events = Events::subscribe(&server);
        run_ok(&mut con, &settle(WRONG_LISTS[0]));
        let sent = tap.lines_until_marker(&mut con);
        assert!(sent.iter().any(|line| *line == format!("RPOP {WORK}")), "{sent:?}");
        assert_eq!((sent[0].as_str(), sent[sent.len() - 1].as_str()), ("MULTI", "EXEC"));
        let fired = events.lines_until_marker(&mut con);
        assert!(fired.contains(&format!("rpop {WORK}")) && fired.contains(&format!("del {WORK}")), "{fired:?}");
        replica.wait_synced();
        assert_eq!(replica.digest(), server.digest());
    }
}

/// A user with these rules and every command.
fn eve(server: &Server, rules: &[&str]) -> Connection {
    ok!(server.con(), "ACL", "SETUSER", "eve", "reset", "on", ">pw", "+@all", rules);
    server.con_as("eve", "pw")
}

#[test]
fn without_permission_for_the_list_of_the_messages_own_queue_nothing_is_written() {
    let server = Server::start();
    claim(&mut server.con());
    let all = [MAP, DELAYS, DUE, DLQ, DLQ_MAP, WRONG_LISTS[0]].map(|key| format!("~{key}"));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for settle in [retry, bury] {
        let mut eve = eve(&server, &all);
        assert_refused(&server, &mut eve, &settle(WRONG_LISTS[0]), "NOPERM ", &format!("'{WORK}'"));
    }
    // To write is enough.
    let own = format!("%W~{WORK}");
    let mut eve = eve(&server, &[&all[..], &[&own]].concat());
    run_ok(&mut eve, &retry(WRONG_LISTS[0]));
    assert_eq!(list(&mut server.con(), WORK), [""; 0]);
}

#[test]
fn a_list_of_the_messages_own_queue_that_is_no_list_is_wrongtype_by_name_and_nothing_is_written() {
    let server = Server::start();
    let mut con = server.con();
    claim(&mut con);
    ok!(con, "DEL", WORK);
    ok!(con, "SET", WORK, "not a list");
    for settle in [retry, bury] {
        assert_refused(&server, &mut con, &settle(WRONG_LISTS[0]), "WRONGTYPE ", WORK);
    }
}

#[test]
fn in_a_cluster_a_list_of_the_messages_own_queue_in_another_slot_is_crossslot_by_name() {
    let cluster = Cluster::start(1, 0);
    let mut con = cluster.nodes()[0].con();
    ok!(con, "HSET", "{t}:map", "a", "payload", "a:queue", "elsewhere");
    let before = Snapshot::of(&mut con);
    for call in [
        command!("RMQ.RETRY", "{t}:map", "{t}:delays", "{t}:due", "{t}:work", "a", "again", 0),
        command!("RMQ.DEADLETTER", "{t}:dead", "{t}:dlq", "{t}:due", "{t}:map", "{t}:work", "a", "dead"),
    ] {
        let error = error_of(&call, run(&mut con, &call));
        assert!(error.starts_with("CROSSSLOT ") && error.contains("'elsewhere:processing'"), "{error}");
        before.assert_unchanged(&mut con);
    }
}
