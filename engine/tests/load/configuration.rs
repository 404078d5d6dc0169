//! `config.json` key by key: rope, windows, and what may be absent.

use cider::load::{Checkpoint, Encoding, ModelConfig};
use cider_kernels::RopeScaling;
use serde_json::{Value, json};

use crate::support::{Folder, Made, Tiny, assert_refused};

fn config(tiny: &Tiny) -> ModelConfig {
    tiny.open().unwrap().config
}

#[test]
fn every_key_is_read() {
    let read = config(&Tiny::qwen3());
    let sizes = [
        (read.hidden_size, 64),
        (read.intermediate_size, 96),
        (read.layers, 2),
        (read.heads, 4),
        (read.kv_heads, 2),
        (read.head_size, 32),
        (read.vocab_size, 80),
        (read.max_positions, 4096),
    ];
    assert!(
        sizes.iter().all(|(found, expected)| found == expected),
        "{read:?}"
    );
    assert_eq!(read.rms_norm_eps.to_bits(), 1e-6f32.to_bits());
    assert_eq!(read.rope.base.to_bits(), 1e6f64.to_bits());
    assert_eq!((read.bos, read.eos), (Some(1), vec![2]));
    assert_eq!(read.stored_dtype, Some(Encoding::Bf16));
    assert!(read.tied && read.qk_norm && !read.biases.qkv);
}

/// Whichever key is gone, the model starts or the error names the key.
#[test]
fn each_key_may_be_missing_or_is_named() {
    let optional = [
        "architectures",
        "attention_bias",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "hidden_act",
        "model_type",
        "sliding_window",
        "use_sliding_window",
    ];
    let keys: Vec<_> = Tiny::qwen3()
        .config
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    for key in keys {
        let mut tiny = Tiny::qwen3();
        tiny.remove(&key);
        match key.as_str() {
            key if optional.contains(&key) => drop(tiny.open().unwrap()),
            // Absent, these have a meaning that these weights contradict.
            "head_dim" => assert_refused(tiny.open(), &["q_norm.weight", "[16]", "[32]"]),
            "num_key_value_heads" => assert_refused(tiny.open(), &["k_proj.weight", "[128, 64]"]),
            "tie_word_embeddings" => {
                assert_refused(tiny.open(), &["lm_head.weight", "missing", &key]);
            }
            _ => assert_refused(tiny.open(), &["config.json", &key, "missing"]),
        }
    }
}

/// Whatever stands in a key, nothing panics, and what is refused is named.
#[test]
fn each_key_may_hold_nonsense() {
    let keys: Vec<_> = Tiny::qwen3()
        .config
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    let nonsense = [
        json!("x"),
        json!(-1),
        json!(0),
        json!(1e300),
        json!(u64::MAX),
        json!([]),
        json!([[1]]),
        json!({"a": 1}),
        json!(true),
        json!(0.5),
    ];
    let folder = Folder::new();
    Tiny::qwen3().save(&folder);
    for key in keys {
        for value in &nonsense {
            let mut tiny = Tiny::qwen3();
            tiny.set(&key, value.clone());
            tiny.save_config(&folder);
            if let Err(error) = folder.open() {
                let error = error.to_string();
                assert!(
                    error.contains("config.json") || error.contains("tensor"),
                    "{key}: {error}"
                );
            }
        }
    }
    for key in [
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "num_attention_heads",
    ] {
        for value in [
            json!(0),
            json!(-1),
            json!(u64::MAX),
            json!(1u64 << 40),
            json!(1.5),
            json!("8"),
        ] {
            let mut tiny = Tiny::qwen3();
            let shown = value.to_string();
            tiny.set(key, value);
            assert_refused(tiny.open(), &["config.json", key, &shown]);
        }
    }
}

