//! Instructions per message of the whole server, counted by callgrind, with an append-only file. Compares with
//! docs/bench/instructions.csv and fails where RMQ takes more than 3 % more; UPDATE=1 writes that file anew.

use super::lab::Lab;
use super::systems::{fresh_id, payload, Habit, Id, Step, System, Worker, NAMESPACE};
use super::table::{read_facts, write_facts, Row, Table};
use super::twins::{Order, Twin, Work};
use super::{client::send, common::Rng};

const TOLERANCE: f64 = 1.03;
/// Each figure is the mean of so many counts, with other work in between.
const WINDOWS: usize = 4;
/// Lives of fifty messages each in one count.
const LIVES: usize = 16;

pub fn count(update: bool, full: bool) -> bool {
    let baseline = Table::read("instructions", 2);
    let mut now = count_all(full);
    if update {
        // A run of usual size keeps what only a full one counts.
        for (keys, figures) in &baseline.rows {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            if keys[0].contains("1000000") && now.get(&keys, "instructions").is_nan() {
                now.rows.push((keys.iter().map(ToString::to_string).collect(), figures.clone()));
            }
        }
        now.write();
        write_facts(&[("instructions_with", versions())]);
        return true;
    }
    if !now.rows.iter().all(|row| is_good(&baseline, row)) {
        // Other load on the machine adds some: the server wakes up more often. What is above the baseline both times fails.
        let again = count_all(full);
        for (row, other) in now.rows.iter_mut().zip(&again.rows) {
            row.1[0] = row.1[0].min(other.1[0]);
        }
    }
    compare(&baseline, &now)
}

fn count_all(full: bool) -> Table {
    let mut table = Table::new("instructions", "work,contender", "instructions");
    lives(&mut table);
    calls(&mut table);
    growth(&mut table, 100_000);
    if full {
        growth(&mut table, 1_000_000);
    }
    twins(&mut table);
    table
}

/// Whether a count is in the baseline and not too far above it; only RMQ's are checked.
fn is_good(baseline: &Table, (keys, figures): &Row) -> bool {
    let before = baseline.get(&[&keys[0], &keys[1]], "instructions");
    keys[1] != "RMQ" || figures[0] <= TOLERANCE * before
}

/// Prints both; the last line is what continuous integration adds up.
fn compare(baseline: &Table, now: &Table) -> bool {
    let (mut passed, mut failed) = (0, 0);
    println!("\n{:48} {:14} {:>10} {:>10} {:>7}", "instructions per message", "", "baseline", "now", "");
    for row in &now.rows {
        let (keys, figures) = row;
        let before = baseline.get(&[&keys[0], &keys[1]], "instructions");
        let ratio = figures[0] / before;
        let verdict = match is_good(baseline, row) {
            true => "",
            false if before.is_nan() => "  not in the baseline",
            false => "  more than 3 % above the baseline",
        };
        println!(
            "{:48} {:14} {before:>10.0} {:>10.0} {:>+6.1}%{verdict}",
            keys[0],
            keys[1],
            figures[0],
            100.0 * (ratio - 1.0)
        );
        match &keys[1][..] {
            "RMQ" if verdict.is_empty() => passed += 1,
            "RMQ" => failed += 1,
            _ => (),
        }
    }
    let counted_with = read_facts().remove("instructions_with").unwrap_or_default();
    if failed > 0 && counted_with != versions() {
        println!(
            "\nThe baseline was counted with {counted_with}, this is {}: not comparable, nothing fails.",
            versions()
        );
        (passed, failed) = (passed + failed, 0);
    }
    if failed > 0 {
        println!("\nUPDATE=1 make instructions writes a new baseline");
    }
    println!("\n{passed} passed, {failed} failed");
    failed == 0
}

/// What the counts depend on: `rustc 1.95.0 redis v=8.6.3 libc 2.36`.
fn versions() -> String {
    let server = std::env::var("RMQ_SERVER").unwrap_or_default();
    let version = |name: &str, program: &str| {
        let output = std::process::Command::new(program).arg("--version").output();
        let text = output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
        let number = text.split_whitespace().find(|word| word.contains(|c: char| c.is_ascii_digit())).unwrap_or("?");
        format!("{name} {}", number.trim_end_matches(')'))
    };
    [version("rustc", "rustc"), version("redis", &server), version("libc", "ldd")].join(" ")
}

fn lives(table: &mut Table) {
    for (system, name, count, queues) in [
        (System::Rmq, "RMQ", 1, 1),
        (System::Rmq, "RMQ", 10, 1),
        (System::Rmq, "RMQ", 1, 3),
        (System::Streams, "Streams", 1, 1),
        (System::Streams, "Streams", 10, 1),
        (System::StreamsInTwo, "Streams XDEL", 1, 1),
        (System::StreamsInTwo, "Streams XDEL", 10, 1),
        (System::MxRmq, "mx-rmq", 1, 1),
        (System::List, "bare list", 1, 1),
        (System::List, "bare list", 10, 1),
    ] {
        let mut lab = Lab::under_callgrind();
        let mut worker = lab.worker(Habit { queues, ..Habit::fifty_in_flight(system, count) });
        (0..4).for_each(|_| lab.life(&mut worker));
        let cost = lab.cost(|lab| (0..LIVES).for_each(|_| lab.life(&mut worker)));
        let work = format!("life {count} at a time{}", if queues == 3 { " of three queues" } else { "" });
        table.add(&[&work, name], &[cost / (LIVES * 50) as f64]);
    }
}

