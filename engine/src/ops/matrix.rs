//! A view of a matrix in a plain slice.

use crate::error::{Error, Result};

/// `rows` x `cols` values of a slice, row-major and without gaps.
///
/// ```
/// use cider::ops::Matrix;
///
/// let w = Matrix::new(&[1_i8, 2, 3, 4, 5, 6], 2, 3)?;
/// assert_eq!((w.rows(), w.cols(), w.row(1)), (2, 3, &[4, 5, 6][..]));
/// let error = Matrix::new(&[1.0, 2.0], 2, 3).unwrap_err();
/// assert_eq!(error.to_string(), "matrix: values: expected 6, got 2");
/// # Ok::<(), cider::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A view of `data`.
    ///
    /// # Errors
    /// When `data` does not have `rows * cols` values.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Result<Self> {
        Error::expect_size("matrix", "values", rows.saturating_mul(cols), data.len())?;
        Ok(Self { data, rows, cols })
    }

    /// All values, row after row.
    #[must_use]
    pub fn data(&self) -> &'a [T] {
        self.data
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

    /// One row.
    ///
    /// # Panics
    /// When there is no such row.
    #[must_use]
    pub fn row(&self, row: usize) -> &'a [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.data[row * self.cols..][..self.cols]
    }
}
