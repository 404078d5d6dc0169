//! The tile layout of weights on the CPU, the way into it and the way back.
//!
//! A tile is sixteen output rows, one per lane; inside it the columns run in order, so that one load gives
//! the next columns of all sixteen rows:
//!
//! | format | one step of 64 bytes (f16: 32) |
//! |---|---|
//! | f32, f16 | `[16 rows]`, one column |
//! | bf16 | `[16 rows][2 columns]` |
//! | int8 | `[16 rows][4 columns]` |
//! | int4 | `[16 rows][4 bytes]`, columns 0..4 in the low nibbles and 4..8 in the high ones, value + 8 |
//!
//! Columns are padded with zeros to a whole step, rows to a whole tile. Scales and sums are kept by tile too:
//! `[tiles][groups][16 rows]`.

use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};

use super::raw::Shared;
use super::simd::{Kernel, LANES, Simd};
use super::{CpuBackend, Scratch};
use crate::buffer::Buffer;
use crate::check::{check_integers, check_percentile};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::quant::Format;
use crate::reference::quantize::{check_finite, percentile};
use crate::reference::round;
use crate::weights::{RowSource, Weights};

/// Columns of one step of a tile.
pub(super) fn step_columns(format: Format) -> usize {
    match format {
        Format::Dense(DType::Bf16) => 2,
        Format::Dense(_) => 1,
        Format::W8 { .. } => 4,
        Format::W4 { .. } => 8,
    }
}

/// Bytes of one step of a tile.
pub(super) fn step_bytes(format: Format) -> usize {
    if format == Format::Dense(DType::F16) {
        32
    } else {
        64
    }
}

/// Bytes from one tile to the next.
pub(super) fn tile_bytes(format: Format, k: usize) -> usize {
    k.div_ceil(step_columns(format)) * step_bytes(format)
}

/// Where the scale and the sum of a row's group lie: those of a tile's groups follow each other.
fn lane(row: usize, group: usize, groups: usize) -> usize {
    (row / LANES * groups + group) * LANES + row % LANES
}

/// Zeroed weights.
pub(super) fn zeroed(format: Format, n: usize, k: usize) -> Result<Weights> {
    format.check(n, k)?;
    let overflow = || Error::shape("weights", format!("{n} x {k} overflows"));
    let padded = n.checked_next_multiple_of(LANES).ok_or_else(overflow)?;
    let steps = k.checked_mul(step_bytes(format)).ok_or_else(overflow)?;
    steps.checked_mul(padded / LANES).ok_or_else(overflow)?;
    let groups = format.groups(k);
    let per_group = padded.checked_mul(groups * 4).ok_or_else(overflow)?;
    Ok(Weights {
        format,
        n,
        k,
        data: Buffer::host(padded / LANES * tile_bytes(format, k))?,
        scales: Buffer::host(per_group)?,
        sums: Buffer::host(per_group)?,
        bias: Buffer::host(padded * 4)?,
        has_minus_128: false,
    })
}

/// Fills rows, sixteen at a time on each thread.
pub(super) fn fill(
    backend: &CpuBackend,
    weights: &mut Weights,
    first: usize,
    count: usize,
    source: RowSource<'_>,
) -> Result<()> {
    weights.check_rows(first, count)?;
    if let RowSource::Floats {
        clip_percentile, ..
    } = source
    {
        check_percentile(clip_percentile)?;
    }
    let tiles = first / LANES..(first + count).div_ceil(LANES);
    let minus_128: Mutex<bool> = Mutex::new(weights.has_minus_128);
    let target = Target::new(weights);
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    backend.pool.run(tiles.len(), &|worker, task| {
        let tile = tiles.start + task;
        let mut scratch = backend.scratch(worker);
        for row in first.max(tile * LANES)..(first + count).min((tile + 1) * LANES) {
            match fill_row(backend, &target, &mut scratch, row, row - first, source) {
                Ok(false) => {}
                Ok(true) => *minus_128.lock().unwrap_or_else(PoisonError::into_inner) = true,
                Err(error) => {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|(first, _)| row < *first) {
                        *failed = Some((row, error));
                    }
                }
            }
        }
    });
    weights.has_minus_128 = minus_128
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    failed
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .map_or(Ok(()), |(_, error)| Err(error))
}

/// Where rows go. Rows of different tiles share no bytes, so threads may write different tiles at once.
struct Target<'a> {
    format: Format,
    k: usize,
    groups: usize,
    data: Shared<'a, u8>,
    scales: Shared<'a, f32>,
    sums: Shared<'a, i32>,
}

impl<'a> Target<'a> {
    fn new(weights: &'a mut Weights) -> Self {
        Self {
            format: weights.format,
            k: weights.k,
            groups: weights.format.groups(weights.k),
            data: Shared::new(weights.data.as_mut_slice()),
            scales: Shared::new(weights.scales.as_mut_slice()),
            sums: Shared::new(weights.sums.as_mut_slice()),
        }
    }

