//! The alphabet of byte-level vocabularies: each byte is written as one printable character.

/// The bytes a token of a byte-level vocabulary stands for. A token that uses a character
/// outside the alphabet was added as it is, and stands for its own UTF-8 bytes.
pub(crate) fn to_bytes(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Printable Latin-1 characters stand for themselves; the other 68 bytes are numbered from
/// U+0100 on, in ascending order.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The character that stands for a byte.
#[cfg(test)]
pub(crate) fn character_of(byte: u8) -> char {
    (0..0x144)
        .filter_map(char::from_u32)
        .find(|&c| byte_of(c) == Some(byte))
        .unwrap()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn alphabet_is_that_of_the_tokenizers() {
        let ours: BTreeSet<char> = (0..=255).map(character_of).collect();
        let theirs: BTreeSet<char> = ByteLevel::alphabet().into_iter().collect();
        assert_eq!(ours, theirs);
        assert_eq!(to_bytes("\u{120}\u{10a}"), b" \n");
    }

    #[test]
    fn other_characters_stand_for_themselves() {
        assert_eq!(to_bytes("\u{ff5c}x"), "\u{ff5c}x".as_bytes());
    }
}
