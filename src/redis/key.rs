//! Typed key handles. A handle opens its key once, checks the type once, and closes it on drop. It opens for writing
//! but promises the server nothing: only a handle that did change its key says so when it is closed, so a call that
//! changes nothing breaks no WATCH and fires no event.
//!
//! One call never holds two handles on one key: a write through one would leave the other dangling. Commands see to
//! that by refusing the same name in two roles.

use std::ffi::{c_int, CStr};
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use redis_module::raw;

use super::api::{api, look_up};
use super::call::{Event, EventName};
use super::{Call, OwnedStr, StrRef};
use crate::error::Error;

const READ_WRITE: c_int = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    List,
    Hash,
    Zset,
}

impl Kind {
    fn type_code(self) -> c_int {
        let code = match self {
            Kind::List => raw::REDISMODULE_KEYTYPE_LIST,
            Kind::Hash => raw::REDISMODULE_KEYTYPE_HASH,
            Kind::Zset => raw::REDISMODULE_KEYTYPE_ZSET,
        };
        code as c_int
    }

    fn word(self) -> &'static str {
        match self {
            Kind::List => "list",
            Kind::Hash => "hash",
            Kind::Zset => "sorted set",
        }
    }

    fn event_class(self) -> c_int {
        match self {
            Kind::List => raw::REDISMODULE_NOTIFY_LIST,
            Kind::Hash => raw::REDISMODULE_NOTIFY_HASH,
            Kind::Zset => raw::REDISMODULE_NOTIFY_ZSET,
        }
    }
}

/// The name under which a handle was opened: an argument, or a derived key that the handle owns.
enum Name<'c> {
    Arg(StrRef<'c>),
    Derived(OwnedStr),
}

impl Name<'_> {
    fn as_ref(&self) -> StrRef<'_> {
        match self {
            Name::Arg(name) => *name,
            Name::Derived(name) => name.as_ref(),
        }
    }
}

impl Name<'_> {
    fn for_event(&self) -> EventName {
        match self {
            // SAFETY: an argument is the server's until the command returns, and the call fires its events before.
            Name::Arg(name) => EventName::Argument(unsafe { StrRef::assume_alive(*name) }),
            Name::Derived(name) => EventName::Made(OwnedStr::retain(name.as_ref())),
        }
    }
}

/// What the plain commands would have fired for one key.
pub type KeyEvents = [Option<KeyEvent>; 3];

#[derive(Clone, Copy)]
pub struct KeyEvent {
    pub class: c_int,
    pub word: &'static CStr,
    pub times: usize,
}

struct Key<'c> {
    call: &'c Call<'c>,
    raw: NonNull<raw::RedisModuleKey>,
    name: Name<'c>,
    kind: Kind,
    /// In the order of the first of each kind.
    events: KeyEvents,
    /// Of a list: where the iterator that the server keeps in the handle stands.
    position: Option<usize>,
    /// Of a list: whether that iterator came there on its way to the left.
    leftward: bool,
    /// Of a list: whether that iterator has lost its place by a removal, and must not be used again.
    spent: bool,
}

impl<'c> Key<'c> {
    /// None if the key holds another type.
    fn open(call: &'c Call<'c>, name: Name<'c>, kind: Kind) -> Option<Self> {
        let raw = open_raw(call, name.as_ref());
        Key::checked(call, raw, name, kind)
    }

    fn checked(call: &'c Call<'c>, raw: NonNull<raw::RedisModuleKey>, name: Name<'c>, kind: Kind) -> Option<Self> {
        // Made before the type check, so that a wrong type is closed by the drop.
        let key = Key {
            call,
            raw,
            name,
            kind,
            events: [None; 3],
            position: None,
            leftward: false,
            spent: false,
        };
        // SAFETY: the key is open.
        let found = unsafe { api!(RedisModule_KeyType(key.raw.as_ptr())) };
        (found == raw::REDISMODULE_KEYTYPE_EMPTY as c_int || found == kind.type_code()).then_some(key)
    }

