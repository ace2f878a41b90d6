//! RMQ.PEEK namespace [OFFSET n] [COUNT n] [NOPAYLOAD] PENDING queue | PROCESSING queue | DELAYED [queue] | OVERDUE [queue] |
//!     DEAD [queue] | IDS id [id …]
//!
//! Shows messages without changing anything: those that are taken, due, taken back or redriven next come first. Replies with an
//! array of maps; with IDS with one entry per id, nil for an unknown one.

use serde_json::Value as Json;

use super::{queue_after, split_at_state, DEAD, DELAYED, OVERDUE};
use crate::args::{self, Opt};
use crate::clock::Now;
use crate::dead::death_field;
use crate::error::Error;
use crate::message::{attempts_field, is_message, queue_field, DEAD_FIELDS, FIELDS};
use crate::namespace::Namespace;
use crate::receipt::{since_ms, Attempts};
use crate::redis::command::{optional, required, several, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::reply::Value;
use crate::redis::zset::Walk;
use crate::redis::{HashKey, Invocation, ListKey, OwnedStr, StrRef, ZsetKey};
use crate::whereabouts::{distinct, State, Whereabouts};

pub struct Peek;

const COUNT_DEFAULT: usize = 10;

enum Which<'c> {
    /// Full names of queues.
    Pending(OwnedStr),
    Processing(OwnedStr),
    Delayed(Option<OwnedStr>),
    Overdue(Option<OwnedStr>),
    Dead(Option<OwnedStr>),
    Ids(&'c [StrRef<'c>]),
}

/// A page of what was asked for.
struct Page {
    offset: usize,
    count: usize,
    with_payload: bool,
}

impl Command for Peek {
    const SPEC: Spec = Spec {
        name: "RMQ.PEEK",
        summary: "Shows messages of any state, or by their ids, without changing anything.",
        complexity:
            "O(S+N) for N messages shown and S skipped, which with a queue includes those of other queues; with IDS \
                     O(L) for the lengths of the lists of the messages' queues",
        flags: "readonly",
        categories: "read slow",
        args: &[
            NAMESPACE,
            optional("offset", Kind::Option("OFFSET", ValueType::Integer)),
            optional("count", Kind::Option("COUNT", ValueType::Integer)),
            optional("nopayload", Kind::Word("NOPAYLOAD")),
            required(
                "which",
                Kind::OneOf(&[
                    required("queue", Kind::Option("PENDING", ValueType::Text)),
                    required("queue", Kind::Option("PROCESSING", ValueType::Text)),
                    DELAYED,
                    OVERDUE,
                    DEAD,
                    several("id", Kind::Option("IDS", ValueType::Text)),
                ]),
            ),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, words @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let now = Now::read();
        let ns = Namespace::of_caller(call, *namespace)?;
        let (which, page) = parse(&ns, words)?;
        let mut places = Whereabouts::open(&ns)?;
        match which {
            Which::Pending(queue) => list(&ns, &mut places, &queue, State::Pending, &page),
            Which::Processing(queue) => list(&ns, &mut places, &queue, State::Processing, &page),
            Which::Delayed(queue) => {
                let ids = page.members(&places.keys.delays, f64::INFINITY, |id| places.is_of(id, queue.as_ref()));
                reply(&ns, &places, ids.iter().map(|id| Some((id.as_ref(), State::Delayed))), &page);
                Ok(())
            }
            Which::Overdue(queue) => {
                let is_of_queue = |id: StrRef| places.is_of(id, queue.as_ref());
                let ids = page.members(&places.keys.expires, now.exact_ms(), is_of_queue);
                overdue(&ns, &mut places, &ids, &page, now)
            }
            Which::Dead(queue) => {
                let (map, list) = (&places.dead.map, &mut places.dead.list);
                let is_meant = |id: StrRef| is_message(map, id, &DEAD_FIELDS) && is_of(map, id, queue.as_ref());
                let ids = page.elements(list, is_meant);
                reply(&ns, &places, ids.iter().map(|id| Some((id.as_ref(), State::Dead))), &page);
                Ok(())
            }
            Which::Ids(ids) => {
                let (ids, of_each) = distinct(ids);
                let found = places.look_up(&ns, &ids, now)?;
                let rows = of_each.iter().map(|number| Some((found[*number].id, found[*number].state?)));
                reply(&ns, &places, rows, &page);
                Ok(())
            }
        }
    }
}

fn parse<'c>(ns: &Namespace, words: &'c [StrRef<'c>]) -> Result<(Which<'c>, Page), Error> {
    let known = [Opt::Value("OFFSET"), Opt::Value("COUNT"), Opt::Word("NOPAYLOAD")];
    let states = ["PENDING", "PROCESSING", "DELAYED", "OVERDUE", "DEAD", "IDS"];
    let Some((options, state, rest)) = split_at_state(words, &states) else {
        // An unknown option is the more helpful error.
        args::options(words, known)?;
        return Err(Error::Missing("PENDING, PROCESSING, DELAYED, OVERDUE, DEAD or IDS", "a queue or ids"));
    };
    let [offset, count, no_payload] = args::options(options, known)?;
    let optional_queue = || queue_after(ns, state, rest, &["OFFSET", "COUNT", "NOPAYLOAD"]);
    let queue = || optional_queue()?.ok_or(Error::Incomplete(state, "a queue"));
    let which = match state {
        "PENDING" => Which::Pending(queue()?),
        "PROCESSING" => Which::Processing(queue()?),
        "DELAYED" => Which::Delayed(optional_queue()?),
        "OVERDUE" => Which::Overdue(optional_queue()?),
        "DEAD" => Which::Dead(optional_queue()?),
        _ if rest.is_empty() => return Err(Error::Incomplete("IDS", args::AT_LEAST_ONE_ID)),
        _ if offset.is_some() => return Err(Error::NotTogether("OFFSET", "IDS")),
        _ if count.is_some() => return Err(Error::NotTogether("COUNT", "IDS")),
        _ => Which::Ids(rest),
    };
    let page = Page {
        offset: offset.map_or(Ok(0), |offset| args::offset("OFFSET", offset.bytes()))?,
        count: count.map_or(Ok(COUNT_DEFAULT), |count| args::limited("COUNT", count.bytes()))?,
        with_payload: no_payload.is_none(),
    };
    Ok((which, page))
}

impl Page {
    /// Members of a sorted set that are meant, lowest score first.
    fn members(&self, zset: &ZsetKey, max: f64, is_meant: impl Fn(StrRef) -> bool) -> Vec<OwnedStr> {
        let (mut passed, mut ids) = (0, Vec::new());
        let _ = zset.between(f64::NEG_INFINITY, max, |id, _| {
            if is_meant(id.as_ref()) {
                passed += 1;
                if passed > self.offset {
                    ids.push(id);
                }
            }
            Ok::<_, ()>(if ids.len() < self.count { Walk::On } else { Walk::Stop })
        });
        ids
    }

