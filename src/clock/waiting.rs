//! Clients that wait, and their timers. While a client waits in a namespace there is one timer for it: it
//! fires when the earliest delay or lease is due, and at least once a second, to notice what plain commands and scripts
//! have put there. It keeps the time, which fills the pending lists, and the server then serves the clients.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::keep::Keys;
use super::Now;
use crate::error::Error;
use crate::namespace::Namespace;
use crate::policy::Policy;
use crate::redis::timer::{Timer, Timers};
use crate::redis::{blocking, server, Invocation, ListKey, OwnedStr};

/// What plain commands have put into the keys is noticed within this time.
const LOOK_EVERY_MS: i64 = 1000;
/// After this time a timer tries again where the server refuses writes.
const RETRY_MS: i64 = 100;

/// The clients that wait in one namespace of one database.
struct Waiting {
    db: i32,
    namespace: Vec<u8>,
    clients: usize,
    /// By its short name, each queue that a client waits for.
    queues: HashMap<Vec<u8>, Queue>,
    timer: Option<Timer>,
    /// When the timer fires, Unix ms.
    fires_at: i64,
}

#[derive(Default)]
struct Queue {
    clients: usize,
    /// The numbers of those that have no reply yet, in the order in which they came.
    line: BTreeSet<u64>,
}

#[derive(Default)]
struct Waiters {
    by_token: HashMap<usize, Waiting>,
    tokens: HashMap<(i32, Vec<u8>), usize>,
    last_token: usize,
    last_number: u64,
    /// The worst lateness of a timer since INFO last showed it.
    worst_lateness_ms: i64,
}

lazy_static::lazy_static! {
    static ref WAITERS: Mutex<Waiters> = Mutex::default();
}

fn waiters() -> MutexGuard<'static, Waiters> {
    WAITERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One waiting client.
pub struct Waiter {
    token: usize,
    /// Whoever came earlier has a lower one.
    number: u64,
    queues: Vec<Vec<u8>>,
}

impl Waiter {
    /// A client begins to wait for these queues; the next message is due at `next_due`, if any is delayed or leased.
    pub fn begin(ns: &Namespace, queues: Vec<Vec<u8>>, next_due: Option<f64>) -> Waiter {
        let key = (ns.call.selected_db(), ns.names.namespace.clone());
        let mut waiters = waiters();
        let token = match waiters.tokens.get(&key) {
            Some(token) => *token,
            None => {
                waiters.last_token += 1;
                let token = waiters.last_token;
                waiters.tokens.insert(key.clone(), token);
                let (db, namespace) = key;
                let queues = HashMap::new();
                let waiting = Waiting { db, namespace, clients: 0, queues, timer: None, fires_at: i64::MAX };
                waiters.by_token.insert(token, waiting);
                token
            }
        };
        waiters.last_number += 1;
        let number = waiters.last_number;
        if let Some(waiting) = waiters.by_token.get_mut(&token) {
            waiting.clients += 1;
            for short in &queues {
                let queue = waiting.queues.entry(short.clone()).or_default();
                queue.clients += 1;
                queue.line.insert(number);
            }
            waiting.fire_at(ns.call.timers(), token, next_look(next_due));
        }
        Waiter { token, number, queues }
    }

    /// Whether a client that came earlier is still to be served from this queue.
    pub fn is_behind_others(&self, short: &[u8]) -> bool {
        let waiters = waiters();
        let queue = waiters.by_token.get(&self.token).and_then(|waiting| waiting.queues.get(short));
        queue.and_then(|queue| queue.line.first()).is_some_and(|first| *first < self.number)
    }

    /// The client has its reply, so nobody stays behind it any more.
    pub fn leave_line(&self) {
        let mut waiters = waiters();
        let Some(waiting) = waiters.by_token.get_mut(&self.token) else { return };
        for short in &self.queues {
            if let Some(queue) = waiting.queues.get_mut(short) {
                queue.line.remove(&self.number);
            }
        }
    }

    pub fn end(&self, timers: Timers) {
        let mut waiters = waiters();
        let Some(waiting) = waiters.by_token.get_mut(&self.token) else { return };
        waiting.clients -= 1;
        for short in &self.queues {
            if let Some(queue) = waiting.queues.get_mut(short) {
                queue.clients -= 1;
                queue.line.remove(&self.number);
                if queue.clients == 0 {
                    waiting.queues.remove(short);
                }
            }
        }
        if waiting.clients == 0 {
            let key = (waiting.db, std::mem::take(&mut waiting.namespace));
            if let Some(timer) = waiting.timer.take() {
                timers.stop(timer);
            }
            waiters.by_token.remove(&self.token);
            waiters.tokens.remove(&key);
        }
    }
}

impl Waiting {
    /// Makes sure that the timer fires at this time or earlier.
    fn fire_at(&mut self, timers: Timers, token: usize, unix_ms: i64) {
        if self.timer.is_some() && self.fires_at <= unix_ms {
            return;
        }
        if let Some(timer) = self.timer.take() {
            timers.stop(timer);
        }
        // A millisecond later, so that it never fires too early by a fraction.
        let now = Now::read().ms();
        let after_ms = unix_ms.saturating_add(1).saturating_sub(now).clamp(0, LOOK_EVERY_MS);
        self.timer = Some(timers.start(after_ms, token));
        self.fires_at = unix_ms.max(now);
    }
}

fn next_look(next_due: Option<f64>) -> i64 {
    let latest = Now::read().ms() + LOOK_EVERY_MS;
    next_due.map_or(latest, |due| latest.min(due as i64))
}

