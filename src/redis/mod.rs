//! Everything that touches the module API, and all of the crate's unsafe code. Above this folder the code sees typed
//! handles (`HashKey`, `ListKey`, `ZsetKey`), borrowed strings and an `Invocation`; no pointer, no reference count.
#![allow(unsafe_code)]

pub mod acl;
mod alloc;
mod api;
pub mod blocking;
pub mod command;
mod config;
pub mod effects;
mod entry;
mod hash;
mod info;
mod invocation;
mod key;
pub mod list;
mod load;
pub mod log;
mod plain;
pub mod reply;
mod server;
mod string;
pub mod timer;
pub mod zset;

pub use hash::HashKey;
pub use invocation::{Invocation, KeyArg};
pub use list::ListKey;
pub use server::server;
pub use string::{OwnedStr, StrRef};
pub use zset::ZsetKey;
