//! Which models are known, what their weights may be stored as, where the tie of the head is said, and
//! that nothing but files is needed.

use std::fs;
use std::path::Path;

use cider::load::safetensors::Dtype;
use cider::load::{Architecture, Biases, Encoding};
use serde_json::{Value, json};

use crate::support::{Folder, GgufFile, Made, Tiny, assert_refused};

const KNOWN: &str = "known are llama, mistral, qwen2, qwen3";

/// The error names what was found and what is known.
#[test]
fn an_unknown_architecture_lists_the_known_ones() {
    let open = |architectures: Value, model_type: Value| {
        let mut tiny = Tiny::qwen3();
        tiny.set("architectures", architectures);
        tiny.set("model_type", model_type);
        tiny.open()
    };
    let good = json!(["Qwen3ForCausalLM"]);
    let parts = ["config.json", "architectures", "FooForCausalLM", KNOWN];
    assert_refused(open(json!(["FooForCausalLM"]), json!("qwen3")), &parts);
    assert_refused(open(json!([7]), json!("qwen3")), &["architectures", KNOWN]);
    assert_refused(
        open(json!("Qwen3ForCausalLM"), json!("qwen3")),
        &["architectures", "a list"],
    );
    assert_refused(
        open(good.clone(), json!("foo")),
        &["model_type", "\"foo\"", KNOWN],
    );
    assert_refused(
        open(good.clone(), json!("llama")),
        &["\"llama\"", "\"Qwen3ForCausalLM\""],
    );
    assert_refused(
        open(json!([]), Value::Null),
        &["model_type: missing", KNOWN],
    );
    assert_refused(
        open(Value::Null, Value::Null),
        &["model_type: missing", KNOWN],
    );
    assert_eq!(
        open(json!([]), json!("qwen3")).unwrap().config.architecture,
        Architecture::Qwen3
    );
    assert_eq!(
        open(good, Value::Null).unwrap().config.architecture,
        Architecture::Qwen3
    );
}

/// The same of a GGUF file.
#[test]
fn a_gguf_file_of_an_unknown_architecture_lists_the_known_ones() {
    let tiny = Tiny::qwen3();
    for name in ["qwen3vl", "foo", ""] {
        let parts = [
            "model.gguf",
            "general.architecture",
            name,
            "known are llama, qwen2, qwen3",
        ];
        assert_refused(GgufFile::of(&tiny, name).open(), &parts);
    }
    let mut file = GgufFile::of(&tiny, "qwen3");
    file.remove("general.architecture");
    assert_refused(
        file.open(),
        &["general.architecture", "missing", "known are llama"],
    );
}

#[test]
fn families_differ_in_biases_and_norms() {
    let llama = Tiny::llama().open().unwrap().config;
    assert_eq!(
        (llama.architecture, llama.qk_norm),
        (Architecture::Llama, false)
    );
    assert_eq!(llama.biases, Biases::default());
    let mut tiny = Tiny::llama();
    tiny.set("attention_bias", json!(true));
    tiny.set("mlp_bias", json!(true));
    assert_refused(
        tiny.open(),
        &["self_attn.q_proj.bias", "missing", "and 13 others"],
    );
    let mut tiny = Tiny::llama();
    tiny.set("architectures", json!(["Qwen2ForCausalLM"]));
    tiny.set("model_type", json!("qwen2"));
    assert_refused(
        tiny.open(),
        &["self_attn.q_proj.bias", "missing", "and 5 others"],
    );
    for layer in 0..2 {
        for (part, size) in [("q_proj", 128), ("k_proj", 64), ("v_proj", 64)] {
            let name = format!("model.layers.{layer}.self_attn.{part}.bias");
            tiny.tensors.push(Made::new(&name, &[size], 9));
        }
    }
    let checkpoint = tiny.open().unwrap();
    assert_eq!(
        checkpoint.config.biases,
        Biases {
            qkv: true,
            output: false,
            mlp: false
        }
    );
    let bias = checkpoint
        .tensors
        .get("model.layers.1.self_attn.k_proj.bias")
        .unwrap();
    assert_eq!(
        (bias.rows(), bias.cols(), bias.read_all().len()),
        (1, 64, 64)
    );
}

