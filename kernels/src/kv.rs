//! The keys and values of one layer, in blocks of [`KV_BLOCK`] tokens.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, TensorMut};

/// Tokens in a block of the cache. It is also the key block of attention, so a block is reduced whole.
pub const KV_BLOCK: usize = 64;

/// Keys and values of one layer. A row of a tensor is one token of one KV head: row
/// `(block * kv_heads + head) * KV_BLOCK + offset`, `head_size` columns.
#[derive(Debug)]
pub struct KvLayer {
    /// Keys, after rope.
    pub(crate) keys: Tensor,
    /// Values.
    pub(crate) values: Tensor,
    pub(crate) blocks: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_size: usize,
}

impl KvLayer {
    /// A zeroed cache of `blocks` blocks.
    ///
    /// # Errors
    /// When the dtype is no float or the memory cannot be had.
    pub fn new(dtype: DType, blocks: usize, kv_heads: usize, head_size: usize) -> Result<Self> {
        if !dtype.is_float() {
            return Err(Error::shape(
                "kv cache",
                format!("a cache of {dtype} is not served"),
            ));
        }
        let rows = blocks
            .checked_mul(kv_heads)
            .and_then(|n| n.checked_mul(KV_BLOCK))
            .ok_or_else(|| Error::shape("kv cache", format!("{blocks} blocks overflow")))?;
        Ok(Self {
            keys: Tensor::zeros(dtype, rows, head_size)?,
            values: Tensor::zeros(dtype, rows, head_size)?,
            blocks,
            kv_heads,
            head_size,
        })
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.keys.dtype()
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
    pub fn keys(&self) -> &Tensor {
        &self.keys
    }

    /// The values, rows as described at the type.
    #[must_use]
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Keys and values to write directly, for tests and for restoring a saved cache.
    #[must_use]
    pub fn parts_mut(&mut self) -> (TensorMut<'_>, TensorMut<'_>) {
        (self.keys.view_mut(), self.values.view_mut())
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
