//! Who comes when: turns, chunks, room.

use cider::{DType, Scheme};

use crate::machine::best;
use crate::support::{Running, Size, engine_options, f_tiny, ids, open, open_on, request};

/// A short prompt behind a long one has its first token within two chunks.
#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let size = Size {
        rows: 32,
        ..Size::LARGE
    };
    for earlier in 1..4 {
        let mut engine = Running::new(open(f_tiny(), size));
        let long: Vec<_> = (0..earlier)
            .map(|seed| engine.submit(request(ids(seed, 480), 4)))
            .collect();
        engine.step();
        let short = engine.submit(request(ids(90, 16), 4));
        engine.step();
        let stats = engine.engine.stats();
        assert_eq!(
            engine.seen(short).progress,
            [(16, 16)],
            "behind {earlier}: {stats:?}"
        );
        assert_eq!(engine.engine.stats().generated_tokens, 1);
        for id in &long {
            let progress = engine.seen(*id).progress.last();
            assert!(progress.is_none_or(|(done, _)| *done < 100), "{progress:?}");
        }
        engine.run();
    }
}

/// Short prompts that keep coming do not keep a long one from its end.
#[test]
fn a_long_prompt_is_not_starved() {
    let size = Size {
        rows: 32,
        ..Size::LARGE
    };
    let mut engine = Running::new(open(f_tiny(), size));
    let long = engine.submit(request(ids(1, 400), 2));
    for seed in 0..400 / 16 {
        engine.submit(request(ids(100 + seed, 30), 1));
        engine.step();
    }
    let done = engine.seen(long).progress.last().unwrap().0;
    assert!(done > 350, "{done} of 400 tokens");
    engine.run();
}

/// While one is answered, a prompt is computed in the same steps, and every step gives a token.
#[test]
fn prompts_and_answers_share_steps() {
    let size = Size {
        rows: 32,
        ..Size::LARGE
    };
    let mut engine = Running::new(open(f_tiny(), size));
    engine.submit(request(ids(1, 20), 100));
    engine.step();
    let second = engine.submit(request(ids(2, 300), 2));
    for step in 2..11 {
        engine.step();
        assert_eq!(engine.engine.stats().generated_tokens, step as u64);
        let progress = engine.seen(second).progress.last();
        assert_eq!(progress, Some(&((31 * (step - 1)).min(300), 300)));
    }
    engine.run();
}

/// Requests beyond the room wait for their turn in the order they came.
#[test]
fn turns_come_in_order() {
    let size = Size {
        rows: 16,
        running: 3,
        tokens: 4096,
    };
    let mut engine = Running::new(open(f_tiny(), size));
    let asked: Vec<_> = (0..9)
        .map(|seed| engine.submit(request(ids(seed, 30), 8)))
        .collect();
    let mut most = 0;
    while engine.step() == cider::Step::Worked {
        most = most.max(engine.engine.stats().running);
        let started: Vec<_> = asked
            .iter()
            .map(|id| engine.seen(*id).started.is_some())
            .collect();
        assert!(started.is_sorted_by(|a, b| a >= b), "{started:?}");
    }
    assert_eq!(most, 3);
}

/// Two that fit alone but not together: the younger makes room, and both get what they get alone.
#[test]
fn the_younger_makes_room() {
    let size = Size {
        tokens: 512,
        ..Size::LARGE
    };
    let mut engine = Running::new(open(f_tiny(), size));
    let prompts = [ids(1, 100), ids(2, 100)];
    let mut lone = Running::new(open(f_tiny(), Size::LARGE));
    let asked = prompts
        .clone()
        .map(|prompt| engine.submit(request(prompt, 250)));
    engine.run();
    assert!(engine.engine.stats().preemptions > 0);
    for (id, prompt) in asked.into_iter().zip(prompts) {
        let found = engine.taken(id);
        found.assert_same(&lone.alone(request(prompt, 250)), "with room made");
        assert_eq!(found.outcome().cached_tokens, 0);
    }
}

/// The cache is sized from what the machine has where nothing is said.
#[test]
fn the_cache_has_room_for_a_context_at_least() {
    let options = engine_options(Scheme::W8A8, DType::Bf16, 64);
    let batch = cider::BatchOptions {
        max_running: 5,
        ..cider::BatchOptions::default()
    };
    let engine = cider::BatchEngine::open(f_tiny(), best(), &options, &batch, &mut |_| {}).unwrap();
    let stats = engine.stats();
    assert!((8..=5 * 8).contains(&stats.total_blocks), "{stats:?}");
    assert_eq!(engine.frontend().context(), 512);
    // A cache smaller than the context is the limit.
    let size = Size {
        tokens: 100,
        ..Size::LARGE
    };
    let mut engine = open_on(f_tiny(), best(), &options, size);
    assert_eq!(engine.frontend().context(), 128);
    match engine.submit(request(ids(1, 128), 1)) {
        Err(cider::Error::ContextExceeded { prompt, limit }) => {
            assert_eq!((prompt, limit), (128, 128));
        }
        other => panic!("{other:?}"),
    }
}

/// The engine lives on a thread of its own, its front on all.
#[test]
fn the_engine_moves_and_its_front_is_shared() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    moves::<cider::BatchEngine>();
    moves::<cider::BatchRequest>();
    moves::<cider::BatchEvent>();
    is_shared::<cider::Frontend>();
    is_shared::<cider::PreparedImage>();
}
