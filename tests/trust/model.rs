//! Model check: random streams of all commands, of the plain commands that users mix in, of misuse and of failures run
//! against the module and against a simple reference model. After every step the reply is what the model allows, and
//! all keys are equal to the model's. At the end of each stream a replica without the module has the same data.
//!
//! Orderly streams use the commands as they are meant to be used: then the invariants hold after every step, each
//! live message is in exactly one place, no entry is stale, AUDIT has no fault to report, and REPAIR changes nothing.
//!
//! 100,000 operations by default (RMQ_OPS). A failure is shrunk: the operations that are not needed for it are left
//! out, and the rest is printed.

mod reference;

use crate::common::*;
use crate::wire::{line, words, Command, Wire};
use reference::{Bytes, Model, Names, State, Step, Value};
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const NS: &str = "m";
const MAP: &str = "m:payloads";
const DELAYS: &str = "m:delays";
const EXPIRES: &str = "m:expires";
const DLQ: &str = "m:dlq";
const DLQ_MAP: &str = "m:dlq:data";
const POLICIES: &str = "m:queues";
const ONCE: &str = "m:once";
const ERRORS: &str = "m:errors";
const ERROR_MAP: &str = "m:errors:data";
const QUEUES: [&str; 3] = ["a", "b", "c"];
const LISTS: [&str; 6] =
    ["m:a:pending", "m:a:processing", "m:b:pending", "m:b:processing", "m:c:pending", "m:c:processing"];
const NAMES: Names = Names {
    map: MAP,
    delays: DELAYS,
    expires: EXPIRES,
    working_lists: &LISTS,
    archives: &[(DLQ, DLQ_MAP), (ERRORS, ERROR_MAP)],
};

/// Far enough away that no step ever meets it.
const FAR_MS: i64 = 10_000_000;
const DEFAULT_MAX_BATCH: usize = 10_000;

/// All keys with their contents, in one reply.
const DUMP: &str = "
local dump = {}
for i, key in ipairs(KEYS) do
    local kind = redis.call('TYPE', key).ok
    local value = false
    if kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
    elseif kind == 'hash' then value = redis.call('HGETALL', key)
    elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
    dump[i] = {kind, value}
end
return dump";

fn all_keys() -> Vec<&'static str> {
    let mut keys = vec![MAP, DELAYS, EXPIRES, DLQ, DLQ_MAP, POLICIES, ONCE, ERRORS, ERROR_MAP];
    keys.extend(LISTS);
    // Of another namespace, which only the twins follow.
    keys.extend(["other:a:pending", "other:a:processing", "other:b:pending", "other:b:processing"]);
    keys.extend(["other:c:pending", "other:c:processing"]);
    keys
}

fn now_ms() -> f64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    since_epoch.as_micros() as f64 / 1000.0
}

/// A word of an operation. Receipts are known only when the operation runs.
#[derive(Clone, Debug)]
enum Word {
    Is(Bytes),
    /// The receipt that the server gave last for this id, or the one before it.
    Receipt(Bytes),
    OldReceipt(Bytes),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Plain,
    Multi,
    Lua,
}

#[derive(Clone, Debug)]
struct Op {
    words: Vec<Word>,
    way: Way,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |word: &Word| match word {
            Word::Is(bytes) if bytes.is_empty() => "\"\"".to_string(),
            Word::Is(bytes) => bytes.escape_ascii().to_string(),
            Word::Receipt(id) => format!("<receipt of {}>", id.escape_ascii()),
            Word::OldReceipt(id) => format!("<old receipt of {}>", id.escape_ascii()),
        };
        let words: Vec<String> = self.words.iter().map(word).collect();
        match self.way {
            Way::Plain => write!(f, "{}", words.join(" ")),
            way => write!(f, "({way:?}) {}", words.join(" ")),
        }
    }
}

macro_rules! op {
    ($($word:expr),+ $(,)?) => {
        vec![$(Word::from($word)),+]
    };
}

impl From<&str> for Word {
    fn from(text: &str) -> Word {
        Word::Is(text.into())
    }
}

impl From<String> for Word {
    fn from(text: String) -> Word {
        Word::Is(text.into())
    }
}

impl From<&Bytes> for Word {
    fn from(bytes: &Bytes) -> Word {
        Word::Is(bytes.clone())
    }
}

// ---- running

/// A server with a replica that does not have the module.
struct Rig {
    server: Server,
    replica: Replica,
}

struct Runner<'r> {
    rig: &'r Rig,
    wire: Wire,
    model: Model,
    /// Receipts as the server returned them, oldest first.
    receipts: HashMap<Bytes, Vec<Bytes>>,
    /// Whether the invariants of orderly use are checked.
    orderly: bool,
    dump: Command,
}

