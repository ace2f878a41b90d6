//! RMQ.REPAIR namespace [CURSOR c] [COUNT n]
//!
//! Finds what RMQ.AUDIT finds, replies as it does, and mends each fault in the way that loses nothing.

use super::audit;
use crate::checkup;
use crate::error::Error;
use crate::redis::command::{Command, Spec};
use crate::redis::Invocation;
use crate::stats::{self, Counter};

pub struct Repair;

impl Command for Repair {
    const SPEC: Spec = Spec {
        name: "RMQ.REPAIR",
        summary: "Mends what RMQ.AUDIT finds, without losing a message.",
        complexity: audit::COMPLEXITY,
        flags: "write",
        categories: "write slow",
        args: audit::ARGS,
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        stats::add(Counter::Repaired, checkup::run(call, true)?);
        Ok(())
    }
}
