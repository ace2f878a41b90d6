//! RMQ.DEADLETTER dlq_map dlq expire_monitor payload_map processing id payload [topic] [LEASE lease]
//!
//! A message that is given up: into the dead-letter pair with its queue, out of everything else. The reply is OK, or
//! with LEASE 1, and 0 if the lease is not current. A message that was settled already stays settled (NOMSG). The same
//! id again replaces its dead letter. An empty `processing` means none; `topic` is taken for the sake of the script and
//! not used.

use crate::args::{self, distinct_keys, writable_id, Opt};
use crate::error::Error;
use crate::message::{push_once, queue_field, Working};
use crate::redis::command::{key, optional, required, Command, KeyUse, Kind, Plain, Spec};
use crate::redis::{Call, HashKey, ListKey, StrRef};
use crate::stats::{self, Counter};
use smallvec::SmallVec;

pub struct DeadLetter;

impl Command for DeadLetter {
    const SPEC: Spec = Spec {
        name: "RMQ.DEADLETTER",
        summary: "Moves a message that is given up to the dead letters.",
        complexity: "O(1) for an id near either end of processing, else O(N) for the length of processing; plus O(D) \
                     for the length of dlq where the id is a dead letter already",
        flags: "write deny-oom",
        categories: "write slow",
        args: &[
            key("dlq_map", KeyUse::Update),
            key("dlq", KeyUse::Insert),
            key("expire_monitor", KeyUse::Remove),
            key("payload_map", KeyUse::Take),
            key("processing", KeyUse::Remove),
            required("id", Kind::Text),
            required("payload", Kind::Text),
            optional("topic", Kind::Text),
            optional("lease", Kind::Option("LEASE", Plain::Text)),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [dlq_map, dlq, expire_monitor, payload_map, processing, id, payload, words @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        // LEASE and its value are two words, so an odd one in front of them is the topic. LEASE alone is taken for an option
        // whose value was forgotten: as a topic it would settle the message without a look at the lease.
        let options = match words {
            [word] if word.bytes().eq_ignore_ascii_case(b"LEASE") => words,
            _ => &words[words.len() % 2..],
        };
        let [lease] = args::options(options, [Opt::Value("LEASE")])?;
        let lease = lease.map(|lease| args::lease(lease.bytes())).transpose()?;
        writable_id(id.bytes())?;
        distinct_keys(&[
            ("dlq_map", dlq_map.bytes()),
            ("dlq", dlq.bytes()),
            ("expire_monitor", expire_monitor.bytes()),
            ("payload_map", payload_map.bytes()),
            ("processing", processing.bytes()),
        ])?;
        let mut dlq_map = HashKey::open(call, *dlq_map, "dlq_map")?;
        let mut dlq = ListKey::open(call, *dlq, "dlq")?;
        let mut working = Working::open(call, *payload_map, *processing, *expire_monitor)?;
        if lease.is_some_and(|lease| !working.holds(*id, lease)) {
            stats::add(Counter::Fenced, 1);
            call.reply_integer(0);
            return Ok(());
        }
        if !working.knows(call, *id) {
            return Err(Error::NoMessage);
        }

        let field = queue_field(*id);
        let queue = working.queue_of(*id);
        let may_stand_already = dlq_map.has(*id);
        let mut stored: SmallVec<[StrRef; 4]> = SmallVec::new();
        dlq_map.set(*id, *payload);
        stored.extend([*id, *payload]);
        if let Some(queue) = &queue {
            dlq_map.set(field.as_ref(), queue.as_ref());
            stored.extend([field.as_ref(), queue.as_ref()]);
        }
        call.replicate(c"HSET", dlq_map.name(), &stored);
        push_once(call, &mut dlq, *id, may_stand_already);
        working.forget(call, std::slice::from_ref(id));

        stats::add(Counter::DeadLettered, 1);
        match lease {
            Some(_) => call.reply_integer(1),
            None => call.reply_ok(),
        }
        Ok(())
    }
}
