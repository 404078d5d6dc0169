//! Builds the models that `testdata` stores as recipes: F-TINY and every F-CHAIN. README.md has both formats.
//!
//! A test takes it with `#[path = "../../../testdata/recipe.rs"] mod recipe;`.
#![allow(
    dead_code,
    reason = "each test binary that includes this file uses a part of it"
)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A weight as plain numbers, so that a test can change it before it is written.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// How numbers are stored; recipe values are exact in all of them.
#[derive(Clone, Copy)]
pub(crate) enum Stored {
    Bf16,
    F32,
}

/// Copies the files of the recipe folder `source` to `target` and writes its weights as bf16.
pub(crate) fn build_model(source: &Path, target: &Path) -> Result<()> {
    copy_settings(source, target)?;
    let tensors = recipe_tensors(source)?;
    write_safetensors(&target.join("model.safetensors"), &tensors, Stored::Bf16)
}

/// Copies configuration and tokenizer.
pub(crate) fn copy_settings(source: &Path, target: &Path) -> Result<()> {
    fs::create_dir_all(target)?;
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        fs::copy(source.join(name), target.join(name))?;
    }
    Ok(())
}

/// The tensors of `source/recipe.json`, checked against its checksum.
pub(crate) fn recipe_tensors(source: &Path) -> Result<Vec<Tensor>> {
    let recipe: Value = serde_json::from_slice(&fs::read(source.join("recipe.json"))?)?;
    let seed = recipe["seed"].as_u64().ok_or("seed")?;
    let entries = recipe["tensors"].as_array().ok_or("tensors")?;
    let numbered = entries.iter().zip(0u64..);
    let tensors = numbered
        .map(|(entry, number)| recipe_tensor(entry, seed << 56 | number << 40))
        .collect::<Result<Vec<_>>>()?;
    let found = format!("{:016x}", checksum(&tensors));
    match recipe["checksum"].as_str() {
        Some(known) if known == found => Ok(tensors),
        known => Err(format!("checksum is {found}, the recipe says {known:?}").into()),
    }
}

/// Writes one safetensors file, tensors in the given order.
pub(crate) fn write_safetensors(path: &Path, tensors: &[Tensor], stored: Stored) -> Result<()> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for tensor in tensors {
        let begin = data.len();
        data.extend(encode(&tensor.values, stored));
        let dtype = match stored {
            Stored::Bf16 => "BF16",
            Stored::F32 => "F32",
        };
        let entry =
            json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [begin, data.len()]});
        header.insert(tensor.name.clone(), entry);
    }
    let mut text = serde_json::to_vec(&header)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.append(&mut text);
    file.append(&mut data);
    Ok(fs::write(path, file)?)
}

/// Writes the F-CHAIN folder of `scripts` (the content of a scripts.json).
pub(crate) fn build_chain(scripts: &Value, target: &Path) -> Result<()> {
    let chain = Chain::new(scripts)?;
    fs::create_dir_all(target)?;
    write_safetensors(
        &target.join("model.safetensors"),
        &chain.tensors(),
        Stored::Bf16,
    )?;
    let write = |name: &str, value: &Value| -> Result<()> {
        Ok(fs::write(
            target.join(name),
            serde_json::to_vec_pretty(value)?,
        )?)
    };
    write("config.json", &chain.config())?;
    write(
        "generation_config.json",
        &json!({"eos_token_id": [chain.end], "do_sample": false}),
    )?;
    write("tokenizer.json", &chain.tokenizer())?;
    let template = "{{ messages[-1].content }}";
    let settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": scripts["end"],
        "chat_template": template,
    });
    write("tokenizer_config.json", &settings)
}

/// Token numbers and successors of a set of scripts.
struct Chain {
    words: Vec<Vec<u8>>,
    numbers: BTreeMap<Vec<u8>, usize>,
    next: BTreeMap<usize, usize>,
    added: Vec<(String, bool)>,
    end: usize,
}

