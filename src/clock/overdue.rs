//! Messages whose deadline has passed.

use super::due::{count, walk, Visit};
use crate::error::Error;
use crate::lists::Lists;
use crate::message::queue_field;
use crate::processing::Processing;
use crate::redis::list::Place;
use crate::redis::{HashKey, OwnedStr, StrRef, ZsetKey};
use crate::skipped::Reason;

/// Expired messages, with where they are in processing.
#[derive(Default)]
pub struct Overdue {
    pub messages: Vec<Expired>,
    /// Ids without message.
    pub stale: Vec<OwnedStr>,
    /// Ids that the clock of a namespace can neither move nor drop.
    pub put_off: Vec<(OwnedStr, f64)>,
    pub passed: usize,
    processing: Vec<Found>,
}

pub struct Expired {
    pub id: OwnedStr,
    /// Fetched for TIMEOUTS, which reports it.
    pub payload: Option<OwnedStr>,
    pub deadline: f64,
    /// The number of its queue.
    pub queue: usize,
    pub in_processing: bool,
}

/// The expired messages that are in one processing list.
struct Found {
    queue: usize,
    messages: Vec<usize>,
    places: Vec<(usize, Place)>,
}

impl Overdue {
    /// Finds at most `batch` ids whose deadline is `until` or earlier, and looks them up in their processing lists.
    pub fn find(
        deadlines: &ZsetKey,
        payloads: &HashKey,
        lists: &mut Lists,
        until: f64,
        batch: usize,
    ) -> Result<Self, Error> {
        let mut overdue = Overdue::default();
        if !payloads.exists() {
            Reason::NoMap.report(count(deadlines, until, batch), || payloads.name().bytes().to_vec());
            return Ok(overdue);
        }
        let in_namespace = lists.is_namespace();
        overdue.passed = walk(lists.call(), deadlines, until, batch, |id, deadline| {
            let field = queue_field(id.as_ref());
            let (payload, is_stored, queue) = match in_namespace {
                true => (None, payloads.has(id.as_ref()), payloads.get(field.as_ref())),
                false => {
                    let [payload, queue] = payloads.get_two(id.as_ref(), field.as_ref());
                    let is_stored = payload.is_some();
                    (payload, is_stored, queue)
                }
            };
            match queue {
                _ if !is_stored => overdue.stale.push(id),
                None if in_namespace => overdue.put_off.push((id, deadline)),
                None => overdue.stale.push(id),
                Some(queue) => match lists.find(queue)? {
                    queue if lists.is_usable(queue) => {
                        overdue.messages.push(Expired { id, payload, deadline, queue, in_processing: false })
                    }
                    _ if in_namespace => overdue.put_off.push((id, deadline)),
                    _ => return Ok(Visit::Passed),
                },
            }
            Ok(Visit::Taken)
        })?;
        overdue.look_up(deadlines, lists);
        Ok(overdue)
    }

    fn look_up(&mut self, deadlines: &ZsetKey, lists: &mut Lists) {
        if self.messages.is_empty() {
            return;
        }
        let mut by_queue: Vec<Vec<usize>> = vec![Vec::new(); lists.len()];
        for (index, message) in self.messages.iter().enumerate() {
            by_queue[message.queue].push(index);
        }
        for (queue, messages) in by_queue.into_iter().enumerate().filter(|(_, messages)| !messages.is_empty()) {
            let Some(list) = lists.get(queue) else { continue };
            let ids: Vec<StrRef> = messages.iter().map(|index| self.messages[*index].id.as_ref()).collect();
            let places = Processing::of(list).find_all(&ids, deadlines);
            for (index, _) in &places {
                self.messages[messages[*index]].in_processing = true;
            }
            self.processing.push(Found { queue, messages, places });
        }
    }

    /// Takes those that are in processing out of it.
    pub fn take_out(&self, lists: &mut Lists) {
        self.take_out_those(lists, |_| true);
    }

    pub fn take_out_those(&self, lists: &mut Lists, which: impl Fn(&Expired) -> bool) {
        for found in &self.processing {
            let ids: Vec<StrRef> = found.messages.iter().map(|index| self.messages[*index].id.as_ref()).collect();
            let is_meant = |(index, _): &&(usize, Place)| which(&self.messages[found.messages[*index]]);
            let places: Vec<(usize, Place)> = found.places.iter().filter(is_meant).copied().collect();
            if let Some(list) = lists.get(found.queue) {
                Processing::of(list).take_out_found(&places, &ids);
            }
        }
    }
}
