//! Derived keys: the lists `<queue>:pending` and `<queue>:processing` that a command finds through `<id>:queue`. Each
//! is checked before the first write as the server checks arguments: the caller's permission, the cluster slot, the
//! type. A wrong type concerns that queue only; its ids stay where they are.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::Now;
use crate::error::Error;
use crate::locate::IdHasher;
use crate::redis::acl::{Access, User};
use crate::redis::call::in_cluster;
use crate::redis::key::{open_derived_list, End};
use crate::redis::{log, Call, ListKey, OwnedStr, StrRef};
use crate::slot::slot;
use crate::stats::{self, Counter};

pub struct DerivedLists<'c> {
    call: &'c Call<'c>,
    guard: Guard<'c>,
    suffix: &'static [u8],
    access: Access,
    queues: Vec<Queue<'c>>,
    by_name: HashMap<Vec<u8>, usize, BuildHasherDefault<IdHasher>>,
    last: usize,
}

pub struct Queue<'c> {
    pub name: OwnedStr,
    /// None: the key holds another type.
    pub list: Option<ListKey<'c>>,
}

impl<'c> DerivedLists<'c> {
    /// `home` is one of the keys given: the slot that derived keys must share.
    pub fn new(call: &'c Call<'c>, home: StrRef<'c>, suffix: &'static [u8], access: Access) -> Self {
        DerivedLists {
            call,
            guard: Guard::new(call, home),
            suffix,
            access,
            queues: Vec::new(),
            by_name: HashMap::default(),
            last: 0,
        }
    }

    /// The number of the queue with this name, opened and checked when it is first met.
    pub fn find(&mut self, name: OwnedStr) -> Result<usize, Error> {
        // Messages that are due together often go to the same queue.
        if self
            .queues
            .get(self.last)
            .is_some_and(|queue| queue.name.bytes() == name.bytes())
        {
            return Ok(self.last);
        }
        if let Some(index) = self.by_name.get(name.bytes()) {
            self.last = *index;
            return Ok(self.last);
        }
        let key = OwnedStr::concat(name.bytes(), self.suffix);
        self.guard.check(self.access, key.as_ref())?;
        let list = open_derived_list(self.call, key);
        if let Some(missing) = list.as_ref().filter(|list| list.len() == 0) {
            self.guard.check_missing(missing.name())?;
        }
        self.last = self.queues.len();
        self.by_name.insert(name.bytes().to_vec(), self.last);
        self.queues.push(Queue { name, list });
        Ok(self.last)
    }

    pub fn is_list(&self, index: usize) -> bool {
        self.queues[index].list.is_some()
    }

    pub fn name(&self, index: usize) -> StrRef<'_> {
        self.queues[index].name.as_ref()
    }

    /// The queues whose key is a list, with their numbers.
    pub fn lists(&mut self) -> impl Iterator<Item = (usize, &mut ListKey<'c>)> {
        self.queues
            .iter_mut()
            .enumerate()
            .filter_map(|(index, queue)| queue.list.as_mut().map(|list| (index, list)))
    }

    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Pushes each message to the left of its queue's list, in their order.
    pub fn push_left<'a>(&mut self, messages: impl Iterator<Item = (&'a OwnedStr, usize)>) {
        let mut by_queue: Vec<Vec<StrRef>> = vec![Vec::new(); self.len()];
        for (id, queue) in messages {
            by_queue[queue].push(id.as_ref());
        }
        let call = self.call;
        for (queue, list) in self.lists() {
            let ids = &by_queue[queue];
            for id in ids {
                list.push(End::Left, *id);
            }
            if !ids.is_empty() {
                call.replicate(c"LPUSH", list.name(), ids);
            }
        }
    }

    /// Counts ids that stay behind because of a wrong type, and says so in the log now and then.
    pub fn report_skipped(&self, skipped: usize) {
        if skipped == 0 {
            return;
        }
        stats::add(Counter::Skipped, skipped);
        const LOG_EVERY_MS: i64 = 10_000;
        static LAST: AtomicI64 = AtomicI64::new(0);
        let now = Now::read().ms();
        if (now - LAST.load(Ordering::Relaxed)).abs() < LOG_EVERY_MS {
            return;
        }
        LAST.store(now, Ordering::Relaxed);
        if let Some(bad) = self.queues.iter().find(|queue| queue.list.is_none()) {
            let key = [bad.name.bytes(), self.suffix].concat();
            log::warning(&format!(
                "rmq: {skipped} ids stay where they are, because '{}' is not a list (this line comes at most every {} s)",
                log::printable(&key),
                LOG_EVERY_MS / 1000
            ));
        }
    }
}

/// May the caller use this key, and may this node?
pub struct Guard<'c> {
    call: &'c Call<'c>,
    user: Option<User<'c>>,
    home: StrRef<'c>,
}

impl<'c> Guard<'c> {
    pub fn new(call: &'c Call<'c>, home: StrRef<'c>) -> Self {
        Guard { call, user: None, home }
    }

    pub fn check(&mut self, access: Access, key: StrRef) -> Result<(), Error> {
        if in_cluster() && slot(key.bytes()) != slot(self.home.bytes()) {
            return Err(Error::CrossSlot {
                derived_key: key.bytes().to_vec(),
            });
        }
        let call = self.call;
        if !self.user.get_or_insert_with(|| User::of(call)).may(access, key) {
            return Err(Error::NoPermission {
                derived_key: key.bytes().to_vec(),
            });
        }
        Ok(())
    }

    /// A derived key that is missing may be on the other node of a slot that moves: made anew here it would collide
    /// with that one, and its messages be lost; taken for empty, it would hide the messages in it.
    fn check_missing(&self, key: StrRef) -> Result<(), Error> {
        if in_cluster() && !self.call.owns_both(self.home, key) {
            return Err(Error::SlotMoves {
                derived_key: key.bytes().to_vec(),
            });
        }
        Ok(())
    }
}