impl Chain {
    fn new(scripts: &Value) -> Result<Self> {
        let texts = |key: &str, control: bool| -> Result<Vec<(String, bool)>> {
            let list = scripts[key].as_array().ok_or_else(|| key.to_owned())?;
            let text = |t: &Value| Ok((t.as_str().ok_or("not a text")?.to_owned(), control));
            list.iter().map(text).collect()
        };
        let added = [texts("control", true)?, texts("marks", false)?].concat();
        let (words, numbers, next) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut chain = Self {
            words,
            numbers,
            next,
            added: added.clone(),
            end: 0,
        };
        for byte in 0..=255u8 {
            chain.number(vec![byte])?;
        }
        for (text, _) in added {
            chain.number(text.into_bytes())?;
        }
        chain.end = chain.number(piece_bytes(&scripts["end"])?)?;
        for script in scripts["scripts"].as_array().ok_or("scripts")? {
            chain.link(script)?;
        }
        Ok(chain)
    }

    fn number(&mut self, word: Vec<u8>) -> Result<usize> {
        if let Some(&number) = self.numbers.get(&word) {
            return Ok(number);
        }
        if self.words.len() == HIDDEN {
            return Err(format!("more than {HIDDEN} tokens").into());
        }
        self.numbers.insert(word.clone(), self.words.len());
        self.words.push(word);
        Ok(self.words.len() - 1)
    }

    fn link(&mut self, script: &Value) -> Result<()> {
        let list = script["pieces"].as_array().ok_or("pieces")?;
        let pieces = list
            .iter()
            .map(|piece| self.number(piece_bytes(piece)?))
            .collect::<Result<Vec<_>>>()?;
        let first = *pieces.first().ok_or("a script without pieces")?;
        let last = if script["then"] == "loop" {
            first
        } else {
            self.end
        };
        let mut token = self.number(piece_bytes(&script["select"])?)?;
        for successor in pieces.into_iter().chain([last]) {
            if *self.next.entry(token).or_insert(successor) != successor {
                let word = String::from_utf8_lossy(&self.words[token]).into_owned();
                return Err(format!("{word:?} already has another successor").into());
            }
            token = successor;
        }
        Ok(())
    }

    fn tensors(&self) -> Vec<Tensor> {
        let at = |ones: Vec<(usize, usize)>, name: &str| {
            let mut values = vec![0.0; HIDDEN * HIDDEN];
            for (row, column) in ones {
                values[row * HIDDEN + column] = 1.0;
            }
            tensor(name, &[HIDDEN, HIDDEN], values)
        };
        let fill = |name: &str, shape: &[usize], value: f32| {
            tensor(name, shape, vec![value; shape.iter().product()])
        };
        let layer = |name: &str| format!("model.layers.0.{name}.weight");
        let mut tensors = vec![at(
            (0..HIDDEN).map(|i| (i, i)).collect(),
            "model.embed_tokens.weight",
        )];
        for name in ["input_layernorm", "post_attention_layernorm"] {
            tensors.push(fill(&layer(name), &[HIDDEN], 1.0));
        }
        for name in ["self_attn.q_norm", "self_attn.k_norm"] {
            tensors.push(fill(&layer(name), &[HEAD], 1.0));
        }
        for name in [
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
        ] {
            tensors.push(fill(&layer(name), &[HEAD, HIDDEN], 0.0));
        }
        for name in ["self_attn.o_proj", "mlp.down_proj"] {
            tensors.push(fill(&layer(name), &[HIDDEN, HEAD], 0.0));
        }
        tensors.push(fill("model.norm.weight", &[HIDDEN], 1.0));
        let successors = self
            .next
            .iter()
            .map(|(&token, &next)| (next, token))
            .collect();
        tensors.push(at(successors, "lm_head.weight"));
        tensors
    }

