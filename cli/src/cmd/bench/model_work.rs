//! A loaded model, a prompt, and what they need at least.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use cider::generate::{
    History, Logits, PromptImage, Runner, RunnerOptions, Sampler, SamplingParams, Sequence, Work,
};
use cider::load::{Checkpoint, Encoding, ModelConfig};
use cider::{Activations, CpuBackend, DType, Format, Scheme, TextSide};

use super::roofline::{Cost, Unit};
use super::timing;
use crate::args::ModelOptions;
use crate::model;

/// A model with the prompt that is being measured.
pub(super) struct ModelWork {
    runner: Runner,
    sequence: Sequence,
    sampler: Sampler,
    prompt: Vec<u32>,
    images: Vec<PromptImage>,
    /// The token after the prompt.
    next: u32,
}

impl ModelWork {
    /// Loads a model with room for `context` tokens.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        backend: Arc<CpuBackend>,
        options: &ModelOptions,
        context: usize,
    ) -> Result<Self> {
        let options = RunnerOptions {
            context: Some(context),
            ..model::runner_options(options)
        };
        Self::with_options(checkpoint, backend, &options)
    }

    pub(super) fn with_options(
        checkpoint: &Checkpoint,
        backend: Arc<CpuBackend>,
        options: &RunnerOptions,
    ) -> Result<Self> {
        let runner = Runner::load(checkpoint, backend, options, &mut |_| {})?;
        let greedy = SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        };
        let vocabulary = runner.config().vocab_size;
        Ok(Self {
            sampler: Sampler::new(&greedy, vocabulary, vocabulary)?,
            runner,
            sequence: Sequence::new(&[], 0),
            prompt: Vec::new(),
            images: Vec::new(),
            next: 0,
        })
    }

    pub(super) fn runner(&self) -> &Runner {
        &self.runner
    }

    /// The runner, with nothing in its cache.
    pub(super) fn emptied(&mut self) -> &mut Runner {
        self.runner.release(&mut self.sequence);
        &mut self.runner
    }

    pub(super) fn config(&self) -> &ModelConfig {
        self.runner.config()
    }

    /// Bytes of all weights.
    pub(super) fn weight_bytes(&self) -> usize {
        self.runner.weight_bytes()
    }

    /// The prompt.
    pub(super) fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// The token after the prompt, once the prompt was computed.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Takes a prompt and computes it once.
    pub(super) fn set_prompt(&mut self, prompt: Vec<u32>) -> Result<()> {
        self.set_prompt_with(prompt, Vec::new())
    }

    /// Takes a prompt with pictures and computes it once.
    pub(super) fn set_prompt_with(
        &mut self,
        prompt: Vec<u32>,
        images: Vec<PromptImage>,
    ) -> Result<()> {
        (self.prompt, self.images) = (prompt, images);
        self.prefill()
    }

    /// Computes the prompt in an empty cache, up to the token after it.
    pub(super) fn prefill(&mut self) -> Result<()> {
        self.runner.release(&mut self.sequence);
        self.sequence =
            Sequence::new(&self.prompt, self.runner.context()).with_images(self.images.clone());
        while self.sequence.computed() < self.prompt.len() {
            let left = self.prompt.len() - self.sequence.computed();
            let tokens = left.min(self.runner.rows());
            let logits = if tokens == left {
                Logits::Last
            } else {
                Logits::None
            };
            self.step(tokens, logits)?;
        }
        self.next = self.sample()?;
        Ok(())
    }

    /// The seconds of each of `tokens` generated tokens, the first of which follows the prompt.
    pub(super) fn decode(&mut self, tokens: usize) -> Result<Vec<f64>> {
        let room = self.runner.context() - self.prompt.len();
        self.sequence.restart(&self.prompt, self.images.clone());
        ensure!(
            self.sequence.computed() == self.prompt.len(),
            "the prompt was not computed before it is continued"
        );
        let mut next = self.next;
        timing::seconds(tokens.min(room), || {
            self.sequence.push(next);
            self.step(1, Logits::Last)?;
            next = self.sample()?;
            Ok(())
        })
    }

    fn step(&mut self, tokens: usize, logits: Logits) -> Result<()> {
        Ok(self.runner.step(&mut [Work {
            sequence: &mut self.sequence,
            tokens,
            logits,
        }])?)
    }

    fn sample(&mut self) -> Result<u32> {
        let history = History {
            prompt: self.sequence.prompt(),
            generated: self.sequence.generated(),
        };
        Ok(self.sampler.sample(self.runner.logits(0, 0)?, history)?)
    }
}

/// Seconds from the start until the model is loaded, and until the first token after a short prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) load: f64,
    pub(super) first_token: f64,
}

