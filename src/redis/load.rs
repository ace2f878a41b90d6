//! Loading the module. It is never unloaded: connections keep pointers to its commands (their last command, a queued
//! transaction, what was read ahead from a pipeline), and the server checks none of them. Upgrading is a restart or a
//! failover.

use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use redis_module::raw;

use super::entry::{log_panics, ERR, OK};
use super::key::signal_on_close;
use super::server::Server;
use super::{api, command, config, info, log, Invocation};
use crate::clock::Now;

/// # Safety
/// Called by the server, once per load.
#[no_mangle]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server's context; this fills in the function table, without which nothing else may be used. An init
    // that fails (the name is taken) leaves the table filled.
    let registered = unsafe {
        raw::Export_RedisModule_Init(ctx, c"rmq".as_ptr(), crate::VERSION_NUMBER, raw::REDISMODULE_APIVER_1 as c_int)
    };
    if registered == ERR {
        return ERR;
    }
    if let Some(function) = api::missing() {
        log_refusal(ctx, function);
        return ERR;
    }
    log_panics();
    // SAFETY: context and arguments are the server's, and outlive this frame.
    let call = unsafe { Invocation::new(ctx, argv, argc, &[], true) };
    let loaded = catch_unwind(AssertUnwindSafe(|| {
        Server::find_out(ctx)?;
        signal_on_close(ctx, false);
        config::register(&call)?;
        command::register(ctx, crate::COMMANDS)?;
        info::register(ctx)?;
        remember_load(ctx);
        Ok::<(), String>(())
    }));
    match loaded {
        Ok(Ok(())) => OK,
        Ok(Err(what)) => {
            log::warning(&format!("rmq: not loaded: {what}"));
            ERR
        }
        Err(_) => {
            log::warning("rmq: not loaded: internal error");
            ERR
        }
    }
}

/// On a server that is too old. Not through `log`, which allocates: the allocator may itself be what is missing.
fn log_refusal(ctx: *mut raw::RedisModuleCtx, function: &'static str) {
    let text = c"rmq: this server is too old: it has no API function %s. Redis 7.0 or later, or Valkey 8 or later, is needed. Not loaded.";
    // Copied to the stack, because it has to end in NUL.
    let mut name = [0u8; 96];
    let length = function.len().min(name.len() - 1);
    name[..length].copy_from_slice(&function.as_bytes()[..length]);
    // SAFETY: both strings end in NUL; the one `%s` has its one argument; Log is looked up.
    unsafe {
        if let Some(write) = raw::RedisModule_Log {
            write(ctx, c"warning".as_ptr(), text.as_ptr(), name.as_ptr());
        }
    }
}

/// # Safety
/// Called by the server.
#[no_mangle]
pub unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    if catch_unwind(AssertUnwindSafe(|| within_the_load(ctx))).unwrap_or(false) {
        return OK;
    }
    log::warning("rmq: not unloaded: connections may hold commands of the module; restart the server instead");
    ERR
}

/// The number of commands that the server had run when one of them loaded the module, and the time.
static LOADED_AFTER: AtomicU64 = AtomicU64::new(NOT_BY_A_COMMAND);
static LOADED_AT: AtomicI64 = AtomicI64::new(0);
const NOT_BY_A_COMMAND: u64 = u64::MAX;

fn remember_load(ctx: *mut raw::RedisModuleCtx) {
    // When the server starts, no client is connected.
    let by_a_command = info::server_number(ctx, c"clients", c"connected_clients").is_some_and(|clients| clients > 0);
    let commands = commands_run(ctx).filter(|_| by_a_command);
    LOADED_AFTER.store(commands.unwrap_or(NOT_BY_A_COMMAND), Ordering::Relaxed);
    LOADED_AT.store(Now::read().ms(), Ordering::Relaxed);
}

fn commands_run(ctx: *mut raw::RedisModuleCtx) -> Option<u64> {
    info::server_number(ctx, c"stats", c"total_commands_processed")
}

/// Whether the command that loaded the module is still running: the server has found fault with the settings of MODULE
/// LOADEX, and unloads. No connection has a pointer to a command yet, and Redis 8 asserts that this unload succeeds.
fn within_the_load(ctx: *mut raw::RedisModuleCtx) -> bool {
    // CONFIG RESETSTAT starts the count anew, and it might reach the same number again; not within this time.
    const SOON_MS: i64 = 1000;
    let loaded_after = LOADED_AFTER.load(Ordering::Relaxed);
    let since = Now::read().ms() - LOADED_AT.load(Ordering::Relaxed);
    loaded_after != NOT_BY_A_COMMAND && since.abs() < SOON_MS && commands_run(ctx) == Some(loaded_after)
}
