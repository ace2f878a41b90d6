//! The same random operations on a queue, once through the Lua scripts that the module replaces and once through the
//! module: after each step the replies agree, and so do all keys (DEBUG DIGEST). Where the module differs on purpose,
//! the difference itself is asserted, and the scripts' side is then brought to the same state by plain commands.
//!
//! Two servers do not read their clocks at the same moment. A score made from the clock is checked against the time
//! around the call, and then overwritten on both sides.

use crate::common::*;

use redis::{Connection, RedisResult, ToRedisArgs, Value};
use std::collections::{BTreeSet, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

const PAYLOADS: &str = "mx-rmq:payloads";
const DELAYS: &str = "mx-rmq:delays";
const EXPIRES: &str = "mx-rmq:expires";
const DLQ: &str = "mx-rmq:dlq";
const DLQ_PAYLOADS: &str = "mx-rmq:dlq:data";
const ERRORS: &str = "mx-rmq:errors";
const ERROR_DATA: &str = "mx-rmq:errors:data";
const QUEUES: [&str; 3] = ["mx-rmq:orders", "mx-rmq:mail", "mx-rmq:\"odd\" %s"];

/// handle_parse_error.lua does not compile; this is what it is meant to do, with the id once in the queue and an exact
/// limit.
const PARSE_ERROR: &str = r#"
local map, queue, processing, monitor, payloads = unpack(KEYS)
local id, payload, topic, message, timestamp, days, max, hexpire = unpack(ARGV)
redis.call('LREM', queue, 0, id)
redis.call('HSET', map, id, cjson.encode({original_payload = payload, error_type = 'parse_error',
    error_message = message, topic = topic, timestamp = timestamp, message_id = id}))
redis.call('LPUSH', queue, id)
if days ~= '' then
    local seconds = tonumber(days) * 86400
    if hexpire == '1' then
        redis.call('HEXPIRE', map, seconds, 'FIELDS', 1, id)
    elseif redis.call('TTL', map) == -1 then
        redis.call('EXPIRE', map, seconds)
    end
end
if max ~= '' then
    while redis.call('LLEN', queue) > tonumber(max) do
        redis.call('HDEL', map, redis.call('RPOP', queue))
    end
end
redis.call('LREM', processing, 1, id)
redis.call('ZREM', monitor, id)
redis.call('HDEL', payloads, id, id .. ':queue')
return 'OK'
"#;

fn now_ms() -> f64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    (since_epoch.as_micros() as f64 / 1000.0).floor()
}

fn processing_of(queue: &str) -> String {
    format!("{queue}:processing")
}

fn pending_of(queue: &str) -> String {
    format!("{queue}:pending")
}

/// Both servers, and the steps done on them.
struct Twins {
    /// Kept running as long as this.
    _servers: [Server; 2],
    script: Connection,
    module: Connection,
    peer: Peer,
    field_expiry: bool,
    rng: Rng,
    made: usize,
    /// The last steps, for the message of a failure.
    trace: VecDeque<String>,
    /// DEBUG DIGEST reads everything: with much data it is called only every so many steps.
    compare_every: usize,
    /// Both kinds of worker on the module's side: scripts, the five commands and the rest by turns.
    mixed: bool,
    encodings: BTreeSet<(String, String)>,
    steps: usize,
}

/// Plain commands, the same on both sides, with the same reply.
macro_rules! both {
    ($twins:expr, $($arg:expr),+ $(,)?) => {{
        let left = ok!($twins.script, $($arg),+);
        let right = ok!($twins.module, $($arg),+);
        assert_eq!(left, right, "{}", line_of(&command!($($arg),+)));
        left
    }};
}

