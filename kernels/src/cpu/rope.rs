//! Rotary positions, in place.

use super::CpuBackend;
use super::rows::OutRows;
use super::simd::{Kernel, LANES, Simd, negate};
use crate::backend::RopeArgs;
use crate::check::check_rope;
use crate::error::Result;

/// Rotates each head of each row.
pub(super) fn rope(backend: &CpuBackend, mut args: RopeArgs<'_>) -> Result<()> {
    check_rope(&args)?;
    let (rows, cols, head_size) = (args.x.rows(), args.x.cols(), args.head_size);
    let padded_cols = cols.next_multiple_of(LANES);
    let padded = (args.table.rotary_size() / 2).next_multiple_of(LANES);
    let angles = Angles {
        cos: args.table.cos().as_slice()?,
        sin: args.table.sin().as_slice()?,
        pairs: args.table.rotary_size() / 2,
        positions: args.positions,
        axes: args.axes,
        rows,
    };
    let out = OutRows::new(&mut args.x)?;
    backend.each_row(
        (rows, 1),
        cols,
        padded_cols + 4 * padded,
        |level, row, floats| {
            let (values, work) = floats.split_at_mut(padded_cols);
            let (out, angles) = (&out, &angles);
            level.run(Rotate {
                out,
                row,
                head_size,
                angles,
                values,
                cols,
                work,
            });
        },
    );
    Ok(())
}

/// Where the cosines and sines of a row are.
struct Angles<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
    pairs: usize,
    /// `[axes, rows]`.
    positions: &'a [u32],
    /// The axis of each pair; none where there is but one.
    axes: &'a [u8],
    rows: usize,
}

impl Angles<'_> {
    /// The row's cosines and sines, each pair's at its own axis' position.
    fn load(&self, row: usize, cos: &mut [f32], sin: &mut [f32]) {
        if self.axes.is_empty() {
            let start = self.positions[row] as usize * self.pairs;
            cos[..self.pairs].copy_from_slice(&self.cos[start..start + self.pairs]);
            sin[..self.pairs].copy_from_slice(&self.sin[start..start + self.pairs]);
            return;
        }
        for (pair, &axis) in self.axes.iter().enumerate() {
            let position = self.positions[usize::from(axis) * self.rows + row] as usize;
            cos[pair] = self.cos[position * self.pairs + pair];
            sin[pair] = self.sin[position * self.pairs + pair];
        }
    }
}

struct Rotate<'a> {
    out: &'a OutRows<'a>,
    row: usize,
    head_size: usize,
    angles: &'a Angles<'a>,
    values: &'a mut [f32],
    cols: usize,
    /// Four padded vectors of pairs: cosines, sines, first halves, second halves.
    work: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let pairs = self.angles.pairs;
        let padded = pairs.next_multiple_of(LANES);
        let (cos, rest) = self.work.split_at_mut(padded);
        let (sin, rest) = rest.split_at_mut(padded);
        let (first, second) = rest.split_at_mut(padded);
        self.angles.load(self.row, cos, sin);
        self.out.get_row(s, self.row, self.values);
        for head in self.values[..self.cols].chunks_exact_mut(self.head_size) {
            if pairs == padded {
                let (first, second) = head.split_at_mut(pairs);
                turn(s, (first, &mut second[..pairs]), (cos, sin));
                continue;
            }
            first[..pairs].copy_from_slice(&head[..pairs]);
            second[..pairs].copy_from_slice(&head[pairs..2 * pairs]);
            turn(s, (first, second), (cos, sin));
            head[..pairs].copy_from_slice(&first[..pairs]);
            head[pairs..2 * pairs].copy_from_slice(&second[..pairs]);
        }
        self.out.put_row(s, self.row, self.values);
    }
}

/// Turns pairs, whose halves and whose cosines and sines are whole vectors.
#[inline(always)]
fn turn<S: Simd>(s: S, (first, second): (&mut [f32], &mut [f32]), (cos, sin): (&[f32], &[f32])) {
    let halves = first
        .chunks_exact_mut(LANES)
        .zip(second.chunks_exact_mut(LANES));
    let angles = cos.chunks_exact(LANES).zip(sin.chunks_exact(LANES));
    for ((first, second), (cos, sin)) in halves.zip(angles) {
        // SAFETY: the chunks have sixteen elements.
        unsafe {
            let (a, b) = (s.load(first.as_ptr()), s.load(second.as_ptr()));
            let (c, d) = (s.load(cos.as_ptr()), s.load(sin.as_ptr()));
            let negative = negate(s, s.mul(b, d));
            s.store(first.as_mut_ptr(), s.fma(a, c, negative));
            s.store(second.as_mut_ptr(), s.fma(b, c, s.mul(a, d)));
        }
    }
}
