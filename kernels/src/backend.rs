//! The closed list of ops that transformers are made of, and what each is given.
//!
//! Shapes are in rows (tokens) and columns (features). Every op writes into memory that the caller owns.
//! `docs/numerics.md` says what each computes, to the bit.

use std::fmt;
use std::ops::Range;

use crate::dtype::DType;
use crate::error::Result;
use crate::kv::KvLayer;
use crate::quant::Format;
use crate::rope::RopeTable;
use crate::rows::QuantizedRows;
use crate::tensor::{TensorMut, TensorRef};
use crate::weights::{RowSource, Weights};

/// A device that runs the ops.
pub trait Backend: fmt::Debug + Send + Sync {
    /// One line for people: device, instruction set, threads.
    fn describe(&self) -> String;

    /// Room for `capacity` quantised rows of at most `cols` values.
    ///
    /// # Errors
    /// When the memory cannot be had.
    fn quantized_rows(&self, capacity: usize, cols: usize) -> Result<QuantizedRows>;

    /// Zeroed weights of `n` rows and `k` columns, to be filled.
    ///
    /// # Errors
    /// When the format does not allow the shape or the memory cannot be had.
    fn weights(&self, format: Format, n: usize, k: usize) -> Result<Weights>;

    /// Writes rows `first..first + count`; row `first + i` is row `i` of the source.
    ///
    /// # Errors
    /// When rows do not exist, a float is not finite, or an integer does not fit the format.
    fn fill_weights(
        &self,
        weights: &mut Weights,
        first: usize,
        count: usize,
        source: RowSource<'_>,
    ) -> Result<()>;

    /// Sets the bias of rows `first..first + bias.len()`.
    ///
    /// # Errors
    /// When rows do not exist.
    fn set_bias(&self, weights: &mut Weights, first: usize, bias: &[f32]) -> Result<()>;

    /// Reads a row back as floats (integers times their scales).
    ///
    /// # Errors
    /// When the row does not exist or `out` does not have `k` values.
    fn read_row(&self, weights: &Weights, row: usize, out: &mut [f32]) -> Result<()>;

    /// Reads a row of integer weights back with its scales, one per group.
    ///
    /// # Errors
    /// When the weights are dense, or sizes do not match.
    fn read_integers(
        &self,
        weights: &Weights,
        row: usize,
        out: &mut [i8],
        scales: &mut [f32],
    ) -> Result<()>;

