//! JSON files beside the weights, read with limits, and their keys with typed errors.

use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::sniff::refuse_pointer;
use crate::error::{Error, Result};
use crate::files::{self, Unread};

/// Reads a JSON file whose root is an object.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let bytes = read_bounded(path)?;
    refuse_pointer(path, &bytes)?;
    let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(Error::file(
            path,
            format!("expected an object, found {}", kind(&other)),
        )),
        Err(error) => Err(Error::file(path, format!("not JSON: {error}"))),
    }
}

/// [`read_object`], or `None` where there is no such file.
pub(crate) fn read_optional_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    match read_object(path) {
        Ok(object) => Ok(Some(object)),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The keys of a configuration file: of the inner level where there is one, else of the outer.
#[derive(Clone)]
pub(crate) struct Keys<'a> {
    path: &'a Path,
    /// What stands before a key in messages: empty, or the level's name and a dot.
    prefix: String,
    levels: Vec<&'a Map<String, Value>>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(path: &'a Path, object: &'a Map<String, Value>) -> Self {
        Self {
            path,
            prefix: String::new(),
            levels: vec![object],
        }
    }

    /// These keys, with those of the object `key` before them where there is one.
    pub(crate) fn with_inner(&self, key: &str) -> Result<Self> {
        let mut levels = self.levels.clone();
        if let Some(inner) = self.object(key)? {
            levels.insert(0, inner);
        }
        Ok(Self {
            path: self.path,
            prefix: self.prefix.clone(),
            levels,
        })
    }

    /// The keys of the object `key` alone.
    pub(crate) fn inside(&self, key: &str) -> Result<Option<Self>> {
        let prefix = format!("{}{key}.", self.prefix);
        let inner = self.object(key)?;
        Ok(inner.map(|inner| Self {
            path: self.path,
            prefix,
            levels: vec![inner],
        }))
    }

    /// The value of `key`; null is no value.
    pub(crate) fn find(&self, key: &str) -> Option<&'a Value> {
        self.all(key).next()
    }

    /// The values of `key` on every level.
    pub(crate) fn all(&self, key: &str) -> impl Iterator<Item = &'a Value> {
        self.levels
            .iter()
            .filter_map(move |level| level.get(key))
            .filter(|value| !value.is_null())
    }

    /// Whether `key` is there, be it with the value null.
    pub(crate) fn present(&self, key: &str) -> bool {
        self.levels.iter().any(|level| level.contains_key(key))
    }

    /// The keys of the innermost level.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.levels
            .first()
            .into_iter()
            .flat_map(|level| level.keys().map(String::as_str))
    }

    /// A number in `1..=limit`.
    pub(crate) fn size(&self, key: &str, limit: usize) -> Result<Option<usize>> {
        let Some(value) = self.find(key) else {
            return Ok(None);
        };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        match size {
            Some(size) if (1..=limit).contains(&size) => Ok(Some(size)),
            _ => Err(self.wrong(key, &format!("a whole number from 1 to {limit}"), value)),
        }
    }

    pub(crate) fn required_size(&self, key: &str, limit: usize) -> Result<usize> {
        self.size(key, limit)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.find(key) else {
            return Ok(None);
        };
        match value.as_f64().filter(|number| number.is_finite()) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, "a number", value)),
        }
    }

    /// A finite number above zero.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.float(key)? {
            Some(number) if number <= 0.0 => {
                Err(self.error(key, format!("expected a number above 0, found {number}")))
            }
            number => Ok(number),
        }
    }

    pub(crate) fn required_positive(&self, key: &str) -> Result<f64> {
        self.positive(key)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn required_epsilon(&self, key: &str) -> Result<f32> {
        epsilon(self.required_positive(key)?).map_err(|what| self.error(key, what))
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.find(key) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "true or false", value))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.find(key) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a string", value))
    }

    pub(crate) fn list(&self, key: &str) -> Result<Option<&'a [Value]>> {
        let Some(value) = self.find(key) else {
            return Ok(None);
        };
        let list = value
            .as_array()
            .ok_or_else(|| self.wrong(key, "a list", value))?;
        Ok(Some(list))
    }

    /// One token id, or a list of them; the first of a list for a key that wants one.
    pub(crate) fn token_ids(&self, key: &str) -> Result<Option<Vec<u32>>> {
        let Some(value) = self.find(key) else {
            return Ok(None);
        };
        let ids = value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice);
        ids.iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<_>>()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a token id or a list of them", value))
    }

    pub(crate) fn missing(&self, key: &str) -> Error {
        self.error(key, "missing")
    }

    pub(crate) fn error(&self, key: &str, what: impl Into<String>) -> Error {
        Error::config(self.path, format!("{}{key}", self.prefix), what)
    }

    pub(crate) fn wrong(&self, key: &str, expected: &str, found: &Value) -> Error {
        let mut shown = found.to_string();
        if shown.chars().count() > SHOWN {
            shown = shown.chars().take(SHOWN).chain("...".chars()).collect();
        }
        self.error(key, format!("expected {expected}, found {shown}"))
    }

    fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>> {
        let Some(value) = self.find(key) else {
            return Ok(None);
        };
        value
            .as_object()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "an object", value))
    }
}

/// What a norm adds to the mean of squares: far below what it is added to.
pub(super) fn epsilon(number: f64) -> Result<f32, String> {
    let rounded = number as f32;
    if rounded.is_normal() && number <= MAX_EPSILON {
        return Ok(rounded);
    }
    let least = f32::MIN_POSITIVE;
    Err(format!(
        "expected {least:e} to {MAX_EPSILON}, found {number:e}"
    ))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>> {
    files::read(path, MAX_BYTES).map_err(|unread| match unread {
        Unread::Io(error) => Error::io(path)(error),
        Unread::TooLong(length) => {
            let what = format!("{length} bytes of JSON exceed the limit of {MAX_BYTES}");
            Error::file(path, what)
        }
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// What some editors put in front of UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The largest JSON file that is read: the index of a very large model has a few megabytes.
const MAX_BYTES: u64 = 64 << 20;

/// The largest epsilon of a norm that is believed: models have 1e-5 or less.
const MAX_EPSILON: f64 = 0.1;

/// Characters of a wrong value that a message shows.
const SHOWN: usize = 60;
