//! Text to token ids and back.

use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use tokenizers::models::bpe::BPE;
use tokenizers::{
    Decoder as _, DecoderWrapper, Model as _, NormalizedString, Normalizer as _, NormalizerWrapper,
    OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper, SplitDelimiterBehavior,
    Token,
};

use super::added_tokens::{AddedToken, AddedTokens, Match};
use super::fewest_tokens::FewestTokens;
use super::{byte_level, tokenizer_files, tokenizer_gguf};
use crate::{Error, Result};

pub use super::tokenizer_gguf::GgufVocabulary;

/// Whether the control tokens that a text spells out count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controls {
    /// They do not: `<|im_end|>` in the text is nine ordinary characters. This is what text
    /// from outside needs, so that nobody forges a turn.
    Plain,
    /// They do. For raw prompts and for what a chat template wrote.
    Recognised,
}

/// A byte-pair tokenizer with its added tokens.
///
/// ```
/// use cider::text::{Controls, GgufVocabulary, Tokenizer};
///
/// let tokenizer = Tokenizer::from_gguf(&GgufVocabulary {
///     model: "gpt2",
///     pre: "gpt-2",
///     tokens: vec!["H", "i", "Hi", "<", "|", ">", "<|i|>"],
///     token_types: vec![1, 1, 1, 1, 1, 1, 3],
///     merges: vec!["H i"],
///     ..GgufVocabulary::default()
/// })?;
/// assert_eq!(tokenizer.encode("Hi<|i|>", Controls::Recognised)?, [2, 6]);
/// assert_eq!(tokenizer.encode("Hi<|i|>", Controls::Plain)?, [2, 3, 4, 1, 4, 5]);
/// assert_eq!(tokenizer.decode(&[2, 6])?, "Hi<|i|>");
/// # Ok::<(), cider::Error>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    model: BPE,
    normalizer: Option<NormalizerWrapper>,
    splitter: Option<PreTokenizerWrapper>,
    decoder: Option<DecoderWrapper>,
    byte_level: bool,
    added: AddedTokens,
    /// `bos_token`, `eos_token`, ... as templates know them, and their text.
    named: Vec<(String, String)>,
    add_bos: bool,
    vocab_size: usize,
    /// Built for the first long text.
    fewest: OnceLock<FewestTokens>,
}

/// What a [`Tokenizer`] is built from, wherever it was read.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) model: BPE,
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) pre_tokenizer: Option<PreTokenizerWrapper>,
    pub(crate) decoder: Option<DecoderWrapper>,
    pub(crate) added: Vec<AddedToken>,
    pub(crate) named: Vec<(String, String)>,
    pub(crate) add_bos: bool,
    pub(crate) largest_id: Option<u32>,
}

