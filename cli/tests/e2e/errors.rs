//! Bad input: one line that names the thing, and the exit code.

use std::fs;
use std::path::Path;

use crate::support::{Outcome, cider, f_tiny, finish, finish_with, folder, run, smollm2, testdata};

/// Exit code 1, nothing on standard output, one line of error that has all `parts`.
pub(crate) fn failed(outcome: &Outcome, parts: &[&str]) {
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    assert_eq!(outcome.stdout, "", "{outcome:?}");
    one_line(outcome, parts);
}

/// Exit code 2, and the same.
pub(crate) fn refused(outcome: &Outcome, parts: &[&str]) {
    assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
    assert_eq!(outcome.stdout, "", "{outcome:?}");
    one_line(outcome, parts);
}

fn one_line(outcome: &Outcome, parts: &[&str]) {
    let errors: Vec<_> = outcome
        .stderr
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    let [line] = errors.as_slice() else {
        panic!("expected one error: {outcome:?}");
    };
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
}

fn run_on(model: &Path, more: &[&str]) -> Outcome {
    let mut command = cider();
    command.arg("run").arg(model).args(more);
    finish(&mut command)
}

#[test]
fn files_that_are_missing_or_of_another_kind() {
    let folder = folder("kinds");
    let missing = folder.join("missing.gguf");
    failed(&run_on(&missing, &["x"]), &["missing.gguf", "No such file"]);
    failed(
        &run_on(&folder, &["x"]),
        &["kinds", "neither config.json nor a .gguf file"],
    );
    let text = folder.join("text.bin");
    fs::write(&text, "hello").unwrap();
    failed(&run_on(&text, &["x"]), &["text.bin", "not a model"]);
    let pointer = folder.join("pointer.gguf");
    fs::write(
        &pointer,
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    )
    .unwrap();
    failed(
        &run_on(&pointer, &["x"]),
        &["pointer.gguf", "Git LFS pointer"],
    );
}

#[test]
fn files_that_are_cut() {
    let folder = folder("cut");
    let whole = fs::read(testdata("gguf/llama-q8.gguf")).unwrap();
    let file = folder.join("cut.gguf");
    for length in [0, 3, 11, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&file, &whole[..length]).unwrap();
        failed(&run_on(&file, &["x"]), &["cut.gguf"]);
    }
    let model = testdata("llama3-tied");
    let weights = fs::read(model.join("model.safetensors")).unwrap();
    fs::copy(model.join("config.json"), folder.join("config.json")).unwrap();
    for length in [0, 7, 100, weights.len() / 2, weights.len() - 1] {
        fs::write(folder.join("model.safetensors"), &weights[..length]).unwrap();
        let mut command = cider();
        command
            .args(["debug", "logits", "--tokens", "1", "-o"])
            .arg(folder.join("out"))
            .arg(&folder);
        failed(&finish(&mut command), &["model.safetensors"]);
        assert!(!folder.join("out").exists());
    }
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    let folder = folder("shape");
    let model = testdata("llama3-tied");
    fs::copy(
        model.join("model.safetensors"),
        folder.join("model.safetensors"),
    )
    .unwrap();
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    let wrong = config.replace("\"intermediate_size\": 160", "\"intermediate_size\": 161");
    assert_ne!(config, wrong);
    fs::write(folder.join("config.json"), wrong).unwrap();
    let mut command = cider();
    command
        .args(["debug", "logits", "--tokens", "1", "-o"])
        .arg(folder.join("out"))
        .arg(&folder);
    failed(&finish(&mut command), &["mlp", "161", "160"]);
}

