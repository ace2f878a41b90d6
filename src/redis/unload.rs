//! Before the server drops the module's commands: some connections hold pointers to them, and the next use would take
//! the server down. A connection keeps its last command, for CLIENT LIST and on Redis 8 for the next call too; a
//! transaction keeps what it has queued; Redis 8 and Valkey 9 keep what they have read ahead from a pipeline. MODULE
//! UNLOAD looks at none of them. Those connections are closed: their callers connect again, and are told that the
//! command is unknown. The caller's own connection cannot be closed meanwhile; if it is seen to have sent more, the
//! module stays.

use std::ffi::c_longlong;

use redis_module::raw;

use super::api::api;
use super::call::Reply;

/// What is to be done about a connection.
#[derive(Debug, PartialEq)]
enum Held {
    Nothing,
    /// It may hold a command of the module.
    Close(c_longlong),
    /// It may, and is the one that unloads.
    ByCaller,
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
    for client in list.lines() {
        match held(client).unwrap_or(Held::Nothing) {
            Held::Nothing => {}
            Held::Close(id) => ids.push(id),
            Held::ByCaller => return None,
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
    Some(ids.len())
}

/// Reads a line of CLIENT LIST. None if it is not one.
fn held(client: &str) -> Option<Held> {
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
    if matches!(last, "exec" | "module|unload") {
        let more = words > "MODULEUNLOADrmq".len() as i64 || queued > 1;
        return Some(if more { Held::ByCaller } else { Held::Nothing });
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
        for (multi, words, cmd, expected) in [
            (-1, 0, "rmq.publish", Close(7)),
            (-1, 0, "RMQ.ACK", Close(7)),
            (-1, 0, "get", Nothing),
            (-1, 10, "blpop", Close(7)),
            (-1, 0, "NULL", Nothing),
            (0, 0, "multi", Nothing),
            (2, 0, "ping", Close(7)),
            (-1, 15, "module|unload", Nothing),
            (-1, 16, "module|unload", ByCaller),
            (1, 15, "exec", Nothing),
            (1, 16, "exec", ByCaller),
            (2, 4, "exec", ByCaller),
        ] {
            let line = format!("id=7 name=multi=3 multi={multi} argv-mem={words} cmd={cmd}");
            assert_eq!(held(&line), Some(expected), "{line}");
        }
        assert_eq!(held(""), None);
    }
}
