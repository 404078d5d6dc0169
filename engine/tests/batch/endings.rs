//! How requests end: stops, limits, cancellation, deadlines, and requests that are refused.

use std::time::{Duration, Instant};

use cider::generate::{Constraint, SamplingParams, StopReason};
use cider::text::{Message, RenderOptions, Role};
use cider::{BatchRequest, Error, Result, Step};

use crate::support::{Folder, Running, Size, f_tiny, greedy, ids, open, request};

/// The script ABC DEF G HI J K and the end: stops across tokens, and which one it was.
#[test]
fn stops_are_found_and_named() {
    let folder = Folder::f_chain();
    let mut engine = Running::new(open(folder.path(), Size::LARGE));
    let frontend = engine.engine.frontend();
    let message = Message::new(Role::User, "say 日 2");
    let prompt = frontend
        .chat_prompt(&[message], &RenderOptions::default())
        .unwrap();
    for (stops, text, stop, tokens) in [
        (&["DEFGHIJ"][..], "ABC", Some("DEFGHIJ"), 5),
        (&["FG", "HIJ"], "ABCDE", Some("FG"), 3),
        (&["KL"], "ABCDEFGHIJK", None, 7),
    ] {
        let id = engine.submit(BatchRequest {
            sampling: greedy(),
            stops: stops.iter().map(|&stop| stop.to_owned()).collect(),
            ..BatchRequest::new(prompt.clone())
        });
        let found = engine.answer(id);
        let outcome = found.outcome();
        assert_eq!((outcome.text.as_str(), found.text.as_str()), (text, text));
        assert_eq!(outcome.stop.as_deref(), stop);
        assert_eq!(outcome.reason, StopReason::Stop);
        assert_eq!(outcome.generated_tokens, tokens);
        // Without stops every token has its bytes, the end token aside.
        if stop.is_none() {
            let bytes: Vec<u8> = found.tokens.iter().flat_map(|t| t.bytes.clone()).collect();
            assert_eq!(bytes, text.as_bytes());
            assert_eq!(found.tokens.len(), tokens - 1);
        }
    }
}

/// Limits: none, one, the context.
#[test]
fn limits_are_kept() {
    let mut engine = Running::new(open(f_tiny(), Size::LARGE));
    for (max_tokens, expected) in [(Some(0), 0), (Some(1), 1), (None, 512 - 500)] {
        let id = engine.submit(BatchRequest {
            max_tokens,
            ..request(ids(4, 500), 0)
        });
        let found = engine.answer(id);
        assert_eq!(found.outcome().generated_tokens, expected);
        assert_eq!(found.reason(), Some(StopReason::Length));
    }
}

/// A request can be ended while it waits, while its prompt is computed and while it is answered; its blocks are
/// free at once, and the others go on.
#[test]
fn cancellation_takes_effect_before_the_next_step() {
    let size = Size {
        rows: 16,
        running: 2,
        tokens: 4096,
    };
    let mut engine = Running::new(open(f_tiny(), size));
    let expected = engine.alone(request(ids(1, 40), 30));
    let other = engine.submit(request(ids(1, 40), 30));
    let ended = engine.submit(request(ids(2, 200), 30));
    let waiting = engine.submit(request(ids(3, 200), 30));
    for _ in 0..5 {
        engine.step();
    }
    let before = engine.engine.stats();
    assert_eq!((before.running, before.waiting), (2, 1));
    engine.engine.cancel(ended);
    engine.engine.cancel(waiting);
    let after = engine.engine.stats();
    assert_eq!((after.running, after.waiting), (1, 0));
    assert!(after.used_blocks < before.used_blocks);
    engine.step();
    for id in [ended, waiting] {
        let found = engine.taken(id);
        assert_eq!(found.reason(), Some(StopReason::Cancelled));
        assert_eq!(found.outcome().generated_tokens, 0);
    }
    // One that is done, or was never there, is none.
    engine.engine.cancel(ended);
    engine.answer(other).assert_same(&expected, "the other");
    assert_eq!(engine.step(), Step::Idle);
    engine.engine.cancel(other);
    assert_eq!(engine.step(), Step::Idle);
}

