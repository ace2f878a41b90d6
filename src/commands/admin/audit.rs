//! RMQ.AUDIT namespace [CURSOR c] [COUNT n]
//!
//! Checks that every message is in exactly one place; changes nothing. Replies with [cursor, faults]: where to go on, 0 at the
//! end, and a map from each kind of fault to [count, ids], at most ten of them.

use crate::checkup;
use crate::error::Error;
use crate::redis::command::{optional, Arg, Command, Kind, Spec, ValueType, NAMESPACE};
use crate::redis::Invocation;

pub struct Audit;

pub const ARGS: &[Arg] = &[
    NAMESPACE,
    optional("cursor", Kind::Option("CURSOR", ValueType::Integer)),
    optional("count", Kind::Option("COUNT", ValueType::Integer)),
];
pub const COMPLEXITY: &str = "O(N+L) for N elements looked at and the lengths L of all lists of the namespace";

impl Command for Audit {
    const SPEC: Spec = Spec {
        name: "RMQ.AUDIT",
        summary: "Checks that every message is in exactly one place, and shows what is not.",
        complexity: COMPLEXITY,
        flags: "readonly",
        categories: "read slow",
        args: ARGS,
    };

    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), Error> {
        checkup::run(call, false).map(drop)
    }
}
