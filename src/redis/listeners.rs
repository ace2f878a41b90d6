//! Does anybody hear of effects? Without a replica, a replication backlog and an AOF the server throws every effect
//! away, after the module has paid for making it: a third of the cost of a small command. So the module asks once, and
//! asks again after every event behind which a listener may have come. That one has gone is not always an event (an AOF
//! that is switched off is none), so where somebody listens it asks now and then, too.
//!
//! Why no effect is missed: a replica starts from a snapshot, and an AOF that is switched on from a rewrite; for both
//! the server forks, which is such an event, before it runs the next command. What happened before the fork is in the
//! snapshot. A replica that needs no snapshot needs a backlog that is there already; besides a replica's arrival, a
//! backlog comes only with a change of role or with the loading of data, which are such events too. In a cluster, where
//! slots move by ways of their own, somebody always listens.

use std::ffi::{c_int, CStr};
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};

use redis_module::raw;

use super::api::api;
use super::call::in_cluster;
use super::info;

const UNKNOWN: u8 = 0;
const NOBODY: u8 = 1;
const SOMEBODY: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// A listener may have come.
pub(super) fn ask_again() {
    STATE.store(UNKNOWN, Ordering::Relaxed);
}

pub(super) fn anybody(ctx: *mut raw::RedisModuleCtx) -> bool {
    /// To ask takes as long as a few effects do.
    const ASKED_ONCE_IN: u32 = 4096;
    static TURN: AtomicU32 = AtomicU32::new(0);

    match STATE.load(Ordering::Relaxed) {
        NOBODY => false,
        SOMEBODY if TURN.fetch_add(1, Ordering::Relaxed) % ASKED_ONCE_IN != 0 => true,
        _ => {
            let nobody = !in_cluster() && nobody_now(ctx);
            STATE.store(if nobody { NOBODY } else { SOMEBODY }, Ordering::Relaxed);
            !nobody
        }
    }
}

/// Only if the server says so in every respect.
fn nobody_now(ctx: *mut raw::RedisModuleCtx) -> bool {
    let must_be_off = (raw::REDISMODULE_CTX_FLAGS_AOF | raw::REDISMODULE_CTX_FLAGS_SLAVE) as c_int;
    // SAFETY: the context is that of the running command.
    let flags = unsafe { api!(RedisModule_GetContextFlags(ctx)) };
    let is_zero = |field: &CStr| info::server_number(ctx, c"replication", field) == Some(0);
    flags & must_be_off == 0 && is_zero(c"connected_slaves") && is_zero(c"repl_backlog_active")
}
