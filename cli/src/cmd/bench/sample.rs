//! Which elements of a large answer are computed a second time, plainly.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use cider::files;

/// Rows and columns whose crossings are looked at.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) rows: Vec<usize>,
    pub(super) cols: Vec<usize>,
}

impl Sample {
    pub(super) fn new(rows: usize, cols: usize) -> Self {
        Self {
            rows: pick(rows, 12),
            cols: pick(cols, 96),
        }
    }

    /// Calls `value` for each crossing, row by row.
    pub(super) fn map<E>(
        &self,
        mut value: impl FnMut(usize, usize) -> Result<f64, E>,
    ) -> Result<Vec<f64>, E> {
        let crossings = self
            .rows
            .iter()
            .flat_map(|&row| self.cols.iter().map(move |&col| (row, col)));
        crossings.map(|(row, col)| value(row, col)).collect()
    }

    /// Its elements of a file of little-endian f32 with rows of `cols` columns, which must have `rows` rows.
    pub(super) fn read(&self, path: &Path, [rows, cols]: [usize; 2]) -> io::Result<Vec<f64>> {
        let mut file = files::open(path)?;
        let (expected, found) = (4 * (rows * cols) as u64, file.metadata()?.len());
        if expected != found {
            let what = format!("expected {expected} bytes, got {found}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let mut row_bytes = vec![0; 4 * cols];
        let mut values = Vec::new();
        for &row in &self.rows {
            file.seek(SeekFrom::Start(4 * (row * cols) as u64))?;
            file.read_exact(&mut row_bytes)?;
            let (floats, _) = row_bytes.as_chunks::<4>();
            values.extend(
                self.cols
                    .iter()
                    .map(|&col| f64::from(f32::from_le_bytes(floats[col]))),
            );
        }
        Ok(values)
    }
}

/// The largest distance from what is expected, as a part of the largest expected magnitude; infinite where something
/// is not finite or missing.
pub(super) fn relative_error(got: &[f64], expected: &[f64]) -> f64 {
    let largest = expected
        .iter()
        .fold(0.0, |largest: f64, x| largest.max(x.abs()));
    let differences = got.iter().zip(expected).map(|(a, b)| (a - b).abs());
    if got.len() != expected.len() || got.iter().any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    differences.fold(0.0, f64::max) / largest.max(f64::MIN_POSITIVE)
}

/// At most `most` of `count` places: as many of the first, of the last, and spread over all, in order.
fn pick(count: usize, most: usize) -> Vec<usize> {
    let third = most.div_ceil(3);
    let mut places: Vec<usize> = (0..count.min(third))
        .chain(count.saturating_sub(third)..count)
        .chain((0..third).map(|i| i * count / third))
        .collect();
    places.sort_unstable();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_the_edges_and_some_between() {
        assert_eq!(pick(2, 12), [0, 1]);
        assert_eq!(pick(5, 12), [0, 1, 2, 3, 4]);
        let places = pick(1000, 12);
        assert_eq!(places, [0, 1, 2, 3, 250, 500, 750, 996, 997, 998, 999]);
    }

    #[test]
    fn errors_are_parts_of_the_largest_value() {
        assert_eq!(relative_error(&[1.0, -3.0], &[1.0, -4.0]), 0.25);
        assert_eq!(relative_error(&[f64::NAN, 1.0], &[0.0, 1.0]), f64::INFINITY);
        assert_eq!(relative_error(&[1.0], &[1.0, 1.0]), f64::INFINITY);
    }

    #[test]
    fn elements_of_a_file() {
        let path = std::env::temp_dir().join(format!("cider-sample-{}", std::process::id()));
        let bytes: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        std::fs::write(&path, bytes).unwrap();
        let sample = Sample {
            rows: vec![1],
            cols: vec![0, 2],
        };
        let read = sample.read(&path, [2, 3]);
        let refused = sample.read(&path, [3, 3]).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), [3.0, 5.0]);
        assert_eq!(refused, "expected 36 bytes, got 24");
    }
}
