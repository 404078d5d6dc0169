use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::generate::{History, Sampler, SamplingParams};
use crate::text::ToolFormat;
use crate::text::tests::fixture;

/// A vocabulary of bytes, merged words and control tokens, and what ends an answer in it.
struct Text {
    tokenizer: Tokenizer,
    grammars: Grammars,
    end: u32,
}

impl Text {
    fn new(name: &str, end: &str) -> Self {
        let tokenizer = fixture(name);
        let end = tokenizer.token_id(end).unwrap();
        let grammars = Grammars::new(&tokenizer, &[end]).unwrap();
        Self {
            tokenizer,
            grammars,
            end,
        }
    }

    fn qwen() -> Self {
        Self::new("qwen", "<|im_end|>")
    }

    /// An answer sampled from a model that likes nothing better, at most so many tokens, and whether it ended.
    fn sample(&self, grammar: &Grammar, seed: u64, limit: usize) -> (String, bool) {
        self.sample_with(grammar, seed, limit, |_| 0.0)
    }

    fn sample_with(
        &self,
        grammar: &Grammar,
        seed: u64,
        limit: usize,
        likes: impl Fn(u32) -> f32,
    ) -> (String, bool) {
        let mut rule = self.grammars.compile(grammar).unwrap();
        let rows = self.tokenizer.vocab_size() + 12;
        let params = SamplingParams {
            seed: Some(seed),
            ..SamplingParams::default()
        };
        let mut sampler = Sampler::new(&params, rows, rows).unwrap();
        let mut ids = Vec::new();
        while ids.len() < limit && !rule.finished() {
            let mut logits: Vec<f32> = (0..rows as u32).map(&likes).collect();
            let id = sampler
                .sample_within(&mut logits, History::default(), Some(rule.as_mut()))
                .unwrap();
            assert!(
                (id as usize) < self.tokenizer.vocab_size(),
                "an id without a token"
            );
            if id == self.end {
                return (self.tokenizer.decode(&ids).unwrap(), true);
            }
            assert!(!self.tokenizer.is_special(id), "a control token");
            ids.push(id);
        }
        (self.tokenizer.decode(&ids).unwrap(), rule.finished())
    }

    /// Whether the whole text keeps to the grammar, spelt as the tokenizer spells it.
    fn takes(&self, grammar: &Grammar, text: &str) -> bool {
        let mut rule = self.grammars.compile(grammar).unwrap();
        let ids = self
            .tokenizer
            .encode(text, crate::text::Controls::Plain)
            .unwrap();
        for id in ids {
            if rule.finished() || !allows(rule.as_mut(), id, &self.tokenizer) {
                return false;
            }
            rule.accept(id).unwrap();
        }
        rule.finished() || allows(rule.as_mut(), self.end, &self.tokenizer)
    }

    /// Those of the grammars that are taken; each must be refused, in time and in one line.
    fn taken(&self, grammars: impl IntoIterator<Item = Grammar>) -> Vec<Grammar> {
        let taken = |grammar: &Grammar| match self.grammars.compile(grammar) {
            Ok(_) => true,
            Err(_) => {
                self.refuses(grammar);
                false
            }
        };
        grammars.into_iter().filter(taken).collect()
    }

    fn refuses(&self, grammar: &Grammar) -> String {
        let started = Instant::now();
        let error = match self.grammars.compile(grammar) {
            Ok(_) => panic!("{grammar:?} was taken"),
            Err(error) => error,
        };
        assert!(
            started.elapsed() < SLOWEST,
            "{:?} for {error}",
            started.elapsed()
        );
        assert!(matches!(error, Error::Grammar { .. }), "{error}");
        let text = error.to_string();
        assert!(text.len() < 400 && !text.contains(['\n', '\r']), "{text}");
        text
    }
}

fn allows(rule: &mut dyn Constraint, id: u32, tokenizer: &Tokenizer) -> bool {
    let mut logits = vec![0.0; tokenizer.vocab_size()];
    rule.mask(&mut logits).unwrap();
    logits[id as usize] == 0.0
}

fn schema(value: Value) -> Grammar {
    Grammar::JsonSchema(value)
}

/// What a compilation may take, on a slow machine that does other things.
const SLOWEST: Duration = Duration::from_secs(10);

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

