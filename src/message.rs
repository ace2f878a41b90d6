//! The steps that several commands share: what a message's fields are called, how it leaves the working keys, how it
//! goes into delay_tasks.

use smallvec::{smallvec, SmallVec};

use crate::clock::Now;
use crate::error::Error;
use crate::locate::{self, Place, Reach, Track, Wanted};
use crate::redis::key::End;
use crate::redis::{Call, HashKey, ListKey, OwnedStr, StrRef, ZsetKey};

pub const PENDING: &[u8] = b":pending";
pub const PROCESSING: &[u8] = b":processing";

pub fn queue_field(id: StrRef) -> OwnedStr {
    OwnedStr::concat(id.bytes(), b":queue")
}

pub fn attempts_field(id: StrRef) -> OwnedStr {
    OwnedStr::concat(id.bytes(), b":attempts")
}

/// Takes one occurrence of an id out of a list, here and on replicas.
pub fn remove_from_list(call: &Call, list: &mut ListKey, place: Place, id: StrRef) {
    remove_places(call, list, &[(0, place)], |_| id);
}

/// Takes ids out of a list, here and on replicas; rightmost first, each with a number that `id` knows it by.
///
/// A replica removes an id by LREM, which searches from one end. Where that would take it a walk for each of many ids,
/// or might hit another occurrence of the id, the place itself is marked (LSET), and one LREM removes all marks.
pub fn remove_places<'a>(call: &Call, list: &mut ListKey, found: &[(usize, Place)], id: impl Fn(usize) -> StrRef<'a>) {
    /// As far from the right end a replica walks for each of several ids.
    const SHORT_WALK: usize = 128;
    if found.is_empty() {
        return;
    }
    let len = list.len();
    let ascending: SmallVec<[usize; 1]> = found.iter().rev().map(|(_, place)| place.index).collect();
    list.remove_at(&ascending);

    let mut marked: SmallVec<[usize; 1]> = SmallVec::new();
    let mut removed = 0;
    for (tag, place) in found {
        let walk = len - removed - place.index;
        match place.reach {
            Reach::FromLeft => call.replicate_lrem(list.name(), 1, id(*tag)),
            Reach::FromRight if found.len() == 1 || walk <= SHORT_WALK => {
                call.replicate_lrem(list.name(), -1, id(*tag));
                removed += 1;
            }
            _ => marked.push(place.index),
        }
    }
    replicate_removal(call, list, len, marked.into_iter());
}

/// Tells replicas to take out what stood at these places of a list of this length: each place is marked, and one LREM
/// removes the marks.
fn replicate_removal(call: &Call, list: &ListKey, len: usize, places: impl ExactSizeIterator<Item = usize>) {
    let marks = places.len() as i64;
    if marks == 0 {
        return;
    }
    let mark = OwnedStr::new(MARK.as_bytes());
    let mut near_left = true;
    for place in places {
        call.replicate_lset(list.name(), place, mark.as_ref());
        near_left &= place < len / 2;
    }
    call.replicate_lrem(list.name(), if near_left { marks } else { -marks }, mark.as_ref());
}

lazy_static::lazy_static! {
    /// Stands in a replica's list for a moment, within one transaction. No id is like it.
    static ref MARK: String = format!("rmq:removed:{:016x}", crate::id::random_bits());
}

/// Puts an id at the left of a list; if it may stand there already, once or several times, it stands there once afterwards.
pub fn push_once(call: &Call, list: &mut ListKey, id: StrRef, may_stand_already: bool) {
    let places = if may_stand_already {
        list.places_of(id)
    } else {
        Vec::new()
    };
    let at_the_left = places.first() == Some(&0);
    let elsewhere = &places[usize::from(at_the_left)..];
    if !elsewhere.is_empty() {
        list.remove_at_once(elsewhere);
        call.replicate_lrem(list.name(), -(elsewhere.len() as i64), id);
    }
    if !at_the_left {
        list.push(End::Left, id);
        call.replicate(c"LPUSH", list.name(), &[id]);
    }
}

/// The keys that a message in work stands in.
pub struct Working<'c> {
    pub payload_map: HashKey<'c>,
    pub processing: Option<ListKey<'c>>,
    pub expire_monitor: ZsetKey<'c>,
}

