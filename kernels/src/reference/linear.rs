//! `y = x . w + bias` for one row of activations and one row of weights, in each of its forms.

use crate::quant::SEGMENT;

/// Float activations, float weights: k ascending, in pairs where the weights are bf16.
pub(crate) fn dense(x: &[f32], w: &[f32], pairs: bool, bias: f32) -> f32 {
    let sum = if pairs {
        dot_pairs(x, w)
    } else {
        dot(0.0, x.iter().zip(w))
    };
    sum + bias
}

/// Float activations, integer weights with one scale.
pub(crate) fn float_per_channel(x: &[f32], q: &[i8], scale: f32, bias: f32) -> f32 {
    dot_pairs(x, &floats(q)).mul_add(scale, bias)
}

/// Float activations, integer weights with a scale per `group` columns.
pub(crate) fn float_per_group(x: &[f32], q: &[i8], scales: &[f32], group: usize, bias: f32) -> f32 {
    let sums = x.chunks(group).zip(q.chunks(group));
    let sums = sums.map(|(x, q)| dot_pairs(x, &floats(q)));
    sum_groups(sums, scales, group) + bias
}

/// Quantised activations, integer weights with one scale.
pub(crate) fn int8_per_channel(x: &[i8], x_scale: f32, q: &[i8], scale: f32, bias: f32) -> f32 {
    (dot_i32(x, q) as f32).mul_add(x_scale * scale, bias)
}

/// Quantised activations, integer weights with a scale per `group` columns.
pub(crate) fn int8_per_group(
    (x, x_scale): (&[i8], f32),
    q: &[i8],
    scales: &[f32],
    group: usize,
    bias: f32,
) -> f32 {
    let sums = x.chunks(group).zip(q.chunks(group));
    let sums = sums.map(|(x, q)| dot_i32(x, q) as f32);
    sum_groups(sums, scales, group).mul_add(x_scale, bias)
}

/// The exact integer product.
pub(crate) fn dot_i32(x: &[i8], q: &[i8]) -> i32 {
    x.iter()
        .zip(q)
        .fold(0, |sum, (&x, &q)| sum + i32::from(x) * i32::from(q))
}

fn floats(q: &[i8]) -> Vec<f32> {
    q.iter().map(|&q| f32::from(q)).collect()
}

/// `sum` and the products, one after the other, each rounded once.
fn dot<'a>(sum: f32, products: impl Iterator<Item = (&'a f32, &'a f32)>) -> f32 {
    products.fold(sum, |sum, (x, w)| x.mul_add(*w, sum))
}

/// Pairs of columns in ascending order; of each pair the second is added first.
fn dot_pairs(x: &[f32], w: &[f32]) -> f32 {
    let pairs = x.chunks(2).zip(w.chunks(2));
    pairs.fold(0.0, |sum, (x, w)| dot(sum, x.iter().zip(w).rev()))
}

/// Sums of groups times their scales, in segments that start afresh.
fn sum_groups(sums: impl Iterator<Item = f32>, scales: &[f32], group: usize) -> f32 {
    let (mut total, mut segment) = (0.0f32, 0.0f32);
    for (g, (sum, scale)) in sums.zip(scales).enumerate() {
        if g > 0 && (g * group).is_multiple_of(SEGMENT) {
            total += segment;
            segment = 0.0;
        }
        segment = sum.mul_add(*scale, segment);
    }
    total + segment
}
