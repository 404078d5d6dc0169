//! Bytes of tokens to text, as they come.

/// Joins the bytes of tokens to characters. What it gives, joined, is what
/// [`String::from_utf8_lossy`] makes of all bytes at once; no piece holds half a character.
///
/// ```
/// use cider::text::StreamDecoder;
///
/// let mut decoder = StreamDecoder::new();
/// assert_eq!(decoder.push(b"a\xf0\x9f"), "a");
/// assert_eq!(decoder.push(b"\x98\x80"), "\u{1f600}");
/// assert_eq!(decoder.push(b"\xff\xe4"), "\u{fffd}");
/// assert_eq!(decoder.finish(), "\u{fffd}");
/// ```
#[derive(Clone, Debug, Default)]
pub struct StreamDecoder {
    /// The bytes of a character that is not complete.
    pending: Vec<u8>,
    text: String,
}

impl StreamDecoder {
    /// A decoder at the start of a text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of the next token; gives the text that is now complete.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        self.text.clear();
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            self.text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = done + invalid.len() == self.pending.len();
            if invalid.is_empty() || (at_end && may_continue(invalid)) {
                break;
            }
            self.text.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.pending.drain(..done);
        &self.text
    }

    /// The end of the text: what is left of a character becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }
}

/// Whether more bytes could make a character of these.
fn may_continue(bytes: &[u8]) -> bool {
    matches!(str::from_utf8(bytes), Err(e) if e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(pieces: &[&[u8]]) -> (Vec<String>, String) {
        let mut decoder = StreamDecoder::new();
        let mut out: Vec<String> = pieces
            .iter()
            .map(|piece| decoder.push(piece).to_owned())
            .collect();
        out.push(decoder.finish().to_owned());
        let whole = out.concat();
        (out, whole)
    }

    #[test]
    fn characters_over_several_tokens() {
        let script: [&[u8]; 6] = [
            b"\xf0\x9f",
            b"\x98\x80",
            b"\xe4\xb8",
            b"\x96",
            b"\xe7",
            b"\x95\x8c",
        ];
        let (pieces, whole) = decode(&script);
        assert_eq!(pieces, ["", "😀", "", "世", "", "界", ""]);
        assert_eq!(whole, "😀世界");
    }

    #[test]
    fn invalid_bytes_are_replaced() {
        assert_eq!(decode(&[b"a", b"\xff", b"b"]).1, "a\u{fffd}b");
        assert_eq!(decode(&[b"a\xe4", b"\xb8", b"b"]).1, "a\u{fffd}b");
        assert_eq!(decode(&[b"\xed\xa0\x80"]).1, "\u{fffd}\u{fffd}\u{fffd}");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_lossy_text(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), 0x80_u8..0xc0, Just(0xf0), Just(0xe4), Just(0xed)],
                0..64,
            ),
            cuts in prop::collection::vec(1_usize..5, 64),
        ) {
            let mut decoder = StreamDecoder::new();
            let (mut text, mut rest) = (String::new(), bytes.as_slice());
            for cut in cuts {
                let (piece, next) = rest.split_at(cut.min(rest.len()));
                text.push_str(decoder.push(piece));
                prop_assert!(decoder.pending.len() < 4);
                rest = next;
            }
            text.push_str(decoder.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn valid_text_is_never_replaced(text in any::<String>(), cut in 1_usize..4) {
            let mut decoder = StreamDecoder::new();
            let mut out = String::new();
            for piece in text.as_bytes().chunks(cut) {
                out.push_str(decoder.push(piece));
            }
            prop_assert_eq!(decoder.finish(), "");
            prop_assert_eq!(out, text);
        }
    }
}
