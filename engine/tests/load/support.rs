//! Small checkpoints made from nothing, and folders to put them in.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

use cider::Result;
use cider::load::Checkpoint;
use cider::load::safetensors::{self, Dtype, Tensor};
use serde_json::{Value, json};

/// A folder that is gone when the test is over.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("cider-load-{}-{number}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn open(&self) -> Result<Checkpoint> {
        Checkpoint::open(&self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// The result must be an error of one line with all of `parts` in it.
#[track_caller]
pub(crate) fn assert_refused<T>(result: Result<T>, parts: &[&str]) {
    let message = match result {
        Ok(_) => panic!("opened, although {parts:?}"),
        Err(error) => error.to_string(),
    };
    assert!(!message.contains('\n'), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

/// A tensor of a checkpoint that is made here.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl Made {
    /// Small values that bf16 and f16 hold exactly; another `seed`, other values.
    pub(crate) fn new(name: &str, shape: &[usize], seed: u32) -> Self {
        let mut state = seed
            .wrapping_mul(2_654_435_761)
            .wrapping_add(name.len() as u32)
            | 1;
        let values = (0..shape.iter().product()).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 26) as f32 - 32.0) / 64.0
        });
        let (name, shape, values) = (name.to_owned(), shape.to_vec(), values.collect());
        Self {
            name,
            dtype: Dtype::Bf16,
            shape,
            values,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let bytes = self.values.iter().map(|&value| match self.dtype {
            Dtype::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::F32 => value.to_le_bytes().to_vec(),
            other => panic!("{}", other.name()),
        });
        bytes.flatten().collect()
    }
}

/// A checkpoint in the shape of Qwen3, 64 wide, of two layers with heads wider than 64 / 4.
pub(crate) struct Tiny {
    pub(crate) config: Value,
    pub(crate) tensors: Vec<Made>,
}

impl Tiny {
    pub(crate) fn qwen3() -> Self {
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": false,
            "bos_token_id": 1,
            "dtype": "bfloat16",
            "eos_token_id": 2,
            "head_dim": 32,
            "hidden_act": "silu",
            "hidden_size": 64,
            "intermediate_size": 96,
            "max_position_embeddings": 4096,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "sliding_window": null,
            "tie_word_embeddings": true,
            "use_sliding_window": false,
            "vocab_size": 80,
        });
        let mut tensors = vec![
            Made::new("model.embed_tokens.weight", &[80, 64], 1),
            Made::new("model.norm.weight", &[64], 2),
        ];
        for layer in 0..2 {
            for (seed, (part, shape)) in (3..).zip(LAYER) {
                let name = format!("model.layers.{layer}.{part}.weight");
                tensors.push(Made::new(&name, shape, seed + 100 * layer));
            }
        }
        Self { config, tensors }
    }

    /// The same as a Llama, whose heads need no norms.
    pub(crate) fn llama() -> Self {
        let mut tiny = Self::qwen3();
        tiny.set("architectures", json!(["LlamaForCausalLM"]));
        tiny.set("model_type", json!("llama"));
        tiny.tensors
            .retain(|tensor| !tensor.name.contains("_norm."));
        tiny
    }

    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.config[key] = value;
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.config.as_object_mut().unwrap().remove(key).unwrap();
    }

    pub(crate) fn save_config(&self, folder: &Folder) {
        folder.write("config.json", self.config.to_string());
    }

    /// One file.
    pub(crate) fn save(&self, folder: &Folder) {
        self.save_config(folder);
        save_tensors(&folder.path().join("model.safetensors"), &self.tensors);
    }

    /// Three shards and their index.
    pub(crate) fn save_sharded(&self, folder: &Folder) {
        self.save_config(folder);
        let mut map = serde_json::Map::new();
        let size = self.tensors.len().div_ceil(3);
        for (shard, tensors) in self.tensors.chunks(size).enumerate() {
            let file = shard_name(shard + 1);
            save_tensors(&folder.path().join(&file), tensors);
            map.extend(
                tensors
                    .iter()
                    .map(|tensor| (tensor.name.clone(), json!(file))),
            );
        }
        let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
        folder.write(INDEX, index.to_string());
    }

    pub(crate) fn open(&self) -> Result<Checkpoint> {
        let folder = Folder::new();
        self.save(&folder);
        folder.open()
    }
}

pub(crate) fn shard_name(number: usize) -> String {
    format!("model-{number:05}-of-00003.safetensors")
}

pub(crate) fn save_tensors(path: &Path, tensors: &[Made]) {
    let bytes: Vec<_> = tensors.iter().map(Made::bytes).collect();
    let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| Tensor {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: &tensor.shape,
        bytes,
    });
    let views: Vec<_> = views.collect();
    safetensors::write(path, &views, &[("format", "pt")]).unwrap();
}

/// A metadata value: key, type, bytes.
pub(crate) fn value(key: &str, kind: u32, bytes: &[u8]) -> Vec<u8> {
    [text(key).as_slice(), &kind.to_le_bytes(), bytes].concat()
}

