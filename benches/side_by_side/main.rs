//! RMQ beside the Lua scripts that it replaces and the plain commands that it stands for, in one interleaved run:
//! within a round every contender is measured once, so that noise hits all alike, and a figure is the median of the
//! rounds. `make bench` runs it and writes docs/performance.md; with QUICK=1 it measures less and only prints.
//! ONLY=complete,retry,… measures some parts and prints; RMQ_BENCH_DOCS names a folder to write to instead of docs,
//! after any run.

#[path = "../../tests/common/mod.rs"]
mod common;

mod client;
mod lab;
mod life;
mod plot;
mod report;
mod workload;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use client::Wire;
use common::process::in_repository;
use common::ReplicaTap;
use lab::{median, EndToEnd, Lab, CLIENTS};
use life::{publish_beforehand, Habit, Life, System};
use report::{Bytes, Cost, Lived, Results, Seen};
use workload::{Order, Settle, Stuck, Tick, Variant, What, Workload};

const THREE: [Variant; 3] = [Variant::Lua, Variant::Native, Variant::Plain];
const FOUR: [Variant; 4] = [Variant::Lua, Variant::Native, Variant::Plain, Variant::Variadic];

/// Connections and pipeline.
type Way = (usize, usize);
const ALL_WAYS: &[Way] = &[(1, 1), (1, 16), (CLIENTS, 1), (CLIENTS, 16)];
/// The same for calls of many messages: the last way needs so many of them that it gets queues of its own.
const FEW_IN_FLIGHT: &[Way] = &[(1, 1), (1, 16), (CLIENTS, 1)];
const MANY_IN_FLIGHT: &[Way] = &[(CLIENTS, 16)];

/// How much is measured.
struct Plan {
    quick: bool,
    rounds: usize,
    /// Of whole lives: most of that time is the kernel's, which is noisier than the server.
    life_rounds: usize,
    /// For one contender in one round, server side and end to end.
    server_side: Duration,
    least_chunks: usize,
    end_to_end: Duration,
    sizes: &'static [usize],
}

impl Plan {
    fn from_environment() -> Plan {
        if std::env::var("QUICK").is_ok_and(|value| !value.is_empty() && value != "0") {
            Plan {
                quick: true,
                rounds: 3,
                life_rounds: 3,
                server_side: Duration::from_millis(15),
                least_chunks: 1,
                end_to_end: Duration::from_millis(25),
                sizes: &[100, 1000, 10_000],
            }
        } else {
            Plan {
                quick: false,
                rounds: 5,
                life_rounds: 9,
                server_side: Duration::from_millis(80),
                least_chunks: 3,
                end_to_end: Duration::from_millis(80),
                sizes: &[100, 1000, 10_000, 100_000],
            }
        }
    }

    /// How many calls are timed in one round if so many are done in a second: as many as can be in flight, over and
    /// over for a while. Where all of them in flight once would take too long, only as many as a second allows.
    fn calls(&self, per_second: f64, (connections, pipeline): Way, most: usize) -> usize {
        const FEWEST: usize = 5;
        const LONGEST: Duration = Duration::from_secs(8);
        let within = |time: Duration| (per_second * time.as_secs_f64()) as usize;
        let in_flight = connections * pipeline;
        let wanted = if within(LONGEST) >= in_flight {
            within(self.end_to_end).max(in_flight)
        } else {
            within(Duration::from_secs(1))
        };
        let calls = wanted.max(FEWEST).min(most);
        if calls > in_flight {
            calls / in_flight * in_flight
        } else {
            calls
        }
    }
}

fn main() {
    choose_server();
    let plan = Plan::from_environment();
    let started = Instant::now();
    let mut bench = Bench { lab: Lab::start(), results: Results::default(), started, plan };
    let about = report::About::this_run(&bench.lab.server, bench.plan.rounds, bench.plan.life_rounds);
    println!("{}", about.line());
    if bench.plan.quick {
        println!("QUICK: short bursts, nothing of 100k; end to end only COMPLETE, 100, oldest first, and RETRY");
    }
    println!();
    let parts: [(&str, Measure); 8] = [
        ("complete", Bench::complete),
        ("many", Bench::complete_many),
        ("retry", Bench::retry),
        ("parseerr", Bench::parse_error),
        ("delaytick", Bench::delay_tick),
        ("timeouts", Bench::timeouts),
        ("lives", Bench::lives),
        ("bytes", Bench::replica_bytes),
    ];
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, measure) in parts {
        if only.is_empty() || only.split(',').any(|wanted| wanted == name) {
            measure(&mut bench);
        }
    }

    let report = report::Report { about: &about, results: &bench.results };
    println!("\n{}", report.tables());
    println!("{}", report.targets());
    let seconds = started.elapsed().as_secs();
    let elsewhere = std::env::var_os("RMQ_BENCH_DOCS").map(PathBuf::from);
    let whole = !bench.plan.quick && only.is_empty();
    match elsewhere.or_else(|| whole.then(|| in_repository("docs"))) {
        Some(folder) => {
            report.write_docs(&folder);
            println!("{seconds} s. Wrote {}/performance.md and its plots.", folder.display());
        }
        None => println!("{seconds} s. Not a full run: docs/performance.md stays as it is."),
    }
}

