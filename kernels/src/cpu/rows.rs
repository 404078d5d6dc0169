//! Rows in and out: conversion to f32 and back, and quantisation per token.

use half::{bf16, f16};

use super::CpuBackend;
use super::element::{Element, store};
use super::raw::Shared;
use super::simd::{Kernel, LANES, Simd};
use crate::backend::RowsOut;
use crate::check::check_quantize;
use crate::dtype::DType;
use crate::error::Result;
use crate::panels::Panels;
use crate::quant::SMALLEST_MAX;
use crate::rows::{QuantizedRows, UNIT};
use crate::tensor::{TensorMut, TensorRef};

/// Quantises each row.
pub(super) fn quantize(
    backend: &CpuBackend,
    x: TensorRef<'_>,
    out: &mut QuantizedRows,
) -> Result<()> {
    check_quantize(x)?;
    let out = OutQuantized::start(backend, out, x.rows(), x.cols())?;
    backend.each_row(
        (x.rows(), out.panels.each),
        x.cols(),
        x.cols().next_multiple_of(LANES),
        |level, row, floats| {
            level.run(Quantize {
                x,
                row,
                out: &out,
                floats,
            });
        },
    );
    Ok(())
}

struct Quantize<'a> {
    x: TensorRef<'a>,
    row: usize,
    out: &'a OutQuantized<'a>,
    floats: &'a mut [f32],
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if self.x.dtype() == DType::Bf16
            && self.x.cols().is_multiple_of(LANES)
            && let Ok(values) = self.x.row::<bf16>(self.row)
        {
            return self.out.put_elements(s, self.row, values);
        }
        load_row(s, self.x, self.row, self.floats);
        self.out.put_row(s, self.row, self.floats);
    }
}

/// A row as f32, zero-padded to `out`, whose length is whole vectors.
#[inline(always)]
pub(super) fn load_row<S: Simd>(s: S, x: TensorRef<'_>, row: usize, out: &mut [f32]) {
    match x.dtype() {
        DType::F32 => load_elements::<S, f32>(s, x, row, out),
        DType::Bf16 => load_elements::<S, bf16>(s, x, row, out),
        DType::F16 => load_elements::<S, f16>(s, x, row, out),
        DType::I32 | DType::I8 | DType::U8 => {}
    }
}

#[inline(always)]
fn load_elements<S: Simd, T: Element + crate::dtype::Element>(
    s: S,
    x: TensorRef<'_>,
    row: usize,
    out: &mut [f32],
) {
    if let Ok(from) = x.row::<T>(row) {
        widen(s, from, out);
    }
}

/// Elements as f32, zero-padded to `out`, whose length is whole vectors.
#[inline(always)]
fn widen<S: Simd, T: Element>(s: S, from: &[T], out: &mut [f32]) {
    let chunks = from.chunks_exact(LANES);
    let tail = chunks.remainder();
    let done = from.len() - tail.len();
    for (from, out) in chunks.zip(out.chunks_exact_mut(LANES)) {
        // SAFETY: both chunks have sixteen elements.
        unsafe { s.store(out.as_mut_ptr(), T::load(s, from.as_ptr())) }
    }
    for (from, out) in tail.iter().zip(&mut out[done..]) {
        *out = from.widen();
    }
    out[from.len()..].fill(0.0);
}

/// Rounds a row of whole vectors to the dtype and back.
#[inline(always)]
pub(super) fn round_row<S: Simd>(s: S, dtype: DType, row: &mut [f32]) {
    if dtype != DType::Bf16 {
        return;
    }
    let mut bits = [0_u16; LANES];
    for chunk in row.chunks_exact_mut(LANES) {
        // SAFETY: the chunk and `bits` have sixteen elements.
        unsafe {
            s.store_bf16(bits.as_mut_ptr(), s.load(chunk.as_ptr()));
            s.store(chunk.as_mut_ptr(), s.load_bf16(bits.as_ptr()));
        }
    }
}

/// Float or quantised output of an op.
pub(super) enum Out<'a> {
    /// Floats, rounded to their dtype.
    Float(OutRows<'a>),
    /// Quantised rows.
    Int8(OutQuantized<'a>),
}

impl<'a> Out<'a> {
    pub(super) fn new(
        backend: &CpuBackend,
        out: &'a mut RowsOut<'_>,
        rows: usize,
        cols: usize,
    ) -> Result<Self> {
        match out {
            RowsOut::Float(out) => Ok(Self::Float(OutRows::new(out)?)),
            RowsOut::Int8(out) => Ok(Self::Int8(OutQuantized::start(backend, out, rows, cols)?)),
        }
    }

    /// Rows that share cache lines: one thread must write them.
    pub(super) fn together(&self) -> usize {
        match self {
            Self::Float(_) => 1,
            Self::Int8(out) => out.panels.each,
        }
    }

    /// Writes a row of f32, padded to whole vectors; quantised rows are rounded to `dtype` first.
    #[inline(always)]
    pub(super) fn put_row<S: Simd>(&self, s: S, dtype: DType, row: usize, values: &mut [f32]) {
        match self {
            Self::Float(out) => out.put_row(s, row, values),
            Self::Int8(out) => {
                round_row(s, dtype, values);
                out.put_row(s, row, values);
            }
        }
    }
}

/// Output rows that threads write in turn, each its own elements.
#[derive(Clone, Copy)]
pub(super) struct OutRows<'a> {
    bytes: Shared<'a, u8>,
    stride: usize,
    cols: usize,
    /// Element type.
    pub(super) dtype: DType,
}

