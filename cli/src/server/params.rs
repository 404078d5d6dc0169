//! How a request wants its tokens chosen: checked field by field, each refusal naming the field.

use std::fmt::Display;
use std::ops::RangeInclusive;

use cider::generate::SamplingParams;
use cider::text::StopMatcher;
use serde_json::Value;

use super::error::ApiError;
use super::wire::{ChatRequest, CompletionRequest};

/// The fields that both kinds of requests have.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) top_k: Option<i64>,
    pub(super) min_p: Option<f32>,
    pub(super) repetition_penalty: Option<f32>,
    pub(super) presence_penalty: Option<f32>,
    pub(super) frequency_penalty: Option<f32>,
    pub(super) seed: Option<i64>,
    pub(super) stop: Option<&'a Value>,
    pub(super) n: Option<u32>,
    pub(super) max_tokens: Option<u32>,
    pub(super) max_completion_tokens: Option<u32>,
}

/// What they come to.
#[derive(Clone, Debug)]
pub(super) struct Params {
    pub(super) sampling: SamplingParams,
    pub(super) max_tokens: Option<usize>,
    pub(super) stops: Vec<String>,
    /// Answers to give to each prompt.
    pub(super) answers: usize,
}

/// What counts where a request says nothing, and what it may ask for at most.
#[derive(Clone, Debug, Default)]
pub(super) struct Defaults {
    pub(super) sampling: SamplingParams,
    pub(super) max_new_tokens: Option<usize>,
    pub(super) max_tokens: Option<usize>,
}

impl ChatRequest {
    /// The fields that decide how tokens are chosen.
    pub(super) fn fields(&self) -> Fields<'_> {
        Fields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            stop: self.stop.as_ref(),
            n: self.n,
            max_tokens: self.max_tokens,
            max_completion_tokens: self.max_completion_tokens,
        }
    }
}

impl CompletionRequest {
    /// The fields that decide how tokens are chosen.
    pub(super) fn fields(&self) -> Fields<'_> {
        Fields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            stop: self.stop.as_ref(),
            n: self.n,
            max_tokens: self.max_tokens,
            max_completion_tokens: self.max_completion_tokens,
        }
    }
}

impl Fields<'_> {
    /// Checks every field.
    pub(super) fn resolve(&self, defaults: &Defaults) -> Result<Params, ApiError> {
        let base = &defaults.sampling;
        // The smallest number above 0: the border itself is refused.
        let above_zero = f32::MIN_POSITIVE;
        let sampling = SamplingParams {
            temperature: within("temperature", self.temperature, 0.0..=2.0)?
                .unwrap_or(base.temperature),
            top_p: within("top_p", self.top_p, above_zero..=1.0)?.unwrap_or(base.top_p),
            top_k: match within("top_k", self.top_k, -1..=i64::MAX)? {
                Some(k) => usize::try_from(k).unwrap_or(0),
                None => base.top_k,
            },
            min_p: within("min_p", self.min_p, 0.0..=1.0)?.unwrap_or(base.min_p),
            repetition_penalty: within(
                "repetition_penalty",
                self.repetition_penalty,
                above_zero..=100.0,
            )?
            .unwrap_or(base.repetition_penalty),
            presence_penalty: within("presence_penalty", self.presence_penalty, -2.0..=2.0)?
                .unwrap_or(base.presence_penalty),
            frequency_penalty: within("frequency_penalty", self.frequency_penalty, -2.0..=2.0)?
                .unwrap_or(base.frequency_penalty),
            seed: self.seed.map(i64::cast_unsigned),
        };
        Ok(Params {
            sampling,
            max_tokens: self.max_tokens(defaults)?,
            stops: stops(self.stop)?,
            answers: within("n", self.n, 1..=MAX_ANSWERS)?.unwrap_or(1) as usize,
        })
    }

    fn max_tokens(&self, defaults: &Defaults) -> Result<Option<usize>, ApiError> {
        let older = within("max_tokens", self.max_tokens, 1..=u32::MAX)?;
        let newer = within(
            "max_completion_tokens",
            self.max_completion_tokens,
            1..=u32::MAX,
        )?;
        let asked = newer
            .or(older)
            .map(|tokens| tokens as usize)
            .or(defaults.max_new_tokens);
        Ok(match (asked, defaults.max_tokens) {
            (Some(asked), Some(most)) => Some(asked.min(most)),
            (asked, most) => asked.or(most),
        })
    }
}

impl Params {
    /// The parameters of one of the answers: with a seed, each has its own.
    pub(super) fn of(&self, answer: usize) -> SamplingParams {
        let seed = self
            .sampling
            .seed
            .map(|seed| seed.wrapping_add(answer as u64));
        SamplingParams {
            seed,
            ..self.sampling.clone()
        }
    }
}

/// A value that lies in its range, if there is one.
pub(super) fn within<T: PartialOrd + Display + Copy>(
    name: &str,
    value: Option<T>,
    range: RangeInclusive<T>,
) -> Result<Option<T>, ApiError> {
    match value {
        Some(value) if !range.contains(&value) => {
            let what = format!(
                "{name} is {value}, it must be from {} to {}",
                range.start(),
                range.end()
            );
            Err(ApiError::value(name, what))
        }
        value => Ok(value),
    }
}

