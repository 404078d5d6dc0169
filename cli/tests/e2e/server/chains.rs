//! Scripted answers: what is sent of them, and how they end.

use std::io::{Read as _, Write as _};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Server, chain, events, finish, joined, message};

/// The server of most cases: the last character of a message picks its script.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&chain("main", &scripts(), None), ["--scheme", "none"]))
}

fn scripts() -> Value {
    let long: Vec<Value> = (0..700)
        .map(|i| json!({"hex": format!("7a{:04x}", i + 0x3030)}))
        .collect();
    json!([
        {"select": "1", "pieces": [{"hex": "f09f"}, {"hex": "9880"}, {"hex": "e4b8"}, {"hex": "96"}, {"hex": "e7"}, {"hex": "958c"}], "then": "end"},
        {"select": "2", "pieces": ["ABC", "DEF", "G", "HI", "J", "K"], "then": "end"},
        {"select": "3", "pieces": ["la", "li", "lo", " "], "then": "loop"},
        {"select": "4", "pieces": ["<think>", "r", "</th", "ink>", "ok"], "then": "end"},
        {"select": "5", "pieces": ["a", {"hex": "ff"}, "b"], "then": "end"},
        {"select": "6", "pieces": ["x1", "x2", "x3"], "then": "end"},
        {"select": "7", "pieces": long, "then": "end"},
        {"select": "8", "pieces": [{"hex": "f09f99"}, {"hex": "82"}, "y"], "then": "end"},
    ])
}

/// A whole answer and the stream of the same request, which must agree; the whole one's choice.
fn both(server: &Server, text: &str, more: Value) -> Value {
    let whole = server.say(text, more.clone()).ok().json();
    let chunks = server.stream(text, more);
    let choice = whole["choices"][0].clone();
    let message = &choice["message"];
    for name in ["content", "reasoning_content"] {
        assert_eq!(
            joined(&chunks, name),
            message[name].as_str().unwrap_or_default(),
            "{name}"
        );
    }
    assert_eq!(finish(&chunks), choice["finish_reason"].as_str().unwrap());
    choice
}

fn content(choice: &Value) -> &str {
    choice["message"]["content"].as_str().unwrap_or_default()
}

#[test]
fn c028_c060_characters_are_whole_and_tokens_have_their_bytes() {
    let choice = both(server(), "1", json!({}));
    assert_eq!(content(&choice), "😀世界");
    let chunks = server().stream("1", json!({"stream_options": {"include_usage": true}}));
    assert!(!joined(&chunks, "content").contains('\u{fffd}'));
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens"], 7, "the end token counts");
    assert_eq!(
        server().say("1", json!({})).json()["usage"]["completion_tokens"],
        7
    );
    assert_eq!(content(&both(server(), "5", json!({}))), "a\u{fffd}b");

    let more = json!({"logprobs": true, "top_logprobs": 2});
    let whole = server().say("8", more.clone()).ok().json();
    let list = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone();
    let bytes: Vec<Value> = list.iter().map(|token| token["bytes"].clone()).collect();
    assert_eq!(bytes, [json!([240, 159, 153]), json!([130]), json!([121])]);
    let streamed = server().stream("8", more);
    let streamed = streamed
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(streamed.flatten().cloned().collect::<Vec<_>>(), list);
}

#[test]
fn c030_stop_texts_end_an_answer_across_tokens() {
    for (stop, text) in [
        (json!(["DEFGHIJ"]), "ABC"),
        (json!(["HI", "FG"]), "ABCDE"),
        (json!(["ZZ"]), "ABCDEFGHIJK"),
        (json!("C"), "AB"),
        (json!([]), "ABCDEFGHIJK"),
        (json!(null), "ABCDEFGHIJK"),
    ] {
        let choice = both(server(), "2", json!({"stop": stop}));
        assert_eq!(
            (content(&choice), &choice["finish_reason"]),
            (text, &json!("stop")),
            "{stop}"
        );
    }
}

