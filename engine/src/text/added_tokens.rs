//! Tokens that are found in the text before the model of the tokenizer sees it: control tokens
//! (end of turn, begin of text) and words a model maker added.

use std::collections::HashMap;
use std::ops::Range;

use serde::Deserialize;

/// A token that stands beside the tokenizer's learnt vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the five marks of the file format"
)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) content: String,
    /// A control token: it means something to the model and nothing to the reader.
    #[serde(default)]
    pub(crate) special: bool,
    /// Looked for in the normalised text rather than in the text as it came.
    #[serde(default)]
    pub(crate) normalized: bool,
    /// Takes the white space on its left with it.
    #[serde(default)]
    pub(crate) lstrip: bool,
    /// Takes the white space on its right with it.
    #[serde(default)]
    pub(crate) rstrip: bool,
    /// Counts only where it is not part of a longer word.
    #[serde(default)]
    pub(crate) single_word: bool,
}

/// Where a token was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) range: Range<usize>,
    pub(crate) id: u32,
}

/// All added tokens of a tokenizer, ready to be looked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddedTokens {
    tokens: Vec<AddedToken>,
    by_id: HashMap<u32, usize>,
    by_content: HashMap<String, usize>,
    raw: Patterns,
    normalized: Patterns,
}

impl AddedTokens {
    /// `normalize` gives the form in which a token with the `normalized` mark is looked for.
    pub(crate) fn new(tokens: Vec<AddedToken>, normalize: impl Fn(&str) -> String) -> Self {
        let mut added = Self::default();
        for token in tokens {
            if token.content.is_empty() || added.by_content.contains_key(&token.content) {
                continue;
            }
            added.by_id.insert(token.id, added.tokens.len());
            added
                .by_content
                .insert(token.content.clone(), added.tokens.len());
            added.tokens.push(token);
        }
        for (index, token) in added.tokens.iter().enumerate() {
            // Control tokens are sought in the raw text whatever their mark says: text that
            // a normaliser turns into a control token must not count as one.
            if token.normalized && !token.special {
                added.normalized.add(index, normalize(&token.content));
            } else {
                added.raw.add(index, token.content.clone());
            }
        }
        added.raw.sort();
        added.normalized.sort();
        added
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &AddedToken> {
        self.tokens.iter()
    }

    pub(crate) fn by_id(&self, id: u32) -> Option<&AddedToken> {
        self.by_id
            .get(&id)
            .and_then(|&index| self.tokens.get(index))
    }

    pub(crate) fn by_content(&self, content: &str) -> Option<&AddedToken> {
        self.by_content
            .get(content)
            .and_then(|&index| self.tokens.get(index))
    }

    pub(crate) fn has_normalized(&self) -> bool {
        !self.normalized.is_empty()
    }

    /// Tokens in raw text, leftmost first, the longest where several begin. A control token
    /// counts where `control` allows its range.
    pub(crate) fn find_raw(
        &self,
        text: &str,
        control: impl Fn(&Range<usize>) -> bool,
    ) -> Vec<Match> {
        self.find(&self.raw, text, control)
    }

    /// Tokens in text that went through the normaliser; none of them is a control token.
    pub(crate) fn find_normalized(&self, text: &str) -> Vec<Match> {
        self.find(&self.normalized, text, |_| false)
    }

    fn find(
        &self,
        patterns: &Patterns,
        text: &str,
        control: impl Fn(&Range<usize>) -> bool,
    ) -> Vec<Match> {
        let mut found: Vec<Match> = Vec::new();
        let (mut at, mut end) = (0, 0);
        while at < text.len() {
            let hit = patterns.at(text, at).find_map(|(index, len)| {
                let token = self.tokens.get(index)?;
                let range = at..at + len;
                let counts = (!token.special || control(&range))
                    && (!token.single_word || is_single_word(text, &range));
                counts.then_some((token, range))
            });
            let Some((token, range)) = hit else {
                at += 1;
                continue;
            };
            let range = widen(text, token, range, end);
            (at, end) = (range.end, range.end);
            found.push(Match {
                range,
                id: token.id,
            });
        }
        found
    }
}

/// Strings to look for, by their first byte, the longest first.
#[derive(Clone, Debug, Default)]
struct Patterns {
    by_first_byte: HashMap<u8, Vec<(String, usize)>>,
}

impl Patterns {
    fn add(&mut self, index: usize, content: String) {
        if let Some(&first) = content.as_bytes().first() {
            self.by_first_byte
                .entry(first)
                .or_default()
                .push((content, index));
        }
    }

