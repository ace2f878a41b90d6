//! An id in the middle of processing, where neither end nor its deadline leads to it: every command that settles one
//! message takes it out, with the effects and events of one plain LREM.

mod common;
mod life;
use common::*;
use life::*;

use redis::{Cmd, Connection};

const SIZE: usize = 40;

/// Messages in work, most of them far from both ends, without a deadline that tells the order.
fn fill(con: &mut Connection) {
    // Not FLUSHALL: that would end the synchronisation of a replica that has just come.
    ok!(
        con,
        "DEL",
        MAP,
        DUE,
        WORK,
        DELAYS,
        DLQ,
        DLQ_MAP,
        "errors",
        "errors:data"
    );
    for number in 0..SIZE {
        let id = format!("m{number:02}");
        ok!(con, "HSET", MAP, &id, "payload", format!("{id}:queue"), QUEUE);
        ok!(con, "ZADD", DUE, format!("{}.5", 1000 + number * 7 % SIZE), &id);
        ok!(con, "LPUSH", WORK, &id);
    }
}

fn lease_of(con: &mut Connection, id: &str) -> String {
    ask!(con, "ZSCORE", DUE, id)
}

/// Each command that settles `id`, and whether the payload stays.
fn settlements(con: &mut Connection, id: &str) -> Vec<(Cmd, bool)> {
    let lease = lease_of(con, id);
    let mut parse_error = command!(
        "RMQ.PARSEERR",
        "errors:data",
        "errors",
        WORK,
        DUE,
        MAP,
        id,
        "{",
        QUEUE,
        "bad",
        1
    );
    vec![
        (command!("RMQ.COMPLETE", MAP, WORK, DUE, id), false),
        (command!("RMQ.ACK", MAP, WORK, DUE, id, &lease), false),
        (command!("RMQ.RETRY", MAP, DELAYS, DUE, WORK, id, "new", "5"), true),
        (command!("RMQ.NACK", MAP, DELAYS, DUE, WORK, id, &lease, 5), true),
        (
            command!("RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, id, "dead", QUEUE),
            false,
        ),
        (parse_error.clone(), false),
        // With expiry the keys are closed before the end.
        (parse_error.arg(7).clone(), false),
    ]
}

fn without(list: &[String], index: usize) -> Vec<String> {
    let mut rest = list.to_vec();
    rest.remove(index);
    rest
}

fn work(con: &mut Connection) -> Vec<String> {
    ask!(con, "LRANGE", WORK, 0, -1)
}

#[test]
fn each_settling_command_takes_the_id_out_and_nothing_else() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    fill(&mut con);
    for number in 0..settlements(&mut con, "m00").len() {
        for place in [3, 11, 20, 33] {
            fill(&mut con);
            let id = format!("m{:02}", SIZE - 1 - place);
            let (command, payload_stays) = settlements(&mut con, &id).swap_remove(number);
            let before = work(&mut con);
            assert_eq!(before[place], id);
            let watchers = [WORK, DUE].map(|key| Watcher::on(&server, &[key]));
            let _: redis::Value = command
                .query(&mut con)
                .unwrap_or_else(|e| panic!("{}: {e}", line_of(&command)));
            assert_eq!(work(&mut con), without(&before, place), "{}", line_of(&command));
            assert!(watchers.into_iter().all(Watcher::touched), "{}", line_of(&command));
            let has: bool = ask!(con, "HEXISTS", MAP, &id);
            assert_eq!(has, payload_stays);
            replica.wait_synced();
            assert_eq!(server.digest(), replica.digest(), "{}", line_of(&command));
        }
    }
}

