//! Activations quantised per token.

use crate::buffer::Buffer;
use crate::error::{Error, Result};

/// Up to `capacity` rows of `cols` INT8 activations, each with one f32 scale. The bytes are laid out as the
/// backend that writes them likes; [`QuantizedRows::row`] gives the values back.
#[derive(Debug)]
pub struct QuantizedRows {
    /// Bytes, `stride` per row; value `q` is stored as `q ^ bias` seen as bytes.
    pub(crate) data: Buffer,
    /// f32, one per row.
    pub(crate) scales: Buffer,
    /// 0x80 where the backend keeps `q + 128`, else 0.
    pub(crate) bias: u8,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    pub(crate) capacity: usize,
    pub(crate) rows: usize,
    /// The largest magnitude there can be: 127, or 128 where integers were given and one is -128.
    pub(crate) largest: i64,
}

impl QuantizedRows {
    /// Room for `capacity` rows of at most `cols` values.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(crate) fn new(capacity: usize, cols: usize, bias: u8) -> Result<Self> {
        let stride = cols.next_multiple_of(ROW_ALIGN);
        let bytes = capacity
            .checked_mul(stride)
            .ok_or_else(|| Error::shape("quantize", format!("{capacity} x {cols} overflows")))?;
        Ok(Self {
            data: Buffer::host(bytes)?,
            scales: Buffer::host(capacity * 4)?,
            bias,
            cols,
            stride,
            capacity,
            rows: 0,
            largest: 127,
        })
    }

    /// Takes over rows that are integers already: one row of `cols` values for each of `scales`, in row order.
    /// Unlike rows that were quantised here they may have a -128, which lowers the limit of K.
    ///
    /// # Errors
    /// When they do not fit the room there is, or `values` are not `scales.len() * cols`.
    pub fn set(&mut self, cols: usize, values: &[i8], scales: &[f32]) -> Result<()> {
        let expected = scales.len().checked_mul(cols);
        if expected != Some(values.len()) {
            let what = format!("{} values for {} x {cols}", values.len(), scales.len());
            return Err(Error::shape("quantize", what));
        }
        self.start(scales.len(), cols)?;
        if values.contains(&i8::MIN) {
            self.largest = 128;
        }
        self.scales.as_mut_slice::<f32>()[..scales.len()].copy_from_slice(scales);
        let (bias, stride) = (self.bias, self.stride);
        let bytes = self.data.as_mut_slice::<u8>();
        if cols > 0 {
            for (out, row) in bytes.chunks_mut(stride).zip(values.chunks(cols)) {
                // What is beyond the columns counts as zero too.
                out.fill(bias);
                for (byte, &q) in out.iter_mut().zip(row) {
                    *byte = q as u8 ^ bias;
                }
            }
        }
        Ok(())
    }

    /// Rows written last.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The scale of a row: value = q * scale; NaN where the row was not finite.
    ///
    /// # Panics
    /// When `row` was not written.
    #[must_use]
    pub fn scale(&self, row: usize) -> f32 {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        self.scales.as_slice::<f32>()[row]
    }

    /// The quantised values of a row.
    ///
    /// # Panics
    /// When `row` was not written.
    #[must_use]
    pub fn row(&self, row: usize) -> Vec<i8> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let bytes = &self.data.as_slice::<u8>()[row * self.stride..][..self.cols];
        bytes.iter().map(|&byte| (byte ^ self.bias) as i8).collect()
    }

    /// Prepares for `rows` rows of `cols` values, which must fit the room there is.
    pub(crate) fn start(&mut self, rows: usize, cols: usize) -> Result<()> {
        let stride = cols.next_multiple_of(ROW_ALIGN);
        if rows > self.capacity || rows * stride > self.data.len() {
            return Err(Error::shape(
                "quantize",
                format!(
                    "{rows} x {cols} does not fit {} x {}",
                    self.capacity, self.stride
                ),
            ));
        }
        (self.rows, self.cols, self.stride) = (rows, cols, stride);
        self.largest = 127;
        Ok(())
    }
}

/// Rows start at cache lines.
const ROW_ALIGN: usize = 64;