#[test]
fn c067_blanks_have_a_bound() {
    let text = Text::qwen();
    let blank = |id: u32| {
        let bytes = text.tokenizer.token_bytes(id).unwrap_or_default();
        !bytes.is_empty() && bytes.iter().all(u8::is_ascii_whitespace)
    };
    let likes = |id: u32| if blank(id) { 20.0 } else { 0.0 };
    let longest = |answer: &str| {
        let runs = answer.split(|c: char| !c.is_whitespace());
        runs.map(|run| run.chars().count()).max().unwrap()
    };
    for seed in 0..4 {
        let (answer, whole) = text.sample_with(&Grammar::JsonObject, seed, 400, likes);
        assert!(longest(&answer) <= 64, "{answer:?}");
        assert!(
            !whole || serde_json::from_str::<Value>(&answer).is_ok(),
            "{answer:?}"
        );
        let numbers =
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3});
        let (answer, _) = text.sample_with(&schema(numbers), seed, 400, likes);
        assert!(longest(&answer) <= 20, "{answer:?}");
        assert!(
            answer.starts_with('['),
            "no blanks before an answer: {answer:?}"
        );
    }
}

#[test]
fn any_object_is_json() {
    let text = Text::qwen();
    let mut ended = 0;
    for seed in 0..10 {
        let (answer, whole) = text.sample_with(&Grammar::JsonObject, seed, 300, |id| {
            let name = text.tokenizer.token(id).unwrap_or_default();
            if name.contains(['"', '}', ']']) {
                4.0
            } else {
                0.0
            }
        });
        if whole {
            ended += 1;
            assert!(
                serde_json::from_str::<Value>(&answer).is_ok_and(|v| v.is_object()),
                "{answer}"
            );
        }
    }
    assert!(ended >= 5, "{ended} of 10 answers ended");
    for good in [
        "{}",
        "{ }",
        "{\"a\": [1, -2.5e+3, true, false, null], \"b\": {\"c\": \"x\\ny\\u0007 \\\\ \\/ é世\"}}",
        "{\n  \"a\": [\n    1\n  ]\n}",
    ] {
        assert!(text.takes(&Grammar::JsonObject, good), "{good}");
    }
    for bad in [
        "[]",
        "{,}",
        "{\"a\":01}",
        "{\"a\":1,}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":1e999}",
        " {}",
        "{}x",
        "{\"a\":\"\n\"}",
    ] {
        assert!(!text.takes(&Grammar::JsonObject, bad), "{bad}");
    }
}

#[test]
fn expressions_and_grammars() {
    for text in [
        Text::qwen(),
        Text::new("sentencepiece", "</s>"),
        Text::new("llama", "<|eot_id|>"),
    ] {
        let regex = |source: &str| Grammar::Regex(source.to_owned());
        for seed in 0..5 {
            let (answer, whole) = text.sample(&regex("(cat|dog)s? [0-9]{2}\u{e9}?"), seed, 40);
            assert!(whole, "{answer}");
            let rest = answer
                .strip_prefix("cat")
                .or_else(|| answer.strip_prefix("dog"))
                .unwrap();
            let digits = rest.trim_start_matches('s').trim().trim_end_matches('é');
            assert!(
                digits.len() == 2 && digits.parse::<u8>().is_ok(),
                "{answer}"
            );
        }
        let lark = Grammar::Lark("start: \"a\" start \"b\" | \"c\"".to_owned());
        let (answer, whole) = text.sample(&lark, 1, 200);
        let (a, b) = (answer.matches('a').count(), answer.matches('b').count());
        assert!(whole && a == b, "{answer}");
    }
    let text = Text::qwen();
    let nested = format!("{}a{}", "(".repeat(2_000), ")".repeat(2_000));
    let long = "a".repeat(100_000);
    let bad = ["[", "(?=a)", "a{1000000000000}", &nested, &long];
    assert_eq!(
        text.taken(bad.map(|source| Grammar::Regex(source.to_owned()))),
        []
    );
    assert!(text.takes(&Grammar::Regex(String::new()), ""));
    let opened = format!("start: {}", "(".repeat(5_000));
    let repeated = "start: \"a\"\n".repeat(10_000);
    let bad = [
        "",
        "start: other",
        "start: start",
        "x: \"a\"",
        "start: <|no_such_token|>",
        "start: @other",
        "start: <[4000000000]>",
        &opened,
        &repeated,
    ];
    assert_eq!(
        text.taken(bad.map(|source| Grammar::Lark(source.to_owned()))),
        []
    );
}

/// Rules that name each other in a long chain must not exhaust the stack.
#[test]
fn long_chains_of_rules_are_bounded() {
    let text = Text::qwen();
    let rules: String = (0..3_000).map(|n| format!("r{n}: r{}\n", n + 1)).collect();
    let chain = Grammar::Lark(format!("start: r0\n{rules}r3000: \"a\""));
    let started = Instant::now();
    if let Ok(mut rule) = text.grammars.compile(&chain) {
        assert!(allows(
            rule.as_mut(),
            text.tokenizer.token_id("a").unwrap(),
            &text.tokenizer
        ));
    }
    assert!(started.elapsed() < SLOWEST);
}

