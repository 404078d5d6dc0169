//! JSON schemas, checked before the compiler sees them.
//!
//! The compiler refuses what it does not know. What it would take and get wrong (numbers beyond those it counts in) is
//! refused here, as is what would let a request change the compiler's own settings.

use std::collections::BTreeSet;

use serde_json::{Number, Value, json};

use super::limits;
use crate::{Error, Result};

/// The schema as the compiler takes it, with white space bounded.
pub(super) fn prepare(kind: &'static str, schema: &Value) -> Result<Value> {
    let schema = match schema {
        // `true`, and the empty schema, allow every value; settings need an object to stand in.
        Value::Bool(true) => json!({}),
        Value::Object(_) => schema.clone(),
        Value::Bool(false) => return Err(refused(kind, "it allows nothing")),
        _ => return Err(refused(kind, "expected an object or a boolean")),
    };
    check(kind, &schema)?;
    let Value::Object(mut schema) = schema else {
        return Err(refused(kind, "expected an object"));
    };
    schema.insert(SETTINGS.to_owned(), json!({ "whitespace_pattern": BLANKS }));
    Ok(Value::Object(schema))
}

/// Refuses what is too large, or would not be enforced.
fn check(kind: &'static str, schema: &Value) -> Result<()> {
    check_depth(kind, schema)?;
    limits::check_length(kind, schema.to_string().len(), limits::SCHEMA_LENGTH)?;
    let mut multiples = Multiples::default();
    check_value(kind, schema, &mut multiples)?;
    multiples.check(kind)
}

/// Without recursion: this is the check that makes recursion safe.
fn check_depth(kind: &'static str, schema: &Value) -> Result<()> {
    let mut todo = vec![(schema, 1)];
    while let Some((value, depth)) = todo.pop() {
        if depth > DEPTH {
            return Err(refused(
                kind,
                &format!("it nests deeper than {DEPTH} levels"),
            ));
        }
        match value {
            Value::Array(items) => todo.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(entries) => todo.extend(entries.values().map(|item| (item, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

/// Every value, wherever it stands: a reference may make a schema of any part.
fn check_value(kind: &'static str, value: &Value, multiples: &mut Multiples) -> Result<()> {
    match value {
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| check_value(kind, item, multiples)),
        Value::Object(entries) => entries.iter().try_for_each(|(key, item)| {
            check_keyword(kind, key, item, multiples)?;
            check_value(kind, item, multiples)
        }),
        Value::Number(number) if !is_exact(number) => {
            Err(refused(kind, &format!("number {number} is beyond 2^53")))
        }
        Value::Number(_) | Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// Whether the compiler, which counts in doubles, sees this very number.
fn is_exact(number: &Number) -> bool {
    match (number.as_u64(), number.as_i64()) {
        (Some(whole), _) => whole <= EXACT,
        (None, Some(whole)) => whole.unsigned_abs() <= EXACT,
        (None, None) => number
            .as_f64()
            .is_some_and(|float| float.abs() <= EXACT as f64),
    }
}

/// Values of other types are left to the compiler: a property may be called `minLength`, and hold a schema.
fn check_keyword(
    kind: &'static str,
    key: &str,
    value: &Value,
    multiples: &mut Multiples,
) -> Result<()> {
    match (key, value) {
        (SETTINGS, _) => return Err(refused(kind, &format!("{SETTINGS} is not taken"))),
        ("pattern", Value::String(pattern)) => limits::check_regex(kind, pattern)?,
        ("patternProperties", Value::Object(patterns)) => patterns
            .keys()
            .try_for_each(|pattern| limits::check_regex(kind, pattern))?,
        ("multipleOf", Value::Number(number)) => multiples.add(kind, number)?,
        _ => {}
    }
    match (most_of(key), value.as_f64()) {
        (Some(most), Some(number)) if number > most => Err(refused(
            kind,
            &format!("{key} is {value}, the limit is {most}"),
        )),
        _ => Ok(()),
    }
}

fn most_of(key: &str) -> Option<f64> {
    match key {
        "minLength" | "minItems" | "minProperties" => Some(1e4),
        "maxLength" | "maxItems" | "maxProperties" => Some(f64::from(i32::MAX)),
        _ => None,
    }
}

/// All numbers of `multipleOf`. The compiler counts remainders in 32 bits, of the least common multiple of those that
/// meet in one place.
#[derive(Default)]
struct Multiples {
    coefficients: BTreeSet<u64>,
    decimals: usize,
}

impl Multiples {
    fn add(&mut self, kind: &'static str, number: &Number) -> Result<()> {
        let float = number.as_f64().unwrap_or_default();
        if float <= 0.0 {
            return Err(refused(
                kind,
                &format!("multipleOf is {number}, it must be above 0"),
            ));
        }
        let digits = float.to_string();
        let (whole, part) = digits.split_once('.').unwrap_or((&digits, ""));
        let coefficient = format!("{whole}{part}").parse().unwrap_or(u64::MAX);
        self.coefficients.insert(coefficient);
        self.decimals = self.decimals.max(part.len());
        Ok(())
    }

    fn check(&self, kind: &'static str) -> Result<()> {
        let decimals = u32::try_from(self.decimals).unwrap_or(u32::MAX);
        let unit = 10_u64.checked_pow(decimals).unwrap_or(u64::MAX);
        let product = self
            .coefficients
            .iter()
            .fold(unit, |product, &coefficient| {
                product.saturating_mul(coefficient)
            });
        if product <= LARGEST_MULTIPLE {
            return Ok(());
        }
        Err(refused(
            kind,
            "the numbers of multipleOf have too many digits together",
        ))
    }
}

fn refused(kind: &'static str, what: &str) -> Error {
    let what = what.to_owned();
    Error::Grammar { kind, what }
}

/// At most twenty blanks between the parts of a value.
const BLANKS: &str = r"[\x20\x0A\x0D\x09]{1,20}";
/// Where the compiler looks for settings.
const SETTINGS: &str = "x-guidance";
/// Levels of arrays and objects.
const DEPTH: usize = 64;
/// Up to here every integer is a double.
const EXACT: u64 = 1 << 53;
const LARGEST_MULTIPLE: u64 = 100_000_000;
