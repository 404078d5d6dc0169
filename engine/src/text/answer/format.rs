//! How a model writes its answers, as far as its chat template shows.

use serde_json::Value;

use super::{END_THINK, THINK};
use crate::text::chat_template::ChatTemplate;
use crate::text::tokenizer::Tokenizer;

/// What an answer may hold beside words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerFormat {
    /// Whether the model may think first, between `<think>` and `</think>`.
    pub reasoning: bool,
    /// How it calls tools; `None` where calls are mere text, as for a request without tools.
    pub tools: Option<ToolFormat>,
}

/// How calls of tools are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and Qwen do.
    Hermes,
    /// `{"name": …, "parameters": {…}}` as the whole answer, `<|python_tag|>` before it or not, as Llama 3 does.
    Llama3,
}

/// The state in which a prompt leaves the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    /// Nothing is said of thoughts: the answer may begin with one.
    #[default]
    MayOpen,
    /// The prompt ends in a thought that is open.
    Open,
    /// The prompt ends behind a thought, or thoughts are off: all that comes is the answer.
    Closed,
}

impl AnswerFormat {
    /// The format of a model with this template and vocabulary.
    #[must_use]
    pub fn of(template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Self {
        let mentions = |text: &str| template.is_some_and(|template| template.mentions(text));
        let hermes = mentions(TOOL_CALL);
        let llama = mentions(PYTHON_TAG) || mentions("\"parameters\": ");
        Self {
            reasoning: mentions(END_THINK) || tokenizer.token_id(END_THINK).is_some(),
            tools: match (hermes, llama) {
                (true, _) => Some(ToolFormat::Hermes),
                (false, true) => Some(ToolFormat::Llama3),
                (false, false) => None,
            },
        }
    }

    /// The control tokens that the text of an answer must show, because they are marks of this format.
    #[must_use]
    pub fn marks(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let thoughts = [THINK, END_THINK].into_iter().filter(|_| self.reasoning);
        let tools: &[&str] = match self.tools {
            None => &[],
            Some(ToolFormat::Hermes) => &[TOOL_CALL, END_TOOL_CALL],
            Some(ToolFormat::Llama3) => &[PYTHON_TAG],
        };
        thoughts
            .chain(tools.iter().copied())
            .filter_map(|mark| tokenizer.token_id(mark))
            .filter(|&id| tokenizer.is_special(id))
            .collect()
    }
}

impl Opening {
    /// What the part of a prompt says that the template wrote to begin the answer.
    pub(crate) fn of(generation_prompt: &str) -> Self {
        let (open, closed) = (
            generation_prompt.rfind(THINK),
            generation_prompt.rfind(END_THINK),
        );
        match (open, closed) {
            (None, None) => Self::MayOpen,
            (Some(open), closed) if closed.is_none_or(|closed| closed < open) => Self::Open,
            _ => Self::Closed,
        }
    }
}

impl ToolFormat {
    /// What stands before the arguments of a call.
    pub(crate) fn opening(self, name: &str) -> String {
        let name = Value::from(name);
        match self {
            Self::Hermes => format!("{TOOL_CALL}\n{{\"name\": {name}, \"arguments\": "),
            Self::Llama3 => format!("{{\"name\": {name}, \"parameters\": "),
        }
    }

    /// What stands behind them.
    pub(crate) fn closing(self) -> &'static str {
        match self {
            Self::Hermes => "}\n</tool_call>",
            Self::Llama3 => "}",
        }
    }

    /// What stands between two calls.
    pub(crate) fn separator(self) -> &'static str {
        match self {
            Self::Hermes => "\n",
            Self::Llama3 => "; ",
        }
    }
}

pub(super) const TOOL_CALL: &str = "<tool_call>";
pub(super) const END_TOOL_CALL: &str = "</tool_call>";
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";
