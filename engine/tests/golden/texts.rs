//! Texts through a whole engine: what comes out, in which pieces, and why it ends.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use cider::generate::{RunnerOptions, SamplingParams, StopReason};
use cider::text::{Message, RenderOptions, Role};
use cider::{
    Backend, DType, Engine, EngineOptions, Error, Event, Generation, Quantization, Request, Scheme,
};
use cider_kernels::ReferenceBackend;
use serde_json::json;

use crate::independence::{POISON, poison};
use crate::support::{
    Arrays, Folder, assert_refused, assert_same, best, cpu, f_tiny, isas, options, plan,
    random_ids, read_json, testdata,
};

fn open(path: &Path, quantization: Quantization, dtype: DType) -> Engine {
    open_on(path, best(), options(quantization, dtype))
}

fn open_on(path: &Path, backend: Arc<dyn Backend>, runner: RunnerOptions) -> Engine {
    let options = EngineOptions {
        runner,
        ..EngineOptions::default()
    };
    Engine::open(path, backend, &options, &mut |_| {}).unwrap()
}

fn greedy(prompt: Vec<u32>) -> Request {
    Request {
        sampling: SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        },
        ..Request::new(prompt)
    }
}

/// What an engine says, and the pieces in which the text came.
fn answer(engine: &mut Engine, request: &Request) -> (Generation, Vec<String>) {
    let mut pieces = Vec::new();
    let generation = engine.generate(request, &mut |event| {
        if let Event::Text(text) = event {
            pieces.push(text.to_owned());
        }
    });
    let generation = generation.unwrap();
    assert_eq!(pieces.concat(), generation.text);
    assert_eq!(generation.generated_tokens, generation.tokens.len());
    (generation, pieces)
}

/// A prompt that ends in the character that selects a script.
fn selecting(engine: &Engine, select: &str) -> Vec<u32> {
    let message = Message::new(Role::User, format!("say 日 {select}"));
    let options = RenderOptions::default();
    engine.chat_prompt(&[message], &options).unwrap()
}

/// F-CHAIN, whose head is zero in most rows, says the same in every scheme, with either type
/// of activations and on every instruction set: what the reference implementation says.
#[test]
fn scripts_are_the_same_in_every_scheme() {
    let folder = Folder::f_chain(&read_json(&testdata("f-chain/scripts.json")));
    let expected = read_json(&testdata("f-chain/expected.json"));
    let mut plans: Vec<_> = Scheme::ALL.map(Quantization::of).into();
    plans.extend([plan(Scheme::W8A8, 128), plan(Scheme::W4A8, 0)]);
    for isa in isas() {
        for (plan, dtype) in plans
            .iter()
            .flat_map(|&plan| [(plan, DType::Bf16), (plan, DType::F32)])
        {
            let mut engine = open_on(folder.path(), cpu(isa, 1), options(plan, dtype));
            for (script, select) in expected
                .as_array()
                .unwrap()
                .iter()
                .zip(["1", "2", "3", "4", "5"])
            {
                let prompt = selecting(&engine, select);
                assert_eq!(json!(prompt), script["prompt_ids"]);
                let mut request = greedy(prompt);
                // The loop would go on to the end of the context.
                request.max_tokens = Some(script["ids"].as_array().unwrap().len());
                let (found, _) = answer(&mut engine, &request);
                let what = format!("{isa} {plan:?} {dtype}, script {select}");
                assert_eq!(json!(found.tokens), script["ids"], "{what}");
                assert_eq!(json!(found.text), script["text"], "{what}");
                let reason = if select == "3" {
                    StopReason::Length
                } else {
                    StopReason::Stop
                };
                assert_eq!(found.reason, reason, "{what}");
            }
        }
    }
}

/// No piece has half a character, and none is replaced. A byte that no character has is.
#[test]
fn pieces_are_whole_characters() {
    let folder = Folder::f_chain(&read_json(&testdata("f-chain/scripts.json")));
    let mut engine = open(folder.path(), Quantization::of(Scheme::W8A8), DType::Bf16);
    let request = greedy(selecting(&engine, "1"));
    let (_, pieces) = answer(&mut engine, &request);
    assert_eq!(pieces, ["😀", "世", "界"]);
    let request = greedy(selecting(&engine, "5"));
    let (_, pieces) = answer(&mut engine, &request);
    assert_eq!(pieces.concat(), "a\u{fffd}b");
    // Cut inside a character: what there is of it is shown as one replacement.
    let mut request = greedy(selecting(&engine, "1"));
    request.max_tokens = Some(3);
    let (cut, pieces) = answer(&mut engine, &request);
    assert_eq!((cut.reason, cut.generated_tokens), (StopReason::Length, 3));
    assert_eq!(pieces, ["😀", "\u{fffd}"]);
}

