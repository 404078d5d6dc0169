//! Answers that keep to a JSON schema, an expression or a grammar.
//!
//! The rules are compiled and followed by the crate `llguidance`; this module gives it our vocabulary, and bounds
//! everything that a client decides: sizes before the compiler sees them, work and memory of the compiler, and the
//! work of a step. What cannot be enforced is refused.

mod json_object;
mod limits;
mod matcher;
mod schema;
mod tools;
mod vocabulary;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory, earley::SlicedBiasComputer};
use serde_json::Value;

pub(crate) use self::matcher::GrammarConstraint;
pub use self::tools::{ToolChoice, ToolRule};
use super::answer::Opening;
use super::thought::{ThoughtConstraint, ThoughtTokens};
use super::tokenizer::Tokenizer;
use crate::generate::Constraint;
use crate::{Error, Result};

/// What an answer keeps to.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// A JSON value that a JSON schema allows.
    JsonSchema(Value),
    /// A text that an expression matches as a whole, in the syntax of the `regex` crate.
    Regex(String),
    /// A text of a context-free language, in the syntax of Lark as `llguidance` takes it.
    Lark(String),
    /// Calls of tools and nothing else.
    Tools(ToolRule),
}

/// Compiles grammars for one vocabulary; cheap to clone, and meant to be made once for a model.
///
/// ```
/// use cider::text::{Grammar, Grammars, GgufVocabulary, Tokenizer};
///
/// let tokenizer = Tokenizer::from_gguf(&GgufVocabulary {
///     model: "gpt2",
///     pre: "gpt-2",
///     tokens: vec!["a", "b", "ab", "<end>"],
///     token_types: vec![1, 1, 1, 3],
///     ..GgufVocabulary::default()
/// })?;
/// let grammars = Grammars::new(&tokenizer, &[3])?;
/// let mut rule = grammars.compile(&Grammar::Regex("a+b".to_owned()))?;
/// let mut logits = [0.0; 4];
/// rule.mask(&mut logits)?;
/// assert_eq!(logits, [0.0, f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
/// rule.accept(2)?;
/// assert!(rule.finished());
/// # Ok::<(), cider::Error>(())
/// ```
#[derive(Clone)]
pub struct Grammars {
    factory: Arc<ParserFactory>,
    thoughts: Arc<ThoughtTokens>,
}

