//! The keys and values of one layer, in blocks of [`KV_BLOCK`] tokens.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, TensorMut, TensorRef};

/// Tokens in a block of the cache. It is also the key block of attention, so a block is reduced whole.
pub const KV_BLOCK: usize = 64;

/// Keys and values of one layer. A row of a tensor is one token of one KV head: row
/// `(block * kv_heads + head) * KV_BLOCK + offset`, `head_size` columns.
#[derive(Debug)]
pub struct KvLayer {
    /// Keys, after rope.
    pub(crate) keys: KvRows,
    /// Values.
    pub(crate) values: KvRows,
    pub(crate) blocks: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_size: usize,
}

/// Keys or values: floats, or INT8 with a scale per row.
#[derive(Debug)]
pub struct KvRows {
    pub(crate) data: Tensor,
    /// One row with the scale of each row of INT8; empty for floats.
    pub(crate) scales: Tensor,
}

impl KvLayer {
    /// A zeroed cache of `blocks` blocks; `keys` and `values` are float types or INT8.
    ///
    /// # Errors
    /// When a type is none of these or the memory cannot be had.
    pub fn new(
        keys: DType,
        values: DType,
        blocks: usize,
        kv_heads: usize,
        head_size: usize,
    ) -> Result<Self> {
        let rows = blocks
            .checked_mul(kv_heads)
            .and_then(|n| n.checked_mul(KV_BLOCK))
            .ok_or_else(|| Error::shape("kv cache", format!("{blocks} blocks overflow")))?;
        Ok(Self {
            keys: KvRows::new(keys, rows, head_size)?,
            values: KvRows::new(values, rows, head_size)?,
            blocks,
            kv_heads,
            head_size,
        })
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Number of KV heads.
    #[must_use]
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Elements of a head.
    #[must_use]
    pub fn head_size(&self) -> usize {
        self.head_size
    }

    /// The keys, rows as described at the type.
    #[must_use]
    pub fn keys(&self) -> &KvRows {
        &self.keys
    }

    /// The values, rows as described at the type.
    #[must_use]
    pub fn values(&self) -> &KvRows {
        &self.values
    }

    /// Keys and values to write directly, for tests and for restoring a saved cache.
    #[must_use]
    pub fn parts_mut(&mut self) -> [&mut KvRows; 2] {
        [&mut self.keys, &mut self.values]
    }

    /// The row of `offset` in `block` for `head`.
    #[must_use]
    pub fn row(&self, block: usize, head: usize, offset: usize) -> usize {
        (block * self.kv_heads + head) * KV_BLOCK + offset
    }

    /// Bytes it occupies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }
}

impl KvRows {
    fn new(dtype: DType, rows: usize, cols: usize) -> Result<Self> {
        if !dtype.is_float() && dtype != DType::I8 {
            return Err(Error::shape(
                "kv cache",
                format!("a cache of {dtype} is not served"),
            ));
        }
        let scales = if dtype == DType::I8 { rows } else { 0 };
        Ok(Self {
            data: Tensor::zeros(dtype, rows, cols)?,
            scales: Tensor::zeros(DType::F32, 1, scales)?,
        })
    }

    /// Element type: a float type or INT8.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The elements.
    #[must_use]
    pub fn data(&self) -> TensorRef<'_> {
        self.data.view()
    }

    /// The elements, to write.
    #[must_use]
    pub fn data_mut(&mut self) -> TensorMut<'_> {
        self.data.view_mut()
    }

    /// The scale of each row of INT8 in one row; without columns for floats.
    #[must_use]
    pub fn scales(&self) -> TensorRef<'_> {
        self.scales.view()
    }

    /// The scales, to write.
    #[must_use]
    pub fn scales_mut(&mut self) -> TensorMut<'_> {
        self.scales.view_mut()
    }

    /// Bytes it occupies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.data.bytes() + self.scales.bytes()
    }

    /// Bytes that a row takes.
    #[must_use]
    pub fn row_bytes(dtype: DType, head_size: usize) -> usize {
        let scale = if dtype == DType::I8 { 4 } else { 0 };
        head_size * dtype.size() + scale
    }
}
