//! What a checkpoint has in it, and what each scheme would make of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use cider::files::shown;
use cider::generate::CacheType;
use cider::load::{Checkpoint, ModelConfig, SourceKind};
use cider::text::ChatTemplate;
use cider::{
    CpuBackend, DType, Format, Isa, LoadOptions, Quantization, Scheme, TextSide, WeightPlan,
};
use serde::Serialize;

use super::vision::VisionInfo;
use crate::console;

/// A model by its figures.
#[derive(Serialize)]
pub(super) struct ModelInfo {
    path: String,
    source: &'static str,
    architecture: &'static str,
    layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    vocabulary: usize,
    tied_head: bool,
    positions: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    vision: Option<VisionInfo>,
    encodings: BTreeMap<&'static str, Tensors>,
    schemes: Vec<Outcome>,
    kv_cache_bytes_per_token: CacheBytes,
    text: Words,
}

/// Tensors of one encoding.
#[derive(Default, Serialize)]
struct Tensors {
    count: usize,
    bytes: usize,
}

/// What a scheme makes of the model.
#[derive(Serialize)]
struct Outcome {
    scheme: &'static str,
    linears: String,
    linear_bytes: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct CacheBytes {
    bf16: usize,
    f16: usize,
    f32: usize,
    int8: usize,
}

/// The tokenizer and the chat template, or why there are none.
#[derive(Serialize)]
struct Words {
    tokenizer: String,
    tokens: Option<usize>,
    end_tokens: Vec<u32>,
    chat_template: Option<String>,
}

impl ModelInfo {
    /// Opens the checkpoint at `path` and reads what it says; its weights are not read.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let checkpoint = Checkpoint::open(path)?;
        let config = &checkpoint.config;
        Ok(Self {
            path: shown(path).to_string(),
            source: source_name(checkpoint.source),
            architecture: config.architecture.name(),
            layers: config.layers,
            hidden_size: config.hidden_size,
            intermediate_size: config.intermediate_size,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_size: config.head_size,
            vocabulary: config.vocab_size,
            tied_head: config.tied,
            positions: config.max_positions,
            vision: VisionInfo::of(&checkpoint)?,
            encodings: encodings(&checkpoint),
            schemes: outcomes(&checkpoint)?,
            kv_cache_bytes_per_token: CacheBytes::of(config),
            text: Words::of(&checkpoint),
        })
    }

    /// As people read it.
    pub(super) fn text(&self) -> String {
        let mut text = format!("\nmodel {}\n", self.path);
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<14}{value}");
        };
        row("source", self.source.to_owned());
        row(
            "architecture",
            format!(
                "{}: {} layers, hidden {}, inner {}, {} heads and {} key/value heads of {}",
                self.architecture,
                self.layers,
                self.hidden_size,
                self.intermediate_size,
                self.heads,
                self.kv_heads,
                self.head_size
            ),
        );
        let head = if self.tied_head { "tied" } else { "untied" };
        row(
            "vocabulary",
            format!("{}, the head is {head}", self.vocabulary),
        );
        row("positions", self.positions.to_string());
        if let Some(vision) = &self.vision {
            row("vision", vision.tower_line());
            row("images", vision.images_line());
        }
        row("tokenizer", self.text.tokenizer_line());
        let template = self.text.chat_template.clone();
        row(
            "chat template",
            template.unwrap_or_else(|| "none".to_owned()),
        );
        let CacheBytes {
            bf16, f32, int8, ..
        } = self.kv_cache_bytes_per_token;
        row(
            "kv cache",
            format!("{bf16} bytes a token in bf16 or f16, {f32} in f32, {int8} in int8"),
        );
        for (encoding, tensors) in &self.encodings {
            let bytes = console::bytes(tensors.bytes as u64);
            row(
                "tensors",
                format!("{encoding:<6}{:>5}{bytes:>14}", tensors.count),
            );
        }
        for outcome in &self.schemes {
            let (linears, all) = (outcome.linear_bytes as u64, outcome.bytes as u64);
            let line = format!(
                "{:<6}{:<28}{:>12}, with the tables {}",
                outcome.scheme,
                outcome.linears,
                console::bytes(linears),
                console::bytes(all)
            );
            row("scheme", line);
        }
        text
    }
}

impl CacheBytes {
    fn of(config: &ModelConfig) -> Self {
        let of = |kind: CacheType| kind.of(config, DType::Bf16).bytes_per_token(config);
        Self {
            bf16: of(CacheType::Bf16),
            f16: of(CacheType::F16),
            f32: of(CacheType::F32),
            int8: of(CacheType::Int8),
        }
    }
}

impl Words {
    fn of(checkpoint: &Checkpoint) -> Self {
        match TextSide::open(checkpoint, None) {
            Ok(text) => Self {
                tokenizer: "found".to_owned(),
                tokens: Some(text.tokenizer.vocab_size()),
                end_tokens: text.end_tokens,
                chat_template: text
                    .template
                    .as_ref()
                    .map(ChatTemplate::source_name)
                    .map(str::to_owned),
            },
            Err(error) => Self {
                tokenizer: format!("none: {error}").replace("none: tokenizer: ", "none: "),
                tokens: None,
                end_tokens: Vec::new(),
                chat_template: None,
            },
        }
    }

    fn tokenizer_line(&self) -> String {
        match self.tokens {
            Some(tokens) => format!("{tokens} tokens, end tokens {:?}", self.end_tokens),
            None => self.tokenizer.clone(),
        }
    }
}

fn source_name(source: SourceKind) -> &'static str {
    match source {
        SourceKind::Gguf => "GGUF",
        SourceKind::Safetensors => "safetensors",
    }
}

fn encodings(checkpoint: &Checkpoint) -> BTreeMap<&'static str, Tensors> {
    let mut encodings: BTreeMap<_, Tensors> = BTreeMap::new();
    let map = &checkpoint.tensors;
    for tensor in map.names().filter_map(|name| map.get(name)) {
        let entry = encodings.entry(tensor.encoding().name()).or_default();
        entry.count += 1;
        entry.bytes += tensor.nbytes();
    }
    encodings
}

fn outcomes(checkpoint: &Checkpoint) -> Result<Vec<Outcome>> {
    // The layout is the same on every instruction set; one thread is enough to lay nothing out.
    let backend = CpuBackend::new(Isa::Scalar, 1)?;
    let outcome = |scheme: Scheme| {
        let options = LoadOptions {
            quantization: Quantization::of(scheme),
            // Tables of positions are no weights.
            positions: 1,
            ..LoadOptions::default()
        };
        let plan = WeightPlan::of(checkpoint, &backend, &options)?;
        let formats: Vec<String> = plan.formats.iter().map(Format::to_string).collect();
        Ok(Outcome {
            scheme: scheme.name(),
            linears: formats.join(" and "),
            linear_bytes: plan.linear_bytes,
            bytes: plan.bytes,
        })
    };
    Scheme::ALL.into_iter().map(outcome).collect()
}
