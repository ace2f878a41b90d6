//! The work that is measured, in the words of each contender. A workload owns its keys and knows what stands in them,
//! so it can name the oldest, the newest or any message, and can put back what an operation took. What it puts back
//! goes by commands that no contender uses for the work itself: commandstats then tells the two apart.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use super::client::{send, Wire};
use super::common::Rng;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    Lua,
    Native,
    /// The commands that the script issues, one by one, as a client would send them.
    Plain,
    /// The same work in as few commands as their variadic forms allow.
    Variadic,
}

/// The SHA of each script.
pub struct Scripts {
    pub complete: String,
    pub retry: String,
    pub delay: String,
    pub timeout: String,
    pub produce: String,
    pub parse_error: String,
    /// Whether fields of a hash can expire on this server.
    pub hexpire: bool,
}

pub type Id = [u8; 36];

/// Looks like a UUID, the ids that the peer uses.
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

pub fn queue_field(id: &Id) -> [u8; 42] {
    let mut field = *b"....................................:queue";
    field[..36].copy_from_slice(id);
    field
}

/// About 200 bytes of JSON, as the peer stores them.
pub fn payload(id: &Id) -> Vec<u8> {
    let mut json = Vec::with_capacity(220);
    json.extend_from_slice(b"{\"version\":\"1.0\",\"id\":\"");
    json.extend_from_slice(id);
    json.extend_from_slice(
        b"\",\"topic\":\"orders\",\"payload\":{\"order\":7310442,\"customer\":\"c-55810\",\"total\":129.95},\
          \"priority\":\"normal\",\"created_at\":1700000000000,\"meta\":{\"retry_count\":0,\"max_retries\":3}}",
    );
    json
}

/// A deadline in Unix ms, long gone or far away, as text.
fn ms(number: u64) -> String {
    (1_700_000_000_000 + number).to_string()
}

/// Every deadline made by `ms` is before this.
const AFTER_ALL: &str = "1800000000000";

/// Something that a key must hold between two measurements.
pub struct Expected {
    pub command: &'static str,
    pub key: String,
    pub length: usize,
}

pub trait Workload {
    /// One operation.
    fn operate(&mut self, out: &mut Wire);
    /// Puts back what one operation took.
    fn refill(&mut self, out: &mut Wire);
    /// Before each measurement.
    fn reset(&mut self, _out: &mut Wire) {}
    /// The commands whose cost is the cost of the operations.
    fn counted(&self) -> &'static [&'static str];
    /// Lengths after a refill: proof that the operations did their work.
    fn expected(&self) -> Vec<Expected>;
}

struct Keys {
    queue: String,
    processing: String,
    payload_map: String,
    expire_monitor: String,
    delay_tasks: String,
    error_map: String,
    error_queue: String,
}

impl Keys {
    fn new(variant: Variant, number: usize) -> Keys {
        // Of one length whoever is measured.
        let letter = match variant {
            Variant::Lua => 'l',
            Variant::Native => 'n',
            Variant::Plain => 'p',
            Variant::Variadic => 'v',
        };
        let queue = format!("mx-rmq:{letter}{number:04}");
        let key = |name: &str| format!("{queue}:{name}");
        Keys {
            processing: key("processing"),
            payload_map: key("payloads"),
            expire_monitor: key("expires"),
            delay_tasks: key("delays"),
            error_map: key("errors:data"),
            error_queue: key("errors"),
            queue,
        }
    }
}

// ---- COMPLETE, RETRY, PARSEERR: a message leaves processing

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    OldestFirst,
    NewestFirst,
    Random,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    Complete,
    Retry,
    ParseError { trim: bool, expire: bool },
}

/// Messages in work, in `sets` queues of `size` each.
pub struct Settle {
    what: What,
    variant: Variant,
    pub order: Order,
    ids_per_call: usize,
    size: usize,
    sets: Vec<Set>,
    next_operation: usize,
    next_refill: usize,
    /// The deadline of the next message delivered.
    clock: u64,
    shuffled_deadlines: bool,
    /// Ids in quarantine, oldest in front. Quarantine and delay_tasks are one for all queues, as the peer has them.
    errors: VecDeque<Id>,
    rng: Rng,
    scripts: Rc<Scripts>,
}

