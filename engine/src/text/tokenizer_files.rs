//! The tokenizer files of a checkpoint folder.

use std::fmt;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};

use super::added_tokens::AddedToken;
use super::pre_tokenizers::{self, Family};
use super::tokenizer::Parts;
use super::tokenizer_gguf::{build_bpe, split_merge};
use super::tokenizer_rules;
use crate::files::{self, Unread, shown};
use crate::{Error, Result};

/// Reads what [`super::Tokenizer::from_folder`] documents.
pub(crate) fn read(folder: &Path) -> Result<Parts> {
    let config = read_json::<Value>(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let json = folder.join("tokenizer.json");
    let mut parts = if let Some(file) = read_json::<TokenizerJson>(&json)? {
        from_json(file, &json)?
    } else {
        from_vocabulary_files(folder, &config)?
    };
    add_from_config(&mut parts, folder, &config)?;
    let map = read_json::<Value>(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
    for name in NAMES {
        let found = token_text(&config, name).or_else(|| token_text(&map, name));
        if let Some(token) = found {
            parts.named.retain(|(known, _)| known != name);
            parts.named.push((name.to_owned(), token));
        } else if config.get(name).is_some_and(Value::is_null) {
            parts.named.retain(|(known, _)| known != name);
        }
    }
    if let Some(add_bos) = config.get("add_bos_token").and_then(Value::as_bool) {
        parts.add_bos = add_bos;
    }
    Ok(parts)
}

/// `tokenizer.json`, as far as it is used.
#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: ModelEntry,
}

#[derive(Deserialize)]
struct ModelEntry {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vocab: Option<VocabEntry>,
    #[serde(default)]
    merges: Vec<MergeEntry>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

fn from_json(file: TokenizerJson, path: &Path) -> Result<Parts> {
    let kind = file.model.kind.as_deref().unwrap_or("BPE");
    if kind != "BPE" {
        return Err(bad(
            path,
            format!("model.type is {kind:?}, only \"BPE\" is known"),
        ));
    }
    let vocab = file.model.vocab.as_ref().map(|vocab| &vocab.0);
    let largest_id = vocab.and_then(|ids| ids.values().max().copied());
    let bos = leading_token(file.post_processor.as_ref());
    Ok(Parts {
        model: model(file.model).map_err(|e| bad(path, e))?,
        normalizer: tokenizer_rules::read("normalizer", file.normalizer)
            .map_err(|e| bad(path, e))?,
        pre_tokenizer: tokenizer_rules::read("pre_tokenizer", file.pre_tokenizer)
            .map_err(|e| bad(path, e))?,
        decoder: tokenizer_rules::read("decoder", file.decoder).map_err(|e| bad(path, e))?,
        added: file.added_tokens,
        add_bos: bos.is_some(),
        named: bos
            .map(|token| ("bos_token".to_owned(), token))
            .into_iter()
            .collect(),
        largest_id,
    })
}

fn model(entry: ModelEntry) -> Result<BPE> {
    let refused = [
        (
            "model.continuing_subword_prefix",
            entry.continuing_subword_prefix.unwrap_or_default(),
        ),
        (
            "model.end_of_word_suffix",
            entry.end_of_word_suffix.unwrap_or_default(),
        ),
        (
            "model.dropout",
            entry
                .dropout
                .filter(|&p| p != 0.0)
                .map_or_else(String::new, |p| p.to_string()),
        ),
    ];
    if let Some((key, value)) = refused.iter().find(|(_, value)| !value.is_empty()) {
        return Err(Error::Tokenizer(format!(
            "{key} is {value}, which is not supported"
        )));
    }
    let Some(VocabEntry(ids)) = entry.vocab else {
        return Err(Error::Tokenizer("model.vocab is missing".to_owned()));
    };
    let merges = entry.merges.into_iter().map(|merge| merge.0).collect();
    build_bpe(ids, merges, |mut builder| {
        if let Some(token) = entry.unk_token {
            builder = builder.unk_token(token);
        }
        builder
            .fuse_unk(entry.fuse_unk)
            .byte_fallback(entry.byte_fallback)
            .ignore_merges(entry.ignore_merges)
    })
}

/// The token that a post-processor puts in front of a single text.
fn leading_token(processor: Option<&Value>) -> Option<String> {
    let processor = processor?;
    match processor.get("type").and_then(Value::as_str)? {
        "Sequence" => {
            let steps = processor.get("processors").and_then(Value::as_array)?;
            steps.iter().find_map(|step| leading_token(Some(step)))
        }
        "TemplateProcessing" => {
            let first = processor.get("single").and_then(|single| single.get(0))?;
            Some(first.get("SpecialToken")?.get("id")?.as_str()?.to_owned())
        }
        "BertProcessing" | "RobertaProcessing" => {
            Some(processor.get("cls")?.get(0)?.as_str()?.to_owned())
        }
        _ => None,
    }
}

/// `vocab.json` with `merges.txt`.
fn from_vocabulary_files(folder: &Path, config: &Value) -> Result<Parts> {
    let (vocab, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    let (Some(VocabEntry(ids)), Some(lines)) = (read_json(&vocab)?, read_text(&merges)?) else {
        return Err(Error::Tokenizer(format!(
            "{}: no tokenizer found, one of these is needed: tokenizer.json; vocab.json with merges.txt",
            shown(folder)
        )));
    };
    let family = family(folder, config)?;
    let largest_id = ids.values().max().copied();
    let pairs: Result<Vec<_>> = lines
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("#version"))
        .map(split_merge)
        .collect();
    let pairs = pairs.map_err(|e| bad(&merges, e))?;
    drop(lines);
    let options = |builder: tokenizers::models::bpe::BpeBuilder| {
        builder.ignore_merges(family.ignores_merges())
    };
    Ok(Parts {
        model: build_bpe(ids, pairs, options).map_err(|e| bad(&merges, e))?,
        normalizer: family.normalizer(),
        pre_tokenizer: Some(family.pre_tokenizer()?),
        decoder: Some(pre_tokenizers::decoder()),
        added: Vec::new(),
        named: Vec::new(),
        add_bos: false,
        largest_id,
    })
}

/// The tokenizer class says how the text is cut; without one, the kind of model does.
fn family(folder: &Path, config: &Value) -> Result<Family> {
    if let Some(class) = config.get("tokenizer_class").and_then(Value::as_str) {
        return Family::from_class(class).ok_or_else(|| {
            let path = folder.join("tokenizer_config.json");
            bad(&path, format!("tokenizer_class {class:?} with vocab.json is not known, a tokenizer.json is needed"))
        });
    }
    let model = read_json::<Value>(&folder.join("config.json"))?.unwrap_or_default();
    let kind = model
        .get("model_type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let qwen = kind.starts_with("qwen2") || kind.starts_with("qwen3");
    Ok(if qwen { Family::Qwen2 } else { Family::Gpt2 })
}

/// Tokens that only `tokenizer_config.json` or `added_tokens.json` know.
fn add_from_config(parts: &mut Parts, folder: &Path, config: &Value) -> Result<()> {
    if let Some(entries) = config
        .get("added_tokens_decoder")
        .and_then(Value::as_object)
    {
        let path = folder.join("tokenizer_config.json");
        for (key, value) in entries {
            let failed =
                |what: &dyn fmt::Display| bad(&path, format!("added_tokens_decoder.{key}: {what}"));
            let id: u32 = key.parse().map_err(|_| failed(&"the key is not an id"))?;
            let mut entry = value.clone();
            if let Some(entry) = entry.as_object_mut() {
                entry.insert("id".to_owned(), id.into());
            }
            add(
                parts,
                serde_json::from_value(entry).map_err(|e| failed(&e))?,
            );
        }
    }
    let path = folder.join("added_tokens.json");
    let listed = read_json::<VocabEntry>(&path)?
        .map(|ids| ids.0)
        .unwrap_or_default();
    let mut listed: Vec<_> = listed.into_iter().collect();
    listed.sort_by_key(|(_, id)| *id);
    for (content, id) in listed {
        // The file has no marks. Every such file seen lists control tokens and tags alike;
        // what looks like a control token is taken for one.
        let special = content.starts_with("<|") && content.ends_with("|>");
        add(
            parts,
            AddedToken {
                id,
                content,
                special,
                ..AddedToken::default()
            },
        );
    }
    Ok(())
}

fn add(parts: &mut Parts, token: AddedToken) {
    if parts
        .added
        .iter()
        .all(|known| known.content != token.content && known.id != token.id)
    {
        parts.added.push(token);
    }
}

/// A token in a configuration: its text, or an object that holds the text.
fn token_text(config: &Value, name: &str) -> Option<String> {
    let value = config.get(name)?;
    let text = value
        .as_str()
        .or_else(|| value.get("content").and_then(Value::as_str))?;
    Some(text.to_owned())
}

/// `None` if there is no such file. What is no file, or larger than any of its kind, is not read.
pub(super) fn read_text(path: &Path) -> Result<Option<String>> {
    match files::read(path, MAX_BYTES) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| bad(path, "not UTF-8")),
        Err(Unread::Io(e)) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(Unread::Io(e)) => Err(Error::io(path)(e)),
        Err(Unread::TooLong(length)) => {
            let what = format!("{length} bytes exceed the limit of {MAX_BYTES}");
            Err(bad(path, what))
        }
    }
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    serde_json::from_str(text)
        .map(Some)
        .map_err(|e| bad(path, e))
}

fn bad(path: &Path, what: impl fmt::Display) -> Error {
    let what = what.to_string();
    let what = what.strip_prefix("tokenizer: ").unwrap_or(&what);
    Error::Tokenizer(format!("{}: {what}", shown(path)))
}

/// A map from token to id.
struct VocabEntry(Vocab);

impl<'de> Deserialize<'de> for VocabEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from token to id")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut ids = Vocab::new();
                while let Some((token, id)) = map.next_entry::<String, u32>()? {
                    ids.insert(token, id);
                }
                Ok(ids)
            }
        }
        deserializer.deserialize_map(Tokens).map(VocabEntry)
    }
}

/// A merge: `"a b"`, or `["a", "b"]`.
struct MergeEntry((String, String));

impl<'de> Deserialize<'de> for MergeEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = (String, String);

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: \"a b\" or [\"a\", \"b\"]")
            }

            fn visit_str<E: serde::de::Error>(self, merge: &str) -> Result<Self::Value, E> {
                split_merge(merge).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let short = || A::Error::custom("a merge has two tokens");
                let left = seq.next_element()?.ok_or_else(short)?;
                let right = seq.next_element()?.ok_or_else(short)?;
                if seq.next_element::<String>()?.is_some() {
                    Err(short())
                } else {
                    Ok((left, right))
                }
            }
        }
        deserializer.deserialize_any(Pair).map(MergeEntry)
    }
}

/// Names of special tokens that chat templates may use.
const NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
];

/// The largest file that is read: the tokenizer of a vocabulary of 250,000 has some 20 megabytes.
const MAX_BYTES: u64 = 128 << 20;
