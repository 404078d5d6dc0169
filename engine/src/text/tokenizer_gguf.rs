//! The tokenizer that GGUF metadata describes.

use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};

use super::added_tokens::AddedToken;
use super::pre_tokenizers::{self, Family};
use super::tokenizer::Parts;
use crate::{Error, Result};

/// The keys `tokenizer.ggml.*` of a GGUF file.
#[derive(Clone, Debug, Default)]
pub struct GgufVocabulary<'a> {
    /// `model`: the kind of tokenizer; `gpt2` (byte-level byte pairs) is known.
    pub model: &'a str,
    /// `pre`: how a text is cut before merging; empty if the key is missing.
    pub pre: &'a str,
    /// `tokens`: the text of each id.
    pub tokens: Vec<&'a str>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 added by the model maker; empty if missing.
    pub token_types: Vec<i32>,
    /// `merges`: pairs with one space between, the best first.
    pub merges: Vec<&'a str>,
    /// `add_bos_token`: whether raw prompts begin with `bos`.
    pub add_bos: Option<bool>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// `padding_token_id`.
    pub padding: Option<u32>,
}

pub(crate) fn build(vocabulary: &GgufVocabulary<'_>) -> Result<Parts> {
    let family = family(vocabulary)?;
    if !vocabulary.token_types.is_empty() && vocabulary.token_types.len() != vocabulary.tokens.len()
    {
        return Err(Error::Tokenizer(format!(
            "tokenizer.ggml.token_type has {} entries for {} tokens",
            vocabulary.token_types.len(),
            vocabulary.tokens.len()
        )));
    }
    Ok(Parts {
        model: model(vocabulary, family)?,
        normalizer: family.normalizer(),
        pre_tokenizer: Some(family.pre_tokenizer()?),
        decoder: Some(pre_tokenizers::decoder()),
        added: added(vocabulary),
        named: named(vocabulary)?,
        // llama.cpp adds it for Llama 3 where the key is missing, and for no other family.
        add_bos: vocabulary.add_bos.unwrap_or(family == Family::Llama3),
        largest_id: u32::try_from(vocabulary.tokens.len())
            .ok()
            .and_then(|n| n.checked_sub(1)),
    })
}

fn family(vocabulary: &GgufVocabulary<'_>) -> Result<Family> {
    if vocabulary.model != "gpt2" {
        return Err(Error::Tokenizer(format!(
            "tokenizer.ggml.model {:?} is not known, only \"gpt2\"",
            vocabulary.model
        )));
    }
    if vocabulary.pre.is_empty() {
        tracing::warn!("tokenizer.ggml.pre is missing, the text is cut as GPT-2 does");
    }
    Family::from_gguf(vocabulary.pre).ok_or_else(|| {
        Error::Tokenizer(format!(
            "tokenizer.ggml.pre {:?} is not known, only {}",
            vocabulary.pre,
            Family::GGUF_NAMES
        ))
    })
}

fn model(vocabulary: &GgufVocabulary<'_>, family: Family) -> Result<BPE> {
    let mut ids = Vocab::with_capacity(vocabulary.tokens.len());
    for (id, token) in (0_u32..).zip(&vocabulary.tokens) {
        if let Some(first) = ids.insert((*token).to_owned(), id) {
            return Err(Error::Tokenizer(format!(
                "tokens {first} and {id} are both {token:?}"
            )));
        }
    }
    let mut merges = Vec::with_capacity(vocabulary.merges.len());
    for merge in &vocabulary.merges {
        merges.push(split_merge(merge)?);
    }
    build_bpe(ids, merges, |builder| {
        builder.ignore_merges(family.ignores_merges())
    })
}

/// The two halves of a merge that is written in one string.
pub(crate) fn split_merge(merge: &str) -> Result<(String, String)> {
    match merge.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
            Ok((left.to_owned(), right.to_owned()))
        }
        _ => Err(Error::Tokenizer(format!(
            "merge {merge:?} is not two tokens with a space between"
        ))),
    }
}

/// Checks what the builder of `tokenizers` takes for granted, then builds.
pub(crate) fn build_bpe(
    ids: Vocab,
    merges: Vec<(String, String)>,
    options: impl FnOnce(BpeBuilder) -> BpeBuilder,
) -> Result<BPE> {
    // The builder joins the halves in a buffer of the longest token's length.
    let longest = ids.keys().map(String::len).max().unwrap_or(0);
    if let Some((left, right)) = merges.iter().find(|(l, r)| l.len() + r.len() > longest) {
        return Err(Error::Tokenizer(format!(
            "merge of {left:?} and {right:?}: the joined token is not in the vocabulary"
        )));
    }
    let builder = options(BPE::builder().vocab_and_merges(ids, merges));
    builder
        .build()
        .map_err(|e| Error::Tokenizer(format!("merges: {e}")))
}

fn added(vocabulary: &GgufVocabulary<'_>) -> Vec<AddedToken> {
    (0_u32..)
        .zip(vocabulary.tokens.iter().zip(&vocabulary.token_types))
        .filter(|(_, (_, kind))| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED))
        .map(|(id, (content, kind))| AddedToken {
            id,
            content: (*content).to_owned(),
            special: *kind != USER_DEFINED,
            ..AddedToken::default()
        })
        .collect()
}

fn named(vocabulary: &GgufVocabulary<'_>) -> Result<Vec<(String, String)>> {
    let names = [
        ("bos_token", "bos_token_id", vocabulary.bos),
        ("eos_token", "eos_token_id", vocabulary.eos),
        ("unk_token", "unknown_token_id", vocabulary.unknown),
        ("pad_token", "padding_token_id", vocabulary.padding),
    ];
    let mut named = Vec::new();
    for (name, key, id) in names {
        let Some(id) = id else { continue };
        let token = vocabulary.tokens.get(id as usize).ok_or_else(|| {
            let len = vocabulary.tokens.len();
            Error::Tokenizer(format!(
                "tokenizer.ggml.{key} is {id}, but there are {len} tokens"
            ))
        })?;
        named.push((name.to_owned(), (*token).to_owned()));
    }
    Ok(named)
}

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
