//! The image processor of the Qwen-VL families: how large an image becomes, and its patches.

use std::path::Path;

use super::bicubic::resize_bicubic;
use super::digest::ImageDigest;
use super::patches::{PatchShape, Patches};
use super::processor_json;
use super::rgb::{ImageSize, RgbImage};
use crate::error::{Error, Result};

/// How images become patches: read from the model's folder, with a request's budget over it.
#[derive(Clone, Debug)]
pub struct ImageProcessor {
    shape: PatchShape,
    min_pixels: u64,
    max_pixels: u64,
    trained_images: Option<usize>,
    /// The value of each sample, for red, green and blue.
    levels: Box<[[f32; 256]; 3]>,
}

impl ImageProcessor {
    /// The processor that `folder` describes in `processor_config.json` (its `image_processor`), or
    /// else in `preprocessor_config.json`.
    ///
    /// # Errors
    /// Neither file, or one that describes another kind of processor.
    pub fn open(folder: &Path) -> Result<Self> {
        let settings = processor_json::open(folder)?;
        let processor = Self::new(&settings);
        tracing::debug!(
            "images: {} to {} pixels, in multiples of {}",
            processor.min_pixels,
            processor.max_pixels,
            processor.factor()
        );
        Ok(processor)
    }

    pub(super) fn new(settings: &ProcessorSettings) -> Self {
        Self {
            shape: settings.shape,
            min_pixels: settings.min_pixels,
            max_pixels: settings.max_pixels,
            trained_images: settings.trained_images,
            levels: Box::new(std::array::from_fn(|channel| {
                std::array::from_fn(|sample| settings.level(channel, sample))
            })),
        }
    }

    /// This processor with the bounds that a request brings in place of the model's.
    ///
    /// # Errors
    /// A minimum over the maximum, or over the largest that is believed, or a bound of 0.
    pub fn with_budget(&self, budget: PixelBudget) -> Result<Self> {
        let min_pixels = budget.min_pixels.unwrap_or(self.min_pixels);
        let max_pixels = budget.max_pixels.unwrap_or(self.max_pixels);
        check_budget(min_pixels, max_pixels).map_err(Error::Request)?;
        if budget != PixelBudget::default() {
            tracing::debug!("images of this request: {min_pixels} to {max_pixels} pixels");
        }
        Ok(Self {
            min_pixels,
            max_pixels,
            ..self.clone()
        })
    }

    /// The size that an image of `size` is resized to: sides rounded to the nearest multiple of the
    /// factor, halves to even; then shrunk or grown, keeping its shape, into the bounds on pixels.
    ///
    /// A side is at least one factor.
    #[must_use]
    pub fn resized(&self, size: ImageSize) -> ImageSize {
        let factor = self.factor() as f64;
        let (height, width) = (size.height.max(1) as f64, size.width.max(1) as f64);
        let side = |multiples: f64| multiples.max(1.0) as usize * self.factor();
        let sides = [height, width].map(|side| (side / factor).round_ties_even() * factor);
        let pixels = sides[0] * sides[1];
        if pixels > self.max_pixels as f64 {
            let shrink = (height * width / self.max_pixels as f64).sqrt();
            ImageSize::new(
                side((height / shrink / factor).floor()),
                side((width / shrink / factor).floor()),
            )
        } else if pixels < self.min_pixels as f64 {
            let grow = (self.min_pixels as f64 / (height * width)).sqrt();
            ImageSize::new(
                side((height * grow / factor).ceil()),
                side((width * grow / factor).ceil()),
            )
        } else {
            ImageSize::new(sides[0] as usize, sides[1] as usize)
        }
    }

    /// Patches along time, height and width of an image of `size`.
    #[must_use]
    pub fn grid_thw(&self, size: ImageSize) -> [usize; 3] {
        let resized = self.resized(size);
        [
            1,
            resized.height / self.shape.side,
            resized.width / self.shape.side,
        ]
    }

    /// Tokens that an image of `size` takes in a prompt.
    #[must_use]
    pub fn tokens(&self, size: ImageSize) -> usize {
        let resized = self.resized(size);
        (resized.height / self.factor()) * (resized.width / self.factor())
    }

    /// Resizes and cuts `image`.
    #[must_use]
    pub fn patches(&self, image: &RgbImage) -> Patches {
        let size = self.resized(image.size());
        if size == image.size() {
            return self.shape.cut(image, &self.levels);
        }
        self.shape.cut(&resize_bicubic(image, size), &self.levels)
    }