#[test]
fn replicas_get_one_lrem_and_listeners_hear_of_one() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    let mut events = Events::subscribe(&server);
    fill(&mut con);
    for number in 0..settlements(&mut con, "m00").len() {
        fill(&mut con);
        let (command, _) = settlements(&mut con, "m17").swap_remove(number);
        events.lines_until_marker(&mut con);
        tap.lines_until_marker(&mut con);
        let _: redis::Value = command.query(&mut con).unwrap();
        let sent = tap.lines_until_marker(&mut con);
        let removals: Vec<&String> = sent.iter().filter(|line| line.starts_with("LREM")).collect();
        assert_eq!(removals, [&format!("LREM {WORK} -1 m17")], "{sent:?}");
        assert_eq!((sent[0].as_str(), sent[sent.len() - 1].as_str()), ("MULTI", "EXEC"));
        let heard = events.lines_until_marker(&mut con);
        let lrem = format!("lrem {WORK}");
        assert_eq!(heard.iter().filter(|line| **line == lrem).count(), 1, "{heard:?}");
    }
}

#[test]
fn of_an_id_that_stands_there_twice_the_older_one_goes_here_and_on_a_replica() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    fill(&mut con);
    for number in 0..settlements(&mut con, "m00").len() {
        fill(&mut con);
        // Between m30 and m31, and again, as an older place, between m10 and m11.
        ok!(con, "LREM", WORK, 1, "m20");
        ok!(con, "LINSERT", WORK, "BEFORE", "m10", "m20");
        ok!(con, "LINSERT", WORK, "BEFORE", "m30", "m20");
        let before = work(&mut con);
        let (command, _) = settlements(&mut con, "m20").swap_remove(number);
        let _: redis::Value = command.query(&mut con).unwrap();
        let older = before.iter().rposition(|id| id == "m20").unwrap();
        assert_eq!(work(&mut con), without(&before, older), "{}", line_of(&command));
        replica.wait_synced();
        assert_eq!(server.digest(), replica.digest());
    }
}

#[test]
fn an_id_that_is_not_in_processing_leaves_it_alone_and_no_lrem_is_sent() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    fill(&mut con);
    for number in 0..settlements(&mut con, "m00").len() {
        fill(&mut con);
        ok!(con, "LREM", WORK, 1, "m20");
        let before = work(&mut con);
        let (command, _) = settlements(&mut con, "m20").swap_remove(number);
        tap.lines_until_marker(&mut con);
        let watcher = Watcher::on(&server, &[WORK]);
        let _: redis::Value = command.query(&mut con).unwrap();
        let sent = tap.lines_until_marker(&mut con);
        assert!(
            !sent.is_empty() && !sent.iter().any(|line| line.contains("LREM")),
            "{sent:?}"
        );
        assert_eq!(work(&mut con), before);
        assert!(watcher.untouched());
    }
}

#[test]
fn an_id_of_which_nothing_but_its_place_is_left_is_taken_out_and_counted() {
    let server = Server::start();
    let mut con = server.con();
    fill(&mut con);
    ok!(con, "HDEL", MAP, "m20", "m20:queue");
    ok!(con, "ZREM", DUE, "m20");
    let before = work(&mut con);
    ok!(con, "RMQ.COMPLETE", MAP, WORK, DUE, "m20");
    assert_eq!(work(&mut con), without(&before, 19));
    assert_eq!(counter(&server, "completed"), 1);
}

#[test]
fn a_client_that_does_not_want_to_hear_of_its_own_changes_does_not() {
    let server = Server::start();
    let mut con = server.con();
    fill(&mut con);
    let lease = lease_of(&mut con, "m20");
    let mut client = Raw::connect(&server);
    client.call(&["HELLO", "3"]);
    client.call(&["CLIENT", "TRACKING", "ON", "BCAST", "NOLOOP"]);
    assert_eq!(client.call(&["RMQ.ACK", MAP, WORK, DUE, "m20", &lease]), Reply::Int(1));
    assert!(client.is_silent_for(std::time::Duration::from_millis(50)));
    // Of others' changes it does.
    ok!(con, "LREM", WORK, 1, "m21");
    assert!(!client.is_silent_for(std::time::Duration::from_secs(5)));
}