#[test]
fn keys_are_checked_together() {
    for (key, value, parts) in [
        (
            "num_key_value_heads",
            json!(3),
            ["4 heads", "3 key-value heads"],
        ),
        ("head_dim", json!(31), ["even head size", "31"]),
        (
            "eos_token_id",
            json!([2, 80]),
            ["id 80", "vocabulary of 80"],
        ),
        ("bos_token_id", json!(4000), ["id 4000", "vocabulary of 80"]),
        ("hidden_act", json!("gelu"), ["hidden_act", "\"gelu\""]),
        ("dtype", json!("int4"), ["dtype", "\"int4\""]),
        ("rope_theta", json!(1.0), ["rope_theta", "above 1, found 1"]),
        ("rms_norm_eps", json!(0), ["rms_norm_eps", "above 0"]),
        (
            "rms_norm_eps",
            json!(1e300),
            ["rms_norm_eps", "found 1e300"],
        ),
        (
            "rms_norm_eps",
            json!(1e-300),
            ["rms_norm_eps", "found 1e-300"],
        ),
        (
            "rms_norm_eps",
            json!(5),
            ["rms_norm_eps", "to 0.1, found 5e0"],
        ),
        (
            "quantization_config",
            json!({"quant_method": "gptq"}),
            ["quantization_config", "gptq"],
        ),
        (
            "partial_rotary_factor",
            json!(0.5),
            ["partial_rotary_factor", "0.5"],
        ),
    ] {
        let mut tiny = Tiny::qwen3();
        tiny.set(key, value);
        assert_refused(tiny.open(), &["config.json", parts[0], parts[1]]);
    }
    let mut tiny = Tiny::qwen3();
    tiny.remove("head_dim");
    tiny.set("num_attention_heads", json!(6));
    assert_refused(tiny.open(), &["head_dim", "hidden_size 64", "6 heads"]);
}

#[test]
fn several_end_tokens_and_both_dtype_keys() {
    let mut tiny = Tiny::qwen3();
    tiny.set("eos_token_id", json!([2, 5]));
    tiny.remove("dtype");
    tiny.set("torch_dtype", json!("float16"));
    let read = config(&tiny);
    assert_eq!(read.eos, [2, 5]);
    assert_eq!(read.stored_dtype, Some(Encoding::F16));
    tiny.set("eos_token_id", Value::Null);
    assert!(config(&tiny).eos.is_empty());
}

#[test]
fn a_damaged_configuration_is_refused() {
    let folder = Folder::new();
    Tiny::qwen3().save(&folder);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    for (content, what) in [
        ("", "not JSON"),
        ("{\"hidden_size\": 64", "not JSON"),
        ("[1]", "expected an object, found a list"),
        (pointer, "Git LFS pointer"),
    ] {
        folder.write("config.json", content);
        assert_refused(folder.open(), &["config.json", what]);
    }
}

/// `rope_scaling` beside `rope_theta`, and `rope_parameters`, mean the same.
#[test]
fn rope_in_both_spellings() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let mut old_key = llama3.clone();
    old_key["type"] = old_key["rope_type"].take();
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low: 1.0,
        high: 4.0,
        original: 8192.0,
    };
    for scaling in [llama3.clone(), old_key] {
        let mut tiny = Tiny::qwen3();
        tiny.set("rope_scaling", scaling);
        let rope = config(&tiny).rope;
        assert_eq!(
            (rope.scaling, rope.base.to_bits()),
            (expected.clone(), 1e6f64.to_bits())
        );
    }
    let mut nested = llama3;
    nested["rope_theta"] = json!(500_000.0);
    let layers = json!({"full_attention": nested.clone(), "sliding_attention": nested.clone()});
    for parameters in [nested, layers] {
        let mut tiny = Tiny::qwen3();
        tiny.remove("rope_theta");
        tiny.set("rope_parameters", parameters);
        let rope = config(&tiny).rope;
        assert_eq!(
            (rope.scaling, rope.base.to_bits()),
            (expected.clone(), 5e5f64.to_bits())
        );
    }
}

