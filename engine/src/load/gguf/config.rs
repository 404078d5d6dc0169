//! GGUF metadata to [`ModelConfig`] and [`GenerationConfig`].

use cider_kernels::{RopeConfig, RopeScaling};

use super::super::config::{Architecture, Biases, MAX_LAYERS, MAX_SIZE, ModelConfig};
use super::super::generation::GenerationConfig;
use super::super::json;
use super::super::names::{EMBEDDING, HEAD};
use super::super::rope_json;
use super::super::tensor::{RowOrder, TensorMap};
use super::{Gguf, Metadata};
use crate::error::{Error, Result};

/// The configuration of the model in `gguf`, whose tensors are put in the model's order.
pub(in crate::load) fn model_config(gguf: &mut Gguf) -> Result<ModelConfig> {
    let architecture = architecture(&gguf.metadata)?;
    let factors = take_factors(&mut gguf.tensors)?;
    let keys = ArchitectureKeys {
        metadata: &gguf.metadata,
        name: architecture.name(),
    };
    refuse_unsupported(&keys)?;
    let layers = keys.required_size("block_count", MAX_LAYERS)?;
    let heads = keys.required_size("attention.head_count", MAX_SIZE)?;
    let hidden_size = keys.required_size("embedding_length", MAX_SIZE)?;
    let head_size = head_size(&keys, hidden_size, heads)?;
    let max_positions = keys.required_size("context_length", MAX_SIZE)?;
    let rope = RopeConfig {
        base: rope_base(&keys, architecture)?,
        rotary_size: head_size,
        scaling: rope_scaling(&keys, max_positions)?,
        factors,
    };
    let config = ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: keys.required_size("feed_forward_length", MAX_SIZE)?,
        layers,
        heads,
        kv_heads: keys
            .size("attention.head_count_kv", MAX_SIZE)?
            .unwrap_or(heads),
        head_size,
        vocab_size: vocab_size(&gguf.tensors)?,
        max_positions: rope_json::reach(&rope.scaling, max_positions),
        rms_norm_eps: keys.required_epsilon("attention.layer_norm_rms_epsilon")?,
        rope,
        tied: !gguf.tensors.contains(HEAD),
        window: vec![window(&keys, architecture)?; layers],
        qk_norm: architecture == Architecture::Qwen3,
        sections: None,
        vision: None,
        biases: biases(&gguf.tensors, architecture),
        bos: keys.token("tokenizer.ggml.bos_token_id")?,
        eos: end_tokens(&keys)?,
        stored_dtype: None,
    };
    config.check(gguf.metadata.path())?;
    if architecture == Architecture::Llama {
        set_row_order(&mut gguf.tensors, &config);
    }
    Ok(config)
}

/// What the file says about sampling.
pub(in crate::load) fn generation(
    metadata: &Metadata,
    config: &ModelConfig,
) -> Result<GenerationConfig> {
    let keys = ArchitectureKeys { metadata, name: "" };
    let share = |key| keys.within(key, 0.0, 1.0);
    Ok(GenerationConfig {
        temperature: keys.within("general.sampling.temp", 0.0, f64::from(f32::MAX))?,
        top_k: keys.whole("general.sampling.top_k")?,
        top_p: share("general.sampling.top_p")?,
        min_p: share("general.sampling.min_p")?,
        repetition_penalty: keys.within(
            "general.sampling.penalty_repeat",
            f64::from(f32::MIN_POSITIVE),
            1e6,
        )?,
        ..GenerationConfig::of(config)
    })
}

fn architecture(metadata: &Metadata) -> Result<Architecture> {
    let key = "general.architecture";
    let name = metadata.string(key)?;
    let known = [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
    ];
    known
        .into_iter()
        .find(|architecture| name == Some(architecture.name()))
        .ok_or_else(|| {
            let found = name.map_or("missing".to_owned(), |name| {
                format!("{name:?} is not known")
            });
            metadata.error(key, format!("{found}; known are {}", Architecture::IN_GGUF))
        })
}

fn refuse_unsupported(keys: &ArchitectureKeys<'_>) -> Result<()> {
    let parts = keys.metadata.unsigned("split.count")?.unwrap_or(1);
    if parts > 1 {
        let what = format!("one of {parts} parts of a split file is not supported: merge them");
        return Err(keys.metadata.error("split.count", what));
    }
    let experts = keys.key("expert_count");
    match keys.metadata.unsigned(&experts)? {
        Some(count) if count > 0 => {
            let what = format!("a mixture of {count} experts is not supported");
            Err(keys.metadata.error(&experts, what))
        }
        _ => Ok(()),
    }
}