/// C061: rows of logits beyond the vocabulary stay forbidden, and so does an end before its time.
#[test]
fn rows_without_a_token_are_forbidden() {
    let text = Text::qwen();
    let mut rule = text
        .grammars
        .compile(&Grammar::Regex("a*".to_owned()))
        .unwrap();
    let mut logits = vec![1.0; text.tokenizer.vocab_size() + 40];
    rule.mask(&mut logits).unwrap();
    assert!(
        logits[text.tokenizer.vocab_size()..]
            .iter()
            .all(|&logit| logit == f32::NEG_INFINITY)
    );
    assert_eq!(logits[text.end as usize], 1.0);
    rule.accept(text.end).unwrap();
    assert!(rule.finished());
    assert!(rule.accept(text.end).is_err());
    let mut rule = text
        .grammars
        .compile(&Grammar::Regex("a+".to_owned()))
        .unwrap();
    assert!(!allows(rule.as_mut(), text.end, &text.tokenizer));
    assert!(rule.accept(text.end).is_err());
}

/// A vocabulary without an end token: the answer ends where nothing may follow.
#[test]
fn an_answer_ends_without_an_end_token() {
    let tokenizer = fixture("qwen");
    let grammars = Grammars::new(&tokenizer, &[]).unwrap();
    let mut rule = grammars.compile(&Grammar::Regex("ab".to_owned())).unwrap();
    for text in ["a", "b"] {
        assert!(!rule.finished());
        rule.accept(tokenizer.token_id(text).unwrap()).unwrap();
    }
    assert!(rule.finished());
}

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "required": ["city"],
            "additionalProperties": false, "$defs": {"City": {"enum": ["Paris", "Oslo"]}}}}}),
        json!({"type": "function", "function": {"name": "now \"<>\"", "parameters": {"properties": {}, "additionalProperties": false}}}),
    ]
}

#[test]
fn forced_calls_are_calls() {
    use crate::text::answer::{AnswerFormat, AnswerParser, AnswerPart};
    let text = Text::qwen();
    for format in [ToolFormat::Hermes, ToolFormat::Llama3] {
        for (choice, parallel) in [
            (ToolChoice::Required, true),
            (ToolChoice::Named("weather".to_owned()), false),
        ] {
            let grammar = Grammar::Tools(ToolRule {
                tools: tools(),
                choice: choice.clone(),
                format,
                parallel,
            });
            for seed in 0..4 {
                let (answer, whole) = text.sample(&grammar, seed, 2_000);
                assert!(whole, "{answer}");
                let parses = AnswerFormat {
                    reasoning: false,
                    tools: Some(format),
                };
                let mut parser = AnswerParser::new(&parses, Opening::Closed);
                let mut parts = parser.push(&answer);
                parts.extend(parser.finish(true));
                let names: Vec<&str> = parts
                    .iter()
                    .filter_map(|part| match part {
                        AnswerPart::ToolCallStart { name, .. } => Some(name.as_str()),
                        AnswerPart::Content(_) | AnswerPart::Reasoning(_) => {
                            panic!("{answer}: {parts:?}")
                        }
                        _ => None,
                    })
                    .collect();
                assert_eq!(names.len(), parser.calls());
                let known = |name: &&str| {
                    *name == "weather" || (*name == "now \"<>\"" && choice == ToolChoice::Required)
                };
                assert!(!names.is_empty() && names.iter().all(known), "{answer}");
                assert!(parallel || names.len() == 1, "{answer}");
                for part in &parts {
                    if let AnswerPart::ToolCallArguments { text, .. } = part {
                        let city = serde_json::from_str::<Value>(text).unwrap();
                        assert!(
                            city == json!({}) || city["city"] == "Paris" || city["city"] == "Oslo",
                            "{answer}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn tools_that_cannot_be_forced_are_refused() {
    let text = Text::qwen();
    let rule = |tools: Vec<Value>, choice: ToolChoice| {
        Grammar::Tools(ToolRule {
            tools,
            choice,
            format: ToolFormat::Hermes,
            parallel: true,
        })
    };
    let named = ToolChoice::Named("other".to_owned());
    assert!(text.refuses(&rule(tools(), named)).contains("\"other\""));
    text.refuses(&rule(vec![], ToolChoice::Required));
    for parameters in [
        json!(5),
        json!({"type": "array"}),
        json!({"properties": {"a": {"type": "foo"}}}),
    ] {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        text.refuses(&rule(vec![tool], ToolChoice::Required));
    }
    text.refuses(&rule(
        vec![json!({"type": "function"})],
        ToolChoice::Required,
    ));
    let large =
        json!({"name": "f", "parameters": {"type": "object", "description": "x".repeat(50_000)}});
    text.refuses(&rule(vec![large; 4], ToolChoice::Required));
}