impl Twins {
    fn start(settings: &[(&str, &str)], rng: Rng) -> Twins {
        let mut builder = Server::builder();
        for (name, value) in settings {
            builder = builder.arg(name, value);
        }
        let module_server = builder.clone().start();
        let script_server = builder.without_module().start();
        let (mut script, mut module) = (script_server.con(), module_server.con());
        Peer::load(&mut module);
        Twins {
            peer: Peer::load(&mut script),
            script,
            module,
            field_expiry: module_server.supports("hexpire"),
            _servers: [script_server, module_server],
            rng,
            made: 0,
            trace: VecDeque::new(),
            compare_every: 1,
            mixed: false,
            encodings: BTreeSet::new(),
            steps: 0,
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.steps % 50 < 5 {
                self.note_encodings();
            }
            self.step();
            self.steps += 1;
            if self.steps % self.compare_every == 0 {
                self.compare();
            }
        }
        self.compare();
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=19 => self.produce(),
            20..=29 => self.produce_later(),
            30..=49 => self.take(),
            50..=58 => self.complete(),
            59..=60 => self.complete_many(),
            61..=69 => self.retry(),
            70..=77 => self.tick(),
            78..=85 => self.timeouts(),
            86..=91 => self.dead_letter(),
            92..=93 => self.next_delay(),
            94..=98 => self.parse_error(),
            _ => self.lose_a_field(),
        }
    }

    fn compare(&mut self) {
        let digest = |con: &mut Connection| text(ok!(con, "DEBUG", "DIGEST"));
        if digest(&mut self.script) == digest(&mut self.module) {
            return;
        }
        let (script, module) = (Snapshot::of(&mut self.script), Snapshot::of(&mut self.module));
        let mut lines = script.diff(&module);
        lines.truncate(40);
        panic!(
            "step {}: the keys differ (- scripts, + module):\n{}\nthe last steps:\n{}",
            self.steps,
            lines.join("\n"),
            self.trace.make_contiguous().join("\n")
        );
    }

    fn note(&mut self, what: String) {
        if self.trace.len() == 25 {
            self.trace.pop_front();
        }
        self.trace.push_back(what);
    }

    /// The scripts' OK is a bulk string, the module's a simple one: the same word to every client.
    fn agree(&mut self, what: &str, left: Value, right: Value) {
        let right = match right {
            Value::Okay => Value::BulkString(b"OK".to_vec()),
            other => other,
        };
        let trace = self.trace.make_contiguous().join("\n");
        assert_eq!(left, right, "step {}: {what}\nthe last steps:\n{trace}", self.steps);
    }

    // ---- what a step is made of

    fn fresh_id(&mut self) -> Vec<u8> {
        self.made += 1;
        let number = self.made;
        match self.rng.below(12) {
            0 => [b"\0\r\n%s\xff".as_slice(), number.to_string().as_bytes()].concat(),
            // Too long for the compact encodings of hashes and sorted sets.
            1 => format!("{number:0>90}").into_bytes(),
            2 => number.to_string().into_bytes(),
            _ => format!("0190b4c2-7f{:02x}-{number:08}", number % 251).into_bytes(),
        }
    }

    fn queue(&mut self) -> &'static str {
        // One queue gets most, so that lists grow long.
        if self.rng.chance(60) {
            QUEUES[0]
        } else {
            QUEUES[self.rng.below(QUEUES.len())]
        }
    }

    fn payload(&mut self) -> Vec<u8> {
        let length = *self.rng.pick(&[0, 1, 20, 20, 20, 63, 64, 65, 200, 3000]);
        if self.rng.chance(30) {
            return self.rng.bytes(length);
        }
        let mut text = format!("{{\"n\": {}, \"text\": \"", self.rng.below(1_000_000));
        text.extend(std::iter::repeat_n('x', length));
        (text + "\"}").into_bytes()
    }

    /// A message in work, near one of the ends or in the middle; now and then one that is elsewhere or nowhere.
    fn id_to_settle(&mut self, queue: &str) -> Vec<u8> {
        if self.rng.chance(8) {
            return format!("unknown-{}", self.rng.below(10)).into_bytes();
        }
        let elsewhere = self.rng.chance(8);
        let list = if elsewhere { pending_of(queue) } else { processing_of(queue) };
        let length: usize = ask!(self.script, "LLEN", &list);
        let index = match (length, self.rng.below(3)) {
            (0, _) => 0,
            (_, 0) => self.rng.below(length.min(3)),
            (_, 1) => length - 1 - self.rng.below(length.min(3)),
            _ => self.rng.below(length),
        };
        let id: Option<Vec<u8>> = ask!(self.script, "LINDEX", &list, index);
        id.unwrap_or_else(|| b"unknown".to_vec())
    }

    /// A time that is past or far away, never about now: both sides read their clocks a moment apart.
    fn moment(&mut self) -> f64 {
        let now = now_ms();
        match self.rng.below(5) {
            // Equal scores are ordered by id.
            0 => 1_000.0,
            1 => 0.0,
            2 => now - self.rng.below(100_000) as f64 - 0.25,
            3 => now + 1e9 + self.rng.below(1000) as f64,
            _ => now - 1e6 + self.rng.below(50) as f64,
        }
    }

    /// A score that each side has just made from its clock is `offset` from now, and then becomes the same on both.
    fn settle_score(&mut self, key: &str, id: &[u8], began: f64, offset: f64) {
        let ended = now_ms();
        for con in [&mut self.script, &mut self.module] {
            let score: f64 = ask!(con, "ZSCORE", key, id);
            assert!(
                (began + offset..=ended + offset).contains(&score),
                "{score} is not {offset} ms from {began}–{ended}"
            );
        }
        let score = self.moment();
        both!(self, "ZADD", key, "XX", score.to_string(), id);
    }

    /// Whether there is such a message, for a caller that names this processing list.
    fn is_known(&mut self, id: &[u8], processing: &str) -> bool {
        let stored: bool = ask!(self.script, "HEXISTS", PAYLOADS, id);
        let own = self.own_list(id, processing);
        stored || [Some(processing.as_bytes()), own.as_deref()].into_iter().flatten().any(|list| self.is_in(list, id))
    }

    fn is_in(&mut self, list: &[u8], id: &[u8]) -> bool {
        let place: Option<i64> = ask!(self.script, "LPOS", list, id);
        place.is_some()
    }

    /// The processing list of the message's own queue, where the caller names another.
    fn own_list(&mut self, id: &[u8], processing: &str) -> Option<Vec<u8>> {
        let queue: Option<Vec<u8>> = ask!(self.script, "HGET", PAYLOADS, queue_field(id));
        queue.map(|queue| [&queue, &b":processing"[..]].concat()).filter(|own| own != processing.as_bytes())
    }

    /// The scripts leave the id in the list of its own queue for ever, where the caller names another.
    fn take_out_of_own_list(&mut self, own: Option<Vec<u8>>, id: &[u8]) {
        if let Some(own) = own {
            ok!(self.script, "LREM", own, 1, id);
        }
    }

    fn queue_field_is_missing(&mut self, id: &[u8]) -> bool {
        let there: bool = ask!(self.script, "HEXISTS", PAYLOADS, queue_field(id));
        !there
    }

    /// Where the map is missing as a whole, the scripts drop every id; the module leaves them all.
    fn stays_for_want_of_the_map(&mut self, command: &str, keys: &[&str], args: impl ToRedisArgs) -> bool {
        let there: bool = ask!(self.script, "EXISTS", PAYLOADS);
        if !there {
            let reply = ok!(self.module, command, keys, args);
            assert_eq!(reply, Value::Array(vec![]), "{command}");
        }
        !there
    }

    // ---- the steps

    /// The module's side is fed by the same script: workers of both kinds share the keys.
    fn by_script(&mut self, name: &str, keys: &[&str], args: impl ToRedisArgs) {
        for con in [&mut self.script, &mut self.module] {
            self.peer.call(con, name, keys, &args).expect("the script runs");
        }
    }

    /// Whether a command that has no script does the step on the module's side.
    fn turn_of_the_rest(&mut self) -> bool {
        self.mixed && self.rng.chance(50)
    }

    /// The module's side of a step that has both: the command, or the script itself where workers are mixed.
    fn twin(&mut self, command: &str, script: &str, keys: &[&str], args: impl ToRedisArgs) -> RedisResult<Value> {
        if self.mixed && self.rng.chance(50) {
            return self.peer.call(&mut self.module, script, keys, args);
        }
        cmd!(self.module, command, keys, args)
    }

    /// The scripts do not know `<id>:attempts` and leave it; the commands do not.
    fn forget_attempts(&mut self, id: &[u8]) {
        let kept: bool = ask!(self.module, "HEXISTS", PAYLOADS, attempts_field(id));
        if !kept {
            ok!(self.script, "HDEL", PAYLOADS, attempts_field(id));
        }
    }

    fn produce(&mut self) {
        let (queue, payload, deadline) = (self.queue(), self.payload(), self.moment());
        // A message that is published again is twice in pending.
        let id = if self.rng.chance(3) { self.id_to_settle(queue) } else { self.fresh_id() };
        let urgent = if self.rng.chance(20) { "1" } else { "0" };
        self.note(format!("produce {} in {queue}", id.escape_ascii()));
        let keys = [PAYLOADS, &pending_of(queue), EXPIRES];
        let args = (id.as_slice(), payload.as_slice(), queue, deadline.to_string(), urgent);
        let exists: bool = ask!(self.script, "HEXISTS", PAYLOADS, &id);
        if exists || !self.turn_of_the_rest() {
            return self.by_script("produce_normal_message", &keys, args);
        }
        let left = self.peer.call(&mut self.script, "produce_normal_message", &keys, args);
        left.expect("the script runs");
        let urgent: &[&str] = if urgent == "1" { &["urgent"] } else { &[] };
        self.publish(urgent, queue, &id, &payload);
        ok!(self.module, "ZADD", EXPIRES, deadline.to_string(), &id);
    }

    fn produce_later(&mut self) {
        let (id, queue, payload) = (self.fresh_id(), self.queue(), self.payload());
        self.note(format!("produce {} in {queue} later", id.escape_ascii()));
        let (keys, args) = ([PAYLOADS, DELAYS], (id.as_slice(), payload.as_slice(), queue, 0));
        let began = now_ms();
        if self.turn_of_the_rest() {
            let left = self.peer.call(&mut self.script, "produce_delay_message", &keys, args);
            left.expect("the script runs");
            self.publish(&["DELAY", "0"], queue, &id, &payload);
        } else {
            self.by_script("produce_delay_message", &keys, args);
        }
        self.settle_score(DELAYS, &id, began, 0.0);
    }

    /// The queue's command, which keeps a list of the queues beside.
    fn publish(&mut self, options: &[&str], queue: &str, id: &[u8], payload: &[u8]) {
        let short = queue.strip_prefix("mx-rmq:").expect("a queue of the namespace");
        let replied = ok!(self.module, "RMQ.PUBLISH", "mx-rmq", options, "TO", short, id, payload);
        assert_eq!(items(replied), [Value::BulkString(id.to_vec())]);
        ok!(self.module, "DEL", "mx-rmq:queues");
    }

    /// What a consumer of the peer does: move, then set the deadline.
    fn take(&mut self) {
        let queue = self.queue();
        let (pending, processing) = (pending_of(queue), processing_of(queue));
        for _ in 0..1 + self.rng.below(3) {
            let next: Option<Vec<u8>> = ask!(self.script, "LINDEX", &pending, -1);
            let Some(id) = next else { return };
            // Which of two equal ids leaves processing is not promised; so there are no two.
            if self.is_in(processing.as_bytes(), &id) {
                both!(self, "RPOP", &pending);
                continue;
            }
            self.note(format!("take {} from {queue}", id.escape_ascii()));
            both!(self, "LMOVE", &pending, &processing, "RIGHT", "LEFT");
            let stored: bool = ask!(self.script, "HEXISTS", PAYLOADS, &id);
            if stored && self.turn_of_the_rest() {
                // As RESERVE counts a delivery.
                both!(self, "HSET", PAYLOADS, attempts_field(&id), "1-1794891056259224");
            }
            let deadline = self.moment();
            both!(self, "ZADD", EXPIRES, deadline.to_string(), &id);
        }
    }

    fn complete(&mut self) {
        let queue = self.queue();
        let id = self.id_to_settle(queue);
        let processing = processing_of(queue);
        self.note(format!("complete {} of {queue}", id.escape_ascii()));
        let keys = [PAYLOADS, processing.as_str(), EXPIRES];
        let left = self.peer.call(&mut self.script, "complete_message", &keys, id.as_slice());
        let right = self.twin("RMQ.COMPLETE", "complete_message", &keys, id.as_slice());
        self.agree("complete", left.unwrap(), right.unwrap());
        self.forget_attempts(&id);
    }

    /// One call of the command is as many of the script.
    fn complete_many(&mut self) {
        let queue = self.queue();
        let count = 2 + self.rng.below(8);
        let ids: Vec<Vec<u8>> = (0..count).map(|_| self.id_to_settle(queue)).collect();
        let processing = processing_of(queue);
        self.note(format!("complete {count} of {queue}"));
        let keys = [PAYLOADS, processing.as_str(), EXPIRES];
        for id in &ids {
            let left = self.peer.call(&mut self.script, "complete_message", &keys, id.as_slice());
            left.expect("the script runs");
        }
        ok!(self.module, "RMQ.COMPLETE", &keys, &ids);
        for id in &ids {
            self.forget_attempts(id);
        }
    }

    fn retry(&mut self) {
        let (queue, payload) = (self.queue(), self.payload());
        let id = self.id_to_settle(queue);
        let named = self.rng.chance(90);
        let processing = if named { processing_of(queue) } else { String::new() };
        let (delay, offset) = *self.rng.pick(&[("0", 0.0), ("0.5", 500.0), ("60", 60_000.0), ("1e3", 1e6)]);
        self.note(format!("retry {} of {queue} after {delay}", id.escape_ascii()));
        let keys = [PAYLOADS, DELAYS, EXPIRES, processing.as_str()];
        let queue_is_missing = self.queue_field_is_missing(&id);
        // The script would store a settled message again, and one that the next tick drops.
        let refused = match (self.is_known(&id, &processing), queue_is_missing && !named) {
            (false, _) => Some("NOMSG "),
            (true, true) => Some("ERR the queue of id is unknown"),
            (true, false) => None,
        };
        if let Some(refused) = refused {
            let error = err!(self.module, "RMQ.RETRY", &keys, &id, payload, delay, "topic");
            assert!(error.starts_with(refused), "{error}");
            return;
        }
        let own = self.own_list(&id, &processing);
        let began = now_ms();
        let args = (id.as_slice(), payload.as_slice(), delay, "topic");
        let left = self.peer.call(&mut self.script, "retry_message", &keys, args);
        let right = if !queue_is_missing && own.is_none() && self.rng.chance(50) {
            self.twin("RMQ.RETRY", "retry_message", &keys, args)
        } else {
            cmd!(self.module, "RMQ.RETRY", &keys, &id, &payload, delay)
        };
        self.agree("retry", left.unwrap(), right.unwrap());
        if queue_is_missing {
            // With the script the next tick would drop the message.
            ok!(self.script, "HSET", PAYLOADS, queue_field(&id), queue);
        }
        self.take_out_of_own_list(own, &id);
        self.settle_score(DELAYS, &id, began, offset);
    }

    fn tick(&mut self) {
        let batch = 1 + self.rng.below(20);
        self.note(format!("tick {batch}"));
        let keys = [DELAYS, PAYLOADS];
        if self.stays_for_want_of_the_map("RMQ.DELAYTICK", &keys, batch) {
            return;
        }
        let left = self.peer.call(&mut self.script, "process_delay_message", &keys, batch);
        let right = self.twin("RMQ.DELAYTICK", "process_delay_message", &keys, batch);
        self.agree("tick", left.unwrap(), right.unwrap());
    }

    fn timeouts(&mut self) {
        let batch = 1 + self.rng.below(20);
        let now = now_ms();
        let target = *self.rng.pick(&[now, now, now - 5e5, 1000.0, 0.0, 1e15]);
        self.note(format!("timeouts up to {target}, {batch}"));
        let keys = [EXPIRES, PAYLOADS];
        let args = (target.to_string(), batch);
        if self.stays_for_want_of_the_map("RMQ.TIMEOUTS", &keys, (args.clone(), "ALL")) {
            return;
        }
        let left = self.peer.call(&mut self.script, "handle_timeout_message", &keys, args.clone());
        let right = if target == now && self.rng.chance(50) {
            // No deadline lies between the two readings of the clock.
            cmd!(self.module, "RMQ.TIMEOUTS", &keys, "*", batch, "ALL")
        } else {
            cmd!(self.module, "RMQ.TIMEOUTS", &keys, args, "all")
        };
        self.agree("timeouts", left.unwrap(), right.unwrap());
    }

    fn dead_letter(&mut self) {
        let (queue, payload) = (self.queue(), self.payload());
        let id = self.id_to_settle(queue);
        let processing = processing_of(queue);
        self.note(format!("dead letter {} of {queue}", id.escape_ascii()));
        let keys = [DLQ_PAYLOADS, DLQ, EXPIRES, PAYLOADS, processing.as_str()];
        if !self.is_known(&id, &processing) {
            let error = err!(self.module, "RMQ.DEADLETTER", &keys, &id, payload, "topic");
            assert!(error.starts_with("NOMSG "), "{error}");
            return;
        }
        let repaired = self.queue_field_is_missing(&id);
        let own = self.own_list(&id, &processing);
        // The script would list a dead letter twice.
        ok!(self.script, "LREM", DLQ, 0, &id);
        let args = (id.as_slice(), payload, "topic");
        let left = self.peer.call(&mut self.script, "move_to_dlq", &keys, args.clone());
        let right = cmd!(self.module, "RMQ.DEADLETTER", &keys, args);
        self.agree("dead letter", left.unwrap(), right.unwrap());
        if repaired {
            ok!(self.script, "HSET", DLQ_PAYLOADS, queue_field(&id), queue);
        }
        self.take_out_of_own_list(own, &id);
        self.forget_attempts(&id);
    }

    fn next_delay(&mut self) {
        self.note("next delay".into());
        let left = self.peer.call(&mut self.script, "get_next_delay_task", &[DELAYS], &[""; 0]);
        let (mut left, mut right) = (items(left.unwrap()), items(ok!(self.module, "RMQ.NEXTDELAY", DELAYS)));
        if left.len() == 4 {
            // The wait is counted from two readings of the clock, first the script's.
            let (Value::Int(script), Value::Int(module)) = (left.remove(1), right.remove(1)) else {
                panic!("a wait that is no integer");
            };
            let between = script - module;
            assert!((0..30_000).contains(&between), "{script} and then {module} ms to wait");
        }
        self.agree("next delay", Value::Array(left), Value::Array(right));
    }

    fn parse_error(&mut self) {
        let queue = self.queue();
        let id = match self.id_to_settle(queue) {
            id if std::str::from_utf8(&id).is_ok() => id,
            _ => b"unknown".to_vec(),
        };
        let payload = format!("{{\"broken\": \"\\ é {}", "y".repeat(self.rng.below(300)));
        let days = *self.rng.pick(&["", "7", "0.5"]);
        let max = *self.rng.pick(&["", "1", "3", "50", "400"]);
        let hexpire = *self.rng.pick(&["", "0", "1"]);
        let script_hexpire = if self.field_expiry && hexpire != "0" { "1" } else { "0" };
        self.note(format!("parse error of {} ({days:?}, {max:?})", id.escape_ascii()));
        let processing = processing_of(queue);
        let keys = [ERROR_DATA, ERRORS, processing.as_str(), EXPIRES, PAYLOADS];
        let args = (id.as_slice(), payload.as_str(), queue, "bad \"quote\"", "1700000000");
        let left = cmd!(self.script, "EVAL", PARSE_ERROR, keys.len(), &keys, args, days, max, script_hexpire);
        let right = cmd!(self.module, "RMQ.PARSEERR", &keys, args, days, max, hexpire);
        self.agree("parse error", left.unwrap(), right.unwrap());
        self.forget_attempts(&id);
        self.same_record(&id, payload.len());
    }

    /// The records say the same; the order of their members may differ, so both become the same text.
    fn same_record(&mut self, id: &[u8], payload_bytes: usize) {
        let read = |con: &mut Connection| -> serde_json::Value {
            let record: Vec<u8> = ask!(con, "HGET", ERROR_DATA, id);
            serde_json::from_slice(&record).expect("a record is JSON")
        };
        let (mut script, module) = (read(&mut self.script), read(&mut self.module));
        script["original_payload_bytes"] = payload_bytes.into();
        assert_eq!(script, module);
        if self.field_expiry {
            let ttl = |con: &mut Connection| -> Vec<i64> { ask!(con, "HTTL", ERROR_DATA, "FIELDS", 1, id) };
            let (script, module) = (ttl(&mut self.script)[0], ttl(&mut self.module)[0]);
            assert!((script - module).abs() <= 5, "the record expires in {script} and in {module} s");
        }
        both!(self, "HSET", ERROR_DATA, id, "a record");
    }

    /// What a crash between two plain commands leaves behind.
    fn lose_a_field(&mut self) {
        let queue = self.queue();
        let id = self.id_to_settle(queue);
        self.note(format!("lose a field of {}", id.escape_ascii()));
        let field = match self.rng.below(3) {
            0 => id,
            _ => queue_field(&id),
        };
        both!(self, "HDEL", PAYLOADS, &field);
    }

    /// Every encoding in which the steps met a key.
    fn encodings(&self, key: &str) -> Vec<&str> {
        let of_key = self.encodings.iter().filter(|(name, _)| name == key);
        of_key.map(|(_, encoding)| encoding.as_str()).collect()
    }

    fn note_encodings(&mut self) {
        for key in [PAYLOADS, EXPIRES, DELAYS, &pending_of(QUEUES[0]), &processing_of(QUEUES[0])] {
            if let Value::BulkString(encoding) = both!(self, "OBJECT", "ENCODING", key) {
                let encoding = String::from_utf8(encoding).expect("a word");
                self.encodings.insert((key.to_string(), encoding));
            }
        }
    }

    /// Fills every key so far that its large encoding, or a long list, is what the steps meet.
    fn fill(&mut self, messages: usize) {
        for number in 0..messages {
            let id = format!("filler-{number}");
            let queue = QUEUES[number % 2];
            let list = if number % 3 == 0 { pending_of(queue) } else { processing_of(queue) };
            both!(self, "HSET", PAYLOADS, &id, "a payload", queue_field(id.as_bytes()), queue);
            if number % 5 == 0 {
                both!(self, "ZADD", DELAYS, (number * 1000).to_string(), &id);
            } else {
                both!(self, "RPUSH", &list, &id);
                both!(self, "ZADD", EXPIRES, (number * 1000).to_string(), &id);
            }
            both!(self, "HSET", ERROR_DATA, &id, "a record");
            both!(self, "RPUSH", ERRORS, &id);
        }
    }
}