/// `SERVER=redis-7.0` names a server under .servers/; the newest Redis otherwise.
fn choose_server() {
    if std::env::var_os("RMQ_SERVER").is_none() {
        let name = std::env::var("SERVER").ok().filter(|name| !name.is_empty());
        let path = format!(".servers/{}/bin/redis-server", name.as_deref().unwrap_or("redis-8"));
        std::env::set_var("RMQ_SERVER", in_repository(&path));
    }
}

struct Bench {
    lab: Lab,
    plan: Plan,
    results: Results,
    started: Instant,
}

type Measure = fn(&mut Bench);
type Contenders<W> = Vec<(Variant, W)>;

impl Bench {
    fn say(&self, text: &str) {
        println!("[{:4.0} s] {text}", self.started.elapsed().as_secs_f64());
    }

    /// Each contender's workload, filled.
    fn contenders<W: Workload>(
        &mut self,
        variants: &[Variant],
        make: impl Fn(&Lab, Variant) -> W,
        fill: impl Fn(&mut W, &mut Wire),
    ) -> Contenders<W> {
        self.lab.delete_all();
        let mut contenders = Vec::new();
        for variant in variants {
            let mut work = make(&self.lab, *variant);
            self.lab.fill(|wire| fill(&mut work, wire));
            contenders.push((*variant, work));
        }
        contenders
    }

    /// Medians of the server's cost per message, where one operation is `messages` of them.
    fn server_side<W: Workload>(
        &mut self,
        name: &str,
        per: &'static str,
        messages: usize,
        contenders: &mut Contenders<W>,
    ) {
        let mut rounds = vec![Vec::new(); contenders.len()];
        for round in 0..self.plan.rounds {
            for turn in 0..contenders.len() {
                let index = (round + turn) % contenders.len();
                let Plan { server_side, least_chunks, .. } = self.plan;
                let cost = self.lab.server_cost(&mut contenders[index].1, server_side, least_chunks);
                rounds[index].push(cost / messages as f64);
            }
        }
        let of = |wanted| {
            let index = contenders.iter().position(|(variant, _)| *variant == wanted)?;
            Some(median(&rounds[index]))
        };
        let cost = Cost {
            name: name.to_string(),
            per,
            lua: of(Variant::Lua).expect("always measured"),
            native: of(Variant::Native).expect("always measured"),
            plain: of(Variant::Plain).expect("always measured"),
            variadic: of(Variant::Variadic),
        };
        self.say(&format!("server side: {}", cost.line()));
        self.results.costs.push(cost);
    }

    /// Medians of what a client sees, per message, where one operation is `messages` of them.
    fn end_to_end<W: Workload>(
        &mut self,
        name: &str,
        messages: usize,
        ways: &[Way],
        most_operations: usize,
        contenders: &mut Contenders<W>,
    ) {
        let mut fastest: Vec<f64> = Vec::new();
        for (_, work) in contenders.iter_mut() {
            fastest.push(self.lab.end_to_end(work, (1, 1), 1).per_second);
        }
        for way in ways.iter().copied() {
            let mut rounds: Vec<Vec<EndToEnd>> = vec![Vec::new(); contenders.len()];
            let mut operations = Vec::new();
            for ((_, work), fastest) in contenders.iter_mut().zip(&mut fastest) {
                let warm_up = (*fastest * self.plan.end_to_end.as_secs_f64()) as usize;
                let warm_up = warm_up.clamp(1, most_operations.min(CLIENTS * 16));
                let seen = self.lab.end_to_end(work, way, warm_up);
                *fastest = fastest.max(seen.per_second);
                operations.push(self.plan.calls(*fastest, way, most_operations));
            }
            for round in 0..self.plan.rounds {
                let begun = Instant::now();
                for turn in 0..contenders.len() {
                    let index = (round + turn) % contenders.len();
                    let seen = self.lab.end_to_end(&mut contenders[index].1, way, operations[index]);
                    rounds[index].push(seen.per_message(messages));
                }
                if begun.elapsed() > Duration::from_secs(3) {
                    let (round, rounds) = (round + 1, self.plan.rounds);
                    self.say(&format!("             round {round} of {rounds}: {name}"));
                }
            }
            let of = |wanted| {
                let index = contenders.iter().position(|(variant, _)| *variant == wanted);
                EndToEnd::median(&rounds[index.expect("always measured")])
            };
            let (connections, pipeline) = way;
            let seen = Seen {
                name: name.to_string(),
                connections,
                pipeline,
                lua: of(Variant::Lua),
                native: of(Variant::Native),
                plain: of(Variant::Plain),
            };
            self.say(&format!("end to end:  {}", seen.line()));
            self.results.seen.push(seen);
        }
    }

