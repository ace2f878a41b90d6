//! Memory: a million messages come and go and leave nothing behind; a memory limit in the middle of traffic loses nothing.
//!
//! `RMQ_CYCLES` (1000000) messages, `RMQ_LIMITS` (15) times over the limit; `RMQ_SEED`.

mod common;
mod traffic;
use common::*;
use redis::{Connection, Pipeline, Value};
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::Duration;
use traffic::*;

const BLOCK: usize = 1000;
const DRAIN: Duration = Duration::from_secs(90);

#[test]
fn a_million_messages_that_come_and_go_leave_used_memory_flat() {
    let cycles = scaled("RMQ_CYCLES", 1_000_000);
    let blocks = (cycles / BLOCK).max(20);
    // The slow log keeps arguments, of which nobody knows when it lets go.
    let server = Server::builder().arg("slowlog-log-slower-than", "-1").start();
    let mut con = server.con();
    let mut rng = Rng::seeded();
    let mut used = Vec::new();
    for block in 0..blocks {
        live_and_die(&mut con, block, &mut rng);
        if (block + 1) % (blocks / 10) == 0 {
            ok!(con, "FLUSHALL");
            used.push(server.used_memory());
            println!(
                "  {} messages: used_memory {}",
                (block + 1) * BLOCK,
                used[used.len() - 1]
            );
        }
    }
    // The first tenth warms up tables and buffers, and buffers go on to breathe a little: the least of the last three
    // is compared with the most of the next three. One lost allocation in a thousand messages would show.
    let early = used[1..4].iter().max().expect("three values");
    let late = used[7..].iter().min().expect("three values");
    let grown = *late as i64 - *early as i64;
    println!("  grown by {grown} bytes since the second tenth");
    assert!(grown < 8 * 1024, "used_memory went from {early} to {late}: {used:?}");
    assert_eq!(server.info("rmq").get("rmq_panics").map(String::as_str), Some("0"));
}

/// A thousand messages, through every command, with every kind of refusal on the way.
fn live_and_die(con: &mut Connection, block: usize, rng: &mut Rng) {
    let ids: Vec<String> = (0..BLOCK).map(|n| format!("{block}-{n}")).collect();
    let mut publish = command!("RMQ.PUBLISH", "payloads", "q:pending");
    for id in &ids[100..] {
        publish.arg(id).arg(rng.bytes(64));
    }
    let mut pipe = redis::pipe();
    pipe.add_command(publish);
    for id in &ids[..100] {
        pipe.add_command(command!("RMQ.SCHEDULE", "payloads", "delays", id, "payload", "q", 0));
    }
    pipe.add_command(command!("RMQ.DELAYTICK", "delays", "payloads", BLOCK));
    run(con, &pipe);

    let held = reserve(con);
    assert_eq!(held.len(), BLOCK);
    let mut pipe = redis::pipe();
    for (n, (id, lease)) in held.iter().enumerate().take(500) {
        pipe.add_command(match n / 100 {
            0 => command!(
                "RMQ.NACK",
                "payloads",
                "delays",
                "expires",
                "q:processing",
                id,
                lease,
                0
            ),
            1 => command!(
                "RMQ.RETRY",
                "payloads",
                "delays",
                "expires",
                "q:processing",
                id,
                "again",
                0
            ),
            2 if n % 2 == 0 => command!(
                "RMQ.DEADLETTER",
                "dead",
                "dlq",
                "expires",
                "payloads",
                "q:processing",
                id,
                "dead",
                "q",
                "LEASE",
                lease
            ),
            2 => command!(
                "RMQ.PARSEERR",
                "errors:data",
                "errors",
                "q:processing",
                "expires",
                "payloads",
                id,
                "{",
                "q",
                "bad",
                1,
                1,
                100
            ),
            3 => command!("RMQ.EXTEND", "expires", id, lease, 60000),
            _ => command!("RMQ.ACK", "payloads", "q:processing", "expires", id, lease),
        });
    }
    let mut ack = command!("RMQ.ACK", "payloads", "q:processing", "expires");
    for (id, lease) in &held[500..] {
        ack.arg(id).arg(lease);
    }
    pipe.add_command(ack);
    pipe.add_command(command!(
        "RMQ.TIMEOUTS",
        "expires",
        "payloads",
        "99999999999999",
        60,
        "CLAIM",
        1
    ));
    pipe.add_command(command!("RMQ.TIMEOUTS", "expires", "payloads", "99999999999999", 50));
    pipe.add_command(command!(
        "RMQ.COMPLETE",
        "payloads",
        "q:processing",
        "expires",
        ids_of(&held[300..400])
    ));
    pipe.add_command(command!("RMQ.DELAYTICK", "delays", "payloads", BLOCK));
    pipe.add_command(command!("RMQ.REDRIVE", "dlq", "dead", "payloads", BLOCK));
    pipe.add_command(command!("RMQ.NEXTDELAY", "delays"));
    run(con, &pipe);

    for refused in [
        command!("RMQ.COMPLETE", "payloads", "payloads", "expires", "x"),
        command!(
            "RMQ.RETRY",
            "payloads",
            "delays",
            "expires",
            "q:processing",
            "gone",
            "x",
            0
        ),
        command!(
            "RMQ.RETRY",
            "delays",
            "payloads",
            "expires",
            "q:processing",
            "gone",
            "x",
            0
        ),
        command!("RMQ.TIMEOUTS", "expires", "payloads", "never", 10),
        command!("RMQ.DELAYTICK", "delays", "payloads", 0),
        command!("RMQ.PUBLISH", "payloads", "no-such-suffix", "x", "x"),
        command!("RMQ.ACK", "payloads", "q:processing", "expires", "x", "no lease"),
    ] {
        for _ in 0..2 {
            let reply = commands::top_error(redis::ConnectionLike::req_command(con, &refused));
            assert!(reply.is_err(), "{}", line_of(&refused));
        }
    }

    let rest = reserve(con);
    assert_eq!(rest.len(), 250, "200 tried again and 50 dead letters");
    run(
        con,
        redis::pipe().add_command(command!(
            "RMQ.COMPLETE",
            "payloads",
            "q:processing",
            "expires",
            ids_of(&rest)
        )),
    );
    let none = cmd!(
        con,
        "RMQ.RESERVE",
        "q:pending",
        "q:processing",
        "payloads",
        "expires",
        1000,
        "BLOCK",
        1
    );
    assert_eq!(none, Ok(Value::Nil));
    let left: Vec<usize> = ["q:pending", "q:processing"].map(|key| ask!(con, "LLEN", key)).to_vec();
    assert_eq!(left, [0, 0]);
}

