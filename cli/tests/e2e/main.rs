//! The real program, from its arguments to its exit code.
//!
//! Needs the trained model of `scripts/fetch-smollm2`, which is fetched where it is not yet. What this machine cannot
//! run is printed and counted, never passed over in silence.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of tests may fail as the tests themselves do"
)]

mod answers;
mod bench;
mod bench_peers;
mod bench_serve;
mod bits;
mod errors;
mod memory;
mod odd_files;
mod parity;
mod picture_errors;
mod pictures;
mod process;
#[path = "../../../testdata/recipe.rs"]
mod recipe;
mod server;
mod snapshots;
mod startup;
mod support;