struct Set {
    keys: Keys,
    /// Oldest in front: the order of the list from its right end.
    live: VecDeque<Id>,
    /// Taken by operations and not yet put back.
    taken: VecDeque<Id>,
}

/// Records in the quarantine before a measurement, and with trimming after it too.
const RECORDS: usize = 1000;
/// Other messages in delay_tasks, due in the far future.
const DELAYED: usize = 1000;
const MAX_COUNT: &str = "1000";
const EXPIRE_DAYS: &str = "7";
const ERROR: &str = "Expecting ',' delimiter: line 1 column 112 (char 111)";

impl Settle {
    pub fn new(what: What, variant: Variant, sets: usize, size: usize, scripts: &Rc<Scripts>) -> Settle {
        let sets = (0..sets)
            .map(|number| Set { keys: Keys::new(variant, number), live: VecDeque::new(), taken: VecDeque::new() })
            .collect();
        Settle {
            what,
            variant,
            order: Order::OldestFirst,
            ids_per_call: 1,
            size,
            sets,
            next_operation: 0,
            next_refill: 0,
            clock: 0,
            shuffled_deadlines: false,
            errors: VecDeque::new(),
            rng: Rng::from_seed(42),
            scripts: Rc::clone(scripts),
        }
    }

    pub fn ids_per_call(mut self, count: usize) -> Self {
        self.ids_per_call = count;
        self
    }

    /// Brings every set to its size.
    pub fn fill(&mut self, out: &mut Wire) {
        if self.what == What::Retry {
            let key = &self.sets[0].keys.delay_tasks;
            for other in 0..DELAYED {
                send!(out, "ZADD", key, "4000000000000", format!("another-message-{other:020}"));
            }
        }
        for number in 0..self.sets.len() {
            for _ in 0..self.size {
                self.deliver(number, "LPUSH", out);
            }
        }
    }

    /// Deadlines that say nothing about a message's place in the list, from now on.
    pub fn shuffle_deadlines(&mut self, out: &mut Wire) {
        self.shuffled_deadlines = true;
        for set in &self.sets {
            for id in &set.live {
                let deadline = ms(self.rng.next_u64() % 1_000_000_000);
                send!(out, "ZADD", set.keys.expire_monitor, deadline, id);
            }
        }
    }

    /// A new message, as if just taken from pending: at the left of processing, its deadline a fixed time after.
    fn deliver(&mut self, number: usize, push: &str, out: &mut Wire) {
        let id = fresh_id(&mut self.rng);
        let set = &mut self.sets[number];
        let keys = &set.keys;
        send!(out, "HMSET", keys.payload_map, id, payload(&id), queue_field(&id), keys.queue);
        set.live.push_back(id);
        self.put_to_work(number, &id, push, out);
    }

    fn put_to_work(&mut self, number: usize, id: &Id, push: &str, out: &mut Wire) {
        self.clock += 1;
        let deadline = if self.shuffled_deadlines { self.rng.next_u64() % 1_000_000_000 } else { self.clock };
        let keys = &self.sets[number].keys;
        send!(out, "ZINCRBY", keys.expire_monitor, ms(deadline), id);
        send!(out, push, keys.processing, id);
    }

    fn take(&mut self, number: usize) -> Id {
        let set = &mut self.sets[number];
        let id = match self.order {
            Order::OldestFirst => set.live.pop_front(),
            Order::NewestFirst => set.live.pop_back(),
            Order::Random => {
                let place = self.rng.below(set.live.len());
                set.live.swap_remove_back(place)
            }
        };
        id.expect("a burst is smaller than the set")
    }

