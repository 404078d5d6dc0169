//! `cider bench` in its short form: every answer is checked, everything is in the record.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::errors::{failed, refused};
use crate::support::{Outcome, cider, finish, folder, run};

/// Runs `cider bench` with its short form and a record in `folder`; gives the outcome and the record.
fn quick(folder: &Path, arguments: &[&str]) -> (Outcome, Value) {
    let file = folder.join("record.json");
    let mut command = cider();
    command.arg("bench").args(arguments).arg("--quick");
    let outcome = finish(command.arg("--json").arg(&file)).succeeded();
    let record = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    (outcome, record)
}

/// The rows of a record, each of which must have a time within its spread and a share of what is possible.
fn rows(record: &Value) -> &Vec<Value> {
    let rows = record["rows"].as_array().unwrap();
    for row in rows {
        let time = |key: &str| row["ms"][key].as_f64().unwrap();
        assert!(0.0 < time("min") && time("min") <= time("median"), "{row}");
        assert!(time("median") <= time("max"), "{row}");
        for key in ["floor_ms", "share_of_roofline"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key} of {row}");
        }
    }
    rows
}

fn has_ceilings(record: &Value) {
    let ceilings = &record["ceilings"];
    for key in ["int8_tops", "f32_tops", "read_gbs"] {
        assert!(ceilings[key].as_f64().unwrap() > 0.0, "{ceilings}");
    }
    let measured = ceilings["measured"].as_array().unwrap();
    assert_eq!(measured.len(), 3);
    let reads = measured.iter().map(|figures| figures[3].as_f64().unwrap());
    let (best, worst) = (
        reads.clone().fold(0.0, f64::max),
        reads.fold(f64::MAX, f64::min),
    );
    let spread = ceilings["spread"][3].as_f64().unwrap();
    assert!((spread - (best - worst) / best).abs() < 1e-9, "{ceilings}");
    assert!(ceilings["disturbed"].is_array());
    for key in ["date", "cider_version"] {
        assert!(!record[key].as_str().unwrap().is_empty());
    }
    for key in ["cpu", "isa", "os"] {
        assert!(!record["machine"][key].as_str().unwrap().is_empty());
    }
    assert!(record["machine"]["threads"].as_u64().unwrap() > 0);
}

#[test]
fn linear_measures_every_scheme_at_every_size() {
    let folder = folder("bench-linear");
    let svg = folder.join("plot.svg");
    let (outcome, record) = quick(&folder, &["linear", "--svg", svg.to_str().unwrap()]);
    assert_eq!(record["command"], "linear");
    has_ceilings(&record);
    let rows = rows(&record);
    let variants = [
        "w8a8",
        "int32 product",
        "quantise",
        "w8a8-g128",
        "w4a8",
        "w4a8-channel",
        "w8a16",
        "w4a16",
        "bf16",
        "f32",
    ];
    let (ours, reads): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row["who"] == "cider");
    // Few rows wait for memory, which is read plainly beside them.
    assert!(!reads.is_empty());
    assert!(reads.iter().all(|row| row["variant"] == "plain read"));
    assert_eq!(ours.len(), 2 * 3 * variants.len());
    for (row, variant) in ours.iter().zip(variants.iter().cycle()) {
        assert_eq!(row["variant"], *variant);
        assert_eq!(row["who"], "cider");
        let error = row["relative_error"].as_f64();
        match *variant {
            "quantise" => assert!(error.is_none() && row["tops"].is_null(), "{row}"),
            // The weights are of a kind that INT8 holds exactly, INT4 not.
            "int32 product" => assert_eq!(error, Some(0.0)),
            "w4a8" | "w4a8-channel" | "w4a16" => {
                assert!(
                    error.is_some_and(|error| error > 0.01 && error < 0.2),
                    "{row}"
                );
            }
            _ => assert!(error.is_some_and(|error| error < 0.01), "{row}"),
        }
        if *variant != "quantise" {
            assert!(row["share_of_peak"].as_f64().unwrap() > 0.0);
        }
        assert!(outcome.stdout.contains(variant));
    }
    assert!(outcome.stdout.contains("192x320 M=33"), "{outcome:?}");
    let plot = fs::read_to_string(svg).unwrap();
    assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n"));
    for part in ["192x320", "320x192", "int8 peak", "cider w8a8", "TOPS"] {
        assert!(plot.contains(part), "{part} is not in the plot");
    }
}

