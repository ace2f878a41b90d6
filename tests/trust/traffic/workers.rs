//! The workers. Each runs in its own thread, in steps; a step that fails, or at which the worker dies, makes it forget
//! all it knew and begin again with a new connection, as a new process would.

use super::ledger::{Delivery, GiveBack, Ledger, Report, ATTEMPTS};
use super::{clock_ms, pending, processing, Dial, Habits, Keys, Link, Style, DRAIN, QUEUES};
use crate::common::{bulk, command, error_text, eventually, items, rows, text, text_rows, Rng};
use redis::{Cmd, Value};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread::{sleep, Scope, ScopedJoinHandle};
use std::time::Duration;

const CLAIM_MS: usize = 250;
/// How long to wait for something to happen at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// The deadline that the janitor sets for a message in processing that has none.
const GRACE_MS: f64 = 400.0;

/// A field of no message. Where a map is missing as a whole, no id is dropped, also of a message that is gone; so the maps
/// are kept while the rest is worked off.
const KEEPER: &str = "keeper";

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
        let mut workers = Workers { ledger, keys: Keys::of(namespace), dial, threads: Vec::new() };
        for number in 0..habits.producers {
            workers.spawn(scope, habits, rng.fork(), move |w| w.produce(number));
        }
        for _ in 0..habits.consumers {
            match habits.style {
                Style::Queue => workers.spawn(scope, habits, rng.fork(), Worker::consume),
                Style::Plain => workers.spawn(scope, habits, rng.fork(), Worker::consume_plainly),
            }
        }
        match habits.style {
            Style::Queue => workers.spawn(scope, habits, rng.fork(), Worker::administer),
            Style::Plain => {
                workers.spawn(scope, habits, rng.fork(), Worker::tick);
                workers.spawn(scope, habits, rng.fork(), Worker::reap);
            }
        }
        workers
    }

    /// In a namespace that is called like their style.
    pub fn of<'env>(
        scope: &'scope Scope<'scope, 'env>,
        habits: &Habits,
        rng: &mut Rng,
        dial: &Arc<Dial<'scope>>,
    ) -> Workers<'scope> {
        Workers::start(scope, &format!("{:?}", habits.style), habits, rng, dial.clone())
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

    /// Publishing and dying stop, and the rest is worked off; false if something stays.
    pub fn drain(&self, within: Duration) -> bool {
        self.ledger.producing.store(false, Ordering::Relaxed);
        self.ledger.dying.store(false, Ordering::Relaxed);
        let drained = eventually(within, || {
            sleep(Duration::from_millis(20));
            self.keep_maps("HSET", &["x"]).and_then(|()| self.left()).is_some_and(|left| left.is_empty())
        });
        self.ledger.working.store(false, Ordering::Relaxed);
        self.keep_maps("HDEL", &[]);
        drained
    }

    /// All workers stop at once, whatever is left.
    pub fn stop(mut self) -> Arc<Ledger> {
        self.ledger.producing.store(false, Ordering::Relaxed);
        self.ledger.working.store(false, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().expect("a worker ends");
        }
        self.ledger.clone()
    }

    /// Waits for the threads, and fails if anything is left in the keys.
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

    fn keep_maps(&self, how: &str, value: &[&str]) -> Option<()> {
        let mut link = (self.dial)()?;
        for map in [&self.keys.payloads, &self.keys.dlq_map] {
            link.call(&command!(how, map, KEEPER, value)).ok()?;
        }
        Some(())
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
            let kept = how == "HLEN" && link.call(&command!("HEXISTS", &key, KEEPER)).ok()? == Value::Int(1);
            match link.call(&command!(how, &key)).ok()? {
                Value::Int(size) if size == i64::from(kept) => {}
                size => left.push(format!("{key}: {}", text(size))),
            }
        }
        Some(left)
    }
}

/// Everything is worked off, and nothing is lost or unexplained.
#[track_caller]
pub fn finish_all<const N: usize>(worlds: [Workers; N]) -> [Report; N] {
    let ledgers = worlds.map(|workers| workers.finish(DRAIN));
    let reports = ledgers.each_ref().map(|ledger| ledger.report());
    reports.iter().for_each(|report| println!("  {report}"));
    ledgers.iter().for_each(|ledger| ledger.assert_nothing_lost_and_nothing_unexplained());
    reports
}

