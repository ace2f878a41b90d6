//! Derived keys: the lists `<queue>:pending` and `<queue>:processing` that a command finds through `<id>:queue`. Each
//! is checked before the first write as the server checks arguments: the caller's permission, the cluster slot, the
//! type. A list that cannot be used concerns that queue only; its ids stay where they are.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::error::Error;
use crate::hash::IdMap;
use crate::namespace::{Names, Namespace};
use crate::redis::acl::{Access, User};
use crate::redis::list::End;
use crate::redis::{server, HashKey, Invocation, ListKey, OwnedStr, StrRef};
use crate::skipped::Reason;
use crate::slot::slot;

pub const PENDING: &[u8] = b":pending";
pub const PROCESSING: &[u8] = b":processing";

/// From this many queues on, use a hash map.
const HASHED_FROM: usize = 8;

pub struct Lists<'c> {
    call: &'c Invocation<'c>,
    owner: Owner<'c>,
    suffix: &'static [u8],
    queues: Vec<Queue<'c>>,
    by_name: IdMap<Vec<u8>, usize>,
    last: usize,
    /// Queues whose list was created in this call.
    created: SmallVec<[usize; 2]>,
}

/// Which lists may be used.
enum Owner<'c> {
    /// Any for which the caller has permission.
    Caller(Guard<'c>, Access),
    /// Those of a namespace only. The commands check the permission for the queues that a caller names.
    Namespace(Rc<Names>),
}

struct Queue<'c> {
    name: OwnedStr,
    /// None: the key cannot be used: it has another type, another role in this call, or belongs to another namespace.
    list: Option<ListKey<'c>>,
}

impl<'c> Lists<'c> {
    /// The pending lists, which ids are pushed to. `home` is one of the keys given: derived keys must share its slot.
    pub fn pending(call: &'c Invocation<'c>, home: StrRef<'c>) -> Self {
        Lists::new(call, Owner::Caller(Guard::new(call, home), Access::Insert), PENDING)
    }

    /// The processing lists, which ids are removed from.
    pub fn processing(call: &'c Invocation<'c>, home: StrRef<'c>) -> Self {
        Lists::new(call, Owner::Caller(Guard::new(call, home), Access::Delete), PROCESSING)
    }

    /// The pending lists of a namespace.
    pub fn pending_of(namespace: &Namespace<'c>) -> Self {
        Lists::new(namespace.call, Owner::Namespace(Rc::clone(&namespace.names)), PENDING)
    }

    pub fn processing_of(namespace: &Namespace<'c>) -> Self {
        Lists::new(namespace.call, Owner::Namespace(Rc::clone(&namespace.names)), PROCESSING)
    }

    fn new(call: &'c Invocation<'c>, owner: Owner<'c>, suffix: &'static [u8]) -> Self {
        Lists { call, owner, suffix, queues: Vec::new(), by_name: IdMap::default(), last: 0, created: SmallVec::new() }
    }

    /// In a namespace an id without a queue is a fault to be mended, not a reason to drop a message.
    pub fn is_namespace(&self) -> bool {
        matches!(self.owner, Owner::Namespace(_))
    }

    /// The number of the queue with this name, if it was met before.
    pub fn known(&mut self, name: &[u8]) -> Option<usize> {
        // Messages that are due together often belong to the same queue.
        if self.queues.get(self.last).is_some_and(|queue| queue.name.bytes() == name) {
            return Some(self.last);
        }
        let known = match self.queues.len() {
            // Below, a look at each is cheaper than a hash.
            ..HASHED_FROM => self.queues.iter().position(|queue| queue.name.bytes() == name),
            HASHED_FROM.. => {
                if self.by_name.is_empty() {
                    let known = self.queues.iter().enumerate();
                    self.by_name.extend(known.map(|(index, queue)| (queue.name.bytes().to_vec(), index)));
                }
                self.by_name.get(name).copied()
            }
        };
        self.last = known.unwrap_or(self.last);
        known
    }

    /// The number of the queue with this name, opened and checked when it is first met.
    pub fn find(&mut self, name: OwnedStr) -> Result<usize, Error> {
        if let Some(index) = self.known(name.bytes()) {
            return Ok(index);
        }
        let opened = match &mut self.owner {
            Owner::Caller(guard, access) => guard.open(*access, OwnedStr::concat(name.bytes(), self.suffix)).map(Some),
            Owner::Namespace(names) => match names.of_full_name(name.bytes()) {
                Some(names) if self.suffix == PENDING => open_in_own_slot(self.call, &names.pending).map(Some),
                Some(names) => open_in_own_slot(self.call, &names.processing).map(Some),
                None => Ok(None),
            },
        };
        let list = match opened {
            Err(Error::KeyWrongType { .. } | Error::KeyInUse(_)) => None,
            opened => opened?,
        };
        self.last = self.queues.len();
        if !self.by_name.is_empty() {
            self.by_name.insert(name.bytes().to_vec(), self.last);
        }
        self.queues.push(Queue { name, list });
        Ok(self.last)
    }

