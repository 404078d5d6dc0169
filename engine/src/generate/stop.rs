//! Why and where a text ends.

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
    /// The time of the request was over.
    Deadline,
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
            Self::Deadline => "deadline",
        }
    }
}

/// All ids that end a text, in ascending order: those of `generation_config.json`, of
/// `config.json`, the tokenizer's, and the one with which the template ends a turn.
#[must_use]
pub fn eos_ids(
    generation: &[u32],
    config: &[u32],
    tokenizer: Option<u32>,
    turn_end: Option<u32>,
) -> Vec<u32> {
    let mut ids = [generation, config].concat();
    ids.extend(tokenizer);
    ids.extend(turn_end);
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_counts_once() {
        assert_eq!(eos_ids(&[300, 301], &[], Some(302), None), [300, 301, 302]);
        assert_eq!(eos_ids(&[], &[9], Some(9), Some(4)), [4, 9]);
        assert_eq!(eos_ids(&[], &[], None, None), [0; 0]);
    }
}
