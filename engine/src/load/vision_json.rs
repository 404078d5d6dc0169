//! The vision tower of a `config.json`, and how its decoder turns heads by three positions.

use super::config::{Architecture, MAX_LAYERS, MAX_SIZE, VisionConfig};
use super::json::Keys;
use crate::error::Result;

/// The pairs of a head's elements that turn with time, row and column.
pub(super) fn sections(
    keys: &Keys<'_>,
    architecture: Architecture,
    head_size: usize,
) -> Result<Option<[usize; 3]>> {
    if architecture != Architecture::Qwen3Vl {
        return Ok(None);
    }
    let rope = match keys.inside("rope_parameters")? {
        None => keys.inside("rope_scaling")?,
        found => found,
    };
    let stated = rope.as_ref().map(stated_sections).transpose()?.flatten();
    let sections = stated.unwrap_or(DEFAULT_SECTIONS);
    let pairs = head_size / 2;
    if sections.iter().any(|&size| size > pairs) || sections.iter().sum::<usize>() != pairs {
        let what = format!("{sections:?} are not the {pairs} pairs of a head of {head_size}");
        return Err(match (rope, stated) {
            (Some(rope), Some(_)) => rope.error("mrope_section", what),
            (Some(rope), None) => rope.error("mrope_section", format!("missing: {what}")),
            (None, _) => keys.error("rope_scaling.mrope_section", format!("missing: {what}")),
        });
    }
    Ok(Some(sections))
}

/// The sections that a configuration names.
fn stated_sections(rope: &Keys<'_>) -> Result<Option<[usize; 3]>> {
    if rope.flag("mrope_interleaved")? == Some(false) {
        let what = "expected true: sections one after the other are not supported";
        return Err(rope.error("mrope_interleaved", what));
    }
    let Some(list) = rope.list("mrope_section")? else {
        return Ok(None);
    };
    let sizes: Vec<usize> = list
        .iter()
        .filter_map(|size| usize::try_from(size.as_u64()?).ok())
        .collect();
    <[usize; 3]>::try_from(sizes)
        .map(Some)
        .map_err(|_| rope.error("mrope_section", "expected three whole numbers"))
}

/// The vision tower, whose tokens are as wide as the decoder is.
pub(super) fn read(
    top: &Keys<'_>,
    architecture: Architecture,
    decoder_size: usize,
) -> Result<Option<VisionConfig>> {
    if architecture != Architecture::Qwen3Vl {
        return Ok(None);
    }
    let Some(keys) = top.inside("vision_config")? else {
        return Err(top.missing("vision_config"));
    };
    let rope = keys.inside("rope_parameters")?;
    let base = rope
        .map(|rope| rope.positive("rope_theta"))
        .transpose()?
        .flatten();
    let entries = keys.required_size("num_position_embeddings", MAX_SIZE)?;
    let blocks = keys.required_size("depth", MAX_LAYERS)?;
    let config = VisionConfig {
        hidden_size: keys.required_size("hidden_size", MAX_SIZE)?,
        intermediate_size: keys.required_size("intermediate_size", MAX_SIZE)?,
        blocks,
        heads: keys.required_size("num_heads", MAX_SIZE)?,
        patch_size: keys.required_size("patch_size", MAX_PATCH)?,
        temporal_patch_size: keys.required_size("temporal_patch_size", MAX_PATCH)?,
        merge_size: keys.required_size("spatial_merge_size", MAX_PATCH)?,
        table_side: entries.isqrt(),
        rope_base: base.unwrap_or(10_000.0),
        deepstack: deepstack(&keys, blocks)?,
        image_token: token(top, "image_token_id")?,
        start_token: token(top, "vision_start_token_id")?,
        end_token: token(top, "vision_end_token_id")?,
    };
    check(&keys, &config, entries)?;
    match keys.size("out_hidden_size", MAX_SIZE)? {
        Some(size) if size != decoder_size => {
            let what = format!("{size} is not the {decoder_size} of the decoder (hidden_size)");
            Err(keys.error("out_hidden_size", what))
        }
        _ => Ok(Some(config)),
    }
}

fn deepstack(keys: &Keys<'_>, blocks: usize) -> Result<Vec<usize>> {
    let key = "deepstack_visual_indexes";
    let mut indexes: Vec<usize> = Vec::new();
    // A tower without levels says so with an empty list.
    let Some(list) = keys.list(key)? else {
        return Err(keys.missing(key));
    };
    for value in list {
        let index = value.as_u64().and_then(|index| usize::try_from(index).ok());
        let follows = |&index: &usize| indexes.last().is_none_or(|&last| last < index);
        let Some(index) = index.filter(|&index| index < blocks).filter(follows) else {
            let what = format!("expected ascending numbers below {blocks} (depth), found {value}");
            return Err(keys.error(key, what));
        };
        indexes.push(index);
    }
    Ok(indexes)
}

fn token(keys: &Keys<'_>, key: &str) -> Result<u32> {
    let ids = keys.token_ids(key)?.unwrap_or_default();
    ids.first().copied().ok_or_else(|| keys.missing(key))
}

/// What no single key can be checked for.
fn check(keys: &Keys<'_>, config: &VisionConfig, entries: usize) -> Result<()> {
    if config.table_side * config.table_side != entries {
        let what = format!("expected a square, found {entries}");
        return Err(keys.error("num_position_embeddings", what));
    }
    let (hidden, heads) = (config.hidden_size, config.heads);
    if !hidden.is_multiple_of(heads) || !(hidden / heads).is_multiple_of(4) {
        let what = format!("{heads} heads of {hidden} do not have a multiple of 4 elements");
        return Err(keys.error("num_heads", what));
    }
    for (key, expected) in [("hidden_act", "gelu_pytorch_tanh")] {
        if let Some(found) = keys.text(key)?.filter(|&found| found != expected) {
            return Err(keys.error(key, format!("expected {expected:?}, found {found:?}")));
        }
    }
    match keys.size("in_channels", MAX_PATCH)? {
        None | Some(3) => Ok(()),
        Some(channels) => Err(keys.error("in_channels", format!("expected 3, found {channels}"))),
    }
}

/// The family's sections, where the configuration does not name them.
const DEFAULT_SECTIONS: [usize; 3] = [24, 20, 20];

/// The largest patch, in pixels, frames or merged patches, that is believed.
const MAX_PATCH: usize = 64;
