//! Key handles. A handle opens its key once, checks the type once, and closes it on drop. A write through it is the
//! change, its event and its effect: none of them can be forgotten. A handle that changed nothing signals nothing when
//! it is closed, so a call that changes nothing breaks no WATCH.
//!
//! One call never holds two handles on one key, because a write through one would leave the other dangling: a second
//! one is refused.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use redis_module::raw;

use super::api::api;
use super::effects::Plain;
use super::invocation::{KeyArg, KeyChanged};
use super::server::server;
use super::{Invocation, OwnedStr, StrRef};
use crate::error::Error;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    List,
    Hash,
    Zset,
}

impl Type {
    fn code(self) -> c_int {
        let code = match self {
            Type::List => raw::REDISMODULE_KEYTYPE_LIST,
            Type::Hash => raw::REDISMODULE_KEYTYPE_HASH,
            Type::Zset => raw::REDISMODULE_KEYTYPE_ZSET,
        };
        code as c_int
    }

    fn word(self) -> &'static str {
        match self {
            Type::List => "list",
            Type::Hash => "hash",
            Type::Zset => "sorted set",
        }
    }
}

/// The commands whose events a key has to fire, each as often as plain commands would have, in the order of the first.
pub(super) type KeyEvents = [Option<(Plain, u32)>; 4];

pub(super) struct Key<'c> {
    pub call: &'c Invocation<'c>,
    /// None: opened for reading, and missing.
    raw: Option<NonNull<raw::RedisModuleKey>>,
    /// Taken when the handle is dropped.
    name: ManuallyDrop<OwnedStr>,
    events: KeyEvents,
    /// The place of this key's latest effect in the call's queue.
    latest_effect: Option<usize>,
}

/// Why a key cannot be used.
enum Unusable {
    WrongType,
    InUse,
}

impl<'c> Key<'c> {
    fn open(call: &'c Invocation<'c>, name: OwnedStr, of_type: Type) -> Result<Self, Unusable> {
        if !call.opening(&name) {
            return Err(Unusable::InUse);
        }
        let raw = open_raw(call, name.as_ref());
        // Made before the type check, so that a wrong type is closed by the drop.
        let name = ManuallyDrop::new(name);
        let key = Key { call, raw, name, events: [None; 4], latest_effect: None };
        let found = key.type_code();
        let usable = found == raw::REDISMODULE_KEYTYPE_EMPTY as c_int || found == of_type.code();
        usable.then_some(key).ok_or(Unusable::WrongType)
    }

    pub fn name(&self) -> StrRef<'_> {
        self.name.as_ref()
    }

    /// For the API functions; null only for a missing key that was opened for reading, which `exists` rules out.
    pub fn raw(&self) -> *mut raw::RedisModuleKey {
        self.raw.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    fn type_code(&self) -> c_int {
        // SAFETY: the key is open, or null, which counts as missing.
        unsafe { api!(RedisModule_KeyType(self.raw())) }
    }

    pub fn exists(&self) -> bool {
        self.type_code() != raw::REDISMODULE_KEYTYPE_EMPTY as c_int
    }

    pub fn len(&self) -> usize {
        // SAFETY: the key is open, or null; a missing key has length 0.
        unsafe { api!(RedisModule_ValueLength(self.raw())) }
    }

    /// The key was changed as by this plain command: queues the effect, and the event once for the whole handle, as a
    /// command that takes many elements fires it.
    pub fn changed(&mut self, command: Plain, number: i64, words: &[StrRef]) {
        self.fires(command);
        self.effect(command, number, words);
    }

    pub fn fires(&mut self, command: Plain) {
        let times = self.event(command);
        *times = 1.max(*times);
    }

    /// One event more, as by a command that takes one element.
    pub fn fires_once_more(&mut self, command: Plain) {
        *self.event(command) += 1;
    }

    pub fn effect(&mut self, command: Plain, number: i64, words: &[StrRef]) {
        let place = self.call.queue_effect(self.latest_effect, command, self.name.as_ref(), number, words);
        self.latest_effect = Some(place);
    }

    /// An effect of two keys, such as RPOPLPUSH.
    pub fn effect_with(&mut self, command: Plain, other: &mut Key) {
        let place = self.call.queue_effect(None, command, self.name.as_ref(), 0, &[other.name.as_ref()]);
        self.latest_effect = Some(place);
        other.latest_effect = Some(place);
    }

    fn event(&mut self, command: Plain) -> &mut u32 {
        let is_it = |slot: &Option<(Plain, u32)>| slot.is_none_or(|(seen, _)| seen == command);
        let slot = self.events.iter().position(is_it);
        debug_assert!(slot.is_some(), "a handle fires at most four kinds of event");
        let slot = slot.unwrap_or(self.events.len() - 1);
        &mut self.events[slot].get_or_insert((command, 0)).1
    }

    /// Closes the key, lets `meanwhile` run, and opens it again. That also drops the iterator that the server keeps in
    /// the handle.
    pub fn reopen<T>(&mut self, meanwhile: impl FnOnce(&Invocation, StrRef) -> T) -> T {
        // SAFETY: the key is open, and `raw` is replaced before anything else can use it.
        unsafe { api!(RedisModule_CloseKey(self.raw())) };
        self.raw = None;
        let result = meanwhile(self.call, self.name.as_ref());
        self.raw = open_raw(self.call, self.name.as_ref());
        result
    }
}