/// A stop text that lies across tokens ends the text before its first character, and nothing
/// of it is sent.
#[test]
fn stops_across_tokens_leave_nothing_behind() {
    let folder = Folder::f_chain(&read_json(&testdata("f-chain/scripts.json")));
    let mut engine = open(folder.path(), Quantization::of(Scheme::W8A8), DType::Bf16);
    // The script is ABC DEF G HI J K and the end.
    for (stops, text, reason, tokens) in [
        (&["DEFGHIJ"][..], "ABC", StopReason::Stop, 5),
        (&["FG"], "ABCDE", StopReason::Stop, 3),
        (&["HIJ", "CD"], "AB", StopReason::Stop, 2),
        (&["ABC"], "", StopReason::Stop, 1),
        (&["KL", "JKLM"], "ABCDEFGHIJK", StopReason::Stop, 7),
        (&["GHX"], "ABCDEFGHIJK", StopReason::Stop, 7),
    ] {
        let mut request = greedy(selecting(&engine, "2"));
        request.stops = stops.iter().map(|&stop| stop.to_owned()).collect();
        let (found, _) = answer(&mut engine, &request);
        assert_eq!(
            (found.text.as_str(), found.reason),
            (text, reason),
            "{stops:?}"
        );
        assert_eq!(found.generated_tokens, tokens, "{stops:?}");
    }
    let mut request = greedy(selecting(&engine, "2"));
    request.stops = vec![String::new()];
    assert_refused(engine.generate(&request, &mut |_| {}), &["stop"]);
}

/// A limit of tokens counts the end token; at the limit exactly, the text still ended by itself.
#[test]
fn limits_count_every_token() {
    let folder = Folder::f_chain(&read_json(&testdata("f-chain/scripts.json")));
    let mut engine = open(folder.path(), Quantization::of(Scheme::W8A8), DType::Bf16);
    for (limit, text, reason) in [
        (0, "", StopReason::Length),
        (1, "ABC", StopReason::Length),
        (6, "ABCDEFGHIJK", StopReason::Length),
        (7, "ABCDEFGHIJK", StopReason::Stop),
        (8, "ABCDEFGHIJK", StopReason::Stop),
    ] {
        let mut request = greedy(selecting(&engine, "2"));
        request.max_tokens = Some(limit);
        let (found, _) = answer(&mut engine, &request);
        assert_eq!(
            (found.text.as_str(), found.reason),
            (text, reason),
            "{limit}"
        );
        assert_eq!(found.generated_tokens, limit.min(7));
    }
    // Without a limit the loop ends with the context.
    let prompt = selecting(&engine, "3");
    let (found, _) = answer(&mut engine, &greedy(prompt.clone()));
    assert_eq!(found.reason, StopReason::Length);
    assert_eq!(
        prompt.len() + found.generated_tokens,
        engine.runner().context()
    );
    let long = engine.generate(&greedy(vec![0; 256]), &mut |_| {});
    assert!(matches!(
        long,
        Err(Error::ContextExceeded {
            prompt: 256,
            limit: 256
        })
    ));
    assert_refused(
        engine.generate(&greedy(Vec::new()), &mut |_| {}),
        &["no tokens"],
    );
    assert_refused(
        engine.generate(&greedy(vec![5, 1024]), &mut |_| {}),
        &["1024"],
    );
}

/// Every end token that any file names ends a text, and its mark is not in it.
#[test]
fn every_end_token_ends_a_text() {
    let piece = |select: &str, first: &str, end: &str| json!({"select": select, "pieces": [first, end], "then": "end"});
    let folder = Folder::f_chain(&json!({
        "control": ["<|a|>", "<|b|>", "<|c|>", "<|d|>", "<|last|>"], "marks": [], "end": "<|last|>",
        "scripts": [piece("1", "one", "<|a|>"), piece("2", "two", "<|b|>"), piece("3", "three", "<|c|>"),
            piece("4", "four", "<|d|>")],
    }));
    // Ids follow the 256 bytes.
    for (generation, config, tokenizer, ends) in [
        (
            json!([256, 257]),
            json!(null),
            "<|c|>",
            &["1", "2", "3"][..],
        ),
        (
            json!(256),
            json!([257, 258]),
            "<|d|>",
            &["1", "2", "3", "4"],
        ),
        (json!(null), json!(258), "<|c|>", &["3"]),
    ] {
        folder.change(
            "generation_config.json",
            &json!({"eos_token_id": generation}),
        );
        folder.change("config.json", &json!({"eos_token_id": config}));
        folder.change("tokenizer_config.json", &json!({"eos_token": tokenizer}));
        let mut engine = open(folder.path(), Quantization::of(Scheme::W8A8), DType::Bf16);
        for (select, text) in [("1", "one"), ("2", "two"), ("3", "three"), ("4", "four")] {
            let mut request = greedy(selecting(&engine, select));
            request.max_tokens = Some(3);
            let (found, _) = answer(&mut engine, &request);
            let ended = ends.contains(&select);
            assert_eq!(found.text, text, "{:?}", engine.end_tokens());
            let reason = if ended {
                StopReason::Stop
            } else {
                StopReason::Length
            };
            assert_eq!(found.reason, reason, "{select} {:?}", engine.end_tokens());
            assert_eq!(found.generated_tokens, if ended { 2 } else { 3 });
        }
    }
}

