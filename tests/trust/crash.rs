//! Crashes and restarts: the server killed by SIGKILL or shut down, workers dying between any two steps. Nothing that was
//! acknowledged is lost, and nothing that was settled comes back.
//!
//! `RMQ_KILLS` (50) kills and `RMQ_RESTARTS` (20) restarts of the server; `RMQ_SECONDS` (15) of dying workers;
//! `RMQ_SEED`.

use crate::common::messages::value_of;
use crate::common::*;
use crate::traffic::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_killed_and_syncs_always() {
    kill_again_and_again("always", Safe::AtOnce);
}

#[test]
fn nothing_that_was_written_is_lost_when_the_server_is_killed_and_syncs_every_second() {
    kill_again_and_again("everysec", Safe::Written);
}

fn kill_again_and_again(appendfsync: &str, safe: Safe) {
    let kills = scaled("RMQ_KILLS", 50) / 2;
    let mut rng = Rng::seeded();
    let server = Server::builder().arg("appendonly", "yes").arg("appendfsync", appendfsync).start();
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| server.try_con().ok().map(|con| Single::link(con, safe)));
        let worlds = STYLES.map(|style| Workers::of(scope, &Habits::of(style), &mut rng, &dial));
        for kill in 1..=kills {
            sleep(Duration::from_millis(rng.range(20..500) as u64));
            // Some kills hit a rewrite of the AOF.
            if rng.chance(20) {
                let _ = cmd!(server.con(), "BGREWRITEAOF");
                sleep(Duration::from_millis(rng.range(0..15) as u64));
            }
            server.kill9();
            server.restart();
            if kill % 10 == 0 {
                println!("  killed and restarted {kill} of {kills} times");
            }
        }
        for report in finish(worlds) {
            assert!(report.redelivered > 0, "no failure was ever felt");
        }
    });
}

/// The way to upgrade the module. SHUTDOWN frees the clients that are blocked in RESERVE and saves the data set.
#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_shut_down_and_started_again() {
    let restarts = scaled("RMQ_RESTARTS", 20);
    let mut rng = Rng::seeded();
    let server = Server::builder().arg("dbfilename", "dump.rdb").start();
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| server.try_con().ok().map(|con| Single::link(con, Safe::AtOnce)));
        let worlds = STYLES.map(|style| Workers::of(scope, &Habits::of(style), &mut rng, &dial));
        for restart in 1..=restarts {
            sleep(Duration::from_millis(rng.range(50..250) as u64));
            let mut raw = Raw::connect(&server);
            raw.send(&["SHUTDOWN", "SAVE"]);
            assert!(matches!(raw.try_read_raw(), Ok(None)), "the server shuts down");
            server.restart();
            if restart % 5 == 0 {
                println!("  shut down and started {restart} of {restarts} times");
            }
        }
        finish(worlds);
    });
}

#[test]
fn nothing_acknowledged_is_lost_when_workers_die_between_any_two_steps() {
    let seconds = scaled("RMQ_SECONDS", 15);
    let mut rng = Rng::seeded();
    let server = Server::start();
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| server.try_con().ok().map(|con| Single::link(con, Safe::AtOnce)));
        let worlds = STYLES.map(|style| Workers::of(scope, &Habits::of(style).deaths(5), &mut rng, &dial));
        sleep(Duration::from_secs(seconds as u64));
        for workers in &worlds {
            workers.go_on_until(|report| report.deaths > seconds);
        }
        for report in finish(worlds) {
            assert!(report.redelivered > 0 && report.after_timeout > 0, "no failure was ever felt");
        }
        assert!(server.info("rmq")["rmq_expired"] != "0", "the server took no lease back");
    });
}

