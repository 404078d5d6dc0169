//! `config.json` to [`ModelConfig`].

use std::path::Path;

use serde_json::{Map, Value};

use super::config::{Architecture, Biases, MAX_LAYERS, MAX_SIZE, ModelConfig};
use super::json::Keys;
use super::rope_json;
use super::tensor::Encoding;
use super::vision_json;
use crate::error::{Error, Result};

/// Reads the configuration in `object`, which is the content of `path`. Keys of a `text_config`
/// come before those of the top level.
pub(super) fn read(path: &Path, object: &Map<String, Value>) -> Result<ModelConfig> {
    let top = Keys::new(path, object);
    let family = family(&top)?;
    let keys = top.with_inner("text_config")?;
    refuse_unsupported(&keys)?;
    let heads = keys.required_size("num_attention_heads", MAX_SIZE)?;
    let hidden_size = keys.required_size("hidden_size", MAX_SIZE)?;
    let layers = keys.required_size("num_hidden_layers", MAX_LAYERS)?;
    let max_positions = keys.required_size("max_position_embeddings", MAX_SIZE)?;
    let head_size = head_size(&keys, hidden_size, heads)?;
    let rope = rope_json::read(&keys, family.architecture, head_size, max_positions)?;
    let config = ModelConfig {
        architecture: family.architecture,
        hidden_size,
        intermediate_size: keys.required_size("intermediate_size", MAX_SIZE)?,
        layers,
        heads,
        kv_heads: keys.size("num_key_value_heads", MAX_SIZE)?.unwrap_or(heads),
        head_size,
        vocab_size: keys.required_size("vocab_size", MAX_SIZE)?,
        max_positions: rope_json::reach(&rope.scaling, max_positions),
        rms_norm_eps: keys.required_epsilon("rms_norm_eps")?,
        rope,
        tied: tied(&keys)?,
        window: windows(&keys, family, layers)?,
        qk_norm: matches!(
            family.architecture,
            Architecture::Qwen3 | Architecture::Qwen3Vl
        ),
        biases: biases(&keys, family)?,
        sections: vision_json::sections(&keys, family.architecture, head_size)?,
        vision: vision_json::read(&top, family.architecture, hidden_size)?,
        bos: keys
            .token_ids("bos_token_id")?
            .and_then(|ids| ids.first().copied()),
        eos: keys.token_ids("eos_token_id")?.unwrap_or_default(),
        stored_dtype: stored_dtype(&keys)?,
    };
    config.check(path)?;
    Ok(config)
}

/// A row of the table of known configurations.
#[derive(Clone, Copy, PartialEq)]
struct Family {
    class: &'static str,
    model_type: &'static str,
    architecture: Architecture,
    window: WindowRule,
}

/// When a family's `sliding_window` counts.
#[derive(Clone, Copy, PartialEq)]
enum WindowRule {
    /// Always.
    Always,
    /// With `use_sliding_window`, from layer `max_window_layers` on.
    Flag,
    /// Never.
    Never,
}

/// The family by `architectures` and `model_type`: what is there must be known and agree.
fn family(keys: &Keys<'_>) -> Result<Family> {
    let class = keys.list("architectures")?.unwrap_or_default().first();
    let by_class = class.map(|class| {
        let known = FAMILIES
            .into_iter()
            .find(|family| class.as_str() == Some(family.class));
        known.ok_or_else(|| unknown(keys, "architectures", &class.to_string()))
    });
    let by_type = keys.text("model_type")?.map(|model_type| {
        let known = FAMILIES
            .into_iter()
            .find(|family| model_type == family.model_type);
        known.ok_or_else(|| unknown(keys, "model_type", &format!("{model_type:?}")))
    });
    match (by_class.transpose()?, by_type.transpose()?) {
        (Some(class), Some(by_type)) if class != by_type => {
            let what = format!(
                "{:?} does not go with {:?}",
                by_type.model_type, class.class
            );
            Err(keys.error("model_type", what))
        }
        (Some(family), _) | (None, Some(family)) => Ok(family),
        (None, None) => {
            let what = format!(
                "missing, as is architectures; known are {}",
                Architecture::KNOWN
            );
            Err(keys.error("model_type", what))
        }
    }
}

fn unknown(keys: &Keys<'_>, key: &str, found: &str) -> Error {
    keys.error(
        key,
        format!("{found} is not known; known are {}", Architecture::KNOWN),
    )
}

/// What would change the forward pass or the meaning of the weights.
fn refuse_unsupported(keys: &Keys<'_>) -> Result<()> {
    for key in ["hidden_act", "hidden_activation"] {
        if let Some(found) = keys
            .text(key)?
            .filter(|name| !["silu", "swish"].contains(name))
        {
            return Err(keys.error(key, format!("expected \"silu\", found {found:?}")));
        }
    }
    for key in ["quantization_config", "quantization"] {
        if let Some(found) = keys.find(key) {
            let method = found
                .get("quant_method")
                .and_then(Value::as_str)
                .unwrap_or("unnamed");
            return Err(keys.error(
                key,
                format!("quantised checkpoint ({method}) is not supported"),
            ));
        }
    }
    match keys.float("partial_rotary_factor")? {
        Some(part) if part.to_bits() != 1f64.to_bits() => {
            let what = format!("rope over a part of the head ({part}) is not supported");
            Err(keys.error("partial_rotary_factor", what))
        }
        _ => Ok(()),
    }
}

