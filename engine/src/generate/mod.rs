//! Generating text: sequences, the cache, steps, the choice of the next token and the end.

mod batch;
mod constraint;
mod images;
mod kv_cache;
mod logprobs;
mod memory;
mod prefix_cache;
mod prefix_digest;
mod random;
mod runner;
mod sampler;
mod sampling_params;
mod scheduler;
mod sequence;
mod stop;

pub(crate) use batch::Batch;
pub use batch::{Logits, Work};
pub use constraint::Constraint;
pub use images::{ImageFeatures, PromptImage, find_images, place_images};
pub(crate) use images::{check_places, find_runs};
pub use kv_cache::{CacheType, CacheTypes, KvCache};
pub use logprobs::{LOWEST_LOG_PROBABILITY, Logprobs, log_probability, log_sum_exp};
pub use memory::available_memory;
pub(crate) use prefix_digest::{PlacedDigest, PrefixDigest, prefix_digests};
pub(crate) use runner::LoadTimes;
pub use runner::{DEFAULT_CONTEXT, Runner, RunnerOptions};
pub use sampler::{History, Sampler, argmax};
pub use sampling_params::SamplingParams;
pub(crate) use scheduler::{Plan, Runnable, Scheduler, Share, blocks};
pub use sequence::Sequence;
pub use stop::{StopReason, eos_ids};
