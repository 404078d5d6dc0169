//! Rotary position tables: frequencies and scaling rules, computed in f64 and rounded once.

use std::f64::consts::PI;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// How the rotary frequencies of a model were stretched to a longer context.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    Default,
    /// Positions divided by `factor`.
    Linear {
        /// Ratio of the new context to the original one.
        factor: f64,
    },
    /// Llama 3: low frequencies divided by `factor`, high ones kept, a blend between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// The original context length.
        original: f64,
    },
    /// `YaRN`: a blend by dimension, and a factor on the attention's scale.
    Yarn {
        /// Ratio of the new context to the original one.
        factor: f64,
        /// The original context length.
        original: f64,
        /// Rotations above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is divided.
        beta_slow: f64,
        /// The factor of cosine and sine; `0.1 ln(factor) + 1` unless the model says otherwise.
        attention_factor: f64,
        /// Whether the bounds of the blend are rounded outwards to whole dimensions.
        truncate: bool,
    },
}

/// Everything a table is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base of the geometric series of frequencies (theta).
    pub base: f64,
    /// Elements of a head that are rotated, an even number.
    pub rotary_size: usize,
    /// The stretching rule.
    pub scaling: RopeScaling,
    /// Divisors of the frequencies (GGUF's `rope_freqs`), applied instead of a rule.
    pub factors: Option<Vec<f32>>,
}

impl RopeConfig {
    /// The inverse frequencies, one per pair of elements.
    #[must_use]
    pub fn inverse_frequencies(&self) -> Vec<f64> {
        let pairs = self.rotary_size / 2;
        let plain = |i: usize| self.base.powf(-(2.0 * i as f64) / self.rotary_size as f64);
        if let Some(factors) = &self.factors {
            return (0..pairs)
                .map(|i| plain(i) / f64::from(factors[i]))
                .collect();
        }
        let (low_dim, high_dim) = self.yarn_bounds();
        (0..pairs)
            .map(|i| match self.scaling {
                RopeScaling::Default => plain(i),
                RopeScaling::Linear { factor } => plain(i) / factor,
                RopeScaling::Llama3 {
                    factor,
                    low,
                    high,
                    original,
                } => llama3(plain(i), factor, low, high, original),
                RopeScaling::Yarn { factor, .. } => {
                    let ramp = ((i as f64 - low_dim) / (high_dim - low_dim)).clamp(0.0, 1.0);
                    plain(i) / factor * ramp + plain(i) * (1.0 - ramp)
                }
            })
            .collect()
    }

    /// The factor of cosine and sine.
    #[must_use]
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn {
                attention_factor, ..
            } => attention_factor,
            _ => 1.0,
        }
    }

    /// The dimensions between which `YaRN` blends.
    fn yarn_bounds(&self) -> (f64, f64) {
        let RopeScaling::Yarn {
            original,
            beta_fast,
            beta_slow,
            truncate,
            ..
        } = self.scaling
        else {
            return (0.0, 1.0);
        };
        let size = self.rotary_size as f64;
        let dim = |rotations: f64| {
            size * (original / (rotations * 2.0 * PI)).ln() / (2.0 * self.base.ln())
        };
        let (mut low, mut high) = (dim(beta_fast), dim(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(size - 1.0));
        // A blend of no width would divide by zero; the reference widens it by the same amount.
        (low, if low == high { high + 0.001 } else { high })
    }

    fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::shape("rope", what));
        if self.rotary_size == 0 || !self.rotary_size.is_multiple_of(2) {
            return refuse(format!(
                "rotary size {} is not an even number",
                self.rotary_size
            ));
        }
        if !(self.base.is_finite() && self.base > 0.0) {
            return refuse(format!("base {} is not a positive number", self.base));
        }
        match &self.factors {
            Some(factors) if factors.len() != self.rotary_size / 2 => refuse(format!(
                "{} frequency factors for {} pairs",
                factors.len(),
                self.rotary_size / 2
            )),
            _ => Ok(()),
        }
    }
}

/// Cosines and sines of positions `0..positions`, f32 `[positions][rotary_size / 2]`.
#[derive(Debug)]
pub struct RopeTable {
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
    pub(crate) rotary_size: usize,
}

