//! Requests with pictures, one after the other on one engine.

use cider::text::{Message, RenderOptions, Role};
use cider::{DType, Engine, Error, ImageTimes, Scheme};

use crate::support::{
    BLUE, Folder, RED, Seen, assert_refused, assert_same, best, fixture, message, open, open_with,
    options, pad, set_pixels, solid, tiny, tiny_with_family_sizes, user,
};

/// The tokens of a request, and the logits behind its last but one.
fn answer(engine: &mut Engine, seen: &Seen, tokens: usize) -> (Vec<u32>, Vec<f32>) {
    let generation = engine.generate(&seen.request(tokens), &mut |_| {}).unwrap();
    let logits = engine.runner_mut().logits(0, 0).unwrap().to_vec();
    (generation.tokens, logits)
}

/// Nothing of a request is left for the next.
#[test]
fn requests_leave_nothing_behind() {
    let ask = |engine: &mut Engine, which: char| {
        let picture = match which {
            'a' => Some(solid(256, 256, RED)),
            'b' => None,
            _ => Some(solid(480, 640, BLUE)),
        };
        let parts = [picture.is_some().then_some(None), Some(Some("x"))];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        let pictures: Vec<_> = picture.into_iter().collect();
        let seen = Seen::chat(engine, &[user(&parts)], &pictures);
        answer(engine, &seen, 8)
    };
    for scheme in [Scheme::None, Scheme::W8A8] {
        let open = || open(&fixture("tiny"), scheme, DType::F32);
        let mut engine = open();
        for which in ['a', 'b', 'c', 'a'] {
            let (tokens, logits) = ask(&mut engine, which);
            let (fresh, fresh_logits) = ask(&mut open(), which);
            assert_eq!(tokens, fresh, "{which}, {scheme}");
            assert_same(&logits, &fresh_logits, &format!("{which}, {scheme}"));
        }
    }
}

/// The same words about another picture share no more than what stands before it.
#[test]
fn a_picture_is_part_of_what_prompts_share() {
    let mut engine = tiny_with_family_sizes();
    let ask = |engine: &mut Engine, color: [u8; 3]| {
        let messages = [user(&[Some("See: "), None, Some(" What color is it?")])];
        let seen = Seen::chat(engine, &messages, &[solid(256, 256, color)]);
        let generation = engine.generate(&seen.request(1), &mut |_| {}).unwrap();
        let logits = engine.runner_mut().logits(0, 0).unwrap().to_vec();
        (seen, generation.cached_tokens, logits)
    };
    let (red, cached, red_logits) = ask(&mut engine, RED);
    assert_eq!(cached, 0);
    let (blue, cached, blue_logits) = ask(&mut engine, BLUE);
    assert_eq!(blue.ids, red.ids);
    assert_eq!(cached, red.images[0].start);
    assert_ne!(red_logits, blue_logits);
    let (again, cached, again_logits) = ask(&mut engine, RED);
    assert_eq!(cached, red.images[0].start);
    assert_same(&again_logits, &red_logits, "red again");
    let (_, cached, once_more) = ask(&mut engine, RED);
    assert_eq!(cached, again.ids.len() - 1);
    assert_same(&once_more, &red_logits, "red once more");
    for (color, expected) in [(BLUE, &blue_logits), (RED, &red_logits)] {
        engine.forget();
        let (_, cached, logits) = ask(&mut engine, color);
        assert_eq!(cached, 0);
        assert_same(&logits, expected, "without what was there before");
    }
}

/// The same picture under other bounds on pixels is another picture to the cache of features.
#[test]
fn bounds_on_pixels_are_part_of_what_is_remembered() {
    let mut engine = tiny_with_family_sizes();
    let text = "<|vision_start|><|image_pad|><|vision_end|>";
    let tokens = |engine: &mut Engine| {
        let seen = Seen::raw(engine, text, &[solid(256, 256, RED)]);
        seen.images[0].features.tokens()
    };
    assert_eq!(tokens(&mut engine), 64);
    set_pixels(&mut engine, 4096, 16_384);
    assert_eq!(tokens(&mut engine), 16);
    set_pixels(&mut engine, 65_536, 16_777_216);
    assert_eq!(tokens(&mut engine), 64);
    let mut times = ImageTimes::default();
    let ids = engine.raw_prompt(text).unwrap();
    engine
        .see(&ids, &[solid(256, 256, RED)], &mut times)
        .unwrap();
    assert!(times.encode.is_zero(), "encoded again: {times:?}");
}

