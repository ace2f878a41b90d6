//! The `rmq` section of INFO, and a look at the server's own sections.

use std::ffi::{c_int, CStr, CString};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use redis_module::raw;

use super::api::api;
use super::command::Entry;
use super::entry::guarded;
use super::Invocation;
use crate::clock::{waiting, Now};
use crate::{stats, traffic};

pub(super) fn register(ctx: *mut raw::RedisModuleCtx) -> Result<(), String> {
    // SAFETY: the context is that of the load; the callback is a function of this module.
    let status = unsafe { api!(RedisModule_RegisterInfoFunc(ctx, Some(write_section))) };
    (status == raw::REDISMODULE_OK as c_int).then_some(()).ok_or_else(|| "the INFO section was refused".into())
}

unsafe extern "C" fn write_section(ctx: *mut raw::RedisModuleInfoCtx, crash_report: c_int) {
    let _ = guarded(|| {
        // SAFETY: the context is that of the running INFO.
        unsafe { write_fields(ctx, crash_report) };
        Ok(())
    });
}

/// # Safety
/// `ctx` is that of the running INFO.
unsafe fn write_fields(ctx: *mut raw::RedisModuleInfoCtx, crash_report: c_int) {
    // SAFETY: as above; names are NUL-terminated and copied.
    unsafe {
        if api!(RedisModule_InfoAddSection(ctx, c"".as_ptr())) != raw::REDISMODULE_OK as c_int {
            return;
        }
        if crash_report == 0 {
            notice_reset(false);
        }
        // A crash report is written where the crash happened, perhaps while the gauges are locked.
        let gauges = if crash_report == 0 { &waiting::gauges()[..] } else { &[] };
        for (name, value) in stats::all().chain(gauges.iter().copied()) {
            if let Ok(name) = CString::new(name) {
                api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value));
            }
        }
    }
}

/// Calls of the module's commands that never wait, counted by the module. (The server counts a call that waits later.)
static CALLS: AtomicU64 = AtomicU64::new(0);
/// How many of them came before the last CONFIG RESETSTAT.
static CALLS_BEFORE_RESET: AtomicU64 = AtomicU64::new(0);
/// Calls of the other commands that the server had counted at the last look.
static WAITING_CALLS_SEEN: AtomicU64 = AtomicU64::new(0);

pub(super) fn count_call() {
    CALLS.store(CALLS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// A module is not notified of CONFIG RESETSTAT. But after it the server has counted fewer calls than the module has, or than
/// it had itself; then the counters start again. `running`: whether one of the calls is running now, which the server counts
/// when it is over.
fn notice_reset(running: bool) {
    let calls = CALLS.load(Ordering::Relaxed);
    let expected = calls - CALLS_BEFORE_RESET.load(Ordering::Relaxed) - u64::from(running);
    let (never_wait, may_wait) = calls_counted_by_server();
    let seen = WAITING_CALLS_SEEN.swap(may_wait, Ordering::Relaxed);
    if never_wait < expected || may_wait < seen {
        CALLS_BEFORE_RESET.store(calls, Ordering::Relaxed);
        stats::reset();
        traffic::reset();
    }
}

/// Of commands that never wait, and of those that may.
fn calls_counted_by_server() -> (u64, u64) {
    // SAFETY: no context is needed; names end in NUL; the data are freed once, after what they hold has been read.
    unsafe {
        let info = api!(RedisModule_GetServerInfo(null_mut(), c"commandstats".as_ptr()));
        let calls = |entry: &Entry| {
            let name = CString::new(format!("cmdstat_{}", entry.spec().name)).ok()?;
            let field = api!(RedisModule_ServerInfoGetFieldC(info, name.as_ptr()));
            let text = (!field.is_null()).then(|| CStr::from_ptr(field).to_str().ok()).flatten()?;
            text.strip_prefix("calls=")?.split(',').next()?.parse::<u64>().ok()
        };
        let (may_wait, never_wait): (Vec<&Entry>, Vec<&Entry>) =
            crate::COMMANDS.iter().partition(|entry| entry.spec().waits());
        let sum = |entries: Vec<&Entry>| entries.into_iter().filter_map(calls).sum();
        let sums = (sum(never_wait), sum(may_wait));
        api!(RedisModule_FreeServerInfo(null_mut(), info));
        sums
    }
}

impl Invocation<'_> {
    /// Sets the counters to 0 if CONFIG RESETSTAT was called since this was last checked. Within a command that does not wait.
    /// At most once a second: the server counts its calls per command, which takes longer than RMQ.STATS itself.
    pub fn notice_reset_of_statistics(&self) {
        const LOOK_EVERY_MS: i64 = 1000;
        static LAST: AtomicI64 = AtomicI64::new(0);
        let now = Now::read().ms();
        if (now - LAST.load(Ordering::Relaxed)).abs() >= LOOK_EVERY_MS {
            LAST.store(now, Ordering::Relaxed);
            notice_reset(true);
        }
    }
}

/// A number of the server's own INFO.
pub(super) fn server_number(ctx: *mut raw::RedisModuleCtx, section: &CStr, field: &CStr) -> Option<u64> {
    // SAFETY: the context is alive; both names end in NUL; the data are freed once, after the number has been read.
    unsafe {
        let info = api!(RedisModule_GetServerInfo(ctx, section.as_ptr()));
        let mut failed: c_int = 0;
        let number = api!(RedisModule_ServerInfoGetFieldUnsigned(info, field.as_ptr(), &mut failed));
        api!(RedisModule_FreeServerInfo(ctx, info));
        (failed == raw::REDISMODULE_OK as c_int).then_some(number)
    }
}
