//! A position in a file's bytes that never leaves them.

use std::path::Path;

use crate::error::{Error, Result};

pub(super) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self { path, bytes, at: 0 }
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    /// The position, from the beginning of the file.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next `length` bytes, which are `what`.
    pub(super) fn take(&mut self, length: u64, what: &str) -> Result<&'a [u8]> {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        let taken = usize::try_from(length)
            .ok()
            .and_then(|length| left.get(..length));
        let Some(taken) = taken else {
            let (at, left) = (self.at, left.len());
            let what =
                format!("{what} takes {length} bytes at offset {at}, {left} are left (cut?)");
            return Err(self.error(what));
        };
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A number of things of at least `least` bytes each, which must fit in what is left.
    pub(super) fn count(&mut self, what: &str, least: usize) -> Result<usize> {
        let count = self.u64(what)?;
        let left = self.bytes.len() - self.at;
        match usize::try_from(count) {
            Ok(count) if count <= left / least => Ok(count),
            _ => Err(self.error(format!(
                "{what} is {count}, with {left} bytes left in the file"
            ))),
        }
    }

    /// A length and as many bytes.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a [u8]> {
        let length = self.u64(what)?;
        self.take(length, what)
    }

    /// A string that must be text.
    pub(super) fn text(&mut self, what: &str) -> Result<&'a str> {
        let at = self.at;
        let bytes = self.string(what)?;
        std::str::from_utf8(bytes)
            .map_err(|_| self.error(format!("{what} at offset {at} is not UTF-8")))
    }

    pub(super) fn error(&self, what: impl Into<String>) -> Error {
        Error::file(self.path, what)
    }
}
