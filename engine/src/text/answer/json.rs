//! A JSON value, character by character.

/// Checks a JSON value while it comes.
#[derive(Debug)]
pub(super) struct JsonScanner {
    /// What is open: true for an object, false for an array.
    open: Vec<bool>,
    expected: Expected,
}

/// What may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Value,
    /// The first element of an array, or its end.
    ValueOrEnd,
    Key,
    /// The first key of an object, or its end.
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    /// The rest of a string, a key or not.
    Text {
        key: bool,
    },
    /// The character behind a backslash.
    Escape {
        key: bool,
    },
    /// So many more hexadecimal digits.
    Hex {
        key: bool,
        digits: u8,
    },
    /// The rest of a word.
    Word(&'static str),
    /// The rest of a number, and what there is of it.
    Number(String),
    Nothing,
}

/// What a character did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    /// It belongs to the value, and more may come.
    More,
    /// It is the last of the value.
    Whole,
    /// It cannot stand there.
    Wrong,
}

impl JsonScanner {
    pub(super) fn new() -> Self {
        Self {
            open: Vec::new(),
            expected: Expected::Value,
        }
    }

    /// Objects and arrays that are open.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    pub(super) fn expected(&self) -> &Expected {
        &self.expected
    }

    /// Takes a character. A number at the top has no end of its own, so only an object, an array, a string or a word
    /// becomes whole.
    pub(super) fn push(&mut self, character: char) -> Scanned {
        if !self.step(character) {
            return Scanned::Wrong;
        }
        if self.expected == Expected::Nothing {
            Scanned::Whole
        } else {
            Scanned::More
        }
    }

    fn step(&mut self, character: char) -> bool {
        if let Expected::Number(number) = &mut self.expected {
            if character.is_ascii_alphanumeric() || matches!(character, '+' | '-' | '.') {
                number.push(character);
                return number.len() <= NUMBER_LENGTH;
            }
            if serde_json::from_str::<serde_json::Number>(number).is_err() {
                return false;
            }
            self.end_value();
        }
        match self.expected.clone() {
            Expected::Text { key } => return self.in_text(character, key),
            Expected::Escape { key } => return self.in_escape(character, key),
            Expected::Hex { key, digits } => return self.in_hex(character, key, digits),
            Expected::Word(rest) => return self.in_word(character, rest),
            _ if matches!(character, ' ' | '\n' | '\r' | '\t') => return true,
            _ => {}
        }
        match (self.expected.clone(), character) {
            (Expected::ValueOrEnd, ']') | (Expected::KeyOrEnd, '}') => self.close(),
            (Expected::Value | Expected::ValueOrEnd, _) => return self.begin_value(character),
            (Expected::Key | Expected::KeyOrEnd, '"') => {
                self.expected = Expected::Text { key: true }
            }
            (Expected::Colon, ':') => self.expected = Expected::Value,
            (Expected::CommaOrEnd, ',') => {
                let in_object = self.open.last() == Some(&true);
                self.expected = if in_object {
                    Expected::Key
                } else {
                    Expected::Value
                };
            }
            (Expected::CommaOrEnd, '}') if self.open.last() == Some(&true) => self.close(),
            (Expected::CommaOrEnd, ']') if self.open.last() == Some(&false) => self.close(),
            _ => return false,
        }
        true
    }

    fn begin_value(&mut self, character: char) -> bool {
        self.expected = match character {
            '{' | '[' => {
                self.open.push(character == '{');
                if character == '{' {
                    Expected::KeyOrEnd
                } else {
                    Expected::ValueOrEnd
                }
            }
            '"' => Expected::Text { key: false },
            't' => Expected::Word("rue"),
            'f' => Expected::Word("alse"),
            'n' => Expected::Word("ull"),
            '-' | '0'..='9' => Expected::Number(character.to_string()),
            _ => return false,
        };
        self.open.len() <= DEPTH
    }

    fn in_text(&mut self, character: char, key: bool) -> bool {
        match character {
            '"' if key => self.expected = Expected::Colon,
            '"' => self.end_value(),
            '\\' => self.expected = Expected::Escape { key },
            '\0'..='\u{1f}' => return false,
            _ => {}
        }
        true
    }

    fn in_escape(&mut self, character: char, key: bool) -> bool {
        self.expected = match character {
            'u' => Expected::Hex { key, digits: 4 },
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => Expected::Text { key },
            _ => return false,
        };
        true
    }

    fn in_hex(&mut self, character: char, key: bool, digits: u8) -> bool {
        self.expected = match digits {
            1 => Expected::Text { key },
            _ => Expected::Hex {
                key,
                digits: digits - 1,
            },
        };
        character.is_ascii_hexdigit()
    }

    fn in_word(&mut self, character: char, rest: &'static str) -> bool {
        let Some(rest) = rest.strip_prefix(character) else {
            return false;
        };
        if rest.is_empty() {
            self.end_value();
        } else {
            self.expected = Expected::Word(rest);
        }
        true
    }

    fn close(&mut self) {
        self.open.pop();
        self.end_value();
    }

    fn end_value(&mut self) {
        self.expected = if self.open.is_empty() {
            Expected::Nothing
        } else {
            Expected::CommaOrEnd
        };
    }
}

/// Levels of a value.
const DEPTH: usize = 100;
/// Characters of a number.
const NUMBER_LENGTH: usize = 400;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Whether the characters are a whole object or array.
    fn is_whole(text: &str) -> bool {
        let mut scanner = JsonScanner::new();
        let mut last = Scanned::More;
        for character in text.chars() {
            if last != Scanned::More {
                return false;
            }
            last = scanner.push(character);
        }
        last == Scanned::Whole
    }

    #[test]
    fn what_is_json_and_what_is_not() {
        let good = [
            "{}",
            "[]",
            " {\"a\" : [ 1, -2.5e+3, true,false,null , \"\\u00e9\\n\" ] , \"b\":{}}",
            "[[[]],{}]",
            "[\"\u{7f}\u{e9}\"]",
        ];
        let bad = [
            "{,}",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "[01]",
            "[+1]",
            "[1 2]",
            "[tru]",
            "[}",
            "{]",
            "[\"\n\"]",
            "[\"\\x\"]",
            "[\"\\u12g4\"]",
            "{\"a\":1,}",
            "[1.]",
            "{1:2}",
            "]",
            "[-]",
            "{} {}",
        ];
        for text in good {
            assert!(is_whole(text), "{text}");
        }
        for text in bad {
            assert!(!is_whole(text), "{text}");
        }
        assert!(!is_whole(&"[".repeat(100_000)));
        assert!(!is_whole(&format!("[{}]", "1".repeat(100_000))));
    }

    proptest! {
        #[test]
        fn agrees_with_a_parser(text in r#"[\[{](["\[\]{}:, 0\-a1]|"a"|true|\\n){0,12}"#) {
            let parsed = serde_json::from_str::<Value>(&text).is_ok();
            prop_assert_eq!(is_whole(text.trim_end()), parsed, "{}", text);
        }
    }
}
