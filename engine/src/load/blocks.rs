//! The encodings of weights, decoded to f32. Formulas are those of the formats; products before
//! sums, nothing fused, so the values are what every other reader of the formats gets.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// 16-bit floats.
pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    // The halves may stand at odd addresses; a stretch at a time is copied to where they may not.
    let mut halves = [f16::ZERO; 64];
    for (bytes, out) in bytes
        .chunks(2 * halves.len())
        .zip(out.chunks_mut(halves.len()))
    {
        for (half, pair) in halves.iter_mut().zip(bytes.as_chunks().0) {
            *half = f16::from_le_bytes(*pair);
        }
        if let Some(halves) = halves.get(..out.len()) {
            halves.convert_to_f32_slice(out);
        }
    }
}

/// bfloat16: the upper half of an f32.
pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (out, pair) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*pair)) << 16);
    }
}

/// 32-bit floats.
pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (out, quad) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = f32::from_le_bytes(*quad);
    }
}

/// 32 signed bytes and a scale.
pub(super) fn decode_q8_0(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<34>(bytes, out) {
        let scale = half_at(block, 0);
        for (out, &q) in out.iter_mut().zip(&block[2..]) {
            *out = f32::from(q.cast_signed()) * scale;
        }
    }
}

/// 32 nibbles of zero point 8 and a scale.
pub(super) fn decode_q4_0(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<18>(bytes, out) {
        let scale = half_at(block, 0);
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[2..]) {
            *low = f32::from((pair & 15).cast_signed() - 8) * scale;
            *high = f32::from((pair >> 4).cast_signed() - 8) * scale;
        }
    }
}

/// 32 nibbles, a scale and a minimum.
pub(super) fn decode_q4_1(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<20>(bytes, out) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[4..]) {
            *low = f32::from(pair & 15) * scale + minimum;
            *high = f32::from(pair >> 4) * scale + minimum;
        }
    }
}

/// 32 five-bit values of zero point 16 and a scale; the fifth bits stand apart.
pub(super) fn decode_q5_0(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<22>(bytes, out) {
        let (scale, fifth) = (half_at(block, 0), word_at(block, 2));
        let (low, high) = out.split_at_mut(16);
        for (i, ((low, high), &pair)) in low.iter_mut().zip(high).zip(&block[6..]).enumerate() {
            *low = f32::from(five_bits(pair & 15, fifth >> i).cast_signed() - 16) * scale;
            *high = f32::from(five_bits(pair >> 4, fifth >> (i + 16)).cast_signed() - 16) * scale;
        }
    }
}

/// 32 five-bit values, a scale and a minimum.
pub(super) fn decode_q5_1(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<24>(bytes, out) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        let fifth = word_at(block, 4);
        let (low, high) = out.split_at_mut(16);
        for (i, ((low, high), &pair)) in low.iter_mut().zip(high).zip(&block[8..]).enumerate() {
            *low = f32::from(five_bits(pair & 15, fifth >> i)) * scale + minimum;
            *high = f32::from(five_bits(pair >> 4, fifth >> (i + 16))) * scale + minimum;
        }
    }
}

/// 256 nibbles in 8 groups, each with a six-bit scale and minimum of the block's two.
pub(super) fn decode_q4_k(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<144>(bytes, out) {
        let groups = Groups::of(block);
        for (j, (out, pairs)) in out
            .chunks_exact_mut(64)
            .zip(block[16..].chunks(32))
            .enumerate()
        {
            let (low, high) = out.split_at_mut(32);
            let (low_scale, low_minimum) = groups.get(2 * j);
            let (high_scale, high_minimum) = groups.get(2 * j + 1);
            for ((low, high), &pair) in low.iter_mut().zip(high).zip(pairs) {
                *low = low_scale * f32::from(pair & 15) - low_minimum;
                *high = high_scale * f32::from(pair >> 4) - high_minimum;
            }
        }
    }
}