impl Tokenizer {
    /// Reads the tokenizer of a checkpoint folder: `tokenizer.json`, else `vocab.json` with
    /// `merges.txt`. Added tokens and the names of the special ones are completed from
    /// `tokenizer_config.json`, `added_tokens.json` and `special_tokens_map.json`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] names the file and what is wrong with it; where no file of the
    /// accepted kinds exists, it lists them.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        Ok(Self::from_parts(tokenizer_files::read(folder)?))
    }

    /// Builds the tokenizer that the metadata of a GGUF file describes.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] names the kind of model or pre-tokenizer that is not known, or the
    /// token or merge that cannot be.
    pub fn from_gguf(vocabulary: &GgufVocabulary<'_>) -> Result<Self> {
        Ok(Self::from_parts(tokenizer_gguf::build(vocabulary)?))
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        let normalize = |text: &str| {
            let mut normalized = NormalizedString::from(text);
            let done = parts
                .normalizer
                .as_ref()
                .is_none_or(|n| n.normalize(&mut normalized).is_ok());
            if done {
                normalized.get().to_owned()
            } else {
                text.to_owned()
            }
        };
        let added = AddedTokens::new(parts.added, normalize);
        let largest = added
            .iter()
            .map(|token| token.id)
            .chain(parts.largest_id)
            .max();
        let byte_level = parts.decoder.as_ref().is_some_and(decodes_bytes)
            || (parts.decoder.is_none()
                && parts.pre_tokenizer.as_ref().is_some_and(splits_to_bytes));
        Self {
            vocab_size: largest.map_or(0, |id| id as usize + 1),
            model: parts.model,
            normalizer: parts.normalizer,
            splitter: parts.pre_tokenizer,
            decoder: parts.decoder,
            byte_level,
            added,
            named: parts.named,
            add_bos: parts.add_bos,
            fewest: OnceLock::new(),
        }
    }

    /// The ids of `text`, nothing added in front or behind.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer's own rules fail on this text.
    pub fn encode(&self, text: &str, controls: Controls) -> Result<Vec<u32>> {
        self.encode_where(text, |_| controls == Controls::Recognised)
    }

    /// The ids of a raw prompt: control tokens count, and a begin-of-text token is put in front
    /// where this tokenizer does so, unless the text brings it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(text, Controls::Recognised)?;
        if let Some(bos) = self
            .bos()
            .filter(|bos| self.add_bos && ids.first() != Some(bos))
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// As [`Tokenizer::encode`], with control tokens counting where `control` allows their range.
    pub(crate) fn encode_where(
        &self,
        text: &str,
        control: impl Fn(&Range<usize>) -> bool,
    ) -> Result<Vec<u32>> {
        self.encode_steps(text, control)
            .map_err(|e| Error::Tokenizer(e.to_string()))
    }

    /// Refuses a long text that no way of cutting it brings below `limit` tokens. Cutting takes hundreds of times the
    /// text's memory; this takes next to none. Short texts pass: their exact number is worth more.
    pub(crate) fn check_length(&self, text: &str, limit: usize) -> Result<()> {
        if text.len() < LONG_TEXT.max(limit) {
            return Ok(());
        }
        let fewest = self.fewest.get_or_init(|| {
            let ids = 0..u32::try_from(self.vocab_size).unwrap_or(u32::MAX);
            let tokens = ids.filter_map(|id| self.token_bytes(id));
            FewestTokens::new(tokens, self.is_exact())
        });
        let least = if self.keeps(text) {
            fewest.count(text.as_bytes(), limit)
        } else {
            0
        };
        if least < limit {
            return Ok(());
        }
        Err(Error::ContextSurelyExceeded { least, limit })
    }

    /// Whether the tokens of a text that the normaliser leaves alone are that text, byte for byte.
    fn is_exact(&self) -> bool {
        let unmarked = |mark: &Option<String>| mark.as_ref().is_none_or(String::is_empty);
        let plain = |token: &AddedToken| !token.lstrip && !token.rstrip && token.content.is_ascii();
        self.byte_level
            && self
                .splitter
                .as_ref()
                .is_some_and(|splitter| splits_to_bytes(splitter) && loses_nothing(splitter))
            && unmarked(&self.model.continuing_subword_prefix)
            && unmarked(&self.model.end_of_word_suffix)
            && self.added.iter().all(plain)
    }

    /// Whether the normaliser leaves every part of `text` as it is.
    fn keeps(&self, text: &str) -> bool {
        match &self.normalizer {
            None => true,
            // Parts of a text in this form have it too.
            Some(NormalizerWrapper::NFC(form)) => {
                text.is_ascii() || {
                    let mut normalized = NormalizedString::from(text);
                    form.normalize(&mut normalized).is_ok() && normalized.get() == text
                }
            }
            Some(_) => false,
        }
    }

    /// The order is that of the `tokenizers` crate: added tokens, normaliser, added tokens in
    /// the normalised text, pre-tokenizer, model.
    fn encode_steps(
        &self,
        text: &str,
        control: impl Fn(&Range<usize>) -> bool,
    ) -> tokenizers::Result<Vec<u32>> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, piece| Ok(cut(&piece, &self.added.find_raw(piece.get(), &control))))?;
        if let Some(normalizer) = &self.normalizer {
            pieces.normalize(|piece| normalizer.normalize(piece))?;
        }
        if self.added.has_normalized() {
            pieces.split(|_, piece| Ok(cut(&piece, &self.added.find_normalized(piece.get()))))?;
        }
        if let Some(splitter) = &self.splitter {
            splitter.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.model.tokenize(piece.get()))?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`, control tokens included. Bytes that are not UTF-8 become U+FFFD; ids
    /// without a token give nothing.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        match &self.decoder {
            Some(decoder) if !self.byte_level => {
                let tokens = ids.iter().filter_map(|&id| self.token(id)).collect();
                decoder
                    .decode(tokens)
                    .map_err(|e| Error::Tokenizer(e.to_string()))
            }
            _ => {
                let bytes: Vec<u8> = ids
                    .iter()
                    .filter_map(|&id| self.token_bytes(id))
                    .flatten()
                    .collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
        }
    }

    /// The bytes a token adds to the text: part of a character is possible. `None` for an id
    /// without a token.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        if let Some(token) = self.added.by_id(id) {
            return Some(token.content.clone().into_bytes());
        }
        let token = self.model.id_to_token(id)?;
        Some(if self.byte_level {
            byte_level::to_bytes(&token)
        } else if let Some(byte) = byte_of_fallback(&token) {
            vec![byte]
        } else {
            token.replace('\u{2581}', " ").into_bytes()
        })
    }

    /// The token as the vocabulary spells it.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        match self.added.by_id(id) {
            Some(token) => Some(token.content.clone()),
            None => self.model.id_to_token(id),
        }
    }

    /// The id of a token, spelt as in the vocabulary.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match self.added.by_content(token) {
            Some(token) => Some(token.id),
            None => self.model.token_to_id(token),
        }
    }

    /// The largest id plus one. A model may have more rows; those have no token.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether `id` is a control token.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.added.by_id(id).is_some_and(|token| token.special)
    }

    /// The texts of all control tokens.
    pub(crate) fn control_strings(&self) -> impl Iterator<Item = &str> {
        self.added
            .iter()
            .filter(|token| token.special)
            .map(|token| token.content.as_str())
    }

    /// The begin-of-text token.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.named("bos_token")
            .and_then(|token| self.token_id(token))
    }

    /// The end-of-text token.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.named("eos_token")
            .and_then(|token| self.token_id(token))
    }

    /// Whether raw prompts begin with [`Tokenizer::bos`]. Never applies to rendered chats: there
    /// the template writes it.
    #[must_use]
    pub fn add_bos(&self) -> bool {
        self.add_bos && self.bos().is_some()
    }

    /// The text of a special token by its name in `tokenizer_config.json`, as in `bos_token`.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&str> {
        self.named_tokens()
            .find(|(key, _)| *key == name)
            .map(|(_, token)| token)
    }

    /// All named special tokens, for the chat template.
    pub(crate) fn named_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named
            .iter()
            .map(|(name, token)| (name.as_str(), token.as_str()))
    }
}

/// Cuts a piece at the tokens found in it, which get their ids; what lies between stays text.
fn cut(piece: &NormalizedString, found: &[Match]) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
    let slice = |range| piece.slice(tokenizers::normalizer::Range::Normalized(range));
    let mut parts = Vec::with_capacity(2 * found.len() + 1);
    let mut end = 0;
    for Match { range, id } in found {
        parts.extend(slice(end..range.start).map(|text| (text, None)));
        let token =
            |text: &NormalizedString| Token::new(*id, text.get().to_owned(), (0, range.len()));
        parts.extend(slice(range.clone()).map(|text| {
            let tokens = vec![token(&text)];
            (text, Some(tokens))
        }));
        end = range.end;
    }
    parts.extend(slice(end..piece.get().len()).map(|text| (text, None)));
    parts
}

fn decodes_bytes(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(decodes_bytes),
        _ => false,
    }
}

fn splits_to_bytes(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) => true,
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref().iter().any(splits_to_bytes),
        _ => false,
    }
}

/// Whether what is cut is all of the text, and no more.
fn loses_nothing(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(bytes) => !bytes.add_prefix_space,
        PreTokenizerWrapper::Digits(_) => true,
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref().iter().all(loses_nothing),
        PreTokenizerWrapper::Split(split) => split.behavior != SplitDelimiterBehavior::Removed,
        _ => false,
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_of_fallback(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// Bytes from which a text is long.
const LONG_TEXT: usize = 256 << 10;
