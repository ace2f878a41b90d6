//! What each command does: one file per command or family of commands, and one per concern that several share.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod complete;
mod deadletter;
mod delaytick;
mod differential;
mod lua_workers;
mod nextdelay;
mod nothing_lost;
mod parseerr;
mod processing_list;
mod queue_receipts;
mod queue_redrive;
mod queue_waiting;
mod retry;
mod timeouts;
mod work_per_call;