    fn complete(&self, keys: &Keys, ids: &[Id], out: &mut Wire) {
        match self.variant {
            Variant::Lua => {
                for id in ids {
                    send!(
                        out,
                        "EVALSHA",
                        self.scripts.complete,
                        "3",
                        keys.payload_map,
                        keys.processing,
                        keys.expire_monitor,
                        id
                    );
                }
            }
            Variant::Native => {
                out.begin(4 + ids.len());
                out.arg("RMQ.COMPLETE");
                for key in [&keys.payload_map, &keys.processing, &keys.expire_monitor] {
                    out.arg(key);
                }
                for id in ids {
                    out.arg(id);
                }
            }
            Variant::Plain | Variant::Variadic => {
                for id in ids {
                    send!(out, "LREM", keys.processing, self.lrem_count(), id);
                }
                out.begin(2 + ids.len());
                out.arg("ZREM");
                out.arg(&keys.expire_monitor);
                for id in ids {
                    out.arg(id);
                }
                out.begin(2 + 2 * ids.len());
                out.arg("HDEL");
                out.arg(&keys.payload_map);
                for id in ids {
                    out.arg(id);
                    out.arg(queue_field(id));
                }
            }
        }
    }

    /// The end from which a client that knows the order lets LREM search.
    fn lrem_count(&self) -> &'static str {
        match self.order {
            Order::OldestFirst => "-1",
            Order::NewestFirst | Order::Random => "1",
        }
    }

    fn retry(&self, keys: &Keys, id: &Id, out: &mut Wire) {
        let payload = payload(id);
        let delay_tasks = &self.sets[0].keys.delay_tasks;
        match self.variant {
            Variant::Lua => send!(
                out,
                "EVALSHA",
                self.scripts.retry,
                "4",
                keys.payload_map,
                delay_tasks,
                keys.expire_monitor,
                keys.processing,
                id,
                payload,
                "60",
                "orders"
            ),
            Variant::Native => send!(
                out,
                "RMQ.RETRY",
                keys.payload_map,
                delay_tasks,
                keys.expire_monitor,
                keys.processing,
                id,
                payload,
                "60",
                "orders"
            ),
            Variant::Plain | Variant::Variadic => {
                send!(out, "HSET", keys.payload_map, id, payload);
                send!(out, "ZADD", delay_tasks, ms(self.clock), id);
                send!(out, "ZREM", keys.expire_monitor, id);
                send!(out, "LREM", keys.processing, self.lrem_count(), id);
            }
        }
    }

    fn parse_error(&mut self, number: usize, id: &Id, trim: bool, expire: bool, out: &mut Wire) {
        let payload = payload(id);
        self.errors.push_back(*id);
        let trimmed = if trim { self.errors.pop_front() } else { None };
        let keys = &self.sets[number].keys;
        let error_keys = &self.sets[0].keys;
        let arguments: [&[u8]; 8] = [
            id,
            &payload,
            b"orders",
            ERROR.as_bytes(),
            b"1700000000000",
            if expire { EXPIRE_DAYS.as_bytes() } else { b"" },
            if trim { MAX_COUNT.as_bytes() } else { b"" },
            if self.scripts.hexpire { b"1" } else { b"0" },
        ];
        let names =
            [&error_keys.error_map, &error_keys.error_queue, &keys.processing, &keys.expire_monitor, &keys.payload_map];
        match self.variant {
            Variant::Lua | Variant::Native => {
                if self.variant == Variant::Lua {
                    out.begin(3 + names.len() + arguments.len());
                    out.arg("EVALSHA");
                    out.arg(&self.scripts.parse_error);
                    out.arg("5");
                } else {
                    out.begin(1 + names.len() + arguments.len());
                    out.arg("RMQ.PARSEERR");
                }
                for name in names {
                    out.arg(name);
                }
                for argument in arguments {
                    out.arg(argument);
                }
            }
            Variant::Plain | Variant::Variadic => {
                let (map, queue) = (&error_keys.error_map, &error_keys.error_queue);
                send!(out, "HSET", map, id, record(id, &payload));
                send!(out, "LPUSH", queue, id);
                if expire && self.scripts.hexpire {
                    send!(out, "HEXPIRE", map, "604800", "FIELDS", "1", id);
                } else if expire {
                    send!(out, "EXPIRE", map, "604800", "NX");
                }
                if let Some(oldest) = trimmed {
                    send!(out, "LLEN", queue);
                    send!(out, "RPOP", queue);
                    send!(out, "HDEL", map, oldest);
                }
                send!(out, "LREM", keys.processing, self.lrem_count(), id);
                send!(out, "ZREM", keys.expire_monitor, id);
                send!(out, "HDEL", keys.payload_map, id, queue_field(id));
            }
        }
    }
}

