//! The commands, one file each.

mod chat;
pub(crate) mod debug;
pub(crate) mod info;
mod report;
pub(crate) mod run;