    fn name(&self) -> StrRef<'_> {
        self.name.as_ref()
    }

    fn exists(&self) -> bool {
        // SAFETY: the key is open.
        let found = unsafe { api!(RedisModule_KeyType(self.raw.as_ptr())) };
        found != raw::REDISMODULE_KEYTYPE_EMPTY as c_int
    }

    fn len(&self) -> usize {
        // SAFETY: the key is open; a missing key has length 0.
        unsafe { api!(RedisModule_ValueLength(self.raw.as_ptr())) }
    }

    fn changed(&mut self, event: &'static CStr) {
        self.changed_as(self.kind.event_class(), event);
    }

    /// Once for many elements, as by a command that takes many.
    fn changed_as(&mut self, class: c_int, word: &'static CStr) {
        let times = &mut self.event(class, word).times;
        *times = 1.max(*times);
    }

    /// Once for each element, as by a command that takes one.
    fn changed_once_more(&mut self, word: &'static CStr) {
        self.event(self.kind.event_class(), word).times += 1;
    }

    fn event(&mut self, class: c_int, word: &'static CStr) -> &mut KeyEvent {
        let is_it = |slot: &Option<KeyEvent>| slot.is_none_or(|seen| seen.class == class && seen.word == word);
        let slot = self.events.iter().position(is_it);
        debug_assert!(slot.is_some(), "a handle fires at most three kinds of event");
        let slot = slot.unwrap_or(self.events.len() - 1);
        self.events[slot].get_or_insert(KeyEvent { class, word, times: 0 })
    }

    /// Closes and opens again, which drops the iterator that the server keeps in the handle.
    fn reopen(&mut self) {
        // SAFETY: the key is open, and `raw` is replaced before anything else can use it.
        unsafe { api!(RedisModule_CloseKey(self.raw.as_ptr())) };
        self.raw = open_raw(self.call, self.name());
        self.start_anew();
    }

    /// The handle has no iterator any more.
    fn start_anew(&mut self) {
        self.position = None;
        self.leftward = false;
        self.spent = false;
    }
}

fn open_raw(call: &Call, name: StrRef) -> NonNull<raw::RedisModuleKey> {
    // SAFETY: context and name are alive. For writing, the server returns a handle for a missing key too, so it is
    // never null.
    unsafe { NonNull::new_unchecked(api!(RedisModule_OpenKey(call.ctx(), name.raw(), READ_WRITE))) }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        let changed = self.events[0].is_some();
        let emptied = changed && !self.exists();
        // Clients that watch or cache the key hear of the change as it is closed.
        if changed {
            signal_on_close(self.call.ctx(), true);
        }
        // SAFETY: the key is open, and nothing uses it after this.
        unsafe { api!(RedisModule_CloseKey(self.raw.as_ptr())) };
        if changed {
            signal_on_close(self.call.ctx(), false);
            self.call.key_changed(Event {
                name: self.name.for_event(),
                events: self.events,
                emptied,
            });
        }
    }
}

/// Whether the server takes a key that was open for writing as changed when it is closed. Off but for the moment in
/// which a handle that did change its key is closed. (To signal by a call of its own costs a look-up of the key.)
pub(super) fn signal_on_close(ctx: *mut raw::RedisModuleCtx, on: bool) {
    let options = ALWAYS.load(Ordering::Relaxed) | if on { 0 } else { NO_IMPLICIT_SIGNAL_MODIFIED };
    // SAFETY: the context is alive; the call stores a number in the module's own record.
    unsafe { api!(RedisModule_SetModuleOptions(ctx, options as c_int)) };
}

/// `REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED` of the C header, a shift in brackets that bindgen leaves out.
const NO_IMPLICIT_SIGNAL_MODIFIED: u32 = 1 << 1;
/// `VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION` of Valkey's C header.
const ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// What the module promises the server. It keeps no data of its own, so a load that fails or runs beside the old data
/// set cannot confuse it, nor can slots that come and go.
static ALWAYS: AtomicU32 =
    AtomicU32::new(raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD);

/// Without this promise Valkey 9 refuses CLUSTER MIGRATESLOTS on every node that has the module. The bit is asked for
/// by Valkey's own name, since to Redis it may come to mean something else.
pub(super) fn promise_slot_migration() {
    let function = look_up(c"ValkeyModule_GetModuleOptionsAll");
    // SAFETY: null is None, and anything else that the server has under this name is a function of this type.
    let known = unsafe {
        let all: Option<unsafe extern "C" fn() -> c_int> = std::mem::transmute(function);
        all.map_or(0, |all| all())
    };
    ALWAYS.fetch_or(known as u32 & ATOMIC_SLOT_MIGRATION, Ordering::Relaxed);
}

