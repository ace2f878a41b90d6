//! Replicas and persistence under load: a replica needs no module, a failover loses nothing that WAIT 1 confirmed, also
//! with hundreds of waiting clients, and the data set may be rewritten, reloaded or loaded again in the middle of traffic.
//!
//! `RMQ_FAILOVERS` (6), `RMQ_RELOADS` (20); `RMQ_SEED`.

use crate::common::*;
use crate::traffic::*;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::Arc;
use std::thread::{scope, sleep, Scope};
use std::time::Duration;

#[test]
fn a_replica_without_the_module_ends_with_the_same_data_in_the_middle_of_traffic() {
    let mut rng = Rng::seeded();
    let primary = Server::start();
    let replica = Replica::of(&primary);
    for round in 1..=3 {
        scope(|scope| {
            let dial: Arc<Dial> = Arc::new(|| primary.try_con().ok().map(|con| Single::link(con, Safe::AtOnce)));
            let worlds = STYLES.map(|style| {
                let habits = Habits::of(style).deaths(3);
                Workers::start(scope, &format!("{style:?}{round}"), &habits, &mut rng, dial.clone())
            });
            sleep(Duration::from_secs(2));
            worlds.into_iter().for_each(|workers| drop(workers.stop()));
        });
        replica.wait_synced();
        let keys: usize = ask!(primary.con(), "DBSIZE");
        println!("  round {round}: {keys} keys, digest {}", primary.digest());
        assert!(keys > 4, "there is nothing to compare");
        Snapshot::with_ttls(&mut primary.con()).assert_unchanged(&mut replica.con());
        assert_eq!(primary.digest(), replica.digest());
    }
}

#[test]
fn a_failover_under_load_loses_nothing_that_a_replica_had_confirmed() {
    let failovers = scaled("RMQ_FAILOVERS", 6);
    let mut rng = Rng::seeded();
    let primary = Server::start();
    let current = AtomicU16::new(primary.port());
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| {
            let url = format!("redis://127.0.0.1:{}", current.load(Ordering::Relaxed));
            let con = redis::Client::open(url).ok()?.get_connection().ok()?;
            con.set_read_timeout(Some(deadline())).ok()?;
            Some(Single::link(con, Safe::Replicated))
        });
        let worlds = STYLES.map(|style| Workers::of(scope, &Habits::of(style), &mut rng, &dial));
        let crowd = Crowd::gather(scope, &current);
        // Servers that were primaries, oldest first; the last one is in office.
        let mut replicas: Vec<Replica> = Vec::new();
        for failover in 1..=failovers {
            let (module_from_the_start, promote_first) = (rng.chance(50), rng.chance(50));
            {
                let old: &Server = replicas.last().map_or(&primary, |replica| replica);
                let next = match module_from_the_start {
                    true => Replica::with_module_of(old),
                    false => Replica::of(old),
                };
                sleep(Duration::from_millis(rng.range(400..1500) as u64));
                assert!(eventually(deadline(), || crowd.waits_at(old)), "the crowd does not wait at the new primary");
                for workers in &worlds {
                    workers.go_on_until(|report| report.acknowledged > 20 * failover);
                }
                if promote_first {
                    next.promote();
                    sleep(Duration::from_millis(rng.range(0..50) as u64));
                    old.kill9();
                } else {
                    old.kill9();
                    next.promote();
                }
                if !module_from_the_start {
                    ok!(next.con(), "MODULE", "LOAD", server::module().to_str().unwrap());
                }
                current.store(next.port(), Ordering::Relaxed);
                replicas.push(next);
            }
            let how = if promote_first { "promoted, then killed" } else { "killed, then promoted" };
            let when = if module_from_the_start { "before" } else { "after" };
            println!("  failover {failover} of {failovers}: {how}; module loaded {when} it");
        }
        // What waits for confirmation gets it.
        let last = Replica::of(replicas.last().map_or(&primary, |replica| replica));
        crowd.leave();
        finish_all(worlds);
        last.wait_synced();
        let primary = replicas.last().expect("a failover");
        assert_eq!(last.digest(), primary.digest());
        let nobody_waits = || primary.info("rmq")["rmq_timers"] == "0";
        assert!(eventually(deadline(), nobody_waits), "a timer is left: {:?}", primary.info("rmq"));
    });
}

