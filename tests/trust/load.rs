//! How long a call blocks the server when a great deal is due: a million delayed messages, a hundred thousand stuck.
//! The server's own SLOWLOG measures, and the kernel says how much of that the server was on a processor: the rest
//! belongs to whatever else runs on the machine. All calls of a row do the same work, and a busy machine makes each of
//! them slower, never faster: so the bound holds for the fastest.
//!
//! `RMQ_MESSAGES` (1000000) delayed; a tenth of that is stuck.

use crate::common::*;
use crate::traffic::{clock_ms, scaled};
use redis::{Cmd, Connection};

/// What no call with a batch of 1000 may take longer than.
const BOUND_US: u64 = 20_000;
const QUEUES: usize = 4;

struct Row {
    what: String,
    batch: usize,
    /// By the server's clock, sorted, in microseconds.
    times: Vec<u64>,
    /// On the processor, the same.
    worked: Vec<u64>,
}

fn at(times: &[u64], percent: usize) -> u64 {
    times[(times.len() - 1) * percent / 100]
}

struct Lab {
    server: Server,
    con: Connection,
    rows: Vec<Row>,
}

impl Lab {
    /// Runs a call many times; what it took is what the server says.
    fn measure(&mut self, what: &str, batch: usize, calls: usize, mut call: impl FnMut(usize) -> Cmd) {
        ok!(self.con, "SLOWLOG", "RESET");
        let mut name = String::new();
        let mut worked = Vec::new();
        for number in 0..calls {
            let call = call(number);
            let before = self.server.on_processor();
            name = line_of(&call).split(' ').next().unwrap_or_default().to_string();
            let reply = send!(self.con, &call);
            let reply = reply.unwrap_or_else(|e| panic!("{what}: {e}"));
            if let redis::Value::Array(items) = &reply {
                assert!(!items.is_empty(), "{what}: call {number} of {calls} found nothing to do");
            }
            worked.push(self.server.on_processor() - before);
        }
        worked.sort_unstable();
        let mut times = Vec::new();
        for entry in items(ok!(self.con, "SLOWLOG", "GET", -1)) {
            let entry = items(entry);
            if text(items(entry[3].clone()).remove(0)) == name {
                times.push(text(entry[2].clone()).parse().expect("microseconds"));
            }
        }
        assert_eq!(times.len(), calls, "{what}: the slow log has every call");
        times.sort_unstable();
        println!("  {what}, batch {batch}: median {} µs of {calls} calls", at(&times, 50));
        let what = what.into();
        self.rows.push(Row { what, batch, times, worked });
    }

    fn print(&self) {
        let version = self.server.version();
        let kind = if self.server.is_valkey() { "Valkey" } else { "Redis" };
        println!("\n{kind} {}.{}.{}, times in ms\n", version.0, version.1, version.2);
        println!(
            "| call | batch | calls | on the processor: fastest | median | by the clock: median | 99 % | longest |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        for row in &self.rows {
            let ms = |us: u64| format!("{:.2}", us as f64 / 1000.0);
            let (what, batch, calls) = (&row.what, row.batch, row.times.len());
            let [fastest, worked] = [0, 50].map(|percent| ms(at(&row.worked, percent)));
            let [median, most, longest] = [50, 99, 100].map(|percent| ms(at(&row.times, percent)));
            println!("| {what} | {batch} | {calls} | {fastest} | {worked} | {median} | {most} | {longest} |");
        }
        println!();
    }
}

fn id(n: usize) -> String {
    format!("01890a5d-ac96-774b-bcce-{n:012}")
}

/// In chunks, as plain commands: `command key` with the arguments of many messages.
fn fill(con: &mut Connection, count: usize, command: &str, key: &str, args: impl Fn(usize) -> Vec<String>) {
    const CHUNK: usize = 1000;
    for start in (0..count).step_by(CHUNK * 20) {
        let mut pipe = redis::pipe();
        for from in (start..count.min(start + CHUNK * 20)).step_by(CHUNK) {
            let all: Vec<String> = (from..count.min(from + CHUNK)).flat_map(&args).collect();
            pipe.add_command(command!(command, key, all)).ignore();
        }
        let _: () = pipe.query(con).expect("plain commands");
    }
}

