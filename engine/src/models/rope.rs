//! The rotary embedding of a configuration, as the kernels take it.

use cider_kernels::{RopeConfig, RopeScaling};

use crate::load;

/// The configuration of the table.
pub(super) fn config(rope: &load::RopeConfig, head_size: usize) -> RopeConfig {
    let scaling = match rope.scaling {
        load::RopeScaling::Default => RopeScaling::Default,
        load::RopeScaling::Linear { factor } => RopeScaling::Linear { factor },
        load::RopeScaling::Llama3 {
            factor,
            low,
            high,
            original,
        } => RopeScaling::Llama3 {
            factor,
            low,
            high,
            original: original as f64,
        },
        load::RopeScaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            attention_factor,
            mscale,
            mscale_all_dim,
            truncate,
        } => RopeScaling::Yarn {
            factor,
            original: original as f64,
            beta_fast,
            beta_slow,
            attention_factor: attention_factor
                .unwrap_or_else(|| yarn_factor(factor, mscale, mscale_all_dim)),
            truncate,
        },
    };
    RopeConfig {
        base: rope.base,
        rotary_size: head_size,
        scaling,
        factors: rope.factors.clone(),
    }
}

/// The factor on cosine and sine of a model that does not name it.
fn yarn_factor(factor: f64, mscale: Option<f64>, mscale_all_dim: Option<f64>) -> f64 {
    let scale = |weight: f64| {
        if factor > 1.0 {
            0.1 * weight * factor.ln() + 1.0
        } else {
            1.0
        }
    };
    match (mscale, mscale_all_dim) {
        (Some(above), Some(below)) if above != 0.0 && below != 0.0 => scale(above) / scale(below),
        _ => scale(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field case C117.
    #[test]
    fn yarn_without_a_factor_takes_the_paper_s() {
        assert!((yarn_factor(4.0, None, None) - 1.138_63).abs() < 1e-5);
        assert!((yarn_factor(40.0, Some(0.707), Some(0.707)) - 1.0).abs() < 1e-12);
        assert_eq!(yarn_factor(1.0, None, None).to_bits(), 1f64.to_bits());
    }
}
