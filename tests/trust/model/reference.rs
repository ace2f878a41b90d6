//! The reference: every command over plain collections, as docs/commands.md says it, without regard to speed. What a
//! call may choose for itself (a time within the call, a fresh id, which of two equal ids leaves a list) is checked
//! against what is allowed, and then taken over from what was observed.

use crate::common::Reply;
use std::collections::BTreeMap;

pub type Bytes = Vec<u8>;
pub type Hash = BTreeMap<Bytes, Bytes>;
pub type Zset = BTreeMap<Bytes, f64>;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    List(Vec<Bytes>),
    Hash(Hash),
    Zset(Zset),
    /// A wrong type everywhere.
    Text,
}

pub type State = BTreeMap<Bytes, Value>;

/// One call: what was sent, what came back, how the keys look now, and between which times (in ms) it ran.
pub struct Step<'a> {
    pub words: &'a [Bytes],
    pub reply: &'a Reply,
    pub after: &'a State,
    pub began: f64,
    pub ended: f64,
    /// The moment by which the commands for looking and mending tell what is late.
    pub now: f64,
}

#[derive(Clone, Default)]
pub struct Model {
    pub state: State,
    /// Messages that TIMEOUTS removed from processing and replied: only the caller has them.
    pub held: Vec<Bytes>,
    pub max_batch: usize,
    /// The latest time in a receipt.
    pub latest_micros: i64,
    /// What went through each queue, by the full name and the kind of event.
    pub counts: BTreeMap<(Bytes, &'static str), i64>,
    /// Between which times the last RESERVE named a queue.
    pub asked: BTreeMap<Bytes, (f64, f64)>,
}

/// What one step of the clock takes of either kind.
const STEP: usize = 100;
/// Second deaths in one step, and leased ids in pending that one call looks for in processing.
const SECOND_DEATHS: usize = 4;
const SEARCHES: usize = 16;
/// How long the clock puts off what it can neither move nor drop.
const PUT_OFF_MS: f64 = 60_000.0;

/// Why a call must fail: the codes that its error may have.
type Refusal = Vec<&'static str>;

/// What a step did: nothing but an error, or something.
enum Outcome {
    Refused(Refusal),
    Done,
    /// Not what the model allows.
    Wrong(String),
}

impl From<String> for Outcome {
    fn from(text: String) -> Outcome {
        Outcome::Wrong(text)
    }
}

macro_rules! wrong {
    ($($arg:tt)*) => { return Err(Outcome::Wrong(format!($($arg)*))) };
}

mod admin;

pub fn queue_field(id: &[u8]) -> Bytes {
    [id, b":queue"].concat()
}

pub fn attempts_field(id: &[u8]) -> Bytes {
    [id, b":attempts"].concat()
}

fn pending_of(queue: &[u8]) -> Bytes {
    [queue, b":pending"].concat()
}

/// Whether a RESERVE has replied with this message.
fn is_delivered(step: &Step, id: &[u8]) -> bool {
    let is_it = |row: &Reply| matches!(row, Reply::Array(row) if row.first() == Some(&Reply::Bulk(id.to_vec())));
    matches!(step.reply, Reply::Array(rows) if rows.iter().any(is_it))
}

fn processing_of(queue: &[u8]) -> Bytes {
    [queue, b":processing"].concat()
}

fn number(bytes: &[u8]) -> f64 {
    std::str::from_utf8(bytes).expect("text").parse().expect("a number")
}

fn bulk(reply: &Reply) -> Option<&[u8]> {
    match reply {
        Reply::Bulk(bytes) => Some(bytes),
        _ => None,
    }
}

/// The keys of a namespace.
struct Keys {
    prefix: Bytes,
    payloads: Bytes,
    expires: Bytes,
    delays: Bytes,
    queues: Bytes,
    once: Bytes,
    dlq: Bytes,
    dlq_map: Bytes,
}

impl Keys {
    fn of(namespace: &[u8]) -> Keys {
        let key = |name: &str| [namespace, b":", name.as_bytes()].concat();
        let [payloads, expires, delays, queues] = ["payloads", "expires", "delays", "queues"].map(key);
        let [once, dlq, dlq_map, prefix] = ["once", "dlq", "dlq:data", ""].map(key);
        Keys { prefix, payloads, expires, delays, queues, once, dlq, dlq_map }
    }

    fn queue(&self, short: &[u8]) -> Bytes {
        [&self.prefix, short].concat()
    }

    /// None for a queue of another namespace, which is never followed.
    fn short<'a>(&self, queue: &'a [u8]) -> Option<&'a [u8]> {
        let short = queue.strip_prefix(self.prefix.as_slice())?;
        (!short.is_empty() && short != b"*" && !short.contains(&b':')).then_some(short)
    }
}

/// `<n>-<µs> <error>`, as leniently as it is read.
#[derive(Clone, Default)]
struct Attempts {
    count: i64,
    micros: i64,
    error: Option<Bytes>,
}

impl Attempts {
    fn read(field: Option<&Bytes>) -> Attempts {
        let Some(field) = field else { return Attempts::default() };
        let (head, error) = match field.iter().position(|byte| *byte == b' ') {
            Some(space) => (&field[..space], Some(field[space + 1..].to_vec())),
            None => (&field[..], None),
        };
        let head = String::from_utf8_lossy(head).into_owned();
        let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
        let count = digits(&head);
        let micros = head[count.len()..].strip_prefix('-').filter(|rest| digits(rest) == **rest);
        let micros = micros.and_then(|text| text.parse().ok()).filter(|micros| *micros < (1i64 << 43) * 1000);
        Attempts { count: count.parse().unwrap_or(0), micros: micros.unwrap_or(0), error }
    }

    fn bytes(&self) -> Bytes {
        let mut bytes = format!("{}-{}", self.count, self.micros).into_bytes();
        if let Some(error) = &self.error {
            bytes.push(b' ');
            bytes.extend_from_slice(error);
        }
        bytes
    }
}

fn is_receipt(bytes: &[u8]) -> bool {
    let parts: Vec<&[u8]> = bytes.split(|byte| *byte == b'-').collect();
    parts.len() == 2 && parts.iter().all(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit))
}

/// What is stored for a queue, or what is in force.
#[derive(Clone, Copy, Default)]
struct Policy {
    attempts: Option<i64>,
    backoff: Option<(i64, i64)>,
    paused: bool,
}

impl Policy {
    fn read(field: Option<&Bytes>) -> Policy {
        let json: serde_json::Value = field.and_then(|field| serde_json::from_slice(field).ok()).unwrap_or_default();
        let number = |name: &str| json[name].as_i64().filter(|value| *value >= 0);
        let backoff = number("backoff_first_ms").zip(number("backoff_max_ms")).filter(|(first, max)| first <= max);
        let paused = json["paused"].as_bool().unwrap_or(json["paused"].as_i64().is_some_and(|number| number != 0));
        Policy { attempts: number("attempts"), backoff, paused }
    }

    fn bytes(&self) -> Bytes {
        let mut values = Vec::new();
        values.extend(self.attempts.map(|n| format!("\"attempts\":{n}")));
        values.extend(self.backoff.map(|(a, b)| format!("\"backoff_first_ms\":{a},\"backoff_max_ms\":{b}")));
        values.extend(self.paused.then(|| "\"paused\":true".to_string()));
        format!("{{{}}}", values.join(",")).into_bytes()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    List,
    Hash,
    Zset,
}

impl Value {
    fn is(&self, kind: Kind) -> bool {
        matches!(
            (self, kind),
            (Value::List(_), Kind::List) | (Value::Hash(_), Kind::Hash) | (Value::Zset(_), Kind::Zset)
        )
    }

    fn is_empty(&self) -> bool {
        match self {
            Value::List(items) => items.is_empty(),
            Value::Hash(fields) => fields.is_empty(),
            Value::Zset(members) => members.is_empty(),
            Value::Text => false,
        }
    }
}

/// Reads that take a missing key for an empty one. The type was checked before.
impl Model {
    fn fits(&self, key: &[u8], kind: Kind) -> bool {
        self.state.get(key).is_none_or(|value| value.is(kind))
    }

    pub fn list(&self, key: &[u8]) -> &[Bytes] {
        match self.state.get(key) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }

    fn list_mut(&mut self, key: &[u8]) -> &mut Vec<Bytes> {
        match self.state.entry(key.to_vec()).or_insert(Value::List(Vec::new())) {
            Value::List(items) => items,
            other => panic!("not a list: {other:?}"),
        }
    }

    pub fn field(&self, key: &[u8], field: &[u8]) -> Option<&Bytes> {
        match self.state.get(key) {
            Some(Value::Hash(fields)) => fields.get(field),
            _ => None,
        }
    }

    fn hash_mut(&mut self, key: &[u8]) -> &mut Hash {
        match self.state.entry(key.to_vec()).or_insert(Value::Hash(Hash::new())) {
            Value::Hash(fields) => fields,
            other => panic!("not a hash: {other:?}"),
        }
    }

