//! Very many requests of all kinds at once, with clients that leave, dawdle, or send nonsense: each answer is what the
//! same request gets alone, to the bit of every logarithm, and afterwards nothing is left of any.
//!
//! `CIDER_SOAK_REQUESTS` is their number, `CIDER_SOAK_MODEL` the model (the one of the repository otherwise),
//! `CIDER_SOAK_SEED` begins the random numbers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use serde_json::{Value, json};

use super::client::{Answer, CHAT, Server, answer_of, events, read_answer};
use super::soak_cases::{Case, Random, cases, garbage};
use crate::support::{folder, root};

#[test]
fn many_requests_of_all_kinds_at_once_neither_cross_nor_get_lost() {
    let began = Instant::now();
    let soak = Soak::new();
    let server = soak.server(&[
        "--max-running",
        "16",
        "--queue",
        "128",
        "--cache-tokens",
        CACHE,
        "--image-cache-bytes",
        "2M",
    ]);
    let (mut resting, mut counts) = (Vec::new(), BTreeMap::new());
    for round in 0..ROUNDS {
        let share = |round: usize| soak.requests * round / ROUNDS;
        soak.round(&server, share(round)..share(round + 1), &mut counts);
        wait_for_rest(&server);
        resting.push(resident(&server));
    }
    eprintln!(
        "{} requests of {} kinds, {CLIENTS} at once, {:.1} s: {counts:?}; resident MB at rest {:?}; preemptions {}, prefix \
         hits {} of {}",
        soak.requests,
        soak.cases.len(),
        began.elapsed().as_secs_f64(),
        resting.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>(),
        server.metric("cider_preemptions_total"),
        server.metric("cider_prefix_hits_total"),
        server.metric("cider_prefix_queries_total"),
    );
    assert_eq!(counts.values().sum::<usize>(), soak.requests);
    assert_eq!(
        counts.len(),
        ACTIONS.len(),
        "every kind of client was there"
    );
    // The first half warms up: the cache, its names, and what the threads of the server keep.
    let (warm, end) = (resting[ROUNDS / 2 - 1], resting[ROUNDS - 1]);
    assert!(end <= warm + MORE_MEMORY, "{warm} bytes grew to {end}");
    assert_eq!(server.metric("cider_step_panics_total"), 0.0);
    for case in &soak.cases {
        assert_eq!(
            choices(&server.post(case.path, &case.body).ok().json()),
            case.alone,
            "afterwards: {}",
            case.body
        );
    }
    assert!(
        began.elapsed() < Duration::from_secs(60 + soak.requests as u64),
        "{:?}",
        began.elapsed()
    );
}

/// What is asked, and how.
struct Soak {
    model: PathBuf,
    template: PathBuf,
    requests: usize,
    seed: u64,
    cases: Vec<Case>,
}

impl Soak {
    /// Answers every kind of request alone.
    fn new() -> Self {
        let number =
            |name: &str, default| env::var(name).map_or(default, |text| text.parse().unwrap());
        let folder = folder("soak");
        let mut soak = Self {
            model: env::var_os("CIDER_SOAK_MODEL")
                .map_or_else(|| root().join("models/demo-vlm"), PathBuf::from),
            template: folder.join("template.jinja"),
            requests: number("CIDER_SOAK_REQUESTS", 1000) as usize,
            seed: number("CIDER_SOAK_SEED", 1),
            cases: Vec::new(),
        };
        fs::write(&soak.template, TEMPLATE).unwrap();
        let sees = soak.model.join("preprocessor_config.json").exists();
        soak.cases = cases(soak.seed, (soak.requests / 6).clamp(24, 150), sees);
        soak.run_alone(&folder);
        soak
    }

    /// Each request has a key of its own, so that nothing is remembered from one to the next.
    fn run_alone(&mut self, folder: &Path) {
        let keys = folder.join("keys");
        let mut text = String::new();
        for number in 0..self.cases.len() {
            writeln!(text, "key-of-case-{number:04}").unwrap();
        }
        fs::write(&keys, &text).unwrap();
        let server = self.server(&[
            "--max-running",
            "2",
            "--cache-tokens",
            "3072",
            "--api-key-file",
            keys.to_str().unwrap(),
        ]);
        for (case, key) in self.cases.iter_mut().zip(text.lines()) {
            let key = format!("Bearer {key}");
            let body = case.body.to_string();
            let answer = server
                .ask(
                    "POST",
                    case.path,
                    &[("authorization", &key)],
                    body.as_bytes(),
                )
                .ok()
                .json();
            assert_eq!(
                answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0,
                "{body}"
            );
            case.alone = choices(&answer);
            assert!(!case.alone.is_empty(), "{answer}");
        }
        let mut different: Vec<String> = self
            .cases
            .iter()
            .map(|case| format!("{:?}", case.alone))
            .collect();
        different.sort_unstable();
        different.dedup();
        assert!(
            2 * different.len() > self.cases.len(),
            "answers that are all alike would hide that they are crossed"
        );
    }

