//! Numbers that look random and are the same in every run, whoever makes them. All are exact in bf16, so that every
//! contender gets the same ones.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

/// Fills row `row` of the matrix called `matrix` with multiples of `step` up to 127 steps from zero.
pub(super) fn fill(matrix: u64, row: usize, step: f32, out: &mut [f32]) {
    let mut state = mix(matrix.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ row as u64);
    for eight in out.chunks_mut(8) {
        state = mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
        for (value, byte) in eight.iter_mut().zip(state.to_le_bytes()) {
            *value = f32::from((byte as i8).max(-127)) * step;
        }
    }
}

/// The same rows in one piece.
pub(super) fn rows(matrix: u64, count: usize, cols: usize, step: f32) -> Vec<f32> {
    let mut values = vec![0.0; count * cols];
    for (row, out) in values.chunks_mut(cols).enumerate() {
        fill(matrix, row, step, out);
    }
    values
}

/// Writes rows as little-endian f32.
pub(super) fn write(
    path: &Path,
    count: usize,
    cols: usize,
    fill: impl Fn(usize, &mut [f32]),
) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut values = vec![0.0; cols];
    for row in 0..count {
        fill(row, &mut values);
        for value in &values {
            file.write_all(&value.to_le_bytes())?;
        }
    }
    file.flush()
}

/// The finaliser of splitmix64.
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_exact_in_bf16_and_differ_by_row_and_matrix() {
        let values = rows(1, 3, 100, 1.0 / 1024.0);
        for &value in &values {
            assert_eq!(cider::bf16::from_f32(value).to_f32(), value);
        }
        assert_ne!(values[..100], values[100..200]);
        assert_ne!(values, rows(2, 3, 100, 1.0 / 1024.0));
        assert_eq!(values, rows(1, 3, 100, 1.0 / 1024.0));
    }
}
