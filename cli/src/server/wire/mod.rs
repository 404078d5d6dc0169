//! The bodies of requests and answers: `OpenAI`'s, the seed's fields, and ours.

mod chat;
mod completions;
mod shapes;
mod shared;

pub(super) use self::chat::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatLogprobs, ChatMessage,
    ChatRequest, FunctionCall, FunctionDelta, OutputMessage, Role, TokenLogprob, ToolCall,
    ToolCallDelta, TopLogprob,
};
pub(super) use self::completions::{
    Completion, CompletionChoice, CompletionLogprobs, CompletionRequest,
};
pub(super) use self::shared::{
    CachedTokens, ErrorBody, ErrorDetail, Health, ModelCard, ModelList, Queue, Timings,
    TokenizeRequest, Tokenized, Usage,
};