/// The tower looks before each block whether it is to go on.
#[test]
fn the_tower_can_be_ended_between_blocks() {
    let mut engine = tiny();
    let ids = engine
        .raw_prompt("<|vision_start|><|image_pad|><|vision_end|>")
        .unwrap();
    let pictures = [solid(64, 64, RED)];
    let mut heard = Vec::new();
    let ended = engine.see_watched(
        &ids,
        &pictures,
        &mut ImageTimes::default(),
        &mut |done, total| {
            heard.push((done, total));
            done < 2
        },
    );
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    assert_eq!(heard.last(), Some(&(2, 4)));
    // What was ended is not remembered.
    let mut times = ImageTimes::default();
    engine.see(&ids, &pictures, &mut times).unwrap();
    assert!(!times.encode.is_zero());
}

/// Pads that stand alone, and videos, are refused.
#[test]
fn pads_must_stand_between_their_marks() {
    let mut engine = tiny();
    for (text, parts) in [
        ("<|image_pad|>x", ["without the tokens", "open and close"]),
        (
            "<|video_pad|><|vision_start|><|image_pad|><|vision_end|>",
            ["<|video_pad|>", "not supported"],
        ),
    ] {
        let ids = engine.raw_prompt(text).unwrap();
        let seen = engine.see(&ids, &[solid(64, 64, RED)], &mut ImageTimes::default());
        assert_refused(seen, &parts);
    }
}

