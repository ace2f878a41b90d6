//! The steps that several commands share: what a message's fields are called, how it leaves the working keys, how it
//! goes into delay_tasks.

use smallvec::SmallVec;

use crate::error::Error;
use crate::locate::{self, Place, Wanted};
use crate::redis::{Call, HashKey, ListKey, OwnedStr, StrRef, ZsetKey};

pub const PENDING: &[u8] = b":pending";
pub const PROCESSING: &[u8] = b":processing";

pub fn queue_field(id: StrRef) -> OwnedStr {
    OwnedStr::concat(id.bytes(), b":queue")
}

pub fn attempts_field(id: StrRef) -> OwnedStr {
    OwnedStr::concat(id.bytes(), b":attempts")
}

/// An argument that names a key, or is empty and means none.
pub fn open_optional_list<'c>(
    call: &'c Call<'c>,
    name: StrRef<'c>,
    role: &'static str,
) -> Result<Option<ListKey<'c>>, Error> {
    if name.is_empty() {
        return Ok(None);
    }
    ListKey::open(call, name, role).map(Some)
}

/// Takes one occurrence of an id out of a list, here and on replicas.
pub fn remove_from_list(call: &Call, list: &mut ListKey, place: Place, id: StrRef) {
    list.remove_at(place.index);
    call.replicate_lrem(list.name(), place.lrem_count(), id);
}

pub fn remove_from_zset(call: &Call, zset: &mut ZsetKey, id: StrRef) -> bool {
    let removed = zset.remove(id);
    if removed {
        call.replicate(c"ZREM", zset.name(), &[id]);
    }
    removed
}

/// The keys that a message in work stands in.
pub struct Working<'c> {
    pub payload_map: HashKey<'c>,
    pub processing: Option<ListKey<'c>>,
    pub expire_monitor: ZsetKey<'c>,
}

impl Working<'_> {
    /// Every trace of the messages goes. Returns how many had any.
    pub fn forget(&mut self, call: &Call, ids: &[StrRef]) -> usize {
        match ids {
            [id] => usize::from(self.forget_one(call, *id)),
            _ => self.forget_many(call, ids),
        }
    }

    fn forget_one(&mut self, call: &Call, id: StrRef) -> bool {
        let mut found = false;
        if let Some(processing) = &mut self.processing {
            if let Some(place) = locate::find(processing, id) {
                remove_from_list(call, processing, place, id);
                found = true;
            }
        }
        found |= remove_from_zset(call, &mut self.expire_monitor, id);
        forget_payloads(call, &mut self.payload_map, &[id], |_| found = true);
        found
    }

    fn forget_many(&mut self, call: &Call, ids: &[StrRef]) -> usize {
        let mut had_trace = vec![false; ids.len()];
        if let Some(processing) = &mut self.processing {
            let wanted = Wanted::new(ids.iter().map(|id| id.bytes()).enumerate());
            let mut removed = Vec::new();
            locate::pass(processing, wanted, true, |index| removed.push(index));
            for index in removed {
                call.replicate_lrem(processing.name(), c"-1", ids[index]);
                had_trace[index] = true;
            }
        }
        let mut watched = Vec::new();
        for (index, id) in ids.iter().enumerate() {
            if self.expire_monitor.remove(*id) {
                watched.push(*id);
                had_trace[index] = true;
            }
        }
        if !watched.is_empty() {
            call.replicate(c"ZREM", self.expire_monitor.name(), &watched);
        }
        forget_payloads(call, &mut self.payload_map, ids, |index| had_trace[index] = true);
        had_trace.into_iter().filter(|trace| *trace).count()
    }
}

/// Deletes the fields of each message; `forgot` hears the index of each message that had any.
pub fn forget_payloads(call: &Call, payload_map: &mut HashKey, ids: &[StrRef], mut forgot: impl FnMut(usize)) {
    let mut own_fields: SmallVec<[[OwnedStr; 2]; 1]> = SmallVec::with_capacity(ids.len());
    own_fields.extend(ids.iter().map(|id| [queue_field(*id), attempts_field(*id)]));
    let mut gone: SmallVec<[StrRef; 3]> = SmallVec::new();
    for (index, (id, [queue, attempts])) in ids.iter().zip(&own_fields).enumerate() {
        let before = gone.len();
        for field in [*id, queue.as_ref(), attempts.as_ref()] {
            if payload_map.delete(field) {
                gone.push(field);
            }
        }
        if gone.len() > before {
            forgot(index);
        }
    }
    if !gone.is_empty() {
        call.replicate(c"HDEL", payload_map.name(), &gone);
    }
}

/// A message on its way back into delay_tasks: what RETRY and NACK have in common.
pub struct Postponed<'a> {
    pub id: StrRef<'a>,
    /// Replaces the stored payload.
    pub payload: Option<StrRef<'a>>,
    /// In processing, if it is there.
    pub place: Option<Place>,
    pub due: f64,
}

impl Working<'_> {
    /// Whether the message exists at all, and where it stands in processing. Neither means that it was settled.
    pub fn look_up(&mut self, id: StrRef) -> Result<Option<Place>, Error> {
        let place = self.processing.as_mut().and_then(|list| locate::find(list, id));
        if place.is_none() && !self.payload_map.has(id) {
            return Err(Error::NoMessage);
        }
        Ok(place)
    }

    /// The queue that a message without `<id>:queue` belongs to, by the name of its processing list.
    pub fn missing_queue(&self, queue_field: StrRef) -> Option<OwnedStr> {
        let processing = self.processing.as_ref()?.name().bytes();
        let queue = processing.strip_suffix(PROCESSING)?;
        (!self.payload_map.has(queue_field)).then(|| OwnedStr::new(queue))
    }

    pub fn postpone(&mut self, call: &Call, delay_tasks: &mut ZsetKey, message: &Postponed) {
        let Postponed {
            id,
            payload,
            place,
            due,
        } = *message;
        let queue_field = queue_field(id);
        let queue = self.missing_queue(queue_field.as_ref());
        let mut stored: SmallVec<[StrRef; 4]> = SmallVec::new();
        if let Some(payload) = payload {
            self.payload_map.set(id, payload);
            stored.extend([id, payload]);
        }
        if let Some(queue) = &queue {
            self.payload_map.set(queue_field.as_ref(), queue.as_ref());
            stored.extend([queue_field.as_ref(), queue.as_ref()]);
        }
        if !stored.is_empty() {
            call.replicate(c"HSET", self.payload_map.name(), &stored);
        }
        delay_tasks.add(id, due);
        let score = OwnedStr::new(due.to_string().as_bytes());
        call.replicate(c"ZADD", delay_tasks.name(), &[score.as_ref(), id]);
        self.leave_work(call, id, place);
    }

    /// Out of expire_monitor and processing; the payload stays.
    pub fn leave_work(&mut self, call: &Call, id: StrRef, place: Option<Place>) {
        remove_from_zset(call, &mut self.expire_monitor, id);
        if let (Some(place), Some(processing)) = (place, &mut self.processing) {
            remove_from_list(call, processing, place, id);
        }
    }
}
