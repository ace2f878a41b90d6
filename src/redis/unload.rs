//! Before the server drops the module's commands: some connections hold pointers to them, and the next use would take
//! the server down. A connection keeps its last command, for CLIENT LIST and on Redis 8 for the next call too; a
//! transaction keeps what it has queued; Redis 8 and Valkey 9 keep what they have read ahead from a pipeline. MODULE
//! UNLOAD looks at none of them. Those connections are closed: their callers connect again, and are told that the
//! command is unknown. The caller's own connection cannot be closed meanwhile; if it is seen to have sent more, the module
//! stays, as it does wherever it cannot see the others. Valkey 9 shows nobody what it has read ahead, nor does Redis 8 in a
//! transaction: there the caller's connection is closed behind the reply.

use std::ffi::c_longlong;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use redis_module::raw;

use super::api::{api, is_valkey};
use super::call::Reply;
use super::info;
use crate::clock::Now;

/// The number of commands that the server had run when one of them loaded the module, and the time.
static LOADED_AFTER: AtomicU64 = AtomicU64::new(NOT_BY_A_COMMAND);
static LOADED_AT: AtomicI64 = AtomicI64::new(0);
const NOT_BY_A_COMMAND: u64 = u64::MAX;

pub(super) fn remember_load(ctx: *mut raw::RedisModuleCtx) {
    // When the server starts nobody is connected.
    let by_a_command = info::server_number(ctx, c"clients", c"connected_clients").is_some_and(|clients| clients > 0);
    let commands = commands_run(ctx).filter(|_| by_a_command);
    LOADED_AFTER.store(commands.unwrap_or(NOT_BY_A_COMMAND), Ordering::Relaxed);
    LOADED_AT.store(Now::read().ms(), Ordering::Relaxed);
}

fn commands_run(ctx: *mut raw::RedisModuleCtx) -> Option<u64> {
    info::server_number(ctx, c"stats", c"total_commands_processed")
}

/// Whether the command that loaded the module is still running: the server has found fault with the settings of MODULE
/// LOADEX, and unloads. Nobody has got hold of anything, and a refusal would take the server down.
fn within_the_load(ctx: *mut raw::RedisModuleCtx) -> bool {
    // CONFIG RESETSTAT starts the count anew, and it might come to the same number again; not within this time.
    const SOON_MS: i64 = 1000;
    let loaded_after = LOADED_AFTER.load(Ordering::Relaxed);
    let since = Now::read().ms() - LOADED_AT.load(Ordering::Relaxed);
    loaded_after != NOT_BY_A_COMMAND && since.abs() < SOON_MS && commands_run(ctx) == Some(loaded_after)
}

/// What is to be done about a connection.
#[derive(Debug, PartialEq)]
enum Held {
    Nothing,
    /// It may hold a command of the module.
    Close(c_longlong),
    /// It is the one that unloads, or one that has done so and sent half a command since.
    Caller {
        id: c_longlong,
        in_transaction: bool,
        sent_more: bool,
    },
}

/// Returns how many connections were closed, or why the module has to stay.
pub(super) fn prepare(ctx: *mut raw::RedisModuleCtx) -> Result<usize, &'static str> {
    if within_the_load(ctx) {
        return Ok(0);
    }
    // Threads look up commands that nobody sees before they run.
    match io_threads(ctx) {
        Some(1) => {}
        Some(_) => return Err("the server reads with several threads (io-threads)"),
        None => return Err("the server does not tell with how many threads it reads (io-threads)"),
    }
    // SAFETY: the context is that of the unload; "c" is a C string; the guard frees the reply.
    let clients = unsafe {
        Reply(api!(RedisModule_Call(
            ctx,
            c"CLIENT".as_ptr(),
            c"c".as_ptr(),
            c"LIST".as_ptr()
        )))
    };
    let list = clients.text().ok_or("the server does not list its clients")?;
    let mut ids: Vec<c_longlong> = Vec::new();
    let mut callers = Vec::new();
    for client in list.lines() {
        match held(client).ok_or("the server lists its clients in an unknown way")? {
            Held::Nothing => {}
            Held::Close(id) => ids.push(id),
            Held::Caller { sent_more: true, .. } => return Err("more commands have been sent with the unload"),
            Held::Caller { id, in_transaction, .. } => callers.push((id, in_transaction)),
        }
    }
    let [(caller, in_transaction)] = callers[..] else {
        return Err("it is not clear which connection has asked for it; try again");
    };
    for id in &ids {
        // SAFETY: as above; "ccl" is two C strings and a long long.
        unsafe {
            drop(Reply(api!(RedisModule_Call(
                ctx,
                c"CLIENT".as_ptr(),
                c"ccl".as_ptr(),
                c"KILL".as_ptr(),
                c"ID".as_ptr(),
                *id,
            ))));
        }
    }
    if in_transaction || reads_ahead_unseen() {
        // SAFETY: the context is alive. The connection that runs a command is closed when it has its reply, and runs no
        // other before.
        unsafe { api!(RedisModule_DeauthenticateAndCloseClient(ctx, caller as u64)) };
    }
    Ok(ids.len())
}