    /// Elements of a list that are meant, from the right.
    fn elements(&self, list: &mut ListKey, is_meant: impl Fn(StrRef) -> bool) -> Vec<OwnedStr> {
        let elements = (0..list.len()).rev().map_while(|index| list.at(index));
        elements.filter(|id| is_meant(id.as_ref())).skip(self.offset).take(self.count).collect()
    }
}

impl Whereabouts<'_> {
    /// Whether this is a live message, and one of this queue if one is asked for.
    fn is_of(&self, id: StrRef, queue: Option<&OwnedStr>) -> bool {
        self.is_live(id) && is_of(&self.keys.payloads, id, queue)
    }
}

fn is_of(map: &HashKey, id: StrRef, queue: Option<&OwnedStr>) -> bool {
    let own = || map.get(queue_field(id).as_ref());
    queue.is_none_or(|queue| own().is_some_and(|own| own.bytes() == queue.bytes()))
}

/// A page of a queue's list, from the right.
fn list<'c>(
    ns: &Namespace<'c>,
    places: &mut Whereabouts<'c>,
    queue: &OwnedStr,
    state: State,
    page: &Page,
) -> Result<(), Error> {
    let lists = match state {
        State::Pending => {
            ns.check_pending(queue.bytes())?;
            &mut places.keys.pending
        }
        _ => {
            ns.check_processing(queue.bytes())?;
            &mut places.keys.processing
        }
    };
    let number = lists.open(queue)?;
    let Some(list) = lists.get(number) else { return Ok(()) };
    let payloads = &places.keys.payloads;
    let ids = page.elements(list, |id| is_message(payloads, id, &FIELDS));
    reply(ns, places, ids.iter().map(|id| Some((id.as_ref(), state))), page);
    Ok(())
}

