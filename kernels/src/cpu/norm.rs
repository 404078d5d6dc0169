//! RMS norm and layer norm.

use super::CpuBackend;
use super::rows::{Out, load_row};
use super::simd::{Kernel, LANES, Simd};
use crate::backend::{NormArgs, NormKind};
use crate::check::check_norm;
use crate::error::Result;
use crate::tensor::TensorRef;

/// Normalises each segment of each row.
pub(super) fn norm(backend: &CpuBackend, args: NormArgs<'_>) -> Result<()> {
    check_norm(&args)?;
    let NormArgs {
        x,
        weight,
        bias,
        eps,
        kind,
        out,
    } = args;
    let mut out = out;
    let out = Out::new(backend, &mut out, x.rows(), x.cols())?;
    let (padded, segment) = (
        x.cols().next_multiple_of(LANES),
        weight.len().next_multiple_of(LANES),
    );
    backend.each_row(
        (x.rows(), out.together()),
        x.cols(),
        padded + 3 * segment,
        |level, row, floats| {
            let (values, work) = floats.split_at_mut(padded);
            level.run(Norm {
                x,
                row,
                weight,
                bias,
                eps,
                kind,
                out: &out,
                values,
                work,
            });
        },
    );
    Ok(())
}

struct Norm<'a> {
    x: TensorRef<'a>,
    row: usize,
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    eps: f32,
    kind: NormKind,
    out: &'a Out<'a>,
    values: &'a mut [f32],
    /// Three padded segments: the values, the weight, the bias.
    work: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (cols, length) = (self.x.cols(), self.weight.len());
        load_row(s, self.x, self.row, self.values);
        let (segment, rest) = self.work.split_at_mut(length.next_multiple_of(LANES));
        let (weight, bias) = rest.split_at_mut(length.next_multiple_of(LANES));
        let given = self.bias.unwrap_or(&[]);
        if length.is_multiple_of(LANES) {
            // Segments of whole vectors are normalised where they are.
            let bias = if given.is_empty() {
                pad(given, bias);
                &*bias
            } else {
                given
            };
            for segment in self.values[..cols].chunks_exact_mut(length) {
                one(
                    s,
                    self.kind,
                    segment,
                    (self.weight, bias),
                    (length, self.eps),
                );
            }
        } else {
            pad(self.weight, weight);
            pad(given, bias);
            for start in (0..cols).step_by(length) {
                pad(&self.values[start..start + length], segment);
                one(s, self.kind, segment, (weight, bias), (length, self.eps));
                self.values[start..start + length].copy_from_slice(&segment[..length]);
            }
        }
        self.out.put_row(s, self.x.dtype(), self.row, self.values);
    }
}

/// Normalises a segment of `length` values, zero-padded to whole vectors as its parameters are.
#[inline(always)]
fn one<S: Simd>(
    s: S,
    kind: NormKind,
    values: &mut [f32],
    (weight, bias): (&[f32], &[f32]),
    (length, eps): (usize, f32),
) {
    match kind {
        NormKind::Rms => rms(s, values, weight, length, eps),
        NormKind::Layer => layer(s, values, weight, bias, length, eps),
    }
}

fn pad(from: &[f32], to: &mut [f32]) {
    to[..from.len()].copy_from_slice(from);
    to[from.len()..].fill(0.0);
}

#[inline(always)]
fn rms<S: Simd>(s: S, values: &mut [f32], weight: &[f32], length: usize, eps: f32) {
    let mut squares = s.splat(0.0);
    for chunk in values.chunks_exact(LANES) {
        // SAFETY: the chunk has sixteen elements.
        let v = unsafe { s.load(chunk.as_ptr()) };
        squares = s.fma(v, v, squares);
    }
    let mean = s.reduce_add(squares) / length as f32;
    let inverse = s.splat(1.0 / (mean + eps).sqrt());
    for (chunk, weight) in values
        .chunks_exact_mut(LANES)
        .zip(weight.chunks_exact(LANES))
    {
        // SAFETY: both chunks have sixteen elements.
        unsafe {
            let y = s.mul(
                s.mul(s.load(chunk.as_ptr()), inverse),
                s.load(weight.as_ptr()),
            );
            s.store(chunk.as_mut_ptr(), y);
        }
    }
}

#[inline(always)]
fn layer<S: Simd>(s: S, values: &mut [f32], weight: &[f32], bias: &[f32], length: usize, eps: f32) {
    let mut sum = s.splat(0.0);
    for chunk in values.chunks_exact(LANES) {
        // SAFETY: the chunk has sixteen elements.
        sum = s.add(sum, unsafe { s.load(chunk.as_ptr()) });
    }
    let mean = s.reduce_add(sum) / length as f32;
    for value in &mut values[..length] {
        *value -= mean;
    }
    let mut squares = s.splat(0.0);
    for chunk in values.chunks_exact(LANES) {
        // SAFETY: the chunk has sixteen elements.
        let v = unsafe { s.load(chunk.as_ptr()) };
        squares = s.fma(v, v, squares);
    }
    let variance = s.reduce_add(squares) / length as f32;
    let inverse = s.splat(1.0 / (variance + eps).sqrt());
    let parameters = weight.chunks_exact(LANES).zip(bias.chunks_exact(LANES));
    for (chunk, (weight, bias)) in values.chunks_exact_mut(LANES).zip(parameters) {
        // SAFETY: the chunks have sixteen elements.
        unsafe {
            let y = s.mul(s.load(chunk.as_ptr()), inverse);
            s.store(
                chunk.as_mut_ptr(),
                s.fma(y, s.load(weight.as_ptr()), s.load(bias.as_ptr())),
            );
        }
    }
}
