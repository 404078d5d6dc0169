mod schemas;
mod tools;

use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::generate::{History, Sampler, SamplingParams};
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
        let taken = |grammar: &Grammar| {
            let taken = self.grammars.compile(grammar).is_ok();
            if !taken {
                self.refuses(grammar);
            }
            taken
        };
        grammars.into_iter().filter(taken).collect()
    }

    fn refuses(&self, grammar: &Grammar) -> String {
        let started = Instant::now();
        let Err(error) = self.grammars.compile(grammar) else {
            panic!("{grammar:?} was taken");
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
    let rules: Vec<String> = (0..3_000).map(|n| format!("r{n}: r{}", n + 1)).collect();
    let chain = Grammar::Lark(format!("start: r0\n{}\nr3000: \"a\"", rules.join("\n")));
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
