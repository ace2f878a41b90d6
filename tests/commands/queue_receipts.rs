//! Receipts and what stores them: saving, restarts, replicas, long lists of leases, large messages, a server that is full.

use crate::common::messages::*;
use crate::common::*;
use redis::{Connection, Value};

/// Every way in which a worker settles or keeps a message says no and does nothing.
#[track_caller]
fn assert_fenced(con: &mut Connection, delivery: &Delivery) {
    let Delivery { id, receipt, .. } = delivery;
    let before = Snapshot::with_ttls(con);
    assert_eq!(ok!(con, "RMQ.ACK", NS, id, receipt), Value::Int(0));
    assert_eq!(ok!(con, "RMQ.NACK", NS, id, receipt, "PAYLOAD", "stolen"), Value::Nil);
    assert_eq!(ok!(con, "RMQ.NACK", NS, id, receipt, "DEAD"), Value::Nil);
    assert_eq!(ok!(con, "RMQ.RELEASE", NS, id, receipt), Value::Int(0));
    assert_eq!(items(ok!(con, "RMQ.EXTEND", NS, HOUR, id, receipt)), [Value::Int(0)]);
    before.assert_unchanged(con);
}

#[test]
fn receipts_survive_a_save_a_restart_and_a_failover() {
    let server = Server::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    let mut con = server.con();
    let held: Vec<Delivery> = ["a", "b", "c"].map(|id| take_new(&mut con, id)).into();
    ok!(con, "DEBUG", "RELOAD");
    assert_eq!(ack(&mut con, &held[0]), 1);
    server.restart();
    let mut con = server.con();
    assert_eq!(ack(&mut con, &held[1]), 1);
    let heir = Replica::with_module_of(&server);
    heir.wait_synced();
    heir.promote();
    let mut there = heir.con();
    assert_fenced(&mut there, &held[0]);
    assert_eq!(ack(&mut there, &held[2]), 1);
    // The count of a new process begins behind what is stored, too.
    let again = take_new(&mut there, "c");
    assert_ne!(again.receipt, held[2].receipt);
    assert_fenced(&mut there, &held[2]);
}

#[test]
fn of_an_id_that_stands_in_processing_twice_an_ack_removes_one_and_a_stranger_keeps_the_list() {
    let server = Server::start();
    let mut con = server.con();
    let held = take_new(&mut con, "a");
    ok!(con, "LPUSH", WORK, "x", "a");
    assert_eq!(ack(&mut con, &held), 1);
    assert_eq!(Snapshot::of(&mut con).list(WORK), ["a", "x"]);
    assert_fenced(&mut con, &held);
}

#[test]
fn thousands_of_deliveries_are_settled_by_calls_of_many_in_any_order_and_a_replica_agrees() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    let mut rng = Rng::seeded();
    let ids: Vec<String> = (0..5000).map(|n| format!("message-{n:04}")).collect();
    for chunk in ids.chunks(500) {
        let words: Vec<&str> = chunk.iter().flat_map(|id| [id.as_str(), "payload"]).collect();
        ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", words);
    }
    let mut held = Vec::new();
    while held.len() < ids.len() {
        held.extend(reserve_up_to(&mut con, 1 + rng.below(60)));
    }
    rng.shuffle(&mut held);
    while !held.is_empty() {
        let some = held.split_off(held.len() - (1 + rng.below(300)).min(held.len()));
        let pairs: Vec<&str> = some.iter().flat_map(|held| [held.id.as_str(), held.receipt.as_str()]).collect();
        let before = Snapshot::of(&mut con).list(WORK);
        let acked: usize = ask!(con, "RMQ.ACK", NS, pairs);
        assert_eq!(acked, some.len());
        let left: Vec<String> = before.into_iter().filter(|id| !some.iter().any(|held| held.id == *id)).collect();
        assert_eq!(Snapshot::of(&mut con).list(WORK), left);
    }
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
    assert_eq!(Snapshot::of(&mut con).keys(), [QUEUES]);
}

