//! Server strings. `StrRef` borrows one (an argument, or an `OwnedStr`); `OwnedStr` holds a reference and gives it
//! back on drop. Both are plain bytes: NUL, CRLF and invalid UTF-8 pass through.

use std::marker::PhantomData;
use std::ptr::NonNull;

use redis_module::raw;

use super::api::api;

#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct StrRef<'a> {
    raw: NonNull<raw::RedisModuleString>,
    owner: PhantomData<&'a OwnedStr>,
}

impl<'a> StrRef<'a> {
    /// # Safety
    /// `raw` is not null, and outlives 'a.
    pub(super) unsafe fn borrow(raw: *mut raw::RedisModuleString) -> Self {
        StrRef { raw: NonNull::new_unchecked(raw), owner: PhantomData }
    }

    pub(super) fn raw(self) -> *mut raw::RedisModuleString {
        self.raw.as_ptr()
    }

    pub fn bytes(self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: the string outlives 'a, the server does not change a string that somebody else holds, and a
        // pointer to `len` bytes is what this function returns (never null for a non-null string).
        unsafe {
            let data = api!(RedisModule_StringPtrLen(self.raw.as_ptr(), &mut len));
            std::slice::from_raw_parts(data.cast(), len)
        }
    }

    pub fn is_empty(self) -> bool {
        self.bytes().is_empty()
    }
}

impl AsRef<[u8]> for StrRef<'_> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// The same size and meaning as a pointer to the string: a slice of these is an array of strings to the server.
#[repr(transparent)]
pub struct OwnedStr {
    raw: NonNull<raw::RedisModuleString>,
}

impl OwnedStr {
    pub fn new(bytes: &[u8]) -> Self {
        // SAFETY: pointer and length describe `bytes`, which the server copies. A null context means that nobody
        // but this handle frees the string.
        unsafe {
            let raw = api!(RedisModule_CreateString(std::ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()));
            OwnedStr { raw: NonNull::new_unchecked(raw) }
        }
    }

    pub fn number(value: i64) -> Self {
        // SAFETY: as in `new`.
        unsafe {
            let raw = api!(RedisModule_CreateStringFromLongLong(std::ptr::null_mut(), value));
            OwnedStr { raw: NonNull::new_unchecked(raw) }
        }
    }

    /// The same string, held once more.
    pub fn retain(string: StrRef) -> Self {
        // SAFETY: the string is alive; without a context the reference is this handle's alone.
        unsafe { api!(RedisModule_RetainString(std::ptr::null_mut(), string.raw())) };
        OwnedStr { raw: string.raw }
    }

    /// `head` and `tail` in one string, such as an id and `:queue`.
    pub fn concat(head: &[u8], tail: &[u8]) -> Self {
        const ROOM: usize = 192;
        let len = head.len() + tail.len();
        if len > ROOM {
            return OwnedStr::new(&[head, tail].concat());
        }
        let mut bytes = [0; ROOM];
        bytes[..head.len()].copy_from_slice(head);
        bytes[head.len()..len].copy_from_slice(tail);
        OwnedStr::new(&bytes[..len])
    }

    /// # Safety
    /// `raw` is null, or a server string whose reference passes to the handle.
    pub(super) unsafe fn take(raw: *mut raw::RedisModuleString) -> Option<Self> {
        NonNull::new(raw).map(|raw| OwnedStr { raw })
    }

    pub fn as_ref(&self) -> StrRef<'_> {
        StrRef { raw: self.raw, owner: PhantomData }
    }

    pub fn bytes(&self) -> &[u8] {
        self.as_ref().bytes()
    }
}

impl Drop for OwnedStr {
    fn drop(&mut self) {
        // SAFETY: the handle owns one reference, and gives it back once.
        unsafe { api!(RedisModule_FreeString(std::ptr::null_mut(), self.raw.as_ptr())) }
    }
}
