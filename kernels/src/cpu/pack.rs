//! The tile layout of weights on the CPU, and the way back from it; `fill.rs` is the way into it.
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

use half::{bf16, f16};

use super::simd::LANES;
use crate::buffer::Slab;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::quant::Format;
use crate::weights::Weights;

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
pub(super) fn lane(row: usize, group: usize, groups: usize) -> usize {
    (row / LANES * groups + group) * LANES + row % LANES
}

/// Zeroed weights.
pub(super) fn zeroed(slab: &Slab, format: Format, n: usize, k: usize) -> Result<Weights> {
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
        data: slab.buffer(padded / LANES * tile_bytes(format, k))?,
        scales: slab.buffer(per_group)?,
        sums: slab.buffer(per_group)?,
        bias: slab.buffer(padded * 4)?,
        has_minus_128: false,
    })
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