impl<'a> OutRows<'a> {
    pub(super) fn new(out: &'a mut TensorMut<'_>) -> Result<Self> {
        let (dtype, stride, cols) = (out.dtype(), out.stride(), out.cols());
        let bytes = match dtype {
            DType::F32 => bytemuck::cast_slice_mut(out.span_mut::<f32>()?),
            DType::Bf16 => bytemuck::cast_slice_mut(out.span_mut::<bf16>()?),
            DType::F16 => bytemuck::cast_slice_mut(out.span_mut::<f16>()?),
            DType::I32 => bytemuck::cast_slice_mut(out.span_mut::<i32>()?),
            DType::I8 => bytemuck::cast_slice_mut(out.span_mut::<i8>()?),
            DType::U8 => out.span_mut::<u8>()?,
        };
        Ok(Self {
            bytes: Shared::new(bytes),
            stride,
            cols,
            dtype,
        })
    }

    /// Where element (`row`, `col`) lies.
    ///
    /// # Safety
    /// Both must exist, `col` may be the end; nobody else touches what is written through it.
    #[inline(always)]
    unsafe fn at<T>(&self, row: usize, col: usize) -> *mut T {
        // SAFETY: the caller promises the element.
        unsafe {
            self.bytes
                .at((row * self.stride + col) * self.dtype.size())
                .cast()
        }
    }

    /// Where tile `tile` of a row lies.
    ///
    /// # Safety
    /// Both must exist; nobody else touches what is written through it.
    #[inline(always)]
    pub(super) unsafe fn tile(&self, row: usize, tile: usize) -> *mut u8 {
        // SAFETY: the caller promises the element.
        unsafe { self.at(row, tile * LANES) }
    }

    /// Writes the first `columns` lanes of tile `output.1` of row `output.0`, rounded to the dtype.
    #[inline(always)]
    pub(super) fn put<S: Simd>(&self, s: S, output: (usize, usize), columns: usize, v: S::F) {
        let (row, col) = (output.0, output.1 * LANES);
        if columns == LANES {
            // SAFETY: sixteen columns from `col` on are this thread's.
            unsafe { store(s, self.dtype, self.at(row, col), v) };
            return;
        }
        let mut lanes = [0_f32; LANES];
        // SAFETY: `lanes` has sixteen elements.
        unsafe { s.store(lanes.as_mut_ptr(), v) };
        self.put_floats(row, col, &lanes[..columns]);
    }

    /// Writes integers from the first column of tile `output.1` of row `output.0` on.
    pub(super) fn put_i32(&self, output: (usize, usize), values: &[i32]) {
        // SAFETY: the columns are this thread's.
        unsafe {
            let out: *mut i32 = self.at(output.0, output.1 * LANES);
            out.copy_from_nonoverlapping(values.as_ptr(), values.len());
        }
    }

    /// Writes a row from f32, rounded to the dtype; `values` may be longer than the row.
    #[inline(always)]
    pub(super) fn put_row<S: Simd>(&self, s: S, row: usize, values: &[f32]) {
        self.put_part(s, row, 0, &values[..self.cols]);
    }

    /// Writes the columns from `col` on, rounded to the dtype.
    #[inline(always)]
    pub(super) fn put_part<S: Simd>(&self, s: S, row: usize, col: usize, values: &[f32]) {
        let chunks = values.chunks_exact(LANES);
        let tail = chunks.remainder();
        let done = values.len() - tail.len();
        for (i, chunk) in chunks.enumerate() {
            // SAFETY: the chunk has sixteen elements, and the columns are this thread's.
            unsafe {
                let v = s.load(chunk.as_ptr());
                store(s, self.dtype, self.at(row, col + i * LANES), v);
            }
        }
        self.put_floats(row, col + done, tail);
    }

    /// Reads a row back as f32, zero-padded to `out`, whose length is whole vectors.
    #[inline(always)]
    pub(super) fn get_row<S: Simd>(&self, s: S, row: usize, out: &mut [f32]) {
        // SAFETY: the row exists and is this thread's.
        unsafe {
            match self.dtype {
                DType::F32 => widen::<S, f32>(s, self.row(row), out),
                DType::Bf16 => widen::<S, bf16>(s, self.row(row), out),
                _ => widen::<S, f16>(s, self.row(row), out),
            }
        }
    }

