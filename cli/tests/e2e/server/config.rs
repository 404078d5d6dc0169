//! Settings, the start and the end of a server.

use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::json;

use super::client::{Server, chain, message};
use crate::support::{cider, f_tiny, finish, folder, run};

#[test]
fn a_file_the_environment_and_flags_are_read() {
    let path = folder("serve-config").join("config.yaml");
    let model = f_tiny().display();
    let text = format!(
        "model_name_or_path: {model}\nw8a8:\n  mode: off\nsampling:\n  temperature: 0\n  max_new_tokens: 3\nctx: 256\nthreads: 1\n\
         server:\n  port: 1\n  ttl: 60\n  max_image_buffer_size: 2\n  model_name: from-file\n"
    );
    fs::write(&path, text).unwrap();
    let mut command = cider();
    command
        .arg("serve")
        .arg("--config")
        .arg(&path)
        .args(["--port", "0"]);
    command.env("CIDER_SERVE_SERVER_MODEL_NAME", "from-environment");
    let server = Server::spawn(command);
    assert!(
        server.log().contains("scheme none: prompts run on floats"),
        "{}",
        server.log()
    );
    assert!(server.log().contains("max_image_buffer_size has no effect"));
    let card = server.get("/v1/models").ok().json()["data"][0].clone();
    assert_eq!(
        (&card["id"], &card["scheme"]),
        (&json!("from-environment"), &json!("none"))
    );
    let answer = server.say("a", json!({})).ok().json();
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_read() {
    let path = folder("serve-bad-config").join("config.yaml");
    fs::write(&path, "server:\n  prt: 1\n").unwrap();
    let refused = run(["serve".as_ref(), "--config".as_ref(), path.as_os_str()]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("server.prt is not known; the nearest is server.port"),
        "{refused:?}"
    );
    let unknown = finish(cider().arg("serve").env("CIDER_SERVE_SERVER_PROT", "1"));
    assert!(
        unknown.status.code() == Some(2) && unknown.stderr.contains("CIDER_SERVE_SERVER_PORT"),
        "{unknown:?}"
    );
    for (arguments, what) in [
        (&["--port", "70000"][..], "whole number"),
        (&["--host", "nowhere"], "IP address"),
        (&["--w8a8", "on", "--scheme", "w8a16"], "w8a8.mode is on"),
        (&["--w8a8", "off", "--scheme", "w8a8"], "w8a8.mode is off"),
        (&["--scheme", "w9"], "not known"),
    ] {
        let refused = run(["serve"].iter().chain(arguments));
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(refused.stderr.contains(what), "{refused:?}");
    }
    for (arguments, what) in [
        (&["--host", "0.0.0.0"][..], "no loopback address"),
        (&["--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
        (&["--media-root", "/nowhere/pictures"], "/nowhere/pictures"),
        (&["--api-key", "two words"], "API key"),
    ] {
        let failed = run(["serve"].iter().chain(arguments));
        assert_eq!(failed.status.code(), Some(1), "{failed:?}");
        assert!(
            failed.stderr.contains(what) && !failed.stderr.contains("two words"),
            "{failed:?}"
        );
    }
    let missing = run(["serve", "/nowhere/model", "--port", "0"]);
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
}

fn signal(server: &Server, name: &str) {
    let sent = Command::new("kill")
        .args([name, &server.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

#[test]
fn a_signal_lets_answers_come_to_their_end() {
    let pieces: Vec<String> = (0..300).map(|i| format!("w{i} ")).collect();
    let model = chain(
        "drain",
        &json!([{"select": "1", "pieces": pieces, "then": "end"}, {"select": "2", "pieces": ["x "], "then": "loop"}]),
        None,
    );
    let mut server = Server::start(&model, ["--scheme", "none", "--drain-timeout", "30"]);
    let body = message("1", json!({"stream": true})).to_string();
    let mut stream = server.connect();
    stream
        .write_all(&server.request("POST", super::client::CHAT, &[], body.as_bytes()))
        .unwrap();
    let mut first = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut first).unwrap();
    signal(&server, "-TERM");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stream, &mut rest).unwrap();
    assert!(
        rest.contains("w299") && rest.contains("[DONE]"),
        "{rest:.300}"
    );
    assert_eq!(server.wait(), Some(0));
    assert!(server.log().contains("shutting down"));

    let mut server = Server::start(
        &model,
        [
            "--scheme",
            "none",
            "--drain-timeout",
            "0.3",
            "--ctx",
            "8000",
        ],
    );
    let body = message("2", json!({"stream": true, "max_tokens": 7900})).to_string();
    let mut stream = server.connect();
    stream
        .write_all(&server.request("POST", super::client::CHAT, &[], body.as_bytes()))
        .unwrap();
    std::io::Read::read_exact(&mut stream, &mut first).unwrap();
    let started = Instant::now();
    signal(&server, "-TERM");
    assert_eq!(server.wait(), Some(0));
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn deadlines_end_answers() {
    let model = chain(
        "deadline",
        &json!([{"select": "2", "pieces": ["x "], "then": "loop"}]),
        None,
    );
    let server = Server::start(
        &model,
        [
            "--scheme",
            "none",
            "--request-timeout",
            "0.2",
            "--ctx",
            "8000",
        ],
    );
    let (code, ..) = server.say("2", json!({"max_tokens": 7900})).refusal(504);
    assert_eq!(code, "deadline_exceeded");
    let answer = server.chat(&message("2", json!({"stream": true, "max_tokens": 7900})));
    let (chunks, ended) = super::client::events(&answer.body);
    assert!(!ended, "no end mark stands behind a failure");
    assert_eq!(chunks.last().unwrap()["error"]["code"], "deadline_exceeded");
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["choices"][0]["finish_reason"].is_null())
    );
    thread::sleep(Duration::from_millis(100));
    assert!(server.metric("cider_errors_total{code=\"deadline_exceeded\"}") >= 2.0);
}