/// The record as a client would write it itself.
fn record(id: &Id, payload: &[u8]) -> Vec<u8> {
    let payload = String::from_utf8_lossy(payload);
    format!(
        "{{\"original_payload\":\"{}\",\"error_type\":\"parse_error\",\"error_message\":\"{ERROR}\",\
         \"topic\":\"orders\",\"timestamp\":\"1700000000000\",\"message_id\":\"{}\",\"original_payload_bytes\":{}}}",
        payload.replace('"', "\\\""),
        String::from_utf8_lossy(id),
        payload.len()
    )
    .into_bytes()
}

impl Workload for Settle {
    fn operate(&mut self, out: &mut Wire) {
        let number = self.next_operation % self.sets.len();
        self.next_operation += 1;
        let ids: Vec<Id> = (0..self.ids_per_call).map(|_| self.take(number)).collect();
        match self.what {
            What::Complete => self.complete(&self.sets[number].keys, &ids, out),
            What::Retry => self.retry(&self.sets[number].keys, &ids[0], out),
            What::ParseError { trim, expire } => self.parse_error(number, &ids[0], trim, expire, out),
        }
        out.end_operation();
        self.sets[number].taken.extend(ids);
    }

    fn refill(&mut self, out: &mut Wire) {
        let number = self.next_refill % self.sets.len();
        self.next_refill += 1;
        for _ in 0..self.ids_per_call {
            let id = self.sets[number].taken.pop_front().expect("something was taken");
            match self.what {
                What::Complete => self.deliver(number, "LPUSH", out),
                // The plain commands of PARSEERR count LPUSH.
                What::ParseError { .. } => self.deliver(number, "LPUSHX", out),
                What::Retry => {
                    // The message itself is delivered again; it alone is due before the far future.
                    send!(out, "ZPOPMIN", self.sets[0].keys.delay_tasks);
                    self.sets[number].live.push_back(id);
                    self.put_to_work(number, &id, "LPUSH", out);
                }
            }
        }
    }

    fn reset(&mut self, out: &mut Wire) {
        if !matches!(self.what, What::ParseError { .. }) {
            return;
        }
        let keys = &self.sets[0].keys;
        send!(out, "DEL", keys.error_map, keys.error_queue);
        self.errors.clear();
        for _ in 0..RECORDS {
            let id = fresh_id(&mut self.rng);
            send!(out, "HSET", keys.error_map, id, record(&id, &payload(&id)));
            send!(out, "LPUSH", keys.error_queue, id);
            self.errors.push_back(id);
        }
    }

    fn counted(&self) -> &'static [&'static str] {
        match (self.variant, self.what) {
            (Variant::Lua, _) => &["evalsha"],
            (Variant::Native, What::Complete) => &["rmq.complete"],
            (Variant::Native, What::Retry) => &["rmq.retry"],
            (Variant::Native, What::ParseError { .. }) => &["rmq.parseerr"],
            (_, What::Complete) => &["lrem", "zrem", "hdel"],
            (_, What::Retry) => &["hset", "zadd", "zrem", "lrem"],
            (_, What::ParseError { .. }) => {
                &["hset", "lpush", "hexpire", "expire", "llen", "rpop", "hdel", "lrem", "zrem"]
            }
        }
    }

    fn expected(&self) -> Vec<Expected> {
        let mut all = Vec::new();
        for set in [&self.sets[0], &self.sets[self.sets.len() - 1]] {
            let mut expect = |command, key: &String, length| all.push(Expected { command, key: key.clone(), length });
            expect("LLEN", &set.keys.processing, self.size);
            expect("ZCARD", &set.keys.expire_monitor, self.size);
            expect("HLEN", &set.keys.payload_map, 2 * self.size);
            if self.what == What::Retry {
                expect("ZCARD", &self.sets[0].keys.delay_tasks, DELAYED);
            }
            if matches!(self.what, What::ParseError { trim: true, .. }) {
                expect("LLEN", &self.sets[0].keys.error_queue, RECORDS);
                expect("HLEN", &self.sets[0].keys.error_map, RECORDS);
            }
        }
        all
    }
}

