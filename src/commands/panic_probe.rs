//! RMQ.PANIC key [WRITE]
//!
//! Panics while it holds an open key, with WRITE after a change to it. Only built for the test of what then happens.

use crate::error::Error;
use crate::redis::command::{key, optional, Command, KeyUse, Kind, Spec};
use crate::redis::key::End;
use crate::redis::{Call, ListKey};

pub struct PanicProbe;

impl Command for PanicProbe {
    const SPEC: Spec = Spec {
        name: "RMQ.PANIC",
        summary: "Panics.",
        complexity: "O(1)",
        flags: "write",
        categories: "write",
        args: &[key("key", KeyUse::Update), optional("write", Kind::Word("WRITE"))],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let mut list = ListKey::open(call, call.args()[0], "key")?;
        if call.args().len() > 1 {
            list.push(End::Left, call.args()[0]);
            call.replicate(c"LPUSH", list.name(), &call.args()[..1]);
        }
        panic!("probe with {} arguments, a NUL \0 and a %s", call.args().len());
    }
}