    pub fn score(&self, key: &[u8], member: &[u8]) -> Option<f64> {
        match self.state.get(key) {
            Some(Value::Zset(members)) => members.get(member).copied(),
            _ => None,
        }
    }

    fn zset_mut(&mut self, key: &[u8]) -> &mut Zset {
        match self.state.entry(key.to_vec()).or_insert(Value::Zset(Zset::new())) {
            Value::Zset(members) => members,
            other => panic!("not a sorted set: {other:?}"),
        }
    }

    /// Members up to a score, in the server's order.
    pub fn up_to(&self, key: &[u8], max: f64) -> Vec<Bytes> {
        let Some(Value::Zset(members)) = self.state.get(key) else {
            return Vec::new();
        };
        let mut due: Vec<(f64, &Bytes)> =
            members.iter().filter(|(_, score)| **score <= max).map(|(member, score)| (*score, member)).collect();
        due.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1)));
        due.into_iter().map(|(_, member)| member.clone()).collect()
    }
}

fn observed_score(step: &Step, key: &[u8], member: &[u8]) -> Option<f64> {
    match step.after.get(key) {
        Some(Value::Zset(members)) => members.get(member).copied(),
        _ => None,
    }
}

fn observed_list<'a>(step: &Step<'a>, key: &[u8]) -> &'a [Bytes] {
    match step.after.get(key) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}

/// Checks before any write; each adds the code that its error would have.
struct Checks<'m> {
    model: &'m Model,
    codes: Refusal,
}

impl Checks<'_> {
    fn key(&mut self, key: &[u8], kind: Kind) {
        if !self.model.fits(key, kind) {
            self.codes.push("WRONGTYPE");
        }
    }

    /// A list that an empty name leaves out.
    fn optional_list(&mut self, key: &[u8]) {
        if !key.is_empty() {
            self.key(key, Kind::List);
        }
    }

    fn holds(&mut self, condition: bool) {
        if !condition {
            self.codes.push("ERR");
        }
    }

    fn distinct(&mut self, keys: &[&Bytes]) {
        for (index, key) in keys.iter().enumerate() {
            self.holds(!keys[..index].contains(key));
        }
    }

    fn writable(&mut self, id: &[u8]) {
        self.holds([":queue", ":attempts", ":death"].iter().all(|suffix| !id.ends_with(suffix.as_bytes())));
    }

    fn integer(&mut self, bytes: &[u8], least: i64) {
        let value: Option<i64> = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
        self.holds(value.is_some_and(|value| value >= least));
    }

    fn receipts(&mut self, pairs: &[&Bytes]) {
        pairs.chunks(2).for_each(|pair| self.holds(is_receipt(pair[1])));
    }

    fn decimal(&mut self, bytes: &[u8]) {
        let value: Option<f64> = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
        self.holds(value.is_some_and(|value| value >= 0.0 && value.is_finite()));
    }

    fn passed(self) -> Result<(), Outcome> {
        if self.codes.is_empty() {
            Ok(())
        } else {
            Err(Outcome::Refused(self.codes))
        }
    }
}

