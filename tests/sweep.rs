//! Ids that are found without a search of the whole list: many in one call, where the deadlines show the way to them, and
//! those that stand where the last ones stood.

mod common;
use common::*;

use redis::Connection;
use std::collections::HashSet;

/// Messages in work: `p` and `e`, where those of one delivery share a deadline.
struct Work {
    number: usize,
    deadline: u64,
}

impl Work {
    fn new() -> Work {
        Work {
            number: 0,
            deadline: 1_700_000_000_000,
        }
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

/// The server's iterator, once it has gone to the left over the edge of a list's node, loses its place with a removal;
/// a call that relied on it took out a neighbour instead.
#[test]
fn a_hundred_ids_scattered_over_a_long_list_go_and_their_neighbours_stay_in_order() {
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
fn those_taken_in_one_call_go_together_wherever_they_stand_whole_or_in_part() {
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

/// They stand side by side, so one search finds them all.
#[test]
fn those_taken_in_one_call_are_found_by_their_deadline_and_not_by_a_pass_over_the_list() {
    let server = Server::start();
    let mut con = server.con();
    let usec = |con: &mut Connection, shuffled: bool| {
        let mut work = Work::new();
        ok!(con, "DEL", "p", "e");
        let deliveries = work.deliver(con, 2000, 10);
        if shuffled {
            let mut pipe = redis::pipe();
            for (number, id) in deliveries.iter().flatten().enumerate() {
                pipe.cmd("ZADD")
                    .arg("e")
                    .arg(1 + number * 7919 % 20_000)
                    .arg(id)
                    .ignore();
            }
            pipe.query::<()>(con).expect("deadlines that are no guide");
        }
        ok!(con, "CONFIG", "RESETSTAT");
        // Not one after the other: none stands where the last one stood.
        for number in 0..20 {
            ok!(con, "RMQ.COMPLETE", "m", "p", "e", &deliveries[1500 + number * 7 % 20]);
        }
        server.commandstats("rmq.complete").usec
    };
    let (by_deadline, by_pass) = (usec(&mut con, false), usec(&mut con, true));
    assert!(
        by_deadline * 4 < by_pass,
        "{by_deadline} µs by deadline, {by_pass} µs by a pass"
    );
}

/// How often the server searched a list for the module.
fn searches(server: &Server) -> u64 {
    server.commandstats("lpos").calls
}

/// A worker that took ten settles them one by one, the oldest first; another does so from the newest on. No deadline
/// leads to any of them: there are too few.
#[test]
fn what_a_worker_settles_one_by_one_is_found_where_the_last_one_stood() {
    let server = Server::start();
    let mut con = server.con();
    let mut work = Work::new();
    let mut deliveries = work.deliver(&mut con, 10, 10);
    ok!(con, "CONFIG", "RESETSTAT");
    let mut settled = 0;
    for backwards in [false, true, false, true] {
        let mut delivery = deliveries.remove(4);
        if backwards {
            delivery.reverse();
        }
        for id in &delivery {
            complete(&mut con, std::slice::from_ref(id));
            settled += 1;
        }
    }
    let searches = searches(&server);
    assert!(
        searches <= settled / 4,
        "{searches} searches for {settled} messages of which all but a few stood where they were expected"
    );
}

/// With an append-only file the place of the last one is no lead; without it is again.
#[test]
fn the_module_notices_that_nobody_listens_any_more() {
    let server = Server::builder().arg("appendonly", "yes").start();
    let mut con = server.con();
    let searches_for_twenty = |con: &mut Connection| {
        ok!(con, "DEL", "p", "e");
        let delivered = Work::new().deliver(con, 10, 10);
        ok!(con, "CONFIG", "RESETSTAT");
        for id in delivered[4..6].concat() {
            complete(con, &[id]);
        }
        searches(&server)
    };
    assert_eq!(searches_for_twenty(&mut con), 20);
    ok!(con, "CONFIG", "SET", "appendonly", "no");
    let noticed = || {
        for n in 0..500 {
            ok!(server.con(), "RMQ.PUBLISH", "m", "q:pending", n, "payload");
        }
        searches_for_twenty(&mut server.con()) < 10
    };
    assert!(eventually(deadline(), noticed));
}

#[test]
fn deliveries_that_are_settled_as_a_whole_go_wherever_the_last_one_stood() {
    let server = Server::start();
    let mut con = server.con();
    let mut work = Work::new();
    let mut deliveries = work.deliver(&mut con, 60, 10);
    // In the middle towards the newest, then towards the oldest, then elsewhere.
    for which in [20, 20, 20, 20, 20, 19, 18, 17, 16, 16, 16, 30, 30, 2, 2, 2, 2, 1, 0, 0] {
        complete(&mut con, &deliveries.remove(which));
    }
}

/// The same id several times in one list: each settlement takes out one of them, whichever, and nothing else.
#[test]
fn of_an_id_that_stands_in_the_list_several_times_one_is_taken_out() {
    let server = Server::start();
    let mut con = server.con();
    let mut rng = Rng::seeded();
    let names: Vec<String> = (0..12).map(|name| format!("id-{name}")).collect();
    let mut list: Vec<String> = (0..90).map(|_| rng.pick(&names).clone()).collect();
    ok!(con, "RPUSH", "p", &list);
    let mut distance = 30;
    while list.len() > 10 {
        // Mostly where the last one stood, so that the module expects it there.
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
