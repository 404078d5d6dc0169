//! What a batch engine is asked, and what it tells.

use std::fmt;
use std::time::{Duration, Instant};

use super::frontend::PreparedImage;
use crate::error::Error;
use crate::generate::{Constraint, SamplingParams, StopReason};
use crate::image::PixelBudget;

/// How a batch engine shares a machine between requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Requests that run at once, at most half the rows of a step.
    pub max_running: usize,
    /// Tokens that the cache holds for all requests together; what free memory has room for if not given.
    pub cache_tokens: Option<usize>,
    /// Bytes of encoded pictures that are remembered.
    pub image_cache_bytes: usize,
    /// How long prefixes and pictures that nobody uses are remembered.
    pub idle_ttl: Duration,
    /// Bounds on the pixels of pictures; the model's where not given.
    pub pixels: PixelBudget,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            max_running: 64,
            cache_tokens: None,
            image_cache_bytes: 256 << 20,
            idle_ttl: Duration::from_mins(5),
            pixels: PixelBudget::default(),
        }
    }
}

/// The number of a request: later ones have larger numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

impl From<u64> for RequestId {
    /// A number of one's own, for what stands in an engine's place.
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A prompt and how to go on from it.
#[derive(Default)]
pub struct BatchRequest {
    /// The tokens of the prompt; each picture has as many as it takes.
    pub prompt: Vec<u32>,
    /// The pictures among them, in the order of their places.
    pub images: Vec<PreparedImage>,
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// Tokens to generate at most, the end token included; what is left of the context if not given.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stops: Vec<String>,
    /// What the answer may be.
    pub constraint: Option<Box<dyn Constraint>>,
    /// With each token, its logarithmic probability and those of as many of the likeliest.
    pub logprobs: Option<usize>,
    /// Whose the request is: only requests with the same salt share what is remembered.
    pub salt: [u8; 32],
    /// When the request ends, whether it is done or not.
    pub deadline: Option<Instant>,
    /// Whether end tokens do not end the answer.
    pub ignore_eos: bool,
    /// Control tokens that are text all the same.
    pub shown: Vec<u32>,
}

impl BatchRequest {
    /// A request that samples with the default parameters.
    #[must_use]
    pub fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt,
            ..Self::default()
        }
    }
}

/// A prompt is private: only its length is shown.
impl fmt::Debug for BatchRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchRequest")
            .field("prompt_tokens", &self.prompt.len())
            .field("images", &self.images.len())
            .field("sampling", &self.sampling)
            .field("max_tokens", &self.max_tokens)
            .field("constrained", &self.constraint.is_some())
            .finish_non_exhaustive()
    }
}

/// A token that was generated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenInfo {
    /// Its number.
    pub id: u32,
    /// What it adds to the text; none for control tokens that are not text.
    pub bytes: Vec<u8>,
    /// The logarithm of its probability before temperature, penalties and constraints; 0 where it was not asked for.
    pub logprob: f32,
    /// The likeliest tokens, their bytes and the logarithms of their probabilities.
    pub top: Vec<(u32, Vec<u8>, f32)>,
}

/// What happens to a request.
#[derive(Debug)]
pub enum BatchEvent {
    /// The request's turn came.
    Started {
        /// Whose.
        id: RequestId,
        /// Tokens of the prompt that were remembered.
        cached_tokens: usize,
    },
    /// More of the prompt is computed.
    Progress {
        /// Whose.
        id: RequestId,
        /// Tokens computed.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// More of the answer.
    Text {
        /// Whose.
        id: RequestId,
        /// Whole characters; empty where tokens have no text or it is held back for stops.
        text: String,
        /// The tokens since the last of these events, the end token aside.
        tokens: Vec<TokenInfo>,
    },
    /// The answer is complete, or ended.
    Finished {
        /// Whose.
        id: RequestId,
        /// What it came to.
        outcome: Outcome,
    },
    /// The request failed; all others go on.
    Failed {
        /// Whose.
        id: RequestId,
        /// Why.
        error: Error,
    },
}

impl BatchEvent {
    /// Whose event it is.
    #[must_use]
    pub fn id(&self) -> RequestId {
        match self {
            Self::Started { id, .. }
            | Self::Progress { id, .. }
            | Self::Text { id, .. }
            | Self::Finished { id, .. }
            | Self::Failed { id, .. } => *id,
        }
    }
}

/// What a request came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The answer.
    pub text: String,
    /// The tokens that were generated, the end token included.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were remembered when the request's turn came.
    pub cached_tokens: usize,
    /// Tokens that were generated, the end token included.
    pub generated_tokens: usize,
    /// From the request to its turn.
    pub queue: Duration,
    /// From its turn to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Why it ended.
    pub reason: StopReason,
    /// The stop text that ended it.
    pub stop: Option<String>,
    /// The seed that was used.
    pub seed: u64,
}

/// Whether a step had something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It did; there may be more.
    Worked,
    /// Nothing waits and nothing runs.
    Idle,
}

/// Where a batch engine stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStats {
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Requests that run.
    pub running: usize,
    /// Blocks of the cache that requests use.
    pub used_blocks: usize,
    /// Blocks of the cache that nobody uses and that may be used again for the same prompt.
    pub cached_blocks: usize,
    /// Blocks of the cache.
    pub total_blocks: usize,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Prompt tokens of the requests that had their turn.
    pub prefix_queries: u64,
    /// How many of these were remembered.
    pub prefix_hits: u64,
    /// Pictures of the requests that had their turn.
    pub image_queries: u64,
    /// How many of these were remembered.
    pub image_hits: u64,
    /// Bytes of the pictures that are remembered.
    pub image_bytes: usize,
    /// Requests that had to make room for older ones.
    pub preemptions: u64,
    /// Steps of the model.
    pub steps: u64,
    /// Steps that panicked and were taken again, request by request.
    pub panics: u64,
    /// Prompt tokens that were computed.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
}