#[test]
fn requests_that_do_not_fit() {
    let model = f_tiny();
    let prompt = "many words ".repeat(20);
    failed(
        &run_on(model, &[&prompt, "--ctx", "8"]),
        &["exceeds the context of 8 tokens"],
    );
    let large = run_on(model, &["x", "--ctx", "4000000000"]);
    failed(
        &large,
        &["4000000000 tokens needs", "GB of memory is available"],
    );
    let outside = run([
        "debug",
        "logits",
        "testdata/llama3-tied",
        "--tokens",
        "1,320",
        "-o",
        "fits-not",
    ]);
    failed(&outside, &["320", "vocabulary of 320"]);
    let target = folder("fit").join("out");
    let target = target.to_str().unwrap();
    let beyond = [
        "debug",
        "logits",
        "testdata/llama3-tied",
        "--tokens",
        "1,2",
        "--decode-from",
        "3",
        "-o",
        target,
    ];
    failed(&run(beyond), &["--decode-from 3", "2 tokens"]);
    let short = [
        "debug",
        "logits",
        "testdata/llama3-tied",
        "--tokens",
        "1,2",
        "--ctx",
        "1",
        "-o",
        target,
    ];
    failed(&run(short), &["context of 1 tokens"]);
    let no_words = ["debug", "tokenize", "testdata/llama3-tied", "--prompt", "x"];
    failed(&run(no_words), &["llama3-tied", "tokenizer.json"]);
}

#[test]
fn companions_that_are_no_sequences() {
    let folder = folder("companions");
    let file = folder.join("others.txt");
    let check = |content: &str, parts: &[&str]| {
        fs::write(&file, content).unwrap();
        let mut command = cider();
        command.args([
            "debug",
            "logits",
            "testdata/llama3-tied",
            "--tokens",
            "1",
            "-o",
        ]);
        command
            .arg(folder.join("out"))
            .arg("--batch-with")
            .arg(&file);
        failed(&finish(&mut command), parts);
    };
    check("", &["others.txt", "no sequence"]);
    check("1,2\n3,x\n", &["others.txt", "line 2", "3,x"]);
    check("[[1],[]]", &["others.txt", "sequence 2 has no tokens"]);
    check("[[1],[\"a\"]]", &["others.txt"]);
    check("4000,1\n", &["4000", "vocabulary"]);
}

#[test]
fn a_prompt_that_is_no_text() {
    let outcome = finish_with(cider().args(["run", smollm2()]), b"caf\xe9\n");
    failed(&outcome, &["standard input", "UTF-8"]);
}

#[test]
fn the_environment_is_checked() {
    let with = |name, value| finish(cider().args(["run", smollm2(), "x"]).env(name, value));
    failed(
        &with("CIDER_CPU", "nonsense"),
        &["CIDER_CPU", "nonsense", "avx512_vnni"],
    );
    failed(
        &with("CIDER_THREADS", "0"),
        &["CIDER_THREADS", "above 0", "got 0"],
    );
    failed(&with("CIDER_THREADS", "many"), &["CIDER_THREADS", "many"]);
}

#[test]
fn wrong_use_has_exit_code_2() {
    let model = smollm2();
    refused(&run(["run"]), &["prompt is empty"]);
    refused(&run(["run", model, ""]), &["prompt is empty"]);
    refused(
        &finish_with(cider().args(["run", model]), b"\n"),
        &["prompt is empty"],
    );
    refused(
        &run(["run", model, "x", "--scheme", "w2a2"]),
        &["w2a2", "w4a8"],
    );
    refused(
        &run(["run", model, "x", "--group-size", "48"]),
        &["48", "--group-size"],
    );
    refused(
        &run(["run", model, "x", "--scheme", "none", "--group-size", "64"]),
        &["--group-size 64", "expected 0 with --scheme none"],
    );
    refused(&run(["run", model, "x", "--head", "int4"]), &["int4"]);
    refused(
        &run(["run", model, "x", "--dtype", "f16"]),
        &["f16", "bf16 or f32"],
    );
    refused(
        &run(["run", model, "x", "--device", "cuda:0"]),
        &["cuda is not in this build", "only cpu"],
    );
    refused(
        &run(["run", model, "x", "--device", "metal"]),
        &["metal is not in this build"],
    );
    refused(
        &run(["run", model, "x", "--threads", "0"]),
        &["--threads", "1 to 1024"],
    );
    refused(
        &run(["run", model, "x", "--ctx", "0"]),
        &["--ctx", "from 1 to"],
    );
    refused(
        &run(["run", model, "x", "--temperature", "-1"]),
        &["temperature"],
    );
    refused(
        &run(["run", model, "x", "--temperature", "nan"]),
        &["temperature"],
    );
    refused(&run(["run", model, "x", "--top-p", "1.5"]), &["top_p"]);
    refused(&run(["run", model, "x", "--stop", ""]), &["stop"]);
    refused(&run(["debug", "logits", model, "-o", "x"]), &["required"]);
    refused(
        &run(["debug", "logits", model, "--tokens", "1,x", "-o", "x"]),
        &["x"],
    );
    refused(&run(["run", model, "--frobnicate"]), &["--frobnicate"]);
    refused(&run(["frobnicate"]), &["frobnicate"]);
}

