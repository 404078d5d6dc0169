//! The runner: steps of several sequences through a model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cider_kernels::{Backend, DType, KV_BLOCK};

use super::batch::{Batch, Work};
use super::images::ImageFeatures;
use super::kv_cache::{CacheType, CacheTypes, KvCache};
use super::memory::available_memory;
use super::sequence::Sequence;
use crate::error::{Error, Result};
use crate::image::Patches;
use crate::load::{Checkpoint, ModelConfig};
use crate::models::{self, ImageEncoding, LoadOptions, Model, Progress};
use crate::nn::{Arena, Sizes};
use crate::scheme::{Quantization, Scheme};

/// How a runner is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunnerOptions {
    /// The formats of the weights.
    pub quantization: Quantization,
    /// The formats of the weights of the vision tower; floats if not given.
    pub vision: Quantization,
    /// The type of activations: bf16 or f32.
    pub dtype: DType,
    /// The type of the cache.
    pub cache: CacheType,
    /// Tokens a sequence may have; the model's own limit, at most [`DEFAULT_CONTEXT`], if not given.
    pub context: Option<usize>,
    /// Tokens the cache holds for all sequences together; one context if not given.
    pub cache_tokens: Option<usize>,
    /// Rows (tokens) of a step.
    pub rows: usize,
    /// Rows whose logits can be asked for in one step.
    pub logits: usize,
}

impl RunnerOptions {
    /// Tokens that a sequence of a model may have.
    #[must_use]
    pub fn context_of(&self, config: &ModelConfig) -> usize {
        let limit = config.max_positions.min(DEFAULT_CONTEXT);
        self.context.unwrap_or(limit)
    }
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            quantization: Quantization::default(),
            vision: Quantization::of(Scheme::None),
            dtype: DType::Bf16,
            cache: CacheType::Auto,
            context: None,
            cache_tokens: None,
            rows: 512,
            logits: 1,
        }
    }
}

/// What loading took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadTimes {
    /// Reading, quantising and packing the weights, and making tables.
    pub(crate) weights: Duration,
    /// Bytes of the weights as they are stored.
    pub(crate) bytes: usize,
    /// Cache and working memory.
    pub(crate) memory: Duration,
}

/// A model with its cache and working memory.
#[derive(Debug)]
pub struct Runner {
    backend: Arc<dyn Backend>,
    model: Box<dyn Model>,
    cache: KvCache,
    cache_types: CacheTypes,
    arena: Arena,
    batch: Batch,
    rows: usize,
    logits: usize,
    context: usize,
}

impl Runner {
    /// Loads the model of a checkpoint.
    ///
    /// # Errors
    /// When a tensor is not what the model needs, or memory is short.
    pub fn load(
        checkpoint: &Checkpoint,
        backend: Arc<dyn Backend>,
        options: &RunnerOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let mut watch = |done| {
            progress(done);
            true
        };
        Ok(Self::load_watched(checkpoint, backend, options, &mut watch)?.0)
    }

    /// The same, telling what it took; `watch` hears how far it is, and ends it with false.
    pub(crate) fn load_watched(
        checkpoint: &Checkpoint,
        backend: Arc<dyn Backend>,
        options: &RunnerOptions,
        watch: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<(Self, LoadTimes)> {
        let config = &checkpoint.config;
        let (dtype, rows) = (options.dtype, options.rows.max(1));
        if !matches!(dtype, DType::Bf16 | DType::F32) {
            return Err(Error::Request(format!(
                "activations are bf16 or f32, got {dtype}"
            )));
        }
        let context = context(config, options)?;
        let load = LoadOptions {
            quantization: options.quantization,
            vision: options.vision,
            positions: context,
            dtype,
        };
        let started = Instant::now();
        let mut bytes = 0;
        let mut watch = |progress: Progress| {
            bytes = progress.done;
            watch(progress)
        };
        let model = models::load(checkpoint, &*backend, &load, &mut watch)?;
        let weights = started.elapsed();
        let sizes = Sizes {
            rows,
            logits: options.logits,
            dtype,
        };
        let cache_tokens = options.cache_tokens.unwrap_or(context);
        let cache_types = cache_types(config, options);
        let cache = KvCache::new(config, cache_types, cache_tokens)?;
        let runner = Self {
            arena: Arena::new(&*backend, config, sizes)?,
            batch: Batch::with_capacity(rows, cache.free_blocks(), config.rope_axes()),
            cache,
            cache_types,
            rows,
            logits: options.logits,
            context,
            backend,
            model,
        };
        let times = LoadTimes {
            weights,
            bytes,
            memory: started.elapsed().saturating_sub(weights),
        };
        Ok((runner, times))
    }

    /// The shape of the model.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    /// Tokens a sequence may have.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Rows of a step.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of the weights.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.model.weight_bytes()
    }

