//! Other programs in `cider bench`: measured in turn with us, and refused where they answer wrong.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::Value;

use crate::errors::failed;
use crate::support::{Outcome, cider, finish, folder};

/// A peer in plain Python: it notes what it is asked, and does what its second argument says.
const PEER: &str = r#"
import json, os, struct, subprocess, sys, time

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

def hang(at):
    if mode == "hang " + at:
        log.write(f"child {subprocess.Popen(['sleep', '600']).pid}\n")
        log.flush()
        time.sleep(600)

if mode == "silent":
    sys.exit()
if mode == "garbage":
    print("good morning", flush=True)
hang("hello")
variants = {"linear": ["fp32", "odd"], "model": ["q8_0"]}
say({"peer": "fake", "version": "1", "threads": int(os.environ["CIDER_PEER_THREADS"]), "variants": variants})
for line in sys.stdin:
    r = json.loads(line)
    log.write(" ".join(str(r.get(key)) for key in ("op", "work", "variant", "phase", "repetitions", "tokens")) + "\n")
    log.flush()
    if r["op"] == "run":
        hang("run")
        seconds = [0.025] * (r.get("repetitions") or r["tokens"])
        time.sleep(sum(seconds))
        if mode.startswith("time "):
            seconds[0] = float(mode.split()[1])
        say({"seconds": seconds[1:] if mode == "short" else seconds})
    elif r["variant"] == "odd":
        say({"unsupported": "only even things"})
    elif r["work"] == "model":
        assert len(r["prompt"]) < r["context"]
        say({"ready": True, "next": 1})
    elif mode == "hang prepare":
        hang("prepare")
    elif mode == "broken":
        say({"error": "out of order"})
    else:
        y = linear(r)
        if mode == "wrong":
            y[-1] += 1000
        open(r["out"], "wb").write(struct.pack(f"<{len(y)}f", *y))
        say({"ready": True})
"#;

