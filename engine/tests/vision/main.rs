//! Models that see: the fixtures of `testdata/vl` against the reference, the promises of independence with images in
//! prompts, images in all turns, and the model that ships.
#![cfg(test)]
#![forbid(unsafe_code)]

#[path = "../shared/arrays.rs"]
mod arrays;
mod company;
mod demo;
mod fixtures;
mod images;
#[path = "../shared/machine.rs"]
mod machine;
mod requests;
mod schemes;
#[expect(dead_code, reason = "its `main` is for the command line")]
#[path = "../../../examples/score.rs"]
mod score;
mod settings;
mod support;
mod text_only;