#[test]
fn a_set_of_many_leases_is_not_in_the_compact_encoding_and_holds_the_leases_only() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut con = server.con();
    let encoding = |con: &mut Connection| text(ok!(con, "OBJECT", "ENCODING", DUE));
    let mut held: Vec<Delivery> = (0..10).map(|n| take_new(&mut con, &format!("m{n:02}"))).collect();
    assert_eq!(encoding(&mut con), "listpack", "a handful is left as it is");
    let mut events = Events::subscribe(&server);
    held.extend((10..100).map(|n| take_new(&mut con, &format!("m{n:02}"))));
    // Any of the calls may do it.
    let mut acked = 0;
    while encoding(&mut con) != "skiplist" {
        acked += 1;
        assert!(acked < 1000, "it is still compact");
        let oldest = held.remove(0);
        assert_eq!(ack(&mut con, &oldest), 1);
        held.push(take_new(&mut con, &oldest.id));
    }
    let received = events.lines_until_marker(&mut con);
    let times = |event: &str| received.iter().filter(|line| **line == format!("{event} {DUE}")).count();
    assert_eq!((times("zadd"), times("zrem")), (90 + acked, acked));
    assert_eq!(Snapshot::of(&mut con).zset(DUE).len(), held.len());
    replica.wait_synced();
    assert_eq!(server.digest(), replica.digest());
    assert!(held.iter().all(|held| ack(&mut con, held) == 1));
    assert_eq!(Snapshot::of(&mut con).keys(), [QUEUES]);
}

#[test]
fn an_id_and_a_payload_of_64_mib_pass_through_all_that_can_happen_to_a_message() {
    let server = Server::start();
    let mut con = server.con();
    let (id, payload) = (vec![b'\xfe'; 64 << 20], vec![b'\0'; 64 << 20]);
    assert_eq!(items(ok!(con, "RMQ.PUBLISH", NS, "TO", "orders", &id, &payload)), [Value::BulkString(id.clone())]);
    let mut take = || {
        let row = items(items(ok!(con, "RMQ.RESERVE", NS, HOUR, "FROM", "orders")).remove(0));
        assert!(row[0] == Value::BulkString(id.clone()) && row[1] == Value::BulkString(payload.clone()));
        text(row[2].clone())
    };
    let receipt = take();
    assert_eq!(text(ok!(server.con(), "RMQ.NACK", NS, &id, receipt, "DEAD", "ERROR", &payload)), "DEAD");
    assert_eq!(items(ok!(server.con(), "RMQ.REDRIVE", NS, "COUNT", 1)).len(), 1);
    let receipt = take();
    assert_eq!(text(ok!(server.con(), "RMQ.NACK", NS, &id, receipt, "DELAY", 0)), "RETRY");
    let receipt = take();
    assert_eq!(ok!(server.con(), "RMQ.ACK", NS, &id, receipt), Value::Int(1));
    assert_eq!(Snapshot::of(&mut server.con()).keys(), [QUEUES]);
}

#[test]
fn over_maxmemory_messages_are_given_back_without_their_error_texts() {
    let server = Server::start();
    let mut con = server.con();
    let [retried, dead, released] = ["a", "b", "c"].map(|id| take_new(&mut con, id));
    ok!(con, "CONFIG", "SET", "maxmemory", 1);
    assert_eq!(text(ok!(con, "RMQ.NACK", NS, "a", &retried.receipt, "ERROR", "boom")), "RETRY");
    assert_eq!(text(ok!(con, "RMQ.NACK", NS, "b", &dead.receipt, "DEAD", "ERROR", "boom")), "DEAD");
    assert_eq!(ok!(con, "RMQ.RELEASE", NS, "c", &released.receipt), Value::Int(1));
    ok!(con, "CONFIG", "SET", "maxmemory", 0);
    let now = Snapshot::of(&mut con);
    assert!(!now.hash(MAP)["a:attempts"].contains("boom"));
    assert!(!now.hash(DLQ_MAP)["b:death"].contains("boom"));
    assert_eq!(now.list(PENDING), ["c"]);
}
