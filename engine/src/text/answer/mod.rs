//! An answer in its parts: thoughts, words, calls of tools.

mod calls;
mod format;
mod json;
mod tool_text;

pub use self::format::{AnswerFormat, Opening, ToolFormat};
use self::tool_text::ToolText;

/// A part of an answer, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// More of what the model thinks.
    Reasoning(String),
    /// More of what the model says.
    Content(String),
    /// A call of a tool begins.
    ToolCallStart {
        /// Which call of the answer, from 0.
        index: usize,
        /// A name for this call.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of the arguments of a call, which together are a JSON object.
    ToolCallArguments {
        /// Which call.
        index: usize,
        /// The text, as the model wrote it.
        text: String,
    },
    /// A call is whole. One that began and never comes here was cut off or malformed: it is no call.
    ToolCallEnd {
        /// Which call.
        index: usize,
    },
}

/// Sorts the text of an answer into its parts while it comes. How the text was cut into pieces changes how the parts
/// are cut into pieces, and nothing else.
///
/// It stands behind the stop strings, so that what they held back comes here too.
///
/// ```
/// use cider::text::{AnswerFormat, AnswerParser, AnswerPart, Opening};
///
/// let format = AnswerFormat { reasoning: true, tools: None };
/// let mut parser = AnswerParser::new(&format, Opening::MayOpen);
/// let mut parts = parser.push("<think>r</th");
/// parts.extend(parser.push("ink>\n\nok"));
/// parts.extend(parser.finish(true));
/// let expected = [AnswerPart::Reasoning("r".into()), AnswerPart::Content("ok".into())];
/// assert_eq!(parts, expected);
/// ```
#[derive(Debug)]
pub struct AnswerParser {
    place: Place,
    /// Text whose part is not known yet.
    held: String,
    tools: Option<ToolText>,
}

/// Where in the answer the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the start: a thought may open.
    Start,
    /// In a thought of which nothing was given out yet.
    ThoughtStart,
    Thought,
    /// Behind a thought: blanks are skipped.
    AfterThought,
    Words,
}

impl AnswerParser {
    /// A parser at the start of an answer.
    #[must_use]
    pub fn new(format: &AnswerFormat, opening: Opening) -> Self {
        let place = match opening {
            _ if !format.reasoning => Place::Words,
            Opening::MayOpen => Place::Start,
            Opening::Open => Place::ThoughtStart,
            Opening::Closed => Place::Words,
        };
        Self {
            place,
            held: String::new(),
            tools: format.tools.map(ToolText::new),
        }
    }

    /// Takes more text; gives the parts that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        let mut parts = Vec::new();
        self.held.push_str(text);
        while self.advance(&mut parts) {}
        parts
    }

    /// The end of the answer: what was held back. `natural` says that the model ended it, or a stop string; then a
    /// call that lacks nothing but its closing mark counts.
    pub fn finish(&mut self, natural: bool) -> Vec<AnswerPart> {
        let mut parts = Vec::new();
        let held = std::mem::take(&mut self.held);
        match self.place {
            Place::Start | Place::Words => self.words(&held, &mut parts),
            Place::ThoughtStart => give_thought(held.trim(), &mut parts),
            Place::Thought => give_thought(held.trim_end(), &mut parts),
            Place::AfterThought => {}
        }
        if let Some(tools) = &mut self.tools {
            tools.finish(natural, &mut parts);
        }
        parts
    }

    /// How many whole calls there were.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.tools.as_ref().map_or(0, ToolText::calls)
    }

    /// Goes one place further; false where more text is needed.
    fn advance(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        match self.place {
            Place::Start => self.at_start(),
            Place::ThoughtStart => {
                let start = self.held.len() - self.held.trim_start().len();
                self.held.drain(..start);
                if self.held.is_empty() {
                    return false;
                }
                self.in_thought(parts)
            }
            Place::Thought => self.in_thought(parts),
            Place::AfterThought => {
                let start = self.held.len() - self.held.trim_start().len();
                self.held.drain(..start);
                if self.held.is_empty() {
                    return false;
                }
                self.place = Place::Words;
                true
            }
            Place::Words => {
                let held = std::mem::take(&mut self.held);
                self.words(&held, parts);
                false
            }
        }
    }

    fn at_start(&mut self) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(THINK) {
            self.held = rest.to_owned();
            self.place = Place::ThoughtStart;
            return true;
        }
        if THINK.starts_with(text) {
            return false;
        }
        self.place = Place::Words;
        true
    }

    fn in_thought(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let (thought, rest) = if let Some((thought, rest)) = self.held.split_once(END_THINK) {
            (thought.trim_end(), Some(rest.to_owned()))
        } else {
            let certain = self.held.len() - overlap(&self.held, END_THINK);
            let thought = self.held.get(..certain).unwrap_or_default();
            (thought.trim_end(), None)
        };
        let length = thought.len();
        give_thought(thought, parts);
        if let Some(rest) = rest {
            self.held = rest;
            self.place = Place::AfterThought;
            return true;
        }
        if length > 0 {
            self.held.drain(..length);
            self.place = Place::Thought;
        }
        false
    }

    fn words(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        match &mut self.tools {
            Some(tools) => tools.push(text, parts),
            None => give_content(text, parts),
        }
    }
}

fn give_thought(text: &str, parts: &mut Vec<AnswerPart>) {
    if !text.is_empty() {
        parts.push(AnswerPart::Reasoning(text.to_owned()));
    }
}

fn give_content(text: &str, parts: &mut Vec<AnswerPart>) {
    if !text.is_empty() {
        parts.push(AnswerPart::Content(text.to_owned()));
    }
}

/// The length of the longest proper beginning of `mark` that `text` ends with.
fn overlap(text: &str, mark: &str) -> usize {
    (1..mark.len())
        .rev()
        .find(|&length| {
            mark.get(..length)
                .is_some_and(|start| text.ends_with(start))
        })
        .unwrap_or(0)
}

/// Opens a thought.
pub(crate) const THINK: &str = "<think>";
/// Closes a thought.
pub(crate) const END_THINK: &str = "</think>";

#[cfg(test)]
mod tests;
