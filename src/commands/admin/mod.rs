//! Looking and mending: what an operator asks of a namespace.

pub mod cancel;
pub mod peek;
pub mod purge;
pub mod reschedule;
pub mod stats;