    /// What tells the patches of `image` from all others, without making them.
    #[must_use]
    pub fn digest(&self, image: &RgbImage) -> ImageDigest {
        let size = self.resized(image.size());
        ImageDigest::new(image, size, self.shape, &self.levels)
    }

    /// Pixels along a side of the square that becomes one token.
    #[must_use]
    pub fn factor(&self) -> usize {
        self.shape.factor()
    }

    /// Pixels along a side of a patch.
    #[must_use]
    pub fn patch_size(&self) -> usize {
        self.shape.side
    }

    /// Patches along a side of the square that becomes one token.
    #[must_use]
    pub fn merge_size(&self) -> usize {
        self.shape.merge
    }

    /// Frames of a patch.
    #[must_use]
    pub fn temporal_patch_size(&self) -> usize {
        self.shape.frames
    }

    /// The most images of a prompt that the model was trained on, where its files say so.
    #[must_use]
    pub fn trained_images(&self) -> Option<usize> {
        self.trained_images
    }

    /// The bounds on the pixels of a resized image.
    #[must_use]
    pub fn pixel_bounds(&self) -> (u64, u64) {
        (self.min_pixels, self.max_pixels)
    }
}

impl Default for ImageProcessor {
    /// What the Qwen3-VL family uses.
    fn default() -> Self {
        Self::new(&ProcessorSettings::default())
    }
}

/// A request's bounds on the pixels of a resized image; `None` leaves the model's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PixelBudget {
    /// Pixels at least.
    pub min_pixels: Option<u64>,
    /// Pixels at most.
    pub max_pixels: Option<u64>,
}

impl PixelBudget {
    /// Bounds in image tokens, each of `processor`'s factor squared in pixels.
    ///
    /// # Errors
    /// A minimum over the maximum, or a bound of 0.
    pub fn from_tokens(
        processor: &ImageProcessor,
        min_tokens: Option<usize>,
        max_tokens: Option<usize>,
    ) -> Result<Self> {
        if let (Some(min), Some(max)) = (min_tokens, max_tokens)
            && min > max
        {
            return Err(Error::Request(format!(
                "a minimum of {min} image tokens exceeds the maximum of {max}"
            )));
        }
        let token = processor.factor().saturating_mul(processor.factor()) as u64;
        let pixels = |tokens: usize| (tokens as u64).saturating_mul(token);
        Ok(Self {
            min_pixels: min_tokens.map(pixels),
            max_pixels: max_tokens.map(pixels),
        })
    }
}

/// What the files of a model say about its images.
pub(super) struct ProcessorSettings {
    pub(super) shape: PatchShape,
    pub(super) min_pixels: u64,
    pub(super) max_pixels: u64,
    pub(super) trained_images: Option<usize>,
    pub(super) rescale: Option<f64>,
    /// Mean and standard deviation of each channel.
    pub(super) normalize: Option<[[f32; 3]; 2]>,
}

impl ProcessorSettings {
    /// The value of a sample, in the reference's precision: the product in f64 rounded to f32, then
    /// difference and quotient in f32.
    fn level(&self, channel: usize, sample: usize) -> f32 {
        let value = match self.rescale {
            Some(factor) => (sample as f64 * factor) as f32,
            None => sample as f32,
        };
        match self.normalize {
            Some([mean, deviation]) => (value - mean[channel]) / deviation[channel],
            None => value,
        }
    }
}

impl Default for ProcessorSettings {
    fn default() -> Self {
        Self {
            shape: PatchShape {
                side: 16,
                merge: 2,
                frames: 2,
            },
            min_pixels: 65_536,
            max_pixels: 16_777_216,
            trained_images: None,
            rescale: Some(1.0 / 255.0),
            normalize: Some([[0.5; 3]; 2]),
        }
    }
}

/// Refuses bounds that no size can meet, and a minimum that would make any image huge.
pub(super) fn check_budget(min_pixels: u64, max_pixels: u64) -> Result<(), String> {
    if min_pixels == 0 || max_pixels == 0 {
        Err("a bound of 0 pixels for images".to_owned())
    } else if min_pixels > max_pixels {
        Err(format!(
            "a minimum of {min_pixels} pixels for images exceeds the maximum of {max_pixels}"
        ))
    } else if min_pixels > MAX_MIN_PIXELS {
        Err(format!(
            "a minimum of {min_pixels} pixels for images exceeds the limit of {MAX_MIN_PIXELS}"
        ))
    } else {
        Ok(())
    }
}

/// The largest minimum of pixels: every image grows to it.
const MAX_MIN_PIXELS: u64 = 1 << 26;