/// A test that fails must not wait for its workers forever.
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
            let queue = w.rng.below(QUEUES.len());
            let made = match w.habits.style {
                Style::Queue => w.publish(&id, QUEUES[queue]),
                Style::Plain => w.publish_plainly(&id, &w.keys.queues[queue].clone()),
            };
            let pause = w.rng.below(w.habits.pause.as_micros() as usize + 1);
            sleep(Duration::from_micros(pause as u64));
            made
        });
    }

    fn publish(&mut self, id: &str, queue: &str) -> Result<(), Gone> {
        let mut publish = command!("RMQ.PUBLISH", &self.keys.namespace);
        match self.rng.below(10) {
            0 => drop(publish.arg("URGENT")),
            1 | 2 => drop(publish.arg("DELAY").arg(self.rng.below(60))),
            3 => drop(publish.arg("AT").arg(clock_ms() as u64 + self.rng.below(60) as u64)),
            _ => {}
        }
        // ONCE holds also when the message is done before it is published again.
        let once = self.rng.chance(30);
        if once {
            publish.arg("ONCE").arg(600_000);
        }
        let ids: Vec<String> = match self.rng.below(10) {
            0 => (0..5).map(|n| format!("{id}.{n}")).collect(),
            _ => vec![id.to_string()],
        };
        publish.arg("TO").arg(queue);
        for id in &ids {
            publish.arg(id).arg(format!("payload {id}"));
            self.ledger.publishing(id, queue);
        }
        let mut reply = self.call(&publish);
        // Half of the producers ask again when they are not sure.
        if reply.is_err() && self.rng.chance(50) {
            if !once {
                ids.iter().for_each(|id| self.ledger.publishing_again(id));
            }
            while reply.is_err() && self.ledger.is_working() {
                sleep(Duration::from_millis(5));
                self.link = (self.dial)();
                reply = self.call(&publish);
            }
        }
        if reply?.is_ok() && self.confirmed() {
            ids.iter().for_each(|id| self.ledger.acknowledged(id));
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
            command!("EVAL", NOW, 3, &keys.payloads, list, &keys.expires, id, payload, queue, deadline)
        } else {
            let due = (clock_ms() + self.rng.range(0..60) as f64).round();
            command!("EVAL", LATER, 2, &keys.payloads, &keys.delays, id, payload, queue, due)
        };
        if self.call(&command)?.is_ok() && self.confirmed() {
            self.ledger.acknowledged(id);
        }
        Ok(())
    }

    // ---- consumers of queues

    fn consume(&mut self) {
        self.steps(Ledger::is_working, |w| {
            let lease_ms = w.rng.range(60..300);
            let mut reserve = command!("RMQ.RESERVE", &w.keys.namespace, lease_ms);
            if w.rng.chance(30) {
                reserve.arg("COUNT").arg(w.rng.range(1..6));
            }
            let blocks = w.rng.chance(80);
            if blocks {
                reserve.arg("BLOCK").arg(w.rng.range(1..300));
            }
            let mut queues = QUEUES;
            w.rng.shuffle(&mut queues);
            reserve.arg("FROM").arg(&queues[..1 + w.rng.below(QUEUES.len())]);
            let reply = match w.call(&reserve)? {
                Ok(Value::Nil) if blocks => return Ok(()),
                Ok(Value::Nil) => {
                    sleep(Duration::from_millis(2));
                    return Ok(());
                }
                Ok(reply) => reply,
                Err(_) => return Ok(()),
            };
            let at = clock_ms();
            let sure = w.is_sure();
            let held: Vec<Held> = items(reply).into_iter().map(Held::of_row).collect();
            for message in &held {
                let (from, until) = (message.from, message.from + lease_ms as f64);
                w.ledger.belongs(&message.id, &message.queue, "RESERVE");
                let delivery = Delivery::new(from, at, until, message.attempts, sure);
                w.ledger.delivered(&message.id, &message.payload, delivery);
            }
            if !sure && w.confirmed() {
                held.iter().for_each(|message| w.ledger.confirmed(&message.id, message.from));
            }
            w.survive()?;
            if held.len() > 1 && w.rng.chance(50) {
                return w.ack_all(&held);
            }
            for message in held {
                w.work();
                w.survive()?;
                w.settle(&message)?;
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

    fn settle(&mut self, message: &Held) -> Result<(), Gone> {
        let Held { id, receipt, from, .. } = message;
        let ns = self.keys.namespace.clone();
        if self.rng.chance(10) {
            let lease_ms = self.rng.range(60..300);
            let was_confirmed = self.ledger.extending(id, *from);
            let sent = clock_ms();
            let reply = self.call(&command!("RMQ.EXTEND", &ns, lease_ms, id, receipt))?;
            let Ok(reply) = reply else { return Ok(()) };
            if items(reply) == [Value::Int(0)] {
                self.ledger.extended(id, *from, None, was_confirmed);
                self.ledger.fenced(id, *from, clock_ms());
                return Ok(());
            }
            let confirmed = self.confirmed();
            self.ledger.extended(id, *from, Some(sent + lease_ms as f64), was_confirmed && confirmed);
            self.survive()?;
        }
        let kind = self.rng.below(100);
        if kind >= 22 {
            return self.ack_all(std::slice::from_ref(message));
        }
        let mut call = match kind {
            0..=17 => command!("RMQ.NACK", &ns, id, receipt),
            _ => command!("RMQ.RELEASE", &ns, id, receipt),
        };
        match kind {
            // By the policy's backoff.
            0..=4 => drop(call.arg("ERROR").arg("no route")),
            5..=14 => drop(call.arg("DELAY").arg(self.rng.below(50))),
            15..=17 => drop(call.arg("DEAD").arg("ERROR").arg("no hope")),
            _ => {}
        }
        if kind < 18 && self.rng.chance(30) {
            call.arg("PAYLOAD").arg(format!("payload {id} again"));
        }
        // The receipt may have been refused long ago; then nothing is given back.
        let how = match kind {
            0..=14 => GiveBack::Retry,
            15..=17 => GiveBack::Dead,
            _ => GiveBack::Release,
        };
        self.ledger.giving_back(id, *from, how);
        if matches!(self.call(&call)?, Ok(Value::Nil | Value::Int(0))) {
            self.ledger.fenced(id, *from, clock_ms());
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

    fn ack_all(&mut self, held: &[Held]) -> Result<(), Gone> {
        let mut ack = command!("RMQ.ACK", &self.keys.namespace);
        for message in held {
            ack.arg(&message.id).arg(&message.receipt);
        }
        let ids: Vec<String> = held.iter().map(|message| message.id.clone()).collect();
        let sent = clock_ms();
        let reply = self.call(&ack);
        match (&reply, held) {
            (Ok(Ok(Value::Int(0))), [message]) => self.ledger.fenced(&message.id, message.from, clock_ms()),
            (Ok(Ok(Value::Int(count))), _) if *count as usize == ids.len() => self.settled(&ids, sent),
            // The reply does not say which of them.
            (Ok(Ok(Value::Int(1..))) | Err(Gone), _) => ids.iter().for_each(|id| self.ledger.maybe_settled(id)),
            _ => {}
        }
        reply.map(|_| ())
    }

    /// Sets the policy, stops a queue for a moment now and then, and gives dead letters another chance.
    fn administer(&mut self) {
        self.steps(Ledger::is_working, |w| {
            let ns = w.keys.namespace.clone();
            for queue in QUEUES {
                w.call(&command!("RMQ.POLICY", &ns, queue, "PAUSED", "no"))?.ok();
            }
            w.call(&command!("RMQ.POLICY", &ns, "*", "ATTEMPTS", ATTEMPTS, "BACKOFF", 5, 40))?.ok();
            if w.rng.chance(20) {
                let queue = *w.rng.pick(&QUEUES);
                w.call(&command!("RMQ.POLICY", &ns, queue, "PAUSED", "yes"))?.ok();
            }
            let redrive = command!("RMQ.REDRIVE", &ns, "COUNT", w.rng.range(1..50));
            if let Ok(moved) = w.call(&redrive)? {
                for row in text_rows(moved) {
                    w.ledger.belongs(&row[0], &row[1], "REDRIVE");
                }
            }
            sleep(Duration::from_millis(w.rng.range(10..60) as u64));
            Ok(())
        });
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
                Ok(Value::Nil) => return w.drop_id(&list, &id),
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
                18..=20 => {
                    let letter = command!("RMQ.DEADLETTER", &keys.dlq_map, &keys.dlq, &keys.expires, &keys.payloads);
                    w.retry_by(letter.clone().arg(&list).arg(&id).arg(&payload).arg(&queue), &id, GiveBack::Dead)?;
                }
                _ => w.settle_by(&complete, &id)?,
            }
            w.survive()
        });
    }

    /// Takes an id without message out of processing. In one step with the look at its payload: a dead letter may be redriven
    /// at any time, and its id then is a message again.
    fn drop_id(&mut self, list: &str, id: &str) -> Result<(), Gone> {
        const DROP: &str =
            "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then redis.call('LREM', KEYS[2], 1, ARGV[1]) \
             redis.call('ZREM', KEYS[3], ARGV[1]) end return 'OK'";
        let keys = self.keys.clone();
        self.call(&command!("EVAL", DROP, 3, &keys.payloads, list, &keys.expires, id)).map(|_| ())
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
        let retry = command!("RMQ.RETRY", &keys.payloads, &keys.delays, &keys.expires, list, id, payload, delay);
        self.retry_by(&retry, id, GiveBack::Retry)
    }

    /// RETRY, or DEADLETTER, after which REDRIVE brings the message back.
    fn retry_by(&mut self, command: &Cmd, id: &str, how: GiveBack) -> Result<(), Gone> {
        let sent = clock_ms();
        self.ledger.retrying(id, sent);
        self.ledger.giving_back(id, f64::NAN, how);
        if self.call(command)?.is_ok() {
            self.ledger.retried(id, sent, clock_ms());
        }
        Ok(())
    }

    // ---- ticker and reaper

    fn tick(&mut self) {
        self.steps(Ledger::is_working, |w| {
            let keys = w.keys.clone();
            let batch = w.rng.range(1..100);
            let moved = w.call(&command!("RMQ.DELAYTICK", &keys.delays, &keys.payloads, batch))?;
            for row in moved.into_iter().flat_map(text_rows) {
                w.ledger.belongs(&row[0], &row[1], "the ticker");
            }
            if w.rng.chance(20) {
                w.call(&command!("RMQ.REDRIVE", &keys.namespace, "COUNT", batch))?.ok();
            }
            sleep(Duration::from_millis(10));
            Ok(())
        });
    }

    fn reap(&mut self) {
        self.steps(Ledger::is_working, |w| {
            let keys = w.keys.clone();
            w.watch_the_unwatched()?;
            let sent = clock_ms();
            let batch = w.rng.range(1..50);
            let timeouts = command!("RMQ.TIMEOUTS", &keys.expires, &keys.payloads, "*", batch, "CLAIM", CLAIM_MS);
            let Ok(stuck) = w.call(&timeouts)? else {
                return Ok(());
            };
            for row in rows(stuck) {
                let [id, payload, queue] = <[_; 3]>::try_from(row).expect("id, payload, queue");
                let (id, queue) = (lossy(&id), lossy(&queue));
                w.ledger.belongs(&id, &queue, "TIMEOUTS");
                w.ledger.reclaimed(&id, sent);
                w.survive()?;
                w.retry(&queue, &id, payload, "0.005")?;
            }
            w.survive()?;
            sleep(Duration::from_millis(20));
            Ok(())
        });
    }

    /// Between BLMOVE and ZADD a message is in processing without a deadline, and if its consumer dies there, TIMEOUTS
    /// never reports it. RESERVE has no such window; with BLMOVE a janitor has to look for such messages, as here.
    fn watch_the_unwatched(&mut self) -> Result<(), Gone> {
        let keys = self.keys.clone();
        for queue in &keys.queues {
            let Ok(ids) = self.call(&command!("LRANGE", processing(queue), 0, -1))? else {
                continue;
            };
            for id in items(ids).into_iter().map(text) {
                let there = self.call(&command!("HEXISTS", &keys.payloads, &id))?;
                if there == Ok(Value::Int(0)) {
                    self.drop_id(&processing(queue), &id)?;
                } else {
                    let deadline = (clock_ms() + GRACE_MS).round();
                    self.call(&command!("ZADD", &keys.expires, "NX", deadline, &id))?.ok();
                }
            }
        }
        Ok(())
    }
}

/// A message as RESERVE replied it.
struct Held {
    id: String,
    payload: Vec<u8>,
    receipt: String,
    /// When it was delivered, as the receipt says; in ms.
    from: f64,
    attempts: i64,
    queue: String,
}

impl Held {
    fn of_row(row: Value) -> Held {
        let [id, payload, receipt, attempts, queue] = <[_; 5]>::try_from(items(row)).expect("five fields");
        let receipt = text(receipt);
        let micros: f64 = receipt.split('-').next_back().and_then(|time| time.parse().ok()).expect("a receipt");
        let Value::Int(attempts) = attempts else { panic!("{attempts:?} is no number") };
        Held { id: text(id), payload: bulk(payload), receipt, from: micros / 1000.0, attempts, queue: text(queue) }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