impl<'c> Working<'c> {
    /// Opens the keys given as the arguments of these names. An empty `processing` means none.
    pub fn open(
        call: &'c Call<'c>,
        payload_map: StrRef<'c>,
        processing: StrRef<'c>,
        expire_monitor: StrRef<'c>,
    ) -> Result<Self, Error> {
        Ok(Working {
            payload_map: HashKey::open(call, payload_map, "payload_map")?,
            processing: match processing.is_empty() {
                true => None,
                false => Some(ListKey::open(call, processing, "processing")?),
            },
            expire_monitor: ZsetKey::open(call, expire_monitor, "expire_monitor")?,
        })
    }
}

impl Working<'_> {
    /// Every trace of the messages goes. Returns how many had any.
    pub fn forget(&mut self, call: &Call, ids: &[StrRef]) -> usize {
        let mut had_trace: SmallVec<[bool; 1]> = smallvec![false; ids.len()];
        if let Some(processing) = &mut self.processing {
            if let [id] = ids {
                if let Some(place) = locate::find(call, processing, *id, &self.expire_monitor) {
                    remove_from_list(call, processing, place, *id);
                    had_trace[0] = true;
                }
            } else {
                remove_several(call, processing, ids, &self.expire_monitor, |index| {
                    had_trace[index] = true
                });
            }
        }
        let mut watched: SmallVec<[StrRef; 1]> = SmallVec::with_capacity(ids.len());
        for (trace, id) in had_trace.iter_mut().zip(ids) {
            if self.expire_monitor.remove(*id) {
                watched.push(*id);
                *trace = true;
            }
        }
        if !watched.is_empty() {
            call.replicate(c"ZREM", self.expire_monitor.name(), &watched);
        }
        forget_payloads(call, &mut self.payload_map, ids, |index| had_trace[index] = true);
        had_trace.into_iter().filter(|trace| *trace).count()
    }
}

/// Takes ids out of a list with few looks at it; `removed` hears the index of each that was there.
fn remove_several(
    call: &Call,
    list: &mut ListKey,
    ids: &[StrRef],
    deadlines: &ZsetKey,
    mut removed: impl FnMut(usize),
) {
    let track = Track::of(list.name().bytes(), ids.len());
    let mut wanted = Wanted::new(ids.iter().map(|id| id.bytes()).enumerate());
    let mut remove = |list: &mut ListKey, found: Vec<(usize, Place)>| {
        if let Some((_, rightmost)) = found.first() {
            track.learn(list.len(), rightmost.index);
        }
        remove_places(call, list, &found, |index| ids[index]);
        found.iter().for_each(|(index, _)| removed(*index));
    };
    let found = locate::follow(call, list, &mut wanted, &track);
    remove(list, found);
    let mut swept = Vec::new();
    if locate::may_sweep(list, &wanted, deadlines) {
        let found = locate::pass(list, &mut wanted, locate::PATIENCE);
        remove(list, found);
        let len = list.len();
        swept = locate::sweep(list, ids, &mut wanted, deadlines);
        replicate_removal(call, list, len, swept.iter().map(|(_, index)| *index));
        if let Some((_, rightmost)) = swept.last() {
            track.learn(len, *rightmost);
        }
    }
    let found = locate::pass(list, &mut wanted, usize::MAX);
    remove(list, found);
    swept.iter().for_each(|(index, _)| removed(*index));
}

