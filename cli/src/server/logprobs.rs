//! Logarithms of probabilities in the two forms of the API.

use cider::TokenInfo;
use serde_json::{Map, Value};

use super::wire::{ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob};

/// Those of a chat, token by token.
pub(super) fn of_chat(tokens: &[TokenInfo]) -> ChatLogprobs {
    let content = tokens.iter().map(|token| TokenLogprob {
        token: text(&token.bytes),
        logprob: token.logprob,
        bytes: token.bytes.clone(),
        top_logprobs: token
            .top
            .iter()
            .map(|(_, bytes, logprob)| TopLogprob {
                token: text(bytes),
                logprob: *logprob,
                bytes: bytes.clone(),
            })
            .collect(),
    });
    ChatLogprobs {
        content: content.collect(),
    }
}

impl CompletionLogprobs {
    /// Adds tokens; `offset` is the number of characters before them and is moved behind them.
    pub(super) fn extend(&mut self, tokens: &[TokenInfo], offset: &mut usize) {
        for token in tokens {
            self.text_offset.push(*offset);
            *offset += text(&token.bytes).chars().count();
            self.tokens.push(text(&token.bytes));
            self.token_logprobs.push(token.logprob);
            let top = token
                .top
                .iter()
                .map(|(_, bytes, logprob)| (text(bytes), Value::from(*logprob)));
            self.top_logprobs.push(top.collect::<Map<_, _>>());
        }
    }
}

/// The text of a token; one that is a part of a character has replacement marks, its bytes are exact.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