fn open_raw(call: &Invocation, name: StrRef) -> Option<NonNull<raw::RedisModuleKey>> {
    let write = if call.may_write { raw::REDISMODULE_WRITE } else { 0 };
    let mode = raw::REDISMODULE_READ | write;
    // SAFETY: context and name are alive. For reading, a missing key gives null; for writing, nothing does.
    unsafe { NonNull::new(api!(RedisModule_OpenKey(call.ctx(), name.raw(), mode as c_int))) }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        let changed = self.events[0].is_some();
        let emptied = changed && !self.exists();
        // Clients that watch or cache the key are notified of the change as it is closed.
        if changed {
            signal_on_close(self.call.ctx(), true);
        }
        // SAFETY: the key is open (or null, which is ignored), and nothing uses it after this.
        unsafe { api!(RedisModule_CloseKey(self.raw())) };
        // SAFETY: taken once, here; the field is not used again.
        let name = unsafe { ManuallyDrop::take(&mut self.name) };
        self.call.closed(&name);
        if changed {
            signal_on_close(self.call.ctx(), false);
            self.call.queue_events(KeyChanged { name, events: self.events, emptied });
        }
    }
}

/// Whether the server takes a key that was open for writing as changed when it is closed. Off but for the moment in
/// which a handle that did change its key is closed. (RM_SignalModifiedKey would look the key up once more.)
pub(super) fn signal_on_close(ctx: *mut raw::RedisModuleCtx, on: bool) {
    /// `REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED` of the C header, a shift in brackets that bindgen leaves out.
    const NO_IMPLICIT_SIGNAL_MODIFIED: u32 = 1 << 1;
    let options = server().module_options | if on { 0 } else { NO_IMPLICIT_SIGNAL_MODIFIED };
    // SAFETY: the context is alive; the call stores a number in the module's own record.
    unsafe { api!(RedisModule_SetModuleOptions(ctx, options as c_int)) };
}

macro_rules! typed_handle {
    ($handle:ident { $($field:ident),* }, $type:expr) => {
        impl<'c> $handle<'c> {
            /// Opens a key given as an argument.
            pub fn open(call: &'c Invocation<'c>, key: KeyArg<'c>) -> Result<Self, Error> {
                Key::open(call, OwnedStr::retain(key.name), $type)
                    .map(|key| $handle { key, $($field: Default::default()),* })
                    .map_err(|why| match why {
                        Unusable::WrongType => Error::WrongType { argument: key.role, expected: $type.word() },
                        Unusable::InUse => Error::KeyInUse(key.name.bytes().to_vec()),
                    })
            }

            /// Opens a key that is not an argument.
            pub fn open_named(call: &'c Invocation<'c>, name: &OwnedStr) -> Result<Self, Error> {
                let bytes = || name.bytes().to_vec();
                Key::open(call, OwnedStr::retain(name.as_ref()), $type)
                    .map(|key| $handle { key, $($field: Default::default()),* })
                    .map_err(|why| match why {
                        Unusable::WrongType => Error::KeyWrongType { key: bytes(), expected: $type.word() },
                        Unusable::InUse => Error::KeyInUse(bytes()),
                    })
            }

            pub fn name(&self) -> StrRef<'_> {
                self.key.name()
            }

            pub fn exists(&self) -> bool {
                self.key.exists()
            }

            pub fn len(&self) -> usize {
                self.key.len()
            }
        }
    };
}

use super::hash::HashKey;
use super::list::ListKey;
use super::zset::ZsetKey;

typed_handle!(HashKey {}, Type::Hash);
typed_handle!(ListKey { cursor }, Type::List);
typed_handle!(ZsetKey { score_text }, Type::Zset);