// ---- DELAYTICK

/// Messages that are due, spread over queues, before others that are not.
pub struct Tick {
    variant: Variant,
    batch: usize,
    keys: Keys,
    queues: Vec<Queue>,
    /// Each with its queue; they become due in this order, over and over.
    pool: Vec<(Id, usize)>,
    next_operation: usize,
    next_refill: usize,
    clock: u64,
    scripts: Rc<Scripts>,
}

struct Queue {
    name: String,
    pending: String,
    /// How many ids must be in pending.
    length: usize,
}

/// Messages in delay_tasks that are not due.
const NOT_DUE: usize = 10_000;
/// Elements that each pending list keeps between measurements.
const WAITING: usize = 10;

impl Tick {
    /// `calls` operations may follow each other before a refill.
    pub fn new(variant: Variant, queues: usize, batch: usize, calls: usize, scripts: &Rc<Scripts>) -> Tick {
        let mut rng = Rng::from_seed(7);
        let keys = Keys::new(variant, 0);
        let pool = (0..calls * batch).map(|_| (fresh_id(&mut rng), rng.below(queues))).collect();
        let queues = (0..queues)
            .map(|number| {
                let name = format!("{}:q{number:03}", keys.queue);
                let pending = format!("{name}:pending");
                Queue { name, pending, length: WAITING }
            })
            .collect();
        Tick {
            variant,
            batch,
            keys,
            queues,
            pool,
            next_operation: 0,
            next_refill: 0,
            clock: 0,
            scripts: Rc::clone(scripts),
        }
    }

    pub fn fill(&mut self, out: &mut Wire) {
        for (id, queue) in &self.pool {
            let queue = &self.queues[*queue].name;
            send!(out, "HMSET", self.keys.payload_map, id, payload(id), queue_field(id), queue);
        }
        for number in 0..NOT_DUE {
            let id = format!("another-message-{number:020}");
            send!(out, "ZADD", self.keys.delay_tasks, "4000000000000", id);
        }
        for queue in &self.queues {
            for number in 0..WAITING {
                send!(out, "LPUSH", queue.pending, format!("another-message-{number:020}"));
            }
        }
        for _ in 0..self.pool.len() / self.batch {
            self.refill(out);
        }
    }

    /// The places in the pool that the call of this number takes.
    fn places(&self, number: usize) -> Range<usize> {
        let first = number * self.batch % self.pool.len();
        first..first + self.batch
    }
}

impl Workload for Tick {
    fn operate(&mut self, out: &mut Wire) {
        let batch = self.batch.to_string();
        let due = &self.pool[self.places(self.next_operation)];
        for (_, queue) in due {
            self.queues[*queue].length += 1;
        }
        let keys = &self.keys;
        match self.variant {
            Variant::Lua => send!(out, "EVALSHA", self.scripts.delay, "2", keys.delay_tasks, keys.payload_map, batch),
            Variant::Native => send!(out, "RMQ.DELAYTICK", keys.delay_tasks, keys.payload_map, batch),
            Variant::Plain => {
                send!(out, "ZRANGE", keys.delay_tasks, "0", AFTER_ALL, "BYSCORE", "LIMIT", "0", batch);
                for (id, queue) in due {
                    send!(out, "HGET", keys.payload_map, queue_field(id));
                    send!(out, "LPUSH", self.queues[*queue].pending, id);
                    send!(out, "ZREM", keys.delay_tasks, id);
                }
            }
            Variant::Variadic => {
                send!(out, "ZRANGE", keys.delay_tasks, "0", AFTER_ALL, "BYSCORE", "LIMIT", "0", batch);
                out.begin(2 + due.len());
                out.arg("HMGET");
                out.arg(&keys.payload_map);
                for (id, _) in due {
                    out.arg(queue_field(id));
                }
                for (number, queue) in self.queues.iter().enumerate() {
                    let own: Vec<&Id> = due.iter().filter(|(_, q)| *q == number).map(|(id, _)| id).collect();
                    if own.is_empty() {
                        // Operations are of one size; this costs next to nothing and is not counted.
                        send!(out, "PING");
                        continue;
                    }
                    out.begin(2 + own.len());
                    out.arg("LPUSH");
                    out.arg(&queue.pending);
                    for id in own {
                        out.arg(id);
                    }
                }
                out.begin(2 + due.len());
                out.arg("ZREM");
                out.arg(&keys.delay_tasks);
                for (id, _) in due {
                    out.arg(id);
                }
            }
        }
        out.end_operation();
        self.next_operation += 1;
    }