    /// # Safety
    /// The row must exist, be this thread's and hold elements of this type.
    unsafe fn row<T>(&self, row: usize) -> &[T] {
        // SAFETY: the caller promises the row.
        unsafe { std::slice::from_raw_parts(self.at(row, 0), self.cols) }
    }

    /// Writes a few elements one by one.
    pub(super) fn put_floats(&self, row: usize, col: usize, values: &[f32]) {
        for (i, &value) in values.iter().enumerate() {
            // SAFETY: the columns are this thread's.
            unsafe {
                match self.dtype {
                    DType::F32 => self.at::<f32>(row, col + i).write(value),
                    DType::Bf16 => self.at::<bf16>(row, col + i).write(bf16::from_f32(value)),
                    _ => self.at::<f16>(row, col + i).write(f16::from_f32(value)),
                }
            }
        }
    }
}

/// Quantised rows that threads write in turn, each its own rows.
pub(super) struct OutQuantized<'a> {
    data: Shared<'a, u8>,
    scales: Shared<'a, f32>,
    /// Units of a row.
    units: usize,
    panels: Panels,
}

impl<'a> OutQuantized<'a> {
    pub(super) fn start(
        backend: &CpuBackend,
        out: &'a mut QuantizedRows,
        rows: usize,
        cols: usize,
    ) -> Result<Self> {
        // The rows may have been made by another backend: from now on they are laid out as ours.
        let layout = backend.level.isa().row_layout();
        (out.bias, out.panel_rows) = (layout.bias, layout.panel_rows);
        out.start(rows, cols)?;
        let (units, panels) = (out.stride / UNIT, out.panels);
        Ok(Self {
            data: Shared::new(out.data.as_mut_slice()),
            scales: Shared::new(out.scales.as_mut_slice()),
            units,
            panels,
        })
    }

    /// Quantises a row of f32, zero-padded to whole vectors.
    #[inline(always)]
    pub(super) fn put_row<S: Simd>(&self, s: S, row: usize, values: &[f32]) {
        self.put_elements(s, row, values);
    }

    /// Quantises a row of whole vectors where it lies.
    #[inline(always)]
    fn put_elements<S: Simd, T: Element>(&self, s: S, row: usize, values: &[T]) {
        let mut acc = s.zero_i32();
        for chunk in values.chunks_exact(LANES) {
            // SAFETY: the chunk has sixteen elements.
            acc = s.max_magnitude(acc, unsafe { T::load(s, chunk.as_ptr()) });
        }
        let mut quads = self.quads(s, row, acc);
        for chunk in values.chunks_exact(LANES) {
            // SAFETY: the chunk has sixteen elements.
            quads.put(s, unsafe { T::load(s, chunk.as_ptr()) });
        }
    }

    /// Writes the scale of a row of these largest magnitudes; where its values go.
    #[inline(always)]
    fn quads<S: Simd>(&self, s: S, row: usize, magnitudes: S::I) -> Quads {
        let factors = Factors::of(s, magnitudes);
        let (first, step) = self.panels.place(row, self.units);
        // SAFETY: the row is this thread's.
        let next = unsafe {
            self.scales.write(row, factors.scale);
            self.data.at(first * UNIT)
        };
        Quads {
            next,
            step: step * UNIT,
            factors,
        }
    }
}

/// The place of the next values of a row in its panel.
struct Quads {
    next: *mut u8,
    /// Bytes from one quad to the next.
    step: usize,
    factors: Factors,
}

impl Quads {
    #[inline(always)]
    fn put<S: Simd>(&mut self, s: S, values: S::F) {
        let q = self.factors.integers(s, values);
        let mut quads = [0_u32; LANES / UNIT];
        // SAFETY: the row is this thread's, and its bytes are padded to whole vectors.
        unsafe {
            s.store_i8(quads.as_mut_ptr().cast(), q, true);
            for quad in quads {
                self.next.cast::<u32>().write_unaligned(quad);
                self.next = self.next.wrapping_add(self.step);
            }
        }
    }
}

/// How a row is quantised.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    /// A value is its integer times this; NaN for a row that is not finite.
    pub(super) scale: f32,
    /// What values are multiplied with; zero for a row whose integers are zeros.
    inverse: f32,
}

impl Factors {
    /// Those of a row of these largest magnitudes.
    #[inline(always)]
    pub(super) fn of<S: Simd>(s: S, magnitudes: S::I) -> Self {
        let largest = f32::from_bits(s.reduce_max_i32(magnitudes) as u32);
        let (scale, inverse) = if !largest.is_finite() {
            (f32::NAN, 0.0)
        } else if largest < SMALLEST_MAX {
            (1.0, 0.0)
        } else {
            (largest / 127.0, 127.0 / largest)
        };
        Self { scale, inverse }
    }

    #[inline(always)]
    pub(super) fn integers<S: Simd>(self, s: S, values: S::F) -> S::I {
        if self.inverse == 0.0 {
            s.zero_i32()
        } else {
            s.round(s.mul(values, s.splat(self.inverse)))
        }
    }
}
