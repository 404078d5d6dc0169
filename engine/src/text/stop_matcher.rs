//! Stop strings in a stream of text.

use crate::{Error, Result};

/// Looks for stop strings and holds back what may be the beginning of one.
///
/// The string that is complete first in the text wins; of several that end at the same place,
/// the longest. How the text was cut into pieces makes no difference.
///
/// ```
/// use cider::text::{StopMatcher, Stopped};
///
/// let mut matcher = StopMatcher::new(&["DEFGHIJ".to_owned()])?;
/// assert_eq!(matcher.push("ABC"), ("ABC", Stopped::No));
/// assert_eq!(matcher.push("DEFG"), ("", Stopped::No));
/// assert_eq!(matcher.push("HIJK"), ("", Stopped::Yes));
/// # Ok::<(), cider::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text not yet given out, then the part given out by the last call in front of it.
    held: String,
    given: usize,
    /// Which stop string was found.
    found: Option<usize>,
}

/// Whether a stop string was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Generation goes on.
    No,
    /// The text ends here.
    Yes,
}

impl StopMatcher {
    /// A matcher for `stops`; without any it lets everything through.
    ///
    /// # Errors
    /// [`Error::Request`] if a stop string is empty.
    pub fn new(stops: &[String]) -> Result<Self> {
        if stops.iter().any(String::is_empty) {
            return Err(Error::Request("stop: a stop string is empty".to_owned()));
        }
        Ok(Self {
            stops: stops.to_vec(),
            ..Self::default()
        })
    }

    /// Takes the next piece of text; gives what may be shown, and whether the text ends with it.
    /// After a stop nothing more comes out.
    pub fn push(&mut self, text: &str) -> (&str, Stopped) {
        self.drop_given();
        if self.found.is_some() {
            return ("", Stopped::Yes);
        }
        self.held.push_str(text);
        if let Some((start, found)) = self.first_match() {
            self.found = Some(found);
            self.held.truncate(start);
            self.given = start;
        } else {
            self.given = self.held.len() - self.possible_beginning();
        }
        let stopped = if self.found.is_some() {
            Stopped::Yes
        } else {
            Stopped::No
        };
        (self.held.get(..self.given).unwrap_or_default(), stopped)
    }

    /// The end of the text: what was held back after all is text.
    pub fn finish(&mut self) -> &str {
        self.drop_given();
        self.given = self.held.len();
        &self.held
    }

    /// The stop string that was found.
    #[must_use]
    pub fn found(&self) -> Option<&str> {
        Some(self.stops.get(self.found?)?)
    }

    fn drop_given(&mut self) {
        self.held.drain(..self.given);
        self.given = 0;
    }

    /// Where the stop string begins that ends first, and which it is.
    fn first_match(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(which, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, which))
        });
        found.min().map(|(_, start, which)| (start, which))
    }

    /// Length of the longest end of the text with which a stop string begins.
    fn possible_beginning(&self) -> usize {
        let longest = |stop: &String| {
            let text = self.held.as_bytes();
            (1..stop.len()).rev().find(|&len| {
                stop.as_bytes()
                    .get(..len)
                    .is_some_and(|beginning| text.ends_with(beginning))
            })
        };
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SCRIPT: [&str; 6] = ["ABC", "DEF", "G", "HI", "J", "K"];

    fn run(stops: &[&str], pieces: &[&str]) -> String {
        let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops).unwrap();
        let mut out = String::new();
        for piece in pieces {
            let (text, stopped) = matcher.push(piece);
            out.push_str(text);
            if stopped == Stopped::Yes {
                assert_eq!(matcher.push("more"), ("", Stopped::Yes));
                return out;
            }
        }
        out.push_str(matcher.finish());
        out
    }

    #[test]
    fn stops_over_several_tokens() {
        assert_eq!(run(&["DEFGHIJ"], &SCRIPT), "ABC");
        assert_eq!(run(&["HI", "FG"], &SCRIPT), "ABCDE");
        assert_eq!(run(&["ZZ"], &SCRIPT), "ABCDEFGHIJK");
        assert_eq!(run(&["C"], &SCRIPT), "AB");
        assert_eq!(run(&[], &SCRIPT), "ABCDEFGHIJK");
        assert_eq!(run(&["KL"], &SCRIPT), "ABCDEFGHIJK");
        assert_eq!(run(&["FG", "DEFG", "EFG"], &SCRIPT), "ABC");
    }

    #[test]
    fn text_is_held_only_as_long_as_it_may_stop() {
        let mut matcher = StopMatcher::new(&["aab".to_owned()]).unwrap();
        assert_eq!(matcher.push("xa"), ("x", Stopped::No));
        assert_eq!(matcher.push("a"), ("", Stopped::No));
        assert_eq!(matcher.push("a"), ("a", Stopped::No));
        assert_eq!(matcher.push("é"), ("aaé", Stopped::No));
        assert_eq!(matcher.push("aab"), ("", Stopped::Yes));
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        assert!(StopMatcher::new(&[String::new()]).is_err());
    }

    proptest! {
        #[test]
        fn cuts_make_no_difference(
            text in "[ab世]{0,24}",
            stops in prop::collection::vec("[ab世]{1,4}", 0..4),
            cuts in prop::collection::vec(any::<bool>(), 24),
        ) {
            let mut pieces = vec![String::new()];
            for (character, cut) in text.chars().zip(cuts) {
                if cut {
                    pieces.push(String::new());
                }
                pieces.last_mut().unwrap().push(character);
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let ends = stops.iter().filter_map(|s| text.find(s).map(|at| (at + s.len(), at)));
            let expected = ends.min().map_or(text.as_str(), |(_, at)| &text[..at]);
            prop_assert_eq!(run(&stops, &pieces), expected);
        }
    }
}
