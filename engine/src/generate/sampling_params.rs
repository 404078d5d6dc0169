//! How a request wants its tokens chosen.

use crate::load::GenerationConfig;
use crate::{Error, Result};

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the largest. 0 to 100.
    pub temperature: f32,
    /// Keeps the k largest; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest tokens whose probabilities reach p together. Above 0, up to 1.
    pub top_p: f32,
    /// Keeps tokens with at least this part of the largest probability. 0 to 1.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen before. Above 0, up to 100.
    pub repetition_penalty: f32,
    /// Taken from the logit of each token generated before. -2 to 2.
    pub presence_penalty: f32,
    /// Taken from the logit of a token for each time it was generated. -2 to 2.
    pub frequency_penalty: f32,
    /// Where the random numbers begin; without one, anywhere.
    pub seed: Option<u64>,
}

impl SamplingParams {
    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// [`Error::Request`] names the first value outside its range, and the range.
    pub fn validate(&self) -> Result<()> {
        let ranges = [
            (
                "temperature",
                self.temperature,
                0.0..=100.0,
                "between 0 and 100",
            ),
            (
                "top_p",
                self.top_p,
                f32::MIN_POSITIVE..=1.0,
                "above 0 and at most 1",
            ),
            ("min_p", self.min_p, 0.0..=1.0, "between 0 and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                f32::MIN_POSITIVE..=100.0,
                "above 0 and at most 100",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                -2.0..=2.0,
                "between -2 and 2",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                -2.0..=2.0,
                "between -2 and 2",
            ),
        ];
        for (name, value, range, text) in ranges {
            if !range.contains(&value) {
                return Err(Error::Request(format!(
                    "{name} is {value}, it must be {text}"
                )));
            }
        }
        Ok(())
    }
}

/// The defaults that a checkpoint brings; `do_sample: false` means greedy.
impl From<&GenerationConfig> for SamplingParams {
    fn from(config: &GenerationConfig) -> Self {
        let default = Self::default();
        let greedy = config.do_sample == Some(false);
        let temperature = config.temperature.unwrap_or(default.temperature);
        Self {
            temperature: if greedy { 0.0 } else { temperature },
            top_k: config.top_k.unwrap_or(default.top_k),
            top_p: config.top_p.unwrap_or(default.top_p),
            min_p: config.min_p.unwrap_or(default.min_p),
            repetition_penalty: config
                .repetition_penalty
                .unwrap_or(default.repetition_penalty),
            ..default
        }
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_sets_the_defaults() {
        let config = GenerationConfig {
            temperature: Some(0.5),
            top_k: Some(20),
            top_p: Some(0.75),
            ..GenerationConfig::default()
        };
        let expected = SamplingParams {
            temperature: 0.5,
            top_k: 20,
            top_p: 0.75,
            ..SamplingParams::default()
        };
        assert_eq!(SamplingParams::from(&config), expected);
        let greedy = GenerationConfig {
            do_sample: Some(false),
            ..config
        };
        let expected = SamplingParams {
            temperature: 0.0,
            ..expected
        };
        assert_eq!(SamplingParams::from(&greedy), expected);
    }

    #[test]
    fn values_outside_their_range_are_named() {
        let bad = [
            (
                SamplingParams {
                    temperature: -1.0,
                    ..SamplingParams::default()
                },
                "temperature is -1",
            ),
            (
                SamplingParams {
                    temperature: f32::NAN,
                    ..SamplingParams::default()
                },
                "temperature is NaN",
            ),
            (
                SamplingParams {
                    top_p: 0.0,
                    ..SamplingParams::default()
                },
                "top_p is 0, it must be above 0",
            ),
            (
                SamplingParams {
                    min_p: 1.5,
                    ..SamplingParams::default()
                },
                "min_p is 1.5",
            ),
            (
                SamplingParams {
                    repetition_penalty: 0.0,
                    ..SamplingParams::default()
                },
                "repetition_penalty is 0",
            ),
            (
                SamplingParams {
                    presence_penalty: 3.0,
                    ..SamplingParams::default()
                },
                "presence_penalty is 3",
            ),
            (
                SamplingParams {
                    frequency_penalty: -2.5,
                    ..SamplingParams::default()
                },
                "frequency_penalty is -2.5",
            ),
        ];
        for (params, text) in bad {
            let error = params.validate().unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
