//! The weights of a linear layer in a backend's tile layout, and where their rows come from.

use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::quant::Format;

/// Weights of a linear layer, `n` output rows of `k` input columns, in the tile layout of the backend that
/// made them; with one f32 bias per row where there is one.
#[derive(Debug)]
pub struct Weights {
    pub(crate) format: Format,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Tiles of weights.
    pub(crate) data: Buffer,
    /// f32, one for each group of each row, in the backend's order; empty for dense weights.
    pub(crate) scales: Buffer,
    /// i32 in the same order: sums over the group's columns of the integer weights.
    pub(crate) sums: Buffer,
    /// f32 `[n padded]`, zero where there is no bias.
    pub(crate) bias: Buffer,
    /// Whether a -128 was written: its bound on K is tighter.
    pub(crate) has_minus_128: bool,
}

impl Weights {
    /// How they are stored.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Output features.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of everything that is kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.data.len() + self.scales.len() + self.sums.len() + self.bias.len()
    }

    /// Takes over the biases of weights of the same number of rows in the same backend's layout.
    ///
    /// # Errors
    /// When the rows differ.
    pub fn copy_bias(&mut self, from: &Self) -> Result<()> {
        if self.n != from.n || self.bias.len() != from.bias.len() {
            let what = format!("biases of {} rows for {} rows", from.n, self.n);
            return Err(Error::shape("weights", what));
        }
        let bias = from.bias.as_slice::<f32>();
        self.bias.as_mut_slice::<f32>().copy_from_slice(bias);
        Ok(())
    }

    /// Refuses a row that does not exist.
    pub(crate) fn check_rows(&self, first: usize, count: usize) -> Result<()> {
        if first.checked_add(count).is_some_and(|end| end <= self.n) {
            return Ok(());
        }
        Err(Error::shape(
            "weights",
            format!("rows {first} + {count} of {}", self.n),
        ))
    }
}

/// Reads row `.0` of a float matrix into `.1` (`k` values).
pub type ReadFloats<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

/// Reads row `.0` of an integer matrix into `.1` (`k` values) and its scales into `.2` (one per group).
pub type ReadIntegers<'a> = &'a (dyn Fn(usize, &mut [i8], &mut [f32]) + Sync);

/// The bytes of row `.0` of a float matrix, as they are stored: little-endian, at any address.
pub type StoredRows<'a> = &'a (dyn Fn(usize) -> &'a [u8] + Sync);

/// Where rows of weights come from. Rows are asked for one at a time, from several threads at once.
#[derive(Clone, Copy)]
pub enum RowSource<'a> {
    /// Float rows; quantised on the way in where the format is an integer one.
    Floats {
        /// Reads one row.
        read: ReadFloats<'a>,
        /// The percentile (0..=100) of the magnitudes that replaces the maximum, if any.
        clip_percentile: Option<f64>,
    },
    /// Rows that are integers already, with their scales.
    Integers {
        /// Reads one row.
        read: ReadIntegers<'a>,
    },
    /// Float rows where they lie, in a mapped file for instance; otherwise as [`RowSource::Floats`].
    Stored {
        /// The type of their elements.
        dtype: DType,
        /// One row.
        rows: StoredRows<'a>,
        /// As for [`RowSource::Floats`].
        clip_percentile: Option<f64>,
    },
}

impl RowSource<'_> {
    /// The percentile of the magnitudes that replaces the maximum, if any.
    pub(crate) fn clip_percentile(self) -> Option<f64> {
        match self {
            Self::Floats {
                clip_percentile, ..
            }
            | Self::Stored {
                clip_percentile, ..
            } => clip_percentile,
            Self::Integers { .. } => None,
        }
    }
}
