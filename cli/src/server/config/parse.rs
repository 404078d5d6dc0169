//! From the text of a value to the value; what does not fit says what was expected.

use std::str::FromStr;
use std::time::Duration;

/// One value from text.
pub(super) type Parsed<T> = Result<T, String>;

/// A whole number of at least `least`.
pub(super) fn whole<T: FromStr + PartialOrd + std::fmt::Display + Copy>(
    text: &str,
    least: T,
) -> Parsed<T> {
    match text.trim().parse() {
        Ok(number) if number >= least => Ok(number),
        _ => Err(format!("expected a whole number, {least} or more")),
    }
}

/// A finite number.
pub(super) fn number(text: &str) -> Parsed<f32> {
    let number: Option<f32> = text.trim().parse().ok();
    number
        .filter(|number| number.is_finite())
        .ok_or_else(|| "expected a number".to_owned())
}

/// yes or no, in the spellings of YAML.
pub(super) fn truth(text: &str) -> Parsed<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// Seconds, with a fraction perhaps.
pub(super) fn seconds(text: &str) -> Parsed<Duration> {
    let seconds: Option<f64> = text.trim().parse().ok();
    // More than a century is a slip, and sums of times must not overflow.
    let duration = seconds
        .filter(|seconds| (0.0..=4e9).contains(seconds))
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "expected seconds, 0 or more".to_owned())
}

/// Bytes; K, M and G multiply by powers of 1024.
pub(super) fn bytes(text: &str) -> Parsed<u64> {
    let text = text.trim();
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: Option<u64> = digits.trim_end().parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|bytes| (1..=1 << 50).contains(bytes))
        .ok_or_else(|| "expected bytes, as in 1048576 or 64M".to_owned())
}

/// Bytes that fit a length.
pub(super) fn length(text: &str) -> Parsed<usize> {
    bytes(text).and_then(|bytes| {
        usize::try_from(bytes).map_err(|_| "more bytes than this machine can count".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_say_or_refused() {
        assert_eq!(whole::<u16>(" 80 ", 0), Ok(80));
        assert!(whole::<u16>("70000", 0).is_err() && whole::<usize>("0", 1).is_err());
        assert_eq!(truth("Off"), Ok(false));
        assert!(truth("maybe").is_err());
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["-1", "NaN", "inf", "1e300", ""] {
            assert!(seconds(bad).is_err() && bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(bytes("64M"), Ok(64 << 20));
        assert_eq!(bytes("2 k"), Ok(2048));
        assert!(bytes("0").is_err() && bytes("99999999999G").is_err() && bytes("é").is_err());
        assert!(number("inf").is_err());
    }
}
