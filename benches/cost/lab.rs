//! The server that is measured on, and what it costs: processor time, or instructions under callgrind.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use super::client::{Conn, Wire};
use super::common::{self, ask, deadline, eventually, ok, Builder, Peer, Server};
use super::systems::{Habit, Scripts, Step, Worker};

pub struct Lab {
    pub server: Server,
    pub conn: Conn,
    pub admin: redis::Connection,
    pub scripts: Rc<Scripts>,
    /// Where callgrind writes, if the server runs under it.
    callgrind: Option<PathBuf>,
}

pub const AOF: &str = "aof";
pub const NO_AOF: &str = "no aof";

impl Lab {
    /// A server with the module and the peer's scripts, client and server each on a core of their own.
    pub fn start(setting: &str) -> Lab {
        let lab = Lab::from(with_aof(setting == AOF), None);
        pin_to_cores(&lab.server);
        lab
    }

    /// A server under callgrind, with an append-only file, that counts nothing yet. The settings keep out what depends on
    /// how fast this machine is: work of the server's cron, ten times a second by default.
    pub fn under_callgrind() -> Lab {
        let out = common::process::in_repository("target/instructions");
        let builder = with_aof(true)
            .arg("hz", "1")
            .arg("dynamic-hz", "no")
            .arg("activerehashing", "no")
            .arg("jemalloc-bg-thread", "no")
            .server_binary(out.join("redis-server"));
        Lab::from(builder, Some(out))
    }

    fn from(builder: Builder, callgrind: Option<PathBuf>) -> Lab {
        let server = builder.start();
        let mut admin = server.con();
        let peer = Peer::load(&mut admin);
        let sha = |name| peer.sha(name).to_string();
        let scripts = Scripts {
            complete: sha("complete_message"),
            retry: sha("retry_message"),
            delay: sha("process_delay_message"),
            timeout: sha("handle_timeout_message"),
            produce: sha("produce_normal_message"),
            parse_error: common::text(ok!(admin, "SCRIPT", "LOAD", include_str!("parse_error.lua"))),
            hexpire: server.supports("hexpire"),
            xackdel: server.supports("xackdel"),
        };
        Lab { conn: Conn::open(server.port()), admin, scripts: Rc::new(scripts), server, callgrind }
    }

    pub fn connect(&self, connections: usize) -> Vec<Conn> {
        (0..connections).map(|_| Conn::open(self.server.port())).collect()
    }

    pub fn send(&mut self, fill: impl FnOnce(&mut Wire)) {
        let mut wire = Wire::default();
        fill(&mut wire);
        self.conn.run(&wire);
    }

    /// A worker with an empty server to itself.
    pub fn worker(&mut self, habit: Habit) -> Worker {
        self.empty();
        let worker = Worker::new(habit, 0, &self.scripts);
        self.send(|wire| worker.prepare(wire));
        worker
    }

    /// One request of the worker, fifty messages or so.
    pub fn step(&mut self, worker: &mut Worker, step: Step) {
        let mut wire = Wire::default();
        worker.say(step, &mut wire);
        let replies = self.conn.run(&wire);
        if step == Step::Take {
            assert_eq!(worker.took(replies), worker.messages(), "as many as asked for were there");
        }
    }

    pub fn life(&mut self, worker: &mut Worker) {
        for step in worker.steps() {
            self.step(worker, *step);
        }
    }

    pub fn empty(&mut self) {
        ok!(self.admin, "FLUSHALL", "SYNC");
    }

