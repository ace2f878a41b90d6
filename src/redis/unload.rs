//! Before the server drops the module's commands: some connections hold pointers to them, and their next call would
//! run code that is gone and take the server down. A transaction keeps the commands that it has queued, and Redis 8
//! keeps the last command of each client for its next call; MODULE UNLOAD looks at neither. Those connections are
//! closed. Their callers connect again, and are told that the command is unknown.

use std::ffi::c_longlong;

use redis_module::raw;

use super::api::api;
use super::call::Reply;

/// Returns how many were closed.
pub(super) fn close_connections_that_hold_commands(ctx: *mut raw::RedisModuleCtx) -> usize {
    // SAFETY: the context is that of the unload; "c" is a C string; the guard frees the reply.
    let clients = unsafe {
        Reply(api!(RedisModule_Call(
            ctx,
            c"CLIENT".as_ptr(),
            c"c".as_ptr(),
            c"LIST".as_ptr()
        )))
    };
    // SAFETY: a copy out of the table, which is written once, at load. The function came with Redis 8.
    let since_8 = unsafe { raw::RedisModule_HashFieldMinExpire };
    let keeps_last_command = since_8.is_some();
    let list = clients.text().unwrap_or_default();
    let ids: Vec<c_longlong> = list
        .lines()
        .filter_map(|client| holder(client, keeps_last_command))
        .collect();
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
    ids.len()
}

/// The id of a client that may hold one of the module's commands, from its line of CLIENT LIST.
fn holder(client: &str, keeps_last_command: bool) -> Option<c_longlong> {
    let field = |name: &str| {
        let mut fields = client.split(' ').filter_map(|field| field.split_once('='));
        fields.find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    let last = field("cmd")?;
    // Only the caller of the unload can be running an EXEC, and it must not be closed under the server's feet.
    let queued = last != "exec" && field("multi")?.parse::<i64>().ok()? > 0;
    let ours = last.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("rmq."));
    if queued || (ours && keeps_last_command) {
        return field("id")?.parse().ok();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_hold_commands_are_told_from_the_others() {
        let line =
            |multi: i64, cmd: &str| format!("id=7 addr=127.0.0.1:1 name=multi=3 flags=x multi={multi} cmd={cmd}");
        for (multi, cmd, holds, holds_with_last) in [
            (-1, "rmq.publish", None, Some(7)),
            (-1, "RMQ.ACK", None, Some(7)),
            (-1, "get", None, None),
            (-1, "module|unload", None, None),
            (-1, "NULL", None, None),
            (0, "multi", None, None),
            (2, "ping", Some(7), Some(7)),
            (2, "exec", None, None),
        ] {
            assert_eq!(holder(&line(multi, cmd), false), holds, "{multi} {cmd}");
            assert_eq!(holder(&line(multi, cmd), true), holds_with_last, "{multi} {cmd}");
        }
        assert_eq!(holder("", true), None);
    }
}
