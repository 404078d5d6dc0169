//! GGUF files as they should be: metadata, names, row order, and every type of weight.

use cider::load::gguf::{Gguf, Metadata};
use cider::load::{Architecture, Checkpoint, Encoding, SourceKind};
use cider_kernels::RopeScaling;

use crate::support::{Folder, GgufFile, Made, Tiny, assert_refused, text, value};

#[test]
fn a_file_gives_what_the_folder_gives() {
    for (tiny, architecture) in [(Tiny::qwen3(), "qwen3"), (Tiny::llama(), "llama")] {
        let folder = tiny.open().unwrap();
        let file = GgufFile::of(&tiny, architecture).open().unwrap();
        assert_eq!(file.source, SourceKind::Gguf);
        let mut config = file.config.clone();
        config.stored_dtype = folder.config.stored_dtype;
        assert_eq!(config, folder.config);
        assert_eq!(file.generation, folder.generation);
        for Made {
            name,
            shape,
            values,
            ..
        } in &tiny.tensors
        {
            let source = file.tensors.require(name, shape).unwrap();
            assert_eq!(&source.read_all(), values, "{architecture}: {name}");
        }
        assert_eq!(file.tensors.names().count(), tiny.tensors.len());
    }
}

/// A Llama's query and key biases are in the order of their rows.
#[test]
fn biases_are_put_in_order_too() {
    let mut tiny = Tiny::llama();
    for layer in 0..2 {
        for (part, size) in [("q_proj", 128), ("k_proj", 64), ("v_proj", 64)] {
            let name = format!("model.layers.{layer}.self_attn.{part}.bias");
            tiny.tensors.push(Made::new(&name, &[size], 31 + layer));
        }
    }
    let file = GgufFile::of(&tiny, "llama").open().unwrap();
    assert!(file.config.biases.qkv && !file.config.biases.output);
    for Made { name, values, .. } in &tiny.tensors {
        assert_eq!(
            &file.tensors.get(name).unwrap().read_all(),
            values,
            "{name}"
        );
    }
}

#[test]
fn a_folder_may_hold_a_single_file() {
    let folder = Folder::new();
    let bytes = GgufFile::of(&Tiny::qwen3(), "qwen3").bytes();
    let path = folder.write("some-model.Q8_0.gguf", &bytes);
    assert_eq!(folder.open().unwrap().path, path);
    // What the file is called does not matter.
    let other = folder.write("weights", &bytes);
    assert_eq!(Checkpoint::open(&other).unwrap().source, SourceKind::Gguf);
    folder.write("another.gguf", &bytes);
    assert_refused(folder.open(), &["2 .gguf files", "another.gguf"]);
}

/// A file with a value of every type, some of them bad.
fn with_every_type(folder: &Folder) -> Metadata {
    let mut file = GgufFile::of(&Tiny::qwen3(), "qwen3");
    let array = |kind: u32, count: u64, bytes: &[u8]| {
        [&kind.to_le_bytes(), count.to_le_bytes().as_slice(), bytes].concat()
    };
    file.values.extend([
        value("a.u8", 0, &[200]),
        value("a.i8", 1, &[0x80]),
        value("a.u16", 2, &[1, 2]),
        value("a.i16", 3, &[0xff, 0xff]),
        value("a.i32", 5, &(-7i32).to_le_bytes()),
        value("a.bool", 7, &[1]),
        value("a.u64", 10, &u64::MAX.to_le_bytes()),
        value("a.i64", 11, &9i64.to_le_bytes()),
        value("a.f64", 12, &0.25f64.to_le_bytes()),
        value("a.bad", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]),
        value(
            "a.ids",
            9,
            &array(5, 2, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        ),
        value("a.scores", 9, &array(6, 1, &1.5f32.to_le_bytes())),
        value(
            "a.bads",
            9,
            &array(
                8,
                2,
                &[text("ok"), vec![1, 0, 0, 0, 0, 0, 0, 0, 0xff]].concat(),
            ),
        ),
    ]);
    Gguf::open(&folder.write("m.gguf", file.bytes()))
        .unwrap()
        .metadata
}

#[test]
fn metadata_has_its_types() {
    let folder = Folder::new();
    let metadata = with_every_type(&folder);
    for (key, number) in [
        ("a.u8", 200),
        ("a.u16", 513),
        ("a.u64", u64::MAX),
        ("a.i64", 9),
    ] {
        assert_eq!(metadata.unsigned(key).unwrap(), Some(number), "{key}");
    }
    for (key, number) in [
        ("a.i8", -128.0),
        ("a.i16", -1.0),
        ("a.i32", -7.0),
        ("a.f64", 0.25),
    ] {
        assert_eq!(metadata.float(key).unwrap(), Some(number), "{key}");
    }
    assert_eq!(metadata.flag("a.bool").unwrap(), Some(true));
    assert_eq!(
        metadata.string("general.architecture").unwrap(),
        Some("qwen3")
    );
    let strings = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(strings.len(), 3);
    assert_eq!(strings.collect::<Vec<_>>(), ["<unk>", "a", "ĠÄ"]);
    assert_eq!(
        metadata
            .integers("a.ids")
            .unwrap()
            .unwrap()
            .collect::<Vec<_>>(),
        [1, -1]
    );
    assert_eq!(
        metadata
            .floats("a.scores")
            .unwrap()
            .unwrap()
            .collect::<Vec<_>>(),
        [1.5]
    );
    assert!(metadata.contains("a.u8") && !metadata.contains("a.none"));
    assert!(metadata.string("a.none").unwrap().is_none());
    assert!(metadata.keys().any(|key| key == "a.scores"));
}

