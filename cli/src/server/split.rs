//! What an answer consists of: a thought, content, calls of tools.

use cider::generate::StopReason;
use cider::text::{AnswerFormat, AnswerParser, AnswerPart, Opening};

/// Takes an answer apart as it comes; a raw text is one part.
#[derive(Debug)]
pub(super) struct Splitter(Option<AnswerParser>);

impl Splitter {
    /// One for a format, if there is one, of an answer that begins as `opening` says.
    pub(super) fn new(format: Option<AnswerFormat>, opening: Opening) -> Self {
        Self(format.map(|format| AnswerParser::new(&format, opening)))
    }

    /// More text.
    pub(super) fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        match &mut self.0 {
            Some(parser) => parser.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![AnswerPart::Content(text.to_owned())],
        }
    }

    /// What was held back at the end, and whether there are whole calls.
    pub(super) fn finish(&mut self, reason: StopReason) -> (Vec<AnswerPart>, bool) {
        let Some(parser) = &mut self.0 else {
            return (Vec::new(), false);
        };
        let parts = parser.finish(reason == StopReason::Stop);
        (parts, parser.calls() > 0)
    }
}