    pub fn info(&mut self, section: &str, field: &str) -> f64 {
        let info: String = ask!(self.admin, "INFO", section);
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("INFO {section} has {field}"))
    }

    /// µs in the command itself since the statistics were reset.
    pub fn command_us(&mut self, command: &str) -> f64 {
        let info: String = ask!(self.admin, "INFO", "commandstats");
        let line = info.lines().find_map(|line| {
            let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            name.eq_ignore_ascii_case(command).then_some(fields)
        });
        let usec = line.and_then(|fields| fields.split(',').find_map(|field| field.strip_prefix("usec=")));
        usec.and_then(|usec| usec.parse().ok()).unwrap_or_else(|| panic!("{command} was called"))
    }

    /// Every key has the length that it must have.
    pub fn verify(&mut self, expected: &[(&'static str, String, usize)]) {
        for (command, key, expected) in expected {
            let length: usize = ask!(self.admin, *command, key);
            assert_eq!(length, *expected, "{command} {key}");
        }
    }

    /// Seconds that the server's main thread has run: protocol, system calls and writing of the file included.
    pub fn cpu(&self) -> f64 {
        let pid = self.server.pid();
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).expect("schedstat");
        let nanoseconds: u64 = text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        nanoseconds as f64 / 1e9
    }

    /// What a run costs: instructions under callgrind, else µs of processor time.
    pub fn cost(&mut self, run: impl FnOnce(&mut Lab)) -> f64 {
        if self.callgrind.is_some() {
            return self.count(run).0;
        }
        let before = self.cpu();
        run(self);
        1e6 * (self.cpu() - before)
    }

    /// The instructions of a run, and those in a function whose name contains this, with all that it calls.
    pub fn cost_within(&mut self, function: &str, run: impl FnOnce(&mut Lab)) -> (f64, f64) {
        let (total, text) = self.count(run);
        (total, inclusive(&text, function))
    }

    /// The instructions of a run, and callgrind's dump. Without the server's cron: how often that runs depends on how fast
    /// this machine is.
    fn count(&mut self, run: impl FnOnce(&mut Lab)) -> (f64, String) {
        self.callgrind(&["instrumentation on"]);
        run(self);
        self.callgrind(&["instrumentation off", "dump"]);
        let (total, text) = self.dump();
        (total - inclusive(&text, "serverCron"), text)
    }

    fn callgrind(&self, commands: &[&str]) {
        let mut vgdb = Command::new("vgdb");
        vgdb.arg(format!("--pid={}", self.server.pid()));
        for command in commands {
            vgdb.arg("-c").args(command.split(' '));
        }
        let output = vgdb.output().expect("vgdb runs");
        assert!(output.status.success(), "vgdb {commands:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// What was counted since the last dump.
    fn dump(&self) -> (f64, String) {
        let folder = self.callgrind.as_ref().expect("a server under callgrind");
        let prefix = format!("callgrind.{}.", self.server.pid());
        let is_ours = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
        let dumps = || std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
        assert!(eventually(deadline(), || dumps().any(|path| is_ours(&path))), "a dump is written");
        let path = dumps().find(is_ours).expect("a dump");
        let text = std::fs::read_to_string(&path).expect("a dump");
        std::fs::remove_file(path).expect("a dump");
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        (total.and_then(|total| total.parse().ok()).expect("totals"), text)
    }
}

fn with_aof(on: bool) -> Builder {
    let builder = Server::builder().arg("appendonly", if on { "yes" } else { "no" }).arg("appendfsync", "everysec");
    // A rewrite in the middle would hit whoever has its turn.
    builder.arg("auto-aof-rewrite-percentage", "0")
}

/// The inclusive cost of all calls of a function in a callgrind dump: the line behind each `calls=` of that callee.
fn inclusive(dump: &str, function: &str) -> f64 {
    let (mut number, mut wanted, mut sum) = (String::new(), false, 0.0);
    let mut lines = dump.lines();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn="));
        if let Some((id, text)) = name.and_then(|name| name.split_once(' ')) {
            if text.contains(function) {
                number = id.to_string();
            }
        }
        if let Some(callee) = line.strip_prefix("cfn=") {
            wanted = !number.is_empty() && callee.split(' ').next() == Some(&number);
        } else if line.starts_with("calls=") {
            let cost = lines.next().and_then(|line| line.split(' ').next_back()?.parse::<f64>().ok());
            sum += cost.filter(|_| wanted).unwrap_or(0.0);
        }
    }
    sum
}

pub fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    quantile(numbers, 0.5)
}

pub fn quantile(numbers: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

fn pin_to_cores(server: &Server) {
    const CLIENT_CPU: usize = 0;
    const SERVER_CPU: usize = 1;
    const SELF: u32 = 0;
    // SAFETY: asks for a number.
    if unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } < 2 {
        return;
    }
    for (pid, cpu) in [(SELF, CLIENT_CPU), (server.pid(), SERVER_CPU)] {
        // SAFETY: the set is a plain bit mask that outlives the call. A refusal does no harm: the kernel places both.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(pid as libc::pid_t, size_of::<libc::cpu_set_t>(), &set);
        }
    }
}
