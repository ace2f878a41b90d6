//! Looking and mending: what an operator asks of a namespace.

pub mod audit;
pub mod cancel;
pub mod peek;
pub mod purge;
pub mod repair;
pub mod reschedule;
pub mod stats;
