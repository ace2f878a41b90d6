//! One unit of work: the call of a command, the callback of a blocked client, or a timer. It knows the arguments, which
//! keys are open, and what the work has changed. Effects (replication) and events (keyspace notifications) are queued
//! until every key handle is closed, because a listener may write to the keys that it is notified of.

use std::cell::RefCell;
use std::ffi::{c_int, CStr};

use redis_module::raw;
use smallvec::SmallVec;

use super::api::api;
use super::command::Arg;
use super::effects::{Effects, Plain};
use super::key::KeyEvents;
use super::plain::Deferred;
use super::{log, OwnedStr, StrRef};
use crate::args::MOST_ARGUMENTS;
use crate::error::Error;
use crate::hash::IdSet;

pub struct Invocation<'c> {
    ctx: *mut raw::RedisModuleCtx,
    /// The command's name and its arguments; empty in a timer.
    argv: &'c [StrRef<'c>],
    /// The keys in the command's description.
    keys: &'static [Arg],
    pub(super) may_write: bool,
    effects: RefCell<Effects>,
    events: RefCell<SmallVec<[KeyChanged; 5]>>,
    deferred: RefCell<Option<Deferred>>,
    open: RefCell<OpenKeys>,
}

/// Names of the keys that are open. A second handle on one of them would dangle after a write through the first.
#[derive(Default)]
struct OpenKeys {
    /// The bytes of names, each held by its handle.
    inline: SmallVec<[*const [u8]; OpenKeys::INLINE_MAX]>,
    /// From there on by hash, for calls that open thousands.
    hashed: IdSet<Vec<u8>>,
}

impl OpenKeys {
    const INLINE_MAX: usize = 16;
}

/// A key given as an argument, and what it is called in the command's description.
#[derive(Clone, Copy)]
pub struct KeyArg<'c> {
    pub name: StrRef<'c>,
    pub role: &'static str,
}

/// A key that changed, and the events that plain commands would have fired for it.
pub(super) struct KeyChanged {
    pub name: OwnedStr,
    pub events: KeyEvents,
    pub emptied: bool,
}

impl<'c> Invocation<'c> {
    /// # Safety
    /// `ctx` and the `argc` strings at `argv` are those of the running callback, which outlives 'c. `argv` may be null
    /// where `argc` is 0.
    pub(super) unsafe fn new(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
        keys: &'static [Arg],
        may_write: bool,
    ) -> Self {
        let argv = match usize::try_from(argc) {
            // A StrRef is a non-null string pointer, and that is what argv holds.
            Ok(count @ 1..) => std::slice::from_raw_parts(argv.cast::<StrRef<'c>>(), count),
            _ => &[],
        };
        Invocation {
            ctx,
            argv,
            keys,
            may_write,
            effects: RefCell::default(),
            events: RefCell::default(),
            deferred: RefCell::default(),
            open: RefCell::default(),
        }
    }

    pub(super) fn ctx(&self) -> *mut raw::RedisModuleCtx {
        self.ctx
    }

    pub(super) fn argv(&self) -> &'c [StrRef<'c>] {
        self.argv
    }