fn reserve(con: &mut Connection) -> Vec<(String, String)> {
    let taken = ok!(
        con,
        "RMQ.RESERVE",
        "q:pending",
        "q:processing",
        "payloads",
        "expires",
        60000,
        "COUNT",
        BLOCK
    );
    let row = |row| {
        let row = items(row);
        (text(row[0].clone()), text(row[2].clone()))
    };
    items(taken).into_iter().map(row).collect()
}

fn ids_of(held: &[(String, String)]) -> Vec<&String> {
    held.iter().map(|(id, _)| id).collect()
}

/// All of them must succeed.
fn run(con: &mut Connection, pipe: &Pipeline) {
    let _: Vec<Value> = pipe.query(con).expect("every call of the block succeeds");
}

#[test]
fn a_memory_limit_in_the_middle_of_traffic_loses_nothing_and_drains_on() {
    let limits = scaled("RMQ_LIMITS", 15);
    let mut rng = Rng::seeded();
    let server = Server::start();
    scope(|scope| {
        let dial: Arc<Dial> = Arc::new(|| server.try_con().ok().map(|con| Single::link(con, 0)));
        let [leases, plain] = [Style::Leases, Style::Plain].map(|style| {
            let habits = Habits::of(style).deaths(1).not_now(&["OOM"]);
            Workers::start(scope, &format!("{style:?}"), &habits, &mut rng, dial.clone())
        });
        let mut con = server.con();
        let mut acked_over_the_limit = 0;
        for limit in 1..=limits {
            sleep(Duration::from_millis(rng.range(50..300) as u64));
            let acked = || server.info("rmq")["rmq_acked"].parse::<u64>().expect("a number");
            ok!(con, "CONFIG", "SET", "maxmemory", "100kb");
            let before = acked();
            sleep(Duration::from_millis(rng.range(50..400) as u64));
            acked_over_the_limit += acked() - before;
            ok!(con, "CONFIG", "SET", "maxmemory", 0);
            if limit % 5 == 0 {
                println!("  {limit} of {limits} times over the limit, {acked_over_the_limit} acknowledged meanwhile");
            }
        }
        let refused = server.info("errorstats").get("errorstat_OOM").cloned();
        println!("  refused: {refused:?}");
        assert!(refused.is_some(), "the limit was never felt");
        assert!(acked_over_the_limit > 0, "over the limit nothing was drained");
        for ledger in [leases.finish(DRAIN), plain.finish(DRAIN)] {
            println!("  {}", ledger.report());
            ledger.assert_nothing_lost_and_nothing_unexplained();
        }
    });
}
