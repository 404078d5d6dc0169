//! `cider debug preprocess`: pictures as a vision tower reads them.

use std::path::Path;

use anyhow::Result;
use cider::files::shown_name;
use cider::image::{ImageProcessor, ImageSize, Patches, RgbImage};
use cider::load::Checkpoint;
use cider::load::safetensors::Dtype;

use super::tensors::{self, Array};
use crate::args::{ImageBounds, PreprocessArgs};
use crate::bundled;
use crate::console;
use crate::model;
use crate::pictures::{Pictures, Room};
use crate::targets::Targets;

/// Runs the command.
pub(super) fn run(args: &PreprocessArgs) -> Result<()> {
    let targets = Targets::check([("-o", args.output.as_path())])?;
    targets.are_not(args.files.iter().map(Path::new))?;
    targets.are_not(args.model.as_deref())?;
    let folder = args.model.clone().map_or_else(bundled::find, Ok)?;
    let processor = processor(&folder, &args.bounds)?;
    let room = Room {
        processor,
        context: None,
    };
    let pictures = Pictures::read(&args.files, &room)?;
    let processor = room.processor;
    let processed = Processed::new(&processor, pictures.images());
    let sizes = pictures.images().iter().map(RgbImage::size);
    let resized = sizes.clone().map(|size| processor.resized(size));
    let arrays = [
        processed.pixel_values(),
        processed.grids(),
        sides("sizes", sizes.clone()),
        sides("resized_sizes", resized),
    ];
    tensors::save(&args.output, &arrays)?;
    for (file, size) in args.files.iter().zip(sizes) {
        let ([_, rows, columns], resized) = (processor.grid_thw(size), processor.resized(size));
        // The data of a URL would bury the figures.
        let name = if file.starts_with("data:") {
            "data: URL".to_owned()
        } else {
            shown_name(file)
        };
        console::line(&format!(
            "{name}: {}x{}, resized to {}x{}, {columns}x{rows} patches, {} tokens",
            size.width,
            size.height,
            resized.width,
            resized.height,
            processor.tokens(size)
        ))?;
    }
    Ok(())
}

/// The processor of a model's folder, within the bounds that were asked for.
pub(super) fn processor(folder: &Path, bounds: &ImageBounds) -> Result<ImageProcessor> {
    std::fs::metadata(folder).map_err(cider::Error::io(folder))?;
    match ImageProcessor::open(folder) {
        Ok(processor) => model::bounded(&processor, bounds),
        Err(error) => {
            // A model for text alone has no such settings: that says more than which file is missing.
            if let Ok(checkpoint) = Checkpoint::open(folder) {
                model::check_vision(&checkpoint)?;
            }
            Err(error.into())
        }
    }
}

/// Pictures that are resized and cut.
#[derive(Default)]
pub(super) struct Processed {
    pub(super) patches: Vec<Patches>,
    /// Tokens of all of them together.
    pub(super) tokens: usize,
}

impl Processed {
    pub(super) fn new(processor: &ImageProcessor, images: &[RgbImage]) -> Self {
        Self {
            patches: images
                .iter()
                .map(|image| processor.patches(image))
                .collect(),
            tokens: images
                .iter()
                .map(|image| processor.tokens(image.size()))
                .sum(),
        }
    }

    /// The patches of all pictures, one after the other.
    pub(super) fn pixel_values(&self) -> Array {
        let rows: usize = self.patches.iter().map(Patches::rows).sum();
        let values = self
            .patches
            .iter()
            .flat_map(|patches| &patches.pixel_values);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        Array {
            name: "pixel_values",
            dtype: Dtype::F32,
            shape: vec![rows, bytes.len() / 4 / rows.max(1)],
            bytes,
        }
    }

    /// Patches along time, height and width of each picture.
    pub(super) fn grids(&self) -> Array {
        let grids = self.patches.iter().flat_map(|patches| patches.grid_thw);
        let numbers = grids.map(|count| count as i64);
        Array::integers("image_grid_thw", vec![self.patches.len(), 3], numbers)
    }
}

/// Height and width of each picture.
fn sides(name: &'static str, sizes: impl ExactSizeIterator<Item = ImageSize>) -> Array {
    let count = sizes.len();
    let numbers = sizes.flat_map(|size| [size.height as i64, size.width as i64]);
    Array::integers(name, vec![count, 2], numbers)
}