#[test]
fn c032_stop_texts_and_thoughts_go_through_one_line() {
    let choice = both(server(), "4", json!({"stop": ["</thX"]}));
    assert_eq!(
        (content(&choice), &choice["message"]["reasoning_content"]),
        ("ok", &json!("r"))
    );
    let choice = both(server(), "4", json!({"stop": ["ok"]}));
    assert_eq!(
        (content(&choice), &choice["finish_reason"]),
        ("", &json!("stop"))
    );
}

#[test]
fn c034_usage_comes_in_a_stream_when_it_is_asked_for() {
    let plain = server().stream("2", json!({}));
    assert!(
        plain
            .iter()
            .all(|chunk| chunk["choices"][0].is_object() && chunk.get("usage").is_none())
    );
    let asked = server().stream("2", json!({"stream_options": {"include_usage": true}}));
    let (last, others) = asked.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert!(others.iter().all(|chunk| chunk["choices"][0].is_object()));
    let whole = server()
        .say("2", json!({"stream_options": {"include_usage": true}}))
        .ok()
        .json();
    assert_eq!(
        last["usage"]["completion_tokens"],
        whole["usage"]["completion_tokens"]
    );
    assert_eq!(
        last["usage"]["total_tokens"],
        whole["usage"]["total_tokens"]
    );
}

#[test]
fn c035_c036_answers_end_for_a_reason() {
    for (limit, reason) in [(2, "length"), (3, "length"), (4, "stop"), (10, "stop")] {
        let choice = both(server(), "6", json!({"max_tokens": limit}));
        assert_eq!(choice["finish_reason"], reason, "{limit}");
    }
    let chunks = server().stream("6", json!({"max_tokens": 2}));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    for name in ["id", "created", "model"] {
        assert!(
            chunks.iter().all(|chunk| chunk[name] == chunks[0][name]),
            "{name}"
        );
    }
    let last = chunks.last().unwrap();
    assert!(last["timings"]["decode_tps"].is_number() && last["prefill_time"].is_number());
    for (fields, count) in [
        (json!({"max_completion_tokens": 5}), 5),
        (json!({"max_tokens": 5}), 5),
        (json!({"max_tokens": 9, "max_completion_tokens": 5}), 5),
    ] {
        let answer = server().say("3", fields).ok().json();
        assert_eq!(answer["usage"]["completion_tokens"], count);
    }
}

#[test]
fn c037_without_a_limit_the_context_is_the_limit() {
    let answer = server().say("7", json!({})).ok().json();
    assert_eq!(answer["usage"]["completion_tokens"], 701);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[test]
fn raw_texts_are_continued() {
    let body = json!({"prompt": ["say 2", "say 6"], "n": 2, "logprobs": 1});
    let answer = server().post("/v1/completions", &body).ok().json();
    let texts: Vec<&str> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["ABCDEFGHIJK", "ABCDEFGHIJK", "x1x2x3", "x1x2x3"]);
    assert_eq!(
        answer["choices"][2]["logprobs"]["text_offset"],
        json!([0, 2, 4])
    );
    assert_eq!(answer["usage"]["prompt_tokens"], 10, "a prompt counts once");
    let body = json!({"prompt": [50], "stream": true, "request_id": "mine"});
    let (chunks, ended) = events(&server().post("/v1/completions", &body).ok().body);
    let text: String = chunks
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert!(ended && text == "ABCDEFGHIJK" && chunks[0]["request_id"] == "mine");
}

