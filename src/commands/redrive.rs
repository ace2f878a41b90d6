//! RMQ.REDRIVE dlq dlq_map payload_map batch
//!
//! The oldest dead letters go back to the left of their own `<queue>:pending`, with their attempts forgotten. Each is
//! told as [id, queue]. An id without dead letter stands for nothing and is removed. A dead letter stays where it is if
//! its queue is not known or not a list, or if a live message has its id.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use crate::args::{self, distinct_keys};
use crate::derived::DerivedLists;
use crate::error::Error;
use crate::locate::{IdHasher, Place, Reach};
use crate::message::{attempts_field, queue_field, remove_places, PENDING};
use crate::redis::acl::Access;
use crate::redis::command::{key, required, Command, KeyUse, Kind, Spec};
use crate::redis::{Call, HashKey, ListKey, OwnedStr, StrRef};
use crate::stats::{self, Counter};

pub struct Redrive;

struct DeadLetter {
    id: OwnedStr,
    payload: OwnedStr,
    queue_field: OwnedStr,
    queue: usize,
}

/// An id that leaves dlq, and where it stood.
struct Leaving {
    index: usize,
    id: OwnedStr,
}

impl Command for Redrive {
    const SPEC: Spec = Spec {
        name: "RMQ.REDRIVE",
        summary: "Moves the oldest dead letters back to the pending lists of their queues.",
        complexity: "O(B+S) for B dead letters moved and S that stay behind among them",
        flags: "write",
        categories: "write slow",
        args: &[
            key("dlq", KeyUse::Take),
            key("dlq_map", KeyUse::Take),
            key("payload_map", KeyUse::Update),
            required("batch", Kind::Integer),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [dlq, dlq_map, payload_map, batch] = *call.args() else {
            return Err(Error::WrongArity);
        };
        let batch = args::batch(batch.bytes())?;
        distinct_keys(&[
            ("dlq", dlq.bytes()),
            ("dlq_map", dlq_map.bytes()),
            ("payload_map", payload_map.bytes()),
        ])?;
        let mut pending = DerivedLists::new(call, dlq, PENDING, Access::Insert);
        let own_names = [dlq.bytes(), payload_map.bytes()];
        let mut dlq = ListKey::open(call, dlq, "dlq")?;
        let mut dlq_map = HashKey::open(call, dlq_map, "dlq_map")?;
        let mut payload_map = HashKey::open(call, payload_map, "payload_map")?;

        let mut letters: Vec<DeadLetter> = Vec::new();
        let mut leaving: Vec<Leaving> = Vec::new();
        let mut seen: HashSet<Vec<u8>, BuildHasherDefault<IdHasher>> = HashSet::default();
        let mut wrong_type = 0;
        for index in (0..dlq.len()).rev() {
            if leaving.len() == batch {
                break;
            }
            let Some(id) = dlq.at(index) else { break };
            let payload = dlq_map.get(id.as_ref()).filter(|_| !seen.contains(id.bytes()));
            let Some(payload) = payload else {
                leaving.push(Leaving { index, id });
                continue;
            };
            let queue_field = queue_field(id.as_ref());
            let Some(queue) = dlq_map.get(queue_field.as_ref()) else {
                continue;
            };
            // A queue whose pending list is dlq would get its dead letters back for ever; one whose pending list is
            // payload_map, which may be missing still, would make it a list.
            let circular = own_names
                .map(|name| name.strip_suffix(PENDING))
                .contains(&Some(queue.bytes()));
            if circular || payload_map.has(id.as_ref()) {
                continue;
            }
            let queue = pending.find(queue)?;
            if !pending.is_list(queue) {
                wrong_type += 1;
                continue;
            }
            seen.insert(id.bytes().to_vec());
            letters.push(DeadLetter {
                id: OwnedStr::retain(id.as_ref()),
                payload,
                queue_field,
                queue,
            });
            leaving.push(Leaving { index, id });
        }

        let len = dlq.len();
        let at_the_end = leaving
            .iter()
            .enumerate()
            .all(|(count, left)| left.index + count + 1 == len);
        if at_the_end && !leaving.is_empty() {
            for _ in &leaving {
                dlq.pop_right();
            }
            call.replicate_number(c"RPOP", dlq.name(), leaving.len() as i64);
        } else {
            // The walk came from the right, so each is the last of its id.
            let reach = Reach::FromRight;
            let place = |left: &Leaving| Place {
                index: left.index,
                reach,
            };
            let found: Vec<(usize, Place)> = leaving.iter().map(place).enumerate().collect();
            remove_places(call, &mut dlq, &found, |number| leaving[number].id.as_ref());
        }
        pending.push_left(letters.iter().map(|letter| (&letter.id, letter.queue)));
        let mut stored: Vec<StrRef> = Vec::with_capacity(4 * letters.len());
        let mut gone: Vec<StrRef> = Vec::with_capacity(2 * letters.len());
        let mut stale: Vec<OwnedStr> = Vec::new();
        for letter in &letters {
            let (id, queue_field, queue) = (
                letter.id.as_ref(),
                letter.queue_field.as_ref(),
                pending.name(letter.queue),
            );
            payload_map.set(id, letter.payload.as_ref());
            payload_map.set(queue_field, queue);
            stored.extend([id, letter.payload.as_ref(), queue_field, queue]);
            let attempts = attempts_field(id);
            if payload_map.delete(attempts.as_ref()) {
                stale.push(attempts);
            }
            dlq_map.delete(id);
            dlq_map.delete(queue_field);
            gone.extend([id, queue_field]);
        }
        if !letters.is_empty() {
            call.replicate(c"HSET", payload_map.name(), &stored);
            call.replicate(c"HDEL", dlq_map.name(), &gone);
        }
        if !stale.is_empty() {
            let stale: Vec<StrRef> = stale.iter().map(OwnedStr::as_ref).collect();
            call.replicate(c"HDEL", payload_map.name(), &stale);
        }

        stats::add(Counter::Redriven, letters.len());
        stats::add(Counter::Stale, leaving.len() - letters.len());
        pending.report_skipped(wrong_type);
        call.reply_array(letters.len());
        for letter in &letters {
            call.reply_array(2);
            call.reply_str(letter.id.as_ref());
            call.reply_str(pending.name(letter.queue));
        }
        Ok(())
    }
}
