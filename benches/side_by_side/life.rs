//! A message's life over the wire: every connection is a worker that publishes, takes and settles, one round trip
//! after the other, as a consumer has to. The next request depends on the last reply, so nothing is prepared.

use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::client::{bulks, send, Request, Script, Wire};
use super::common::Rng;
use super::workload::{fresh_id, payload, Id, Scripts};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// mx-rmq: script, BLMOVE, HGET, ZADD, script.
    Peer,
    /// RMQ.PUBLISH, RMQ.RESERVE, RMQ.ACK.
    Rmq,
    /// XADD, XREADGROUP, XACK with XDEL.
    Streams,
    /// LPUSH, BLMOVE, LREM: the payload stands in the list; no lease, no deadline.
    Blmove,
}

/// How a worker lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Habit {
    pub system: System,
    /// Messages per request.
    pub count: usize,
    /// What settles one message and what takes the next go in one write.
    pub joined: bool,
}

impl Habit {
    pub const fn of(system: System) -> Habit {
        Habit { system, count: 1, joined: false }
    }

    pub const fn ten_at_a_time(self) -> Habit {
        Habit { count: 10, ..self }
    }

    pub const fn joined(self) -> Habit {
        Habit { joined: true, ..self }
    }
}

const NAMESPACE: &str = "mx-rmq";
const PAYLOADS: &str = "mx-rmq:payloads";
const EXPIRES: &str = "mx-rmq:expires";
const QUEUE: &str = "mx-rmq:orders";
const PENDING: &str = "mx-rmq:orders:pending";
const PROCESSING: &str = "mx-rmq:orders:processing";
pub const STREAM: &str = "mx-rmq:orders:stream";
const GROUP: &str = "workers";
pub const LISTS_AND_MAPS: [&str; 4] = [PAYLOADS, EXPIRES, PENDING, PROCESSING];

impl System {
    pub fn counted(self) -> &'static [&'static str] {
        match self {
            System::Peer => &["evalsha", "blmove", "hget", "zadd"],
            System::Rmq => &["rmq.publish", "rmq.reserve", "rmq.ack"],
            System::Streams => &["xadd", "xreadgroup", "xack", "xdel"],
            System::Blmove => &["lpush", "blmove", "lrem"],
        }
    }

    pub fn prepare(self, out: &mut Wire) {
        if self == System::Streams {
            send!(out, "XGROUP", "CREATE", STREAM, GROUP, "$", "MKSTREAM");
        }
    }
}

/// For how long mx-rmq keeps a message, and for how long it lets one be worked on, unless told otherwise.
const TTL_MS: u64 = 86_400_000;
const WORK_MS: u64 = 180_000;

/// A deadline, as mx-rmq's client makes it.
fn in_ms(span: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    (now.as_millis() as u64 + span).to_string()
}

/// Messages that wait in pending, for workers that only take and settle.
pub fn publish_beforehand(system: System, messages: usize, scripts: &Scripts, out: &mut Wire) {
    let mut rng = Rng::from_seed(5);
    for _ in 0..messages {
        publish(system, &[fresh_id(&mut rng)], scripts, out);
    }
}

