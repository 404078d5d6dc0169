//! What is asked, what comes back, and the text on its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Result;
use crate::generate::{PromptImage, SamplingParams, StopReason};
use crate::text::{StopMatcher, Stopped, StreamDecoder, Tokenizer};

/// A prompt and how to go on from it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// The pictures among them, in the order of their places.
    pub images: Vec<PromptImage>,
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// Tokens to generate at most, the end token included; what is left of the context if not given.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stops: Vec<String>,
    /// Ends the request before its time.
    pub cancel: Cancel,
}

impl Request {
    /// A request that samples with the default parameters.
    #[must_use]
    pub fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt,
            ..Self::default()
        }
    }
}

/// A switch that ends a request: its clones are the same switch, so a callback or another thread can hold one.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the request once the step that runs is done.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the request is to end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl From<Arc<AtomicBool>> for Cancel {
    /// A switch that others hold too, such as the handler of a signal; true ends the request.
    fn from(switch: Arc<AtomicBool>) -> Self {
        Self(switch)
    }
}

/// What happens while a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// More of the prompt is computed.
    Prefill {
        /// Tokens computed.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// More text, whole characters.
    Text(&'a str),
}

/// What a request came to.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The answer.
    pub text: String,
    /// The tokens that were generated, the end token included.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache.
    pub cached_tokens: usize,
    /// Tokens that were generated, the end token included.
    pub generated_tokens: usize,
    /// From the start to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Why it ended.
    pub reason: StopReason,
    /// The seed that was used.
    pub seed: u64,
}

impl Generation {
    /// Prompt tokens computed per second; 0 where the request ended before all of them were.
    #[must_use]
    pub fn prefill_rate(&self) -> f64 {
        if self.generated_tokens == 0 {
            return 0.0;
        }
        rate(self.prompt_tokens - self.cached_tokens, self.prefill)
    }

    /// Tokens per second after the first one.
    #[must_use]
    pub fn decode_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        tokens as f64 / time.as_secs_f64()
    }
}

/// Tokens on their way to text: decoded, then looked through for stops.
#[derive(Debug)]
pub(super) struct Output {
    decoder: StreamDecoder,
    stops: StopMatcher,
    pub(super) text: String,
    /// Control tokens that are text all the same.
    shown: Vec<u32>,
}

impl Output {
    pub(super) fn new(stops: &[String]) -> Result<Self> {
        let stops = StopMatcher::new(stops)?;
        Ok(Self {
            decoder: StreamDecoder::new(),
            stops,
            text: String::new(),
            shown: Vec::new(),
        })
    }

    /// The same, with control tokens that are text all the same.
    pub(super) fn showing(self, shown: Vec<u32>) -> Self {
        Self { shown, ..self }
    }

    /// The bytes that a token adds to the text.
    pub(super) fn bytes(&self, id: u32, tokenizer: &Tokenizer) -> Vec<u8> {
        if tokenizer.is_special(id) && !self.shown.contains(&id) {
            return Vec::new();
        }
        tokenizer.token_bytes(id).unwrap_or_default()
    }

    /// Takes the bytes of a token; whether a stop text ends the answer.
    pub(super) fn push(&mut self, bytes: &[u8], on_text: &mut dyn FnMut(&str)) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let (text, stopped) = self.stops.push(self.decoder.push(bytes));
        emit(text, &mut self.text, on_text);
        stopped == Stopped::Yes
    }

    /// Gives out what was held back.
    pub(super) fn finish(&mut self, on_text: &mut dyn FnMut(&str)) {
        let (text, stopped) = self.stops.push(self.decoder.finish());
        emit(text, &mut self.text, on_text);
        if stopped != Stopped::Yes {
            emit(self.stops.finish(), &mut self.text, on_text);
        }
    }

    /// The stop text that ended the answer.
    pub(super) fn stop(&self) -> Option<&str> {
        self.stops.found()
    }
}

fn emit(text: &str, all: &mut String, on_text: &mut dyn FnMut(&str)) {
    if !text.is_empty() {
        all.push_str(text);
        on_text(text);
    }
}
