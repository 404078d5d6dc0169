//! Row-major matrices and views of their rows and columns.

use std::ops::Range;

use crate::buffer::Buffer;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};

/// A matrix that owns its memory: `rows` x `cols`, contiguous.
#[derive(Debug)]
pub struct Tensor {
    buffer: Buffer,
    dtype: DType,
    rows: usize,
    cols: usize,
}

impl Tensor {
    /// A zeroed matrix in host memory.
    ///
    /// # Errors
    /// When the size overflows or the allocator refuses.
    pub fn zeros(dtype: DType, rows: usize, cols: usize) -> Result<Self> {
        let bytes = rows
            .checked_mul(cols)
            .and_then(|n| n.checked_mul(dtype.size()))
            .ok_or_else(|| {
                Error::shape("allocate", format!("{rows} x {cols} {dtype} overflows"))
            })?;
        Ok(Self {
            buffer: Buffer::host(bytes)?,
            dtype,
            rows,
            cols,
        })
    }

    /// A matrix with a copy of `data` (row-major).
    ///
    /// # Errors
    /// When `data` does not have `rows * cols` elements.
    pub fn from_slice<T: Element>(data: &[T], rows: usize, cols: usize) -> Result<Self> {
        let mut tensor = Self::zeros(T::DTYPE, rows, cols)?;
        if data.len() != rows * cols {
            return Err(Error::shape(
                "tensor",
                format!(
                    "{rows} x {cols} needs {} elements, got {}",
                    rows * cols,
                    data.len()
                ),
            ));
        }
        tensor.buffer.as_mut_slice().copy_from_slice(data);
        Ok(tensor)
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes it occupies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// All elements.
    ///
    /// # Errors
    /// When `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        same_dtype(T::DTYPE, self.dtype)?;
        Ok(self.buffer.as_slice())
    }

    /// All elements, to write.
    ///
    /// # Errors
    /// When `T` is not the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        same_dtype(T::DTYPE, self.dtype)?;
        Ok(self.buffer.as_mut_slice())
    }

    /// A view of everything.
    #[must_use]
    pub fn view(&self) -> TensorRef<'_> {
        TensorRef {
            buffer: &self.buffer,
            dtype: self.dtype,
            offset: 0,
            rows: self.rows,
            cols: self.cols,
            stride: self.cols,
        }
    }

    /// A view of everything, to write.
    #[must_use]
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        TensorMut {
            dtype: self.dtype,
            offset: 0,
            rows: self.rows,
            cols: self.cols,
            stride: self.cols,
            buffer: &mut self.buffer,
        }
    }
}

/// A view of rows and columns of a matrix; rows are `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    buffer: &'a Buffer,
    dtype: DType,
    offset: usize,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> TensorRef<'a> {
    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements between the starts of two rows.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The same elements as rows of `cols` columns; rows must follow each other without gaps.
    ///
    /// # Errors
    /// When they do not, or `cols` does not divide the elements.
    pub fn reshape(self, cols: usize) -> Result<Self> {
        let elements = self.rows * self.cols;
        if self.stride != self.cols || cols == 0 || !elements.is_multiple_of(cols) {
            let shape = format!("{} x {} with stride {}", self.rows, self.cols, self.stride);
            return Err(Error::shape(
                "reshape",
                format!("{shape} as rows of {cols}"),
            ));
        }
        Ok(Self {
            rows: elements / cols,
            cols,
            stride: cols,
            ..self
        })
    }

    /// The rows in `range`.
    ///
    /// # Panics
    /// When the range is not inside the view.
    #[must_use]
    pub fn row_range(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.rows,
            "rows {range:?} of {}",
            self.rows
        );
        Self {
            offset: self.offset + range.start * self.stride,
            rows: range.len(),
            ..self
        }
    }

    /// The columns in `range`.
    ///
    /// # Panics
    /// When the range is not inside the view.
    #[must_use]
    pub fn col_range(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.cols,
            "cols {range:?} of {}",
            self.cols
        );
        Self {
            offset: self.offset + range.start,
            cols: range.len(),
            ..self
        }
    }

    /// One row of host memory.
    ///
    /// # Errors
    /// When `T` is not the element type.
    ///
    /// # Panics
    /// When `row` is not a row of the view.
    pub fn row<T: Element>(&self, row: usize) -> Result<&'a [T]> {
        same_dtype(T::DTYPE, self.dtype)?;
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let start = self.offset + row * self.stride;
        Ok(&self.buffer.as_slice()[start..start + self.cols])
    }
}