/// Each tensor is read by its own type, whatever the configuration calls it.
#[test]
fn weights_may_be_of_every_float_type() {
    let types = [Dtype::Bf16, Dtype::F16, Dtype::F32];
    for mix in 0..4 {
        let mut tiny = Tiny::qwen3();
        for (i, tensor) in tiny.tensors.iter_mut().enumerate() {
            tensor.dtype = types[if mix < 3 { mix } else { i % 3 }];
        }
        let checkpoint = tiny.open().unwrap();
        for Made {
            name,
            dtype,
            values,
            shape,
        } in &tiny.tensors
        {
            let source = checkpoint.tensors.get(name).unwrap();
            assert_eq!(source.encoding().name(), dtype.name());
            assert_eq!(source.shape(), shape);
            assert_eq!(source.nbytes(), values.len() * dtype.size());
            assert_eq!(&source.read_all(), values, "{name}");
        }
    }
}

/// The outer level of the configuration counts where the inner one is silent.
#[test]
fn the_head_is_the_embedding_where_either_level_says_so() {
    let head = "lm_head.weight";
    // (a) tied, no head.
    assert!(Tiny::qwen3().open().unwrap().config.tied);
    // (b) tied, equal head: it is not kept twice.
    let mut tiny = Tiny::qwen3();
    tiny.tensors.push(Made {
        name: head.to_owned(),
        ..tiny.tensors[0].clone()
    });
    let checkpoint = tiny.open().unwrap();
    assert!(checkpoint.config.tied && checkpoint.tensors.get(head).is_none());
    // (c) tied, another head: that one is used.
    *tiny.tensors.last_mut().unwrap() = Made::new(head, &[80, 64], 77);
    let checkpoint = tiny.open().unwrap();
    assert!(!checkpoint.config.tied);
    let values = checkpoint.tensors.get(head).unwrap().read_all();
    assert_eq!(values, tiny.tensors.last().unwrap().values);
    // (d) not tied, no head.
    let mut tiny = Tiny::qwen3();
    tiny.set("tie_word_embeddings", json!(false));
    assert_refused(
        tiny.open(),
        &[head, "missing", "tie_word_embeddings is not true"],
    );
    // (e) the flag on the inner level only.
    tiny.remove("tie_word_embeddings");
    tiny.set(
        "text_config",
        json!({"tie_word_embeddings": true, "hidden_size": 64}),
    );
    assert!(tiny.open().unwrap().config.tied);
    // And the other way round: all keys but the flag on the inner level.
    let mut tiny = Tiny::qwen3();
    let mut inner = tiny.config.clone();
    inner
        .as_object_mut()
        .unwrap()
        .remove("tie_word_embeddings")
        .unwrap();
    tiny.config = json!({"architectures": ["Qwen3ForCausalLM"], "text_config": inner,
        "tie_word_embeddings": true, "hidden_size": 9999});
    let config = tiny.open().unwrap().config;
    assert!(config.tied);
    assert_eq!(config.hidden_size, 64);
    tiny.set("text_config", json!(3));
    assert_refused(tiny.open(), &["text_config", "expected an object, found 3"]);
}

#[test]
fn a_gguf_file_without_a_head_is_tied() {
    let mut tiny = Tiny::qwen3();
    assert!(GgufFile::of(&tiny, "qwen3").open().unwrap().config.tied);
    tiny.tensors
        .push(Made::new("lm_head.weight", &[80, 64], 77));
    let checkpoint = GgufFile::of(&tiny, "qwen3").open().unwrap();
    assert!(!checkpoint.config.tied);
    assert_eq!(
        checkpoint.tensors.get("lm_head.weight").unwrap().encoding(),
        Encoding::F32
    );
}

/// The readers know files only.
#[test]
fn loading_has_no_code_for_networks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/load");
    let mut folders = vec![folder];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            for word in [
                "net::",
                "TcpStream",
                "UdpSocket",
                "UnixStream",
                "process::Command",
            ] {
                assert!(!source.contains(word), "{word} in {}", path.display());
            }
            read += 1;
        }
    }
    assert!(read > 10, "{read} files");
}

/// Nothing but the configuration and the weights has to be there.
#[test]
fn optional_files_may_be_absent() {
    let folder = Folder::new();
    Tiny::qwen3().save(&folder);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    let checkpoint = folder.open().unwrap();
    assert!(checkpoint.gguf_metadata().is_none());
    assert_eq!(checkpoint.path, folder.path());
}