fn queue_field(id: &[u8]) -> Vec<u8> {
    [id, b":queue"].concat()
}

fn attempts_field(id: &[u8]) -> Vec<u8> {
    [id, b":attempts"].concat()
}

/// Room for everything in the compact encodings.
const COMPACT: [(&str, &str); 5] = [
    ("hash-max-listpack-entries", "100000"),
    ("hash-max-listpack-value", "100000"),
    ("zset-max-listpack-entries", "100000"),
    ("zset-max-listpack-value", "100000"),
    ("list-max-listpack-size", "-5"),
];

/// No compact encoding at all, and lists of many small nodes.
const SPREAD: [(&str, &str); 3] =
    [("hash-max-listpack-entries", "0"), ("zset-max-listpack-entries", "0"), ("list-max-listpack-size", "2")];

#[test]
fn the_commands_do_what_the_scripts_do_in_the_compact_encodings() {
    let mut twins = Twins::start(&COMPACT, Rng::seeded());
    twins.run(3000);
    assert_eq!(twins.encodings(PAYLOADS), ["listpack"]);
    assert_eq!(twins.encodings(EXPIRES), ["listpack"]);
}

#[test]
fn the_commands_do_what_the_scripts_do_in_the_large_encodings() {
    let mut twins = Twins::start(&SPREAD, Rng::seeded().fork());
    twins.run(3000);
    assert_eq!(twins.encodings(PAYLOADS), ["hashtable"]);
    assert_eq!(twins.encodings(EXPIRES), ["skiplist"]);
    // A list that fits into one node may be a listpack.
    assert!(twins.encodings(&pending_of(QUEUES[0])).contains(&"quicklist"));
}