    /// The same; a list that cannot be used is an error.
    pub fn open(&mut self, name: &OwnedStr) -> Result<usize, Error> {
        let index = self.find(OwnedStr::retain(name.as_ref()))?;
        match self.is_usable(index) {
            true => Ok(index),
            false => Err(Error::KeyWrongType { key: [name.bytes(), self.suffix].concat(), expected: "list" }),
        }
    }

    pub fn is_usable(&self, index: usize) -> bool {
        self.queues[index].list.is_some()
    }

    pub fn name(&self, index: usize) -> StrRef<'_> {
        self.queues[index].name.as_ref()
    }

    /// None if the list cannot be used.
    pub fn get(&mut self, index: usize) -> Option<&mut ListKey<'c>> {
        self.queues[index].list.as_mut()
    }

    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Pushes each message to the left of its queue's list, in their order.
    pub fn push_left<'a>(&mut self, messages: impl Iterator<Item = (&'a OwnedStr, usize)>) {
        for (id, queue) in messages {
            self.push(queue, End::Left, id.as_ref());
        }
    }

    pub fn push(&mut self, queue: usize, end: End, id: StrRef) {
        if let Some(list) = &mut self.queues[queue].list {
            if list.len() == 0 {
                self.created.push(queue);
            }
            list.push(end, id);
        }
    }

    /// A list was created by other means than `push`.
    pub fn note_created(&mut self, queue: usize) {
        self.created.push(queue);
    }

    /// Adds the queues whose list was created to `<ns>:queues`.
    pub fn register_created(&mut self, queues: &mut HashKey) {
        let Owner::Namespace(names) = &self.owner else { return };
        for index in self.created.drain(..) {
            let Some(short) = names.short(self.queues[index].name.bytes()).map(OwnedStr::new) else { continue };
            if !queues.has(short.as_ref()) {
                queues.set(short.as_ref(), OwnedStr::new(b"{}").as_ref());
            }
        }
    }

    /// Counts and logs ids that stay behind because their list cannot be used, or because their queue is unknown.
    pub fn report_skipped(&self, count: usize) {
        if self.is_namespace() && self.queues.iter().all(|queue| queue.list.is_some()) {
            Reason::NoQueue.report(count, || self.names_key());
        } else if let Some(bad) = self.queues.iter().find(|queue| queue.list.is_none()) {
            let key = || [bad.name.bytes(), self.suffix].concat();
            Reason::UnusableKey.report(count, key);
        }
    }

    fn names_key(&self) -> Vec<u8> {
        match &self.owner {
            Owner::Namespace(names) => names.payloads.bytes().to_vec(),
            Owner::Caller(guard, _) => guard.home.bytes().to_vec(),
        }
    }

    pub fn call(&self) -> &'c Invocation<'c> {
        self.call
    }
}

/// Checks that the caller has permission for a derived key, and that this node serves its slot.
pub struct Guard<'c> {
    call: &'c Invocation<'c>,
    user: Option<User<'c>>,
    home: StrRef<'c>,
}

impl<'c> Guard<'c> {
    pub fn new(call: &'c Invocation<'c>, home: StrRef<'c>) -> Self {
        Guard { call, user: None, home }
    }

    pub fn check(&mut self, access: Access, key: StrRef) -> Result<(), Error> {
        if server().cluster && slot(key.bytes()) != slot(self.home.bytes()) {
            return Err(Error::CrossSlot { derived_key: key.bytes().to_vec() });
        }
        let call = self.call;
        if !self.user.get_or_insert_with(|| User::of(call)).may(access, key) {
            return Err(Error::NoPermission { derived_key: key.bytes().to_vec() });
        }
        Ok(())
    }

    /// Checks and opens a derived list.
    pub fn open(&mut self, access: Access, key: OwnedStr) -> Result<ListKey<'c>, Error> {
        self.check(access, key.as_ref())?;
        open_in_own_slot(self.call, &key)
    }
}

/// A missing key may be on the other node of a slot that moves: created here it would collide with that one, and its
/// messages be lost; taken for empty, it would hide the messages in it.
fn open_in_own_slot<'c>(call: &'c Invocation<'c>, key: &OwnedStr) -> Result<ListKey<'c>, Error> {
    let list = ListKey::open_named(call, key)?;
    if !server().cluster || list.exists() {
        return Ok(list);
    }
    // The server is asked while the key is not open, together with a name in the same slot that does not exist.
    drop(list);
    let other = OwnedStr::concat(key.bytes(), b":none");
    if !call.owns_all(&[key.as_ref(), other.as_ref()]) {
        return Err(Error::SlotMoves { derived_key: key.bytes().to_vec() });
    }
    ListKey::open_named(call, key)
}
