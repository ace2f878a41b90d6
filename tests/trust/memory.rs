//! Memory: a million messages come and go and leave nothing behind, waiting clients neither; a memory limit in the middle of
//! traffic loses nothing.
//!
//! `RMQ_CYCLES` (1000000) messages, `RMQ_LIMITS` (15) times over the limit; `RMQ_SEED`.

use crate::common::*;
use crate::traffic::*;
use redis::{Connection, Pipeline, Value};
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::Duration;

const BLOCK: usize = 1000;

#[test]
fn a_million_messages_that_come_and_go_leave_used_memory_flat() {
    let cycles = scaled("RMQ_CYCLES", 1_000_000);
    let blocks = (cycles / BLOCK).max(20);
    // The slow log keeps arguments for an unknown time.
    let server = Server::builder().arg("slowlog-log-slower-than", "-1").start();
    let mut rng = Rng::seeded();
    let mut used = Vec::new();
    for tenth in 0..10 {
        let mut con = server.con();
        let mut waiters: Vec<Raw> = (0..10).map(|_| Raw::connect(&server)).collect();
        for block in tenth * blocks / 10..(tenth + 1) * blocks / 10 {
            live_and_die(&mut con, block, &mut rng);
            wait_and_leave(&mut con, &mut waiters, block);
            look_and_mend(&mut con, block);
        }
        ok!(con, "FLUSHALL");
        // Clients' buffers grow and shrink when the server likes, and the server frees the clients that it keeps for blocked
        // ones a little later: memory at rest is read without the former, and after some turns of the latter.
        drop((con, waiters));
        assert!(eventually(deadline(), || server.info("clients")["connected_clients"] == "1"));
        let looks = (0..5).map(|_| {
            sleep(Duration::from_millis(110));
            server.used_memory()
        });
        used.push(looks.min().expect("some looks"));
        println!("  {} messages: used_memory {}", (tenth + 1) * blocks / 10 * BLOCK, used[tenth]);
    }
    // The first tenth warms up tables and buffers, and buffers vary a little: the least of the last three
    // is compared with the most of the next three. One lost allocation in a thousand messages would show.
    let early = used[1..4].iter().max().expect("three values");
    let late = used[7..].iter().min().expect("three values");
    let grown = *late as i64 - *early as i64;
    println!("  grown by {grown} bytes since the second tenth");
    assert!(grown < 8 * 1024, "used_memory went from {early} to {late}: {used:?}");
    let info = server.info("rmq");
    assert_eq!(["rmq_panics", "rmq_waiting_clients", "rmq_timers"].map(|name| &info[name][..]), ["0", "0", "0"]);
}

/// Some are served, by a timer or at once, some time out, and one loses its permission; in a namespace of their own.
fn wait_and_leave(con: &mut Connection, waiters: &mut [Raw], block: usize) {
    let ns = format!("waiters-{}", block % 7);
    for (n, waiter) in waiters.iter_mut().enumerate() {
        let wait = if n < 5 { "0" } else { "1" };
        let queue = if n < 5 { "q" } else { "nothing" };
        waiter.send(&["RMQ.RESERVE", &ns, "1000", "BLOCK", wait, "FROM", "urgent", queue]);
    }
    for n in 0..5 {
        let id = format!("{block}-{n}");
        match n {
            0 | 1 => ok!(con, "RMQ.PUBLISH", &ns, "DELAY", n, "TO", "q", id, "payload"),
            _ => ok!(con, "RMQ.PUBLISH", &ns, "ONCE", 1, "TO", "q", id, "payload"),
        };
    }
    let replies: Vec<Reply> = waiters.iter_mut().map(Raw::read).collect();
    assert_eq!(replies.iter().filter(|reply| matches!(reply, Reply::Array(_))).count(), 5, "{replies:?}");
    // Entries of ONCE go when their time is over and somebody publishes with ONCE.
    sleep(Duration::from_millis(2));
    ok!(con, "RMQ.PUBLISH", &ns, "ONCE", 1, "TO", "q", format!("last-{block}"), "payload");
    let entries: usize = ask!(con, "ZCARD", format!("{ns}:once"));
    assert_eq!(entries, 1);
    ok!(con, "RMQ.RESERVE", &ns, 1, "FROM", "q");
}