/// Each call on its own, with a hundred others pending, delayed and in processing.
fn calls(table: &mut Table) {
    let mut lab = Lab::under_callgrind();
    let mut worker = filled(&mut lab, 100, 100, 100);
    for (name, cost) in ["PUBLISH", "RESERVE", "ACK"].into_iter().zip(steps(&mut lab, &mut worker)) {
        table.add(&[name, "RMQ"], &[cost]);
    }
    lab.step(&mut worker, Step::Publish);
    let (all, clock) = lab.cost_within("keep_time", |lab| lab.step(&mut worker, Step::Take));
    table.add(&["keeping time in a RESERVE, nothing due".replace(',', "").as_str(), "RMQ"], &[clock / 50.0]);
    println!("keeping time: {:.1} % of a RESERVE", 100.0 * clock / all);
    let nothing = lab.cost(|lab| {
        lab.send(|wire| (0..200).for_each(|_| send!(wire, "RMQ.RESERVE", NAMESPACE, "30000", "FROM", "mails")));
    });
    table.add(&["RESERVE that finds nothing", "RMQ"], &[nothing / 200.0]);
    worker.hold = 0;
    let failing = worker.held.len();
    let cost = lab.cost(|lab| lab.step(&mut worker, Step::Fail));
    table.add(&["NACK", "RMQ"], &[cost / failing as f64]);

    for (system, contender, names) in [
        (System::Streams, "Streams", ["PUBLISH", "RESERVE", "ACK"]),
        (System::MxRmq, "mx-rmq", ["PUBLISH", "RESERVE", "ACK"]),
    ] {
        let mut worker = lab.worker(Habit::fifty_in_flight(system, 1));
        (0..2).for_each(|_| lab.life(&mut worker));
        for (name, steps) in names.into_iter().zip([
            &[Step::Publish][..],
            if system == System::MxRmq { &[Step::Take, Step::Fetch, Step::Watch] } else { &[Step::Take] },
            &[Step::Settle],
        ]) {
            let cost = lab.cost(|lab| {
                for _ in 0..4 {
                    steps.iter().for_each(|step| lab.step(&mut worker, *step));
                }
            });
            table.add(&[name, contender], &[cost / 200.0]);
        }
    }
}

/// PUBLISH, RESERVE and ACK of the oldest, where a great many others are pending, delayed and in processing.
fn growth(table: &mut Table, size: usize) {
    let mut lab = Lab::under_callgrind();
    let mut worker = filled(&mut lab, size, size, 100_000);
    for (name, cost) in ["PUBLISH", "RESERVE", "ACK"].into_iter().zip(steps(&mut lab, &mut worker)) {
        table.add(&[&format!("{name} beside {size}"), "RMQ"], &[cost]);
    }
}

/// PUBLISH, RESERVE and ACK, each by itself.
fn steps(lab: &mut Lab, worker: &mut Worker) -> [f64; 3] {
    const REQUESTS: usize = 2;
    let mut costs = [0.0; 3];
    for _ in 0..WINDOWS {
        for (cost, step) in costs.iter_mut().zip([Step::Publish, Step::Take, Step::Settle]) {
            *cost += lab.cost(|lab| (0..REQUESTS).for_each(|_| lab.step(worker, step)));
        }
    }
    costs.map(|cost| cost / (WINDOWS * REQUESTS * 50) as f64)
}

/// So many messages pending, delayed and in processing; of the last the worker has the receipts.
fn filled(lab: &mut Lab, pending: usize, delayed: usize, processing: usize) -> Worker {
    let mut rng = Rng::from_seed(99);
    let many = Habit { count: 1000.min(processing), ..Habit::new(System::Rmq, 1) };
    let mut worker = lab.worker(many);
    for _ in 0..processing / many.count {
        lab.step(&mut worker, Step::Publish);
        lab.step(&mut worker, Step::Take);
    }
    for (options, messages) in [(&[][..], pending), (&["DELAY", "36000000"][..], delayed)] {
        for chunk in 0..messages.div_ceil(1000) {
            let ids: Vec<Id> = (0..1000.min(messages - 1000 * chunk)).map(|_| fresh_id(&mut rng)).collect();
            lab.send(|wire| {
                wire.begin(4 + options.len() + 2 * ids.len());
                wire.args(["RMQ.PUBLISH", NAMESPACE]);
                wire.args(options);
                wire.args(["TO", "orders"]);
                for id in &ids {
                    wire.arg(id);
                    wire.arg(payload(id));
                }
            });
        }
    }
    worker.habit = Habit::fifty_in_flight(System::Rmq, 1);
    worker.hold = processing;
    worker
}

fn twins(table: &mut Table) {
    let mut lab = Lab::under_callgrind();
    for twin in [
        Twin::Complete(100, Order::Oldest),
        Twin::Complete(100, Order::Random),
        Twin::Complete(100, Order::Newest),
        Twin::Complete(10_000, Order::Oldest),
        Twin::Complete(10_000, Order::Random),
        Twin::Complete(10_000, Order::Newest),
        Twin::Retry,
        Twin::ParseError,
        Twin::DelayTick(100, 1),
        Twin::DelayTick(100, 10),
        Twin::Timeouts(1000, 100),
    ] {
        for (native, contender) in [(true, "RMQ"), (false, "mx-rmq")] {
            lab.empty();
            let mut work = Work::new(twin, native, &lab.scripts);
            lab.send(|wire| work.fill(wire));
            let mut cost = 0.0;
            let windows = if twin.batch() == 1 { WINDOWS } else { 2 * WINDOWS };
            for _ in 0..windows {
                cost += lab.cost(|lab| lab.send(|wire| (0..twin.burst()).for_each(|_| work.call(wire))));
                lab.send(|wire| work.refill(wire));
            }
            lab.verify(&work.expected());
            table.add(&[&twin.name(), contender], &[cost / (windows * twin.burst() * twin.batch()) as f64]);
        }
    }
}
