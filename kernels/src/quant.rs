//! Weight formats, how activations meet them, and the bounds that keep integer sums exact.

use std::fmt;

use crate::dtype::DType;
use crate::error::{Error, Result};

/// How the weights of a linear layer are stored. A group is a run of columns (input features) that share a
/// scale; the last group of a row may be shorter; group 0 means one scale per row (output channel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Floats as they are: f32, f16 or bf16.
    Dense(DType),
    /// 4-bit integers in -8..=7 with f32 scales.
    W4 {
        /// Columns that share a scale: 0, 32, 64, 128 or 256.
        group: usize,
    },
    /// 8-bit integers with f32 scales.
    W8 {
        /// Columns that share a scale: 0, 32, 64, 128 or 256.
        group: usize,
    },
}

impl Format {
    /// Number of scales of a row of `k` columns (0 for dense weights).
    #[must_use]
    pub fn groups(self, k: usize) -> usize {
        match self {
            Self::Dense(_) => 0,
            Self::W4 { .. } | Self::W8 { .. } => k.div_ceil(self.group_size(k)),
        }
    }

    /// Columns that share a scale: the group, or all `k` per channel.
    #[must_use]
    pub fn group_size(self, k: usize) -> usize {
        match self {
            Self::W4 { group } | Self::W8 { group } if group > 0 => group,
            _ => k.max(1),
        }
    }

    /// Whether integer weights have one scale per row.
    #[must_use]
    pub fn is_per_channel(self) -> bool {
        matches!(self, Self::W4 { group: 0 } | Self::W8 { group: 0 })
    }

    /// The largest magnitude the quantiser produces: 127 or 7.
    #[must_use]
    pub fn largest(self) -> Option<i32> {
        match self {
            Self::Dense(_) => None,
            Self::W4 { .. } => Some(7),
            Self::W8 { .. } => Some(127),
        }
    }

    /// Checks the format against a matrix of `n` rows and `k` columns.
    ///
    /// # Errors
    /// When a dimension is zero, the dtype is no float, the group is not one of those served, or a sum over
    /// `k` could leave 32 bits.
    pub fn check(self, n: usize, k: usize) -> Result<()> {
        if n == 0 || k == 0 {
            return Err(Error::shape(
                "linear",
                format!("weights of {n} x {k} are empty"),
            ));
        }
        match self {
            Self::Dense(dtype) if dtype.is_float() => Ok(()),
            Self::Dense(dtype) => Err(Error::shape(
                "linear",
                format!("dense weights cannot be {dtype}"),
            )),
            Self::W4 { group } | Self::W8 { group } => {
                if ![0, 32, 64, 128, 256].contains(&group) {
                    return Err(Error::shape(
                        "linear",
                        format!("group size {group} is not one of 0, 32, 64, 128, 256"),
                    ));
                }
                let largest = if matches!(self, Self::W4 { .. }) {
                    8
                } else {
                    127
                };
                check_sum("linear", self.group_size(k).min(k), 127, largest)
            }
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(dtype) => write!(f, "{dtype}"),
            Self::W4 { group: 0 } => f.write_str("int4 per channel"),
            Self::W4 { group } => write!(f, "int4 group {group}"),
            Self::W8 { group: 0 } => f.write_str("int8 per channel"),
            Self::W8 { group } => write!(f, "int8 group {group}"),
        }
    }
}

/// Refuses a sum of `k` products of `left` and `right` (magnitudes) that could leave 32 bits.
///
/// # Errors
/// When `k * left * right > 2^31 - 1`.
pub fn check_sum(op: &'static str, k: usize, left: i64, right: i64) -> Result<()> {
    let limit = i64::from(i32::MAX) / (left * right);
    if i64::try_from(k).is_ok_and(|k| k <= limit) {
        return Ok(());
    }
    Err(Error::shape(
        op,
        format!(
            "K = {k} could overflow the 32-bit sum of values up to {left} and {right} (limit {limit})"
        ),
    ))
}

/// What a linear layer does with its float input. The phase of a token chooses it, never the row count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activations {
    /// The input stays in floats.
    Float,
    /// The input is quantised to INT8 per token.
    Int8,
}

/// Columns after which a per-group float sum starts afresh (`docs/numerics.md`, linear).
pub const SEGMENT: usize = 1024;

/// Magnitudes below this count as zero when a token is quantised: its reciprocal would overflow.
pub const SMALLEST_MAX: f32 = 1.0 / (1u128 << 100) as f32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_bounded_where_the_contract_says() {
        assert!(Format::W8 { group: 0 }.check(1, 133_144).is_ok());
        let error = Format::W8 { group: 0 }
            .check(1, 133_145)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("133145") && error.contains("133144"),
            "{error}"
        );
        assert!(check_sum("t", 132_104, 127, 128).is_ok());
        assert!(check_sum("t", 132_105, 127, 128).is_err());
        assert!(check_sum("t", 131_071, 128, 128).is_ok());
        assert!(check_sum("t", 131_072, 128, 128).is_err());
        assert!(Format::W8 { group: 64 }.check(1, 1 << 24).is_ok());
    }

    #[test]
    fn groups_count_the_shorter_last_one() {
        assert_eq!(Format::W8 { group: 64 }.groups(4304), 68);
        assert_eq!(Format::W4 { group: 32 }.groups(31), 1);
        assert_eq!(Format::W8 { group: 0 }.groups(31), 1);
        assert_eq!(Format::Dense(DType::F32).groups(31), 0);
        assert!(Format::W8 { group: 48 }.check(1, 96).is_err());
    }

    #[test]
    fn smallest_max_is_two_to_the_minus_100() {
        assert_eq!(SMALLEST_MAX, 2f32.powi(-100));
    }
}
