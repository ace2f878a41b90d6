//! What was measured, as tables: on the terminal, and with plots in docs/performance.md.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use super::common::Server;
use super::lab::EndToEnd;
use super::life::{Habit, System};
use super::plot::{Chart, Line, LUA, NATIVE, PLAIN};

#[derive(Default)]
pub struct Results {
    pub costs: Vec<Cost>,
    pub seen: Vec<Seen>,
    pub lives: Vec<Lived>,
    pub bytes: Vec<Bytes>,
}

/// µs in the server, per call, id or message.
pub struct Cost {
    pub name: String,
    pub per: &'static str,
    pub lua: f64,
    pub native: f64,
    pub plain: f64,
    pub variadic: Option<f64>,
}

impl Cost {
    fn gain(&self) -> f64 {
        self.lua / self.native
    }

    fn over_plain(&self) -> f64 {
        self.native / self.plain
    }

    pub fn line(&self) -> String {
        format!(
            "{:<56} Lua {:>8}  native {:>7}  plain {:>7} µs   {:>6}x  {:.2}",
            self.name,
            figure(self.lua),
            figure(self.native),
            figure(self.plain),
            figure(self.gain()),
            self.over_plain()
        )
    }
}

pub struct Seen {
    pub name: String,
    pub connections: usize,
    pub pipeline: usize,
    pub lua: EndToEnd,
    pub native: EndToEnd,
    pub plain: EndToEnd,
}

impl Seen {
    fn gain(&self) -> f64 {
        self.native.per_second / self.lua.per_second
    }

    fn over_plain(&self) -> f64 {
        self.native.per_second / self.plain.per_second
    }

    pub fn line(&self) -> String {
        format!(
            "{:<46} {:>2} x {:<2} Lua {:>9}/s native {:>9}/s plain {:>9}/s   {:>6}x  {:.2}  server busy {:.0} %  calls {}",
            self.name,
            self.connections,
            self.pipeline,
            count(self.lua.per_second),
            count(self.native.per_second),
            count(self.plain.per_second),
            figure(self.gain()),
            self.over_plain(),
            100.0 * self.native.busy,
            self.each(|seen| count(seen.operations as f64))
        )
    }

    /// A figure of all three.
    fn each(&self, figure: impl Fn(&EndToEnd) -> String) -> String {
        [&self.lua, &self.native, &self.plain].map(figure).join(", ")
    }

    /// Where fewer calls than could be in flight were timed, behind all of them each would have waited longer.
    fn latency(&self, seen: &EndToEnd, us: f64) -> String {
        let all = seen.operations >= self.connections * self.pipeline;
        format!("{}{}", if all { "" } else { "≥ " }, count(us))
    }
}

pub struct Lived {
    pub work: &'static str,
    pub habit: Habit,
    pub seen: EndToEnd,
    /// In the commands themselves, per message.
    pub server_us: f64,
}

impl Lived {
    fn what(&self) -> String {
        let how = match self.habit {
            Habit { joined: true, .. } => ", the last with the first of the next",
            Habit { count: 10, .. } => ", ten at a time",
            _ => "",
        };
        let system = match (self.habit.system, self.work.starts_with("publish")) {
            (System::Peer, true) => "mx-rmq: script, BLMOVE, HGET, ZADD, script",
            (System::Peer, false) => "mx-rmq: BLMOVE, HGET, ZADD, script",
            (System::Rmq, true) => "RMQ: PUBLISH, RESERVE, ACK",
            (System::Rmq, false) => "RMQ: RESERVE, ACK",
            (System::Streams, _) => "Streams: XADD, XREADGROUP, XACK + XDEL",
            (System::Blmove, _) => "bare list: LPUSH, BLMOVE, LREM",
        };
        format!("{system}{how}")
    }

    pub fn line(&self) -> String {
        format!(
            "{:<26} {:<52} {:>8}/s  in the server {:>6} µs",
            self.work,
            self.what(),
            count(self.seen.per_second),
            figure(self.server_us)
        )
    }
}