/// A name of the client's for its request, which every piece of the answer brings back.
pub(super) fn request_id(id: Option<&String>) -> Result<(), ApiError> {
    match id {
        Some(id) if id.len() > REQUEST_ID_BYTES => {
            let what = format!(
                "request_id has {} bytes, it may have {REQUEST_ID_BYTES}",
                id.len()
            );
            Err(ApiError::value("request_id", what))
        }
        _ => Ok(()),
    }
}

/// The texts that end an answer: none, one, or a list of them.
fn stops(stop: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let refuse = |what: &str| {
        ApiError::value(
            "stop",
            format!("stop must be a text or a list of texts{what}"),
        )
    };
    let stops = match stop {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => {
            let texts = list.iter().map(|text| text.as_str().map(str::to_owned));
            texts
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| refuse(""))?
        }
        Some(_) => return Err(refuse("")),
    };
    if stops.len() > MAX_STOPS
        || stops
            .iter()
            .any(|stop| stop.is_empty() || stop.len() > MAX_STOP)
    {
        let what =
            format!(", at most {MAX_STOPS}, none of them empty or longer than {MAX_STOP} bytes");
        return Err(refuse(&what));
    }
    StopMatcher::new(&stops).map_err(|error| ApiError::from(error).at("stop"))?;
    Ok(stops)
}

/// Answers to one prompt.
const MAX_ANSWERS: u32 = 8;
/// Texts that may end an answer, and their longest.
const MAX_STOPS: usize = 16;
const MAX_STOP: usize = 1024;

/// Bytes of a `request_id`.
const REQUEST_ID_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stopping(stop: &Value) -> Result<Params, ApiError> {
        let fields = Fields {
            stop: Some(stop),
            ..Fields::default()
        };
        fields.resolve(&Defaults::default())
    }

    fn resolved(change: impl FnOnce(&mut Fields<'_>)) -> Result<Params, ApiError> {
        let mut fields = Fields::default();
        change(&mut fields);
        fields.resolve(&Defaults::default())
    }

    #[test]
    fn c052_values_outside_their_range_are_refused_by_name() {
        type Change = fn(&mut Fields<'_>);
        let bad: [(&str, Change); 16] = [
            ("temperature", |f| f.temperature = Some(-1.0)),
            ("temperature", |f| f.temperature = Some(5.0)),
            ("temperature", |f| f.temperature = Some(f32::NAN)),
            ("top_p", |f| f.top_p = Some(0.0)),
            ("top_p", |f| f.top_p = Some(1.5)),
            ("top_p", |f| f.top_p = Some(-0.1)),
            ("top_k", |f| f.top_k = Some(-2)),
            ("min_p", |f| f.min_p = Some(2.0)),
            ("min_p", |f| f.min_p = Some(-1.0)),
            ("repetition_penalty", |f| f.repetition_penalty = Some(0.0)),
            ("repetition_penalty", |f| f.repetition_penalty = Some(-1.0)),
            ("presence_penalty", |f| f.presence_penalty = Some(100.0)),
            ("frequency_penalty", |f| f.frequency_penalty = Some(-100.0)),
            ("max_tokens", |f| f.max_tokens = Some(0)),
            ("n", |f| f.n = Some(0)),
            ("n", |f| f.n = Some(9)),
        ];
        for (name, change) in bad {
            let error = resolved(change).unwrap_err();
            assert_eq!(error.body().error.param.as_deref(), Some(name));
        }
        for off in [0, -1] {
            assert_eq!(resolved(|f| f.top_k = Some(off)).unwrap().sampling.top_k, 0);
        }
    }

    #[test]
    fn c036_the_newer_name_of_the_limit_wins_and_the_server_caps_it() {
        let params =
            resolved(|f| (f.max_tokens, f.max_completion_tokens) = (Some(9), Some(5))).unwrap();
        assert_eq!(params.max_tokens, Some(5));
        let defaults = Defaults {
            max_new_tokens: Some(7),
            max_tokens: Some(8),
            ..Defaults::default()
        };
        let limit = |tokens| {
            Fields {
                max_tokens: tokens,
                ..Fields::default()
            }
            .resolve(&defaults)
            .unwrap()
            .max_tokens
        };
        assert_eq!(
            (limit(None), limit(Some(3)), limit(Some(100))),
            (Some(7), Some(3), Some(8))
        );
    }

    #[test]
    fn stops_are_a_text_or_a_list() {
        for (stop, count) in [
            (json!(null), 0),
            (json!([]), 0),
            (json!("C"), 1),
            (json!(["a", "b", "c", "d", "e"]), 5),
        ] {
            assert_eq!(stopping(&stop).unwrap().stops.len(), count, "{stop}");
        }
        for stop in [
            json!(1),
            json!(["a", 1]),
            json!(""),
            json!([""]),
            json!({}),
            json!(vec!["a"; 17]),
        ] {
            assert!(stopping(&stop).is_err(), "{stop}");
        }
    }

    #[test]
    fn answers_of_one_seed_differ() {
        let params = resolved(|f| f.seed = Some(-1)).unwrap();
        assert_eq!(
            (params.of(0).seed, params.of(1).seed),
            (Some(u64::MAX), Some(0))
        );
    }
}
