//! Many requests at once: each gets what it gets alone, bit for bit, whatever else runs, waits, is ended or fails.
#![cfg(test)]
#![forbid(unsafe_code)]

mod endings;
mod faults;
#[expect(dead_code, reason = "other tests run every instruction set")]
#[path = "../shared/machine.rs"]
mod machine;
mod mixes;
mod order;
mod pictures;
mod prefixes;
#[path = "../../../testdata/recipe.rs"]
mod recipe;
mod support;
