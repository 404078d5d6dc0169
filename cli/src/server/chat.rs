//! `POST /v1/chat/completions`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Request, State};
use axum::http::Response;
use axum::response::IntoResponse as _;
use cider::TokenInfo;
use cider::text::{AnswerPart, RenderOptions};
use serde_json::Value;

use super::answers::{Answers, Ask, Happened};
use super::app::{App, unix_time};
use super::auth::Salt;
use super::error::ApiError;
use super::logprobs;
use super::messages::{Conversation, Most};
use super::params::{self, Params, within};
use super::prepare::Chat;
use super::rules::Rules;
use super::stream::{self, Form, event};
use super::wire::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatLogprobs, ChatRequest,
    FunctionCall, FunctionDelta, OutputMessage, ToolCall, ToolCallDelta,
};

/// Answers a chat
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "answers", request_body = ChatRequest,
    responses(
        (status = 200, description = "The answer, or with `stream` its pieces as server-sent events", content(
            (ChatCompletion = "application/json"), (ChatChunk = "text/event-stream"))),
        (status = "default", description = "An error", body = super::wire::ErrorBody),
    )
)]
pub(super) async fn chat(
    State(app): State<Arc<App>>,
    Extension(salt): Extension<Salt>,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let asked = Instant::now();
    let (mut chat, share): (ChatRequest, _) = app.read_json(request).await?;
    app.check_model(chat.model.as_deref())?;
    let plan = Plan::new(&app, &chat)?;
    let most = Most {
        messages: app.limits.messages,
        pictures: app.limits.images,
    };
    let conversation = Conversation::read(chat.messages.take(), chat.images.take(), most)?;
    let slots = app.slots(plan.params.answers)?;
    let format = plan.rules.format;
    let options = render_options(&mut chat, &plan.rules);
    let answers = plan.params.answers;
    let prepared = Chat {
        conversation,
        options,
        rules: plan.rules,
        answers,
    };
    let (prompt, share) = app.prepare_chat(prepared, share).await?;
    let ask = Ask {
        params: plan.params,
        salt,
        asked,
        logprobs: plan.logprobs,
        ignore_eos: chat.ignore_eos == Some(true),
        format,
    };
    let answers = app.ask(&ask, vec![prompt], (slots, share))?;
    let form = ChatForm::new(&app, &chat, ask.logprobs.is_some());
    if chat.stream == Some(true) {
        return Ok(stream::respond(app, answers, form));
    }
    Ok(Json(form.whole(answers).await?).into_response())
}

/// What a request asks for, beside its messages.
struct Plan {
    params: Params,
    logprobs: Option<usize>,
    rules: Rules,
}

impl Plan {
    fn new(app: &App, chat: &ChatRequest) -> Result<Self, ApiError> {
        refuse_unsupported(&[
            ("logit_bias", &chat.logit_bias),
            ("audio", &chat.audio),
            ("functions", &chat.functions),
            ("function_call", &chat.function_call),
            ("prediction", &chat.prediction),
            ("web_search_options", &chat.web_search_options),
        ])?;
        let only_text = |list: &Vec<Value>| list.iter().all(|kind| kind == "text");
        if let Some(modalities) = &chat.modalities
            && !modalities.is_null()
            && !modalities.as_array().is_some_and(only_text)
        {
            return Err(ApiError::unsupported(
                "modalities",
                "modalities can be text alone",
            ));
        }
        params::request_id(chat.request_id.as_ref())?;
        let params = chat.fields().resolve(&app.defaults)?;
        let top = within("top_logprobs", chat.top_logprobs, 0..=20)?;
        if top.is_some() && chat.logprobs != Some(true) {
            return Err(ApiError::value(
                "top_logprobs",
                "top_logprobs needs logprobs: true",
            ));
        }
        let logprobs = (chat.logprobs == Some(true)).then_some(top.unwrap_or(0) as usize);
        let format = app.frontend.text().answer_format();
        let rules = Rules::of_chat(chat, format, app.limits.grammar_bytes)?;
        Ok(Self {
            params,
            logprobs,
            rules,
        })
    }
}

