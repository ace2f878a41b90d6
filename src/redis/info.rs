//! The `rmq` section of INFO, and a look at the server's own sections.

use std::ffi::{c_int, CStr, CString};

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

/// A number of the server's own INFO.
pub(super) fn server_number(ctx: *mut raw::RedisModuleCtx, section: &CStr, field: &CStr) -> Option<u64> {
    // SAFETY: the context is alive; both names end in NUL; the data are freed once, after the number has been read.
    unsafe {
        let info = api!(RedisModule_GetServerInfo(ctx, section.as_ptr()));
        let mut failed: c_int = 0;
        let number = api!(RedisModule_ServerInfoGetFieldUnsigned(
            info,
            field.as_ptr(),
            &mut failed
        ));
        api!(RedisModule_FreeServerInfo(ctx, info));
        (failed == raw::REDISMODULE_OK as c_int).then_some(number)
    }
}
