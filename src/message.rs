//! A message: the fields of payload_map that belong to it, the keys that it is in while it is worked on, and the steps
//! that several commands share.

use smallvec::{smallvec, SmallVec};

use crate::error::Error;
use crate::lists::{Guard, PROCESSING};
use crate::processing::Processing;
use crate::redis::acl::Access;
use crate::redis::list::Place;
use crate::redis::{HashKey, Invocation, KeyArg, ListKey, OwnedStr, StrRef, ZsetKey};

pub fn queue_field(id: StrRef) -> OwnedStr {
    OwnedStr::concat(id.bytes(), b":queue")
}

pub fn attempts_field(id: StrRef) -> OwnedStr {
    OwnedStr::concat(id.bytes(), b":attempts")
}

/// What the names of a message's fields end in, besides its payload: of a live one, of a dead one.
pub const FIELDS: [&[u8]; 2] = [b":queue", b":attempts"];
pub const DEAD_FIELDS: [&[u8]; 2] = [b":queue", b":death"];

/// The id that a field belongs to by its name.
pub fn owner_of<'a>(name: &'a [u8], fields: &[&[u8]]) -> Option<&'a [u8]> {
    fields.iter().find_map(|field| name.strip_suffix(*field))
}

/// Whether this is a field of a message that is stored, and no id, wherever it may be.
pub fn is_field_of_message(map: &HashKey, name: StrRef, fields: &[&[u8]]) -> bool {
    owner_of(name.bytes(), fields).is_some_and(|owner| map.has(OwnedStr::new(owner).as_ref()))
}

pub fn is_message(map: &HashKey, id: StrRef, fields: &[&[u8]]) -> bool {
    map.has(id) && !is_field_of_message(map, id, fields)
}

/// Deletes the fields of each message. Returns which of them had any.
pub fn forget_fields(payload_map: &mut HashKey, ids: &[StrRef]) -> SmallVec<[bool; 1]> {
    ids.iter()
        .map(|id| {
            let (queue, attempts) = (queue_field(*id), attempts_field(*id));
            let fields = [*id, queue.as_ref(), attempts.as_ref()];
            fields.into_iter().filter(|field| payload_map.delete(*field)).count() > 0
        })
        .collect()
}

/// The keys that a message in processing is in, as the twins get them.
pub struct Working<'c> {
    pub payload_map: HashKey<'c>,
    /// None where the caller gave an empty name.
    pub processing: Option<ListKey<'c>>,
    pub expire_monitor: ZsetKey<'c>,
}

/// One message in processing, and where.
pub struct InWork<'c> {
    pub id: StrRef<'c>,
    /// `<id>:queue`, or else by the name of the processing list.
    pub queue: Option<OwnedStr>,
    queue_is_stored: bool,
    place: Option<Place>,
    /// In the processing list of its own queue, where that is another than the one given.
    own_list: Option<(ListKey<'c>, Place)>,
}

impl<'c> Working<'c> {
    pub fn open(
        call: &'c Invocation<'c>,
        payload_map: KeyArg<'c>,
        processing: KeyArg<'c>,
        expire_monitor: KeyArg<'c>,
    ) -> Result<Self, Error> {
        Ok(Working {
            payload_map: HashKey::open(call, payload_map)?,
            processing: ListKey::open_unless_empty(call, processing)?,
            expire_monitor: ZsetKey::open(call, expire_monitor)?,
        })
    }

    /// Looks a message up. One that is neither in payload_map nor in processing was settled already.
    pub fn look_up(&mut self, call: &'c Invocation<'c>, home: KeyArg<'c>, id: StrRef<'c>) -> Result<InWork<'c>, Error> {
        let field = queue_field(id);
        let [payload, stored] = self.payload_map.get_two(id, field.as_ref());
        let place = self.processing.as_mut().and_then(|list| Processing::of(list).find(id, &self.expire_monitor));
        let own_list = match &stored {
            Some(queue) => self.find_in_own_list(call, home, id, queue)?,
            None => None,
        };
        if payload.is_none() && place.is_none() && own_list.is_none() {
            return Err(Error::NoMessage);
        }
        let queue_is_stored = stored.is_some();
        let queue = stored.or_else(|| {
            let processing = self.processing.as_ref()?.name();
            processing.bytes().strip_suffix(PROCESSING).map(OwnedStr::new)
        });
        Ok(InWork { id, queue, queue_is_stored, place, own_list })
    }

    /// A caller may name another list than the one that the message is in (mx-rmq with a queue_prefix does).
    fn find_in_own_list(
        &self,
        call: &'c Invocation<'c>,
        home: KeyArg<'c>,
        id: StrRef,
        queue: &OwnedStr,
    ) -> Result<Option<(ListKey<'c>, Place)>, Error> {
        let given = self.processing.as_ref().and_then(|list| list.name().bytes().strip_suffix(PROCESSING));
        if given == Some(queue.bytes()) {
            return Ok(None);
        }
        let name = OwnedStr::concat(queue.bytes(), PROCESSING);
        let mut list = Guard::new(call, home.name).open(Access::Delete, name)?;
        let place = Processing::of(&mut list).find(id, &self.expire_monitor);
        Ok(place.map(|place| (list, place)))
    }

    pub fn take_out_of_processing(&mut self, message: &mut InWork) {
        if let (Some(place), Some(list)) = (message.place, &mut self.processing) {
            Processing::of(list).take_out(place, message.id);
        }
        if let Some((list, place)) = &mut message.own_list {
            Processing::of(list).take_out(*place, message.id);
        }
    }

    /// Every trace of the messages is removed. Returns how many had any.
    pub fn forget(&mut self, ids: &[StrRef]) -> usize {
        let mut had_trace = match &mut self.processing {
            Some(list) => Processing::of(list).take_out_all(ids, &self.expire_monitor),
            None => smallvec![false; ids.len()],
        };
        for (trace, id) in had_trace.iter_mut().zip(ids) {
            *trace |= self.expire_monitor.remove(*id);
        }
        for (trace, had_fields) in had_trace.iter_mut().zip(forget_fields(&mut self.payload_map, ids)) {
            *trace |= had_fields;
        }
        had_trace.into_iter().filter(|trace| *trace).count()
    }

    /// A message in processing becomes due later, with a new payload.
    pub fn postpone(&mut self, message: &mut InWork, payload: StrRef, delay_tasks: &mut ZsetKey, due: f64) {
        self.payload_map.set(message.id, payload);
        if let (Some(queue), false) = (&message.queue, message.queue_is_stored) {
            self.payload_map.set(queue_field(message.id).as_ref(), queue.as_ref());
        }
        delay_tasks.add(message.id, due);
        self.expire_monitor.remove(message.id);
        self.take_out_of_processing(message);
    }
}
