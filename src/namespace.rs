//! Namespaces: all names of keys are made here. A namespace such as `app` and the short name
//! of a queue such as `orders` give all keys; opening one here checks the caller's permission and, in a cluster, that this
//! node has the slot.

use std::cell::{Cell, OnceCell, RefCell};
use std::mem::ManuallyDrop;
use std::rc::Rc;

use crate::clock::Now;
use crate::dead::DeadLetters;
use crate::error::Error;
use crate::hash::IdMap;
use crate::lists::{PENDING, PROCESSING};
use crate::redis::acl::{Access, User};
use crate::redis::{effects, server, HashKey, Invocation, ListKey, OwnedStr, StrRef, ZsetKey};
use crate::slot::{hash_tag, slot};

/// The names of a namespace's keys.
pub struct Names {
    pub namespace: Vec<u8>,
    /// What every key starts with: `app:`, or nothing.
    prefix: Vec<u8>,
    pub payloads: OwnedStr,
    pub expires: OwnedStr,
    pub delays: OwnedStr,
    pub queues: OwnedStr,
    pub dlq: OwnedStr,
    pub dlq_data: OwnedStr,
    pub once: OwnedStr,
    /// The field of `queues` with the namespace's default policy.
    pub default: OwnedStr,
    /// By the short names of queues.
    of_queues: RefCell<IdMap<Vec<u8>, Rc<QueueNames>>>,
    /// The latest one asked for: a call asks several times for the same.
    last_queue: RefCell<Option<Rc<QueueNames>>>,
}

/// `<ns>:<queue>`, and its lists.
pub struct QueueNames {
    pub queue: OwnedStr,
    pub pending: OwnedStr,
    pub processing: OwnedStr,
}

/// Limits of the cache, namespaces and queues together: about a MB. Longer names are not cached.
const KNOWN_MAX: usize = 1024;
const LONGEST_KNOWN: usize = 256;
const STRINGS_MAX: usize = 1_000_000;

thread_local! {
    /// Names are made once. Never dropped: at the end of the process the server's strings are gone already.
    static KNOWN: ManuallyDrop<RefCell<IdMap<Vec<u8>, Rc<Names>>>> = ManuallyDrop::default();
    static KNOWN_COUNT: Cell<usize> = const { Cell::new(0) };
    /// How many strings had been sent when the cache was last empty.
    static KNOWN_SINCE: Cell<usize> = const { Cell::new(0) };
}

impl Names {
    pub fn of(namespace: &[u8]) -> Rc<Names> {
        if namespace.len() > LONGEST_KNOWN {
            return Rc::new(Names::make(namespace));
        }
        KNOWN.with(|known| {
            // A name that is used for too long may get more references than the server can count.
            if KNOWN_COUNT.get() >= KNOWN_MAX || effects::strings_sent() - KNOWN_SINCE.get() >= STRINGS_MAX {
                known.borrow_mut().clear();
                KNOWN_COUNT.set(0);
                KNOWN_SINCE.set(effects::strings_sent());
            }
            if let Some(names) = known.borrow().get(namespace) {
                return Rc::clone(names);
            }
            let names = Rc::new(Names::make(namespace));
            known.borrow_mut().insert(namespace.to_vec(), Rc::clone(&names));
            KNOWN_COUNT.set(KNOWN_COUNT.get() + 1);
            names
        })
    }

    fn make(namespace: &[u8]) -> Names {
        let prefix = match namespace {
            b"" => Vec::new(),
            name => [name, b":"].concat(),
        };
        let key = |name: &[u8]| OwnedStr::concat(&prefix, name);
        Names {
            payloads: key(b"payloads"),
            expires: key(b"expires"),
            delays: key(b"delays"),
            queues: key(b"queues"),
            dlq: key(b"dlq"),
            dlq_data: key(b"dlq:data"),
            once: key(b"once"),
            default: OwnedStr::new(crate::policy::DEFAULT),
            of_queues: RefCell::default(),
            last_queue: RefCell::default(),
            namespace: namespace.to_vec(),
            prefix,
        }
    }

    /// `<ns>:<queue>`, as `<id>:queue` has it.
    pub fn queue(&self, short: &[u8]) -> OwnedStr {
        OwnedStr::retain(self.of_queue(short).queue.as_ref())
    }

