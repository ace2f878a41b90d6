//! Clients that wait for keys: a command has found nothing and asks the server to hold its client.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use redis_module::raw;

use super::api::api;
use super::command::Command;
use super::entry::{finish, guarded, invocation, ERR, OK};
use super::timer::Timers;
use super::{server, Invocation, OwnedStr, StrRef};
use crate::clock::waiting::Waiter;
use crate::error::Error;

/// What a waiting command does when one of its keys may be ready.
pub trait Waits: Command {
    /// True if the client was served; false if it goes on waiting. An error is the client's reply.
    fn serve<'c>(call: &'c Invocation<'c>, waiter: &Waiter) -> Result<bool, Error>;
    /// The reply when time is up.
    fn timed_out<'c>(call: &'c Invocation<'c>);
}

/// Holds the client until something fills one of the keys; `timeout_ms` 0 is for ever. Nothing may have been replied.
/// False if the server does not hold it: Valkey (since 8.1) refuses silently where the connection has subscribed (RESP3).
#[must_use]
pub fn wait<'c, C: Waits>(call: &'c Invocation<'c>, keys: &[OwnedStr], timeout_ms: i64, waiter: Waiter) -> bool {
    let mut keys: Vec<*mut raw::RedisModuleString> = keys.iter().map(|key| key.as_ref().raw()).collect();
    let waiter = Box::into_raw(Box::new(waiter));
    // SAFETY: the context is that of the running command; the server copies the key names. The callbacks are functions of
    // this module, which is never unloaded. The server gives `waiter` back once, to `on_end`; where it refuses, never.
    unsafe {
        let blocked = api!(RedisModule_BlockClientOnKeys(
            call.ctx(),
            Some(on_ready::<C>),
            Some(on_timeout::<C>),
            Some(on_end),
            timeout_ms,
            keys.as_mut_ptr(),
            keys.len() as c_int,
            waiter.cast(),
        ));
        if blocked.is_null() {
            Box::from_raw(waiter).end(call.timers());
        }
        !blocked.is_null()
    }
}

/// Redis 7.0 keeps pointing at the last client that it asked in vain as its current client (`continue` in
/// serveClientsBlockedOnKeyByModule), which after a timer nothing corrects; if another client's CLIENT KILL frees that client,
/// it crashes later. So after a timer a client of our own is asked last, for a key that exists and that nobody else waits for.
/// The next timer frees it, which resets the pointer. (Not when it is asked: that may be at the end of somebody's command, who
/// would be taken for dead.)
pub fn be_asked_last(call: &Invocation, key: StrRef) {
    const NEXT_TIMER_MS: i64 = 1;
    // SAFETY: the context is that of a running timer. The new context has a client of its own, without connection. The server
    // copies the key's name; the callbacks are never unloaded.
    unsafe {
        let detached = api!(RedisModule_GetDetachedThreadSafeContext(call.ctx()));
        api!(RedisModule_SelectDb(detached, call.selected_db()));
        let (keys, nothing) = (&mut key.raw(), null_mut());
        api!(RedisModule_BlockClientOnKeys(detached, Some(on_last_asked), None, None, 0, keys, 1, nothing));
        api!(RedisModule_CreateTimer(call.ctx(), NEXT_TIMER_MS, Some(free_last_asked), detached.cast()));
    }
    call.signal_key_as_ready(key);
}

unsafe extern "C" fn on_last_asked(
    _ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    ERR
}

unsafe extern "C" fn free_last_asked(_ctx: *mut raw::RedisModuleCtx, detached: *mut c_void) {
    // SAFETY: the context comes from `be_asked_last`, and is given back once. In a timer the server uses no client.
    unsafe { api!(RedisModule_FreeThreadSafeContext(detached.cast())) };
}

/// The client waits no longer, for whatever reason.
unsafe extern "C" fn on_end(ctx: *mut raw::RedisModuleCtx, waiter: *mut c_void) {
    // SAFETY: the pointer comes from `wait`, and is given back once; the context outlives this frame.
    let (waiter, timers) = unsafe { (Box::from_raw(waiter.cast::<Waiter>()), Timers::of(ctx)) };
    let _ = guarded(|| {
        waiter.end(timers);
        Ok(())
    });
}

unsafe extern "C" fn on_ready<C: Waits>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: context and arguments are the server's; these are the arguments that the client sent.
    let call = unsafe { invocation::<C>(ctx, argv, argc) };
    // SAFETY: it comes from `wait`; the server keeps it until it gives it to `on_end`.
    let waiter = unsafe { &*api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<Waiter>() };
    let keys_before = call.db_size();
    let result = guarded(|| C::serve(&call, waiter));
    finish(&call);
    let reply = match result {
        // A key that expired when it was opened has been deleted, and that is a write (see `callback_may_write_and_wait`).
        Ok(false) if !server().callback_may_write_and_wait && call.db_size() != keys_before => {
            C::timed_out(&call);
            OK
        }
        Ok(false) => ERR,
        Ok(true) => OK,
        Err(error) => {
            call.reply_error(&error);
            OK
        }
    };
    // The server calls `on_end` only after it has asked the others.
    if reply == OK {
        waiter.leave_line();
    }
    reply
}

unsafe extern "C" fn on_timeout<C: Waits>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: as in `on_ready`.
    let call = unsafe { invocation::<C>(ctx, argv, argc) };
    let result = guarded(|| {
        C::timed_out(&call);
        Ok(())
    });
    if let Err(error) = result {
        call.reply_error(&error);
    }
    OK
}
