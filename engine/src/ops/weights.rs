//! Float weights to integers in the array layouts.

use cider_kernels::Format;

use super::{Matrix, Packed};
use crate::error::Result;

/// Quantises float weights `[N, K]` to INT8: the integers `[N, K]`, and the scales `[N]` for a `group_size` of
/// 0 (per channel) or `[ceil(K / group_size), N]` for 32, 64, 128 or 256.
///
/// A scale is the largest magnitude over 127, or 1 where that is 0; integers are rounded half to even and lie
/// in -127..=127. With a `clip_percentile` (0..=100) that percentile of the magnitudes, linearly
/// interpolated, replaces the largest one, per channel and per group; where it is 0, the largest stays.
///
/// ```
/// use cider::ops::{Matrix, quantize_weight_int8};
///
/// let w = Matrix::new(&[1.0, -0.5, 0.0, 0.0], 2, 2)?;
/// let (values, scales) = quantize_weight_int8(w, 0, None)?;
/// assert_eq!(values, [127, -64, 0, 0]);
/// assert_eq!(scales, [1.0 / 127.0, 1.0]);
/// # Ok::<(), cider::Error>(())
/// ```
///
/// # Errors
/// When a weight is not finite, the group or the percentile is none that is served, or there are no weights.
pub fn quantize_weight_int8(
    w: Matrix<'_, f32>,
    group_size: usize,
    clip_percentile: Option<f64>,
) -> Result<(Vec<i8>, Vec<f32>)> {
    let format = Format::W8 { group: group_size };
    let read = |row: usize, out: &mut [f32]| out.copy_from_slice(w.row(row));
    let (shape, op) = ((w.rows(), w.cols()), "quantize_weight_int8");
    Packed::quantized(op, format, shape, &read, clip_percentile)?.read()
}

/// Quantises float weights `W[K, N]` (an output feature is a column) to INT4 and packs them: the bytes
/// `[K / 2, N]` with the even k in the high nibble and 8 added to each integer, and the scales `[N]` for a
/// `group_size` of 0 or `[ceil(K / group_size), N]`.
///
/// A scale is the largest magnitude over 7, or 1 where that is 0; integers are rounded half to even and lie
/// in -7..=7.
///
/// ```
/// use cider::ops::{Matrix, pack_weight_int4};
///
/// let w = Matrix::new(&[7.0, 3.5, -7.0, 0.0], 2, 2)?;
/// let (packed, scales) = pack_weight_int4(w, 0)?;
/// assert_eq!(packed, [0xf1, 0xf8]);
/// assert_eq!(scales, [1.0, 0.5]);
/// # Ok::<(), cider::Error>(())
/// ```
///
/// # Errors
/// When K is odd, a weight is not finite, the group is none that is served, or there are no weights.
pub fn pack_weight_int4(w: Matrix<'_, f32>, group_size: usize) -> Result<(Vec<u8>, Vec<f32>)> {
    quantized_int4("pack_weight_int4", w, group_size)?.read_packed()
}

/// Float weights `W[K, N]`, quantised to INT4.
pub(crate) fn quantized_int4(
    op: &'static str,
    w: Matrix<'_, f32>,
    group_size: usize,
) -> Result<Packed> {
    let (k, n) = (w.rows(), w.cols());
    let read = |row: usize, out: &mut [f32]| {
        for (k, out) in out.iter_mut().enumerate() {
            *out = w.data()[k * n + row];
        }
    };
    Packed::quantized(op, Format::W4 { group: group_size }, (n, k), &read, None)
}
