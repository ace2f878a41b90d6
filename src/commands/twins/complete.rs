//! RMQ.COMPLETE payload_map processing expire_monitor id [id …]
//!
//! Success: the messages leave the system. An id that is not there is left alone, and the reply is OK all the same.

use crate::error::Error;
use crate::message::Working;
use crate::redis::command::{key, key_or_none, several, Command, KeyUse, Kind, Spec};
use crate::redis::Invocation;
use crate::stats::{self, Counter};

pub struct Complete;

impl Command for Complete {
    const SPEC: Spec = Spec {
        name: "RMQ.COMPLETE",
        summary: "Removes messages that were processed successfully.",
        complexity: "O(1) for an id near either end of processing, else O(N) for the length of processing; for \
                     several ids one pass over processing",
        flags: "write getkeys-api",
        categories: "write slow",
        args: &[
            key("payload_map", KeyUse::Remove),
            key_or_none("processing", KeyUse::Remove),
            key("expire_monitor", KeyUse::Remove),
            several("id", Kind::Text),
        ],
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let ([payload_map, processing, expire_monitor], ids) = call.keys_and_args()?;
        let mut working = Working::open(call, payload_map, processing, expire_monitor)?;

        let forgotten = working.forget(ids);

        stats::add(Counter::Completed, forgotten);
        call.reply_ok();
        Ok(())
    }
}