    /// The names of a queue by its short name.
    pub fn of_queue(&self, short: &[u8]) -> Rc<QueueNames> {
        let is_it = |last: &&Rc<QueueNames>| last.queue.bytes().get(self.prefix.len()..) == Some(short);
        if let Some(last) = self.last_queue.borrow().as_ref().filter(is_it) {
            return Rc::clone(last);
        }
        let names = self.look_up(short);
        if short.len() <= LONGEST_KNOWN {
            *self.last_queue.borrow_mut() = Some(Rc::clone(&names));
        }
        names
    }

    /// The names of a queue by its full name; None for one of another namespace, which is never followed.
    pub fn of_full_name(&self, queue: &[u8]) -> Option<Rc<QueueNames>> {
        let last = self.last_queue.borrow().as_ref().filter(|last| last.queue.bytes() == queue).map(Rc::clone);
        last.or_else(|| self.short(queue).map(|short| self.of_queue(short)))
    }

    fn look_up(&self, short: &[u8]) -> Rc<QueueNames> {
        if let Some(names) = self.of_queues.borrow().get(short) {
            return Rc::clone(names);
        }
        let queue = OwnedStr::concat(&self.prefix, short);
        let [pending, processing] = [PENDING, PROCESSING].map(|suffix| OwnedStr::concat(queue.bytes(), suffix));
        let names = Rc::new(QueueNames { queue, pending, processing });
        if short.len() <= LONGEST_KNOWN && KNOWN_COUNT.get() < KNOWN_MAX {
            self.of_queues.borrow_mut().insert(short.to_vec(), Rc::clone(&names));
            KNOWN_COUNT.set(KNOWN_COUNT.get() + 1);
        }
        names
    }

    /// The short name of a queue of this namespace; None for a queue of another one, which is never touched.
    pub fn short<'a>(&self, queue: &'a [u8]) -> Option<&'a [u8]> {
        queue.strip_prefix(&self.prefix[..]).filter(|short| is_queue_name(short))
    }
}

/// With a `:` two namespaces could share a list.
fn is_queue_name(name: &[u8]) -> bool {
    !name.is_empty() && name != crate::policy::DEFAULT && !name.contains(&b':')
}

/// A namespace that a call works in.
pub struct Namespace<'c> {
    pub call: &'c Invocation<'c>,
    pub names: Rc<Names>,
    /// None in a timer: there is no caller whose permission to check.
    user: Option<OnceCell<User<'c>>>,
}

impl<'c> Namespace<'c> {
    pub fn of_caller(call: &'c Invocation<'c>, name: StrRef) -> Result<Self, Error> {
        // Otherwise its keys would be in different slots.
        if server().cluster && hash_tag(name.bytes()).is_none() {
            return Err(Error::NoHashTag(name.bytes().to_vec()));
        }
        Ok(Namespace { call, names: Names::of(name.bytes()), user: Some(OnceCell::new()) })
    }

    pub fn of_server(call: &'c Invocation<'c>, name: &[u8]) -> Self {
        Namespace { call, names: Names::of(name), user: None }
    }

    fn check(&self, access: Access, key: StrRef) -> Result<(), Error> {
        let Some(user) = &self.user else { return Ok(()) };
        let access = if self.call.only_reads() { Access::Read } else { access };
        match user.get_or_init(|| User::of(self.call)).may(access, key) {
            true => Ok(()),
            false => Err(Error::NoPermission { derived_key: key.bytes().to_vec() }),
        }
    }

    /// The full name of a queue that the caller named.
    pub fn queue(&self, short: StrRef) -> Result<OwnedStr, Error> {
        // COUNT and BLOCK after FROM are options in the wrong place.
        let is_option = [&b"COUNT"[..], b"BLOCK"].iter().any(|option| short.bytes().eq_ignore_ascii_case(option));
        if is_option || !is_queue_name(short.bytes()) {
            return Err(Error::QueueName);
        }
        Ok(self.names.queue(short.bytes()))
    }

    /// Checks the permission to push to, or remove from, a list of the queue with this full name.
    pub fn check_pending(&self, queue: &[u8]) -> Result<(), Error> {
        match self.names.of_full_name(queue) {
            Some(names) => self.check(Access::ReadWrite, names.pending.as_ref()),
            None => self.check(Access::ReadWrite, OwnedStr::concat(queue, PENDING).as_ref()),
        }
    }

    pub fn check_processing(&self, queue: &[u8]) -> Result<(), Error> {
        match self.names.of_full_name(queue) {
            Some(names) => self.check(Access::ReadWrite, names.processing.as_ref()),
            None => self.check(Access::ReadWrite, OwnedStr::concat(queue, PROCESSING).as_ref()),
        }
    }

