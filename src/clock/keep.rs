//! Keeping a namespace's time: leases that have run out are taken back, delayed messages that are due become pending. A
//! RESERVE does it, and a timer while a client waits.

use super::due::{Due, PUT_OFF_MS};
use super::overdue::{Expired, Overdue};
use super::{is_lease, Now};
use crate::dead::{DeadLetters, Death};
use crate::error::Error;
use crate::lists::{Lists, PENDING};
use crate::message::{attempts_field, forget_fields};
use crate::namespace::Namespace;
use crate::policy::Policy;
use crate::receipt::Attempts;
use crate::redis::list::End;
use crate::redis::{HashKey, OwnedStr, ZsetKey};
use crate::skipped::Reason;
use crate::stats::{self, Counter};
use crate::traffic::{self, Event};

/// At most so many ids in one step that are dead letters already: each needs a search of dlq.
const SECOND_DEATHS: usize = 4;
/// Messages of either kind in one step, so that no step blocks the server for long.
const STEP: usize = 100;

const LEASE_RAN_OUT: &[u8] = b"lease ran out";

/// The keys that keeping the time needs.
pub struct Keys<'c> {
    pub payloads: HashKey<'c>,
    pub expires: ZsetKey<'c>,
    pub delays: ZsetKey<'c>,
    pub queues: HashKey<'c>,
    pub pending: Lists<'c>,
    pub processing: Lists<'c>,
}

/// What becomes of a message whose lease ran out.
struct Returned<'a> {
    message: &'a Expired,
    attempts: OwnedStr,
    fate: Fate,
}

enum Fate {
    /// To the right of pending, the number of its queue there.
    Pending(usize),
    Dead {
        payload: OwnedStr,
        death: Vec<u8>,
    },
    /// This key, which it would go to, cannot be used.
    PutOff(Vec<u8>),
    /// Left to the next step.
    Later,
}

impl<'c> Keys<'c> {
    pub fn open(ns: &Namespace<'c>) -> Result<Self, Error> {
        let keys = Keys {
            payloads: ns.payloads()?,
            expires: ns.expires()?,
            delays: ns.delays()?,
            queues: ns.queues()?,
            pending: Lists::pending_of(ns),
            processing: Lists::processing_of(ns),
        };
        let all_exist = keys.payloads.exists() && keys.expires.exists() && keys.delays.exists() && keys.queues.exists();
        ns.check_slot(!all_exist)?;
        Ok(keys)
    }

    /// One step of at most `STEP` messages of either kind. Returns whether more may be due already.
    pub fn keep_time(&mut self, ns: &Namespace<'c>, now: Now) -> Result<bool, Error> {
        let overdue = Overdue::find(&self.expires, &self.payloads, &mut self.processing, now.exact_ms(), STEP)?;
        let due = Due::find(&self.delays, &self.payloads, &mut self.pending, now.exact_ms(), STEP)?;
        let (returned, mut dead) = self.decide(ns, &overdue, now)?;

        self.take_back(&overdue, &returned, dead.as_mut(), now);
        due.move_to(&mut self.pending, &mut self.delays, now);
        self.pending.register_created(&mut self.queues);
        let later = returned.iter().any(|back| matches!(back.fate, Fate::Later));
        let overdue = overdue.messages.len() + overdue.stale.len() + overdue.put_off.len();
        Ok(later || overdue >= STEP || due.len() >= STEP)
    }