    /// Writes element `index` of size `N` bytes of the row's lane.
    fn put<const N: usize>(&self, row: usize, index: usize, bytes: [u8; N]) {
        let tile = row / LANES * tile_bytes(self.format, self.k);
        let start = tile + (index * LANES + row % LANES) * N;
        // SAFETY: the row and the index are inside the weights, and this thread owns the row's tile.
        unsafe { self.data.write_bytes(start, bytes) }
    }

    fn put_integers(&self, row: usize, q: &[i8], scales: &[f32]) {
        let group_size = self.format.group_size(self.k);
        for (group, (values, &scale)) in q.chunks(group_size).zip(scales).enumerate() {
            let sum = values.iter().map(|&value| i32::from(value)).sum::<i32>();
            // SAFETY: group and row are inside the weights, and this thread owns the row's tile.
            unsafe {
                let at = lane(row, group, self.groups);
                self.scales.write(at, scale);
                self.sums.write(at, sum);
            }
        }
        if matches!(self.format, Format::W8 { .. }) {
            for (quad, values) in q.chunks(4).enumerate() {
                let at = |i: usize| values.get(i).copied().unwrap_or(0) as u8;
                self.put(row, quad, [at(0), at(1), at(2), at(3)]);
            }
        } else {
            for (octet, values) in q.chunks(8).enumerate() {
                let at = |i: usize| (values.get(i).copied().unwrap_or(0) + 8) as u8;
                let byte = |i: usize| at(i) | at(i + 4) << 4;
                self.put(row, octet, [byte(0), byte(1), byte(2), byte(3)]);
            }
        }
    }

    fn put_floats(&self, row: usize, values: &[f32], dtype: DType) {
        match dtype {
            DType::Bf16 => {
                for (pair, values) in values.chunks(2).enumerate() {
                    let bits = |i: usize| {
                        let value = values.get(i).copied().unwrap_or(0.0);
                        bf16::from_f32(value).to_bits().to_le_bytes()
                    };
                    let ([a, b], [c, d]) = (bits(0), bits(1));
                    self.put(row, pair, [a, b, c, d]);
                }
            }
            DType::F16 => {
                for (column, &value) in values.iter().enumerate() {
                    self.put(row, column, f16::from_f32(value).to_bits().to_le_bytes());
                }
            }
            _ => {
                for (column, &value) in values.iter().enumerate() {
                    self.put(row, column, value.to_le_bytes());
                }
            }
        }
    }
}

/// Reads, quantises and places one row; whether it has a -128.
fn fill_row(
    backend: &CpuBackend,
    target: &Target<'_>,
    scratch: &mut Scratch,
    row: usize,
    source_row: usize,
    source: RowSource<'_>,
) -> Result<bool> {
    let (k, format) = (target.k, target.format);
    let padded = k.next_multiple_of(LANES);
    let groups = format.groups(k);
    let (floats, bytes) = scratch.take(padded + groups, padded);
    let (values, scales) = floats.split_at_mut(padded);
    let q: &mut [i8] = bytemuck::cast_slice_mut(bytes);
    match source {
        RowSource::Integers { read } => {
            read(source_row, &mut q[..k], scales);
            let minus_128 = check_integers(format, row, &q[..k], scales)?;
            target.put_integers(row, &q[..k], scales);
            Ok(minus_128)
        }
        RowSource::Floats {
            read,
            clip_percentile,
        } => {
            read(source_row, &mut values[..k]);
            values[k..].fill(0.0);
            let finite = backend.level.run(QuantizeWeights {
                format,
                values: &mut *values,
                k,
                clip_percentile,
                q: &mut *q,
                scales: &mut *scales,
            });
            if !finite {
                if let Format::Dense(dtype) = format {
                    round(dtype, &mut values[..k]);
                }
                check_finite(row, &values[..k])?;
            }
            match format {
                Format::Dense(dtype) => target.put_floats(row, &values[..k], dtype),
                _ => target.put_integers(row, &q[..k], scales),
            }
            Ok(false)
        }
    }
}

/// Quantises one row of weights, zero-padded to whole vectors; whether it is finite. Dense rows are only
/// checked, rounded as they will be.
struct QuantizeWeights<'a> {
    format: Format,
    values: &'a mut [f32],
    k: usize,
    clip_percentile: Option<f64>,
    q: &'a mut [i8],
    scales: &'a mut [f32],
}