macro_rules! typed_handle {
    ($handle:ident, $kind:expr) => {
        pub struct $handle<'c> {
            key: Key<'c>,
        }

        impl<'c> $handle<'c> {
            /// Opens the key given as the argument called `role`.
            pub fn open(call: &'c Call<'c>, name: StrRef<'c>, role: &'static str) -> Result<Self, Error> {
                match Key::open(call, Name::Arg(name), $kind) {
                    Some(key) => Ok($handle { key }),
                    None => Err(Error::WrongType {
                        argument: role,
                        expected: $kind.word(),
                    }),
                }
            }

            #[allow(dead_code)]
            pub fn name(&self) -> StrRef<'_> {
                self.key.name()
            }

            #[allow(dead_code)]
            pub fn len(&self) -> usize {
                self.key.len()
            }
        }
    };
}

typed_handle!(HashKey, Kind::Hash);
typed_handle!(ListKey, Kind::List);
typed_handle!(ZsetKey, Kind::Zset);

impl HashKey<'_> {
    pub fn get(&self, field: StrRef) -> Option<OwnedStr> {
        let mut value: *mut raw::RedisModuleString = null_mut();
        // SAFETY: the key is open and a hash or missing; one field with its out pointer, then the closing null. The
        // string that comes back is the caller's to free.
        unsafe {
            api!(RedisModule_HashGet(
                self.key.raw.as_ptr(),
                raw::REDISMODULE_HASH_NONE as c_int,
                field.raw(),
                &mut value as *mut *mut raw::RedisModuleString,
                null_mut::<raw::RedisModuleString>(),
            ));
            OwnedStr::take(value)
        }
    }

    pub fn get_two(&self, one: StrRef, two: StrRef) -> [Option<OwnedStr>; 2] {
        let mut values: [*mut raw::RedisModuleString; 2] = [null_mut(); 2];
        let [first, second] = &mut values;
        // SAFETY: as in `get`, for two fields.
        unsafe {
            api!(RedisModule_HashGet(
                self.key.raw.as_ptr(),
                raw::REDISMODULE_HASH_NONE as c_int,
                one.raw(),
                first as *mut *mut raw::RedisModuleString,
                two.raw(),
                second as *mut *mut raw::RedisModuleString,
                null_mut::<raw::RedisModuleString>(),
            ));
            values.map(|value| OwnedStr::take(value))
        }
    }

    pub fn has(&self, field: StrRef) -> bool {
        let mut found: c_int = 0;
        // SAFETY: as in `get`; with HASH_EXISTS the out pointer is an int.
        unsafe {
            api!(RedisModule_HashGet(
                self.key.raw.as_ptr(),
                raw::REDISMODULE_HASH_EXISTS as c_int,
                field.raw(),
                &mut found as *mut c_int,
                null_mut::<raw::RedisModuleString>(),
            ));
        }
        found != 0
    }

    /// Whether the field was there.
    pub fn set(&mut self, field: StrRef, value: StrRef) -> bool {
        // SAFETY: the key is open for writing and a hash or missing; one pair, then the closing null. Both strings
        // are copied.
        let updated = unsafe {
            api!(RedisModule_HashSet(
                self.key.raw.as_ptr(),
                raw::REDISMODULE_HASH_NONE as c_int,
                field.raw(),
                value.raw(),
                null_mut::<raw::RedisModuleString>(),
            ))
        };
        self.key.changed(c"hset");
        updated > 0
    }

    /// How many of the fields were there.
    pub fn delete_three(&mut self, [one, two, three]: [StrRef; 3]) -> usize {
        if !self.key.exists() {
            return 0;
        }
        // SAFETY: as in `delete`, for three fields.
        let deleted = unsafe {
            api!(RedisModule_HashSet(
                self.key.raw.as_ptr(),
                raw::REDISMODULE_HASH_NONE as c_int,
                one.raw(),
                HASH_DELETE,
                two.raw(),
                HASH_DELETE,
                three.raw(),
                HASH_DELETE,
                null_mut::<raw::RedisModuleString>(),
            ))
        };
        if deleted > 0 {
            self.key.changed(c"hdel");
        }
        usize::try_from(deleted).unwrap_or(0)
    }

    /// Whether the field was there.
    pub fn delete(&mut self, field: StrRef) -> bool {
        // The server would create a missing hash before it finds nothing to delete in it.
        if !self.key.exists() {
            return false;
        }
        // SAFETY: as in `set`; the value 1 is the API's word for 'delete'.
        let deleted = unsafe {
            api!(RedisModule_HashSet(
                self.key.raw.as_ptr(),
                raw::REDISMODULE_HASH_NONE as c_int,
                field.raw(),
                HASH_DELETE,
                null_mut::<raw::RedisModuleString>(),
            ))
        };
        if deleted > 0 {
            self.key.changed(c"hdel");
        }
        deleted > 0
    }

    pub fn has_ttl(&self) -> bool {
        // SAFETY: the key is open.
        unsafe { api!(RedisModule_GetExpire(self.key.raw.as_ptr())) != NO_EXPIRE }
    }
}

