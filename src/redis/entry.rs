//! FFI entry points: a handler per command. No panic gets past them.

use std::ffi::c_int;
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};

use redis_module::raw;

use super::api::api;
use super::command::{Command, Kind};
use super::{acl, info, log, Invocation, StrRef};
use crate::error::Error;
use crate::stats::{self, Counter};

pub type Handler = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

pub(super) const OK: c_int = raw::REDISMODULE_OK as c_int;
pub(super) const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// # Safety
/// Called by the server, with the context and arguments of a command.
pub unsafe extern "C" fn handler<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the context is the server's.
    if unsafe { api!(RedisModule_IsKeysPositionRequest(ctx)) } != 0 {
        // SAFETY: as this function's.
        unsafe { report_keys::<C>(ctx, argv, argc) };
        return OK;
    }
    // SAFETY: context and arguments are the server's, and outlive this frame.
    let call = unsafe { invocation::<C>(ctx, argv, argc) };
    if const { !C::SPEC.waits() } {
        info::count_call();
    }
    // The server has checked the number of arguments against the table.
    let result = guarded(|| {
        call.check_number_of_arguments()?;
        call.check_distinct_keys()?;
        C::run(&call)
    });
    finish(&call);
    if let Err(error) = result {
        call.reply_error(&error);
    }
    OK
}

/// The server asks which arguments are keys. It may ask before it has checked the number of
/// arguments, and from another thread, so nothing but the arguments is touched.
///
/// # Safety
/// As for `handler`.
unsafe fn report_keys<C: Command>(ctx: *mut raw::RedisModuleCtx, argv: *mut *mut raw::RedisModuleString, argc: c_int) {
    if let Some(flags) = acl::probed_key(argv) {
        api!(RedisModule_KeyAtPosWithFlags(ctx, 1, flags));
        return;
    }
    let keys = const { C::SPEC.keys() };
    for (position, key) in (1..argc).zip(keys) {
        let name = StrRef::borrow(*argv.add(position as usize));
        if !(matches!(key.kind, Kind::KeyOrNone(_)) && name.is_empty()) {
            api!(RedisModule_KeyAtPosWithFlags(ctx, position, key.key_flags() as c_int));
        }
    }
}

/// # Safety
/// As for `handler`.
pub(super) unsafe fn invocation<'c, C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> Invocation<'c> {
    Invocation::new(ctx, argv, argc, const { C::SPEC.keys() }, const { C::SPEC.writes() })
}

/// Sends effects and events. The reply is written by now, so that a panic is only logged and counted.
pub(super) fn finish(call: &Invocation) {
    let _ = guarded(|| {
        call.finish();
        Ok(())
    });
}

/// Runs a command's code; a panic becomes an error reply, a count, and a log line by `log_panics`.
pub(super) fn guarded<T>(run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        stats::add(Counter::Panics, 1);
        Err(Error::Internal)
    })
}

/// From now on a panic writes its place and its text into the server's log. (By default they go to standard error, which
/// a server in the background has closed.)
pub(super) fn log_panics() {
    set_hook(Box::new(|panic| log::warning(&format!("rmq: internal error: {panic}").replace('\n', " "))));
}