pub struct Bytes {
    pub name: String,
    pub lua: f64,
    pub native: f64,
}

impl Bytes {
    pub fn line(&self) -> String {
        format!(
            "{:<40} Lua {:>8}  native {:>8} bytes   {:.2}",
            self.name,
            count(self.lua),
            count(self.native),
            self.native / self.lua
        )
    }
}

/// Machine, server and day of the run.
pub struct About {
    server: String,
    machine: String,
    day: String,
    rounds: usize,
    life_rounds: usize,
}

impl About {
    pub fn this_run(server: &Server, rounds: usize, life_rounds: usize) -> About {
        let info = server.info("server");
        let name = if server.is_valkey() { "Valkey" } else { "Redis" };
        let (major, minor, patch) = server.version();
        let allocator = server.info("memory").get("mem_allocator").cloned().unwrap_or_default();
        let clock = info.get("monotonic_clock").cloned().unwrap_or_default();
        About {
            server: format!("{name} {major}.{minor}.{patch} ({allocator}, clock: {clock})"),
            machine: machine(),
            day: output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            rounds,
            life_rounds,
        }
    }

    pub fn line(&self) -> String {
        format!("{}; {}; medians of {} rounds", self.server, self.machine, self.rounds)
    }
}

fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split(':').nth(1).unwrap_or("?").trim().to_string()
    };
    let cpuinfo = read("/proc/cpuinfo");
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let gib = memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 20;
    format!(
        "{} ({cores} cores), {gib} GiB, Linux {}",
        field(&cpuinfo, "model name"),
        read("/proc/sys/kernel/osrelease").trim()
    )
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    output.map_or_else(|_| "?".into(), |o| String::from_utf8_lossy(&o.stdout).trim().to_string())
}

/// One line of the list of figures to reach.
struct Target {
    work: &'static str,
    wanted: String,
    measured: String,
    reached: bool,
}

pub struct Report<'a> {
    pub about: &'a About,
    pub results: &'a Results,
}

