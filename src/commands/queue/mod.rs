//! The queue: the first argument is a namespace, and all keys follow from it and from short names of queues.

pub mod ack;
pub mod extend;
pub mod nack;
pub mod policy;
pub mod publish;
pub mod redrive;
pub mod release;
pub mod reserve;