/// Messages that are cancelled, rescheduled, purged and repaired, in a namespace of their own of which nothing is left.
fn look_and_mend(con: &mut Connection, block: usize) {
    let ns = format!("mended-{}", block % 7);
    let key = |name: &str| format!("{ns}:{name}");
    let ids: Vec<String> = (0..90).map(|n| format!("{block}-{n}")).collect();
    let [pending, delayed, held] = [&ids[..40], &ids[40..60], &ids[60..]];
    let messages = |ids: &[String]| ids.iter().flat_map(|id| [id.clone(), "payload".to_string()]).collect::<Vec<_>>();
    let mut pipe = redis::pipe();
    pipe.add_command(command!("RMQ.PUBLISH", &ns, "TO", "q", messages(held)));
    pipe.add_command(command!("RMQ.RESERVE", &ns, 60000, "COUNT", held.len(), "FROM", "q"));
    pipe.add_command(command!("RMQ.PUBLISH", &ns, "ONCE", 60000, "TO", "q", messages(pending)));
    pipe.add_command(command!("RMQ.PUBLISH", &ns, "DELAY", 60000, "ONCE", 60000, "TO", "q", messages(delayed)));
    // Faults of every kind.
    pipe.add_command(command!("LPUSH", key("q:pending"), &delayed[0], &pending[1], "stale"));
    pipe.add_command(command!("LPUSH", key("q:processing"), "stale", &pending[2]));
    pipe.add_command(command!("LREM", key("q:pending"), 0, &pending[3]));
    pipe.add_command(command!("ZREM", key("expires"), &held[0]));
    pipe.add_command(command!("ZADD", key("expires"), 1, "stale"));
    pipe.add_command(command!("ZADD", key("delays"), 1, "stale"));
    pipe.add_command(command!("HSET", key("payloads"), "stale:attempts", "1-1"));
    pipe.add_command(command!("HSET", key("dlq:data"), "letter", "payload", "letter:queue", key("q")));
    pipe.add_command(command!("LPUSH", key("dlq"), "stale"));
    for look in ["PENDING q", "PROCESSING q", "DELAYED", "DELAYED q", "OVERDUE", "DEAD", "DEAD q"] {
        pipe.add_command(command!("RMQ.PEEK", &ns, "COUNT", 100, look.split(' ').collect::<Vec<_>>()));
    }
    pipe.add_command(command!("RMQ.PEEK", &ns, "NOPAYLOAD", "IDS", &ids, "letter", "unknown"));
    pipe.add_command(command!("RMQ.AUDIT", &ns));
    pipe.add_command(command!("RMQ.REPAIR", &ns, "COUNT", 50));
    pipe.add_command(command!("RMQ.REPAIR", &ns));
    run(con, &pipe);
    let healthy = ok!(con, "RMQ.AUDIT", &ns);
    assert_eq!(healthy, Value::Array(vec![Value::Int(0), Value::Array(Vec::new())]));

    let mut pipe = redis::pipe();
    pipe.add_command(command!("RMQ.RESCHEDULE", &ns, 1000, "IDS", &pending[..10], "unknown"));
    pipe.add_command(command!("RMQ.RESCHEDULE", &ns, 0, "IDS", &delayed[..10], &held[0]));
    pipe.add_command(command!("RMQ.CANCEL", &ns, "WAITING", "IDS", &ids[..10], &held[..3], "unknown"));
    pipe.add_command(command!("RMQ.CANCEL", &ns, "IDS", held));
    pipe.add_command(command!("RMQ.STATS", &ns));
    pipe.add_command(command!("RMQ.STATS", &ns, "q", "nothing"));
    for purge in ["COUNT 5 PENDING q", "PENDING q", "COUNT 5 DELAYED q", "DELAYED", "COUNT 1 DEAD q", "DEAD"] {
        pipe.add_command(command!("RMQ.PURGE", &ns, purge.split(' ').collect::<Vec<_>>()));
    }
    run(con, &pipe);
    let left: Vec<String> = ask!(con, "KEYS", key("*"));
    assert_eq!(left, [""; 0]);
    ok!(con, "SET", key("q:processing"), "of another type");
    ok!(con, "RMQ.PUBLISH", &ns, "TO", "q", "last", "payload");
    assert!(cmd!(con, "RMQ.CANCEL", &ns, "IDS", "last").is_err());
    assert!(cmd!(con, "RMQ.RESCHEDULE", &ns, 5, "IDS", "last").is_err());
    assert!(cmd!(con, "RMQ.STATS", &ns, "q").is_err());
    ok!(con, "DEL", key("q:processing"));
    assert_eq!(strings(ok!(con, "RMQ.CANCEL", &ns, "IDS", "last")), ["pending"]);
}