impl Kernel for QuantizeWeights<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        let group_size = self.format.group_size(self.k).next_multiple_of(LANES);
        let groups = self
            .values
            .chunks_mut(group_size)
            .zip(self.q.chunks_mut(group_size));
        for (group, (values, q)) in groups.enumerate() {
            let mut acc = s.zero_i32();
            for chunk in values.chunks_exact(LANES) {
                // SAFETY: a chunk has sixteen values.
                acc = s.max_magnitude(acc, unsafe { s.load(chunk.as_ptr()) });
            }
            let mut largest = [f32::from_bits(s.reduce_max_i32(acc) as u32)];
            if let Format::Dense(dtype) = self.format {
                // Rounding keeps the order of magnitudes, so the largest speaks for all.
                round(dtype, &mut largest);
            }
            let [largest] = largest;
            if !largest.is_finite() {
                return false;
            }
            let Some(limit) = self.format.largest() else {
                continue;
            };
            let columns = (self.k - group * group_size).min(values.len());
            let clip = self.clip_percentile.map(|p| clip(&values[..columns], p));
            let clip = clip.filter(|&clip| clip > 0.0).unwrap_or(largest);
            let scale = clip / limit as f32;
            let scale = if scale == 0.0 { 1.0 } else { scale };
            self.scales[group] = scale;
            // A subnormal scale may be far from its quotient, which must not pass the largest integer.
            let clip = clip.min(scale * limit as f32);
            let (low, high, divisor) = (s.splat(-clip), s.splat(clip), s.splat(scale));
            for (values, q) in values.chunks_exact(LANES).zip(q.chunks_exact_mut(LANES)) {
                // SAFETY: both chunks have sixteen elements.
                unsafe {
                    let v = s.load(values.as_ptr());
                    let v = s.select_lt(v, low, low, v);
                    let v = s.select_lt(high, v, high, v);
                    s.store_i8(q.as_mut_ptr().cast(), s.round(s.div(v, divisor)), false);
                }
            }
        }
        true
    }
}

/// The percentile of the magnitudes.
fn clip(values: &[f32], p: f64) -> f32 {
    let mut magnitudes: Vec<f32> = values.iter().map(|value| value.abs()).collect();
    percentile(&mut magnitudes, p)
}

/// Reads a row of integers back.
pub(super) fn read_integers(weights: &Weights, row: usize, out: &mut [i8], scales: &mut [f32]) {
    let all = weights.scales.as_slice::<f32>();
    let groups = weights.format.groups(weights.k);
    for (group, scale) in scales.iter_mut().enumerate() {
        *scale = all[lane(row, group, groups)];
    }
    let bytes = row_bytes(weights, row);
    for (k, q) in out.iter_mut().enumerate() {
        *q = match weights.format {
            Format::W4 { .. } => {
                let byte = bytes[k / 8 * 64 + k % 4];
                ((byte >> (k % 8 / 4 * 4)) & 15) as i8 - 8
            }
            _ => bytes[k / 4 * 64 + k % 4] as i8,
        };
    }
}

/// Reads a row back as floats.
pub(super) fn read_row(weights: &Weights, row: usize, out: &mut [f32]) {
    let bytes = row_bytes(weights, row);
    match weights.format {
        Format::Dense(DType::Bf16) => {
            for (k, value) in out.iter_mut().enumerate() {
                let at = k / 2 * 64 + k % 2 * 2;
                *value = bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
            }
        }
        Format::Dense(DType::F16) => {
            for (k, value) in out.iter_mut().enumerate() {
                *value = f16::from_le_bytes([bytes[k * 32], bytes[k * 32 + 1]]).to_f32();
            }
        }
        Format::Dense(_) => {
            for (value, at) in out.iter_mut().zip(bytes.chunks(64)) {
                *value = f32::from_le_bytes([at[0], at[1], at[2], at[3]]);
            }
        }
        Format::W4 { .. } | Format::W8 { .. } => read_scaled(weights, row, bytes, out),
    }
}

fn read_scaled(weights: &Weights, row: usize, bytes: &[u8], out: &mut [f32]) {
    let count = weights.format.groups(weights.k);
    let scales = weights.scales.as_slice::<f32>();
    let four_bits = matches!(weights.format, Format::W4 { .. });
    let groups = out.chunks_mut(weights.format.group_size(weights.k));
    let mut k = 0;
    for (group, values) in groups.enumerate() {
        let scale = scales[lane(row, group, count)];
        for value in values {
            let q = if four_bits {
                ((bytes[k / 8 * 64 + k % 4] >> (k % 8 / 4 * 4)) & 15) as i8 - 8
            } else {
                bytes[k / 4 * 64 + k % 4] as i8
            };
            *value = f32::from(q) * scale;
            k += 1;
        }
    }
}

/// The bytes of a tile from the row's lane on.
fn row_bytes(weights: &Weights, row: usize) -> &[u8] {
    let tile = tile_bytes(weights.format, weights.k);
    let lane = row % LANES * (step_bytes(weights.format) / LANES);
    &weights.data.as_slice::<u8>()[row / LANES * tile..][..tile][lane..]
}
