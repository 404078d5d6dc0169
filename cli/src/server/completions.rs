//! `POST /v1/completions`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Request, State};
use axum::http::Response;
use axum::response::IntoResponse as _;
use cider::text::{AnswerPart, Opening};
use serde_json::Value;

use super::answers::{Answers, Ask, Happened};
use super::app::{App, unix_time};
use super::auth::Salt;
use super::chat::refuse_unsupported;
use super::error::ApiError;
use super::params::{self, within};
use super::prepare::Prompt;
use super::rules::Rules;
use super::stream::{self, Form, event};
use super::wire::{Completion, CompletionChoice, CompletionLogprobs, CompletionRequest};

/// Continues a raw text
#[utoipa::path(
    post, path = "/v1/completions", tag = "answers", request_body = CompletionRequest,
    responses(
        (status = 200, description = "The answer, or with `stream` its parts as server-sent events", content(
            (Completion = "application/json"), (Completion = "text/event-stream"))),
        (status = "default", description = "An error", body = super::wire::ErrorBody),
    )
)]
pub(super) async fn completions(
    State(app): State<Arc<App>>,
    Extension(salt): Extension<Salt>,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let asked = Instant::now();
    let (mut completion, share): (CompletionRequest, _) = app.read_json(request).await?;
    app.check_model(completion.model.as_deref())?;
    let params = check(&app, &completion)?;
    let texts = texts(completion.prompt.take())?;
    for text in &texts {
        app.check_text(text.bytes(), "prompt")?;
    }
    let slots = app.slots(params.answers.saturating_mul(texts.len()))?;
    let frontend = Arc::clone(&app.frontend);
    let rules = Rules::of_completion(&completion, app.limits.grammar_bytes)?;
    let answers = params.answers;
    let prompt = move |text: Text| text.prompt(&frontend, &rules, answers);
    let prompts = app
        .prepare(move || texts.into_iter().map(prompt).collect())
        .await?;
    let logprobs = completion.logprobs.map(|top| top as usize);
    let ignore_eos = completion.ignore_eos == Some(true);
    let ask = Ask {
        params,
        salt,
        asked,
        logprobs,
        ignore_eos,
        format: None,
    };
    let answers = app.ask(&ask, prompts, (slots, share))?;
    let form = CompletionForm::new(&app, &completion, answers.len());
    if completion.stream == Some(true) {
        return Ok(stream::respond(app, answers, form));
    }
    Ok(Json(form.whole(answers).await?).into_response())
}

fn check(app: &App, completion: &CompletionRequest) -> Result<params::Params, ApiError> {
    refuse_unsupported(&[
        ("echo", &completion.echo),
        ("suffix", &completion.suffix),
        ("logit_bias", &completion.logit_bias),
    ])?;
    params::request_id(completion.request_id.as_ref())?;
    let params = completion.fields().resolve(&app.defaults)?;
    within("logprobs", completion.logprobs, 0..=20)?;
    if let Some(best_of) = &completion.best_of
        && !best_of.is_null()
        && best_of.as_u64() != Some(params.answers as u64)
    {
        return Err(ApiError::unsupported(
            "best_of",
            "best_of is not supported, other than as n",
        ));
    }
    Ok(params)
}

/// A prompt before it is tokens.
enum Text {
    Words(String),
    Tokens(Vec<u32>),
}

impl Text {
    /// Bytes that are to be cut into tokens.
    fn bytes(&self) -> usize {
        match self {
            Self::Words(text) => text.len(),
            Self::Tokens(_) => 0,
        }
    }

    fn prompt(
        self,
        frontend: &cider::Frontend,
        rules: &Rules,
        answers: usize,
    ) -> Result<Prompt, ApiError> {
        let at = |error: cider::Error| ApiError::from(error).at("prompt");
        let tokens = match self {
            Self::Words(text) => frontend.raw_prompt(&text).map_err(at)?,
            Self::Tokens(tokens) => {
                let count = frontend.tokenizer().vocab_size();
                if let Some(token) = tokens.iter().find(|&&token| token as usize >= count) {
                    let what =
                        format!("token {token} of the prompt is not one of the model's {count}");
                    return Err(ApiError::value("prompt", what));
                }
                tokens
            }
        };
        if tokens.is_empty() {
            return Err(ApiError::value("prompt", "the prompt has no tokens"));
        }
        let tokens = frontend.place(tokens, &[]).map_err(at)?;
        let opening = Opening::Closed;
        let rules = rules.compile(frontend, opening, answers)?;
        Ok(Prompt {
            tokens,
            images: Vec::new(),
            rules,
            opening,
        })
    }
}

