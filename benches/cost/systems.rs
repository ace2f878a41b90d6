//! A message's life in the words of each system: what its worker sends, one request after the other.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::client::{bulks, send, Script, Wire};
use super::common::Rng;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// RMQ.PUBLISH, RMQ.RESERVE, RMQ.ACK.
    Rmq,
    /// mx-rmq 1.6.2 as its dispatcher does it: a script, BLMOVE, HGET, ZADD, a script. It has no way of taking several.
    MxRmq,
    /// XADD, XREADGROUP, XACKDEL; where the server has no XACKDEL, XACK and XDEL in one write.
    Streams,
    /// XADD, XREADGROUP, XACK and XDEL in one write, whatever the server has.
    StreamsInTwo,
    /// LPUSH, BLMOVE, LREM: the payload stands in the list; no lease, no deadline.
    List,
}

/// What the peer's scripts are called on this server.
pub struct Scripts {
    pub produce: String,
    pub complete: String,
    pub retry: String,
    pub delay: String,
    pub timeout: String,
    pub parse_error: String,
    pub hexpire: bool,
    pub xackdel: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Publish,
    Take,
    /// mx-rmq's HGET and ZADD.
    Fetch,
    Watch,
    Settle,
    /// Failed, to be tried again in an hour.
    Fail,
}

/// How a worker lives.
#[derive(Clone, Copy)]
pub struct Habit {
    pub system: System,
    /// Queues that it takes from; it publishes to them in turn.
    pub queues: usize,
    /// Messages per call.
    pub count: usize,
    /// Calls per request.
    pub calls: usize,
    /// What it has in hand it settles in one write with the next take, which needs no reply of the other.
    pub joined: bool,
}

impl Habit {
    pub const fn new(system: System, count: usize) -> Habit {
        Habit { system, queues: 1, count, calls: 1, joined: false }
    }

    /// One write of calls for fifty messages.
    pub const fn fifty_in_flight(system: System, count: usize) -> Habit {
        Habit { calls: 50 / count, ..Habit::new(system, count) }
    }

    pub const fn of_three_queues(self) -> Habit {
        Habit { queues: 3, ..self }
    }

    pub const fn joined(self) -> Habit {
        Habit { joined: true, ..self }
    }
}

pub const NAMESPACE: &str = "app";
pub const PAYLOADS: &str = "app:payloads";
pub const EXPIRES: &str = "app:expires";
const GROUP: &str = "workers";
pub const QUEUES: [&str; 3] = ["orders", "urgent", "mails"];
pub const LEASE_MS: &str = "180000";

pub type Id = [u8; 36];

/// Looks like a UUID, the ids that mx-rmq uses.
pub fn fresh_id(rng: &mut Rng) -> Id {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut bits = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
    std::array::from_fn(|place| match place {
        8 | 13 | 18 | 23 => b'-',
        _ => {
            let digit = HEX[(bits & 15) as usize];
            bits >>= 4;
            digit
        }
    })
}

/// 180 bytes of JSON.
pub fn payload(id: &Id) -> [u8; 180] {
    let mut json = *b"{\"id\":\"....................................\",\"topic\":\"orders\",\"payload\":{\"order\":7,\
        \"customer\":\"c-55810\",\"total\":129.95},\"created_at\":1700000000000,\"meta\":{\"retry_count\":0,\"max\":3}}";
    json[7..43].copy_from_slice(id);
    json
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_millis() as u64
}

pub fn key(queue: usize, role: &str) -> String {
    format!("app:{}:{role}", QUEUES[queue])
}

#[derive(Clone)]
pub struct Message {
    queue: usize,
    id: Vec<u8>,
    receipt: Vec<u8>,
}

/// One worker: what it has in hand, and what it says next.
pub struct Worker {
    pub habit: Habit,
    number: usize,
    turn: usize,
    /// Taken and not settled, the oldest in front.
    pub held: VecDeque<Message>,
    /// How many it keeps in hand when it settles.
    pub hold: usize,
    rng: Rng,
    scripts: Rc<Scripts>,
}

impl Worker {
    pub fn new(habit: Habit, number: usize, scripts: &Rc<Scripts>) -> Worker {
        let rng = Rng::from_seed(number as u64 + 3);
        Worker { habit, number, turn: number, held: VecDeque::new(), hold: 0, rng, scripts: Rc::clone(scripts) }
    }

    /// What has to be there before the first life.
    pub fn prepare(&self, out: &mut Wire) {
        if matches!(self.habit.system, System::Streams | System::StreamsInTwo) {
            for queue in 0..self.habit.queues {
                send!(out, "XGROUP", "CREATE", key(queue, "stream"), GROUP, "$", "MKSTREAM");
            }
        }
    }

