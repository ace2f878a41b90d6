//! RMQ.CANCEL namespace [WAITING] IDS id [id …]
//!
//! Removes the messages with every trace, wherever they are, dead letters of these ids too. Its holder's EXTEND and ACK find
//! nothing. With WAITING a message in processing is left alone. Replies with an array: the former state of each, or nil.

use crate::args::{self, Opt};
use crate::clock::Now;
use crate::error::Error;
use crate::message::forget_fields;
use crate::namespace::Namespace;
use crate::redis::command::{optional, several, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::list::Sought;
use crate::redis::{Invocation, StrRef};
use crate::stats::{self, Counter};
use crate::whereabouts::{distinct, take_out, State, Traces, Whereabouts};

pub struct Cancel;

impl Command for Cancel {
    const SPEC: Spec = Spec {
        name: "RMQ.CANCEL",
        summary: "Removes messages in any state, or only those that nobody holds.",
        complexity: "O(N) for the lengths of the lists of the messages' queues, for several ids one pass over each",
        flags: "write",
        categories: "write slow",
        args: &[
            NAMESPACE,
            optional("waiting", Kind::Word("WAITING")),
            several("id", Kind::Option("IDS", ValueType::Text)),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let [namespace, words @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        let (options, ids) = args::before_ids(words)?;
        let [waiting] = args::options(options, [Opt::Word("WAITING")])?;
        // Such an id would name a field of another message.
        ids.iter().try_for_each(|id| args::writable_id(id.bytes()))?;
        let ns = Namespace::of_caller(call, *namespace)?;
        let mut places = Whereabouts::open(&ns)?;
        let mut once = ns.once()?;
        ns.check_slot(!once.exists())?;
        let (ids, of_each) = distinct(ids);
        let found = places.look_up(&ns, &ids, Now::read())?;

        let stays = |traces: &Traces| waiting.is_some() && traces.state == Some(State::Processing);
        // If the whole hash is missing, that proves nothing about the messages.
        let has_payloads = places.keys.payloads.exists();
        let goes: Vec<&Traces> = found.iter().filter(|traces| !stays(traces)).collect();
        let live: Vec<&&Traces> = goes.iter().filter(|_| has_payloads).collect();
        take_out(&mut places.keys.pending, live.iter().flat_map(|traces| traces.in_pending()));
        take_out(&mut places.keys.processing, live.iter().flat_map(|traces| traces.in_processing()));
        for traces in &live {
            places.keys.delays.remove(traces.id);
            places.keys.expires.remove(traces.id);
        }
        forget_fields(&mut places.keys.payloads, &live.iter().map(|traces| traces.id).collect::<Vec<_>>());
        let dead: Vec<StrRef> = goes.iter().filter(|traces| traces.is_dead).map(|traces| traces.id).collect();
        if !dead.is_empty() {
            let in_list = places.dead.list.every_place_of(&Sought::of(&dead));
            let mut in_list: Vec<_> = in_list.into_iter().map(|(number, place)| (place, dead[number])).collect();
            places.dead.list.remove(&mut in_list);
            for id in &dead {
                places.dead.forget(*id);
            }
        }
        let cancelled: Vec<StrRef> =
            goes.iter().filter(|traces| traces.state.is_some()).map(|traces| traces.id).collect();
        for id in &cancelled {
            once.remove(*id);
        }
        stats::add(Counter::Cancelled, cancelled.len());

        call.reply_array(of_each.len());
        let mut replied = vec![false; found.len()];
        for number in of_each {
            let is_first = !std::mem::replace(&mut replied[number], true);
            match found[number].state.filter(|_| is_first && !stays(&found[number])) {
                Some(state) => call.reply_bytes(state.word().as_bytes()),
                None => call.reply_nil(),
            }
        }
        Ok(())
    }
}
