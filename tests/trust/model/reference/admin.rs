//! Looking and mending: what docs/commands.md says of STATS, PEEK, CANCEL, RESCHEDULE, PURGE, AUDIT and REPAIR.

use super::*;
use std::collections::BTreeSet;

/// The deadline that REPAIR gives a message without one.
const NEW_DEADLINE_MS: f64 = 10_000.0;

const PENDING: &str = "pending";
const DELAYED: &str = "delayed";
const PROCESSING: &str = "processing";
const DEAD: &str = "dead";
const LOST: &str = "lost";

const FIELDS: [&[u8]; 2] = [b":queue", b":attempts"];
const DEAD_FIELDS: [&[u8]; 2] = [b":queue", b":death"];

fn death_field(id: &[u8]) -> Bytes {
    [id, b":death"].concat()
}

/// Where an id is. A queue is there once for each time that its list has the id.
struct Traces {
    id: Bytes,
    state: Option<&'static str>,
    /// What `<id>:queue` says, whatever that is.
    queue: Option<Bytes>,
    pending: Vec<Bytes>,
    processing: Vec<Bytes>,
    due: Option<f64>,
    deadline: Option<f64>,
}

impl Traces {
    fn places(&self) -> usize {
        self.pending.len() + self.processing.len() + usize::from(self.due.is_some())
    }

    /// One after the year 2248 never comes.
    fn has_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= 8_796_093_022_208.0)
    }
}

/// A number in a reply.
enum Figure {
    Is(i64),
    Between(f64, f64),
    /// So many at the beginning of the call, and so many at its end.
    Count(usize, usize),
    Nil,
    Anything,
}

impl Figure {
    fn fits(&self, reply: &Reply) -> bool {
        match (self, reply) {
            (Figure::Is(expected), Reply::Int(value)) => expected == value,
            // Rounded, and never negative.
            (Figure::Between(from, to), Reply::Int(value)) => {
                (from.max(0.0) - 1.0..=to.max(0.0) + 1.0).contains(&(*value as f64))
            }
            (Figure::Count(least, most), Reply::Int(value)) => (*least as i64..=*most as i64).contains(value),
            (Figure::Nil, reply) => *reply == Reply::NilBulk,
            (Figure::Anything, _) => true,
            _ => false,
        }
    }
}

/// The time in an id that the server made, `<µs in hex>-<random>`, in ms.
fn made_at(id: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(id).ok()?;
    let (micros, random) = text.split_once('-')?;
    let is_hex = |text: &str| text.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
    let is_ours = micros.len() == 14 && random.len() == 10 && is_hex(micros) && is_hex(random);
    is_ours.then(|| i64::from_str_radix(micros, 16).expect("hex") / 1000)
}

/// The id that a field would belong to, by its name.
fn owner_of<'a>(name: &'a [u8], fields: &[&[u8]]) -> Option<&'a [u8]> {
    fields.iter().find_map(|field| name.strip_suffix(*field))
}

/// The part of the words from one of these on, and what stands before it.
fn split_at_word<'a, 'w>(words: &'a [&'w Bytes], names: &[&str]) -> (&'a [&'w Bytes], &'a [&'w Bytes]) {
    let is_one = |word: &&Bytes| names.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()));
    words.split_at(words.iter().position(is_one).expect("the generator's word"))
}

fn value_of<'w>(options: &[&'w Bytes], name: &str) -> Option<&'w Bytes> {
    let place = options.iter().position(|word| word.eq_ignore_ascii_case(name.as_bytes()))?;
    options.get(place + 1).copied()
}

fn named(name: &str, value: Reply) -> [Reply; 2] {
    [Reply::bulk(name), value]
}

impl Model {
    // ---- what they share

