//! The commands, one file each.

pub(crate) mod bench;
mod chat;
pub(crate) mod debug;
pub(crate) mod info;
mod report;
pub(crate) mod run;
pub(crate) mod serve;