fn head_size(keys: &ArchitectureKeys<'_>, hidden_size: usize, heads: usize) -> Result<usize> {
    let size = match keys.size("attention.key_length", MAX_SIZE)? {
        Some(size) => size,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            let what =
                format!("missing, and the width {hidden_size} is no multiple of {heads} heads");
            return Err(keys.error("attention.key_length", what));
        }
    };
    for part in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = keys.size(part, MAX_SIZE)?.filter(|&other| other != size) {
            return Err(keys.error(
                part,
                format!("expected the head size {size}, found {other}"),
            ));
        }
    }
    Ok(size)
}

fn vocab_size(tensors: &TensorMap) -> Result<usize> {
    match tensors.get(EMBEDDING) {
        Some(table) if table.rows() <= MAX_SIZE => Ok(table.rows()),
        Some(table) => {
            let what = format!("{} rows are more than {MAX_SIZE}", table.rows());
            Err(Error::tensor(tensors.path(), EMBEDDING, what))
        }
        None => Err(Error::tensor(
            tensors.path(),
            EMBEDDING,
            "missing (token_embd.weight)",
        )),
    }
}

/// Takes out `rope_freqs.weight`, which is no weight of a layer.
fn take_factors(tensors: &mut TensorMap) -> Result<Option<Vec<f32>>> {
    let Some(factors) = tensors.get(FACTORS) else {
        return Ok(None);
    };
    if factors.rows() != 1 || factors.cols() > MAX_SIZE {
        let what = format!(
            "expected one factor per pair, found shape {:?}",
            factors.shape()
        );
        return Err(Error::tensor(tensors.path(), FACTORS, what));
    }
    let factors = factors.read_all();
    tensors.remove(FACTORS);
    Ok(Some(factors))
}

fn rope_base(keys: &ArchitectureKeys<'_>, architecture: Architecture) -> Result<f64> {
    match (keys.positive("rope.freq_base")?, architecture) {
        (Some(base), _) => Ok(base),
        (None, Architecture::Llama) => Ok(10_000.0),
        (None, _) => Err(keys.missing("rope.freq_base")),
    }
}

fn rope_scaling(keys: &ArchitectureKeys<'_>, max_positions: usize) -> Result<RopeScaling> {
    let factor = keys.positive("rope.scaling.factor")?;
    let key = "rope.scaling.type";
    match keys.metadata.string(&keys.key(key))? {
        None | Some("none") => Ok(RopeScaling::Default),
        Some("linear") => {
            let factor = factor.ok_or_else(|| keys.missing("rope.scaling.factor"))?;
            Ok(RopeScaling::Linear { factor })
        }
        Some("yarn") => {
            let factor = factor.ok_or_else(|| keys.missing("rope.scaling.factor"))?;
            let original = keys.size("rope.scaling.original_context_length", MAX_SIZE)?;
            // The format's factor multiplies the one that follows from the stretch.
            let attention = keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
            Ok(RopeScaling::Yarn {
                factor,
                original: original.unwrap_or(max_positions) as f64,
                beta_fast: keys
                    .positive("rope.scaling.yarn_beta_fast")?
                    .unwrap_or(32.0),
                beta_slow: keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: attention * rope_json::stretch(factor, 1.0),
                truncate: true,
            })
        }
        Some(other) => {
            let what = format!("{other:?} is not known; known are none, linear, yarn");
            Err(keys.error(key, what))
        }
    }
}

/// Qwen's files do not say whether their window is in use; it is not in any that was published.
fn window(keys: &ArchitectureKeys<'_>, architecture: Architecture) -> Result<Option<usize>> {
    match architecture {
        Architecture::Llama => keys.whole(&keys.key("attention.sliding_window")),
        Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Qwen3Vl => Ok(None),
    }
    .map(|window| window.filter(|&window| window > 0))
}

/// The file says which biases there are by having them.
fn biases(tensors: &TensorMap, architecture: Architecture) -> Biases {
    let has = |part: &str| tensors.contains(&format!("model.layers.0.{part}.bias"));
    Biases {
        qkv: architecture == Architecture::Qwen2 || has("self_attn.q_proj"),
        output: has("self_attn.o_proj"),
        mlp: has("mlp.down_proj"),
    }
}

