//! Qwen3-VL: a vision tower whose tokens take the places of pads in the prompt, and whose intermediate features
//! are added to the decoder's first layers. The decoder is the dense one, with three positions per token.

mod positions;
mod vision;

use cider_kernels::{Backend, KvLayer};

pub(crate) use self::vision::ImageEncoding;
use self::vision::VisionTower;
use super::transformer::Transformer;
use super::{Loader, Model};
use crate::error::Result;
use crate::generate::{Batch, ImageFeatures};
use crate::image::Patches;
use crate::load::{ModelConfig, VisionConfig};
use crate::nn::{Arena, Linear};

/// The decoder and its tower.
#[derive(Debug)]
pub(super) struct Qwen3Vl {
    decoder: Transformer,
    tower: VisionTower,
}

impl Qwen3Vl {
    /// Reads the weights.
    pub(super) fn load(mut loader: Loader<'_>, vision: &VisionConfig) -> Result<Self> {
        let tower = VisionTower::load(&mut loader, vision)?;
        Ok(Self {
            decoder: Transformer::load(loader)?,
            tower,
        })
    }
}

impl Model for Qwen3Vl {
    fn config(&self) -> &ModelConfig {
        self.decoder.config()
    }

    fn begin_image(&self, backend: &dyn Backend, image: &Patches) -> Result<ImageEncoding> {
        self.tower.begin(backend, image)
    }

    fn advance_image(
        &self,
        backend: &dyn Backend,
        encoding: &mut ImageEncoding,
    ) -> Result<Option<ImageFeatures>> {
        self.tower.advance(backend, encoding)
    }

    fn forward(
        &self,
        backend: &dyn Backend,
        batch: &Batch,
        cache: &mut [KvLayer],
        arena: &mut Arena,
    ) -> Result<()> {
        self.decoder.forward(backend, batch, cache, arena)
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        self.decoder.linears_mut()
    }

    fn weight_bytes(&self) -> usize {
        self.decoder.weight_bytes() + self.tower.weight_bytes()
    }
}
