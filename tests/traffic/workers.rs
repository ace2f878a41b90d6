//! The workers. Each runs in its own thread, in steps; a step that fails, or at which the worker dies, makes it forget
//! all it knew and begin again with a new connection, as a new process would.

use super::ledger::{Delivery, Ledger, Report};
use super::{clock_ms, pending, processing, Dial, Habits, Keys, Link, Style};
use crate::common::{bulk, command, error_text, eventually, items, rows, text, text_rows, Rng};
use redis::{Cmd, Value};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread::{sleep, Scope, ScopedJoinHandle};
use std::time::Duration;

const CLAIM_MS: usize = 250;
/// How long to wait for something to happen at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the janitor grants a message in processing that nobody watches.
const GRACE_MS: f64 = 400.0;

/// The worker is gone, with all it knew.
struct Gone;

/// The workers of one namespace.
pub struct Workers<'scope> {
    pub ledger: Arc<Ledger>,
    keys: Keys,
    dial: Arc<Dial<'scope>>,
    threads: Vec<ScopedJoinHandle<'scope, ()>>,
}

impl<'scope> Workers<'scope> {
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        namespace: &str,
        habits: &Habits,
        rng: &mut Rng,
        dial: Arc<Dial<'scope>>,
    ) -> Workers<'scope> {
        let ledger = Arc::new(Ledger::new(habits.style));
        let mut workers = Workers {
            ledger,
            keys: Keys::of(namespace),
            dial,
            threads: Vec::new(),
        };
        for number in 0..habits.producers {
            workers.spawn(scope, habits, rng.fork(), move |w| w.produce(number));
        }
        for _ in 0..habits.consumers {
            match habits.style {
                Style::Leases => workers.spawn(scope, habits, rng.fork(), Worker::consume_under_leases),
                Style::Plain => workers.spawn(scope, habits, rng.fork(), Worker::consume_plainly),
            }
        }
        workers.spawn(scope, habits, rng.fork(), Worker::tick);
        workers.spawn(scope, habits, rng.fork(), Worker::reap);
        workers
    }

    fn spawn<'env>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
        habits: &Habits,
        rng: Rng,
        run: impl Fn(&mut Worker<'scope>) + Send + 'scope,
    ) {
        let mut worker = Worker {
            keys: self.keys.clone(),
            habits: habits.clone(),
            ledger: self.ledger.clone(),
            dial: self.dial.clone(),
            link: None,
            rng,
        };
        self.threads.push(scope.spawn(move || run(&mut worker)));
    }

    /// Lets them work until enough has happened to mean something, however slow the machine is.
    #[track_caller]
    pub fn go_on_until(&self, enough: impl Fn(&Report) -> bool) {
        if !eventually(PATIENCE, || enough(&self.ledger.report())) {
            panic!("too little happens to mean anything: {}", self.ledger.report());
        }
    }

    /// Nobody publishes or dies any more, and the rest is worked off; false if something stays.
    pub fn drain(&self, within: Duration) -> bool {
        self.ledger.producing.store(false, Ordering::Relaxed);
        self.ledger.dying.store(false, Ordering::Relaxed);
        let drained = eventually(within, || {
            sleep(Duration::from_millis(20));
            self.left().is_some_and(|left| left.is_empty())
        });
        self.ledger.working.store(false, Ordering::Relaxed);
        drained
    }

    /// Everybody stops at once, whatever is left.
    pub fn stop(mut self) -> Arc<Ledger> {
        self.ledger.producing.store(false, Ordering::Relaxed);
        self.ledger.working.store(false, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().expect("a worker ends");
        }
        self.ledger.clone()
    }

    /// Waits for the threads, and complains about what is left in the keys.
    pub fn finish(mut self, within: Duration) -> Arc<Ledger> {
        let drained = self.drain(within);
        let left = self.left().unwrap_or_else(|| vec!["no connection".into()]);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().expect("a worker ends");
        }
        if !drained {
            self.ledger.complain(format!("not drained: {}", left.join(", ")));
        }
        self.ledger.clone()
    }

    /// Keys that still hold something, with their sizes.
    fn left(&self) -> Option<Vec<String>> {
        let mut link = (self.dial)()?;
        let mut sizes = vec![
            ("HLEN", self.keys.payloads.clone()),
            ("ZCARD", self.keys.delays.clone()),
            ("ZCARD", self.keys.expires.clone()),
            ("LLEN", self.keys.dlq.clone()),
            ("HLEN", self.keys.dlq_map.clone()),
        ];
        for queue in &self.keys.queues {
            sizes.push(("LLEN", pending(queue)));
            sizes.push(("LLEN", processing(queue)));
        }
        let mut left = Vec::new();
        for (how, key) in sizes {
            match link.call(&command!(how, &key)).ok()? {
                Value::Int(0) => {}
                size => left.push(format!("{key}: {}", text(size))),
            }
        }
        Some(left)
    }
}

