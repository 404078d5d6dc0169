//! A model with its words: from a prompt to a text.

mod batch;
mod image_cache;
mod opening;
mod request;
mod text_side;
mod vision_side;

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cider_kernels::Backend;

pub use self::batch::{
    BatchEngine, BatchEvent, BatchOptions, BatchRequest, BatchStats, Frontend, Outcome,
    PreparedImage, RequestId, Step, TokenInfo,
};
use self::image_cache::ImageCache;
use self::opening::Opening;
use self::request::Output;
pub use self::request::{Cancel, Event, Generation, Request};
pub use self::text_side::{ChatPrompt, TextSide};
pub use self::vision_side::{ImageTimes, VisionSide};
use crate::error::{Error, Result};
use crate::generate::{
    History, Logits, PromptImage, Runner, RunnerOptions, Sampler, SamplingParams, Sequence,
    StopReason, Work, place_images,
};
use crate::image::RgbImage;
use crate::load::{Checkpoint, GenerationConfig};
use crate::models::Progress;
use crate::text::{ChatTemplate, Message, RenderOptions, Tokenizer};

/// How an engine is opened.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// The runner's options.
    pub runner: RunnerOptions,
    /// A chat template that replaces the model's.
    pub chat_template: Option<PathBuf>,
}

/// What a checkpoint has beside its weights.
struct Words {
    vision: Option<VisionSide>,
    text: TextSide,
    /// How long it took.
    time: Duration,
}

impl Words {
    fn open(checkpoint: &Checkpoint, template: Option<&Path>) -> Result<Self> {
        let started = Instant::now();
        Ok(Self {
            vision: VisionSide::open(checkpoint)?,
            text: TextSide::read(checkpoint, template)?,
            time: started.elapsed(),
        })
    }
}

/// A model that was opened: its weights, its words and its eyes.
struct Opened {
    runner: Runner,
    text: TextSide,
    vision: Option<VisionSide>,
    generation: GenerationConfig,
}

impl Opened {
    /// Opens the model at `path`.
    fn open(
        path: &Path,
        backend: Arc<dyn Backend>,
        options: &EngineOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let started = Instant::now();
        let checkpoint = Checkpoint::open(path)?;
        let files = started.elapsed();
        // The words are read beside the weights; where they fail, the weights need not be read to their end.
        let failed = AtomicBool::new(false);
        let (words, loaded) = thread::scope(|scope| {
            let words = scope.spawn(|| {
                let words = Words::open(&checkpoint, options.chat_template.as_deref());
                failed.store(words.is_err(), Ordering::Relaxed);
                words
            });
            let loaded = Runner::load_watched(&checkpoint, backend, &options.runner, &mut |done| {
                progress(done);
                !failed.load(Ordering::Relaxed)
            });
            let words = words.join();
            (words.unwrap_or_else(|panic| resume_unwind(panic)), loaded)
        });
        let Words { vision, text, time } = words?;
        let (runner, load) = loaded?;
        text.log();
        let opening = Opening {
            files,
            words: time,
            load,
            all: started.elapsed(),
        };
        opening.log();
        Ok(Self {
            runner,
            text,
            vision,
            generation: checkpoint.generation,
        })
    }
}

/// A model that answers.
///
/// ```no_run
/// use std::path::Path;
/// use std::sync::Arc;
///
/// use cider::{CpuBackend, Engine, EngineOptions, Event, Request};
/// use cider::text::{Message, Role};
///
/// let backend = Arc::new(CpuBackend::from_env(None)?);
/// let model = Path::new("SmolLM2-135M-Instruct.Q4_1.gguf");
/// let mut engine = Engine::open(model, backend, &EngineOptions::default(), &mut |_| {})?;
/// let question = [Message::new(Role::User, "What is the capital of France?")];
/// let prompt = engine.chat_prompt(&question, &Default::default())?;
/// let answer = engine.generate(&Request::new(prompt), &mut |event| {
///     if let Event::Text(text) = event {
///         print!("{text}");
///     }
/// })?;
/// println!("\n{} tokens", answer.generated_tokens);
/// # Ok::<(), cider::Error>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    runner: Runner,
    text: TextSide,
    vision: Option<VisionSide>,
    /// What the tower made of the last pictures.
    pictures: ImageCache,
    generation: GenerationConfig,
    /// The sequence of the last request: the next one keeps what both prompts begin with.
    last: Sequence,
}