impl Model {
    fn checks(&self) -> Checks<'_> {
        Checks { model: self, codes: Vec::new() }
    }

    /// Applies the step to the model, or says what was wrong with it. Where a time came during the step, the call may have
    /// seen that or not.
    pub fn follow(&mut self, step: &Step) -> Result<(), String> {
        let came = |score: &f64| *score > step.began && *score <= step.ended;
        let is_close = |value: &Value| matches!(value, Value::Zset(members) if members.values().any(came));
        let before = self.state.values().any(is_close).then(|| self.clone());
        match (self.follow_at(step), before) {
            (Err(_), Some(before)) => {
                *self = before;
                self.follow_at(&Step { now: step.began, ..*step })
            }
            (result, _) => result,
        }
    }

    fn follow_at(&mut self, step: &Step) -> Result<(), String> {
        let outcome = match self.apply(step) {
            Ok(()) => Outcome::Done,
            Err(outcome) => outcome,
        };
        self.state.retain(|_, value| !value.is_empty());
        match (outcome, step.reply) {
            (Outcome::Wrong(text), _) => return Err(text),
            (Outcome::Refused(codes), Reply::Error(text)) => {
                let code = text.split(' ').next().unwrap_or_default();
                if !codes.contains(&code) {
                    return Err(format!("the error should be {codes:?}, but is {text}"));
                }
            }
            (Outcome::Refused(codes), reply) => return Err(format!("{codes:?} was expected, not {reply:?}")),
            (Outcome::Done, Reply::Error(text)) => return Err(format!("an unexpected error: {text}")),
            (Outcome::Done, _) => {}
        }
        self.compare(step.after)
    }

    fn compare(&self, after: &State) -> Result<(), String> {
        if self.state == *after {
            return Ok(());
        }
        let mut lines = Vec::new();
        for key in self.state.keys().chain(after.keys().filter(|key| !self.state.contains_key(*key))) {
            let (model, server) = (self.state.get(key), after.get(key));
            if model != server {
                let show = |value: Option<&Value>| value.map_or("nothing".to_string(), show);
                lines.push(format!(
                    "  {}\n    model  {}\n    server {}",
                    key.escape_ascii(),
                    show(model),
                    show(server)
                ));
            }
        }
        Err(format!("the keys differ:\n{}", lines.join("\n")))
    }

    fn apply(&mut self, step: &Step) -> Result<(), Outcome> {
        let words: Vec<&Bytes> = step.words[1..].iter().collect();
        match step.words[0].as_slice() {
            b"RMQ.COMPLETE" => self.complete(step, &words),
            b"RMQ.RETRY" => self.retry(step, &words),
            b"RMQ.DELAYTICK" => self.delay_tick(step, &words),
            b"RMQ.TIMEOUTS" => self.timeouts(step, &words),
            b"RMQ.PARSEERR" => self.parse_error(step, &words),
            b"RMQ.PUBLISH" => self.publish(step, &words),
            b"RMQ.RESERVE" => self.reserve(step, &words),
            b"RMQ.ACK" => self.ack(step, &words),
            b"RMQ.RELEASE" => self.release(step, &words),
            b"RMQ.POLICY" => self.policy(step, &words),
            b"RMQ.NACK" => self.nack(step, &words),
            b"RMQ.EXTEND" => self.extend(step, &words),
            b"RMQ.DEADLETTER" => self.dead_letter(step, &words),
            b"RMQ.REDRIVE" => self.redrive(step, &words),
            b"RMQ.NEXTDELAY" => self.next_delay(step, &words),
            b"RMQ.STATS" => self.stats(step, &words),
            b"RMQ.PEEK" => self.peek(step, &words),
            b"RMQ.CANCEL" => self.cancel(step, &words),
            b"RMQ.RESCHEDULE" => self.reschedule(step, &words),
            b"RMQ.PURGE" => self.purge(step, &words),
            b"RMQ.AUDIT" => self.audit(step, &words, false),
            b"RMQ.REPAIR" => self.audit(step, &words, true),
            _ => self.plain(&words, &step.words[0]),
        }
    }

    // ---- steps that several commands share

    /// One occurrence of each id leaves the list, whichever. Nothing else happens to the list in this call.
    fn leave_list(&mut self, step: &Step, key: &[u8], ids: &[&Bytes]) -> Result<(), Outcome> {
        if key.is_empty() || !self.fits(key, Kind::List) {
            return Ok(());
        }
        let before = self.list(key).to_vec();
        let expected = expected_counts(&before, ids);
        let after = observed_list(step, key);
        if !is_rest_of(&before, after, &expected) {
            wrong!(
                "{} was {}\n    and is {}",
                key.escape_ascii(),
                show(&Value::List(before)),
                show(&Value::List(after.to_vec()))
            );
        }
        *self.list_mut(key) = after.to_vec();
        Ok(())
    }

    fn forget_fields(&mut self, map: &[u8], id: &[u8]) {
        let map = self.hash_mut(map);
        for field in [id.to_vec(), queue_field(id), attempts_field(id)] {
            map.remove(&field);
        }
    }

    /// A score that the call made from the clock, `offset` ms from now.
    fn clock_score(&mut self, step: &Step, key: &[u8], id: &[u8], offset: f64) -> Result<f64, Outcome> {
        let score = observed_score(step, key, id);
        let allowed = step.began + offset..=step.ended + offset;
        match score {
            Some(score) if allowed.contains(&score) => {
                self.zset_mut(key).insert(id.to_vec(), score);
                Ok(score)
            }
            _ => wrong!("{} should get a score in {allowed:?}, not {score:?}", id.escape_ascii()),
        }
    }

    fn batch(&self, bytes: &[u8]) -> usize {
        (number(bytes) as usize).min(self.max_batch)
    }

    /// What RETRY and DEADLETTER need to know of a message: its queue, and the list of its own queue where that is
    /// another than the one given.
    fn look_up(&self, map: &[u8], processing: &[u8], id: &Bytes) -> Result<(Option<Bytes>, Bytes), Outcome> {
        let stored = self.field(map, &queue_field(id)).cloned();
        let own = stored.as_ref().map(|queue| processing_of(queue)).filter(|own| own != processing).unwrap_or_default();
        let mut checks = self.checks();
        checks.optional_list(&own);
        // One name for two things.
        checks.holds(own != map || own.is_empty());
        checks.passed()?;
        let is_in_work = [processing, &own].iter().any(|list| self.list(list).contains(id));
        if !is_in_work && self.field(map, id).is_none() {
            return Err(Outcome::Refused(vec!["NOMSG"]));
        }
        Ok((stored.or_else(|| processing.strip_suffix(b":processing").map(<[u8]>::to_vec)), own))
    }

    /// Everything that COMPLETE does for these ids.
    fn forget(
        &mut self,
        step: &Step,
        map: &[u8],
        processing: &[u8],
        expires: &[u8],
        ids: &[&Bytes],
    ) -> Result<(), Outcome> {
        self.leave_list(step, processing, ids)?;
        for id in ids {
            self.zset_mut(expires).remove(*id);
            self.forget_fields(map, id);
            self.held.retain(|held| held != *id);
        }
        Ok(())
    }

    // ---- the commands

    fn complete(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [map, processing, expires, ids @ ..] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let mut checks = self.checks();
        checks.distinct(&[map, processing, expires]);
        checks.key(map, Kind::Hash);
        checks.optional_list(processing);
        checks.key(expires, Kind::Zset);
        checks.passed()?;
        self.forget(step, map, processing, expires, ids)?;
        expect(step, &ok())
    }

    fn retry(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [map, delays, expires, processing, id, payload, delay, ..] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let mut checks = self.checks();
        checks.writable(id);
        checks.decimal(delay);
        checks.distinct(&[map, delays, expires, processing]);
        checks.key(map, Kind::Hash);
        checks.key(delays, Kind::Zset);
        checks.key(expires, Kind::Zset);
        checks.optional_list(processing);
        checks.passed()?;
        let (queue, own) = self.look_up(map, processing, id)?;
        let Some(queue) = queue else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        self.hash_mut(map).insert((*id).clone(), (*payload).clone());
        self.hash_mut(map).insert(queue_field(id), queue);
        self.clock_score(step, delays, id, number(delay) * 1000.0)?;
        self.zset_mut(expires).remove(*id);
        self.leave_list(step, processing, &[id])?;
        self.leave_list(step, &own, &[id])?;
        self.held.retain(|held| held != *id);
        expect(step, &ok())
    }

    fn delay_tick(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [delays, map, batch] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let mut checks = self.checks();
        checks.integer(batch, 1);
        checks.distinct(&[delays, map]);
        checks.key(delays, Kind::Zset);
        checks.key(map, Kind::Hash);
        checks.passed()?;
        let batch = self.batch(batch);
        let (mut left, mut replied) = (0, Vec::new());
        // Where the hash is missing as a whole, that proves nothing.
        for id in self.due(step, delays, map) {
            if left == batch {
                break;
            }
            let Some(queue) = self.field(map, &queue_field(&id)).cloned() else {
                self.zset_mut(delays).remove(&id);
                left += 1;
                continue;
            };
            let pending = pending_of(&queue);
            if !self.fits(&pending, Kind::List) {
                continue;
            }
            self.list_mut(&pending).insert(0, id.clone());
            self.zset_mut(delays).remove(&id);
            replied.push(row(&[&id, &queue]));
            left += 1;
        }
        expect(step, &Reply::Array(replied))
    }

    fn timeouts(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [expires, map, target, batch, options @ ..] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let word = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_uppercase();
        let all = options.iter().any(|option| word(option) == "ALL");
        let claim = options.iter().position(|option| word(option) == "CLAIM");
        let claim_ms = claim.map(|index| options[index + 1]);
        let mut checks = self.checks();
        if *target != b"*" {
            checks.decimal(target);
        }
        checks.integer(batch, 1);
        if let Some(ms) = claim_ms {
            checks.integer(ms, 1);
        }
        checks.distinct(&[expires, map]);
        checks.key(expires, Kind::Zset);
        checks.key(map, Kind::Hash);
        checks.passed()?;
        let target = if *target == b"*" { step.ended } else { number(target) };
        let batch = self.batch(batch);
        let (mut left, mut replied) = (0, Vec::new());
        let mut taken: BTreeMap<Bytes, Vec<Bytes>> = BTreeMap::new();
        let mut claimed = Vec::new();
        for id in self.up_to(expires, target).into_iter().filter(|_| self.state.contains_key(*map)).collect::<Vec<_>>()
        {
            if left == batch {
                break;
            }
            let payload = self.field(map, &id).cloned();
            let queue = self.field(map, &queue_field(&id)).cloned();
            let (Some(payload), Some(queue)) = (payload, queue) else {
                self.zset_mut(expires).remove(&id);
                left += 1;
                continue;
            };
            let processing = processing_of(&queue);
            if !self.fits(&processing, Kind::List) {
                continue;
            }
            left += 1;
            let stuck = self.list(&processing).contains(&id);
            if stuck || all {
                replied.push(row(&[&id, &payload, &queue]));
            }
            match (stuck, claim_ms) {
                (true, Some(ms)) => claimed.push(self.clock_score(step, expires, &id, number(ms))?),
                (true, None) => {
                    self.zset_mut(expires).remove(&id);
                    self.held.push(id.clone());
                    taken.entry(processing).or_default().push(id);
                }
                (false, _) => {
                    self.zset_mut(expires).remove(&id);
                }
            }
        }
        if claimed.windows(2).any(|pair| pair[0] != pair[1]) {
            wrong!("one call, one deadline: {claimed:?}");
        }
        for (processing, ids) in &taken {
            self.leave_list(step, processing, &ids.iter().collect::<Vec<_>>())?;
        }
        expect(step, &Reply::Array(replied))
    }

    fn parse_error(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        const DROPPED_PER_CALL: usize = 100;
        let [error_map, errors, processing, expires, map, id, payload, topic, message, timestamp, limits @ ..] = words
        else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let max = limits.get(1).filter(|max| !max.is_empty());
        let mut checks = self.checks();
        if let Some(days) = limits.first().filter(|days| !days.is_empty()) {
            checks.decimal(days);
        }
        if let Some(max) = max {
            checks.integer(max, 1);
        }
        checks.writable(id);
        checks.distinct(&[error_map, errors, processing, expires, map]);
        checks.key(error_map, Kind::Hash);
        checks.key(errors, Kind::List);
        checks.optional_list(processing);
        checks.key(expires, Kind::Zset);
        checks.key(map, Kind::Hash);
        checks.passed()?;

        let record = match step.after.get(*error_map) {
            Some(Value::Hash(records)) => records.get(*id).cloned(),
            _ => None,
        };
        let Some(record) = record else {
            wrong!("no record of {}", id.escape_ascii());
        };
        check_record(&record, id, payload, topic, message, timestamp)?;
        let before = self.list(errors).to_vec();
        let is_stale = |model: &Model, id: &Bytes| model.field(error_map, id).is_none();
        let expired = before.iter().rev().take_while(|id| is_stale(self, id)).count();
        let mut dropped = before[before.len() - expired.min(DROPPED_PER_CALL)..].to_vec();
        dropped.retain(|other| other != *id);
        self.hash_mut(error_map).insert((*id).clone(), record);
        let mut queue = before;
        queue.retain(|other| other != *id);
        queue.insert(0, (*id).clone());
        let max = max.map_or(usize::MAX, |max| number(max) as usize);
        let with_record: Vec<Bytes> = queue.iter().filter(|id| !is_stale(self, id)).cloned().collect();
        let (kept, trimmed) = with_record.split_at(with_record.len().min(max));
        // Those without record may have left earlier than they must.
        let after = observed_list(step, errors);
        let same_order = is_rest_of(&queue, after, &missing_from(after, &queue));
        let same_records = after.iter().filter(|id| !is_stale(self, id)).eq(kept);
        if !same_order || !same_records || after.len() > max || dropped.iter().any(|id| after.contains(id)) {
            wrong!(
                "{} of {} should remain, not {}",
                show(&Value::List(kept.to_vec())),
                show(&Value::List(queue)),
                show(&Value::List(after.to_vec()))
            );
        }
        for old in trimmed {
            self.hash_mut(error_map).remove(old);
        }
        *self.list_mut(errors) = after.to_vec();
        self.forget(step, map, processing, expires, &[id])?;
        expect(step, &ok())
    }

    // ---- the queue commands

    /// Members whose time has come. One whose time came during the step may have been seen or not.
    fn due(&self, step: &Step, key: &[u8], map: &[u8]) -> Vec<Bytes> {
        if !self.state.contains_key(map) {
            return Vec::new();
        }
        let was_seen = |id: &Bytes| {
            let score = self.score(key, id);
            score.is_some_and(|score| score <= step.began) || observed_score(step, key, id) != score
        };
        self.up_to(key, step.ended).into_iter().filter(was_seen).collect()
    }

    /// The hash of queues knows every queue that has had a list.
    fn push(&mut self, keys: &Keys, queue: &[u8], list: &[u8], right: bool, id: &Bytes) {
        let items = self.list_mut(list);
        let is_new = items.is_empty();
        items.insert(if right { items.len() } else { 0 }, id.clone());
        if let (true, Some(short)) = (is_new, keys.short(queue)) {
            self.hash_mut(&keys.queues).entry(short.to_vec()).or_insert_with(|| b"{}".to_vec());
        }
    }

    fn policy_of(&self, keys: &Keys, short: &[u8]) -> Policy {
        let [own, default] = [short, b"*"].map(|name| Policy::read(self.field(&keys.queues, name)));
        Policy {
            attempts: own.attempts.or(default.attempts).or(Some(25)),
            backoff: own.backoff.or(default.backoff).or(Some((1000, 3_600_000))),
            paused: own.paused || default.paused,
        }
    }

    fn is_last(&self, keys: &Keys, queue: &[u8], count: i64) -> bool {
        let limit = self.policy_of(keys, keys.short(queue).unwrap_or_default()).attempts.unwrap_or(0);
        limit > 0 && count >= limit
    }

    /// The message becomes a dead letter.
    fn bury(
        &mut self,
        step: &Step,
        keys: &Keys,
        id: &Bytes,
        payload: Bytes,
        queue: Option<Bytes>,
        (reason, error, attempts): (&str, &[u8], i64),
    ) -> Result<(), Outcome> {
        let field = [id, b":death".as_slice()].concat();
        let observed = match step.after.get(&keys.dlq_map) {
            Some(Value::Hash(fields)) => fields.get(&field).cloned().unwrap_or_default(),
            _ => Bytes::new(),
        };
        let death: serde_json::Value = serde_json::from_slice(&observed).unwrap_or_default();
        let at = death["at"].as_f64().is_some_and(|at| (step.began..=step.ended).contains(&at));
        let error = String::from_utf8_lossy(error);
        if death["reason"] != reason || death["error"] != *error || death["attempts"] != attempts || !at {
            wrong!("{} died by {reason} with {error:?} after {attempts}, not {death}", id.escape_ascii());
        }
        self.bury_with(&keys.dlq_map, &keys.dlq, id, payload, queue, Some(observed));
        Ok(())
    }

    fn bury_with(
        &mut self,
        dlq_map: &[u8],
        dlq: &[u8],
        id: &Bytes,
        payload: Bytes,
        queue: Option<Bytes>,
        death: Option<Bytes>,
    ) {
        let letters = self.hash_mut(dlq_map);
        let field = [id, b":death".as_slice()].concat();
        let again = letters.insert(id.clone(), payload).is_some();
        letters.extend(queue.map(|queue| (queue_field(id), queue)));
        match death {
            Some(death) => drop(letters.insert(field, death)),
            None if again => drop(letters.remove(&field)),
            None => {}
        }
        // An id in dlq without a dead letter is stale; REDRIVE removes it.
        let dead = self.list_mut(dlq);
        if again {
            dead.retain(|other| other != id);
        }
        dead.insert(0, id.clone());
    }

    fn publish(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let keys = Keys::of(words[0]);
        let to = words.iter().position(|word| word.eq_ignore_ascii_case(b"TO")).expect("the generator's TO");
        let (options, queue, messages) = (&words[1..to], keys.queue(words[to + 1]), &words[to + 2..]);
        let option = |name: &str| {
            let place = options.iter().position(|word| word.eq_ignore_ascii_case(name.as_bytes()))?;
            Some(options.get(place + 1).copied())
        };
        let [urgent, delay, at, once] = ["URGENT", "DELAY", "AT", "ONCE"].map(option);
        let list = pending_of(&queue);
        let mut checks = self.checks();
        checks.key(&keys.payloads, Kind::Hash);
        checks.holds(keys.short(&queue).is_some());
        messages.chunks(2).for_each(|message| checks.writable(message[0]));
        if delay.is_some() || at.is_some() {
            checks.key(&keys.delays, Kind::Zset);
        } else {
            checks.key(&list, Kind::List);
        }
        // A queue whose list is there has been entered.
        if delay.is_none() && at.is_none() && self.list(&list).is_empty() {
            checks.key(&keys.queues, Kind::Hash);
        }
        if once.is_some() {
            checks.key(&keys.once, Kind::Zset);
            checks.holds(messages.chunks(2).all(|message| message[0] != b"*"));
        }
        checks.passed()?;
        let is_elsewhere = |message: &[&Bytes]| {
            let stored = self.field(&keys.payloads, &queue_field(message[0]));
            self.field(&keys.payloads, message[0]).is_some() && stored.is_some_and(|stored| *stored != queue)
        };
        if messages.chunks(2).any(is_elsewhere) {
            return Err(Outcome::Refused(vec!["EXISTS"]));
        }
        let replied = match step.reply {
            Reply::Array(replied) if replied.len() == messages.len() / 2 => replied,
            other => wrong!("{} messages, but {other:?}", messages.len() / 2),
        };
        let done: Vec<Bytes> = match (once, self.state.get(&keys.once)) {
            (Some(_), Some(Value::Zset(ids))) => {
                ids.iter().filter(|(_, until)| **until > step.began).map(|(id, _)| id.clone()).collect()
            }
            _ => Vec::new(),
        };
        let mut new = Vec::new();
        for (message, replied) in messages.chunks(2).zip(replied) {
            let id = match bulk(replied) {
                Some(made) if message[0] == b"*" => made.to_vec(),
                _ => message[0].clone(),
            };
            let is_known = self.field(&keys.payloads, &id).is_some() || done.contains(&id);
            let expected = if is_known { Reply::NilBulk } else { Reply::Bulk(id.clone()) };
            if *replied != expected {
                wrong!("{replied:?} was replied, not {expected:?}");
            }
            if !is_known {
                let map = self.hash_mut(&keys.payloads);
                map.insert(id.clone(), message[1].clone());
                map.insert(queue_field(&id), queue.clone());
                map.remove(&attempts_field(&id));
                new.push(id);
            }
        }
        self.count(&queue, "published", new.len());
        if let Some(Some(ms)) = once {
            let over = self.up_to(&keys.once, step.began);
            for id in over.iter().take(100) {
                self.zset_mut(&keys.once).remove(id);
            }
            for id in &new {
                self.clock_score(step, &keys.once, id, number(ms))?;
            }
        }
        match (delay.flatten(), at.flatten()) {
            (Some(ms), _) => {
                for id in &new {
                    self.clock_score(step, &keys.delays, id, number(ms))?;
                }
            }
            (_, Some(at)) => self.zset_mut(&keys.delays).extend(new.into_iter().map(|id| (id, number(at)))),
            _ => {
                // The first named is taken first, either way.
                if urgent.is_some() {
                    new.reverse();
                }
                new.iter().for_each(|id| self.push(&keys, &queue, &list, urgent.is_some(), id));
            }
        }
        Ok(())
    }

    /// Leases that have run out are taken back, delayed messages that are due become pending. Returns what left each
    /// processing list.
    fn keep_time(&mut self, step: &Step, keys: &Keys) -> Result<BTreeMap<Bytes, Vec<Bytes>>, Outcome> {
        enum Fate {
            Pending(Bytes, Attempts),
            Dead(Bytes, Attempts),
            OnlyExpires,
            PutOff,
            /// Many second deaths take more than one step.
            Later,
        }
        let mut second_deaths = 0;
        let usable = |model: &Model, list: Bytes| model.fits(&list, Kind::List);
        let mut fates = Vec::new();
        for id in self.due(step, &keys.expires, &keys.payloads).into_iter().take(STEP) {
            let queue = self.field(&keys.payloads, &queue_field(&id)).cloned();
            let fate = match queue.filter(|queue| keys.short(queue).is_some()) {
                _ if self.field(&keys.payloads, &id).is_none() => Fate::OnlyExpires,
                None => Fate::PutOff,
                Some(queue) if !usable(self, processing_of(&queue)) => Fate::PutOff,
                Some(queue) if !self.list(&processing_of(&queue)).contains(&id) => Fate::OnlyExpires,
                Some(queue) => {
                    let attempts = Attempts::read(self.field(&keys.payloads, &attempts_field(&id)));
                    let may_die = self.fits(&keys.dlq, Kind::List) && self.fits(&keys.dlq_map, Kind::Hash);
                    let is_last = self.is_last(keys, &queue, attempts.count);
                    second_deaths += usize::from(is_last && may_die && self.field(&keys.dlq_map, &id).is_some());
                    match is_last {
                        true if may_die && second_deaths > SECOND_DEATHS => Fate::Later,
                        true if may_die => Fate::Dead(queue, attempts),
                        false if usable(self, pending_of(&queue)) => Fate::Pending(queue, attempts),
                        _ => Fate::PutOff,
                    }
                }
            };
            fates.push((id, fate));
        }
        let (mut ready, mut stale, mut put_off) = (Vec::new(), Vec::new(), Vec::new());
        for id in self.due(step, &keys.delays, &keys.payloads).into_iter().take(STEP) {
            match self.field(&keys.payloads, &queue_field(&id)).cloned() {
                _ if self.field(&keys.payloads, &id).is_none() => stale.push(id),
                Some(queue) if keys.short(&queue).is_some() && usable(self, pending_of(&queue)) => {
                    ready.push((id, queue))
                }
                _ => put_off.push(id),
            }
        }
        let mut left: BTreeMap<Bytes, Vec<Bytes>> = BTreeMap::new();
        // The earliest deadline is taken first, so it is pushed last.
        for (id, fate) in fates.into_iter().rev().filter(|(_, fate)| !matches!(fate, Fate::Later)) {
            let deadline = self.zset_mut(&keys.expires).remove(&id).unwrap_or_default();
            if let Fate::Pending(queue, _) | Fate::Dead(queue, _) = &fate {
                let list = processing_of(queue);
                let items = self.list_mut(&list);
                let last = items.iter().rposition(|other| *other == id).expect("it is in processing");
                items.remove(last);
                left.entry(list).or_default().push(id.clone());
            }
            match fate {
                Fate::OnlyExpires | Fate::Later => {}
                // It may be pending all the same, and be delivered by this very call.
                Fate::PutOff if is_delivered(step, &id) => {
                    let later = (step.began + PUT_OFF_MS).floor() + if deadline.fract() == 0.0 { 0.0 } else { 0.5 };
                    self.zset_mut(&keys.expires).insert(id.clone(), later);
                }
                Fate::PutOff => {
                    let later = self.clock_score(step, &keys.expires, &id, PUT_OFF_MS)?;
                    if (later.fract() == 0.0) != (deadline.fract() == 0.0) {
                        wrong!("{} was put off from {deadline} to {later}: a lease stays one", id.escape_ascii());
                    }
                }
                Fate::Pending(queue, attempts) => {
                    let micros = (deadline * 1000.0) as i64;
                    let after = Attempts { micros, error: Some(b"lease ran out".to_vec()), ..attempts };
                    self.hash_mut(&keys.payloads).insert(attempts_field(&id), after.bytes());
                    self.push(keys, &queue, &pending_of(&queue), true, &id);
                    self.count(&queue, "expired", 1);
                }
                Fate::Dead(queue, attempts) => {
                    self.count(&queue, "expired", 1);
                    self.count(&queue, "died", 1);
                    let payload = self.field(&keys.payloads, &id).cloned().unwrap_or_default();
                    let error = attempts.error.filter(|error| !error.is_empty()).unwrap_or(b"lease ran out".to_vec());
                    self.bury(step, keys, &id, payload, Some(queue), ("lease", &error, attempts.count))?;
                    self.forget_fields(&keys.payloads, &id);
                }
            }
        }
        for (id, queue) in ready {
            self.zset_mut(&keys.delays).remove(&id);
            self.push(keys, &queue, &pending_of(&queue), false, &id);
        }
        self.zset_mut(&keys.delays).retain(|id, _| !stale.contains(id));
        for id in put_off {
            self.clock_score(step, &keys.delays, &id, PUT_OFF_MS)?;
        }
        Ok(left)
    }

    fn reserve(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let keys = Keys::of(words[0]);
        let from = words.iter().position(|word| word.eq_ignore_ascii_case(b"FROM")).expect("the generator's FROM");
        let (lease_ms, options) = (words[1], &words[2..from]);
        let mut queues: Vec<&Bytes> = Vec::new();
        for queue in &words[from + 1..] {
            if !queues.contains(queue) {
                queues.push(queue);
            }
        }
        let count = options.chunks(2).find(|option| option[0].eq_ignore_ascii_case(b"COUNT")).map(|option| option[1]);
        let mut checks = self.checks();
        checks.integer(lease_ms, 1);
        if let Some(count) = count {
            checks.integer(count, 1);
        }
        checks.key(&keys.payloads, Kind::Hash);
        checks.key(&keys.expires, Kind::Zset);
        checks.key(&keys.delays, Kind::Zset);
        checks.key(&keys.queues, Kind::Hash);
        for queue in &queues {
            let queue = keys.queue(queue);
            checks.holds(keys.short(&queue).is_some());
            checks.key(&pending_of(&queue), Kind::List);
            checks.key(&processing_of(&queue), Kind::List);
        }
        checks.passed()?;
        let count = count.map_or(1, |count| self.batch(count));
        let before: BTreeMap<Bytes, Vec<Bytes>> = self
            .state
            .iter()
            .filter_map(|(key, value)| match value {
                Value::List(items) => Some((key.clone(), items.clone())),
                _ => None,
            })
            .collect();
        let left = self.keep_time(step, &keys)?;
        self.asked.extend(queues.iter().map(|queue| (keys.queue(queue), (step.began, step.ended))));
        let replied = match step.reply {
            Reply::Array(replied) => replied.clone(),
            _ => Vec::new(),
        };
        let mut taken: Vec<(Bytes, Bytes, Attempts)> = Vec::new();
        let mut expected = Vec::new();
        for short in queues.into_iter().filter(|_| self.state.contains_key(&keys.payloads)).collect::<Vec<_>>() {
            let queue = keys.queue(short);
            let (pending, processing) = (pending_of(&queue), processing_of(&queue));
            let mut searches = 0;
            while taken.len() < count && !self.policy_of(&keys, short).paused {
                let Some(id) = self.list(&pending).last().cloned() else { break };
                let has_lease = self.score(&keys.expires, &id).is_some_and(|at| at.fract() != 0.0);
                searches += usize::from(has_lease && !taken.iter().any(|other| other.0 == id));
                if searches > SEARCHES {
                    break;
                }
                self.list_mut(&pending).pop();
                let payload = self.field(&keys.payloads, &id).cloned();
                let deadline = self.score(&keys.expires, &id);
                let own = self.field(&keys.payloads, &queue_field(&id)).filter(|own| keys.short(own).is_some());
                let own = own.map(|own| processing_of(own)).unwrap_or_default();
                let is_leased = has_lease && self.list(&own).contains(&id);
                let is_copy = is_leased || taken.iter().any(|other| other.0 == id);
                let is_message = self.is_live(&keys, &id);
                let Some(payload) = payload.filter(|_| is_message && !is_copy) else {
                    if self.field(&keys.payloads, &id).is_none() {
                        self.forget_fields(&keys.payloads, &id);
                    }
                    continue;
                };
                // A whole deadline on a pending message is a producing script's: it was produced anew.
                let is_anew = deadline.is_some_and(|at| at.fract() == 0.0);
                let attempts = Attempts::read(self.field(&keys.payloads, &attempts_field(&id)));
                // Its receipts are later than the stored time all the same.
                let attempts = match is_anew {
                    true => Attempts { micros: attempts.micros, ..Attempts::default() },
                    false => attempts,
                };
                self.push(&keys, &queue, &processing, false, &id);
                self.hash_mut(&keys.payloads).insert(queue_field(&id), queue.clone());
                let receipt = match replied.get(expected.len()) {
                    Some(Reply::Array(row)) if row.len() == 5 => row[2].clone(),
                    other => wrong!("{} should be replied, not {other:?}", id.escape_ascii()),
                };
                let row = [Reply::Bulk(id.clone()), Reply::Bulk(payload), receipt, Reply::Int(attempts.count + 1)];
                expected.push(Reply::Array([&row[..], &[Reply::Bulk(short.clone())]].concat()));
                taken.push((id, processing.clone(), attempts));
                self.count(&queue, "delivered", 1);
            }
        }
        self.check_receipts(step, &keys, number(lease_ms), &taken, &expected)?;
        // Which of two equal ids left a list is the server's choice.
        for (list, gone) in left {
            let new = taken.iter().filter(|(_, processing, _)| *processing == list).count();
            let after = observed_list(step, &list);
            let gone = expected_counts(&before[&list], &gone.iter().collect::<Vec<_>>());
            if after.len() >= new && is_rest_of(&before[&list], &after[new..], &gone) {
                let rest = &after[new..];
                self.list_mut(&list).truncate(new);
                self.list_mut(&list).extend_from_slice(rest);
            }
        }
        match expected.is_empty() {
            true => expect(step, &Reply::NilBulk),
            false => expect(step, &Reply::Array(expected)),
        }
    }

    /// One time for all that one call takes, later than any before; the receipts tell it, and one deadline.
    fn check_receipts(
        &mut self,
        step: &Step,
        keys: &Keys,
        lease_ms: f64,
        taken: &[(Bytes, Bytes, Attempts)],
        rows: &[Reply],
    ) -> Result<(), Outcome> {
        let mut times = Vec::new();
        for ((id, _, before), row) in taken.iter().zip(rows) {
            let Reply::Array(row) = row else { wrong!("{row:?} is no row") };
            let receipt = bulk(&row[2]).map(<[u8]>::to_vec).unwrap_or_default();
            let read = Attempts::read(Some(&receipt));
            if !is_receipt(&receipt) || read.count != before.count + 1 || read.micros <= before.micros {
                wrong!("{} is no receipt of {} after {}", receipt.escape_ascii(), id.escape_ascii(), before.count);
            }
            let after = Attempts { error: before.error.clone(), ..read };
            self.hash_mut(&keys.payloads).insert(attempts_field(id), after.bytes());
            let deadline = self.clock_score(step, &keys.expires, id, lease_ms)?;
            times.push((after.micros, deadline));
        }
        if let Some(first) = times.first() {
            let is_new = first.0 > self.latest_micros && first.0 as f64 >= step.began * 1000.0;
            // A stored time in the future moves the receipts of its own message only.
            let moved = taken.iter().any(|(_, _, before)| before.micros + 1 == first.0);
            if !(is_new || moved) || first.1.fract() == 0.0 || times.iter().any(|other| other != first) {
                wrong!("receipts and deadlines {times:?} after {}", self.latest_micros);
            }
            if !moved {
                self.latest_micros = first.0;
            }
        }
        Ok(())
    }

    /// Those whose receipt is current, with the queue where it is one of the namespace.
    fn current(&self, keys: &Keys, pairs: &[&Bytes]) -> Vec<(usize, Bytes, Option<Bytes>)> {
        let mut current: Vec<(usize, Bytes, Option<Bytes>)> = Vec::new();
        for (number, pair) in pairs.chunks(2).enumerate() {
            let field = self.field(&keys.payloads, &attempts_field(pair[0]));
            let holds = field.is_some_and(|field| field.split(|byte| *byte == b' ').next() == Some(pair[1].as_slice()));
            let is_lease = self.score(&keys.expires, pair[0]).is_some_and(|deadline| deadline.fract() != 0.0);
            if holds && is_lease && !current.iter().any(|(_, id, _)| id == pair[0]) {
                let queue = self.field(&keys.payloads, &queue_field(pair[0])).cloned();
                current.push((number, pair[0].clone(), queue.filter(|queue| keys.short(queue).is_some())));
            }
        }
        current
    }

    /// The processing lists of the deliveries must be lists.
    fn check_processing(&self, held: &[(usize, Bytes, Option<Bytes>)]) -> Result<(), Outcome> {
        let mut checks = self.checks();
        for queue in held.iter().filter_map(|(_, _, queue)| queue.as_ref()) {
            checks.key(&processing_of(queue), Kind::List);
        }
        checks.passed()
    }

    fn take_out(&mut self, step: &Step, keys: &Keys, held: &[(usize, Bytes, Option<Bytes>)]) -> Result<(), Outcome> {
        let mut lists: BTreeMap<Bytes, Vec<&Bytes>> = BTreeMap::new();
        for (_, id, queue) in held {
            self.zset_mut(&keys.expires).remove(id);
            if let Some(queue) = queue {
                lists.entry(processing_of(queue)).or_default().push(id);
            }
        }
        lists.iter().try_for_each(|(list, ids)| self.leave_list(step, list, ids))
    }

    fn ack(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let (keys, pairs) = (Keys::of(words[0]), &words[1..]);
        let mut checks = self.checks();
        checks.receipts(pairs);
        checks.key(&keys.payloads, Kind::Hash);
        checks.key(&keys.expires, Kind::Zset);
        checks.passed()?;
        let held = self.current(&keys, pairs);
        self.check_processing(&held)?;
        self.take_out(step, &keys, &held)?;
        held.iter().for_each(|(_, id, _)| self.forget_fields(&keys.payloads, id));
        held.iter().flat_map(|(_, _, queue)| queue).for_each(|queue| self.count(queue, "acked", 1));
        expect(step, &Reply::Int(held.len() as i64))
    }

    fn nack(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let (keys, pair, options) = (Keys::of(words[0]), &words[1..3], &words[3..]);
        let option = |name: &str| {
            let place = options.iter().position(|word| word.eq_ignore_ascii_case(name.as_bytes()))?;
            Some(options.get(place + 1).copied())
        };
        let [delay, dead, error, payload] = ["DELAY", "DEAD", "ERROR", "PAYLOAD"].map(option);
        let mut checks = self.checks();
        checks.receipts(pair);
        checks.key(&keys.payloads, Kind::Hash);
        checks.key(&keys.expires, Kind::Zset);
        checks.key(&keys.delays, Kind::Zset);
        checks.key(&keys.queues, Kind::Hash);
        checks.key(&keys.dlq_map, Kind::Hash);
        checks.key(&keys.dlq, Kind::List);
        checks.passed()?;
        let held = self.current(&keys, pair);
        self.check_processing(&held)?;
        let [(_, id, queue)] = &held[..] else {
            return expect(step, &Reply::NilBulk);
        };
        let before = Attempts::read(self.field(&keys.payloads, &attempts_field(id)));
        let short = queue.as_ref().and_then(|queue| keys.short(queue)).unwrap_or_default().to_vec();
        let dies = dead.is_some() || self.is_last(&keys, &keys.queue(&short), before.count);
        if !dies && queue.is_none() {
            return Err(Outcome::Refused(vec!["ERR"]));
        }
        self.take_out(step, &keys, &held)?;
        let error = error.flatten().cloned().or(before.error.clone());
        let payload = payload.flatten().cloned();
        queue.iter().for_each(|queue| self.count(queue, if dies { "died" } else { "retried" }, 1));
        if dies {
            let reason = if dead.is_some() { "rejected" } else { "attempts" };
            let payload = payload.or_else(|| self.field(&keys.payloads, id).cloned()).unwrap_or_default();
            let how = (reason, &error.unwrap_or_default()[..], before.count);
            self.bury(step, &keys, id, payload, queue.clone(), how)?;
            self.forget_fields(&keys.payloads, id);
            return expect(step, &Reply::Simple("DEAD".into()));
        }
        let due = match delay.flatten() {
            Some(ms) => self.clock_score(step, &keys.delays, id, number(ms))?,
            None => {
                let (first, max) = self.policy_of(&keys, &short).backoff.expect("the built-in one at least");
                let delay = (first as f64 * 2f64.powi(before.count.clamp(1, 60) as i32 - 1)).min(max as f64);
                let due = observed_score(step, &keys.delays, id).unwrap_or(f64::NAN);
                if !(step.began + delay..=step.ended + delay * 1.1).contains(&due) {
                    wrong!("{} comes again after {delay}, not at {due}", id.escape_ascii());
                }
                self.zset_mut(&keys.delays).insert(id.clone(), due);
                due
            }
        };
        if let Some(payload) = payload {
            self.hash_mut(&keys.payloads).insert(id.clone(), payload);
        }
        let after = Attempts { micros: due as i64 * 1000, error, ..before };
        self.hash_mut(&keys.payloads).insert(attempts_field(id), after.bytes());
        expect(step, &Reply::Simple("RETRY".into()))
    }

    fn release(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let (keys, pairs) = (Keys::of(words[0]), &words[1..]);
        let mut checks = self.checks();
        checks.receipts(pairs);
        checks.key(&keys.payloads, Kind::Hash);
        checks.key(&keys.expires, Kind::Zset);
        checks.key(&keys.queues, Kind::Hash);
        checks.passed()?;
        let held = self.current(&keys, pairs);
        self.check_processing(&held)?;
        let mut checks = self.checks();
        for (_, _, queue) in &held {
            checks.holds(queue.is_some());
            checks.optional_list(&queue.as_ref().map(|queue| pending_of(queue)).unwrap_or_default());
        }
        checks.passed()?;
        self.take_out(step, &keys, &held)?;
        for (_, id, queue) in held.iter().rev() {
            let queue = queue.as_ref().expect("checked");
            self.push(&keys, queue, &pending_of(queue), true, id);
            let before = Attempts::read(self.field(&keys.payloads, &attempts_field(id)));
            let observed = match step.after.get(&keys.payloads) {
                Some(Value::Hash(fields)) => Attempts::read(fields.get(&attempts_field(id))).micros,
                _ => 0,
            };
            if !(step.began..=step.ended).contains(&(observed as f64 / 1000.0)) {
                wrong!("{} can be taken since {observed}", id.escape_ascii());
            }
            let after = Attempts { count: before.count - 1, micros: observed, ..before };
            self.hash_mut(&keys.payloads).insert(attempts_field(id), after.bytes());
        }
        expect(step, &Reply::Int(held.len() as i64))
    }

    fn extend(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let (keys, lease_ms, pairs) = (Keys::of(words[0]), words[1], &words[2..]);
        let mut checks = self.checks();
        checks.integer(lease_ms, 1);
        checks.receipts(pairs);
        checks.key(&keys.payloads, Kind::Hash);
        checks.key(&keys.expires, Kind::Zset);
        checks.passed()?;
        let mut replied = vec![Reply::Int(0); pairs.len() / 2];
        for (number_of_pair, id, _) in self.current(&keys, pairs) {
            let deadline = self.clock_score(step, &keys.expires, &id, number(lease_ms))?;
            if deadline.fract() == 0.0 {
                wrong!("a lease until {deadline}");
            }
            replied[number_of_pair] = Reply::Int(1);
        }
        expect(step, &Reply::Array(replied))
    }

    fn policy(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let keys = Keys::of(words[0]);
        let mut checks = self.checks();
        checks.key(&keys.queues, Kind::Hash);
        checks.passed()?;
        let number_row = |name: &str, value: i64| [Reply::bulk(name), Reply::Int(value)];
        let [queue, options @ ..] = &words[1..] else {
            let mut rows = Vec::new();
            if let Some(Value::Hash(queues)) = self.state.get(&keys.queues) {
                for (queue, field) in queues {
                    let stored = Policy::read(Some(field));
                    let mut values = Vec::new();
                    values.extend(stored.attempts.map(|value| number_row("attempts", value)));
                    values.extend(stored.backoff.map(|(first, _)| number_row("backoff_first_ms", first)));
                    values.extend(stored.backoff.map(|(_, max)| number_row("backoff_max_ms", max)));
                    values.extend(stored.paused.then(|| number_row("paused", 1)));
                    rows.extend([Reply::Bulk(queue.clone()), Reply::Array(values.concat())]);
                }
            }
            return expect(step, &Reply::Array(rows));
        };
        let mut stored = Policy::read(self.field(&keys.queues, queue));
        let value = |name: &str, nth: usize| {
            let place = options.iter().position(|word| word.eq_ignore_ascii_case(name.as_bytes()))?;
            options.get(place + nth).map(|value| value.to_vec())
        };
        stored.attempts = value("ATTEMPTS", 1).map(|n| number(&n) as i64).or(stored.attempts);
        let backoff = value("BACKOFF", 1).zip(value("BACKOFF", 2));
        stored.backoff = backoff.map(|(a, b)| (number(&a) as i64, number(&b) as i64)).or(stored.backoff);
        stored.paused = value("PAUSED", 1).map_or(stored.paused, |word| word == b"yes");
        let is_reset = value("RESET", 0).is_some();
        let full = keys.queue(queue);
        let has_list = !self.list(&pending_of(&full)).is_empty() || !self.list(&processing_of(&full)).is_empty();
        if is_reset && (*queue == b"*" || !has_list) {
            self.hash_mut(&keys.queues).remove(*queue);
        } else if !options.is_empty() {
            let stored = if is_reset { Policy::default() } else { stored };
            self.hash_mut(&keys.queues).insert((*queue).clone(), stored.bytes());
        }
        let policy = self.policy_of(&keys, queue);
        let (first, max) = policy.backoff.expect("the built-in one at least");
        let replied = [
            number_row("attempts", policy.attempts.unwrap_or(0)),
            number_row("backoff_first_ms", first),
            number_row("backoff_max_ms", max),
            number_row("paused", i64::from(policy.paused)),
        ];
        expect(step, &Reply::Array(replied.concat()))
    }

    fn redrive(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let (keys, how) = (Keys::of(words[0]), &words[1..]);
        let ids = how[0].eq_ignore_ascii_case(b"IDS").then(|| &how[1..]);
        let only = how.get(3).map(|queue| keys.queue(queue)).filter(|_| ids.is_none());
        let mut checks = self.checks();
        if ids.is_none() {
            checks.integer(how[1], 1);
        }
        checks.key(&keys.dlq, Kind::List);
        checks.key(&keys.dlq_map, Kind::Hash);
        checks.key(&keys.payloads, Kind::Hash);
        checks.key(&keys.queues, Kind::Hash);
        checks.passed()?;
        if !self.state.contains_key(&keys.dlq_map) {
            return expect(step, &Reply::Array(Vec::new()));
        }
        let mut replied = Vec::new();
        let candidates: Vec<Bytes> = match ids {
            Some(ids) => ids.iter().map(|id| (*id).clone()).collect(),
            None => self.list(&keys.dlq).iter().rev().cloned().collect(),
        };
        let limit = if ids.is_none() { self.batch(how[1]) } else { usize::MAX };
        let mut kept: Vec<Bytes> = Vec::new();
        let mut done: Vec<Bytes> = Vec::new();
        for id in candidates {
            if replied.len() == limit {
                break;
            }
            let Some(payload) = self.field(&keys.dlq_map, &id).cloned() else {
                // A stale id, or the second one of a letter that has just moved.
                if ids.is_none() {
                    self.drop_last(&keys.dlq, &id, kept.iter().filter(|other| **other == id).count());
                }
                continue;
            };
            let queue = self.field(&keys.dlq_map, &queue_field(&id)).cloned();
            let queue = queue.filter(|queue| only.as_ref().is_none_or(|only| only == queue));
            let queue = queue.filter(|queue| keys.short(queue).is_some() && self.fits(&pending_of(queue), Kind::List));
            let Some(queue) = queue.filter(|_| self.field(&keys.payloads, &id).is_none() && !done.contains(&id)) else {
                kept.push(id);
                continue;
            };
            self.drop_last(&keys.dlq, &id, 0);
            let letters = self.hash_mut(&keys.dlq_map);
            [id.clone(), queue_field(&id), [&id[..], b":death"].concat()].iter().for_each(|f| drop(letters.remove(f)));
            let messages = self.hash_mut(&keys.payloads);
            messages.insert(id.clone(), payload);
            messages.insert(queue_field(&id), queue.clone());
            messages.remove(&attempts_field(&id));
            self.push(&keys, &queue, &pending_of(&queue), false, &id);
            replied.push(row(&[&id, &keys.short(&queue).unwrap_or_default().to_vec()]));
            done.push(id);
        }
        expect(step, &Reply::Array(replied))
    }

    /// Removes the occurrence of an id that is nearest to the right end, but for so many.
    fn drop_last(&mut self, list: &[u8], id: &Bytes, but: usize) {
        let places: Vec<usize> = (0..self.list(list).len()).rev().filter(|n| self.list(list)[*n] == *id).collect();
        if let Some(place) = places.get(but) {
            self.list_mut(list).remove(*place);
        }
    }

    fn dead_letter(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [dlq_map, dlq, expires, map, processing, id, payload, ..] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let mut checks = self.checks();
        checks.writable(id);
        checks.distinct(&[dlq_map, dlq, expires, map, processing]);
        checks.key(dlq_map, Kind::Hash);
        checks.key(dlq, Kind::List);
        checks.key(expires, Kind::Zset);
        checks.key(map, Kind::Hash);
        checks.optional_list(processing);
        checks.passed()?;
        let (queue, own) = self.look_up(map, processing, id)?;
        self.bury_with(dlq_map, dlq, id, (*payload).clone(), queue, None);
        self.forget(step, map, processing, expires, &[id])?;
        self.leave_list(step, &own, &[id])?;
        expect(step, &ok())
    }

    fn next_delay(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let delays = words[0];
        let mut checks = self.checks();
        checks.key(delays, Kind::Zset);
        checks.passed()?;
        let Some(id) = self.up_to(delays, f64::INFINITY).into_iter().next() else {
            return expect(step, &Reply::Array(vec![Reply::bulk("NO_TASK")]));
        };
        let due = self.score(delays, &id).expect("it was listed");
        if due <= step.now {
            let replied = vec![Reply::bulk("EXPIRED"), Reply::Int(due as i64), Reply::Bulk(id)];
            return expect(step, &Reply::Array(replied));
        }
        match step.reply {
            Reply::Array(replied) if replied.len() == 4 => {
                let waits = due - step.ended - 1.0..=due - step.began + 1.0;
                let rest = [Reply::Int(due as i64), Reply::Bulk(id)];
                match replied[1] {
                    Reply::Int(wait) if waits.contains(&(wait as f64)) && replied[2..] == rest => Ok(()),
                    _ => wrong!("{replied:?} is not due at {due}"),
                }
            }
            other => wrong!("{other:?} is not due at {due}"),
        }
    }

    /// Plain commands that users mix in. Their replies are not checked.
    fn plain(&mut self, words: &[&Bytes], name: &[u8]) -> Result<(), Outcome> {
        let kind = match name {
            b"LPUSH" | b"RPUSH" | b"RPOP" | b"LMOVE" => Some(Kind::List),
            b"HSET" | b"HDEL" => Some(Kind::Hash),
            b"ZADD" | b"ZREM" => Some(Kind::Zset),
            _ => None,
        };
        let mut checks = self.checks();
        if let Some(kind) = kind {
            checks.key(words[0], kind);
        }
        // A missing source is no error, whatever the destination is.
        if name == b"LMOVE" && !checks.model.list(words[0]).is_empty() {
            checks.key(words[1], Kind::List);
        }
        checks.passed()?;
        match (name, words) {
            (b"LPUSH", [key, ids @ ..]) => ids.iter().for_each(|id| self.list_mut(key).insert(0, (*id).clone())),
            (b"RPUSH", [key, ids @ ..]) => ids.iter().for_each(|id| self.list_mut(key).push((*id).clone())),
            (b"RPOP", [key]) => drop(self.list_mut(key).pop()),
            (b"LMOVE", [from, to, ..]) => {
                if let Some(id) = self.list_mut(from).pop() {
                    self.list_mut(to).insert(0, id);
                }
            }
            (b"HSET", [key, pairs @ ..]) => {
                for pair in pairs.chunks(2) {
                    self.hash_mut(key).insert(pair[0].clone(), pair[1].clone());
                }
            }
            (b"HDEL", [key, field]) => drop(self.hash_mut(key).remove(*field)),
            (b"ZADD", [key, xx, score, id]) if *xx == b"XX" => {
                if let Some(member) = self.zset_mut(key).get_mut(*id) {
                    *member = number(score);
                }
            }
            (b"ZADD", [key, score, id]) => drop(self.zset_mut(key).insert((*id).clone(), number(score))),
            (b"ZREM", [key, id]) => drop(self.zset_mut(key).remove(*id)),
            (b"DEL", keys) => keys.iter().for_each(|key| drop(self.state.remove(*key))),
            (b"SET", [key, _]) => drop(self.state.insert((*key).clone(), Value::Text)),
            (b"CONFIG", [_, _, value]) => self.max_batch = number(value) as usize,
            (b"FLUSHALL", []) => self.state.clear(),
            _ => panic!("the model does not know {} {words:?}", name.escape_ascii()),
        }
        Ok(())
    }

    // ---- invariants of orderly use

    /// Each live message in exactly one place, no stale entry.
    pub fn broken_invariant(&self, keys: &Names) -> Option<String> {
        let field_owner = |field: &Bytes| {
            let owner = field.strip_suffix(b":queue").or_else(|| field.strip_suffix(b":attempts"));
            owner.map(<[u8]>::to_vec)
        };
        let mut places: BTreeMap<&Bytes, usize> = BTreeMap::new();
        for list in keys.working_lists {
            for id in self.list(list.as_bytes()) {
                *places.entry(id).or_default() += 1;
            }
        }
        if let Some(Value::Zset(delays)) = self.state.get(keys.delays.as_bytes()) {
            for id in delays.keys() {
                *places.entry(id).or_default() += 1;
            }
        }
        let map = keys.map.as_bytes();
        if let Some(Value::Hash(fields)) = self.state.get(map) {
            for field in fields.keys() {
                if let Some(owner) = field_owner(field) {
                    if !fields.contains_key(&owner) {
                        return Some(format!("{} belongs to nothing", field.escape_ascii()));
                    }
                    continue;
                }
                if !fields.contains_key(&queue_field(field)) {
                    return Some(format!("{} has no queue", field.escape_ascii()));
                }
                let expected = usize::from(!self.held.contains(field));
                let count = places.get(field).copied().unwrap_or(0);
                if count != expected {
                    return Some(format!("{} is in {count} places, not {expected}", field.escape_ascii()));
                }
            }
        }
        if let Some(id) = places.keys().find(|id| self.field(map, id).is_none()) {
            return Some(format!("{} waits without a message", id.escape_ascii()));
        }
        if let Some(Value::Zset(expires)) = self.state.get(keys.expires.as_bytes()) {
            if let Some(id) = expires.keys().find(|id| self.field(map, id).is_none()) {
                return Some(format!("{} has a deadline but no message", id.escape_ascii()));
            }
        }
        for (list, records) in keys.archives {
            let ids = self.list(list.as_bytes());
            for (index, id) in ids.iter().enumerate() {
                if ids[..index].contains(id) || self.field(records.as_bytes(), id).is_none() {
                    return Some(format!("{} in {list}: twice, or without its record", id.escape_ascii()));
                }
            }
        }
        None
    }
}

