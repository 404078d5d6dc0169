//! From logits to tokens, and to the end of a text.

mod random;
mod sampler;
mod stop;

pub use sampler::{History, Sampler, SamplingParams, log_probability};
pub use stop::{StopReason, eos_ids};