fn head_size(keys: &Keys<'_>, hidden_size: usize, heads: usize) -> Result<usize> {
    if let Some(size) = keys.size("head_dim", MAX_SIZE)? {
        return Ok(size);
    }
    if !hidden_size.is_multiple_of(heads) {
        let what =
            format!("missing, and hidden_size {hidden_size} is no multiple of {heads} heads");
        return Err(keys.error("head_dim", what));
    }
    Ok(hidden_size / heads)
}

/// The flag counts on whichever level it stands.
fn tied(keys: &Keys<'_>) -> Result<bool> {
    let key = "tie_word_embeddings";
    let mut tied = false;
    for value in keys.all(key) {
        tied |= value
            .as_bool()
            .ok_or_else(|| keys.wrong(key, "true or false", value))?;
    }
    Ok(tied)
}

fn biases(keys: &Keys<'_>, family: Family) -> Result<Biases> {
    let attention = keys.flag("attention_bias")?.unwrap_or(false);
    let mlp = keys.flag("mlp_bias")?.unwrap_or(false);
    Ok(match family.architecture {
        Architecture::Llama if family.window == WindowRule::Never => Biases {
            qkv: attention,
            output: attention,
            mlp,
        },
        Architecture::Llama => Biases::default(),
        Architecture::Qwen2 => Biases {
            qkv: true,
            output: false,
            mlp: false,
        },
        Architecture::Qwen3 | Architecture::Qwen3Vl => Biases {
            qkv: attention,
            output: attention,
            mlp: false,
        },
    })
}

fn windows(keys: &Keys<'_>, family: Family, layers: usize) -> Result<Vec<Option<usize>>> {
    let key = "sliding_window";
    let first = match family.window {
        WindowRule::Never => return Ok(vec![None; layers]),
        // A configuration older than the key means the window its family was made with.
        WindowRule::Always if !keys.present(key) => {
            return Ok(vec![Some(MISTRAL_WINDOW); layers]);
        }
        WindowRule::Always => 0,
        WindowRule::Flag if !keys.flag("use_sliding_window")?.unwrap_or(false) => {
            return Ok(vec![None; layers]);
        }
        WindowRule::Flag => first_windowed(keys)?,
    };
    let Some(window) = keys.size(key, usize::MAX)? else {
        return Ok(vec![None; layers]);
    };
    let sliding = match keys.list("layer_types")? {
        Some(types) => layer_types(keys, types, layers)?,
        None => (0..layers).map(|layer| layer >= first).collect(),
    };
    Ok(sliding
        .into_iter()
        .map(|sliding| sliding.then_some(window))
        .collect())
}

/// `max_window_layers`: the number of layers, from the first, that have no window.
fn first_windowed(keys: &Keys<'_>) -> Result<usize> {
    let key = "max_window_layers";
    let Some(value) = keys.find(key) else {
        return Ok(QWEN_FULL_LAYERS);
    };
    let layers = value
        .as_u64()
        .and_then(|layers| usize::try_from(layers).ok());
    layers.ok_or_else(|| keys.wrong(key, "a number of layers", value))
}

/// Per layer, whether it has a window.
fn layer_types(keys: &Keys<'_>, types: &[Value], layers: usize) -> Result<Vec<bool>> {
    let key = "layer_types";
    if types.len() != layers {
        let what = format!(
            "expected {layers} entries (num_hidden_layers), found {}",
            types.len()
        );
        return Err(keys.error(key, what));
    }
    let sliding = types.iter().map(|kind| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(keys.wrong(key, "\"full_attention\" or \"sliding_attention\"", kind)),
    });
    sliding.collect()
}

/// `dtype`, or `torch_dtype` as it was called before.
fn stored_dtype(keys: &Keys<'_>) -> Result<Option<Encoding>> {
    for key in ["dtype", "torch_dtype"] {
        let Some(name) = keys.text(key)? else {
            continue;
        };
        return match name.trim_start_matches("torch.") {
            "float32" => Ok(Some(Encoding::F32)),
            "float16" => Ok(Some(Encoding::F16)),
            "bfloat16" => Ok(Some(Encoding::Bf16)),
            "auto" => Ok(None),
            _ => {
                let what = format!("expected float32, float16 or bfloat16, found {name:?}");
                Err(keys.error(key, what))
            }
        };
    }
    Ok(None)
}

/// Mistral's window where the configuration does not speak of one.
const MISTRAL_WINDOW: usize = 4096;

/// Qwen's `max_window_layers` where the configuration does not give it.
const QWEN_FULL_LAYERS: usize = 28;

/// The known configurations.
const FAMILIES: [Family; 5] = [
    Family {
        class: "LlamaForCausalLM",
        model_type: "llama",
        architecture: Architecture::Llama,
        window: WindowRule::Never,
    },
    Family {
        class: "MistralForCausalLM",
        model_type: "mistral",
        architecture: Architecture::Llama,
        window: WindowRule::Always,
    },
    Family {
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        architecture: Architecture::Qwen2,
        window: WindowRule::Flag,
    },
    Family {
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        architecture: Architecture::Qwen3,
        window: WindowRule::Flag,
    },
    Family {
        class: "Qwen3VLForConditionalGeneration",
        model_type: "qwen3_vl",
        architecture: Architecture::Qwen3Vl,
        window: WindowRule::Never,
    },
];