#[test]
fn metadata_of_another_type_is_refused() {
    let folder = Folder::new();
    let metadata = with_every_type(&folder);
    assert_refused(metadata.string("a.bad"), &["m.gguf", "a.bad", "not UTF-8"]);
    assert_refused(
        metadata.strings("a.bads"),
        &["a.bads", "string 1 is not UTF-8"],
    );
    assert_refused(
        metadata.unsigned("a.i8"),
        &["a.i8", "a whole number from 0", "-128"],
    );
    assert_refused(
        metadata.string("a.ids"),
        &["a.ids", "a string", "an array of 2 signed numbers"],
    );
    assert_refused(
        metadata.strings("a.u8"),
        &["a.u8", "an array of strings", "200"],
    );
    assert_refused(metadata.floats("a.ids").map(|_| ()), &["a.ids", "floats"]);
    assert_refused(
        metadata.integers("a.scores").map(|_| ()),
        &["a.scores", "whole numbers"],
    );
    assert_refused(metadata.flag("a.u8"), &["a.u8", "true or false"]);
    assert_refused(metadata.require_string("a.none"), &["a.none", "missing"]);
    assert_refused(metadata.require_unsigned("a.none"), &["a.none", "missing"]);
}

#[test]
fn version_two_is_read() {
    let folder = Folder::new();
    let mut bytes = GgufFile::of(&Tiny::qwen3(), "qwen3").bytes();
    bytes[4] = 2;
    Checkpoint::open(&folder.write("v2.gguf", bytes)).unwrap();
}

/// The factors of `rope_freqs.weight`, and the scaling keys.
#[test]
fn rope_is_read_from_metadata() {
    let tiny = Tiny::llama();
    let mut file = GgufFile::of(&tiny, "llama");
    let factors: Vec<_> = (0..16u8).map(|i| 1.0 + f32::from(i)).collect();
    file.floats("rope_freqs.weight", &[16], &factors);
    file.u32("llama.rope.dimension_count", 32);
    let checkpoint = file.open().unwrap();
    assert_eq!(
        checkpoint.config.rope.factors.as_deref(),
        Some(factors.as_slice())
    );
    assert!(checkpoint.tensors.get("rope_freqs.weight").is_none());
    let mut short = GgufFile::of(&tiny, "llama");
    short.floats("rope_freqs.weight", &[8], &factors[..8]);
    assert_refused(
        short.open(),
        &["rope_freqs.weight", "expected 16 factors, found 8"],
    );
    let mut zero = GgufFile::of(&tiny, "llama");
    zero.floats("rope_freqs.weight", &[16], &[0.0; 16]);
    assert_refused(zero.open(), &["rope_freqs.weight", "positive"]);

    let scaled = |kind: &str| {
        let mut file = GgufFile::of(&tiny, "llama");
        file.text("llama.rope.scaling.type", kind);
        file.f32("llama.rope.scaling.factor", 4.0);
        file.u32("llama.rope.scaling.original_context_length", 1024);
        file.f32("llama.rope.scaling.attn_factor", 1.0);
        file.open().map(|checkpoint| checkpoint.config.rope.scaling)
    };
    assert_eq!(scaled("none").unwrap(), RopeScaling::Default);
    assert_eq!(
        scaled("linear").unwrap(),
        RopeScaling::Linear { factor: 4.0 }
    );
    let RopeScaling::Yarn {
        factor,
        original,
        attention_factor,
        ..
    } = scaled("yarn").unwrap()
    else {
        panic!("not yarn");
    };
    assert_eq!((factor, original), (4.0, 1024.0));
    assert!((attention_factor - 1.138_629_436).abs() < 1e-9);
    assert_refused(
        scaled("longrope"),
        &["rope.scaling.type", "longrope", "none, linear, yarn"],
    );
}