/// Refuses fields that would change the answer and are not honoured.
pub(super) fn refuse_unsupported(fields: &[(&str, &Option<Value>)]) -> Result<(), ApiError> {
    for (name, value) in fields {
        let is_empty = match value {
            None | Some(Value::Null | Value::Bool(false)) => true,
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Bool(true) | Value::Number(_)) => false,
        };
        if !is_empty {
            return Err(ApiError::unsupported(
                *name,
                format!("{name} is not supported"),
            ));
        }
    }
    Ok(())
}

fn render_options(chat: &mut ChatRequest, rules: &Rules) -> RenderOptions {
    let mut extra = chat.chat_template_kwargs.take().unwrap_or_default();
    if let Some(thinks) = chat.enable_thinking {
        extra.insert("enable_thinking".to_owned(), Value::Bool(thinks));
    }
    RenderOptions {
        add_generation_prompt: true,
        tools: rules.tools.clone(),
        extra,
    }
}

/// How a chat's answers are written.
struct ChatForm {
    id: String,
    created: u64,
    model: String,
    request_id: Option<String>,
    logprobs: bool,
    usage: bool,
}

impl ChatForm {
    fn new(app: &App, chat: &ChatRequest, logprobs: bool) -> Self {
        let options = chat.stream_options.as_ref();
        Self {
            id: app.ids.next("chatcmpl"),
            created: unix_time(),
            model: app.card.id.clone(),
            request_id: chat.request_id.clone(),
            logprobs,
            usage: options.is_some_and(|options| options.include_usage == Some(true)),
        }
    }

    /// All answers in one.
    async fn whole(self, mut answers: Answers) -> Result<ChatCompletion, ApiError> {
        let mut drafts: Vec<Draft> = (0..answers.len()).map(|_| Draft::default()).collect();
        while let Some(happened) = answers.next().await? {
            match happened {
                Happened::Progress { .. } => {}
                Happened::More {
                    choice,
                    parts,
                    tokens,
                } => {
                    drafts[choice].take(parts);
                    drafts[choice].tokens.extend(tokens);
                }
                Happened::Done {
                    choice,
                    parts,
                    finish,
                } => {
                    drafts[choice].take(parts);
                    drafts[choice].finish = finish;
                }
            }
        }
        let timings = answers.timings(0);
        let choices = drafts.into_iter().enumerate();
        Ok(ChatCompletion {
            id: self.id,
            object: "chat.completion",
            created: self.created,
            model: self.model,
            choices: choices
                .map(|(index, draft)| draft.choice(index, self.logprobs))
                .collect(),
            usage: answers.usage(),
            timings,
            prefill_time: timings.prefill,
            decode_tps: timings.decode_tps,
            request_id: self.request_id,
        })
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatChunk {
        ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk",
            created: self.created,
            model: self.model.clone(),
            choices,
            usage: None,
            timings: None,
            prefill_time: None,
            decode_tps: None,
            request_id: self.request_id.clone(),
        }
    }

    fn delta(&self, index: usize, delta: ChatDelta, logprobs: Option<ChatLogprobs>) -> Bytes {
        let finish_reason = None;
        event(&self.chunk(vec![ChatChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason,
        }]))
    }

    fn events(&self, choice: usize, parts: Vec<AnswerPart>, tokens: &[TokenInfo]) -> Vec<Bytes> {
        let mut logprobs = (self.logprobs && !tokens.is_empty()).then(|| logprobs::of_chat(tokens));
        let mut deltas: Vec<ChatDelta> = parts.into_iter().filter_map(delta).collect();
        if deltas.is_empty() && logprobs.is_some() {
            // Their text is held back.
            deltas.push(ChatDelta {
                content: Some(String::new()),
                ..ChatDelta::default()
            });
        }
        let deltas = deltas.into_iter();
        deltas
            .map(|delta| self.delta(choice, delta, logprobs.take()))
            .collect()
    }
}

impl Form for ChatForm {
    fn begin(&mut self, answers: &Answers) -> Vec<Bytes> {
        let role = || ChatDelta {
            role: Some("assistant"),
            content: Some(String::new()),
            ..ChatDelta::default()
        };
        (0..answers.len())
            .map(|index| self.delta(index, role(), None))
            .collect()
    }

