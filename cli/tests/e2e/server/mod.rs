//! `cider serve` over loopback. Cases of the collection of field reports are named by their numbers.

mod answers;
mod api;
mod chains;
pub(crate) mod client;
mod config;
mod limits;
mod pictures;
mod safety;
mod soak;
mod soak_cases;
mod speed;
