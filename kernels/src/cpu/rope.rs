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
    let (rows, cols) = (args.x.rows(), args.x.cols());
    let pairs = args.table.rotary_size() / 2;
    let (cos, sin) = (
        args.table.cos().as_slice::<f32>()?,
        args.table.sin().as_slice::<f32>()?,
    );
    let (positions, head_size) = (args.positions, args.head_size);
    let out = OutRows::new(&mut args.x)?;
    let padded = pairs.next_multiple_of(LANES);
    backend.each_row(
        rows,
        cols,
        cols.next_multiple_of(LANES) + 4 * padded,
        |level, row, floats| {
            let start = positions[row] as usize * pairs;
            let (values, work) = floats.split_at_mut(cols.next_multiple_of(LANES));
            level.run(Rotate {
                out: &out,
                row,
                head_size,
                cos: &cos[start..start + pairs],
                sin: &sin[start..start + pairs],
                values: &mut values[..],
                cols,
                work,
            });
        },
    );
    Ok(())
}

struct Rotate<'a> {
    out: &'a OutRows<'a>,
    row: usize,
    head_size: usize,
    cos: &'a [f32],
    sin: &'a [f32],
    values: &'a mut [f32],
    cols: usize,
    /// Four padded vectors of pairs: cosines, sines, first halves, second halves.
    work: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let pairs = self.cos.len();
        let padded = pairs.next_multiple_of(LANES);
        let (cos, rest) = self.work.split_at_mut(padded);
        let (sin, rest) = rest.split_at_mut(padded);
        let (first, second) = rest.split_at_mut(padded);
        cos[..pairs].copy_from_slice(self.cos);
        sin[..pairs].copy_from_slice(self.sin);
        self.out.get_row(s, self.row, self.values);
        for head in self.values[..self.cols].chunks_exact_mut(self.head_size) {
            first[..pairs].copy_from_slice(&head[..pairs]);
            second[..pairs].copy_from_slice(&head[pairs..2 * pairs]);
            for at in (0..padded).step_by(LANES) {
                // SAFETY: the vectors are padded to whole lanes.
                unsafe {
                    let (a, b) = (
                        s.load(first.as_ptr().add(at)),
                        s.load(second.as_ptr().add(at)),
                    );
                    let (c, d) = (s.load(cos.as_ptr().add(at)), s.load(sin.as_ptr().add(at)));
                    let negative = negate(s, s.mul(b, d));
                    s.store(first.as_mut_ptr().add(at), s.fma(a, c, negative));
                    s.store(second.as_mut_ptr().add(at), s.fma(b, c, s.mul(a, d)));
                }
            }
            head[..pairs].copy_from_slice(&first[..pairs]);
            head[pairs..2 * pairs].copy_from_slice(&second[..pairs]);
        }
        self.out.put_row(s, self.row, self.values);
    }
}