/// Deletes the fields of each message; `forgot` hears the index of each message that had any.
pub fn forget_payloads(call: &Call, payload_map: &mut HashKey, ids: &[StrRef], mut forgot: impl FnMut(usize)) {
    let mut own_fields: SmallVec<[[OwnedStr; 2]; 1]> = SmallVec::with_capacity(ids.len());
    own_fields.extend(ids.iter().map(|id| [queue_field(*id), attempts_field(*id)]));
    let mut gone: SmallVec<[StrRef; 3]> = SmallVec::with_capacity(3 * ids.len());
    for (index, (id, [queue, attempts])) in ids.iter().zip(&own_fields).enumerate() {
        let fields = [*id, queue.as_ref(), attempts.as_ref()];
        let before = gone.len();
        if call.has_listeners() {
            gone.extend(fields.into_iter().filter(|field| payload_map.delete(*field)));
        } else if payload_map.delete_three(fields) > 0 {
            // Which of them were there, nobody wants to know.
            gone.extend(fields);
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
    /// Whether the message exists at all: where it has no payload, processing may still know it.
    pub fn knows(&mut self, call: &Call, id: StrRef) -> bool {
        self.payload_map.has(id) || self.look_up(call, id).is_ok()
    }

    /// Whether the message exists at all, and where it stands in processing. Neither means that it was settled.
    pub fn look_up(&mut self, call: &Call, id: StrRef) -> Result<Option<Place>, Error> {
        let place = self
            .processing
            .as_mut()
            .and_then(|list| locate::find(call, list, id, &self.expire_monitor));
        if place.is_none() && !self.payload_map.has(id) {
            return Err(Error::NoMessage);
        }
        Ok(place)
    }

    /// The queue of a message: `<id>:queue`, or else by the name of its processing list.
    pub fn queue_of(&self, id: StrRef) -> Option<OwnedStr> {
        let field = queue_field(id);
        self.payload_map
            .get(field.as_ref())
            .or_else(|| self.missing_queue(field.as_ref()))
    }

    /// Whether `lease` is the message's current one.
    pub fn holds(&self, id: StrRef, lease: f64) -> bool {
        self.expire_monitor.score(id) == Some(lease)
    }

    /// The queue that a message without `<id>:queue` belongs to, by the name of its processing list.
    fn missing_queue(&self, queue_field: StrRef) -> Option<OwnedStr> {
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
        call.replicate_zadd(delay_tasks.name(), due, id);
        if self.expire_monitor.remove(id) {
            call.replicate(c"ZREM", self.expire_monitor.name(), &[id]);
        }
        if let (Some(place), Some(processing)) = (place, &mut self.processing) {
            remove_from_list(call, processing, place, id);
        }
    }
}

/// Messages that a producer brings. Those whose id exists already are left alone.
pub struct NewMessages<'a> {
    /// One for each message brought; None for one that existed.
    ids: SmallVec<[Option<NewId<'a>>; 1]>,
}

/// The id that the producer gave, or one that was made for it.
enum NewId<'a> {
    Given(StrRef<'a>),
    Made(OwnedStr),
}

impl NewId<'_> {
    fn as_ref(&self) -> StrRef<'_> {
        match self {
            NewId::Given(id) => *id,
            NewId::Made(id) => id.as_ref(),
        }
    }
}

impl<'a> NewMessages<'a> {
    /// Stores payload and queue of each. What a script left of an earlier message's attempts goes.
    pub fn store(
        call: &Call,
        payload_map: &mut HashKey,
        messages: impl ExactSizeIterator<Item = (StrRef<'a>, StrRef<'a>)>,
        queue: StrRef,
        now: Now,
    ) -> Self {
        let mut ids: SmallVec<[Option<NewId>; 1]> = SmallVec::with_capacity(messages.len());
        let mut own_fields: SmallVec<[OwnedStr; 1]> = SmallVec::with_capacity(messages.len());
        let mut payloads: SmallVec<[StrRef; 1]> = SmallVec::with_capacity(messages.len());
        let mut stale = Vec::new();
        for (id, payload) in messages {
            let id = if id.bytes() == b"*" {
                NewId::Made(OwnedStr::new(crate::id::fresh(now).as_bytes()))
            } else if payload_map.has(id) {
                ids.push(None);
                continue;
            } else {
                NewId::Given(id)
            };
            let field = queue_field(id.as_ref());
            payload_map.set(id.as_ref(), payload);
            payload_map.set(field.as_ref(), queue);
            // After what is stored, so that the map does not become empty meanwhile.
            if let NewId::Given(id) = id {
                let attempts = attempts_field(id);
                if payload_map.delete(attempts.as_ref()) {
                    stale.push(attempts);
                }
            }
            own_fields.push(field);
            payloads.push(payload);
            ids.push(Some(id));
        }
        let new = NewMessages { ids };
        if !payloads.is_empty() {
            let mut stored: SmallVec<[StrRef; 4]> = SmallVec::with_capacity(4 * payloads.len());
            for ((id, payload), field) in new.stored().iter().zip(&payloads).zip(&own_fields) {
                stored.extend([*id, *payload, field.as_ref(), queue]);
            }
            call.replicate(c"HSET", payload_map.name(), &stored);
        }
        if !stale.is_empty() {
            let stale: Vec<StrRef> = stale.iter().map(OwnedStr::as_ref).collect();
            call.replicate(c"HDEL", payload_map.name(), &stale);
        }
        new
    }

    /// The ids of those that were new.
    pub fn stored(&self) -> SmallVec<[StrRef<'_>; 1]> {
        self.ids.iter().flatten().map(NewId::as_ref).collect()
    }

    /// An id or nil for one message, an array of those for several.
    pub fn reply(&self, call: &Call) {
        if self.ids.len() != 1 {
            call.reply_array(self.ids.len());
        }
        for id in &self.ids {
            match id {
                Some(id) => call.reply_str(id.as_ref()),
                None => call.reply_nil(),
            }
        }
    }
}
