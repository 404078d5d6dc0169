//! Other programs in `cider bench`: measured in turn with us, and refused where they answer wrong.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::errors::failed;
use crate::support::{Outcome, cider, finish, folder};

/// A peer in plain Python: it notes what it is asked, and does what its second argument says.
const PEER: &str = r#"
import json, os, struct, sys, time

log, mode = open(sys.argv[1], "a"), sys.argv[2]

def read(path):
    data = open(path, "rb").read()
    return struct.unpack(f"<{len(data) // 4}f", data)

def linear(r):
    m, n, k = r["m"], r["n"], r["k"]
    x, w = read(r["input"]), read(r["weights"])
    assert len(x) == m * k and len(w) == n * k and r["copies"] > 0
    return [sum(x[i * k + p] * w[j * k + p] for p in range(k)) for i in range(m) for j in range(n)]

def say(reply):
    print(json.dumps(reply), flush=True)

if mode == "silent":
    sys.exit()
if mode == "garbage":
    print("good morning", flush=True)
variants = {"linear": ["fp32", "odd"], "model": ["q8_0"]}
say({"peer": "fake", "version": "1", "threads": int(os.environ["CIDER_PEER_THREADS"]), "variants": variants})
for line in sys.stdin:
    r = json.loads(line)
    log.write(" ".join(str(r.get(key)) for key in ("op", "work", "variant", "phase", "repetitions", "tokens")) + "\n")
    log.flush()
    if r["op"] == "run":
        seconds = [0.25] * (r.get("repetitions") or r["tokens"])
        say({"seconds": seconds[1:] if mode == "short" else seconds})
    elif r["variant"] == "odd":
        say({"unsupported": "only even things"})
    elif r["work"] == "model":
        assert len(r["prompt"]) < r["context"]
        say({"ready": True, "next": 1})
    elif mode == "broken":
        say({"error": "out of order"})
    else:
        y = linear(r)
        if mode == "wrong":
            y[-1] += 1000
        open(r["out"], "wb").write(struct.pack(f"<{len(y)}f", *y))
        say({"ready": True})
"#;

/// Runs `cider bench` with the peer in a mode; gives the outcome, the record if there is one, and the log of the peer.
fn with_peer(folder: &Path, mode: &str, arguments: &[&str]) -> (Outcome, Option<Value>, String) {
    let (script, log, file) = (
        folder.join("peer.py"),
        folder.join("log"),
        folder.join("record.json"),
    );
    fs::write(&script, PEER).unwrap();
    fs::write(&log, "").unwrap();
    let peer = format!("python3 '{}' '{}' {mode}", script.display(), log.display());
    let mut command: Command = cider();
    command
        .arg("bench")
        .args(arguments)
        .args(["--quick", "--rounds", "3", "--peer", &peer, "--json"])
        .arg(&file);
    let outcome = finish(&mut command);
    let record = fs::read_to_string(file).ok();
    let record = record.map(|text| serde_json::from_str(&text).unwrap());
    (outcome, record, fs::read_to_string(log).unwrap())
}

const LINEAR: [&str; 7] = [
    "linear", "--m", "2", "--shape", "24x32", "--scheme", "f32,w8a8",
];

#[test]
fn a_peer_runs_in_every_round_and_is_compared_with_its_counterpart() {
    let (outcome, record, log) = with_peer(&folder("bench-peer"), "right", &LINEAR);
    let (outcome, record) = (outcome.succeeded(), record.unwrap());
    let rows = record["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["who"] == "fake").unwrap();
    assert_eq!(row["ms"]["median"], 250.0);
    assert_eq!(row["ms"]["rounds"], 3);
    assert_eq!(row["variant"], "fp32");
    assert!(row["relative_error"].as_f64().unwrap() < 1e-5);
    assert_eq!(row["compared_with"], "f32");
    let ours = rows.iter().find(|row| row["variant"] == "f32").unwrap();
    let ratio = 250.0 / ours["ms"]["median"].as_f64().unwrap();
    let found = row["ratio_to_cider"].as_f64().unwrap();
    assert!((found / ratio - 1.0).abs() < 1e-9, "{found} and {ratio}");
    // One run to warm up, then one a round: a quarter of a second needs no repetition.
    let run = "run None None None 1 None";
    let mut lines: Vec<_> = log.lines().collect();
    lines.sort_unstable();
    let prepared = [
        "prepare linear fp32 None None None",
        "prepare linear odd None None None",
    ];
    assert_eq!(lines, [&prepared[..], &[run; 4]].concat());
    assert!(
        outcome
            .stderr
            .contains("peer fake odd cannot do this: only even things"),
        "{outcome:?}"
    );
}

#[test]
fn a_peer_answers_for_a_model() {
    let (outcome, record, log) = with_peer(
        &folder("bench-peer-model"),
        "right",
        &["model", "--prompt", "20"],
    );
    outcome.succeeded();
    let record = record.unwrap();
    let rows = record["rows"].as_array().unwrap();
    let rates: Vec<_> = rows
        .iter()
        .filter(|row| row["who"] == "fake")
        .map(|row| {
            (
                row["phase"].as_str().unwrap(),
                row["tokens_per_second"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(rates, [("prefill", 80.0), ("decode", 4.0)]);
    assert_eq!(log.matches("run None None prefill 1 None").count(), 4);
    assert_eq!(log.matches("run None None decode None 5").count(), 4);
}

#[test]
fn a_peer_that_answers_wrong_or_not_at_all_is_an_error_and_leaves_no_record() {
    let cases: [(&str, &[&str]); 5] = [
        ("wrong", &["peer fake fp32", "its answer is wrong"]),
        ("short", &["peer fake fp32", "expected 1 times"]),
        ("broken", &["peer fake fp32", "out of order"]),
        ("garbage", &["peer python3", "good morning"]),
        ("silent", &["peer python3", "ended without an answer"]),
    ];
    for (mode, parts) in cases {
        let (outcome, record, _) = with_peer(&folder(&format!("bench-peer-{mode}")), mode, &LINEAR);
        failed(&outcome, parts);
        assert!(record.is_none(), "{mode}");
    }
}
