//! Many ids in one call, in a list long enough that the deadlines show the way to them.

mod common;
use common::*;

const LENGTH: usize = 10_000;
const IDS: usize = 100;
const CALLS: usize = 60;

/// The server's iterator, once it has gone to the left over the edge of a list's node, loses its place with a removal;
/// a call that relied on it took out a neighbour instead.
#[test]
fn a_hundred_ids_scattered_over_a_long_list_go_and_their_neighbours_stay_in_order() {
    let server = Server::start();
    let mut con = server.con();
    let mut rng = Rng::seeded();
    let mut deadline = 1_700_000_000_000_u64;
    let mut deliver = |con: &mut redis::Connection, ids: &[String]| {
        let mut pipe = redis::pipe();
        for id in ids {
            deadline += 1;
            pipe.cmd("LPUSH").arg("p").arg(id).ignore();
            pipe.cmd("ZADD").arg("e").arg(deadline).arg(id).ignore();
        }
        pipe.query::<()>(con).expect("messages in work");
    };
    let mut fresh = {
        let mut number = 0;
        move |count: usize| -> Vec<String> {
            let ids = (number..number + count).map(|n| format!("message-{n:028}")).collect();
            number += count;
            ids
        }
    };
    deliver(&mut con, &fresh(LENGTH));
    for call in 0..CALLS {
        let before: Vec<String> = ask!(con, "LRANGE", "p", 0, -1);
        let mut scattered = before.clone();
        rng.shuffle(&mut scattered);
        scattered.truncate(IDS);
        ok!(con, "RMQ.COMPLETE", "m", "p", "e", &scattered);

        let after: Vec<String> = ask!(con, "LRANGE", "p", 0, -1);
        let gone: std::collections::HashSet<&String> = scattered.iter().collect();
        let others: Vec<&String> = before.iter().filter(|id| !gone.contains(id)).collect();
        assert!(after.iter().eq(others), "call {call}");
        deliver(&mut con, &fresh(IDS));
    }
}