    /// Quantises each row of `x` to INT8.
    ///
    /// # Errors
    /// When shapes do not match.
    fn quantize(&self, x: TensorRef<'_>, out: &mut QuantizedRows) -> Result<()>;

    /// `out[m, n] = input[m, :] . weights[n, :] + bias[n]`.
    ///
    /// # Errors
    /// When shapes or dtypes do not match.
    fn linear(&self, args: LinearArgs<'_>) -> Result<()>;

    /// The exact 32-bit products of INT8 rows with INT8 weights per channel, `[M, N]` i32.
    ///
    /// # Errors
    /// When shapes do not match or a sum could overflow.
    fn matmul_i32(
        &self,
        input: &QuantizedRows,
        weights: &Weights,
        out: TensorMut<'_>,
    ) -> Result<()>;

    /// Normalises each segment of `weight.len()` columns of each row.
    ///
    /// # Errors
    /// When shapes do not match.
    fn norm(&self, args: NormArgs<'_>) -> Result<()>;

    /// Rotates each head of each row in place.
    ///
    /// # Errors
    /// When shapes do not match or a position is beyond the table.
    fn rope(&self, args: RopeArgs<'_>) -> Result<()>;

    /// Writes the keys and values of new tokens into their slots.
    ///
    /// # Errors
    /// When shapes do not match or a slot does not exist.
    fn kv_append(&self, args: KvAppendArgs<'_>) -> Result<()>;

    /// Attention of each row over its sequence's cache.
    ///
    /// # Errors
    /// When shapes do not match or a block does not exist.
    fn attention(&self, args: AttentionArgs<'_>) -> Result<()>;

    /// `silu(gate) * up`.
    ///
    /// # Errors
    /// When shapes do not match.
    fn gated(&self, gate: TensorRef<'_>, up: TensorRef<'_>, out: RowsOut<'_>) -> Result<()>;

    /// GELU of each element.
    ///
    /// # Errors
    /// When shapes do not match.
    fn gelu(&self, x: TensorRef<'_>, kind: Gelu, out: TensorMut<'_>) -> Result<()>;

    /// `x += y`.
    ///
    /// # Errors
    /// When shapes do not match.
    fn add(&self, x: TensorMut<'_>, y: TensorRef<'_>) -> Result<()>;

    /// `out = x`, rounded to the type of `out`.
    ///
    /// # Errors
    /// When shapes do not match.
    fn copy(&self, x: TensorRef<'_>, out: TensorMut<'_>) -> Result<()>;

    /// Row `ids[i]` of the table becomes row `i` of `out`.
    ///
    /// # Errors
    /// When shapes do not match or an id is beyond the table.
    fn embedding(&self, table: &Weights, ids: &[u32], out: TensorMut<'_>) -> Result<()>;

    /// The column of the largest value of each row, the lowest column on ties; `u32::MAX` for a row with a
    /// value that is not finite.
    ///
    /// # Errors
    /// When shapes do not match.
    fn argmax(&self, x: TensorRef<'_>, out: &mut [u32]) -> Result<()>;
}

/// The input of a linear layer.
#[derive(Clone, Copy, Debug)]
pub enum LinearInput<'a> {
    /// Float rows, bf16 or f32, `[M, K]`.
    Float(TensorRef<'a>),
    /// Quantised rows.
    Int8(&'a QuantizedRows),
}

impl LinearInput<'_> {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Float(x) => x.rows(),
            Self::Int8(x) => x.rows(),
        }
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        match self {
            Self::Float(x) => x.cols(),
            Self::Int8(x) => x.cols(),
        }
    }
}

/// What a linear layer is given.
#[derive(Debug)]
pub struct LinearArgs<'a> {
    /// `[M, K]`.
    pub input: LinearInput<'a>,
    /// `[N, K]` with bias `[N]`.
    pub weights: &'a Weights,
    /// `[M, N]`, bf16 or f32.
    pub out: TensorMut<'a>,
}

/// Where an op that can be followed by a quantised linear layer puts its rows.
#[derive(Debug)]
pub enum RowsOut<'a> {
    /// Floats.
    Float(TensorMut<'a>),
    /// Rounded to the dtype given, then quantised: what the float form followed by `quantize` gives.
    Int8(&'a mut QuantizedRows),
}

/// The kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `(x - mean) / sqrt(variance + eps) * weight + bias`.
    Layer,
    /// `x / sqrt(mean square + eps) * weight`.
    Rms,
}

/// What a norm is given.
#[derive(Debug)]
pub struct NormArgs<'a> {
    /// `[M, S * L]`: S segments of L columns, each normalised alone.
    pub x: TensorRef<'a>,
    /// f32 `[L]`.
    pub weight: &'a [f32],
    /// f32 `[L]`, for a layer norm that has one.
    pub bias: Option<&'a [f32]>,
    /// Added to the mean square or variance.
    pub eps: f32,
    /// Which norm.
    pub kind: NormKind,
    /// `[M, S * L]`.
    pub out: RowsOut<'a>,
}

/// What rope is given.
#[derive(Debug)]
pub struct RopeArgs<'a> {
    /// `[M, heads * head_size]`, rotated in place.
    pub x: TensorMut<'a>,
    /// Columns of a head; the first `rotary_size` of them are rotated, halves paired.
    pub head_size: usize,
    /// `[axes, M]`: the positions of all rows on the first axis, then on the next.
    pub positions: &'a [u32],
    /// The axis of each pair of elements; none where there is but one axis.
    pub axes: &'a [u8],
    /// Cosines and sines.
    pub table: &'a RopeTable,
}

/// What appending to the cache is given.
#[derive(Debug)]
pub struct KvAppendArgs<'a> {
    /// `[M, kv_heads * head_size]`, after rope.
    pub keys: TensorRef<'a>,
    /// `[M, kv_heads * head_size]`.
    pub values: TensorRef<'a>,
    /// `[M]`: block * `KV_BLOCK` + offset of each token.
    pub slots: &'a [u32],
    /// The layer's cache.
    pub cache: &'a mut KvLayer,
}

/// What a token is to the request it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The request brought it.
    Prompt,
    /// It was sampled, or forced by a grammar.
    Generated,
}

/// Consecutive rows that are consecutive tokens of one sequence in one phase.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRun {
    /// First row.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Place of the first row in its sequence: it sees `first_position + 1` keys.
    pub first_position: usize,
    /// Where the sequence's blocks begin in the table.
    pub first_block: usize,
    /// How many blocks the sequence has.
    pub blocks: usize,
    /// The phase of the rows.
    pub phase: Phase,
}

impl AttentionRun {
    /// The sequence's blocks of the cache, in order: its part of the `table` of all runs.
    ///
    /// # Panics
    /// When the part is not inside the table.
    #[must_use]
    pub fn blocks_in<'a>(&self, table: &'a [u32]) -> &'a [u32] {
        &table[self.first_block..][..self.blocks]
    }
}

/// Which keys of its sequence a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// All keys up to the last of its run: for encoders.
    All,
    /// Those up to its own.
    Causal,
    /// The last so many of those up to its own, itself included.
    Window(usize),
}

impl Sight {
    /// Causal, through a window where there is one.
    #[must_use]
    pub fn causal(window: Option<usize>) -> Self {
        window.map_or(Self::Causal, Self::Window)
    }

    /// The places of the keys that the row at `place` sees, in a run whose last place is `end - 1`.
    #[must_use]
    pub fn keys(self, place: usize, end: usize) -> Range<usize> {
        match self {
            Self::All => 0..end,
            Self::Causal => 0..place + 1,
            Self::Window(window) => (place + 1).saturating_sub(window)..place + 1,
        }
    }
}

/// What attention is given.
#[derive(Debug)]
pub struct AttentionArgs<'a> {
    /// `[M, heads * head_size]`, after rope.
    pub queries: TensorRef<'a>,
    /// The layer's cache, the rows' own keys and values included.
    pub cache: &'a KvLayer,
    /// Which rows are whose. Every row belongs to one run.
    pub runs: &'a [AttentionRun],
    /// The blocks of all runs' sequences.
    pub table: &'a [u32],
    /// Query heads, a multiple of the KV heads.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Which keys a row sees.
    pub sight: Sight,
    /// `[M, heads * head_size]`.
    pub out: TensorMut<'a>,
}

/// The two common forms of GELU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// `x * (1 + erf(x / sqrt 2)) / 2`.
    Erf,
    /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2`.
    Tanh,
}

/// Refuses anything but the two activation dtypes.
pub(crate) fn check_activation(op: &'static str, dtype: DType) -> Result<()> {
    if matches!(dtype, DType::Bf16 | DType::F32) {
        return Ok(());
    }
    Err(crate::error::Error::shape(
        op,
        format!("activations are bf16 or f32, got {dtype}"),
    ))
}