    // ---- the commands

    fn complete(&mut self) {
        let orders = [Order::OldestFirst, Order::NewestFirst, Order::Random];
        for size in self.plan.sizes {
            let name = |order| format!("COMPLETE, {} in processing, {}", number(*size), in_words(order));
            let mut contenders = self.settle(What::Complete, 1, *size, 1);
            for order in orders {
                set_order(&mut contenders, order);
                self.server_side(&name(order), "call", 1, &mut contenders);
            }
            for (_, work) in &mut contenders {
                self.lab.fill(|wire| work.shuffle_deadlines(wire));
            }
            let shuffled = name(Order::Random) + ", shuffled deadlines";
            self.server_side(&shuffled, "call", 1, &mut contenders);

            if self.plan.quick && *size > 100 {
                continue;
            }
            let mut contenders = self.settle_one_by_one(What::Complete, *size);
            for order in orders {
                set_order(&mut contenders, order);
                self.end_to_end(&name(order), 1, ALL_WAYS, BURST, &mut contenders);
                if self.plan.quick {
                    break;
                }
            }
        }
    }

    fn complete_many(&mut self) {
        const IDS: usize = 100;
        const NAME: &str = "COMPLETE, 100 random ids of 10k in one call";
        let mut contenders = self.settle(What::Complete, 1, 10_000, IDS);
        set_order(&mut contenders, Order::Random);
        self.server_side(NAME, "id", IDS, &mut contenders);
        if self.plan.quick {
            return;
        }
        for ways in [FEW_IN_FLIGHT, MANY_IN_FLIGHT] {
            let stock = Stock::new(10_000, IDS, calls_for(ways, IDS));
            let mut contenders = self.settle(What::Complete, stock.queues, stock.messages, IDS);
            set_order(&mut contenders, Order::Random);
            self.end_to_end(NAME, IDS, ways, stock.calls, &mut contenders);
        }
    }

    fn retry(&mut self) {
        const NAME: &str = "RETRY, 100 in processing";
        let mut contenders = self.settle(What::Retry, 1, 100, 1);
        self.server_side(NAME, "call", 1, &mut contenders);
        let mut contenders = self.settle_one_by_one(What::Retry, 100);
        self.end_to_end(NAME, 1, ALL_WAYS, BURST, &mut contenders);
    }

    fn parse_error(&mut self) {
        for (trim, expire, words) in [
            (false, false, "without trimming"),
            (true, false, "trimming to 1,000"),
            (true, true, "trimming to 1,000, expiry"),
        ] {
            let name = format!("PARSEERR, {words}");
            let what = What::ParseError { trim, expire };
            let mut contenders = self.settle(what, 1, 100, 1);
            self.server_side(&name, "call", 1, &mut contenders);
            if !self.plan.quick {
                let mut contenders = self.settle_one_by_one(what, 100);
                self.end_to_end(&name, 1, ALL_WAYS, BURST, &mut contenders);
            }
        }
    }

    /// Enough of them for the bursts of one call after the other.
    fn settle_one_by_one(&mut self, what: What, size: usize) -> Contenders<Settle> {
        let stock = Stock::new(size, 1, BURST);
        self.settle(what, stock.queues, stock.messages, 1)
    }

    fn settle(&mut self, what: What, sets: usize, size: usize, ids_per_call: usize) -> Contenders<Settle> {
        self.contenders(
            &THREE,
            |lab, variant| Settle::new(what, variant, sets, size, &lab.scripts).ids_per_call(ids_per_call),
            Settle::fill,
        )
    }

