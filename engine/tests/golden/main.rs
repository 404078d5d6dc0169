//! Whole models: every fixture of `testdata` against stored logits, every promise of independence, and
//! whatever needs a model that runs. Everything runs on each instruction set of the machine.
#![cfg(test)]
#![forbid(unsafe_code)]

#[path = "../shared/arrays.rs"]
mod arrays;
mod caches;
mod independence;
mod logits;
#[path = "../shared/machine.rs"]
mod machine;
mod memory;
mod misuse;
mod numbers;
#[path = "../../../testdata/recipe.rs"]
mod recipe;
mod support;
mod texts;
