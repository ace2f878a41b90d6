//! Looking and mending: the commands for operators.

pub mod audit;
pub mod cancel;
pub mod peek;
pub mod purge;
pub mod repair;
pub mod reschedule;
pub mod stats;
