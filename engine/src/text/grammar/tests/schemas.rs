//! Schemas: what they allow, and what is refused.

use super::*;

#[test]
fn c066_answers_keep_to_their_schema() {
    let text = Text::qwen();
    let grammar = schema(json!({
        "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false,
    }));
    let mut ended = 0;
    for seed in 0..10 {
        let (answer, whole) = text.sample(&grammar, seed, 64);
        if whole {
            ended += 1;
            let value: Value = serde_json::from_str(&answer).unwrap();
            let object = value.as_object().unwrap();
            assert!(object.len() == 1 && object["a"].is_number(), "{answer}");
            assert_eq!(object["a"].as_f64().unwrap().fract(), 0.0, "{answer}");
        }
    }
    assert!(ended >= 5, "{ended} of 10 answers ended");
    for (good, answer) in [
        (true, "{\"a\":1}"),
        (true, "{ \"a\" : -12 }"),
        (false, "{}"),
        (false, "{\"a\":\"1\"}"),
    ] {
        assert_eq!(text.takes(&grammar, answer), good, "{answer}");
    }
    assert!(!text.takes(&grammar, "{\"a\":1,\"b\":2}"));
    assert!(
        !text.takes(&grammar, "{\"a\":1} "),
        "nothing stands behind an answer"
    );
}

#[test]
fn c066_schemas_that_cannot_be_kept_to_are_refused() {
    let text = Text::qwen();
    let bad = [
        json!({"type": "foo"}),
        json!(7),
        json!("string"),
        json!(false),
        json!({"enum": []}),
        json!({"anyOf": []}),
        json!({"type": "string", "pattern": "["}),
        json!({"type": "string", "pattern": "(?=a)b"}),
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"type": "string", "minLength": -1}),
        json!({"type": "array", "items": {}, "minItems": 1_000_000_000}),
        json!({"type": "array", "uniqueItems": true}),
        json!({"type": "string", "format": "no-such-format"}),
        json!({"properties": 5}),
        json!({"required": "a"}),
        json!({"not": {"type": "string"}}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"$ref": "http://a/b.json"}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
        json!({"type": "integer", "maximum": 1e300}),
        json!({"const": 9_007_199_254_740_993_u64}),
        json!({"type": "number", "multipleOf": 1e-30}),
        json!({"type": "number", "multipleOf": 0}),
        json!({"type": "integer", "multipleOf": 999_999_999}),
        json!({"allOf": [{"multipleOf": 99_991}, {"multipleOf": 99_989}]}),
        json!({"properties": {"title": {"multipleOf": 1e-30}}}),
        json!({"x-guidance": {"lenient": true}}),
        json!({"type": "object", "properties": {"a": {"x-guidance": {}}}}),
        json!({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a", "type": "object"}}),
        json!({"description": "é".repeat(100), "properties": "é".repeat(200)}),
    ];
    assert_eq!(text.taken(bad.into_iter().map(schema)), []);
    let deep = (0..200).fold(json!({}), |inner, _| json!({"properties": {"a": inner}}));
    assert!(text.refuses(&schema(deep)).contains("deeper than 64"));
    let long = json!({"description": "x".repeat(200_000)});
    assert!(text.refuses(&schema(long)).contains("exceed the limit"));
    let many: serde_json::Map<_, _> = (0..10_000)
        .map(|n| (format!("p{n}"), json!({"type": "integer"})))
        .collect();
    text.refuses(&schema(json!({"type": "object", "properties": many})));
}

/// What is large and allowed compiles in time, and gives steps in time.
#[test]
fn c066_large_schemas_are_bounded() {
    let text = Text::qwen();
    let properties: serde_json::Map<_, _> = (0..2_000)
        .map(|n| (format!("p{n}"), json!({"type": "integer"})))
        .collect();
    let branches: Vec<Value> = (0..300)
        .map(|n| json!({"type": "string", "pattern": format!("^(a{{{n}}}b|c{n})*$")}))
        .collect();
    let large = [
        json!({"type": "object", "properties": properties, "additionalProperties": false}),
        json!({"anyOf": branches}),
        json!({"type": "string", "minLength": 10_000, "maxLength": 2_000_000_000}),
        json!({"type": "array", "items": {"type": "array", "items": {}, "minItems": 10_000}, "minItems": 10_000}),
        json!({"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}}}),
        json!({"enum": (0..5_000).map(|n| format!("word {n}")).collect::<Vec<_>>()}),
    ];
    for (index, value) in large.into_iter().enumerate() {
        let started = Instant::now();
        let compiled = text.grammars.compile(&schema(value));
        assert!(
            started.elapsed() < SLOWEST,
            "{:?} for {index}",
            started.elapsed()
        );
        let Ok(mut rule) = compiled else { continue };
        for _ in 0..20 {
            let mut logits = vec![0.0; text.tokenizer.vocab_size()];
            let started = Instant::now();
            let masked = rule.mask(&mut logits);
            assert!(
                started.elapsed() < SLOWEST,
                "{:?} for {index}",
                started.elapsed()
            );
            let allowed = logits.iter().position(|&logit| logit == 0.0);
            let (Ok(()), Some(id)) = (masked, allowed) else {
                break;
            };
            if rule.accept(id as u32).is_err() || rule.finished() {
                break;
            }
        }
    }
}

/// The shapes that schema generators of Python and TypeScript write.
#[test]
fn schemas_of_clients_are_kept_to() {
    let text = Text::qwen();
    let grammar = schema(json!({
        "$defs": {"Step": {"properties": {"n": {"title": "N", "type": "integer", "minimum": 1}, "say": {"type": "string"}},
            "required": ["n", "say"], "title": "Step", "type": "object"}},
        "properties": {
            "steps": {"items": {"$ref": "#/$defs/Step"}, "title": "Steps", "type": "array", "maxItems": 3},
            "kind": {"enum": ["a", "b"]}, "size": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": null},
        },
        "required": ["steps", "kind"], "title": "Plan", "type": "object", "additionalProperties": false,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    }));
    assert!(text.takes(
        &grammar,
        "{\"steps\": [{\"n\": 1, \"say\": \"é \\\"x\\\"\"}], \"kind\": \"b\"}"
    ));
    assert!(text.takes(&grammar, "{\"steps\": [], \"kind\": \"a\", \"size\": 0.5}"));
    assert!(!text.takes(
        &grammar,
        "{\"steps\": [{\"n\": 0, \"say\": \"\"}], \"kind\": \"b\"}"
    ));
    assert!(!text.takes(&grammar, "{\"steps\": [], \"kind\": \"c\"}"));
    let bounds = json!({"type": "integer", "minimum": -9_007_199_254_740_991_i64, "maximum": 9_007_199_254_740_991_i64});
    assert!(text.takes(&schema(bounds), "-12"));
    assert!(text.takes(&schema(json!(true)), "[1]") && text.takes(&schema(json!({})), "null"));
    let cents = schema(json!({"type": "number", "multipleOf": 0.01}));
    assert!(text.takes(&cents, "1.25") && !text.takes(&cents, "1.251"));
}
