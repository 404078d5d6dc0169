//! What a path is, by what it holds.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::{self, shown_name};

/// What a model path turned out to be.
#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    /// A folder with `config.json` and safetensors.
    Folder,
    /// One safetensors file, or the index of several; its configuration lies beside it.
    Safetensors,
    /// A GGUF file.
    Gguf(PathBuf),
}

/// Says what `path` is.
pub(super) fn kind(path: &Path) -> Result<Kind> {
    if fs::metadata(path).map_err(Error::io(path))?.is_dir() {
        return folder_kind(path);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if has_extension(&name, "safetensors") || name.ends_with(INDEX_SUFFIX) {
        return Ok(Kind::Safetensors);
    }
    let start = first_bytes(path)?;
    refuse_pointer(path, &start)?;
    match start.get(..4) {
        // A reversed magic is a GGUF file too: its reader says what is wrong with it.
        Some(b"GGUF" | b"FUGG") => Ok(Kind::Gguf(path.to_path_buf())),
        _ if has_extension(&name, "gguf") => Ok(Kind::Gguf(path.to_path_buf())),
        _ => Err(Error::file(
            path,
            "not a model: expected a folder, a .safetensors or a .gguf file",
        )),
    }
}

/// Refuses the text that stands for a large file in a clone made without Git LFS.
pub(super) fn refuse_pointer(path: &Path, bytes: &[u8]) -> Result<()> {
    if bytes.starts_with(b"version https://git-lfs.github.com/spec/") {
        let what = "a Git LFS pointer, not the file itself (run `git lfs pull`)";
        return Err(Error::file(path, what));
    }
    Ok(())
}

/// A folder of safetensors has a configuration; one without may hold a single GGUF file.
fn folder_kind(folder: &Path) -> Result<Kind> {
    if folder.join("config.json").exists() {
        return Ok(Kind::Folder);
    }
    let mut gguf = names_in(folder)?;
    gguf.retain(|name| has_extension(name, "gguf"));
    match gguf.as_slice() {
        [] => Err(Error::file(
            folder,
            "not a model: neither config.json nor a .gguf file in it",
        )),
        [one] => Ok(Kind::Gguf(folder.join(one))),
        [first, ..] => {
            let what = format!(
                "{} .gguf files in it, {} the first: name one",
                gguf.len(),
                shown_name(first)
            );
            Err(Error::file(folder, what))
        }
    }
}

/// The names of what is in `folder`, sorted.
pub(super) fn names_in(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let entry = entry.map_err(Error::io(folder))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Whether `name` ends in a dot and `extension`, in this case.
pub(super) fn has_extension(name: &str, extension: &str) -> bool {
    name.strip_suffix(extension)
        .is_some_and(|stem| stem.ends_with('.'))
}

fn first_bytes(path: &Path) -> Result<Vec<u8>> {
    let mut start = Vec::new();
    let file = files::open(path).map_err(Error::io(path))?;
    file.take(64)
        .read_to_end(&mut start)
        .map_err(Error::io(path))?;
    Ok(start)
}

/// How the index of a sharded checkpoint is called, after the stem.
pub(super) const INDEX_SUFFIX: &str = ".safetensors.index.json";
