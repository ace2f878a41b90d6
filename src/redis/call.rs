//! One call of one command: its arguments, its replies, and its effects on the rest of the world. Replication is
//! queued by the server until the command ends. Events are queued here until every key handle is closed, because a
//! listener may write to the keys it hears of.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, CStr, CString};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;
use smallvec::SmallVec;

use super::api::api;
use super::key::KeyEvents;
use super::listeners;
use super::{OwnedStr, StrRef};
use crate::error::Error;

pub struct Call<'c> {
    ctx: *mut raw::RedisModuleCtx,
    args: &'c [StrRef<'c>],
    events: RefCell<SmallVec<[Event; 5]>>,
    /// The server knows that this call has changed something.
    counted_as_change: Cell<bool>,
}

/// A key that changed, and what the plain commands would have told about it.
pub(super) struct Event {
    pub name: EventName,
    pub events: KeyEvents,
    pub emptied: bool,
}

pub(super) enum EventName {
    /// An argument: alive as long as the call, and events do not outlive it.
    Argument(StrRef<'static>),
    Made(OwnedStr),
}

impl EventName {
    fn as_ref(&self) -> StrRef<'_> {
        match self {
            EventName::Argument(name) => *name,
            EventName::Made(name) => name.as_ref(),
        }
    }
}

