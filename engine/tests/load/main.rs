//! Reading checkpoints: good ones, and every way of being bad that was met in the field.
#![expect(
    clippy::float_cmp,
    reason = "what is read must be what was stored, to the bit"
)]
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod configuration;
mod damage;
mod families;
mod gguf_damage;
mod gguf_files;
mod mutations;
mod shards;
mod support;