    fn server(&self, arguments: &[&str]) -> Server {
        let mut command = crate::support::cider();
        command
            .arg("serve")
            .arg(&self.model)
            .arg("--chat-template")
            .arg(&self.template);
        command.args([
            "--port",
            "0",
            "--threads",
            "2",
            "--body-bytes",
            "1M",
            "--ctx",
            "3072",
        ]);
        command.args(arguments);
        Server::spawn(command)
    }

    /// Makes some of the requests from many threads.
    fn round(
        &self,
        server: &Server,
        numbers: std::ops::Range<usize>,
        counts: &mut BTreeMap<&'static str, usize>,
    ) {
        let next = AtomicUsize::new(numbers.start);
        let done = Mutex::new(counts);
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= numbers.end {
                            return;
                        }
                        let action = self.request(server, number);
                        *done.lock().unwrap().entry(action).or_default() += 1;
                    }
                });
            }
        });
    }

    /// Makes one request; what is done depends on its number alone.
    fn request(&self, server: &Server, number: usize) -> &'static str {
        let mut random = Random::new(self.seed ^ (number as u64 + 1) << 20);
        let case = &self.cases[random.below(self.cases.len())];
        let (action, _) = ACTIONS[pick(&mut random)];
        match action {
            "whole" => assert_eq!(
                choices(&server.post(case.path, &case.body).ok().json()),
                case.alone,
                "{}",
                case.body
            ),
            "stream" => case.check_stream(&server.post(case.path, &case.streamed()).ok()),
            "slow reader" => case.check_stream(&read_slowly(server, case, &mut random).ok()),
            "leaves" => leave(server, case, &mut random),
            "stops sending" => {
                let request = request(server, case, random.below(2) == 0);
                let part = &request[..random.below(request.len())];
                // Whether it comes or not: nobody waits for an answer.
                let _ = server.connect().write_all(part);
            }
            "oversize" => oversize(server, &mut random),
            _ => {
                let (path, body) = garbage(&mut random);
                let answer = server.ask("POST", path, &[], &body);
                assert!(
                    (400..500).contains(&answer.status),
                    "{}: {answer:?}",
                    String::from_utf8_lossy(&body)
                );
            }
        }
        action
    }
}

impl Case {
    /// The same request as a stream.
    fn streamed(&self) -> Value {
        let mut body = self.body.clone();
        body["stream"] = json!(true);
        body
    }

    /// Compares a stream with the whole answer that the request got alone.
    fn check_stream(&self, answer: &Answer) {
        let (chunks, ended) = events(&answer.body);
        assert!(ended, "{answer:?}");
        let mut found = vec![Choice::default(); self.alone.len()];
        for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
            found[choice["index"].as_u64().unwrap() as usize].add(choice);
        }
        for (found, alone) in found.iter_mut().zip(&self.alone) {
            if alone.finish == "length" {
                // A call that is cut is begun in a stream, and no part of a whole answer.
                found.calls.truncate(alone.calls.len());
            }
        }
        assert_eq!(found, self.alone, "{}", self.body);
    }
}

/// An answer as far as it depends on the request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choice {
    content: String,
    calls: Vec<[String; 2]>,
    finish: String,
    /// Each token with its bytes, its logarithm and those of its rivals.
    tokens: Vec<Value>,
}