/// A run of image tokens is never cut.
#[test]
fn pictures_beyond_the_context_are_refused() {
    let with_context = |context: usize| {
        let options = cider::generate::RunnerOptions {
            context: Some(context),
            cache_tokens: None,
            ..options(Scheme::None, DType::F32)
        };
        let mut engine = open_with(&fixture("tiny"), best(), options).unwrap();
        set_pixels(&mut engine, 65_536, 16_777_216);
        engine
    };
    let messages = [user(&[None, None, Some("compare")])];
    let pictures = [RED, BLUE].map(|color| solid(768, 768, color));
    let mut engine = with_context(1024);
    // Before the tower runs: nothing was spent.
    let prompt = engine
        .chat_prompt(&messages, &RenderOptions::default())
        .unwrap();
    let mut times = ImageTimes::default();
    match engine.see(&prompt, &pictures, &mut times) {
        Err(Error::ImagesExceedContext {
            images,
            tokens,
            text,
            limit,
        }) => {
            assert_eq!((images, tokens, limit), (2, 2 * 576, 1024));
            assert_eq!(text, prompt.len() - 2);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(times, ImageTimes::default());
    // A request that was prepared elsewhere is refused too.
    let seen = Seen::chat(&mut with_context(2048), &messages, &pictures);
    assert_eq!(seen.images[1].features.tokens(), 576);
    match engine.generate(&seen.request(4), &mut |_| {}) {
        Err(Error::ContextExceeded { prompt, limit }) => {
            assert_eq!((prompt, limit), (seen.ids.len(), 1024));
        }
        other => panic!("{other:?}"),
    }
    let text = Seen::chat(&mut engine, &[Message::new(Role::User, "hello")], &[]);
    let after = answer(&mut engine, &text, 4);
    assert_eq!(after, answer(&mut with_context(1024), &text, 4));

    let mut engine = with_context(2048);
    let seen = Seen::chat(&mut engine, &messages, &pictures);
    assert!(engine.generate(&seen.request(4), &mut |_| {}).is_ok());
}

/// Pictures are bound to their places over all turns.
#[test]
fn pictures_of_all_turns_find_their_places() {
    let mut engine = tiny_with_family_sizes();
    let turns = [
        user(&[None, Some("a")]),
        Message::new(Role::Assistant, "b"),
        user(&[None, Some("c")]),
    ];
    let pictures = [solid(256, 256, RED), solid(480, 640, BLUE)];
    let seen = Seen::chat(&mut engine, &turns, &pictures);
    let tokens =
        |seen: &Seen| -> Vec<usize> { seen.images.iter().map(|i| i.features.tokens()).collect() };
    assert_eq!(tokens(&seen), [64, 300]);
    let [a, b] = pictures.clone();
    let swapped = Seen::chat(&mut engine, &turns, &[b, a]);
    assert_eq!(tokens(&swapped), [300, 64]);
    let (_, logits) = answer(&mut engine, &seen, 1);
    let (_, other) = answer(&mut engine, &swapped, 1);
    assert_ne!(logits, other);

    let three = [
        user(&[Some("p")]),
        Message::new(Role::Assistant, "q"),
        user(&[None, Some("r")]),
        Message::new(Role::Assistant, "s"),
        user(&[None, Some("t"), None]),
    ];
    let [a, b] = pictures;
    let seen = Seen::chat(&mut engine, &three, &[a.clone(), b, a]);
    assert_eq!(tokens(&seen), [64, 300, 64]);
    let pad = pad(&engine);
    for image in &seen.images {
        assert!(
            seen.ids[image.start..image.end()]
                .iter()
                .all(|&id| id == pad)
        );
        assert_ne!(seen.ids[image.start - 1], pad);
        assert_ne!(seen.ids[image.end()], pad);
    }
    answer(&mut engine, &seen, 2);
}

/// The order of the parts is the order of the tokens.
#[test]
fn parts_keep_their_order() {
    let mut engine = tiny_with_family_sizes();
    let [start, end, pad] = [329, 330, pad(&engine)];
    let red = || solid(256, 256, RED);
    let message = message(Role::User, &[Some("P"), None, Some("Q"), None, Some("R")]);
    let seen = Seen::chat(&mut engine, &[message], &[red(), red()]);
    let word = |engine: &Engine, text: &str| engine.raw_prompt(text).unwrap();
    let image = [&[start][..], &[pad; 64], &[end]].concat();
    let expected = [
        word(&engine, "<|im_start|>user\n"),
        word(&engine, "P"),
        image.clone(),
        word(&engine, "Q"),
        image,
        word(&engine, "R"),
        word(&engine, "<|im_end|>\n<|im_start|>assistant\n"),
    ];
    assert_eq!(seen.ids, expected.concat());
    let before = Seen::chat(&mut engine, &[user(&[None, Some("P")])], &[red()]);
    let behind = Seen::chat(&mut engine, &[user(&[Some("P"), None])], &[red()]);
    assert_ne!(before.ids, behind.ids);
}

/// A NaN from the tower ends the request, and only that one.
#[test]
fn logits_that_are_not_finite_end_the_request() {
    let folder = Folder::of("tiny");
    folder.change_tensors(|tensors| {
        // Two finite values whose sum is none.
        for block in [0, 1] {
            let name = format!("model.visual.blocks.{block}.mlp.linear_fc2.bias");
            tensors.set(&name, 0, 3e38);
        }
    });
    for dtype in [DType::F32, DType::Bf16] {
        let mut engine = open(folder.path(), Scheme::None, dtype);
        let text = Seen::raw(&mut engine, "x", &[]);
        let before = answer(&mut engine, &text, 4);
        let image = "<|vision_start|><|image_pad|><|vision_end|>y";
        let seen = Seen::raw(&mut engine, image, &[solid(64, 64, RED)]);
        let mut said = String::new();
        let result = engine.generate(&seen.request(8), &mut |event| {
            if let cider::Event::Text(text) = event {
                said.push_str(text);
            }
        });
        assert!(matches!(result, Err(Error::NonFinite { .. })), "{result:?}");
        assert_eq!(said, "");
        assert_eq!(answer(&mut engine, &text, 4), before);
        let expected = answer(&mut open_fresh(dtype), &text, 4);
        assert_eq!(expected, before);
    }
}

fn open_fresh(dtype: DType) -> Engine {
    match dtype {
        DType::F32 => tiny(),
        _ => open(&fixture("tiny"), Scheme::None, dtype),
    }
}
