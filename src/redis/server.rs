//! What this server is and can do, found out once at load. One line per quirk, with the version that it comes from.

use std::ffi::{c_int, c_void, CStr};
use std::ptr::null_mut;
use std::sync::OnceLock;

use redis_module::raw;

use super::api::api;
use super::effects::Plain;
use super::OwnedStr;

pub struct Server {
    /// A node of a cluster; a server cannot change that while it runs.
    pub cluster: bool,
    /// HPEXPIREAT exists (Redis 7.4, Valkey 9).
    pub field_expiry: bool,
    /// The list iterator in a key handle may be used after a removal. Up to Redis 7.0.5 that crashed the server, and no
    /// API function distinguishes those versions; Valkey reports a later one.
    pub list_iterator_survives_removal: bool,
    /// The callback of a blocked client may write without serving the client. Redis 7.0 aborts on that; the API function
    /// that we look for came with the fix (7.2).
    pub callback_may_write_and_wait: bool,
    /// After asking the clients that wait for a key the server restores its current client. Redis 7.0 does not where one was
    /// asked in vain; 7.2 does.
    pub resets_current_client: bool,
    /// Options that the module always sets: it keeps no data of its own, so a load that fails or runs beside the old
    /// data set cannot confuse it, nor can slots that come and go.
    pub(super) module_options: u32,
}

static SERVER: OnceLock<Server> = OnceLock::new();

/// `VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION` of Valkey's C header.
const ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// Plain commands that the module runs, besides those that effects are made of.
const ALSO_RUN: [&CStr; 6] = [c"LPOS", c"EXISTS", c"ZCOUNT", c"HSCAN", c"ZSCAN", c"ZREMRANGEBYRANK"];

pub fn server() -> &'static Server {
    SERVER.get().expect("the server is known once the module is loaded")
}

impl Server {
    pub(super) fn find_out(ctx: *mut raw::RedisModuleCtx) -> Result<(), String> {
        // A command may be renamed or disabled (rename-command): its effects would not be sent, which would not be noticed
        // before a failover.
        let mut needed = Plain::ALL.iter().map(|plain| plain.name()).chain(ALSO_RUN);
        if let Some(name) = needed.find(|name| !has_command(ctx, name)) {
            let name = name.to_string_lossy();
            return Err(format!("the server's {name} is renamed or disabled, and the module needs it"));
        }
        // SAFETY: the context is that of the load; the table of functions is filled in.
        let (flags, version, with_flags) = unsafe {
            (
                api!(RedisModule_GetContextFlags(ctx)),
                api!(RedisModule_GetServerVersion()),
                (&raw const raw::RedisModule_BlockClientOnKeysWithFlags).read(),
            )
        };
        let _ = SERVER.set(Server {
            cluster: flags & raw::REDISMODULE_CTX_FLAGS_CLUSTER as c_int != 0,
            field_expiry: has_command(ctx, c"HPEXPIREAT"),
            list_iterator_survives_removal: version >= 0x07_00_06,
            callback_may_write_and_wait: with_flags.is_some(),
            resets_current_client: with_flags.is_some(),
            module_options: raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
                | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD
                | atomic_slot_migration(),
        });
        Ok(())
    }
}

/// Without this option Valkey 9 refuses CLUSTER MIGRATESLOTS on every node that has the module. We look for it under
/// Valkey's own name, since the bit may come to mean something else to Redis.
fn atomic_slot_migration() -> u32 {
    let function = look_up(c"ValkeyModule_GetModuleOptionsAll");
    // SAFETY: null is None, and anything else that the server has under this name is a function of this type.
    let known = unsafe {
        let all: Option<unsafe extern "C" fn() -> c_int> = std::mem::transmute(function);
        all.map_or(0, |all| all())
    };
    known as u32 & ATOMIC_SLOT_MIGRATION
}

/// A function that the crate does not know; null where the server does not have it.
fn look_up(name: &CStr) -> *mut c_void {
    let mut function: *mut c_void = null_mut();
    // SAFETY: the name ends in NUL; the server stores a pointer, or nothing.
    unsafe {
        if let Some(get) = raw::RedisModule_GetApi {
            get(name.as_ptr(), (&raw mut function).cast());
        }
    }
    function
}

fn has_command(ctx: *mut raw::RedisModuleCtx, command: &CStr) -> bool {
    let name = OwnedStr::new(command.to_bytes());
    let mut keys: c_int = 0;
    // SAFETY: argv is one string, which is alive; errno is this thread's. The name alone is too little for any of the
    // commands asked for, so that no array comes back; if one did, it would be ours to free.
    unsafe {
        *libc::__errno_location() = 0;
        let positions = api!(RedisModule_GetCommandKeys(ctx, &mut name.as_ref().raw(), 1, &mut keys));
        if !positions.is_null() {
            api!(RedisModule_Free(positions.cast()));
            return true;
        }
        *libc::__errno_location() != libc::ENOENT
    }
}
