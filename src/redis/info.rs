//! The `rmq` section of INFO.

use std::ffi::{c_int, CString};

use redis_module::raw;

use super::api::api;
use crate::stats;

pub(super) fn register(ctx: *mut raw::RedisModuleCtx) -> Result<(), String> {
    // SAFETY: the context is that of the load; the callback is a function of this module.
    let status = unsafe { api!(RedisModule_RegisterInfoFunc(ctx, Some(write_section))) };
    (status == raw::REDISMODULE_OK as c_int)
        .then_some(())
        .ok_or_else(|| "the INFO section was refused".into())
}

unsafe extern "C" fn write_section(ctx: *mut raw::RedisModuleInfoCtx, _crash_report: c_int) {
    // SAFETY: the context is that of the running INFO; names are NUL-terminated and copied.
    unsafe {
        if api!(RedisModule_InfoAddSection(ctx, c"".as_ptr())) != raw::REDISMODULE_OK as c_int {
            return;
        }
        for (name, value) in stats::all() {
            if let Ok(name) = CString::new(name) {
                api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value));
            }
        }
    }
}