impl RopeTable {
    /// The table of a configuration.
    ///
    /// # Errors
    /// When the configuration is unusable or the memory cannot be had.
    pub fn new(config: &RopeConfig, positions: usize) -> Result<Self> {
        config.check()?;
        Self::with_frequencies(
            &config.inverse_frequencies(),
            config.attention_factor(),
            positions,
        )
    }

    /// The table of inverse frequencies, one per pair of elements; cosine and sine are multiplied by `factor`.
    ///
    /// # Errors
    /// When there are no frequencies or the memory cannot be had.
    pub fn with_frequencies(frequencies: &[f64], factor: f64, positions: usize) -> Result<Self> {
        let pairs = frequencies.len();
        if pairs == 0 {
            return Err(Error::shape("rope", "a table needs frequencies, got none"));
        }
        let mut cos = Tensor::zeros(DType::F32, positions, pairs)?;
        let mut sin = Tensor::zeros(DType::F32, positions, pairs)?;
        let cos_rows = cos.as_mut_slice::<f32>()?.chunks_exact_mut(pairs);
        let sin_rows = sin.as_mut_slice::<f32>()?.chunks_exact_mut(pairs);
        for (position, (cos, sin)) in cos_rows.zip(sin_rows).enumerate() {
            for (i, frequency) in frequencies.iter().enumerate() {
                let angle = position as f64 * frequency;
                cos[i] = (angle.cos() * factor) as f32;
                sin[i] = (angle.sin() * factor) as f32;
            }
        }
        Ok(Self {
            cos,
            sin,
            rotary_size: 2 * pairs,
        })
    }

    /// Number of positions.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.cos.rows()
    }

    /// Elements of a head that are rotated.
    #[must_use]
    pub fn rotary_size(&self) -> usize {
        self.rotary_size
    }

    /// Cosines, one row per position.
    #[must_use]
    pub fn cos(&self) -> &Tensor {
        &self.cos
    }

    /// Sines, one row per position.
    #[must_use]
    pub fn sin(&self) -> &Tensor {
        &self.sin
    }
}

fn llama3(frequency: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength < original / high {
        return frequency;
    }
    if wavelength > original / low {
        return frequency / factor;
    }
    let smooth = (original / wavelength - low) / (high - low);
    (1.0 - smooth) * frequency / factor + smooth * frequency
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: RopeScaling, base: f64, rotary_size: usize) -> RopeConfig {
        RopeConfig {
            base,
            rotary_size,
            scaling,
            factors: None,
        }
    }

    /// Frequencies at both ends of the scaling and between, by their values.
    #[test]
    fn llama3_frequencies() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original: 8192.0,
        };
        let frequencies = config(scaling, 500_000.0, 128).inverse_frequencies();
        for (i, expected) in [
            (0, 1.0),
            (28, 3.211_446e-3),
            (29, 2.166_571e-3),
            (30, 1.371_894e-3),
            (32, 5.248_462e-4),
            (34, 1.785_078e-4),
            (35, 9.556_212e-5),
            (63, 3.068_926e-7),
        ] {
            let error = (frequencies[i] / expected - 1.0).abs();
            assert!(error < 1e-5, "i{i}: {} for {expected}", frequencies[i]);
        }
    }

    #[test]
    fn factors_replace_the_rule() {
        let mut with_factors = config(RopeScaling::Default, 10_000.0, 4);
        with_factors.factors = Some(vec![1.0, 4.0]);
        let plain = config(RopeScaling::Default, 10_000.0, 4).inverse_frequencies();
        assert_eq!(
            with_factors.inverse_frequencies(),
            [plain[0], plain[1] / 4.0]
        );
        with_factors.factors = Some(vec![1.0]);
        assert!(RopeTable::new(&with_factors, 4).is_err());
    }

    #[test]
    fn tables_hold_cosine_and_sine_times_the_attention_factor() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original: 32768.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 0.1 * 4f64.ln() + 1.0,
            truncate: true,
        };
        let table = RopeTable::new(&config(scaling, 1e6, 128), 3).unwrap();
        let first = table.cos().as_slice::<f32>().unwrap()[0];
        assert!((f64::from(first) - 1.138_63).abs() < 1e-5, "{first}");
        assert_eq!(table.sin().as_slice::<f32>().unwrap()[0], 0.0);
    }
}
