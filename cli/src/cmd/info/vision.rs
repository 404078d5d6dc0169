//! The vision tower of a checkpoint, and what pictures become.

use anyhow::Result;
use cider::image::ImageProcessor;
use cider::load::Checkpoint;
use serde::Serialize;

use crate::console;

/// A vision tower by its figures.
#[derive(Serialize)]
pub(super) struct VisionInfo {
    blocks: usize,
    hidden_size: usize,
    intermediate_size: usize,
    heads: usize,
    patch_size: usize,
    merge_size: usize,
    /// Entries along a side of the table of positions.
    table_side: usize,
    /// The blocks whose features are added to the decoder's first layers.
    deepstack: Vec<usize>,
    /// Bytes of its tensors in the checkpoint.
    bytes: usize,
    images: ImageRange,
}

/// How large pictures become, and how many tokens.
#[derive(Serialize)]
struct ImageRange {
    min_pixels: u64,
    max_pixels: u64,
    min_tokens: u64,
    max_tokens: u64,
}

impl VisionInfo {
    /// The tower of a checkpoint, if its model sees.
    pub(super) fn of(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let Some(config) = &checkpoint.config.vision else {
            return Ok(None);
        };
        let processor = ImageProcessor::open(&checkpoint.path)?;
        let (min_pixels, max_pixels) = processor.pixel_bounds();
        let token = (processor.factor() * processor.factor()) as u64;
        let map = &checkpoint.tensors;
        let names = map.names().filter(|name| name.contains("visual."));
        let bytes = names.filter_map(|name| map.get(name)).map(|t| t.nbytes());
        Ok(Some(Self {
            blocks: config.blocks,
            hidden_size: config.hidden_size,
            intermediate_size: config.intermediate_size,
            heads: config.heads,
            patch_size: config.patch_size,
            merge_size: config.merge_size,
            table_side: config.table_side,
            deepstack: config.deepstack.clone(),
            bytes: bytes.sum(),
            images: ImageRange {
                min_pixels,
                max_pixels,
                min_tokens: min_pixels.div_ceil(token),
                max_tokens: max_pixels / token,
            },
        }))
    }

    /// The tower, as people read it.
    pub(super) fn tower_line(&self) -> String {
        format!(
            "{} blocks, hidden {}, inner {}, {} heads, patches of {} merged by {}, {}x{} positions, deepstack after \
             {:?}, {}",
            self.blocks,
            self.hidden_size,
            self.intermediate_size,
            self.heads,
            self.patch_size,
            self.merge_size,
            self.table_side,
            self.table_side,
            self.deepstack,
            console::bytes(self.bytes as u64)
        )
    }

    /// The pictures, as people read it.
    pub(super) fn images_line(&self) -> String {
        let images = &self.images;
        format!(
            "{} to {} tokens, {} to {} pixels",
            images.min_tokens, images.max_tokens, images.min_pixels, images.max_pixels
        )
    }
}
