//! Functions of one element, and of one row.
#![expect(
    clippy::excessive_precision,
    reason = "polynomials are written as docs/numerics.md writes them"
)]

use crate::backend::Gelu;

/// `e^x`, our own polynomial.
pub(crate) fn exp(x: f32) -> f32 {
    if x < EXP_LOWEST {
        return 0.0;
    }
    if x > EXP_HIGHEST {
        return f32::INFINITY;
    }
    if x.is_nan() {
        return x;
    }
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = n.mul_add(-LN_2_HIGH, x);
    let r = n.mul_add(-LN_2_LOW, r);
    let [first, rest @ ..] = EXP_POLYNOMIAL;
    let p = rest.into_iter().fold(first, |p, c| p.mul_add(r, c));
    let y = p.mul_add(r * r, r) + 1.0;
    y * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// `x * sigmoid(x)`.
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// GELU in one of its two forms.
pub(crate) fn gelu(kind: Gelu, x: f32) -> f32 {
    match kind {
        Gelu::Erf => x * normal_cdf(x),
        Gelu::Tanh => {
            let t = (x * x * x).mul_add(GELU_CUBIC, x);
            x / (1.0 + exp(-(t * GELU_TANH)))
        }
    }
}

/// The column of the largest value, the lowest on ties; `u32::MAX` where a value is not finite.
pub(crate) fn argmax(x: &[f32]) -> u32 {
    let mut best = 0;
    for (i, value) in x.iter().enumerate() {
        if !value.is_finite() {
            return u32::MAX;
        }
        if *value > x[best] {
            best = i;
        }
    }
    best as u32
}

/// The cumulative normal distribution: a rational argument, a polynomial, an exponential.
fn normal_cdf(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / z.mul_add(0.5, 1.0);
    let [first, rest @ ..] = ERF_POLYNOMIAL;
    let p = rest.into_iter().fold(first, |p, c| p.mul_add(t, c));
    let tail = 0.5 * (t * exp((-z).mul_add(z, p)));
    if x >= 0.0 { 1.0 - tail } else { tail }
}

/// Below it the result is zero: the smallest normal number.
pub(crate) const EXP_LOWEST: f32 = -87.336_54;
/// Above it the result is infinite.
pub(crate) const EXP_HIGHEST: f32 = 88.376_26;
/// ln 2 in two parts; the first has few bits, so its products with n are exact.
pub(crate) const LN_2_HIGH: f32 = 0.693_359_375;
pub(crate) const LN_2_LOW: f32 = -2.121_944_40e-4;
/// `e^r = 1 + r + r^2 * P(r)` for `|r| <= ln 2 / 2`, highest power first.
pub(crate) const EXP_POLYNOMIAL: [f32; 6] = [
    1.987_569_150_0e-4,
    1.398_199_950_7e-3,
    8.333_451_907_3e-3,
    4.166_579_589_4e-2,
    1.666_666_545_9e-1,
    5.000_000_120_1e-1,
];
/// `erfc(z) = t * e^(-z^2 + P(t))`, `t = 1 / (1 + z / 2)`, highest power first.
pub(crate) const ERF_POLYNOMIAL: [f32; 10] = [
    0.170_872_77,
    -0.822_152_23,
    1.488_515_87,
    -1.135_203_98,
    0.278_868_07,
    -0.186_288_06,
    0.096_784_18,
    0.374_091_96,
    1.000_023_68,
    -1.265_512_23,
];
pub(crate) const GELU_CUBIC: f32 = 0.044_715;
/// `2 * sqrt(2 / pi)`.
pub(crate) const GELU_TANH: f32 = 1.595_769_121_605_730_8;

#[cfg(test)]
mod tests {
    use super::*;

    /// The error that `docs/numerics.md` states, over every 997th float that has a normal result.
    #[test]
    fn exp_is_within_its_error() {
        let mut worst = 0.0f64;
        for bits in (0..EXP_HIGHEST.to_bits()).step_by(997) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let exact = f64::from(x).exp();
                if x >= EXP_LOWEST && exact >= f64::from(f32::MIN_POSITIVE) {
                    worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
                }
            }
        }
        let unit = 2f64.powi(-24);
        assert!(worst < 2.0 * unit, "{} units", worst / unit);
        assert!(
            worst > unit,
            "{} units: the statement is too weak",
            worst / unit
        );
    }

    #[test]
    fn exp_at_its_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(EXP_HIGHEST).is_finite() && exp(EXP_LOWEST) > 0.0);
        assert_eq!(exp(EXP_HIGHEST.next_up()), f32::INFINITY);
        assert_eq!(exp(EXP_LOWEST.next_down()), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }
}
