//! RMQ.PUBLISH namespace [URGENT] [DELAY ms | AT unix_ms] [ONCE ms] TO queue id payload [id payload …]
//!
//! New messages, to the left of pending; with URGENT to the right, where they are taken next; with DELAY or AT they become
//! due later. For the id `*` the server makes one. An id that exists already is left alone, so a producer may publish
//! again after a lost reply; with ONCE also one that was published with ONCE within that time, even if it is done by now.
//! Replies with an array: the id of each message, or nil for one that was left alone.

use crate::args::{self, writable_id, Opt};
use crate::clock::Now;
use crate::error::Error;
use crate::hash::id_set;
use crate::id;
use crate::lists::Lists;
use crate::message::{attempts_field, queue_field};
use crate::namespace::Namespace;
use crate::redis::command::{optional, required, several, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::list::End;
use crate::redis::zset::Walk;
use crate::redis::{HashKey, Invocation, OwnedStr, StrRef, ZsetKey};
use crate::stats::{self, Counter};
use crate::traffic::{self, Event};
use smallvec::SmallVec;

pub struct Publish;

/// Expired entries of `once` removed in one call.
const FORGOTTEN_PER_CALL: usize = 100;

struct Request<'c> {
    urgent: bool,
    /// Unix ms.
    due: Option<i64>,
    once_ms: Option<i64>,
    queue: StrRef<'c>,
    messages: &'c [StrRef<'c>],
}

/// A message to be stored.
struct New<'c> {
    id: OwnedStr,
    payload: StrRef<'c>,
    /// A script left the attempts of an earlier message.
    has_attempts: bool,
}

impl Command for Publish {
    const SPEC: Spec = Spec {
        name: "RMQ.PUBLISH",
        summary: "Stores new messages, pending at once or due later.",
        complexity: "O(N) for N messages, O(N*log(M)) with DELAY or AT for the size M of delays",
        flags: "write deny-oom fast",
        categories: "write fast",
        args: &[
            NAMESPACE,
            optional("urgent", Kind::Word("URGENT")),
            optional(
                "due",
                Kind::OneOf(&[
                    required("delay", Kind::Option("DELAY", ValueType::Integer)),
                    required("at", Kind::Option("AT", ValueType::Integer)),
                ]),
            ),
            optional("once", Kind::Option("ONCE", ValueType::Integer)),
            required("queue", Kind::Option("TO", ValueType::Text)),
            several("message", Kind::Group(&[required("id", Kind::Text), required("payload", Kind::Text)])),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, words @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let now = Now::read();
        let request = Request::parse(words, now)?;
        let ns = Namespace::of_caller(call, *namespace)?;
        let queue = ns.queue(request.queue)?;
        let mut payloads = ns.payloads()?;
        let mut once = request.once_ms.map(|_| ns.once()).transpose()?;
        ns.check_pending(queue.bytes())?;
        let mut destination = match request.due {
            Some(due) => Destination::Delays(ns.delays()?, due),
            None => {
                ns.check_queues()?;
                Destination::Pending(Lists::pending_of(&ns), None)
            }
        };
        ns.check_slot(
            !payloads.exists() || destination.is_missing() || once.as_ref().is_some_and(|once| !once.exists()),
        )?;
        if let Destination::Pending(pending, queues) = &mut destination {
            let list = pending.open(&queue)?;
            if pending.get(list).is_none_or(|list| list.len() == 0) {
                let queues = queues.insert(ns.queues()?);
                ns.check_slot(!queues.exists())?;
            }
        }
        let messages = request.messages(&ns, &payloads, once.as_ref(), queue.as_ref(), now)?;

        let new = || messages.iter().flatten();
        for message in new() {
            let id = message.id.as_ref();
            payloads.set_two((id, message.payload), (queue_field(id).as_ref(), queue.as_ref()));
        }
        for message in new().filter(|message| message.has_attempts) {
            payloads.delete(attempts_field(message.id.as_ref()).as_ref());
        }
        if let (Some(once), Some(ms)) = (&mut once, request.once_ms) {
            forget_expired(once, now);
            for message in new() {
                once.add(message.id.as_ref(), (now.ms() + ms) as f64);
            }
        }
        match &mut destination {
            Destination::Delays(delays, due) => {
                for message in new() {
                    delays.add(message.id.as_ref(), *due as f64);
                }
                ns.due_at(*due);
            }
            Destination::Pending(pending, queues) => {
                match request.urgent {
                    // The first named is taken first.
                    true => new().rev().for_each(|message| pending.push(0, End::Right, message.id.as_ref())),
                    false => new().for_each(|message| pending.push(0, End::Left, message.id.as_ref())),
                }
                if let Some(queues) = queues {
                    pending.register_created(queues);
                }
            }
        }

        let published = new().count();
        stats::add(Counter::Published, published);
        traffic::count(call, queue.bytes(), Event::Published, published);
        call.reply_array(messages.len());
        for message in &messages {
            match message {
                Some(new) => call.reply_str(new.id.as_ref()),
                None => call.reply_nil(),
            }
        }
        Ok(())
    }
}

enum Destination<'c> {
    /// With the hash of queues, if the list is created.
    Pending(Lists<'c>, Option<HashKey<'c>>),
    /// With the due time.
    Delays(ZsetKey<'c>, i64),
}

impl Destination<'_> {
    fn is_missing(&self) -> bool {
        match self {
            Destination::Pending(..) => false,
            Destination::Delays(delays, _) => !delays.exists(),
        }
    }
}

