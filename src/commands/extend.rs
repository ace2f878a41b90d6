//! RMQ.EXTEND expire_monitor id lease lease_ms
//!
//! A new deadline for the holder of the message: lease_ms from now. The reply is the new lease, or nil if the one
//! shown is not current.

use crate::args;
use crate::clock::Now;
use crate::error::Error;
use crate::redis::command::{key, required, Command, KeyUse, Kind, Spec};
use crate::redis::{Call, OwnedStr, ZsetKey};
use crate::stats::{self, Counter};

pub struct Extend;

impl Command for Extend {
    const SPEC: Spec = Spec {
        name: "RMQ.EXTEND",
        summary: "Gives the holder of a message a new deadline.",
        complexity: "O(log(M)) for the size of expire_monitor",
        flags: "write fast",
        categories: "write fast",
        args: &[
            key("expire_monitor", KeyUse::ReadUpdate),
            required("id", Kind::Text),
            required("lease", Kind::Text),
            required("lease_ms", Kind::Integer),
        ],
    };

    fn run<'c>(call: &'c Call<'c>) -> Result<(), Error> {
        let [expire_monitor, id, lease, lease_ms] = *call.args() else {
            return Err(Error::WrongArity);
        };
        let lease = args::lease(lease.bytes())?;
        let lease_ms = args::span_ms("lease_ms", lease_ms.bytes())?;
        let mut expire_monitor = ZsetKey::open(call, expire_monitor, "expire_monitor")?;
        if expire_monitor.score(id) != Some(lease) {
            stats::add(Counter::Fenced, 1);
            call.reply_nil();
            return Ok(());
        }

        let renewed = Now::read().lease(lease_ms);
        let text = OwnedStr::new(&renewed.text());
        expire_monitor.add(id, renewed.score());
        call.replicate(c"ZADD", expire_monitor.name(), &[text.as_ref(), id]);

        stats::add(Counter::Extended, 1);
        call.reply_str(text.as_ref());
        Ok(())
    }
}