    fn delay_tick(&mut self) {
        for batch in [100, 1000] {
            for queues in [1, 10, 100] {
                let name = format!("DELAYTICK, batch {batch}, {queues} queue{}", if queues == 1 { "" } else { "s" });
                let make =
                    |calls: usize| move |lab: &Lab, variant| Tick::new(variant, queues, batch, calls, &lab.scripts);
                let mut contenders = self.contenders(&FOUR, make(2), Tick::fill);
                self.server_side(&name, "message", batch, &mut contenders);
                if self.plan.quick {
                    continue;
                }
                for ways in [FEW_IN_FLIGHT, MANY_IN_FLIGHT] {
                    let calls = calls_for(ways, batch);
                    let mut contenders = self.contenders(&THREE, make(calls), Tick::fill);
                    self.end_to_end(&name, batch, ways, calls, &mut contenders);
                }
            }
        }
    }

    fn timeouts(&mut self) {
        for stuck in [1000, 10_000] {
            for batch in [100, 1000] {
                let name = format!("TIMEOUTS, {} stuck, batch {batch}", number(stuck));
                let make = |queues: usize, stuck: usize| {
                    move |lab: &Lab, variant| Stuck::new(variant, queues, stuck, batch, &lab.scripts)
                };
                let mut contenders = self.contenders(&FOUR, make(1, stuck), Stuck::fill);
                self.server_side(&name, "message", batch, &mut contenders);
                if self.plan.quick {
                    continue;
                }
                for ways in [FEW_IN_FLIGHT, MANY_IN_FLIGHT] {
                    let stock = Stock::new(stuck, batch, calls_for(ways, batch));
                    let mut contenders = self.contenders(&THREE, make(stock.queues, stock.messages), Stuck::fill);
                    self.end_to_end(&name, batch, ways, stock.calls, &mut contenders);
                }
            }
        }
        if !self.plan.quick {
            let make = |lab: &Lab, variant| Stuck::new(variant, 1, 10_000, 1000, &lab.scripts).shuffled();
            let mut contenders = self.contenders(&FOUR, make, Stuck::fill);
            let name = "TIMEOUTS, 10k stuck, batch 1000, shuffled deadlines";
            self.server_side(name, "message", 1000, &mut contenders);

            // How it grows.
            for stuck in [3000, 30_000, 100_000] {
                let name = format!("TIMEOUTS, {} stuck, batch 100", number(stuck));
                let make = |lab: &Lab, variant| Stuck::new(variant, 1, stuck, 100, &lab.scripts);
                let mut contenders = self.contenders(&THREE, make, Stuck::fill);
                self.server_side(&name, "message", 100, &mut contenders);
            }
        }
    }

    // ---- whole lives

    fn lives(&mut self) {
        let [peer, rmq, streams, blmove] = [System::Peer, System::Rmq, System::Streams, System::Blmove].map(Habit::of);
        let consume = [peer, rmq, peer.joined(), rmq.joined(), rmq.ten_at_a_time()];
        self.live("take and settle", false, &consume);
        self.lab.write_aof(true);
        self.live("take and settle, AOF", false, &consume);
        self.lab.write_aof(false);
        let full = [peer, rmq, streams, blmove, rmq.ten_at_a_time(), streams.ten_at_a_time(), blmove.ten_at_a_time()];
        self.live("publish, take and settle", true, &full);
    }

    fn live(&mut self, work: &'static str, publishes: bool, habits: &[Habit]) {
        let messages = if self.plan.quick { 3000 } else { 20_000 };
        let mut rounds: Vec<Vec<(EndToEnd, f64)>> = vec![Vec::new(); habits.len()];
        for round in 0..self.plan.life_rounds {
            for turn in 0..habits.len() {
                let index = (round + turn) % habits.len();
                rounds[index].push(self.one_life(habits[index], publishes, messages));
            }
        }
        for (habit, rounds) in habits.iter().zip(&rounds) {
            let seen: Vec<EndToEnd> = rounds.iter().map(|(seen, _)| seen.clone()).collect();
            let costs: Vec<f64> = rounds.iter().map(|(_, cost)| *cost).collect();
            let lived = Lived { work, habit: *habit, seen: EndToEnd::median(&seen), server_us: median(&costs) };
            self.say(&format!("lives:       {}", lived.line()));
            self.results.lives.push(lived);
        }
    }

    fn one_life(&mut self, habit: Habit, publishes: bool, messages: usize) -> (EndToEnd, f64) {
        self.lab.delete_all();
        let scripts = Rc::clone(&self.lab.scripts);
        self.lab.fill(|wire| {
            habit.system.prepare(wire);
            if !publishes {
                publish_beforehand(habit.system, messages, &scripts, wire);
            }
        });
        self.lab.reset_stats();
        let mut life = Life::new(habit, publishes, messages, CLIENTS, &scripts);
        let (run, cpu_seconds) = self.lab.timed(CLIENTS, &mut life);
        assert_eq!(life.messages, messages);
        self.lab.assert_settled(&life::LISTS_AND_MAPS, life::STREAM);
        let cost = self.lab.counted_usec(habit.system.counted()) / messages as f64;
        let seen = EndToEnd::new(messages, run.seconds, cpu_seconds, life.latencies);
        (seen, cost)
    }