/// Each kind of scaling is read with its own keys.
#[test]
fn every_kind_of_rope() {
    let scaling = |value: Value| {
        let mut tiny = Tiny::qwen3();
        tiny.set("rope_scaling", value);
        config(&tiny)
    };
    assert_eq!(scaling(Value::Null).rope.scaling, RopeScaling::Default);
    assert_eq!(
        scaling(json!({"type": "default"})).rope.scaling,
        RopeScaling::Default
    );
    let linear = scaling(json!({"type": "linear", "factor": 2}));
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096});
    let config = scaling(yarn);
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        original: 4096.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 0.1 * 4f64.ln() + 1.0,
        truncate: true,
    };
    assert_eq!(config.rope.scaling, expected);
    assert_eq!(config.rope.rotary_size, 32);
    assert_eq!(config.max_positions, 16_384);
    let mut said = json!({"rope_type": "yarn", "factor": 2, "beta_fast": 16, "beta_slow": 2,
        "attention_factor": 1.5, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": false});
    let expected = |attention_factor| RopeScaling::Yarn {
        factor: 2.0,
        original: 4096.0,
        beta_fast: 16.0,
        beta_slow: 2.0,
        attention_factor,
        truncate: false,
    };
    assert_eq!(scaling(said.clone()).rope.scaling, expected(1.5));
    said["attention_factor"] = Value::Null;
    let ratio = (0.1 * 2f64.ln() + 1.0) / (0.05 * 2f64.ln() + 1.0);
    assert_eq!(scaling(said.clone()).rope.scaling, expected(ratio));
    // One of the two alone does not count.
    said["mscale_all_dim"] = json!(0);
    assert_eq!(scaling(said).rope.scaling, expected(0.1 * 2f64.ln() + 1.0));
}

/// From the file to the frequencies.
#[test]
fn frequencies_of_llama3() {
    let mut tiny = Tiny::qwen3();
    tiny.set("rope_theta", json!(500_000.0));
    tiny.set("head_dim", json!(128));
    tiny.set(
        "rope_scaling",
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    );
    for tensor in &mut tiny.tensors {
        for (part, shape) in [
            ("q_proj", vec![512, 64]),
            ("k_proj", vec![256, 64]),
            ("v_proj", vec![256, 64]),
            ("o_proj", vec![64, 512]),
            ("q_norm", vec![128]),
            ("k_norm", vec![128]),
        ] {
            if tensor.name.contains(part) {
                *tensor = Made::new(&tensor.name, &shape, 3);
            }
        }
    }
    let frequencies = config(&tiny).rope.inverse_frequencies();
    for (i, expected) in [
        (0, 1.0),
        (28, 3.211_446e-3),
        (29, 2.166_571e-3),
        (30, 1.371_894e-3),
        (32, 5.248_462e-4),
        (34, 1.785_078e-4),
        (35, 9.556_212e-5),
        (63, 3.068_926e-7),
    ] {
        let error: f64 = frequencies[i] / expected - 1.0;
        assert!(error.abs() < 1e-5, "{i}: {}", frequencies[i]);
    }
}

/// Scaling is never passed over: what is not known is an error that names the key.
#[test]
fn a_rope_that_is_not_understood_is_refused() {
    for (scaling, parts) in [
        (
            json!({"type": "foo"}),
            ["\"foo\" is not known", "default, linear, llama3, yarn"],
        ),
        (
            json!({"rope_type": "dynamic", "factor": 2}),
            ["rope_scaling.rope_type", "dynamic"],
        ),
        (
            json!({"type": "linear"}),
            ["rope_scaling.factor", "missing"],
        ),
        (
            json!({"type": "linear", "factor": 0}),
            ["rope_scaling.factor", "above 0"],
        ),
        (
            json!({"type": "linear", "factor": "2"}),
            ["rope_scaling.factor", "\"2\""],
        ),
        (json!({"type": "yarn"}), ["rope_scaling.factor", "missing"]),
        (json!({"type": 3}), ["rope_scaling.type", "found 3"]),
        (json!("llama3"), ["rope_scaling", "expected an object"]),
        (
            json!({"type": "llama3", "factor": 8, "high_freq_factor": 4,
                "original_max_position_embeddings": 8192}),
            ["rope_scaling.low_freq_factor", "missing"],
        ),
        (
            json!({"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                "original_max_position_embeddings": 8192}),
            ["rope_scaling.low_freq_factor", "less than"],
        ),
        (
            json!({"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e6}}),
            ["sliding_attention", "full_attention"],
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            ["rope_scaling.partial_rotary_factor", "0.5"],
        ),
    ] {
        let mut tiny = Tiny::qwen3();
        tiny.set("rope_scaling", scaling);
        assert_refused(tiny.open(), &["config.json", parts[0], parts[1]]);
    }
}

/// A window in the file counts only where the flag of the family switches it on.
#[test]
fn a_window_counts_when_its_family_says_so() {
    let windows = |tiny: &Tiny| config(tiny).window;
    let mut tiny = Tiny::qwen3();
    tiny.set("sliding_window", json!(8));
    assert_eq!(windows(&tiny), [None, None]);
    tiny.set("use_sliding_window", json!(true));
    // Qwen's first 28 layers have none, unless the configuration says otherwise.
    assert_eq!(windows(&tiny), [None, None]);
    tiny.set("max_window_layers", json!(1));
    assert_eq!(windows(&tiny), [None, Some(8)]);
    tiny.set("max_window_layers", json!(0));
    assert_eq!(windows(&tiny), [Some(8), Some(8)]);
    tiny.set(
        "layer_types",
        json!(["sliding_attention", "full_attention"]),
    );
    assert_eq!(windows(&tiny), [Some(8), None]);
    tiny.set("sliding_window", Value::Null);
    assert_eq!(windows(&tiny), [None, None]);
    tiny.set("sliding_window", json!(8));
    tiny.set("layer_types", json!(["sliding_attention"]));
    assert_refused(tiny.open(), &["layer_types", "2 entries", "found 1"]);
    tiny.set(
        "layer_types",
        json!(["sliding_attention", "chunked_attention"]),
    );
    assert_refused(tiny.open(), &["layer_types", "chunked_attention"]);
    tiny.set("use_sliding_window", json!(false));
    assert_eq!(windows(&tiny), [None, None]);
}

/// Two families have no flag.
#[test]
fn mistral_always_has_its_window_and_llama_never() {
    let mut tiny = Tiny::llama();
    tiny.set("sliding_window", json!(8));
    tiny.set("use_sliding_window", json!(true));
    assert_eq!(config(&tiny).window, [None, None]);
    tiny.set("architectures", json!(["MistralForCausalLM"]));
    tiny.set("model_type", json!("mistral"));
    tiny.remove("use_sliding_window");
    assert_eq!(config(&tiny).window, [Some(8), Some(8)]);
    tiny.set("sliding_window", Value::Null);
    assert_eq!(config(&tiny).window, [None, None]);
    tiny.remove("sliding_window");
    assert_eq!(config(&tiny).window, [Some(4096), Some(4096)]);
}

#[test]
fn generation_defaults_are_the_checkpoints() {
    let folder = Folder::new();
    let tiny = Tiny::qwen3();
    tiny.save(&folder);
    let generation = |folder: &Folder| {
        folder
            .open()
            .map(|checkpoint: Checkpoint| checkpoint.generation)
    };
    let absent = generation(&folder).unwrap();
    assert_eq!(
        (absent.eos, absent.bos, absent.temperature),
        (vec![2], Some(1), None)
    );
    let all = json!({"bos_token_id": 3, "eos_token_id": [4, 5], "do_sample": true,
        "temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.0, "repetition_penalty": 1.25,
        "transformers_version": "4.51.0"});
    folder.write("generation_config.json", all.to_string());
    let read = generation(&folder).unwrap();
    assert_eq!(
        (read.eos, read.bos, read.do_sample),
        (vec![4, 5], Some(3), Some(true))
    );
    assert_eq!(
        (read.temperature, read.top_k, read.top_p),
        (Some(0.5), Some(20), Some(0.75))
    );
    assert_eq!(
        (read.min_p, read.repetition_penalty),
        (Some(0.0), Some(1.25))
    );
    folder.write(
        "generation_config.json",
        r#"{"temperature": null, "top_k": -1}"#,
    );
    let read = generation(&folder).unwrap();
    assert_eq!(
        (read.eos, read.temperature, read.top_k),
        (vec![2], None, Some(0))
    );
    for (content, what) in [
        ("{", "not JSON"),
        (r#"{"top_p": 1.5}"#, "top_p: expected 0 to 1, found 1.5"),
        (r#"{"temperature": -1}"#, "temperature"),
        (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
        (r#"{"eos_token_id": "</s>"}"#, "eos_token_id"),
        (r#"{"eos_token_id": 151645}"#, "id 151645"),
        (r#"{"top_k": 0.5}"#, "top_k"),
        (r#"{"do_sample": 1}"#, "do_sample"),
    ] {
        folder.write("generation_config.json", content);
        assert_refused(generation(&folder), &["generation_config.json", what]);
    }
}
