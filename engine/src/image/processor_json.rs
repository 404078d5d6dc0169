//! `processor_config.json` and `preprocessor_config.json` to the settings of the image processor.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::patches::PatchShape;
use super::processor::{ProcessorSettings, check_budget};
use crate::error::{Error, Result};
use crate::load::json::{Keys, read_optional_object};

/// The settings in `folder`. Newer folders nest them in `processor_config.json`, under
/// `image_processor`; that one wins, as in the reference.
pub(super) fn open(folder: &Path) -> Result<ProcessorSettings> {
    if let Some((path, object)) = open_object(folder, "processor_config.json")?
        && let Some(keys) = Keys::new(&path, &object).inside("image_processor")?
    {
        return read(&keys);
    }
    match open_object(folder, "preprocessor_config.json")? {
        Some((path, object)) => read(&Keys::new(&path, &object)),
        None => Err(Error::file(
            folder,
            "no image_processor in processor_config.json, and no preprocessor_config.json",
        )),
    }
}

fn open_object(folder: &Path, name: &str) -> Result<Option<(PathBuf, Map<String, Value>)>> {
    let path = folder.join(name);
    let object = read_optional_object(&path)?;
    Ok(object.map(|object| (path, object)))
}

fn read(keys: &Keys<'_>) -> Result<ProcessorSettings> {
    check_kind(keys)?;
    let defaults = ProcessorSettings::default();
    let (min_pixels, max_pixels) = bounds(keys, &defaults)?;
    let rescale = keys.positive("rescale_factor")?.or(defaults.rescale);
    let rescales = keys.flag("do_rescale")?.unwrap_or(true);
    let normalizes = keys.flag("do_normalize")?.unwrap_or(true);
    let normalize = [
        channels(keys, "image_mean")?.unwrap_or([0.5; 3]),
        deviations(keys)?,
    ];
    Ok(ProcessorSettings {
        shape: PatchShape {
            side: size(keys, "patch_size", defaults.shape.side)?,
            merge: size(keys, "merge_size", defaults.shape.merge)?,
            frames: size(keys, "temporal_patch_size", defaults.shape.frames)?,
        },
        min_pixels,
        max_pixels,
        trained_images: keys.size("trained_images", usize::MAX)?,
        rescale: rescale.filter(|_| rescales),
        normalize: normalizes.then_some(normalize),
    })
}

/// Refuses another processor, and steps that ours does not leave out or do otherwise.
fn check_kind(keys: &Keys<'_>) -> Result<()> {
    if let Some(kind) = keys.text("image_processor_type")?
        && !KINDS.contains(&kind)
    {
        let what = format!("{kind} is not known, only {}", KINDS.join(", "));
        return Err(keys.error("image_processor_type", what));
    }
    if keys.flag("do_resize")? == Some(false) {
        return Err(keys.error("do_resize", "expected true: images must fit the patches"));
    }
    match keys.find("resample") {
        Some(value) if value.as_u64() != Some(BICUBIC) => {
            Err(keys.wrong("resample", "3, which is bicubic", value))
        }
        _ => Ok(()),
    }
}

/// The bounds on pixels: of `size`, else `min_pixels` and `max_pixels`, else the family's.
fn bounds(keys: &Keys<'_>, defaults: &ProcessorSettings) -> Result<(u64, u64)> {
    let area = keys.inside("size")?;
    if let Some(area) = &area
        && let Some(side) = area
            .names()
            .find(|name| !MIN_PIXELS.contains(name) && !MAX_PIXELS.contains(name))
    {
        let what =
            "not known: a size is a shortest_edge and a longest_edge, both in pixels of area";
        return Err(area.error(side, what));
    }
    let bound = |names: &[&str; 2], default: u64| -> Result<u64> {
        if let Some(area) = &area {
            for name in names {
                if let Some(bound) = area.size(name, MAX_BOUND)? {
                    return Ok(bound as u64);
                }
            }
        }
        let bound = keys.size(names[1], MAX_BOUND)?;
        Ok(bound.map_or(default, |bound| bound as u64))
    };
    let min_pixels = bound(&MIN_PIXELS, defaults.min_pixels)?;
    let max_pixels = bound(&MAX_PIXELS, defaults.max_pixels)?;
    check_budget(min_pixels, max_pixels).map_err(|what| keys.error("size", what))?;
    Ok((min_pixels, max_pixels))
}

fn size(keys: &Keys<'_>, key: &str, default: usize) -> Result<usize> {
    Ok(keys.size(key, MAX_PATCH)?.unwrap_or(default))
}

fn deviations(keys: &Keys<'_>) -> Result<[f32; 3]> {
    let deviations = channels(keys, "image_std")?.unwrap_or([0.5; 3]);
    if deviations.iter().any(|deviation| *deviation <= 0.0) {
        return Err(keys.error("image_std", "expected numbers above 0"));
    }
    Ok(deviations)
}

/// One number for each channel, or one for all.
fn channels(keys: &Keys<'_>, key: &str) -> Result<Option<[f32; 3]>> {
    let Some(value) = keys.find(key) else {
        return Ok(None);
    };
    let number = |value: &Value| value.as_f64().map(|number| number as f32);
    let numbers = match value {
        Value::Array(values) => values.iter().map(number).collect::<Option<Vec<_>>>(),
        value => number(value).map(|number| vec![number; 3]),
    };
    numbers
        .and_then(|numbers| <[f32; 3]>::try_from(numbers).ok())
        .filter(|numbers| numbers.iter().all(|number| number.is_finite()))
        .map(Some)
        .ok_or_else(|| keys.wrong(key, "three numbers or one", value))
}

/// The names of the one processor, of all its versions.
const KINDS: [&str; 4] = [
    "Qwen2VLImageProcessor",
    "Qwen2VLImageProcessorFast",
    "Qwen2VLImageProcessorPil",
    "Qwen3VLImageProcessor",
];

/// Pillow's number of its bicubic filter.
const BICUBIC: u64 = 3;

/// The keys of the smaller bound: in `size`, where it is an area whatever the name says, and in `size`
/// of older files and outside.
const MIN_PIXELS: [&str; 2] = ["shortest_edge", "min_pixels"];

/// The keys of the larger bound, alike.
const MAX_PIXELS: [&str; 2] = ["longest_edge", "max_pixels"];

/// The largest bound on pixels that a file may state.
const MAX_BOUND: usize = 1 << 40;

/// The largest patch, block of patches and number of frames.
const MAX_PATCH: usize = 64;
