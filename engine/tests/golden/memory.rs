//! How much memory loading takes.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use cider::generate::{Runner, RunnerOptions};
use cider::load::Checkpoint;
use cider::{DType, Quantization, Scheme};
use serde_json::{Map, Value, json};

use crate::support::{Folder, best, random_ids};

/// Loading a checkpoint of 250 MB takes what is kept (weights, cache and working memory) and 64 MB, at its peak:
/// pages of the mapped file are the file cache's. Each scheme is loaded in a process of its own, which is this
/// test again.
#[test]
fn loading_takes_the_memory_of_what_is_kept() {
    if let Ok(scheme) = env::var(CHILD) {
        return child(&env::var(FOLDER).unwrap(), scheme.parse().unwrap());
    }
    if anonymous_memory().is_none() {
        println!("1 skipped: /proc/self/status does not tell RssAnon");
        return;
    }
    let folder = Folder::new();
    let bytes = write_checkpoint(folder.path());
    for scheme in Scheme::ALL {
        let output = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "memory::loading_takes_the_memory_of_what_is_kept",
                "--nocapture",
            ])
            .env(CHILD, scheme.name())
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{scheme}: {text}");
        let line = text.lines().find_map(|line| line.split_once(REPORT));
        let report: Value = serde_json::from_str(line.unwrap().1).unwrap();
        let number = |key: &str| report[key].as_u64().unwrap();
        let (peak, kept) = (number("peak"), number("kept"));
        let seconds = report["seconds"].as_f64().unwrap();
        println!(
            "{scheme}: peak {} MB, kept {} MB, {:.2} GB of bf16 a second",
            peak / MB,
            kept / MB,
            bytes as f64 / 1e9 / seconds
        );
        assert!(peak <= kept + 64 * MB, "{scheme}: {peak} bytes for {kept}");
        // The cache is taken page by page, as sequences grow into it.
        let (weights, cache) = (number("weights"), number("cache"));
        assert!(
            weights <= peak && peak <= kept - cache / 2,
            "{scheme}: {report}"
        );
    }
}

/// Loads, while another thread looks at the memory every millisecond.
fn child(folder: &str, scheme: Scheme) {
    let (peak, done) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let watcher = thread::spawn({
        let (peak, done) = (Arc::clone(&peak), Arc::clone(&done));
        move || {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(anonymous_memory().unwrap(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let started = Instant::now();
    let checkpoint = Checkpoint::open(Path::new(folder)).unwrap();
    let options = RunnerOptions {
        quantization: Quantization::of(scheme),
        dtype: DType::Bf16,
        context: Some(4096),
        rows: 64,
        ..RunnerOptions::default()
    };
    let runner = Runner::load(&checkpoint, best(), &options, &mut |_| {}).unwrap();
    let seconds = started.elapsed().as_secs_f64();
    done.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    let report = json!({
        "peak": peak.load(Ordering::Relaxed).max(anonymous_memory().unwrap()),
        "cache": runner.cache_bytes(),
        "weights": runner.weight_bytes(),
        "kept": runner.weight_bytes() + runner.cache_bytes() + runner.arena_bytes(),
        "seconds": seconds,
    });
    println!("\n{REPORT}{report}");
}

/// Bytes of anonymous memory in use. The high-water mark that the system keeps counts mapped files too.
fn anonymous_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// A Llama of two wide layers, in bf16; gives the bytes of its tensors.
fn write_checkpoint(folder: &Path) -> u64 {
    let (hidden, inner, vocabulary) = (2048, 5632, 16_384);
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": hidden, "intermediate_size": inner, "vocab_size": vocabulary,
        "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 4096,
        "tie_word_embeddings": true, "hidden_act": "silu",
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut tensors = vec![("model.embed_tokens".to_owned(), vec![vocabulary, hidden])];
    for layer in 0..2 {
        let parts = [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![2048, hidden]),
            ("self_attn.k_proj", vec![512, hidden]),
            ("self_attn.v_proj", vec![512, hidden]),
            ("self_attn.o_proj", vec![hidden, 2048]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ];
        let named = |(name, shape)| (format!("model.layers.{layer}.{name}"), shape);
        tensors.extend(parts.map(named));
    }
    tensors.push(("model.norm".to_owned(), vec![hidden]));
    let (mut header, mut end) = (Map::new(), 0_u64);
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<usize>() as u64;
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
        header.insert(format!("{name}.weight"), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    // Random numbers between 0.004 and 0.03 of either sign, over and over.
    let block: Vec<u8> = random_ids(143, 1 << 19, 1 << 16)
        .into_iter()
        .flat_map(|bits| (bits as u16 & 0x80ff | 0x3c00).to_le_bytes())
        .collect();
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(&header).unwrap();
    let mut left = usize::try_from(end).unwrap();
    while left > 0 {
        let now = left.min(block.len());
        file.write_all(&block[..now]).unwrap();
        left -= now;
    }
    file.flush().unwrap();
    end
}

const MB: u64 = 1_000_000;

/// Environment variables that make this test the one that loads.
const CHILD: &str = "CIDER_TEST_LOAD_SCHEME";
const FOLDER: &str = "CIDER_TEST_LOAD_FOLDER";

/// What the report's line begins with.
const REPORT: &str = "loaded: ";
