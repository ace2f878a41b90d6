//! Replicas and persistence under load: a replica needs no module, a failover loses nothing that WAIT 1 confirmed, and
//! the data set may be rewritten, reloaded or loaded again in the middle of traffic.
//!
//! `RMQ_FAILOVERS` (6), `RMQ_RELOADS` (20); `RMQ_SEED`.

mod common;
mod traffic;
use common::*;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::Duration;
use traffic::*;

const DRAIN: Duration = Duration::from_secs(90);

#[test]
fn a_replica_without_the_module_ends_with_the_same_data_in_the_middle_of_traffic() {
    let mut rng = Rng::seeded();
    let primary = Server::start();
    let replica = Replica::of(&primary);
    for round in 1..=3 {
        scope(|scope| {
            let dial: Arc<Dial> = Arc::new(|| primary.try_con().ok().map(|con| Single::link(con, 0)));
            let [leases, plain] = [Style::Leases, Style::Plain].map(|style| {
                let habits = Habits::of(style).deaths(3);
                Workers::start(scope, &format!("{style:?}{round}"), &habits, &mut rng, dial.clone())
            });
            sleep(Duration::from_secs(2));
            leases.stop();
            plain.stop();
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
            Some(Single::link(con, 1))
        });
        let [leases, plain] = [Style::Leases, Style::Plain]
            .map(|style| Workers::start(scope, &format!("{style:?}"), &Habits::of(style), &mut rng, dial.clone()));
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
                for workers in [&leases, &plain] {
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
            let how = if promote_first {
                "promoted, then killed"
            } else {
                "killed, then promoted"
            };
            let when = if module_from_the_start { "before" } else { "after" };
            println!("  failover {failover} of {failovers}: {how}; module loaded {when} it");
        }
        // What waits for confirmation gets it.
        let last = Replica::of(replicas.last().map_or(&primary, |replica| replica));
        let ledgers = [leases.finish(DRAIN), plain.finish(DRAIN)];
        last.wait_synced();
        assert_eq!(last.digest(), replicas.last().expect("a failover").digest());
        for ledger in &ledgers {
            println!("  {}", ledger.report());
        }
        for ledger in ledgers {
            ledger.assert_nothing_lost_and_nothing_unexplained();
        }
    });
}

#[test]
fn the_aof_may_be_rewritten_and_loaded_in_the_middle_of_traffic() {
    let server = Server::builder().arg("appendonly", "yes").arg("appendfsync", "always");
    under_traffic(
        &server.start(),
        &["BGREWRITEAOF", "DEBUG LOADAOF", "DEBUG RELOAD", "restart"],
    );
}

#[test]
fn an_rdb_file_may_be_written_and_loaded_in_the_middle_of_traffic() {
    under_traffic(
        &Server::start(),
        &["BGSAVE", "DEBUG RELOAD", "SHUTDOWN SAVE and restart"],
    );
}

fn under_traffic(server: &Server, what: &[&str]) {
    let count = scaled("RMQ_RELOADS", 20);
    let mut rng = Rng::seeded();
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| server.try_con().ok().map(|con| Single::link(con, 0)));
        let [leases, plain] = [Style::Leases, Style::Plain].map(|style| {
            let habits = Habits::of(style).deaths(1);
            Workers::start(scope, &format!("{style:?}"), &habits, &mut rng, dial.clone())
        });
        for number in 1..=count {
            sleep(Duration::from_millis(rng.range(50..300) as u64));
            let mut con = server.con();
            match what[number % what.len()] {
                // Refused while another one runs.
                name @ ("BGREWRITEAOF" | "BGSAVE") => drop(cmd!(con, name)),
                "DEBUG RELOAD" => drop(ok!(con, "DEBUG", "RELOAD")),
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
        let ledgers = [leases.finish(DRAIN), plain.finish(DRAIN)];
        for ledger in &ledgers {
            println!("  {}", ledger.report());
        }
        for ledger in ledgers {
            ledger.assert_nothing_lost_and_nothing_unexplained();
        }
    });
}
