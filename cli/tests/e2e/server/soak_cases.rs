//! Requests of all kinds for the soak, and things that are none.

use std::fs;

use serde_json::{Value, json};

use super::client::{CHAT, picture, solid};
use super::soak::Choice;
use crate::support::root;

/// A request and what it gets alone.
pub(super) struct Case {
    pub(super) path: &'static str,
    pub(super) body: Value,
    pub(super) alone: Vec<Choice>,
}

/// Numbers that look random: splitmix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below a limit.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn words(&mut self, count: usize) -> String {
        let words: Vec<&str> = (0..count).map(|_| WORDS[self.below(WORDS.len())]).collect();
        words.join(" ")
    }
}

/// So many requests, of all kinds in turn.
pub(super) fn cases(seed: u64, count: usize, sees: bool) -> Vec<Case> {
    let mut random = Random::new(seed);
    // What many begin with, several blocks of the cache long.
    let common: Vec<String> = [40, 150, 400].map(|length| random.words(length)).to_vec();
    let kinds: &[Kind] = if sees { &KINDS } else { &KINDS[SEEING..] };
    (0..count)
        .map(|number| {
            let (path, mut body) = kinds[number % kinds.len()](&mut random, &common);
            let object = body.as_object_mut().unwrap();
            object
                .entry("max_tokens")
                .or_insert(json!(4 + random.below(36)));
            if random.below(2) == 0 {
                let seed = random.below(1000);
                object.extend([
                    ("temperature".to_owned(), json!(1)),
                    ("seed".to_owned(), json!(seed)),
                ]);
            } else {
                object.insert("temperature".to_owned(), json!(0));
            }
            let logprobs = if path == CHAT { json!(true) } else { json!(2) };
            object.insert("logprobs".to_owned(), logprobs);
            Case {
                path,
                body,
                alone: Vec::new(),
            }
        })
        .collect()
}

type Kind = fn(&mut Random, &[String]) -> (&'static str, Value);

/// The kinds of requests, those with pictures first.
const KINDS: [Kind; 12] = [
    one_picture,
    colours_of_one_size,
    two_pictures,
    common_beginning,
    tools,
    common_beginning,
    schema,
    raw,
    several_answers,
    pattern,
    long,
    conversation,
];
const SEEING: usize = 3;

fn chat(messages: &Value, more: Value) -> (&'static str, Value) {
    let mut body = json!({"messages": messages});
    let Value::Object(more) = more else {
        panic!("{more}")
    };
    body.as_object_mut().unwrap().extend(more);
    (CHAT, body)
}

fn user(content: impl Into<Value>) -> Value {
    json!([{"role": "user", "content": content.into()}])
}

fn example(random: &mut Random) -> Value {
    let names = [
        "00-describe",
        "03-count-shape",
        "05-shape",
        "08-relation",
        "11-size",
    ];
    let name = names[random.below(names.len())];
    picture(&fs::read(root().join(format!("models/demo-vlm/examples/{name}.png"))).unwrap())
}

fn one_picture(random: &mut Random, _: &[String]) -> (&'static str, Value) {
    let questions = [
        "What is shown here",
        "How many shapes are there?",
        "Which color is the largest one?",
    ];
    let text = json!({"type": "text", "text": questions[random.below(questions.len())]});
    chat(
        &user(json!([example(random), text])),
        json!({"top_logprobs": 3}),
    )
}

/// Pictures that differ in their colour alone: one answered for another would be seen.
fn colours_of_one_size(random: &mut Random, _: &[String]) -> (&'static str, Value) {
    let colour = [0, 1, 2].map(|_| (85 * random.below(4)) as u8);
    let text = json!({"type": "text", "text": "Which color?"});
    chat(
        &user(json!([picture(&solid(64, 64, colour)), text])),
        json!({"top_logprobs": 3}),
    )
}

fn two_pictures(random: &mut Random, _: &[String]) -> (&'static str, Value) {
    let text = json!({"type": "text", "text": random.words(3)});
    let parts = json!([
        example(random),
        text,
        picture(&solid(96, 64, [random.below(256) as u8, 9, 200]))
    ]);
    chat(&user(parts), json!({}))
}

fn common_beginning(random: &mut Random, common: &[String]) -> (&'static str, Value) {
    let system = &common[random.below(common.len())];
    let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": random.words(6)}]);
    chat(
        &messages,
        json!({"top_logprobs": 2, "presence_penalty": 0.5}),
    )
}

fn tools(random: &mut Random, _: &[String]) -> (&'static str, Value) {
    let tool = |name: &str| {
        let parameters = json!({"type": "object", "required": ["a"], "additionalProperties": false,
            "properties": {"a": {"enum": ["red", "green", "blue"]}, "b": {"type": "integer", "minimum": 0, "maximum": 9}}});
        json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}})
    };
    let named = json!({"type": "function", "function": {"name": "two"}});
    let choice = if random.below(2) == 0 {
        json!("required")
    } else {
        named
    };
    let more =
        json!({"tools": [tool("one"), tool("two")], "tool_choice": choice, "max_tokens": 60});
    chat(&user(random.words(8)), more)
}

