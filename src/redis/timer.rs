//! Timers, and the signal that makes the server serve waiting clients again.

use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};

use redis_module::raw;

use super::api::api;
use super::entry::{finish, guarded};
use super::{Invocation, StrRef};
use crate::clock::waiting;

/// A timer that has not fired yet.
#[derive(Clone, Copy)]
pub struct Timer(raw::RedisModuleTimerID);

/// What timers are made and stopped with, in a call or in a callback of the server.
#[derive(Clone, Copy)]
pub struct Timers(*mut raw::RedisModuleCtx);

impl Invocation<'_> {
    pub fn timers(&self) -> Timers {
        Timers(self.ctx())
    }

    /// The server serves the clients that wait for this key, if it exists.
    pub fn signal_key_as_ready(&self, key: StrRef) {
        // SAFETY: context and name are alive.
        unsafe { api!(RedisModule_SignalKeyAsReady(self.ctx(), key.raw())) };
    }
}

impl Timers {
    /// # Safety
    /// `ctx` is alive as long as this is used.
    pub(super) unsafe fn of(ctx: *mut raw::RedisModuleCtx) -> Self {
        Timers(ctx)
    }

    /// Fires once, in the database of this call; `token` names the waiting namespace.
    pub fn start(self, after_ms: i64, token: usize) -> Timer {
        // SAFETY: the context is alive; the callback is a function of this module, which is never unloaded. The token is a
        // number, never used as a pointer.
        Timer(unsafe { api!(RedisModule_CreateTimer(self.0, after_ms, Some(on_timer), without_provenance_mut(token))) })
    }

    /// A timer that is firing must not be stopped.
    pub fn stop(self, timer: Timer) {
        // SAFETY: the context is alive; an unknown timer is refused by the server.
        unsafe { api!(RedisModule_StopTimer(self.0, timer.0, null_mut())) };
    }
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, token: *mut c_void) {
    // SAFETY: the context is the server's, and outlives this frame; there are no arguments.
    let call = unsafe { Invocation::new(ctx, null_mut(), 0, &[], true) };
    let _ = guarded(|| waiting::fired(&call, token.addr()));
    finish(&call);
}