/// Rows of the head that no token has are never chosen, though they win.
#[test]
fn ids_without_a_token_are_never_chosen() {
    let folder = Folder::f_tiny(|tensors| {
        let table = tensors
            .iter()
            .find(|tensor| tensor.name.contains("embed_tokens"));
        let mut head = table.unwrap().clone();
        head.name = "lm_head.weight".to_owned();
        let columns = head.shape[1];
        // One of a row and its opposite is far above every other, whatever the hidden state.
        for row in 500..512 {
            let values = &mut head.values[row * columns..][..columns];
            values.fill(if row % 2 == 0 { 8.0 } else { -8.0 });
        }
        tensors.push(head);
    });
    folder.change("config.json", &json!({"tie_word_embeddings": false}));
    for scheme in [Scheme::None, Scheme::W8A8] {
        let mut engine = open(folder.path(), Quantization::of(scheme), DType::F32);
        for temperature in [0.0, 2.0] {
            let mut request = greedy(random_ids(61, 20, 500));
            request.sampling.temperature = temperature;
            request.sampling.seed = Some(61);
            request.max_tokens = Some(60);
            let mut wins = 0;
            for _ in 0..3 {
                let (found, _) = answer(&mut engine, &request);
                assert!(
                    found.tokens.iter().all(|&id| id < 500),
                    "{:?}",
                    found.tokens
                );
                let logits = engine.runner_mut().logits(0, 0).unwrap();
                let largest = |logits: &[f32]| logits.iter().copied().fold(f32::MIN, f32::max);
                wins += usize::from(largest(&logits[500..]) > largest(&logits[..500]));
            }
            assert_eq!(wins, 3, "the rows without a token win");
        }
    }
}

/// A chat begins as its template says, with one token of beginning or with none.
#[test]
fn chats_begin_once() {
    let folder = Folder::new();
    let template = folder.path().join("template.jinja");
    fs::write(&template, "{{ bos_token }}{{ messages[0].content }}").unwrap();
    let engine_options = EngineOptions {
        runner: options(plan(Scheme::W8A8, 0), DType::F32),
        chat_template: Some(template),
    };
    let path = testdata("gguf/llama-q8.gguf");
    let llama = Engine::open(&path, best(), &engine_options, &mut |_| {}).unwrap();
    let begin = llama.tokenizer().bos().unwrap();
    let raw = llama.raw_prompt("Hello").unwrap();
    assert_eq!(
        (raw[0], raw.iter().filter(|&&id| id == begin).count()),
        (begin, 1)
    );
    let chat = |engine: &Engine, text: &str| {
        let message = [Message::new(Role::User, text)];
        engine
            .chat_prompt(&message, &RenderOptions::default())
            .unwrap()
    };
    assert_eq!(chat(&llama, "Hello"), raw);
    let spelled = llama.tokenizer().token(begin).unwrap() + "Hello";
    assert_eq!(llama.raw_prompt(&spelled).unwrap(), raw);
    // In a message the same letters are text.
    let ids = chat(&llama, &spelled);
    assert!(
        ids[0] == begin && ids.len() > raw.len() && !ids[1..].contains(&begin),
        "{ids:?}"
    );
    let qwen = open(f_tiny(), plan(Scheme::W8A8, 0), DType::F32);
    let first = chat(&qwen, "Hello")[0];
    assert_eq!(
        qwen.tokenizer().token(first).as_deref(),
        Some("<|im_start|>")
    );
}

