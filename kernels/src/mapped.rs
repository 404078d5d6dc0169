//! A file mapped into memory, read-only. Here and not with the readers of file formats because a
//! mapping needs `unsafe`, which only this crate may use.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{Error, Result};

/// A regular file as a slice of bytes. Its pages belong to the file cache, not to the program's
/// anonymous memory.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    /// `None` for an empty file: a mapping cannot have length zero.
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps the whole of `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the file cannot be opened or mapped, or is not a regular file (opening a
    /// pipe would wait for a writer).
    pub fn open(path: &Path) -> Result<Self> {
        Self::map(path)
            .map(|map| Self {
                path: path.to_path_buf(),
                map,
            })
            .map_err(|source| Error::Io {
                path: path.to_path_buf(),
                source,
            })
    }

    /// The bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// The file's path, as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn map(path: &Path) -> io::Result<Option<Mmap>> {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(None);
        }
        // SAFETY: the mapping is private to this value, read-only, and only ever seen as bytes, for
        // which every bit pattern is valid. What remains is another process changing the file
        // meanwhile: writers of checkpoints replace files by rename (as ours does), which leaves a
        // mapped file as it was; one cut in place ends the program with SIGBUS, as with every
        // program that maps its weights.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Some(map))
    }
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    fn temporary(name: &str) -> PathBuf {
        env::temp_dir().join(format!("cider-mapped-{}-{name}", process::id()))
    }

    #[test]
    fn bytes_are_the_files() {
        let path = temporary("bytes");
        fs::write(&path, b"some bytes").unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        assert_eq!(mapped.bytes(), b"some bytes");
        assert_eq!(mapped.path(), path);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_empty_file_has_no_bytes() {
        let path = temporary("empty");
        fs::write(&path, b"").unwrap();
        assert!(MappedFile::open(&path).unwrap().bytes().is_empty());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let missing = MappedFile::open(&temporary("missing"))
            .unwrap_err()
            .to_string();
        assert!(missing.contains("missing"), "{missing}");
        let folder = MappedFile::open(&env::temp_dir()).unwrap_err().to_string();
        assert!(folder.ends_with("not a regular file"), "{folder}");
    }
}