/// Something becomes due at this time.
pub fn due_at(call: &Invocation, namespace: &[u8], unix_ms: i64) {
    let mut waiters = waiters();
    if waiters.by_token.is_empty() {
        return;
    }
    let key = (call.selected_db(), namespace.to_vec());
    let Some(token) = waiters.tokens.get(&key).copied() else { return };
    if let Some(waiting) = waiters.by_token.get_mut(&token) {
        waiting.fire_at(call.timers(), token, unix_ms);
    }
}

/// A timer has fired: keeps the time of its namespace, and starts the next one while a client waits.
pub fn fired(call: &Invocation, token: usize) -> Result<(), Error> {
    let now = Now::read();
    let (namespace, queues) = {
        let mut waiters = waiters();
        let Some(waiting) = waiters.by_token.get_mut(&token) else { return Ok(()) };
        waiting.timer = None;
        let lateness = now.ms().saturating_sub(waiting.fires_at);
        let found = (waiting.namespace.clone(), waiting.queues.keys().cloned().collect::<Vec<_>>());
        // Whatever happens now, the timer fires again.
        waiting.fire_at(call.timers(), token, now.ms() + LOOK_EVERY_MS);
        waiters.worst_lateness_ms = waiters.worst_lateness_ms.max(lateness);
        found
    };
    let next = look(call, &namespace, &queues, now);
    if let Some(waiting) = waiters().by_token.get_mut(&token) {
        waiting.fire_at(call.timers(), token, next.unwrap_or_else(|_| now.ms() + RETRY_MS));
    }
    Ok(())
}

/// Keeps the time, and signals lists that clients wait for although they are not empty. Returns when to look again.
fn look(call: &Invocation, namespace: &[u8], queues: &[Vec<u8>], now: Now) -> Result<i64, Error> {
    let ns = Namespace::of_server(call, namespace);
    // Before any key is open: in a timer Redis 7.0 reads the clock anew, and a key that has a TTL may expire at any look.
    if !call.may_write_to(ns.names.expires.as_ref()) || !ns.is_here() {
        return Ok(now.ms() + RETRY_MS);
    }
    let mut keys = Keys::open(&ns)?;
    let more = keys.keep_time(&ns, now)?;
    let has_payloads = keys.payloads.exists();
    let next = match (more, has_payloads) {
        (true, _) => now.ms(),
        (false, true) => next_look(keys.next_due()),
        // What is due stays, and is looked at once a second.
        (false, false) => next_look(None),
    };
    let is_waited_for = |short: &&Vec<u8>| {
        let name = OwnedStr::new(short);
        !Policy::of(&keys.queues, name.as_ref(), ns.names.default.as_ref()).paused
    };
    let waited_for: Vec<&Vec<u8>> = queues.iter().filter(is_waited_for).collect();
    drop(keys);
    if has_payloads {
        wake(&ns, waited_for.into_iter().map(|short| &short[..]));
    }
    // Also of paused queues, whose lists may have been filled.
    if !server().resets_current_client && has_payloads && queues.iter().any(|short| is_filled(&ns, short)) {
        blocking::be_asked_last(call, ns.names.payloads.as_ref());
    }
    Ok(next)
}

/// Makes the server serve the clients that wait for these queues, where a message is pending.
pub fn wake<'a>(ns: &Namespace, queues: impl Iterator<Item = &'a [u8]>) {
    for short in queues {
        if is_filled(ns, short) {
            ns.call.signal_key_as_ready(ns.names.of_queue(short).pending.as_ref());
        }
    }
}

fn is_filled(ns: &Namespace, short: &[u8]) -> bool {
    ListKey::open_named(ns.call, &ns.names.of_queue(short).pending).is_ok_and(|list| list.len() > 0)
}

/// The queues of a namespace that clients wait for, by short name, and how many wait for each.
pub fn queues_waited_for(ns: &Namespace) -> HashMap<Vec<u8>, usize> {
    let waiters = waiters();
    let key = (ns.call.selected_db(), ns.names.namespace.clone());
    let waiting = waiters.tokens.get(&key).and_then(|token| waiters.by_token.get(token));
    let clients = |(short, queue): (&Vec<u8>, &Queue)| (short.clone(), queue.clients);
    waiting.map_or_else(HashMap::new, |waiting| waiting.queues.iter().map(clients).collect())
}

/// Whether a client is still to be served from this queue.
pub fn is_waited_for(ns: &Namespace, short: &[u8]) -> bool {
    let waiters = waiters();
    if waiters.by_token.is_empty() {
        return false;
    }
    let key = (ns.call.selected_db(), ns.names.namespace.clone());
    let waiting = waiters.tokens.get(&key).and_then(|token| waiters.by_token.get(token));
    waiting.and_then(|waiting| waiting.queues.get(short)).is_some_and(|queue| !queue.line.is_empty())
}

/// Waiting clients, timers, and the worst lateness of a timer since the last INFO, in ms.
pub fn gauges() -> [(&'static str, u64); 3] {
    let mut waiters = waiters();
    let clients: usize = waiters.by_token.values().map(|waiting| waiting.clients).sum();
    let timers = waiters.by_token.values().filter(|waiting| waiting.timer.is_some()).count();
    let lateness = std::mem::take(&mut waiters.worst_lateness_ms).max(0);
    [("waiting_clients", clients as u64), ("timers", timers as u64), ("worst_wakeup_lateness_ms", lateness as u64)]
}
