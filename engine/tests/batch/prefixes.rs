//! What requests have in common is computed once, and only within a salt.

use std::time::{Duration, Instant};

use cider::KV_BLOCK;

use crate::support::{Running, Size, f_tiny, ids, open, request};

/// Full blocks are remembered, the last token is computed in any case, and nothing changes.
#[test]
fn a_beginning_that_is_remembered_changes_nothing() {
    let mut engine = Running::new(open(f_tiny(), Size::LARGE));
    for (length, remembered) in [(63, 0), (64, 0), (65, 64), (128, 64), (400, 384)] {
        let prompt = || request(ids(length as u64, length), 20);
        let expected = engine.alone(prompt());
        let cold = engine.submit(prompt());
        let cold = engine.answer(cold);
        let warm = engine.submit(prompt());
        let warm = engine.answer(warm);
        cold.assert_same(&expected, &format!("{length} tokens, cold"));
        warm.assert_same(&expected, &format!("{length} tokens, warm"));
        assert_eq!(cold.started, Some(0));
        assert_eq!(warm.started, Some(remembered), "of {length}");
        assert_eq!(warm.outcome().cached_tokens, remembered);
        assert_eq!(warm.progress.last(), Some(&(length, length)));
    }
}

/// A full prompt of 64 tokens is the beginning of a longer one.
#[test]
fn the_last_block_of_a_prompt_begins_longer_ones() {
    let mut engine = Running::new(open(f_tiny(), Size::LARGE));
    let long = ids(5, 100);
    let first = engine.submit(request(long[..64].to_vec(), 3));
    engine.answer(first);
    let expected = engine.alone(request(long.clone(), 9));
    let second = engine.submit(request(long, 9));
    let second = engine.answer(second);
    assert_eq!(second.started, Some(64));
    second.assert_same(&expected, "64 of 100");
}

/// Tokens that were generated are computed again when a prompt brings them: in a prompt they are other numbers.
#[test]
fn generated_tokens_are_never_taken_for_a_prompt() {
    let mut engine = Running::new(open(f_tiny(), Size::LARGE));
    let prompt = ids(8, 100);
    let first = engine.submit(request(prompt.clone(), 150));
    let first = engine.answer(first);
    let mut next = prompt;
    next.extend(&first.outcome().tokens);
    next.extend(ids(9, 10));
    let expected = engine.alone(request(next.clone(), 20));
    let second = engine.submit(request(next, 20));
    let second = engine.answer(second);
    assert_eq!(second.started, Some(64), "the full block of the prompt");
    second.assert_same(&expected, "the next turn");
}

/// Another key has its own memory.
#[test]
fn salts_keep_apart() {
    let mut engine = Running::new(open(f_tiny(), Size::LARGE));
    let prompt = ids(3, 200);
    let mut ask = |salt: u8| {
        let mut request = request(prompt.clone(), 5);
        request.salt = [salt; 32];
        let id = engine.submit(request);
        engine.answer(id).started
    };
    assert_eq!(
        [1, 1, 2, 2, 1].map(&mut ask),
        [0, 192, 0, 192, 192].map(Some)
    );
}

/// Requests with a common beginning that come together: the first computes it for all.
#[test]
fn what_is_being_computed_is_waited_for() {
    let mut engine = Running::new(open(f_tiny(), Size::LARGE));
    let common = ids(11, 300);
    let prompts: Vec<Vec<u32>> = (0..6)
        .map(|i| [common.clone(), ids(50 + i, 10 + i as usize)].concat())
        .collect();
    let expected: Vec<_> = prompts
        .iter()
        .map(|prompt| engine.alone(request(prompt.clone(), 12)))
        .collect();
    let before = engine.engine.stats().prompt_tokens;
    let asked: Vec<_> = prompts
        .iter()
        .map(|prompt| engine.submit(request(prompt.clone(), 12)))
        .collect();
    engine.run();
    for (i, (id, expected)) in asked.into_iter().zip(&expected).enumerate() {
        let found = engine.taken(id);
        found.assert_same(expected, &format!("request {i}"));
        let remembered = if i == 0 { 0 } else { 256 };
        assert_eq!(found.outcome().cached_tokens, remembered, "request {i}");
    }
    let own: usize = prompts.iter().map(|prompt| prompt.len() - 256).sum();
    let computed = engine.engine.stats().prompt_tokens - before;
    assert_eq!(computed, (256 + own) as u64);
}

/// The one that computes the common beginning is ended: another one does it.
#[test]
fn who_is_waited_for_may_go() {
    let size = Size {
        rows: 32,
        ..Size::LARGE
    };
    let mut engine = Running::new(open(f_tiny(), size));
    let prompt = ids(12, 300);
    let expected = engine.alone(request(prompt.clone(), 8));
    let asked = [0; 3].map(|_| engine.submit(request(prompt.clone(), 8)));
    for _ in 0..3 {
        engine.step();
    }
    engine.engine.cancel(asked[0]);
    engine.run();
    for id in &asked[1..] {
        engine.taken(*id).assert_same(&expected, "the others");
    }
    assert_eq!(engine.taken(asked[0]).outcome().tokens, [0; 0]);
}

/// Blocks that nobody uses make room, the oldest first, and are forgotten when their time is over.
#[test]
fn what_is_remembered_makes_room_and_is_forgotten() {
    let size = Size {
        tokens: 8 * KV_BLOCK,
        ..Size::LARGE
    };
    let mut engine = Running::new(open(f_tiny(), size));
    let ask = |engine: &mut Running, seed: u64, length: usize| {
        let id = engine.submit(request(ids(seed, length), 2));
        engine.answer(id).started.unwrap()
    };
    // Three blocks each: the third needs room, and takes it from the end of the first.
    assert_eq!([1, 2, 3].map(|seed| ask(&mut engine, seed, 190)), [0; 3]);
    assert_eq!(ask(&mut engine, 3, 190), 128);
    assert_eq!(ask(&mut engine, 2, 190), 128);
    let stats = engine.engine.stats();
    assert_eq!((stats.total_blocks, stats.used_blocks), (8, 0));
    assert!(stats.cached_blocks >= 4);
    let now = Instant::now();
    engine.engine.drop_idle(now);
    assert_eq!(engine.engine.stats().cached_blocks, stats.cached_blocks);
    engine.engine.drop_idle(now + Duration::from_secs(61));
    assert_eq!(engine.engine.stats().cached_blocks, 0);
    assert_eq!(ask(&mut engine, 2, 190), 0);
}
