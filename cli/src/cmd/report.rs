//! The figures of an answer, as a line and as JSON.

use std::path::Path;

use cider::generate::KvCache;
use cider::{DType, Generation, Quantization, Scheme};
use serde::Serialize;

use crate::args::RunArgs;
use crate::console;
use crate::memory::Memory;
use crate::model::Opened;

/// Everything that is known of an answer.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    text: &'a str,
    finish_reason: &'static str,
    prompt_tokens: usize,
    cached_tokens: usize,
    generated_tokens: usize,
    tokens: &'a [u32],
    seed: u64,
    load_seconds: f64,
    first_token_seconds: f64,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
    memory: MemoryReport,
    model: String,
    scheme: &'static str,
    group_size: Option<usize>,
    dtype: DTypeName,
    device: &'static str,
    isa: &'static str,
    threads: usize,
    context: usize,
}

/// Bytes by what they are for.
#[derive(Debug, Serialize)]
struct MemoryReport {
    #[serde(flatten)]
    process: Memory,
    weights: usize,
    /// Keys and values of the tokens that were computed.
    kv_cache: usize,
    /// Keys and values of a full context.
    kv_cache_limit: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum DTypeName {
    Bf16,
    F32,
}

impl<'a> Report<'a> {
    pub(super) fn new(
        path: &Path,
        args: &RunArgs,
        opened: &Opened,
        generation: &'a Generation,
    ) -> Self {
        let runner = opened.engine.runner();
        let dtype = args.options.dtype;
        // The last token was sampled but not computed.
        let tokens = generation.prompt_tokens + generation.generated_tokens.saturating_sub(1);
        let quantization = args.options.quantization();
        Self {
            text: &generation.text,
            finish_reason: generation.reason.as_str(),
            prompt_tokens: generation.prompt_tokens,
            cached_tokens: generation.cached_tokens,
            generated_tokens: generation.generated_tokens,
            tokens: &generation.tokens,
            seed: generation.seed,
            load_seconds: opened.load.as_secs_f64(),
            first_token_seconds: generation.prefill.as_secs_f64(),
            prefill_tokens_per_second: generation.prefill_rate(),
            decode_tokens_per_second: generation.decode_rate(),
            memory: MemoryReport {
                process: opened.memory,
                weights: runner.weight_bytes(),
                kv_cache: tokens * KvCache::bytes_per_token(runner.config(), dtype),
                kv_cache_limit: runner.cache_bytes(),
            },
            model: path.display().to_string(),
            scheme: quantization.scheme.name(),
            group_size: group_size(&quantization),
            dtype: match dtype {
                DType::F32 => DTypeName::F32,
                _ => DTypeName::Bf16,
            },
            device: "cpu",
            isa: opened.backend.isa().name(),
            threads: opened.backend.threads(),
            context: runner.context(),
        }
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        let cached = match self.cached_tokens {
            0 => String::new(),
            cached => format!(" ({cached} cached)"),
        };
        let memory = &self.memory;
        format!(
            "{} prompt tokens{cached}, {} generated; prefill {:.0} tok/s, decode {:.0} tok/s, first token {:.3} s, \
             load {:.3} s; memory: peak {}, anonymous {}, weights {}, kv cache {}",
            self.prompt_tokens,
            self.generated_tokens,
            self.prefill_tokens_per_second,
            self.decode_tokens_per_second,
            self.first_token_seconds,
            self.load_seconds,
            console::bytes(memory.process.resident_peak),
            console::bytes(memory.process.anonymous),
            console::bytes(memory.weights as u64),
            console::bytes(memory.kv_cache as u64),
        )
    }
}

/// Columns that share a scale, where weights have scales.
fn group_size(quantization: &Quantization) -> Option<usize> {
    match quantization.scheme {
        Scheme::None => None,
        scheme => Some(quantization.group_size.unwrap_or(scheme.default_group())),
    }
}