/// A message whose deadline has passed is usually in processing, but pending messages of scripts have deadlines, too.
fn overdue<'c>(
    ns: &Namespace<'c>,
    places: &mut Whereabouts<'c>,
    ids: &[OwnedStr],
    page: &Page,
    now: Now,
) -> Result<(), Error> {
    let ids: Vec<StrRef> = ids.iter().map(OwnedStr::as_ref).collect();
    let are_held = places.are_held(ns, &ids)?;
    let others: Vec<StrRef> = ids.iter().zip(&are_held).filter(|(_, is_held)| !**is_held).map(|(id, _)| *id).collect();
    let mut others = if others.is_empty() { Vec::new() } else { places.look_up(ns, &others, now)? }.into_iter();
    let rows = ids.iter().zip(are_held).filter_map(|(id, is_held)| match is_held {
        true => Some((*id, State::Processing)),
        false => Some((*id, others.next()?.state?)),
    });
    let rows: Vec<_> = rows.collect();
    reply(ns, places, rows.into_iter().map(Some), page);
    Ok(())
}

/// Replies with the messages, nil for one that is not there.
fn reply<'a>(
    ns: &Namespace,
    places: &Whereabouts,
    rows: impl ExactSizeIterator<Item = Option<(StrRef<'a>, State)>>,
    page: &Page,
) {
    ns.call.reply_array(rows.len());
    for row in rows {
        match row.and_then(|(id, state)| Message::read(places, id, state, page.with_payload)) {
            Some(message) => message.reply(ns),
            None => ns.call.reply_nil(),
        }
    }
}

/// What is known of one message.
struct Message<'a> {
    id: StrRef<'a>,
    state: State,
    queue: Option<OwnedStr>,
    attempts: i64,
    since_ms: Option<i64>,
    /// The due time of a delayed one, the deadline of one in processing.
    time: Option<(&'static str, i64)>,
    error: Option<Vec<u8>>,
    death: Option<String>,
    payload: Option<OwnedStr>,
}

impl<'a> Message<'a> {
    /// None if there is no such message.
    fn read(places: &Whereabouts, id: StrRef<'a>, state: State, with_payload: bool) -> Option<Self> {
        let map = if state == State::Dead { &places.dead.map } else { &places.keys.payloads };
        let payload = if with_payload { Some(map.get(id)?) } else { map.has(id).then_some(None)? };
        let queue = map.get(queue_field(id).as_ref());
        if state == State::Dead {
            let death = map.get(death_field(id).as_ref());
            let death: Json = death.and_then(|death| serde_json::from_slice(death.bytes()).ok()).unwrap_or_default();
            let text = |name: &str| death[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            return Some(Message {
                id,
                state,
                queue,
                attempts: death["attempts"].as_i64().unwrap_or(0),
                since_ms: death["at"].as_i64(),
                time: None,
                error: text("error").map(String::into_bytes),
                death: text("reason"),
                payload,
            });
        }
        let field = map.get(attempts_field(id).as_ref());
        let attempts = Attempts::of(field.as_ref());
        let time = match state {
            State::Delayed => places.keys.delays.score(id).map(|due| ("due_ms", due as i64)),
            State::Processing => places.keys.expires.score(id).map(|deadline| ("deadline_ms", deadline as i64)),
            _ => None,
        };
        Some(Message {
            id,
            state,
            queue,
            attempts: attempts.count,
            // A delayed message cannot be taken yet.
            since_ms: if state == State::Delayed { None } else { since_ms(&attempts, id.bytes()) },
            time,
            error: attempts.error.filter(|error| !error.is_empty()).map(<[u8]>::to_vec),
            death: None,
            payload,
        })
    }

    fn reply(&self, ns: &Namespace) {
        let queue = self.queue.as_ref().map(|queue| ns.names.short(queue.bytes()).unwrap_or(queue.bytes()));
        let mut fields: Vec<(&str, Value)> =
            vec![("id", Value::Str(self.id)), ("state", Value::Bytes(self.state.word().as_bytes()))];
        fields.extend(queue.map(|queue| ("queue", Value::Bytes(queue))));
        fields.push(("attempts", Value::Integer(self.attempts)));
        fields.extend(self.since_ms.map(|ms| ("since_ms", Value::Integer(ms))));
        fields.extend(self.time.map(|(name, ms)| (name, Value::Integer(ms))));
        fields.extend(self.error.as_ref().map(|error| ("error", Value::Bytes(error))));
        fields.extend(self.death.as_ref().map(|death| ("death", Value::Bytes(death.as_bytes()))));
        fields.extend(self.payload.as_ref().map(|payload| ("payload", Value::Str(payload.as_ref()))));
        ns.call.reply_map(fields.len());
        ns.call.reply_fields(&fields);
    }
}
