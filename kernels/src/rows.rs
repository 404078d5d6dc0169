//! Activations quantised per token.

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::panels::Panels;

/// Up to `capacity` rows of `cols` INT8 activations, each with one f32 scale. The bytes are laid out as the
/// backend that writes them likes; [`QuantizedRows::row`] gives the values back.
#[derive(Debug)]
pub struct QuantizedRows {
    /// Bytes, `stride` per row, interleaved as `panels` says; value `q` is stored as `q ^ bias` seen as bytes.
    pub(crate) data: Buffer,
    /// f32, one per row.
    pub(crate) scales: Buffer,
    /// 0x80 where the backend keeps `q + 128`, else 0.
    pub(crate) bias: u8,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    pub(crate) capacity: usize,
    pub(crate) panels: Panels,
    /// The most rows of a panel that the backend likes.
    pub(crate) panel_rows: usize,
    /// The largest magnitude there can be: 127, or 128 where integers were given and one is -128.
    pub(crate) largest: i64,
}

impl QuantizedRows {
    /// Room for `capacity` rows of at most `cols` values.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(crate) fn new(capacity: usize, cols: usize, layout: RowLayout) -> Result<Self> {
        let stride = cols.next_multiple_of(ROW_ALIGN);
        // A panel of an odd number of rows is stored with one more.
        let bytes = capacity
            .checked_add(1)
            .and_then(|rows| rows.checked_mul(stride))
            .ok_or_else(|| Error::shape("quantize", format!("{capacity} x {cols} overflows")))?;
        Ok(Self {
            data: Buffer::host(bytes)?,
            scales: Buffer::host(capacity * 4)?,
            bias: layout.bias,
            cols,
            stride,
            capacity,
            panels: Panels::plain(0),
            panel_rows: layout.panel_rows,
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
        let (panels, bias, units) = (self.panels, self.bias, self.stride / UNIT);
        let bytes = self.data.as_mut_slice::<u8>();
        for (row, _) in scales.iter().enumerate() {
            let (first, step) = panels.place(row, units);
            let quads = values[row * cols..][..cols].chunks(UNIT);
            // What is beyond the columns counts as zero too.
            let quads = quads.chain(std::iter::repeat(&[][..])).take(units);
            for (unit, quad) in quads.enumerate() {
                let out = &mut bytes[(first + unit * step) * UNIT..][..UNIT];
                out.fill(bias);
                for (byte, &q) in out.iter_mut().zip(quad) {
                    *byte = q as u8 ^ bias;
                }
            }
        }
        Ok(())
    }

    /// Rows written last.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.panels.rows
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
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        self.scales.as_slice::<f32>()[row]
    }

    /// The quantised values of a row.
    ///
    /// # Panics
    /// When `row` was not written.
    #[must_use]
    pub fn row(&self, row: usize) -> Vec<i8> {
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        let (first, step) = self.panels.place(row, self.stride / UNIT);
        let bytes = self.data.as_slice::<u8>();
        let at = |k: usize| bytes[(first + k / UNIT * step) * UNIT + k % UNIT];
        (0..self.cols).map(|k| (at(k) ^ self.bias) as i8).collect()
    }

    /// Prepares for `rows` rows of `cols` values, which must fit the room there is.
    pub(crate) fn start(&mut self, rows: usize, cols: usize) -> Result<()> {
        let stride = cols.next_multiple_of(ROW_ALIGN);
        let panels = Panels::new(rows, self.panel_rows);
        if rows > self.capacity || panels.stored_rows() * stride > self.data.len() {
            return Err(Error::shape(
                "quantize",
                format!(
                    "{rows} x {cols} does not fit {} x {}",
                    self.capacity, self.stride
                ),
            ));
        }
        (self.panels, self.cols, self.stride) = (panels, cols, stride);
        self.largest = 127;
        Ok(())
    }
}

/// How a backend likes rows to be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowLayout {
    /// What values are combined with (exclusive or).
    pub(crate) bias: u8,
    /// The most rows of a panel.
    pub(crate) panel_rows: usize,
}

/// Bytes of a unit of a panel.
pub(crate) const UNIT: usize = 4;

/// Rows take whole cache lines.
const ROW_ALIGN: usize = 64;
