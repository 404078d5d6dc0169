//! Files that others wrote: only regular ones are read, and names are shown on one line.

use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use cider_kernels::MappedFile;

use crate::error::Error;

/// A path as messages show it: whole, on one line, with the control characters of its name spelt out.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(&'a Path);

/// Shows a path in a message.
///
/// ```
/// let path = std::path::Path::new("two\nlines.png");
/// assert_eq!(cider::files::shown(path).to_string(), "two\\nlines.png");
/// ```
pub fn shown<P: AsRef<Path> + ?Sized>(path: &P) -> Shown<'_> {
    Shown(path.as_ref())
}

/// Shows a name that is no path, such as one in a list, in the same way.
#[must_use]
pub fn shown_name(name: &str) -> String {
    shown(name).to_string()
}

/// Opens a regular file, or a link to one.
///
/// What is no regular file is refused before it is opened: opening a pipe would wait for a writer, and a device may
/// have no end.
///
/// # Errors
/// When it is no regular file, or the system refuses.
pub fn open(path: &Path) -> io::Result<File> {
    check_regular(&fs::metadata(path)?)?;
    let file = File::open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// The whole of a regular file, unless it is longer than `limit` bytes.
///
/// # Errors
/// As [`open`], and [`Unread::TooLong`].
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Unread> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > limit {
        return Err(Unread::TooLong(length));
    }
    // Files that only seem to be some, under /proc, have no length and may wait for what never comes.
    if length == 0 {
        return Ok(Vec::new());
    }
    let mut bytes = Vec::new();
    // A file may grow while it is read: one byte more than the limit shows it.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        length if length > limit => Err(Unread::TooLong(length)),
        _ => Ok(bytes),
    }
}

/// Maps a regular file.
pub(crate) fn map(path: &Path) -> Result<MappedFile, Error> {
    MappedFile::open(path).map_err(|error| match error {
        // The same error in this crate's words.
        cider_kernels::Error::Io { path, source } => Error::Io { path, source },
        other => Error::Kernel(other),
    })
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    /// It is no regular file, or the system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It has at least so many bytes, which are too many.
    #[error("{0} bytes are too many")]
    TooLong(u64),
}

/// Refuses to replace what is there and is no regular file.
///
/// # Errors
/// When a folder, a device, a pipe or a socket is there.
pub fn check_target(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) => check_regular(&there),
        Err(_) => Ok(()),
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.to_string_lossy().chars() {
            if is_break(character) {
                write!(formatter, "{}", character.escape_default())?;
            } else {
                formatter.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// Whether a character would break the line, command the terminal or turn the direction of writing.
fn is_break(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn check_regular(metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = if metadata.is_dir() {
        "a folder, not a regular file"
    } else {
        "not a regular file"
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn names_are_whole_and_on_one_line() {
        let name = "a\nb\r\u{1b}[31m\u{202e}c d.png";
        assert_eq!(
            shown_name(name),
            "a\\nb\\r\\u{1b}[31m\\u{202e}c d.png",
            "spaces stay"
        );
    }

    #[test]
    fn folders_and_devices_are_no_files_and_long_ones_are_not_read() {
        assert!(
            open(&env::temp_dir())
                .unwrap_err()
                .to_string()
                .contains("a folder")
        );
        let device = open(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(device, "not a regular file");
        let path = env::temp_dir().join(format!("cider-files-{}", process::id()));
        fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert!(matches!(read(&path, 3), Err(Unread::TooLong(4))));
        fs::remove_file(&path).unwrap();
    }
}
