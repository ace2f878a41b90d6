//! Events of the server after which a listener may have come (see `listeners`).

use std::ffi::{c_int, c_void};

use redis_module::raw;

use super::api::api;
use super::listeners;

const EVENTS: [u64; 4] = [
    raw::REDISMODULE_EVENT_FORK_CHILD,
    raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
    raw::REDISMODULE_EVENT_REPLICA_CHANGE,
    raw::REDISMODULE_EVENT_LOADING,
];

/// The last step of a load: Redis 7.0 goes on to tell a module that it did not load in the end, and runs code that is gone.
pub(super) fn watch(ctx: *mut raw::RedisModuleCtx) -> Result<(), String> {
    listeners::ask_again();
    for (index, id) in EVENTS.into_iter().enumerate() {
        if !subscribe(ctx, id, Some(on_event)) {
            for heard in &EVENTS[..index] {
                subscribe(ctx, *heard, None);
            }
            return Err(format!("the server does not tell of event {id}"));
        }
    }
    Ok(())
}

fn subscribe(ctx: *mut raw::RedisModuleCtx, id: u64, callback: raw::RedisModuleEventCallback) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    // SAFETY: the context is that of the load; the callback is a function of this module, or none.
    let status = unsafe { api!(RedisModule_SubscribeToServerEvent(ctx, event, callback)) };
    status == raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_event(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    listeners::ask_again();
}
