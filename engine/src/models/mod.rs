//! The models: each one file that reads like its paper.

mod loader;
mod qwen3_vl;
mod transformer;

use std::fmt::Debug;

use cider_kernels::{Backend, Format, KvLayer};

use self::qwen3_vl::Qwen3Vl;
use self::transformer::Transformer;
use crate::error::{Error, Result};
use crate::generate::{Batch, ImageFeatures};
use crate::image::Patches;
use crate::load::{Architecture, Checkpoint, ModelConfig};
use crate::nn::{Arena, Linear};

pub(crate) use loader::Loader;
pub use loader::{LoadOptions, Progress};
pub(crate) use qwen3_vl::ImageEncoding;

/// A model that runs batches of rows.
pub(crate) trait Model: Debug + Send + Sync {
    /// Its shape.
    fn config(&self) -> &ModelConfig;

    /// Begins to make tokens of an image.
    fn begin_image(&self, _backend: &dyn Backend, _image: &Patches) -> Result<ImageEncoding> {
        Err(Error::Request("the model has no vision input".into()))
    }

    /// Takes an image through the next block of the vision tower; its tokens, behind the last.
    fn advance_image(
        &self,
        _backend: &dyn Backend,
        _encoding: &mut ImageEncoding,
    ) -> Result<Option<ImageFeatures>> {
        Err(Error::Request("the model has no vision input".into()))
    }

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

/// Loads the model of a checkpoint; `watch` hears how far it is, and ends it with false.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    backend: &dyn Backend,
    options: &LoadOptions,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<Box<dyn Model>> {
    assemble(Loader::new(checkpoint, backend, options, watch))
}

/// What the weights of a checkpoint would become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightPlan {
    /// The formats of the decoder's linear layers, each once.
    pub formats: Vec<Format>,
    /// Bytes of the decoder's linear layers.
    pub linear_bytes: usize,
    /// Bytes of all weights.
    pub bytes: usize,
}

impl WeightPlan {
    /// Makes the plan without reading weights.
    ///
    /// # Errors
    /// As loading: when a tensor is not what the model needs, or a format does not allow its shape.
    pub fn of(
        checkpoint: &Checkpoint,
        backend: &dyn Backend,
        options: &LoadOptions,
    ) -> Result<Self> {
        let mut ignore = |_| true;
        let loader = Loader::new(checkpoint, backend, options, &mut ignore).without_contents();
        let mut model = assemble(loader)?;
        let bytes = model.weight_bytes();
        let mut plan = Self {
            formats: Vec::new(),
            linear_bytes: 0,
            bytes,
        };
        for linear in model.linears_mut() {
            let format = linear.weights().format();
            if !plan.formats.contains(&format) {
                plan.formats.push(format);
            }
            plan.linear_bytes += linear.weights().bytes();
        }
        Ok(plan)
    }
}

fn assemble(loader: Loader<'_>) -> Result<Box<dyn Model>> {
    match loader.config().architecture {
        Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => {
            Ok(Box::new(Transformer::load(loader)?))
        }
        Architecture::Qwen3Vl => match &loader.config().vision {
            Some(vision) => Ok(Box::new(Qwen3Vl::load(loader, vision)?)),
            None => Ok(Box::new(Transformer::load(loader)?)),
        },
    }
}