/// Hundreds of clients that wait for queues in which nothing comes, in the namespace of the traffic and in one of their
/// own; when the primary goes, they wait at the next one.
struct Crowd {
    here: Arc<AtomicBool>,
}

impl Crowd {
    const CLIENTS: usize = 300;
    const THREADS: usize = 4;

    fn gather<'s>(scope: &'s Scope<'s, '_>, primary: &'s AtomicU16) -> Crowd {
        let here = Arc::new(AtomicBool::new(true));
        for _ in 0..Crowd::THREADS {
            let here = here.clone();
            scope.spawn(move || {
                let mut clients: Vec<Option<(u16, Raw)>> = (0..Crowd::CLIENTS / Crowd::THREADS).map(|_| None).collect();
                while here.load(Ordering::Relaxed) {
                    let port = primary.load(Ordering::Relaxed);
                    for (n, client) in clients.iter_mut().enumerate() {
                        if client.as_ref().is_none_or(|(at, _)| *at != port) {
                            *client = Raw::try_connect(port).ok().map(|raw| (port, raw));
                            let namespace = if n % 2 == 0 { "Queue" } else { "crowd" };
                            if let Some((_, raw)) = client {
                                raw.send(&["RMQ.RESERVE", namespace, "1000", "BLOCK", "0", "FROM", "nothing", "comes"]);
                            }
                        }
                    }
                    sleep(Duration::from_millis(50));
                }
            });
        }
        Crowd { here }
    }

    fn waits_at(&self, server: &Server) -> bool {
        server.info("rmq")["rmq_waiting_clients"].parse::<usize>().is_ok_and(|clients| clients >= Crowd::CLIENTS)
    }

    fn leave(&self) {
        self.here.store(false, Ordering::Relaxed);
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.leave();
    }
}

#[test]
fn the_aof_may_be_rewritten_and_loaded_in_the_middle_of_traffic() {
    let server = Server::builder().arg("appendonly", "yes").arg("appendfsync", "always");
    under_traffic(&server.start(), &["BGREWRITEAOF", "DEBUG LOADAOF", "DEBUG RELOAD", "restart"]);
}

#[test]
fn an_rdb_file_may_be_written_and_loaded_in_the_middle_of_traffic() {
    under_traffic(&Server::start(), &["BGSAVE", "DEBUG RELOAD", "SHUTDOWN SAVE and restart"]);
}

fn under_traffic(server: &Server, what: &[&str]) {
    let count = scaled("RMQ_RELOADS", 20);
    let mut rng = Rng::seeded();
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| server.try_con().ok().map(|con| Single::link(con, Safe::AtOnce)));
        let worlds = STYLES.map(|style| Workers::of(scope, &Habits::of(style).deaths(1), &mut rng, &dial));
        for number in 1..=count {
            sleep(Duration::from_millis(rng.range(50..300) as u64));
            let mut con = server.con();
            match what[number % what.len()] {
                // Refused while another one runs.
                name @ ("BGREWRITEAOF" | "BGSAVE") => drop(cmd!(con, name)),
                "DEBUG RELOAD" => {
                    // It saves and loads again; a BGSAVE that ends in between would put its older file there.
                    let saved = || server.info("persistence")["rdb_bgsave_in_progress"] == "0";
                    assert!(eventually(deadline(), saved));
                    ok!(con, "DEBUG", "RELOAD");
                }
                "DEBUG LOADAOF" => drop(ok!(con, "DEBUG", "LOADAOF")),
                "restart" => server.restart(),
                _ => {
                    let _ = cmd!(con, "SHUTDOWN", "SAVE");
                    server.restart();
                }
            }
            if number % 5 == 0 {
                println!("  {number} of {count}: {} in turn", what.join(", "));
            }
        }
        finish_all(worlds);
    });
}
