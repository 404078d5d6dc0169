//! The keys and values of all sequences, in blocks that are handed out.

use cider_kernels::{DType, KV_BLOCK, KvLayer};

use super::batch::Work;
use super::sequence::Sequence;
use crate::error::{Error, Result};
use crate::load::ModelConfig;

/// Blocks of keys and values, one pool for all layers: block b of a sequence is block b of each layer.
#[derive(Debug)]
pub struct KvCache {
    pub(super) layers: Vec<KvLayer>,
    /// Blocks that belong to nobody, the next one last.
    free: Vec<u32>,
}

impl KvCache {
    /// A cache with room for `tokens` tokens.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(config: &ModelConfig, dtype: DType, tokens: usize) -> Result<Self> {
        let blocks = tokens.div_ceil(KV_BLOCK);
        let count = u32::try_from(blocks)
            .map_err(|_| Error::Request(format!("a cache of {tokens} tokens is too large")))?;
        let layer = |_| {
            Ok(KvLayer::new(
                dtype,
                blocks,
                config.kv_heads,
                config.head_size,
            )?)
        };
        let layers = (0..config.layers).map(layer).collect::<Result<_>>()?;
        Ok(Self {
            layers,
            free: (0..count).rev().collect(),
        })
    }

    /// Bytes that a token takes in all layers.
    #[must_use]
    pub fn bytes_per_token(config: &ModelConfig, dtype: DType) -> usize {
        2 * config.layers * config.kv_heads * config.head_size * dtype.size()
    }

    /// Bytes of all blocks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(KvLayer::bytes).sum()
    }

    /// Blocks that belong to nobody.
    #[must_use]
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Refuses works that need more blocks together than are free.
    pub(super) fn check_room(&self, work: &[Work<'_>]) -> Result<()> {
        let missing = |item: &Work<'_>| {
            let end = item.sequence.computed + item.tokens;
            end.div_ceil(KV_BLOCK)
                .saturating_sub(item.sequence.blocks.len())
        };
        let missing: usize = work.iter().map(missing).sum();
        if missing > self.free.len() {
            return Err(full(missing, self.free.len()));
        }
        Ok(())
    }

    /// Gives a sequence the blocks it needs for its first `tokens` tokens.
    ///
    /// # Errors
    /// When too few are free; the sequence keeps what it has.
    pub fn grow(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<()> {
        let missing = tokens
            .div_ceil(KV_BLOCK)
            .saturating_sub(sequence.blocks.len());
        if missing > self.free.len() {
            return Err(full(missing, self.free.len()));
        }
        sequence
            .blocks
            .extend(self.free.drain(self.free.len() - missing..).rev());
        Ok(())
    }

    /// Takes all blocks of a sequence back; nothing of it is computed then.
    pub fn release(&mut self, sequence: &mut Sequence) {
        self.free.extend(sequence.blocks.drain(..).rev());
        sequence.computed = 0;
    }
}

/// Both in blocks.
fn full(missing: usize, free: usize) -> Error {
    Error::Request(format!(
        "the cache is full: {} more tokens needed, {} free",
        missing * KV_BLOCK,
        free * KV_BLOCK
    ))
}