#[test]
fn a_template_that_is_missing_or_broken_is_named() {
    let folder = folder("template");
    let file = folder.join("template.jinja");
    let flag = ["x", "--chat-template", file.to_str().unwrap()];
    failed(
        &run_on(f_tiny(), &flag),
        &["template.jinja", "No such file"],
    );
    fs::write(&file, "{% for %}").unwrap();
    failed(&run_on(f_tiny(), &flag), &["template.jinja"]);
    fs::write(&file, "{{ raise_exception('not with me') }}").unwrap();
    failed(&run_on(f_tiny(), &flag), &["template.jinja", "not with me"]);
}

#[test]
fn numbers_below_zero_are_refused_in_plain_words() {
    let model = f_tiny().to_str().unwrap();
    for (option, expected) in [
        ("--ctx", "expected a whole number from 1 to 4294967295"),
        (
            "--max-tokens",
            "expected a whole number from 1 to 4294967295",
        ),
        ("--min-image-tokens", "expected a whole number from 1 to"),
        ("--max-image-tokens", "expected a whole number from 1 to"),
        ("--threads", "expected a whole number from 1 to 1024"),
        ("--top-k", "expected a whole number from 0 to 4294967295"),
        (
            "--seed",
            "expected a whole number from 0 to 18446744073709551615",
        ),
        ("--group-size", "possible values: 0, 32"),
    ] {
        let outcome = run(["run", model, "x", option, "-5"]);
        assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
        let said = &outcome.stderr;
        assert!(
            said.contains("invalid value '-5'") && said.contains(option),
            "{said}"
        );
        assert!(said.contains(expected), "{said}");
    }
    for (option, value, low) in [
        ("--chunk", "-5", 1),
        ("--chunk", "0", 1),
        ("--ctx", "0", 1),
        ("--decode-from", "-5", 0),
        ("--decode-from", "4294967296", 0),
        ("--tokens", "-5,1", 0),
        ("--tokens", "1,4294967296", 0),
        ("--min-image-tokens", "0", 1),
    ] {
        let outcome = run(["debug", "logits", model, "-o", "x", option, value]);
        let expected = format!("expected a whole number from {low} to 4294967295");
        refused(&outcome, &[option, &expected]);
    }
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_work() {
    let folder = folder("outputs");
    // The model does not exist: what is said first shows what was looked at first.
    for (output, what) in [
        (folder.join("absent/out"), "No such file"),
        (folder.clone(), "a folder, not a regular file"),
        ("/dev/full".into(), "not a regular file"),
    ] {
        let name = output.to_str().unwrap();
        let logits = [
            "debug",
            "logits",
            "absent-model",
            "--tokens",
            "1",
            "-o",
            name,
        ];
        failed(&run(logits), &[name, what]);
        let preprocess = ["debug", "preprocess", "absent.png", "-o", name];
        failed(&run(preprocess), &[name, what]);
    }
    let left = fs::read_dir(&folder).unwrap().count();
    assert_eq!(left, 0, "a trial leaves nothing behind");
}

#[test]
fn an_output_that_is_a_link_stays_one() {
    let folder = folder("output-links");
    let (link, file) = (folder.join("link"), folder.join("file"));
    std::os::unix::fs::symlink("file", &link).unwrap();
    let link = link.to_str().unwrap();
    let model = testdata("llama3-tied");
    let logits = [
        "debug",
        "logits",
        model.to_str().unwrap(),
        "--tokens",
        "1,2",
        "-o",
        link,
    ];
    let picture = "examples/pictures/scene.png";
    let preprocess = ["debug", "preprocess", picture, "-o", link];
    for command in [&logits[..], &preprocess] {
        failed(&run(command), &[link, "a link that leads nowhere"]);
        assert!(!file.exists());
        fs::write(&file, "").unwrap();
        run(command).succeeded();
        assert!(fs::symlink_metadata(link).unwrap().is_symlink());
        assert!(fs::metadata(&file).unwrap().len() > 100);
        fs::remove_file(&file).unwrap();
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn an_output_that_would_replace_what_is_read_is_refused() {
    let folder = folder("output-inputs");
    let ids = folder.join("ids");
    fs::write(&ids, "1,2").unwrap();
    let ids = ids.to_str().unwrap();
    let model = testdata("llama3-tied");
    let (model, weights) = (model.to_str().unwrap(), model.join("model.safetensors"));
    let before = fs::read(&weights).unwrap();
    let logits = |output| {
        run([
            "debug",
            "logits",
            model,
            "--tokens",
            "1",
            "--batch-with",
            ids,
            "-o",
            output,
        ])
    };
    refused(
        &logits(weights.to_str().unwrap()),
        &["-o", "model.safetensors", "would replace"],
    );
    refused(&logits(ids), &["-o", "ids", "would replace"]);
    assert_eq!(fs::read(&weights).unwrap(), before);
    assert_eq!(fs::read(ids).unwrap(), b"1,2");
}

#[test]
fn logits_that_are_no_numbers_are_a_failure_and_not_written() {
    let folder = folder("output-nan");
    let model = folder.join("model");
    fs::create_dir(&model).unwrap();
    for file in fs::read_dir(testdata("llama3-tied")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    spoil(&model.join("model.safetensors"), "model.norm.weight");
    let output = folder.join("out");
    let mut command = cider();
    command.args(["debug", "logits"]).arg(&model);
    command.args(["--tokens", "1,2", "-o"]).arg(&output);
    let outcome = finish(&mut command);
    failed(
        &outcome,
        &["numerical error", "the logits of token 0 are not finite"],
    );
    assert_eq!(
        fs::read_dir(&folder).unwrap().count(),
        1,
        "nothing is written"
    );
}

/// Makes a tensor of a safetensors file one of the largest numbers, which pass for weights and overflow in use.
fn spoil(path: &Path, name: &str) {
    let mut bytes = fs::read(path).unwrap();
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let offsets = header[name]["data_offsets"].as_array().unwrap();
    let place = |i: usize| start + offsets[i].as_u64().unwrap() as usize;
    bytes[place(0)..place(1)].fill(0x7f);
    fs::write(path, bytes).unwrap();
}

#[test]
fn company_outside_the_vocabulary_is_refused_by_its_place() {
    let folder = folder("company");
    let file = folder.join("ids");
    let output = folder.join("out");
    let output = output.to_str().unwrap();
    let model = testdata("llama3-tied");
    let model = model.to_str().unwrap();
    for text in ["1,2\n3,999999,4\n", "[[1, 2], [3, 999999]]"] {
        fs::write(&file, text).unwrap();
        let name = file.to_str().unwrap();
        let logits = ["debug", "logits", model, "--tokens", "1", "-o", output];
        let all = [&logits[..], &["--batch-with", name]].concat();
        failed(
            &run(all),
            &[
                name,
                "sequence 2: id 999999 in place 2",
                "outside the vocabulary of",
            ],
        );
    }
}

#[test]
fn one_token_has_no_rate_of_decoding() {
    let model = f_tiny().to_str().unwrap();
    let line = |tokens: &str| {
        let outcome = run(["run", model, "x", "--raw", "--max-tokens", tokens]);
        outcome.succeeded().stderr
    };
    let one = line("1");
    assert!(one.contains("prefill") && !one.contains("decode"), "{one}");
    assert!(line("2").contains("decode"), "{}", line("2"));
}

/// The name in `CIDER_DATA` is that of the folder above `models`.
#[test]
fn the_help_says_what_cider_data_is() {
    let help = run(["--help"]).succeeded().stdout;
    assert!(
        help.contains("CIDER_DATA     the folder above models/"),
        "{help}"
    );
}
