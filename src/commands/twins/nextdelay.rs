//! RMQ.NEXTDELAY delay_tasks
//!
//! Replies with when the next delayed message is due: [NO_TASK], [EXPIRED, due, id] or [WAITING, wait_ms, due, id]. The
//! twin of get_next_delay_task.lua.

use crate::clock::Now;
use crate::error::Error;
use crate::redis::command::{key, Command, KeyUse, Spec};
use crate::redis::{Invocation, ZsetKey};

pub struct NextDelay;

impl Command for NextDelay {
    const SPEC: Spec = Spec {
        name: "RMQ.NEXTDELAY",
        summary: "Replies with when the next delayed message is due.",
        complexity: "O(1)",
        flags: "readonly fast",
        categories: "read fast",
        args: &[key("delay_tasks", KeyUse::Read)],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let ([delay_tasks], []) = call.keys_and_args()? else {
            return Err(Error::WrongArity);
        };
        let Some((id, due)) = ZsetKey::open(call, delay_tasks)?.first() else {
            call.reply_array(1);
            call.reply_bytes(b"NO_TASK");
            return Ok(());
        };
        let wait_ms = due - Now::read().ms() as f64;
        if wait_ms <= 0.0 {
            call.reply_array(3);
            call.reply_bytes(b"EXPIRED");
        } else {
            call.reply_array(4);
            call.reply_bytes(b"WAITING");
            call.reply_integer(wait_ms as i64);
        }
        call.reply_integer(due as i64);
        call.reply_str(id.as_ref());
        Ok(())
    }
}
