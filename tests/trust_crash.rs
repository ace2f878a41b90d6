//! Crashes: the server by SIGKILL, consumers and the reaper between any two steps. Nothing that was acknowledged is lost.
//!
//! `RMQ_KILLS` (50) kills of the server; `RMQ_SECONDS` (15) of dying workers; `RMQ_SEED`.

mod common;
mod traffic;
use common::*;
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use traffic::*;

const DRAIN: Duration = Duration::from_secs(90);

#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let kills = scaled("RMQ_KILLS", 50);
    let mut rng = Rng::seeded();
    let server = Server::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .start();
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| server.try_con().ok().map(|con| Single::link(con, 0)));
        let leases = Workers::start(scope, "leases", &Habits::of(Style::Leases), &mut rng, dial.clone());
        let plain = Workers::start(scope, "plain", &Habits::of(Style::Plain), &mut rng, dial);
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
        finish([("leases", leases), ("plain", plain)]);
    });
}

#[test]
fn nothing_acknowledged_is_lost_when_consumers_and_the_reaper_die_between_any_two_steps() {
    let seconds = scaled("RMQ_SECONDS", 15);
    let mut rng = Rng::seeded();
    let server = Server::start();
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| server.try_con().ok().map(|con| Single::link(con, 0)));
        let habits = |style| Habits::of(style).deaths(5);
        let leases = Workers::start(scope, "leases", &habits(Style::Leases), &mut rng, dial.clone());
        let plain = Workers::start(scope, "plain", &habits(Style::Plain), &mut rng, dial);
        sleep(Duration::from_secs(seconds as u64));
        for (name, workers) in [("leases", &leases), ("plain", &plain)] {
            workers.go_on_until(|report| report.deaths > seconds);
            println!("  {} workers of '{name}' died", workers.ledger.report().deaths);
        }
        finish([("leases", leases), ("plain", plain)]);
    });
}

fn finish<'s>(worlds: [(&str, Workers<'s>); 2]) {
    let start = Instant::now();
    let ledgers = worlds.map(|(name, workers)| (name, workers.finish(DRAIN)));
    println!("  drained after {:.1} s", start.elapsed().as_secs_f64());
    for (name, ledger) in &ledgers {
        let report = ledger.report();
        println!("  {name}: {report}");
        assert!(report.redelivered > 0 && report.claimed > 0, "no failure was ever felt");
    }
    for (_, ledger) in ledgers {
        ledger.assert_nothing_lost_and_nothing_unexplained();
    }
}

/// The window that CLAIM closes: what the traffic above would lose with a reaper that dies at the wrong moment.
#[test]
fn a_reaper_that_dies_takes_a_message_with_it_unless_it_claimed_it() {
    let server = Server::start();
    let mut con = server.con();
    for (claim, comes_again) in [(false, false), (true, true)] {
        ok!(con, "FLUSHALL");
        ok!(con, "RMQ.PUBLISH", "payloads", "q:pending", "a", "payload a");
        ok!(
            con,
            "RMQ.RESERVE",
            "q:pending",
            "q:processing",
            "payloads",
            "expires",
            1
        );
        sleep(Duration::from_millis(3));
        let mut timeouts = command!("RMQ.TIMEOUTS", "expires", "payloads", "*", 10);
        if claim {
            timeouts.arg("CLAIM").arg(1);
        }
        let told = text_rows(timeouts.query(&mut server.con()).unwrap());
        assert_eq!(told, [["a", "payload a", "q"]]);
        // The reaper is gone. Another looks again.
        sleep(Duration::from_millis(3));
        let again = text_rows(timeouts.query(&mut con).unwrap());
        assert_eq!(again.len(), usize::from(comes_again), "claim: {claim}");
    }
}