/// Opens a stream and reads until so much of it has come.
fn open_stream(server: &Server, text: &str, deltas: usize) -> std::net::TcpStream {
    let body = message(text, json!({"stream": true, "max_tokens": 100_000})).to_string();
    let mut stream = server.connect();
    stream
        .write_all(&server.request("POST", super::client::CHAT, &[], body.as_bytes()))
        .unwrap();
    let (mut read, mut buffer) = (String::new(), [0; 4096]);
    while read.matches("data: ").count() <= deltas {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{read}");
        read.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    stream
}

/// Asks for an answer that takes long, and does not wait for it.
fn begin(server: &Server) -> std::net::TcpStream {
    let body = message("3", json!({"max_tokens": 50_000})).to_string();
    let mut stream = server.connect();
    let request = server.request("POST", super::client::CHAT, &[], body.as_bytes());
    stream.write_all(&request).unwrap();
    stream
}

/// One place to run, some to wait, and room for endless answers.
fn narrow(name: &str, queue: &str) -> Server {
    let model = chain(name, &scripts(), None);
    let room = ["--ctx", "60000", "--cache-tokens", "61000"];
    let places = ["--scheme", "none", "--max-running", "1", "--queue", queue];
    Server::start(&model, places.into_iter().chain(room))
}

#[test]
fn c040_a_client_that_leaves_frees_its_place() {
    let server = narrow("leaves", "1");
    // A stream that is read for a while, then one that is not streamed at all.
    for streamed in [true, false] {
        let stream = if streamed {
            open_stream(&server, "3", 5)
        } else {
            begin(&server)
        };
        thread::sleep(Duration::from_millis(300));
        assert_eq!(server.get("/v1/queue").ok().json()["status"], "busy");
        drop(stream);
        thread::sleep(Duration::from_secs(1));
        let started = Instant::now();
        assert_eq!(server.say("2", json!({})).content(), "ABCDEFGHIJK");
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{:?}",
            started.elapsed()
        );
    }
    let queue = server.get("/v1/queue").ok().json();
    assert_eq!(
        (&queue["queue_size"], &queue["status"]),
        (&json!(0), &json!("idle")),
        "{queue}"
    );
    // The figures are taken after the step that ended the answer.
    let started = Instant::now();
    while server.metric("cider_requests_running") > 0.0 {
        assert!(started.elapsed() < Duration::from_secs(2));
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn c044_a_full_queue_says_so_at_once() {
    let server = narrow("queue", "4");
    let held = begin(&server);
    thread::sleep(Duration::from_millis(300));
    let answers: Vec<_> = thread::scope(|scope| {
        let ask = || {
            let started = Instant::now();
            (
                server.say("3", json!({"max_tokens": 50})),
                started.elapsed(),
            )
        };
        let threads: Vec<_> = (0..49).map(|_| scope.spawn(ask)).collect();
        // Those that wait are let in once the first has left.
        thread::sleep(Duration::from_secs(2));
        let queue = server.get("/v1/queue").ok().json();
        let told = (&queue["queue_size"], &queue["running"], &queue["status"]);
        assert_eq!(told, (&json!(5), &json!(1), &json!("busy")), "{queue}");
        drop(held);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let (served, refused): (Vec<_>, Vec<_>) =
        answers.iter().partition(|(answer, _)| answer.status == 200);
    assert_eq!((served.len(), refused.len()), (4, 45));
    for (answer, time) in refused {
        assert_eq!(answer.refusal(429).0, "queue_full");
        assert!(answer.headers["retry-after"].parse::<u64>().unwrap() >= 1);
        assert!(*time < Duration::from_secs(2), "{time:?}");
    }
}

#[test]
fn c042_answers_are_never_mixed_up() {
    let letters: Vec<char> = ('a'..='p').collect();
    let text = |letter: char| {
        (0..40)
            .map(|i| format!("{}{:02}", letter.to_ascii_uppercase(), i))
            .collect::<Vec<_>>()
    };
    let scripts: Vec<Value> = letters
        .iter()
        .map(|&letter| json!({"select": letter.to_string(), "pieces": text(letter), "then": "end"}))
        .collect();
    let server = Server::start(
        &chain("markers", &json!(scripts), None),
        ["--scheme", "none"],
    );
    thread::scope(|scope| {
        for (number, &letter) in letters.iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                let expected = text(letter).concat();
                for round in 0..20 {
                    match (number + round) % 10 {
                        0 => drop(open_stream(server, &letter.to_string(), 3 + round % 5)),
                        odd if odd % 2 == 1 => {
                            let chunks = server.stream(&letter.to_string(), json!({}));
                            assert_eq!(joined(&chunks, "content"), expected);
                        }
                        _ => assert_eq!(
                            server.say(&letter.to_string(), json!({})).content(),
                            expected
                        ),
                    }
                }
            });
        }
    });
    assert_eq!(server.say("a", json!({})).content(), text('a').concat());
}

#[test]
fn c063_c064_a_thought_begins_where_the_prompt_says() {
    let scripts = json!([
        {"select": "<think>", "pieces": ["r", "</think>", "ok"], "then": "end"},
        {"select": "2", "pieces": ["fine"], "then": "end"},
    ]);
    let thinks = "{{ messages[-1].content }}{% if add_generation_prompt and enable_thinking is not false %}<think>{% endif %}";
    let server = Server::start(
        &chain("thoughts", &scripts, Some(thinks)),
        ["--scheme", "none"],
    );
    // Marks in a message open and close nothing.
    for text in ["2", "explain </think> and <think> 2"] {
        let choice = both(&server, text, json!({}));
        assert_eq!(
            (content(&choice), &choice["message"]["reasoning_content"]),
            ("ok", &json!("r"))
        );
        let cut = both(&server, text, json!({"max_tokens": 1}));
        assert_eq!(
            (content(&cut), &cut["message"]["reasoning_content"]),
            ("", &json!("r"))
        );
        assert_eq!(cut["finish_reason"], "length");
        for off in [
            json!({"enable_thinking": false}),
            json!({"chat_template_kwargs": {"enable_thinking": false}}),
        ] {
            let choice = both(&server, text, off);
            assert_eq!(content(&choice), "fine");
            assert!(choice["message"].get("reasoning_content").is_none());
        }
    }
    let plain = Server::start(&chain("no-thoughts", &scripts, None), ["--scheme", "none"]);
    let choice = both(&plain, "2", json!({}));
    assert_eq!(content(&choice), "fine");
    assert!(choice["message"].get("reasoning_content").is_none());
}

#[test]
fn c068_calls_are_whole_or_none() {
    let call = [
        "<tool_call>",
        "{\"name\":\"f\",",
        "\"arguments\":",
        "{\"x\":",
        "1}}",
        "</tool_call>",
    ];
    let scripts = json!([{"select": "1", "pieces": call, "then": "end"}]);
    let template =
        "{% if tools %}<tool_call>tools</tool_call>{% endif %}{{ messages[-1].content }}";
    let server = Server::start(
        &chain("calls", &scripts, Some(template)),
        ["--scheme", "none"],
    );
    let tools =
        json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let answer = server.say("1", json!({"tools": tools})).ok().json();
    let choice = &answer["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(
        (
            calls.len(),
            &calls[0]["function"]["name"],
            &choice["finish_reason"]
        ),
        (1, &json!("f"), &json!("tool_calls"))
    );
    let arguments: Value =
        serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"x": 1}));
    assert!(choice["message"]["content"].is_null());

    not_whole_or_in_pieces(&server, &tools, &call);
}