/// Clients wait, a message becomes due, the timer wakes the server: and about then the server dies, before, between and
/// after the move, the write to the AOF and the reply.
#[test]
fn a_server_that_dies_when_a_timer_wakes_it_has_delivered_a_message_or_still_has_it() {
    const CLIENTS: usize = 8;
    let rounds = scaled("RMQ_KILLS", 50) / 2;
    let mut rng = Rng::seeded();
    let server = Server::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    let (mut served, mut unserved, mut wake) = (0, 0, 0.0);
    for round in 0..rounds + 20 {
        if round >= rounds && served > 0 && unserved > 0 {
            break;
        }
        let mut waiters: Vec<Raw> = (0..CLIENTS).map(|_| Raw::connect(&server)).collect();
        let mut con = server.con();
        for waiter in &mut waiters {
            waiter.send(&["RMQ.RESERVE", "app", "600000", "BLOCK", "0", "FROM", "urgent", "orders"]);
        }
        assert!(eventually(deadline(), || server.info("rmq")["rmq_waiting_clients"] == CLIENTS.to_string()));
        let due = clock_ms() + 15.0;
        let ids: BTreeSet<String> = (0..CLIENTS).map(|n| format!("{round}-{n}")).collect();
        for (n, id) in ids.iter().enumerate() {
            // Half of them by their due time, half by a lease that runs out.
            if n % 2 == 0 {
                ok!(con, "RMQ.PUBLISH", "app", "AT", due as u64, "TO", "orders", id, "payload");
            } else {
                ok!(con, "HSET", "app:payloads", id, "payload", format!("{id}:queue"), "app:orders");
                ok!(con, "LPUSH", "app:orders:processing", id);
                ok!(con, "ZADD", "app:expires", due + 0.5, id);
            }
        }
        // Around the moment in which the server wakes, which machines differ in: earlier after a round that was served
        // whole, later after one that was not served at all.
        let moment = due + wake + rng.range(0..2000) as f64 / 1000.0;
        sleep(Duration::from_micros(((moment - clock_ms()).max(0.0) * 1000.0) as u64));
        server.kill9();
        // What came before the connection broke.
        let mut done = BTreeSet::new();
        let mut acks = Vec::new();
        for waiter in &mut waiters {
            if let Ok(Some(bytes)) = waiter.try_read_raw() {
                let (reply, _) = resp::parse(&bytes).expect("a whole reply");
                let [id, _, receipt, _, _] = <[_; 5]>::try_from(items(items(value_of(reply)).remove(0))).expect("five");
                acks.push([text(id), text(receipt)]);
            }
        }
        server.restart();
        let mut con = server.con();
        served += acks.len();
        wake = match acks.len() {
            0 => wake * 2.0 + 1.0,
            CLIENTS => wake / 2.0,
            _ => wake,
        };
        for [id, receipt] in acks {
            assert_eq!(
                ok!(con, "RMQ.ACK", "app", &id, &receipt),
                redis::Value::Int(1),
                "{id} was delivered under {receipt}"
            );
            assert!(done.insert(id.clone()), "{id} was delivered twice");
        }
        // Leases of replies that nobody got run out.
        for id in strings(ok!(con, "ZRANGE", "app:expires", 0, -1)) {
            ok!(con, "ZADD", "app:expires", "XX", "1000.5", id);
        }
        let all_done = || {
            if let redis::Value::Array(rows) = ok!(con, "RMQ.RESERVE", "app", 60000, "COUNT", 100, "FROM", "orders") {
                for row in rows {
                    let row = items(row);
                    let (id, receipt) = (text(row[0].clone()), text(row[2].clone()));
                    assert_eq!(ok!(con, "RMQ.ACK", "app", &id, receipt), redis::Value::Int(1));
                    assert!(done.insert(id.clone()), "{id} came back after its ACK");
                    unserved += 1;
                }
            }
            done == ids
        };
        assert!(eventually(deadline(), all_done), "round {round}: lost");
        let left: Vec<String> = strings(ok!(con, "KEYS", "*"));
        assert_eq!(left, ["app:queues"]);
    }
    println!("  {served} were delivered before the server died, {unserved} after it");
    assert!(served > 0 && unserved > 0, "the server always died too late, or too early");
}

/// The window that CLAIM closes: what plain workers would lose with a reaper that dies at the wrong moment.
#[test]
fn a_reaper_that_dies_takes_a_message_with_it_unless_it_claimed_it() {
    let server = Server::start();
    let mut con = server.con();
    for (claim, comes_again) in [(false, false), (true, true)] {
        ok!(con, "FLUSHALL");
        ok!(con, "RMQ.PUBLISH", "app", "TO", "q", "a", "payload a");
        ok!(con, "RMQ.RESERVE", "app", 1, "FROM", "q");
        sleep(Duration::from_millis(3));
        let mut timeouts = command!("RMQ.TIMEOUTS", "app:expires", "app:payloads", "*", 10);
        if claim {
            timeouts.arg("CLAIM").arg(1);
        }
        let replied = text_rows(timeouts.query(&mut server.con()).unwrap());
        assert_eq!(replied, [["a", "payload a", "app:q"]]);
        // The reaper is gone. Another looks again.
        sleep(Duration::from_millis(3));
        let again = text_rows(timeouts.query(&mut con).unwrap());
        assert_eq!(again.len(), usize::from(comes_again), "claim: {claim}");
    }
}

fn finish(worlds: [Workers; 2]) -> [Report; 2] {
    let start = Instant::now();
    let reports = finish_all(worlds);
    println!("  drained after {:.1} s", start.elapsed().as_secs_f64());
    reports
}
