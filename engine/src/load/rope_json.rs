//! The rotary embedding of a `config.json`, in both spellings: `rope_theta` beside `rope_scaling`,
//! or both inside `rope_parameters`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::config::{Architecture, MAX_SIZE, RopeConfig, RopeScaling};
use super::json::Keys;
use crate::error::Result;

/// Reads the rotary embedding of a model of `max_positions`.
pub(super) fn read(
    keys: &Keys<'_>,
    max_positions: usize,
    architecture: Architecture,
) -> Result<RopeConfig> {
    let mut scaling = RopeScaling::Default;
    let mut base = None;
    for name in ["rope_parameters", "rope_scaling"] {
        if let Some(inner) = keys.inside(name)? {
            let inner = common_layer(inner)?;
            base = inner.positive("rope_theta")?;
            scaling = read_scaling(&inner, max_positions)?;
            break;
        }
    }
    let base = match base {
        Some(base) => Some(base),
        None => keys.positive("rope_theta")?,
    };
    let base = match (base, architecture) {
        (Some(base), _) => base,
        // The first Llama configurations are older than the key.
        (None, Architecture::Llama) => 10_000.0,
        (None, _) => return Err(keys.missing("rope_theta")),
    };
    Ok(RopeConfig {
        base,
        scaling,
        factors: None,
    })
}

/// Positions the model reaches: `YaRN` stretches the context it is given as original.
pub(super) fn reach(scaling: &RopeScaling, max_positions: usize) -> usize {
    match *scaling {
        RopeScaling::Yarn {
            factor, original, ..
        } => {
            let stretched = (original as f64 * factor) as usize;
            max_positions.max(stretched.min(MAX_SIZE))
        }
        _ => max_positions,
    }
}

/// Where there is one set of parameters per kind of layer, the set they share.
fn common_layer(keys: Keys<'_>) -> Result<Keys<'_>> {
    let kinds: BTreeSet<_> = keys
        .names()
        .filter(|name| name.ends_with("_attention"))
        .collect();
    let Some(&first) = kinds.first() else {
        return Ok(keys);
    };
    if let Some(other) = kinds
        .iter()
        .find(|kind| keys.find(kind) != keys.find(first))
    {
        return Err(keys.error(
            other,
            format!("a rope unlike that of {first} is not supported"),
        ));
    }
    match keys.inside(first)? {
        Some(inner) => Ok(inner),
        None => Err(keys.missing(first)),
    }
}

fn read_scaling(keys: &Keys<'_>, max_positions: usize) -> Result<RopeScaling> {
    refuse_part(keys)?;
    let kind = match keys.text("rope_type")? {
        Some(kind) => Some(kind),
        None => keys.text("type")?,
    };
    match kind.unwrap_or("default") {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear {
            factor: keys.required_positive("factor")?,
        }),
        "llama3" => read_llama3(keys),
        "yarn" => read_yarn(keys, max_positions),
        other => {
            let what = format!("{other:?} is not known; known are default, linear, llama3, yarn");
            Err(keys.error("rope_type", what))
        }
    }
}

fn refuse_part(keys: &Keys<'_>) -> Result<()> {
    match keys.float("partial_rotary_factor")? {
        Some(part) if part.to_bits() != 1f64.to_bits() => {
            let what = format!("rope over a part of the head ({part}) is not supported");
            Err(keys.error("partial_rotary_factor", what))
        }
        _ => Ok(()),
    }
}

fn read_llama3(keys: &Keys<'_>) -> Result<RopeScaling> {
    let low = keys.required_positive("low_freq_factor")?;
    let high = keys.required_positive("high_freq_factor")?;
    if low >= high {
        let what = format!("expected less than high_freq_factor {high}, found {low}");
        return Err(keys.error("low_freq_factor", what));
    }
    Ok(RopeScaling::Llama3 {
        factor: keys.required_positive("factor")?,
        low,
        high,
        original: keys.required_size("original_max_position_embeddings", MAX_SIZE)?,
    })
}

fn read_yarn(keys: &Keys<'_>, max_positions: usize) -> Result<RopeScaling> {
    let original = keys.size("original_max_position_embeddings", MAX_SIZE)?;
    let factor = match (keys.positive("factor")?, original) {
        (Some(factor), _) => factor,
        (None, Some(original)) => max_positions as f64 / original as f64,
        (None, None) => return Err(keys.missing("factor")),
    };
    Ok(RopeScaling::Yarn {
        factor,
        original: original.unwrap_or(max_positions),
        beta_fast: keys.positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.positive("beta_slow")?.unwrap_or(1.0),
        attention_factor: keys.positive("attention_factor")?,
        mscale: keys.float("mscale")?,
        mscale_all_dim: keys.float("mscale_all_dim")?,
        truncate: keys
            .find("truncate")
            .and_then(Value::as_bool)
            .unwrap_or(true),
    })
}
