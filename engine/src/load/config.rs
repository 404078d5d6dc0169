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
    /// Pairs of a head's elements that turn with time, row and column; `None` where there is one position.
    pub sections: Option<[usize; 3]>,
    /// The vision tower, of models that have one.
    pub vision: Option<VisionConfig>,
    /// The tokens that end a text, by the model's configuration.
    pub eos: Vec<u32>,
    /// The dtype the configuration says its weights have; each tensor is read by its own.
    pub stored_dtype: Option<Encoding>,
}

/// Everything about a vision tower but its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    /// Width of the tower.
    pub hidden_size: usize,
    /// Width of its MLPs.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Heads of each block.
    pub heads: usize,
    /// Pixels along a side of a patch.
    pub patch_size: usize,
    /// Frames of a patch.
    pub temporal_patch_size: usize,
    /// Patches along a side of the square that becomes one token.
    pub merge_size: usize,
    /// Entries along a side of the square table of positions.
    pub table_side: usize,
    /// The base of the rotary embedding.
    pub rope_base: f64,
    /// The blocks after which features are taken out for the decoder's first layers.
    pub deepstack: Vec<usize>,
    /// The token that stands for one merged patch of an image.
    pub image_token: u32,
    /// The token in front of an image.
    pub start_token: u32,
    /// The token behind an image.
    pub end_token: u32,
}

impl VisionConfig {
    /// Values of a patch: three channels.
    #[must_use]
    pub fn patch_values(&self) -> usize {
        3 * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Width of a head.
    #[must_use]
    pub fn head_size(&self) -> usize {
        self.hidden_size / self.heads
    }

    /// Width of the patches that become one token, side by side.
    #[must_use]
    pub fn merged_size(&self) -> usize {
        self.hidden_size * self.merge_size * self.merge_size
    }
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
    /// Qwen3-VL: Qwen3 with a vision tower.
    Qwen3Vl,
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
    /// The axis of positions (time, row, column) that each pair of a head's elements turns with: dealt out in
    /// turn while a section lasts, time for the rest. Empty where there is one axis.
    #[must_use]
    pub fn rope_axes(&self) -> Vec<u8> {
        let Some([_, rows, columns]) = self.sections else {
            return Vec::new();
        };
        let axis = |pair: usize| match pair % 3 {
            1 if pair < 3 * rows => 1,
            2 if pair < 3 * columns => 2,
            _ => 0,
        };
        (0..self.head_size / 2).map(axis).collect()
    }

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
        self.check_tokens(path)
    }

    /// Ids of tokens must be of the vocabulary.
    fn check_tokens(&self, path: &Path) -> Result<()> {
        let ends = self.eos.iter().map(|&id| ("eos_token_id", id));
        let begin = self.bos.iter().map(|&id| ("bos_token_id", id));
        let vision = self.vision.iter().flat_map(|vision| {
            [
                ("image_token_id", vision.image_token),
                ("vision_start_token_id", vision.start_token),
                ("vision_end_token_id", vision.end_token),
            ]
        });
        let mut ids = ends.chain(begin).chain(vision);
        match ids.find(|&(_, id)| id as usize >= self.vocab_size) {
            Some((key, id)) => {
                let what = format!("id {id} is outside the vocabulary of {}", self.vocab_size);
                Err(Error::config(path, key, what))
            }
            None => Ok(()),
        }
    }
}

impl Architecture {
    /// The families, for messages.
    pub(super) const KNOWN: &'static str = "llama, mistral, qwen2, qwen3, qwen3_vl";

    /// The families, as GGUF files call them.
    pub(super) const IN_GGUF: &'static str = "llama, qwen2, qwen3";

    /// The family's name, as `model_type` and `general.architecture` spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Vl => "qwen3_vl",
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