/// A string as GGUF has it.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A row of the table of tensors; dimensions from the fastest.
pub(crate) fn info(name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((dimensions.len() as u32).to_le_bytes());
    bytes.extend(dimensions.iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

/// A GGUF file in the making.
#[derive(Clone, Default)]
pub(crate) struct GgufFile {
    pub(crate) values: Vec<Vec<u8>>,
    pub(crate) tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl GgufFile {
    pub(crate) fn text(&mut self, key: &str, content: &str) {
        self.values.push(value(key, 8, &text(content)));
    }

    pub(crate) fn u32(&mut self, key: &str, number: u32) {
        self.values.push(value(key, 4, &number.to_le_bytes()));
    }

    pub(crate) fn f32(&mut self, key: &str, number: f32) {
        self.values.push(value(key, 6, &number.to_le_bytes()));
    }

    pub(crate) fn strings(&mut self, key: &str, strings: &[&str]) {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((strings.len() as u64).to_le_bytes());
        bytes.extend(strings.iter().flat_map(|string| text(string)));
        self.values.push(value(key, 9, &bytes));
    }

    /// Adds a tensor of f32.
    pub(crate) fn floats(&mut self, name: &str, dimensions: &[u64], values: &[f32]) {
        let bytes = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.tensors
            .push((name.to_owned(), dimensions.to_vec(), 0, bytes));
    }

    /// Takes out the value of `key`.
    pub(crate) fn remove(&mut self, key: &str) {
        let before = self.values.len();
        self.values.retain(|value| !value.starts_with(&text(key)));
        assert_eq!(self.values.len(), before - 1, "{key}");
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut data = Vec::new();
        let mut infos = Vec::new();
        for (name, dimensions, kind, bytes) in &self.tensors {
            infos.extend(info(name, dimensions, *kind, data.len() as u64));
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        let mut file = header(3, self.tensors.len() as u64, self.values.len() as u64);
        file.extend(self.values.concat());
        file.extend(infos);
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(data);
        file
    }

    pub(crate) fn open(&self) -> Result<Checkpoint> {
        let folder = Folder::new();
        Checkpoint::open(&folder.write("model.gguf", self.bytes()))
    }

    /// [`Tiny`]'s numbers as GGUF has them: a Llama's query and key rows interleaved.
    pub(crate) fn of(tiny: &Tiny, architecture: &str) -> Self {
        let mut file = Self::default();
        file.text("general.architecture", architecture);
        for (key, number) in [
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 32),
            ("attention.value_length", 32),
            ("block_count", 2),
            ("context_length", 4096),
            ("embedding_length", 64),
            ("feed_forward_length", 96),
        ] {
            file.u32(&format!("{architecture}.{key}"), number);
        }
        file.f32(
            &format!("{architecture}.attention.layer_norm_rms_epsilon"),
            1e-6,
        );
        file.f32(&format!("{architecture}.rope.freq_base"), 1e6);
        file.strings("tokenizer.ggml.tokens", &["<unk>", "a", "ĠÄ"]);
        file.u32("tokenizer.ggml.bos_token_id", 1);
        file.u32("tokenizer.ggml.eos_token_id", 2);
        for tensor in &tiny.tensors {
            let mut name = tensor.name.replace("model.layers.", "blk.");
            for (canonical, gguf) in GGUF_NAMES {
                name = name.replace(canonical, gguf);
            }
            let dimensions: Vec<_> = tensor.shape.iter().rev().map(|&n| n as u64).collect();
            let swapped = architecture == "llama" && (name.contains("_q.") || name.contains("_k."));
            let values = if swapped {
                interleave(tensor)
            } else {
                tensor.values.clone()
            };
            file.floats(&name, &dimensions, &values);
        }
        file
    }
}

pub(crate) fn header(version: u32, tensors: u64, values: u64) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(values.to_le_bytes());
    bytes
}

/// Puts row `i` of a head's first half at `2 i` and that of its second at `2 i + 1`.
fn interleave(tensor: &Made) -> Vec<f32> {
    let cols = if tensor.shape.len() == 1 {
        1
    } else {
        tensor.shape[1]
    };
    let heads = tensor.values.chunks_exact(32 * cols);
    let interleaved = heads.flat_map(|head| {
        let (first, second) = head.split_at(16 * cols);
        let pairs = first.chunks_exact(cols).zip(second.chunks_exact(cols));
        pairs
            .flat_map(|(first, second)| [first, second].concat())
            .collect::<Vec<_>>()
    });
    interleaved.collect()
}

/// The index of a sharded checkpoint.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

const LAYER: [(&str, &[usize]); 11] = [
    ("input_layernorm", &[64]),
    ("self_attn.q_proj", &[128, 64]),
    ("self_attn.k_proj", &[64, 64]),
    ("self_attn.v_proj", &[64, 64]),
    ("self_attn.o_proj", &[64, 128]),
    ("self_attn.q_norm", &[32]),
    ("self_attn.k_norm", &[32]),
    ("post_attention_layernorm", &[64]),
    ("mlp.gate_proj", &[96, 64]),
    ("mlp.up_proj", &[96, 64]),
    ("mlp.down_proj", &[64, 96]),
];

const GGUF_NAMES: [(&str, &str); 14] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
