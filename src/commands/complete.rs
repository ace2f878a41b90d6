//! RMQ.COMPLETE payload_map processing expire_monitor id [id …]
//!
//! Success: the messages leave the system. An id that is not there is left alone, and the reply is OK all the same.

use crate::args::distinct_keys;
use crate::error::Error;
use crate::message::Working;
use crate::redis::command::{key, several, Command, KeyUse, Kind, Spec};
use crate::redis::Call;
use crate::stats::{self, Counter};

pub struct Complete;

impl Command for Complete {
    const SPEC: Spec = Spec {
        name: "RMQ.COMPLETE",
        summary: "Removes messages that were processed successfully.",
        complexity: "O(1) for an id near either end of processing, else O(N) for the length of processing; for \
                     several ids one pass over processing",
        flags: "write",
        categories: "write slow",
        args: &[
            key("payload_map", KeyUse::Remove),
            key("processing", KeyUse::Remove),
            key("expire_monitor", KeyUse::Remove),
            several("id", Kind::Text),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [payload_map, processing, expire_monitor, ids @ ..] = call.args() else {
            return Err(Error::WrongArity);
        };
        distinct_keys(&[
            ("payload_map", payload_map.bytes()),
            ("processing", processing.bytes()),
            ("expire_monitor", expire_monitor.bytes()),
        ])?;
        let mut working = Working::open(call, *payload_map, *processing, *expire_monitor)?;

        let forgotten = working.forget(call, ids);

        stats::add(Counter::Completed, forgotten);
        call.reply_ok();
        Ok(())
    }
}
