//! Everything that touches the module API, and all of the crate's unsafe code. Above this folder a command sees
//! typed handles (`HashKey`, `ListKey`, `ZsetKey`), borrowed strings and a `Call`; no pointer, no reference count.
#![allow(unsafe_code)]

pub mod acl;
pub mod alloc;
mod api;
pub mod call;
pub mod command;
pub mod config;
mod entry;
mod events;
pub mod info;
pub mod key;
mod listeners;
pub mod log;
pub mod string;
mod unload;

pub use call::Call;
pub use entry::blocking;
pub use key::{HashKey, ListKey, ZsetKey};
pub use string::{OwnedStr, StrRef};
