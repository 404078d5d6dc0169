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
        let (scale, fifths) = (half_at(block, 0), fifth_bits(&block[2..6]));
        let (low, high) = out.split_at_mut(16);
        let (low_fifths, high_fifths) = fifths.split_at(16);
        for ((low, &fifth), &pair) in low.iter_mut().zip(low_fifths).zip(&block[6..]) {
            *low = (f32::from((pair & 15) | fifth) - 16.0) * scale;
        }
        for ((high, &fifth), &pair) in high.iter_mut().zip(high_fifths).zip(&block[6..]) {
            *high = (f32::from((pair >> 4) | fifth) - 16.0) * scale;
        }
    }
}

/// 32 five-bit values, a scale and a minimum.
pub(super) fn decode_q5_1(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<24>(bytes, out) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        let fifths = fifth_bits(&block[4..8]);
        let (low, high) = out.split_at_mut(16);
        let (low_fifths, high_fifths) = fifths.split_at(16);
        for ((low, &fifth), &pair) in low.iter_mut().zip(low_fifths).zip(&block[8..]) {
            *low = f32::from((pair & 15) | fifth) * scale + minimum;
        }
        for ((high, &fifth), &pair) in high.iter_mut().zip(high_fifths).zip(&block[8..]) {
            *high = f32::from((pair >> 4) | fifth) * scale + minimum;
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
            let (first, second) = nibbles.split_at(32);
            let mut quarters = out.chunks_exact_mut(32).zip(scales.chunks(2));
            let mut next = || {
                quarters.next().map(|(out, scales)| {
                    (
                        out,
                        [scaled_by(scale, scales[0]), scaled_by(scale, scales[1])],
                    )
                })
            };
            decode_q6_k_quarter::<0, 0>(first, pairs, next());
            decode_q6_k_quarter::<0, 2>(second, pairs, next());
            decode_q6_k_quarter::<4, 4>(first, pairs, next());
            decode_q6_k_quarter::<4, 6>(second, pairs, next());
        }
    }
}