/// What went wrong, and after how many operations of the batch.
struct Failure {
    at: usize,
    what: String,
}

impl<'r> Runner<'r> {
    fn new(rig: &'r Rig, orderly: bool) -> Runner<'r> {
        if !rig.server.is_alive() {
            rig.server.restart();
        }
        let mut wire = Wire::connect(&rig.server);
        // INFO notices that the counters start again.
        let reset = [
            words(&["FLUSHALL"]),
            words(&["CONFIG", "SET", "rmq.max-batch", &DEFAULT_MAX_BATCH.to_string()]),
            words(&["CONFIG", "RESETSTAT"]),
            words(&["INFO", "rmq"]),
        ];
        wire.pipeline(&reset).expect("a fresh start");
        let keys = all_keys();
        let mut dump = words(&["EVAL", DUMP, &keys.len().to_string()]);
        dump.extend(words(&keys));
        Runner {
            rig,
            wire,
            model: Model { max_batch: DEFAULT_MAX_BATCH, ..Model::default() },
            receipts: HashMap::new(),
            orderly,
            dump,
        }
    }

    fn resolve(&self, op: &Op) -> Command {
        let known = |id: &Bytes, age: usize| {
            let receipts = self.receipts.get(id);
            let receipt = receipts.and_then(|receipts| receipts.iter().rev().nth(age));
            receipt.cloned().unwrap_or_else(|| b"1-12345678".to_vec())
        };
        let word = |word: &Word| match word {
            Word::Is(bytes) => bytes.clone(),
            Word::Receipt(id) => known(id, 0),
            Word::OldReceipt(id) => known(id, 1),
        };
        op.words.iter().map(word).collect()
    }

    /// Sends the operations, each followed by a look at all keys, and walks the model along.
    fn run(&mut self, ops: &[Op]) -> Result<(), Failure> {
        let resolved: Vec<Command> = ops.iter().map(|op| self.resolve(op)).collect();
        let mut commands = Vec::new();
        let mut places = Vec::new();
        for (op, call) in ops.iter().zip(&resolved) {
            match op.way {
                Way::Plain => commands.push(call.clone()),
                Way::Multi => commands.extend([words(&["MULTI"]), call.clone(), words(&["EXEC"])]),
                Way::Lua => {
                    let mut eval = words(&["EVAL", "return redis.call(unpack(ARGV))", "0"]);
                    eval.extend(call.iter().cloned());
                    commands.push(eval);
                }
            }
            places.push(commands.len() - 1);
            commands.push(self.dump.clone());
        }
        let began = now_ms().floor();
        let mut replies = self.wire.pipeline(&commands).map_err(|what| Failure {
            at: ops.len(),
            what: format!("{what}\n{}", last_lines(&self.rig.server.log())),
        })?;
        let ended = now_ms();
        for (at, (op, call)) in ops.iter().zip(&resolved).enumerate() {
            let reply = plain_reply(op.way, &replies[places[at]]);
            let after = state_of(std::mem::replace(&mut replies[places[at] + 1], Reply::Null));
            let step = Step { words: call, reply: &reply, after: &after, began, ended, now: ended };
            let mut followed = self.model.follow(&step);
            if followed.is_ok() && self.orderly {
                let broken = self.model.broken_invariant(&NAMES).or_else(|| self.model.fault(NS));
                followed = broken.map_or(Ok(()), Err);
            }
            followed.map_err(|what| Failure { at, what: format!("{}\n  {what}", line(call)) })?;
            self.learn_receipts(call, &reply);
        }
        Ok(())
    }

    fn learn_receipts(&mut self, call: &Command, reply: &Reply) {
        let (b"RMQ.RESERVE", Reply::Array(rows)) = (call[0].as_slice(), reply) else { return };
        for row in rows {
            let Reply::Array(row) = row else { continue };
            if let (Reply::Bulk(id), Reply::Bulk(receipt)) = (&row[0], &row[2]) {
                self.receipts.entry(id.clone()).or_default().push(receipt.clone());
            }
        }
    }

    /// The replica has what the primary has.
    fn compare_replica(&self) -> Result<(), Failure> {
        self.rig.replica.wait_synced();
        if self.rig.replica.digest() == self.rig.server.digest() {
            return Ok(());
        }
        let primary = Snapshot::of(&mut self.rig.server.con());
        let replica = Snapshot::of(&mut self.rig.replica.con());
        Err(Failure {
            at: usize::MAX,
            what: format!("the replica differs (- primary, + replica):\n{}", primary.diff(&replica).join("\n")),
        })
    }
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// The same reply whichever way the call went.
fn plain_reply(way: Way, reply: &Reply) -> Reply {
    let reply = match (way, reply) {
        (Way::Multi, Reply::Array(results)) if results.len() == 1 => &results[0],
        (_, reply) => reply,
    };
    match reply {
        Reply::NilArray => Reply::NilBulk,
        other => other.clone(),
    }
}

fn state_of(dump: Reply) -> State {
    let array = |reply: Reply| match reply {
        Reply::Array(items) => items,
        other => panic!("the dump is {other:?}"),
    };
    let bytes = |reply: Reply| match reply {
        Reply::Bulk(bytes) => bytes,
        other => panic!("the dump has {other:?}"),
    };
    let pairs = |reply: Reply| {
        let mut items = array(reply).into_iter().map(bytes);
        std::iter::from_fn(move || Some((items.next()?, items.next()?)))
    };
    let score = |text: Bytes| -> f64 { std::str::from_utf8(&text).ok().and_then(|t| t.parse().ok()).expect("a score") };
    let mut state = State::new();
    for (key, entry) in all_keys().iter().zip(array(dump)) {
        let mut entry = array(entry).into_iter();
        let (kind, value) = (entry.next().map(bytes).expect("a type"), entry.next().expect("contents"));
        let value = match kind.as_slice() {
            b"none" => continue,
            b"list" => Value::List(array(value).into_iter().map(bytes).collect()),
            b"hash" => Value::Hash(pairs(value).collect()),
            b"zset" => Value::Zset(pairs(value).map(|(member, text)| (member, score(text))).collect()),
            _ => Value::Text,
        };
        state.insert(key.as_bytes().to_vec(), value);
    }
    state
}

// ---- shrinking

/// Runs the operations from a fresh start, one at a time; what went wrong, if anything.
fn replay(rig: &Rig, orderly: bool, ops: &[Op]) -> Option<Failure> {
    let mut runner = Runner::new(rig, orderly);
    for (at, op) in ops.iter().enumerate() {
        if let Err(failure) = runner.run(std::slice::from_ref(op)) {
            return Some(Failure { at, what: failure.what });
        }
    }
    runner.compare_replica().err()
}

/// Leaves out whatever the failure does not need: halves first, then smaller and smaller pieces.
fn shrink(rig: &Rig, orderly: bool, mut ops: Vec<Op>) -> Option<(Vec<Op>, String)> {
    let until = Instant::now() + Duration::from_secs(60);
    let mut what = replay(rig, orderly, &ops)?;
    let mut piece = ops.len().div_ceil(2);
    while piece > 0 && Instant::now() < until {
        ops.truncate(what.at.saturating_add(1));
        let mut start = 0;
        let mut shorter = false;
        while start < ops.len() && Instant::now() < until {
            let mut without = ops.clone();
            without.drain(start..(start + piece).min(without.len()));
            match replay(rig, orderly, &without) {
                Some(failure) => {
                    ops = without;
                    ops.truncate(failure.at.saturating_add(1));
                    what = failure;
                    shorter = true;
                }
                None => start += piece,
            }
        }
        if piece == 1 && !shorter {
            break;
        }
        piece = (piece / 2).max(1);
    }
    Some((ops, what.what))
}

fn fail(rig: &Rig, orderly: bool, ops: Vec<Op>, failure: &Failure) -> ! {
    let show = |ops: &[Op]| ops.iter().map(Op::to_string).collect::<Vec<_>>().join("\n");
    match shrink(rig, orderly, ops.clone()) {
        Some((few, what)) => {
            panic!("{}\n\nthe same in {} operations:\n{}\n  {what}", failure.what, few.len(), show(&few))
        }
        None => panic!("{}\n\nnot repeatable one by one; all operations:\n{}", failure.what, show(&ops)),
    }
}

// ---- generating

#[derive(Clone, Copy, PartialEq)]
enum Use {
    /// As the commands are meant to be used.
    Orderly,
    /// Anything at all.
    Hostile,
}

struct Generator {
    rng: Rng,
    kind: Use,
    /// Different ids in play.
    ids: usize,
    made: usize,
}

impl Generator {
    fn any_id(&mut self) -> Bytes {
        match self.rng.below(40) {
            0 => b"\0\r\n%s\xff".to_vec(),
            1 => b"".to_vec(),
            2 => vec![b'l'; 100],
            3 if self.kind == Use::Hostile => b"x:queue".to_vec(),
            _ => format!("m{}", self.rng.below(self.ids)).into_bytes(),
        }
    }

    fn new_id(&mut self) -> Bytes {
        if self.kind == Use::Orderly || self.rng.chance(20) {
            self.made += 1;
            return format!("n{}", self.made).into_bytes();
        }
        self.any_id()
    }

    fn payload(&mut self) -> Bytes {
        let length = *self.rng.pick(&[0, 1, 2, 2, 2, 2, 2, 64, 65]);
        self.rng.bytes(length)
    }

    fn queue(&mut self) -> &'static str {
        match self.rng.below(10) {
            0..=5 => QUEUES[0],
            6..=8 => QUEUES[1],
            _ => QUEUES[2],
        }
    }

    /// A past time, a few of them equal.
    fn past(&mut self) -> String {
        (1000 + self.rng.below(8) * 1000).to_string()
    }

    fn batch(&mut self) -> String {
        match self.rng.below(40) {
            0 if self.kind == Use::Hostile => self.rng.pick(&["0", "-1", "x"]).to_string(),
            1..=5 => "1000".into(),
            _ => (1 + self.rng.below(6)).to_string(),
        }
    }

    /// One of those in the list, or any.
    fn id_in(&mut self, model: &Model, list: &str) -> Bytes {
        let ids = model.list(list.as_bytes());
        match ids.len() {
            0 => self.any_id(),
            _ if self.kind == Use::Hostile && self.rng.chance(15) => self.any_id(),
            n => match self.rng.below(3) {
                0 => ids[self.rng.below(n.min(3))].clone(),
                1 => ids[n - 1 - self.rng.below(n.min(3))].clone(),
                _ => ids[self.rng.below(n)].clone(),
            },
        }
    }

    fn receipt_of(&mut self, id: &Bytes) -> Word {
        match self.rng.below(20) {
            0 => Word::OldReceipt(id.clone()),
            1 => "1-1000".into(),
            2 if self.kind == Use::Hostile => (*self.rng.pick(&["1000.5", "1-", "x"])).into(),
            _ => Word::Receipt(id.clone()),
        }
    }

    fn delay_ms(&mut self) -> String {
        match self.rng.below(3) {
            0 => FAR_MS.to_string(),
            _ => "0".into(),
        }
    }

    fn op(&mut self, model: &Model) -> Op {
        let mut words = match self.rng.below(100) {
            n if self.kind == Use::Hostile && n < 35 => self.plain(model),
            n if self.kind == Use::Orderly && n < 12 => self.time_passes(model),
            n if n >= 85 => self.admin(model),
            _ => self.command(model),
        };
        let name = match &words[0] {
            Word::Is(name) => name.clone(),
            _ => Bytes::new(),
        };
        let is_twin = ["COMPLETE", "RETRY", "DELAYTICK", "TIMEOUTS", "DEADLETTER"]
            .iter()
            .any(|twin| name == format!("RMQ.{twin}").into_bytes());
        if is_twin && self.kind == Use::Hostile && self.rng.below(60) == 0 {
            // A key in a role that is not its own, or twice. The list of parse errors and its records are left out:
            // only PARSEERR keeps the two in step.
            let keys: Vec<&str> = all_keys().into_iter().filter(|key| !key.contains("error")).collect();
            words[1] = keys[self.rng.below(keys.len())].into();
        }
        // A transaction or script of the server's own commands would prove nothing here.
        let way = match self.rng.below(12) {
            0 if name.starts_with(b"RMQ.") => Way::Multi,
            1 if name.starts_with(b"RMQ.") => Way::Lua,
            _ => Way::Plain,
        };
        if way != Way::Plain && name == b"RMQ.RESERVE" {
            // Ignored where the caller cannot wait.
            words.splice(3..3, op!["block", "0"]);
        }
        Op { words, way }
    }

    /// Deadlines and due times that have come.
    fn time_passes(&mut self, model: &Model) -> Vec<Word> {
        let key = *self.rng.pick(&[EXPIRES, EXPIRES, DELAYS, DELAYS, ONCE]);
        let ids = model.up_to(key.as_bytes(), f64::INFINITY);
        // The deadline of a lease is no whole number.
        let lease = if key == EXPIRES && self.rng.chance(80) { ".5" } else { "" };
        match ids.len() {
            0 => op!["ZADD", key, "XX", "1000", "nobody"],
            n => op!["ZADD", key, "XX", self.past() + lease, &ids[self.rng.below(n)]],
        }
    }

    fn command(&mut self, model: &Model) -> Vec<Word> {
        let short = self.queue();
        let queue = format!("{NS}:{short}");
        let processing = format!("{queue}:processing");
        let id = self.id_in(model, &processing);
        let payload = self.payload();
        let named = if self.kind == Use::Hostile && self.rng.chance(5) { String::new() } else { processing.clone() };
        match self.rng.below(100) {
            0..=17 => self.publish(short),
            18..=37 => {
                let mut words = op!["RMQ.RESERVE", NS, FAR_MS.to_string()];
                if self.rng.chance(60) {
                    words.extend(op!["COUNT", self.batch()]);
                }
                words.extend(op!["FROM", short]);
                for _ in 0..self.rng.below(3) {
                    words.push(self.queue().into());
                }
                words
            }
            n @ 38..=50 => {
                let mut words = match n {
                    38..=45 => op!["RMQ.ACK", NS],
                    46..=47 => op!["RMQ.RELEASE", NS],
                    _ => op!["RMQ.EXTEND", NS, (FAR_MS + self.rng.below(1000) as i64).to_string()],
                };
                for _ in 0..*self.rng.pick(&[1, 1, 2, 5]) {
                    let id = self.id_in(model, &processing);
                    let receipt = self.receipt_of(&id);
                    words.extend([Word::from(&id), receipt]);
                }
                words
            }
            51..=58 => {
                let receipt = self.receipt_of(&id);
                let mut words = op!["RMQ.NACK", NS, &id];
                words.push(receipt);
                match self.rng.below(10) {
                    0..=4 => words.extend(op!["delay", self.delay_ms()]),
                    5 => words.push("dead".into()),
                    _ => {}
                }
                if self.rng.chance(40) {
                    words.extend(op!["payload", &payload]);
                }
                if self.rng.chance(40) {
                    words.extend(op!["ERROR", *self.rng.pick(&["no route", "", "a \"b\" \u{e9}"])]);
                }
                words
            }
            59..=63 => {
                let mut words = op!["RMQ.COMPLETE", MAP, named, EXPIRES, &id];
                for _ in 0..*self.rng.pick(&[0, 0, 0, 1, 6]) {
                    words.push((&self.id_in(model, &processing)).into());
                }
                words
            }
            64..=68 => self.retry(model, &named, id, payload),
            69..=74 => op!["RMQ.DELAYTICK", DELAYS, MAP, self.batch()],
            75..=81 => {
                let target = *self.rng.pick(&["*", "*", "*", "4000", "0"]);
                let mut words = op!["RMQ.TIMEOUTS", EXPIRES, MAP, target, self.batch()];
                if self.rng.chance(50) {
                    words.extend(op!["CLAIM", FAR_MS.to_string()]);
                }
                if self.rng.chance(30) {
                    words.push("all".into());
                }
                words
            }
            82..=84 => {
                let mut words = op!["RMQ.PARSEERR", ERROR_MAP, ERRORS, named, EXPIRES, MAP, &id, &payload, queue];
                let (days, max) = (*self.rng.pick(&["", "", "7"]), *self.rng.pick(&["", "1", "3", "10"]));
                words.extend(op!["bad \"json\"", "17", days, max]);
                words
            }
            85..=88 => {
                let mut words = op!["RMQ.DEADLETTER", DLQ_MAP, DLQ, EXPIRES, MAP, named, &id, &payload];
                if self.rng.chance(30) {
                    words.push("topic".into());
                }
                words
            }
            89..=93 => self.redrive(model, short),
            94..=98 => self.policy(short),
            _ => op!["RMQ.NEXTDELAY", DELAYS],
        }
    }

    fn redrive(&mut self, model: &Model, short: &str) -> Vec<Word> {
        match self.rng.below(3) {
            0 => op!["RMQ.REDRIVE", NS, "COUNT", self.batch()],
            1 => op!["RMQ.REDRIVE", NS, "count", self.batch(), "QUEUE", short],
            _ => {
                let mut words = op!["RMQ.REDRIVE", NS, "IDS"];
                for _ in 0..1 + self.rng.below(3) {
                    words.push((&self.id_in(model, DLQ)).into());
                }
                words
            }
        }
    }

    /// Looking and mending.
    fn admin(&mut self, model: &Model) -> Vec<Word> {
        let short = self.queue();
        match self.rng.below(100) {
            0..=9 => {
                let mut words = op!["RMQ.STATS", NS];
                for _ in 0..*self.rng.pick(&[0, 0, 1, 2]) {
                    words.push(self.queue().into());
                }
                words
            }
            10..=27 => self.peek(model, short),
            28..=47 => {
                let mut words = op!["RMQ.CANCEL", NS];
                if self.rng.chance(40) {
                    words.push("waiting".into());
                }
                words.push("IDS".into());
                for _ in 0..*self.rng.pick(&[1, 1, 2, 6]) {
                    words.push((&self.id_anywhere(model)).into());
                }
                words
            }
            48..=64 => {
                let bad = self.kind == Use::Hostile && self.rng.below(40) == 0;
                let mut words = op!["RMQ.RESCHEDULE", NS, if bad { "-1".into() } else { self.delay_ms() }, "ids"];
                for _ in 0..*self.rng.pick(&[1, 1, 2, 6]) {
                    words.push((&self.id_anywhere(model)).into());
                }
                words
            }
            65..=81 => {
                let mut words = op!["RMQ.PURGE", NS];
                // Mostly a few, or not much would be left.
                if self.rng.chance(85) {
                    words.extend(op!["count", self.batch()]);
                }
                words.push((*self.rng.pick(&["PENDING", "delayed", "DELAYED", "dead", "DEAD"])).into());
                let is_pending = matches!(words.last(), Some(Word::Is(word)) if word == b"PENDING");
                if is_pending || self.rng.chance(50) {
                    words.push(short.into());
                }
                words
            }
            n => {
                let mut words = op![if n < 91 { "RMQ.AUDIT" } else { "RMQ.REPAIR" }, NS];
                if self.rng.chance(15) {
                    words.extend(op!["COUNT", self.batch()]);
                }
                words
            }
        }
    }

    fn peek(&mut self, model: &Model, short: &str) -> Vec<Word> {
        let mut words = op!["RMQ.PEEK", NS];
        let state = *self.rng.pick(&["PENDING", "PROCESSING", "DELAYED", "overdue", "DEAD", "IDS", "IDS", "ids"]);
        let is_ids = state.eq_ignore_ascii_case("IDS");
        if !is_ids && self.rng.chance(30) {
            words.extend(op!["COUNT", self.batch()]);
        }
        if !is_ids && self.rng.chance(30) {
            words.extend(op!["offset", self.rng.below(4).to_string()]);
        }
        if self.rng.chance(30) {
            words.push("NOPAYLOAD".into());
        }
        words.push(state.into());
        if is_ids {
            for _ in 0..*self.rng.pick(&[1, 3, 8]) {
                words.push((&self.id_anywhere(model)).into());
            }
        } else if ["PENDING", "PROCESSING"].contains(&state) || self.rng.chance(50) {
            words.push(short.into());
        }
        words
    }

    /// An id that is in some place, or any.
    fn id_anywhere(&mut self, model: &Model) -> Bytes {
        let zset = match self.rng.below(12) {
            0 => return self.any_id(),
            1..=2 => DELAYS,
            3 => EXPIRES,
            4 => return self.id_in(model, DLQ),
            _ => {
                let list = *self.rng.pick(&LISTS);
                return self.id_in(model, list);
            }
        };
        let ids = model.up_to(zset.as_bytes(), f64::INFINITY);
        if ids.is_empty() {
            return self.any_id();
        }
        self.rng.pick(&ids).clone()
    }

    fn policy(&mut self, short: &str) -> Vec<Word> {
        let queue = if self.rng.chance(30) { "*" } else { short };
        let mut words = op!["RMQ.POLICY", NS];
        match self.rng.below(10) {
            0 => {}
            1 => words.push(queue.into()),
            2 => words.extend(op![queue, "reset"]),
            _ => {
                words.push(queue.into());
                if self.rng.chance(50) {
                    words.extend(op!["ATTEMPTS", *self.rng.pick(&["0", "1", "2", "3"])]);
                }
                if self.rng.chance(50) {
                    let far = FAR_MS.to_string();
                    words.extend(op!["backoff", if self.rng.chance(50) { "0" } else { far.as_str() }, far.clone()]);
                }
                // Mostly not, or nothing would happen.
                words.extend(op!["PAUSED", *self.rng.pick(&["yes", "no", "no", "no", "no"])]);
            }
        }
        words
    }

    fn publish(&mut self, queue: &str) -> Vec<Word> {
        let mut words = op!["RMQ.PUBLISH", NS];
        match self.rng.below(10) {
            0..=1 => words.push("urgent".into()),
            2..=3 => words.extend(op!["DELAY", self.delay_ms()]),
            // In ms: below 10^11 it would be seconds.
            4 => words.extend(op!["at", "100000000000"]),
            _ => {}
        }
        let once = self.rng.chance(20);
        if once {
            words.extend(op!["ONCE", FAR_MS.to_string()]);
        }
        words.extend(op!["TO", queue]);
        for _ in 0..*self.rng.pick(&[1, 1, 2, 5]) {
            let id = if !once && self.rng.chance(4) { b"*".to_vec() } else { self.new_id() };
            words.extend(op![&id, &self.payload()]);
        }
        words
    }

    fn retry(&mut self, model: &Model, processing: &str, id: Bytes, payload: Bytes) -> Vec<Word> {
        // The reaper has to retry what TIMEOUTS replied.
        let id = match model.held.last() {
            Some(held) if self.rng.chance(70) => held.clone(),
            _ => id,
        };
        let delay = *self.rng.pick(&["0", "0", "0.0", "1e5", "100000"]);
        op!["RMQ.RETRY", MAP, DELAYS, EXPIRES, processing, &id, &payload, delay]
    }

    /// Plain commands, planted wrong types, keys that go away, settings that change.
    fn plain(&mut self, model: &Model) -> Vec<Word> {
        let short = self.queue();
        // A queue of another namespace, now and then.
        let queue = format!("{}:{short}", if self.rng.chance(4) { "other" } else { NS });
        let (pending, processing) = (format!("{NS}:{short}:pending"), format!("{NS}:{short}:processing"));
        let id = self.any_id();
        let field = match self.rng.below(3) {
            0 => id.clone(),
            1 => reference::queue_field(&id),
            _ => reference::attempts_field(&id),
        };
        match self.rng.below(100) {
            0..=13 => op!["HSET", MAP, &id, &self.payload(), &reference::queue_field(&id), queue],
            14..=19 => op!["HDEL", MAP, &field],
            20..=22 => op![
                "HSET",
                MAP,
                &reference::attempts_field(&id),
                *self.rng.pick(&["3", "-1", "x", "2-5 old", "1-12345678"])
            ],
            23..=32 => op!["LPUSH", pending, &id],
            33..=35 => op!["RPUSH", processing, &id],
            36..=47 => op!["LMOVE", pending, processing, "RIGHT", "LEFT"],
            48..=50 => op!["RPOP", if self.rng.chance(50) { pending } else { processing }],
            51..=58 => op!["ZADD", EXPIRES, self.past(), &id],
            59..=62 => op!["ZADD", EXPIRES, self.past() + ".5", &id],
            63..=70 => op!["ZADD", DELAYS, self.past(), &id],
            71..=80 => self.time_passes(model),
            81..=82 => op!["ZREM", if self.rng.chance(50) { EXPIRES } else { DELAYS }, &id],
            83..=85 => op!["RPUSH", DLQ, &id],
            86..=88 => op!["HSET", DLQ_MAP, &id, "dead", &reference::queue_field(&id), queue],
            89..=90 => op!["HDEL", DLQ_MAP, &field],
            // As if the record had expired.
            91 => op!["HDEL", ERROR_MAP, &id],
            92 => op!["HSET", POLICIES, short, *self.rng.pick(&["no json", "{\"attempts\":2,\"paused\":\"x\"}", "{}"])],
            93..=94 => {
                // The list of parse errors is never deleted without its records.
                let keys: Vec<&str> = all_keys().into_iter().filter(|key| *key != ERRORS).collect();
                op!["DEL", keys[self.rng.below(keys.len())]]
            }
            95 => op!["SET", all_keys()[self.rng.below(all_keys().len())], "wrong type"],
            96 => op!["DEL", ERRORS, ERROR_MAP],
            97 => op!["CONFIG", "SET", "rmq.max-batch", *self.rng.pick(&["1", "2", "10000", "10000", "10000"])],
            // A wrong type does not stay for long.
            _ => match model.state.iter().find(|(_, value)| **value == Value::Text) {
                Some((key, _)) if key == ERRORS.as_bytes() => op!["DEL", ERRORS, ERROR_MAP],
                Some((key, _)) => op!["DEL", key],
                None => op!["LMOVE", pending, processing, "RIGHT", "LEFT"],
            },
        }
    }

    /// Many messages in work, taken a few at a time, so that lists are long and deadlines fall from left to right.
    fn fill(&mut self, messages: usize) -> Vec<Op> {
        let mut ops = Vec::new();
        let plain = |words| Op { words, way: Way::Plain };
        for number in 0..messages {
            let id = format!("m{number}").into_bytes();
            ops.push(plain(op!["RMQ.PUBLISH", NS, "TO", "a", &id, "payload"]));
            if number % 3 != 0 {
                let count = (1 + self.rng.below(3)).to_string();
                ops.push(plain(op!["RMQ.RESERVE", NS, FAR_MS.to_string(), "COUNT", count, "FROM", "a"]));
            }
        }
        ops
    }
}

// ---- the check

struct Plan {
    kind: Use,
    settings: &'static [(&'static str, &'static str)],
    /// Share of RMQ_OPS, in percent.
    share: usize,
    /// Operations between two fresh starts.
    stream: usize,
    /// Messages in work at the start of a stream.
    filled: usize,
}

fn check(plan: &Plan, salt: u64) {
    const BATCH: usize = 20;
    let ops = std::env::var("RMQ_OPS").map_or(100_000, |n| n.parse().expect("RMQ_OPS is a number"));
    let ops = ops * plan.share / 100;
    let mut builder = Server::builder();
    for (name, value) in plan.settings {
        builder = builder.arg(name, value);
    }
    let server = builder.start();
    let replica = Replica::of(&server);
    let rig = Rig { server, replica };
    let orderly = plan.kind == Use::Orderly;
    let mut seeds = Rng::seeded();
    let mut done = 0;
    while done < ops {
        let seed = seeds.next_u64() ^ salt;
        let mut generator = Generator {
            rng: Rng::from_seed(seed),
            kind: plan.kind,
            ids: if plan.filled > 0 { plan.filled } else { 12 },
            made: 0,
        };
        let mut runner = Runner::new(&rig, orderly);
        let mut all: Vec<Op> = Vec::new();
        let mut todo = generator.fill(plan.filled);
        while all.len() < plan.stream {
            if todo.is_empty() {
                todo = batch_of(&mut generator, &runner.model, BATCH);
            }
            let batch: Vec<Op> = todo.drain(..todo.len().min(BATCH)).collect();
            all.extend(batch.iter().cloned());
            if let Err(failure) = runner.run(&batch) {
                all.truncate(all.len() - batch.len() + failure.at.saturating_add(1).min(batch.len()));
                fail(&rig, orderly, all, &failure);
            }
        }
        if let Err(failure) = runner.compare_replica() {
            fail(&rig, orderly, all, &failure);
        }
        done += all.len();
    }
    println!("{done} operations");
    assert_eq!(rig.server.info("rmq")["rmq_panics"], "0");
}

/// In orderly use no call settles a message that the same batch may have moved already.
fn batch_of(generator: &mut Generator, model: &Model, count: usize) -> Vec<Op> {
    if generator.kind == Use::Hostile {
        return (0..count).map(|_| generator.op(model)).collect();
    }
    let mut used: Vec<Bytes> = Vec::new();
    let mut batch: Vec<Op> = Vec::new();
    for _ in 0..count {
        let op = generator.op(model);
        let ids: Vec<Bytes> = op
            .words
            .iter()
            .filter_map(|word| match word {
                Word::Is(bytes) if model.field(MAP.as_bytes(), bytes).is_some() => Some(bytes.clone()),
                _ => None,
            })
            .collect();
        if ids.iter().any(|id| used.contains(id)) || is_premature(&op, model) || is_hasty(&op, model, &batch) {
            continue;
        }
        used.extend(ids);
        batch.push(op);
    }
    batch
}

/// A repair takes what a caller of TIMEOUTS holds for lost: it has to wait until those are quiet.
fn is_hasty(op: &Op, model: &Model, batch: &[Op]) -> bool {
    let is = |op: &Op, command: &str| matches!(&op.words[0], Word::Is(name) if name == command.as_bytes());
    is(op, "RMQ.REPAIR") && (!model.held.is_empty() || batch.iter().any(|op| is(op, "RMQ.TIMEOUTS")))
}

/// A message that no consumer has taken must not be settled by a twin, which asks for no receipt.
fn is_premature(op: &Op, model: &Model) -> bool {
    let Word::Is(name) = &op.words[0] else { return false };
    let settles = [b"RMQ.COMPLETE".as_slice(), b"RMQ.RETRY", b"RMQ.PARSEERR", b"RMQ.DEADLETTER"];
    if !settles.contains(&name.as_slice()) {
        return false;
    }
    let processing = op.words.iter().find_map(|word| match word {
        Word::Is(bytes) if bytes.ends_with(b":processing") => Some(bytes.clone()),
        _ => None,
    });
    // The next RESERVE takes it back.
    let overdue = model.up_to(EXPIRES.as_bytes(), 1e12);
    let taken = |id: &Bytes| {
        let in_work = processing.as_ref().is_some_and(|list| model.list(list).contains(id));
        in_work && !overdue.contains(id) || model.held.contains(id) || model.field(MAP.as_bytes(), id).is_none()
    };
    !op.words[1..].iter().all(|word| match word {
        Word::Is(bytes) => taken(bytes),
        _ => true,
    })
}

const SPREAD: &[(&str, &str)] =
    &[("hash-max-listpack-entries", "0"), ("zset-max-listpack-entries", "0"), ("list-max-listpack-size", "2")];

#[test]
fn whatever_is_done_to_the_keys_the_commands_do_what_the_model_does() {
    let plan = Plan { kind: Use::Hostile, settings: &[], share: 35, stream: 1000, filled: 0 };
    check(&plan, 1);
}

#[test]
fn whatever_is_done_to_the_keys_the_commands_do_what_the_model_does_in_the_large_encodings() {
    let plan = Plan { kind: Use::Hostile, settings: SPREAD, share: 30, stream: 1000, filled: 0 };
    check(&plan, 2);
}

#[test]
fn in_orderly_use_each_message_is_in_exactly_one_place_after_every_step() {
    let plan = Plan { kind: Use::Orderly, settings: &[], share: 20, stream: 500, filled: 0 };
    check(&plan, 3);
}

#[test]
fn in_orderly_use_each_message_is_in_exactly_one_place_in_long_lists_too() {
    let plan = Plan { kind: Use::Orderly, settings: SPREAD, share: 7, stream: 1000, filled: 250 };
    check(&plan, 4);
}

#[test]
fn whatever_is_done_to_long_lists_the_commands_do_what_the_model_does() {
    let plan = Plan { kind: Use::Hostile, settings: &[], share: 8, stream: 1000, filled: 250 };
    check(&plan, 5);
}