fn io_threads(ctx: *mut raw::RedisModuleCtx) -> Option<u64> {
    // SAFETY: "cc" is two C strings; the guard frees the reply.
    let setting = unsafe {
        Reply(api!(RedisModule_Call(
            ctx,
            c"CONFIG".as_ptr(),
            c"cc".as_ptr(),
            c"GET".as_ptr(),
            c"io-threads".as_ptr(),
        )))
    };
    setting.texts()?.last()?.parse().ok()
}

fn reads_ahead_unseen() -> bool {
    // SAFETY: the function takes nothing. Valkey tells its own version.
    is_valkey() && unsafe { api!(RedisModule_GetServerVersion()) } >= 0x09_00_00
}

/// Reads a line of CLIENT LIST. None if it is not one.
fn held(client: &str) -> Option<Held> {
    let field = |name: &str| {
        let mut fields = client.split(' ').filter_map(|field| field.split_once('='));
        fields.find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    let number = |name: &str| field(name)?.parse::<i64>().ok();
    let last = field("cmd")?;
    // The bytes of the words of the command that runs, waits or has been sent in part, and on Redis 8 of those that were
    // read ahead.
    let words = number("argv-mem")?;
    let queued = number("multi")?;
    let waits = field("flags")?.contains('b');
    let caller = match last {
        "module|unload" if words > 0 && !waits => Some(words > "MODULEUNLOADrmq".len() as i64),
        "exec" if queued > 0 && !waits => Some(queued > 1),
        _ => None,
    };
    if let Some(sent_more) = caller {
        return Some(Held::Caller {
            id: number("id")?,
            in_transaction: last == "exec",
            sent_more,
        });
    }
    let ours = last.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("rmq."));
    let holds = queued > 0 || ours || words > 0;
    Some(if holds {
        Held::Close(number("id")?)
    } else {
        Held::Nothing
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_hold_commands_are_told_from_the_others() {
        use Held::*;
        let caller = |sent_more| Caller {
            id: 7,
            in_transaction: false,
            sent_more,
        };
        let transaction = |sent_more| Caller {
            id: 7,
            in_transaction: true,
            sent_more,
        };
        for (flags, multi, words, cmd, expected) in [
            ("N", -1, 0, "rmq.publish", Close(7)),
            ("N", -1, 0, "RMQ.ACK", Close(7)),
            ("N", -1, 0, "get", Nothing),
            ("b", -1, 10, "blpop", Close(7)),
            ("N", -1, 0, "NULL", Nothing),
            ("x", 0, 0, "multi", Nothing),
            ("x", 2, 0, "ping", Close(7)),
            ("N", -1, 15, "module|unload", caller(false)),
            ("N", -1, 16, "module|unload", caller(true)),
            ("b", -1, 15, "module|unload", Close(7)),
            ("x", 1, 4, "exec", transaction(false)),
            ("x", 1, 15, "exec", transaction(false)),
            ("x", 2, 4, "exec", transaction(true)),
            ("xb", 1, 4, "exec", Close(7)),
            ("N", -1, 0, "exec", Nothing),
            ("N", -1, 3, "exec", Close(7)),
            ("N", -1, 0, "module|unload", Nothing),
            ("N", -1, 40, "module|loadex", Close(7)),
        ] {
            let line = format!("id=7 name=multi=3 flags={flags} multi={multi} argv-mem={words} cmd={cmd}");
            assert_eq!(held(&line), Some(expected), "{line}");
        }
        assert_eq!(held(""), None);
    }
}