#[test]
fn linear_measures_what_it_is_asked_for_on_a_forced_level() {
    let folder = folder("bench-forced");
    let file = folder.join("record.json");
    let mut command = cider();
    command
        .args([
            "-q", "bench", "linear", "--quick", "--m", "2,5", "--shape", "48x64",
        ])
        .args([
            "--scheme",
            "bf16,w8a16",
            "--rounds",
            "3",
            "--threads",
            "1",
            "--json",
        ])
        .arg(&file)
        .env("CIDER_CPU", "scalar");
    let outcome = finish(&mut command).succeeded();
    assert_eq!(outcome.stderr, "");
    let record: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let machine = &record["machine"];
    assert_eq!(
        (&machine["isa"], &machine["threads"]),
        (&"scalar".into(), &1.into())
    );
    let found: Vec<_> = rows(&record)
        .iter()
        .map(|row| {
            assert_eq!(row["ms"]["rounds"], 3);
            (
                row["shape"]["m"].as_u64().unwrap(),
                row["variant"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [(2, "bf16"), (2, "w8a16"), (5, "bf16"), (5, "w8a16")]
    );
}

#[test]
fn attention_measures_both_phases() {
    let (outcome, record) = quick(
        &folder("bench-attention"),
        &[
            "attention",
            "--geometry",
            "smollm2-135m",
            "--kv",
            "f32,bf16",
        ],
    );
    has_ceilings(&record);
    let rows = rows(&record);
    // A prompt, a generated token, and two at once.
    assert_eq!(rows.len(), 3 * 2);
    for row in rows {
        let limit = if row["variant"] == "kv f32" {
            1e-4
        } else {
            0.02
        };
        assert!(row["relative_error"].as_f64().unwrap() < limit, "{row}");
        assert!(row["gbs"].as_f64().unwrap() > 0.0);
    }
    assert!(
        outcome.stdout.contains("smollm2-135m decode 2 at 100"),
        "{outcome:?}"
    );
}

#[test]
fn model_measures_the_start_and_both_phases() {
    let (outcome, record) = quick(&folder("bench-model"), &["model"]);
    has_ceilings(&record);
    let (ours, reads): (Vec<_>, Vec<_>) =
        rows(&record).iter().partition(|row| row["who"] == "cider");
    let is_read = |row: &&Value| row["variant"] == "plain read" && row["phase"] == "decode";
    assert_eq!(reads.iter().copied().filter(is_read).count(), 2);
    assert_eq!(reads.len(), 2);
    let found: Vec<_> = ours
        .iter()
        .map(|row| {
            let phase = row["phase"].as_str().unwrap();
            let has_rate = row["tokens_per_second"]
                .as_f64()
                .is_some_and(|rate| rate > 0.0);
            assert_eq!(has_rate, ["prefill", "decode"].contains(&phase), "{row}");
            assert!(row["bytes"].as_f64().unwrap() > 0.0);
            (phase, row["shape"]["prompt"].as_u64().unwrap())
        })
        .collect();
    let expected = [
        ("load", 0),
        ("first token", 32),
        ("prefill", 16),
        ("decode", 16),
        ("prefill", 40),
        ("decode", 40),
    ];
    assert_eq!(found, expected);
    assert!(
        outcome.stdout.contains("demo-vlm prefill 40"),
        "{outcome:?}"
    );
}

#[test]
fn a_picture_is_measured_up_to_the_first_token() {
    let (outcome, record) = quick(
        &folder("bench-picture"),
        &["model", "--image", "330x200", "--prompt", "5,9"],
    );
    has_ceilings(&record);
    let rows = rows(&record);
    let phases = ["preprocess", "tower", "prefill", "first token"];
    assert_eq!(rows.len(), 2 * phases.len());
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(row["phase"], phases[i % 4], "{row}");
        let size = |key: &str| row["shape"][key].as_u64().unwrap();
        assert_eq!((size("width"), size("height")), (330, 200), "{row}");
        assert_eq!(size("prompt"), [5, 9][i / 4], "{row}");
        assert_eq!(size("patches"), 4 * size("image_tokens"), "{row}");
        let ratio = row["ratio_to_floor"].as_f64().unwrap();
        assert!((ratio * row["share_of_roofline"].as_f64().unwrap() - 1.0).abs() < 1e-9);
        assert!(row["kl_divergence"].is_null(), "{row}");
    }
    let operations = |row: usize, key: &str| rows[row][key].as_f64().unwrap();
    // The tower is floats alone, the prompt both.
    assert_eq!(operations(1, "operations_int8"), 0.0);
    for key in ["operations_int8", "operations_float"] {
        assert!(operations(2, key) > 0.0);
        let parts = operations(1, key) + operations(2, key);
        assert_eq!(operations(3, key), parts, "{key}");
    }
    let time = |row: usize| rows[row]["ms"]["max"].as_f64().unwrap();
    assert!(time(3) <= time(0) + time(1) + time(2) + 1e-6);
    assert!(
        outcome.stdout.contains("330x200 + 9 first token"),
        "{outcome:?}"
    );
    assert!(
        outcome.stdout.contains("x floor") && !outcome.stdout.contains("KL"),
        "{outcome:?}"
    );
}

#[test]
fn a_quantised_tower_is_compared_with_the_floats() {
    let arguments = ["model", "--image", "64x96", "--prompt", "40"];
    let more = ["--vision-scheme", "w8a8", "--scheme", "none"];
    let (outcome, record) = quick(
        &folder("bench-picture-w8a8"),
        &[&arguments[..], &more].concat(),
    );
    let rows = rows(&record);
    for row in &rows[1..] {
        let nats = row["kl_divergence"].as_f64().unwrap();
        let max = row["divergence"]["max"].as_f64().unwrap();
        // The demonstration model is trained: INT8 moves its answers, and not by much.
        assert!(nats > 0.0 && nats <= max && nats < 0.1, "{row}");
        // What closes the picture, and the text.
        assert_eq!(row["divergence"]["tokens"], 41, "{row}");
        assert!(row["divergence"]["same_next_token"].as_f64().unwrap() > 0.8);
    }
    assert!(rows[1]["operations_int8"].as_f64().unwrap() > 0.0);
    assert_eq!(rows[2]["operations_int8"], 0.0);
    assert!(outcome.stdout.contains("KL"), "{outcome:?}");
}

#[test]
fn pictures_that_cannot_be_measured_are_refused() {
    let image = |size: &str| run(["bench", "model", "--quick", "--image", size]);
    for size in ["5", "0x5", "5x", "5x5x5"] {
        let outcome = image(size);
        assert_eq!(outcome.status.code(), Some(2), "{size}: {outcome:?}");
        assert!(outcome.stderr.contains("--image"), "{size}: {outcome:?}");
    }
    refused(&image("16384x16384"), &["--image", "268435456", "67108864"]);
    refused(&image("1x300"), &["--image", "aspect"]);
    let with = |more: [&str; 2]| run(["bench", "model", "--image", "64x64", more[0], more[1]]);
    refused(&with(["--tokens", "4"]), &["--image", "--tokens"]);
    refused(&with(["--peer", "true"]), &["--image", "--peer"]);
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/llama3-tied");
    let blind = run(["bench", "model", text, "--quick", "--image", "64x64"]);
    failed(&blind, &["llama3-tied", "no vision input"]);
}

#[test]
fn wrong_options_have_exit_code_2() {
    let linear = |more: [&str; 2]| run(["bench", "linear", more[0], more[1]]);
    refused(&linear(["--scheme", "w2a8"]), &["w2a8"]);
    let attention = |more: [&str; 2]| run(["bench", "attention", more[0], more[1]]);
    refused(&attention(["--kv", "i32"]), &["--kv i32", "bf16"]);
    refused(
        &attention(["--prefill", "100x50"]),
        &["100x50", "from 1 to 50 rows"],
    );
    refused(&attention(["--geometry", "gpt"]), &["gpt"]);
    let model = ["bench", "model", "--scheme", "none", "--group-size", "64"];
    refused(
        &run(model),
        &["--group-size 64", "expected 0 with --scheme none"],
    );
}

#[test]
fn every_number_is_refused_with_its_range() {
    let all = [
        ("linear", "--m", "from 1 to 4294967295"),
        (
            "linear",
            "--shape",
            "ROWSxCOLUMNS as in 10240x2560, whole numbers from 1 to 4294967295 each",
        ),
        (
            "attention",
            "--prefill",
            "ROWSxCONTEXT as in 512x512, whole numbers from 1 to 4294967295 each",
        ),
        (
            "attention",
            "--decode",
            "SEQUENCESxCONTEXT as in 8x1536, whole numbers from 1 to 4294967295 each",
        ),
        (
            "model",
            "--image",
            "WIDTHxHEIGHT as in 1280x831, whole numbers from 1 to 4294967295 each",
        ),
        ("model", "--prompt", "from 1 to 4294967295"),
        ("model", "--tokens", "from 1 to 4294967295"),
        ("model", "--threads", "from 1 to 1024"),
        ("linear", "--rounds", "from 1 to 10000"),
        ("attention", "--peer-timeout", "from 1 to 86400"),
    ];
    for (work, option, range) in all {
        for value in [
            "0",
            "-1",
            "0x0",
            "-1x5",
            "1x",
            "x",
            "1.5",
            "99999999999999999999",
            "1x2x3",
            "",
        ] {
            let outcome = run(["bench", work, option, value]);
            let what = format!("invalid value '{value}'");
            let parts = [option, range, if value.is_empty() { option } else { &what }];
            refused(&outcome, &parts);
        }
    }
}

#[test]
fn no_groups_go_with_a_scheme_that_has_none() {
    let arguments = [
        "model",
        "--scheme",
        "none",
        "--group-size",
        "0",
        "--prompt",
        "4",
        "--tokens",
        "2",
    ];
    let (_, record) = quick(&folder("bench-no-groups"), &arguments);
    assert_eq!(rows(&record)[2]["variant"], "none");
}

#[test]
fn one_file_cannot_be_record_and_plot() {
    let folder = folder("bench-one-target");
    fs::create_dir(folder.join("inner")).unwrap();
    std::os::unix::fs::symlink("record", folder.join("link")).unwrap();
    fs::write(folder.join("record"), "before").unwrap();
    for other in ["record", "./record", "inner/../record", "link"] {
        let mut command = cider();
        command.args(["bench", "linear", "--quick", "--json"]);
        command
            .arg(folder.join("record"))
            .arg("--svg")
            .arg(folder.join(other));
        refused(&finish(&mut command), &["--json", "--svg", "are one file"]);
    }
    assert_eq!(fs::read(folder.join("record")).unwrap(), b"before");
    let mut command = cider();
    let weights = folder.join("weights.gguf");
    fs::write(&weights, "weights").unwrap();
    command
        .args(["bench", "model"])
        .arg(&weights)
        .arg("--json")
        .arg(&weights);
    refused(
        &finish(&mut command),
        &["--json", "weights.gguf", "would replace"],
    );
    assert_eq!(fs::read(weights).unwrap(), b"weights");
}

#[test]
fn what_cannot_be_written_is_seen_before_anything_is_measured() {
    let folder = folder("bench-targets");
    let missing = folder.join("missing/record.json");
    for option in ["--json", "--svg"] {
        let mut command = cider();
        command.args(["bench", "linear", option]).arg(&missing);
        failed(
            &finish(&mut command),
            &["missing/record.json", "No such file"],
        );
        let mut command = cider();
        command.args(["bench", "linear", option]).arg(&folder);
        failed(
            &finish(&mut command),
            &["bench-targets", "a folder, not a regular file"],
        );
        let socket = folder.join("socket");
        let _ = fs::remove_file(&socket);
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let mut command = cider();
        command.args(["bench", "linear", option]).arg(&socket);
        failed(&finish(&mut command), &["socket", "not a regular file"]);
        assert!(!fs::metadata(&socket).unwrap().is_file());
    }
    let mut command = cider();
    command
        .args(["bench", "model"])
        .arg(folder.join("missing.gguf"));
    failed(&finish(&mut command), &["missing.gguf", "No such file"]);
}

#[test]
fn work_that_memory_has_no_room_for_is_refused() {
    for arguments in [
        ["linear", "--m", "4000000000"],
        ["linear", "--shape", "4000000000x4000000000"],
        ["attention", "--decode", "1000x4000000000"],
    ] {
        let mut command = cider();
        command.args(["bench"]).args(arguments).arg("--quick");
        failed(&finish(&mut command), &["GB of memory is available"]);
    }
}

#[test]
fn a_peer_whose_line_does_not_end_is_given_up() {
    let mut command = cider();
    command.args(["bench", "linear", "--quick", "--peer", "cat /dev/zero"]);
    failed(&finish(&mut command), &["peer cat /dev/zero", "a line of"]);
}
