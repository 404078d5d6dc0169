//! How many tokens a text has at least, found without cutting it into tokens.

use std::ops::Range;

/// The byte strings that a vocabulary can put one behind the other.
#[derive(Debug)]
pub(super) struct FewestTokens {
    /// In order, each once.
    tokens: Vec<Box<[u8]>>,
    /// Where in them each first byte begins, and the end.
    first: Vec<usize>,
    longest: usize,
    /// Whether every text is a row of these tokens.
    complete: bool,
}

impl FewestTokens {
    /// `exact` says that the tokens of a text, one behind the other, are the text, byte for byte.
    pub(super) fn new(tokens: impl Iterator<Item = Vec<u8>>, exact: bool) -> Self {
        let mut tokens: Vec<Box<[u8]>> = tokens
            .filter(|token| !token.is_empty())
            .map(Vec::into_boxed_slice)
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        let longest = tokens.iter().map(|token| token.len()).max().unwrap_or(1);
        let begin = |byte: usize| {
            tokens.partition_point(|token| token.first().is_some_and(|&b| usize::from(b) < byte))
        };
        let first: Vec<usize> = (0..=256).map(begin).collect();
        let singles = tokens.iter().filter(|token| token.len() == 1).count();
        Self {
            complete: exact && singles == 256,
            first,
            longest,
            tokens,
        }
    }

    /// No way of cutting `text` has fewer tokens, or fewer than `enough`. Takes the furthest end that any token
    /// reaches from what is covered already: no row of tokens gets further with as many.
    pub(super) fn count(&self, text: &[u8], enough: usize) -> usize {
        if !self.complete {
            return text.len().div_ceil(self.longest).min(enough);
        }
        let (mut count, mut start, mut end) = (0, 0, 0);
        while end < text.len() && count < enough {
            let mut reach = end;
            for at in (start..=end).rev() {
                if at + self.longest <= reach {
                    break;
                }
                reach = reach.max(at + self.longest_at(text.get(at..).unwrap_or_default()));
            }
            (start, end, count) = (end + 1, reach, count + 1);
        }
        count
    }

    /// The length of the longest token that `text` begins with.
    fn longest_at(&self, text: &[u8]) -> usize {
        let (mut length, mut range) = (0, 0..self.tokens.len());
        for (depth, &byte) in text.iter().enumerate() {
            range = if depth == 0 {
                self.beginning_with(byte)
            } else {
                self.narrow(range, depth, byte)
            };
            let Some(token) = self.tokens.get(range.clone()).and_then(<[_]>::first) else {
                break;
            };
            if token.len() == depth + 1 {
                length = depth + 1;
            }
        }
        length
    }

    fn beginning_with(&self, byte: u8) -> Range<usize> {
        let at = |byte: usize| self.first.get(byte).copied().unwrap_or_default();
        at(usize::from(byte))..at(usize::from(byte) + 1)
    }

    /// Those of `range`, which are alike up to `depth`, that go on with `byte`.
    fn narrow(&self, range: Range<usize>, depth: usize, byte: u8) -> Range<usize> {
        let tokens = self.tokens.get(range.clone()).unwrap_or_default();
        let begin = tokens.partition_point(|token| token.get(depth) < Some(&byte));
        let end = tokens.partition_point(|token| token.get(depth) <= Some(&byte));
        range.start + begin..range.start + end
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::Error;
    use crate::text::{Controls, Tokenizer};

    fn of(words: &[&str], exact: bool) -> FewestTokens {
        let bytes = (0..=255).map(|byte| vec![byte]);
        let words = words.iter().map(|word| word.as_bytes().to_vec());
        FewestTokens::new(bytes.chain(words), exact)
    }

    #[test]
    fn texts_of_known_tokens() {
        let fewest = of(&["ab", "abc", "cde", "aaaa"], true);
        for (text, count) in [
            ("", 0),
            ("a", 1),
            ("abc", 1),
            // ab, cde: the longest token first would need three.
            ("abcde", 2),
            ("xyz", 3),
            ("aaaaaaaaa", 3),
        ] {
            assert_eq!(fewest.count(text.as_bytes(), usize::MAX), count, "{text}");
        }
        assert_eq!(fewest.count("xyz".as_bytes(), 2), 2);
        assert_eq!(of(&["abcd"], false).count(b"xxxxx", usize::MAX), 2);
    }

    #[test]
    fn c039_long_texts_are_refused_if_no_cutting_of_them_fits() {
        for name in ["gpt2", "llama-bpe", "qwen2", "smollm"] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/tokenizers/");
            let tokenizer = Tokenizer::from_folder(Path::new(&format!("{folder}{name}"))).unwrap();
            for text in ["x1 y\n", "the cat sat on the mat, 2026", "é日本 ", "    "] {
                let text = text.repeat((300 << 10) / text.len());
                let tokens = tokenizer.encode(&text, Controls::Plain).unwrap().len();
                assert!(tokenizer.check_length(&text, tokens + 1).is_ok(), "{name}");
                let refused = tokenizer.check_length(&text, tokens / 32);
                assert!(
                    matches!(refused, Err(Error::ContextSurelyExceeded { .. })),
                    "{name}: {tokens}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn no_row_of_tokens_is_shorter(
            words in prop::collection::vec("[ab]{2,5}", 0..6),
            text in "[abc]{0,20}",
        ) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            // The shortest row, by the length of each beginning.
            let mut shortest = vec![0_usize; text.len() + 1];
            for end in 1..=text.len() {
                let rows = words.iter().filter(|word| text[..end].ends_with(**word));
                let rows = rows.map(|word| shortest[end - word.len()] + 1);
                shortest[end] = rows.min().unwrap_or(usize::MAX).min(shortest[end - 1] + 1);
            }
            let count = of(&words, true).count(text.as_bytes(), usize::MAX);
            prop_assert!(count <= shortest[text.len()]);
            prop_assert!(count >= text.len().div_ceil(5));
        }
    }
}
