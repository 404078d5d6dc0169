//! Attention in f64, and how far f32 may be from it.

use cider_kernels::KV_BLOCK;

use super::Spec;
use crate::cases::Output;
use crate::compare::{Bounded, EXP_ERROR, EXP_FLOOR, UNIT, UNIT_BF16, gamma, same_bits, within};

impl Spec {
    pub(super) fn check(self, outputs: &[Output]) -> Result<f64, String> {
        if let Some(second) = outputs.get(1) {
            let second = Output {
                name: outputs[0].name,
                ..second.clone()
            };
            same_bits(&outputs[..1], &[second]).map_err(|what| format!("in chunks: {what}"))?;
        }
        let (runs, queries) = (self.runs().0, self.queries());
        let cols = self.heads() * self.size;
        let mut worst = 0.0f64;
        for (sequence, run) in runs.iter().enumerate() {
            for head in 0..self.heads() {
                let end = run.first_position + run.rows;
                let pairs: Vec<_> = (0..end)
                    .map(|place| self.stored_pair(sequence, head / self.ratio, place))
                    .collect();
                for i in 0..run.rows {
                    let (row, place) = (run.first_row + i, run.first_position + i);
                    let start = row * cols + head * self.size;
                    let q = &queries[start..start + self.size];
                    let expected = self.attend(q, &pairs[self.sight.keys(place, end)]);
                    let out = Output {
                        rows: 1,
                        cols: self.size,
                        bits: outputs[0].bits[start..start + self.size].to_vec(),
                        ..outputs[0].clone()
                    };
                    let used = within(&out, |_, d| expected[d])
                        .map_err(|what| format!("row {row}, head {head}: {what}"))?;
                    worst = worst.max(used);
                }
            }
        }
        Ok(worst)
    }

    /// The plain softmax in f64, and how far blocks, merges and roundings may lead from it.
    fn attend(self, q: &[f32], pairs: &[(Vec<f64>, Vec<f64>)]) -> Vec<Bounded> {
        let scale = f64::from(self.scale());
        let dot = |key: &[f64], absolute: bool| -> f64 {
            let products = q.iter().zip(key).map(|(q, k)| f64::from(*q) * k);
            if absolute {
                products.map(f64::abs).sum()
            } else {
                products.sum()
            }
        };
        let scores: Vec<f64> = pairs
            .iter()
            .map(|(key, _)| dot(key, false) * scale)
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        // The error of a weight, relative to it: its score, its distance from the largest, one exponential and two
        // roundings in its block and in each merge, the sums, the scale of its value, and its own rounding.
        let merges = pairs.len().div_ceil(KV_BLOCK) + 1;
        let steps = (EXP_ERROR + 2.0 * UNIT) * merges as f64 + gamma(KV_BLOCK + merges + 3);
        let steps = steps
            + if self.rounds_weights() {
                UNIT_BF16
            } else {
                0.0
            };
        let relative = |j: usize| {
            let score = gamma(q.len() + 2) * dot(&pairs[j].0, true) * scale.abs();
            (2.0 * score + 2.0 * UNIT * (scores[j] - max).abs() + steps).exp_m1()
        };
        let errors: Vec<f64> = (0..pairs.len())
            .map(|j| {
                let rounding = if weights[j] == 0.0 {
                    0.0
                } else {
                    weights[j] * relative(j)
                };
                rounding + EXP_FLOOR * merges as f64
            })
            .collect();
        (0..self.size)
            .map(|d| {
                let v = |j: usize| pairs[j].1[d];
                let value = (0..pairs.len()).map(|j| weights[j] * v(j)).sum::<f64>() / sum;
                let error: f64 = (0..pairs.len())
                    .map(|j| errors[j] * (v(j).abs() + value.abs()))
                    .sum::<f64>()
                    / sum;
                let normal = weights.iter().all(|w| w.is_finite());
                Bounded {
                    value: if normal { value } else { f64::NAN },
                    error: error * 1.01 + UNIT * value.abs(),
                }
            })
            .collect()
    }
}
