//! Normalisation of a segment.

use crate::reference::fold_lanes;

/// `x / sqrt(mean square + eps) * weight`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let squares = fold_lanes(0..x.len(), |sum, i| x[i].mul_add(x[i], sum));
    let r = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * r * w).collect()
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias`.
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let mean = fold_lanes(0..x.len(), |sum, i| sum + x[i]) / x.len() as f32;
    let d: Vec<f32> = x.iter().map(|x| x - mean).collect();
    let squares = fold_lanes(0..x.len(), |sum, i| d[i].mul_add(d[i], sum));
    let r = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    let bias = |i: usize| bias.map_or(0.0, |bias| bias[i]);
    (0..x.len())
        .map(|i| (d[i] * r).mul_add(weight[i], bias(i)))
        .collect()
}