/// `REDISMODULE_HASH_DELETE` and `REDISMODULE_NO_EXPIRE` of the C header, which are casts that bindgen cannot render.
const HASH_DELETE: *mut raw::RedisModuleString = std::ptr::without_provenance_mut(1);
const NO_EXPIRE: raw::mstime_t = -1;

impl<'c> ZsetKey<'c> {
    /// For a command that only reads, and so runs on a replica too. None if the key is missing.
    pub fn open_to_read(call: &'c Call<'c>, name: StrRef<'c>, role: &'static str) -> Result<Option<Self>, Error> {
        // SAFETY: context and name are alive. For reading, a missing key gives null.
        let probe = unsafe {
            api!(RedisModule_OpenKey(
                call.ctx(),
                name.raw(),
                raw::REDISMODULE_READ as c_int
            ))
        };
        let Some(raw) = NonNull::new(probe) else {
            return Ok(None);
        };
        Key::checked(call, raw, Name::Arg(name), Kind::Zset)
            .map(|key| Some(ZsetKey { key }))
            .ok_or(Error::WrongType {
                argument: role,
                expected: Kind::Zset.word(),
            })
    }
}

impl ZsetKey<'_> {
    pub fn score(&self, member: StrRef) -> Option<f64> {
        if !self.key.exists() {
            return None;
        }
        let mut score = 0.0;
        // SAFETY: the key is open and a sorted set; `score` outlives the call.
        let status = unsafe { api!(RedisModule_ZsetScore(self.key.raw.as_ptr(), member.raw(), &mut score)) };
        (status == raw::REDISMODULE_OK as c_int).then_some(score)
    }

    /// `score` must be a number: NaN is refused by the server, and nothing would be written.
    pub fn add(&mut self, member: StrRef, score: f64) {
        if score.fract() != 0.0 {
            self.leave_compact_encoding();
        }
        if self.add_raw(member, score, 0) & raw::REDISMODULE_ZADD_NOP == 0 {
            self.key.changed(c"zadd");
        }
    }

    fn add_raw(&mut self, member: StrRef, score: f64, flags: u32) -> u32 {
        let mut flags = flags as c_int;
        // SAFETY: the key is open for writing and a sorted set or missing; `flags` outlives the call.
        unsafe {
            api!(RedisModule_ZsetAdd(
                self.key.raw.as_ptr(),
                score,
                member.raw(),
                &mut flags
            ))
        };
        flags as u32
    }

    fn remove_raw(&mut self, member: StrRef) -> bool {
        let mut deleted: c_int = 0;
        // SAFETY: the key is open for writing and a sorted set or missing; `deleted` outlives the call.
        unsafe { api!(RedisModule_ZsetRem(self.key.raw.as_ptr(), member.raw(), &mut deleted)) };
        deleted != 0
    }

    /// In the compact encoding of a small sorted set a score with decimals is text, and every insertion reads the scores
    /// one by one: among 50 leases that took 60 % of a RESERVE. So a set that has come to some size gets the ordinary
    /// encoding, by a member too long for the compact one that comes and goes within the call. How a set is encoded
    /// takes too long to ask, so this is done now and then, whether it is needed or not.
    fn leave_compact_encoding(&mut self) {
        /// From here on it pays; beyond the last (the server's default limit) no set is compact.
        const SIZES: std::ops::RangeInclusive<usize> = 16..=128;
        const ONE_IN: u32 = 32;
        /// Spreads the turns, so that keys used in a fixed order all get theirs.
        const STRIDE: u32 = 0x9E37_79B9;
        static TURN: AtomicU32 = AtomicU32::new(0);

        if !SIZES.contains(&self.key.len()) || TURN.fetch_add(STRIDE, Ordering::Relaxed) > u32::MAX / ONE_IN {
            return;
        }
        let long = OwnedStr::new(&[b'.'; 300]);
        // One that is there already is somebody's, and stays.
        if self.add_raw(long.as_ref(), 0.0, raw::REDISMODULE_ZADD_NX) & raw::REDISMODULE_ZADD_ADDED != 0 {
            self.remove_raw(long.as_ref());
        }
    }

    /// Whether the member was there.
    pub fn remove(&mut self, member: StrRef) -> bool {
        let removed = self.remove_raw(member);
        if removed {
            self.key.changed(c"zrem");
        }
        removed
    }

    /// Members with a score from `min` to `max`, lowest first, until `visit` says stop. Nothing is removed meanwhile:
    /// a removal would leave the server's iterator dangling.
    pub fn between<E>(
        &self,
        min: f64,
        max: f64,
        mut visit: impl FnMut(OwnedStr, f64) -> Result<Walk, E>,
    ) -> Result<(), E> {
        if !self.key.exists() {
            return Ok(());
        }
        let key = self.key.raw.as_ptr();
        // SAFETY: the key is open and a sorted set. The iterator lives in the handle; `&self` keeps writers of this
        // handle away until the guard stops it, and no other handle on the key exists.
        unsafe {
            api!(RedisModule_ZsetFirstInScoreRange(key, min, max, 0, 0));
            let _stop = RangeGuard(key);
            loop {
                let mut score = 0.0;
                let Some(member) = OwnedStr::take(api!(RedisModule_ZsetRangeCurrentElement(key, &mut score))) else {
                    return Ok(());
                };
                if visit(member, score)? == Walk::Stop || api!(RedisModule_ZsetRangeNext(key)) == 0 {
                    return Ok(());
                }
            }
        }
    }
}

