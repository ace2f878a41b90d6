//! The doors through which the server comes in: a handler per command, the callbacks of a blocked client, load and
//! unload. No panic gets past them.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};

use redis_module::raw;

use super::api;
use super::call::Call;
use super::command::{self, Command};
use super::key::{look_at_server_version, promise_slot_migration, signal_on_close};
use super::{config, events, info, log, unload};
use crate::error::Error;
use crate::stats::{self, Counter};

pub type Handler = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// # Safety
/// Called by the server, with the context and arguments of a command.
pub unsafe extern "C" fn handler<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: context and arguments are the server's, and outlive this frame.
    let call = unsafe { Call::new(ctx, argv, argc) };
    // The server has checked the number of arguments against the table.
    let result = guarded(|| C::run(&call));
    fire_events(&call);
    if let Err(error) = result {
        call.reply_error(&error);
    }
    OK
}

/// Listeners hear of the changes. The reply is given by now, so that a panic is only logged and counted.
fn fire_events(call: &Call) {
    let _ = guarded(|| {
        call.fire_events();
        Ok(())
    });
}

/// Runs a command's code; a panic becomes an error reply, a log line and a count.
fn guarded(run: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        stats::add(Counter::Panics, 1);
        log::warning(&format!("rmq: internal error: {}", panic_text(panic.as_ref())));
        Err(Error::Internal)
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown panic")
}

/// Waiting for keys. `Command::run` has found nothing and asks the server to hold the client.
pub mod blocking {
    use super::*;
    use crate::redis::api::api;
    use crate::redis::StrRef;

    /// What a waiting command does when its key may be ready.
    pub trait Waits: Command {
        /// True if the client was served; false if it goes on waiting. An error is the client's reply.
        fn serve<'c>(call: &'c Call<'c>) -> Result<bool, Error>;
        /// The reply when time is up.
        fn timed_out<'c>(call: &'c Call<'c>);
    }

    /// Holds the client until something fills `key`; `timeout_ms` 0 is for ever. Nothing may have been replied.
    pub fn wait<'c, C: Waits>(call: &'c Call<'c>, key: StrRef<'c>, timeout_ms: i64) {
        let mut keys = [key.raw()];
        // SAFETY: the context is that of the running command; the server copies the key names. The callbacks are
        // functions of this module, which cannot be unloaded while a client waits.
        unsafe {
            api!(RedisModule_BlockClientOnKeys(
                call.ctx(),
                Some(on_ready::<C>),
                Some(on_timeout::<C>),
                None,
                timeout_ms,
                keys.as_mut_ptr(),
                1,
                std::ptr::null_mut(),
            ));
        }
    }

    /// Whether a client may go on waiting after its command has changed something. Redis 7.0 aborts on effects that a
    /// callback left to replicate without serving its client; the function asked for came with the mended way.
    pub fn may_change_and_wait() -> bool {
        // SAFETY: a look at the table, which is written once, at load.
        unsafe { (&raw const raw::RedisModule_BlockClientOnKeysWithFlags).read() }.is_some()
    }

    unsafe extern "C" fn on_ready<C: Waits>(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int {
        // SAFETY: as in `handler`; these are the arguments that the client sent.
        let call = unsafe { Call::new(ctx, argv, argc) };
        let mut served = false;
        let result = guarded(|| {
            served = C::serve(&call)?;
            Ok(())
        });
        fire_events(&call);
        match result {
            Ok(()) if !served => ERR,
            Ok(()) => OK,
            Err(error) => {
                call.reply_error(&error);
                OK
            }
        }
    }

    unsafe extern "C" fn on_timeout<C: Waits>(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int {
        // SAFETY: as in `handler`.
        let call = unsafe { Call::new(ctx, argv, argc) };
        C::timed_out(&call);
        OK
    }
}

/// # Safety
/// Called by the server, once per load.
#[no_mangle]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server's context; this fills in the function table, without which nothing else may be used. An
    // init that fails (the name is taken) leaves the table filled.
    let registered = unsafe {
        raw::Export_RedisModule_Init(
            ctx,
            c"rmq".as_ptr(),
            crate::VERSION_NUMBER,
            raw::REDISMODULE_APIVER_1 as c_int,
        )
    };
    if registered == ERR {
        return ERR;
    }
    if let Some(function) = api::missing() {
        log_refusal(ctx, function);
        return ERR;
    }
    // SAFETY: context and arguments are the server's, and outlive this frame.
    let call = unsafe { Call::load(ctx, argv, argc) };
    let loaded = catch_unwind(AssertUnwindSafe(|| {
        promise_slot_migration();
        signal_on_close(ctx, false);
        look_at_server_version();
        call.remember_cluster_mode();
        config::register(&call)?;
        command::look_for_field_expiry(ctx);
        command::look_for_plain_commands(ctx)?;
        command::register(ctx, crate::COMMANDS)?;
        info::register(ctx)?;
        events::watch(ctx)?;
        unload::remember_load(ctx);
        Ok::<(), String>(())
    }));
    match loaded {
        Ok(Ok(())) => OK,
        Ok(Err(what)) => {
            log::warning(&format!("rmq: not loaded: {what}"));
            ERR
        }
        Err(panic) => {
            log::warning(&format!("rmq: not loaded: {}", panic_text(panic.as_ref())));
            ERR
        }
    }
}

/// On a server that is too old. Not through `log`: that function allocates, and may itself be what is missing.
fn log_refusal(ctx: *mut raw::RedisModuleCtx, function: &'static str) {
    // The allocator, if it is missing, aborts; format on the stack.
    let mut line = [0u8; 192];
    let text = b"rmq: this server is too old: it has no API function %s. Redis 7.0 or later, or Valkey 8 or later, is needed. Not loaded.\0";
    line[..text.len()].copy_from_slice(text);
    let mut name = [0u8; 96];
    let length = function.len().min(name.len() - 1);
    name[..length].copy_from_slice(&function.as_bytes()[..length]);
    // SAFETY: both buffers end in NUL; the one `%s` has its one argument; Log is looked up.
    unsafe {
        if let Some(write) = raw::RedisModule_Log {
            write(ctx, c"warning".as_ptr(), line.as_ptr().cast(), name.as_ptr());
        }
    }
}

/// # Safety
/// Called by the server. It refuses to unload while a client waits in this module.
#[no_mangle]
pub unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    match catch_unwind(AssertUnwindSafe(|| unload::prepare(ctx))) {
        Ok(Err(why)) => {
            log::warning(&format!("rmq: not unloaded: {why}"));
            ERR
        }
        Ok(Ok(closed @ 1..)) => {
            log::warning(&format!(
                "rmq: unloaded; {closed} connections were closed, because their next call would have run code that is gone"
            ));
            OK
        }
        Ok(Ok(0)) | Err(_) => OK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_panic_is_found() {
        let panic = catch_unwind(|| panic!("at {}", 7)).unwrap_err();
        assert_eq!(panic_text(panic.as_ref()), "at 7");
    }
}