#[test]
fn what_a_file_asks_for_and_is_not_there_is_refused() {
    let tiny = Tiny::qwen3();
    for key in [
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.freq_base",
    ] {
        let mut file = GgufFile::of(&tiny, "qwen3");
        file.values
            .retain(|value| !value.starts_with(&text(&format!("qwen3.{key}"))));
        assert_refused(
            file.open(),
            &["model.gguf", &format!("qwen3.{key}"), "missing"],
        );
    }
    for (key, number, what) in [
        ("qwen3.expert_count", 8, "8 experts"),
        ("split.count", 3, "3 parts"),
        (
            "qwen3.rope.dimension_count",
            16,
            "the head size 32, found 16",
        ),
        ("general.alignment", 48, "power of two"),
        ("tokenizer.ggml.eot_token_id", 80, "vocabulary of 80"),
    ] {
        let mut file = GgufFile::of(&tiny, "qwen3");
        file.u32(key, number);
        assert_refused(file.open(), &["model.gguf", what]);
    }
    for tensor in &tiny.tensors {
        let mut fewer = Tiny::qwen3();
        fewer.tensors.retain(|other| other.name != tensor.name);
        assert_refused(
            GgufFile::of(&fewer, "qwen3").open(),
            &[&tensor.name, "missing"],
        );
    }
}

#[test]
fn sizes_may_be_given_per_layer() {
    let sizes = |sizes: [u32; 2]| {
        let mut file = GgufFile::of(&Tiny::qwen3(), "qwen3");
        file.values
            .retain(|value| !value.starts_with(&text("qwen3.attention.head_count_kv")));
        let mut bytes = [4u32.to_le_bytes().as_slice(), &2u64.to_le_bytes()].concat();
        bytes.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        file.values
            .push(value("qwen3.attention.head_count_kv", 9, &bytes));
        file.open().map(|checkpoint| checkpoint.config.kv_heads)
    };
    assert_eq!(sizes([2, 2]).unwrap(), 2);
    assert_refused(sizes([2, 1]), &["head_count_kv", "2 and 1"]);
}

#[test]
fn the_files_own_sampling_defaults_are_read() {
    let mut file = GgufFile::of(&Tiny::qwen3(), "qwen3");
    file.f32("general.sampling.temp", 0.5);
    file.u32("general.sampling.top_k", 20);
    file.f32("general.sampling.top_p", 0.75);
    file.u32("tokenizer.ggml.eot_token_id", 7);
    let checkpoint = file.open().unwrap();
    let generation = &checkpoint.generation;
    assert_eq!(
        (generation.temperature, generation.top_k),
        (Some(0.5), Some(20))
    );
    assert_eq!((generation.top_p, generation.min_p), (Some(0.75), None));
    assert_eq!(generation.eos, [2, 7]);
    assert_eq!(checkpoint.config.architecture, Architecture::Qwen3);
}

/// Each tensor by its own type.
#[test]
fn a_file_may_mix_all_types() {
    let folder = Folder::new();
    let mut file = GgufFile::default();
    let types = [
        (0, Encoding::F32),
        (1, Encoding::F16),
        (30, Encoding::Bf16),
        (8, Encoding::Q8_0),
        (2, Encoding::Q4_0),
        (3, Encoding::Q4_1),
        (6, Encoding::Q5_0),
        (7, Encoding::Q5_1),
        (12, Encoding::Q4K),
        (13, Encoding::Q5K),
        (14, Encoding::Q6K),
    ];
    for (kind, encoding) in types {
        let (values, bytes) = encoding.block();
        // Two rows of three blocks; bytes of 0x11 are small finite numbers in every type.
        let (cols, bytes) = (3 * values as u64, vec![0x11; 6 * bytes]);
        file.tensors
            .push((encoding.name().to_owned(), vec![cols, 2], kind, bytes));
    }
    let Gguf { tensors, .. } = Gguf::open(&folder.write("types.gguf", file.bytes())).unwrap();
    for (_, encoding) in types {
        let source = tensors.get(encoding.name()).unwrap();
        let (values, bytes) = encoding.block();
        assert_eq!(
            (source.encoding(), source.rows(), source.cols()),
            (encoding, 2, 3 * values)
        );
        assert_eq!(
            (source.nbytes(), source.row_bytes(1).len()),
            (6 * bytes, 3 * bytes)
        );
        let read = source.read_all();
        assert_eq!(read.len(), 6 * values);
        assert!(read.iter().all(|value| value.is_finite()));
    }
}

/// Types that are not read are named.
#[test]
fn other_types_are_refused_by_name() {
    let folder = Folder::new();
    for (kind, name) in [
        (10, "Q2_K"),
        (11, "Q3_K"),
        (20, "IQ4_NL"),
        (24, "I8"),
        (39, "MXFP4"),
        (77, "number 77"),
    ] {
        let mut file = GgufFile::default();
        file.tensors.push((
            "blk.0.ffn_up.weight".to_owned(),
            vec![256],
            kind,
            vec![0; 1024],
        ));
        let path = folder.write("types.gguf", file.bytes());
        let parts = ["types.gguf", "blk.0.ffn_up.weight", name, "not supported"];
        assert_refused(Gguf::open(&path), &parts);
    }
}
