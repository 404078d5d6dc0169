//! The shape of a model, whatever file it came from.

use std::path::Path;

use cider_kernels::RopeConfig;

use super::tensor::Encoding;
use crate::error::{Error, Result};

/// Everything about a model but its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which family's forward pass it is.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple of it.
    pub kv_heads: usize,
    /// Width of a head; `heads * head_size` need not be `hidden_size`.
    pub head_size: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Positions the model was made for, rope scaling included.
    pub max_positions: usize,
    /// The epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// The rotary embedding.
    pub rope: RopeConfig,
    /// The head is the embedding table: there is no `lm_head.weight`.
    pub tied: bool,
    /// Per layer, how many keys a query sees, its own included; `None` is all of them.
    pub window: Vec<Option<usize>>,
    /// Queries and keys are RMS-normalised per head before rope.
    pub qk_norm: bool,
    /// Which linears have a bias.
    pub biases: Biases,
    /// The token a text begins with.
    pub bos: Option<u32>,
    /// The tokens that end a text, by the model's configuration.
    pub eos: Vec<u32>,
    /// The dtype the configuration says its weights have; each tensor is read by its own.
    pub stored_dtype: Option<Encoding>,
}

/// The families of models; one forward pass each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, `SmolLM2`, Mistral.
    Llama,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3.
    Qwen3,
}

/// Which linears of a layer have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Query, key and value projections.
    pub qkv: bool,
    /// The projection after attention.
    pub output: bool,
    /// Gate, up and down projections.
    pub mlp: bool,
}

impl ModelConfig {
    /// What no single key can be checked for: the keys together.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        let (heads, kv_heads, head_size) = (self.heads, self.kv_heads, self.head_size);
        if !heads.is_multiple_of(kv_heads) {
            let what = format!("{heads} heads are not a multiple of {kv_heads} key-value heads");
            return Err(Error::config(path, "num_key_value_heads", what));
        }
        if !head_size.is_multiple_of(2) {
            let what = format!("rope needs an even head size, found {head_size}");
            return Err(Error::config(path, "head_dim", what));
        }
        if heads * head_size > MAX_SIZE {
            let what = format!("{heads} heads of {head_size} are wider than {MAX_SIZE}");
            return Err(Error::config(path, "num_attention_heads", what));
        }
        let base = self.rope.base;
        if base <= 1.0 {
            let what = format!("expected a number above 1, found {base}");
            return Err(Error::config(path, "rope_theta", what));
        }
        if let Some(factors) = &self.rope.factors {
            check_factors(factors, head_size, path)?;
        }
        match self
            .eos
            .iter()
            .chain(&self.bos)
            .find(|&&id| id as usize >= self.vocab_size)
        {
            Some(id) => {
                let what = format!("id {id} is outside the vocabulary of {}", self.vocab_size);
                Err(Error::config(path, "eos_token_id", what))
            }
            None => Ok(()),
        }
    }
}

impl Architecture {
    /// The families, for messages.
    pub(super) const KNOWN: &'static str = "llama, mistral, qwen2, qwen3";

    /// The families, as GGUF files call them.
    pub(super) const IN_GGUF: &'static str = "llama, qwen2, qwen3";

    /// The family's name, as `model_type` and `general.architecture` spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

fn check_factors(factors: &[f32], head_size: usize, path: &Path) -> Result<()> {
    if factors.len() != head_size / 2 {
        let what = format!(
            "expected {} factors, found {}",
            head_size / 2,
            factors.len()
        );
        return Err(Error::tensor(path, "rope_freqs.weight", what));
    }
    match factors
        .iter()
        .find(|factor| !(factor.is_finite() && **factor > 0.0))
    {
        Some(factor) => {
            let what = format!("expected positive factors, found {factor}");
            Err(Error::tensor(path, "rope_freqs.weight", what))
        }
        None => Ok(()),
    }
}

/// The largest width, vocabulary or context that is believed: products of two fit any counter.
pub(super) const MAX_SIZE: usize = 1 << 24;

/// The largest number of layers that is believed.
pub(super) const MAX_LAYERS: usize = 1 << 12;
