//! Ops that look at one element, or one row of a table, at a time.

use super::rows::{Out, OutRows, load_row};
use super::simd::{Kernel, LANES, Simd, exp, negate, silu};
use super::{CpuBackend, pack};
use crate::backend::{Gelu, RowsOut};
use crate::check::{check_add, check_argmax, check_copy, check_embedding, check_gated, check_gelu};
use crate::error::Result;
use crate::reference::elementwise::{ERF_POLYNOMIAL, GELU_CUBIC, GELU_TANH};
use crate::tensor::{TensorMut, TensorRef};
use crate::weights::Weights;

/// `silu(gate) * up`.
pub(super) fn gated(
    backend: &CpuBackend,
    gate: TensorRef<'_>,
    up: TensorRef<'_>,
    mut out: RowsOut<'_>,
) -> Result<()> {
    check_gated(gate, up, &out)?;
    let out = Out::new(backend, &mut out, gate.rows(), gate.cols())?;
    let padded = gate.cols().next_multiple_of(LANES);
    backend.each_row(
        (gate.rows(), out.together()),
        gate.cols(),
        2 * padded,
        |level, row, floats| {
            let (a, b) = floats.split_at_mut(padded);
            level.run(Gated {
                gate,
                up,
                row,
                out: &out,
                a,
                b,
            });
        },
    );
    Ok(())
}

struct Gated<'a> {
    gate: TensorRef<'a>,
    up: TensorRef<'a>,
    row: usize,
    out: &'a Out<'a>,
    a: &'a mut [f32],
    b: &'a mut [f32],
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        load_row(s, self.gate, self.row, self.a);
        load_row(s, self.up, self.row, self.b);
        for (a, b) in self
            .a
            .chunks_exact_mut(LANES)
            .zip(self.b.chunks_exact(LANES))
        {
            // SAFETY: both chunks have sixteen elements.
            unsafe {
                let y = s.mul(silu(s, s.load(a.as_ptr())), s.load(b.as_ptr()));
                s.store(a.as_mut_ptr(), y);
            }
        }
        self.out.put_row(s, self.gate.dtype(), self.row, self.a);
    }
}

/// GELU of each element.
pub(super) fn gelu(
    backend: &CpuBackend,
    x: TensorRef<'_>,
    kind: Gelu,
    mut out: TensorMut<'_>,
) -> Result<()> {
    check_gelu(x, &out)?;
    let out = OutRows::new(&mut out)?;
    backend.each_row(
        (x.rows(), 1),
        x.cols(),
        x.cols().next_multiple_of(LANES),
        |level, row, floats| {
            level.run(GeluRow {
                x,
                kind,
                row,
                out: &out,
                floats,
            });
        },
    );
    Ok(())
}

struct GeluRow<'a> {
    x: TensorRef<'a>,
    kind: Gelu,
    row: usize,
    out: &'a OutRows<'a>,
    floats: &'a mut [f32],
}

impl Kernel for GeluRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        load_row(s, self.x, self.row, self.floats);
        for chunk in self.floats.chunks_exact_mut(LANES) {
            // SAFETY: the chunk has sixteen elements.
            unsafe {
                let x = s.load(chunk.as_ptr());
                let y = match self.kind {
                    Gelu::Erf => gelu_erf(s, x),
                    Gelu::Tanh => gelu_tanh(s, x),
                };
                s.store(chunk.as_mut_ptr(), y);
            }
        }
        self.out.put_row(s, self.row, self.floats);
    }
}

#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let cube = s.mul(s.mul(x, x), x);
    let t = s.fma(cube, s.splat(GELU_CUBIC), x);
    let u = s.mul(t, s.splat(GELU_TANH));
    s.div(x, s.add(s.splat(1.0), exp(s, negate(s, u))))
}

