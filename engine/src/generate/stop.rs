//! Why and where a text ends.

use serde_json::Value;

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its turn, or a stop string was found.
    Stop,
    /// The limit of tokens, or of the context, was reached.
    Length,
    /// The model called a tool.
    ToolCalls,
    /// The request was cancelled.
    Cancelled,
}

impl StopReason {
    /// The word of the chat completions API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::Cancelled => "cancelled",
        }
    }
}

/// All ids that end a text, in ascending order: those that `generation_config.json` and
/// `config.json` list under `eos_token_id` (one, several or none; a model of several parts keeps
/// it under `text_config`), the tokenizer's and the one with which the template ends a turn.
#[must_use]
pub fn eos_ids(
    generation_config: Option<&Value>,
    config: Option<&Value>,
    tokenizer: Option<u32>,
    turn_end: Option<u32>,
) -> Vec<u32> {
    let key = |value: Option<&Value>| listed(value.and_then(|value| value.get("eos_token_id")));
    let mut ids = key(generation_config);
    ids.extend(key(config));
    ids.extend(key(config.and_then(|config| config.get("text_config"))));
    ids.extend(tokenizer);
    ids.extend(turn_end);
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn listed(value: Option<&Value>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(values)) => values.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_source_counts() {
        let list = json!({"eos_token_id": [300, 301]});
        assert_eq!(eos_ids(Some(&list), None, Some(302), None), [300, 301, 302]);
        let one = json!({"eos_token_id": 9});
        assert_eq!(eos_ids(None, Some(&one), Some(9), Some(4)), [4, 9]);
        let nested = json!({"text_config": {"eos_token_id": [7]}});
        assert_eq!(eos_ids(Some(&one), Some(&nested), None, None), [7, 9]);
    }

    #[test]
    fn null_missing_and_nonsense_add_nothing() {
        for value in [
            json!({"eos_token_id": null}),
            json!({}),
            json!({"eos_token_id": [-1, "x"]}),
        ] {
            assert_eq!(eos_ids(Some(&value), Some(&value), None, None), [0; 0]);
        }
    }
}
