//! The five twins beside the Lua scripts that they replace. A workload owns its keys and knows what is in them, so it can
//! name the oldest, the newest or any message, and puts back what a call took.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::client::{send, Wire};
use super::common::Rng;
use super::systems::{fresh_id, payload, Id, Scripts};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Oldest,
    Newest,
    Random,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Twin {
    /// So many in processing.
    Complete(usize, Order),
    Retry,
    ParseError,
    /// So many messages per call, of so many queues.
    DelayTick(usize, usize),
    /// So many stuck, so many of them per call.
    Timeouts(usize, usize),
}

impl Twin {
    pub fn name(self) -> String {
        match self {
            Twin::Complete(size, order) => {
                format!("COMPLETE {size} in processing {}", format!("{order:?}").to_lowercase())
            }
            Twin::Retry => "RETRY 100 in processing".into(),
            Twin::ParseError => "PARSEERR 100 in processing".into(),
            Twin::DelayTick(batch, queues) => format!("DELAYTICK batch {batch} of {queues} queues"),
            Twin::Timeouts(stuck, batch) => format!("TIMEOUTS {stuck} stuck batch {batch}"),
        }
    }

    /// Messages per call.
    pub fn batch(self) -> usize {
        match self {
            Twin::DelayTick(batch, _) | Twin::Timeouts(_, batch) => batch,
            _ => 1,
        }
    }

    /// Calls that may follow each other before the keys are filled again.
    pub fn burst(self) -> usize {
        match self {
            Twin::Complete(size, _) if size > 1000 => 50,
            Twin::Complete(..) | Twin::Retry | Twin::ParseError => 20,
            Twin::DelayTick(..) => 2,
            Twin::Timeouts(..) => 1,
        }
    }
}

/// Others that are in delay_tasks, due in the far future, and records in the quarantine.
const OTHERS: usize = 1000;
/// Every deadline made here is before this.
const AFTER_ALL: &str = "1800000000000";

fn ms(number: u64) -> String {
    (1_700_000_000_000 + number).to_string()
}

pub struct Work {
    twin: Twin,
    native: bool,
    keys: BTreeMap<&'static str, String>,
    /// In processing or due; the oldest in front.
    live: VecDeque<(Id, usize)>,
    taken: Vec<(Id, usize)>,
    /// The deadline of the next message.
    clock: u64,
    rng: Rng,
    scripts: Rc<Scripts>,
}

impl Work {
    pub fn new(twin: Twin, native: bool, scripts: &Rc<Scripts>) -> Work {
        // Of one length whoever is measured.
        let prefix = if native { "mx-rmq:n" } else { "mx-rmq:l" };
        let roles = ["payloads", "expires", "delays", "errors:data", "errors", "orders:processing"];
        let keys = roles.into_iter().map(|role| (role, format!("{prefix}:{role}"))).collect();
        Work {
            twin,
            native,
            keys,
            live: VecDeque::new(),
            taken: Vec::new(),
            clock: 0,
            rng: Rng::from_seed(42),
            scripts: Rc::clone(scripts),
        }
    }

