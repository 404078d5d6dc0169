//! Keeps the control tokens that a request spells out from becoming control tokens.
//!
//! Before rendering, each control string in the request's texts is replaced by one character of a
//! private plane that occurs nowhere in the input; after rendering the string is put back, and
//! its place is noted as literal text. A template may trim, split and compare as it likes: every
//! other character is what it was. The end of a text that could begin a control string is
//! replaced as well, so that two parts of a message cannot make one together.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use serde_json::Value;

use crate::{Error, Result};

/// Replaces control strings in values, and remembers what stands for what.
pub(crate) struct Guard<'a> {
    /// Longest first.
    by_first_byte: HashMap<u8, Vec<&'a str>>,
    /// Characters of the private plane that the input uses itself.
    taken: HashSet<char>,
    by_text: HashMap<String, char>,
    by_character: HashMap<char, String>,
}

impl<'a> Guard<'a> {
    /// `control_strings` are the texts of the tokenizer's control tokens.
    pub(crate) fn new(control_strings: impl Iterator<Item = &'a str>) -> Self {
        let mut by_first_byte: HashMap<u8, Vec<&str>> = HashMap::new();
        // One that is white space alone is part of any text; trimming must still find it.
        for control in control_strings.filter(|control| !control.trim().is_empty()) {
            let first = control.bytes().next().unwrap_or_default();
            by_first_byte.entry(first).or_default().push(control);
        }
        for controls in by_first_byte.values_mut() {
            controls.sort_by_key(|control| std::cmp::Reverse(control.len()));
        }
        Self {
            by_first_byte,
            taken: HashSet::new(),
            by_text: HashMap::new(),
            by_character: HashMap::new(),
        }
    }

    /// Notes which characters of the private plane `text` uses: they cannot be placeholders.
    pub(crate) fn reserve(&mut self, text: &str) {
        self.taken
            .extend(text.chars().filter(|c| PLANE.contains(&u32::from(*c))));
    }

    /// [`Guard::reserve`] for every string in `value`.
    pub(crate) fn reserve_all(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.reserve(text),
            Value::Array(items) => items.iter().for_each(|item| self.reserve_all(item)),
            Value::Object(entries) => entries.iter().for_each(|(key, item)| {
                self.reserve(key);
                self.reserve_all(item);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Replaces the control strings in every string and key of `value`.
    pub(crate) fn cover_all(&mut self, value: &mut Value) -> Result<()> {
        match value {
            Value::String(text) => *text = self.cover(text)?,
            Value::Array(items) => {
                for item in items {
                    self.cover_all(item)?;
                }
            }
            Value::Object(entries) => {
                for (key, mut item) in std::mem::take(entries) {
                    self.cover_all(&mut item)?;
                    entries.insert(self.cover(&key)?, item);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    fn cover(&mut self, text: &str) -> Result<String> {
        let end = text.trim_end().len();
        let mut covered = String::with_capacity(text.len());
        let mut at = 0;
        for (start, character) in text.char_indices() {
            if start < at {
                continue;
            }
            let found = self.control_at(text, start, end);
            let (piece, len) = match found {
                Some(control) => (self.placeholder(control)?, control.len()),
                None => (character, character.len_utf8()),
            };
            covered.push(piece);
            at = start + len;
        }
        Ok(covered)
    }

    /// The control string at `start`, or what could be the first part of one: all that is left
    /// of the text up to `end`, behind which there is only white space.
    fn control_at<'t>(&self, text: &'t str, start: usize, end: usize) -> Option<&'t str> {
        let rest = text.get(start..)?;
        let controls = self.by_first_byte.get(rest.as_bytes().first()?)?;
        if let Some(control) = controls.iter().find(|control| rest.starts_with(**control)) {
            return rest.get(..control.len());
        }
        // A word alone is no mark, whatever the vocabulary; templates compare words.
        let tail = text
            .get(start..end)
            .filter(|tail| !tail.chars().all(is_word))?;
        controls
            .iter()
            .any(|control| control.starts_with(tail))
            .then_some(tail)
    }

    fn placeholder(&mut self, text: &str) -> Result<char> {
        if let Some(&character) = self.by_text.get(text) {
            return Ok(character);
        }
        let free = |c: &char| !self.taken.contains(c) && !self.by_character.contains_key(c);
        let character = PLANE.filter_map(char::from_u32).find(free).ok_or_else(|| {
            Error::Request("the messages use every private character, none is left".to_owned())
        })?;
        self.by_text.insert(text.to_owned(), character);
        self.by_character.insert(character, text.to_owned());
        Ok(character)
    }

    /// Puts the strings back into a rendered text, and tells where they stand.
    pub(crate) fn uncover(&self, rendered: String) -> (String, Vec<Range<usize>>) {
        if self.by_character.is_empty() {
            return (rendered, Vec::new());
        }
        let mut text = String::with_capacity(rendered.len());
        let mut literal = Vec::new();
        for character in rendered.chars() {
            let Some(original) = self.by_character.get(&character) else {
                text.push(character);
                continue;
            };
            let start = text.len();
            text.push_str(original);
            literal.push(start..text.len());
        }
        (text, literal)
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Supplementary private use area B.
pub(crate) const PLANE: Range<u32> = 0x10_0000..0x10_fffe;
