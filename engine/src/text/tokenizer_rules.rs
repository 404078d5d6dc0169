//! The rules of a `tokenizer.json`, checked before the `tokenizers` crate gets them: some it takes for granted, and
//! panics or fills the memory where they do not hold.

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::Decoder as _;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};

use crate::{Error, Result};

/// The rules under `key`, once they are checked.
pub(super) fn read<T: DeserializeOwned>(key: &str, rules: Option<Value>) -> Result<Option<T>> {
    let Some(rules) = rules.filter(|rules| !rules.is_null()) else {
        return Ok(None);
    };
    let mut growth = 1;
    check(key, &rules, &mut growth)?;
    serde_json::from_value(rules)
        .map(Some)
        .map_err(|error| refused(key, error))
}

/// Checks one rule or a sequence of them; `growth` is what a byte of the text may have become so far.
fn check(key: &str, rule: &Value, growth: &mut usize) -> Result<()> {
    let kind = rule.get("type").and_then(Value::as_str).unwrap_or_default();
    let number = |name: &str| rule.get(name).and_then(Value::as_u64);
    let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
    for list in ["normalizers", "pretokenizers", "decoders"] {
        let rules = rule.get(list).and_then(Value::as_array);
        for (place, rule) in rules.into_iter().flatten().enumerate() {
            check(&format!("{key}.{list}[{place}]"), rule, growth)?;
        }
    }
    match kind {
        "Precompiled" => Err(refused(key, "Precompiled is not supported")),
        "Replace" => {
            check_pattern(key, rule)?;
            grow(key, growth, text("content").len())
        }
        "Prepend" => grow(key, growth, 1 + text("prepend").len()),
        "FixedLength" if number("length") == Some(0) => Err(refused(key, "a length of 0")),
        "Strip" if number("start").unwrap_or(0) > 0 && number("stop").unwrap_or(0) > 0 => {
            Err(refused(key, "Strip at both ends is not supported"))
        }
        "Split" => check_pattern(key, rule),
        _ => Ok(()),
    }
}

/// Refuses a pattern that matches where there is nothing: the text between such matches never ends, or is no text.
fn check_pattern(key: &str, rule: &Value) -> Result<()> {
    let pattern = rule.get("pattern").cloned().unwrap_or_default();
    let pattern: ReplacePattern =
        serde_json::from_value(pattern).map_err(|error| refused(key, error))?;
    let (ReplacePattern::String(source) | ReplacePattern::Regex(source)) = &pattern;
    if source.is_empty() {
        return Err(refused(key, "an empty pattern"));
    }
    let probe = Replace::new(pattern, MARK).map_err(|error| refused(key, error))?;
    for text in PROBES {
        let replaced = probe
            .decode_chain(vec![text.to_owned()])
            .map_err(|error| refused(key, error))?
            .concat();
        let marks = replaced.matches(MARK).count();
        let left = replaced.chars().count() - marks;
        if marks + left > text.chars().count() {
            return Err(refused(key, "a pattern that matches nothing at all"));
        }
    }
    Ok(())
}

fn grow(key: &str, growth: &mut usize, factor: usize) -> Result<()> {
    *growth = growth.saturating_mul(factor.max(1));
    if *growth > MAX_GROWTH {
        let what = format!("a byte may become {growth} bytes, the limit is {MAX_GROWTH}");
        return Err(refused(key, what));
    }
    Ok(())
}

fn refused(key: &str, what: impl std::fmt::Display) -> Error {
    Error::Tokenizer(format!("{key}: {what}"))
}

/// What one byte of a text may become: published tokenizers write a mark of three bytes for a space.
const MAX_GROWTH: usize = 256;

/// Stands for a match in the trial of a pattern.
const MARK: &str = "\u{1}";

/// Texts on which a pattern is tried.
const PROBES: [&str; 5] = [
    "a b",
    "A1 .,!",
    "\n\n \t",
    "\u{e9}\u{4e00}\u{2581}",
    "<|x|>",
];