    /// The command whose time counts.
    pub fn command(&self) -> &'static str {
        match self.twin {
            _ if !self.native => "evalsha",
            Twin::Complete(..) => "rmq.complete",
            Twin::Retry => "rmq.retry",
            Twin::ParseError => "rmq.parseerr",
            Twin::DelayTick(..) => "rmq.delaytick",
            Twin::Timeouts(..) => "rmq.timeouts",
        }
    }

    fn queue(&self, number: usize) -> String {
        let prefix = self.keys["payloads"].trim_end_matches("payloads");
        if number == 0 {
            format!("{prefix}orders")
        } else {
            format!("{prefix}q{number:05}")
        }
    }

    pub fn fill(&mut self, out: &mut Wire) {
        let (size, queues) = match self.twin {
            Twin::Complete(size, _) | Twin::Timeouts(size, _) => (size, 1),
            Twin::Retry | Twin::ParseError => (100, 1),
            Twin::DelayTick(batch, queues) => (batch * self.twin.burst(), queues),
        };
        for number in 0..OTHERS {
            let other = format!("another-message-{number:020}");
            send!(out, "ZADD", self.keys["delays"], "4000000000000", other);
            if self.twin == Twin::ParseError {
                send!(out, "HSET", self.keys["errors:data"], other, payload(&fresh_id(&mut self.rng)));
                send!(out, "LPUSH", self.keys["errors"], other);
            }
        }
        for number in 0..size {
            let (id, queue) = (fresh_id(&mut self.rng), number % queues);
            self.store(&id, queue, out);
            self.deliver(id, queue, out);
        }
    }

    fn store(&self, id: &Id, queue: usize, out: &mut Wire) {
        send!(out, "HSET", self.keys["payloads"], id, payload(id), queue_field(id), self.queue(queue));
    }

    /// Due, or as if just taken from pending: at the left of processing, its deadline a fixed time after.
    fn deliver(&mut self, id: Id, queue: usize, out: &mut Wire) {
        self.clock += 1;
        self.live.push_back((id, queue));
        if matches!(self.twin, Twin::DelayTick(..)) {
            send!(out, "ZADD", self.keys["delays"], ms(self.clock), id);
        } else {
            send!(out, "ZADD", self.keys["expires"], ms(self.clock), id);
            send!(out, "LPUSH", self.keys["orders:processing"], id);
        }
    }

    /// One call.
    pub fn call(&mut self, out: &mut Wire) {
        for _ in 0..self.twin.batch() {
            let one = match self.twin {
                Twin::Complete(_, Order::Newest) => self.live.pop_back(),
                Twin::Complete(_, Order::Random) => self.live.remove(self.rng.below(self.live.len())),
                _ => self.live.pop_front(),
            };
            self.taken.push(one.expect("a burst is smaller than the keys"));
        }
        let id = self.taken[self.taken.len() - 1].0;
        let json = payload(&id);
        let batch = self.twin.batch().to_string();
        let hexpire = if self.scripts.hexpire { "1" } else { "0" };
        let (command, sha, keys, args): (_, _, &[&str], Vec<&[u8]>) = match self.twin {
            Twin::Complete(..) => {
                let keys = &["payloads", "orders:processing", "expires"];
                ("RMQ.COMPLETE", &self.scripts.complete, keys, vec![&id])
            }
            Twin::Retry => {
                let keys = &["payloads", "delays", "expires", "orders:processing"];
                ("RMQ.RETRY", &self.scripts.retry, keys, vec![&id, &json, b"60", b"orders"])
            }
            Twin::ParseError => {
                let keys = &["errors:data", "errors", "orders:processing", "expires", "payloads"];
                let error = b"Expecting ',' delimiter: line 1 column 112 (char 111)";
                let args: [&[u8]; 8] =
                    [&id, &json, b"orders", error, b"1700000000000", b"7", b"1000", hexpire.as_bytes()];
                ("RMQ.PARSEERR", &self.scripts.parse_error, keys, args.to_vec())
            }
            Twin::DelayTick(..) => {
                ("RMQ.DELAYTICK", &self.scripts.delay, &["delays", "payloads"], vec![batch.as_bytes()])
            }
            Twin::Timeouts(..) => {
                let args = vec![AFTER_ALL.as_bytes(), batch.as_bytes()];
                ("RMQ.TIMEOUTS", &self.scripts.timeout, &["expires", "payloads"], args)
            }
        };
        if self.native {
            out.begin(1 + keys.len() + args.len());
            out.arg(command);
        } else {
            out.begin(3 + keys.len() + args.len());
            out.args(["EVALSHA", sha, &keys.len().to_string()]);
        }
        out.args(keys.iter().map(|key| &self.keys[key]));
        out.args(args);
    }

    /// Puts back what the calls took.
    pub fn refill(&mut self, out: &mut Wire) {
        for (id, queue) in std::mem::take(&mut self.taken) {
            match self.twin {
                Twin::Complete(..) | Twin::ParseError => {
                    let id = fresh_id(&mut self.rng);
                    self.store(&id, queue, out);
                    self.deliver(id, queue, out);
                }
                Twin::Retry => {
                    send!(out, "ZREM", self.keys["delays"], id);
                    self.deliver(id, queue, out);
                }
                Twin::DelayTick(..) => {
                    send!(out, "RPOP", format!("{}:pending", self.queue(queue)));
                    self.deliver(id, queue, out);
                }
                Twin::Timeouts(..) => self.deliver(id, queue, out),
            }
        }
    }

    /// The lengths that keys have after a refill: proof that the calls did their work.
    pub fn expected(&self) -> Vec<(&'static str, String, usize)> {
        let size = self.live.len();
        match self.twin {
            Twin::DelayTick(..) => vec![
                ("ZCARD", self.keys["delays"].clone(), OTHERS + size),
                ("EXISTS", format!("{}:pending", self.queue(0)), 0),
            ],
            _ => vec![
                ("LLEN", self.keys["orders:processing"].clone(), size),
                ("ZCARD", self.keys["expires"].clone(), size),
                ("HLEN", self.keys["payloads"].clone(), 2 * size),
                ("ZCARD", self.keys["delays"].clone(), OTHERS),
                ("LLEN", self.keys["errors"].clone(), if self.twin == Twin::ParseError { OTHERS } else { 0 }),
            ],
        }
    }
}

fn queue_field(id: &Id) -> [u8; 42] {
    let mut field = *b"....................................:queue";
    field[..36].copy_from_slice(id);
    field
}
