//! The figures of an answer, as a line and as JSON.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use cider::{DType, Generation, ImageTimes, Quantization, Scheme};
use serde::Serialize;

use crate::args::RunArgs;
use crate::console;
use crate::memory::Memory;
use crate::model::Opened;
use crate::pictures::Seen;

/// Everything that is known of an answer.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    text: &'a str,
    finish_reason: &'static str,
    prompt_tokens: usize,
    cached_tokens: usize,
    generated_tokens: usize,
    images: usize,
    image_tokens: usize,
    tokens: &'a [u32],
    seed: u64,
    load_seconds: f64,
    first_token_seconds: f64,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
    phases: Phases,
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

/// Where the time of an answer went.
#[derive(Debug, Serialize)]
struct Phases {
    /// Reading, decoding, resizing and cutting.
    image_preprocessing: Phase,
    vision_tower: Phase,
    prefill: Phase,
    decode: Phase,
}

#[derive(Debug, Serialize)]
struct Phase {
    seconds: f64,
    /// Of all four phases, 0 to 1.
    share: f64,
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
        seen: Seen,
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
            images: seen.images,
            image_tokens: seen.tokens,
            tokens: &generation.tokens,
            seed: generation.seed,
            load_seconds: opened.load.as_secs_f64(),
            first_token_seconds: first_token(generation, &seen.times).as_secs_f64(),
            prefill_tokens_per_second: generation.prefill_rate(),
            decode_tokens_per_second: generation.decode_rate(),
            phases: Phases::new(generation, &seen.times),
            memory: MemoryReport {
                process: opened.memory,
                weights: runner.weight_bytes(),
                kv_cache: tokens * runner.cache_types().bytes_per_token(runner.config()),
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
        let mut prompt = format!("{} prompt tokens", self.prompt_tokens);
        if self.images > 0 {
            let noun = if self.images == 1 { "image" } else { "images" };
            let _ = write!(
                prompt,
                " ({} for {} {noun})",
                self.image_tokens, self.images
            );
        }
        if self.cached_tokens > 0 {
            let _ = write!(prompt, " ({} cached)", self.cached_tokens);
        }
        let memory = &self.memory;
        format!(
            "{prompt}, {} generated; {}; first token {:.3} s, load {:.3} s; memory: peak {}, anonymous {}, weights {}, \
             kv cache {}",
            self.generated_tokens,
            self.phases_line(),
            self.first_token_seconds,
            self.load_seconds,
            console::bytes(memory.process.resident_peak),
            console::bytes(memory.process.anonymous),
            console::bytes(memory.weights as u64),
            console::bytes(memory.kv_cache as u64),
        )
    }

    /// The phases that the answer had, each with its share of the time.
    fn phases_line(&self) -> String {
        let share = |phase: &Phase| format!("{:.3} s ({:.0} %", phase.seconds, 100.0 * phase.share);
        let phases = &self.phases;
        let seen = if self.images > 0 {
            format!(
                "image preprocessing {}), vision tower {}), ",
                share(&phases.image_preprocessing),
                share(&phases.vision_tower)
            )
        } else {
            String::new()
        };
        // An answer that was stopped in its prompt has no rate.
        if self.generated_tokens == 0 {
            return format!("{seen}prefill {})", share(&phases.prefill));
        }
        let prefill = format!(
            "{seen}prefill {}, {:.0} tok/s)",
            share(&phases.prefill),
            self.prefill_tokens_per_second
        );
        // The first token comes with the prompt: one alone has no decode.
        if self.generated_tokens < 2 {
            return prefill;
        }
        format!(
            "{prefill}, decode {}, {:.0} tok/s)",
            share(&phases.decode),
            self.decode_tokens_per_second
        )
    }
}

impl Phases {
    fn new(generation: &Generation, times: &ImageTimes) -> Self {
        let (prefill, decode) = (generation.prefill, generation.decode);
        let all = first_token(generation, times) + decode;
        let phase = |time: Duration| Phase {
            seconds: time.as_secs_f64(),
            share: if all.is_zero() {
                0.0
            } else {
                time.as_secs_f64() / all.as_secs_f64()
            },
        };
        Self {
            image_preprocessing: phase(times.preprocess),
            vision_tower: phase(times.encode),
            prefill: phase(prefill),
            decode: phase(decode),
        }
    }
}

/// From the start to the first token, pictures included.
fn first_token(generation: &Generation, times: &ImageTimes) -> Duration {
    times.preprocess + times.encode + generation.prefill
}

/// Columns that share a scale, where weights have scales.
fn group_size(quantization: &Quantization) -> Option<usize> {
    match quantization.scheme {
        Scheme::None => None,
        scheme => Some(quantization.group_size.unwrap_or(scheme.default_group())),
    }
}