/// The keys that the invariants speak of.
pub struct Names {
    pub map: &'static str,
    pub delays: &'static str,
    pub expires: &'static str,
    pub working_lists: &'static [&'static str],
    /// Lists of ids with the hash that must know each.
    pub archives: &'static [(&'static str, &'static str)],
}

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn row(fields: &[&Bytes]) -> Reply {
    Reply::Array(fields.iter().map(|field| Reply::Bulk((*field).clone())).collect())
}

fn expect(step: &Step, expected: &Reply) -> Result<(), Outcome> {
    if step.reply == expected {
        return Ok(());
    }
    wrong!("the reply should be {}\n                  not {}", show_reply(expected), show_reply(step.reply));
}

/// How often each id leaves a list.
fn expected_counts<'a>(list: &[Bytes], ids: &[&'a Bytes]) -> BTreeMap<&'a Bytes, usize> {
    let mut counts = BTreeMap::new();
    for id in ids {
        *counts.entry(*id).or_insert(0) += 1;
    }
    for (id, count) in &mut counts {
        *count = (*count).min(list.iter().filter(|other| other == id).count());
    }
    counts
}

/// How often each id of `before` is missing from `after`.
fn missing_from<'a>(after: &[Bytes], before: &'a [Bytes]) -> BTreeMap<&'a Bytes, usize> {
    let count = |list: &[Bytes], id: &Bytes| list.iter().filter(|other| *other == id).count();
    before.iter().map(|id| (id, count(before, id).saturating_sub(count(after, id)))).collect()
}