/// The prompts of a request, in any of their four forms.
fn texts(prompt: Option<Value>) -> Result<Vec<Text>, ApiError> {
    let refuse = || {
        let what = "prompt must be a text, a list of texts, a list of tokens, or a list of lists of tokens";
        ApiError::value("prompt", what)
    };
    let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    let tokens = |list: &[Value]| {
        list.iter()
            .map(token)
            .collect::<Option<Vec<u32>>>()
            .ok_or_else(refuse)
    };
    let list = match prompt {
        Some(Value::String(text)) => return Ok(vec![Text::Words(text)]),
        Some(Value::Array(list)) if !list.is_empty() => list,
        _ => return Err(refuse()),
    };
    if list.iter().all(Value::is_number) {
        return Ok(vec![Text::Tokens(tokens(&list)?)]);
    }
    let one = |value: Value| match value {
        Value::String(text) => Ok(Text::Words(text)),
        Value::Array(list) => tokens(&list).map(Text::Tokens),
        _ => Err(refuse()),
    };
    list.into_iter().map(one).collect()
}

/// How the answers are written.
struct CompletionForm {
    id: String,
    created: u64,
    model: String,
    request_id: Option<String>,
    logprobs: bool,
    usage: bool,
    /// Characters of each answer so far.
    offsets: Vec<usize>,
}

impl CompletionForm {
    fn new(app: &App, completion: &CompletionRequest, answers: usize) -> Self {
        let options = completion.stream_options.as_ref();
        Self {
            id: app.ids.next("cmpl"),
            created: unix_time(),
            model: app.card.id.clone(),
            request_id: completion.request_id.clone(),
            logprobs: completion.logprobs.is_some(),
            usage: options.is_some_and(|options| options.include_usage == Some(true)),
            offsets: vec![0; answers],
        }
    }

    async fn whole(mut self, mut answers: Answers) -> Result<Completion, ApiError> {
        let mut choices: Vec<CompletionChoice> = (0..answers.len())
            .map(|index| self.choice(index, None))
            .collect();
        while let Some(happened) = answers.next().await? {
            let (choice, parts) = match happened {
                Happened::Progress { .. } => continue,
                Happened::More {
                    choice,
                    parts,
                    tokens,
                } => {
                    if let Some(logprobs) = &mut choices[choice].logprobs {
                        logprobs.extend(&tokens, &mut self.offsets[choice]);
                    }
                    (choice, parts)
                }
                Happened::Done {
                    choice,
                    parts,
                    finish,
                } => {
                    choices[choice].finish_reason = Some(finish);
                    (choice, parts)
                }
            };
            choices[choice].text.extend(parts.into_iter().map(text));
        }
        let timings = answers.timings(0);
        Ok(Completion {
            usage: Some(answers.usage()),
            timings: Some(timings),
            prefill_time: Some(timings.prefill),
            decode_tps: Some(timings.decode_tps),
            ..self.chunk(choices)
        })
    }

    fn choice(&self, index: usize, finish_reason: Option<&'static str>) -> CompletionChoice {
        let logprobs = self.logprobs.then(CompletionLogprobs::default);
        CompletionChoice {
            index,
            text: String::new(),
            logprobs,
            finish_reason,
        }
    }

    fn chunk(&self, choices: Vec<CompletionChoice>) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion",
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
}

impl Form for CompletionForm {
    fn begin(&mut self, _answers: &Answers) -> Vec<Bytes> {
        Vec::new()
    }

    fn write(&mut self, happened: Happened, answers: &Answers) -> Vec<Bytes> {
        match happened {
            Happened::Progress { .. } => Vec::new(),
            Happened::More {
                choice,
                parts,
                tokens,
            } => {
                if parts.is_empty() && (tokens.is_empty() || !self.logprobs) {
                    return Vec::new();
                }
                let mut piece = self.choice(choice, None);
                piece.text.extend(parts.into_iter().map(text));
                if let Some(logprobs) = &mut piece.logprobs {
                    logprobs.extend(&tokens, &mut self.offsets[choice]);
                }
                vec![event(&self.chunk(vec![piece]))]
            }
            Happened::Done {
                choice,
                parts,
                finish,
            } => {
                let timings = answers.timings(choice);
                let mut last = self.choice(choice, Some(finish));
                last.text.extend(parts.into_iter().map(text));
                vec![event(&Completion {
                    timings: Some(timings),
                    prefill_time: Some(timings.prefill),
                    decode_tps: Some(timings.decode_tps),
                    ..self.chunk(vec![last])
                })]
            }
        }
    }

    fn end(&mut self, answers: &Answers) -> Vec<Bytes> {
        let usage = Completion {
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

/// The text of a part: a raw answer has no others.
fn text(part: AnswerPart) -> String {
    match part {
        AnswerPart::Content(text) => text,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prompts_have_four_forms() {
        for (prompt, count) in [
            (json!("a"), 1),
            (json!(["a", "b"]), 2),
            (json!([1, 2]), 1),
            (json!([[1], [2], [3]]), 3),
            (json!(["a", [1]]), 2),
        ] {
            assert_eq!(texts(Some(prompt)).unwrap().len(), count);
        }
        for prompt in [
            json!(null),
            json!([]),
            json!(1),
            json!([-1]),
            json!([1.5]),
            json!([1, "a"]),
            json!([[1, "a"]]),
            json!([4_294_967_296_u64]),
            json!({}),
        ] {
            assert!(texts(Some(prompt.clone())).is_err(), "{prompt}");
        }
        assert!(texts(None).is_err());
    }
}