    fn write(&mut self, happened: Happened, answers: &Answers) -> Vec<Bytes> {
        match happened {
            Happened::Progress { .. } => Vec::new(),
            Happened::More {
                choice,
                parts,
                tokens,
            } => self.events(choice, parts, &tokens),
            Happened::Done {
                choice,
                parts,
                finish,
            } => {
                let mut events = self.events(choice, parts, &[]);
                let timings = answers.timings(choice);
                let last = ChatChunkChoice {
                    index: choice,
                    delta: ChatDelta::default(),
                    logprobs: None,
                    finish_reason: Some(finish),
                };
                events.push(event(&ChatChunk {
                    timings: Some(timings),
                    prefill_time: Some(timings.prefill),
                    decode_tps: Some(timings.decode_tps),
                    ..self.chunk(vec![last])
                }));
                events
            }
        }
    }

    fn end(&mut self, answers: &Answers) -> Vec<Bytes> {
        let usage = ChatChunk {
            usage: Some(answers.usage()),
            ..self.chunk(Vec::new())
        };
        if self.usage {
            vec![event(&usage)]
        } else {
            Vec::new()
        }
    }
}

/// A part as a delta; what has none is left out.
fn delta(part: AnswerPart) -> Option<ChatDelta> {
    let call = |index, id, name, arguments| {
        let kind = Option::as_ref(&id).map(|_: &String| "function");
        let function = FunctionDelta { name, arguments };
        Some(vec![ToolCallDelta {
            index,
            id,
            kind,
            function,
        }])
    };
    let mut delta = ChatDelta::default();
    match part {
        AnswerPart::Reasoning(text) => delta.reasoning_content = Some(text),
        AnswerPart::Content(text) => delta.content = Some(text),
        AnswerPart::ToolCallStart { index, id, name } => {
            delta.tool_calls = call(index, Some(id), Some(name), String::new());
        }
        AnswerPart::ToolCallArguments { index, text } => {
            delta.tool_calls = call(index, None, None, text);
        }
        AnswerPart::ToolCallEnd { .. } => return None,
    }
    Some(delta)
}

/// An answer while it comes.
#[derive(Default)]
struct Draft {
    content: String,
    reasoning: Option<String>,
    /// Each with whether it is whole.
    calls: Vec<(ToolCall, bool)>,
    tokens: Vec<TokenInfo>,
    finish: &'static str,
}

impl Draft {
    fn take(&mut self, parts: Vec<AnswerPart>) {
        for part in parts {
            match part {
                AnswerPart::Reasoning(text) => {
                    self.reasoning.get_or_insert_default().push_str(&text);
                }
                AnswerPart::Content(text) => self.content.push_str(&text),
                AnswerPart::ToolCallStart { id, name, .. } => {
                    let function = FunctionCall {
                        name,
                        arguments: String::new(),
                    };
                    self.calls.push((
                        ToolCall {
                            id,
                            kind: "function",
                            function,
                        },
                        false,
                    ));
                }
                AnswerPart::ToolCallArguments { index, text } => {
                    if let Some((call, _)) = self.calls.get_mut(index) {
                        call.function.arguments.push_str(&text);
                    }
                }
                AnswerPart::ToolCallEnd { index } => {
                    if let Some((_, whole)) = self.calls.get_mut(index) {
                        *whole = true;
                    }
                }
            }
        }
    }

    fn choice(self, index: usize, logprobs: bool) -> ChatChoice {
        // One that was cut off is no call.
        let calls = self.calls.into_iter().filter(|(_, whole)| *whole);
        let calls: Vec<ToolCall> = calls.map(|(call, _)| call).collect();
        let is_call_alone = self.content.is_empty() && !calls.is_empty();
        ChatChoice {
            index,
            message: OutputMessage {
                role: "assistant",
                content: (!is_call_alone).then_some(self.content),
                refusal: None,
                reasoning_content: self.reasoning,
                tool_calls: (!calls.is_empty()).then_some(calls),
            },
            logprobs: logprobs.then(|| logprobs::of_chat(&self.tokens)),
            finish_reason: self.finish,
        }
    }
}
