//! RMQ.RESERVE namespace lease_ms [COUNT n] [BLOCK ms] FROM queue [queue …]
//!
//! Keeps the namespace's time, then takes the oldest messages of the first queue that has any, going on to the next queue
//! until there are enough: into processing, leased, counted, payload fetched, in one step. Replies with one
//! [id, payload, receipt, attempts, queue] per message, or nil. With BLOCK the server holds the client until there is a
//! message; while it waits, a timer keeps the time.

use crate::args::{self, Opt};
use crate::clock::keep::Keys;
use crate::clock::waiting::{self, Waiter};
use crate::clock::{is_lease, Now};
use crate::digits::Digits;
use crate::error::Error;
use crate::hash::IdSet;
use crate::message::{attempts_field, forget_fields, is_field_of_message, queue_field, FIELDS};
use crate::namespace::Namespace;
use crate::policy::Policy;
use crate::processing::Processing;
use crate::receipt::{self, Attempts};
use crate::redis::acl::User;
use crate::redis::blocking::{self, Waits};
use crate::redis::command::{optional, required, several, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::list::End;
use crate::redis::{server, Invocation, ListKey, OwnedStr, StrRef};
use crate::skipped::{report_dropped, Reason};
use crate::stats::{self, Counter};
use crate::traffic::{self, Event};
use smallvec::SmallVec;

pub struct Reserve;

/// What has to follow FROM.
const AT_LEAST_ONE_QUEUE: &str = "at least one queue";
/// Ids without message that one call drops.
const DROPPED_PER_CALL: usize = 1000;
/// Up to this many, the ids that a call takes are compared one by one, which is cheaper than a set of them.
const COMPARED_MAX: usize = 16;
/// Leased ids met in pending that one call looks for in processing: each search may walk the whole list.
const SEARCHES_PER_CALL: usize = 16;

struct Request<'c> {
    namespace: StrRef<'c>,
    lease_ms: i64,
    count: usize,
    /// How long to wait; 0 is for ever.
    block_ms: Option<i64>,
    queues: SmallVec<[StrRef<'c>; 4]>,
}

/// A message that is being taken.
struct Taken {
    id: OwnedStr,
    payload: OwnedStr,
    /// The deliveries before this one, the time and the value that `<id>:attempts` had.
    before: i64,
    micros: i64,
    attempts_field: OwnedStr,
    attempts: Option<OwnedStr>,
    receipt: Digits,
    /// Which of the queues asked for.
    queue: usize,
    /// `<id>:queue`, where it says otherwise.
    queue_field: Option<OwnedStr>,
}

enum Found {
    Messages,
    /// Nothing but ids without message, which are gone now.
    OnlyDropped,
    Nothing,
}

impl Command for Reserve {
    const SPEC: Spec = Spec {
        name: "RMQ.RESERVE",
        summary: "Takes the oldest messages of one or more queues under a lease, waiting for one if asked to.",
        complexity:
            "O(Q+C*log(M)) for Q queues, C messages taken and M leases; plus the same for at most 100 messages that \
                     are due and 100 whose lease has run out",
        flags: "write blocking",
        categories: "write slow blocking",
        args: &[
            NAMESPACE,
            required("lease_ms", Kind::Integer),
            optional("count", Kind::Option("COUNT", ValueType::Integer)),
            optional("block", Kind::Option("BLOCK", ValueType::Integer)),
            several("queue", Kind::Option("FROM", ValueType::Text)),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let request = Request::parse(call)?;
        let now = Now::read();
        let ns = Namespace::of_caller(call, request.namespace)?;
        let queues = request.check_queues(&ns)?;
        let mut keys = Keys::open(&ns)?;
        let lists = open_lists(&mut keys, &queues)?;

        keys.keep_time(&ns, now)?;
        let block_ms = request.block_ms.filter(|_| !call.may_not_block());
        // What the clock has just brought belongs to those who wait for it already.
        let comes_later = block_ms.is_some()
            && request.may_take_from(&ns, &mut keys, &lists, |queue| waiting::is_waited_for(&ns, queue));
        let found = match comes_later {
            true => Found::Nothing,
            false => request.take(&ns, &mut keys, &queues, &lists, now),
        };
        match (found, block_ms) {
            (Found::Messages, _) => (),
            (found, Some(timeout_ms)) => {
                // Where many ids had to be dropped, there may be a message behind them.
                let next_due = match found {
                    Found::OnlyDropped => Some(now.exact_ms()),
                    _ => keys.next_due(),
                };
                drop(keys);
                let shorts = request.queues.iter().map(|queue| queue.bytes().to_vec()).collect();
                let pending_of = |queue: &StrRef| OwnedStr::retain(ns.names.of_queue(queue.bytes()).pending.as_ref());
                let pending: Vec<OwnedStr> = request.queues.iter().map(pending_of).collect();
                if !blocking::wait::<Self>(call, &pending, timeout_ms, Waiter::begin(&ns, shorts, next_due)) {
                    call.reply_nil_array();
                } else if comes_later {
                    waiting::wake(&ns, request.queues.iter().map(|queue| queue.bytes()));
                }
            }
            _ => call.reply_nil_array(),
        }
        Ok(())
    }
}

impl Waits for Reserve {
    fn serve<'c>(call: &'c Invocation<'c>, waiter: &Waiter) -> Result<bool, Error> {
        let request = Request::parse(call)?;
        let ns = Namespace::of_caller(call, request.namespace)?;
        let queues: Vec<OwnedStr> = request.queues.iter().map(|queue| ns.names.queue(queue.bytes())).collect();
        // The server asks every client that waits for the key, also when the first has emptied the list already.
        let is_filled = |queue: &StrRef| {
            let list = ListKey::open_named(call, &ns.names.of_queue(queue.bytes()).pending);
            list.is_ok_and(|list| list.len() > 0)
        };
        if !request.queues.iter().any(is_filled) {
            return Ok(false);
        }
        if !User::of(call).may_run(Self::SPEC.name) {
            return Err(Error::PermissionWithdrawn);
        }
        request.check_queues(&ns)?;
        let now = Now::read();
        let taken = Keys::open(&ns).and_then(|mut keys| {
            let lists = open_lists(&mut keys, &queues)?;
            // The server asks for one key after the other, so that those who came earlier for one of the queues may not
            // have been asked yet. It asks again when they are served, or when the timer fires.
            if request.may_take_from(&ns, &mut keys, &lists, |queue| waiter.is_behind_others(queue)) {
                ns.due_at(now.ms());
                return Ok(Found::Nothing);
            }
            Ok(request.take(&ns, &mut keys, &queues, &lists, now))
        });
        match taken {
            Ok(Found::Messages) => Ok(true),
            Ok(Found::Nothing) => Ok(false),
            Ok(Found::OnlyDropped) if server().callback_may_write_and_wait => {
                ns.due_at(now.ms());
                Ok(false)
            }
            Ok(Found::OnlyDropped) => {
                call.reply_nil_array();
                Ok(true)
            }
            // The slot moves: the client waits until it is here, or until the server redirects it.
            Err(Error::SlotMoves { .. } | Error::Moved { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn timed_out<'c>(call: &'c Invocation<'c>) {
        call.reply_nil_array();
    }
}

impl<'c> Request<'c> {
    fn parse(call: &'c Invocation<'c>) -> Result<Self, Error> {
        let [namespace, lease_ms, words @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let is = |word: &StrRef, name: &str| word.bytes().eq_ignore_ascii_case(name.as_bytes());
        let lease_ms = args::span_ms("lease_ms", lease_ms.bytes())?;
        let Some(from) = words.iter().position(|word| is(word, "FROM")) else {
            return Err(Error::Missing("FROM", AT_LEAST_ONE_QUEUE));
        };
        let [count, block] = args::options(&words[..from], [Opt::Value("COUNT"), Opt::Value("BLOCK")])?;
        let count = count.map_or(Ok(1), |count| args::limited("COUNT", count.bytes()))?;
        let mut queues: SmallVec<[StrRef; 4]> = SmallVec::new();
        let mut seen: IdSet<&[u8]> = IdSet::default();
        let several = words.len() > from + 2;
        for queue in &words[from + 1..] {
            if let Some(option) = ["COUNT", "BLOCK"].into_iter().find(|option| is(queue, option)) {
                return Err(Error::OptionTooLate { option, word: "FROM" });
            }
            if !several || seen.insert(queue.bytes()) {
                queues.push(*queue);
            }
        }
        if queues.is_empty() {
            return Err(Error::Incomplete("FROM", AT_LEAST_ONE_QUEUE));
        }
        Ok(Request {
            namespace: *namespace,
            lease_ms,
            count,
            block_ms: block.map(|ms| args::delay_ms("BLOCK", ms.bytes())).transpose()?,
            queues,
        })
    }

    /// The full names of the queues, which the caller may take from.
    fn check_queues(&self, ns: &Namespace) -> Result<Vec<OwnedStr>, Error> {
        let mut queues = Vec::with_capacity(self.queues.len());
        for queue in &self.queues {
            let queue = ns.queue(*queue)?;
            ns.check_pending(queue.bytes())?;
            ns.check_processing(queue.bytes())?;
            queues.push(queue);
        }
        Ok(queues)
    }

    /// Whether one of the queues that `which` chooses has messages and gives them.
    fn may_take_from(
        &self,
        ns: &Namespace,
        keys: &mut Keys,
        lists: &[(usize, usize)],
        which: impl Fn(&[u8]) -> bool,
    ) -> bool {
        let mut queues = self.queues.iter().zip(lists).filter(|(queue, _)| which(queue.bytes()));
        keys.payloads.exists() && queues.any(|(queue, (pending, _))| is_filled(ns, keys, *queue, *pending))
    }

    /// Replies with the messages that there are; does not reply where there is none.
    fn take(&self, ns: &Namespace, keys: &mut Keys, queues: &[OwnedStr], lists: &[(usize, usize)], now: Now) -> Found {
        queues.iter().for_each(|queue| traffic::asked(ns.call, queue.bytes(), now));
        // Where the hash is missing as a whole, that proves nothing about the messages.
        if !keys.payloads.exists() {
            let pending: usize = lists.iter().filter_map(|(pending, _)| Some(keys.pending.get(*pending)?.len())).sum();
            Reason::NoMap.report(pending.min(self.count), || ns.names.payloads.bytes().to_vec());
            return Found::Nothing;
        }

        let mut taken: SmallVec<[Taken; 1]> = SmallVec::new();
        let mut dropped = 0;
        for (number, (pending, processing)) in lists.iter().enumerate() {
            if taken.len() == self.count || dropped >= DROPPED_PER_CALL {
                break;
            }
            if !is_filled(ns, keys, self.queues[number], *pending) {
                continue;
            }
            let queue = (number, queues[number].as_ref());
            let before = dropped;
            self.take_from(keys, queue, (*pending, *processing), &mut taken, &mut dropped);
            if let Some(list) = keys.pending.get(*pending) {
                report_dropped(dropped - before, list.name());
            }
        }
        if taken.is_empty() {
            return if dropped == 0 { Found::Nothing } else { Found::OnlyDropped };
        }

        let micros = receipt::next_micros(now, taken.iter().map(|message| message.micros).max().unwrap_or(0));
        let time = receipt::time(micros);
        let deadline = now.lease(self.lease_ms);
        for message in &mut taken {
            let id = message.id.as_ref();
            let error = message.attempts.as_ref().and_then(|field| Attempts::parse(field.bytes()).error);
            message.receipt = receipt::with_time(message.before.saturating_add(1), &time);
            let attempts = match error {
                None => OwnedStr::new(message.receipt.bytes()),
                Some(error) => OwnedStr::new(&[message.receipt.bytes(), b" ", error].concat()),
            };
            keys.payloads.set(message.attempts_field.as_ref(), attempts.as_ref());
            if let Some(field) = &message.queue_field {
                keys.payloads.set(field.as_ref(), queues[message.queue].as_ref());
            }
            keys.expires.add(id, deadline);
        }
        keys.processing.register_created(&mut keys.queues);
        ns.due_after(now, self.lease_ms);

        stats::add(Counter::Reserved, taken.len());
        for of_queue in taken.chunk_by(|one, next| one.queue == next.queue) {
            traffic::count(ns.call, queues[of_queue[0].queue].bytes(), Event::Delivered, of_queue.len());
        }
        ns.call.reply_array(taken.len());
        for message in &taken {
            let attempts = message.before.saturating_add(1);
            ns.call.reply_array(5);
            ns.call.reply_str(message.id.as_ref());
            ns.call.reply_str(message.payload.as_ref());
            ns.call.reply_bytes(message.receipt.bytes());
            ns.call.reply_integer(attempts);
            ns.call.reply_str(self.queues[message.queue]);
        }
        Found::Messages
    }

    /// Moves messages of one queue from pending to processing, until there are enough.
    fn take_from(
        &self,
        keys: &mut Keys,
        (number, queue): (usize, StrRef),
        (pending, processing): (usize, usize),
        taken: &mut SmallVec<[Taken; 1]>,
        dropped: &mut usize,
    ) {
        // The same id may be in pending twice. A few are compared one by one.
        let by_hash = self.count > COMPARED_MAX;
        let mut seen: IdSet<Vec<u8>> = match by_hash {
            true => taken.iter().map(|message| message.id.bytes().to_vec()).collect(),
            false => IdSet::default(),
        };
        let mut searches = 0;
        let alone = self.count == 1 || keys.pending.get(pending).is_some_and(|list| list.len() == 1);
        while taken.len() < self.count && *dropped < DROPPED_PER_CALL {
            let Some(list) = keys.pending.get(pending) else { break };
            let Some(id) = list.len().checked_sub(1).and_then(|last| list.at(last)) else { break };
            let attempts_field = attempts_field(id.as_ref());
            let queue_field = queue_field(id.as_ref());
            let [payload, attempts, stored_queue] =
                keys.payloads.get_three(id.as_ref(), attempts_field.as_ref(), queue_field.as_ref());
            let deadline = keys.expires.score(id.as_ref());
            let is_leased = deadline.is_some_and(is_lease);
            let is_taken = match by_hash {
                true => seen.contains(id.bytes()),
                false => taken.iter().any(|message| message.id.bytes() == id.bytes()),
            };
            let is_copy = if is_taken || !is_leased {
                Some(is_taken)
            } else {
                searches += 1;
                (searches <= SEARCHES_PER_CALL).then(|| is_in_processing(keys, id.as_ref())).flatten()
            };
            // Its processing list cannot be looked at: the next call may know more.
            let Some(is_copy) = is_copy else { break };
            if payload.is_none() || is_copy || is_field_of_message(&keys.payloads, id.as_ref(), &FIELDS) {
                if let Some(list) = keys.pending.get(pending) {
                    list.pop_right();
                }
                if payload.is_none() {
                    forget_fields(&mut keys.payloads, &[id.as_ref()]);
                }
                *dropped += 1;
                continue;
            }
            let Some(payload) = payload else { continue };
            let (Some(from), Some(to)) = (keys.pending.get(pending), keys.processing.get(processing)) else { break };
            let is_new_list = to.len() == 0;
            if alone && *dropped == 0 {
                from.move_right_to_left_of(to, id.as_ref());
            } else {
                from.pop_right();
                to.push(End::Left, id.as_ref());
            }
            if is_new_list {
                keys.processing.note_created(processing);
            }
            // A pending message with a deadline that is a whole number was produced anew by a script.
            let is_anew = deadline.is_some() && !is_leased;
            let stored = Attempts::of(attempts.as_ref());
            let (before, micros) = (if is_anew { 0 } else { stored.count }, stored.micros);
            let attempts = attempts.filter(|_| !is_anew);
            if by_hash {
                seen.insert(id.bytes().to_vec());
            }
            let queue_is_stored = stored_queue.is_some_and(|stored| stored.bytes() == queue.bytes());
            let queue_field = (!queue_is_stored).then_some(queue_field);
            let receipt = Digits::new();
            let queue = number;
            taken.push(Taken { id, payload, before, micros, attempts_field, attempts, receipt, queue, queue_field });
        }
    }
}

/// Whether a queue has messages and gives them.
fn is_filled(ns: &Namespace, keys: &mut Keys, queue: StrRef, pending: usize) -> bool {
    keys.pending.get(pending).is_some_and(|list| list.len() > 0)
        && !Policy::of(&keys.queues, queue, ns.names.default.as_ref()).paused
}

/// The numbers of the pending and the processing list of each queue.
fn open_lists(keys: &mut Keys, queues: &[OwnedStr]) -> Result<Vec<(usize, usize)>, Error> {
    let mut lists = Vec::with_capacity(queues.len());
    for queue in queues {
        lists.push((keys.pending.open(queue)?, keys.processing.open(queue)?));
    }
    Ok(lists)
}

/// Whether a leased message really is in processing: then what is in pending is a second copy. None if that cannot be
/// found out.
fn is_in_processing(keys: &mut Keys, id: StrRef) -> Option<bool> {
    let Some(queue) = keys.payloads.get(queue_field(id).as_ref()) else {
        return Some(false);
    };
    let list = keys.processing.find(queue).ok()?;
    let place = keys.processing.get(list).and_then(|list| Processing::of(list).find(id, &keys.expires));
    Some(place.is_some())
}
