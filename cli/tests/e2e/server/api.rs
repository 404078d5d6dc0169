//! What requests may say, and what they are told when they may not.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{CHAT, Server, events, finish, joined, tiny};
use crate::support::{f_tiny, folder, root, smollm2};

fn param(server: &Server, body: &Value) -> String {
    let (_, param, message) = server.chat(body).refusal(400);
    param.unwrap_or_else(|| panic!("no field: {message}"))
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn c047_calls_may_stand_without_content() {
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    for message in [
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "assistant", "tool_calls": [call]}),
    ] {
        let tool = json!({"role": "tool", "tool_call_id": "c1", "content": "3"});
        let body = json!({"messages": [user("a"), message, tool, user("b")], "max_tokens": 2});
        tiny().chat(&body).ok();
    }
    let body = json!({"messages": [{"role": "user", "content": null}]});
    assert_eq!(param(tiny(), &body), "messages[0].content");
}

fn tokens(messages: &Value) -> Vec<u64> {
    let answer = tiny()
        .post("/v1/tokenize", &json!({"messages": messages}))
        .ok()
        .json();
    let tokens = answer["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token.as_u64().unwrap());
    let tokens: Vec<u64> = tokens.collect();
    assert_eq!(answer["count"], tokens.len());
    tokens
}

#[test]
fn c048_c049_roles_take_texts_and_parts() {
    for role in ["system", "user", "assistant", "tool"] {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let one = tokens(&json!([{"role": role, "content": "ab"}, user("x")]));
        assert_eq!(
            one,
            tokens(&json!([{"role": role, "content": parts}, user("x")])),
            "{role}"
        );
    }
    let with = |role: &str| tokens(&json!([{"role": role, "content": "X"}, user("a")]));
    assert_eq!(with("developer"), with("system"));
    let both = tokens(
        &json!([{"role": "system", "content": "X"}, {"role": "developer", "content": "Y"}, user("a")]),
    );
    assert!(both.len() > with("system").len());
    assert_eq!(
        param(
            tiny(),
            &json!({"messages": [{"role": "foo", "content": "a"}]})
        ),
        "messages[0].role"
    );
    let part = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    assert_eq!(
        param(tiny(), &part(json!({"type": "text"}))),
        "messages[0].content[0]"
    );
    let (_, _, message) = tiny().chat(&part(json!({"type": "foo"}))).refusal(400);
    assert!(message.contains("foo"), "{message}");
    assert_eq!(
        param(
            tiny(),
            &json!({"messages": [{"role": "user", "content": []}]})
        ),
        "messages[0].content"
    );
}

#[test]
fn c050_bodies_that_are_none_are_refused() {
    for body in [
        json!({"messages": []}),
        json!({}),
        json!({"messages": "hi"}),
    ] {
        assert_eq!(param(tiny(), &body), "messages");
    }
    tiny()
        .chat(&json!({"messages": [user("")], "max_tokens": 1}))
        .ok();
    let deep = format!("{{\"messages\": {}", "[".repeat(100_000));
    for body in ["", "hello", "{", "[]", deep.as_str()] {
        let (code, ..) = tiny().ask("POST", CHAT, &[], body.as_bytes()).refusal(400);
        assert_eq!(code, "invalid_body", "{body:.20}");
    }
    tiny().say("still there?", json!({"max_tokens": 1})).ok();
}

#[test]
fn c051_temperature_zero_is_greedy() {
    let greedy = json!({"temperature": 0, "max_tokens": 12});
    let first = tiny().say("hello", greedy.clone()).content();
    for more in [
        greedy.clone(),
        greedy,
        json!({"temperature": 0, "top_p": 0.5, "top_k": 1, "max_tokens": 12}),
    ] {
        assert_eq!(tiny().say("hello", more).content(), first);
    }
    assert_eq!(
        tiny()
            .say(
                "hello",
                json!({"temperature": 2, "top_k": 1, "max_tokens": 12})
            )
            .content(),
        first
    );
}

#[test]
fn c052_values_outside_their_range_name_their_field() {
    for (name, values) in [
        ("temperature", vec![json!(-1), json!(5), json!("NaN")]),
        ("top_p", vec![json!(0), json!(1.5), json!(-0.1)]),
        ("top_k", vec![json!(-2), json!(1.5)]),
        ("min_p", vec![json!(2), json!(-1)]),
        ("repetition_penalty", vec![json!(0), json!(-1)]),
        ("presence_penalty", vec![json!(100)]),
        ("frequency_penalty", vec![json!(-100)]),
        ("max_tokens", vec![json!(0), json!(-1), json!(1.5)]),
        ("logprobs", vec![json!("yes")]),
        ("top_logprobs", vec![json!(50)]),
        ("seed", vec![json!(1.5)]),
        (
            "n",
            vec![
                json!(0),
                json!(-1),
                json!(true),
                json!(1.5),
                json!("2"),
                json!(9),
            ],
        ),
        ("stop", vec![json!(1), json!([1])]),
    ] {
        for value in values {
            let body = json!({"messages": [user("a")], "max_tokens": 1});
            let mut body = body;
            body[name] = value.clone();
            assert_eq!(param(tiny(), &body), name, "{value}");
        }
        let mut body = json!({"messages": [user("a")], "max_tokens": 1});
        body[name] = Value::Null;
        tiny().chat(&body).ok();
    }
    for off in [0, -1] {
        tiny().say("a", json!({"top_k": off, "max_tokens": 1})).ok();
    }
}

#[test]
fn c053_as_many_answers_come_as_are_asked_for() {
    let more = json!({"n": 3, "max_tokens": 5, "seed": 7, "temperature": 1.5});
    let answer = tiny().say("a", more.clone()).ok().json();
    let choices = answer["choices"].as_array().unwrap();
    let indices: Vec<u64> = choices
        .iter()
        .map(|choice| choice["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 1, 2]);
    let prompt =
        tiny().say("a", json!({"max_tokens": 1})).ok().json()["usage"]["prompt_tokens"].clone();
    assert_eq!(
        answer["usage"]["prompt_tokens"], prompt,
        "the prompt counts once"
    );
    let chunks = tiny().stream("a", more);
    for (index, choice) in choices.iter().enumerate() {
        let own = chunks
            .iter()
            .filter(|chunk| chunk["choices"][0]["index"] == index)
            .cloned();
        let own: Vec<Value> = own.collect();
        assert_eq!(
            joined(&own, "content"),
            choice["message"]["content"].as_str().unwrap()
        );
        assert_eq!(finish(&own), choice["finish_reason"].as_str().unwrap());
    }
}

#[test]
fn c054_harmless_fields_are_ignored_and_others_are_not() {
    let harmless = json!({"user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "parallel_tool_calls": true,
        "max_tokens": 1, "tools": [], "logit_bias": {}, "modalities": ["text"]});
    tiny().say("a", harmless).ok();
    let message = json!({"role": "user", "content": "a", "name": "n", "refusal": null, "annotations": [], "reasoning_content": "r"});
    tiny()
        .chat(&json!({"messages": [message], "max_tokens": 1}))
        .ok();
    for (name, value) in [
        ("logit_bias", json!({"1": 5})),
        ("audio", json!({"voice": "a"})),
        ("functions", json!([{"name": "f"}])),
        ("modalities", json!(["audio"])),
    ] {
        let mut body = json!({"messages": [user("a")]});
        body[name] = value;
        let (code, param, _) = tiny().chat(&body).refusal(400);
        assert_eq!(
            (code.as_str(), param.as_deref()),
            ("unsupported_parameter", Some(name))
        );
    }
    tiny()
        .say("a", json!({"max_tokns": 1, "max_tokens": 1}))
        .ok();
    tiny()
        .say("a", json!({"max_tokns": 1, "max_tokens": 1}))
        .ok();
    let log = tiny().log();
    assert_eq!(log.matches("max_tokns").count(), 1, "{log}");
}

#[test]
fn c080_the_model_that_is_listed_can_be_asked_for() {
    let server = Server::start(
        f_tiny(),
        ["--strict-model", "--ctx", "256", "--model-name", "a/b"],
    );
    let models = server.get("/v1/models").ok().json();
    assert_eq!(
        (
            &models["data"][0]["id"],
            &models["data"][0]["max_model_len"]
        ),
        (&json!("a/b"), &json!(256))
    );
    assert_eq!(server.get("/v1/models/a/b").ok().json()["id"], "a/b");
    assert_eq!(
        server.get("/v1/models/nope").refusal(404).0,
        "model_not_found"
    );
    let answer = server
        .say("a", json!({"model": "a/b", "max_tokens": 1}))
        .ok()
        .json();
    assert_eq!(answer["model"], "a/b");
    server.say("a", json!({"max_tokens": 1})).ok();
    assert_eq!(
        server.say("a", json!({"model": "nope"})).refusal(404).0,
        "model_not_found"
    );
    tiny()
        .say("a", json!({"model": "nope", "max_tokens": 1}))
        .ok();
    assert_eq!(server.get("/v1/foo").refusal(404).0, "not_found");
    let answer = server.get(CHAT);
    assert_eq!(
        (
            answer.refusal(405).0.as_str(),
            answer.headers["allow"].as_str()
        ),
        ("method_not_allowed", "POST")
    );
    assert_eq!(
        server.post("/health", &json!({})).refusal(405).0,
        "method_not_allowed"
    );
}

#[test]
fn c113_a_model_without_a_template_continues_raw_texts() {
    let model = folder("no-template");
    crate::recipe::build_model(&root().join("testdata/f-tiny"), &model).unwrap();
    let settings = model.join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&settings).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("chat_template");
    std::fs::write(&settings, config.to_string()).unwrap();
    let server = Server::start(&model, ["--ctx", "256"]);
    assert!(
        server.log().contains("warning: no chat template"),
        "{}",
        server.log()
    );
    let (code, _, message) = server.say("a", json!({})).refusal(400);
    assert!(
        code == "template_error" && message.contains("--chat-template"),
        "{message}"
    );
    server
        .post("/v1/completions", &json!({"prompt": "a", "max_tokens": 2}))
        .ok();
    let template = model.join("other.jinja");
    let text = "{% if messages[0].content == 'bad' %}{{ raise_exception('no such words') }}{% endif %}{{ messages[0].content }}";
    std::fs::write(&template, text).unwrap();
    let server = Server::start(
        &model,
        [
            "--ctx".as_ref(),
            "256".as_ref(),
            "--chat-template".as_ref(),
            template.as_os_str(),
        ],
    );
    server.say("a", json!({"max_tokens": 2})).ok();
    let (code, _, message) = server.say("bad", json!({})).refusal(400);
    assert!(
        code == "template_error" && message.contains("no such words"),
        "{message}"
    );
}

#[test]
fn request_ids_come_back_and_mean_nothing() {
    for _ in 0..2 {
        let answer = tiny()
            .say("a", json!({"request_id": "same", "max_tokens": 1}))
            .ok()
            .json();
        assert_eq!(answer["request_id"], "same");
    }
}

#[test]
fn the_trained_model_answers_in_both_ways() {
    let server = Server::start(smollm2().as_ref(), ["--ctx", "512"]);
    let question = "What is the capital of France?";
    let more = json!({"temperature": 0, "max_tokens": 12});
    let whole = server.say(question, more.clone()).content();
    assert!(whole.contains("Paris"), "{whole}");
    assert_eq!(joined(&server.stream(question, more), "content"), whole);
}

#[test]
fn c045_a_long_prompt_is_told_of_while_it_is_read() {
    let model = f_tiny();
    let server = Server::start(
        model,
        [
            "--ctx",
            "30000",
            "--cache-tokens",
            "32000",
            "--keep-alive",
            "0.2",
        ],
    );
    let text = "long words ".repeat(3000);
    let body =
        json!({"messages": [{"role": "user", "content": text}], "stream": true, "max_tokens": 2});
    let mut stream = server.connect();
    let started = Instant::now();
    std::io::Write::write_all(
        &mut stream,
        &server.request("POST", CHAT, &[], body.to_string().as_bytes()),
    )
    .unwrap();
    let mut first = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut first).unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(&first, b"HTTP/1.1 200");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stream, &mut rest).unwrap();
    assert!(rest.contains("\n: prompt "), "{rest:.500}");
    assert!(rest.contains("data: [DONE]"));
}

#[test]
fn the_description_of_the_api_is_as_it_was() {
    let text = tiny().get("/openapi.json").ok().json();
    let text = serde_json::to_string_pretty(&text).unwrap() + "\n";
    let path = root().join("cli/tests/e2e/snapshots/openapi.json");
    if std::env::var("CIDER_SNAPSHOTS").is_ok_and(|value| value == "write") {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(
        text,
        std::fs::read_to_string(&path).unwrap(),
        "{} is out of date",
        path.display()
    );
    // Every path of it is there.
    let description: Value = serde_json::from_str(&text).unwrap();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "f-tiny");
        let method = if methods.get("get").is_some() {
            "GET"
        } else {
            "POST"
        };
        let answer = tiny().ask(method, &path, &[], b"");
        assert!([200, 400].contains(&answer.status), "{path}: {answer:?}");
    }
    let (chunks, ended) = events("data: {}\n\ndata: [DONE]\n\n");
    assert!(ended && chunks.len() == 1);
}
