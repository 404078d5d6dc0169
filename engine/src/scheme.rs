//! Which numbers a model runs on: the scheme of its linear layers and of its head.

use std::fmt;
use std::str::FromStr;

use cider_kernels::{Activations, DType, Format};

use crate::error::{Error, Result};

/// How the decoder's linear layers hold weights and meet prompt tokens. Generated tokens always meet float
/// activations over the same weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Floats, as the checkpoint has them.
    None,
    /// INT4 weights, float activations.
    W4A16,
    /// INT4 weights, INT8 activations in prompts.
    W4A8,
    /// INT8 weights, float activations.
    W8A16,
    /// INT8 weights, INT8 activations in prompts.
    #[default]
    W8A8,
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Self; 5] = [Self::None, Self::W8A16, Self::W4A16, Self::W8A8, Self::W4A8];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::W4A16 => "w4a16",
            Self::W4A8 => "w4a8",
            Self::W8A16 => "w8a16",
            Self::W8A8 => "w8a8",
        }
    }

    /// What prompt tokens do with their activations.
    #[must_use]
    pub fn prompt_activations(self) -> Activations {
        match self {
            Self::W4A8 | Self::W8A8 => Activations::Int8,
            Self::None | Self::W4A16 | Self::W8A16 => Activations::Float,
        }
    }

    /// The group size used when none is asked for: per channel for INT8, 64 for INT4.
    #[must_use]
    pub fn default_group(self) -> usize {
        match self {
            Self::W4A16 | Self::W4A8 => 64,
            Self::None | Self::W8A16 | Self::W8A8 => 0,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        // A 16-bit or GGUF checkpoint says nothing of a scheme; then it is this one.
        if name == "auto" {
            return Ok(Self::default());
        }
        Self::ALL
            .into_iter()
            .find(|scheme| scheme.name() == name)
            .ok_or_else(|| {
                let known = Self::ALL.map(Self::name).join(", ");
                Error::Request(format!("scheme {name} is not known: auto, {known}"))
            })
    }
}

/// How the head holds its weights. It always meets float activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Head {
    /// INT8 where the decoder is quantised, floats where it is not.
    #[default]
    Auto,
    /// INT8 per channel.
    Int8,
    /// Floats, as the checkpoint has them.
    None,
}

impl FromStr for Head {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "int8" => Ok(Self::Int8),
            "none" => Ok(Self::None),
            _ => Err(Error::Request(format!(
                "head {name} is not known: auto, int8, none"
            ))),
        }
    }
}

/// Everything that decides the formats of a model's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantization {
    /// The scheme of the decoder's linear layers.
    pub scheme: Scheme,
    /// Columns that share a scale, 0 for one scale per output channel; the scheme's default if not given.
    pub group_size: Option<usize>,
    /// The percentile of the magnitudes that replaces the maximum when weights are quantised.
    pub clip_percentile: Option<f64>,
    /// The head.
    pub head: Head,
}

impl Quantization {
    /// The plan for a scheme, with its defaults.
    #[must_use]
    pub fn of(scheme: Scheme) -> Self {
        Self {
            scheme,
            ..Self::default()
        }
    }

    /// The format of a decoder linear layer whose floats are `stored`.
    #[must_use]
    pub fn linear_format(&self, stored: DType) -> Format {
        let group = self.group_size.unwrap_or(self.scheme.default_group());
        match self.scheme {
            Scheme::None => Format::Dense(stored),
            Scheme::W4A16 | Scheme::W4A8 => Format::W4 { group },
            Scheme::W8A16 | Scheme::W8A8 => Format::W8 { group },
        }
    }

    /// The format of a head whose floats are `stored`.
    #[must_use]
    pub fn head_format(&self, stored: DType) -> Format {
        match (self.head, self.scheme) {
            (Head::None, _) | (Head::Auto, Scheme::None) => Format::Dense(stored),
            _ => Format::W8 { group: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for scheme in Scheme::ALL {
            assert_eq!(scheme.name().parse::<Scheme>().unwrap(), scheme);
        }
        assert_eq!("auto".parse::<Scheme>().unwrap(), Scheme::W8A8);
        let error = "w2a2".parse::<Scheme>().unwrap_err().to_string();
        assert!(error.contains("w2a2") && error.contains("w4a8"), "{error}");
    }

    #[test]
    fn formats_follow_the_scheme() {
        let plan = |scheme| Quantization::of(scheme);
        assert_eq!(
            plan(Scheme::W8A8).linear_format(DType::Bf16),
            Format::W8 { group: 0 }
        );
        assert_eq!(
            plan(Scheme::W4A16).linear_format(DType::Bf16),
            Format::W4 { group: 64 }
        );
        assert_eq!(
            plan(Scheme::None).head_format(DType::F16),
            Format::Dense(DType::F16)
        );
        assert_eq!(
            plan(Scheme::W4A8).head_format(DType::F16),
            Format::W8 { group: 0 }
        );
        let kept = Quantization {
            head: Head::None,
            ..plan(Scheme::W8A8)
        };
        assert_eq!(kept.head_format(DType::Bf16), Format::Dense(DType::Bf16));
    }
}
