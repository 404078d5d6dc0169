//! Numbers on the command line: each has its range, and what is outside is refused with it.

use std::fmt::Display;
use std::str::FromStr;

/// A size or a count that cannot be nothing.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    whole(text, 1, MOST)
}

/// A count that can be nothing.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    whole(text, 0, MOST)
}

/// The id of a token.
pub(crate) fn token(text: &str) -> Result<u32, String> {
    whole(text, 0, u32::MAX)
}

/// Where random numbers begin.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    whole(text, 0, u64::MAX)
}

/// Threads, of which no machine needs more.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    whole(text, 1, 1024)
}

/// Rounds of a measurement.
pub(crate) fn rounds(text: &str) -> Result<usize, String> {
    whole(text, 1, 10_000)
}

/// Seconds that something is waited for, up to a day.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    whole(text, 1, 24 * 60 * 60)
}

/// Clients that ask at the same time.
pub(crate) fn clients(text: &str) -> Result<usize, String> {
    whole(text, 1, 1024)
}

/// Requests per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.001..=10_000.0).contains(&rate) => Ok(rate),
        _ => Err("expected a number from 0.001 to 10000".to_owned()),
    }
}

/// Rows and columns of weights.
pub(crate) fn shape(text: &str) -> Result<[usize; 2], String> {
    pair(text, "ROWSxCOLUMNS", "10240x2560")
}

/// Rows of a prompt and its tokens of context.
pub(crate) fn prompt(text: &str) -> Result<[usize; 2], String> {
    let [rows, context] = pair(text, "ROWSxCONTEXT", "512x512")?;
    if rows > context {
        return Err(format!(
            "expected from 1 to {context} rows for {context} tokens of context, found more rows"
        ));
    }
    Ok([rows, context])
}

/// Sequences and the tokens of context of each.
pub(crate) fn generated(text: &str) -> Result<[usize; 2], String> {
    pair(text, "SEQUENCESxCONTEXT", "8x1536")
}

/// Width and height of a picture.
pub(crate) fn picture(text: &str) -> Result<[usize; 2], String> {
    pair(text, "WIDTHxHEIGHT", "1280x831")
}

fn pair(text: &str, form: &str, example: &str) -> Result<[usize; 2], String> {
    let sizes = text
        .split_once('x')
        .and_then(|(a, b)| Some([positive(a).ok()?, positive(b).ok()?]));
    sizes.ok_or_else(|| {
        format!("expected {form} as in {example}, whole numbers from 1 to {MOST} each")
    })
}

fn whole<T: FromStr + PartialOrd + Display + Copy>(
    text: &str,
    low: T,
    high: T,
) -> Result<T, String> {
    match text.parse() {
        Ok(number) if low <= number && number <= high => Ok(number),
        _ => Err(format!("expected a whole number from {low} to {high}")),
    }
}

/// More than there is of anything.
const MOST: usize = u32::MAX as usize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_its_range_or_refused_with_it() {
        assert_eq!(positive("3"), Ok(3));
        assert_eq!(count("0"), Ok(0));
        assert_eq!(token("4294967295"), Ok(u32::MAX));
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
        for text in [
            "0",
            "-1",
            "x",
            "",
            "1.5",
            "4294967296",
            "99999999999999999999",
        ] {
            let refused = positive(text).unwrap_err();
            assert_eq!(
                refused, "expected a whole number from 1 to 4294967295",
                "{text}"
            );
        }
        assert_eq!(
            threads("1025").unwrap_err(),
            "expected a whole number from 1 to 1024"
        );
        assert_eq!(
            rounds("10001").unwrap_err(),
            "expected a whole number from 1 to 10000"
        );
        assert_eq!(
            seconds("86401").unwrap_err(),
            "expected a whole number from 1 to 86400"
        );
        assert_eq!(rate("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "x"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert!(clients("1025").is_err());
        assert!(token("4294967296").is_err() && seed("-1").is_err() && count("-1").is_err());
    }

    #[test]
    fn two_sizes_say_what_they_are() {
        assert_eq!(shape("192x320"), Ok([192, 320]));
        assert_eq!(prompt("5x5"), Ok([5, 5]));
        for text in [
            "0x0",
            "1x",
            "x1",
            "1x-1",
            "5",
            "1x2x3",
            "1X2",
            " 1x2",
            "1x4294967296",
        ] {
            for (of, form) in [
                (
                    shape as fn(&str) -> Result<[usize; 2], String>,
                    "ROWSxCOLUMNS as in 10240x2560",
                ),
                (prompt, "ROWSxCONTEXT as in 512x512"),
                (generated, "SEQUENCESxCONTEXT as in 8x1536"),
                (picture, "WIDTHxHEIGHT as in 1280x831"),
            ] {
                let refused = of(text).unwrap_err();
                let range = "whole numbers from 1 to 4294967295 each";
                assert_eq!(refused, format!("expected {form}, {range}"), "{text}");
            }
        }
        let refused = prompt("100x50").unwrap_err();
        assert!(refused.contains("from 1 to 50 rows"), "{refused}");
    }
}
