//! Finding ids in the processing list and removing them: one id in the middle of the list, many ids in one call, ids
//! that are in the list several times.

use crate::common::messages::*;
use crate::common::*;

use redis::{Cmd, Connection};
use std::collections::HashSet;

const SIZE: usize = 40;
const RECEIPT: &str = "1-1";

/// Messages in work, most of them far from both ends; their deadlines are not in the order of the list.
fn fill(con: &mut Connection) {
    // Not FLUSHALL: that would abort the full synchronisation of a replica.
    ok!(con, "DEL", MAP, DUE, WORK, PENDING, QUEUES, DELAYS, DLQ, DLQ_MAP, "errors", "errors:data");
    for number in 0..SIZE {
        let id = format!("m{number:02}");
        ok!(con, "HSET", MAP, &id, "payload", format!("{id}:queue"), QUEUE, format!("{id}:attempts"), RECEIPT);
        ok!(con, "ZADD", DUE, format!("{}.5", 1000 + number * 7 % SIZE), &id);
        ok!(con, "LPUSH", WORK, &id);
    }
}

/// Each command that settles `id`, and whether the payload stays.
fn settlements(id: &str) -> Vec<(Cmd, bool)> {
    let mut parse_error = command!("RMQ.PARSEERR", "errors:data", "errors", WORK, DUE, MAP, id, "{", QUEUE, "bad", 1);
    vec![
        (command!("RMQ.COMPLETE", MAP, WORK, DUE, id), false),
        (command!("RMQ.ACK", NS, id, RECEIPT), false),
        (command!("RMQ.RETRY", MAP, DELAYS, DUE, WORK, id, "new", "5"), true),
        (command!("RMQ.NACK", NS, id, RECEIPT, "DELAY", 5), true),
        (command!("RMQ.NACK", NS, id, RECEIPT, "DEAD"), false),
        (command!("RMQ.RELEASE", NS, id, RECEIPT), true),
        (command!("RMQ.DEADLETTER", DLQ_MAP, DLQ, DUE, MAP, WORK, id, "dead", QUEUE), false),
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
fn each_settling_command_removes_the_id_and_nothing_else() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    for number in 0..settlements("m00").len() {
        for place in [3, 11, 20, 33] {
            fill(&mut con);
            let id = format!("m{:02}", SIZE - 1 - place);
            let (command, payload_stays) = settlements(&id).swap_remove(number);
            let before = work(&mut con);
            assert_eq!(before[place], id);
            let watchers = [WORK, DUE].map(|key| Watcher::on(&server, &[key]));
            let _: redis::Value = command.query(&mut con).unwrap_or_else(|e| panic!("{}: {e}", line_of(&command)));
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
fn replicas_and_keyspace_subscribers_get_one_lrem() {
    let server = Server::start();
    let mut con = server.con();
    let tap = ReplicaTap::attach(&server);
    let mut events = Events::subscribe(&server);
    for number in 0..settlements("m00").len() {
        fill(&mut con);
        let (command, _) = settlements("m17").swap_remove(number);
        events.lines_until_marker(&mut con);
        tap.lines_until_marker(&mut con);
        let _: redis::Value = command.query(&mut con).unwrap();
        let sent = tap.lines_until_marker(&mut con);
        let removals: Vec<&String> = sent.iter().filter(|line| line.starts_with("LREM")).collect();
        assert_eq!(removals, [&format!("LREM {WORK} -1 m17")], "{sent:?}");
        assert_eq!((sent[0].as_str(), sent[sent.len() - 1].as_str()), ("MULTI", "EXEC"));
        let received = events.lines_until_marker(&mut con);
        let lrem = format!("lrem {WORK}");
        assert_eq!(received.iter().filter(|line| **line == lrem).count(), 1, "{received:?}");
    }
}

#[test]
fn of_an_id_that_is_there_twice_the_older_one_is_removed_here_and_on_a_replica() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    for number in 0..settlements("m00").len() {
        fill(&mut con);
        // Between m30 and m31, and again, as the older occurrence, between m10 and m11.
        ok!(con, "LREM", WORK, 1, "m20");
        ok!(con, "LINSERT", WORK, "BEFORE", "m10", "m20");
        ok!(con, "LINSERT", WORK, "BEFORE", "m30", "m20");
        let before = work(&mut con);
        let (command, _) = settlements("m20").swap_remove(number);
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
    for number in 0..settlements("m00").len() {
        fill(&mut con);
        ok!(con, "LREM", WORK, 1, "m20");
        let before = work(&mut con);
        let (command, _) = settlements("m20").swap_remove(number);
        tap.lines_until_marker(&mut con);
        let watcher = Watcher::on(&server, &[WORK]);
        let _: redis::Value = command.query(&mut con).unwrap();
        let sent = tap.lines_until_marker(&mut con);
        assert!(!sent.is_empty() && !sent.iter().any(|line| line.contains("LREM")), "{sent:?}");
        assert_eq!(work(&mut con), before);
        assert!(watcher.untouched());
    }
}

#[test]
fn an_id_that_is_left_only_in_the_list_is_removed_and_counted() {
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
fn a_tracking_client_with_noloop_gets_no_invalidation_for_its_own_settlement() {
    let server = Server::start();
    let mut con = server.con();
    fill(&mut con);
    let mut client = Raw::connect(&server);
    client.call(&["HELLO", "3"]);
    client.call(&["CLIENT", "TRACKING", "ON", "BCAST", "NOLOOP"]);
    assert_eq!(client.call(&["RMQ.ACK", NS, "m20", RECEIPT]), Reply::Int(1));
    assert!(client.is_silent_for(std::time::Duration::from_millis(50)));
    // It gets those for the changes of others.
    ok!(con, "LREM", WORK, 1, "m21");
    assert!(!client.is_silent_for(std::time::Duration::from_secs(5)));
}

/// Messages in work: `p` and `e`, where those of one delivery share a deadline.
struct Work {
    number: usize,
    deadline: u64,
}

impl Work {
    fn new() -> Work {
        Work { number: 0, deadline: 1_700_000_000_000 }
    }

    /// Puts `deliveries` of `size` messages each into work, and returns their ids.
    fn deliver(&mut self, con: &mut Connection, deliveries: usize, size: usize) -> Vec<Vec<String>> {
        let mut pipe = redis::pipe();
        let mut delivered = Vec::new();
        for _ in 0..deliveries {
            self.deadline += 3;
            let ids: Vec<String> = (0..size).map(|n| format!("message-{:028}", self.number + n)).collect();
            self.number += size;
            for id in &ids {
                pipe.cmd("LPUSH").arg("p").arg(id).ignore();
                pipe.cmd("ZADD").arg("e").arg(self.deadline).arg(id).ignore();
            }
            delivered.push(ids);
        }
        pipe.query::<()>(con).expect("messages in work");
        delivered
    }
}

/// Completes the ids in one call; all other elements stay, in their order.
#[track_caller]
fn complete(con: &mut Connection, ids: &[String]) {
    let before: Vec<String> = ask!(con, "LRANGE", "p", 0, -1);
    ok!(con, "RMQ.COMPLETE", "m", "p", "e", ids);
    let after: Vec<String> = ask!(con, "LRANGE", "p", 0, -1);
    let gone: HashSet<&String> = ids.iter().collect();
    let others: Vec<&String> = before.iter().filter(|id| !gone.contains(id)).collect();
    assert!(after.iter().eq(others), "{ids:?}");
}

/// The server's list iterator loses its position when it deletes after having crossed a node to the left; a call that
/// relied on it removed a neighbour instead.
#[test]
fn a_hundred_ids_scattered_over_a_long_list_are_removed_and_their_neighbours_stay_in_order() {
    let server = Server::start();
    let mut con = server.con();
    let mut rng = Rng::seeded();
    let mut work = Work::new();
    let mut all = work.deliver(&mut con, 10_000, 1).concat();
    for _ in 0..60 {
        rng.shuffle(&mut all);
        complete(&mut con, &all.split_off(all.len() - 100));
        all.extend(work.deliver(&mut con, 100, 1).concat());
    }
}

#[test]
fn a_delivery_is_removed_in_one_call_wherever_it_is_whole_or_in_part() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    let mut rng = Rng::seeded();
    let mut work = Work::new();
    let mut deliveries = work.deliver(&mut con, 60, 10);
    for call in 0..300 {
        // The oldest, the newest, or any; now and then two of them in one call.
        let mut ids = Vec::new();
        for _ in 0..rng.range(1..3) {
            let which = match call % 3 {
                0 => 0,
                1 => deliveries.len() - 1,
                _ => rng.below(deliveries.len()),
            };
            let mut delivery = deliveries.remove(which);
            rng.shuffle(&mut delivery);
            let kept = if rng.chance(30) { rng.below(9) } else { 0 };
            let rest = delivery.split_off(delivery.len() - kept.min(delivery.len() - 1));
            ids.extend(delivery);
            if !rest.is_empty() {
                deliveries.insert(which, rest);
            }
        }
        if rng.chance(10) {
            ids.push("nobody".into());
        }
        complete(&mut con, &ids);
        while deliveries.iter().flatten().count() < 550 {
            deliveries.extend(work.deliver(&mut con, 1, 10));
        }
    }
    replica.wait_synced();
    assert_eq!(server.digest(), replica.digest());
}

/// Its ids are side by side, so one search finds them all.
#[test]
fn a_delivery_is_found_by_its_deadline_and_not_by_a_pass_over_the_list() {
    let server = Server::start();
    let mut con = server.con();
    // By their deadlines, and by a pass over the list.
    assert_ratio(0.25, [false, true], |shuffled| {
        let mut work = Work::new();
        ok!(con, "DEL", "p", "e");
        let deliveries = work.deliver(&mut con, 2000, 10);
        if shuffled {
            let mut pipe = redis::pipe();
            for (number, id) in deliveries.iter().flatten().enumerate() {
                pipe.cmd("ZADD").arg("e").arg(1 + number * 7919 % 20_000).arg(id).ignore();
            }
            pipe.query::<()>(&mut con).expect("deadlines that are no guide");
        }
        // In an order in which none is next to the previous one.
        server.cost(|| {
            for number in 0..20 {
                ok!(con, "RMQ.COMPLETE", "m", "p", "e", &deliveries[1500 + number * 7 % 20]);
            }
        })
    });
}

#[test]
fn the_ids_of_a_delivery_are_removed_one_by_one_from_its_oldest_or_its_newest_on() {
    let server = Server::start();
    let mut con = server.con();
    let mut deliveries = Work::new().deliver(&mut con, 10, 10);
    for newest_first in [false, true, false, true] {
        let mut delivery = deliveries.remove(4);
        if newest_first {
            delivery.reverse();
        }
        for id in &delivery {
            complete(&mut con, std::slice::from_ref(id));
        }
    }
}

#[test]
fn deliveries_are_removed_as_a_whole_in_any_order() {
    let server = Server::start();
    let mut con = server.con();
    let mut work = Work::new();
    let mut deliveries = work.deliver(&mut con, 60, 10);
    // In the middle towards the newest, then towards the oldest, then elsewhere.
    for which in [20, 20, 20, 20, 20, 19, 18, 17, 16, 16, 16, 30, 30, 2, 2, 2, 2, 1, 0, 0] {
        complete(&mut con, &deliveries.remove(which));
    }
}

/// The same id several times in one list: each settlement removes any one of them, and nothing else.
#[test]
fn of_an_id_that_is_in_the_list_several_times_one_is_removed() {
    let server = Server::start();
    let mut con = server.con();
    let mut rng = Rng::seeded();
    let names: Vec<String> = (0..12).map(|name| format!("id-{name}")).collect();
    let mut list: Vec<String> = (0..90).map(|_| rng.pick(&names).clone()).collect();
    ok!(con, "RPUSH", "p", &list);
    let mut distance = 30;
    while list.len() > 10 {
        // Mostly the neighbour of the previous one.
        if rng.chance(15) {
            distance = rng.below(list.len());
        }
        distance = distance.min(list.len() - 1);
        let id = list[list.len() - 1 - distance].clone();
        ok!(con, "RMQ.COMPLETE", "m", "p", "e", &id);
        let after: Vec<String> = ask!(con, "LRANGE", "p", 0, -1);
        let gone = (0..list.len()).find(|index| after.get(*index) != Some(&list[*index]));
        let gone = gone.expect("one is gone");
        // Of equal neighbours the last counts as gone.
        assert_eq!(list[gone], id);
        list.remove(gone);
        assert_eq!(after, list);
    }
}

#[test]
fn an_id_that_is_named_twice_takes_no_neighbour_with_it_in_a_long_list() {
    const COUNT: usize = 1100;
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    for n in 0..COUNT {
        ok!(con, "LPUSH", WORK, format!("i{n}"));
        ok!(con, "ZADD", DUE, 1_000_000 + n, format!("i{n}"));
    }
    // The oldest, in the order in which they were taken, and one of them again.
    for again in [7, 8, 9] {
        ok!(
            con,
            "RMQ.COMPLETE",
            MAP,
            WORK,
            DUE,
            "i0",
            "i1",
            "i2",
            "i3",
            "i4",
            "i5",
            "i6",
            "i7",
            "i8",
            "i9",
            format!("i{again}")
        );
        let left: Vec<String> = ask!(con, "LRANGE", WORK, 0, -1);
        assert_eq!(left.len(), COUNT - 10, "i{again} twice");
        assert_eq!(left[left.len() - 1], "i10");
        replica.wait_synced();
        assert_eq!(replica.digest(), server.digest());
        for n in (0..10).rev() {
            ok!(con, "RPUSH", WORK, format!("i{n}"));
            ok!(con, "ZADD", DUE, 1_000_000 + n, format!("i{n}"));
        }
    }
}