    pub fn steps(&self) -> &'static [Step] {
        match self.habit.system {
            System::MxRmq => &[Step::Publish, Step::Take, Step::Fetch, Step::Watch, Step::Settle],
            _ if self.habit.joined => &[Step::Publish, Step::Take],
            _ => &[Step::Publish, Step::Take, Step::Settle],
        }
    }

    /// Messages per request.
    pub fn messages(&self) -> usize {
        self.habit.count * self.habit.calls
    }

    pub fn say(&mut self, step: Step, out: &mut Wire) {
        match step {
            Step::Publish => (0..self.habit.calls).for_each(|_| self.publish(out)),
            Step::Take => {
                if self.habit.joined && !self.held.is_empty() {
                    self.say(Step::Settle, out);
                }
                (0..self.habit.calls).for_each(|_| self.take(out));
            }
            Step::Fetch => {
                for message in self.newest() {
                    send!(out, "HGET", PAYLOADS, message.id);
                }
            }
            Step::Watch => {
                let deadline = (now_ms() + 180_000).to_string();
                for message in self.newest() {
                    send!(out, "ZADD", EXPIRES, deadline, message.id);
                }
            }
            Step::Settle => {
                let count = self.held.len() - self.hold;
                let oldest: Vec<Message> = self.held.drain(..count).collect();
                for call in oldest.chunks(self.habit.count) {
                    self.settle(call, out);
                }
            }
            Step::Fail => {
                for message in self.held.drain(..) {
                    send!(
                        out,
                        "RMQ.NACK",
                        NAMESPACE,
                        message.id,
                        message.receipt,
                        "DELAY",
                        "3600000",
                        "ERROR",
                        "no stock"
                    );
                }
            }
        }
    }

    fn newest(&self) -> impl Iterator<Item = &Message> {
        self.held.iter().skip(self.held.len().saturating_sub(self.messages()))
    }

    fn publish(&mut self, out: &mut Wire) {
        let ids: Vec<Id> = (0..self.habit.count).map(|_| fresh_id(&mut self.rng)).collect();
        let queue = self.turn % self.habit.queues;
        self.turn += 1;
        match self.habit.system {
            System::Rmq => {
                out.begin(4 + 2 * ids.len());
                out.args(["RMQ.PUBLISH", NAMESPACE, "TO", QUEUES[queue]]);
                for id in &ids {
                    out.arg(id);
                    out.arg(payload(id));
                }
            }
            System::MxRmq => {
                // Its producer gives a message its first deadline, after a day.
                let (name, pending) = (format!("app:{}", QUEUES[queue]), key(queue, "pending"));
                let deadline = (now_ms() + 86_400_000).to_string();
                for id in &ids {
                    let sha = &self.scripts.produce;
                    let json = payload(id);
                    send!(out, "EVALSHA", sha, "3", PAYLOADS, pending, EXPIRES, id, json, name, deadline, "0");
                }
            }
            System::Streams | System::StreamsInTwo => {
                for id in &ids {
                    send!(out, "XADD", key(queue, "stream"), "*", "payload", payload(id));
                }
            }
            System::List => {
                out.begin(2 + ids.len());
                out.args(["LPUSH", &key(queue, "pending")]);
                out.args(ids.iter().map(payload));
            }
        }
    }

    fn take(&self, out: &mut Wire) {
        let Habit { system, queues, count, .. } = self.habit;
        let number = count.to_string();
        match system {
            System::Rmq => {
                let options: &[&str] =
                    if count == 1 { &["BLOCK", "5000"] } else { &["COUNT", &number, "BLOCK", "5000"] };
                out.begin(4 + options.len() + queues);
                out.args(["RMQ.RESERVE", NAMESPACE, LEASE_MS]);
                out.args(options);
                out.arg("FROM");
                out.args(&QUEUES[..queues]);
            }
            System::Streams | System::StreamsInTwo => {
                out.begin(9 + 2 * queues);
                let name = format!("worker-{}", self.number);
                out.args(["XREADGROUP", "GROUP", GROUP, &name, "COUNT", &number, "BLOCK", "5000", "STREAMS"]);
                out.args((0..queues).map(|queue| key(queue, "stream")));
                out.args((0..queues).map(|_| ">"));
            }
            System::MxRmq | System::List => {
                for _ in 0..count {
                    send!(out, "BLMOVE", key(0, "pending"), key(0, "processing"), "RIGHT", "LEFT", "5");
                }
            }
        }
    }

    /// Reads what `take` got; returns how many messages that was.
    pub fn took(&mut self, replies: &[u8]) -> usize {
        let before = self.held.len();
        let mut fields = bulks(replies);
        match self.habit.system {
            System::Rmq => {
                // The attempts are an integer.
                while let (Some(id), Some(_), Some(receipt), Some(_)) =
                    (fields.next(), fields.next(), fields.next(), fields.next())
                {
                    self.held.push_back(Message { queue: 0, id: id.into(), receipt: receipt.into() });
                }
            }
            System::Streams | System::StreamsInTwo => {
                let mut queue = 0;
                while let Some(field) = fields.next() {
                    // The name of a stream, then id, field and payload of each entry.
                    if field.starts_with(NAMESPACE.as_bytes()) {
                        queue = (0..3).find(|queue| key(*queue, "stream").as_bytes() == field).expect("a stream");
                        continue;
                    }
                    self.held.push_back(Message { queue, id: field.into(), receipt: Vec::new() });
                    fields.nth(1);
                }
            }
            System::MxRmq | System::List => {
                self.held.extend(fields.map(|id| Message { queue: 0, id: id.into(), receipt: Vec::new() }));
            }
        }
        self.held.len() - before
    }

    fn settle(&self, messages: &[Message], out: &mut Wire) {
        match self.habit.system {
            System::Rmq => {
                out.begin(2 + 2 * messages.len());
                out.args(["RMQ.ACK", NAMESPACE]);
                for message in messages {
                    out.arg(&message.id);
                    out.arg(&message.receipt);
                }
            }
            System::MxRmq => {
                for message in messages {
                    let (sha, processing) = (&self.scripts.complete, key(message.queue, "processing"));
                    send!(out, "EVALSHA", sha, "3", PAYLOADS, processing, EXPIRES, message.id);
                }
            }
            System::Streams | System::StreamsInTwo => {
                for queue in 0..self.habit.queues {
                    let ids: Vec<&Vec<u8>> = messages.iter().filter(|m| m.queue == queue).map(|m| &m.id).collect();
                    if ids.is_empty() {
                        continue;
                    }
                    let stream = key(queue, "stream");
                    if self.habit.system == System::Streams && self.scripts.xackdel {
                        out.begin(5 + ids.len());
                        out.args(["XACKDEL", &stream, GROUP, "IDS", &ids.len().to_string()]);
                        out.args(&ids);
                    } else {
                        out.begin(3 + ids.len());
                        out.args(["XACK", &stream, GROUP]);
                        out.args(&ids);
                        out.begin(2 + ids.len());
                        out.args(["XDEL", &stream]);
                        out.args(&ids);
                    }
                }
            }
            System::List => {
                // The oldest is at the right end; a client that works in order may search from there.
                for message in messages {
                    send!(out, "LREM", key(message.queue, "processing"), "-1", message.id);
                }
            }
        }
    }
}

