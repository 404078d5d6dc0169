//! Writing a safetensors file so that it is there whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

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

/// Writes `tensors` in their order, and `metadata`, to `path`, as [`files::replace`] does.
///
/// # Errors
///
/// [`Error::Tensor`] for a tensor whose bytes do not fit its shape or whose name stands twice,
/// [`Error::Io`] when writing fails; a file that was at `path` is then still there.
pub fn write(path: &Path, tensors: &[Tensor<'_>], metadata: &[(&str, &str)]) -> Result<()> {
    let header = header(path, tensors, metadata)?;
    files::replace(path, |file| write_all(file, &header, tensors)).map_err(Error::io(path))
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

fn write_all(file: &mut File, header: &[u8], tensors: &[Tensor<'_>]) -> io::Result<()> {
    let mut writer = BufWriter::new(file);
    writer.write_all(&(header.len() as u64).to_le_bytes())?;
    writer.write_all(header)?;
    for tensor in tensors {
        writer.write_all(tensor.bytes)?;
    }
    writer.flush()
}

/// The header's key that is no tensor.
const METADATA: &str = "__metadata__";
