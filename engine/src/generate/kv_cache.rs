//! The keys and values of all sequences, in blocks that are handed out.

use std::fmt;
use std::str::FromStr;

use cider_kernels::{DType, KV_BLOCK, KvLayer, KvRows};

use super::batch::Work;
use super::prefix_cache::BlockPool;
use super::prefix_digest::PrefixDigest;
use super::sequence::Sequence;
use crate::error::{Error, Result};
use crate::load::ModelConfig;

/// What a cache is asked to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// What the activations are.
    #[default]
    Auto,
    /// 32-bit floats.
    F32,
    /// 16-bit brain floats.
    Bf16,
    /// Half precision floats.
    F16,
    /// INT8 with a scale for each token and head; keys of models that add a bias to them stay bf16.
    Int8,
}

impl CacheType {
    /// Every type.
    pub const ALL: [Self; 5] = [Self::Auto, Self::F32, Self::Bf16, Self::F16, Self::Int8];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }

    /// The types of the keys and of the values, for activations of type `dtype`. A bias gives a few elements of
    /// every key the same large number; the scale of INT8 would follow it, and the rest of the key be lost.
    #[must_use]
    pub fn of(self, config: &ModelConfig, dtype: DType) -> CacheTypes {
        let of = |keys, values| CacheTypes { keys, values };
        match self {
            Self::Auto => of(dtype, dtype),
            Self::F32 => of(DType::F32, DType::F32),
            Self::Bf16 => of(DType::Bf16, DType::Bf16),
            Self::F16 => of(DType::F16, DType::F16),
            Self::Int8 if config.biases.qkv => of(DType::Bf16, DType::I8),
            Self::Int8 => of(DType::I8, DType::I8),
        }
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CacheType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| {
                let known = Self::ALL.map(Self::name).join(", ");
                Error::Request(format!("cache type {name} is not known: {known}"))
            })
    }
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheTypes {
    /// The type of the keys.
    pub keys: DType,
    /// The type of the values.
    pub values: DType,
}

impl CacheTypes {
    /// Bytes that a token takes in all layers, scales included.
    #[must_use]
    pub fn bytes_per_token(self, config: &ModelConfig) -> usize {
        let of = |dtype| KvRows::row_bytes(dtype, config.head_size);
        config.layers * config.kv_heads * (of(self.keys) + of(self.values))
    }
}

impl fmt::Display for CacheTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keys == self.values {
            return self.keys.fmt(f);
        }
        write!(f, "{} keys and {} values", self.keys, self.values)
    }
}

/// Blocks of keys and values, one pool for all layers: block b of a sequence is block b of each layer.
#[derive(Debug)]
pub struct KvCache {
    pub(super) layers: Vec<KvLayer>,
    pool: BlockPool,
}

impl KvCache {
    /// A cache with room for `tokens` tokens.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(config: &ModelConfig, types: CacheTypes, tokens: usize) -> Result<Self> {
        let blocks = tokens.div_ceil(KV_BLOCK);
        let count = u32::try_from(blocks)
            .map_err(|_| Error::Request(format!("a cache of {tokens} tokens is too large")))?;
        let layer = |_| {
            Ok(KvLayer::new(
                types.keys,
                types.values,
                blocks,
                config.kv_heads,
                config.head_size,
            )?)
        };
        let layers = (0..config.layers).map(layer).collect::<Result<_>>()?;
        Ok(Self {
            layers,
            pool: BlockPool::new(count),
        })
    }

    /// Bytes of all blocks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(KvLayer::bytes).sum()
    }

    /// Blocks that belong to nobody.
    #[must_use]
    pub fn free_blocks(&self) -> usize {
        self.pool.available()
    }

    /// The blocks, and who holds them.
    pub(crate) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The blocks, to name them and to forget names.
    pub(crate) fn pool_mut(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    /// Refuses works that need more blocks together than are free.
    pub(super) fn check_room(&self, work: &[Work<'_>]) -> Result<()> {
        let missing = |item: &Work<'_>| {
            let end = item.sequence.computed + item.tokens;
            end.div_ceil(KV_BLOCK)
                .saturating_sub(item.sequence.blocks.len())
        };
        let missing: usize = work.iter().map(missing).sum();
        if missing > self.free_blocks() {
            return Err(full(missing, self.free_blocks()));
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
        if missing > self.free_blocks() {
            return Err(full(missing, self.free_blocks()));
        }
        let pool = &mut self.pool;
        sequence
            .blocks
            .extend((0..missing).filter_map(|_| pool.take()));
        Ok(())
    }

    /// Takes all blocks of a sequence back; nothing of it is computed then.
    pub fn release(&mut self, sequence: &mut Sequence) {
        // The last first: of a beginning that is remembered, the end is forgotten first.
        for block in sequence.blocks.drain(..).rev() {
            self.pool.give_back(block);
        }
        sequence.computed = 0;
    }

    /// Gives a sequence whose next token begins a block the block of this name, if there is one.
    pub(crate) fn attach(&mut self, sequence: &mut Sequence, name: &PrefixDigest) -> bool {
        if sequence.computed != sequence.blocks.len() * KV_BLOCK {
            return false;
        }
        let Some(block) = self.pool.take_named(name) else {
            return false;
        };
        sequence.blocks.push(block);
        sequence.computed += KV_BLOCK;
        true
    }

    /// Names the blocks of a sequence's prompt that are computed, from the `first` on.
    pub(crate) fn name_blocks(
        &mut self,
        sequence: &Sequence,
        names: &[PrefixDigest],
        first: usize,
    ) {
        let computed = sequence.computed / KV_BLOCK;
        let blocks = sequence.blocks.iter().zip(names).take(computed);
        for (&block, &name) in blocks.skip(first) {
            self.pool.name(block, name);
        }
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
