//! A hash.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use redis_module::raw;

use super::api::api;
use super::effects::Plain;
use super::entry::guarded;
use super::key::Key;
use super::plain::{Deferred, Scan};
use super::{OwnedStr, StrRef};

pub struct HashKey<'c> {
    pub(super) key: Key<'c>,
}

/// `REDISMODULE_HASH_DELETE` and `REDISMODULE_NO_EXPIRE` of the C header, which are casts that bindgen cannot render.
const DELETE: *mut raw::RedisModuleString = std::ptr::without_provenance_mut(1);
const NO_EXPIRE: raw::mstime_t = -1;
const NONE: c_int = raw::REDISMODULE_HASH_NONE as c_int;

impl HashKey<'_> {
    pub fn get(&self, field: StrRef) -> Option<OwnedStr> {
        let mut value: *mut raw::RedisModuleString = null_mut();
        if !self.key.exists() {
            return None;
        }
        // SAFETY: the key is open and a hash; one field with its out pointer, then the closing null. The string that
        // comes back is the caller's to free.
        unsafe {
            api!(RedisModule_HashGet(
                self.key.raw(),
                NONE,
                field.raw(),
                &mut value as *mut *mut raw::RedisModuleString,
                null_mut::<raw::RedisModuleString>(),
            ));
            OwnedStr::take(value)
        }
    }

    pub fn get_three(&self, one: StrRef, two: StrRef, three: StrRef) -> [Option<OwnedStr>; 3] {
        let mut values: [*mut raw::RedisModuleString; 3] = [null_mut(); 3];
        if !self.key.exists() {
            return [None, None, None];
        }
        let [first, second, third] = &mut values;
        // SAFETY: as in `get`, for three fields.
        unsafe {
            api!(RedisModule_HashGet(
                self.key.raw(),
                NONE,
                one.raw(),
                first as *mut *mut raw::RedisModuleString,
                two.raw(),
                second as *mut *mut raw::RedisModuleString,
                three.raw(),
                third as *mut *mut raw::RedisModuleString,
                null_mut::<raw::RedisModuleString>(),
            ));
            values.map(|value| OwnedStr::take(value))
        }
    }

    pub fn get_two(&self, one: StrRef, two: StrRef) -> [Option<OwnedStr>; 2] {
        let mut values: [*mut raw::RedisModuleString; 2] = [null_mut(); 2];
        if !self.key.exists() {
            return [None, None];
        }
        let [first, second] = &mut values;
        // SAFETY: as in `get`, for two fields.
        unsafe {
            api!(RedisModule_HashGet(
                self.key.raw(),
                NONE,
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
        if !self.key.exists() {
            return false;
        }
        // SAFETY: as in `get`; with HASH_EXISTS the out pointer is an int.
        unsafe {
            api!(RedisModule_HashGet(
                self.key.raw(),
                raw::REDISMODULE_HASH_EXISTS as c_int,
                field.raw(),
                &mut found as *mut c_int,
                null_mut::<raw::RedisModuleString>(),
            ));
        }
        found != 0
    }

    pub fn has_two(&self, one: StrRef, two: StrRef) -> [bool; 2] {
        let mut found: [c_int; 2] = [0; 2];
        if !self.key.exists() {
            return [false; 2];
        }
        let [first, second] = &mut found;
        // SAFETY: as in `has`, for two fields.
        unsafe {
            api!(RedisModule_HashGet(
                self.key.raw(),
                raw::REDISMODULE_HASH_EXISTS as c_int,
                one.raw(),
                first as *mut c_int,
                two.raw(),
                second as *mut c_int,
                null_mut::<raw::RedisModuleString>(),
            ));
        }
        found.map(|found| found != 0)
    }

    /// Whether no field has expired, as far as the server shows: fields that it has not removed yet still count in `len`.
    pub fn none_has_expired(&self, now_ms: i64) -> bool {
        // SAFETY: the table of functions is filled in; the key is open, or null, which the server takes for a missing one.
        unsafe {
            match (&raw const raw::RedisModule_HashFieldMinExpire).read() {
                Some(earliest) if self.key.exists() => {
                    let earliest = earliest(self.key.raw());
                    earliest == NO_EXPIRE || earliest > now_ms
                }
                _ => false,
            }
        }
    }

    /// Every field and its value.
    pub fn each(&self, mut visit: impl FnMut(OwnedStr, OwnedStr)) {
        if !self.key.exists() {
            return;
        }
        let mut visit: &mut dyn FnMut(OwnedStr, OwnedStr) = &mut visit;
        // SAFETY: the key is open and a hash, and not changed meanwhile; the cursor is freed once. The data are a pointer to
        // `visit`, which outlives the scan.
        unsafe {
            let cursor = api!(RedisModule_ScanCursorCreate());
            let data = (&raw mut visit).cast::<c_void>();
            while api!(RedisModule_ScanKey(self.key.raw(), cursor, Some(on_field), data)) != 0 {}
            api!(RedisModule_ScanCursorDestroy(cursor));
        }
    }

    /// Some fields from this cursor on, about `count`, and the next cursor, which is 0 at the end. None if the server did not
    /// look.
    pub fn page(&mut self, cursor: u64, count: usize) -> Option<(u64, Vec<OwnedStr>)> {
        if !self.key.exists() {
            return Some((0, Vec::new()));
        }
        self.key.reopen(|call, name| call.scan(Scan::Hash, name, cursor, count))
    }

    /// Whether the field was there. An expired field that the server has not removed yet counts as there.
    pub fn set(&mut self, field: StrRef, value: StrRef) -> bool {
        // SAFETY: the key is open for writing and a hash or missing; one pair, then the closing null. Both strings are
        // copied.
        let updated = unsafe {
            api!(RedisModule_HashSet(
                self.key.raw(),
                NONE,
                field.raw(),
                value.raw(),
                null_mut::<raw::RedisModuleString>(),
            ))
        };
        self.key.changed(Plain::HSet, 0, &[field, value]);
        updated > 0
    }

    /// Two fields in one step.
    pub fn set_two(&mut self, one: (StrRef, StrRef), two: (StrRef, StrRef)) {
        // SAFETY: as in `set`, for two pairs.
        unsafe {
            api!(RedisModule_HashSet(
                self.key.raw(),
                NONE,
                one.0.raw(),
                one.1.raw(),
                two.0.raw(),
                two.1.raw(),
                null_mut::<raw::RedisModuleString>(),
            ));
        }
        self.key.changed(Plain::HSet, 0, &[one.0, one.1, two.0, two.1]);
    }

    /// Whether the field was there.
    pub fn delete(&mut self, field: StrRef) -> bool {
        // The server would create a missing hash before it finds nothing to delete in it.
        if !self.key.exists() {
            return false;
        }
        // SAFETY: as in `set`; the value 1 makes it a deletion.
        let deleted = unsafe {
            api!(RedisModule_HashSet(self.key.raw(), NONE, field.raw(), DELETE, null_mut::<raw::RedisModuleString>(),))
        };
        if deleted > 0 {
            self.key.changed(Plain::HDel, 0, &[field]);
        }
        deleted > 0
    }

    /// Three fields at once, which are all there as a rule: the effect names all of them.
    pub fn delete_three(&mut self, [one, two, three]: [StrRef; 3]) {
        if !self.key.exists() {
            return;
        }
        // SAFETY: as in `delete`, for three fields.
        let deleted = unsafe {
            api!(RedisModule_HashSet(
                self.key.raw(),
                NONE,
                one.raw(),
                DELETE,
                two.raw(),
                DELETE,
                three.raw(),
                DELETE,
                null_mut::<raw::RedisModuleString>(),
            ))
        };
        if deleted > 0 {
            self.key.changed(Plain::HDel, 0, &[one, two, three]);
        }
    }

    /// The whole hash expires at this Unix time, if it has no expiry yet.
    pub fn expire_at(&mut self, unix_ms: i64) {
        // SAFETY: the key is open for writing and not missing.
        unsafe {
            if !self.key.exists() || api!(RedisModule_GetExpire(self.key.raw())) != NO_EXPIRE {
                return;
            }
            api!(RedisModule_SetAbsExpire(self.key.raw(), unix_ms));
        }
        self.key.changed(Plain::PExpireAt, unix_ms, &[]);
    }

    /// One field expires at this Unix time. There is no direct API, so a plain command does it at the end of the call.
    pub fn expire_field_at(&mut self, field: StrRef, unix_ms: i64) {
        self.key.call.defer(Deferred {
            command: c"HPEXPIREAT",
            key: OwnedStr::retain(self.name()),
            words: vec![
                OwnedStr::number(unix_ms),
                OwnedStr::new(b"FIELDS"),
                OwnedStr::new(b"1"),
                OwnedStr::retain(field),
            ],
            if_refused: "rmq: the server refused to let a field expire: it was stored without expiry",
        });
    }
}

unsafe extern "C" fn on_field(
    _key: *mut raw::RedisModuleKey,
    field: *mut raw::RedisModuleString,
    value: *mut raw::RedisModuleString,
    visit: *mut c_void,
) {
    // SAFETY: the strings live as long as this call, so they are copied (the server may reuse them); `visit` is what
    // `each` passed.
    unsafe {
        let visit = &mut *visit.cast::<&mut dyn FnMut(OwnedStr, OwnedStr)>();
        let copy = |string| OwnedStr::new(StrRef::borrow(string).bytes());
        // A panic must not unwind through the server's scan.
        let _ = guarded(|| {
            visit(copy(field), copy(value));
            Ok(())
        });
    }
}