    fn checks_of(&self, keys: &Keys) -> Checks<'_> {
        let mut checks = self.checks();
        checks.key(&keys.payloads, Kind::Hash);
        checks.key(&keys.expires, Kind::Zset);
        checks.key(&keys.delays, Kind::Zset);
        checks.key(&keys.queues, Kind::Hash);
        checks.key(&keys.dlq, Kind::List);
        checks.key(&keys.dlq_map, Kind::Hash);
        checks
    }

    /// Whether this is the id of a message, and no field of one.
    fn is_message(&self, map: &[u8], id: &[u8], fields: &[&[u8]]) -> bool {
        let is_field = owner_of(id, fields).is_some_and(|owner| self.field(map, owner).is_some());
        self.field(map, id).is_some() && !is_field
    }

    pub(super) fn is_live(&self, keys: &Keys, id: &[u8]) -> bool {
        self.is_message(&keys.payloads, id, &FIELDS)
    }

    fn is_letter(&self, keys: &Keys, id: &[u8]) -> bool {
        self.is_message(&keys.dlq_map, id, &DEAD_FIELDS)
    }

    /// The full names of the queues that the namespace knows.
    fn known_queues(&self, keys: &Keys) -> BTreeSet<Bytes> {
        match self.state.get(&keys.queues) {
            Some(Value::Hash(queues)) => {
                queues.keys().map(|short| keys.queue(short)).filter(|queue| keys.short(queue).is_some()).collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// Looks in the lists of these queues. A list of another type has nothing.
    fn traces(&self, step: &Step, keys: &Keys, id: &Bytes, queues: &BTreeSet<Bytes>) -> Traces {
        let places = |list_of: fn(&[u8]) -> Bytes| {
            let of_queue = |queue: &Bytes| {
                let count = self.list(&list_of(queue)).iter().filter(|other| *other == id).count();
                vec![queue.clone(); count]
            };
            queues.iter().flat_map(of_queue).collect::<Vec<Bytes>>()
        };
        let mut traces = Traces {
            id: id.clone(),
            state: None,
            queue: self.field(&keys.payloads, &queue_field(id)).cloned(),
            pending: places(pending_of),
            processing: places(processing_of),
            due: self.score(&keys.delays, id),
            deadline: self.score(&keys.expires, id),
        };
        let is_leased = traces.has_deadline() && traces.deadline > Some(step.now);
        traces.state = match &traces {
            _ if !self.is_live(keys, id) => self.is_letter(keys, id).then_some(DEAD),
            found if !found.processing.is_empty() && is_leased => Some(PROCESSING),
            found if !found.pending.is_empty() => Some(PENDING),
            found if found.due.is_some() => Some(DELAYED),
            found if !found.processing.is_empty() => Some(PROCESSING),
            _ => Some(LOST),
        };
        traces
    }

    /// Looks for each id in the lists of its own queue, and for a message that is nowhere in all known ones, of which those
    /// of another type are passed over.
    fn find_messages(&self, step: &Step, keys: &Keys, ids: &[&Bytes]) -> Result<Vec<Traces>, Outcome> {
        let mut checks = self.checks();
        let mut found = Vec::new();
        for id in ids {
            let own = self.field(&keys.payloads, &queue_field(id)).filter(|own| keys.short(own).is_some());
            let mut queues: BTreeSet<Bytes> = own.into_iter().cloned().collect();
            for queue in &queues {
                checks.key(&pending_of(queue), Kind::List);
                checks.key(&processing_of(queue), Kind::List);
            }
            let mut traces = self.traces(step, keys, id, &queues);
            if traces.state == Some(LOST) {
                queues.extend(self.known_queues(keys));
                traces = self.traces(step, keys, id, &queues);
            }
            found.push(traces);
        }
        checks.passed()?;
        Ok(found)
    }

    /// Whether somebody works on a message: it has a deadline, and is in the processing list of its queue.
    fn is_held(&self, keys: &Keys, id: &Bytes) -> bool {
        let queue = self.field(&keys.payloads, &queue_field(id)).filter(|queue| keys.short(queue).is_some());
        // Where the list is none, it cannot be found out.
        let is_no_list = |key: &Bytes| self.state.get(key).is_some_and(|value| !value.is(Kind::List));
        let in_work = queue.is_some_and(|queue| {
            let processing = processing_of(queue);
            is_no_list(&processing) || self.list(&processing).contains(id)
        });
        in_work && self.score(&keys.expires, id).is_some()
    }

    /// Since when a message can be taken, in ms.
    fn since(&self, keys: &Keys, id: &Bytes) -> Option<i64> {
        let micros = Attempts::read(self.field(&keys.payloads, &attempts_field(id))).micros;
        Some(micros / 1000).filter(|_| micros > 0).or_else(|| made_at(id))
    }

    pub(super) fn count(&mut self, queue: &[u8], event: &'static str, messages: usize) {
        *self.counts.entry((queue.to_vec(), event)).or_default() += messages as i64;
    }

    // ---- STATS

    pub(super) fn stats(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let keys = Keys::of(words[0]);
        let mut checks = self.checks_of(&keys);
        words[1..].iter().for_each(|short| checks.holds(keys.short(&keys.queue(short)).is_some()));
        let mut queues: Vec<Bytes> = Vec::new();
        for queue in words[1..].iter().map(|short| keys.queue(short)) {
            checks.key(&pending_of(&queue), Kind::List);
            checks.key(&processing_of(&queue), Kind::List);
            if !queues.contains(&queue) {
                queues.push(queue);
            }
        }
        if queues.is_empty() {
            queues.extend(self.known_queues(&keys));
        }
        checks.passed()?;
        let len = |ids: Vec<Bytes>| Figure::Is(ids.len() as i64);
        let late = |zset: &[u8]| Figure::Count(self.up_to(zset, step.began).len(), self.up_to(zset, step.ended).len());
        let first = self.up_to(&keys.delays, f64::INFINITY).into_iter().next();
        let next_due = first.and_then(|id| self.score(&keys.delays, &id));
        let due_in = |due: f64| Figure::Between(due - step.ended, due - step.began);
        let figures = [
            ("delayed", len(self.up_to(&keys.delays, f64::INFINITY))),
            ("due", late(&keys.delays)),
            ("next_due_in_ms", next_due.map_or(Figure::Nil, due_in)),
            ("leased", len(self.up_to(&keys.expires, f64::INFINITY))),
            ("overdue", late(&keys.expires)),
            ("dead", Figure::Is(self.list(&keys.dlq).len() as i64)),
        ];
        let Reply::Array(replied) = step.reply else { wrong!("{:?} is no map", step.reply) };
        expect_figures(&replied[..replied.len().min(12)], &figures)?;
        let of_queues = match &replied[12..] {
            [name, Reply::Array(of_queues)] if *name == Reply::bulk("queues") => of_queues,
            other => wrong!("{other:?} are no queues"),
        };
        if of_queues.len() != 2 * queues.len() {
            wrong!("{} queues, not {of_queues:?}", queues.len());
        }
        for (queue, replied) in queues.iter().zip(of_queues.chunks(2)) {
            let short = keys.short(queue).unwrap_or_default().to_vec();
            let Reply::Array(fields) = &replied[1] else { wrong!("{:?} is no map", replied[1]) };
            if replied[0] != Reply::Bulk(short.clone()) {
                wrong!("{:?} is not {}", replied[0], short.escape_ascii());
            }
            let next = self.list(&pending_of(queue)).last().and_then(|id| self.since(&keys, id));
            let age = |since: i64| Figure::Between(step.began - since as f64, step.ended - since as f64);
            // The server may know of a RESERVE that came before this stream.
            let asked = self.asked.get(queue);
            let idle = asked.map_or(Figure::Anything, |(from, to)| Figure::Between(step.began - to, step.ended - from));
            let policy = self.policy_of(&keys, &short);
            let (backoff_first, backoff_max) = policy.backoff.expect("the built-in one at least");
            let count = |event| Figure::Is(self.counts.get(&(queue.clone(), event)).copied().unwrap_or(0));
            let len = |list: Bytes| match self.fits(&list, Kind::List) {
                true => Figure::Is(self.list(&list).len() as i64),
                false => Figure::Nil,
            };
            let figures = [
                ("pending", len(pending_of(queue))),
                ("processing", len(processing_of(queue))),
                ("waiting_clients", Figure::Is(0)),
                ("next_age_ms", next.map_or(Figure::Nil, age)),
                ("idle_ms", idle),
                ("attempts", Figure::Is(policy.attempts.unwrap_or(0))),
                ("backoff_first_ms", Figure::Is(backoff_first)),
                ("backoff_max_ms", Figure::Is(backoff_max)),
                ("paused", Figure::Is(i64::from(policy.paused))),
                ("published", count("published")),
                ("delivered", count("delivered")),
                ("acked", count("acked")),
                ("retried", count("retried")),
                ("expired", count("expired")),
                ("died", count("died")),
            ];
            expect_figures(fields, &figures)?;
        }
        Ok(())
    }

    // ---- PEEK

    pub(super) fn peek(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let keys = Keys::of(words[0]);
        let states = ["PENDING", "PROCESSING", "DELAYED", "OVERDUE", "DEAD", "IDS"];
        let (options, which) = split_at_word(&words[1..], &states);
        let (state, rest) = (which[0].to_ascii_uppercase(), &which[1..]);
        let mut checks = self.checks_of(&keys);
        let [offset, count] = ["OFFSET", "COUNT"].map(|name| value_of(options, name));
        if let Some(count) = count {
            checks.integer(count, 1);
        }
        let with_payload = !options.iter().any(|word| word.eq_ignore_ascii_case(b"NOPAYLOAD"));
        let queue = rest.first().map(|short| keys.queue(short)).filter(|_| state != b"IDS");
        let list = match (&queue, &state[..]) {
            (Some(queue), b"PENDING") => pending_of(queue),
            (Some(queue), b"PROCESSING") => processing_of(queue),
            _ => Bytes::new(),
        };
        checks.optional_list(&list);
        checks.passed()?;
        let (skip, most) = (offset.map_or(0, |n| number(n) as usize), count.map_or(10, |count| self.batch(count)));
        let is_of = |map: &[u8], id: &Bytes| {
            queue.as_ref().is_none_or(|queue| self.field(map, &queue_field(id)).is_some_and(|own| own == queue))
        };
        let page = |ids: Vec<Bytes>, map: &[u8]| -> Vec<Bytes> {
            let fields = if *map == keys.dlq_map { DEAD_FIELDS } else { FIELDS };
            let is_meant = |id: &Bytes| self.is_message(map, id, &fields) && is_of(map, id);
            ids.into_iter().filter(is_meant).skip(skip).take(most).collect()
        };
        let as_one = |ids: Vec<Bytes>, state: &'static str| -> Vec<(Bytes, Option<&'static str>)> {
            ids.into_iter().map(|id| (id, Some(state))).collect()
        };
        let in_list = || {
            let ids = self.list(&list).iter().rev().filter(|id| self.is_live(&keys, id));
            ids.skip(skip).take(most).cloned().collect::<Vec<_>>()
        };
        let rows = match &state[..] {
            b"PENDING" => as_one(in_list(), PENDING),
            b"PROCESSING" => as_one(in_list(), PROCESSING),
            b"DELAYED" => as_one(page(self.up_to(&keys.delays, f64::INFINITY), &keys.payloads), DELAYED),
            b"DEAD" => as_one(page(self.list(&keys.dlq).iter().rev().cloned().collect(), &keys.dlq_map), DEAD),
            b"OVERDUE" => {
                let mut rows = Vec::new();
                for id in page(self.up_to(&keys.expires, step.now), &keys.payloads) {
                    let state = match self.is_held(&keys, &id) {
                        true => Some(PROCESSING),
                        false => self.find_messages(step, &keys, &[&id])?[0].state,
                    };
                    rows.push((id, state));
                }
                rows
            }
            _ => self.find_messages(step, &keys, rest)?.into_iter().map(|found| (found.id, found.state)).collect(),
        };
        let row = |(id, state): &(Bytes, Option<&'static str>)| {
            let shown = state.and_then(|state| self.message_row(&keys, id, state, with_payload));
            shown.or((which[0].eq_ignore_ascii_case(b"IDS")).then_some(Reply::NilBulk))
        };
        expect(step, &Reply::Array(rows.iter().filter_map(row).collect()))
    }

    /// What PEEK shows of one message; None if it does not exist.
    fn message_row(&self, keys: &Keys, id: &Bytes, state: &str, with_payload: bool) -> Option<Reply> {
        let map = if state == DEAD { &keys.dlq_map } else { &keys.payloads };
        let payload = self.field(map, id)?;
        let mut row = vec![named("id", Reply::Bulk(id.clone())), named("state", Reply::bulk(state))];
        if let Some(queue) = self.field(map, &queue_field(id)) {
            row.push(named("queue", Reply::bulk(keys.short(queue).unwrap_or(queue))));
        }
        if state == DEAD {
            let death = self.field(map, &death_field(id));
            let death: serde_json::Value =
                death.and_then(|death| serde_json::from_slice(death).ok()).unwrap_or_default();
            row.push(named("attempts", Reply::Int(death["attempts"].as_i64().unwrap_or(0))));
            row.extend(death["at"].as_i64().map(|at| named("since_ms", Reply::Int(at))));
            for (name, field) in [("error", "error"), ("death", "reason")] {
                let text = death[field].as_str().filter(|text| !text.is_empty());
                row.extend(text.map(|text| named(name, Reply::bulk(text))));
            }
        } else {
            let attempts = Attempts::read(self.field(map, &attempts_field(id)));
            row.push(named("attempts", Reply::Int(attempts.count)));
            let since = self.since(keys, id).filter(|_| state != DELAYED);
            row.extend(since.map(|ms| named("since_ms", Reply::Int(ms))));
            let (name, zset) = if state == DELAYED { ("due_ms", &keys.delays) } else { ("deadline_ms", &keys.expires) };
            let time = self.score(zset, id).filter(|_| state == DELAYED || state == PROCESSING);
            row.extend(time.map(|ms| named(name, Reply::Int(ms as i64))));
            row.extend(
                attempts.error.filter(|error| !error.is_empty()).map(|error| named("error", Reply::Bulk(error))),
            );
        }
        row.extend(with_payload.then(|| named("payload", Reply::Bulk(payload.clone()))));
        Some(Reply::Array(row.concat()))
    }

    // ---- CANCEL, RESCHEDULE, PURGE

    pub(super) fn cancel(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let keys = Keys::of(words[0]);
        let (options, ids) = split_at_word(&words[1..], &["IDS"]);
        let (waiting, ids) = (!options.is_empty(), &ids[1..]);
        let mut checks = self.checks_of(&keys);
        checks.key(&keys.once, Kind::Zset);
        ids.iter().for_each(|id| checks.writable(id));
        checks.passed()?;
        let found = self.find_messages(step, &keys, ids)?;
        // Where the hash is missing as a whole, that proves nothing.
        let has_payloads = self.state.contains_key(&keys.payloads);
        let mut replied = Vec::new();
        for (number, traces) in found.iter().enumerate() {
            let id = &traces.id;
            if ids[..number].contains(&id) || waiting && traces.state == Some(PROCESSING) {
                replied.push(Reply::NilBulk);
                continue;
            }
            replied.push(traces.state.map_or(Reply::NilBulk, Reply::bulk));
            if traces.state.is_some() {
                self.zset_mut(&keys.once).remove(id);
            }
            if has_payloads {
                let lists = traces.pending.iter().map(|queue| pending_of(queue));
                for list in lists.chain(traces.processing.iter().map(|queue| processing_of(queue))) {
                    self.list_mut(&list).retain(|other| other != id);
                }
                self.zset_mut(&keys.delays).remove(id);
                self.zset_mut(&keys.expires).remove(id);
                self.forget_fields(&keys.payloads, id);
                self.held.retain(|held| held != id);
            }
            if self.field(&keys.dlq_map, id).is_some() {
                self.forget_letter(&keys, id);
                self.list_mut(&keys.dlq).retain(|other| other != id);
            }
        }
        expect(step, &Reply::Array(replied))
    }

    fn forget_letter(&mut self, keys: &Keys, id: &Bytes) {
        let letters = self.hash_mut(&keys.dlq_map);
        [id.clone(), queue_field(id), death_field(id)].iter().for_each(|field| drop(letters.remove(field)));
    }

    pub(super) fn reschedule(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let (keys, delay, ids) = (Keys::of(words[0]), words[1], &words[3..]);
        let mut checks = self.checks_of(&keys);
        checks.integer(delay, 0);
        checks.passed()?;
        let delay = number(delay);
        let mut replied = Vec::new();
        let mut times = BTreeSet::new();
        for traces in self.find_messages(step, &keys, ids)? {
            let id = &traces.id;
            // One that has no queue gets that of the list in which it is.
            let in_list = traces.pending.first().or(traces.processing.first());
            let queue = traces.queue.as_ref().or(in_list).filter(|queue| keys.short(queue).is_some());
            let waits = [Some(PENDING), Some(DELAYED)].contains(&traces.state);
            let Some(queue) = queue.filter(|_| waits) else {
                replied.push(Reply::Int(0));
                continue;
            };
            replied.push(Reply::Int(1));
            let is_again = ids[..replied.len() - 1].contains(&id);
            // What is pending can be taken now already.
            if is_again || delay == 0.0 && traces.state == Some(PENDING) {
                continue;
            }
            for queue in &traces.pending {
                self.list_mut(&pending_of(queue)).retain(|other| other != id);
            }
            let due = self.clock_score(step, &keys.delays, id, delay)?;
            times.insert(due as i64);
            if due.fract() != 0.0 || times.len() > 1 {
                wrong!("{} is due at {due}, in one call with {times:?}", id.escape_ascii());
            }
            let before = Attempts::read(self.field(&keys.payloads, &attempts_field(id)));
            let after = Attempts { micros: due as i64 * 1000, ..before };
            let map = self.hash_mut(&keys.payloads);
            map.insert(attempts_field(id), after.bytes());
            map.insert(queue_field(id), queue.clone());
        }
        expect(step, &Reply::Array(replied))
    }

    pub(super) fn purge(&mut self, step: &Step, words: &[&Bytes]) -> Result<(), Outcome> {
        let keys = Keys::of(words[0]);
        let (options, which) = split_at_word(&words[1..], &["PENDING", "DELAYED", "DEAD"]);
        let count = value_of(options, "COUNT");
        let queue = which.get(1).map(|short| keys.queue(short));
        let is = |state: &str| which[0].eq_ignore_ascii_case(state.as_bytes());
        let list = queue.as_ref().filter(|_| is("PENDING")).map(|queue| pending_of(queue)).unwrap_or_default();
        let mut checks = self.checks_of(&keys);
        checks.key(&keys.once, Kind::Zset);
        checks.optional_list(&list);
        if let Some(queue) = queue.as_ref().filter(|_| is("PENDING")) {
            checks.key(&processing_of(queue), Kind::List);
        }
        if let Some(count) = count {
            checks.integer(count, 1);
        }
        checks.passed()?;
        let most = count.map_or(self.max_batch, |count| self.batch(count));
        // A missing hash proves nothing about the messages.
        let map = if is("DEAD") { &keys.dlq_map } else { &keys.payloads };
        if !self.state.contains_key(map) {
            return expect(step, &Reply::Int(0));
        }
        let own = |model: &Model, id: &Bytes| model.field(map, &queue_field(id)).cloned();
        let mut emptied: BTreeSet<Bytes> = BTreeSet::new();
        let mut gone: Vec<Bytes> = Vec::new();
        if is("PENDING") {
            emptied.extend(queue.clone());
            let (mut met, mut left) = (0, self.list(&list).to_vec());
            while met < most {
                let Some(id) = left.pop() else { break };
                // A copy of what somebody works on goes, the message stays.
                if !self.is_held(&keys, &id) && self.is_live(&keys, &id) {
                    met += 1;
                    gone.push(id);
                }
            }
            *self.list_mut(&list) = left;
        } else if is("DELAYED") {
            let is_meant = |id: &Bytes| queue.is_none() || own(self, id) == queue;
            let all = self.up_to(&keys.delays, f64::INFINITY).into_iter();
            for id in all.filter(is_meant).collect::<Vec<_>>() {
                if gone.len() == most {
                    break;
                }
                emptied.extend(own(self, &id));
                self.zset_mut(&keys.delays).remove(&id);
                if !self.is_held(&keys, &id) && self.is_live(&keys, &id) {
                    gone.push(id);
                }
            }
        } else {
            let mut left = Vec::new();
            for id in self.list(&keys.dlq).to_vec().into_iter().rev() {
                let is_stored = self.is_letter(&keys, &id);
                if gone.len() == most || is_stored && queue.is_some() && own(self, &id) != queue {
                    left.insert(0, id);
                    continue;
                }
                emptied.extend(own(self, &id));
                gone.extend(is_stored.then_some(id));
            }
            *self.list_mut(&keys.dlq) = left;
        }
        for id in &gone {
            match is("DEAD") {
                true => {
                    self.forget_letter(&keys, id);
                    if !self.is_live(&keys, id) {
                        self.zset_mut(&keys.once).remove(id);
                    }
                }
                false => {
                    for zset in [&keys.delays, &keys.expires, &keys.once] {
                        self.zset_mut(zset).remove(id);
                    }
                    self.forget_fields(&keys.payloads, id);
                    self.held.retain(|held| held != id);
                }
            }
        }
        for queue in emptied.iter().filter(|queue| self.is_empty_queue(&keys, queue)).cloned().collect::<Vec<_>>() {
            let short = keys.short(&queue).unwrap_or_default();
            if self.field(&keys.queues, short).is_some_and(|policy| policy == b"{}") {
                self.hash_mut(&keys.queues).remove(short);
            }
        }
        // The second copy of an id is no second message.
        let purged: BTreeSet<Bytes> = gone.into_iter().collect();
        expect(step, &Reply::Int(purged.len() as i64))
    }

    /// Nothing waits, is in work, delayed or dead. Of a list that is none nobody knows.
    fn is_empty_queue(&self, keys: &Keys, queue: &Bytes) -> bool {
        let is_empty = |list: Bytes| self.fits(&list, Kind::List) && self.list(&list).is_empty();
        let is_own = |map: &[u8], id: &Bytes| self.field(map, &queue_field(id)) == Some(queue);
        keys.short(queue).is_some()
            && is_empty(pending_of(queue))
            && is_empty(processing_of(queue))
            && !self.up_to(&keys.delays, f64::INFINITY).iter().any(|id| is_own(&keys.payloads, id))
            && !self.list(&keys.dlq).iter().any(|id| is_own(&keys.dlq_map, id))
    }

    // ---- AUDIT and REPAIR

    /// What a hash holds, without the fields of messages that are in it.
    fn stored(&self, map: &[u8], fields: &[&[u8]]) -> Vec<Bytes> {
        let Some(Value::Hash(all)) = self.state.get(map) else { return Vec::new() };
        let is_own = |name: &&Bytes| owner_of(name, fields).is_none_or(|owner| !all.contains_key(owner));
        all.keys().filter(is_own).cloned().collect()
    }

    /// Whether this is a field by its name, and no id that happens to end like one.
    fn is_field(&self, map: &[u8], name: &[u8], fields: &[&[u8]]) -> bool {
        owner_of(name, fields).is_some() && self.field(map, &queue_field(name)).is_none()
    }

    /// Known queues, and those that messages name.
    fn queues_looked_at(&self, keys: &Keys) -> BTreeSet<Bytes> {
        let mut queues = self.known_queues(keys);
        let stored = self.stored(&keys.payloads, &FIELDS);
        let named = stored.iter().filter_map(|id| self.field(&keys.payloads, &queue_field(id)));
        queues.extend(named.filter(|queue| keys.short(queue).is_some()).cloned());
        queues
    }

    fn fault_of(&self, keys: &Keys, traces: &Traces) -> Option<&'static str> {
        let own = traces.queue.as_ref().filter(|queue| keys.short(queue).is_some());
        match (traces.places(), traces.processing.first()) {
            (0, _) => Some("lost"),
            (2.., _) => Some("in_two_places"),
            (_, Some(_)) if !traces.has_deadline() => Some("without_deadline"),
            (_, Some(queue)) => (own != Some(queue)).then_some("wrong_queue"),
            _ => (traces.due.is_some() && own.is_none()).then_some("wrong_queue"),
        }
    }

    /// Everything that is wrong, with its id.
    fn faults(&self, step: &Step, keys: &Keys) -> Vec<(&'static str, Bytes)> {
        let mut faults = Vec::new();
        let queues = self.queues_looked_at(keys);
        for name in self.stored(&keys.payloads, &FIELDS) {
            let traces = self.traces(step, keys, &name, &queues);
            let shown = owner_of(&name, &FIELDS).unwrap_or(&name).to_vec();
            if traces.places() == 0 && self.is_field(&keys.payloads, &name, &FIELDS) {
                faults.push(("orphan_fields", shown));
            } else {
                faults.extend(self.fault_of(keys, &traces).map(|fault| (fault, shown)));
            }
        }
        for name in self.stored(&keys.dlq_map, &DEAD_FIELDS) {
            let places = self.list(&keys.dlq).iter().filter(|id| **id == name).count();
            let fault = match places {
                0 if self.is_field(&keys.dlq_map, &name, &DEAD_FIELDS) => "orphan_fields",
                0 => "lost",
                1 => continue,
                _ => "in_two_places",
            };
            faults.push((fault, owner_of(&name, &DEAD_FIELDS).unwrap_or(&name).to_vec()));
        }
        let mut without = |kind: &'static str, ids: &[Bytes], map: &[u8]| {
            let fields = if *map == keys.dlq_map { DEAD_FIELDS } else { FIELDS };
            let is_stale = |id: &&Bytes| !self.is_message(map, id, &fields);
            faults.extend(ids.iter().filter(is_stale).map(|id| (kind, id.clone())));
        };
        for queue in self.known_queues(keys) {
            without("pending_without_payload", self.list(&pending_of(&queue)), &keys.payloads);
            without("processing_without_payload", self.list(&processing_of(&queue)), &keys.payloads);
        }
        without("delayed_without_payload", &self.up_to(&keys.delays, f64::INFINITY), &keys.payloads);
        without("stale_deadlines", &self.up_to(&keys.expires, f64::INFINITY), &keys.payloads);
        without("dead_without_payload", self.list(&keys.dlq), &keys.dlq_map);
        faults
    }

    /// Everything that AUDIT would look at.
    fn elements(&self, keys: &Keys) -> usize {
        let len = |key: &[u8]| match self.state.get(key) {
            Some(Value::List(items)) => items.len(),
            Some(Value::Hash(fields)) => fields.len(),
            Some(Value::Zset(members)) => members.len(),
            _ => 0,
        };
        let of_queue = |queue: &Bytes| len(&pending_of(queue)) + len(&processing_of(queue));
        let lists: usize = self.known_queues(keys).iter().map(of_queue).sum();
        let others = [&keys.payloads, &keys.delays, &keys.expires, &keys.dlq, &keys.dlq_map];
        lists + others.iter().map(|key| len(key)).sum::<usize>()
    }

    pub(super) fn audit(&mut self, step: &Step, words: &[&Bytes], mends: bool) -> Result<(), Outcome> {
        let keys = Keys::of(words[0]);
        let count = value_of(&words[1..], "COUNT");
        let mut checks = self.checks_of(&keys);
        if let Some(count) = count {
            checks.integer(count, 1);
        }
        checks.passed()?;
        let (cursor, replied) = match step.reply {
            Reply::Array(reply) => match &reply[..] {
                [Reply::Int(cursor), Reply::Array(faults)] => (*cursor, faults),
                other => wrong!("{other:?} is no cursor with faults"),
            },
            other => wrong!("{other:?} is no cursor with faults"),
        };
        // Which elements are on a page is the server's choice.
        if self.elements(&keys) >= count.map_or(self.max_batch, |count| self.batch(count)) {
            return if mends { self.adopt_page(step, &keys) } else { Ok(()) };
        }
        if cursor != 0 {
            wrong!("one page is enough, but the cursor is {cursor}");
        }
        expect_faults(replied, &self.faults(step, &keys))?;
        if mends {
            self.mend(step, &keys)?;
        }
        Ok(())
    }

    /// A repair of a page: no payload changes, and what was in a place still is in one.
    fn adopt_page(&mut self, step: &Step, keys: &Keys) -> Result<(), Outcome> {
        let after = Model { state: step.after.clone(), ..self.clone() };
        // Also those that neither the namespace nor a message names.
        let queue_of = |key: &Bytes| {
            let queue = key.strip_suffix(b":pending").or_else(|| key.strip_suffix(b":processing"));
            queue.map(<[u8]>::to_vec)
        };
        let mut queues: BTreeSet<Bytes> = self.state.keys().filter_map(queue_of).collect();
        queues.retain(|queue| keys.short(queue).is_some());
        queues.extend(self.queues_looked_at(keys));
        for id in self.stored(&keys.payloads, &FIELDS) {
            let (was, is) = (self.traces(step, keys, &id, &queues), after.traces(step, keys, &id, &queues));
            let stays = self.field(&keys.payloads, &id) == after.field(&keys.payloads, &id);
            if !stays && (was.places() > 0 || !self.is_field(&keys.payloads, &id, &FIELDS)) {
                wrong!("the payload of {} was changed", id.escape_ascii());
            }
            if was.places() > 0 && is.places() == 0 {
                wrong!("{} was lost", id.escape_ascii());
            }
        }
        for id in self.stored(&keys.dlq_map, &DEAD_FIELDS) {
            let stays = self.field(&keys.dlq_map, &id) == after.field(&keys.dlq_map, &id);
            if !stays && (self.list(&keys.dlq).contains(&id) || !self.is_field(&keys.dlq_map, &id, &DEAD_FIELDS)) {
                wrong!("the dead letter {} was changed", id.escape_ascii());
            }
        }
        self.held.retain(|id| after.traces(step, keys, id, &queues).places() == 0);
        self.state = after.state;
        Ok(())
    }

    /// What REPAIR does, by the table of docs/commands.md. Which of several copies stays is the server's choice, and in
    /// which order several lost ones are put back.
    fn mend(&mut self, step: &Step, keys: &Keys) -> Result<(), Outcome> {
        let queues = self.queues_looked_at(keys);
        let mut leaving: BTreeMap<Bytes, Vec<Bytes>> = BTreeMap::new();
        let mut returning: BTreeMap<Bytes, Vec<Bytes>> = BTreeMap::new();
        let has_payloads = self.state.contains_key(&keys.payloads);
        // Ids without message.
        if has_payloads {
            let is_stored = |id: &Bytes| self.is_live(keys, id);
            for queue in self.known_queues(keys) {
                for list in [pending_of(&queue), processing_of(&queue)] {
                    let stale = self.list(&list).iter().filter(|id| !is_stored(id)).cloned();
                    leaving.entry(list.clone()).or_default().extend(stale);
                }
            }
            for zset in [&keys.delays, &keys.expires] {
                let all = self.up_to(zset, f64::INFINITY);
                for id in all.iter().filter(|id| !self.is_live(keys, id)).cloned().collect::<Vec<_>>() {
                    self.zset_mut(zset).remove(&id);
                }
            }
        }
        let messages: Vec<Traces> =
            self.stored(&keys.payloads, &FIELDS).iter().map(|id| self.traces(step, keys, id, &queues)).collect();
        let orphans: Vec<bool> =
            messages.iter().map(|found| self.is_field(&keys.payloads, &found.id, &FIELDS)).collect();
        for (traces, is_field) in messages.iter().zip(orphans) {
            let id = &traces.id;
            if traces.places() == 0 && is_field {
                self.hash_mut(&keys.payloads).remove(id);
                continue;
            }
            if self.fault_of(keys, traces).is_none() {
                continue;
            }
            let own = traces.queue.as_ref().filter(|queue| keys.short(queue).is_some());
            // The queue of the list that it stays in: its own, if it is there.
            let kept = |places: &[Bytes], list_of: fn(&[u8]) -> Bytes| {
                let is_there = |queue: &&Bytes| observed_list(step, &list_of(queue)).contains(id);
                own.filter(|own| places.contains(own)).or_else(|| places.iter().find(is_there)).cloned()
            };
            let mut leave = |places: &[Bytes], list_of: fn(&[u8]) -> Bytes, kept: Option<&Bytes>| {
                let mut others = places.to_vec();
                if let Some(place) = others.iter().position(|queue| Some(queue) == kept) {
                    others.remove(place);
                }
                others.iter().for_each(|queue| leaving.entry(list_of(queue)).or_default().push(id.clone()));
            };
            let mut queue = None;
            match traces.state {
                Some(PROCESSING) => {
                    queue = kept(&traces.processing, processing_of);
                    leave(&traces.processing, processing_of, queue.as_ref());
                    leave(&traces.pending, pending_of, None);
                    self.zset_mut(&keys.delays).remove(id);
                    if !traces.has_deadline() {
                        let deadline = self.clock_score(step, &keys.expires, id, NEW_DEADLINE_MS)?;
                        if deadline.fract() != 0.0 {
                            wrong!("{} looks leased until {deadline}", id.escape_ascii());
                        }
                    }
                }
                Some(PENDING) => {
                    queue = kept(&traces.pending, pending_of);
                    leave(&traces.pending, pending_of, queue.as_ref());
                    leave(&traces.processing, processing_of, None);
                    self.zset_mut(&keys.delays).remove(id);
                }
                Some(DELAYED) => {
                    leave(&traces.processing, processing_of, None);
                    if own.is_none() {
                        let observed = match step.after.get(&keys.payloads) {
                            Some(Value::Hash(fields)) => fields.get(&queue_field(id)).cloned(),
                            _ => None,
                        };
                        queue = observed.filter(|queue| traces.processing.contains(queue));
                        if queue.is_none() && !traces.processing.is_empty() {
                            wrong!("{} should get the queue of its list", id.escape_ascii());
                        }
                    }
                }
                _ => {
                    let list = own.map(|own| pending_of(own)).filter(|list| self.fits(list, Kind::List));
                    if let Some(list) = list {
                        returning.entry(list).or_default().push(id.clone());
                        self.zset_mut(&keys.expires).remove(id);
                        self.held.retain(|held| held != id);
                    }
                }
            }
            if let Some(queue) = queue {
                self.hash_mut(&keys.payloads).insert(queue_field(id), queue);
            }
            // Where it leaves processing, its lease ends.
            if traces.state != Some(PROCESSING) && !traces.processing.is_empty() {
                self.zset_mut(&keys.expires).remove(id);
            }
        }
        for list in leaving.keys().chain(returning.keys()).cloned().collect::<BTreeSet<_>>() {
            if !self.fits(&list, Kind::List) {
                continue;
            }
            let (gone, mut back) =
                (leaving.remove(&list).unwrap_or_default(), returning.remove(&list).unwrap_or_default());
            let (before, after) = (self.list(&list).to_vec(), observed_list(step, &list));
            let (stayed, new) = after.split_at(after.len().saturating_sub(back.len()));
            let mut new = new.to_vec();
            new.sort();
            back.sort();
            let gone = expected_counts(&before, &gone.iter().collect::<Vec<_>>());
            if new != back || !is_rest_of(&before, stayed, &gone) {
                let [before, after, back] = [before, after.to_vec(), back].map(|ids| show(&Value::List(ids)));
                wrong!(
                    "{} was {before}\n    and is {after}\n    where {back} came back and {gone:?} left",
                    list.escape_ascii()
                );
            }
            *self.list_mut(&list) = after.to_vec();
        }
        for queue in &queues {
            let is_there = |list: Bytes| !self.list(&list).is_empty();
            if is_there(pending_of(queue)) || is_there(processing_of(queue)) {
                let short = keys.short(queue).unwrap_or_default().to_vec();
                self.hash_mut(&keys.queues).entry(short).or_insert_with(|| b"{}".to_vec());
            }
        }
        self.mend_dead(step, keys)
    }

    fn mend_dead(&mut self, step: &Step, keys: &Keys) -> Result<(), Outcome> {
        if !self.state.contains_key(&keys.dlq_map) {
            return Ok(());
        }
        let mut letters = Vec::new();
        let before = self.list(&keys.dlq).to_vec();
        for (index, id) in before.iter().enumerate() {
            // A second death is at the left of the first.
            let is_second = before[..index].contains(id);
            if self.is_letter(keys, id) && !is_second {
                letters.push(id.clone());
            }
        }
        let mut lost = Vec::new();
        for name in self.stored(&keys.dlq_map, &DEAD_FIELDS) {
            if before.contains(&name) {
                continue;
            }
            if self.is_field(&keys.dlq_map, &name, &DEAD_FIELDS) {
                self.hash_mut(&keys.dlq_map).remove(&name);
            } else {
                lost.push(name);
            }
        }
        let after = observed_list(step, &keys.dlq);
        let (new, stayed) = after.split_at(lost.len().min(after.len()));
        let mut new = new.to_vec();
        new.sort();
        if new != lost || stayed != letters {
            let [stays, lost, is] = [letters, lost, after.to_vec()].map(|ids| show(&Value::List(ids)));
            wrong!("of the dead letters {stays} stay and {lost} come back, but there is {is}");
        }
        *self.list_mut(&keys.dlq) = after.to_vec();
        Ok(())
    }

    /// What AUDIT would report, but for messages that a caller of TIMEOUTS has.
    pub fn fault(&self, namespace: &str) -> Option<String> {
        let never = Step { words: &[], reply: &Reply::Null, after: &self.state, began: 1e12, ended: 1e12, now: 1e12 };
        let faults = self.faults(&never, &Keys::of(namespace.as_bytes()));
        let fault = faults.into_iter().find(|(kind, id)| *kind != "lost" || !self.held.contains(id));
        fault.map(|(kind, id)| format!("{} is {kind}", id.escape_ascii()))
    }
}

