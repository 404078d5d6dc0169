//! The rotary embedding of a `config.json`, in both spellings: `rope_theta` beside `rope_scaling`,
//! or both inside `rope_parameters`.

use std::collections::BTreeSet;

use cider_kernels::{RopeConfig, RopeScaling};

use super::config::{Architecture, MAX_SIZE};
use super::json::Keys;
use crate::error::Result;

/// Reads the rotary embedding of heads of `head_size`, in a model of `max_positions`.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: Architecture,
    head_size: usize,
    max_positions: usize,
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
        rotary_size: head_size,
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
            let stretched = (original * factor) as usize;
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
    let original = keys.required_size("original_max_position_embeddings", MAX_SIZE)?;
    Ok(RopeScaling::Llama3 {
        factor: keys.required_positive("factor")?,
        low,
        high,
        original: original as f64,
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
        original: original.unwrap_or(max_positions) as f64,
        beta_fast: keys.positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.positive("beta_slow")?.unwrap_or(1.0),
        attention_factor: attention_factor(keys, factor)?,
        truncate: keys.flag("truncate")?.unwrap_or(true),
    })
}

/// What cosine and sine are multiplied by: said, or a ratio of two that are said, or what follows
/// from the stretch.
fn attention_factor(keys: &Keys<'_>, factor: f64) -> Result<f64> {
    if let Some(said) = keys.positive("attention_factor")? {
        return Ok(said);
    }
    let above = keys.float("mscale")?.filter(|&scale| scale != 0.0);
    let below = keys.float("mscale_all_dim")?.filter(|&scale| scale != 0.0);
    let ratio = match (above, below) {
        (Some(above), Some(below)) => stretch(factor, above) / stretch(factor, below),
        _ => stretch(factor, 1.0),
    };
    if !(ratio.is_finite() && ratio > 0.0) {
        return Err(keys.error("mscale", format!("leads to an attention factor of {ratio}")));
    }
    Ok(ratio)
}

/// The factor on cosine and sine that goes with stretching by `factor`.
pub(super) fn stretch(factor: f64, scale: f64) -> f64 {
    if factor > 1.0 {
        0.1 * scale * factor.ln() + 1.0
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// The factor on attention follows from the stretch, unless the configuration names it.
    #[test]
    fn attention_factors_of_yarn() {
        for (parameters, stretched, expected) in [
            (json!({}), 4.0, 1.138_629),
            (json!({}), 1.0, 1.0),
            (json!({"attention_factor": 1.5}), 4.0, 1.5),
            (json!({"mscale": 0.707, "mscale_all_dim": 0.707}), 40.0, 1.0),
            (json!({"mscale": 0.707}), 4.0, 1.138_629),
        ] {
            let object = parameters.as_object().unwrap();
            let keys = Keys::new(Path::new("config.json"), object);
            let found = attention_factor(&keys, stretched).unwrap();
            assert!((found - expected).abs() < 1e-6, "{parameters}: {found}");
        }
    }
}
