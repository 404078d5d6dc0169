//! What the server owes in time, as ratios within one run. `bench/serving` has the figures.

use std::io::{BufRead as _, BufReader, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::Server;
use crate::support::smollm2;

/// The time to the first token behind a prompt of tokens, and how many of them were known.
fn first_token(server: &Server, prompt: &[u32]) -> (Duration, u64) {
    let body = json!({"prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true}});
    let started = Instant::now();
    let mut stream = server.connect();
    stream
        .write_all(&server.request("POST", "/v1/completions", &[], body.to_string().as_bytes()))
        .unwrap();
    let (mut first, mut cached) = (None, 0);
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let Some(chunk) = line.strip_prefix("data: {") else {
            continue;
        };
        let chunk: Value = serde_json::from_str(&format!("{{{chunk}")).unwrap();
        if chunk["choices"][0]["text"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
        {
            first.get_or_insert_with(|| started.elapsed());
        }
        cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or(cached);
    }
    (first.unwrap(), cached)
}

/// Tokens that stand for words, others for each seed.
fn words(seed: u32, count: u32) -> Vec<u32> {
    (0..count)
        .map(|i| 1000 + (i * 7919 + seed * 104_729) % 20_000)
        .collect()
}

#[test]
fn a_known_prompt_is_answered_much_sooner_and_a_short_one_does_not_wait_for_a_long_one() {
    let server = Server::start(
        smollm2().as_ref(),
        ["--ctx", "8192", "--cache-tokens", "16384"],
    );
    first_token(&server, &words(1, 32));
    let prompt = |tail: u32| [words(2, 1536), words(tail, 16)].concat();
    let (unknown, none) = first_token(&server, &prompt(3));
    let known = (4..7).map(|tail| first_token(&server, &prompt(tail)));
    let (known, cached) = known.min().unwrap();
    eprintln!("1552 tokens: {unknown:?}, with 1536 of them known: {known:?}");
    assert_eq!((none, cached), (0, 1536));
    // Alone on a quiet machine it is ten times and more.
    assert!(4 * known < unknown, "{known:?} against {unknown:?}");

    let (short, long) = thread::scope(|scope| {
        let long = scope.spawn(|| first_token(&server, &words(8, 4000)).0);
        thread::sleep(unknown / 4);
        let short = first_token(&server, &words(9, 32)).0;
        (short, long.join().unwrap())
    });
    eprintln!("4000 tokens: {long:?}, 32 tokens meanwhile: {short:?}");
    // Two of eight steps, and a little.
    assert!(2 * short < long, "{short:?} against {long:?}");
}