impl Engine {
    /// Opens the model at `path`: a folder or a GGUF file.
    ///
    /// # Errors
    /// When a file is missing, damaged or not supported; the error names it.
    pub fn open(
        path: &Path,
        backend: Arc<dyn Backend>,
        options: &EngineOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let Opened {
            runner,
            text,
            vision,
            generation,
        } = Opened::open(path, backend, options, progress)?;
        let last = Sequence::new(&[], runner.context());
        Ok(Self {
            runner,
            text,
            vision,
            pictures: ImageCache::new(CACHE_BYTES),
            generation,
            last,
        })
    }

    /// The runner.
    #[must_use]
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// The runner, to run steps of one's own or to convert the model.
    #[must_use]
    pub fn runner_mut(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// Forgets the last request: the next one computes all of its prompt.
    pub fn forget(&mut self) {
        self.runner.release(&mut self.last);
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.text.tokenizer
    }

    /// The chat template, if the model has one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.text.template.as_ref()
    }

    /// The tokens that end a text.
    #[must_use]
    pub fn end_tokens(&self) -> &[u32] {
        &self.text.end_tokens
    }

    /// What the checkpoint says about generation.
    #[must_use]
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// What the model's makers sample with; greedy where they say so.
    #[must_use]
    pub fn sampling(&self) -> SamplingParams {
        SamplingParams::from(&self.generation)
    }

    /// The tokens of a chat, up to the opening of the assistant's turn. Message text is plain text: control
    /// tokens that it spells out are none.
    ///
    /// # Errors
    /// When the model has no chat template, or the template refuses the messages.
    pub fn chat_prompt(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<u32>> {
        self.text.chat_prompt(messages, options)
    }

    /// The tokens of a raw text, in which control tokens count.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn raw_prompt(&self, text: &str) -> Result<Vec<u32>> {
        self.text.tokenizer.encode_prompt(text)
    }

    /// The vision side, of models that see.
    #[must_use]
    pub fn vision(&self) -> Option<&VisionSide> {
        self.vision.as_ref()
    }

    /// The vision side, to set the bounds on pixels.
    #[must_use]
    pub fn vision_mut(&mut self) -> Option<&mut VisionSide> {
        self.vision.as_mut()
    }

    /// Puts pictures into a prompt, in the order of their places in it: each pad, one per picture, becomes the
    /// picture's tokens. What they cost is added to `times`.
    ///
    /// # Errors
    /// When the model has no vision input, the prompt has places for more or fewer pictures, or the pictures do not
    /// fit the context; all of that is seen before any is read.
    pub fn see(
        &mut self,
        prompt: &[u32],
        images: &[RgbImage],
        times: &mut ImageTimes,
    ) -> Result<(Vec<u32>, Vec<PromptImage>)> {
        self.see_watched(prompt, images, times, &mut |_, _| true)
    }

