//! RMQ.PANIC key [WRITE]
//!
//! Panics while it holds an open key, with WRITE after a change to it. Only built for the test of what then happens.

use crate::error::Error;
use crate::redis::command::{key, optional, Command, KeyUse, Kind, Spec};
use crate::redis::list::End;
use crate::redis::{Invocation, ListKey};

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

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        let ([key], options) = call.keys_and_args()?;
        let mut list = ListKey::open(call, key)?;
        if !options.is_empty() {
            list.push(End::Left, key.name);
        }
        panic!("probe with {} arguments, a NUL \0 and a %s", call.args().len());
    }
}
