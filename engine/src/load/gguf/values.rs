//! The typed values of GGUF metadata, left where they lie.

use std::ops::Range;

use super::cursor::Cursor;
use crate::error::Result;

/// A value: numbers decoded, strings and arrays by their place in the file.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(Number),
    /// The bytes of a string.
    String(Range<usize>),
    /// The bytes of an array's elements.
    Array {
        kind: ValueKind,
        count: usize,
        bytes: Range<usize>,
    },
}

/// A number or truth value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
}

/// The types of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Value {
    /// Reads the value of `key`, its type before it.
    pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self> {
        let kind = ValueKind::read(cursor, key)?;
        match kind {
            ValueKind::String => {
                let length = cursor.string(key)?.len();
                Ok(Self::String(cursor.at() - length..cursor.at()))
            }
            ValueKind::Array => Self::read_array(cursor, key),
            _ => {
                let bytes = cursor.take(kind.size() as u64, key)?;
                Ok(Self::Number(kind.number(bytes)))
            }
        }
    }

    /// What it is, for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Number(Number::Bool(value)) => value.to_string(),
            Self::Number(Number::Float(value)) => value.to_string(),
            Self::Number(Number::Signed(value)) => value.to_string(),
            Self::Number(Number::Unsigned(value)) => value.to_string(),
            Self::String(range) => format!("a string of {} bytes", range.len()),
            Self::Array { kind, count, .. } => format!("an array of {count} {}", kind.name()),
        }
    }

    fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Self> {
        let kind = ValueKind::read(cursor, key)?;
        let begin;
        let count;
        match kind {
            // Arrays in arrays have no use, and no bottom.
            ValueKind::Array => return Err(cursor.error(format!("{key}: array in an array"))),
            ValueKind::String => {
                count = cursor.count(key, 8)?;
                begin = cursor.at();
                for _ in 0..count {
                    cursor.string(key)?;
                }
            }
            _ => {
                count = cursor.count(key, kind.size())?;
                begin = cursor.at();
                cursor.take((count * kind.size()) as u64, key)?;
            }
        }
        Ok(Self::Array {
            kind,
            count,
            bytes: begin..cursor.at(),
        })
    }
}

impl ValueKind {
    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self> {
        let number = cursor.u32(key)?;
        let known = usize::try_from(number)
            .ok()
            .and_then(|number| KINDS.get(number));
        known
            .copied()
            .ok_or_else(|| cursor.error(format!("{key}: unknown value type {number}")))
    }

    /// Bytes of a number; of the length before a string or array.
    pub(super) fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String | Self::Array => 8,
        }
    }

    /// Decodes a number of this type.
    pub(super) fn number(self, bytes: &[u8]) -> Number {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        let bits = u64::from_le_bytes(word);
        match self {
            Self::Bool => Number::Bool(bits != 0),
            Self::F32 => Number::Float(f64::from(f32::from_bits(bits as u32))),
            Self::F64 => Number::Float(f64::from_bits(bits)),
            Self::I8 => Number::Signed(i64::from(bits as i8)),
            Self::I16 => Number::Signed(i64::from(bits as i16)),
            Self::I32 => Number::Signed(i64::from(bits as i32)),
            Self::I64 => Number::Signed(bits.cast_signed()),
            Self::U8 | Self::U16 | Self::U32 | Self::U64 | Self::String | Self::Array => {
                Number::Unsigned(bits)
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => "unsigned numbers",
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => "signed numbers",
            Self::F32 | Self::F64 => "floats",
            Self::Bool => "truth values",
            Self::String => "strings",
            Self::Array => "arrays",
        }
    }
}

impl Number {
    /// As a number that is not negative.
    pub(super) fn unsigned(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            Self::Signed(value) => u64::try_from(value).ok(),
            Self::Float(_) | Self::Bool(_) => None,
        }
    }

    /// As a whole number.
    pub(super) fn signed(self) -> Option<i64> {
        match self {
            Self::Unsigned(value) => i64::try_from(value).ok(),
            Self::Signed(value) => Some(value),
            Self::Float(_) | Self::Bool(_) => None,
        }
    }

    /// As a float.
    pub(super) fn float(self) -> Option<f64> {
        match self {
            Self::Unsigned(value) => Some(value as f64),
            Self::Signed(value) => Some(value as f64),
            Self::Float(value) => Some(value),
            Self::Bool(_) => None,
        }
    }
}

/// The types by their numbers.
const KINDS: [ValueKind; 13] = [
    ValueKind::U8,
    ValueKind::I8,
    ValueKind::U16,
    ValueKind::I16,
    ValueKind::U32,
    ValueKind::I32,
    ValueKind::F32,
    ValueKind::Bool,
    ValueKind::String,
    ValueKind::Array,
    ValueKind::U64,
    ValueKind::I64,
    ValueKind::F64,
];
