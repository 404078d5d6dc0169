//! The instruction sets: one list, chosen from once, each forceable.

use std::fmt;
use std::str::FromStr;

use super::ceilings::{self, Peaks};
use super::scalar::Scalar;
use super::simd::Kernel;
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::error::{Error, Result};
use crate::rows::RowLayout;

/// An instruction set the CPU backend is compiled for, best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Portable code.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 with the byte dot product of AVX-VNNI.
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL with the byte dot product of AVX-512 VNNI.
    Avx512Vnni,
    /// The same with the bf16 dot product of AVX512-BF16.
    Avx512Bf16,
}

impl Isa {
    /// Every instruction set, best last.
    pub const ALL: [Self; 5] = [
        Self::Scalar,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512Vnni,
        Self::Avx512Bf16,
    ];

    /// Those that this machine has, best last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|isa| isa.why_not().is_none())
            .collect()
    }

    /// The best that this machine has.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .rfind(|isa| isa.why_not().is_none())
            .unwrap_or(Self::Scalar)
    }

    /// The name by which `CIDER_CPU` forces it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx_vnni",
            Self::Avx512Vnni => "avx512_vnni",
            Self::Avx512Bf16 => "avx512_bf16",
        }
    }

    /// What the machine lacks for it, or nothing when it can be used.
    #[must_use]
    pub fn why_not(self) -> Option<String> {
        let missing: Vec<&str> = self
            .features()
            .into_iter()
            .filter(|(_, has)| !has)
            .map(|(name, _)| name)
            .collect();
        if missing.is_empty() {
            return None;
        }
        Some(format!("this CPU lacks {}", missing.join(", ")))
    }

    /// Whether blocks of outputs may use thirty-two wide registers.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, Self::Avx512Vnni | Self::Avx512Bf16)
    }

    /// Whether the products of bf16 pairs are one instruction.
    pub(crate) fn has_bf16_dot(self) -> bool {
        self == Self::Avx512Bf16
    }

    /// How quantised activations lie in memory.
    pub(crate) fn row_layout(self) -> RowLayout {
        let bias = match self {
            Self::Scalar | Self::Avx2 => 0,
            Self::AvxVnni | Self::Avx512Vnni | Self::Avx512Bf16 => 0x80,
        };
        let panel_rows = match self {
            Self::Avx2 => 4,
            Self::Scalar | Self::AvxVnni | Self::Avx512Vnni | Self::Avx512Bf16 => self.float_rows(),
        };
        RowLayout { bias, panel_rows }
    }

    /// The most rows of a panel of floats.
    pub(crate) fn float_rows(self) -> usize {
        match self {
            Self::Scalar => 2,
            Self::Avx2 | Self::AvxVnni => 6,
            Self::Avx512Vnni | Self::Avx512Bf16 => 12,
        }
    }

    fn features(self) -> Vec<(&'static str, bool)> {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = [
                ("avx2", is_x86_feature_detected!("avx2")),
                ("fma", is_x86_feature_detected!("fma")),
                ("f16c", is_x86_feature_detected!("f16c")),
            ];
            let more = match self {
                Self::Scalar => return Vec::new(),
                Self::Avx2 => Vec::new(),
                Self::AvxVnni => vec![("avxvnni", is_x86_feature_detected!("avxvnni"))],
                Self::Avx512Vnni => x86::avx512_features(),
                Self::Avx512Bf16 => {
                    let bf16 = ("avx512bf16", is_x86_feature_detected!("avx512bf16"));
                    x86::avx512_features().into_iter().chain([bf16]).collect()
                }
            };
            avx2.into_iter().chain(more).collect()
        }
        #[cfg(not(target_arch = "x86_64"))]
        match self {
            Self::Scalar => Vec::new(),
            _ => vec![("the x86-64 architecture", false)],
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| Error::Device {
                what: format!(
                    "instruction set {name} is not known: {}",
                    Self::ALL.map(Self::name).join(", ")
                ),
            })
    }
}

/// An instruction set that was found on this machine: holding one is the proof.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level(Isa);

impl Level {
    /// Portable code, which every machine runs.
    pub(crate) const SCALAR: Self = Self(Isa::Scalar);

    /// The proof for `isa`.
    pub(crate) fn new(isa: Isa) -> Result<Self> {
        match isa.why_not() {
            None => Ok(Self(isa)),
            Some(why) => Err(Error::Device {
                what: format!("instruction set {isa}: {why}"),
            }),
        }
    }

    pub(crate) fn isa(self) -> Isa {
        self.0
    }

    /// The loops that show what this level can do at most.
    pub(crate) fn peaks(self) -> Peaks {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::peak::AVX2,
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => x86::peak::AVX_VNNI,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => x86::peak::AVX512_VNNI,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => x86::peak::AVX512_BF16,
            _ => ceilings::PORTABLE,
        }
    }

    /// Runs a kernel compiled for this level.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` found the features.
            Isa::Avx2 => unsafe { x86::avx2::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` found the features.
            Isa::AvxVnni => unsafe { x86::avx_vnni::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` found the features.
            Isa::Avx512Vnni => unsafe { x86::avx512_vnni::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` found the features.
            Isa::Avx512Bf16 => unsafe { x86::avx512_bf16::run(kernel) },
            _ => kernel.run(Scalar),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_unknown_ones_list_the_known() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse::<Isa>().unwrap(), isa);
        }
        let error = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert!(
            error.contains("sse9") && error.contains("avx512_vnni"),
            "{error}"
        );
    }

    #[test]
    fn scalar_is_everywhere_and_the_best_is_available() {
        assert!(Isa::Scalar.why_not().is_none());
        assert_eq!(Isa::available().last(), Some(&Isa::best()));
    }
}
