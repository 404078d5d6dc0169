//! The canonical names of tensors: those of the Llama and Qwen checkpoints.

use std::borrow::Cow;

/// The canonical spelling of a name in a safetensors file. Checkpoints of a model inside a larger
/// one, and of a model saved without its head, carry other prefixes.
pub(super) fn canonical(name: &str) -> String {
    let inner = name
        .strip_prefix("model.language_model.")
        .map(|rest| format!("model.{rest}"));
    if let Some(rest) = name.strip_prefix("model.visual.") {
        return format!("visual.{rest}");
    }
    let name = match inner {
        Some(name) => Cow::Owned(name),
        None => Cow::Borrowed(name.strip_prefix("language_model.").unwrap_or(name)),
    };
    let bare = ["embed_tokens.", "layers.", "norm."];
    if bare.iter().any(|prefix| name.starts_with(prefix)) {
        return format!("model.{name}");
    }
    name.into_owned()
}

/// The canonical spelling of a name in a GGUF file, if it is one of a decoder's.
pub(super) fn of_gguf(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some(EMBEDDING.to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        "output.weight" => return Some(HEAD.to_owned()),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, kind) = part.rsplit_once('.')?;
    let (_, canonical) = LAYER_PARTS.iter().find(|(gguf, _)| *gguf == part)?;
    let number = layer.bytes().all(|byte| byte.is_ascii_digit());
    (number && ["weight", "bias"].contains(&kind))
        .then(|| format!("model.layers.{layer}.{canonical}.{kind}"))
}

/// The embedding table.
pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";

/// The head, where it is not the embedding table.
pub(super) const HEAD: &str = "lm_head.weight";

/// The parts of a layer as GGUF and as this engine call them.
const LAYER_PARTS: [(&str, &str); 11] = [
    ("attn_k", "self_attn.k_proj"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_norm", "input_layernorm"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_v", "self_attn.v_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_up", "mlp.up_proj"),
];
