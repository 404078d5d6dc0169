//! Memory, on the word of the operating system.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::{cider, folder, smollm2};

/// The largest anonymous memory of a process, looked at until it ends.
pub(crate) fn peak_anonymous(child: &mut Child) -> u64 {
    let path = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = peak.max(kilobytes.unwrap_or_default() * 1024);
        thread::sleep(Duration::from_millis(1));
    }
    peak
}

/// Starts a command whose output is kept.
pub(crate) fn start(command: &mut Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_run_takes_its_weights_its_cache_and_little_more() {
    for scheme in ["w8a8", "w8a16"] {
        let arguments = [
            "run",
            smollm2(),
            "Count to twenty.",
            "--max-tokens",
            "64",
            "--json",
        ];
        let mut child = start(cider().args(arguments).args(["--scheme", scheme]));
        let peak = peak_anonymous(&mut child);
        let output = child.wait_with_output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let bytes = |name: &str| report["memory"][name].as_u64().unwrap();
        let limit = bytes("weights") + bytes("kv_cache") + 64_000_000;
        eprintln!("{scheme}: peak {peak}, limit {limit}, {}", report["memory"]);
        assert!(
            peak >= bytes("weights"),
            "{scheme}: {peak} cannot be, {report}"
        );
        assert!(peak <= limit, "{scheme}: {peak} is above {limit}, {report}");
    }
}

#[test]
fn loading_takes_the_final_weights_and_one_tensor() {
    let folder = folder("gigabyte");
    write_model(&folder);
    for (scheme, least, most) in [("none", 1.00, 1.15), ("w8a8", 0.50, 0.75)] {
        let mut command = cider();
        command.args([
            "debug", "logits", "--tokens", "1,2,3", "--scheme", scheme, "-o",
        ]);
        let mut child = start(command.arg(folder.join("out")).arg(&folder));
        let peak = peak_anonymous(&mut child) as f64 / f64::from(1 << 30);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        eprintln!("{scheme}: peak {peak:.3} GiB");
        assert!(
            (least..=most).contains(&peak),
            "{scheme}: {peak} GiB, expected {least} to {most}"
        );
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// A Llama of 1 GiB of bf16 weights. The file is a hole, so it reads as zeros and takes no room on the disk.
fn write_model(folder: &Path) {
    let (hidden, inner, layers, vocabulary) = (2048usize, 8192usize, 8usize, 256usize);
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128,
        "vocab_size": vocabulary, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut tensors = vec![(
        "model.embed_tokens.weight".to_owned(),
        vec![vocabulary, hidden],
    )];
    for layer in 0..layers {
        let mut add = |name: &str, shape: &[usize]| {
            tensors.push((
                format!("model.layers.{layer}.{name}.weight"),
                shape.to_vec(),
            ));
        };
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("self_attn.{name}"), &[hidden, hidden]);
        }
        add("mlp.gate_proj", &[inner, hidden]);
        add("mlp.up_proj", &[inner, hidden]);
        add("mlp.down_proj", &[hidden, inner]);
        add("input_layernorm", &[hidden]);
        add("post_attention_layernorm", &[hidden]);
    }
    tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
        header.insert(name, entry);
    }
    assert!(end >= 1 << 30, "{end} bytes are less than 1 GiB");
    let header = serde_json::to_vec(&header).unwrap();
    let path = folder.join("model.safetensors");
    let mut start = (header.len() as u64).to_le_bytes().to_vec();
    start.extend(header);
    fs::write(&path, &start).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len((start.len() + end) as u64).unwrap();
}