/// A thousand messages, through every command, with every kind of refusal on the way.
fn live_and_die(con: &mut Connection, block: usize, rng: &mut Rng) {
    let ids: Vec<String> = (0..BLOCK).map(|n| format!("{block}-{n}")).collect();
    let mut publish = command!("RMQ.PUBLISH", "m", "TO", "q");
    for id in &ids[100..] {
        publish.arg(id).arg(rng.bytes(64));
    }
    let mut pipe = redis::pipe();
    pipe.add_command(publish);
    for id in &ids[..100] {
        pipe.add_command(command!("RMQ.PUBLISH", "m", "DELAY", 0, "ONCE", 1, "TO", "q", id, "payload"));
    }
    pipe.add_command(command!("RMQ.DELAYTICK", "m:delays", "m:payloads", BLOCK));
    pipe.add_command(command!("RMQ.POLICY", "m", "q", "ATTEMPTS", 3, "BACKOFF", 0, 0));
    run(con, &pipe);

    let held = reserve(con);
    assert_eq!(held.len(), BLOCK);
    let parse_error =
        command!("RMQ.PARSEERR", "m:errors:data", "m:errors", "m:q:processing", "m:expires", "m:payloads");
    let mut pipe = redis::pipe();
    for (n, (id, receipt)) in held.iter().enumerate().take(500) {
        pipe.add_command(match (n / 100, n % 4) {
            (0, 0) => command!("RMQ.RELEASE", "m", id, receipt),
            (0, 1) => command!("RMQ.NACK", "m", id, receipt, "DELAY", 0, "PAYLOAD", "again"),
            (0, _) => command!("RMQ.NACK", "m", id, receipt, "ERROR", "no route"),
            (1, _) => command!("RMQ.RETRY", "m:payloads", "m:delays", "m:expires", "m:q:processing", id, "again", 0),
            (2, 0) => command!("RMQ.NACK", "m", id, receipt, "DEAD", "ERROR", "no hope"),
            (2, 1) => {
                command!(
                    "RMQ.DEADLETTER",
                    "m:dlq:data",
                    "m:dlq",
                    "m:expires",
                    "m:payloads",
                    "m:q:processing",
                    id,
                    "dead"
                )
            }
            (2, _) => parse_error.clone().arg(id).arg(&["{", "q", "bad", "1", "1", "100"]).clone(),
            (3, _) => command!("RMQ.EXTEND", "m", 60000, id, receipt),
            _ => command!("RMQ.ACK", "m", id, receipt),
        });
    }
    let mut ack = command!("RMQ.ACK", "m");
    for (id, receipt) in &held[500..] {
        ack.arg(id).arg(receipt);
    }
    pipe.add_command(ack);
    pipe.add_command(command!("RMQ.TIMEOUTS", "m:expires", "m:payloads", "99999999999999", 60, "CLAIM", 1));
    pipe.add_command(command!("RMQ.TIMEOUTS", "m:expires", "m:payloads", "99999999999999", 50));
    pipe.add_command(command!("RMQ.COMPLETE", "m:payloads", "m:q:processing", "m:expires", ids_of(&held[300..400])));
    pipe.add_command(command!("RMQ.REDRIVE", "m", "COUNT", 10, "QUEUE", "q"));
    pipe.add_command(command!("RMQ.REDRIVE", "m", "IDS", ids_of(&held[200..300])));
    pipe.add_command(command!("RMQ.NEXTDELAY", "m:delays"));
    pipe.add_command(command!("RMQ.POLICY", "m"));
    pipe.add_command(command!("RMQ.POLICY", "m", "q", "RESET"));
    run(con, &pipe);

    for refused in [
        command!("RMQ.COMPLETE", "m:payloads", "m:payloads", "m:expires", "x"),
        command!("RMQ.RETRY", "m:payloads", "m:delays", "m:expires", "m:q:processing", "gone", "x", 0),
        command!("RMQ.RETRY", "m:delays", "m:payloads", "m:expires", "m:q:processing", "gone", "x", 0),
        command!("RMQ.TIMEOUTS", "m:expires", "m:payloads", "never", 10),
        command!("RMQ.DELAYTICK", "m:delays", "m:payloads", 0),
        command!("RMQ.PUBLISH", "m", "TO", "a:b", "x", "x"),
        command!("RMQ.PUBLISH", "m", "TO", "other", &held[0].0, "x"),
        command!("RMQ.RESERVE", "m", 1000, "FROM"),
        command!("RMQ.RESERVE", "m", 1000, "BLOCK", -1, "FROM", "q"),
        command!("RMQ.ACK", "m", "x", "no receipt"),
        command!("RMQ.POLICY", "m", "q", "BACKOFF", 5, 4),
        command!("RMQ.STATS", "m", "a:b"),
        command!("RMQ.PEEK", "m", "OFFSET", 1, "IDS", "x"),
        command!("RMQ.CANCEL", "m", "IDS", "x:queue"),
        command!("RMQ.RESCHEDULE", "m", -1, "IDS", "x"),
        command!("RMQ.PURGE", "m", "PENDING"),
        command!("RMQ.AUDIT", "m", "CURSOR", "9223372036854775807"),
        command!("RMQ.REPAIR", "m", "COUNT", 0),
    ] {
        for _ in 0..2 {
            let reply = send!(con, &refused);
            assert!(reply.is_err(), "{}", line_of(&refused));
        }
    }

    // What is due or overdue is moved a hundred at a time.
    let mut rest = reserve(con);
    rest.extend(reserve(con));
    assert_eq!(rest.len(), 250, "200 tried again and 50 dead letters");
    run(
        con,
        redis::pipe().add_command(command!("RMQ.COMPLETE", "m:payloads", "m:q:processing", "m:expires", ids_of(&rest))),
    );
    let none = cmd!(con, "RMQ.RESERVE", "m", 1000, "BLOCK", 1, "FROM", "q", "r");
    assert_eq!(none, Ok(Value::Nil));
    let left: Vec<usize> = ["m:q:pending", "m:q:processing"].map(|key| ask!(con, "LLEN", key)).to_vec();
    assert_eq!(left, [0, 0]);
}

/// Ids and receipts.
fn reserve(con: &mut Connection) -> Vec<(String, String)> {
    let taken = ok!(con, "RMQ.RESERVE", "m", 60000, "COUNT", BLOCK, "FROM", "q");
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
        let dial: Arc<Dial> = Arc::new(|| server.try_con().ok().map(|con| Single::link(con, Safe::AtOnce)));
        let worlds = STYLES.map(|style| {
            let habits = Habits::of(style).deaths(1).not_now(&["OOM"]);
            Workers::of(scope, &habits, &mut rng, &dial)
        });
        let mut con = server.con();
        let mut acked_over_the_limit = 0;
        // Some more where a slow machine did too little in them.
        for limit in 1..=limits + 20 {
            if limit > limits && acked_over_the_limit > 0 {
                break;
            }
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
        finish_all(worlds);
    });
}
