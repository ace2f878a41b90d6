//! Time, memory and bytes, with an append-only file first and without second. Contenders take turns within each round, so
//! that noise of the machine hits all alike; a figure is the median of the rounds.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::client::{drive, send, Script, Wire};
use super::common::process::in_repository;
use super::lab::{median, quantile, Lab, AOF, NO_AOF};
use super::systems::{fresh_id, now_ms, Habit, Lives, Step, System, NAMESPACE};
use super::table::{write_facts, Table};
use super::twins::{Order, Twin, Work};
use super::{client, common::ok, common::Rng};

const WHOLE: &[Step] = &[Step::Publish, Step::Take, Step::Fetch, Step::Watch, Step::Settle];
const SYSTEMS: [(System, &str); 4] =
    [(System::Rmq, "RMQ"), (System::MxRmq, "mx-rmq"), (System::Streams, "Streams"), (System::List, "bare list")];

pub fn measure(quick: bool) {
    let rounds = if quick { 3 } else { 7 };
    let mut lives = Table::new("lives", "setting,work,system", "messages_per_s,p50_us,p99_us,server_cpu_us");
    let mut twins = Table::new("twins", "setting,work,contender", "in_command_us,server_cpu_us");
    let mut growth = Table::new("growth", "setting,in processing,system", "server_cpu_us");
    let mut waiting = Table::new("waiting", "setting,waiting clients", "p50_ms,p99_ms");
    let mut calls = Table::new("calls", "setting,call,system", "server_cpu_us");
    let mut jobs = Table::new("jobs", "setting,system", "publish_cpu_us,job_cpu_us,memory_bytes,wire_bytes,aof_bytes");
    // Before this process is bound to one of them.
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    for setting in [AOF, NO_AOF] {
        let mut lab = Lab::start(setting);
        if setting == AOF {
            let server = format!("Redis {}", lab.server.info("server")["redis_version"]);
            write_facts(&[("server", server), ("machine", format!("{cores} cores"))]);
        }
        all_lives(&mut lab, setting, rounds, if quick { 4000 } else { 20_000 }, &mut lives);
        all_calls(&mut lab, setting, rounds, &mut calls);
        all_jobs(&mut lab, setting, 3, if quick { 4000 } else { 20_000 }, &mut jobs);
        due(&mut lab, setting, &mut waiting);
        all_twins(&mut lab, setting, rounds, &mut twins);
        grow(&mut lab, setting, if quick { &[100, 1000] } else { &[100, 1000, 10_000, 100_000] }, &mut growth);
    }
    for table in [&lives, &calls, &twins, &growth, &waiting, &jobs] {
        table.write();
    }
}

fn all_lives(lab: &mut Lab, setting: &str, rounds: usize, messages: usize, table: &mut Table) {
    const WORKERS: usize = 50;
    let mut habits = Vec::new();
    for count in [1, 10] {
        for (system, name) in SYSTEMS {
            if system != System::MxRmq || count == 1 {
                habits.push((Habit::new(system, count), name));
            }
            if matches!(system, System::Rmq | System::Streams) {
                habits.push((Habit::new(system, count).of_three_queues(), name));
                habits.push((Habit::new(system, count).joined(), name));
            }
        }
    }
    let mut seen: Vec<Vec<[f64; 4]>> = vec![Vec::new(); habits.len()];
    for round in 0..rounds {
        for turn in 0..habits.len() {
            let index = (round + turn) % habits.len();
            let habit = habits[index].0;
            lab.worker(habit);
            let mut script = Lives::new(habit, WHOLE, messages, WORKERS, &lab.scripts);
            let mut conns = lab.connect(WORKERS);
            let before = lab.cpu();
            let seconds = drive(&mut conns, &mut script).as_secs_f64();
            let cpu = 1e6 * (lab.cpu() - before) / messages as f64;
            let [p50, p99] = [0.5, 0.99].map(|share| quantile(script.latencies.iter().copied(), share));
            seen[index].push([messages as f64 / seconds, p50, p99, cpu]);
        }
    }
    for ((habit, name), seen) in habits.iter().zip(seen) {
        let figures = [0, 1, 2, 3].map(|place| median(seen.iter().map(|figures| figures[place])));
        let manner = match habit {
            Habit { queues: 3, .. } => " of three queues",
            Habit { joined: true, .. } => " settled with the next take",
            _ => "",
        };
        table.add(&[setting, &format!("life {} at a time{manner}", habit.count), name], &figures);
    }
}

