//! The reference: every command over plain collections, as SPEC says it, with no thought for speed. What a call may
//! choose for itself (a time within the call, a fresh id, which of two equal ids leaves a list) is checked against what
//! is allowed, and then taken over from what was observed.

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
}

#[derive(Clone, Default)]
pub struct Model {
    pub state: State,
    /// Messages that TIMEOUTS took out of processing and told: they are in the caller's hands alone.
    pub held: Vec<Bytes>,
    pub max_batch: usize,
}

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

pub fn queue_field(id: &[u8]) -> Bytes {
    [id, b":queue"].concat()
}

pub fn attempts_field(id: &[u8]) -> Bytes {
    [id, b":attempts"].concat()
}

fn pending_of(queue: &[u8]) -> Bytes {
    [queue, b":pending"].concat()
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
        let mut due: Vec<(f64, &Bytes)> = members
            .iter()
            .filter(|(_, score)| **score <= max)
            .map(|(member, score)| (*score, member))
            .collect();
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
        self.holds(!id.ends_with(b":queue") && !id.ends_with(b":attempts"));
    }

    fn integer(&mut self, bytes: &[u8], least: i64) {
        let value: Option<i64> = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
        self.holds(value.is_some_and(|value| value >= least));
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
        Checks {
            model: self,
            codes: Vec::new(),
        }
    }

    /// Goes along with the step, or says what was wrong with it.
    pub fn follow(&mut self, step: &Step) -> Result<(), String> {
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
        for key in self
            .state
            .keys()
            .chain(after.keys().filter(|key| !self.state.contains_key(*key)))
        {
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
            b"RMQ.SCHEDULE" => self.schedule(step, &words),
            b"RMQ.RESERVE" => self.reserve(step, &words),
            b"RMQ.ACK" => self.ack(step, &words),
            b"RMQ.NACK" => self.nack(step, &words),
            b"RMQ.EXTEND" => self.extend(step, &words),
            b"RMQ.DEADLETTER" => self.dead_letter(step, &words),
            b"RMQ.REDRIVE" => self.redrive(step, &words),
            b"RMQ.NEXTDELAY" => self.next_delay(step, &words),
            _ => self.plain(&words, &step.words[0]),
        }
    }

    // ---- steps that several commands share

    /// One occurrence of each id leaves the list, whichever. Nothing else happens to the list in this call.
    fn leave_list(&mut self, step: &Step, key: &[u8], ids: &[&Bytes]) -> Result<(), Outcome> {
        if key.is_empty() {
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

    fn exists(&self, map: &[u8], processing: &[u8], id: &Bytes) -> bool {
        self.field(map, id).is_some() || self.list(processing).contains(id)
    }

    /// RETRY and NACK.
    fn postpone(
        &mut self,
        step: &Step,
        [map, delays, expires, processing]: [&Bytes; 4],
        id: &Bytes,
        payload: Option<&Bytes>,
        delay_ms: f64,
    ) -> Result<(), Outcome> {
        if let Some(payload) = payload {
            self.hash_mut(map).insert(id.clone(), payload.clone());
        }
        if self.field(map, &queue_field(id)).is_none() {
            if let Some(queue) = processing.strip_suffix(b":processing") {
                self.hash_mut(map).insert(queue_field(id), queue.to_vec());
            }
        }
        self.clock_score(step, delays, id, delay_ms)?;
        self.zset_mut(expires).remove(id);
        self.leave_list(step, processing, &[id])?;
        self.held.retain(|held| held != id);
        Ok(())
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
        if !self.exists(map, processing, id) {
            return Err(Outcome::Refused(vec!["NOMSG"]));
        }
        let keys = [*map, *delays, *expires, *processing];
        self.postpone(step, keys, id, Some(payload), number(delay) * 1000.0)?;
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
        let (mut left, mut told) = (0, Vec::new());
        for id in self.up_to(delays, step.ended) {
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
            told.push(row(&[&id, &queue]));
            left += 1;
        }
        expect(step, &Reply::Array(told))
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
        let (mut left, mut told) = (0, Vec::new());
        let mut taken: BTreeMap<Bytes, Vec<Bytes>> = BTreeMap::new();
        let mut claimed = Vec::new();
        for id in self.up_to(expires, target) {
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
                told.push(row(&[&id, &payload, &queue]));
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
        expect(step, &Reply::Array(told))
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

    fn publish(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [map, pending, messages @ ..] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let urgent = messages.len() % 2 == 1;
        let messages = &messages[usize::from(urgent)..];
        let queue = pending.strip_suffix(b":pending");
        let mut checks = self.checks();
        for message in messages.chunks(2) {
            checks.writable(message[0]);
        }
        checks.holds(queue.is_some());
        checks.distinct(&[map, pending]);
        checks.key(map, Kind::Hash);
        checks.key(pending, Kind::List);
        checks.passed()?;
        let queue = queue.expect("checked").to_vec();
        let told: Vec<Reply> = match step.reply {
            Reply::Array(told) if messages.len() > 2 => told.clone(),
            one => vec![one.clone()],
        };
        if told.len() != messages.len() / 2 {
            wrong!("{} messages, but {} replies", messages.len() / 2, told.len());
        }
        for (message, told) in messages.chunks(2).zip(&told) {
            if let Some(id) = self.store_new(map, message[0], message[1], &queue, told)? {
                let pending = self.list_mut(pending);
                pending.insert(if urgent { pending.len() } else { 0 }, id);
            }
        }
        Ok(())
    }

    /// The id under which a message was stored; None if it was there already.
    fn store_new(
        &mut self,
        map: &[u8],
        id: &Bytes,
        payload: &Bytes,
        queue: &[u8],
        told: &Reply,
    ) -> Result<Option<Bytes>, Outcome> {
        let id = match bulk(told) {
            Some(made) if id == b"*" => made.to_vec(),
            _ => id.clone(),
        };
        let exists = self.field(map, &id).is_some();
        let expected = if exists {
            Reply::NilBulk
        } else {
            Reply::Bulk(id.clone())
        };
        if *told != expected {
            wrong!("{told:?} was told, not {expected:?}");
        }
        if exists {
            return Ok(None);
        }
        let map = self.hash_mut(map);
        map.insert(id.clone(), payload.clone());
        map.insert(queue_field(&id), queue.to_vec());
        map.remove(&attempts_field(&id));
        Ok(Some(id))
    }

    fn schedule(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [map, delays, id, payload, queue, delay, at @ ..] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let mut checks = self.checks();
        checks.writable(id);
        checks.integer(delay, 0);
        checks.distinct(&[map, delays]);
        checks.key(map, Kind::Hash);
        checks.key(delays, Kind::Zset);
        checks.passed()?;
        let Some(id) = self.store_new(map, id, payload, queue, step.reply)? else {
            return Ok(());
        };
        if at.is_empty() {
            self.clock_score(step, delays, &id, number(delay))?;
        } else {
            self.zset_mut(delays).insert(id, number(delay));
        }
        Ok(())
    }

    fn reserve(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [pending, processing, map, expires, lease_ms, options @ ..] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let count = options
            .chunks(2)
            .find(|option| option[0].eq_ignore_ascii_case(b"COUNT"))
            .map(|option| option[1]);
        let mut checks = self.checks();
        checks.integer(lease_ms, 1);
        if let Some(count) = count {
            checks.integer(count, 1);
        }
        checks.distinct(&[pending, processing, map, expires]);
        checks.key(pending, Kind::List);
        checks.key(processing, Kind::List);
        checks.key(map, Kind::Hash);
        checks.key(expires, Kind::Zset);
        checks.passed()?;
        let count = count.map_or(1, |count| self.batch(count));
        let told = match step.reply {
            Reply::Array(told) => told.clone(),
            _ => Vec::new(),
        };
        let (mut expected, mut dropped) = (Vec::new(), 0);
        while expected.len() < count && dropped < self.max_batch {
            let Some(id) = self.list_mut(pending).pop() else { break };
            let Some(payload) = self.field(map, &id).cloned() else {
                self.forget_fields(map, &id);
                dropped += 1;
                continue;
            };
            // A whole deadline on a pending message is a producing script's: what another script left is not counted.
            let by_script = self.score(expires, &id).is_some_and(|deadline| deadline.fract() == 0.0);
            let before = self.field(map, &attempts_field(&id)).filter(|_| !by_script);
            let before = before.and_then(|count| String::from_utf8_lossy(count).parse::<i64>().ok());
            let attempts = before.filter(|count| *count > 0).unwrap_or(0) + 1;
            self.hash_mut(map)
                .insert(attempts_field(&id), attempts.to_string().into_bytes());
            if let Some(queue) = processing.strip_suffix(b":processing") {
                self.hash_mut(map).entry(queue_field(&id)).or_insert(queue.to_vec());
            }
            self.list_mut(processing).insert(0, id.clone());
            // The lease is the score, to the last digit.
            let lease = match told.get(expected.len()) {
                Some(Reply::Array(row)) if row.len() == 4 => row[2].clone(),
                other => wrong!("{} should be told, not {other:?}", id.escape_ascii()),
            };
            let score = self.clock_score(step, expires, &id, number(lease_ms));
            let score = score?;
            if bulk(&lease).map(number) != Some(score) {
                wrong!("the lease {lease:?} is not the score {score}");
            }
            expected.push(Reply::Array(vec![
                Reply::Bulk(id),
                Reply::Bulk(payload),
                lease,
                Reply::Int(attempts),
            ]));
        }
        match expected.is_empty() {
            true => expect(step, &Reply::NilBulk),
            false => expect(step, &Reply::Array(expected)),
        }
    }

    fn ack(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [map, processing, expires, deliveries @ ..] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let mut checks = self.checks();
        for delivery in deliveries.chunks(2) {
            checks.decimal(delivery[1]);
        }
        checks.distinct(&[map, processing, expires]);
        checks.key(map, Kind::Hash);
        checks.optional_list(processing);
        checks.key(expires, Kind::Zset);
        checks.passed()?;
        let mut acked: Vec<&Bytes> = Vec::new();
        for delivery in deliveries.chunks(2) {
            if self.score(expires, delivery[0]) == Some(number(delivery[1])) && !acked.contains(&delivery[0]) {
                acked.push(delivery[0]);
            }
        }
        self.forget(step, map, processing, expires, &acked)?;
        expect(step, &Reply::Int(acked.len() as i64))
    }

    fn nack(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [map, delays, expires, processing, id, lease, delay, options @ ..] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let mut checks = self.checks();
        checks.writable(id);
        checks.decimal(lease);
        checks.integer(delay, 0);
        checks.distinct(&[map, delays, expires, processing]);
        checks.key(map, Kind::Hash);
        checks.key(delays, Kind::Zset);
        checks.key(expires, Kind::Zset);
        checks.optional_list(processing);
        checks.passed()?;
        if self.score(expires, id) != Some(number(lease)) {
            return expect(step, &Reply::Int(0));
        }
        if !self.exists(map, processing, id) {
            return Err(Outcome::Refused(vec!["NOMSG"]));
        }
        let keys = [*map, *delays, *expires, *processing];
        self.postpone(step, keys, id, options.get(1).copied(), number(delay))?;
        expect(step, &Reply::Int(1))
    }

    fn extend(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [expires, id, lease, lease_ms] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let mut checks = self.checks();
        checks.decimal(lease);
        checks.integer(lease_ms, 1);
        checks.key(expires, Kind::Zset);
        checks.passed()?;
        if self.score(expires, id) != Some(number(lease)) {
            return expect(step, &Reply::NilBulk);
        }
        let score = self.clock_score(step, expires, id, number(lease_ms))?;
        match bulk(step.reply) {
            Some(lease) if number(lease) == score => Ok(()),
            other => wrong!("the new lease {other:?} is not the score {score}"),
        }
    }

    fn dead_letter(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [dlq_map, dlq, expires, map, processing, id, payload, options @ ..] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let lease = match options {
            [.., word, lease] if word.eq_ignore_ascii_case(b"LEASE") => Some(*lease),
            _ => None,
        };
        let mut checks = self.checks();
        checks.writable(id);
        if let Some(lease) = lease {
            checks.decimal(lease);
        }
        checks.distinct(&[dlq_map, dlq, expires, map, processing]);
        checks.key(dlq_map, Kind::Hash);
        checks.key(dlq, Kind::List);
        checks.key(expires, Kind::Zset);
        checks.key(map, Kind::Hash);
        checks.optional_list(processing);
        checks.passed()?;
        if lease.is_some_and(|lease| self.score(expires, id) != Some(number(lease))) {
            return expect(step, &Reply::Int(0));
        }
        if !self.exists(map, processing, id) {
            return Err(Outcome::Refused(vec!["NOMSG"]));
        }
        // An id in dlq without a dead letter stands for nothing; REDRIVE clears it away.
        let again = self.field(dlq_map, id).is_some();
        let queue = self.field(map, &queue_field(id)).cloned();
        let queue = queue.or_else(|| processing.strip_suffix(b":processing").map(<[u8]>::to_vec));
        if let Some(queue) = queue {
            self.hash_mut(dlq_map).insert(queue_field(id), queue);
        }
        self.hash_mut(dlq_map).insert((*id).clone(), (*payload).clone());
        let dead = self.list_mut(dlq);
        if again {
            dead.retain(|other| other != *id);
        }
        dead.insert(0, (*id).clone());
        self.forget(step, map, processing, expires, &[id])?;
        let told = if lease.is_some() { Reply::Int(1) } else { ok() };
        expect(step, &told)
    }

    fn redrive(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let [dlq, dlq_map, map, batch] = words else {
            return Err(Outcome::Refused(vec!["ERR"]));
        };
        let mut checks = self.checks();
        checks.integer(batch, 1);
        checks.distinct(&[dlq, dlq_map, map]);
        checks.key(dlq, Kind::List);
        checks.key(dlq_map, Kind::Hash);
        checks.key(map, Kind::Hash);
        checks.passed()?;
        let batch = self.batch(batch);
        let (mut left, mut told) = (0, Vec::new());
        for index in (0..self.list(dlq).len()).rev() {
            if left == batch {
                break;
            }
            let id = self.list(dlq)[index].clone();
            let Some(payload) = self.field(dlq_map, &id).cloned() else {
                self.list_mut(dlq).remove(index);
                left += 1;
                continue;
            };
            let Some(queue) = self.field(dlq_map, &queue_field(&id)).cloned() else {
                continue;
            };
            let pending = pending_of(&queue);
            // A pending list cannot be one of the keys given, with the same name for two things.
            let circular = pending == **dlq || pending == **map;
            if circular || self.field(map, &id).is_some() || !self.fits(&pending, Kind::List) {
                continue;
            }
            self.list_mut(dlq).remove(index);
            left += 1;
            let letters = self.hash_mut(dlq_map);
            letters.remove(&id);
            letters.remove(&queue_field(&id));
            let messages = self.hash_mut(map);
            messages.insert(id.clone(), payload);
            messages.insert(queue_field(&id), queue.clone());
            messages.remove(&attempts_field(&id));
            self.list_mut(&pending).insert(0, id.clone());
            told.push(row(&[&id, &queue]));
        }
        expect(step, &Reply::Array(told))
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
        if due <= step.ended {
            let told = vec![Reply::bulk("EXPIRED"), Reply::Int(due as i64), Reply::Bulk(id)];
            return expect(step, &Reply::Array(told));
        }
        match step.reply {
            Reply::Array(told) if told.len() == 4 => {
                let waits = due - step.ended - 1.0..=due - step.began + 1.0;
                let rest = [Reply::Int(due as i64), Reply::Bulk(id)];
                match told[1] {
                    Reply::Int(wait) if waits.contains(&(wait as f64)) && told[2..] == rest => Ok(()),
                    _ => wrong!("{told:?} is not due at {due}"),
                }
            }
            other => wrong!("{other:?} is not due at {due}"),
        }
    }

    /// Plain commands that users mix in. Their replies are the server's business.
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

    // ---- what holds as long as nobody misuses the keys

    /// Each live message in exactly one place, nothing that stands for no message.
    pub fn broken_invariant(&self, keys: &Names) -> Option<String> {
        let field_owner = |field: &Bytes| {
            let owner = field
                .strip_suffix(b":queue")
                .or_else(|| field.strip_suffix(b":attempts"));
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
    wrong!(
        "the reply should be {}\n                  not {}",
        show_reply(expected),
        show_reply(step.reply)
    );
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
    before
        .iter()
        .map(|id| (id, count(before, id).saturating_sub(count(after, id))))
        .collect()
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
        wrong!(
            "{} bytes, but the record says {}",
            payload.len(),
            parsed["original_payload_bytes"]
        );
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
        Value::Hash(fields) => fields
            .iter()
            .map(|(field, value)| format!("{}={}", field.escape_ascii(), value.escape_ascii()))
            .collect(),
        Value::Zset(members) => members
            .iter()
            .map(|(member, score)| format!("{}@{score}", member.escape_ascii()))
            .collect(),
    };
    let cut = parts.len().saturating_sub(SHOWN);
    let more = if cut > 0 {
        format!(" … and {cut} more")
    } else {
        String::new()
    };
    format!("[{}{more}]", parts[..parts.len().min(SHOWN)].join(" "))
}