/// 32 values in two groups of 16. The shifts are constants so that the loop becomes vectors.
fn decode_q6_k_quarter<const NIBBLE: u32, const PAIR: u32>(
    nibbles: &[u8],
    pairs: &[u8],
    quarter: Option<(&mut [f32], [f32; 2])>,
) {
    let Some((out, scales)) = quarter else { return };
    let groups = nibbles.chunks_exact(16).zip(pairs.chunks_exact(16));
    for ((out, (nibbles, pairs)), scale) in out.chunks_exact_mut(16).zip(groups).zip(scales) {
        for ((out, &nibble), &pair) in out.iter_mut().zip(nibbles).zip(pairs) {
            let q = ((nibble >> NIBBLE) & 15) | ((pair >> PAIR) & 3) << 4;
            *out = scale * f32::from(q.cast_signed() - 32);
        }
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

/// Four bytes of fifth bits, lowest first, each bit as the 16 it stands for.
fn fifth_bits(packed: &[u8]) -> [u8; 32] {
    let mut fifths = [0; 32];
    for (to, &byte) in fifths.chunks_exact_mut(8).zip(packed) {
        // Eight copies, of which byte i keeps bit i; adding 127 carries any bit to the top.
        let spread = (u64::from(byte) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let tops = (spread + 0x7f7f_7f7f_7f7f_7f7f) & 0x8080_8080_8080_8080;
        to.copy_from_slice(&(tops >> 3).to_le_bytes());
    }
    fifths
}

fn scaled_by(scale: f32, signed: u8) -> f32 {
    scale * f32::from(signed.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::super::tensor::Encoding;
    use super::*;

    /// Value `i` of a block, from the formats' definitions, bit by bit and in f64, which is exact.
    fn value(encoding: Encoding, block: &[u8], i: usize) -> f64 {
        let half = |at: usize| f64::from(half_at(block, at));
        let nibble = |byte: u8, high: usize| f64::from((byte >> (4 * high)) & 15);
        let bit = |byte: u8, bit: usize| f64::from((byte >> bit) & 1);
        let small = |at: usize| nibble(block[at + i % 16], i / 16);
        let fifth = |at: usize| 16.0 * bit(block[at + i / 8], i % 8);
        match encoding {
            Encoding::Q8_0 => half(0) * f64::from(block[2 + i].cast_signed()),
            Encoding::Q4_0 => half(0) * (small(2) - 8.0),
            Encoding::Q4_1 => half(0) * small(4) + half(2),
            Encoding::Q5_0 => half(0) * (small(6) + fifth(2) - 16.0),
            Encoding::Q5_1 => half(0) * (small(8) + fifth(4)) + half(2),
            Encoding::Q4K | Encoding::Q5K => {
                let (scale, minimum) = six_bits(&block[4..16], i / 32);
                let fifth = f64::from(u8::from(encoding == Encoding::Q5K));
                let nibbles = if encoding == Encoding::Q5K { 48 } else { 16 };
                let q = nibble(block[nibbles + i / 64 * 32 + i % 32], i / 32 % 2)
                    + fifth * 16.0 * bit(block[16 + i % 32], i / 32);
                half(0) * scale * q - half(2) * minimum
            }
            Encoding::Q6K => {
                let (part, quarter, l) = (i / 128, i % 128 / 32, i % 32);
                let low = nibble(block[64 * part + 32 * (quarter % 2) + l], quarter / 2);
                let high = (block[128 + 32 * part + l] >> (2 * quarter)) & 3;
                let scale = f64::from(block[192 + i / 16].cast_signed());
                half(208) * scale * (low + 16.0 * f64::from(high) - 32.0)
            }
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 => panic!("no blocks"),
        }
    }

    fn six_bits(packed: &[u8], group: usize) -> (f64, f64) {
        let (scale, minimum) = match group {
            0..4 => (packed[group] & 63, packed[group + 4] & 63),
            _ => (
                (packed[group + 4] & 15) + packed[group - 4] / 64 * 16,
                packed[group + 4] / 16 + packed[group] / 64 * 16,
            ),
        };
        (f64::from(scale), f64::from(minimum))
    }

    /// Blocks of any bits, but for the halves, which are ordinary numbers.
    fn random_blocks(encoding: Encoding, count: usize) -> Vec<u8> {
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let (_, size) = encoding.block();
        let mut bytes: Vec<_> = (0..count * size).map(|_| next()).collect();
        for block in bytes.chunks_exact_mut(size) {
            let halves: &[usize] = if encoding == Encoding::Q6K {
                &[208]
            } else {
                &[0, 2]
            };
            for &at in halves {
                let number = f32::from(next().cast_signed()) / 1024.0;
                block[at..at + 2].copy_from_slice(&f16::from_f32(number).to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn blocks_decode_to_their_definition() {
        for encoding in [
            Encoding::Q8_0,
            Encoding::Q4_0,
            Encoding::Q4_1,
            Encoding::Q5_0,
            Encoding::Q5_1,
            Encoding::Q4K,
            Encoding::Q5K,
            Encoding::Q6K,
        ] {
            let (values, size) = encoding.block();
            let bytes = random_blocks(encoding, 50);
            let mut decoded = vec![f32::NAN; 50 * values];
            encoding.decode(&bytes, &mut decoded);
            for (block, decoded) in bytes.chunks(size).zip(decoded.chunks(values)) {
                for (i, found) in decoded.iter().enumerate() {
                    let expected = value(encoding, block, i) as f32;
                    assert_eq!(
                        found.to_bits(),
                        expected.to_bits(),
                        "{} {i}",
                        encoding.name()
                    );
                }
            }
        }
    }

    #[test]
    fn floats_decode_at_any_address_and_length() {
        for count in [1, 7, 63, 64, 65, 200] {
            let values: Vec<_> = (0..count).map(|i: u16| f32::from(i) - 99.5).collect();
            let mut decoded = vec![0.0; values.len()];
            // One byte before, so that some address is odd.
            let mut bytes = vec![0];
            bytes.extend(
                values
                    .iter()
                    .flat_map(|value| f16::from_f32(*value).to_le_bytes()),
            );
            decode_f16(&bytes[1..], &mut decoded);
            assert_eq!(decoded, values);
            bytes.truncate(1);
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            decode_f32(&bytes[1..], &mut decoded);
            assert_eq!(decoded, values);
            bytes.truncate(1);
            bytes.extend(
                values
                    .iter()
                    .flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()),
            );
            decode_bf16(&bytes[1..], &mut decoded);
            assert_eq!(decoded, values);
        }
        let special = [
            f16::INFINITY,
            f16::NEG_INFINITY,
            f16::from_bits(1),
            f16::MAX,
            f16::NEG_ZERO,
        ];
        let bytes: Vec<_> = special.iter().flat_map(|half| half.to_le_bytes()).collect();
        let mut decoded = [0.0; 5];
        decode_f16(&bytes, &mut decoded);
        let expected = [
            f32::INFINITY,
            f32::NEG_INFINITY,
            2f32.powi(-24),
            65504.0,
            -0.0,
        ];
        assert_eq!(decoded.map(f32::to_bits), expected.map(f32::to_bits));
    }
}
