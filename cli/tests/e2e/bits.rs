//! Bits: the same logits on every level, for any chunk, thread count and company.

use std::fs;
use std::path::{Path, PathBuf};

use cider::load::safetensors;

use crate::support::{SCHEMES, cider, f_tiny, finish, folder, levels, smollm2, testdata};

/// The file that a `debug logits` run writes.
fn logits(
    model: &Path,
    target: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Vec<u8> {
    let mut command = cider();
    command
        .args(["-q", "debug", "logits"])
        .arg(model)
        .arg("-o")
        .arg(target);
    command.args(arguments).envs(environment.iter().copied());
    finish(&mut command).succeeded();
    fs::read(target).unwrap()
}

/// The small models, with ids that are in their vocabularies, over three blocks of the cache.
fn small_models() -> Vec<(&'static str, PathBuf, String)> {
    let models = [
        ("llama3-tied", testdata("llama3-tied"), 320),
        ("qwen3-headdim", testdata("qwen3-headdim"), 320),
        ("f-tiny", f_tiny().to_path_buf(), 500),
    ];
    models
        .map(|(name, path, vocabulary)| (name, path, ids(150, vocabulary)))
        .into()
}

/// Ids without an order.
fn ids(count: u64, vocabulary: u64) -> String {
    let ids = (0..count).map(|i| (i * i * 31 + i * 7 + 5) % vocabulary);
    ids.map(|id| id.to_string()).collect::<Vec<_>>().join(",")
}

#[test]
fn every_level_gives_the_same_bits_in_f32() {
    let target = folder("levels").join("logits.safetensors");
    for (name, model, ids) in small_models() {
        for scheme in SCHEMES {
            let mut arguments = vec!["--dtype", "f32", "--decode-from", "140", "--tokens", &ids];
            arguments.extend(scheme);
            let mut first = None;
            for isa in levels() {
                let found = logits(&model, &target, &arguments, &[("CIDER_CPU", isa.name())]);
                let expected = first.get_or_insert_with(|| found.clone());
                assert!(
                    found == *expected,
                    "{name} {scheme:?}: {isa} differs from scalar"
                );
            }
        }
    }
}

#[test]
fn every_level_gives_the_same_bits_of_a_trained_model() {
    let target = folder("trained-levels").join("logits.safetensors");
    for scheme in ["none", "w8a16", "w4a16", "w8a8", "w4a8"] {
        let prompt = "The capital of France is";
        let arguments = [
            "--dtype",
            "f32",
            "--decode-from",
            "3",
            "--prompt",
            prompt,
            "--scheme",
            scheme,
        ];
        let mut first = None;
        for isa in levels() {
            let found = logits(
                Path::new(smollm2()),
                &target,
                &arguments,
                &[("CIDER_CPU", isa.name())],
            );
            let expected = first.get_or_insert_with(|| found.clone());
            assert!(found == *expected, "{scheme}: {isa} differs from scalar");
        }
    }
}

#[test]
fn chunks_threads_and_company_do_not_show() {
    let folder = folder("bits-company");
    let others = folder.join("others.txt");
    let lines = [ids(90, 300), ids(7, 200), ids(1, 100), ids(33, 310)];
    fs::write(&others, lines.join("\n")).unwrap();
    let others = others.to_str().unwrap();
    for (name, model, ids) in small_models() {
        for scheme in SCHEMES {
            // One model is enough to see that nothing depends on the type of activations.
            let dtypes: &[_] = if name == "qwen3-headdim" {
                &["bf16", "f32"]
            } else {
                &["f32"]
            };
            for dtype in dtypes {
                for decode_from in ["150", "101"] {
                    let mut arguments = vec![
                        "--tokens",
                        &ids,
                        "--dtype",
                        dtype,
                        "--decode-from",
                        decode_from,
                    ];
                    arguments.extend(scheme);
                    let case = format!("{name} {scheme:?} {dtype} from {decode_from}");
                    check_variants(&model, &folder, others, &arguments, &case);
                }
            }
        }
    }
}

/// Compares the lone run in one chunk with every other way to run it.
fn check_variants(model: &Path, folder: &Path, others: &str, arguments: &[&str], case: &str) {
    let target = folder.join("logits.safetensors");
    let run = |chunk: &str, threads: &str, company: bool| {
        let mut all = arguments.to_vec();
        all.extend(["--chunk", chunk]);
        if company {
            all.extend(["--batch-with", others]);
        }
        logits(model, &target, &all, &[("CIDER_THREADS", threads)])
    };
    let alone = run("1000", "1", false);
    for (chunk, threads, company) in [
        ("1", "2", false),
        ("3", "3", false),
        ("7", "1", true),
        ("64", "2", true),
        ("64", "3", false),
        ("1000", "3", true),
    ] {
        let found = run(chunk, threads, company);
        assert!(
            found == alone,
            "{case}: chunk {chunk}, {threads} threads, company {company}"
        );
    }
}

#[test]
fn a_trained_model_has_the_same_bits_in_company() {
    let folder = folder("trained-company");
    let (target, others) = (
        folder.join("logits.safetensors"),
        folder.join("others.json"),
    );
    fs::write(
        &others,
        format!("[[{}],[{}]]", ids(40, 40_000), ids(9, 9000)),
    )
    .unwrap();
    let ids = ids(70, 49_000);
    for scheme in ["w8a8", "w4a16"] {
        let lone = ["--tokens", &ids, "--scheme", scheme, "--decode-from", "66"];
        let mut company = lone.to_vec();
        company.extend(["--chunk", "7", "--batch-with", others.to_str().unwrap()]);
        let run = |arguments: &[&str], threads| {
            logits(
                Path::new(smollm2()),
                &target,
                arguments,
                &[("CIDER_THREADS", threads)],
            )
        };
        assert!(run(&lone, "1") == run(&company, "3"), "{scheme}");
    }
}

#[test]
fn the_phase_of_a_token_shows_where_prompts_are_quantised() {
    let target = folder("phases").join("logits.safetensors");
    let (model, ids) = (testdata("llama3-tied"), ids(20, 320));
    let run = |scheme, from| {
        logits(
            &model,
            &target,
            &["--tokens", &ids, "--scheme", scheme, "--decode-from", from],
            &[],
        )
    };
    assert!(run("w8a8", "20") != run("w8a8", "10"));
}

#[test]
fn the_file_has_ids_positions_and_logits() {
    let target = folder("contents").join("logits.safetensors");
    let bytes = logits(
        &testdata("llama3-tied"),
        &target,
        &["--tokens", "5,6,7"],
        &[],
    );
    let tensors = safetensors::open(&target).unwrap();
    let logits = tensors.require("logits", &[3, 320]).unwrap();
    assert!(logits.read_all().iter().all(|logit| logit.is_finite()));
    let header_end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..header_end]).unwrap();
    for (name, expected) in [("ids", [5i64, 6, 7]), ("positions", [0, 1, 2])] {
        assert_eq!(header[name]["dtype"], "I64");
        assert_eq!(header[name]["shape"], serde_json::json!([3]));
        let begin = header_end + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
        let found = bytes[begin..begin + 24]
            .chunks(8)
            .map(|b| i64::from_le_bytes(*b.first_chunk().unwrap()));
        assert!(found.eq(expected), "{name}");
    }
    let left: Vec<_> = fs::read_dir(target.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}