    // ---- replication

    fn replica_bytes(&mut self) {
        self.lab = Lab::start();
        let _replica = ReplicaTap::attach(&self.lab.server);
        self.lab.wait_for_snapshot();
        const PAIR: [Variant; 2] = [Variant::Lua, Variant::Native];
        let oldest =
            |what, ids| move |lab: &Lab, variant| Settle::new(what, variant, 1, 200, &lab.scripts).ids_per_call(ids);
        let quarantine = |trim, expire| What::ParseError { trim, expire };
        for (name, what, ids) in [
            ("COMPLETE, 1 id", What::Complete, 1),
            ("COMPLETE, 100 ids in one call", What::Complete, 100),
            ("RETRY", What::Retry, 1),
            ("PARSEERR, without trimming", quarantine(false, false), 1),
            ("PARSEERR, trimming to 1,000, expiry", quarantine(true, true), 1),
        ] {
            let contenders = self.contenders(&PAIR, oldest(what, ids), Settle::fill);
            self.bytes(name, contenders, if ids == 1 { 50 } else { 1 });
        }
        for (batch, queues) in [(100, 1), (100, 10), (1000, 10)] {
            let make = |lab: &Lab, variant| Tick::new(variant, queues, batch, 2, &lab.scripts);
            let contenders = self.contenders(&PAIR, make, Tick::fill);
            let name = format!("DELAYTICK, batch {batch}, {queues} queue{}", if queues == 1 { "" } else { "s" });
            self.bytes(&name, contenders, 1);
        }
        let make = |lab: &Lab, variant| Stuck::new(variant, 1, 1000, 100, &lab.scripts);
        let contenders = self.contenders(&PAIR, make, Stuck::fill);
        self.bytes("TIMEOUTS, batch 100", contenders, 2);
    }

    fn bytes<W: Workload>(&mut self, name: &str, contenders: Contenders<W>, operations: usize) {
        let mut counts = Vec::new();
        for (_, mut work) in contenders {
            counts.push(self.lab.replicated_bytes(&mut work, operations));
        }
        let bytes = Bytes { name: name.to_string(), lua: counts[0], native: counts[1] };
        self.say(&format!("to a replica: {}", bytes.line()));
        self.results.bytes.push(bytes);
    }
}

/// The most calls of one message in one end-to-end measurement.
const BURST: usize = 8000;

/// The most calls of `batch` messages in one end-to-end measurement: as many as can be in flight, or a few more; fewer
/// where they would take so many messages that filling them in again takes most of the time.
fn calls_for(ways: &[Way], batch: usize) -> usize {
    let in_flight = ways.iter().map(|(connections, pipeline)| connections * pipeline);
    let calls = in_flight.max().expect("a way");
    calls.max(20_000 / batch).min(200_000 / batch)
}

/// Queues for a burst of calls.
struct Stock {
    queues: usize,
    /// In each queue.
    messages: usize,
    calls: usize,
}

impl Stock {
    /// As many queues as leave none of them a fifth shorter than `size` after calls of `batch` messages each, filled so
    /// that they go from a tenth above `size` to a tenth below; or a queue for each call that takes all of it. Where
    /// that would be too much to keep in memory, the calls are fewer.
    fn new(size: usize, batch: usize, calls: usize) -> Stock {
        const MOST_MESSAGES: usize = 400_000;
        let calls_each = (size / 5 / batch).max(1);
        let queues = calls.div_ceil(calls_each).min(MOST_MESSAGES / size);
        let calls = calls.min(queues * calls_each);
        let above = if batch < size { calls.div_ceil(queues) * batch / 2 } else { 0 };
        Stock { queues, messages: size + above, calls }
    }
}

fn set_order(contenders: &mut Contenders<Settle>, order: Order) {
    for (_, work) in contenders {
        work.order = order;
    }
}

fn in_words(order: Order) -> &'static str {
    match order {
        Order::OldestFirst => "oldest first",
        Order::NewestFirst => "newest first",
        Order::Random => "random",
    }
}

/// 100, 1k, 10k.
fn number(size: usize) -> String {
    if size < 1000 {
        size.to_string()
    } else {
        format!("{}k", size / 1000)
    }
}
