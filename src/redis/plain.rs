//! Plain commands that the module runs through the server, for the few steps without a direct API. All with the flag "E",
//! which returns errors as replies: without it Valkey 9 crashes where it refuses a command in a timer.

use std::ffi::{c_int, CStr, CString};
use std::mem::ManuallyDrop;

use redis_module::raw;

use super::api::api;
use super::{server, Invocation, OwnedStr, StrRef};

/// What `Invocation::scan` walks over.
pub(super) enum Scan {
    Hash,
    Zset,
}

/// A plain command that runs when every key handle is closed.
pub(super) struct Deferred {
    pub command: &'static CStr,
    pub key: OwnedStr,
    pub words: Vec<OwnedStr>,
    /// The log line if the server does not run it.
    pub if_refused: &'static str,
}

impl Deferred {
    /// Runs it here and on replicas. False where the server did not.
    pub fn run(&self, call: &Invocation) -> bool {
        // "!" sends it to replicas and the AOF. Without it, what other modules write in reaction would not be sent
        // either.
        // SAFETY: "sv" is one string, then a pointer to strings (which an OwnedStr is) with their number; the guard frees
        // the reply.
        let reply = unsafe {
            Reply(api!(RedisModule_Call(
                call.ctx(),
                self.command.as_ptr(),
                c"!Esv".as_ptr(),
                self.key.as_ref().raw(),
                self.words.as_ptr(),
                self.words.len(),
            )))
        };
        let failed = [raw::REDISMODULE_REPLY_UNKNOWN, raw::REDISMODULE_REPLY_ERROR];
        !failed.contains(&(reply.kind() as isize))
    }
}

impl Invocation<'_> {
    /// The index of the last `element` in the list, counted from the left. None if the server did not search. No handle
    /// on the list may be open.
    pub(super) fn list_position_from_right(&self, list: StrRef, element: StrRef) -> Option<Option<usize>> {
        // SAFETY: "sscc" is two strings and two C strings; the guard frees the reply.
        let reply = unsafe {
            Reply(api!(RedisModule_Call(
                self.ctx(),
                c"LPOS".as_ptr(),
                c"Esscc".as_ptr(),
                list.raw(),
                element.raw(),
                c"RANK".as_ptr(),
                c"-1".as_ptr(),
            )))
        };
        match reply.kind() as isize {
            raw::REDISMODULE_REPLY_NULL => Some(None),
            _ => reply.integer().map(|index| usize::try_from(index).ok()),
        }
    }

    /// The index of each `element` in the list, lowest first; with a window, of those that are no further than that from
    /// an end. None if the server did not search. No handle on the list may be open.
    pub(super) fn list_positions(&self, list: StrRef, element: StrRef, window: Option<usize>) -> Option<Vec<usize>> {
        let window = CString::new(window.unwrap_or(0).to_string()).ok()?;
        let mut places = Vec::new();
        for rank in [c"1", c"-1"] {
            // SAFETY: "sscccccc" is two strings and six C strings; the guard frees the reply.
            let reply = unsafe {
                Reply(api!(RedisModule_Call(
                    self.ctx(),
                    c"LPOS".as_ptr(),
                    c"Esscccccc".as_ptr(),
                    list.raw(),
                    element.raw(),
                    c"RANK".as_ptr(),
                    rank.as_ptr(),
                    c"COUNT".as_ptr(),
                    c"0".as_ptr(),
                    c"MAXLEN".as_ptr(),
                    window.as_ptr(),
                )))
            };
            places.extend(reply.elements(|element| usize::try_from(element.integer()?).ok())?);
            if window.as_bytes() == b"0" {
                break;
            }
        }
        places.sort_unstable();
        places.dedup();
        Some(places)
    }

    /// Whether this node is the one to ask for all of these keys, of one slot, now: false while a missing one may be on
    /// the other node of a slot that moves. At least two keys: for a single one the server would redirect.
    pub fn owns_all(&self, keys: &[StrRef]) -> bool {
        // SAFETY: "v" is a pointer to strings (which a StrRef is) with their number; the guard frees the reply. Keys that are
        // open have been looked up in this command, in which the server's time stands still: none of them expires now.
        let reply = unsafe {
            Reply(api!(RedisModule_Call(self.ctx(), c"EXISTS".as_ptr(), c"Ev".as_ptr(), keys.as_ptr(), keys.len())))
        };
        reply.integer().is_some()
    }

    /// How many members have a score of at most `max`. None if the server did not count.
    pub fn zset_count(&self, zset: StrRef, max: f64) -> Option<usize> {
        let max = CString::new(max.to_string()).ok()?;
        // SAFETY: "scc" is one string and two C strings; the guard frees the reply.
        let reply = unsafe {
            Reply(api!(RedisModule_Call(
                self.ctx(),
                c"ZCOUNT".as_ptr(),
                c"Escc".as_ptr(),
                zset.raw(),
                c"-inf".as_ptr(),
                max.as_ptr(),
            )))
        };
        reply.integer().and_then(|count| usize::try_from(count).ok())
    }

    /// Some elements of a hash or a sorted set from this cursor on, about `count`, and the next cursor, which is 0 at the end.
    /// None if the server did not look. No handle on the key may be open.
    pub(super) fn scan(&self, kind: Scan, key: StrRef, cursor: u64, count: usize) -> Option<(u64, Vec<OwnedStr>)> {
        let cursor = CString::new(cursor.to_string()).ok()?;
        let count = CString::new(count.to_string()).ok()?;
        // Fields without their values where the server surely can (since Redis 7.4, as field expiry): payloads may be large.
        let (command, without_values) = match kind {
            Scan::Hash => (c"HSCAN", server().field_expiry),
            Scan::Zset => (c"ZSCAN", false),
        };
        let (format, step) = if without_values { (c"Escccc", 1) } else { (c"Esccc", 2) };
        // SAFETY: the format takes one string and three or four C strings; the guard frees the reply.
        let reply = unsafe {
            Reply(api!(RedisModule_Call(
                self.ctx(),
                command.as_ptr(),
                format.as_ptr(),
                key.raw(),
                cursor.as_ptr(),
                c"COUNT".as_ptr(),
                count.as_ptr(),
                c"NOVALUES".as_ptr(),
            )))
        };
        let next = reply.element(0, |next| next.text()?.parse().ok())?;
        let elements = reply.element(1, |all| all.elements(|element| Some(OwnedStr::new(element.bytes()?))))?;
        Some((next, elements.into_iter().step_by(step).collect()))
    }

    /// Whether the server would accept a write to this sorted set now: false for a read-only replica, NOREPLICAS, MISCONF,
    /// CLUSTERDOWN, a slot of another node, and during a failover or CLIENT PAUSE. The server does not check this for a timer.
    pub fn may_write_to(&self, zset: StrRef) -> bool {
        let must_be_off = raw::REDISMODULE_CTX_FLAGS_SLAVE | raw::REDISMODULE_CTX_FLAGS_LOADING;
        // SAFETY: the function takes nothing.
        let paused = unsafe { api!(RedisModule_AvoidReplicaTraffic()) } != 0;
        if paused || self.flags() & must_be_off as c_int != 0 {
            return false;
        }
        // A write that changes nothing, whatever the members are: the range is empty. "S" makes the server check what it
        // checks for a client or a script.
        // SAFETY: "S" and "E" are flags, "scc" is one string and two C strings; the guard frees the reply.
        let reply = unsafe {
            Reply(api!(RedisModule_Call(
                self.ctx(),
                c"ZREMRANGEBYRANK".as_ptr(),
                c"SEscc".as_ptr(),
                zset.raw(),
                c"1".as_ptr(),
                c"0".as_ptr(),
            )))
        };
        reply.integer().is_some()
    }

    /// Whether the call has a user. Calls from another module may have none.
    pub(super) fn has_user(&self) -> bool {
        // "C" makes the server look up the user before anything else: without one it answers ENOTSUP. The command is
        // one that no server has, so that nothing runs, and no permission for it is asked for and logged.
        // SAFETY: "C" takes no argument; the guard frees the reply; errno is this thread's.
        unsafe {
            *libc::__errno_location() = 0;
            let reply = Reply(api!(RedisModule_Call(self.ctx(), c"RMQ.NOSUCHCOMMAND".as_ptr(), c"C".as_ptr())));
            !reply.0.is_null() || *libc::__errno_location() != libc::ENOTSUP
        }
    }

    /// The node that a slot belongs to, as `host:port`. None if it is this one, or if the slot is being migrated here.
    pub fn other_owner_of(&self, slot: u16) -> Option<String> {
        // SAFETY: "c" is one C string; the guard frees the reply.
        let reply = unsafe {
            Reply(api!(RedisModule_Call(self.ctx(), c"CLUSTER".as_ptr(), c"Ec".as_ptr(), c"NODES".as_ptr())))
        };
        crate::slot::other_owner(&reply.text()?, slot)
    }
}

