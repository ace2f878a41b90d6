//! The servers that are measured on, and the two ways to measure: what the server says a call cost, and what a client
//! sees.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::client::{drive, Conn, Prepared, Run, Script, Wire};
use super::common::{self, ask, deadline, eventually, ok, Peer, Server};
use super::workload::{Scripts, Workload};

pub struct Lab {
    pub server: Server,
    pub conn: Conn,
    pub clients: Vec<Conn>,
    admin: redis::Connection,
    pub scripts: Rc<Scripts>,
}

pub const CLIENTS: usize = 50;

impl Lab {
    /// A server with the module and the peer's scripts.
    pub fn start() -> Lab {
        let server = Server::builder().arg("repl-ping-replica-period", "3600").start();
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
        };
        pin_to_cores(&server);
        Lab {
            conn: Conn::open(server.port()),
            clients: (0..CLIENTS).map(|_| Conn::open(server.port())).collect(),
            admin,
            scripts: Rc::new(scripts),
            server,
        }
    }

    pub fn fill(&mut self, fill: impl FnOnce(&mut Wire)) {
        let mut wire = Wire::default();
        fill(&mut wire);
        self.conn.run(&wire);
    }

    pub fn delete_all(&mut self) {
        ok!(self.admin, "FLUSHALL", "SYNC");
    }

    /// µs that the server spent in the counted commands, per operation, while a client keeps the keys as they were:
    /// each operation is followed by its refill. Measured in chunks of about a millisecond, of which the median counts:
    /// a moment in which the server was not running falls into one of them.
    pub fn server_cost(&mut self, work: &mut dyn Workload, budget: Duration, least_chunks: usize) -> f64 {
        const CHUNK: Duration = Duration::from_millis(1);
        self.reset(work);
        self.steady(work, 1);
        ok!(self.admin, "CONFIG", "RESETSTAT");
        let start = Instant::now();
        let (mut size, mut fastest, mut before, mut chunks) = (1, CHUNK, 0.0, Vec::new());
        while chunks.len() < least_chunks || start.elapsed() < budget {
            let chunk = self.steady(work, size);
            let now = self.counted_usec(work.counted());
            fastest = fastest.min(chunk / size as u32);
            let fitting = (CHUNK.as_nanos() / fastest.as_nanos().max(1)).clamp(1, 256) as usize;
            // The first chunks only find out how many operations take that long.
            if 2 * size >= fitting {
                chunks.push((now - before) / size as f64);
            } else {
                size = fitting.min(4 * size);
            }
            before = now;
        }
        self.verify(work);
        median(&chunks)
    }

    fn steady(&mut self, work: &mut dyn Workload, operations: usize) -> Duration {
        let mut wire = Wire::default();
        for _ in 0..operations {
            work.operate(&mut wire);
            work.refill(&mut wire);
        }
        let start = Instant::now();
        self.conn.run(&wire);
        start.elapsed()
    }

    fn reset(&mut self, work: &mut dyn Workload) {
        self.fill(|wire| work.reset(wire));
    }

    /// Every contender leaves the keys as the next one must find them.
    fn verify(&mut self, work: &dyn Workload) {
        let all = work.expected();
        let mut pipe = redis::pipe();
        for expected in &all {
            pipe.cmd(expected.command).arg(&expected.key);
        }
        let lengths: Vec<usize> = pipe.query(&mut self.admin).expect("lengths");
        for (expected, length) in all.iter().zip(lengths) {
            assert_eq!(length, expected.length, "{} {}", expected.command, expected.key);
        }
    }

    pub fn reset_stats(&mut self) {
        ok!(self.admin, "CONFIG", "RESETSTAT");
    }

    pub fn counted_usec(&mut self, commands: &[&str]) -> f64 {
        let info: String = ask!(self.admin, "INFO", "commandstats");
        let mut usec = 0;
        for line in info.lines() {
            let Some((name, fields)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':')) else {
                continue;
            };
            if commands.iter().any(|command| command.eq_ignore_ascii_case(name)) {
                let field = fields.split(',').find_map(|field| field.strip_prefix("usec="));
                usec += field.and_then(|number| number.parse::<u64>().ok()).expect("usec=…");
            }
        }
        assert!(usec > 0, "none of {commands:?} was called");
        usec as f64
    }

    /// Every message of the lives that were measured has been settled.
    pub fn assert_settled(&mut self, lists_and_maps: &[&str], stream: &str) {
        let left: usize = ask!(self.admin, "EXISTS", lists_and_maps);
        assert_eq!(left, 0, "some of {lists_and_maps:?} are left");
        let left: usize = ask!(self.admin, "XLEN", stream);
        assert_eq!(left, 0, "entries are left in {stream}");
    }

    /// `operations` from `connections` connections, `pipeline` at a time; then what they took is put back.
    pub fn end_to_end(
        &mut self,
        work: &mut dyn Workload,
        (connections, pipeline): (usize, usize),
        operations: usize,
    ) -> EndToEnd {
        self.reset(work);
        let mut wire = Wire::default();
        for _ in 0..operations {
            work.operate(&mut wire);
        }
        let (run, cpu_seconds) = self.timed(connections, &mut Prepared::new(&wire, connections, pipeline));
        assert_eq!(run.latencies.len(), operations);
        let seen = EndToEnd::new(operations, run.seconds, cpu_seconds, run.latencies);
        wire.clear();
        for _ in 0..operations {
            work.refill(&mut wire);
        }
        self.conn.run(&wire);
        self.verify(work);
        seen
    }

    pub fn timed(&mut self, connections: usize, script: &mut impl Script) -> (Run, f64) {
        let pid = self.server.pid();
        let before = cpu_seconds(pid);
        let run = drive(&mut self.clients[..connections], script);
        (run, cpu_seconds(pid) - before)
    }

    /// Bytes of the replication stream that `operations` cause. A replica is attached.
    pub fn replicated_bytes(&mut self, work: &mut dyn Workload, operations: usize) -> f64 {
        self.reset(work);
        let mut wire = Wire::default();
        for _ in 0..operations {
            work.operate(&mut wire);
        }
        let before = self.replication_offset();
        self.conn.run(&wire);
        let bytes = self.replication_offset() - before;
        wire.clear();
        for _ in 0..operations {
            work.refill(&mut wire);
        }
        self.conn.run(&wire);
        self.verify(work);
        bytes as f64 / operations as f64
    }

    /// The snapshot for a replica that has just attached is done; until then FLUSHALL would break it off.
    pub fn wait_for_snapshot(&self) {
        let done = || self.server.info("persistence")["rdb_bgsave_in_progress"] == "0";
        assert!(eventually(deadline(), done), "the snapshot ends");
    }

    /// Whether every change goes into an append-only file, which is written out once a second.
    pub fn write_aof(&mut self, on: bool) {
        // A rewrite in the middle would hit whoever has its turn.
        ok!(self.admin, "CONFIG", "SET", "auto-aof-rewrite-percentage", 0);
        ok!(self.admin, "CONFIG", "SET", "appendonly", if on { "yes" } else { "no" });
        let done = || {
            let persistence = self.server.info("persistence");
            persistence["aof_rewrite_in_progress"] == "0" && persistence["aof_enabled"] == if on { "1" } else { "0" }
        };
        assert!(eventually(deadline(), done), "the file is there");
    }

    fn replication_offset(&self) -> u64 {
        let info = self.server.info("replication");
        assert_eq!(info["connected_slaves"], "1", "a replica listens");
        info["master_repl_offset"].parse().expect("an offset")
    }
}