/// Whether `after` is `before` without as many of each id as `gone` says, in the same order.
fn is_rest_of(before: &[Bytes], after: &[Bytes], gone: &BTreeMap<&Bytes, usize>) -> bool {
    let mut counts: BTreeMap<&Bytes, usize> = BTreeMap::new();
    let mut rest = after.iter().peekable();
    for id in before {
        match rest.peek() {
            Some(next) if *next == id => drop(rest.next()),
            _ => *counts.entry(id).or_default() += 1,
        }
    }
    let gone = gone.iter().filter(|(_, count)| **count > 0);
    rest.next().is_none() && counts.iter().eq(gone)
}

fn check_record(
    record: &[u8],
    id: &[u8],
    payload: &[u8],
    topic: &[u8],
    message: &[u8],
    timestamp: &[u8],
) -> Result<(), Outcome> {
    let parsed: serde_json::Value = match serde_json::from_slice(record) {
        Ok(parsed) => parsed,
        Err(e) => wrong!("the record is no JSON ({e}): {}", record.escape_ascii()),
    };
    let mut expected = vec![
        ("error_type", b"parse_error".as_slice()),
        ("message_id", id),
        ("topic", topic),
        ("error_message", message),
        ("timestamp", timestamp),
    ];
    const LIMIT: usize = 4096;
    if std::str::from_utf8(payload).is_ok() && payload.len() <= LIMIT {
        expected.push(("original_payload", payload));
    }
    for (name, bytes) in expected {
        if std::str::from_utf8(bytes).is_ok_and(|text| parsed[name] != text) {
            wrong!("{name} of the record is {}, not {}", parsed[name], bytes.escape_ascii());
        }
    }
    if parsed["original_payload_bytes"] != payload.len() {
        wrong!("{} bytes, but the record says {}", payload.len(), parsed["original_payload_bytes"]);
    }
    Ok(())
}

fn show_reply(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Reply::Array(items) => format!("[{}]", items.iter().map(show_reply).collect::<Vec<_>>().join(" ")),
        other => format!("{other:?}"),
    }
}

pub fn show(value: &Value) -> String {
    const SHOWN: usize = 60;
    let parts: Vec<String> = match value {
        Value::Text => vec!["(text)".into()],
        Value::List(items) => items.iter().map(|item| item.escape_ascii().to_string()).collect(),
        Value::Hash(fields) => {
            fields.iter().map(|(field, value)| format!("{}={}", field.escape_ascii(), value.escape_ascii())).collect()
        }
        Value::Zset(members) => {
            members.iter().map(|(member, score)| format!("{}@{score}", member.escape_ascii())).collect()
        }
    };
    let cut = parts.len().saturating_sub(SHOWN);
    let more = if cut > 0 { format!(" … and {cut} more") } else { String::new() };
    format!("[{}{more}]", parts[..parts.len().min(SHOWN)].join(" "))
}
