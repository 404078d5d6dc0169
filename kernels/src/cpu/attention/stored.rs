//! Keys and values as the cache stores them.

use std::ops::Range;

use half::{bf16, f16};

use crate::cpu::element::Element;
use crate::cpu::simd::{LANES, Simd};
use crate::dtype::DType;
use crate::error::Result;
use crate::kv::{KV_BLOCK, KvRows};

/// Keys or values of all blocks.
#[derive(Clone, Copy)]
pub(super) enum Stored<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
    /// The integers, and the scale of each row.
    I8(&'a [i8], &'a [f32]),
}

impl<'a> Stored<'a> {
    pub(super) fn new(rows: &'a KvRows) -> Result<Self> {
        Ok(match rows.dtype() {
            DType::F16 => Self::F16(rows.data.as_slice()?),
            DType::Bf16 => Self::Bf16(rows.data.as_slice()?),
            DType::I8 => Self::I8(rows.data.as_slice()?, rows.scales.as_slice()?),
            _ => Self::F32(rows.data.as_slice()?),
        })
    }

    /// The scales of the block that begins at `row`, where rows have one.
    pub(super) fn factors(self, row: usize) -> Option<&'a [f32]> {
        match self {
            Self::I8(_, scales) => Some(&scales[row..row + KV_BLOCK]),
            _ => None,
        }
    }

    /// The memory of the block that begins at `row`.
    pub(super) fn bytes(self, row: usize, size: usize) -> &'a [u8] {
        match self {
            Self::F32(all) => bytemuck::cast_slice(block(all, row, size)),
            Self::F16(all) => bytemuck::cast_slice(block(all, row, size)),
            Self::Bf16(all) => bytemuck::cast_slice(block(all, row, size)),
            Self::I8(all, _) => bytemuck::cast_slice(block(all, row, size)),
        }
    }

    /// The rows of the block that begins at `row`, as floats of `width` columns.
    #[inline(always)]
    pub(super) fn widen<S: Simd>(self, s: S, row: usize, size: usize, out: &mut [f32]) {
        match self {
            Self::F32(all) => widen(s, block(all, row, size), size, out),
            Self::F16(all) => widen(s, block(all, row, size), size, out),
            Self::Bf16(all) => widen(s, block(all, row, size), size, out),
            Self::I8(all, _) => widen(s, block(all, row, size), size, out),
        }
    }

    /// The rows of the block that begins at `row`, as bf16 that hold them exactly, zero-padded to whole vectors.
    #[inline(always)]
    pub(super) fn narrow(self, row: usize, size: usize, out: &mut [u16]) {
        match self {
            Self::Bf16(all) => narrow(block(all, row, size), size, out),
            Self::I8(all, _) => narrow(block(all, row, size), size, out),
            Self::F32(_) | Self::F16(_) => {}
        }
    }

    /// The rows of the block that begins at `row` as pairs of bf16, from one row and the next, zero-padded to
    /// whole vectors. Rows outside `seen` are zeros.
    #[inline(always)]
    pub(super) fn interleave(self, row: usize, size: usize, seen: &Range<usize>, out: &mut [u32]) {
        match self {
            Self::Bf16(all) => interleave(block(all, row, size), size, seen, out),
            Self::I8(all, _) => interleave(block(all, row, size), size, seen, out),
            Self::F32(_) | Self::F16(_) => {}
        }
    }
}

/// The elements of the block that begins at `row`.
pub(super) fn block<T>(all: &[T], row: usize, size: usize) -> &[T] {
    &all[row * size..(row + KV_BLOCK) * size]
}

/// Rows of `size` elements as floats; rows of `out` are whole vectors, zero-padded.
#[inline(always)]
fn widen<S: Simd, T: Element>(s: S, from: &[T], size: usize, out: &mut [f32]) {
    let width = size.next_multiple_of(LANES);
    let whole = size / LANES * LANES;
    for (from, out) in from.chunks_exact(size).zip(out.chunks_exact_mut(width)) {
        for at in (0..whole).step_by(LANES) {
            // SAFETY: both rows have sixteen elements from `at` on.
            unsafe { s.store(out.as_mut_ptr().add(at), T::load(s, from.as_ptr().add(at))) }
        }
        for (from, out) in from[whole..].iter().zip(&mut out[whole..]) {
            *out = from.widen();
        }
        out[size..].fill(0.0);
    }
}

#[inline(always)]
fn narrow<T: Short>(from: &[T], size: usize, out: &mut [u16]) {
    let rows = out.chunks_exact_mut(size.next_multiple_of(LANES));
    for (from, out) in from.chunks_exact(size).zip(rows) {
        for (from, out) in from.iter().zip(&mut *out) {
            *out = from.bits();
        }
        out[size..].fill(0);
    }
}

#[inline(always)]
fn interleave<T: Short>(from: &[T], size: usize, seen: &Range<usize>, out: &mut [u32]) {
    let rows = out.chunks_exact_mut(size.next_multiple_of(LANES));
    for (pair, (from, out)) in from.chunks_exact(2 * size).zip(rows).enumerate() {
        let (even, odd) = (seen.contains(&(2 * pair)), seen.contains(&(2 * pair + 1)));
        if !even && !odd {
            continue;
        }
        let mask = if even { 0xffff } else { 0 } | if odd { 0xffff_0000 } else { 0 };
        let (first, second) = from.split_at(size);
        for ((first, second), out) in first.iter().zip(second).zip(&mut *out) {
            *out = (u32::from(first.bits()) | u32::from(second.bits()) << 16) & mask;
        }
        out[size..].fill(0);
    }
}

/// An element that bf16 holds exactly.
trait Short: Copy {
    /// Its bits as bf16.
    fn bits(self) -> u16;
}

impl Short for bf16 {
    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

impl Short for i8 {
    #[inline(always)]
    fn bits(self) -> u16 {
        (f32::from(self).to_bits() >> 16) as u16
    }
}
