//! Writing a safetensors file so that it is there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;

use serde_json::{Map, Value, json};

use super::Dtype;
use crate::error::{Error, Result};
use crate::files;

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape, slowest dimension first.
    pub shape: &'a [usize],
    /// Its elements, little endian.
    pub bytes: &'a [u8],
}

/// Writes `tensors` in their order, and `metadata`, to `path`: into a file beside it first, which
/// takes its place once its bytes are on the disk.
///
/// # Errors
///
/// [`Error::Tensor`] for a tensor whose bytes do not fit its shape or whose name stands twice,
/// [`Error::Io`] when writing fails; a file that was at `path` is then still there.
pub fn write(path: &Path, tensors: &[Tensor<'_>], metadata: &[(&str, &str)]) -> Result<()> {
    files::check_target(path).map_err(Error::io(path))?;
    let header = header(path, tensors, metadata)?;
    let temporary = temporary_name(path)?;
    let written = write_temporary(&temporary, &header, tensors).and_then(|()| {
        fs::rename(&temporary, path)?;
        sync_folder(path)
    });
    written.map_err(|source| {
        // Already failing: what matters is the first error.
        let _ = fs::remove_file(&temporary);
        Error::Io {
            path: path.to_path_buf(),
            source,
        }
    })
}

/// Refuses a path to which [`write()`] could not write, as far as that can be seen now: a file is begun beside it, and
/// taken away.
///
/// # Errors
///
/// [`Error::Io`] when there is something else than a regular file, or nothing can be written.
pub fn check_writable(path: &Path) -> Result<()> {
    files::check_target(path).map_err(Error::io(path))?;
    let temporary = temporary_name(path)?;
    begin(&temporary)
        .and_then(|_| fs::remove_file(&temporary))
        .map_err(Error::io(path))
}

fn header(path: &Path, tensors: &[Tensor<'_>], metadata: &[(&str, &str)]) -> Result<Vec<u8>> {
    let mut object = Map::new();
    if !metadata.is_empty() {
        let pairs = metadata
            .iter()
            .map(|&(key, value)| (key.to_owned(), Value::from(value)));
        object.insert(METADATA.to_owned(), Value::Object(pairs.collect()));
    }
    let mut begin = 0;
    for tensor in tensors {
        check(path, tensor)?;
        let end = begin + tensor.bytes.len();
        let entry = json!({
            "dtype": tensor.dtype.name(),
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        });
        if tensor.name == METADATA || object.insert(tensor.name.to_owned(), entry).is_some() {
            return Err(Error::tensor(path, tensor.name, "the name is taken"));
        }
        begin = end;
    }
    let mut bytes = Value::Object(object).to_string().into_bytes();
    // The data begins at a multiple of eight.
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    Ok(bytes)
}

fn check(path: &Path, tensor: &Tensor<'_>) -> Result<()> {
    let (dtype, shape, found) = (tensor.dtype, tensor.shape, tensor.bytes.len());
    let size = shape
        .iter()
        .try_fold(dtype.size(), |product, &n| product.checked_mul(n));
    if size != Some(found) {
        let what = format!(
            "{} of shape {shape:?} does not take {found} bytes",
            dtype.name()
        );
        return Err(Error::tensor(path, tensor.name, what));
    }
    Ok(())
}

/// A name in the same folder: only there is renaming one step.
fn temporary_name(path: &Path) -> Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| Error::file(path, "not the name of a file"))?;
    let name = format!(".{}.{}.tmp", name.to_string_lossy(), process::id());
    Ok(path.with_file_name(name))
}

fn begin(temporary: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(temporary)
}

fn write_temporary(temporary: &Path, header: &[u8], tensors: &[Tensor<'_>]) -> io::Result<()> {
    let mut writer = BufWriter::new(begin(temporary)?);
    writer.write_all(&(header.len() as u64).to_le_bytes())?;
    writer.write_all(header)?;
    for tensor in tensors {
        writer.write_all(tensor.bytes)?;
    }
    writer
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()
}

/// Puts the new name itself on the disk. Some systems cannot open folders; there it is their matter.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    match File::open(folder.unwrap_or(Path::new("."))) {
        Ok(folder) => folder.sync_all(),
        Err(_) => Ok(()),
    }
}

/// The header's key that is no tensor.
const METADATA: &str = "__metadata__";
