//! `/v1/completions`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::shapes::{RawPrompt, ResponseFormat, Stop};
use super::shared::{StreamOptions, Timings, Usage};

/// A raw prompt to be continued; control tokens in it count.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// The name of the model
    pub(crate) model: Option<String>,
    /// A text, a list of texts, a list of tokens, or a list of lists of tokens
    #[schema(required = true, value_type = Option<RawPrompt>)]
    pub(crate) prompt: Option<Value>,
    /// Comes back in the answer's `request_id`
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    #[schema(minimum = 1)]
    pub(crate) max_tokens: Option<u32>,
    #[schema(minimum = 1)]
    pub(crate) max_completion_tokens: Option<u32>,
    #[schema(minimum = 0, maximum = 2)]
    pub(crate) temperature: Option<f32>,
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f32>,
    #[schema(minimum = -1)]
    pub(crate) top_k: Option<i64>,
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) min_p: Option<f32>,
    #[schema(exclusive_minimum = 0, maximum = 100)]
    pub(crate) repetition_penalty: Option<f32>,
    #[schema(minimum = -2, maximum = 2)]
    pub(crate) presence_penalty: Option<f32>,
    #[schema(minimum = -2, maximum = 2)]
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) seed: Option<i64>,
    #[schema(value_type = Option<Stop>)]
    pub(crate) stop: Option<Value>,
    #[schema(minimum = 1, maximum = 8)]
    pub(crate) n: Option<u32>,
    /// With each token, the logarithms of its probability and of those of so many of the likeliest
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) logprobs: Option<u32>,
    #[schema(value_type = Option<ResponseFormat>)]
    pub(crate) response_format: Option<Value>,
    #[schema(value_type = Option<serde_json::Map<String, Value>>)]
    pub(crate) guided_json: Option<Value>,
    pub(crate) guided_regex: Option<String>,
    pub(crate) guided_grammar: Option<String>,
    pub(crate) ignore_eos: Option<bool>,
    #[schema(ignore)]
    pub(crate) echo: Option<Value>,
    #[schema(ignore)]
    pub(crate) suffix: Option<Value>,
    #[schema(ignore)]
    pub(crate) best_of: Option<Value>,
    #[schema(ignore)]
    pub(crate) logit_bias: Option<Value>,
}

/// A whole answer, or a piece of a streamed one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<CompletionChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefill_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decode_tps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
}

/// One of the answers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// The logarithms of probabilities, token by token.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<f32>,
    /// The likeliest tokens of each place and theirs
    #[schema(value_type = Vec<std::collections::HashMap<String, f32>>)]
    pub(crate) top_logprobs: Vec<serde_json::Map<String, Value>>,
    /// Where each token begins, in characters of the answer
    pub(crate) text_offset: Vec<usize>,
}
