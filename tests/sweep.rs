//! Many ids in one call, in a list long enough that the deadlines show the way to them.

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
        for delivery in &deliveries[1500..1520] {
            ok!(con, "RMQ.COMPLETE", "m", "p", "e", delivery);
        }
        server.commandstats("rmq.complete").usec
    };
    let (by_deadline, by_pass) = (usec(&mut con, false), usec(&mut con, true));
    assert!(
        by_deadline * 4 < by_pass,
        "{by_deadline} µs by deadline, {by_pass} µs by a pass"
    );
}
