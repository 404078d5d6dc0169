//! Calls of tools among the words of an answer.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::calls::CallScanner;
use super::format::{END_TOOL_CALL, PYTHON_TAG, TOOL_CALL, ToolFormat};
use super::json::Scanned;
use super::{AnswerPart, give_content, overlap};

/// Finds calls in text that comes in pieces.
#[derive(Debug)]
pub(super) struct ToolText {
    format: ToolFormat,
    place: Place,
    /// Text that may be the beginning of a mark, and blanks that a mark would swallow.
    held: String,
    /// What distinguishes the calls of this answer from those of others.
    name: u64,
    begun: usize,
    whole: usize,
    /// Behind a call, before any words: blanks are those between calls.
    behind_call: bool,
}

#[derive(Debug)]
enum Place {
    /// Llama 3: at the start of the answer or behind a call, where another call may begin.
    Between,
    Words,
    /// In the object of a call; `mark` is the text before it.
    Call {
        mark: String,
        scanner: CallScanner,
    },
    /// Hermes: behind the object, before the closing mark.
    Closing {
        mark: String,
        scanner: CallScanner,
    },
}

impl ToolText {
    pub(super) fn new(format: ToolFormat) -> Self {
        Self {
            format,
            place: match format {
                ToolFormat::Hermes => Place::Words,
                ToolFormat::Llama3 => Place::Between,
            },
            held: String::new(),
            name: RandomState::new().build_hasher().finish(),
            begun: 0,
            whole: 0,
            behind_call: false,
        }
    }

    pub(super) fn calls(&self) -> usize {
        self.whole
    }

    pub(super) fn push(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        self.held.push_str(text);
        while self.advance(parts) {}
    }

    pub(super) fn finish(&mut self, natural: bool, parts: &mut Vec<AnswerPart>) {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.place, Place::Words) {
            Place::Words | Place::Between if self.whole > 0 && held.trim().is_empty() => {}
            Place::Words | Place::Between => self.give_words(&held, parts),
            Place::Closing { .. } if natural && held.trim().is_empty() => self.end_call(parts),
            Place::Call { mark, scanner } | Place::Closing { mark, scanner } => {
                if !scanner.started() {
                    self.give_words(&[&mark, scanner.text(), &held].concat(), parts);
                }
            }
        }
    }

    /// Goes one place further; false where more text is needed.
    fn advance(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        match std::mem::replace(&mut self.place, Place::Words) {
            Place::Between => self.between(),
            Place::Words => match self.format {
                ToolFormat::Hermes => self.words(parts),
                ToolFormat::Llama3 => {
                    let held = std::mem::take(&mut self.held);
                    self.give_words(&held, parts);
                    false
                }
            },
            Place::Call { mark, scanner } => self.call(mark, scanner, parts),
            Place::Closing { mark, scanner } => self.closing(mark, scanner, parts),
        }
    }

    /// Words up to a mark of Hermes, without the blanks before it.
    fn words(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let (certain, found) = match self.held.find(TOOL_CALL) {
            Some(at) => (at, true),
            None => (self.held.len() - overlap(&self.held, TOOL_CALL), false),
        };
        let text = self.held.get(..certain).unwrap_or_default().trim_end();
        let words = text.len();
        let text = text.to_owned();
        self.give_words(&text, parts);
        if !found {
            self.held.drain(..words);
            return false;
        }
        let mark = self.held.get(words..certain + TOOL_CALL.len());
        let mark = mark.unwrap_or_default().to_owned();
        self.held.drain(..certain + TOOL_CALL.len());
        self.begin_call(mark);
        true
    }

    fn give_words(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        let text = if self.behind_call {
            text.trim_start()
        } else {
            text
        };
        self.behind_call &= text.is_empty();
        give_content(text, parts);
    }

    fn between(&mut self) -> bool {
        let separators = |c: char| c.is_whitespace() || (self.whole > 0 && matches!(c, ';' | ','));
        let rest = self.held.trim_start_matches(separators);
        let tag = rest.strip_prefix(PYTHON_TAG);
        let object = tag.unwrap_or(rest).trim_start();
        let possible = object.is_empty() || PYTHON_TAG.starts_with(rest);
        if object.starts_with('{') {
            let mark = self.held.len() - object.len();
            let mark = self.held.drain(..mark).collect();
            self.begin_call(mark);
            return true;
        }
        if possible {
            self.place = Place::Between;
            return false;
        }
        true
    }

    fn begin_call(&mut self, mark: String) {
        let id = format!("call_{:016x}{:02x}", self.name, self.begun);
        let strict = self.format == ToolFormat::Llama3;
        let scanner = CallScanner::new(self.begun, id, strict);
        self.place = Place::Call { mark, scanner };
    }

    fn call(
        &mut self,
        mark: String,
        mut scanner: CallScanner,
        parts: &mut Vec<AnswerPart>,
    ) -> bool {
        let (taken, scanned) = scanner.push(&self.held, parts);
        self.held.drain(..taken);
        match (scanned, self.format) {
            (Scanned::More, _) => {
                self.place = Place::Call { mark, scanner };
                false
            }
            (Scanned::Wrong, _) => {
                self.give_up(&mark, &scanner, parts);
                true
            }
            (Scanned::Whole, ToolFormat::Hermes) => {
                self.place = Place::Closing { mark, scanner };
                true
            }
            (Scanned::Whole, ToolFormat::Llama3) => {
                self.end_call(parts);
                self.place = Place::Between;
                true
            }
        }
    }

    fn closing(&mut self, mark: String, scanner: CallScanner, parts: &mut Vec<AnswerPart>) -> bool {
        let rest = self.held.trim_start();
        if let Some(behind) = rest.strip_prefix(END_TOOL_CALL) {
            self.held = behind.to_owned();
            self.end_call(parts);
            return true;
        }
        if END_TOOL_CALL.starts_with(rest) {
            self.place = Place::Closing { mark, scanner };
            return false;
        }
        self.give_up(&mark, &scanner, parts);
        true
    }

    /// What looked like a call is none: it is text, as far as it was not given out.
    fn give_up(&mut self, mark: &str, scanner: &CallScanner, parts: &mut Vec<AnswerPart>) {
        if scanner.started() {
            self.begun += 1;
        } else {
            self.give_words(&[mark, scanner.text()].concat(), parts);
        }
    }

    fn end_call(&mut self, parts: &mut Vec<AnswerPart>) {
        parts.push(AnswerPart::ToolCallEnd { index: self.begun });
        self.begun += 1;
        self.whole += 1;
        self.behind_call = true;
    }
}