#[inline(always)]
fn gelu_erf<S: Simd>(s: S, x: S::F) -> S::F {
    let z = s.mul(s.abs(x), s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let t = s.div(s.splat(1.0), s.fma(z, s.splat(0.5), s.splat(1.0)));
    let mut polynomial = s.splat(ERF_POLYNOMIAL[0]);
    for &coefficient in &ERF_POLYNOMIAL[1..] {
        polynomial = s.fma(polynomial, t, s.splat(coefficient));
    }
    let negative = negate(s, z);
    let tail = s.mul(
        s.splat(0.5),
        s.mul(t, exp(s, s.fma(negative, z, polynomial))),
    );
    let phi = s.select_lt(x, s.splat(0.0), tail, s.sub(s.splat(1.0), tail));
    s.mul(x, phi)
}

/// `x += y`.
pub(super) fn add(backend: &CpuBackend, mut x: TensorMut<'_>, y: TensorRef<'_>) -> Result<()> {
    check_add(&x, y)?;
    let out = OutRows::new(&mut x)?;
    let padded = y.cols().next_multiple_of(LANES);
    backend.each_row((y.rows(), 1), y.cols(), 2 * padded, |level, row, floats| {
        let (a, b) = floats.split_at_mut(padded);
        level.run(AddRow {
            y,
            row,
            out: &out,
            a,
            b,
        });
    });
    Ok(())
}

struct AddRow<'a> {
    y: TensorRef<'a>,
    row: usize,
    out: &'a OutRows<'a>,
    a: &'a mut [f32],
    b: &'a mut [f32],
}

impl Kernel for AddRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.out.get_row(s, self.row, self.a);
        load_row(s, self.y, self.row, self.b);
        for (a, b) in self
            .a
            .chunks_exact_mut(LANES)
            .zip(self.b.chunks_exact(LANES))
        {
            // SAFETY: both chunks have sixteen elements.
            unsafe {
                let y = s.add(s.load(a.as_ptr()), s.load(b.as_ptr()));
                s.store(a.as_mut_ptr(), y);
            }
        }
        self.out.put_row(s, self.row, self.a);
    }
}

/// `out = x`.
pub(super) fn copy(backend: &CpuBackend, x: TensorRef<'_>, mut out: TensorMut<'_>) -> Result<()> {
    check_copy(x, &out)?;
    let out = OutRows::new(&mut out)?;
    let padded = x.cols().next_multiple_of(LANES);
    backend.each_row((x.rows(), 1), x.cols(), padded, |level, row, floats| {
        level.run(CopyRow {
            x,
            row,
            out: &out,
            floats,
        });
    });
    Ok(())
}

struct CopyRow<'a> {
    x: TensorRef<'a>,
    row: usize,
    out: &'a OutRows<'a>,
    floats: &'a mut [f32],
}

impl Kernel for CopyRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        load_row(s, self.x, self.row, self.floats);
        self.out.put_row(s, self.row, self.floats);
    }
}

/// Rows of a table.
pub(super) fn embedding(
    backend: &CpuBackend,
    table: &Weights,
    ids: &[u32],
    mut out: TensorMut<'_>,
) -> Result<()> {
    check_embedding(table, ids, &out)?;
    let out = OutRows::new(&mut out)?;
    let cols = table.k;
    backend.each_row(
        (ids.len(), 1),
        cols,
        cols.next_multiple_of(LANES),
        |level, row, floats| {
            pack::read_row(table, ids[row] as usize, &mut floats[..cols]);
            level.run(PutRow {
                row,
                out: &out,
                floats,
            });
        },
    );
    Ok(())
}

struct PutRow<'a> {
    row: usize,
    out: &'a OutRows<'a>,
    floats: &'a mut [f32],
}

impl Kernel for PutRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.out.put_row(s, self.row, self.floats);
    }
}

/// The column of the largest value of each row.
pub(super) fn argmax(backend: &CpuBackend, x: TensorRef<'_>, out: &mut [u32]) -> Result<()> {
    check_argmax(x, out)?;
    let mut scratch = backend.scratch(0);
    let (floats, _) = scratch.take(x.cols().next_multiple_of(LANES), 0);
    for (row, best) in out.iter_mut().enumerate() {
        *best = backend.level.run(ArgmaxRow { x, row, floats });
    }
    Ok(())
}

struct ArgmaxRow<'a> {
    x: TensorRef<'a>,
    row: usize,
    floats: &'a mut [f32],
}

impl Kernel for ArgmaxRow<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u32 {
        load_row(s, self.x, self.row, self.floats);
        let values = &self.floats[..self.x.cols()];
        let mut best = 0;
        let mut finite = true;
        for (column, value) in values.iter().enumerate() {
            finite &= value.is_finite();
            if *value > values[best] {
                best = column;
            }
        }
        if finite { best as u32 } else { u32::MAX }
    }
}