/// As [`decode_q4_k`], with 256 fifth bits apart: bit j of byte i belongs to value i of group j.
pub(super) fn decode_q5_k(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<176>(bytes, out) {
        let groups = Groups::of(block);
        let (fifth, pairs) = block[16..].split_at(32);
        for (j, (out, pairs)) in out.chunks_exact_mut(64).zip(pairs.chunks(32)).enumerate() {
            let (low, high) = out.split_at_mut(32);
            let (low_scale, low_minimum) = groups.get(2 * j);
            let (high_scale, high_minimum) = groups.get(2 * j + 1);
            for (((low, high), &pair), &fifth) in low.iter_mut().zip(high).zip(pairs).zip(fifth) {
                let low_q = (pair & 15) | ((fifth >> (2 * j)) & 1) << 4;
                let high_q = (pair >> 4) | ((fifth >> (2 * j + 1)) & 1) << 4;
                *low = low_scale * f32::from(low_q) - low_minimum;
                *high = high_scale * f32::from(high_q) - high_minimum;
            }
        }
    }
}

/// 256 six-bit values of zero point 32 in 16 groups, each with a signed scale of the block's.
pub(super) fn decode_q6_k(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<210>(bytes, out) {
        let scale = half_at(block, 208);
        let halves = block[..128].chunks(64).zip(block[128..192].chunks(32));
        let scaled = halves.zip(block[192..208].chunks(8));
        for (out, ((nibbles, pairs), scales)) in out.chunks_exact_mut(128).zip(scaled) {
            for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
                let nibbles = &nibbles[32 * (quarter % 2)..];
                let shifts = (4 * (quarter as u32 / 2), 2 * quarter as u32);
                let scales = (
                    scaled_by(scale, scales[2 * quarter]),
                    scaled_by(scale, scales[2 * quarter + 1]),
                );
                decode_q6_k_quarter(nibbles, pairs, shifts, scales, out);
            }
        }
    }
}

fn decode_q6_k_quarter(
    nibbles: &[u8],
    pairs: &[u8],
    (nibble_shift, pair_shift): (u32, u32),
    scales: (f32, f32),
    out: &mut [f32],
) {
    for (i, ((out, &nibble), &pair)) in out.iter_mut().zip(nibbles).zip(pairs).enumerate() {
        let q = ((nibble >> nibble_shift) & 15) | ((pair >> pair_shift) & 3) << 4;
        let scale = if i < 16 { scales.0 } else { scales.1 };
        *out = scale * f32::from(q.cast_signed() - 32);
    }
}

/// The scales and minima of a block of `Q4_K` or `Q5_K`: two halves and 12 bytes of packed six-bit
/// values.
struct Groups<'a> {
    scale: f32,
    minimum: f32,
    packed: &'a [u8],
}

impl<'a> Groups<'a> {
    fn of(block: &'a [u8]) -> Self {
        Self {
            scale: half_at(block, 0),
            minimum: half_at(block, 2),
            packed: &block[4..16],
        }
    }

    /// Scale and minimum of group `j` of 8. The first four groups have bytes of their own, whose
    /// upper two bits belong to the last four.
    fn get(&self, j: usize) -> (f32, f32) {
        let packed = self.packed;
        let (scale, minimum) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            let both = packed[j + 4];
            (
                (both & 15) | (packed[j - 4] >> 6) << 4,
                (both >> 4) | (packed[j] >> 6) << 4,
            )
        };
        (
            self.scale * f32::from(scale),
            self.minimum * f32::from(minimum),
        )
    }
}

/// The blocks of `BYTES` with the values they decode to.
fn blocks<'a, const BYTES: usize>(
    bytes: &'a [u8],
    out: &'a mut [f32],
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a mut [f32])> {
    let values = if BYTES > 100 { 256 } else { 32 };
    bytes.as_chunks().0.iter().zip(out.chunks_exact_mut(values))
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// A nibble with its fifth bit, the lowest of `fifth`.
fn five_bits(nibble: u8, fifth: u32) -> u8 {
    nibble | ((fifth as u8) & 1) << 4
}

fn scaled_by(scale: f32, signed: u8) -> f32 {
    scale * f32::from(signed.cast_signed())
}
