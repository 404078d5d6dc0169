//! Pictures beneath one folder: no link is followed, and what is outside of it does not exist.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::fs::{CWD, Mode, OFlags, openat};

/// The folder, held open.
#[derive(Debug)]
pub(super) struct MediaRoot {
    folder: OwnedFd,
    path: PathBuf,
}

impl MediaRoot {
    /// Opens the folder. Links on the way to it are the operator's business.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let shown = || format!("media root {}", cider::files::shown(path));
        let path_of_folder = path.canonicalize().with_context(shown)?;
        let folder = openat(CWD, &path_of_folder, FOLDER, Mode::empty()).with_context(shown)?;
        Ok(Self {
            folder,
            path: path_of_folder,
        })
    }

    /// The bytes of the file that a `file:` URL names, up to `limit`. Nothing says why there are none: whether a file exists is
    /// not told.
    pub(super) fn read(&self, url: &str, limit: u64) -> Option<Vec<u8>> {
        let file = self.beneath(&path_of(url)?)?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.len() > limit {
            return None;
        }
        let mut bytes = Vec::new();
        // It may grow while it is read.
        file.take(limit + 1).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 <= limit).then_some(bytes)
    }

    /// Opens a path beneath the folder step by step, so that no link is followed at any of them.
    fn beneath(&self, path: &Path) -> Option<File> {
        // A URL may name the whole path, or that beneath the root.
        let inner = path
            .strip_prefix(&self.path)
            .or_else(|_| path.strip_prefix("/"))
            .unwrap_or(path);
        let mut names = Vec::new();
        for component in inner.components() {
            match component {
                Component::Normal(name) => names.push(name),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
            }
        }
        let (last, folders) = names.split_last()?;
        let mut folder: Option<OwnedFd> = None;
        for name in folders {
            folder = Some(
                openat(
                    folder.as_ref().unwrap_or(&self.folder),
                    *name,
                    FOLDER,
                    Mode::empty(),
                )
                .ok()?,
            );
        }
        // Opening a pipe must not wait for its writer.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = openat(
            folder.as_ref().unwrap_or(&self.folder),
            *last,
            flags,
            Mode::empty(),
        )
        .ok()?;
        Some(File::from(file))
    }
}

/// The path of a `file:` URL of this machine.
fn path_of(url: &str) -> Option<PathBuf> {
    let rest = url
        .get(..5)
        .filter(|scheme| scheme.eq_ignore_ascii_case("file:"))
        .and_then(|_| url.get(5..))?;
    let rest = match rest
        .strip_prefix("//")
        .map(|rest| rest.split_at_checked(rest.find('/').unwrap_or(rest.len())))
    {
        // A host is none, or this one.
        Some(Some((host, path))) if host.is_empty() || host.eq_ignore_ascii_case("localhost") => {
            path
        }
        Some(_) => return None,
        None => rest,
    };
    let mut bytes = Vec::with_capacity(rest.len());
    let mut left = rest.as_bytes();
    while let Some((&first, after)) = left.split_first() {
        left = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, after) = left.split_first_chunk::<2>()?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
        left = after;
    }
    // A zero byte ends a name for the system, and is part of no name.
    (!bytes.contains(&0)).then(|| PathBuf::from(OsStr::from_bytes(&bytes)))
}

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::{env, fs, process};

    use super::*;

    #[test]
    fn only_regular_files_beneath_the_root_are_read() {
        let top = env::temp_dir().join(format!("cider-media-{}", process::id()));
        let root = top.join("root");
        fs::create_dir_all(root.join("a b/inner")).unwrap();
        fs::write(root.join("a b/pic.png"), "pixels").unwrap();
        fs::write(top.join("secret"), "secret").unwrap();
        symlink(top.join("secret"), root.join("link")).unwrap();
        symlink(&top, root.join("up")).unwrap();
        symlink("pic.png", root.join("a b/alias")).unwrap();
        rustix::fs::mknodat(
            CWD,
            root.join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        let media = MediaRoot::open(&root).unwrap();
        let whole = format!(
            "file://{}/a b/pic.png",
            root.canonicalize().unwrap().display()
        );
        for good in [
            "file:///a%20b/pic.png",
            "file:a b/pic.png",
            "FILE:///a b/./pic.png",
            "file://localhost/a b/pic.png",
            &whole,
        ] {
            assert_eq!(
                media.read(good, 6).as_deref(),
                Some(&b"pixels"[..]),
                "{good}"
            );
        }
        assert_eq!(media.read("file:///a b/pic.png", 5), None, "too long");
        for bad in [
            "file:///missing",
            "file:///link",
            "file:///up/secret",
            "file:///a b/alias",
            "file:///../secret",
            "file:///a b/../../secret",
            "file:///%2e%2e/secret",
            "file:///pipe",
            "file:///a b",
            "file:///",
            "file:",
            "file://",
            "file://host/a b/pic.png",
            "file:///a b/pic.png%00",
            "file:///a b/pic.png%zz",
            "file:///etc/hostname",
            "/a b/pic.png",
            "pic.png",
            "",
        ] {
            assert_eq!(media.read(bad, 100), None, "{bad}");
        }
        fs::remove_dir_all(top).unwrap();
    }
}
