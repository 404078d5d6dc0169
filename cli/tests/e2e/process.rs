//! The program among others: pipes, terminals, networks.

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::recipe;
use crate::support::{Outcome, cider, f_tiny, finish, folder, root, run, smollm2, testdata};

#[test]
fn a_reader_that_goes_away_is_a_normal_end() {
    let mut command = cider();
    command.args([
        "run",
        smollm2(),
        "Once upon a time",
        "--raw",
        "--temperature",
        "1",
        "--seed",
        "3",
    ]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 4]).unwrap();
    drop(stdout);
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(
            started.elapsed() < Duration::from_mins(1),
            "still running without a reader"
        );
        thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        !stderr.contains("error") && !stderr.contains("panicked"),
        "{stderr}"
    );
}

#[test]
fn a_full_disk_is_a_failure() {
    let mut command = cider();
    command.args(["run", smollm2(), "Hello"]);
    command.stdout(fs::File::create("/dev/full").unwrap());
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("error: standard output: No space left"),
        "{stderr}"
    );
}

#[test]
fn a_local_model_needs_no_network() {
    let model = folder("offline");
    recipe::build_model(&testdata("f-tiny"), &model).unwrap();
    // Optional files may be missing too.
    fs::remove_file(model.join("generation_config.json")).unwrap();
    let program = env!("CARGO_BIN_EXE_cider");
    let isolated = Command::new("unshare")
        .args(["-n", "true"])
        .status()
        .is_ok_and(|status| status.success());
    let mut command = if isolated {
        let mut command = Command::new("unshare");
        command.args(["-n", program]);
        command
    } else {
        Command::new(program)
    };
    let dead = "http://127.0.0.1:9";
    for name in [
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ] {
        command.env(name, dead);
    }
    command
        .env("HOME", &model)
        .env("XDG_CACHE_HOME", model.join("cache"));
    command
        .arg("run")
        .arg(&model)
        .args(["hello", "--max-tokens", "4", "--json"]);
    let report = finish(&mut command).succeeded().json();
    assert_eq!(report["generated_tokens"], 4);
    assert!(!model.join("cache").exists());
    let without = usize::from(isolated);
    eprintln!(
        "offline: {without} run without a network, {} with dead proxies alone",
        1 - without
    );
}

#[test]
fn the_number_of_threads_is_shown_and_the_flag_wins() {
    let shown = |arguments: &[&str], environment: &str| {
        let mut command = cider();
        command
            .arg("run")
            .arg(f_tiny())
            .args(["x", "--max-tokens", "1"])
            .args(arguments);
        if !environment.is_empty() {
            command.env("CIDER_THREADS", environment);
        }
        let outcome = finish(&mut command).succeeded();
        let line = outcome.stderr.lines().next().unwrap_or_default().to_owned();
        line.rsplit(", ").next().unwrap_or_default().to_owned()
    };
    assert_eq!(shown(&[], "3"), "3 threads");
    assert_eq!(shown(&["--threads", "2"], "3"), "2 threads");
    let chosen = run(["info", "--json"]).succeeded().json();
    let threads = chosen["chosen"]["threads"].as_u64().unwrap();
    assert_eq!(shown(&[], ""), format!("{threads} threads"));
    let physical = chosen["processors"]["physical"].as_u64().unwrap();
    let quota = chosen["processors"]["quota"].as_u64().unwrap_or(physical);
    assert_eq!(threads, physical.min(quota).max(1));
}