/// New messages, as each system's producer brings them. mx-rmq gives them a deadline at once.
fn publish(system: System, ids: &[Id], scripts: &Scripts, wire: &mut Wire) {
    match system {
        System::Peer => {
            for id in ids {
                send!(
                    wire,
                    "EVALSHA",
                    scripts.produce,
                    "3",
                    PAYLOADS,
                    PENDING,
                    EXPIRES,
                    id,
                    payload(id),
                    QUEUE,
                    in_ms(TTL_MS),
                    "0"
                );
            }
        }
        System::Rmq => {
            wire.begin(4 + 2 * ids.len());
            for word in ["RMQ.PUBLISH", NAMESPACE, "TO", "orders"] {
                wire.arg(word);
            }
            for id in ids {
                wire.arg(id);
                wire.arg(payload(id));
            }
        }
        System::Streams => {
            for id in ids {
                send!(wire, "XADD", STREAM, "*", "payload", payload(id));
            }
        }
        System::Blmove => {
            wire.begin(2 + ids.len());
            wire.arg("LPUSH");
            wire.arg(PENDING);
            for id in ids {
                wire.arg(payload(id));
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Publish,
    Take,
    Fetch,
    Watch,
    Settle,
}

struct Worker {
    stage: Stage,
    started: Instant,
    /// When the life began that the next replies end.
    settling: Option<Instant>,
    id: Id,
}

pub struct Life {
    habit: Habit,
    publishes: bool,
    /// Lives that have not begun.
    left: usize,
    workers: Vec<Worker>,
    wire: Wire,
    rng: Rng,
    scripts: Rc<Scripts>,
    /// From the first request of a life to its last reply, in µs.
    pub latencies: Vec<f32>,
    pub messages: usize,
}

impl Life {
    pub fn new(habit: Habit, publishes: bool, messages: usize, workers: usize, scripts: &Rc<Scripts>) -> Life {
        let worker = || Worker { stage: Stage::Settle, started: Instant::now(), settling: None, id: [0; 36] };
        Life {
            habit,
            publishes,
            left: messages / habit.count,
            workers: std::iter::repeat_with(worker).take(workers).collect(),
            wire: Wire::default(),
            rng: Rng::from_seed(3),
            scripts: Rc::clone(scripts),
            latencies: Vec::new(),
            messages: 0,
        }
    }

    fn publish(&mut self) {
        let ids: Vec<Id> = (0..self.habit.count).map(|_| fresh_id(&mut self.rng)).collect();
        publish(self.habit.system, &ids, &self.scripts, &mut self.wire);
    }

    fn take(&mut self, worker: usize) {
        let count = self.habit.count.to_string();
        let wire = &mut self.wire;
        match self.habit.system {
            System::Peer => send!(wire, "BLMOVE", PENDING, PROCESSING, "RIGHT", "LEFT", "5"),
            System::Rmq => {
                let lease_ms = WORK_MS.to_string();
                let options: &[&str] = match self.habit.count {
                    1 => &["BLOCK", "5000"],
                    _ => &["COUNT", &count, "BLOCK", "5000"],
                };
                wire.begin(5 + options.len());
                let words = ["RMQ.RESERVE", NAMESPACE, &lease_ms].into_iter().chain(options.iter().copied());
                for word in words.chain(["FROM", "orders"]) {
                    wire.arg(word);
                }
            }
            System::Streams => {
                let name = format!("worker-{worker}");
                send!(wire, "XREADGROUP", "GROUP", GROUP, name, "COUNT", count, "BLOCK", "5000", "STREAMS", STREAM, ">")
            }
            System::Blmove => {
                for _ in 0..self.habit.count {
                    send!(wire, "BLMOVE", PENDING, PROCESSING, "RIGHT", "LEFT", "5");
                }
            }
        }
    }

    /// Given what `take` got; returns how many messages that was.
    fn settle(&mut self, worker: usize, replies: &[u8]) -> usize {
        let wire = &mut self.wire;
        match self.habit.system {
            System::Peer => {
                let id = &self.workers[worker].id;
                send!(wire, "EVALSHA", self.scripts.complete, "3", PAYLOADS, PROCESSING, EXPIRES, id);
                1
            }
            System::Rmq => {
                // id, payload, receipt and queue of each message; the attempts are an integer.
                let fields: Vec<&[u8]> = bulks(replies).collect();
                let taken = fields.len() / 4;
                wire.begin(2 + 2 * taken);
                wire.arg("RMQ.ACK");
                wire.arg(NAMESPACE);
                for message in fields.chunks(4) {
                    wire.arg(message[0]);
                    wire.arg(message[2]);
                }
                taken
            }
            System::Streams => {
                // The stream's name, then id, field and payload of each entry.
                let fields: Vec<&[u8]> = bulks(replies).skip(1).collect();
                let taken = fields.len() / 3;
                wire.begin(3 + taken);
                wire.arg("XACK");
                wire.arg(STREAM);
                wire.arg(GROUP);
                for entry in fields.chunks(3) {
                    wire.arg(entry[0]);
                }
                wire.begin(2 + taken);
                wire.arg("XDEL");
                wire.arg(STREAM);
                for entry in fields.chunks(3) {
                    wire.arg(entry[0]);
                }
                taken
            }
            System::Blmove => {
                let mut taken = 0;
                for payload in bulks(replies) {
                    send!(wire, "LREM", PROCESSING, "1", payload);
                    taken += 1;
                }
                taken
            }
        }
    }
}

impl Script for Life {
    fn next(&mut self, worker: usize, replies: &[u8], now: Instant, out: &mut Vec<u8>) -> Option<Request> {
        self.wire.clear();
        let settled = self.workers[worker].settling.take();
        self.latencies.extend(settled.map(|started| (now - started).as_nanos() as f32 / 1000.0));
        let next = match self.workers[worker].stage {
            Stage::Settle => {
                if self.left == 0 {
                    return None;
                }
                self.left -= 1;
                self.workers[worker].started = now;
                if self.publishes {
                    Stage::Publish
                } else {
                    Stage::Take
                }
            }
            Stage::Publish => Stage::Take,
            Stage::Take if self.habit.system == System::Peer => {
                // In front of it may stand the reply of the script that settled the one before.
                let id = bulks(replies).last().expect("a message was there");
                self.workers[worker].id = id.try_into().expect("an id of ours");
                Stage::Fetch
            }
            Stage::Fetch => Stage::Watch,
            Stage::Take | Stage::Watch => Stage::Settle,
        };
        self.workers[worker].stage = next;
        let id = self.workers[worker].id;
        match next {
            Stage::Publish => self.publish(),
            Stage::Take => self.take(worker),
            Stage::Fetch => send!(self.wire, "HGET", PAYLOADS, id),
            Stage::Watch => send!(self.wire, "ZADD", EXPIRES, in_ms(WORK_MS), id),
            Stage::Settle => {
                let taken = self.settle(worker, replies);
                assert_eq!(taken, self.habit.count, "as many as asked for were there");
                self.messages += taken;
                self.workers[worker].settling = Some(self.workers[worker].started);
                if self.habit.joined && self.left > 0 {
                    self.left -= 1;
                    self.take(worker);
                    self.workers[worker].stage = Stage::Take;
                    self.workers[worker].started = now;
                }
            }
        }
        out.extend_from_slice(&self.wire.bytes);
        Some(Request { operations: 1, replies_each: self.wire.replies, idle: 0 })
    }
}