    /// What the cache holds.
    #[must_use]
    pub fn cache_types(&self) -> CacheTypes {
        self.cache_types
    }

    /// Bytes of the cache.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Bytes of working memory.
    #[must_use]
    pub fn arena_bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// Computes tokens of several sequences. Each token is computed in its own phase, so what a sequence gets
    /// does not depend on the others, nor on how its tokens are cut into steps.
    ///
    /// # Errors
    /// When a work asks for more than there is room for; nothing is computed then.
    pub fn step(&mut self, work: &mut [Work<'_>]) -> Result<()> {
        // What the last step left is gone, whether this one is taken or refused.
        self.batch.clear();
        self.check(work)?;
        self.cache.check_room(work)?;
        for item in work.iter_mut() {
            let end = item.sequence.computed + item.tokens;
            self.cache.grow(item.sequence, end)?;
        }
        self.batch.fill(work);
        let Self {
            backend,
            model,
            cache,
            arena,
            batch,
            ..
        } = self;
        model.forward(&**backend, batch, &mut cache.layers, arena)?;
        for item in work {
            item.sequence.computed += item.tokens;
        }
        Ok(())
    }

    /// The tokens of an image, for a model with a vision tower.
    ///
    /// # Errors
    /// When the model has none, or the patches are not what it was made for.
    pub fn encode(&self, image: &Patches) -> Result<ImageFeatures> {
        self.encode_watched(image, &mut |_, _| true)
    }

    /// The same; `watch` hears how many blocks of how many are done, and ends it with false.
    pub(crate) fn encode_watched(
        &self,
        image: &Patches,
        watch: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<ImageFeatures> {
        let mut encoding = self.begin_image(image)?;
        loop {
            let (done, blocks) = encoding.progress();
            if done < blocks && !watch(done, blocks) {
                return Err(Error::Cancelled);
            }
            if let Some(features) = self.advance_image(&mut encoding)? {
                return Ok(features);
            }
        }
    }

    /// Begins to make tokens of an image.
    pub(crate) fn begin_image(&self, image: &Patches) -> Result<ImageEncoding> {
        self.model.begin_image(&*self.backend, image)
    }

    /// Takes an image through the next block of the vision tower; its tokens, behind the last.
    pub(crate) fn advance_image(
        &self,
        encoding: &mut ImageEncoding,
    ) -> Result<Option<ImageFeatures>> {
        self.model.advance_image(&*self.backend, encoding)
    }

    /// The logits of the `token`-th token of those asked for by the `work`-th work of the last step.
    ///
    /// # Errors
    /// When that token's logits were not asked for.
    pub fn logits(&mut self, work: usize, token: usize) -> Result<&mut [f32]> {
        let Some(row) = self.batch.logits_of(work).nth(token) else {
            let what = format!("logits {token} of work {work} were not asked for");
            return Err(Error::Request(what));
        };
        let columns = self.arena.logits.cols();
        Ok(&mut self.arena.logits.as_mut_slice::<f32>()?[row * columns..][..columns])
    }

    /// The cache.
    pub(crate) fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// The cache, to share what sequences begin with.
    pub(crate) fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// Replaces the cache, of which nobody holds anything, with one of `tokens` tokens for `sequences` sequences
    /// at once, which may share blocks.
    pub(crate) fn replace_cache(&mut self, tokens: usize, sequences: usize) -> Result<()> {
        self.cache = KvCache::new(self.model.config(), self.cache_types, tokens)?;
        let blocks = sequences.saturating_mul(self.context.min(tokens).div_ceil(KV_BLOCK));
        self.batch = Batch::with_capacity(self.rows, blocks, self.model.config().rope_axes());
        Ok(())
    }

    /// Takes the cache of a sequence back.
    pub fn release(&mut self, sequence: &mut Sequence) {
        self.cache.release(sequence);
    }

    /// Quantises the linear layers of the decoder anew; gives how many there are.
    ///
    /// # Errors
    /// When a format does not allow a shape, then nothing is changed, or memory is short.
    pub fn convert(&mut self, plan: &Quantization) -> Result<usize> {
        self.convert_with(plan, &mut |_, _| {})
    }

    /// The same, telling how many layers are done, of how many.
    pub(crate) fn convert_with(
        &mut self,
        plan: &Quantization,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<usize> {
        if plan.scheme == Scheme::None {
            return Err(Error::Request(
                "a model is converted to a quantised scheme".into(),
            ));
        }
        let linears = self.model.linears_mut();
        for linear in &linears {
            let (n, k) = (linear.weights().n(), linear.weights().k());
            plan.linear_format(DType::F32).check(n, k)?;
        }
        let count = linears.len();
        for (done, linear) in linears.into_iter().enumerate() {
            linear.convert(&*self.backend, plan)?;
            progress(done + 1, count);
        }
        Ok(count)
    }

    fn check(&self, work: &[Work<'_>]) -> Result<()> {
        let rows = work
            .iter()
            .fold(0_usize, |sum, item| sum.saturating_add(item.tokens));
        let logits: usize = work.iter().map(|item| item.logits.count(item.tokens)).sum();
        if rows > self.rows || logits > self.logits {
            return Err(Error::Request(format!(
                "a step of {rows} tokens and {logits} logits, room for {} and {}",
                self.rows, self.logits
            )));
        }
        let vocabulary = self.config().vocab_size;
        for item in work {
            let sequence = &*item.sequence;
            let end = sequence.computed + item.tokens;
            if end > self.context {
                return Err(Error::ContextExceeded {
                    prompt: end,
                    limit: self.context,
                });
            }
            let Some(ids) = sequence.tokens().get(sequence.computed..end) else {
                let what = format!("token {end} of {}", sequence.tokens().len());
                return Err(Error::Request(what));
            };
            if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
                return Err(Error::Request(format!(
                    "token {id} is outside the vocabulary of {vocabulary}"
                )));
            }
        }
        Ok(())
    }
}

/// The context that is served: what was asked for, within what the model and the machine can.
fn context(config: &ModelConfig, options: &RunnerOptions) -> Result<usize> {
    let context = options.context_of(config);
    if context == 0 {
        return Err(Error::Request("a context of 0 tokens holds nothing".into()));
    }
    if context > config.max_positions {
        tracing::warn!(
            "context {context} is beyond the {} of the model",
            config.max_positions
        );
    }
    let tokens = options.cache_tokens.unwrap_or(context).max(context);
    let types = options.cache.of(config, options.dtype);
    let bytes = types.bytes_per_token(config) as u128 * tokens as u128;
    match available_memory() {
        Some(available) if bytes > u128::from(available) => Err(Error::Request(format!(
            "a context of {context} tokens needs {:.1} GB for its cache, {:.1} GB of memory is available",
            bytes as f64 / 1e9,
            available as f64 / 1e9
        ))),
        _ => Ok(context),
    }
}

/// What the cache holds, said in the log.
fn cache_types(config: &ModelConfig, options: &RunnerOptions) -> CacheTypes {
    let types = options.cache.of(config, options.dtype);
    let bytes = types.bytes_per_token(config);
    let why = if options.cache == CacheType::Int8 && types.keys != DType::I8 {
        "; the keys stay bf16, for the model adds a bias to them that INT8 would drown them in"
    } else {
        ""
    };
    tracing::info!("kv cache: {types}, {bytes} bytes a token{why}");
    types
}

/// The context of a model that could have a longer one: what fits most uses without a large cache.
pub const DEFAULT_CONTEXT: usize = 8192;
