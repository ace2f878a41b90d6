//! Before the server drops the module's commands: some connections hold pointers to them, and the next use would take
//! the server down. A connection keeps its last command, for CLIENT LIST and on Redis 8 for the next call too; a
//! transaction keeps what it has queued; Redis 8 and Valkey 9 keep what they have read ahead from a pipeline. MODULE
//! UNLOAD looks at none of them. Those connections are closed: their callers connect again, and are told that the
//! command is unknown. The caller's own connection cannot be closed meanwhile; if it is seen to have sent more, the
//! module stays. Valkey 9 shows nobody what it has read ahead: there the caller's connection is closed behind the reply.

use std::ffi::c_longlong;
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::api::{api, is_valkey};
use super::call::Reply;

/// Whether the command that loaded the module is known to be over.
static IN_SERVICE: AtomicBool = AtomicBool::new(false);

pub(super) fn not_in_service_yet() {
    IN_SERVICE.store(false, Ordering::Relaxed);
}

pub(super) fn in_service() {
    IN_SERVICE.store(true, Ordering::Relaxed);
}

/// What is to be done about a connection.
#[derive(Debug, PartialEq)]
enum Held {
    Nothing,
    /// It may hold a command of the module.
    Close(c_longlong),
    /// It is the one that unloads.
    Caller {
        id: c_longlong,
        sent_more: bool,
    },
    /// It is the one that loads: the server has found fault with the settings of a MODULE LOADEX after the load, and
    /// unloads within the same command. Nobody has got hold of anything, and a refusal would take the server down.
    Loader,
}

/// Returns how many were closed; None if the module has to stay.
pub(super) fn close_connections_that_hold_commands(ctx: *mut raw::RedisModuleCtx) -> Option<usize> {
    // SAFETY: the context is that of the unload; "c" is a C string; the guard frees the reply.
    let clients = unsafe {
        Reply(api!(RedisModule_Call(
            ctx,
            c"CLIENT".as_ptr(),
            c"c".as_ptr(),
            c"LIST".as_ptr()
        )))
    };
    let list = clients.text().unwrap_or_default();
    let mut ids: Vec<c_longlong> = Vec::new();
    let mut caller = None;
    for client in list.lines() {
        match held(client, IN_SERVICE.load(Ordering::Relaxed)).unwrap_or(Held::Nothing) {
            Held::Nothing => {}
            Held::Loader => return Some(0),
            Held::Close(id) => ids.push(id),
            Held::Caller { sent_more: true, .. } => return None,
            Held::Caller { id, .. } => caller = Some(id),
        }
    }
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
    if let Some(id) = caller.filter(|_| reads_ahead_unseen()) {
        // SAFETY: the context is alive. The connection that runs a command is closed when it has its reply, and runs no
        // other before.
        unsafe { api!(RedisModule_DeauthenticateAndCloseClient(ctx, id as u64)) };
    }
    Some(ids.len())
}

fn reads_ahead_unseen() -> bool {
    // SAFETY: the function takes nothing. Valkey tells its own version.
    is_valkey() && unsafe { api!(RedisModule_GetServerVersion()) } >= 0x09_00_00
}

/// Reads a line of CLIENT LIST. None if it is not one.
fn held(client: &str, in_service: bool) -> Option<Held> {
    let field = |name: &str| {
        let mut fields = client.split(' ').filter_map(|field| field.split_once('='));
        fields.find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    let number = |name: &str| field(name)?.parse::<i64>().ok();
    let last = field("cmd")?;
    // The bytes of the words of the command that runs or waits, and on Redis 8 of those that were read ahead.
    let words = number("argv-mem")?;
    let queued = number("multi")?;
    // Of those that run a command only the caller of the unload has one of these.
    match last {
        "module|load" | "module|loadex" if words > 0 => return Some(Held::Loader),
        "exec" if words > 0 && !in_service => return Some(Held::Loader),
        "exec" | "module|unload" if words > 0 => {
            return Some(Held::Caller {
                id: number("id")?,
                sent_more: words > "MODULEUNLOADrmq".len() as i64 || queued > 1,
            });
        }
        _ => {}
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
        let caller = |sent_more| Caller { id: 7, sent_more };
        for (multi, words, cmd, expected) in [
            (-1, 0, "rmq.publish", Close(7)),
            (-1, 0, "RMQ.ACK", Close(7)),
            (-1, 0, "get", Nothing),
            (-1, 10, "blpop", Close(7)),
            (-1, 0, "NULL", Nothing),
            (0, 0, "multi", Nothing),
            (2, 0, "ping", Close(7)),
            (-1, 15, "module|unload", caller(false)),
            (-1, 16, "module|unload", caller(true)),
            (1, 15, "exec", caller(false)),
            (1, 16, "exec", caller(true)),
            (2, 4, "exec", caller(true)),
            (-1, 0, "exec", Nothing),
            (-1, 0, "module|unload", Nothing),
            (-1, 0, "module|loadex", Nothing),
            (-1, 40, "module|loadex", Loader),
        ] {
            let line = format!("id=7 name=multi=3 multi={multi} argv-mem={words} cmd={cmd}");
            assert_eq!(held(&line, true), Some(expected), "{line}");
        }
        assert_eq!(held("", true), None);
    }

    #[test]
    fn a_transaction_that_unloads_what_is_not_in_service_yet_has_loaded_it() {
        let line = |multi: i64| format!("id=7 multi={multi} argv-mem=40 cmd=exec");
        for multi in [1, 2] {
            assert_eq!(held(&line(multi), false), Some(Held::Loader));
        }
    }
}