/// A view of rows and columns of a matrix, to write.
#[derive(Debug)]
pub struct TensorMut<'a> {
    buffer: &'a mut Buffer,
    dtype: DType,
    offset: usize,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl TensorMut<'_> {
    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements between the starts of two rows.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The same view, to read.
    #[must_use]
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef {
            buffer: self.buffer,
            dtype: self.dtype,
            offset: self.offset,
            rows: self.rows,
            cols: self.cols,
            stride: self.stride,
        }
    }

    /// The same view, borrowed for a shorter time.
    #[must_use]
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut {
            buffer: self.buffer,
            dtype: self.dtype,
            offset: self.offset,
            rows: self.rows,
            cols: self.cols,
            stride: self.stride,
        }
    }

    /// The rows in `range`.
    ///
    /// # Panics
    /// When the range is not inside the view.
    #[must_use]
    pub fn row_range(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.rows,
            "rows {range:?} of {}",
            self.rows
        );
        Self {
            offset: self.offset + range.start * self.stride,
            rows: range.len(),
            ..self
        }
    }

    /// The columns in `range`.
    ///
    /// # Panics
    /// When the range is not inside the view.
    #[must_use]
    pub fn col_range(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.cols,
            "cols {range:?} of {}",
            self.cols
        );
        Self {
            offset: self.offset + range.start,
            cols: range.len(),
            ..self
        }
    }

    /// One row of host memory, to write.
    ///
    /// # Errors
    /// When `T` is not the element type.
    ///
    /// # Panics
    /// When `row` is not a row of the view.
    pub fn row_mut<T: Element>(&mut self, row: usize) -> Result<&mut [T]> {
        same_dtype(T::DTYPE, self.dtype)?;
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let start = self.offset + row * self.stride;
        Ok(&mut self.buffer.as_mut_slice()[start..start + self.cols])
    }

    /// The elements from the first of the view to the last, gaps between rows included.
    pub(crate) fn span_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        same_dtype(T::DTYPE, self.dtype)?;
        let range = span(self.offset, self.rows, self.cols, self.stride);
        Ok(&mut self.buffer.as_mut_slice()[range])
    }
}

fn span(offset: usize, rows: usize, cols: usize, stride: usize) -> Range<usize> {
    let len = if rows == 0 || cols == 0 {
        0
    } else {
        (rows - 1) * stride + cols
    };
    offset..offset + len
}

fn same_dtype(wanted: DType, found: DType) -> Result<()> {
    if wanted == found {
        return Ok(());
    }
    Err(Error::shape(
        "tensor",
        format!("elements are {found}, read as {wanted}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_select_rows_and_columns() {
        let data: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let mut tensor = Tensor::from_slice(&data, 3, 4).unwrap();
        let view = tensor.view().row_range(1..3).col_range(1..3);
        assert_eq!(view.row::<f32>(0).unwrap(), [5.0, 6.0]);
        assert_eq!(view.row::<f32>(1).unwrap(), [9.0, 10.0]);
        let mut out = tensor.view_mut().row_range(2..3).col_range(3..4);
        out.row_mut::<f32>(0).unwrap()[0] = -1.0;
        assert_eq!(tensor.as_slice::<f32>().unwrap()[11], -1.0);
    }

    #[test]
    fn a_wrong_type_is_an_error() {
        let tensor = Tensor::zeros(DType::Bf16, 1, 2).unwrap();
        assert!(tensor.as_slice::<f32>().is_err());
    }
}