/// A reply of a plain command, freed on drop.
struct Reply(*mut raw::RedisModuleCallReply);

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

    fn bytes(&self) -> Option<&[u8]> {
        if self.kind() != raw::REDISMODULE_REPLY_STRING as c_int {
            return None;
        }
        let mut len = 0;
        // SAFETY: the reply is alive, and a string of `len` bytes that lives as long as it.
        unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.0, &mut len));
            Some(std::slice::from_raw_parts(start.cast(), len))
        }
    }

    /// A string reply, with what is not UTF-8 replaced.
    fn text(&self) -> Option<String> {
        Some(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// What `read` makes of one element of an array.
    fn element<T>(&self, index: usize, read: impl FnOnce(&Reply) -> Option<T>) -> Option<T> {
        if self.kind() != raw::REDISMODULE_REPLY_ARRAY as c_int {
            return None;
        }
        // SAFETY: the reply is alive, and an array; an index out of range gives null. An element is freed with its array,
        // and nowhere else.
        let element = unsafe { api!(RedisModule_CallReplyArrayElement(self.0, index)) };
        read(&ManuallyDrop::new(Reply(element)))
    }

    /// What `read` makes of each element. None if the reply is no array, or if `read` returns None for an element.
    fn elements<T>(&self, read: impl Fn(&Reply) -> Option<T>) -> Option<Vec<T>> {
        if self.kind() != raw::REDISMODULE_REPLY_ARRAY as c_int {
            return None;
        }
        // SAFETY: the reply is alive, and an array.
        let len = unsafe { api!(RedisModule_CallReplyLength(self.0)) };
        (0..len).map(|index| self.element(index, &read)).collect()
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