    /// [`Engine::see`] that can be watched and ended: before each block of the vision tower, `watch` hears how many
    /// blocks of how many are done for all pictures, and ends the work with false.
    ///
    /// # Errors
    /// As [`Engine::see`], and [`Error::Cancelled`].
    pub fn see_watched(
        &mut self,
        prompt: &[u32],
        images: &[RgbImage],
        times: &mut ImageTimes,
        watch: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<(Vec<u32>, Vec<PromptImage>)> {
        let Some(vision) = &self.vision else {
            return match images.len() {
                0 => Ok((prompt.to_vec(), Vec::new())),
                _ => Err(Error::Request("the model has no vision input".into())),
            };
        };
        self.text
            .check_places(prompt, vision.config(), images.len())?;
        let sizes = images.iter().map(RgbImage::size);
        let text = prompt.len() - images.len();
        VisionSide::count_tokens(vision.processor(), sizes, text, self.runner.context())?;
        vision.warn_of_many(images.len());
        let pad = vision.config().image_token;
        let mut features = Vec::new();
        for (i, image) in images.iter().enumerate() {
            let mut watch =
                |done: usize, blocks: usize| watch(i * blocks + done, images.len() * blocks);
            if !watch(0, vision.config().blocks) {
                return Err(Error::Cancelled);
            }
            let (runner, pictures) = (&self.runner, &mut self.pictures);
            features.push(vision.encode(runner, pictures, image, times, &mut watch)?);
        }
        place_images(prompt, pad, &features)
    }

    /// Answers a request; text arrives through `on_event` as soon as it is whole characters.
    ///
    /// # Errors
    /// When the prompt does not fit the context, a parameter is out of range, or the logits are not finite;
    /// what was generated before has been given to `on_event`.
    pub fn generate(
        &mut self,
        request: &Request,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Generation> {
        let limit = self.room(request)?;
        let mut sampler = self.sampler(&request.sampling)?;
        let mut output = Output::new(&request.stops)?;
        self.last.restart(&request.prompt, request.images.clone());
        let cached = self.last.computed().min(request.prompt.len() - 1);
        self.last.computed = cached;
        let started = Instant::now();
        self.prefill(&request.cancel, on_event)?;
        let mut prefill = started.elapsed();
        let mut reason = StopReason::Length;
        let mut decode = Duration::ZERO;
        let mut generated = 0;
        while generated < limit {
            if request.cancel.is_cancelled() {
                reason = StopReason::Cancelled;
                break;
            }
            let step = Instant::now();
            if generated > 0 {
                self.step(1, Logits::Last)?;
            }
            let history = History {
                prompt: self.last.prompt(),
                generated: self.last.generated(),
            };
            let id = sampler.sample(self.runner.logits(0, 0)?, history)?;
            self.last.push(id);
            generated += 1;
            let spent = if generated == 1 {
                &mut prefill
            } else {
                &mut decode
            };
            *spent += step.elapsed();
            if self.text.end_tokens.contains(&id)
                || output.push(&output.bytes(id, &self.text.tokenizer), &mut |text| {
                    on_event(Event::Text(text));
                })
            {
                reason = StopReason::Stop;
                break;
            }
        }
        output.finish(&mut |text| on_event(Event::Text(text)));
        Ok(Generation {
            text: output.text,
            tokens: self.last.generated().to_vec(),
            prompt_tokens: request.prompt.len(),
            cached_tokens: cached,
            generated_tokens: generated,
            prefill,
            decode,
            reason,
            seed: sampler.seed(),
        })
    }

    /// Tokens that may be generated: what was asked for, within the context.
    fn room(&self, request: &Request) -> Result<usize> {
        let (prompt, limit) = (request.prompt.len(), self.runner.context());
        if prompt == 0 {
            return Err(Error::Request("the prompt has no tokens".into()));
        }
        if prompt >= limit {
            return Err(Error::ContextExceeded { prompt, limit });
        }
        Ok(request.max_tokens.unwrap_or(usize::MAX).min(limit - prompt))
    }

    fn sampler(&self, params: &SamplingParams) -> Result<Sampler> {
        let logits = self.runner.config().vocab_size;
        Sampler::new(params, logits, self.text.tokenizer.vocab_size())
    }

    /// Computes the prompt in steps as large as the runner takes.
    fn prefill(&mut self, cancel: &Cancel, on_event: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let total = self.last.prompt().len();
        while self.last.computed() < total && !cancel.is_cancelled() {
            let tokens = (total - self.last.computed()).min(self.runner.rows());
            let last = self.last.computed() + tokens == total;
            self.step(tokens, if last { Logits::Last } else { Logits::None })?;
            on_event(Event::Prefill {
                done: self.last.computed(),
                total,
            });
        }
        Ok(())
    }

    fn step(&mut self, tokens: usize, logits: Logits) -> Result<()> {
        self.runner.step(&mut [Work {
            sequence: &mut self.last,
            tokens,
            logits,
        }])
    }
}

/// Features that are remembered, the latest picture's in any case: some thirty screenshots of a 2B model.
const CACHE_BYTES: usize = 256 << 20;