#[test]
fn info_tells_what_there_is_and_why_not() {
    let forced = finish(cider().args(["info", "--json"]).env("CIDER_CPU", "scalar"))
        .succeeded()
        .json();
    assert_eq!(forced["chosen"]["isa"], "scalar");
    let sets = forced["instruction_sets"].as_array().unwrap();
    for isa in cider::Isa::ALL {
        let entry = sets
            .iter()
            .find(|entry| entry["name"] == isa.name())
            .unwrap();
        assert_eq!(entry["available"], isa.why_not().is_none());
        assert_eq!(entry["why_not"].as_str().map(str::to_owned), isa.why_not());
    }
    let text = run(["info", smollm2()]).succeeded().stdout;
    for part in [
        "cuda          not available: not in this build",
        "30 layers",
        "Q4_1",
        "int4 group 64",
        "49152",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let model = run(["info", smollm2(), "--json"]).succeeded().json();
    let run = run(["run", smollm2(), "x", "--max-tokens", "1", "--json"])
        .succeeded()
        .json();
    let schemes = model["model"]["schemes"].as_array().unwrap();
    let planned = schemes
        .iter()
        .find(|entry| entry["scheme"] == "w8a8")
        .unwrap();
    assert_eq!(planned["bytes"], run["memory"]["weights"]);
}

#[test]
fn a_terminal_gets_a_chat_that_remembers() {
    let said = chat(&[
        "My name is Ada. Please remember it.",
        "/help",
        "/nonsense",
        "What is my name?",
        "/clear",
        "What is the capital of France?",
        "/exit",
    ]);
    assert!(said.contains("/exit or Ctrl-D"), "{said}");
    assert!(said.contains("/nonsense is not known"), "{said}");
    assert!(said.contains("Paris"), "{said}");
    // Each turn's prompt begins as the one before: that part is not computed again.
    let figures: Vec<_> = said
        .lines()
        .filter(|line| line.contains("prompt tokens"))
        .collect();
    assert_eq!(figures.len(), 3, "{said}");
    assert!(!figures[0].contains("cached"), "{said}");
    let number = |line: &str, behind: &str| -> usize {
        let (before, _) = line.split_once(behind).unwrap();
        let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse().unwrap()
    };
    let prompt = |line| number(line, " prompt tokens");
    assert_eq!(number(figures[1], " cached"), prompt(figures[0]), "{said}");
    // The question and its answer are part of the second prompt; after /clear only the template's turn is left.
    let first = prompt(figures[0]) + number(figures[0], " generated");
    assert!(prompt(figures[1]) > first, "{said}");
    assert!(prompt(figures[2]) < first, "{said}");
    assert!(number(figures[2], " cached") < prompt(figures[0]), "{said}");
}

#[test]
fn the_end_of_input_ends_a_chat() {
    let said = chat(&["\u{4}"]);
    assert!(said.contains("a line is a message"), "{said}");
}

#[test]
fn ctrl_c_ends_an_answer_and_at_the_prompt_the_chat() {
    let arguments = [smollm2(), "--max-tokens", "2000", "--temperature", "0"];
    let lines = [
        "Tell me a very long story about a ship.\u{3}",
        "What is the capital of France?",
        "\u{3}",
    ];
    let outcome = terminal(&arguments, &lines);
    assert_eq!(outcome.status.code(), Some(130), "{outcome:?}");
    let said = outcome.stdout;
    let (story, after) = said.split_once("stopped; ").expect(&said);
    assert!(story.contains(" generated;"), "{said}");
    assert!(after.contains("Paris"), "{said}");
    // What there was of the first answer belongs to the conversation.
    assert!(after.contains("cached"), "{said}");
}

#[test]
fn a_full_context_says_how_to_go_on() {
    let arguments = [smollm2(), "--max-tokens", "4", "--ctx", "80"];
    let long = "word ".repeat(60);
    let outcome = terminal(&arguments, &["hello", &long, "/clear", "hello", "/exit"]);
    let said = outcome.succeeded().stdout;
    let full = "exceeds the context of 80 tokens: /clear forgets the conversation";
    assert!(said.contains(full), "{said}");
    assert!(said.contains("the conversation is forgotten"), "{said}");
}

/// What a terminal shows of a chat in which a person types `lines`, each after the last answer.
fn chat(lines: &[&str]) -> String {
    chat_with(smollm2(), lines)
}

/// The same with another model.
pub(crate) fn chat_with(model: &str, lines: &[&str]) -> String {
    terminal(&[model, "--max-tokens", "40"], lines)
        .succeeded()
        .stdout
}

/// A chat with the arguments of `run`.
pub(crate) fn terminal(arguments: &[&str], lines: &[&str]) -> Outcome {
    let mut command = Command::new("python3");
    command
        .args(["-c", TERMINAL, env!("CARGO_BIN_EXE_cider")])
        .arg(arguments.join(" "))
        .args(lines)
        .current_dir(root());
    finish(&mut command)
}

/// Types each line once the sign of the chat has appeared as often as before it; prints all that was shown. A line that
/// ends in Ctrl-C is sent, and interrupted once its answer has begun.
const TERMINAL: &str = r#"
import os, pty, sys
program, arguments, *lines = sys.argv[1:]
child, terminal = pty.fork()
if child == 0:
    os.environ.pop("CIDER_CPU", None)
    os.environ.pop("CIDER_THREADS", None)
    os.execv(program, [program, "run", *arguments.split(" ")])
shown, waiting, interrupt = b"", list(lines), None
while True:
    try:
        data = os.read(terminal, 4096)
    except OSError:
        break
    if not data:
        break
    shown += data
    if waiting and shown.endswith(b"> "):
        line = waiting.pop(0)
        if len(line) > 1 and line.endswith("\x03"):
            line = line[:-1]
            interrupt = len(shown) + len(line) + 12
        os.write(terminal, line.encode() + (b"" if line in "\x03\x04" else b"\n"))
    elif interrupt is not None and len(shown) > interrupt:
        interrupt = None
        os.write(terminal, b"\x03")
_, status = os.waitpid(child, 0)
sys.stdout.write(shown.decode("utf-8", "replace").replace("\r\n", "\n"))
sys.exit(os.waitstatus_to_exitcode(status))
"#;

#[test]
fn a_signal_while_a_file_is_written_leaves_it_whole_or_not_there() {
    let folder = folder("signals");
    let output = folder.join("out");
    let mut command = cider();
    command
        .args(["debug", "preprocess", "examples/pictures/scene.png", "-o"])
        .arg(&output)
        .args(["--min-image-tokens", "8000", "--max-image-tokens", "8000"]);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The trial of the path makes and removes the same name: what is written has a size.
    let temporary = folder.join(format!(".cider-{}-0.part", child.id()));
    while !fs::metadata(&temporary).is_ok_and(|file| file.len() > 0) && !output.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        thread::sleep(Duration::from_millis(1));
    }
    let killed = Command::new("kill").arg(child.id().to_string()).status();
    assert!(killed.unwrap().success());
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    let names: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["out"], "whole, and nothing beside it");
}