    /// Checks everything that taking back needs.
    fn decide<'a>(
        &mut self,
        ns: &Namespace<'c>,
        overdue: &'a Overdue,
        now: Now,
    ) -> Result<(Vec<Returned<'a>>, Option<DeadLetters<'c>>), Error> {
        let (mut dead, mut unusable): (Option<DeadLetters>, _) = (None, Vec::new());
        let mut second_deaths = 0;
        let mut returned = Vec::new();
        for message in overdue.messages.iter().filter(|message| message.in_processing) {
            let id = message.id.as_ref();
            let queue = self.processing.name(message.queue);
            let short = OwnedStr::new(ns.names.short(queue.bytes()).unwrap_or_default());
            let policy = Policy::of(&self.queues, short.as_ref(), ns.names.default.as_ref());
            let field = self.payloads.get(attempts_field(id).as_ref());
            let before = Attempts::of(field.as_ref());
            let micros = ((message.deadline * 1000.0) as i64).max(0);
            let attempts = Attempts { micros, error: Some(LEASE_RAN_OUT), ..before };
            let fate = match policy.is_last(before.count) {
                true => {
                    if dead.is_none() {
                        match ns.dead_letters_of_server() {
                            Ok(letters) => dead = Some(letters),
                            Err(Error::KeyWrongType { key, .. } | Error::KeyInUse(key)) => unusable = key,
                            Err(error) => return Err(error),
                        }
                    }
                    if dead.as_ref().is_some_and(|dead| dead.map.has(id)) {
                        second_deaths += 1;
                    }
                    let payload = self.payloads.get(id).filter(|_| dead.is_some());
                    // The reason says that a lease ran out; what went wrong before is worth more.
                    let error = before.error.filter(|error| !error.is_empty()).unwrap_or(LEASE_RAN_OUT);
                    let death = Death { reason: "lease", error, attempts: before.count, at: now.ms() };
                    match payload {
                        _ if second_deaths > SECOND_DEATHS => Fate::Later,
                        Some(payload) => Fate::Dead { payload, death: death.to_json() },
                        None => Fate::PutOff(unusable.clone()),
                    }
                }
                false => match self.pending.find(OwnedStr::retain(queue))? {
                    queue if self.pending.is_usable(queue) => Fate::Pending(queue),
                    _ => Fate::PutOff([queue.bytes(), PENDING].concat()),
                },
            };
            returned.push(Returned { message, attempts: OwnedStr::new(attempts.text().bytes()), fate });
        }
        Ok((returned, dead))
    }

    fn take_back(&mut self, overdue: &Overdue, returned: &[Returned], dead: Option<&mut DeadLetters>, now: Now) {
        let leaves = |id: &OwnedStr| {
            let stays = |back: &Returned| {
                matches!(back.fate, Fate::PutOff(_) | Fate::Later) && back.message.id.bytes() == id.bytes()
            };
            !returned.iter().any(stays)
        };
        overdue.take_out_those(&mut self.processing, |message| leaves(&message.id));
        let mut dead = dead;
        let (mut died, mut expired) = (Vec::new(), 0);
        // The earliest deadline is taken first, so it is pushed last.
        for back in returned.iter().rev() {
            let id = back.message.id.as_ref();
            match (&back.fate, &mut dead) {
                (Fate::Pending(queue), _) => {
                    self.pending.push(*queue, End::Right, id);
                    self.payloads.set(attempts_field(id).as_ref(), back.attempts.as_ref());
                    self.count(back, Event::Expired);
                    expired += 1;
                }
                (Fate::Dead { payload, death }, Some(dead)) => {
                    let queue = self.processing.name(back.message.queue);
                    dead.bury(id, payload.as_ref(), Some(queue), Some(death));
                    died.push(id);
                    self.count(back, Event::Expired);
                    self.count(back, Event::Died);
                    expired += 1;
                }
                _ => (),
            }
        }
        forget_fields(&mut self.payloads, &died);
        let leaving = overdue.messages.iter().map(|message| &message.id).filter(|id| leaves(id));
        for id in leaving.chain(&overdue.stale) {
            self.expires.remove(id.as_ref());
        }
        let stuck = || returned.iter().filter(|back| matches!(back.fate, Fate::PutOff(_)));
        let unknown = overdue.put_off.iter().map(|(id, deadline)| (id, *deadline));
        for (id, deadline) in stuck().map(|back| (&back.message.id, back.message.deadline)).chain(unknown) {
            // Deadlines of scripts are whole numbers, those of leases are not, and it stays that way.
            let later = match is_lease(deadline) {
                true => now.lease(PUT_OFF_MS),
                false => (now.ms() + PUT_OFF_MS) as f64,
            };
            self.expires.add(id.as_ref(), later);
        }
        stats::add(Counter::Expired, expired);
        stats::add(Counter::Died, died.len());
        stats::add(Counter::Stale, overdue.messages.len() - returned.len() + overdue.stale.len());
        self.processing.report_skipped(overdue.put_off.len());
        for back in stuck() {
            if let Fate::PutOff(key) = &back.fate {
                Reason::UnusableKey.report(1, || key.clone());
            }
        }
    }

    fn count(&self, back: &Returned, event: Event) {
        traffic::count(self.processing.call(), self.processing.name(back.message.queue).bytes(), event, 1);
    }

    /// When the next message of either kind is due, in Unix ms.
    pub fn next_due(&self) -> Option<f64> {
        let first = |zset: &ZsetKey| zset.first().map(|(_, score)| score);
        match (first(&self.expires), first(&self.delays)) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
}