fn end_tokens(keys: &ArchitectureKeys<'_>) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        let id = keys.token(&format!("tokenizer.ggml.{name}_token_id"))?;
        ids.extend(id.filter(|id| !ids.contains(id)));
    }
    Ok(ids)
}

/// The converter of this architecture interleaves the halves of query and key heads.
fn set_row_order(tensors: &mut TensorMap, config: &ModelConfig) {
    let order = RowOrder::Interleaved {
        head_size: config.head_size,
    };
    for layer in 0..config.layers {
        for part in [
            "q_proj.weight",
            "q_proj.bias",
            "k_proj.weight",
            "k_proj.bias",
        ] {
            let entry = tensors.entry_mut(&format!("model.layers.{layer}.self_attn.{part}"));
            if let Some(entry) = entry.filter(|entry| entry.shape[0] % config.head_size == 0) {
                entry.order = order;
            }
        }
    }
}

/// The keys below the architecture's name.
struct ArchitectureKeys<'a> {
    metadata: &'a Metadata,
    name: &'static str,
}

impl ArchitectureKeys<'_> {
    fn key(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }

    /// A number in `1..=limit`, or an array of the same for every layer.
    fn size(&self, part: &str, limit: usize) -> Result<Option<usize>> {
        let key = self.key(part);
        let size = match self.metadata.array_length(&key) {
            Some(_) => self.same_for_all(&key)?,
            None => self.metadata.unsigned(&key)?,
        };
        match size {
            Some(size) if (1..=limit as u64).contains(&size) => Ok(Some(size as usize)),
            Some(size) => {
                let what = format!("expected a whole number from 1 to {limit}, found {size}");
                Err(self.metadata.error(&key, what))
            }
            None => Ok(None),
        }
    }

    fn same_for_all(&self, key: &str) -> Result<Option<u64>> {
        let Some(mut sizes) = self.metadata.integers(key)? else {
            return Ok(None);
        };
        let first = sizes.next().unwrap_or_default();
        if let Some(other) = sizes.find(|&size| size != first) {
            let what = format!("layers of different sizes ({first} and {other}) are not supported");
            return Err(self.metadata.error(key, what));
        }
        Ok(Some(u64::try_from(first).unwrap_or_default()))
    }

    fn required_size(&self, part: &str, limit: usize) -> Result<usize> {
        self.size(part, limit)?.ok_or_else(|| self.missing(part))
    }

    fn positive(&self, part: &str) -> Result<Option<f64>> {
        match self.metadata.float(&self.key(part))? {
            Some(number) if !(number.is_finite() && number > 0.0) => {
                Err(self.error(part, format!("expected a number above 0, found {number}")))
            }
            number => Ok(number),
        }
    }

    fn required_positive(&self, part: &str) -> Result<f64> {
        self.positive(part)?.ok_or_else(|| self.missing(part))
    }

    fn required_epsilon(&self, part: &str) -> Result<f32> {
        json::epsilon(self.required_positive(part)?).map_err(|what| self.error(part, what))
    }

    fn within(&self, key: &str, low: f64, high: f64) -> Result<Option<f32>> {
        match self.metadata.float(key)? {
            Some(number) if !(low..=high).contains(&number) => {
                let what = format!("expected {low} to {high}, found {number}");
                Err(self.metadata.error(key, what))
            }
            number => Ok(number.map(|number| number as f32)),
        }
    }

    /// A whole number from 0.
    fn whole(&self, key: &str) -> Result<Option<usize>> {
        let number = self.metadata.unsigned(key)?;
        Ok(number.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
    }

    fn token(&self, key: &str) -> Result<Option<u32>> {
        let Some(id) = self.metadata.unsigned(key)? else {
            return Ok(None);
        };
        let id = u32::try_from(id);
        id.map(Some)
            .map_err(|_| self.metadata.error(key, "expected a token id"))
    }

    fn error(&self, part: &str, what: impl Into<String>) -> Error {
        self.metadata.error(&self.key(part), what)
    }

    fn missing(&self, part: &str) -> Error {
        self.metadata.missing(&self.key(part))
    }
}

/// The tensor of rope's factors.
const FACTORS: &str = "rope_freqs.weight";
