//! The module comes and goes while traffic runs: whatever the workers are told, nothing acknowledged is lost.
//!
//! `RMQ_UNLOADS` (20); `RMQ_SEED`.

mod common;
mod traffic;
use common::*;
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use traffic::*;

#[test]
fn the_module_is_unloaded_and_loaded_again_under_traffic() {
    let unloads = scaled("RMQ_UNLOADS", 20);
    let mut rng = Rng::seeded();
    let server = Server::start();
    let module = server::module().to_str().unwrap();
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| server.try_con().ok().map(|con| Single::link(con, 0)));
        let [leases, plain] = [Style::Leases, Style::Plain].map(|style| {
            let habits = Habits::of(style).deaths(1).not_now(&["ERR unknown command"]);
            Workers::start(scope, &format!("{style:?}"), &habits, &mut rng, dial.clone())
        });
        let mut con = server.con();
        let mut refused = 0;
        for unload in 1..=unloads {
            sleep(Duration::from_millis(rng.range(50..250) as u64));
            let end = Instant::now() + deadline();
            loop {
                match cmd!(con, "MODULE", "UNLOAD", "rmq") {
                    Ok(_) => break,
                    Err(error) => {
                        // A client waits in RESERVE, in the module's own code.
                        let error = error_text(&error);
                        assert!(error.contains("blocked"), "{error}");
                        assert!(Instant::now() < end, "always refused: {error}");
                        refused += 1;
                        sleep(Duration::from_micros(rng.below(2000) as u64));
                    }
                }
            }
            con = server.con();
            assert!(err!(con, "RMQ.NEXTDELAY", "x").starts_with("ERR unknown command"));
            sleep(Duration::from_millis(rng.range(0..50) as u64));
            ok!(con, "MODULE", "LOAD", module);
            ok!(con, "RMQ.NEXTDELAY", "x");
            if unload % 5 == 0 {
                println!(
                    "  unloaded and loaded {unload} of {unloads} times, refused {refused} times while clients waited"
                );
            }
        }
        for ledger in [
            leases.finish(Duration::from_secs(90)),
            plain.finish(Duration::from_secs(90)),
        ] {
            println!("  {}", ledger.report());
            ledger.assert_nothing_lost_and_nothing_unexplained();
        }
    });
}

#[test]
fn the_module_is_not_unloaded_under_a_client_that_waits_and_the_client_is_served_after_all() {
    let server = Server::start();
    let mut con = server.con();
    let mut waiting = Raw::connect(&server);
    waiting.send(&[
        "RMQ.RESERVE",
        "q:pending",
        "q:processing",
        "payloads",
        "expires",
        "1000",
        "BLOCK",
        "0",
    ]);
    let blocked = || server.info("clients")["blocked_clients"] == "1";
    assert!(eventually(deadline(), blocked));
    let refusal = err!(con, "MODULE", "UNLOAD", "rmq");
    assert!(refusal.contains("blocked"), "{refusal}");
    ok!(con, "RMQ.PUBLISH", "payloads", "q:pending", "a", "1");
    assert!(matches!(waiting.read(), Reply::Array(rows) if rows.len() == 1));
    con = server.unload();
    ok!(con, "MODULE", "LOAD", server::module().to_str().unwrap());
    let keys: Vec<String> = ask!(con, "LRANGE", "q:processing", 0, -1);
    assert_eq!(keys, ["a"]);
}

/// The server remembers each client's last command, also when that command is gone.
#[test]
fn the_clients_can_be_listed_after_the_module_is_gone_and_while_it_comes_and_goes() {
    let server = Server::start();
    let module = server::module().to_str().unwrap();
    for round in 0..30 {
        // Idle since their call of a command that is gone afterwards.
        let mut idle: Vec<_> = (0..20).map(|_| server.con()).collect();
        for con in &mut idle {
            ok!(con, "RMQ.NEXTDELAY", "delays");
        }
        let mut con = server.unload();
        // What was freed is used for other things.
        for n in 0..200 {
            ok!(con, "SET", format!("key{n}"), "x".repeat(8 * (n % 60) + round % 7));
        }
        let clients: String = ask!(con, "CLIENT", "LIST");
        assert!(clients.lines().all(|client| client.contains(" cmd=")), "{clients}");
        ok!(con, "MODULE", "LOAD", module);
    }
}
