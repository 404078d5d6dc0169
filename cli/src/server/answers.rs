//! The answers of a request on their way from the engine to the client.

use std::time::Instant;

use cider::generate::StopReason;
use cider::text::{AnswerFormat, AnswerPart};
use cider::{BatchRequest, Outcome, TokenInfo};
use tokio::sync::OwnedSemaphorePermit;

use super::app::App;
use super::auth::Salt;
use super::budget::Share;
use super::error::{ApiError, Code};
use super::mail::{Inbox, News, mailbox};
use super::params::Params;
use super::prepare::Prompt;
use super::split::Splitter;
use super::wire::{CachedTokens, Timings, Usage};

/// What is asked of the engine, beside the prompts.
pub(super) struct Ask {
    pub(super) params: Params,
    pub(super) salt: Salt,
    pub(super) asked: Instant,
    /// How many of the likeliest tokens are told with each token.
    pub(super) logprobs: Option<usize>,
    pub(super) ignore_eos: bool,
    /// How answers are taken apart; raw texts are not.
    pub(super) format: Option<AnswerFormat>,
}

/// Answers that are awaited. Dropping them cancels what still runs.
pub(super) struct Answers {
    inbox: Inbox,
    choices: Vec<Choice>,
    /// Answers to one prompt.
    per_prompt: usize,
    left: usize,
    _slots: OwnedSemaphorePermit,
    /// What the bodies and pictures hold.
    _share: Share,
}

struct Choice {
    splitter: Splitter,
    outcome: Option<Box<Outcome>>,
}

/// What happened to an answer.
#[derive(Debug)]
pub(super) enum Happened {
    /// So many tokens of its prompt are computed.
    Progress { done: usize, total: usize },
    /// There is more of it.
    More {
        choice: usize,
        parts: Vec<AnswerPart>,
        tokens: Vec<TokenInfo>,
    },
    /// It is complete, with what was held back of it.
    Done {
        choice: usize,
        parts: Vec<AnswerPart>,
        finish: &'static str,
    },
}

impl App {
    /// Hands prompts to the engine.
    pub(super) fn ask(
        &self,
        ask: &Ask,
        prompts: Vec<Prompt>,
        held: (OwnedSemaphorePermit, Share),
    ) -> Result<Answers, ApiError> {
        let per_prompt = ask.params.answers;
        let count = prompts.len() * per_prompt;
        let (outboxes, inbox) = mailbox(count, self.limits.stream_bytes.saturating_mul(count));
        let mut outboxes = outboxes.into_iter();
        let mut choices = Vec::with_capacity(count);
        let marks = ask
            .format
            .map(|format| format.marks(self.frontend.tokenizer()))
            .unwrap_or_default();
        for mut prompt in prompts {
            let rules = std::mem::take(&mut prompt.rules);
            for ((number, constraint), outbox) in
                rules.into_iter().enumerate().zip(outboxes.by_ref())
            {
                let request = BatchRequest {
                    images: prompt.images.clone(),
                    sampling: ask.params.of(number),
                    max_tokens: ask.params.max_tokens,
                    stops: ask.params.stops.clone(),
                    logprobs: ask.logprobs,
                    salt: ask.salt,
                    deadline: self.deadline(ask.asked),
                    ignore_eos: ask.ignore_eos,
                    constraint,
                    shown: marks.clone(),
                    ..BatchRequest::new(prompt.tokens.clone())
                };
                self.worker.submit(request, outbox, ask.asked)?;
                let splitter = Splitter::new(ask.format, prompt.opening);
                choices.push(Choice {
                    splitter,
                    outcome: None,
                });
            }
        }
        Ok(Answers {
            inbox,
            choices,
            per_prompt,
            left: count,
            _slots: held.0,
            _share: held.1,
        })
    }
}

impl Answers {
    /// The number of answers.
    pub(super) fn len(&self) -> usize {
        self.choices.len()
    }

    /// What happens next; nothing once all answers are complete.
    pub(super) async fn next(&mut self) -> Result<Option<Happened>, ApiError> {
        if self.left == 0 {
            return Ok(None);
        }
        let (choice, news) = self.inbox.next().await.ok_or_else(ApiError::worker_gone)?;
        let state = &mut self.choices[choice];
        Ok(Some(match news {
            News::Progress { done, total } => Happened::Progress { done, total },
            News::Text { text, tokens } => {
                let parts = state.splitter.push(&text);
                Happened::More {
                    choice,
                    parts,
                    tokens,
                }
            }
            News::Finished(outcome) => {
                self.left -= 1;
                let (parts, calls) = state.splitter.finish(outcome.reason);
                let finish = finish_reason(outcome.reason, calls)?;
                state.outcome = Some(outcome);
                Happened::Done {
                    choice,
                    parts,
                    finish,
                }
            }
            News::Failed(error) => return Err(*error),
        }))
    }

    /// Tokens of all complete answers; the tokens of a prompt count once.
    pub(super) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for (number, choice) in self.choices.iter().enumerate() {
            let Some(outcome) = &choice.outcome else {
                continue;
            };
            if number.is_multiple_of(self.per_prompt) {
                usage.prompt_tokens += outcome.prompt_tokens;
                usage.prompt_tokens_details = CachedTokens {
                    cached_tokens: usage.prompt_tokens_details.cached_tokens
                        + outcome.cached_tokens,
                };
            }
            usage.completion_tokens += outcome.generated_tokens;
        }
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        usage
    }

    /// Where the time of an answer went.
    pub(super) fn timings(&self, choice: usize) -> Timings {
        let outcome = self
            .choices
            .get(choice)
            .and_then(|choice| choice.outcome.as_deref());
        outcome.map(timings).unwrap_or_default()
    }
}

fn timings(outcome: &Outcome) -> Timings {
    let rate = |tokens: usize, seconds: f64| {
        if seconds > 0.0 {
            tokens as f64 / seconds
        } else {
            0.0
        }
    };
    let (prefill, decode) = (outcome.prefill.as_secs_f64(), outcome.decode.as_secs_f64());
    Timings {
        queue: outcome.queue.as_secs_f64(),
        prefill,
        decode,
        prefill_tps: rate(
            outcome.prompt_tokens.saturating_sub(outcome.cached_tokens),
            prefill,
        ),
        decode_tps: rate(outcome.generated_tokens.saturating_sub(1), decode),
    }
}

fn finish_reason(reason: StopReason, calls: bool) -> Result<&'static str, ApiError> {
    match reason {
        StopReason::Stop if calls => Ok("tool_calls"),
        StopReason::Stop => Ok("stop"),
        StopReason::ToolCalls => Ok("tool_calls"),
        StopReason::Length => Ok("length"),
        StopReason::Deadline => Err(ApiError::new(
            Code::DeadlineExceeded,
            "the answer was not complete in time",
        )),
        StopReason::Cancelled => Err(ApiError::new(
            Code::ShuttingDown,
            "the server is shutting down",
        )),
    }
}
