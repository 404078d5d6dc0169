//! Generating text: sequences, the cache, steps, the choice of the next token and the end.

mod batch;
mod constraint;
mod images;
mod kv_cache;
mod logprobs;
mod random;
mod runner;
mod sampler;
mod sampling_params;
mod sequence;
mod stop;

pub(crate) use batch::Batch;
pub use batch::{Logits, Work};
pub use constraint::Constraint;
pub(crate) use images::check_places;
pub use images::{ImageFeatures, PromptImage, find_images, place_images};
pub use kv_cache::{CacheType, CacheTypes, KvCache};
pub use logprobs::{LOWEST_LOG_PROBABILITY, Logprobs, log_probability, log_sum_exp};
pub(crate) use runner::LoadTimes;
pub use runner::{DEFAULT_CONTEXT, Runner, RunnerOptions, available_memory};
pub use sampler::{History, Sampler, argmax};
pub use sampling_params::SamplingParams;
pub use sequence::Sequence;
pub use stop::{StopReason, eos_ids};