    fn sort(&mut self) {
        for list in self.by_first_byte.values_mut() {
            list.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then(a.1.cmp(&b.1)));
        }
    }

    fn is_empty(&self) -> bool {
        self.by_first_byte.is_empty()
    }

    /// Index and length of the strings that `text` holds at byte `at`.
    fn at<'a>(&'a self, text: &'a str, at: usize) -> impl Iterator<Item = (usize, usize)> + 'a {
        let rest = text.as_bytes().get(at..).unwrap_or_default();
        let list = rest.first().and_then(|first| self.by_first_byte.get(first));
        list.into_iter()
            .flatten()
            .filter(move |(content, _)| rest.starts_with(content.as_bytes()))
            .map(|(content, index)| (*index, content.len()))
    }
}

fn is_single_word(text: &str, range: &Range<usize>) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let before = text.get(..range.start).and_then(|s| s.chars().next_back());
    let after = text.get(range.end..).and_then(|s| s.chars().next());
    !before.is_some_and(word) && !after.is_some_and(word)
}

/// Adds the white space that the token swallows, not beyond `floor`, where the last match ended.
fn widen(text: &str, token: &AddedToken, mut range: Range<usize>, floor: usize) -> Range<usize> {
    if token.lstrip {
        let before = text.get(floor..range.start).unwrap_or_default();
        range.start = floor + before.trim_end().len();
    }
    if token.rstrip {
        let after = text.get(range.end..).unwrap_or_default();
        range.end += after.len() - after.trim_start().len();
    }
    range
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str, special: bool) -> AddedToken {
        AddedToken {
            id,
            content: content.to_owned(),
            special,
            ..AddedToken::default()
        }
    }

    fn ids(found: &[Match]) -> Vec<(u32, Range<usize>)> {
        found.iter().map(|m| (m.id, m.range.clone())).collect()
    }

    #[test]
    fn leftmost_longest_wins() {
        let added = AddedTokens::new(
            vec![
                token(1, "<a>", true),
                token(2, "<a><b>", true),
                token(3, "b>", false),
            ],
            str::to_owned,
        );
        assert_eq!(
            ids(&added.find_raw("x<a><b><a>", |_| true)),
            [(2, 1..7), (1, 7..10)]
        );
        assert_eq!(ids(&added.find_raw("x<a><b><a>", |_| false)), [(3, 5..7)]);
    }

    #[test]
    fn strips_and_words() {
        let mut eats = token(1, "<m>", true);
        eats.lstrip = true;
        eats.rstrip = true;
        let mut word = token(2, "day", false);
        word.single_word = true;
        let added = AddedTokens::new(vec![eats, word], str::to_owned);
        assert_eq!(
            ids(&added.find_raw("a <m>  <m> b", |_| true)),
            [(1, 1..7), (1, 7..11)]
        );
        assert_eq!(
            ids(&added.find_raw("monday day days", |_| true)),
            [(2, 7..10)]
        );
    }

    #[test]
    fn text_of_several_bytes_is_not_cut() {
        let added = AddedTokens::new(vec![token(1, "é", false)], str::to_owned);
        assert_eq!(ids(&added.find_raw("日é本", |_| true)), [(1, 3..5)]);
    }
}