impl<'c> Call<'c> {
    /// # Safety
    /// `ctx` and the `argc` strings at `argv` are those of the running callback, which outlives 'c.
    pub(super) unsafe fn new(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> Self {
        Call {
            ctx,
            // A StrRef is a non-null string pointer, and that is what argv holds.
            args: std::slice::from_raw_parts(argv.cast::<StrRef<'c>>(), argc as usize),
            events: RefCell::default(),
            counted_as_change: Cell::new(false),
        }
    }

    /// The call that loads the module: its arguments have no name in front.
    ///
    /// # Safety
    /// As for `new`; `argv` may be null where there are no arguments.
    pub(super) unsafe fn load(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> Self {
        if argc == 0 {
            return Call {
                ctx,
                args: &[],
                events: RefCell::default(),
                counted_as_change: Cell::new(false),
            };
        }
        Call::new(ctx, argv, argc)
    }

    pub(super) fn load_args(&self) -> Vec<&'c [u8]> {
        self.args.iter().map(|arg| arg.bytes()).collect()
    }

    pub(super) fn ctx(&self) -> *mut raw::RedisModuleCtx {
        self.ctx
    }

    /// The arguments after the command's name.
    pub fn args(&self) -> &'c [StrRef<'c>] {
        &self.args[1..]
    }

    pub fn selected_db(&self) -> i32 {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_GetSelectedDb(self.ctx)) }
    }

    /// True where the caller cannot wait: in MULTI, in a script, in a call from another module.
    pub fn may_not_block(&self) -> bool {
        let no_wait = raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & no_wait as c_int != 0
    }

    pub fn over_memory_limit(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_OOM as c_int != 0
    }

    /// The mode of the server, which cannot change while it runs.
    pub(super) fn remember_cluster_mode(&self) {
        let on = self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER as c_int != 0;
        CLUSTER.store(on, Ordering::Relaxed);
    }

    fn flags(&self) -> c_int {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_GetContextFlags(self.ctx)) }
    }

    // ---- effects

    pub(super) fn key_changed(&self, event: Event) {
        self.events.borrow_mut().push(event);
    }

    /// Fires what has been queued. Every handle is closed by now.
    pub fn fire_events(&self) {
        for event in self.events.borrow().iter() {
            let name = event.name.as_ref();
            for event in event.events.iter().flatten() {
                for _ in 0..event.times {
                    self.notify(event.class, event.word, name);
                }
            }
            if event.emptied {
                self.notify(raw::REDISMODULE_NOTIFY_GENERIC, c"del", name);
            }
        }
        self.events.borrow_mut().clear();
    }

    fn notify(&self, class: c_int, word: &CStr, key: StrRef) {
        // SAFETY: context, event name and key name are alive for the call.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent(
                self.ctx,
                class,
                word.as_ptr(),
                key.raw()
            ))
        };
    }

    /// Whether anybody hears of effects.
    pub fn has_listeners(&self) -> bool {
        listeners::anybody(self.ctx)
    }

    /// Something has changed. True if the effect has to be made; where nobody hears of it, the server is told once that
    /// there was one, since it counts changes for its save points.
    fn effect_is_heard(&self) -> bool {
        let heard = self.has_listeners();
        if !heard && !self.counted_as_change.replace(true) {
            // SAFETY: the context is alive. Nobody gets the command; only the change is counted.
            unsafe { api!(RedisModule_ReplicateVerbatim(self.ctx)) };
        }
        heard
    }

    /// Sends `command key arguments…` to replicas and the AOF.
    pub fn replicate(&self, command: &CStr, key: StrRef, arguments: &[StrRef]) {
        if !self.effect_is_heard() {
            return;
        }
        // SAFETY: "sv" is one string, then a pointer to strings with their number; a StrRef is such a pointer. The
        // server takes its own references.
        unsafe {
            api!(RedisModule_Replicate(
                self.ctx,
                command.as_ptr(),
                c"sv".as_ptr(),
                key.raw(),
                arguments.as_ptr(),
                arguments.len(),
            ));
        }
    }

    /// Sends `LREM key count element`.
    pub fn replicate_lrem(&self, key: StrRef, count: i64, element: StrRef) {
        self.replicate_element(c"LREM", key, count, element);
    }

    /// Sends `LSET key index element`.
    pub fn replicate_lset(&self, key: StrRef, index: usize, element: StrRef) {
        self.replicate_element(c"LSET", key, index as i64, element);
    }

    /// Sends `command key number element`.
    fn replicate_element(&self, command: &CStr, key: StrRef, number: i64, element: StrRef) {
        if !self.effect_is_heard() {
            return;
        }
        // SAFETY: "sls" is a string, a long long and a string.
        unsafe {
            api!(RedisModule_Replicate(
                self.ctx,
                command.as_ptr(),
                c"sls".as_ptr(),
                key.raw(),
                number as std::ffi::c_longlong,
                element.raw(),
            ));
        }
    }

    /// Sends `LMOVE from to RIGHT LEFT`.
    pub fn replicate_lmove(&self, from: StrRef, to: StrRef) {
        if !self.effect_is_heard() {
            return;
        }
        // SAFETY: "sscc" is two strings and two C strings.
        unsafe {
            api!(RedisModule_Replicate(
                self.ctx,
                c"LMOVE".as_ptr(),
                c"sscc".as_ptr(),
                from.raw(),
                to.raw(),
                c"RIGHT".as_ptr(),
                c"LEFT".as_ptr(),
            ));
        }
    }

    /// Sends `ZADD key score member`.
    pub fn replicate_zadd(&self, key: StrRef, score: f64, member: StrRef) {
        // The text of a number takes its time.
        if self.effect_is_heard() {
            let score = OwnedStr::new(score.to_string().as_bytes());
            self.replicate(c"ZADD", key, &[score.as_ref(), member]);
        }
    }

    /// Sends `command key number`.
    pub fn replicate_number(&self, command: &CStr, key: StrRef, number: i64) {
        if !self.effect_is_heard() {
            return;
        }
        // SAFETY: "sl" is a string and a long long.
        unsafe {
            api!(RedisModule_Replicate(
                self.ctx,
                command.as_ptr(),
                c"sl".as_ptr(),
                key.raw(),
                number as std::ffi::c_longlong,
            ));
        }
    }

    // ---- plain commands, for the few steps that have no direct API. No handle on the key may be open.

    /// The index of the last `element` in the list, counted from the left. None if the server did not search.
    pub(super) fn list_position_from_right(&self, list: StrRef, element: StrRef) -> Option<Option<usize>> {
        let reply = self.list_positions_by(list, element, c"RANK", c"-1");
        match reply.kind() as isize {
            raw::REDISMODULE_REPLY_NULL => Some(None),
            _ => reply.integer().map(|index| usize::try_from(index).ok()),
        }
    }

    /// The index of each `element` in the list, counted from the left. None if the server did not search.
    pub(super) fn list_positions(&self, list: StrRef, element: StrRef) -> Option<Vec<usize>> {
        let reply = self.list_positions_by(list, element, c"COUNT", c"0");
        let indexes = reply.elements(|element| element.integer())?;
        indexes.into_iter().map(|index| usize::try_from(index).ok()).collect()
    }

    fn list_positions_by(&self, list: StrRef, element: StrRef, option: &CStr, value: &CStr) -> Reply {
        // SAFETY: "sscc" is two strings and two C strings; the reply is the guard's.
        unsafe {
            Reply(api!(RedisModule_Call(
                self.ctx,
                c"LPOS".as_ptr(),
                c"sscc".as_ptr(),
                list.raw(),
                element.raw(),
                option.as_ptr(),
                value.as_ptr(),
            )))
        }
    }

    /// Whether this node is the one to ask for both keys, of one slot, now: false while a missing one may be on the other
    /// node of a slot that moves. The server runs no command of a module on keys that it would redirect.
    pub fn owns_both(&self, one: StrRef, other: StrRef) -> bool {
        // SAFETY: "ss" is two strings; the reply is freed by the guard. EXISTS changes nothing, so that open handles
        // stay valid.
        unsafe {
            let reply = Reply(api!(RedisModule_Call(
                self.ctx,
                c"EXISTS".as_ptr(),
                c"ss".as_ptr(),
                one.raw(),
                other.raw(),
            )));
            reply.integer().is_some()
        }
    }

    /// Runs `command key arguments…`, here and on replicas. False where the server did not do it.
    pub fn run_plain(&self, command: &CStr, key: StrRef, arguments: &[StrRef]) -> bool {
        // "!" sends it to replicas and the AOF. Without it, what another module writes when it hears of the event would
        // not be sent either.
        // SAFETY: "sv" is one string, then a pointer to strings with their number; the reply is freed by the guard.
        let reply = unsafe {
            Reply(api!(RedisModule_Call(
                self.ctx,
                command.as_ptr(),
                c"!sv".as_ptr(),
                key.raw(),
                arguments.as_ptr(),
                arguments.len(),
            )))
        };
        let failed = [raw::REDISMODULE_REPLY_UNKNOWN, raw::REDISMODULE_REPLY_ERROR];
        !failed.contains(&(reply.kind() as isize))
    }

    /// Whether a user stands behind the call. Calls from another module may come from nobody.
    pub(super) fn has_user(&self) -> bool {
        // "C" makes the server look up the user before anything else: without one it answers ENOTSUP. The command is
        // one that no server has, so that nothing runs, and no permission for it is asked for and logged.
        // SAFETY: "C" takes no argument; the reply is freed by the guard; errno is this thread's.
        unsafe {
            *libc::__errno_location() = 0;
            let reply = Reply(api!(RedisModule_Call(
                self.ctx,
                c"RMQ.NOSUCHCOMMAND".as_ptr(),
                c"C".as_ptr()
            )));
            !reply.0.is_null() || *libc::__errno_location() != libc::ENOTSUP
        }
    }

    // ---- replies

    pub fn reply_ok(&self) {
        // SAFETY: here and below, the context is alive and strings are NUL-terminated or given with their length.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.ctx, c"OK".as_ptr())) };
    }

    pub fn reply_integer(&self, value: i64) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.ctx, value)) };
    }

    pub fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: as above.
        unsafe {
            api!(RedisModule_ReplyWithStringBuffer(
                self.ctx,
                bytes.as_ptr().cast(),
                bytes.len()
            ))
        };
    }

    pub fn reply_str(&self, string: StrRef) {
        // SAFETY: as above; the server copies the bytes or takes its own reference.
        unsafe { api!(RedisModule_ReplyWithString(self.ctx, string.raw())) };
    }

    /// `len` replies must follow.
    pub fn reply_array(&self, len: usize) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithArray(self.ctx, len as std::ffi::c_long)) };
    }

    pub fn reply_nil(&self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithNull(self.ctx)) };
    }

    pub fn reply_nil_array(&self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithNullArray(self.ctx)) };
    }

    pub(super) fn reply_error(&self, error: &Error) {
        if matches!(error, Error::WrongArity) {
            // SAFETY: as above. The server words this error as for its own commands.
            unsafe { api!(RedisModule_WrongArity(self.ctx)) };
            return;
        }
        let text = CString::new(error.to_string()).unwrap_or_else(|_| c"ERR bad input".to_owned());
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithError(self.ctx, text.as_ptr())) };
    }
}

