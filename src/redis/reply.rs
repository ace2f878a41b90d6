//! Replies. Data are sent as bulk strings, so that any bytes pass.

use std::ffi::{c_long, CStr, CString};

use super::api::api;
use super::{Invocation, StrRef};
use crate::error::Error;

/// A value in a map whose keys are constants of the module.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    Integer(i64),
    Bytes(&'a [u8]),
    Str(StrRef<'a>),
    Nil,
}

impl Invocation<'_> {
    fn reply_value(&self, value: Value) {
        match value {
            Value::Integer(value) => self.reply_integer(value),
            Value::Bytes(bytes) => self.reply_bytes(bytes),
            Value::Str(string) => self.reply_str(string),
            Value::Nil => self.reply_nil(),
        }
    }

    /// Names and values, as part of a map whose length was given, or as a whole with `reply_map` before it.
    pub fn reply_fields(&self, fields: &[(&str, Value)]) {
        for (name, value) in fields {
            self.reply_bytes(name.as_bytes());
            self.reply_value(*value);
        }
    }

    pub fn reply_ok(&self) {
        self.reply_word(c"OK");
    }

    pub fn reply_integer(&self, value: i64) {
        // SAFETY: here and below, the context is alive and strings are NUL-terminated or given with their length.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.ctx(), value)) };
    }

    pub fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.ctx(), bytes.as_ptr().cast(), bytes.len())) };
    }

    pub fn reply_str(&self, string: StrRef) {
        // SAFETY: as above; the server copies the bytes or takes its own reference.
        unsafe { api!(RedisModule_ReplyWithString(self.ctx(), string.raw())) };
    }

    /// `len` replies must follow.
    pub fn reply_array(&self, len: usize) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithArray(self.ctx(), len as c_long)) };
    }

    /// `len` pairs of replies must follow. In RESP2 that is a flat array.
    pub fn reply_map(&self, len: usize) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithMap(self.ctx(), len as c_long)) };
    }

    /// A constant of the module, never data.
    pub fn reply_word(&self, word: &'static CStr) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.ctx(), word.as_ptr())) };
    }

    pub fn reply_nil(&self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithNull(self.ctx())) };
    }

    pub fn reply_nil_array(&self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithNullArray(self.ctx())) };
    }

    pub(super) fn reply_error(&self, error: &Error) {
        if matches!(error, Error::WrongArity) {
            // SAFETY: as above. The server words this error as for its own commands.
            unsafe { api!(RedisModule_WrongArity(self.ctx())) };
            return;
        }
        let text = CString::new(error.to_string()).unwrap_or_else(|_| c"ERR bad input".to_owned());
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithError(self.ctx(), text.as_ptr())) };
    }
}
