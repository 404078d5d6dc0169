//! `/v1/chat/completions`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::shapes::{MadeCall, MessageContent, ResponseFormat, Stop, Tool, ToolChoice};
use super::shared::{StreamOptions, Timings, Usage};

/// A chat to be continued.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    /// The name of the model
    pub(crate) model: Option<String>,
    #[schema(required = true)]
    pub(crate) messages: Option<Vec<ChatMessage>>,
    /// Pictures of the marks `<image>` in the texts, in reading order: base64, or a URL as in `image_url`
    pub(crate) images: Option<Vec<String>>,
    /// Comes back in the answer's `request_id`
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    /// The older name of `max_completion_tokens`, which wins
    #[schema(minimum = 1)]
    pub(crate) max_tokens: Option<u32>,
    #[schema(minimum = 1)]
    pub(crate) max_completion_tokens: Option<u32>,
    /// 0 takes the likeliest token
    #[schema(minimum = 0, maximum = 2)]
    pub(crate) temperature: Option<f32>,
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f32>,
    /// 0 and -1 keep all
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
    /// A text or a list of texts that end the answer and are not part of it
    #[schema(value_type = Option<Stop>)]
    pub(crate) stop: Option<Value>,
    /// Answers to give
    #[schema(minimum = 1, maximum = 8)]
    pub(crate) n: Option<u32>,
    /// With each token, the logarithm of its probability
    pub(crate) logprobs: Option<bool>,
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) top_logprobs: Option<u32>,
    /// `{"type": "text" | "json_object" | "json_schema", ...}`
    #[schema(value_type = Option<ResponseFormat>)]
    pub(crate) response_format: Option<Value>,
    /// A JSON schema that the answer must follow
    #[schema(value_type = Option<Map<String, Value>>)]
    pub(crate) guided_json: Option<Value>,
    /// A regular expression that the answer must match
    pub(crate) guided_regex: Option<String>,
    /// A Lark grammar that the answer must follow
    pub(crate) guided_grammar: Option<String>,
    /// Functions that the model may call
    #[schema(value_type = Option<Vec<Tool>>)]
    pub(crate) tools: Option<Vec<Value>>,
    /// none, auto, required, or the function that must be called
    #[schema(value_type = Option<ToolChoice>)]
    pub(crate) tool_choice: Option<Value>,
    /// Whether the template may open with a thought, where it has a switch for it
    pub(crate) enable_thinking: Option<bool>,
    /// Tokens of a thought, which is closed by force behind them
    #[schema(minimum = 0)]
    pub(crate) thinking_budget: Option<u32>,
    /// Further variables of the chat template
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// End tokens do not end the answer
    pub(crate) ignore_eos: Option<bool>,
    #[schema(ignore)]
    pub(crate) logit_bias: Option<Value>,
    #[schema(ignore)]
    pub(crate) audio: Option<Value>,
    #[schema(ignore)]
    pub(crate) modalities: Option<Value>,
    #[schema(ignore)]
    pub(crate) functions: Option<Value>,
    #[schema(ignore)]
    pub(crate) function_call: Option<Value>,
    #[schema(ignore)]
    pub(crate) prediction: Option<Value>,
    #[schema(ignore)]
    pub(crate) web_search_options: Option<Value>,
    /// false: at most one call
    pub(crate) parallel_tool_calls: Option<bool>,
}

/// One message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ChatMessage {
    pub(crate) role: Role,
    /// A text, or parts `{"type": "text", "text": ...}` and `{"type": "image_url", "image_url": {"url": ...}}` in any
    /// order; null beside `tool_calls`
    #[schema(value_type = Option<MessageContent>)]
    pub(crate) content: Option<Value>,
    /// Calls that the assistant made
    #[schema(value_type = Option<Vec<MadeCall>>)]
    pub(crate) tool_calls: Option<Vec<Value>>,
    /// The call whose result a tool message brings
    pub(crate) tool_call_id: Option<String>,
    pub(crate) name: Option<String>,
    /// The thought before an assistant's content
    pub(crate) reasoning_content: Option<String>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// A whole answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
    /// `timings.prefill`
    pub(crate) prefill_time: f64,
    /// `timings.decode_tps`
    pub(crate) decode_tps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
}

/// One of the answers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: OutputMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// stop, length or `tool_calls`
    pub(crate) finish_reason: &'static str,
}

/// What the assistant says.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OutputMessage {
    pub(crate) role: &'static str,
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<Vec<ToolCall>>,
}

/// A call of a function.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: FunctionCall,
}

/// A function and its arguments, which are JSON.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct FunctionCall {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// The logarithms of probabilities: of the model as it is, before temperature, penalties and constraints.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<TokenLogprob>,
}

/// A token, and those that were the likeliest in its place.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TokenLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) top_logprobs: Vec<TopLogprob>,
}

/// One of the likeliest tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TopLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}

/// A piece of a streamed answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunk {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<ChatChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    /// With the last piece of a choice
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefill_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decode_tps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
}

/// A piece of one of the answers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: ChatDelta,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// What is new.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<Vec<ToolCallDelta>>,
}

/// More of a call: its name once, then its arguments piece by piece.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolCallDelta {
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: FunctionDelta,
}

/// More of a function call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}
