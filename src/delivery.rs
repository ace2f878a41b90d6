//! Deliveries that a caller shows receipts for, and how they leave processing: what ACK, NACK, RELEASE and EXTEND share.

use smallvec::SmallVec;

use crate::clock::is_lease;
use crate::error::Error;
use crate::hash::id_set;
use crate::lists::Lists;
use crate::message::{attempts_field, queue_field};
use crate::namespace::Namespace;
use crate::processing::Processing;
use crate::receipt;
use crate::redis::{HashKey, Invocation, OwnedStr, StrRef, ZsetKey};
use crate::stats::{self, Counter};
use crate::traffic::{self, Event};

/// A delivery whose receipt is current.
pub struct Delivery<'c> {
    pub id: StrRef<'c>,
    /// Which of the pairs given it is.
    pub pair: usize,
    /// The value of `<id>:attempts`.
    pub attempts: OwnedStr,
    /// The names of the fields `<id>:queue` and `<id>:attempts`, made once.
    pub queue_field: OwnedStr,
    pub attempts_field: OwnedStr,
    /// The full name of its queue; None where it is unknown or belongs to another namespace.
    pub queue: Option<OwnedStr>,
    /// The number of its processing list.
    list: Option<usize>,
}

/// Counts what becomes of them for their queues.
pub fn count(call: &Invocation, deliveries: &[Delivery], event: Event) {
    for same in deliveries.chunk_by(|one, next| one.list == next.list) {
        if let Some(queue) = same.first().and_then(|delivery| delivery.queue.as_ref()) {
            traffic::count(call, queue.bytes(), event, same.len());
        }
    }
}

/// `id receipt [id receipt …]`: whole pairs, at least one, of well-formed receipts.
pub fn check_pairs(pairs: &[StrRef]) -> Result<(), Error> {
    if pairs.is_empty() || pairs.len() % 2 != 0 {
        return Err(Error::WrongArity);
    }
    pairs.chunks_exact(2).try_for_each(|pair| receipt::check(pair[1].bytes()))
}

/// Those of the pairs whose receipt is current; the same id twice counts once. The others count as fenced.
pub fn current<'c>(
    ns: &Namespace,
    pairs: &[StrRef<'c>],
    payloads: &HashKey,
    expires: &ZsetKey,
) -> SmallVec<[Delivery<'c>; 1]> {
    let mut deliveries: SmallVec<[Delivery; 1]> = SmallVec::with_capacity(pairs.len() / 2);
    let mut seen = id_set(if pairs.len() > 2 { pairs.len() / 2 } else { 0 });
    let mut repeated = 0;
    for (number, pair) in pairs.chunks_exact(2).enumerate() {
        let (id, receipt) = (pair[0], pair[1]);
        let (queue_field, attempts_field) = (queue_field(id), attempts_field(id));
        let [attempts, queue] = payloads.get_two(attempts_field.as_ref(), queue_field.as_ref());
        let Some(attempts) = attempts.filter(|field| receipt::of_field(field.bytes()) == receipt.bytes()) else {
            continue;
        };
        // A script or CLAIM that has taken the message over has written a whole number.
        if !expires.score(id).is_some_and(is_lease) {
            continue;
        }
        if pairs.len() > 2 && !seen.insert(id.bytes()) {
            repeated += 1;
        } else {
            let queue = queue.filter(|queue| ns.names.short(queue.bytes()).is_some());
            deliveries.push(Delivery { id, pair: number, attempts, queue_field, attempts_field, queue, list: None });
        }
    }
    stats::add(Counter::Fenced, pairs.len() / 2 - deliveries.len() - repeated);
    deliveries
}

/// Opens the processing lists that the deliveries are in, if the caller may.
pub fn open_processing(ns: &Namespace, deliveries: &mut [Delivery], processing: &mut Lists) -> Result<(), Error> {
    for delivery in deliveries {
        let Some(queue) = &delivery.queue else { continue };
        if processing.known(queue.bytes()).is_none() {
            ns.check_processing(queue.bytes())?;
        }
        delivery.list = Some(processing.open(queue)?);
    }
    Ok(())
}

/// Out of processing and expires.
pub fn take_out(deliveries: &[Delivery], processing: &mut Lists, expires: &mut ZsetKey) {
    if let [delivery] = deliveries {
        if let Some(list) = delivery.list.and_then(|list| processing.get(list)) {
            Processing::of(list).take_out_all(&[delivery.id], expires);
        }
    } else {
        let mut by_list: Vec<SmallVec<[StrRef; 16]>> = vec![SmallVec::new(); processing.len()];
        for delivery in deliveries {
            if let Some(list) = delivery.list {
                by_list[list].push(delivery.id);
            }
        }
        for (list, ids) in by_list.iter().enumerate() {
            if let (Some(list), false) = (processing.get(list), ids.is_empty()) {
                Processing::of(list).take_out_all(ids, expires);
            }
        }
    }
    for delivery in deliveries {
        expires.remove(delivery.id);
    }
}

/// Deletes the fields of the messages, all of which a delivered message has.
pub fn forget_fields(deliveries: &[Delivery], payloads: &mut HashKey) {
    for delivery in deliveries {
        payloads.delete_three([delivery.id, delivery.queue_field.as_ref(), delivery.attempts_field.as_ref()]);
    }
}