fn schema(random: &mut Random, common: &[String]) -> (&'static str, Value) {
    let schema = json!({"type": "object", "required": ["shape", "count"], "additionalProperties": false,
        "properties": {"shape": {"enum": ["circle", "star"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": schema}});
    let text = format!("{} {}", common[0], random.words(4));
    chat(
        &user(text),
        json!({"response_format": format, "max_tokens": 50}),
    )
}

fn pattern(random: &mut Random, _: &[String]) -> (&'static str, Value) {
    let most = 2 + random.below(9);
    chat(
        &user(random.words(5)),
        json!({"guided_regex": format!("[a-f]{{1,{most}}}-[0-9]{{3}}")}),
    )
}

fn raw(random: &mut Random, common: &[String]) -> (&'static str, Value) {
    let prompt = format!("{} {}", common[1], random.words(4));
    (
        "/v1/completions",
        json!({"prompt": prompt, "ignore_eos": true, "stop": ["zz"]}),
    )
}

fn several_answers(random: &mut Random, common: &[String]) -> (&'static str, Value) {
    let text = format!("{} {}", common[0], random.words(4));
    chat(
        &user(text),
        json!({"n": 2, "temperature": 1, "frequency_penalty": 0.2, "ignore_eos": true}),
    )
}

/// A prompt of many steps.
fn long(random: &mut Random, common: &[String]) -> (&'static str, Value) {
    let text = format!("{} {}", common[2], random.words(500));
    chat(&user(text), json!({"max_tokens": 6, "ignore_eos": true}))
}

/// Long answers, which have to make room for each other.
fn conversation(random: &mut Random, _: &[String]) -> (&'static str, Value) {
    let messages = json!([
        {"role": "user", "content": random.words(20)}, {"role": "assistant", "content": random.words(20)},
        {"role": "user", "content": random.words(5)},
    ]);
    chat(
        &messages,
        json!({"max_tokens": 120 + random.below(120), "ignore_eos": true}),
    )
}

/// Bodies that are no requests: each is refused, none is a failure of the server.
pub(super) fn garbage(random: &mut Random) -> (&'static str, Vec<u8>) {
    let bytes: Vec<u8> = (0..random.below(2000))
        .map(|_| random.next() as u8)
        .collect();
    let bad: [Value; 9] = [
        json!({"messages": 7}),
        json!({"messages": [{"role": "nobody", "content": "x"}]}),
        json!({"messages": user("x"), "temperature": -1}),
        json!({"messages": user("x"), "max_tokens": 0}),
        json!({"messages": user("word ".repeat(5000))}),
        json!({"messages": user(json!([picture(b"no picture")]))}),
        json!({"messages": user("x"), "guided_regex": "(("}),
        json!({"messages": user("x"), "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": 3}}}),
        json!({"messages": user("x"), "n": 1000}),
    ];
    match random.below(bad.len() + 4) {
        0 => (CHAT, bytes),
        1 => (CHAT, b"[".repeat(10_000)),
        2 => ("/v1/nothing", bytes),
        3 => (
            "/v1/completions",
            json!({"prompt": [1, 4_000_000_000_u32]})
                .to_string()
                .into_bytes(),
        ),
        at => (CHAT, bad[at - 4].to_string().into_bytes()),
    }
}

const WORDS: [&str; 24] = [
    "red", "green", "blue", "circle", "square", "star", "large", "small", "left", "right", "above",
    "below", "the", "a", "is", "what", "which", "color", "shape", "picture", "count", "of", "and",
    "there",
];