impl Grammars {
    /// Builds the tree of all tokens; `end_tokens` are those that end an answer.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary is empty or too large.
    pub fn new(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<Self> {
        let build = || {
            let vocabulary = vocabulary::build(tokenizer, end_tokens)?;
            let slices = SlicedBiasComputer::general_slices();
            let capabilities = InferenceCapabilities::default();
            let mut factory = ParserFactory::new(&vocabulary, capabilities, &slices)
                .map_err(|error| Error::Tokenizer(first_line(&error.to_string())))?;
            factory.quiet();
            *factory.limits_mut() = limits::parser();
            Ok(factory)
        };
        let failed = || Error::Tokenizer("the tree of its tokens cannot be built".to_owned());
        let factory = on_large_stack(&build).unwrap_or_else(|| Err(failed()))?;
        Ok(Self {
            factory: Arc::new(factory),
            thoughts: Arc::new(ThoughtTokens::new(tokenizer, end_tokens)?),
        })
    }

    /// The constraint of an answer whose format allows thoughts where `opening` says so: the thought has at most
    /// `budget` tokens, and what follows it keeps to `grammar`. `None` where there is nothing to keep to.
    ///
    /// A thought over its budget is closed by force. With a grammar the answer cannot end within its thought, and at
    /// most four tokens of blanks stand between the two.
    ///
    /// # Errors
    /// As [`Grammars::compile`].
    pub fn constrain(
        &self,
        opening: Opening,
        budget: Option<usize>,
        grammar: Option<&Grammar>,
    ) -> Result<Option<Box<dyn Constraint>>> {
        let rule = grammar.map(|grammar| self.compile(grammar)).transpose()?;
        if opening == Opening::Closed || (rule.is_none() && budget.is_none()) {
            return Ok(rule);
        }
        let thoughts = Arc::clone(&self.thoughts);
        let constraint = ThoughtConstraint::new(thoughts, opening, budget, rule);
        Ok(Some(Box::new(constraint)))
    }

    /// The rule that keeps an answer to `grammar`, at its start.
    ///
    /// Takes some milliseconds, and up to about a second for what is just within the limits: not for a thread that
    /// must answer at once.
    ///
    /// # Errors
    /// [`Error::Grammar`] when the grammar is malformed, asks for something that cannot be enforced, allows nothing,
    /// or is over a limit of size or work.
    pub fn compile(&self, grammar: &Grammar) -> Result<Box<dyn Constraint>> {
        let kind = grammar.kind();
        let source = grammar.source()?;
        let compile = || {
            let parser = self.factory.create_parser(source.clone());
            let mut matcher = Matcher::new(parser);
            if let Some(error) = matcher.get_error() {
                return Err(refused(kind, &error));
            }
            // The first mask finds what the compiler leaves to the first step, such as a rule that allows nothing.
            match matcher.compute_mask_or_eos() {
                Ok(_) => Ok(matcher),
                Err(error) => Err(refused(kind, &error.to_string())),
            }
        };
        let matcher = on_large_stack(&compile).unwrap_or_else(|| Err(refused(kind, "panic: ")))?;
        Ok(Box::new(GrammarConstraint::new(kind, matcher)))
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("Grammars")
            .field("tokens", &tokens)
            .finish_non_exhaustive()
    }
}

impl Grammar {
    /// The name of the request's field.
    fn kind(&self) -> &'static str {
        match self {
            Self::JsonObject => "json_object",
            Self::JsonSchema(_) => "json_schema",
            Self::Regex(_) => "guided_regex",
            Self::Lark(_) => "guided_grammar",
            Self::Tools(_) => "tools",
        }
    }

    /// What the compiler takes, checked against the limits.
    fn source(&self) -> Result<TopLevelGrammar> {
        let kind = self.kind();
        Ok(match self {
            Self::JsonObject => TopLevelGrammar::from_lark(json_object::LARK.to_owned()),
            Self::JsonSchema(schema) => {
                TopLevelGrammar::from_json_schema(schema::prepare(kind, schema)?)
            }
            Self::Regex(expression) => {
                limits::check_regex(kind, expression)?;
                TopLevelGrammar::from_regex(expression)
            }
            Self::Lark(grammar) => {
                limits::check_lark(kind, grammar)?;
                TopLevelGrammar::from_lark(grammar.clone())
            }
            Self::Tools(rule) => TopLevelGrammar::from_lark(rule.to_lark()?),
        })
    }
}

/// What the compiler said, for a person: one line, and nothing of its inside.
pub(crate) fn refused(kind: &'static str, said: &str) -> Error {
    let line = first_line(said);
    let what = if said.starts_with("panic") || said.contains("<backtrace>") {
        "the compiler cannot take it".to_owned()
    } else {
        line.chars().take(MESSAGE_LENGTH).collect()
    };
    Error::Grammar { kind, what }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// Does work that recurses over what a client sent; `None` if it failed in a way that has no words.
fn on_large_stack<T: Send>(work: &(dyn Fn() -> Result<T> + Sync)) -> Option<Result<T>> {
    thread::scope(|scope| {
        let builder = thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(STACK_BYTES);
        let caught = || catch_unwind(AssertUnwindSafe(work)).ok();
        match builder.spawn_scoped(scope, caught) {
            Ok(thread) => thread.join().ok().flatten(),
            Err(error) => Some(Err(Error::Request(format!(
                "no thread for a grammar: {error}"
            )))),
        }
    })
}

/// Address space alone: what is not used is never in memory.
const STACK_BYTES: usize = 128 << 20;
const MESSAGE_LENGTH: usize = 300;

#[cfg(test)]
mod tests;
