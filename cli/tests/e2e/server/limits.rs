//! How much of everything there may be, and what happens beyond it.

use std::io::{Read as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{CHAT, Server, chain, data_url, message, read_answer, solid, tiny};
use crate::support::{f_tiny, testdata};

/// Raw tokens as a prompt: their number is exact.
fn continue_from(server: &Server, tokens: usize, limit: usize) -> super::client::Answer {
    server.post(
        "/v1/completions",
        &json!({"prompt": vec![65; tokens], "max_tokens": limit, "ignore_eos": true}),
    )
}

#[test]
fn c038_an_answer_is_cut_to_what_is_left_of_the_context() {
    let server = Server::start(f_tiny(), ["--ctx", "128"]);
    let answer = continue_from(&server, 100, 100).ok().json();
    assert_eq!(
        (
            &answer["usage"]["completion_tokens"],
            &answer["choices"][0]["finish_reason"]
        ),
        (&json!(28), &json!("length"))
    );
    let answer = continue_from(&server, 127, 100).ok().json();
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    let (code, _, message) = continue_from(&server, 128, 1).refusal(400);
    assert!(
        code == "context_length_exceeded" && message.matches("128").count() == 2,
        "{message}"
    );
}

#[test]
fn c039_long_prompts_are_refused_whole() {
    let server = Server::start(f_tiny(), ["--ctx", "512"]);
    for stream in [false, true] {
        let answer = server.say(&"word ".repeat(5000), json!({"stream": stream}));
        let (code, param, message) = answer.refusal(400);
        assert!(
            code == "context_length_exceeded" && message.contains("512"),
            "{message}"
        );
        assert_eq!(param.as_deref(), Some("messages"));
    }
    let before = server.peak_memory();
    let started = Instant::now();
    server.say(&"x y ".repeat(500_000), json!({})).refusal(400);
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
    assert!(server.peak_memory() - before < 500 << 20);
    server.say("still there?", json!({"max_tokens": 1})).ok();
}

#[test]
fn c071_pictures_are_refused_by_their_header() {
    let server = Server::start(&testdata("vl/late"), ["--ctx", "512"]);
    let claimed = |width: u32, height: u32| {
        let mut bytes = solid(1, 1, [0; 3]);
        bytes[18..22].copy_from_slice(&width.to_le_bytes());
        bytes[22..26].copy_from_slice(&height.to_le_bytes());
        bytes
    };
    let body = |bytes: &[u8]| {
        let part = json!({"type": "image_url", "image_url": {"url": data_url(bytes)}});
        json!({"messages": [{"role": "user", "content": [part]}], "max_tokens": 1})
    };
    let before = server.peak_memory();
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for (width, height) in [(20_000, 20_000), (65_535, 65_535), (4_000_000, 4_000_000)]
                {
                    let (code, _, message) =
                        server.chat(&body(&claimed(width, height))).refusal(400);
                    assert!(
                        code == "invalid_image" && message.contains("limit"),
                        "{message}"
                    );
                }
            });
        }
    });
    assert!(server.peak_memory() - before < 100 << 20);
    server.say("still there?", json!({"max_tokens": 1})).ok();
}

#[test]
fn c072_bodies_have_a_large_limit_and_beyond_it_a_clean_refusal() {
    let server = Server::start(
        &testdata("vl/late"),
        [
            "--ctx",
            "512",
            "--max-image-tokens",
            "64",
            "--in-flight-bytes",
            "300M",
        ],
    );
    // 8 MB of pixels are some 11 MB of base64.
    let part =
        json!({"type": "image_url", "image_url": {"url": data_url(&solid(2000, 1340, [9, 9, 9]))}});
    for count in [1, 4] {
        let parts = vec![part.clone(); count];
        server
            .chat(&json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 1}))
            .ok();
    }
    let limited = Server::start(f_tiny(), ["--ctx", "256", "--body-bytes", "1000"]);
    let long = message(&"x".repeat(2000), json!({})).to_string();
    for _ in 0..3 {
        let answer = limited.ask("POST", CHAT, &[], long.as_bytes());
        assert_eq!(answer.refusal(413).0, "body_too_large");
        assert_eq!(answer.headers["connection"], "close");
    }
    let chunk = format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        limited.address
    );
    assert_eq!(
        limited
            .raw(format!("{head}{chunk}").as_bytes())
            .refusal(413)
            .0,
        "body_too_large"
    );
    limited.say("x", json!({"max_tokens": 1})).ok();
}

