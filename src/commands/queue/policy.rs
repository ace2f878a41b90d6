//! RMQ.POLICY namespace [queue [ATTEMPTS n] [BACKOFF first_ms max_ms] [PAUSED yes|no] | queue RESET]
//!
//! Sets the values given and keeps the others; without a value it reads, RESET removes them. The queue `*` is the
//! namespace's default. Replies with the effective policy; without a queue, with what is stored for each.

use crate::args;
use crate::clock::waiting;
use crate::error::Error;
use crate::lists::Lists;
use crate::namespace::Namespace;
use crate::policy::{Policy, Stored, DEFAULT};
use crate::redis::command::{optional, required, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::{HashKey, Invocation, OwnedStr, StrRef};

pub struct PolicyCommand;

/// What a call changes.
#[derive(Default)]
struct Change {
    attempts: Option<i64>,
    backoff: Option<(i64, i64)>,
    paused: Option<bool>,
    reset: bool,
}

impl Command for PolicyCommand {
    const SPEC: Spec = Spec {
        name: "RMQ.POLICY",
        summary: "Reads or sets a queue's attempts, backoff and pause.",
        complexity: "O(1); without a queue O(Q) for Q queues",
        flags: "write deny-oom fast",
        categories: "write fast",
        args: &[
            NAMESPACE,
            optional(
                "policy",
                Kind::Group(&[
                    required("queue", Kind::Text),
                    optional(
                        "change",
                        Kind::OneOf(&[
                            required(
                                "values",
                                Kind::Group(&[
                                    optional("attempts", Kind::Option("ATTEMPTS", ValueType::Integer)),
                                    optional(
                                        "backoff",
                                        Kind::Group(&[
                                            required("backoff", Kind::Word("BACKOFF")),
                                            required("first_ms", Kind::Integer),
                                            required("max_ms", Kind::Integer),
                                        ]),
                                    ),
                                    optional("paused", Kind::Option("PAUSED", ValueType::Text)),
                                ]),
                            ),
                            required("reset", Kind::Word("RESET")),
                        ]),
                    ),
                ]),
            ),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, words @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let ns = Namespace::of_caller(call, *namespace)?;
        let [queue, words @ ..] = words else {
            return list(&ns);
        };
        if queue.bytes() != DEFAULT {
            ns.queue(*queue)?;
        }
        let change = Change::parse(words)?;
        let mut queues = if words.is_empty() { ns.queues()? } else { ns.queues_to_change()? };
        ns.check_slot(!queues.exists())?;
        let keeps_field = change.reset && queue.bytes() != DEFAULT && has_list(&ns, *queue)?;
        let before = queues.get(*queue).map_or_else(Stored::default, |field| Stored::read(field.bytes()));

        let mut is_resumed = false;
        if !words.is_empty() {
            let after = change.apply(before);
            store(&mut queues, *queue, after, change.reset && !keeps_field);
            is_resumed = before.paused && !after.paused;
        }

        let policy = Policy::of(&queues, *queue, ns.names.default.as_ref());
        drop(queues);
        if is_resumed {
            let waited_for = waiting::queues_waited_for(&ns);
            waiting::wake(&ns, waited_for.keys().map(|short| &short[..]));
        }
        let fields = policy.fields();
        call.reply_map(fields.len());
        call.reply_fields(&fields);
        Ok(())
    }
}

impl Change {
    fn parse(words: &[StrRef]) -> Result<Self, Error> {
        let mut change = Change::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word.bytes().to_ascii_uppercase();
            let mut value = |missing: Error| words.next().ok_or(missing);
            let two_values = || Error::Incomplete("BACKOFF", "its two values");
            match &name[..] {
                b"ATTEMPTS" if change.attempts.is_none() => {
                    change.attempts =
                        Some(args::count("ATTEMPTS", value(Error::OptionNeedsValue("ATTEMPTS"))?.bytes())?);
                }
                b"BACKOFF" if change.backoff.is_none() => {
                    let first = args::delay_ms("BACKOFF", value(two_values())?.bytes())?;
                    let max = args::delay_ms("BACKOFF", value(two_values())?.bytes())?;
                    if max < first {
                        return Err(Error::Invalid {
                            argument: "BACKOFF",
                            expected: "a first delay and a longest one that is not shorter, in milliseconds",
                        });
                    }
                    change.backoff = Some((first, max));
                }
                b"PAUSED" if change.paused.is_none() => {
                    change.paused = Some(args::yes_or_no("PAUSED", value(Error::OptionNeedsValue("PAUSED"))?.bytes())?);
                }
                b"RESET" if !change.reset => change.reset = true,
                b"ATTEMPTS" => return Err(Error::RepeatedOption("ATTEMPTS")),
                b"BACKOFF" => return Err(Error::RepeatedOption("BACKOFF")),
                b"PAUSED" => return Err(Error::RepeatedOption("PAUSED")),
                b"RESET" => return Err(Error::RepeatedOption("RESET")),
                _ => return Err(Error::UnknownOption(word.bytes().to_vec())),
            }
        }
        if change.reset && (change.attempts.is_some() || change.backoff.is_some() || change.paused.is_some()) {
            return Err(Error::NotTogether("RESET", "other options"));
        }
        Ok(change)
    }

    fn apply(&self, before: Stored) -> Stored {
        if self.reset {
            return Stored::default();
        }
        Stored {
            attempts: self.attempts.or(before.attempts),
            backoff: self.backoff.or(before.backoff),
            paused: self.paused.unwrap_or(before.paused),
        }
    }
}

/// Whether a queue has a list: then its field, which also means that the queue exists, stays.
fn has_list(ns: &Namespace, queue: StrRef) -> Result<bool, Error> {
    for mut lists in [Lists::pending_of(ns), Lists::processing_of(ns)] {
        let number = lists.find(ns.names.queue(queue.bytes()))?;
        if lists.get(number).is_some_and(|list| list.len() > 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn store(queues: &mut HashKey, queue: StrRef, policy: Stored, forget: bool) {
    if forget {
        queues.delete(queue);
        return;
    }
    let json = OwnedStr::new(&policy.to_json());
    if queues.get(queue).is_none_or(|stored| stored.bytes() != json.bytes()) {
        queues.set(queue, json.as_ref());
    }
}

/// What is stored, for each queue.
fn list(ns: &Namespace) -> Result<(), Error> {
    let call = ns.call;
    let queues = ns.queues()?;
    ns.check_slot(!queues.exists())?;
    let mut stored: Vec<(OwnedStr, Stored)> = Vec::new();
    queues.each(|queue, field| stored.push((queue, Stored::read(field.bytes()))));
    stored.sort_by(|(one, _), (other, _)| one.bytes().cmp(other.bytes()));
    call.reply_map(stored.len());
    for (queue, policy) in &stored {
        call.reply_str(queue.as_ref());
        let effective = Policy::effective(*policy, Stored::default()).fields();
        let is_set = [policy.attempts.is_some(), policy.backoff.is_some(), policy.backoff.is_some(), policy.paused];
        let fields: Vec<_> = effective.into_iter().zip(is_set).filter(|(_, is_set)| *is_set).collect();
        call.reply_map(fields.len());
        fields.iter().for_each(|(field, _)| call.reply_fields(&[*field]));
    }
    Ok(())
}
