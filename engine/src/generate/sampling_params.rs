//! How a request wants its tokens chosen.

use serde_json::Value;

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
    /// The defaults a model's `generation_config.json` sets; `do_sample: false` means greedy.
    #[must_use]
    pub fn from_generation_config(config: &Value) -> Self {
        let number = |key: &str, default: f32| {
            config
                .get(key)
                .and_then(Value::as_f64)
                .map_or(default, |value| value as f32)
        };
        let default = Self::default();
        let greedy = config.get("do_sample") == Some(&Value::Bool(false));
        let top_k = config.get("top_k").and_then(Value::as_u64);
        Self {
            temperature: if greedy {
                0.0
            } else {
                number("temperature", default.temperature)
            },
            top_k: top_k.map_or(default.top_k, |k| usize::try_from(k).unwrap_or(usize::MAX)),
            top_p: number("top_p", default.top_p),
            min_p: number("min_p", default.min_p),
            repetition_penalty: number("repetition_penalty", default.repetition_penalty),
            ..default
        }
    }

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
    fn generation_config_sets_the_defaults() {
        let config = serde_json::json!({
            "do_sample": true, "temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": null,
        });
        let expected = SamplingParams {
            temperature: 0.5,
            top_k: 20,
            top_p: 0.75,
            ..SamplingParams::default()
        };
        assert_eq!(SamplingParams::from_generation_config(&config), expected);
        let greedy = serde_json::json!({"do_sample": false, "temperature": 0.5});
        let greedy = SamplingParams::from_generation_config(&greedy);
        assert_eq!(
            greedy,
            SamplingParams {
                temperature: 0.0,
                ..SamplingParams::default()
            }
        );
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
