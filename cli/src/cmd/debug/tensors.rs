//! Arrays on their way to a safetensors file.

use std::path::Path;

use anyhow::{Context as _, Result};
use cider::load::safetensors::{Dtype, Tensor, write};

use crate::interrupt;

/// A named array.
pub(super) struct Array {
    pub(super) name: &'static str,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Its elements, little-endian.
    pub(super) bytes: Vec<u8>,
}

impl Array {
    /// An array of i64.
    pub(super) fn integers(
        name: &'static str,
        shape: Vec<usize>,
        values: impl Iterator<Item = i64>,
    ) -> Self {
        Self {
            name,
            dtype: Dtype::I64,
            shape,
            bytes: values.flat_map(i64::to_le_bytes).collect(),
        }
    }
}

/// Writes the file, whole or not at all.
pub(super) fn save(path: &Path, arrays: &[Array]) -> Result<()> {
    let tensors: Vec<Tensor<'_>> = arrays
        .iter()
        .map(|array| Tensor {
            name: array.name,
            dtype: array.dtype,
            shape: &array.shape,
            bytes: &array.bytes,
        })
        .collect();
    Ok(interrupt::whole(|| write(path, &tensors, &[])).context("signals")??)
}