/// Workers in a closed loop, each one round trip after the other, as a consumer has to.
pub struct Lives {
    workers: Vec<Living>,
    steps: Vec<Step>,
    /// Lives that have not begun.
    left: usize,
    total: usize,
    finished: usize,
    /// Of a whole life, in µs.
    pub latencies: Vec<f64>,
}

struct Living {
    worker: Worker,
    /// The step whose replies come next, and its messages.
    step: Option<usize>,
    messages: usize,
    started: Instant,
}

impl Lives {
    /// Lives of those steps that are wanted and that the system knows.
    pub fn new(habit: Habit, wanted: &[Step], messages: usize, workers: usize, scripts: &Rc<Scripts>) -> Lives {
        let living = |number| {
            let worker = Worker::new(habit, number, scripts);
            Living { worker, step: None, messages: 0, started: Instant::now() }
        };
        let workers: Vec<Living> = (0..workers).map(living).collect();
        let steps = workers[0].worker.steps().iter().copied().filter(|step| wanted.contains(step)).collect();
        let left = messages / habit.count;
        Lives { workers, steps, left, total: left * habit.count, finished: 0, latencies: Vec::new() }
    }
}

impl Script for Lives {
    fn next(&mut self, number: usize, replies: &[u8], out: &mut Wire) -> bool {
        let last = self.steps.len() - 1;
        let living = &mut self.workers[number];
        let took = match living.step {
            Some(step) if self.steps[step] == Step::Take => {
                living.messages = living.worker.took(replies);
                living.messages > 0
            }
            _ => true,
        };
        let (next, begins) = match living.step {
            None => (0, true),
            // Another worker had more than its share.
            Some(step) if !took => (step, false),
            Some(step) if step < last => (step + 1, false),
            Some(_) => {
                self.latencies.push(living.started.elapsed().as_nanos() as f64 / 1000.0);
                self.finished += living.messages;
                (0, true)
            }
        };
        if begins {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            living.started = Instant::now();
        }
        living.step = Some(next);
        let step = self.steps[next];
        if step == Step::Publish {
            living.messages = living.worker.messages();
        }
        living.worker.say(step, out);
        true
    }

    fn is_done(&self) -> bool {
        self.finished == self.total
    }
}
