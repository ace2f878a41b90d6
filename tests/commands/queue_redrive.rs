//! RMQ.REDRIVE among dead letters that scripts and hands have put into disorder.

use crate::common::messages::*;
use crate::common::*;
use redis::Connection;

fn redrive(con: &mut Connection, count: usize) -> Vec<Vec<String>> {
    text_rows(ok!(con, "RMQ.REDRIVE", NS, "COUNT", count))
}

/// A dead letter, as the script leaves it.
fn dead_letter(con: &mut Connection, id: &str, queue: &str) {
    ok!(con, "HSET", DLQ_MAP, id, format!("dead {id}"), format!("{id}:queue"), format!("{NS}:{queue}"));
    ok!(con, "LPUSH", DLQ, id);
}

#[test]
fn an_id_that_is_twice_in_the_list_is_redriven_once() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    dead_letter(&mut con, "a", "orders");
    dead_letter(&mut con, "b", "orders");
    dead_letter(&mut con, "a", "orders");
    dead_letter(&mut con, "c", "orders");
    assert_eq!(redrive(&mut con, 9), [["a", "orders"], ["b", "orders"], ["c", "orders"]]);
    let after = Snapshot::of(&mut con);
    assert_eq!(after.list(PENDING), ["c", "b", "a"]);
    assert_eq!(after.keys(), [PENDING, MAP, QUEUES]);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn any_number_of_dead_letters_of_any_state_is_redriven_exactly_and_a_replica_agrees() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    let mut rng = Rng::seeded();
    ok!(con, "SET", "mx-rmq:bad:pending", "x");
    for round in 0..40 {
        ok!(con, "DEL", DLQ, DLQ_MAP, MAP, "mx-rmq:x:pending", "mx-rmq:y:pending");
        ok!(con, "HSET", DLQ_MAP, "other", "x");
        ok!(con, "CONFIG", "SET", "list-max-listpack-size", *rng.pick(&[-2, 1, 4, 128]));
        let count = rng.below(if round % 4 == 0 { 400 } else { 30 });
        let mut left: Vec<String> = Vec::new();
        let mut moved: Vec<Vec<String>> = Vec::new();
        let batch = 1 + rng.below(60);
        let mut taken = 0;
        for n in 0..count {
            let id = n.to_string();
            ok!(con, "LPUSH", DLQ, &id);
            let (stays, reported) = match rng.below(6) {
                0 => (false, None),
                1 => {
                    ok!(con, "HSET", DLQ_MAP, &id, "no queue");
                    (true, None)
                }
                2 => {
                    ok!(con, "HSET", DLQ_MAP, &id, "dead", format!("{id}:queue"), "mx-rmq:bad");
                    (true, None)
                }
                3 => {
                    ok!(con, "HSET", DLQ_MAP, &id, "dead", format!("{id}:queue"), "mx-rmq:x");
                    ok!(con, "HSET", MAP, &id, "live");
                    (true, None)
                }
                _ => {
                    let queue = *rng.pick(&["x", "y"]);
                    ok!(con, "HSET", DLQ_MAP, &id, "dead", format!("{id}:queue"), format!("{NS}:{queue}"));
                    (false, Some(queue))
                }
            };
            if stays || taken == batch {
                left.insert(0, id);
            } else {
                // An id without dead letter goes on the way, and does not count.
                taken += usize::from(reported.is_some());
                moved.extend(reported.map(|queue| vec![id, queue.to_string()]));
            }
        }
        assert_eq!(redrive(&mut con, batch), moved);
        assert_eq!(Snapshot::of(&mut con).list(DLQ), left);
        replica.wait_synced();
        assert_eq!(replica.digest(), server.digest());
    }
}

#[test]
fn dead_letters_of_a_queue_of_the_wrong_type_stay_and_the_others_do_not_starve_behind_them() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    ok!(con, "SET", "mx-rmq:bad:pending", "x");
    for n in 0..60 {
        let queue = if n % 3 == 2 { "good" } else { "bad" };
        dead_letter(&mut con, &n.to_string(), queue);
    }
    let moved = redrive(&mut con, 15);
    let ids: Vec<&str> = moved.iter().map(|row| row[0].as_str()).collect();
    let expected: Vec<String> = (0..15).map(|n| (3 * n + 2).to_string()).collect();
    assert_eq!(ids, expected);
    assert!(moved.iter().all(|row| row[1] == "good"));
    assert_eq!(redrive(&mut con, 15).len(), 5);
    let after = Snapshot::of(&mut con);
    let stayed: Vec<String> = (0..60).rev().filter(|n| n % 3 != 2).map(|n| n.to_string()).collect();
    assert_eq!(after.list(DLQ), stayed);
    assert_eq!(after.hash(DLQ_MAP).len(), 80);
    assert!(counter(&server, "skipped") >= 40);
    assert_eq!(
        server.log().matches("because 'mx-rmq:bad:pending' cannot be used: it has another type or role").count(),
        1
    );
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());

    ok!(con, "DEL", "mx-rmq:bad:pending");
    assert_eq!(redrive(&mut con, 100).len(), 40);
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}