#[derive(PartialEq, Eq)]
pub enum Walk {
    On,
    Stop,
}

struct RangeGuard(*mut raw::RedisModuleKey);

impl Drop for RangeGuard {
    fn drop(&mut self) {
        // SAFETY: made and dropped while the key is open.
        unsafe { api!(RedisModule_ZsetRangeStop(self.0)) }
    }
}

/// Whether the iterator in a handle may be used after a removal. Up to Redis 7.0.5 that crashed the server, and no
/// function tells those servers from later ones; Valkey reports a version after that.
static ITERATOR_SURVIVES: AtomicBool = AtomicBool::new(false);

pub(super) fn look_at_server_version() {
    // SAFETY: the function takes nothing.
    let version = unsafe { api!(RedisModule_GetServerVersion()) };
    ITERATOR_SURVIVES.store(version >= 0x07_00_06, Ordering::Relaxed);
}

/// Elements that the server's iterator passes in about the time of a fresh start: near an end of the list, and at most.
const FRESH: usize = 14;
const FAR: usize = 96;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Left,
    Right,
}

impl ListKey<'_> {
    /// The element at `index`, counted from the left. A step from the last index asked for is cheap; to get further
    /// the handle starts anew, and the server seeks node by node from the nearer end.
    pub fn at(&mut self, index: usize) -> Option<OwnedStr> {
        if let Some(position) = self.key.position {
            let way = position.abs_diff(index);
            if self.key.spent || way > FAR || way > FRESH && way > FRESH + index.min(self.len().saturating_sub(index)) {
                self.key.reopen();
            } else if way > 0 {
                // For good, until the handle is opened anew: a step to the left over the edge of a node makes the server
                // count from the node's end, and a removal then shifts its place, whichever way it went last.
                self.key.leftward |= index < position;
            }
        }
        self.key.position = Some(index);
        // SAFETY: the key is open; a missing key or an index out of range gives null. The string is the caller's.
        unsafe { OwnedStr::take(api!(RedisModule_ListGet(self.key.raw.as_ptr(), index as i64))) }
    }

    pub fn push(&mut self, end: End, element: StrRef) {
        let (end, event) = match end {
            End::Left => (raw::REDISMODULE_LIST_HEAD, c"lpush"),
            End::Right => (raw::REDISMODULE_LIST_TAIL, c"rpush"),
        };
        // SAFETY: the key is open for writing and a list or missing.
        unsafe { api!(RedisModule_ListPush(self.key.raw.as_ptr(), end as c_int, element.raw())) };
        self.key.changed(event);
    }

    pub fn pop_right(&mut self) -> Option<OwnedStr> {
        // SAFETY: the key is open for writing and a list or missing (then null); the string is the caller's.
        let element = unsafe {
            OwnedStr::take(api!(RedisModule_ListPop(
                self.key.raw.as_ptr(),
                raw::REDISMODULE_LIST_TAIL as c_int
            )))
        };
        if element.is_some() {
            self.key.changed(c"rpop");
        }
        element
    }

    /// Takes out the elements at these places, lowest first, each as by an LREM of its own.
    pub fn remove_at(&mut self, ascending: &[usize]) {
        for _ in 0..self.take_out(ascending) {
            self.key.changed_once_more(c"lrem");
        }
    }

    /// The same as by one LREM.
    pub fn remove_at_once(&mut self, ascending: &[usize]) {
        if self.take_out(ascending) > 0 {
            self.key.changed(c"lrem");
        }
    }

    /// Returns how many were there. Only in this direction may one removal follow another: on its way to the left the
    /// server's iterator loses its place with a removal, and later elements are missed. The element that it stands at is
    /// the right one in any case.
    fn take_out(&mut self, ascending: &[usize]) -> usize {
        let mut taken = 0;
        for (gone, place) in ascending.iter().enumerate() {
            let index = place - gone;
            let position = self.key.position.unwrap_or(index);
            let stands_there = position == index;
            let may_walk_there = !self.key.leftward && position < index && index - position <= FAR;
            if self.key.spent || !(stands_there || may_walk_there) {
                self.key.reopen();
            }
            // SAFETY: the key is open for writing; an index out of range is refused by the server.
            let status = unsafe { api!(RedisModule_ListDelete(self.key.raw.as_ptr(), index as i64)) };
            taken += usize::from(status == raw::REDISMODULE_OK as c_int);
            self.key.position = Some(index);
            self.key.spent = self.key.leftward || !ITERATOR_SURVIVES.load(Ordering::Relaxed);
        }
        taken
    }

    /// The last place of `element`, by the server's own search: quick per element, but not for a handful.
    pub fn last_place_of(&mut self, element: StrRef) -> Option<usize> {
        let place = self.let_the_server_search(|call, list| call.list_position_from_right(list, element))?;
        place.unwrap_or_else(|| self.last_place_by_hand(element))
    }

    /// Every place of `element`, lowest first.
    pub fn places_of(&mut self, element: StrRef) -> Vec<usize> {
        let places = self.let_the_server_search(|call, list| call.list_positions(list, element));
        places.flatten().unwrap_or_else(|| self.places_by_hand(element))
    }

    /// None if the list is empty: to look up a key that is missing would be an event, in the middle of the call.
    fn let_the_server_search<T>(&mut self, search: impl FnOnce(&Call, StrRef) -> T) -> Option<T> {
        if self.len() == 0 {
            return None;
        }
        // The search runs on the same list: let go of it meanwhile.
        // SAFETY: the key is open, and opened again below before anything else can use the handle.
        unsafe { api!(RedisModule_CloseKey(self.key.raw.as_ptr())) };
        let found = search(self.key.call, self.key.name());
        self.key.raw = open_raw(self.key.call, self.key.name());
        self.key.start_anew();
        Some(found)
    }

    /// For a server that refuses to search, as it may in a slot that moves.
    fn last_place_by_hand(&mut self, element: StrRef) -> Option<usize> {
        (0..self.len()).rev().find(|index| self.is_at(*index, element))
    }

    fn places_by_hand(&mut self, element: StrRef) -> Vec<usize> {
        (0..self.len()).filter(|index| self.is_at(*index, element)).collect()
    }

    pub fn is_at(&mut self, index: usize, element: StrRef) -> bool {
        self.at(index).is_some_and(|other| other.bytes() == element.bytes())
    }
}

/// A derived key is opened by a name that the call made; a wrong type there concerns one queue only.
pub fn open_derived_list<'c>(call: &'c Call<'c>, name: OwnedStr) -> Option<ListKey<'c>> {
    Key::open(call, Name::Derived(name), Kind::List).map(|key| ListKey { key })
}
