//! Files that others wrote: only regular ones are read, and names are shown on one line. Files that we write: they
//! appear whole or not at all, and replace nothing that is no regular file.

use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process;

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

/// The file that is written when `path` is: links are followed, so that a link stays one.
///
/// Two paths that lead to one file give the same target.
///
/// # Errors
/// When the name is none of a file, its folder is not there, a link leads nowhere, or what is there is no regular file.
pub fn target(path: &Path) -> io::Result<PathBuf> {
    match fs::metadata(path) {
        Ok(there) => {
            check_regular(&there)?;
            return fs::canonicalize(path);
        }
        Err(_) if fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink()) => {
            let what = "a link that leads nowhere";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    let Some(name) = path.file_name() else {
        let what = "not the name of a file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    Ok(fs::canonicalize(folder)?.join(name))
}

/// Refuses a path to which [`replace`] could not write, as far as that can be seen now: a file is begun beside it, and
/// taken away. Gives its [`target`].
///
/// # Errors
/// As [`target`], and when the system refuses the file beside it.
pub fn check_target(path: &Path) -> io::Result<PathBuf> {
    let target = target(path)?;
    let (part, _) = begin(&target)?;
    fs::remove_file(&part)?;
    Ok(target)
}

/// Puts a file at `path`, or in the place of the one there: `write` fills a file beside it, which takes its place once
/// its bytes are on the disk. Until then, and where anything fails, what was there stays.
///
/// # Errors
/// As [`target`], those of `write`, and when the system refuses.
pub fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let target = target(path)?;
    let (part, mut file) = begin(&target)?;
    let replaced = write(&mut file)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&part, &target))
        .and_then(|()| sync_folder(&target));
    if replaced.is_err() {
        // Already failing: what matters is the first error.
        let _ = fs::remove_file(&part);
    }
    replaced
}

/// Begins a file in the same folder, where alone renaming is one step. Its name is short, as a file may have the
/// longest name there is, and nobody else's: what another process left or still writes is passed by.
fn begin(target: &Path) -> io::Result<(PathBuf, File)> {
    for count in 0.. {
        let part = target.with_file_name(format!(".cider-{}-{count}.part", process::id()));
        match File::create_new(&part) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && count < MOST_PARTS => {}
            made => return made.map(|file| (part, file)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Puts the new name itself on the disk. Some systems cannot open folders; there it is their matter.
fn sync_folder(target: &Path) -> io::Result<()> {
    match target.parent().map(File::open) {
        Some(Ok(folder)) => folder.sync_all(),
        _ => Ok(()),
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

/// Unfinished files of processes of one number that a folder may hold.
const MOST_PARTS: u32 = 1000;

#[cfg(test)]
mod tests {
    use std::env;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

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

    #[test]
    fn a_link_stays_and_what_it_names_is_replaced() {
        let folder = env::temp_dir().join(format!("cider-files-link-{}", process::id()));
        fs::create_dir_all(folder.join("inner")).unwrap();
        let (file, link) = (folder.join("file"), folder.join("inner/link"));
        fs::write(&file, "before").unwrap();
        symlink("../file", &link).unwrap();
        let failed = replace(&link, |file| {
            file.write_all(b"half")?;
            Err(io::Error::other("no luck"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no luck");
        assert_eq!(fs::read(&file).unwrap(), b"before");
        assert_eq!(check_target(&link).unwrap(), target(&file).unwrap());
        replace(&link, |file| file.write_all(b"after")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"after");
        let names = fs::read_dir(&folder).unwrap().count()
            + fs::read_dir(folder.join("inner")).unwrap().count();
        assert_eq!(names, 3, "nothing is left beside them");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn targets_are_one_for_all_spellings_and_none_where_nothing_can_be_written() {
        let folder = env::temp_dir().join(format!("cider-files-target-{}", process::id()));
        fs::create_dir_all(folder.join("inner")).unwrap();
        let plain = target(&folder.join("new")).unwrap();
        assert_eq!(target(&folder.join("inner/../new")).unwrap(), plain);
        assert_eq!(target(&folder.join("./new")).unwrap(), plain);
        symlink("nowhere", folder.join("dangling")).unwrap();
        symlink("loop", folder.join("loop")).unwrap();
        symlink("/dev/null", folder.join("device")).unwrap();
        for (name, what) in [
            ("dangling", "leads nowhere"),
            ("loop", "leads nowhere"),
            ("device", "not a regular file"),
            ("inner", "a folder"),
            ("inner/..", "a folder"),
            ("missing/file", "No such file"),
            ("missing/..", "not the name of a file"),
        ] {
            let path = folder.join(name);
            let refused = check_target(&path).unwrap_err().to_string();
            assert!(refused.contains(what), "{name}: {refused}");
            let refused = replace(&path, |_| Ok(())).unwrap_err().to_string();
            assert!(refused.contains(what), "{name}: {refused}");
        }
        assert!(
            fs::symlink_metadata(folder.join("dangling"))
                .unwrap()
                .is_symlink()
        );
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        // The longest name that there can be.
        let long = folder.join("x".repeat(255));
        check_target(&long).unwrap();
        replace(&long, |file| file.write_all(b"1")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