#[derive(Clone)]
pub struct EndToEnd {
    /// Those that were timed in one round.
    pub operations: usize,
    pub per_second: f64,
    pub p50: f64,
    pub p99: f64,
    /// Of the server's main thread, protocol and system calls included.
    pub cpu_us: f64,
    /// The part of the time in which that thread ran.
    pub busy: f64,
}

impl EndToEnd {
    pub fn new(count: usize, seconds: f64, cpu_seconds: f64, mut latencies: Vec<f32>) -> EndToEnd {
        latencies.sort_by(f32::total_cmp);
        let at = |share: f64| f64::from(latencies[((latencies.len() - 1) as f64 * share).round() as usize]);
        EndToEnd {
            operations: latencies.len(),
            per_second: count as f64 / seconds,
            p50: at(0.50),
            p99: at(0.99),
            cpu_us: cpu_seconds * 1e6 / count as f64,
            busy: cpu_seconds / seconds,
        }
    }

    /// The same for operations of several messages each; latencies stay those of the operation.
    pub fn per_message(mut self, messages: usize) -> EndToEnd {
        self.per_second *= messages as f64;
        self.cpu_us /= messages as f64;
        self
    }

    /// The median of each figure.
    pub fn median(rounds: &[EndToEnd]) -> EndToEnd {
        let of = |figure: fn(&EndToEnd) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        EndToEnd {
            operations: rounds[0].operations,
            per_second: of(|round| round.per_second),
            p50: of(|round| round.p50),
            p99: of(|round| round.p99),
            cpu_us: of(|round| round.cpu_us),
            busy: of(|round| round.busy),
        }
    }
}

pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

/// The client gets one core and the server another, where there are two.
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

/// Time that the server's main thread has run.
fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).expect("schedstat");
    let nanoseconds: u64 = text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    nanoseconds as f64 / 1e9
}
