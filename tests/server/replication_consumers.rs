//! Replicas and AOFs come and go in every way that a server knows, during traffic of the module's commands alone, and none
//! of them misses anything.

use crate::common::*;
use std::time::Duration;

/// Messages published, some taken, some of those settled: every call changes keys.
fn traffic(con: &mut redis::Connection, from: usize, to: usize) {
    for n in from..to {
        let id = format!("m{n}");
        ok!(con, "RMQ.PUBLISH", "app", "TO", "orders", &id, "payload");
        if n % 3 != 0 {
            let taken = ok!(con, "RMQ.RESERVE", "app", 60000, "FROM", "orders");
            let message = items(items(taken).remove(0));
            if n % 3 == 2 {
                let (id, receipt) = (bulk(message[0].clone()), bulk(message[2].clone()));
                ok!(con, "RMQ.ACK", "app", id, receipt);
            }
        }
    }
}

/// What a server without the module finds in the folder of this one.
fn digest_from_disk(server: &Server, appendonly: &str) -> String {
    server.kill9();
    let folder = server.dir().to_str().expect("a path").to_string();
    let plain = Server::builder().without_module().arg("appendonly", appendonly).arg("dir", &folder).start();
    plain.digest()
}

fn assert_same(replica: &Replica, server: &Server) {
    replica.wait_synced();
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn a_replica_that_comes_in_the_middle_of_traffic_misses_nothing() {
    let server = Server::start();
    let mut con = server.con();
    traffic(&mut con, 0, 200);
    let replica = std::thread::scope(|scope| {
        let comer = scope.spawn(|| Replica::of(&server));
        let mut n = 200;
        while !comer.is_finished() {
            traffic(&mut con, n, n + 20);
            n += 20;
        }
        traffic(&mut con, n, n + 200);
        comer.join().expect("the replica")
    });
    assert_same(&replica, &server);
}

#[test]
fn a_replica_that_waits_for_its_snapshot_misses_nothing() {
    let server = Server::builder().arg("repl-diskless-sync", "yes").arg("repl-diskless-sync-delay", "2").start();
    let mut con = server.con();
    traffic(&mut con, 0, 100);
    let replica = Server::builder().without_module().start();
    ok!(replica.con(), "REPLICAOF", "127.0.0.1", server.port());
    let connected = || server.info("replication")["connected_slaves"] == "1";
    assert!(eventually(deadline(), connected), "the replica is there, its snapshot is not yet");
    let mut n = 100;
    let in_sync = || replica.info("replication").get("master_link_status").is_some_and(|link| link == "up");
    assert!(eventually(deadline(), || {
        traffic(&mut con, n, n + 50);
        n += 50;
        in_sync()
    }));
    traffic(&mut con, n, n + 50);
    let digest = server.digest();
    assert!(eventually(deadline(), || replica.digest() == digest));
}

#[test]
fn a_replica_that_goes_and_comes_back_by_partial_resync_misses_nothing() {
    let server = Server::start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    for round in 0..5 {
        traffic(&mut con, round * 100, round * 100 + 50);
        ok!(con, "CLIENT", "KILL", "TYPE", "replica");
        traffic(&mut con, round * 100 + 50, round * 100 + 100);
    }
    assert_same(&replica, &server);
    let partial: u64 = server.info("stats")["sync_partial_ok"].parse().expect("a number");
    assert!(partial > 0, "no partial resync took place");
}

#[test]
fn a_promoted_replica_replicates_everything_to_its_own_replicas() {
    let old = Server::start();
    let heir = Replica::with_module_of(&old);
    traffic(&mut old.con(), 0, 50);
    heir.wait_synced();
    heir.promote();
    let mut con = heir.con();
    traffic(&mut con, 50, 100);
    // The old primary resynchronises from the heir's backlog, without a snapshot.
    ok!(old.con(), "REPLICAOF", "127.0.0.1", heir.port());
    traffic(&mut con, 100, 200);
    let digest = heir.digest();
    assert!(eventually(deadline(), || old.digest() == digest));
}

#[test]
fn an_aof_that_is_switched_on_in_the_middle_of_traffic_has_everything() {
    let server = Server::builder().arg("appendfsync", "always").start();
    let mut con = server.con();
    traffic(&mut con, 0, 100);
    ok!(con, "CONFIG", "SET", "appendonly", "yes");
    traffic(&mut con, 100, 300);
    let rewritten = || server.info("persistence")["aof_rewrite_in_progress"] == "0";
    assert!(eventually(deadline(), rewritten));
    traffic(&mut con, 300, 400);
    let digest = server.digest();
    assert_eq!(digest_from_disk(&server, "yes"), digest);
}

#[test]
fn a_replica_and_an_aof_that_are_added_after_an_aof_was_switched_off_miss_nothing() {
    let server = Server::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    let mut con = server.con();
    traffic(&mut con, 0, 200);
    ok!(con, "CONFIG", "SET", "appendonly", "no");
    traffic(&mut con, 200, 2500);
    let replica = Replica::of(&server);
    traffic(&mut con, 2500, 2600);
    assert_same(&replica, &server);
    ok!(con, "CONFIG", "SET", "appendonly", "yes");
    traffic(&mut con, 2600, 2700);
    // The child that made the replica's snapshot may still be there.
    let rewritten = || {
        let persistence = server.info("persistence");
        persistence["aof_rewrite_in_progress"] == "0" && persistence["aof_rewrite_scheduled"] == "0"
    };
    assert!(eventually(deadline(), rewritten));
    assert_same(&replica, &server);
    let digest = server.digest();
    assert_eq!(digest_from_disk(&server, "yes"), digest);
}

#[test]
fn an_aof_that_is_switched_on_while_a_snapshot_is_being_saved_has_everything() {
    let server = Server::builder().arg("appendfsync", "always").arg("rdb-key-save-delay", "200000").start();
    let mut con = server.con();
    traffic(&mut con, 0, 100);
    ok!(con, "BGSAVE");
    assert_eq!(server.info("persistence")["rdb_bgsave_in_progress"], "1");
    traffic(&mut con, 100, 150);
    ok!(con, "CONFIG", "SET", "appendonly", "yes");
    traffic(&mut con, 150, 300);
    ok!(con, "CONFIG", "SET", "rdb-key-save-delay", 0);
    let ready = || {
        let info = server.info("persistence");
        info["rdb_bgsave_in_progress"] == "0"
            && info["aof_rewrite_in_progress"] == "0"
            && info["aof_rewrite_scheduled"] == "0"
    };
    assert!(eventually(deadline(), ready));
    traffic(&mut con, 300, 400);
    let digest = server.digest();
    assert_eq!(digest_from_disk(&server, "yes"), digest);
}

#[test]
fn a_server_that_restarts_with_the_offset_of_its_snapshot_keeps_its_replica_complete() {
    let server = Server::builder().arg("dbfilename", "dump.rdb").start();
    let mut con = server.con();
    let replica = Replica::of(&server);
    traffic(&mut con, 0, 100);
    replica.wait_synced();
    // The child that made the replica's snapshot may still be there.
    assert!(eventually(deadline(), || cmd!(con, "SAVE").is_ok()));
    drop(con);
    server.restart();
    let mut con = server.con();
    traffic(&mut con, 200, 300);
    assert!(eventually(deadline(), || server.info("replication")["connected_slaves"] == "1"));
    traffic(&mut con, 300, 400);
    assert_same(&replica, &server);
}

#[test]
fn save_points_fire_for_traffic_of_the_module_alone() {
    let server = Server::builder().config_line("save 1 10").arg("save", "1 10").start();
    let mut con = server.con();
    traffic(&mut con, 0, 50);
    let digest = server.digest();
    let saved = || server.info("persistence")["rdb_changes_since_last_save"] == "0";
    assert!(eventually(Duration::from_secs(30), saved));
    assert_eq!(digest_from_disk(&server, "no"), digest);
}
