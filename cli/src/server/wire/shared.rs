//! What several routes share.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chat::ChatMessage;
use super::shapes::Tool;

/// An error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    pub(crate) error: ErrorDetail,
}

/// What is wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorDetail {
    /// For people
    pub(crate) message: String,
    /// The class of the error
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The field of the request
    pub(crate) param: Option<String>,
    /// For programs; it stays as it is
    pub(crate) code: String,
}

/// Tokens of a request and its answers.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Pictures count with the tokens they take
    pub(crate) prompt_tokens: usize,
    /// The end token counts
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: CachedTokens,
}

/// Tokens that need not be computed again.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct CachedTokens {
    pub(crate) cached_tokens: usize,
}

/// Where the time went, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Timings {
    /// From the request to its turn
    pub(crate) queue: f64,
    /// From its turn to the first token
    pub(crate) prefill: f64,
    /// From the first token to the last
    pub(crate) decode: f64,
    /// Prompt tokens computed per second
    pub(crate) prefill_tps: f64,
    /// Tokens per second after the first
    pub(crate) decode_tps: f64,
}

/// How a stream is written.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// One more chunk with the usage, before the end
    pub(crate) include_usage: Option<bool>,
}

/// The model that is served.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ModelCard {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
    /// Tokens that a request may have, prompt and answer
    pub(crate) max_model_len: usize,
    /// How its weights and prompts are computed
    pub(crate) scheme: String,
    /// Whether it takes pictures
    pub(crate) vision: bool,
}

/// All models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<ModelCard>,
}

/// How many wait and run.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Queue {
    /// Answers that wait or are computed
    #[serde(rename = "queue_size")]
    pub(crate) size: usize,
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) estimated_wait_seconds: f64,
    /// idle or busy
    pub(crate) status: &'static str,
}

/// Whether all is well.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    pub(crate) status: &'static str,
}

/// A text or a chat whose tokens are asked for.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    pub(crate) model: Option<String>,
    /// Raw text, in which control tokens count
    pub(crate) prompt: Option<String>,
    /// A chat, which goes through the chat template
    pub(crate) messages: Option<Vec<ChatMessage>>,
    pub(crate) images: Option<Vec<String>>,
    #[schema(value_type = Option<Vec<Tool>>)]
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
}

/// Tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokenized {
    pub(crate) tokens: Vec<u32>,
    /// How many there are
    pub(crate) count: usize,
    /// How many a request may have, prompt and answer
    pub(crate) max_model_len: usize,
}
