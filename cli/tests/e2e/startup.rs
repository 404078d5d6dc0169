//! Loading: how fast, how many tensors, and what the log says of it.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::support::{Outcome, f_tiny, folder, run};

#[test]
fn a_gibibyte_of_bf16_would_take_less_than_three_seconds() {
    let shape = Shape {
        hidden: 1024,
        inner: 4096,
        layers: 4,
    };
    let folder = folder("startup-bf16");
    let bytes = shape.write(&folder, 1);
    assert!(bytes > 128 << 20, "{bytes} bytes");
    for scheme in [
        &["none"][..],
        &["w8a8", "--group-size", "0"],
        &["w8a8", "--group-size", "128"],
        &["w4a8", "--group-size", "64"],
    ] {
        // Others may want the machine too: the best of some runs counts.
        let mut rates = Vec::new();
        while rates.len() < MOST_RUNS && rates.iter().all(|&rate| rate < LEAST_RATE) {
            let report = load(&folder, scheme).json();
            rates.push(bytes as f64 / 1e9 / report["load_seconds"].as_f64().unwrap());
        }
        eprintln!("{scheme:?}: {rates:.2?} GB of bf16 a second");
        let best = rates.iter().copied().fold(0.0, f64::max);
        assert!(
            best >= LEAST_RATE,
            "{scheme:?}: {rates:?} GB/s, expected {LEAST_RATE}"
        );
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn ten_thousand_small_tensors_are_ready_within_three_seconds() {
    let shape = Shape {
        hidden: 32,
        inner: 32,
        layers: 1111,
    };
    for files in [1, 12] {
        let folder = folder(&format!("startup-{files}-files"));
        shape.write(&folder, files);
        assert!(shape.tensors().len() > 10_000);
        let mut times = Vec::new();
        while times.len() < MOST_RUNS && times.iter().all(|&time| time > MOST_TIME) {
            let started = Instant::now();
            load(&folder, &["w8a8"]);
            times.push(started.elapsed());
        }
        eprintln!("10,001 tensors in {files} files: {times:.3?}");
        assert!(
            times.iter().any(|&time| time <= MOST_TIME),
            "{files} files: {times:?}"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn the_log_says_where_the_time_went() {
    let outcome = load(f_tiny(), &["w8a8"]);
    let seconds = |line: &str| -> f64 {
        let words: Vec<_> = line.split_whitespace().collect();
        let unit = words.iter().position(|&word| word == "s").unwrap();
        words[unit - 1].parse().unwrap()
    };
    let line = |start: &str| {
        let mut lines = outcome
            .stderr
            .lines()
            .filter_map(|line| line.strip_prefix("info: "));
        let line = lines.find(|line| line.trim_start().starts_with(start));
        line.unwrap_or_else(|| panic!("no {start} in {}", outcome.stderr))
    };
    let all = seconds(line("ready in"));
    for phase in ["files", "words", "weights", "memory"] {
        // Each is rounded by itself.
        assert!(
            (0.0..=all + 0.001).contains(&seconds(line(phase))),
            "{phase}: {}",
            outcome.stderr
        );
    }
    assert!(line("weights").ends_with("GB/s"), "{}", outcome.stderr);
    let load = outcome.json()["load_seconds"].as_f64().unwrap();
    assert!(all <= load + 0.001, "{all} of {load} s");
}

/// Loads a model in a scheme and generates a token.
fn load(model: &Path, scheme: &[&str]) -> Outcome {
    let model = model.to_str().unwrap();
    let arguments = ["run", model, "hi", "--raw", "--json", "--ctx", "64"];
    let more = ["--max-tokens", "1", "--temperature", "0", "--scheme"];
    run(arguments.iter().chain(&more).chain(scheme)).succeeded()
}

/// A Llama with the words of F-TINY.
struct Shape {
    hidden: usize,
    inner: usize,
    layers: usize,
}

impl Shape {
    /// Writes it with random weights, in one file or several; gives the bytes of its tensors.
    fn write(&self, folder: &Path, files: usize) -> usize {
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(f_tiny().join(name), folder.join(name)).unwrap();
        }
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": self.hidden, "intermediate_size": self.inner, "num_hidden_layers": self.layers,
            "num_attention_heads": self.hidden / 32, "num_key_value_heads": self.hidden / 32, "head_dim": 32,
            "vocab_size": VOCABULARY, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        });
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let tensors = self.tensors();
        let (mut all, mut shards) = (0, Map::new());
        for (i, part) in tensors.chunks(tensors.len().div_ceil(files)).enumerate() {
            let name = match files {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{files:05}.safetensors", i + 1),
            };
            all += write_tensors(&folder.join(&name), part);
            shards.extend(part.iter().map(|(tensor, _)| (tensor.clone(), json!(name))));
        }
        if files > 1 {
            let index = json!({ "weight_map": Value::Object(shards) });
            let path = folder.join("model.safetensors.index.json");
            fs::write(path, index.to_string()).unwrap();
        }
        all
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner) = (self.hidden, self.inner);
        let mut tensors = vec![
            (
                "model.embed_tokens.weight".to_owned(),
                vec![VOCABULARY, hidden],
            ),
            ("model.norm.weight".to_owned(), vec![hidden]),
        ];
        for layer in 0..self.layers {
            for (part, shape) in [
                ("input_layernorm", vec![hidden]),
                ("self_attn.q_proj", vec![hidden, hidden]),
                ("self_attn.k_proj", vec![hidden, hidden]),
                ("self_attn.v_proj", vec![hidden, hidden]),
                ("self_attn.o_proj", vec![hidden, hidden]),
                ("post_attention_layernorm", vec![hidden]),
                ("mlp.gate_proj", vec![inner, hidden]),
                ("mlp.up_proj", vec![inner, hidden]),
                ("mlp.down_proj", vec![hidden, inner]),
            ] {
                tensors.push((format!("model.layers.{layer}.{part}.weight"), shape));
            }
        }
        tensors
    }
}

/// Writes a safetensors file of random bf16; gives the bytes of its tensors.
fn write_tensors(path: &PathBuf, tensors: &[(String, Vec<usize>)]) -> usize {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..end / 2 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Any sign, any fraction, magnitudes of 2^-7 to 2^-4.
        let bits = (state as u16 & 0x807f) | (120 + (state >> 32) as u16 % 4) << 7;
        file.write_all(&bits.to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
    end
}

/// Tokens of F-TINY.
const VOCABULARY: usize = 512;

/// GB of bf16 that are read, quantised and packed in a second, where other tests take the machine too.
const LEAST_RATE: f64 = 0.4;

/// From the start of the program to its end.
const MOST_TIME: Duration = Duration::from_secs(3);

/// Runs until a busy machine is no excuse.
const MOST_RUNS: usize = 5;