/// Each call by itself, in pipelines of fifty.
fn all_calls(lab: &mut Lab, setting: &str, rounds: usize, table: &mut Table) {
    const REQUESTS: usize = 20;
    const CALLS: [(&str, &[Step]); 4] = [
        ("PUBLISH", &[Step::Publish]),
        ("RESERVE", &[Step::Take, Step::Fetch, Step::Watch]),
        ("ACK", &[Step::Settle]),
        ("NACK", &[Step::Fail]),
    ];
    let mut seen = vec![Vec::new(); CALLS.len() * SYSTEMS.len()];
    for round in 0..rounds {
        for turn in 0..SYSTEMS.len() {
            let index = (round + turn) % SYSTEMS.len();
            let system = SYSTEMS[index].0;
            let mut worker = lab.worker(Habit::fifty_in_flight(system, 1));
            let own: Vec<Step> = worker.steps().to_vec();
            for (number, (_, steps)) in CALLS.iter().enumerate() {
                let fails = steps[0] == Step::Fail;
                if fails && system != System::Rmq {
                    continue;
                }
                if fails {
                    for _ in 0..REQUESTS {
                        [Step::Publish, Step::Take].into_iter().for_each(|step| lab.step(&mut worker, step));
                    }
                }
                let requests = if matches!(steps[0], Step::Settle | Step::Fail) { 1 } else { REQUESTS };
                let cost = lab.cost(|lab| {
                    for _ in 0..requests {
                        steps
                            .iter()
                            .filter(|step| fails || own.contains(step))
                            .for_each(|step| lab.step(&mut worker, *step));
                    }
                });
                seen[index * CALLS.len() + number].push(cost / (REQUESTS * 50) as f64);
            }
        }
    }
    for ((_, name), seen) in SYSTEMS.iter().zip(seen.chunks(CALLS.len())) {
        for ((call, _), costs) in CALLS.iter().zip(seen).filter(|(_, costs)| !costs.is_empty()) {
            table.add(&[setting, call, name], &[median(costs.iter().copied())]);
        }
    }
}

/// Everything is published, then worked off: by ten connections, each one round trip after the other; by one Node process
/// with ten jobs at once, where BullMQ is there to compare with.
fn all_jobs(lab: &mut Lab, setting: &str, rounds: usize, messages: usize, table: &mut Table) {
    const IN_NODE: [(&str, &str); 2] = [("rmq", "RMQ in Node"), ("bullmq", "BullMQ")];
    let modules = in_repository(".servers/bullmq/node_modules");
    let in_node = if modules.exists() { &IN_NODE[..] } else { &[] };
    let mut seen: Vec<Vec<[f64; 5]>> = vec![Vec::new(); SYSTEMS.len() + in_node.len()];
    for round in 0..rounds {
        for turn in 0..seen.len() {
            let index = (round + turn) % seen.len();
            let figures = match SYSTEMS.get(index) {
                Some((system, _)) => by_ten_connections(lab, *system, messages),
                None => in_one_process(lab, in_node[index - SYSTEMS.len()].0, &modules, messages),
            };
            seen[index].push(figures);
        }
    }
    let names = SYSTEMS.iter().map(|(_, name)| name).chain(in_node.iter().map(|(_, name)| name));
    for (name, seen) in names.zip(seen) {
        let figures = [0, 1, 2, 3, 4].map(|place| median(seen.iter().map(|figures| figures[place])));
        table.add(&[setting, name], &figures);
    }
}

fn by_ten_connections(lab: &mut Lab, system: System, messages: usize) -> [f64; 5] {
    let habit = Habit::new(system, 1);
    lab.worker(habit);
    let mut phases = [&[Step::Publish][..], &[Step::Take, Step::Fetch, Step::Watch, Step::Settle]].into_iter();
    job_figures(lab, messages, |lab| {
        let steps = phases.next().expect("two phases");
        let mut script = Lives::new(habit, steps, messages, 10, &lab.scripts);
        drive(&mut lab.connect(10), &mut script);
    })
}

fn in_one_process(lab: &mut Lab, system: &str, modules: &Path, messages: usize) -> [f64; 5] {
    lab.empty();
    let mut node = Command::new("node");
    node.arg(in_repository("benches/cost/node.js")).args([
        system,
        &lab.server.port().to_string(),
        &messages.to_string(),
    ]);
    let mut child =
        node.env("NODE_PATH", modules).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("node runs");
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut reached = |step: &str| assert_eq!(lines.next().expect("node runs").expect("a line"), step);
    reached("ready");
    let mut steps = ["added", "done"].into_iter();
    let figures = job_figures(lab, messages, |_| {
        input.write_all(b"go\n").expect("node listens");
        reached(steps.next().expect("two phases"));
    });
    let _ = child.kill();
    let _ = child.wait();
    figures
}

