//! What answers are: seeds, probabilities, formats, calls.

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};

use super::client::tiny;

#[test]
fn c058_a_seed_gives_the_same_answer_whatever_else_runs() {
    let ask = |seed: i64| {
        tiny()
            .say(
                "tell",
                json!({"temperature": 1.5, "seed": seed, "max_tokens": 12}),
            )
            .content()
    };
    let alone = ask(7);
    assert!((0..3).all(|_| ask(7) == alone));
    let different: BTreeSet<String> = (1..=10).map(ask).collect();
    assert!(different.len() >= 5, "{different:?}");
    thread::scope(|scope| {
        for other in 0..8 {
            scope.spawn(move || {
                tiny()
                    .say(
                        "others",
                        json!({"temperature": 1, "seed": other, "max_tokens": 30}),
                    )
                    .ok()
            });
        }
        assert_eq!(ask(7), alone);
    });
    for edge in [0, -1, i64::MAX, i64::MIN] {
        ask(edge);
    }
    let any = || {
        tiny()
            .say("tell", json!({"temperature": 1.5, "max_tokens": 12}))
            .content()
    };
    let any: BTreeSet<String> = (0..5).map(|_| any()).collect();
    assert!(any.len() > 1);
}

#[test]
fn c059_probabilities_are_finite() {
    for more in [
        json!({"top_k": 1}),
        json!({"response_format": {"type": "json_object"}}),
    ] {
        let mut all = json!({"logprobs": true, "top_logprobs": 5, "max_tokens": 8, "temperature": 1, "seed": 1});
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer = tiny().say("a", all.clone()).ok().json();
        let list = answer["choices"][0]["logprobs"]["content"]
            .as_array()
            .unwrap()
            .clone();
        assert!(!list.is_empty());
        for token in &list {
            let top = token["top_logprobs"].as_array().unwrap();
            assert_eq!(top.len(), 5);
            for value in [token].into_iter().chain(top) {
                let logprob = value["logprob"].as_f64().unwrap();
                assert!((-9999.0..=0.0).contains(&logprob), "{value}");
            }
        }
        let chunks = tiny().stream("a", all);
        let streamed = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
        assert_eq!(streamed.flatten().cloned().collect::<Vec<_>>(), list);
    }
}

#[test]
fn c066_answers_follow_their_schema_or_the_schema_is_refused() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let format = |schema: &Value| json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let mut finished = 0;
    for seed in 0..10 {
        let more = json!({"response_format": format(&schema), "seed": seed, "temperature": 1, "max_tokens": 64});
        let answer = tiny().say("a", more).ok().json();
        if answer["choices"][0]["finish_reason"] == "stop" {
            let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
            let value: Value = serde_json::from_str(text).unwrap();
            assert!(
                value["a"].is_number() && value.as_object().unwrap().len() == 1,
                "{text}"
            );
            finished += 1;
        }
    }
    assert!(finished > 0);
    for bad in [
        json!({"type": "foo"}),
        json!({"enum": []}),
        json!({"anyOf": []}),
        json!({"type": "string", "pattern": "["}),
    ] {
        let answer = tiny().say(
            "a",
            json!({"response_format": format(&bad), "max_tokens": 4}),
        );
        assert!([200, 400].contains(&answer.status), "{bad}: {answer:?}");
    }
    let (code, param, _) = tiny()
        .say(
            "a",
            json!({"response_format": format(&json!({"type": "foo"}))}),
        )
        .refusal(400);
    assert_eq!(
        (code.as_str(), param.as_deref()),
        ("invalid_grammar", Some("response_format"))
    );
    let word = tiny()
        .say("a", json!({"guided_regex": "(yes|no)", "max_tokens": 8}))
        .content();
    assert!(["yes", "no"].contains(&word.as_str()), "{word}");
    let raw = tiny()
        .post(
            "/v1/completions",
            &json!({"prompt": "a", "guided_regex": "[0-9]{3}", "max_tokens": 8}),
        )
        .ok()
        .json();
    assert!(
        raw["choices"][0]["text"]
            .as_str()
            .unwrap()
            .parse::<u32>()
            .is_ok()
    );
}

#[test]
fn forced_calls_are_calls() {
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
        "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": false}}}]);
    for choice in [
        json!("required"),
        json!({"type": "function", "function": {"name": "add"}}),
    ] {
        let more = json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 200, "temperature": 1, "seed": 3});
        let answer = tiny().say("a", more);
        if answer.status == 400 {
            // Its template may know no tools; then it says so.
            assert_eq!(answer.refusal(400).0, "unsupported_parameter");
            continue;
        }
        let answer = answer.ok().json();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "add", "{answer}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["x"].is_boolean());
    }
}
