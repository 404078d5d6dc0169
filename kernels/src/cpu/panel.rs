//! Float rows as panels (`crate::panels`) of the elements that a product wants.

use half::bf16;

use super::rows::load_row;
use super::simd::{Kernel, LANES, Simd};
use crate::panels::Panels;
use crate::rows::UNIT;
use crate::tensor::TensorRef;

/// Lays the rows of some panels out in `out`.
pub(super) struct Pack<'a> {
    pub(super) x: TensorRef<'a>,
    pub(super) panels: Panels,
    /// The panels wanted.
    pub(super) wanted: std::ops::Range<usize>,
    /// Units of a row; columns beyond the input's count as zeros.
    pub(super) units: usize,
    /// As pairs of bf16, else as f32.
    pub(super) bf16: bool,
    /// A row in f32, padded to whole vectors, and then the panels.
    pub(super) row: &'a mut [f32],
    pub(super) out: &'a mut [u32],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let origin = self.wanted.start * self.panels.each * self.units;
        let first = self.wanted.start * self.panels.each;
        let end = (self.wanted.end * self.panels.each).min(self.panels.rows);
        for row in first..end {
            let (place, step) = self.panels.place(row, self.units);
            let out = &mut self.out[place - origin..];
            if self.bf16 {
                let Ok(from) = self.x.row::<bf16>(row) else {
                    return;
                };
                put_pairs(bytemuck::cast_slice(from), out, step, self.units);
            } else {
                load_row(s, self.x, row, self.row);
                put_floats(&self.row[..self.x.cols()], out, step, self.units);
            }
        }
    }
}

fn put_pairs(from: &[u16], out: &mut [u32], step: usize, units: usize) {
    let pairs = from.chunks_exact(2);
    let last = pairs.remainder().first().map(|&low| u32::from(low));
    let values = pairs.map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16);
    put(values.chain(last), out, step, units);
}

fn put_floats(from: &[f32], out: &mut [u32], step: usize, units: usize) {
    put(from.iter().map(|value| value.to_bits()), out, step, units);
}

#[inline(always)]
fn put(values: impl Iterator<Item = u32>, out: &mut [u32], step: usize, units: usize) {
    let values = values.chain(std::iter::repeat(0)).take(units);
    for (out, value) in out.iter_mut().step_by(step).zip(values) {
        *out = value;
    }
}

/// Units of a row of `cols` floats, padded to whole steps of any product.
pub(super) fn units(cols: usize, bf16: bool) -> usize {
    let padded = cols.next_multiple_of(LANES);
    if bf16 { padded * 2 / UNIT } else { padded }
}
