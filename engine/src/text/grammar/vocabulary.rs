//! Our vocabulary as a tree over the bytes of its tokens.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::text::tokenizer::Tokenizer;
use crate::{Error, Result};

/// The tree: bytes for tokens of text, marked names for control tokens, nothing for ids without a token.
///
/// One id more than the tokenizer has stands for the end where no token does; no logit belongs to it.
pub(super) fn build(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<TokEnv> {
    let size = tokenizer.vocab_size();
    if size == 0 || size > MOST_TOKENS {
        let what = format!("{size} tokens, grammars take 1 to {MOST_TOKENS}");
        return Err(Error::Tokenizer(what));
    }
    let end = size as u32;
    let ends: Vec<u32> = end_tokens.iter().copied().filter(|&id| id < end).collect();
    let mut words: Vec<Vec<u8>> = (0..end).map(|id| word(tokenizer, id, &ends)).collect();
    words.push(marked("<end of the answer>"));
    let info = TokRxInfo::new(end + 1, end);
    let trie = TokTrie::from(&info, &words);
    let trie = if ends.is_empty() {
        trie
    } else {
        trie.with_eos_tokens(&ends)
    };
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

fn word(tokenizer: &Tokenizer, id: u32, ends: &[u32]) -> Vec<u8> {
    if tokenizer.is_special(id) || ends.contains(&id) {
        return tokenizer
            .token(id)
            .map_or_else(Vec::new, |name| marked(&name));
    }
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    // The mark of control tokens is a byte that occurs in no UTF-8 text, so nothing is lost.
    let possible = bytes.len() <= LONGEST && !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER);
    if possible { bytes } else { Vec::new() }
}

fn marked(name: &str) -> Vec<u8> {
    let mut bytes = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    bytes.extend_from_slice(name.as_bytes());
    bytes.truncate(LONGEST);
    bytes
}

/// The tree holds ids of 24 bits.
const MOST_TOKENS: usize = (1 << 24) - 2;
/// Bytes of a token, by the depth the tree can count.
const LONGEST: usize = 1000;
