//! The models: each one file that reads like its paper.

mod loader;
mod transformer;

use std::fmt::Debug;

use cider_kernels::{Backend, KvLayer};

use self::transformer::Transformer;
use crate::error::Result;
use crate::generate::Batch;
use crate::load::{Architecture, Checkpoint, ModelConfig};
use crate::nn::{Arena, Linear};

pub(crate) use loader::Loader;
pub use loader::{LoadOptions, Progress};

/// A model that runs batches of rows.
pub(crate) trait Model: Debug + Send + Sync {
    /// Its shape.
    fn config(&self) -> &ModelConfig;

    /// Runs a batch; the logits of the rows that ask for them are left in the arena.
    fn forward(
        &self,
        backend: &dyn Backend,
        batch: &Batch,
        cache: &mut [KvLayer],
        arena: &mut Arena,
    ) -> Result<()>;

    /// The linear layers of the decoder, to convert.
    fn linears_mut(&mut self) -> Vec<&mut Linear>;

    /// Bytes of all weights.
    fn weight_bytes(&self) -> usize;
}

/// Loads the model of a checkpoint.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    backend: &dyn Backend,
    options: &LoadOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Box<dyn Model>> {
    let loader = Loader::new(checkpoint, backend, options, progress);
    match checkpoint.config.architecture {
        Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => {
            Ok(Box::new(Transformer::load(loader)?))
        }
    }
}