#[test]
fn no_call_with_a_batch_of_1000_blocks_the_server_longer_than_20_ms_at_a_million_due_and_100000_stuck() {
    let delayed = scaled("RMQ_MESSAGES", 1_000_000);
    let stuck = delayed / 10;
    let server = Server::builder().arg("slowlog-log-slower-than", "0").arg("slowlog-max-len", "100000").start();
    let con = server.con();
    let mut lab = Lab { server, con, rows: Vec::new() };
    let con = &mut lab.con;

    println!("  filling in {delayed} due and four times {stuck} stuck");
    fill(con, delayed, "HSET", "m:payloads", |n| {
        vec![id(n), "x".repeat(100), id(n) + ":queue", format!("m:q{}", n % QUEUES)]
    });
    fill(con, delayed, "ZADD", "m:delays", |n| vec![(n + 1).to_string(), id(n)]);
    // Expired in the order of the list, oldest at the right; and the other way round, which is the
    // longest way to each.
    for (name, newest_first) in [("old", false), ("new", true), ("kept", false), ("leased", true)] {
        let id = |n| format!("{name}-{}", id(n));
        let payload = |n| vec![id(n), "x".repeat(100), id(n) + ":queue", format!("{name}:q")];
        fill(con, stuck, "HSET", &format!("{name}:payloads"), payload);
        fill(con, stuck, "LPUSH", &format!("{name}:q:processing"), |n| vec![id(n)]);
        let rank = |n: usize| if newest_first { stuck - n } else { n + 1 };
        fill(con, stuck, "ZADD", &format!("{name}:expires"), |n| vec![format!("{}.5", rank(n)), id(n)]);
    }

    let calls = |batch: usize, most: usize, of: usize| most.min(of / batch / 3).max(5);
    for batch in [100, 1000] {
        let n = calls(batch, 200, delayed);
        lab.measure("DELAYTICK", batch, n, |_| command!("RMQ.DELAYTICK", "m:delays", "m:payloads", batch));
        let n = calls(batch, 30, stuck);
        for (name, about) in [("old", "oldest first"), ("new", "newest first")] {
            let (expires, payloads) = (format!("{name}:expires"), format!("{name}:payloads"));
            lab.measure(&format!("TIMEOUTS, {about}"), batch, n, |_| {
                command!("RMQ.TIMEOUTS", &expires, &payloads, "*", batch)
            });
        }
        // Each takes the next in order: what is claimed moves to the end.
        lab.measure("TIMEOUTS CLAIM", batch, n, |_| {
            command!("RMQ.TIMEOUTS", "kept:expires", "kept:payloads", "*", batch, "CLAIM", 600000)
        });
    }
    let kept = |n: usize| format!("kept-{}", id(n));
    let middle = stuck / 2;
    lab.measure("COMPLETE, oldest", 1, 100, |n| {
        command!("RMQ.COMPLETE", "kept:payloads", "kept:q:processing", "kept:expires", kept(n))
    });
    lab.measure("COMPLETE, in the middle", 1, 100, |n| {
        command!("RMQ.COMPLETE", "kept:payloads", "kept:q:processing", "kept:expires", kept(middle + n))
    });
    lab.measure("RETRY, in the middle", 1, 100, |n| {
        let id = kept(middle + 100 + n);
        command!("RMQ.RETRY", "kept:payloads", "kept:delays", "kept:expires", "kept:q:processing", id, "again", 0)
    });
    lab.measure("COMPLETE, all over", 1000, 10, |n| {
        let ids: Vec<String> = (0..1000).map(|i| kept((middle + 300 + n * 7 + i * 31) % stuck)).collect();
        command!("RMQ.COMPLETE", "kept:payloads", "kept:q:processing", "kept:expires", ids)
    });
    // Each also moves a hundred that are due; and in the second row takes back a hundred whose lease has run out.
    lab.measure("RESERVE COUNT", 1000, 20, |_| command!("RMQ.RESERVE", "m", 60000, "COUNT", 1000, "FROM", "q0", "q1"));
    lab.measure("RESERVE COUNT, leases over", 100, 20, |_| {
        command!("RMQ.RESERVE", "leased", 600000, "COUNT", 100, "FROM", "q")
    });
    lab.measure("PUBLISH", 1000, 20, |call| {
        let messages: Vec<String> = (0..1000).flat_map(|n| [format!("p-{call}-{n}"), "x".repeat(100)]).collect();
        command!("RMQ.PUBLISH", "m", "TO", "q1", messages)
    });
    fill(&mut lab.con, 20_000, "LPUSH", "m:dlq", |n| vec![format!("d-{n}")]);
    fill(&mut lab.con, 20_000, "HSET", "m:dlq:data", |n| {
        vec![format!("d-{n}"), "x".repeat(100), format!("d-{n}:queue"), "m:q2".into()]
    });
    lab.measure("REDRIVE", 1000, 20, |_| command!("RMQ.REDRIVE", "m", "COUNT", 1000));

    lab.print();
    for row in lab.rows.iter().filter(|row| row.batch >= 100) {
        let fastest = at(&row.worked, 0);
        assert!(fastest <= BOUND_US, "{}, batch {}: the fastest call worked for {fastest} µs", row.what, row.batch);
    }
}

/// Nobody but the server moves what is due; no step of its timer blocks it for long, and the wait is short.
#[test]
fn what_is_due_at_once_reaches_one_waiting_worker_and_a_thousand_others_cost_next_to_nothing() {
    let messages = scaled("RMQ_MESSAGES", 1_000_000) / 50;
    let server = Server::start();
    let mut con = server.con();
    let idle: Vec<Raw> = (0..1000)
        .map(|_| {
            let mut waiter = Raw::connect(&server);
            waiter.send(&["RMQ.RESERVE", "m", "60000", "BLOCK", "0", "FROM", "nothing", "comes"]);
            waiter
        })
        .collect();
    assert!(eventually(deadline(), || server.info("rmq")["rmq_waiting_clients"] == "1000"));
    let due = clock_ms() + 3000.0;
    fill(&mut con, messages, "HSET", "m:payloads", |n| vec![id(n), "x".repeat(100), id(n) + ":queue", "m:q".into()]);
    fill(&mut con, messages, "ZADD", "m:delays", |n| vec![format!("{due:.0}"), id(n)]);
    assert!(clock_ms() < due, "the machine is too slow to prepare this");
    let mut taken = 0;
    while taken < messages {
        let rows = items(ok!(con, "RMQ.RESERVE", "m", 600000, "COUNT", 100, "BLOCK", 20000, "FROM", "q"));
        taken += rows.len();
    }
    let elapsed = clock_ms() - due;
    println!("  {messages} messages due at once were taken {elapsed:.0} ms later");
    let used = server.commandstats("rmq.reserve").usec_per_call;
    println!("  a RESERVE took {used} µs on average");
    assert!(used < BOUND_US as f64);
    drop(idle);
    assert!(eventually(deadline(), || server.info("rmq")["rmq_timers"] == "0"));
}