fn expect_figures(replied: &[Reply], figures: &[(&str, Figure)]) -> Result<(), Outcome> {
    let is_it = |(pair, (name, figure)): (&[Reply], &(&str, Figure))| {
        pair.len() == 2 && pair[0] == Reply::bulk(name) && figure.fits(&pair[1])
    };
    if let Some(wrong) = replied.chunks(2).zip(figures).find(|both| !is_it(*both)) {
        let expected = match wrong.1 .1 {
            Figure::Is(value) => value.to_string(),
            Figure::Between(from, to) => format!("from {from} to {to}"),
            Figure::Count(least, most) => format!("from {least} to {most}"),
            Figure::Nil | Figure::Anything => "nil".to_string(),
        };
        wrong!("{} should be {expected}, not {:?}", wrong.1 .0, wrong.0);
    }
    if replied.len() != 2 * figures.len() {
        wrong!("{} figures, not {replied:?}", figures.len());
    }
    Ok(())
}

fn expect_faults(replied: &[Reply], faults: &[(&'static str, Bytes)]) -> Result<(), Outcome> {
    const SHOWN: usize = 10;
    let mut expected: BTreeMap<&str, Vec<&Bytes>> = BTreeMap::new();
    faults.iter().for_each(|(kind, id)| expected.entry(kind).or_default().push(id));
    let mut found: BTreeSet<String> = BTreeSet::new();
    for pair in replied.chunks(2) {
        let (Some(kind), Some(Reply::Array(of_kind))) = (bulk(&pair[0]), pair.get(1)) else { wrong!("{pair:?}") };
        let kind = String::from_utf8_lossy(kind).into_owned();
        let ids = expected.get(kind.as_str()).cloned().unwrap_or_default();
        let [Reply::Int(count), Reply::Array(shown)] = &of_kind[..] else { wrong!("{kind}: {of_kind:?}") };
        let is_one = |id: &Reply| {
            let times = |all: usize, id: &Reply| all >= shown.iter().filter(|other| *other == id).count();
            bulk(id).is_some_and(|bytes| times(ids.iter().filter(|other| other.as_slice() == bytes).count(), id))
        };
        if *count != ids.len() as i64 || shown.len() != ids.len().min(SHOWN) || !shown.iter().all(is_one) {
            let ids = show(&Value::List(ids.into_iter().cloned().collect()));
            wrong!("{kind} should be {ids}, not {count} with {}", show_reply(&pair[1]));
        }
        found.insert(kind);
    }
    match expected.into_iter().find(|(kind, _)| !found.contains(*kind)) {
        Some((kind, ids)) => {
            wrong!("{kind} is not reported: {}", show(&Value::List(ids.into_iter().cloned().collect())))
        }
        None => Ok(()),
    }
}