/// The time of a request is over while it waits or runs.
#[test]
fn deadlines_end_requests() {
    let size = Size {
        rows: 16,
        running: 1,
        tokens: 4096,
    };
    let mut engine = Running::new(open(f_tiny(), size));
    let start = Instant::now();
    let late = |seconds: u64| Some(start + Duration::from_secs(seconds));
    let expected = engine.alone(request(ids(1, 20), 100));
    let running = engine.submit(BatchRequest {
        deadline: late(10),
        ..request(ids(1, 20), 100)
    });
    let waiting = engine.submit(BatchRequest {
        deadline: late(5),
        ..request(ids(2, 20), 100)
    });
    for _ in 0..10 {
        engine.step_at(start);
    }
    engine.step_at(start + Duration::from_secs(6));
    assert_eq!(engine.taken(waiting).reason(), Some(StopReason::Deadline));
    engine.step_at(start + Duration::from_secs(10));
    let found = engine.taken(running);
    assert_eq!(found.reason(), Some(StopReason::Deadline));
    assert!(found.outcome().generated_tokens >= 8);
    found.assert_same(&expected, "as far as it went");
}

/// What cannot be answered is refused at once.
#[test]
fn requests_that_cannot_be_answered_are_refused() {
    let mut engine = open(f_tiny(), Size::LARGE);
    let good = || request(ids(1, 10), 5);
    let sampling = SamplingParams {
        top_p: 2.0,
        ..greedy()
    };
    let cases = [
        (request(Vec::new(), 5), "the prompt has no tokens"),
        (request(vec![1; 512], 5), "prompt of 512 tokens"),
        (BatchRequest { sampling, ..good() }, "top_p is 2"),
        (
            BatchRequest {
                stops: vec![String::new()],
                ..good()
            },
            "a stop string is empty",
        ),
        (
            BatchRequest {
                logprobs: Some(21),
                ..good()
            },
            "logprobs is 21",
        ),
    ];
    for (bad, text) in cases {
        let error = engine.submit(bad).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(engine.stats().waiting, 0);
}

/// A token that the model does not have ends its request alone.
#[test]
fn a_token_outside_the_vocabulary_fails_its_request_alone() {
    let mut engine = Running::new(open(f_tiny(), Size::LARGE));
    let expected = engine.alone(request(ids(1, 40), 10));
    let good = engine.submit(request(ids(1, 40), 10));
    let bad = engine.submit(request(vec![1, 100_000], 10));
    engine.run();
    engine.taken(good).assert_same(&expected, "the other");
    let error = engine.taken(bad).error.unwrap().to_string();
    assert!(error.contains("100000"), "{error}");
}

/// Counts up from a token, and is complete after some.
struct Counting {
    next: u32,
    left: usize,
}

impl Constraint for Counting {
    fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        for (id, logit) in (0_u32..).zip(logits) {
            if id != self.next {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        if token == BAD {
            return Err(Error::Request("the rule fails".into()));
        }
        assert_eq!(token, self.next);
        assert_ne!(token, WORSE, "the rule panics");
        (self.next, self.left) = (token + 1, self.left - 1);
        Ok(())
    }

    fn finished(&self) -> bool {
        self.left == 0
    }
}

const BAD: u32 = 250;
const WORSE: u32 = 350;

/// A rule decides its own answer, whatever runs beside it, and what goes wrong in it is its request's.
#[test]
fn rules_hold_for_their_own_answers() {
    let mut engine = Running::new(open(f_tiny(), Size::LARGE));
    let expected = engine.alone(request(ids(1, 40), 30));
    let ruled = |next: u32| BatchRequest {
        constraint: Some(Box::new(Counting { next, left: 7 })),
        sampling: SamplingParams::default(),
        ..request(ids(2, 20), 30)
    };
    let free = engine.submit(request(ids(1, 40), 30));
    let asked = [100, BAD - 3, WORSE - 3].map(|first| engine.submit(ruled(first)));
    engine.run();
    engine.taken(free).assert_same(&expected, "the free one");
    let [good, bad, worse] = asked.map(|id| engine.taken(id));
    assert_eq!(good.outcome().tokens, (100..107).collect::<Vec<_>>());
    assert_eq!(good.reason(), Some(StopReason::Stop));
    assert!(good.tokens.iter().all(|token| token.logprob < 0.0));
    assert!(bad.error.unwrap().to_string().contains("the rule fails"));
    assert!(matches!(worse.error, Some(Error::Panicked(_))));
    assert_eq!(worse.tokens.len(), 3);
}