/// The greedy continuation of the reference implementation, up to its end token, on every instruction set and
/// with the plain loops.
#[test]
fn the_greedy_continuation_is_the_reference_s() {
    let expected = Arrays::read(&testdata("f-tiny/expected.safetensors"));
    let mut request = greedy(expected.ids("prompt"));
    let generated = expected.ids("generated");
    request.max_tokens = Some(generated.len());
    let reference: Arc<dyn Backend> = Arc::new(ReferenceBackend);
    for backend in isas().into_iter().map(|isa| cpu(isa, 2)).chain([reference]) {
        let device = backend.describe();
        let options = options(Quantization::of(Scheme::None), DType::F32);
        let mut engine = open_on(f_tiny(), backend, options);
        let ends = engine.end_tokens().to_vec();
        let length = generated.iter().position(|id| ends.contains(id));
        let (found, _) = answer(&mut engine, &request);
        assert_eq!(found.tokens, generated[..=length.unwrap()], "{device}");
        assert_eq!(found.reason, StopReason::Stop);
    }
}

/// A second turn computes only what is new and gives the bits of a fresh engine; an answer that comes back as
/// part of the prompt is prompt then, and computed as one.
#[test]
fn a_warm_cache_gives_the_bits_of_a_cold_one() {
    for scheme in [Scheme::None, Scheme::W8A8, Scheme::W4A8] {
        for dtype in [DType::F32, DType::Bf16] {
            let quantization = Quantization::of(scheme);
            let mut warm = open(f_tiny(), quantization, dtype);
            let mut prompt = random_ids(5, 100, 400);
            for turn in 0..3 {
                let mut request = greedy(prompt.clone());
                request.max_tokens = Some(20);
                let (found, _) = answer(&mut warm, &request);
                let mut cold = open(f_tiny(), quantization, dtype);
                let (expected, _) = answer(&mut cold, &request);
                let what = format!("{scheme} {dtype} turn {turn}");
                assert_eq!(found.tokens, expected.tokens, "{what}");
                assert_eq!(expected.cached_tokens, 0);
                assert_eq!(found.cached_tokens, [0, 100, 50][turn], "{what}");
                let logits = cold.runner_mut().logits(0, 0).unwrap();
                assert_same(warm.runner_mut().logits(0, 0).unwrap(), logits, &what);
                if turn == 0 {
                    prompt.extend(found.tokens);
                    prompt.extend(random_ids(6, 7, 400));
                } else {
                    prompt.truncate(50);
                    prompt.extend(random_ids(7, 9, 400).iter().map(|id| id + 50));
                }
            }
            // The same prompt again: its last token is computed, for its logits.
            let mut request = greedy(prompt.clone());
            request.max_tokens = Some(20);
            let (first, _) = answer(&mut warm, &request);
            let (again, _) = answer(&mut warm, &request);
            assert_eq!(first.tokens, again.tokens);
            assert_eq!(again.cached_tokens, prompt.len() - 1);
        }
    }
}

/// Logits that are not finite end the request with an error that names the position, and
/// the next request is as if nothing had been.
#[test]
fn a_request_that_overflows_ends_and_the_next_is_well() {
    let folder = Folder::f_tiny(poison);
    let mut good = greedy(random_ids(8, 30, 499).iter().map(|id| id + 1).collect());
    good.max_tokens = Some(10);
    let mut bad = good.clone();
    bad.prompt[20] = POISON;
    for scheme in Scheme::ALL {
        for dtype in [DType::F32, DType::Bf16] {
            let mut engine = open(folder.path(), Quantization::of(scheme), dtype);
            let (expected, _) = answer(&mut engine, &good);
            let mut texts = 0;
            let error = engine.generate(&bad, &mut |event| {
                texts += usize::from(matches!(event, Event::Text(_)));
            });
            assert!(
                matches!(error, Err(Error::NonFinite { position: 29 })),
                "{error:?}"
            );
            assert_eq!(texts, 0);
            assert_eq!(
                answer(&mut engine, &good).0.tokens,
                expected.tokens,
                "{scheme} {dtype}"
            );
        }
    }
}

/// A seed gives the same tokens again, whatever was asked before.
#[test]
fn a_seed_gives_its_tokens_again() {
    let mut request = Request::new(random_ids(9, 30, 500));
    request.max_tokens = Some(30);
    request.sampling.seed = Some(4);
    let mut engine = open(f_tiny(), Quantization::of(Scheme::W8A8), DType::Bf16);
    let (first, _) = answer(&mut engine, &request);
    let (other, _) = answer(
        &mut engine,
        &Request {
            max_tokens: Some(5),
            ..greedy(request.prompt[..9].into())
        },
    );
    let (again, _) = answer(&mut engine, &request);
    assert_eq!((first.tokens, first.seed), (again.tokens, 4));
    assert_eq!(other.generated_tokens, 5);
}
