//! What an answer consists of: a thought, content, calls of tools.

use cider::generate::StopReason;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Content(String),
}

/// Takes an answer apart as it comes.
#[derive(Debug, Default)]
pub(super) struct Splitter;

impl Splitter {
    /// More text.
    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        if text.is_empty() { Vec::new() } else { vec![Piece::Content(text.to_owned())] }
    }

    /// What was held back at the end, and whether there are calls.
    pub(super) fn finish(&mut self, _reason: StopReason) -> (Vec<Piece>, bool) {
        (Vec::new(), false)
    }
}