#[test]
fn bodies_that_do_not_come_are_not_waited_for() {
    let server = Server::start(
        f_tiny(),
        [
            "--ctx",
            "256",
            "--body-timeout",
            "0.3",
            "--header-timeout",
            "0.3",
        ],
    );
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        server.address
    );
    assert_eq!(server.raw(head.as_bytes()).refusal(408).0, "body_timeout");
    let mut silent = server.connect();
    silent.write_all(b"POST / HTTP/1.1\r\nhost: ").unwrap();
    let mut rest = Vec::new();
    let started = Instant::now();
    silent.read_to_end(&mut rest).unwrap();
    assert!(started.elapsed() < Duration::from_secs(10));
    server.get("/health").ok();
}

#[test]
fn requests_together_hold_no_more_than_may_be_in_flight() {
    let server = Server::start(f_tiny(), ["--ctx", "256", "--in-flight-bytes", "2000"]);
    let answer = server.say(&"x".repeat(3000), json!({}));
    assert_eq!(answer.refusal(503).0, "overloaded");
    assert!(answer.headers.contains_key("retry-after"));
    server.say("x", json!({"max_tokens": 1})).ok();
    assert!(server.metric("cider_in_flight_bytes") == 0.0);
}

#[test]
fn a_reader_who_is_too_slow_is_left_and_others_are_not_held() {
    let pieces: Vec<String> = (0..60)
        .map(|i| format!("{i}{}", "long piece ".repeat(400)))
        .collect();
    let scripts = json!([{"select": "1", "pieces": pieces, "then": "loop"}, {"select": "2", "pieces": ["fast"], "then": "end"}]);
    let model = chain("slow", &scripts, None);
    let server = Server::start(
        &model,
        [
            "--scheme",
            "none",
            "--ctx",
            "8000",
            "--stream-bytes",
            "100K",
            "--write-timeout",
            "1",
            "--max-running",
            "2",
        ],
    );
    let body = message("1", json!({"stream": true, "max_tokens": 7900})).to_string();
    let mut slow = server.connect();
    slow.write_all(&server.request("POST", CHAT, &[], body.as_bytes()))
        .unwrap();
    let started = Instant::now();
    while server.get("/v1/queue").ok().json()["queue_size"] != 0 {
        assert_eq!(server.say("2", json!({})).content(), "fast");
        assert!(
            started.elapsed() < Duration::from_mins(1),
            "the slow reader is still served"
        );
        thread::sleep(Duration::from_millis(50));
    }
    drop(slow);
}

#[test]
fn many_messages_stops_and_heads_are_refused() {
    let messages = vec![json!({"role": "user", "content": "a"}); 1025];
    assert_eq!(
        tiny()
            .chat(&json!({"messages": messages}))
            .refusal(400)
            .1
            .as_deref(),
        Some("messages")
    );
    let stops = vec!["a"; 17];
    assert_eq!(
        tiny()
            .say("a", json!({"stop": stops}))
            .refusal(400)
            .1
            .as_deref(),
        Some("stop")
    );
    let head = format!(
        "GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n",
        "y".repeat(100_000)
    );
    assert_eq!(tiny().raw(head.as_bytes()).status, 431);
    let many: Vec<String> = (0..200)
        .map(|i| {
            format!(
                "x{i}: y
"
            )
        })
        .collect();
    let many = many.concat();
    assert_eq!(
        tiny()
            .raw(format!("GET /health HTTP/1.1\r\n{many}\r\n").as_bytes())
            .status,
        431
    );
    tiny().get("/health").ok();
}

#[test]
fn garbage_is_answered_or_left() {
    for garbage in [
        &b"\0\x01\x02\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"hello\r\n\r\n",
    ] {
        let mut stream = tiny().connect();
        stream.write_all(garbage).unwrap();
        let answer = read_answer(stream);
        assert_eq!(answer.status, 400);
    }
    let two =
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(tiny().raw(two.as_bytes()).status, 400);
    tiny().get("/health").ok();
}
