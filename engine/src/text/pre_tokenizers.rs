//! How the families of byte-level vocabularies cut a text before merging.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, normalizers,
};

use crate::{Error, Result};

/// A family of byte-level vocabularies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// GPT-2's pattern.
    Gpt2,
    /// Digits one by one, then GPT-2's pattern.
    SmolLm,
    /// NFC, digits one by one, no more than one character before a run of letters.
    Qwen2,
    /// Digits in threes; a piece that is a token is taken without merging.
    Llama3,
}

impl Family {
    /// The family by its name in `tokenizer.ggml.pre`.
    pub(crate) fn from_gguf(pre: &str) -> Option<Self> {
        Some(match pre {
            "" | "default" | "gpt-2" => Self::Gpt2,
            "smollm" => Self::SmolLm,
            "qwen2" => Self::Qwen2,
            "llama-bpe" | "llama3" | "llama-v3" => Self::Llama3,
            _ => return None,
        })
    }

    /// Names that [`Family::from_gguf`] knows, for messages.
    pub(crate) const GGUF_NAMES: &'static str = "gpt-2, default, smollm, qwen2, llama-bpe";

    /// The family by `tokenizer_class` of `tokenizer_config.json`.
    pub(crate) fn from_class(class: &str) -> Option<Self> {
        Some(match class.strip_suffix("Fast").unwrap_or(class) {
            "GPT2Tokenizer" => Self::Gpt2,
            "Qwen2Tokenizer" => Self::Qwen2,
            _ => return None,
        })
    }

    pub(crate) fn ignores_merges(self) -> bool {
        self == Self::Llama3
    }

    pub(crate) fn normalizer(self) -> Option<NormalizerWrapper> {
        (self == Self::Qwen2).then_some(NormalizerWrapper::NFC(normalizers::NFC))
    }

    pub(crate) fn pre_tokenizer(self) -> Result<PreTokenizerWrapper> {
        let bytes = |use_regex| PreTokenizerWrapper::from(ByteLevel::new(false, true, use_regex));
        let steps = match self {
            Self::Gpt2 => return Ok(bytes(true)),
            Self::SmolLm => vec![Digits::new(true).into(), bytes(true)],
            Self::Qwen2 => vec![split(QWEN2)?, bytes(false)],
            Self::Llama3 => vec![split(LLAMA3)?, bytes(false)],
        };
        Ok(Sequence::new(steps).into())
    }
}

/// The decoder of every byte-level vocabulary.
pub(crate) fn decoder() -> DecoderWrapper {
    ByteLevel::new(false, true, true).into()
}

fn split(pattern: &str) -> Result<PreTokenizerWrapper> {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    match Split::new(pattern, SplitDelimiterBehavior::Isolated, false) {
        Ok(split) => Ok(split.into()),
        Err(e) => Err(Error::Tokenizer(e.to_string())),
    }
}

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