impl Report<'_> {
    fn cost(&self, name: &str) -> Option<&Cost> {
        self.results.costs.iter().find(|cost| cost.name == name)
    }

    fn costs<'s>(&'s self, start: &'s str) -> impl Iterator<Item = &'s Cost> {
        self.results.costs.iter().filter(move |cost| cost.name.starts_with(start))
    }

    // ---- the figures to reach

    fn list_of_targets(&self) -> Vec<Target> {
        let mut list = Vec::new();
        // Against Lua the least of the gains counts, against plain commands the largest of the ratios.
        let mut cost = |work, names: &[&str], faster: f64, over_plain: Option<f64>| {
            let found: Vec<&Cost> = names.iter().filter_map(|name| self.cost(name)).collect();
            if found.is_empty() {
                return;
            }
            let gain = found.iter().map(|cost| cost.gain()).fold(f64::MAX, f64::min);
            list.push(Target {
                work,
                wanted: if faster == 1.0 {
                    "never slower than Lua".into()
                } else {
                    format!("≥ {faster}× faster than Lua")
                },
                measured: format!("{}×", figure(gain)),
                reached: gain >= faster,
            });
            if let Some(most) = over_plain {
                let ratio = found.iter().map(|cost| cost.over_plain()).fold(0.0, f64::max);
                list.push(Target {
                    work,
                    wanted: format!("≤ {most}× the plain commands"),
                    measured: format!("{ratio:.2}×"),
                    reached: ratio <= most,
                });
            }
        };
        let complete = |size: &str, order: &str| format!("COMPLETE, {size} in processing, {order}");
        cost("COMPLETE, 100, oldest first", &[&complete("100", "oldest first")], 3.0, Some(1.3));
        cost("COMPLETE, 1k, oldest first", &[&complete("1k", "oldest first")], 7.0, Some(1.3));
        cost("COMPLETE, 10k, oldest first", &[&complete("10k", "oldest first")], 30.0, Some(1.5));
        cost("COMPLETE, 10k, newest first", &[&complete("10k", "newest first")], 1.0, None);
        cost("COMPLETE, 10k, random", &[&complete("10k", "random")], 1.0, None);
        cost("COMPLETE, 10k, random, shuffled deadlines", &[&complete("10k", "random, shuffled deadlines")], 1.0, None);
        cost("COMPLETE, 100 random ids of 10k, per id", &["COMPLETE, 100 random ids of 10k in one call"], 20.0, None);
        cost("RETRY, 100 in processing", &["RETRY, 100 in processing"], 3.0, Some(1.3));
        for (work, batch) in [("DELAYTICK, batch 100", 100), ("DELAYTICK, batch 1000", 1000)] {
            let names: Vec<String> = ["1 queue", "10 queues", "100 queues"]
                .map(|queues| format!("DELAYTICK, batch {batch}, {queues}"))
                .to_vec();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            cost(work, &names, 5.0, Some(1.3));
        }
        cost("TIMEOUTS, 10k stuck, batch 1000", &["TIMEOUTS, 10k stuck, batch 1000"], 60.0, None);
        let quarantine: Vec<&str> = self.costs("PARSEERR").map(|cost| cost.name.as_str()).collect();
        cost("PARSEERR", &quarantine, 3.0, None);

        let (few, many) = (self.cost(&complete("100", "oldest first")), self.cost(&complete("100k", "oldest first")));
        if let (Some(few), Some(many)) = (few, many) {
            let growth = many.native / few.native;
            list.push(Target {
                work: "COMPLETE, oldest first, at 100k against 100",
                wanted: "cost grows ≤ 1.5×".into(),
                measured: format!("{growth:.2}× (plain commands: {:.2}×)", many.plain / few.plain),
                reached: growth <= 1.5,
            });
        }
        if let Some(bytes) = self.results.bytes.iter().find(|bytes| bytes.name == "DELAYTICK, batch 100, 1 queue") {
            let ratio = bytes.native / bytes.lua;
            list.push(Target {
                work: "bytes to a replica, DELAYTICK batch 100",
                wanted: "≤ 0.6 of Lua's".into(),
                measured: format!("{ratio:.2}"),
                reached: ratio <= 0.6,
            });
        }
        let busiest = |seen: &&Seen| {
            seen.name == complete("100", "oldest first") && seen.connections == 50 && seen.pipeline == 16
        };
        if let Some(seen) = self.results.seen.iter().find(busiest) {
            list.push(Target {
                work: "COMPLETE, 100, end to end, 50 connections, pipeline 16",
                wanted: "≥ 2× Lua's throughput".into(),
                measured: format!("{}×", figure(seen.gain())),
                reached: seen.gain() >= 2.0,
            });
        }
        let (peer, rmq) = (Habit::of(System::Peer), Habit::of(System::Rmq));
        for (work, habit, peer, least) in [
            ("RESERVE + ACK, 50 connections, one message at a time, in separate round trips", rmq, peer, 2.0),
            ("the same, ACK with the next RESERVE in one write", rmq.joined(), peer, 2.0),
            ("the same, and mx-rmq likewise", rmq.joined(), peer.joined(), 2.0),
            ("RESERVE + ACK, 50 connections, ten at a time", rmq.ten_at_a_time(), peer, 6.0),
        ] {
            let find = |habit| {
                self.results.lives.iter().find(move |lived| lived.work == "take and settle" && lived.habit == habit)
            };
            if let (Some(peer), Some(rmq)) = (find(peer), find(habit)) {
                let gain = rmq.seen.per_second / peer.seen.per_second;
                list.push(Target {
                    work,
                    wanted: format!("≥ {least}× the peer's throughput"),
                    measured: format!("{}×", figure(gain)),
                    reached: gain >= least,
                });
            }
        }
        list
    }

    pub fn targets(&self) -> String {
        let mut table = Table::new(&["work", "to reach", "measured", "reached"]);
        for target in self.list_of_targets() {
            let reached = if target.reached { "yes" } else { "**no**" };
            table.row([target.work.into(), target.wanted, target.measured, reached.into()]);
        }
        table.text()
    }

    // ---- the tables

    pub fn tables(&self) -> String {
        let mut text = String::new();
        let mut part = |title: &str, table: String| {
            let _ = write!(text, "### {title}\n\n{table}\n");
        };
        part("Server side: µs per call, id or message", self.server_side());
        part("End to end", self.end_to_end());
        part("Whole lives, 50 connections", self.lives());
        part("Bytes to a replica, per operation", self.bytes());
        text
    }

    fn server_side(&self) -> String {
        let mut table = Table::new(&[
            "work",
            "per",
            "Lua script",
            "native",
            "plain commands",
            "plain, variadic",
            "native vs Lua",
            "native vs plain",
        ]);
        for cost in &self.results.costs {
            table.row([
                cost.name.clone(),
                cost.per.into(),
                figure(cost.lua),
                figure(cost.native),
                figure(cost.plain),
                cost.variadic.map(figure).unwrap_or_default(),
                format!("{}× faster", figure(cost.gain())),
                format!("{:.2}×", cost.over_plain()),
            ]);
        }
        table.text()
    }

    fn end_to_end(&self) -> String {
        let mut table = Table::new(&[
            "work",
            "connections × pipeline",
            "Lua /s",
            "native /s",
            "plain /s",
            "native vs Lua",
            "native vs plain",
            "p50 µs: Lua, native, plain",
            "p99 µs: Lua, native, plain",
            "server CPU µs: Lua, native, plain",
            "server busy: Lua, native, plain",
            "calls in a round: Lua, native, plain",
        ]);
        for seen in &self.results.seen {
            table.row([
                seen.name.clone(),
                format!("{} × {}", seen.connections, seen.pipeline),
                count(seen.lua.per_second),
                count(seen.native.per_second),
                count(seen.plain.per_second),
                format!("{}×", figure(seen.gain())),
                format!("{:.2}×", seen.over_plain()),
                seen.each(|one| seen.latency(one, one.p50)),
                seen.each(|one| seen.latency(one, one.p99)),
                seen.each(|one| figure(one.cpu_us)),
                seen.each(|one| format!("{:.0} %", 100.0 * one.busy)),
                seen.each(|one| count(one.operations as f64)),
            ]);
        }
        table.text()
    }

    fn lives(&self) -> String {
        let mut table = Table::new(&[
            "work",
            "with",
            "messages /s",
            "vs mx-rmq",
            "p50 µs",
            "p99 µs",
            "in the commands, µs per message",
            "server CPU, µs per message",
            "server busy",
        ]);
        for lived in &self.results.lives {
            let peer = self.results.lives.iter().find(|other| other.work == lived.work);
            let peer = peer.map_or(f64::NAN, |peer| peer.seen.per_second);
            table.row([
                lived.work.into(),
                lived.what(),
                count(lived.seen.per_second),
                format!("{}×", figure(lived.seen.per_second / peer)),
                count(lived.seen.p50),
                count(lived.seen.p99),
                figure(lived.server_us),
                figure(lived.seen.cpu_us),
                format!("{:.0} %", 100.0 * lived.seen.busy),
            ]);
        }
        table.text()
    }

    fn bytes(&self) -> String {
        let mut table = Table::new(&["operation", "Lua script", "native", "native / Lua"]);
        for bytes in &self.results.bytes {
            table.row([
                bytes.name.clone(),
                count(bytes.lua),
                count(bytes.native),
                format!("{:.2}", bytes.native / bytes.lua),
            ]);
        }
        table.text()
    }

    // ---- growth

    fn growth_of_complete(&self) -> Chart {
        let line = |label: &str, order: &str, colour, dashed, figure: fn(&Cost) -> f64| {
            let points = SIZES.iter().filter_map(|(size, word)| {
                let cost = self.cost(&format!("COMPLETE, {word} in processing, {order}"))?;
                Some((*size, figure(cost)))
            });
            Line { label: label.into(), colour, dashed, points: points.collect() }
        };
        Chart {
            title: "COMPLETE: cost of one call as processing grows".into(),
            x_label: "messages in processing",
            y_label: "µs in the server",
            lines: vec![
                line("Lua, oldest first", "oldest first", LUA, false, |cost| cost.lua),
                line("native, oldest first", "oldest first", NATIVE, false, |cost| cost.native),
                line("plain, oldest first", "oldest first", PLAIN, false, |cost| cost.plain),
                line("Lua, random", "random", LUA, true, |cost| cost.lua),
                line("native, random", "random", NATIVE, true, |cost| cost.native),
            ],
        }
    }

    fn growth_of_timeouts(&self) -> Chart {
        let line = |label: &str, colour, figure: fn(&Cost) -> f64| {
            let points = SIZES.iter().filter_map(|(size, word)| {
                let cost = self.cost(&format!("TIMEOUTS, {word} stuck, batch 100"))?;
                Some((*size, figure(cost)))
            });
            Line { label: label.into(), colour, dashed: false, points: points.collect() }
        };
        Chart {
            title: "TIMEOUTS, batch 100: cost of one message as stuck messages grow".into(),
            x_label: "stuck messages",
            y_label: "µs in the server, per message",
            lines: vec![
                line("Lua", LUA, |cost| cost.lua),
                line("native", NATIVE, |cost| cost.native),
                line("plain, LREM -1", PLAIN, |cost| cost.plain),
            ],
        }
    }

    fn growth_table(chart: &Chart, x: &str) -> String {
        let mut heads = vec![x];
        heads.extend(chart.lines.iter().map(|line| line.label.as_str()));
        let mut table = Table::new(&heads);
        for (index, (size, _)) in chart.lines[0].points.iter().enumerate() {
            let mut row = vec![count(*size)];
            row.extend(chart.lines.iter().map(|line| figure(line.points[index].1)));
            table.row(row);
        }
        table.text()
    }

    // ---- docs/performance.md

    pub fn write_docs(&self, folder: &Path) {
        let complete = self.growth_of_complete();
        let timeouts = self.growth_of_timeouts();
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        };
        write("complete-growth.svg", &complete.svg());
        write("timeouts-growth.svg", &timeouts.svg());
        let About { server, machine, day, rounds, life_rounds } = self.about;
        let missed: Vec<String> = self
            .list_of_targets()
            .iter()
            .filter(|target| !target.reached)
            .map(|target| {
                format!("- {}: {} was to be reached, {} was measured.", target.work, target.wanted, target.measured)
            })
            .collect();
        let missed = if missed.is_empty() {
            "Every figure was reached in this run.".to_string()
        } else {
            format!("Not reached in this run:\n\n{}", missed.join("\n"))
        };
        let text = format!(
            include_str!("performance.md"),
            server = server,
            machine = machine,
            day = day,
            rounds = rounds,
            life_rounds = life_rounds,
            targets = self.targets(),
            missed = missed,
            server_side = self.server_side(),
            complete_growth = Report::growth_table(&complete, "in processing"),
            timeouts_growth = Report::growth_table(&timeouts, "stuck"),
            end_to_end = self.end_to_end(),
            lives = self.lives(),
            bytes = self.bytes(),
        );
        write("performance.md", &text);
    }
}

const SIZES: &[(f64, &str)] =
    &[(100.0, "100"), (1_000.0, "1k"), (3_000.0, "3k"), (10_000.0, "10k"), (30_000.0, "30k"), (100_000.0, "100k")];

/// A Markdown table whose columns line up on a terminal too.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(heads: &[&str]) -> Table {
        Table { rows: vec![heads.iter().map(ToString::to_string).collect()] }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn text(&self) -> String {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| cell.clone() + &" ".repeat(width - cell.chars().count()))
                .collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
            if index == 0 {
                let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                let _ = writeln!(text, "|-{}-|", rules.join("-|-"));
            }
        }
        text
    }
}

/// Three digits that count.
fn figure(number: f64) -> String {
    if number < 10.0 {
        format!("{number:.2}")
    } else if number < 100.0 {
        format!("{number:.1}")
    } else {
        count(number)
    }
}

/// A whole number, in groups of three digits.
pub fn count(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