/// The same calls piece by piece, and calls that are none.
fn not_whole_or_in_pieces(server: &Server, tools: &Value, call: &[&str]) {
    let chunks = server.stream("1", json!({"tools": tools}));
    let deltas: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].get(0))
        .collect();
    assert_eq!(
        (&deltas[0]["index"], &deltas[0]["function"]["name"]),
        (&json!(0), &json!("f"))
    );
    assert!(
        deltas[0]["id"].is_string()
            && deltas[1..]
                .iter()
                .all(|delta| delta["function"].get("name").is_none())
    );
    let arguments: String = deltas
        .iter()
        .filter_map(|delta| delta["function"]["arguments"].as_str())
        .collect();
    assert_eq!(
        (
            serde_json::from_str::<Value>(&arguments).unwrap(),
            finish(&chunks)
        ),
        (json!({"x": 1}), "tool_calls".to_owned())
    );

    let cut = server
        .say("1", json!({"tools": tools, "max_tokens": 4}))
        .ok()
        .json();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert!(cut["choices"][0]["message"].get("tool_calls").is_none());
    assert_eq!(
        server.say("1", json!({})).content(),
        call.concat(),
        "without tools, text stays text"
    );
    let forbidden = server.say("1", json!({"tools": tools, "tool_choice": "none"}));
    assert_eq!(forbidden.content(), call.concat());
}
