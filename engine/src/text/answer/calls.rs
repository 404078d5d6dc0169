//! One call of a tool, written as a JSON object, while it comes.

use serde_json::Value;

use super::AnswerPart;
use super::json::{Expected, JsonScanner, Scanned};

/// Reads `{"name": …, "arguments": {…}}`, `parameters` for `arguments` or not, in any order of keys.
#[derive(Debug)]
pub(super) struct CallScanner {
    index: usize,
    id: String,
    /// Whether an object with other keys, or without arguments, is no call.
    strict: bool,
    scanner: JsonScanner,
    text: String,
    /// Where the key or value began that is being read.
    begin: usize,
    key: String,
    name: Option<String>,
    arguments: Arguments,
    /// Up to where the arguments were given out.
    given: usize,
    started: bool,
}

/// The arguments in the text of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Arguments {
    Missing,
    /// An object that began here and has not ended.
    Begun(usize),
    /// An object from here to there.
    Whole(usize, usize),
    /// The object that a string held.
    Quoted(String),
}

impl CallScanner {
    pub(super) fn new(index: usize, id: String, strict: bool) -> Self {
        Self {
            index,
            id,
            strict,
            scanner: JsonScanner::new(),
            text: String::new(),
            begin: 0,
            key: String::new(),
            name: None,
            arguments: Arguments::Missing,
            given: 0,
            started: false,
        }
    }

    /// Whether the call was given out: from then on its text cannot become content.
    pub(super) fn started(&self) -> bool {
        self.started
    }

    /// The text that was taken.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Takes text up to the end of the object. Gives how many bytes were taken, and what came of the last character:
    /// a wrong one is not taken.
    pub(super) fn push(&mut self, text: &str, parts: &mut Vec<AnswerPart>) -> (usize, Scanned) {
        for (at, character) in text.char_indices() {
            let scanned = self.step(character);
            match scanned {
                Scanned::More => {}
                Scanned::Wrong => {
                    self.give(parts);
                    return (at, Scanned::Wrong);
                }
                Scanned::Whole => {
                    let fit = self.at_end();
                    self.give(parts);
                    let end = at + character.len_utf8();
                    return (end, if fit { Scanned::Whole } else { Scanned::Wrong });
                }
            }
        }
        self.give(parts);
        (text.len(), Scanned::More)
    }

    fn step(&mut self, character: char) -> Scanned {
        let outer = self.scanner.depth() == 1;
        let blank = matches!(character, ' ' | '\n' | '\r' | '\t');
        let before = self.scanner.expected().clone();
        let begins = outer
            && !blank
            && matches!(before, Expected::Key | Expected::KeyOrEnd | Expected::Value);
        let top = self.scanner.depth() == 0 && before == Expected::Value;
        if top && !blank && character != '{' {
            return Scanned::Wrong;
        }
        let scanned = self.scanner.push(character);
        if scanned == Scanned::Wrong {
            return scanned;
        }
        if begins {
            self.begin = self.text.len();
        }
        self.text.push(character);
        let after = self.scanner.expected();
        let in_outer = self.scanner.depth() == 1;
        let fit = match before {
            Expected::Value if begins => self.begin_value(character),
            Expected::Text { key: true } if in_outer && *after == Expected::Colon => self.end_key(),
            _ if in_outer && !begins && *after == Expected::CommaOrEnd => self.end_value(),
            _ => true,
        };
        if fit {
            return scanned;
        }
        self.text.pop();
        Scanned::Wrong
    }

    fn end_key(&mut self) -> bool {
        let key = self.text.get(self.begin..).unwrap_or_default();
        self.key = serde_json::from_str(key).unwrap_or_default();
        let known = ["name", "type", "arguments", "parameters"];
        !self.strict || known.contains(&self.key.as_str())
    }

    fn begin_value(&mut self, character: char) -> bool {
        match self.key.as_str() {
            "name" => character == '"' && self.name.is_none(),
            "arguments" | "parameters" if self.arguments != Arguments::Missing => false,
            "arguments" | "parameters" if character == '{' => {
                self.arguments = Arguments::Begun(self.begin);
                true
            }
            // The string is looked at when it is whole; null is what is missing.
            "arguments" | "parameters" => matches!(character, '"' | 'n'),
            _ => true,
        }
    }

    /// Behind a value of the outer object. Comes once more for each blank that follows, which changes nothing.
    fn end_value(&mut self) -> bool {
        let value = self.text.get(self.begin..).unwrap_or_default();
        match self.key.as_str() {
            "name" => {
                self.name = serde_json::from_str(value).ok();
                self.name.as_ref().is_some_and(|name| !name.is_empty())
            }
            "arguments" | "parameters" => match &self.arguments {
                Arguments::Begun(begin) => {
                    self.arguments = Arguments::Whole(*begin, self.text.len());
                    true
                }
                Arguments::Missing if value.starts_with('"') => {
                    let inner: Option<String> = serde_json::from_str(value).ok();
                    let object = inner
                        .filter(|text| matches!(serde_json::from_str(text), Ok(Value::Object(_))));
                    self.arguments = object.map_or(Arguments::Missing, Arguments::Quoted);
                    self.arguments != Arguments::Missing
                }
                _ => true,
            },
            _ => true,
        }
    }

    /// The object is whole: whether it is a call.
    fn at_end(&mut self) -> bool {
        if self.arguments == Arguments::Missing && !self.strict && self.name.is_some() {
            self.arguments = Arguments::Quoted("{}".to_owned());
        }
        self.name.is_some() && self.arguments != Arguments::Missing
    }

    /// Gives out what is certain: the start once name and arguments are known, then the arguments as they come.
    fn give(&mut self, parts: &mut Vec<AnswerPart>) {
        let (Some(name), false) = (&self.name, self.arguments == Arguments::Missing) else {
            return;
        };
        if !self.started {
            self.started = true;
            parts.push(AnswerPart::ToolCallStart {
                index: self.index,
                id: self.id.clone(),
                name: name.clone(),
            });
        }
        let (begin, end) = match &self.arguments {
            Arguments::Missing => return,
            Arguments::Begun(begin) => (*begin, self.text.len()),
            Arguments::Whole(begin, end) => (*begin, *end),
            Arguments::Quoted(text) => {
                if self.given == 0 {
                    self.given = text.len();
                    parts.push(self.piece(text));
                }
                return;
            }
        };
        let text = self
            .text
            .get(begin.max(self.given)..end)
            .unwrap_or_default();
        if !text.is_empty() {
            parts.push(self.piece(text));
            self.given = end;
        }
    }

    fn piece(&self, text: &str) -> AnswerPart {
        AnswerPart::ToolCallArguments {
            index: self.index,
            text: text.to_owned(),
        }
    }
}