/// A test that fails half way must not wait for its workers for ever.
impl Drop for Workers<'_> {
    fn drop(&mut self) {
        self.ledger.producing.store(false, Ordering::Relaxed);
        self.ledger.working.store(false, Ordering::Relaxed);
    }
}

struct Worker<'a> {
    keys: Keys,
    habits: Habits,
    ledger: Arc<Ledger>,
    dial: Arc<Dial<'a>>,
    link: Option<Box<dyn Link>>,
    rng: Rng,
}

impl Worker<'_> {
    /// Repeats a step; after a failure or a death with a new connection.
    fn steps(&mut self, goes_on: impl Fn(&Ledger) -> bool, step: impl Fn(&mut Self) -> Result<(), Gone>) {
        while goes_on(&self.ledger.clone()) {
            if self.link.is_none() {
                self.link = (self.dial)();
                if self.link.is_none() {
                    sleep(Duration::from_millis(5));
                    continue;
                }
            }
            if step(self).is_err() {
                self.link = None;
                sleep(Duration::from_millis(2));
            }
        }
    }

    /// Calls a command. A reply is a reply; 'not now' and NOMSG are errors of this one call; all else ends the worker.
    fn call(&mut self, command: &Cmd) -> Result<Result<Value, String>, Gone> {
        let result = self.link.as_mut().ok_or(Gone)?.call(command);
        match result {
            Ok(value) => Ok(Ok(value)),
            Err(error) => {
                let text = error_text(&error);
                let word = text.split(' ').next().unwrap_or_default().to_string();
                if error.code().is_none() {
                    return Err(Gone);
                }
                if self.habits.not_now.iter().any(|known| text.starts_with(known)) {
                    sleep(Duration::from_millis(5));
                    return Ok(Err(word));
                }
                if word != "NOMSG" {
                    let line = crate::common::line_of(command);
                    self.ledger.complain(format!("{line} gave {text}"));
                }
                Ok(Err(word))
            }
        }
    }

    fn is_sure(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_sure())
    }

    fn confirmed(&mut self) -> bool {
        self.link.as_mut().is_some_and(|link| link.confirmed())
    }

    /// The point between two steps at which a worker may die.
    fn survive(&mut self) -> Result<(), Gone> {
        if self.habits.deaths > 0 && self.ledger.may_die() && self.rng.chance(self.habits.deaths) {
            self.ledger.count(|sum| sum.deaths += 1);
            return Err(Gone);
        }
        Ok(())
    }

    // ---- producers

    fn produce(&mut self, number: usize) {
        let count = std::cell::Cell::new(0usize);
        self.steps(Ledger::is_producing, |w| {
            count.set(count.get() + 1);
            let id = format!("{number}-{:06}", count.get());
            let queue = w.rng.pick(&w.keys.queues.clone()).clone();
            let made = match w.habits.style {
                Style::Leases => w.publish(&id, &queue),
                Style::Plain => w.publish_plainly(&id, &queue),
            };
            let pause = w.rng.below(w.habits.pause.as_micros() as usize + 1);
            sleep(Duration::from_micros(pause as u64));
            made
        });
    }

    fn publish(&mut self, id: &str, queue: &str) -> Result<(), Gone> {
        let keys = self.keys.clone();
        let payload = format!("payload {id}");
        let list = pending(queue);
        let command = match self.rng.below(10) {
            0 => command!("RMQ.PUBLISH", &keys.payloads, list, "URGENT", id, payload),
            1 | 2 => {
                let delay = self.rng.below(60);
                command!("RMQ.SCHEDULE", &keys.payloads, &keys.delays, id, payload, queue, delay)
            }
            3 => return self.publish_several(id, queue),
            _ => command!("RMQ.PUBLISH", &keys.payloads, list, id, payload),
        };
        self.ledger.publishing(id, queue);
        let mut reply = self.call(&command);
        // Half of the producers ask again when they are not sure: publishing is idempotent.
        if reply.is_err() && self.rng.chance(50) {
            self.ledger.publishing_again(id);
            while reply.is_err() && self.ledger.is_working() {
                sleep(Duration::from_millis(5));
                self.link = (self.dial)();
                reply = self.call(&command);
            }
        }
        if reply?.is_ok() && self.confirmed() {
            self.ledger.acknowledged(id);
        }
        Ok(())
    }

    fn publish_several(&mut self, id: &str, queue: &str) -> Result<(), Gone> {
        let ids: Vec<String> = (0..5).map(|n| format!("{id}.{n}")).collect();
        let mut command = command!("RMQ.PUBLISH", &self.keys.payloads, pending(queue));
        for id in &ids {
            self.ledger.publishing(id, queue);
            command.arg(id).arg(format!("payload {id}"));
        }
        if self.call(&command)?.is_ok() && self.confirmed() {
            for id in &ids {
                self.ledger.acknowledged(id);
            }
        }
        Ok(())
    }

    /// As mx-rmq's producer scripts do it: the deadline counts from publishing.
    fn publish_plainly(&mut self, id: &str, queue: &str) -> Result<(), Gone> {
        const NOW: &str = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], ARGV[1]..':queue', ARGV[3]) \
             redis.call('ZADD', KEYS[3], ARGV[4], ARGV[1]) redis.call('LPUSH', KEYS[2], ARGV[1]) return 'OK'";
        const LATER: &str = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], ARGV[1]..':queue', ARGV[3]) \
             redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1]) return 'OK'";
        self.ledger.publishing(id, queue);
        let payload = format!("payload {id}");
        let keys = self.keys.clone();
        let command = if self.rng.chance(80) {
            let deadline = (clock_ms() + self.rng.range(100..1500) as f64).round();
            let list = pending(queue);
            command!(
                "EVAL",
                NOW,
                3,
                &keys.payloads,
                list,
                &keys.expires,
                id,
                payload,
                queue,
                deadline
            )
        } else {
            let due = (clock_ms() + self.rng.range(0..60) as f64).round();
            command!("EVAL", LATER, 2, &keys.payloads, &keys.delays, id, payload, queue, due)
        };
        if self.call(&command)?.is_ok() && self.confirmed() {
            self.ledger.acknowledged(id);
        }
        Ok(())
    }

    // ---- consumers with leases

    fn consume_under_leases(&mut self) {
        self.steps(Ledger::is_working, |w| {
            let keys = w.keys.clone();
            let queue = w.rng.pick(&keys.queues).clone();
            let lease_ms = w.rng.range(60..300);
            let mut reserve = command!(
                "RMQ.RESERVE",
                pending(&queue),
                processing(&queue),
                &keys.payloads,
                &keys.expires,
                lease_ms
            );
            if w.rng.chance(30) {
                reserve.arg("COUNT").arg(w.rng.range(1..6));
            }
            if w.rng.chance(60) {
                reserve.arg("BLOCK").arg(w.rng.range(1..40));
            }
            let reply = match w.call(&reserve)? {
                Ok(Value::Nil) => {
                    sleep(Duration::from_millis(2));
                    return Ok(());
                }
                Ok(reply) => reply,
                Err(_) => return Ok(()),
            };
            let at = clock_ms();
            let sure = w.is_sure();
            let from = |until: f64| until - lease_ms as f64;
            let mut held = Vec::new();
            for row in items(reply) {
                let mut row = items(row).into_iter();
                let mut next = || bulk(row.next().expect("id, payload, lease, attempts"));
                let (id, payload, lease, attempts) = (next(), next(), next(), next());
                let id = String::from_utf8(id).expect("an id of ours");
                let lease = String::from_utf8(lease).expect("a lease is text");
                let attempts = String::from_utf8_lossy(&attempts).parse().expect("a number");
                let until: f64 = lease.parse().expect("a lease is a number");
                let delivery = Delivery::new(from(until), at, until, attempts, sure);
                w.ledger.belongs(&id, &queue, "RESERVE");
                w.ledger.delivered(&id, &payload, delivery);
                held.push((id, lease, until));
            }
            if !sure && w.confirmed() {
                held.iter()
                    .for_each(|(id, _, until)| w.ledger.confirmed(id, from(*until)));
            }
            w.survive()?;
            if held.len() > 1 && w.rng.chance(50) {
                return w.ack_all(&queue, &held);
            }
            for (id, lease, until) in held {
                w.work();
                w.survive()?;
                w.settle(&queue, &id, lease, until)?;
                w.survive()?;
            }
            Ok(())
        });
    }

    /// Most work is short; some takes longer than the lease.
    fn work(&mut self) {
        let ms = if self.rng.chance(1) { 320 } else { 0 };
        sleep(Duration::from_millis(ms) + Duration::from_micros(self.rng.below(3000) as u64));
    }

    fn settle(&mut self, queue: &str, id: &str, mut lease: String, mut until: f64) -> Result<(), Gone> {
        let keys = self.keys.clone();
        let list = processing(queue);
        if self.rng.chance(10) {
            let extend = command!("RMQ.EXTEND", &keys.expires, id, &lease, self.rng.range(60..300));
            let was_confirmed = self.ledger.extending(id, until);
            let sent = clock_ms();
            match self.call(&extend)? {
                Ok(Value::Nil) => {
                    self.ledger.extended(id, until, until, was_confirmed);
                    self.ledger.fenced(id, until, sent, clock_ms());
                    return Ok(());
                }
                Ok(renewed) => {
                    lease = text(renewed);
                    let new: f64 = lease.parse().expect("a lease is a number");
                    let confirmed = self.confirmed();
                    self.ledger.extended(id, until, new, was_confirmed && confirmed);
                    until = new;
                }
                Err(_) => return Ok(()),
            }
            self.survive()?;
        }
        let sent;
        let reply = match self.rng.below(100) {
            0..=14 => {
                let delay = self.rng.below(50);
                let mut nack = command!(
                    "RMQ.NACK",
                    &keys.payloads,
                    &keys.delays,
                    &keys.expires,
                    list,
                    id,
                    &lease,
                    delay
                );
                if self.rng.chance(30) {
                    nack.arg("PAYLOAD").arg(format!("payload {id} again"));
                }
                self.ledger.giving_back(id, until, false);
                sent = clock_ms();
                self.call(&nack)?
            }
            15..=17 => {
                let payload = format!("payload {id} dead");
                let letter = command!(
                    "RMQ.DEADLETTER",
                    &keys.dlq_map,
                    &keys.dlq,
                    &keys.expires,
                    &keys.payloads,
                    list,
                    id,
                    payload,
                    queue,
                    "LEASE",
                    &lease
                );
                self.ledger.giving_back(id, until, true);
                sent = clock_ms();
                self.call(&letter)?
            }
            _ => {
                sent = clock_ms();
                let reply = self.call(&command!("RMQ.ACK", &keys.payloads, list, &keys.expires, id, &lease));
                if reply.is_err() {
                    self.ledger.maybe_settled(id);
                }
                let reply = reply?;
                if reply == Ok(Value::Int(1)) {
                    self.settled(&[id.to_string()], sent);
                }
                reply
            }
        };
        if reply == Ok(Value::Int(0)) {
            self.ledger.fenced(id, until, sent, clock_ms());
        }
        Ok(())
    }

    fn settled(&mut self, ids: &[String], sent: f64) {
        let confirmed = self.confirmed();
        for id in ids {
            if confirmed {
                self.ledger.settled(id, sent, clock_ms());
            } else {
                self.ledger.maybe_settled(id);
            }
        }
    }

    fn ack_all(&mut self, queue: &str, held: &[(String, String, f64)]) -> Result<(), Gone> {
        let mut ack = command!("RMQ.ACK", &self.keys.payloads, processing(queue), &self.keys.expires);
        for (id, lease, _) in held {
            ack.arg(id).arg(lease);
        }
        let ids: Vec<String> = held.iter().map(|(id, _, _)| id.clone()).collect();
        let sent = clock_ms();
        let reply = self.call(&ack);
        match reply {
            Ok(Ok(Value::Int(count))) if count as usize == ids.len() => self.settled(&ids, sent),
            // Which of them is not told.
            Ok(Ok(Value::Int(1..))) | Err(Gone) => ids.iter().for_each(|id| self.ledger.maybe_settled(id)),
            _ => {}
        }
        reply.map(|_| ())
    }

    // ---- consumers with plain commands

    fn consume_plainly(&mut self) {
        self.steps(Ledger::is_working, |w| {
            let keys = w.keys.clone();
            let queue = w.rng.pick(&keys.queues).clone();
            let list = processing(&queue);
            let taken = w.call(&command!("BLMOVE", pending(&queue), &list, "RIGHT", "LEFT", "0.03"))?;
            let id = match taken {
                Ok(Value::Nil) | Err(_) => return Ok(()),
                Ok(id) => text(id),
            };
            w.survive()?;
            let complete = command!("RMQ.COMPLETE", &keys.payloads, &list, &keys.expires, &id);
            let asked = clock_ms();
            let payload = match w.call(&command!("HGET", &keys.payloads, &id))? {
                // It was completed while it waited; only the id is left.
                Ok(Value::Nil) => return w.call(&complete).map(|_| ()),
                Ok(payload) => bulk(payload),
                Err(_) => return Ok(()),
            };
            w.survive()?;
            let until = (clock_ms() + w.rng.range(60..300) as f64).round();
            if w.call(&command!("ZADD", &keys.expires, until, &id))?.is_err() {
                return Ok(());
            }
            let sure = w.is_sure();
            w.ledger.belongs(&id, &queue, "BLMOVE");
            // A settled message has no payload, so the moment to compare with is that of HGET.
            let delivery = Delivery::new(asked, clock_ms(), until, 0, sure);
            w.ledger.delivered(&id, &payload, delivery);
            if !sure && w.confirmed() {
                w.ledger.confirmed(&id, asked);
            }
            w.survive()?;
            w.work();
            w.survive()?;
            match w.rng.below(100) {
                0..=14 => {
                    let delay = format!("0.0{}", w.rng.below(50));
                    w.retry(&queue, &id, payload, &delay)?;
                }
                15..=17 => {
                    let parse_error = command!(
                        "RMQ.PARSEERR",
                        &keys.errors,
                        &keys.error_queue,
                        &list,
                        &keys.expires,
                        &keys.payloads,
                        &id,
                        &payload,
                        &queue,
                        "no JSON",
                        clock_ms().round(),
                        1,
                        100
                    );
                    w.settle_by(&parse_error, &id)?;
                }
                _ => w.settle_by(&complete, &id)?,
            }
            w.survive()
        });
    }

    /// COMPLETE or PARSEERR: the message leaves the system.
    fn settle_by(&mut self, command: &Cmd, id: &str) -> Result<(), Gone> {
        let sent = clock_ms();
        match self.call(command) {
            Ok(Ok(_)) => self.settled(&[id.to_string()], sent),
            Ok(Err(_)) => {}
            Err(Gone) => {
                self.ledger.maybe_settled(id);
                return Err(Gone);
            }
        }
        Ok(())
    }

    fn retry(&mut self, queue: &str, id: &str, payload: Vec<u8>, delay: &str) -> Result<(), Gone> {
        let keys = &self.keys;
        let list = processing(queue);
        let retry = command!(
            "RMQ.RETRY",
            &keys.payloads,
            &keys.delays,
            &keys.expires,
            list,
            id,
            payload,
            delay
        );
        let sent = clock_ms();
        self.ledger.retrying(id, sent);
        if self.call(&retry)?.is_ok() {
            self.ledger.retried(id, sent, clock_ms());
        }
        Ok(())
    }

    // ---- ticker and reaper

    fn tick(&mut self) {
        self.steps(Ledger::is_working, |w| {
            let keys = w.keys.clone();
            let batch = w.rng.range(1..100);
            let mut moved = vec![w.call(&command!("RMQ.DELAYTICK", &keys.delays, &keys.payloads, batch))?];
            if w.habits.style == Style::Leases && w.rng.chance(20) {
                moved.push(w.call(&command!(
                    "RMQ.REDRIVE",
                    &keys.dlq,
                    &keys.dlq_map,
                    &keys.payloads,
                    batch
                ))?);
            }
            for row in moved.into_iter().flatten().flat_map(text_rows) {
                w.ledger.belongs(&row[0], &row[1], "the ticker");
            }
            sleep(Duration::from_millis(10));
            Ok(())
        });
    }

    fn reap(&mut self) {
        self.steps(Ledger::is_working, |w| {
            let keys = w.keys.clone();
            if w.habits.style == Style::Plain {
                w.watch_the_unwatched()?;
            }
            let sent = clock_ms();
            let batch = w.rng.range(1..50);
            let timeouts = command!(
                "RMQ.TIMEOUTS",
                &keys.expires,
                &keys.payloads,
                "*",
                batch,
                "CLAIM",
                CLAIM_MS
            );
            let Ok(stuck) = w.call(&timeouts)? else {
                return Ok(());
            };
            let now = clock_ms();
            for row in rows(stuck) {
                let [id, payload, queue] = <[_; 3]>::try_from(row).expect("id, payload, queue");
                let (id, queue) = (lossy(&id), lossy(&queue));
                w.ledger.belongs(&id, &queue, "TIMEOUTS");
                w.ledger.reclaimed(&id, sent, now);
                w.survive()?;
                w.retry(&queue, &id, payload, "0.005")?;
            }
            w.survive()?;
            sleep(Duration::from_millis(20));
            Ok(())
        });
    }

    /// Between BLMOVE and ZADD a message is in processing without a deadline, and if its consumer dies there, TIMEOUTS
    /// never hears of it. RESERVE has no such window; with BLMOVE somebody has to look, as here.
    fn watch_the_unwatched(&mut self) -> Result<(), Gone> {
        let keys = self.keys.clone();
        for queue in &keys.queues {
            let Ok(ids) = self.call(&command!("LRANGE", processing(queue), 0, -1))? else {
                continue;
            };
            for id in items(ids).into_iter().map(text) {
                let there = self.call(&command!("HEXISTS", &keys.payloads, &id))?;
                if there == Ok(Value::Int(0)) {
                    self.call(&command!(
                        "RMQ.COMPLETE",
                        &keys.payloads,
                        processing(queue),
                        &keys.expires,
                        &id
                    ))?
                    .ok();
                } else {
                    let deadline = (clock_ms() + GRACE_MS).round();
                    self.call(&command!("ZADD", &keys.expires, "NX", deadline, &id))?.ok();
                }
            }
        }
        Ok(())
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
