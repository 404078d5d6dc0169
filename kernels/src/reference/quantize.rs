//! Floats to integers: activations per row, weights per group.

use crate::error::{Error, Result};
use crate::quant::{Format, SMALLEST_MAX};

/// Quantises a row of activations to -127..=127 and returns its scale. A row with a NaN or an infinity gives
/// zeros and a NaN scale.
pub(crate) fn quantize_row(x: &[f32], q: &mut [i8]) -> f32 {
    // Magnitudes order as their bits do, NaN above infinity above every number.
    let max = x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
    let max = f32::from_bits(max);
    if !max.is_finite() || max < SMALLEST_MAX {
        q.fill(0);
        return if max.is_finite() { 1.0 } else { f32::NAN };
    }
    let inverse = 127.0 / max;
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    max / 127.0
}

/// Quantises row `row` of a weight matrix, each group alone; `scales` gets one scale per group.
///
/// # Errors
/// When a weight is not finite.
pub(crate) fn quantize_weights(
    format: Format,
    clip_percentile: Option<f64>,
    row: usize,
    w: &[f32],
    (q, scales): (&mut [i8], &mut [f32]),
) -> Result<()> {
    check_finite(row, w)?;
    let largest = format.largest().unwrap_or(127);
    let size = format.group_size(w.len());
    let groups = w.chunks(size).zip(q.chunks_mut(size)).zip(scales);
    for ((w, q), scale) in groups {
        *scale = quantize_group(w, clip_percentile, largest, q);
    }
    Ok(())
}

/// Refuses a row of weights with a value that is not finite.
pub(crate) fn check_finite(row: usize, w: &[f32]) -> Result<()> {
    match w.iter().position(|w| !w.is_finite()) {
        None => Ok(()),
        Some(column) => Err(Error::shape(
            "weights",
            format!(
                "row {row}, column {column} is {}, expected a finite number",
                w[column]
            ),
        )),
    }
}

/// Quantises weights that share a scale, and returns it.
fn quantize_group(w: &[f32], clip_percentile: Option<f64>, largest: i32, q: &mut [i8]) -> f32 {
    let largest = largest as f32;
    let max = w.iter().fold(0.0f32, |max, w| max.max(w.abs()));
    let clip = clip_percentile.map_or(max, |p| {
        percentile(&mut w.iter().map(|w| w.abs()).collect::<Vec<_>>(), p)
    });
    let scale = if clip == 0.0 { max } else { clip } / largest;
    let scale = if scale == 0.0 { 1.0 } else { scale };
    for (q, w) in q.iter_mut().zip(w) {
        *q = (w / scale).round_ties_even().clamp(-largest, largest) as i8;
    }
    scale
}

/// The percentile `p` (0..=100) of magnitudes by linear interpolation between order statistics, in f64,
/// rounded once. Sorts the values.
pub(crate) fn percentile(values: &mut [f32], p: f64) -> f32 {
    values.sort_unstable_by(f32::total_cmp);
    let Some(last) = values.len().checked_sub(1) else {
        return 0.0;
    };
    let place = p / 100.0 * last as f64;
    let below = (place.floor() as usize).min(last);
    let above = (below + 1).min(last);
    let (low, high) = (f64::from(values[below]), f64::from(values[above]));
    (low + (high - low) * (place - below as f64)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate_linearly() {
        let mut values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(percentile(&mut values, 0.0), 1.0);
        assert_eq!(percentile(&mut values, 50.0), 2.5);
        assert_eq!(percentile(&mut values, 100.0), 4.0);
        assert_eq!(percentile(&mut [7.0], 30.0), 7.0);
    }

    #[test]
    fn a_row_is_scaled_to_127_and_ties_go_to_even() {
        let mut q = [0; 5];
        let scale = quantize_row(&[127.0, 0.5, 1.5, -2.5, -127.0], &mut q);
        assert_eq!((scale, q), (1.0, [127, 0, 2, -2, -127]));
    }

    #[test]
    fn rows_that_are_zero_or_not_finite() {
        let mut q = [9; 2];
        assert_eq!(quantize_row(&[-0.0, 1e-31], &mut q), 1.0);
        assert_eq!(q, [0, 0]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            q = [9; 2];
            assert!(quantize_row(&[1.0, bad], &mut q).is_nan());
            assert_eq!(q, [0, 0]);
        }
    }

    #[test]
    fn a_clip_of_zero_falls_back_to_the_maximum() {
        let mut q = [0; 4];
        let scale = quantize_group(&[0.0, 0.0, 0.0, 12.7], Some(50.0), 127, &mut q);
        assert_eq!((scale, q[3]), (12.7 / 127.0, 127));
        let scale = quantize_group(&[1.0, -2.0, 3.0, -100.0], Some(0.0), 127, &mut q);
        assert_eq!((scale, q), (1.0 / 127.0, [127, -127, 127, -127]));
        assert_eq!(quantize_group(&[0.0; 4], None, 7, &mut q), 1.0);
        assert_eq!(q, [0; 4]);
    }
}