/// Per message: CPU of publishing, of everything; memory while all wait; bytes on the wire, bytes in the file.
fn job_figures(lab: &mut Lab, messages: usize, mut phase: impl FnMut(&mut Lab)) -> [f64; 5] {
    let wire = |lab: &mut Lab| lab.info("stats", "total_net_input_bytes") + lab.info("stats", "total_net_output_bytes");
    let file = |lab: &mut Lab| match lab.info("persistence", "aof_enabled") {
        0.0 => f64::NAN,
        _ => lab.info("persistence", "aof_current_size"),
    };
    let (wire_before, file_before, memory) = (wire(lab), file(lab), lab.info("memory", "used_memory"));
    let publishing = lab.cost(&mut phase);
    let memory = lab.info("memory", "used_memory") - memory;
    let working = lab.cost(&mut phase);
    let figures = [publishing, publishing + working, memory, wire(lab) - wire_before, file(lab) - file_before];
    figures.map(|figure| figure / messages as f64)
}

/// Messages that become due one after the other, and clients that wait for them.
struct Waiting {
    late_ms: Vec<f64>,
    wanted: usize,
}

impl Script for Waiting {
    fn next(&mut self, _conn: usize, replies: &[u8], out: &mut Wire) -> bool {
        let fields: Vec<&[u8]> = client::bulks(replies).collect();
        if let [id, due, receipt, _] = fields[..] {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
            let due: f64 = String::from_utf8_lossy(due).parse().expect("a time");
            self.late_ms.push(now.as_secs_f64() * 1000.0 - due);
            send!(out, "RMQ.ACK", NAMESPACE, id, receipt);
        }
        send!(out, "RMQ.RESERVE", NAMESPACE, "60000", "BLOCK", "0", "FROM", "orders");
        true
    }

    fn is_done(&self) -> bool {
        self.late_ms.len() == self.wanted
    }
}

fn due(lab: &mut Lab, setting: &str, table: &mut Table) {
    const MESSAGES: usize = 500;
    for clients in [1, 1000] {
        lab.empty();
        let mut rng = Rng::from_seed(8);
        let start = now_ms() + 2000;
        lab.send(|wire| {
            for number in 0..MESSAGES {
                let due = (start + 7 * number as u64).to_string();
                send!(wire, "RMQ.PUBLISH", NAMESPACE, "AT", due, "TO", "orders", fresh_id(&mut rng), due);
            }
        });
        let mut script = Waiting { late_ms: Vec::new(), wanted: MESSAGES };
        drive(&mut lab.connect(clients), &mut script);
        let [p50, p99] = [0.5, 0.99].map(|share| quantile(script.late_ms.iter().copied(), share));
        table.add(&[setting, &clients.to_string()], &[p50, p99]);
    }
}

fn all_twins(lab: &mut Lab, setting: &str, rounds: usize, table: &mut Table) {
    let mut twins = Vec::new();
    for size in [100, 1000, 10_000] {
        twins.extend([Order::Oldest, Order::Newest, Order::Random].map(|order| Twin::Complete(size, order)));
    }
    twins.extend([Twin::Retry, Twin::ParseError, Twin::DelayTick(100, 1), Twin::DelayTick(100, 10)]);
    twins.extend([Twin::DelayTick(1000, 10), Twin::Timeouts(1000, 100), Twin::Timeouts(10_000, 1000)]);
    for twin in twins {
        lab.empty();
        let mut works = [true, false].map(|native| Work::new(twin, native, &lab.scripts));
        let mut seen = [const { Vec::new() }; 2];
        for work in &mut works {
            lab.send(|wire| work.fill(wire));
        }
        for round in 0..rounds {
            for turn in 0..2 {
                let index = (round + turn) % 2;
                let work = &mut works[index];
                // Calls of many messages take long enough for a few of them to do.
                for _ in 0..if twin.batch() == 1 { 10 } else { 1 } {
                    ok!(lab.admin, "CONFIG", "RESETSTAT");
                    let cpu = lab.cost(|lab| lab.send(|wire| (0..twin.burst()).for_each(|_| work.call(wire))));
                    let messages = (twin.burst() * twin.batch()) as f64;
                    seen[index].push([lab.command_us(work.command()) / messages, cpu / messages]);
                    lab.send(|wire| work.refill(wire));
                }
                lab.verify(&work.expected());
            }
        }
        for (seen, contender) in seen.iter().zip(["RMQ", "mx-rmq"]) {
            let figures = [0, 1].map(|place| median(seen.iter().map(|figures| figures[place])));
            table.add(&[setting, &twin.name(), contender], &figures);
        }
    }
}

/// A life, settled oldest first, while so many others are in processing.
fn grow(lab: &mut Lab, setting: &str, sizes: &[usize], table: &mut Table) {
    for size in sizes {
        for (system, name) in SYSTEMS {
            let mut worker = lab.worker(Habit::fifty_in_flight(system, 1));
            while worker.held.len() < *size {
                for step in worker.steps().iter().filter(|step| **step != Step::Settle) {
                    lab.step(&mut worker, *step);
                }
            }
            worker.hold = *size;
            let costs: Vec<f64> = (0..10).map(|_| lab.cost(|lab| lab.life(&mut worker)) / 50.0).collect();
            table.add(&[setting, &size.to_string(), name], &[median(costs)]);
        }
    }
}
