//! Traffic that outlives failures: workers share one namespace, any of them may lose its connection or die between two
//! steps, and a ledger keeps every reply. At the end everything is drained, and the ledger says what was lost, settled
//! twice or delivered twice without a reason.
//!
//! Two styles of worker: `Queue` has PUBLISH, RESERVE, ACK and the like, and nobody who keeps the time but the server;
//! `Plain` has the twins of the scripts with BLMOVE, a ticker and a reaper, as mx-rmq does.

// Each test binary uses its own part of this.
#![allow(dead_code, unused_imports)]

mod ledger;
mod links;
mod workers;

pub use ledger::{Ledger, Report};
pub use links::{Routed, Safe, Single};
pub use workers::{finish_all, Workers};

use redis::{Cmd, RedisResult, Value};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the workers may take to settle what is left.
pub const DRAIN: Duration = Duration::from_secs(90);

/// A connection as a worker sees it.
pub trait Link: Send {
    fn call(&mut self, command: &Cmd) -> RedisResult<Value>;

    /// Whether every reply is safe from the failure that the test brings about, without asking.
    fn is_sure(&self) -> bool;

    /// Whether the last reply is safe from it. What is not confirmed counts as unknown: it may have happened or not.
    fn confirmed(&mut self) -> bool;
}

/// Makes a connection; none while the server is away.
pub type Dial<'a> = dyn Fn() -> Option<Box<dyn Link>> + Send + Sync + 'a;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Style {
    Queue,
    Plain,
}

pub const STYLES: [Style; 2] = [Style::Queue, Style::Plain];

/// The short names of the queues.
pub const QUEUES: [&str; 2] = ["orders", "mails"];

/// The keys of one namespace. It may carry a hash tag.
#[derive(Clone)]
pub struct Keys {
    pub namespace: String,
    pub payloads: String,
    pub delays: String,
    pub expires: String,
    pub errors: String,
    pub error_queue: String,
    pub dlq: String,
    pub dlq_map: String,
    /// The full names.
    pub queues: Vec<String>,
}

impl Keys {
    pub fn of(namespace: &str) -> Keys {
        let key = |name: &str| format!("{namespace}:{name}");
        Keys {
            namespace: namespace.into(),
            payloads: key("payloads"),
            delays: key("delays"),
            expires: key("expires"),
            errors: key("errors:data"),
            error_queue: key("errors"),
            dlq: key("dlq"),
            dlq_map: key("dlq:data"),
            queues: QUEUES.map(key).to_vec(),
        }
    }
}

pub fn pending(queue: &str) -> String {
    format!("{queue}:pending")
}

pub fn processing(queue: &str) -> String {
    format!("{queue}:processing")
}

/// How the workers behave.
#[derive(Clone)]
pub struct Habits {
    pub style: Style,
    pub producers: usize,
    pub consumers: usize,
    /// A producer's pause between two calls, at most.
    pub pause: Duration,
    /// Of a hundred steps, how often a consumer or the reaper dies at one.
    pub deaths: usize,
    /// Errors by which a server says 'not now': the worker tries again.
    pub not_now: &'static [&'static str],
}

impl Habits {
    pub fn of(style: Style) -> Habits {
        Habits {
            style,
            producers: 2,
            consumers: 4,
            pause: Duration::from_millis(12),
            deaths: 0,
            not_now: &["LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "UNBLOCKED"],
        }
    }

    pub fn deaths(mut self, percent: usize) -> Habits {
        self.deaths = percent;
        self
    }

    pub fn not_now(mut self, errors: &'static [&'static str]) -> Habits {
        self.not_now = errors;
        self
    }
}

/// Milliseconds since the epoch: the clock that the server on this machine reads too.
pub fn clock_ms() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    since.as_micros() as f64 / 1000.0
}

/// A number from the environment, to make a run shorter or longer.
pub fn scaled(variable: &str, default: usize) -> usize {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} {text:?} is no number")),
        Err(_) => default,
    }
}
