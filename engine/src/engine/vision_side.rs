//! Pictures for a model that sees: read, cut, encoded once, and remembered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::image_cache::{ImageCache, ImageKey};
use crate::error::{Error, Result};
use crate::generate::{ImageFeatures, Runner};
use crate::image::{ImageProcessor, ImageSize, PixelBudget, RgbImage};
use crate::load::{Checkpoint, VisionConfig};

/// What turns pictures into tokens.
#[derive(Debug)]
pub struct VisionSide {
    config: VisionConfig,
    processor: ImageProcessor,
}

/// What a picture cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ImageTimes {
    /// Resizing and cutting.
    pub preprocess: Duration,
    /// The vision tower.
    pub encode: Duration,
}

impl VisionSide {
    /// The vision side of a checkpoint, if its model sees.
    pub(super) fn open(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let Some(config) = checkpoint.config.vision.clone() else {
            return Ok(None);
        };
        let processor = ImageProcessor::open(&checkpoint.path)?;
        for (what, file, model) in [
            ("patch_size", processor.patch_size(), config.patch_size),
            ("merge_size", processor.merge_size(), config.merge_size),
            (
                "temporal_patch_size",
                processor.temporal_patch_size(),
                config.temporal_patch_size,
            ),
        ] {
            if file != model {
                let what = format!("{what} of the processor is {file}, of the model {model}");
                return Err(Error::file(&checkpoint.path, what));
            }
        }
        Ok(Some(Self { config, processor }))
    }

    /// The tower's shape and its tokens.
    #[must_use]
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// How pictures are resized and cut.
    #[must_use]
    pub fn processor(&self) -> &ImageProcessor {
        &self.processor
    }

    /// Tokens of images in a prompt with `text` other tokens, which must all fit a context.
    ///
    /// # Errors
    /// [`Error::ImagesExceedContext`].
    pub fn count_tokens(
        processor: &ImageProcessor,
        sizes: impl IntoIterator<Item = ImageSize>,
        text: usize,
        limit: usize,
    ) -> Result<usize> {
        let (images, tokens) = sizes
            .into_iter()
            .map(|size| processor.tokens(size))
            .fold((0, 0_usize), |(images, all), tokens| {
                (images + 1, all.saturating_add(tokens))
            });
        if images > 0 && tokens.saturating_add(text) >= limit {
            return Err(Error::ImagesExceedContext {
                images,
                tokens,
                text,
                limit,
            });
        }
        Ok(tokens)
    }

    /// Says so where a prompt has more images than the model was trained on.
    pub fn warn_of_many(&self, images: usize) {
        if let Some(trained) = self
            .processor
            .trained_images()
            .filter(|&most| images > most)
        {
            tracing::warn!(
                "{images} images in one prompt: the model was trained on at most {trained}, its answer may be nonsense"
            );
        }
    }

    /// Bounds on the pixels of all pictures from now on.
    ///
    /// # Errors
    /// When they contradict each other.
    pub fn set_budget(&mut self, budget: PixelBudget) -> Result<()> {
        self.processor = self.processor.with_budget(budget)?;
        Ok(())
    }

    /// The tokens of a picture; those of the last ones are in `pictures`.
    pub(super) fn encode(
        &self,
        runner: &Runner,
        pictures: &mut ImageCache,
        image: &RgbImage,
        times: &mut ImageTimes,
        watch: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Arc<ImageFeatures>> {
        let started = Instant::now();
        let key = ImageKey::new(&[0; 32], *self.processor.digest(image).as_bytes());
        if let Some(features) = pictures.find(&key, started) {
            times.preprocess += started.elapsed();
            return Ok(features);
        }
        let patches = self.processor.patches(image);
        times.preprocess += started.elapsed();
        let started = Instant::now();
        let features = Arc::new(runner.encode_watched(&patches, watch)?);
        times.encode += started.elapsed();
        pictures.remember(key, &features, started);
        Ok(features)
    }
}