impl<'c> Request<'c> {
    fn parse(words: &'c [StrRef<'c>], now: Now) -> Result<Self, Error> {
        let is = |word: &StrRef, name: &str| word.bytes().eq_ignore_ascii_case(name.as_bytes());
        const MESSAGES: &str = "a queue and at least one id and payload";
        let Some(to) = words.iter().position(|word| is(word, "TO")) else {
            return Err(Error::Missing("TO", MESSAGES));
        };
        let [urgent, delay, at, once] = args::options(
            &words[..to],
            [Opt::Word("URGENT"), Opt::Value("DELAY"), Opt::Value("AT"), Opt::Value("ONCE")],
        )?;
        let [queue, messages @ ..] = &words[to + 1..] else {
            return Err(Error::Incomplete("TO", MESSAGES));
        };
        for id in messages.iter().step_by(2) {
            writable_id(id.bytes())?;
            let options = ["URGENT", "DELAY", "AT", "ONCE"];
            if let Some(option) = options.into_iter().find(|option| is(id, option)) {
                return Err(Error::OptionTooLate { option, word: "TO" });
            }
        }
        if messages.len() < 2 {
            return Err(Error::Incomplete("TO", MESSAGES));
        }
        if messages.len() % 2 != 0 {
            return Err(Error::Incomplete("an id", "its payload"));
        }
        for (given, other, names) in
            [(urgent, delay, ("URGENT", "DELAY")), (urgent, at, ("URGENT", "AT")), (delay, at, ("DELAY", "AT"))]
        {
            if given.is_some() && other.is_some() {
                return Err(Error::NotTogether(names.0, names.1));
            }
        }
        if once.is_some() && messages.chunks_exact(2).any(|message| message[0].bytes() == b"*") {
            return Err(Error::NotTogether("ONCE", "the id '*'"));
        }
        let due = match (delay, at) {
            (Some(ms), _) => Some(now.ms() + args::delay_ms("DELAY", ms.bytes())?),
            (_, Some(at)) => Some(args::unix_ms("AT", at.bytes())?),
            _ => None,
        };
        let once_ms = once.map(|ms| args::span_ms("ONCE", ms.bytes())).transpose()?;
        Ok(Request { urgent: urgent.is_some(), due, once_ms, queue: *queue, messages })
    }

    /// Each message that is new; None for one that is left alone.
    fn messages(
        &self,
        ns: &Namespace,
        payloads: &HashKey,
        once: Option<&ZsetKey>,
        queue: StrRef,
        now: Now,
    ) -> Result<SmallVec<[Option<New<'c>>; 1]>, Error> {
        let several = self.messages.len() > 2;
        let mut seen = id_set(if several { self.messages.len() / 2 } else { 0 });
        let (mut messages, mut left_alone) = (SmallVec::with_capacity(self.messages.len() / 2), 0);
        for message in self.messages.chunks_exact(2) {
            let (id, payload) = (message[0], message[1]);
            if id.bytes() == b"*" {
                let id = self.due.map_or_else(|| id::fresh(now), id::fresh_at);
                messages.push(Some(New { id: OwnedStr::new(id.as_bytes()), payload, has_attempts: false }));
                continue;
            }
            let [exists, has_attempts] = payloads.has_two(id, attempts_field(id).as_ref());
            if exists {
                let other = payloads.get(queue_field(id).as_ref()).filter(|other| other.bytes() != queue.bytes());
                if let Some(other) = other {
                    let queue = ns.names.short(other.bytes()).unwrap_or(other.bytes()).to_vec();
                    return Err(Error::Exists { id: id.bytes().to_vec(), queue });
                }
            }
            let is_done = once.and_then(|once| once.score(id)).is_some_and(|until| until > now.exact_ms());
            left_alone += usize::from(is_done && !exists);
            let is_new = !exists && !is_done && (!several || seen.insert(id.bytes()));
            messages.push(is_new.then(|| New { id: OwnedStr::retain(id), payload, has_attempts }));
        }
        stats::add(Counter::Once, left_alone);
        Ok(messages)
    }
}

fn forget_expired(once: &mut ZsetKey, now: Now) {
    let mut expired = Vec::new();
    let _ = once.between(f64::NEG_INFINITY, now.exact_ms(), |id, _| {
        expired.push(id);
        Ok::<_, ()>(if expired.len() < FORGOTTEN_PER_CALL { Walk::On } else { Walk::Stop })
    });
    for id in &expired {
        once.remove(id.as_ref());
    }
}