static CLUSTER: AtomicBool = AtomicBool::new(false);

/// Whether the server is a node of a cluster.
pub fn in_cluster() -> bool {
    CLUSTER.load(Ordering::Relaxed)
}

/// A reply of a plain command, freed on drop.
pub(super) struct Reply(pub(super) *mut raw::RedisModuleCallReply);

impl Reply {
    fn kind(&self) -> c_int {
        if self.0.is_null() {
            return raw::REDISMODULE_REPLY_UNKNOWN as c_int;
        }
        // SAFETY: a reply that is not null is alive until the drop.
        unsafe { api!(RedisModule_CallReplyType(self.0)) }
    }

    fn integer(&self) -> Option<i64> {
        (self.kind() == raw::REDISMODULE_REPLY_INTEGER as c_int)
            // SAFETY: the reply is alive, and an integer.
            .then(|| unsafe { api!(RedisModule_CallReplyInteger(self.0)) })
    }

    /// A string reply, with what is not UTF-8 replaced.
    pub(super) fn text(&self) -> Option<String> {
        if self.kind() != raw::REDISMODULE_REPLY_STRING as c_int {
            return None;
        }
        let mut len = 0;
        // SAFETY: the reply is alive, and a string of `len` bytes that lives as long as it.
        let bytes = unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.0, &mut len));
            std::slice::from_raw_parts(start.cast(), len)
        };
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    pub(super) fn texts(&self) -> Option<Vec<String>> {
        self.elements(Reply::text)
    }

    /// What `read` makes of each element. None if the reply is no array, or if it makes nothing of one.
    fn elements<T>(&self, read: impl Fn(&Reply) -> Option<T>) -> Option<Vec<T>> {
        if self.kind() != raw::REDISMODULE_REPLY_ARRAY as c_int {
            return None;
        }
        // SAFETY: the reply is alive, and an array.
        let len = unsafe { api!(RedisModule_CallReplyLength(self.0)) };
        let element = |index| {
            // SAFETY: as above, and the index is within it. An element is freed with its array, and by nobody else.
            ManuallyDrop::new(Reply(unsafe { api!(RedisModule_CallReplyArrayElement(self.0, index)) }))
        };
        (0..len).map(|index| read(&element(index))).collect()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the reply is the guard's, and freed once.
            unsafe { api!(RedisModule_FreeCallReply(self.0)) };
        }
    }
}