/// Runs `cider bench` with a peer for each mode; gives the outcome, the record if there is one, and the log of the peer.
fn with_peer(folder: &Path, mode: &str, arguments: &[&str]) -> (Outcome, Option<Value>, String) {
    let (script, log, file) = (
        folder.join("peer.py"),
        folder.join("log"),
        folder.join("record.json"),
    );
    fs::write(&script, PEER).unwrap();
    fs::write(&log, "").unwrap();
    let mut command: Command = cider();
    command.arg("bench").args(arguments);
    for mode in mode.split(", ") {
        let peer = format!(
            "python3 '{}' '{}' '{mode}'",
            script.display(),
            log.display()
        );
        command.args(["--peer", &peer]);
    }
    command
        .args(["--quick", "--rounds", "3", "--json"])
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
    assert_eq!(row["ms"]["median"], 25.0);
    assert_eq!(row["ms"]["rounds"], 3);
    assert_eq!(row["variant"], "fp32");
    assert!(row["relative_error"].as_f64().unwrap() < 1e-5);
    assert_eq!(row["compared_with"], "f32");
    let ours = rows.iter().find(|row| row["variant"] == "f32").unwrap();
    let ratio = 25.0 / ours["ms"]["median"].as_f64().unwrap();
    let found = row["ratio_to_cider"].as_f64().unwrap();
    assert!((found / ratio - 1.0).abs() < 1e-9, "{found} and {ratio}");
    // One run to warm up, then one a round: so long a run needs no repetition.
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
    assert_eq!(rates, [("prefill", 800.0), ("decode", 40.0)]);
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

#[test]
fn a_peer_that_hangs_is_ended_with_its_children_and_the_others_go_on() {
    for (at, name) in [
        ("hello", "peer python3"),
        ("prepare", "peer fake fp32"),
        ("run", "peer fake fp32"),
    ] {
        let folder = folder(&format!("bench-peer-hang-{at}"));
        let modes = format!("hang {at}, right");
        let arguments = [&LINEAR[..], &["--peer-timeout", "3"]].concat();
        let started = Instant::now();
        let (outcome, record, log) = with_peer(&folder, &modes, &arguments);
        assert!(started.elapsed() < Duration::from_mins(2), "{at}");
        let outcome = outcome.succeeded();
        let said = &outcome.stderr;
        assert!(
            said.contains(name) && said.contains("no answer in 3 s"),
            "{outcome:?}"
        );
        let record = record.unwrap();
        let given_up = record["peers_given_up"].as_array().unwrap();
        assert_eq!(given_up.len(), 1, "{record}");
        assert!(given_up[0]["peer"].as_str().unwrap().contains(name));
        assert_eq!(given_up[0]["why"], "no answer in 3 s");
        let rows = record["rows"].as_array().unwrap();
        let theirs = rows.iter().filter(|row| row["who"] == "fake");
        assert_eq!(theirs.count(), 1, "{at}");
        let child = log.lines().find_map(|line| line.strip_prefix("child "));
        // Gone, or dead and not yet buried.
        let state = fs::read_to_string(format!("/proc/{}/stat", child.unwrap()));
        assert!(
            state.is_err() || state.is_ok_and(|state| state.contains(" Z ")),
            "{at}"
        );
    }
}

#[test]
fn a_peer_that_never_reads_is_ended_too() {
    let folder = folder("bench-peer-deaf");
    let mut command = cider();
    let hello = r#"{"peer":"deaf","threads":1,"variants":{"model":["a"]}}"#;
    let peer = format!("sh -c 'echo {hello:?}; sleep 600 & sleep 600'");
    command.args([
        "bench",
        "model",
        "--quick",
        "--threads",
        "1",
        "--tokens",
        "2",
    ]);
    // More than a pipe holds.
    command.args([
        "--prompt",
        "16000",
        "--rounds",
        "1",
        "--peer-timeout",
        "1",
        "--peer",
        &peer,
    ]);
    let outcome = finish(command.arg("--json").arg(folder.join("record.json"))).succeeded();
    assert!(
        outcome.stderr.contains("peer deaf a: no answer in 1 s"),
        "{outcome:?}"
    );
}

#[test]
fn times_that_cannot_be_are_refused() {
    for time in ["1e300", "0", "-1", "nan", "1e-30", "1", "1e-9", "inf"] {
        let (outcome, record, _) = with_peer(
            &folder(&format!("bench-peer-time-{time}")),
            &format!("time {time}"),
            &LINEAR,
        );
        failed(&outcome, &["peer fake fp32"]);
        assert!(record.is_none(), "{time}");
        let told = match time {
            "1e300" | "1" => "and answered after",
            "0" | "-1" => "expected times above 0 s",
            // These are no JSON.
            "nan" | "inf" => "it answered",
            _ => "at least",
        };
        assert!(outcome.stderr.contains(told), "{time}: {outcome:?}");
    }
}

#[test]
fn a_signal_ends_the_peers_too() {
    let folder = folder("bench-peer-signal");
    let (script, log) = (folder.join("peer.py"), folder.join("log"));
    fs::write(&script, PEER).unwrap();
    let peer = format!(
        "python3 '{}' '{}' 'hang run'",
        script.display(),
        log.display()
    );
    let mut command = cider();
    command
        .arg("bench")
        .args(LINEAR)
        .args(["--quick", "--peer", &peer]);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let sleeper = loop {
        let text = fs::read_to_string(&log).unwrap_or_default();
        if let Some(pid) = text.lines().find_map(|line| line.strip_prefix("child ")) {
            break pid.to_owned();
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        thread::sleep(Duration::from_millis(10));
    };
    let killed = Command::new("kill").arg(child.id().to_string()).status();
    assert!(killed.unwrap().success());
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    let state = fs::read_to_string(format!("/proc/{sleeper}/stat"));
    assert!(state.is_err() || state.is_ok_and(|state| state.contains(" Z ")));
    let left = std::env::temp_dir().join(format!("cider-bench-{}", child.id()));
    assert!(!left.exists());
}