    fn refill(&mut self, out: &mut Wire) {
        let places = self.places(self.next_refill);
        self.next_refill += 1;
        out.begin(2 + 2 * self.batch);
        out.arg("ZADD");
        out.arg(&self.keys.delay_tasks);
        for (id, _) in &self.pool[places] {
            self.clock += 1;
            out.arg(ms(self.clock));
            out.arg(id);
        }
    }

    fn reset(&mut self, out: &mut Wire) {
        for queue in &mut self.queues {
            send!(out, "LTRIM", queue.pending, "0", (WAITING - 1).to_string());
            queue.length = WAITING;
        }
    }

    fn counted(&self) -> &'static [&'static str] {
        match self.variant {
            Variant::Lua => &["evalsha"],
            Variant::Native => &["rmq.delaytick"],
            Variant::Plain => &["zrange", "hget", "lpush", "zrem"],
            Variant::Variadic => &["zrange", "hmget", "lpush", "zrem"],
        }
    }

    fn expected(&self) -> Vec<Expected> {
        let mut all =
            vec![Expected { command: "ZCARD", key: self.keys.delay_tasks.clone(), length: NOT_DUE + self.pool.len() }];
        // A call that found less than its batch left one of these shorter.
        all.extend(self.queues.iter().map(|queue| Expected {
            command: "LLEN",
            key: queue.pending.clone(),
            length: queue.length,
        }));
        all
    }
}

// ---- TIMEOUTS

/// Messages whose deadline has passed, in `sets` queues of `stuck` each; every queue has its own keys.
pub struct Stuck {
    variant: Variant,
    batch: usize,
    stuck: usize,
    shuffled: bool,
    sets: Vec<StuckSet>,
    next_operation: usize,
    next_refill: usize,
    clock: u64,
    rng: Rng,
    scripts: Rc<Scripts>,
}

struct StuckSet {
    keys: Keys,
    /// By deadline.
    live: BTreeMap<u64, Id>,
    taken: VecDeque<Id>,
}

impl Stuck {
    pub fn new(variant: Variant, sets: usize, stuck: usize, batch: usize, scripts: &Rc<Scripts>) -> Stuck {
        let sets = (0..sets)
            .map(|number| StuckSet { keys: Keys::new(variant, number), live: BTreeMap::new(), taken: VecDeque::new() })
            .collect();
        Stuck {
            variant,
            batch,
            stuck,
            shuffled: false,
            sets,
            next_operation: 0,
            next_refill: 0,
            clock: 0,
            rng: Rng::from_seed(11),
            scripts: Rc::clone(scripts),
        }
    }

    /// Deadlines that say nothing about a message's place in the list.
    pub fn shuffled(mut self) -> Self {
        self.shuffled = true;
        self
    }

    pub fn fill(&mut self, out: &mut Wire) {
        for number in 0..self.sets.len() {
            let ids: Vec<Id> = (0..self.stuck).map(|_| fresh_id(&mut self.rng)).collect();
            let keys = &self.sets[number].keys;
            for id in &ids {
                send!(out, "HMSET", keys.payload_map, id, payload(id), queue_field(id), keys.queue);
            }
            for ids in ids.chunks(1000) {
                self.deliver(number, ids, out);
            }
        }
    }