    fn config(&self) -> Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": false,
            "head_dim": HEAD,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "intermediate_size": HEAD,
            "max_position_embeddings": 65536,
            "num_attention_heads": 1,
            "num_hidden_layers": 1,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "vocab_size": HIDDEN,
            "eos_token_id": self.end,
        })
    }

    fn tokenizer(&self) -> Value {
        let byte_level = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
        });
        let letters = byte_letters();
        let spelled = |word: &[u8]| {
            word.iter()
                .map(|&b| letters[usize::from(b)])
                .collect::<String>()
        };
        let numbered = self.words.iter().zip(0u64..);
        let vocabulary: serde_json::Map<_, _> =
            numbered.map(|(w, i)| (spelled(w), i.into())).collect();
        let added: Vec<_> = self
            .added
            .iter()
            .map(|(text, control)| self.added_token(text, *control))
            .collect();
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": null,
            "pre_tokenizer": byte_level,
            "post_processor": null,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": null,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": false,
                "byte_fallback": false,
                "ignore_merges": false,
                "vocab": vocabulary,
                "merges": [],
            },
        })
    }

    fn added_token(&self, text: &str, control: bool) -> Value {
        json!({
            "id": self.numbers[text.as_bytes()],
            "content": text,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": control,
        })
    }
}

/// The bytes of a piece: a text, or `{"hex": "f09f"}`.
fn piece_bytes(piece: &Value) -> Result<Vec<u8>> {
    if let Some(text) = piece.as_str() {
        return Ok(text.as_bytes().to_vec());
    }
    let hex = piece["hex"]
        .as_str()
        .ok_or("a piece is a text or {\"hex\": ...}")?;
    let digit = |i: usize| u8::from_str_radix(hex.get(i..i + 2).unwrap_or("?"), 16);
    Ok((0..hex.len())
        .step_by(2)
        .map(digit)
        .collect::<std::result::Result<_, _>>()?)
}

/// The letter of each byte in a byte-level vocabulary.
fn byte_letters() -> Vec<char> {
    let mut others = (256u32..).filter_map(char::from_u32);
    let letter = |byte: u8| match byte {
        33..=126 | 161..=172 | 174..=255 => Some(char::from(byte)),
        _ => others.next(),
    };
    (0..=255u8).filter_map(letter).collect()
}

fn tensor(name: &str, shape: &[usize], values: Vec<f32>) -> Tensor {
    Tensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        values,
    }
}

fn recipe_tensor(entry: &Value, first: u64) -> Result<Tensor> {
    let name = entry["name"].as_str().ok_or("name")?;
    let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone())?;
    let count = shape.iter().product();
    let bytes = (first..)
        .flat_map(|state| mixed(state).to_le_bytes())
        .take(count);
    let bytes = bytes.map(|byte| f32::from(byte.cast_signed()));
    let values = match entry["kind"].as_str() {
        Some("random") => {
            let shift = i32::try_from(entry["shift"].as_u64().ok_or("shift")?)?;
            bytes.map(|b| b * 2f32.powi(-shift)).collect()
        }
        Some("random_norm") => bytes.map(|b| (128.0 + (b / 8.0).floor()) / 128.0).collect(),
        kind => return Err(format!("{name}: unknown kind {kind:?}").into()),
    };
    Ok(tensor(name, &shape, values))
}

/// The finaliser of the `SplitMix64` generator.
fn mixed(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn encode(values: &[f32], stored: Stored) -> Vec<u8> {
    match stored {
        // Recipe values have at most 8 significant bits: cutting is exact for them.
        Stored::Bf16 => values
            .iter()
            .flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes())
            .collect(),
        Stored::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// FNV-1a over the little-endian 64-bit words of all bf16 data.
fn checksum(tensors: &[Tensor]) -> u64 {
    let mut data: Vec<u8> = tensors
        .iter()
        .flat_map(|t| encode(&t.values, Stored::Bf16))
        .collect();
    data.resize(data.len().next_multiple_of(8), 0);
    let (words, _) = data.as_chunks::<8>();
    words.iter().fold(0xCBF2_9CE4_8422_2325, |value, &word| {
        (value ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01B3)
    })
}

const HIDDEN: usize = 1024;
const HEAD: usize = 16;