    /// Checks the permission to read `<ns>:queues`, for a call that opens the hash only if it has to.
    pub fn check_queues(&self) -> Result<(), Error> {
        self.check(Access::Read, self.names.queues.as_ref())
    }

    pub fn payloads(&self) -> Result<HashKey<'c>, Error> {
        self.check(Access::ReadWrite, self.names.payloads.as_ref())?;
        HashKey::open_named(self.call, &self.names.payloads)
    }

    pub fn expires(&self) -> Result<ZsetKey<'c>, Error> {
        self.check(Access::ReadWrite, self.names.expires.as_ref())?;
        ZsetKey::open_named(self.call, &self.names.expires)
    }

    pub fn delays(&self) -> Result<ZsetKey<'c>, Error> {
        self.check(Access::ReadWrite, self.names.delays.as_ref())?;
        ZsetKey::open_named(self.call, &self.names.delays)
    }

    /// `<ns>:queues`: the policies, and which queues there are. Adding a new queue needs no permission to write.
    pub fn queues(&self) -> Result<HashKey<'c>, Error> {
        self.check_queues()?;
        HashKey::open_named(self.call, &self.names.queues)
    }

    pub fn queues_to_change(&self) -> Result<HashKey<'c>, Error> {
        self.check(Access::ReadWrite, self.names.queues.as_ref())?;
        HashKey::open_named(self.call, &self.names.queues)
    }

    pub fn once(&self) -> Result<ZsetKey<'c>, Error> {
        self.check(Access::ReadWrite, self.names.once.as_ref())?;
        ZsetKey::open_named(self.call, &self.names.once)
    }

    pub fn dead_letters(&self) -> Result<DeadLetters<'c>, Error> {
        self.check(Access::ReadWrite, self.names.dlq.as_ref())?;
        self.check(Access::ReadWrite, self.names.dlq_data.as_ref())?;
        self.dead_letters_of_server()
    }

    /// The dead-letter keys, without a permission check: a lease that ran out is the server's work.
    pub fn dead_letters_of_server(&self) -> Result<DeadLetters<'c>, Error> {
        let dead = DeadLetters {
            map: HashKey::open_named(self.call, &self.names.dlq_data)?,
            list: ListKey::open_named(self.call, &self.names.dlq)?,
        };
        self.check_slot(!dead.map.exists() || !dead.list.exists())?;
        Ok(dead)
    }

    /// In a cluster, while the slot moves key by key, a missing key may be on the other node: then TRYAGAIN. `missing`:
    /// whether any key of the call is missing.
    pub fn check_slot(&self, missing: bool) -> Result<(), Error> {
        let names = &self.names;
        // In a timer this was checked before any key was opened.
        if !server().cluster || !missing || self.user.is_none() || self.is_here() {
            return Ok(());
        }
        // Redis 8 does not redirect by a name that is no key, so the command does.
        let slot = slot(names.payloads.bytes());
        Err(match self.call.other_owner_of(slot) {
            Some(node) => Error::Moved { slot, node },
            None => Error::SlotMoves { derived_key: names.payloads.bytes().to_vec() },
        })
    }

    /// In a cluster: whether this node serves the keys of the namespace now.
    pub fn is_here(&self) -> bool {
        let names = &self.names;
        let keys =
            [&names.payloads, &names.expires, &names.delays, &names.queues, &names.dlq, &names.dlq_data, &names.once];
        !server().cluster || self.call.owns_all(&keys.map(OwnedStr::as_ref))
    }

    /// The short names of the known queues, sorted.
    pub fn known_queues(queues: &HashKey) -> Vec<OwnedStr> {
        let mut known = Vec::with_capacity(queues.len());
        queues.each(|queue, _| {
            if is_queue_name(queue.bytes()) {
                known.push(queue);
            }
        });
        known.sort_by(|one, other| one.bytes().cmp(other.bytes()));
        known
    }

    /// In a reply a queue is its short name.
    pub fn reply_queue(&self, queue: &[u8]) {
        self.call.reply_bytes(self.names.short(queue).unwrap_or(queue));
    }

    /// Something becomes due at this time: clients that wait are woken then.
    pub fn due_at(&self, unix_ms: i64) {
        crate::clock::waiting::due_at(self.call, &self.names.namespace, unix_ms);
    }

    pub fn due_after(&self, now: Now, ms: i64) {
        self.due_at(now.ms() + ms);
    }
}