impl Choice {
    /// A piece of a stream, or all of an answer.
    fn add(&mut self, choice: &Value) {
        let said = ["delta", "message"]
            .into_iter()
            .find_map(|name| choice.get(name));
        let said = said.unwrap_or(choice);
        for name in ["content", "reasoning_content", "text"] {
            self.content += said[name].as_str().unwrap_or_default();
        }
        for (place, call) in said["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
        {
            let at = call["index"].as_u64().map_or(place, |index| index as usize);
            if self.calls.len() <= at {
                self.calls.resize(at + 1, Default::default());
            }
            for (part, name) in self.calls[at].iter_mut().zip(["name", "arguments"]) {
                *part += call["function"][name].as_str().unwrap_or_default();
            }
        }
        self.finish += choice["finish_reason"].as_str().unwrap_or_default();
        match &choice["logprobs"] {
            logprobs if logprobs["content"].is_array() => {
                self.tokens
                    .extend(logprobs["content"].as_array().unwrap().iter().cloned());
            }
            logprobs => {
                let list = |name: &str| logprobs[name].as_array().cloned().unwrap_or_default();
                let pairs = list("tokens").into_iter().zip(list("token_logprobs"));
                self.tokens
                    .extend(pairs.map(|(token, logprob)| json!([token, logprob])));
            }
        }
    }
}

/// All choices of a whole answer.
fn choices(answer: &Value) -> Vec<Choice> {
    let all = answer["choices"].as_array().unwrap().iter();
    let choices = all.map(|choice| {
        let mut found = Choice::default();
        found.add(choice);
        found
    });
    choices.collect()
}

/// An action, as often as its weight says.
fn pick(random: &mut Random) -> usize {
    let all: usize = ACTIONS.iter().map(|(_, weight)| weight).sum();
    let mut left = random.below(all);
    for (at, (_, weight)) in ACTIONS.iter().enumerate() {
        if left < *weight {
            return at;
        }
        left -= weight;
    }
    0
}

fn request(server: &Server, case: &Case, stream: bool) -> Vec<u8> {
    let body = if stream {
        case.streamed()
    } else {
        case.body.clone()
    };
    server.request("POST", case.path, &[], body.to_string().as_bytes())
}

/// Takes some bytes at a time, with pauses between.
fn read_slowly(server: &Server, case: &Case, random: &mut Random) -> Answer {
    let mut stream = server.connect();
    stream.write_all(&request(server, case, true)).unwrap();
    let mut all = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let size = 1 + random.below(buffer.len());
        match stream.read(&mut buffer[..size]).unwrap() {
            0 => return answer_of(&all),
            read => all.extend_from_slice(&buffer[..read]),
        }
        thread::sleep(Duration::from_millis(random.below(8) as u64));
    }
}

/// Leaves before the answer, or in the middle of it.
fn leave(server: &Server, case: &Case, random: &mut Random) {
    let mut stream = server.connect();
    stream
        .write_all(&request(server, case, random.below(3) > 0))
        .unwrap();
    if random.below(2) == 0 {
        thread::sleep(Duration::from_millis(random.below(300) as u64));
    } else {
        let mut some = vec![0; 1 + random.below(3000)];
        // An answer may be shorter than that.
        let _ = stream.read_exact(&mut some);
    }
}

/// A body beyond the limit, with its length told before or not.
fn oversize(server: &Server, random: &mut Random) {
    let body = vec![b' '; (1 << 20) + 1 + random.below(1 << 20)];
    let mut stream = server.connect();
    let told = random.below(2) == 0;
    let length = if told {
        format!("content-length: {}", body.len())
    } else {
        "transfer-encoding: chunked".to_owned()
    };
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n{length}\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    if told {
        // It is refused by its length: the answer comes whether the body does or not.
        assert_eq!(read_answer(stream).refusal(413).0, "body_too_large");
        return;
    }
    let sent = stream
        .write_all(format!("{:x}\r\n", body.len()).as_bytes())
        .and_then(|()| stream.write_all(&body));
    // The server may have closed the connection on what was still under way.
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    assert!(
        sent.is_err() || read.is_err() || answer_of(&bytes).status == 413,
        "{sent:?}"
    );
}

/// Until nothing of any request is left.
fn wait_for_rest(server: &Server) {
    let end = Instant::now() + Duration::from_secs(20);
    let gauges = [
        "requests_waiting",
        "requests_running",
        "kv_blocks_used",
        "in_flight_bytes",
    ];
    loop {
        let found = gauges.map(|name| server.metric(&format!("cider_{name}")));
        let queue = server.get("/v1/queue").ok().json()["queue_size"].as_u64();
        // The one that asks is the only connection.
        let connections = server.metric("cider_connections");
        if found == [0.0; 4] && queue == Some(0) && connections == 1.0 {
            return;
        }
        assert!(
            Instant::now() < end,
            "{gauges:?}: {found:?}, queue {queue:?}, connections {connections}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Resident memory in bytes.
fn resident(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// What clients do, and how often.
const ACTIONS: [(&str, usize); 7] = [
    ("whole", 40),
    ("stream", 30),
    ("slow reader", 6),
    ("leaves", 12),
    ("stops sending", 4),
    ("oversize", 3),
    ("garbage", 5),
];

/// Requests under way at the same time.
const CLIENTS: usize = 64;
/// Tokens of the cache: fewer than sixteen answers want, so that some have to make room.
const CACHE: &str = "3072";
/// After each, everything comes to rest.
const ROUNDS: usize = 4;
/// Bytes that may be resident at the end beyond those of the half.
const MORE_MEMORY: u64 = 24 << 20;

/// The template of the model that ships, and the tools that its own does not know.
const TEMPLATE: &str = "{%- if tools %}<|im_start|>system\n{{ tools | tojson }} <tool_call></tool_call><|im_end|>\n{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role }}\n
{%- if message.content is string %}{{ message.content }}
{%- else %}{%- for part in message.content or [] %}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif 'text' in part %}{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}<|im_end|>\n{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}";