    /// The arguments after the command's name.
    pub fn args(&self) -> &'c [StrRef<'c>] {
        self.argv.get(1..).unwrap_or_default()
    }

    /// The command's keys, which are its first arguments, and the rest.
    pub fn keys_and_args<const N: usize>(&self) -> Result<([KeyArg<'c>; N], &'c [StrRef<'c>]), Error> {
        debug_assert_eq!(N, self.keys.len(), "a command takes the keys that its description names");
        let (names, rest) = self.args().split_at_checked(N).ok_or(Error::WrongArity)?;
        Ok((std::array::from_fn(|index| KeyArg { name: names[index], role: self.keys[index].name }), rest))
    }

    /// The effects of a call hold references to strings, some of them one for each message, and Redis 8.6 aborts where a
    /// string has 8,388,606 of them.
    pub(super) fn check_number_of_arguments(&self) -> Result<(), Error> {
        match self.args().len() <= MOST_ARGUMENTS {
            true => Ok(()),
            false => Err(Error::TooManyArguments),
        }
    }

    /// No two keys are the same: each is used as another type.
    pub(super) fn check_distinct_keys(&self) -> Result<(), Error> {
        for (index, (key, name)) in self.keys.iter().zip(self.args()).enumerate() {
            let mut others = self.keys.iter().zip(self.args()).skip(index + 1);
            if let Some((other, _)) = others.find(|(_, other)| other.bytes() == name.bytes()) {
                return Err(Error::SameKey { one: key.name, other: other.name });
            }
        }
        Ok(())
    }

    /// The arguments of a load, which has no command's name in front.
    pub(super) fn load_args(&self) -> Vec<&'c [u8]> {
        self.argv.iter().map(|arg| arg.bytes()).collect()
    }

    pub fn selected_db(&self) -> i32 {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_GetSelectedDb(self.ctx)) }
    }

    /// The number of keys in the selected database.
    pub(super) fn db_size(&self) -> u64 {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_DbSize(self.ctx)) }
    }

    /// True where the caller cannot wait: in MULTI, in a script, in a call from another module.
    pub fn may_not_block(&self) -> bool {
        let no_wait = raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & no_wait as c_int != 0
    }

    /// A command that only reads, which a replica runs too.
    pub fn only_reads(&self) -> bool {
        !self.may_write
    }

    pub fn over_memory_limit(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_OOM as c_int != 0
    }

    pub(super) fn flags(&self) -> c_int {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_GetContextFlags(self.ctx)) }
    }

    /// Notes that a key is being opened. False if it is open already.
    pub(super) fn opening(&self, name: &OwnedStr) -> bool {
        let mut open = self.open.borrow_mut();
        let bytes = name.bytes();
        // SAFETY: a name stays in this list only while the handle that holds a reference to it is alive.
        let is_it = |other: &*const [u8]| unsafe { &**other } == bytes;
        if open.inline.iter().any(is_it) || !open.hashed.is_empty() && open.hashed.contains(bytes) {
            return false;
        }
        if open.inline.len() < OpenKeys::INLINE_MAX {
            open.inline.push(bytes);
        } else {
            open.hashed.insert(bytes.to_vec());
        }
        true
    }

    pub(super) fn closed(&self, name: &OwnedStr) {
        let mut open = self.open.borrow_mut();
        let bytes = name.bytes();
        match open.inline.iter().position(|other| std::ptr::addr_eq(*other, bytes)) {
            Some(index) => {
                open.inline.swap_remove(index);
            }
            None => {
                open.hashed.remove(bytes);
            }
        }
    }

    /// Queues an effect, in one command with the effect at `last` if possible; returns its place in the queue.
    pub(super) fn queue_effect(
        &self,
        last: Option<usize>,
        command: Plain,
        key: StrRef,
        number: i64,
        words: &[StrRef],
    ) -> usize {
        self.effects.borrow_mut().add(last, command, key, number, words)
    }

    pub(super) fn queue_events(&self, changed: KeyChanged) {
        self.events.borrow_mut().push(changed);
    }

    pub(super) fn defer(&self, deferred: Deferred) {
        *self.deferred.borrow_mut() = Some(deferred);
    }

    /// Sends effects and fires events. Every key handle is closed by now.
    pub(super) fn finish(&self) {
        debug_assert!(self.open.borrow().inline.is_empty(), "a key is still open");
        self.effects.borrow_mut().send(self.ctx);
        let events = std::mem::take(&mut *self.events.borrow_mut());
        for key in &events {
            let name = key.name.as_ref();
            for (command, times) in key.events.iter().flatten() {
                let (class, word) = command.event();
                for _ in 0..*times {
                    self.notify(class, word, name);
                }
            }
            if key.emptied {
                self.notify(raw::REDISMODULE_NOTIFY_GENERIC, c"del", name);
            }
        }
        if let Some(deferred) = self.deferred.take() {
            if !deferred.run(self) {
                log::warning(deferred.if_refused);
            }
        }
    }

    fn notify(&self, class: c_int, word: &CStr, key: StrRef) {
        // SAFETY: context, event name and key name are alive for the call.
        unsafe { api!(RedisModule_NotifyKeyspaceEvent(self.ctx, class, word.as_ptr(), key.raw())) };
    }
}
