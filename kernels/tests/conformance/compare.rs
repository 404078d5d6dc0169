//! Equality of bits, and bounds of error computed from sizes, norms and the precision of a dtype.

use cider_kernels::DType;

use crate::cases::Output;

/// Refuses outputs that differ from the reference in a bit. Every NaN equals every NaN.
pub(crate) fn same_bits(expected: &[Output], got: &[Output]) -> Result<(), String> {
    same_but_for(expected, got, 0.0)
}

/// The same, but what differs by no more than `flushed` is taken for equal.
pub(crate) fn same_but_for(
    expected: &[Output],
    got: &[Output],
    flushed: f64,
) -> Result<(), String> {
    if expected.len() != got.len() {
        return Err(format!(
            "{} outputs, expected {}",
            got.len(),
            expected.len()
        ));
    }
    for (expected, got) in expected.iter().zip(got) {
        if (expected.dtype, expected.rows, expected.cols) != (got.dtype, got.rows, got.cols) {
            return Err(format!("{}: another shape or dtype", expected.name));
        }
        let pairs = || expected.bits.iter().zip(&got.bits).enumerate();
        let differs = |i: usize| {
            let (a, b) = (expected.at(i), got.at(i));
            let equal = flushed > 0.0 && (a - b).abs() <= flushed || a.is_nan() && b.is_nan();
            expected.bits[i] != got.bits[i] && !equal
        };
        let wrong = pairs().filter(|&(i, _)| differs(i)).count();
        if let Some((i, (a, b))) = pairs().find(|&(i, _)| differs(i)) {
            return Err(format!(
                "{}[{}, {}] is {:e} ({b:#x}), expected {:e} ({a:#x}); {wrong} of {} differ",
                expected.name,
                i / expected.cols,
                i % expected.cols,
                got.at(i),
                expected.at(i),
                expected.bits.len(),
            ));
        }
    }
    Ok(())
}

/// Refuses an output further from what f64 gives than its bound; returns the largest share of a bound that
/// f32 used: what is rounded to fewer bits always uses about all of its own. Where `value` is not finite the output must not be either.
pub(crate) fn within(
    output: &Output,
    twin: impl Fn(usize, usize) -> Bounded,
) -> Result<f64, String> {
    let mut worst = 0.0f64;
    for i in 0..output.bits.len() {
        let (row, col) = (i / output.cols, i % output.cols);
        let Bounded { value, error } = twin(row, col);
        let got = output.at(i);
        let bound = rounded(output.dtype, value, error);
        let fits = if value.is_finite() {
            // An unbounded error promises nothing but a number.
            bound.is_infinite() && got.is_finite() || (got - value).abs() <= bound
        } else {
            !got.is_finite()
        };
        if !fits {
            return Err(format!(
                "{}[{row}, {col}] is {got:e}, f64 gives {value:e}, further than the bound {bound:e}",
                output.name
            ));
        }
        if output.dtype == DType::F32 && value.is_finite() && bound > 0.0 && bound.is_finite() {
            worst = worst.max((got - value).abs() / bound);
        }
    }
    Ok(worst)
}

/// What f64 gives for an element, and how far f32 may be from it before the output is rounded.
#[derive(Clone, Copy)]
pub(crate) struct Bounded {
    pub(crate) value: f64,
    pub(crate) error: f64,
}

impl Bounded {
    /// A value that must be exact.
    pub(crate) fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }
}

/// The bound of the relative error of `n` roundings in a row in f32.
pub(crate) fn gamma(n: usize) -> f64 {
    let error = n as f64 * UNIT;
    error / (1.0 - error)
}

/// The bound of the error of a sum of products in f32, of which `n` are folded one after the other and
/// `magnitude` is the sum of their magnitudes. Every step may lose half of the smallest number as well.
pub(crate) fn sum_error(n: usize, magnitude: f64) -> f64 {
    gamma(n) * magnitude + n as f64 * smallest(DType::F32)
}

/// The bound of an error once the value is rounded to `dtype`; none where it may overflow.
fn rounded(dtype: DType, value: f64, error: f64) -> f64 {
    if !dtype.is_float() {
        return error;
    }
    let magnitude = value.abs() + error;
    if magnitude >= largest(dtype) {
        return f64::INFINITY;
    }
    error + unit(dtype) * magnitude + smallest(dtype)
}

/// Half the distance from 1 to the next number: what one rounding may lose.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => UNIT_BF16,
        DType::F16 => 2f64.powi(-11),
        _ => UNIT,
    }
}

/// Half the smallest number above zero.
fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 2f64.powi(-134),
        DType::F16 => 2f64.powi(-25),
        _ => 2f64.powi(-150),
    }
}

fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        DType::Bf16 => f64::from(half::bf16::MAX.to_f32()),
        _ => f64::from(f32::MAX),
    }
}

/// The unit of f32.
pub(crate) const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
/// The unit of bf16.
pub(crate) const UNIT_BF16: f64 = 1.0 / (1u64 << 8) as f64;
/// The relative error of `exp` that numerics.md states, away from underflow.
pub(crate) const EXP_ERROR: f64 = 2.0 * UNIT;
/// Below it `exp` is zero: the smallest normal number.
pub(crate) const EXP_FLOOR: f64 = 1.0 / (1u128 << 126) as f64;
/// The fractional error of the polynomial of erfc that numerics.md states.
pub(crate) const ERFC_ERROR: f64 = 1.2e-7;