#[test]
fn the_commands_do_what_the_scripts_do_while_keys_change_their_encoding() {
    let settings =
        [("hash-max-listpack-entries", "16"), ("zset-max-listpack-entries", "8"), ("list-max-listpack-size", "4")];
    let mut rng = Rng::seeded();
    rng.next_u64();
    let mut twins = Twins::start(&settings, rng.fork());
    for _ in 0..20 {
        twins.run(150);
        both!(twins, "FLUSHALL");
    }
    assert_eq!(twins.encodings(PAYLOADS), ["hashtable", "listpack"]);
    assert_eq!(twins.encodings(EXPIRES), ["listpack", "skiplist"]);
}

#[test]
fn the_commands_do_what_the_scripts_do_with_thousands_of_messages() {
    let mut rng = Rng::seeded();
    let mut twins = Twins::start(&[], Rng::from_seed(rng.next_u64() ^ 1));
    twins.fill(3000);
    twins.compare_every = 20;
    twins.run(1500);
    assert_eq!(twins.encodings(PAYLOADS), ["hashtable"]);
    assert_eq!(twins.encodings(DELAYS), ["skiplist"]);
    assert_eq!(twins.encodings(&processing_of(QUEUES[0])), ["quicklist"]);
}

#[test]
fn workers_that_use_scripts_and_workers_that_use_commands_share_the_keys() {
    let mut rng = Rng::seeded();
    let mut twins = Twins::start(&[], Rng::from_seed(rng.next_u64() ^ 2));
    twins.mixed = true;
    twins.run(3000);
}
