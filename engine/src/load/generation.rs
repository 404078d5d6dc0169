//! How a checkpoint's makers generate with it.

use std::path::Path;

use serde_json::{Map, Value};

use super::config::ModelConfig;
use super::json::Keys;
use crate::error::Result;

/// The defaults a checkpoint brings for generation; `None` is "not said".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// The tokens that end a text.
    pub eos: Vec<u32>,
    /// The token a text begins with.
    pub bos: Option<u32>,
    /// Whether to sample at all; without, the likeliest token is taken.
    pub do_sample: Option<bool>,
    /// What the logits are divided by.
    pub temperature: Option<f32>,
    /// How many of the likeliest tokens are kept; 0 is all.
    pub top_k: Option<usize>,
    /// The likeliest tokens up to this sum of probabilities are kept.
    pub top_p: Option<f32>,
    /// Tokens at least this share as likely as the likeliest are kept.
    pub min_p: Option<f32>,
    /// What the logits of tokens that occurred are divided by.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// What the model's configuration alone says.
    pub(super) fn of(config: &ModelConfig) -> Self {
        Self {
            eos: config.eos.clone(),
            bos: config.bos,
            ..Self::default()
        }
    }

    /// Reads `generation_config.json`, the content of `path`; end tokens it does not name are those
    /// of the model's configuration.
    pub(super) fn read(
        path: &Path,
        object: &Map<String, Value>,
        config: &ModelConfig,
    ) -> Result<Self> {
        let keys = Keys::new(path, object);
        let bos = keys
            .token_ids("bos_token_id")?
            .and_then(|ids| ids.first().copied());
        let read = Self {
            eos: keys
                .token_ids("eos_token_id")?
                .unwrap_or_else(|| config.eos.clone()),
            bos: bos.or(config.bos),
            do_sample: keys.flag("do_sample")?,
            temperature: within(&keys, "temperature", 0.0, f64::from(f32::MAX))?,
            top_k: top_k(&keys)?,
            top_p: within(&keys, "top_p", 0.0, 1.0)?,
            min_p: within(&keys, "min_p", 0.0, 1.0)?,
            repetition_penalty: keys
                .positive("repetition_penalty")?
                .map(|number| number as f32),
        };
        let ends = read.eos.iter().map(|&id| ("eos_token_id", id));
        let begin = read.bos.iter().map(|&id| ("bos_token_id", id));
        let mut ids = ends.chain(begin);
        match ids.find(|&(_, id)| id as usize >= config.vocab_size) {
            Some((key, id)) => {
                let what = format!("id {id} is outside the vocabulary of {}", config.vocab_size);
                Err(keys.error(key, what))
            }
            None => Ok(read),
        }
    }
}

fn within(keys: &Keys<'_>, key: &str, low: f64, high: f64) -> Result<Option<f32>> {
    match keys.float(key)? {
        Some(number) if !(low..=high).contains(&number) => {
            Err(keys.error(key, format!("expected {low} to {high}, found {number}")))
        }
        number => Ok(number.map(|number| number as f32)),
    }
}

fn top_k(keys: &Keys<'_>) -> Result<Option<usize>> {
    let Some(value) = keys.find("top_k") else {
        return Ok(None);
    };
    // -1 is how some write "all".
    match (value.as_i64(), value.as_u64()) {
        (Some(-1), _) => Ok(Some(0)),
        (_, Some(kept)) => Ok(usize::try_from(kept).ok()),
        _ => Err(keys.wrong("top_k", "a number of tokens", value)),
    }
}
