//! The tensors a model must have: checked before anything is allocated.

use std::collections::HashSet;

use super::config::{ModelConfig, VisionConfig};
use super::names::{EMBEDDING, HEAD};
use super::tensor::TensorMap;
use crate::error::{Error, Result};
use crate::files::shown;

/// Checks that `tensors` has every tensor of the model in its shape, settles what its head is, and
/// takes out (with one warning) what the model has no place for.
pub(super) fn settle(config: &mut ModelConfig, tensors: &mut TensorMap) -> Result<()> {
    settle_head(config, tensors)?;
    let expected = expected(config);
    check_present(config, tensors, &expected)?;
    for (name, shape) in &expected {
        tensors.require(name, shape)?;
    }
    refuse_levels(config, tensors, &expected)?;
    remove_surplus(tensors, &expected);
    Ok(())
}

/// A tied model has no head of its own, or an equal one. One that differs is what was trained.
fn settle_head(config: &mut ModelConfig, tensors: &mut TensorMap) -> Result<()> {
    if !config.tied || !tensors.contains(HEAD) {
        return Ok(());
    }
    let shape = [config.vocab_size, config.hidden_size];
    let head = tensors.require(HEAD, &shape)?;
    if tensors.require(EMBEDDING, &shape)?.same_as(&head) {
        tensors.remove(HEAD);
    } else {
        let path = shown(tensors.path());
        tracing::warn!("{path}: {HEAD} differs from {EMBEDDING}, to which it is tied: it is used");
        config.tied = false;
    }
    Ok(())
}

fn check_present(
    config: &ModelConfig,
    tensors: &TensorMap,
    expected: &[(String, Vec<usize>)],
) -> Result<()> {
    let mut missing = expected.iter().filter(|(name, _)| !tensors.contains(name));
    let Some((first, _)) = missing.next() else {
        return Ok(());
    };
    let what = match missing.count() {
        0 if first == HEAD && !config.tied => "missing, and tie_word_embeddings is not true".into(),
        0 => "missing".to_owned(),
        others => format!("missing, and {others} others"),
    };
    Err(Error::tensor(tensors.path(), first, what))
}

/// Features that a tower was trained to hand on, and that nobody asks for, would be missed in every answer.
fn refuse_levels(
    config: &ModelConfig,
    tensors: &TensorMap,
    expected: &[(String, Vec<usize>)],
) -> Result<()> {
    let Some(vision) = &config.vision else {
        return Ok(());
    };
    let surplus = tensors
        .all_names()
        .find(|&name| name.starts_with(LEVELS) && expected.iter().all(|(known, _)| known != name));
    match surplus {
        Some(name) => {
            let levels = vision.deepstack.len();
            let what = format!("has no place among the {levels} deepstack_visual_indexes");
            Err(Error::tensor(tensors.path(), name, what))
        }
        None => Ok(()),
    }
}

fn remove_surplus(tensors: &mut TensorMap, expected: &[(String, Vec<usize>)]) {
    let known: HashSet<_> = expected.iter().map(|(name, _)| name.as_str()).collect();
    let surplus: Vec<_> = tensors
        .all_names()
        .filter(|name| !known.contains(name))
        .map(str::to_owned)
        .collect();
    for name in &surplus {
        tensors.remove(name);
    }
    // Old checkpoints carry rope's frequencies, which follow from the configuration.
    let odd: Vec<_> = surplus
        .iter()
        .filter(|name| !name.ends_with("rotary_emb.inv_freq"))
        .collect();
    if let Some(first) = odd.first() {
        let (path, count) = (shown(tensors.path()), odd.len());
        tracing::warn!("{path}: {count} tensors have no place in the model, {first} the first");
    }
}

/// Every tensor of the model, with its shape.
fn expected(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, vocab) = (config.hidden_size, config.vocab_size);
    let mut expected = vec![(EMBEDDING.to_owned(), vec![vocab, hidden])];
    for layer in 0..config.layers {
        for (part, shape) in layer_parts(config) {
            expected.push((format!("model.layers.{layer}.{part}"), shape));
        }
    }
    expected.push(("model.norm.weight".to_owned(), vec![hidden]));
    if let Some(vision) = &config.vision {
        expected.extend(vision_parts(vision, hidden));
    }
    if !config.tied {
        expected.push((HEAD.to_owned(), vec![vocab, hidden]));
    }
    expected
}

/// The tensors of a vision tower whose tokens are `out` wide.
fn vision_parts(vision: &VisionConfig, out: usize) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner, merged) = (
        vision.hidden_size,
        vision.intermediate_size,
        vision.merged_size(),
    );
    let (frames, side) = (vision.temporal_patch_size, vision.patch_size);
    let mut parts = Vec::new();
    let mut part = |name: String, shape: &[usize]| {
        parts.push((format!("visual.{name}.weight"), shape.to_vec()));
        parts.push((format!("visual.{name}.bias"), vec![shape[0]]));
    };
    part(
        "patch_embed.proj".to_owned(),
        &[hidden, 3, frames, side, side],
    );
    for block in 0..vision.blocks {
        for (name, shape) in [
            ("norm1", &[hidden][..]),
            ("norm2", &[hidden]),
            ("attn.qkv", &[3 * hidden, hidden]),
            ("attn.proj", &[hidden, hidden]),
            ("mlp.linear_fc1", &[inner, hidden]),
            ("mlp.linear_fc2", &[hidden, inner]),
        ] {
            part(format!("blocks.{block}.{name}"), shape);
        }
    }
    let stacked =
        (0..vision.deepstack.len()).map(|i| (format!("deepstack_merger_list.{i}"), merged));
    for (merger, norm) in stacked.chain([("merger".to_owned(), hidden)]) {
        part(format!("{merger}.norm"), &[norm]);
        part(format!("{merger}.linear_fc1"), &[merged, merged]);
        part(format!("{merger}.linear_fc2"), &[out, merged]);
    }
    let entries = vision.table_side * vision.table_side;
    parts.push(("visual.pos_embed.weight".to_owned(), vec![entries, hidden]));
    parts
}

fn layer_parts(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner, biases) = (config.hidden_size, config.intermediate_size, config.biases);
    let queries = config.heads * config.head_size;
    let keys = config.kv_heads * config.head_size;
    let linears = [
        ("self_attn.q_proj", queries, hidden, biases.qkv),
        ("self_attn.k_proj", keys, hidden, biases.qkv),
        ("self_attn.v_proj", keys, hidden, biases.qkv),
        ("self_attn.o_proj", hidden, queries, biases.output),
        ("mlp.gate_proj", inner, hidden, biases.mlp),
        ("mlp.up_proj", inner, hidden, biases.mlp),
        ("mlp.down_proj", hidden, inner, biases.mlp),
    ];
    let mut parts = vec![
        ("input_layernorm.weight".to_owned(), vec![hidden]),
        ("post_attention_layernorm.weight".to_owned(), vec![hidden]),
    ];
    if config.qk_norm {
        parts.push(("self_attn.q_norm.weight".to_owned(), vec![config.head_size]));
        parts.push(("self_attn.k_norm.weight".to_owned(), vec![config.head_size]));
    }
    for (name, rows, cols, bias) in linears {
        parts.push((format!("{name}.weight"), vec![rows, cols]));
        if bias {
            parts.push((format!("{name}.bias"), vec![rows]));
        }
    }
    parts
}

/// What the names of the weights of intermediate features begin with.
const LEVELS: &str = "visual.deepstack_merger_list.";