    fn deliver(&mut self, number: usize, ids: &[Id], out: &mut Wire) {
        let set = &mut self.sets[number];
        out.begin(2 + ids.len());
        out.arg("LPUSH");
        out.arg(&set.keys.processing);
        for id in ids {
            out.arg(id);
        }
        out.begin(2 + 2 * ids.len());
        out.arg("ZADD");
        out.arg(&set.keys.expire_monitor);
        for id in ids {
            self.clock += 1;
            let deadline = if self.shuffled { self.rng.next_u64() % 1_000_000_000 } else { self.clock };
            // Two messages with one deadline would not both be known here.
            let deadline = (deadline..).find(|d| !set.live.contains_key(d)).expect("a free one");
            set.live.insert(deadline, *id);
            out.arg(ms(deadline));
            out.arg(id);
        }
    }
}

impl Workload for Stuck {
    fn operate(&mut self, out: &mut Wire) {
        let number = self.next_operation % self.sets.len();
        self.next_operation += 1;
        let batch = self.batch.to_string();
        let set = &mut self.sets[number];
        let expired: Vec<Id> =
            (0..self.batch).map(|_| set.live.pop_first().expect("a burst is smaller than the set").1).collect();
        set.taken.extend(&expired);
        let keys = &set.keys;
        match self.variant {
            Variant::Lua => send!(
                out,
                "EVALSHA",
                self.scripts.timeout,
                "2",
                keys.expire_monitor,
                keys.payload_map,
                AFTER_ALL,
                batch
            ),
            Variant::Native => send!(out, "RMQ.TIMEOUTS", keys.expire_monitor, keys.payload_map, AFTER_ALL, batch),
            Variant::Plain => {
                send!(out, "ZRANGE", keys.expire_monitor, "0", AFTER_ALL, "BYSCORE", "LIMIT", "0", batch);
                for id in &expired {
                    send!(out, "HGET", keys.payload_map, id);
                    send!(out, "HGET", keys.payload_map, queue_field(id));
                    // Its reply tells whether the id was there, so LPOS is not needed; the oldest are at the right.
                    send!(out, "LREM", keys.processing, "-1", id);
                    send!(out, "ZREM", keys.expire_monitor, id);
                }
            }
            Variant::Variadic => {
                send!(out, "ZRANGE", keys.expire_monitor, "0", AFTER_ALL, "BYSCORE", "LIMIT", "0", batch);
                out.begin(2 + 2 * expired.len());
                out.arg("HMGET");
                out.arg(&keys.payload_map);
                for id in &expired {
                    out.arg(id);
                    out.arg(queue_field(id));
                }
                for id in &expired {
                    send!(out, "LREM", keys.processing, "-1", id);
                }
                out.begin(2 + expired.len());
                out.arg("ZREM");
                out.arg(&keys.expire_monitor);
                for id in &expired {
                    out.arg(id);
                }
            }
        }
        out.end_operation();
    }

    fn refill(&mut self, out: &mut Wire) {
        let number = self.next_refill % self.sets.len();
        self.next_refill += 1;
        let ids: Vec<Id> = self.sets[number].taken.drain(..self.batch).collect();
        self.deliver(number, &ids, out);
    }

    fn counted(&self) -> &'static [&'static str] {
        match self.variant {
            Variant::Lua => &["evalsha"],
            Variant::Native => &["rmq.timeouts"],
            Variant::Plain => &["zrange", "hget", "lrem", "zrem"],
            Variant::Variadic => &["zrange", "hmget", "lrem", "zrem"],
        }
    }

    fn expected(&self) -> Vec<Expected> {
        // A call that found less than its batch left one of the lists longer.
        let expect = |command, key: &String| Expected { command, key: key.clone(), length: self.stuck };
        let keys = self.sets.iter().map(|set| &set.keys);
        keys.flat_map(|keys| [expect("LLEN", &keys.processing), expect("ZCARD", &keys.expire_monitor)]).collect()
    }
}
