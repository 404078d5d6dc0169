//! The metadata of a GGUF file, read when asked for: a tokenizer's lists stay in the file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use cider_kernels::MappedFile;

use super::cursor::Cursor;
use super::values::{Number, Value, ValueKind};
use crate::error::{Error, Result};

/// The metadata of a GGUF file. A getter gives `None` for a key that is absent and an error for one
/// of another type.
#[derive(Clone, Debug)]
pub struct Metadata {
    file: Arc<MappedFile>,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Whether there is a value of `key`.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The file they are from.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// A whole number that is not negative.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when `key` is of another type.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        self.number(key, "a whole number from 0", Number::unsigned)
    }

    /// A number.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when `key` is of another type.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.number(key, "a number", Number::float)
    }

    /// A truth value.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when `key` is of another type.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.number(key, "true or false", |number| match number {
            Number::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// A string.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when `key` is of another type or its value is not UTF-8.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::String(range)) => match std::str::from_utf8(self.bytes(range)) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(self.error(key, "not UTF-8")),
            },
            Some(other) => Err(self.wrong(key, "a string", other)),
        }
    }

    /// An array of strings, each decoded when the iterator comes to it.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when `key` is of another type or one of the strings is not UTF-8.
    pub fn strings(&self, key: &str) -> Result<Option<Strings<'_>>> {
        let Some((count, bytes)) = self.array(key, "strings", |kind| kind == ValueKind::String)?
        else {
            return Ok(None);
        };
        let strings = Strings { left: count, bytes };
        let mut raw = strings.clone();
        let bad = (0..count).find(|_| {
            raw.advance()
                .is_none_or(|text| str::from_utf8(text).is_err())
        });
        match bad {
            Some(index) => Err(self.error(key, format!("string {index} is not UTF-8"))),
            None => Ok(Some(strings)),
        }
    }

    /// An array of whole numbers.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when `key` is of another type; numbers beyond `i64` count as -1.
    pub fn integers<'a>(
        &'a self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = i64> + use<'a>>> {
        let whole = |kind| {
            use ValueKind::{I8, I16, I32, I64, U8, U16, U32, U64};
            matches!(kind, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
        };
        let numbers = self.numbers(key, "whole numbers", whole)?;
        Ok(numbers.map(|numbers| numbers.map(|number| number.signed().unwrap_or(-1))))
    }

    /// An array of floats.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when `key` is of another type.
    pub fn floats<'a>(
        &'a self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = f32> + use<'a>>> {
        let float = |kind| matches!(kind, ValueKind::F32 | ValueKind::F64);
        let numbers = self.numbers(key, "floats", float)?;
        Ok(numbers.map(|numbers| numbers.map(|number| number.float().unwrap_or(f64::NAN) as f32)))
    }

    /// [`unsigned`](Self::unsigned), where the key must be there.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when `key` is missing or of another type.
    pub fn require_unsigned(&self, key: &str) -> Result<u64> {
        self.unsigned(key)?.ok_or_else(|| self.missing(key))
    }

    /// [`string`](Self::string), where the key must be there.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when `key` is missing or of another type.
    pub fn require_string(&self, key: &str) -> Result<&str> {
        self.string(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn parse(
        cursor: &mut Cursor<'_>,
        file: &Arc<MappedFile>,
        count: usize,
    ) -> Result<Self> {
        let mut values = BTreeMap::new();
        for _ in 0..count {
            let key = cursor.text("a metadata key")?;
            let value = Value::read(cursor, key)?;
            if values.insert(key.to_owned(), value).is_some() {
                return Err(cursor.error(format!("{key}: two values of this key")));
            }
        }
        Ok(Self {
            file: Arc::clone(file),
            values,
        })
    }

    /// The length of an array of any type.
    pub(super) fn array_length(&self, key: &str) -> Option<usize> {
        match self.values.get(key) {
            Some(Value::Array { count, .. }) => Some(*count),
            _ => None,
        }
    }

    /// An error about `key`.
    pub(super) fn error(&self, key: &str, what: impl Into<String>) -> Error {
        Error::config(self.path(), key, what)
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        self.error(key, "missing")
    }

    fn number<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(Number) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        let converted = match value {
            Value::Number(number) => convert(*number),
            Value::String(_) | Value::Array { .. } => None,
        };
        converted
            .map(Some)
            .ok_or_else(|| self.wrong(key, expected, value))
    }

    fn numbers<'a>(
        &'a self,
        key: &str,
        expected: &str,
        fits: fn(ValueKind) -> bool,
    ) -> Result<Option<impl ExactSizeIterator<Item = Number> + use<'a>>> {
        let kind = match self.values.get(key) {
            Some(Value::Array { kind, .. }) => *kind,
            _ => ValueKind::U8,
        };
        let array = self.array(key, expected, fits)?;
        Ok(array.map(|(_, bytes)| {
            bytes
                .chunks_exact(kind.size())
                .map(move |bytes| kind.number(bytes))
        }))
    }

    fn array(
        &self,
        key: &str,
        expected: &str,
        fits: fn(ValueKind) -> bool,
    ) -> Result<Option<(usize, &[u8])>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array { kind, count, bytes }) if fits(*kind) => {
                Ok(Some((*count, self.bytes(bytes))))
            }
            Some(other) => Err(self.wrong(key, &format!("an array of {expected}"), other)),
        }
    }

    fn bytes(&self, range: &Range<usize>) -> &[u8] {
        self.file.bytes().get(range.clone()).unwrap_or_default()
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> Error {
        self.error(
            key,
            format!("expected {expected}, found {}", found.describe()),
        )
    }
}

/// The strings of an array of a GGUF file.
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Strings<'a> {
    /// The bytes of the next string: a length and as many bytes, both checked at parsing.
    fn advance(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.bytes.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (text, rest) = rest.split_at_checked(length)?;
        self.left = self.left.checked_sub(1)?;
        self.bytes = rest;
        Some(text)
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.advance()?).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}