/// Opens a model as a user's command does, and answers a prompt of [`SHORT`] tokens.
pub(super) fn start(
    path: &Path,
    backend: &Arc<CpuBackend>,
    options: &ModelOptions,
    context: usize,
) -> Result<(ModelWork, Checkpoint, Start)> {
    let start = Instant::now();
    let checkpoint = Checkpoint::open(path)?;
    let mut work = ModelWork::load(&checkpoint, backend.clone(), options, context)?;
    let load = start.elapsed().as_secs_f64();
    let text = tokens(&checkpoint, SHORT);
    work.set_prompt(text)?;
    let first_token = start.elapsed().as_secs_f64();
    Ok((work, checkpoint, Start { load, first_token }))
}

/// `count` tokens of an ordinary text, over and over; of a model without words, any tokens.
pub(super) fn tokens(checkpoint: &Checkpoint, count: usize) -> Vec<u32> {
    let encoded = TextSide::open(checkpoint, None)
        .and_then(|text| text.tokenizer.encode_prompt(&TEXT.repeat(4)))
        .unwrap_or_default();
    let vocabulary = checkpoint.config.vocab_size as u32;
    if encoded.is_empty() {
        return (0..count as u32)
            .map(|i| i.wrapping_mul(2_654_435_761) % vocabulary)
            .collect();
    }
    encoded.into_iter().cycle().take(count).collect()
}

/// What a prompt of `tokens` tokens consists of: the products of the decoder's linear layers.
pub(super) fn prefill_cost(config: &ModelConfig, options: &ModelOptions, tokens: usize) -> Cost {
    let weights: usize = linears(config).iter().map(|[n, k]| n * k).sum();
    Cost {
        unit: unit(options.scheme, options.dtype),
        operations: 2.0 * (weights * config.layers) as f64 * tokens as f64,
        bytes: layer_bytes(config, options) * config.layers as f64,
        ..Cost::NOTHING
    }
}

/// What a generated token consists of: reading all weights, scales, keys and values once.
pub(super) fn decode_cost(config: &ModelConfig, options: &ModelOptions, context: usize) -> Cost {
    let head = options.quantization().head_format(stored(config));
    let weights = layer_bytes(config, options) * config.layers as f64
        + bytes(head, [config.vocab_size, config.hidden_size]);
    let types = options.kv_cache.of(config, options.dtype);
    let cache = types.bytes_per_token(config) * context;
    Cost {
        unit: Unit::Memory,
        operations: 0.0,
        bytes: weights + cache as f64,
        ..Cost::NOTHING
    }
}

/// What the products of a prompt keep busy.
pub(super) fn unit(scheme: Scheme, dtype: DType) -> Unit {
    match (scheme.prompt_activations(), dtype) {
        (Activations::Int8, _) => Unit::Int8,
        (Activations::Float, DType::F32) => Unit::F32,
        (Activations::Float, _) => Unit::Bf16,
    }
}

fn layer_bytes(config: &ModelConfig, options: &ModelOptions) -> f64 {
    let format = options.quantization().linear_format(stored(config));
    let shapes = linears(config);
    shapes.iter().map(|&shape| bytes(format, shape)).sum()
}

/// Bytes of weights of `n` rows and `k` columns with their scales.
pub(super) fn bytes(format: Format, [n, k]: [usize; 2]) -> f64 {
    let elements = (n * k) as f64;
    let weights = match format {
        Format::Dense(dtype) => elements * dtype.size() as f64,
        Format::W8 { .. } => elements,
        Format::W4 { .. } => elements / 2.0,
    };
    weights + (4 * n * format.groups(k)) as f64
}

/// The type of weights that stay floats.
pub(super) fn stored(config: &ModelConfig) -> DType {
    match config.stored_dtype {
        Some(Encoding::F32) => DType::F32,
        _ => DType::Bf16,
    }
}

/// Rows and columns of the linear layers of a decoder layer.
fn linears(config: &ModelConfig) -> [[usize; 2]; 4] {
    let (hidden, queries) = (config.hidden_size, config.heads * config.head_size);
    let both = 2 * config.kv_heads * config.head_size;
    [
        [queries + both, hidden],
        [hidden, queries],
        [2 * config.intermediate_size, hidden],
        [hidden, config.intermediate_size],
    ]
}

/// Tokens of the prompt whose answer's first token is waited for.
pub(super) const SHORT: usize = 32;

const TEXT: &str = "\
The lighthouse stood at the end of a long spit of gravel, and for most of the year the only way to reach it was by \
boat. In winter the keeper wrote down what he saw: the height of the waves, the colour of the sky, the names of ships \
that passed and the hour at which they did. Some of these books have been kept. They say that in March 1884 there were \
eleven days of fog, that a barrel of lamp oil cost nine shillings, and that a bird with a broken wing lived in the \
kitchen until it could fly again. A visitor who reads them today learns little about storms and a great deal about \
patience. What is left of the tower can be seen from the coast road when the air is clear. ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_formats() {
        assert_eq!(bytes(Format::W8 { group: 0 }, [10, 64]), 640.0 + 40.0);
        assert_eq!(bytes(Format::W4 { group: 32 }, [10, 64]), 320.0 + 80.0);
        assert_eq!(bytes(Format::Dense(DType::Bf16), [10, 64]), 1280.0);
    }
}
