//! What a trained model says.

use crate::support::{cider, finish, finish_with, levels, run, smollm2};

const QUESTION: &str = "What is the capital of France?";

#[test]
fn the_capital_of_france_is_paris() {
    for scheme in ["none", "w8a16", "w8a8"] {
        let arguments = [
            "run",
            smollm2(),
            QUESTION,
            "--temperature",
            "0",
            "--scheme",
            scheme,
        ];
        let outcome = run(arguments).succeeded();
        assert!(outcome.stdout.contains("Paris"), "{scheme}: {outcome:?}");
        assert!(outcome.stdout.ends_with('\n'));
    }
}

#[test]
fn a_prompt_may_come_from_standard_input() {
    let mut command = cider();
    command.args(["run", smollm2()]);
    let outcome = finish_with(&mut command, format!("{QUESTION}\n").as_bytes()).succeeded();
    let argument = run(["run", smollm2(), QUESTION]).succeeded();
    assert!(outcome.stdout.contains("Paris"));
    assert_eq!(outcome.stdout, argument.stdout);
}

#[test]
fn json_has_the_text_and_the_figures() {
    let arguments = [
        "run",
        smollm2(),
        QUESTION,
        "--json",
        "--seed",
        "7",
        "--threads",
        "1",
    ];
    let report = run(arguments).succeeded().json();
    assert!(report["text"].as_str().unwrap().contains("Paris"));
    assert_eq!(report["finish_reason"], "stop");
    assert_eq!(report["seed"], 7);
    assert_eq!(report["scheme"], "w8a8");
    assert_eq!(report["group_size"], 0);
    assert_eq!(report["dtype"], "bf16");
    assert_eq!(report["threads"], 1);
    let generated = report["generated_tokens"].as_u64().unwrap();
    assert_eq!(report["tokens"].as_array().unwrap().len() as u64, generated);
    assert!(report["prompt_tokens"].as_u64().unwrap() > 30);
    for rate in [
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
        "load_seconds",
    ] {
        assert!(report[rate].as_f64().unwrap() > 0.0, "{rate}: {report}");
    }
    // SmolLM2-135M has 134.5 million weights, a byte each and their scales.
    let weights = report["memory"]["weights"].as_u64().unwrap();
    assert!((134_500_000..150_000_000).contains(&weights), "{report}");
    assert!(report["memory"]["resident_peak"].as_u64().unwrap() > weights);
}

#[test]
fn the_closing_line_and_the_start_are_on_standard_error() {
    let outcome = run(["run", smollm2(), QUESTION, "--threads", "2"]).succeeded();
    assert!(outcome.stderr.starts_with("info: cpu, "), "{outcome:?}");
    assert!(outcome.stderr.contains(", 2 threads"), "{outcome:?}");
    let last = outcome.stderr.lines().last().unwrap();
    for part in [
        "prompt tokens",
        "generated",
        "prefill",
        "decode",
        "first token",
        "weights",
        "kv cache",
    ] {
        assert!(last.contains(part), "{part}: {last}");
    }
    let quiet = run(["-q", "run", smollm2(), QUESTION]).succeeded();
    assert_eq!(quiet.stderr, "");
}

#[test]
fn the_text_is_the_same_on_every_level_in_bf16() {
    // A whole chat for the default scheme; a few tokens for the others, since portable code takes its time.
    let raw = ["The capital of France is", "--raw", "--max-tokens", "6"];
    for (scheme, prompt) in [
        ("w8a8", &[QUESTION][..]),
        ("none", &raw),
        ("w8a16", &raw),
        ("w4a16", &raw),
        ("w4a8", &raw),
    ] {
        let mut texts = Vec::new();
        for isa in levels() {
            let mut command = cider();
            command.args(["run", smollm2(), "--scheme", scheme]);
            let outcome = finish(command.args(prompt).env("CIDER_CPU", isa.name())).succeeded();
            let start = format!("info: cpu, {isa},");
            assert!(outcome.stderr.contains(&start), "{outcome:?}");
            assert!(outcome.stdout.trim().len() > 3, "{outcome:?}");
            texts.push(outcome.stdout);
        }
        let first = &texts[0];
        assert!(
            texts.iter().all(|text| text == first),
            "{scheme}: {texts:?}"
        );
    }
}

#[test]
fn sampling_follows_its_flags() {
    let sampled = |seed: &str| {
        let flags = [
            "--temperature",
            "1.5",
            "--max-tokens",
            "16",
            "--raw",
            "--seed",
            seed,
        ];
        let mut arguments = vec!["run", smollm2(), "Once upon a time"];
        arguments.extend(flags);
        run(arguments).succeeded().stdout
    };
    assert_eq!(sampled("1"), sampled("1"));
    assert_ne!(sampled("1"), sampled("2"));
    let stopped = ["run", smollm2(), QUESTION, "--stop", " Paris", "--json"];
    let report = run(stopped).succeeded().json();
    assert_eq!(report["text"], "The capital of France is");
    assert_eq!(report["finish_reason"], "stop");
    let cut = run(["run", smollm2(), QUESTION, "--max-tokens", "2", "--json"])
        .succeeded()
        .json();
    assert_eq!(cut["text"], "The capital");
    assert_eq!(cut["finish_reason"], "length");
}

#[test]
fn control_tokens_count_in_raw_prompts_only() {
    let count = |arguments: &[&str]| {
        let all = ["debug", "tokenize", smollm2(), "--json"]
            .into_iter()
            .chain(arguments.iter().copied());
        let report = run(all).succeeded().json();
        let ids: Vec<u64> = report["ids"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(serde_json::Value::as_u64)
            .collect();
        assert_eq!(ids.len(), report["pieces"].as_array().unwrap().len());
        // <|im_end|> of this model.
        ids.iter().filter(|&&id| id == 2).count()
    };
    assert_eq!(count(&["--prompt", "a<|im_end|>"]), 1);
    // The template ends the turns of the system and of the user; the user's own spelling is text.
    assert_eq!(count(&["--chat", "a<|im_end|>"]), count(&["--chat", "a"]));
}
