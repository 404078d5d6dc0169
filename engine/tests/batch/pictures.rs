//! Pictures in requests that share steps, prefixes and encoded pictures.

use cider::generate::StopReason;
use cider::image::{ImageSize, PixelBudget, RgbImage};
use cider::{
    BatchEngine, BatchOptions, BatchRequest, DType, Engine, Error, ImageTimes, PreparedImage,
    Request, Scheme,
};

use crate::machine::best;
use crate::support::{Random, Running, engine_options, greedy, repository, request};

/// The small model that sees, which takes pictures of up to so many pixels.
fn open(max_pixels: u64) -> Running {
    let batch = BatchOptions {
        max_running: 16,
        cache_tokens: Some(8192),
        pixels: budget(max_pixels),
        ..BatchOptions::default()
    };
    let mut options = engine_options(Scheme::W8A8, DType::Bf16, 48);
    options.runner.context = Some(2048);
    let path = repository("testdata/vl/tiny");
    Running::new(BatchEngine::open(&path, best(), &options, &batch, &mut |_| {}).unwrap())
}

fn budget(max_pixels: u64) -> PixelBudget {
    PixelBudget {
        min_pixels: Some(1024),
        max_pixels: Some(max_pixels),
    }
}

/// A picture without order.
fn picture(seed: u64, height: usize, width: usize) -> RgbImage {
    let mut random = Random::new(seed);
    let bytes = (0..3 * height * width).map(|_| random.below(256) as u8);
    RgbImage::new(ImageSize::new(height, width), bytes.collect()).unwrap()
}

/// A question with pictures: each stands behind its text.
#[derive(Clone)]
struct Question {
    texts: Vec<String>,
    pictures: Vec<RgbImage>,
}

impl Question {
    fn new(parts: &[&str], pictures: Vec<RgbImage>) -> Self {
        Self {
            texts: parts.iter().map(|&part| part.to_owned()).collect(),
            pictures,
        }
    }

    fn text(&self) -> String {
        let mark = "<|vision_start|><|image_pad|><|vision_end|>";
        let mut text = String::new();
        for (place, part) in self.texts.iter().enumerate() {
            text.push_str(part);
            if place < self.pictures.len() {
                text.push_str(mark);
            }
        }
        text
    }

    fn request(&self, engine: &Running, max_tokens: usize) -> BatchRequest {
        let frontend = engine.engine.frontend();
        let prepared = self
            .pictures
            .iter()
            .map(|p| frontend.prepare_image(p).unwrap());
        let images: Vec<PreparedImage> = prepared.collect();
        let prompt = frontend.raw_prompt(&self.text()).unwrap();
        let prompt = frontend.place(prompt, &images).unwrap();
        BatchRequest {
            images,
            ..request(prompt, max_tokens)
        }
    }
}

/// Questions with pictures and without, some of which begin alike.
fn questions() -> [Question; 6] {
    let long = "a long description of what is to be seen here and there ".repeat(6);
    let (small, other, tall) = (
        picture(1, 96, 128),
        picture(2, 96, 128),
        picture(3, 320, 256),
    );
    [
        Question::new(&["what", "?"], vec![small.clone()]),
        Question::new(&["what", "?"], vec![other]),
        Question::new(&["only words, many of them"], Vec::new()),
        Question::new(&[&long, " and ", "?"], vec![small.clone(), tall.clone()]),
        Question::new(&[&long, " or ", "?"], vec![tall, small]),
        Question::new(&[&long, "!"], vec![picture(4, 512, 480)]),
    ]
}

/// Requests with pictures and without in the same steps, twice: the second time nearly everything is remembered.
#[test]
fn pictures_and_texts_run_together() {
    let mut engine = open(1 << 20);
    let questions = questions();
    let expected = questions.each_ref().map(|question| {
        let request = question.request(&engine, 24);
        engine.alone(request)
    });
    for round in 0..2 {
        let asked = questions.each_ref().map(|question| {
            let request = question.request(&engine, 24);
            let id = engine.submit(request);
            engine.step();
            id
        });
        engine.run();
        for (i, (id, expected)) in asked.into_iter().zip(&expected).enumerate() {
            let found = engine.taken(id);
            found.assert_same(expected, &format!("round {round}, question {i}"));
            let outcome = found.outcome();
            if round == 1 {
                let full = (outcome.prompt_tokens - 1) / 64 * 64;
                assert_eq!(outcome.cached_tokens, full, "question {i}");
            }
        }
    }
}

/// The engine that answers one request at a time says the same.
#[test]
fn the_plain_engine_sees_the_same() {
    let mut engine = open(1 << 20);
    let mut options = engine_options(Scheme::W8A8, DType::Bf16, 512);
    options.runner.context = Some(2048);
    let path = repository("testdata/vl/tiny");
    let mut plain = Engine::open(&path, best(), &options, &mut |_| {}).unwrap();
    let vision = plain.vision_mut().unwrap();
    vision.set_budget(budget(1 << 20)).unwrap();
    let ends = plain.end_tokens().to_vec();
    for (i, question) in questions().iter().enumerate() {
        let request = question.request(&engine, 24);
        let id = engine.submit(request);
        let expected = engine.answer(id);
        let ids = plain.raw_prompt(&question.text()).unwrap();
        let times = &mut ImageTimes::default();
        let (prompt, images) = plain.see(&ids, &question.pictures, times).unwrap();
        let request = Request {
            images,
            sampling: greedy(),
            max_tokens: Some(24),
            ..Request::new(prompt)
        };
        let found = plain.generate(&request, &mut |_| {}).unwrap();
        let tokens = &expected.outcome().tokens;
        let end = tokens.iter().position(|id| ends.contains(id));
        let until = end.map_or(24, |at| at + 1);
        assert_eq!(found.tokens, tokens[..until], "question {i}");
    }
}

/// Two pictures of the same size never answer for each other, though their tokens are the same; the same picture
/// of another key is encoded again.
#[test]
fn pictures_of_the_same_size_keep_apart() {
    let mut engine = open(1 << 20);
    let ask = |engine: &mut Running, seed: u64, salt: u8| {
        let question = Question::new(&["here ", " what is it?"], vec![picture(seed, 320, 320)]);
        let mut request = question.request(engine, 4);
        request.salt = [salt; 32];
        let id = engine.submit(request);
        let answer = engine.answer(id);
        let logprob = answer.tokens[0].logprob.to_bits();
        (answer.outcome().cached_tokens, logprob)
    };
    let one = ask(&mut engine, 1, 0);
    let two = ask(&mut engine, 2, 0);
    assert_eq!((one.0, two.0), (0, 0));
    assert_ne!(one.1, two.1);
    assert_eq!(ask(&mut engine, 1, 0), (64, one.1));
    let stats = engine.engine.stats();
    assert_eq!((stats.image_queries, stats.image_hits), (3, 1));
    assert_eq!(ask(&mut engine, 1, 9), one);
    let stats = engine.engine.stats();
    assert_eq!((stats.image_queries, stats.image_hits), (4, 1));
    assert!(stats.image_bytes > 0);
}

/// A picture whose tokens are all in the cache is not encoded at all.
#[test]
fn a_picture_that_is_in_the_cache_is_not_encoded() {
    let batch = BatchOptions {
        max_running: 4,
        cache_tokens: Some(4096),
        image_cache_bytes: 0,
        pixels: budget(1 << 20),
        ..BatchOptions::default()
    };
    let options = engine_options(Scheme::W8A8, DType::Bf16, 48);
    let path = repository("testdata/vl/tiny");
    let engine = BatchEngine::open(&path, best(), &options, &batch, &mut |_| {}).unwrap();
    let mut engine = Running::new(engine);
    let words = "words that follow the picture, ".repeat(8);
    let question = Question::new(&["", &words], vec![picture(1, 192, 256)]);
    let expected = {
        let request = question.request(&engine, 12);
        engine.alone(request)
    };
    let ask = |engine: &mut Running, question: &Question| {
        let request = question.request(engine, 12);
        let id = engine.submit(request);
        (engine.answer(id), engine.engine.stats().image_queries)
    };
    let (first, queries) = ask(&mut engine, &question);
    first.assert_same(&expected, "with the picture");
    assert_eq!(queries, 2);
    // Another picture takes the place of the only one that is kept.
    let other = Question::new(&["x", "y"], vec![picture(9, 64, 64)]);
    assert_eq!(ask(&mut engine, &other).1, 3);
    let (again, queries) = ask(&mut engine, &question);
    again.assert_same(&expected, "without the picture");
    assert_eq!(queries, 3);
}

/// A large picture takes a step for each block of the tower: others are answered between them, and the request can
/// be ended there.
#[test]
fn the_tower_is_left_between_its_blocks() {
    let mut engine = open(4 << 20);
    let large = Question::new(&["", "?"], vec![picture(1, 1120, 1120)]);
    let text = Question::new(&["words"], Vec::new()).request(&engine, 40);
    let expected = engine.alone(text);
    let other = Question::new(&["words"], Vec::new()).request(&engine, 40);
    let other = engine.submit(other);
    engine.step();
    let request = large.request(&engine, 4);
    let seeing = engine.submit(request);
    let before = engine.engine.stats().generated_tokens;
    engine.step();
    assert_eq!(engine.engine.stats().generated_tokens, before + 1);
    assert!(
        engine.seen(seeing).progress.is_empty(),
        "the tower has more blocks"
    );
    engine.engine.cancel(seeing);
    engine.answer(other).assert_same(&expected, "the other");
    let ended = engine.taken(seeing);
    assert_eq!(ended.reason(), Some(StopReason::Cancelled));
    assert_eq!(engine.engine.stats().image_bytes, 0, "it was not finished");
}

/// A text that begins as a request with a picture does is answered while the picture is encoded, and that request
/// takes over what the text computed.
#[test]
fn a_text_does_not_wait_for_a_picture() {
    let mut engine = open(4 << 20);
    let words = "words that both begin with, ".repeat(8);
    let large = Question::new(&[&words, "?"], vec![picture(1, 1120, 1120)]);
    let [seeing, text] = [large, Question::new(&[&words], Vec::new())];
    let expected = [&seeing, &text].map(|question| {
        let request = question.request(&engine, 8);
        engine.alone(request)
    });
    engine
        .engine
        .drop_idle(std::time::Instant::now() + std::time::Duration::from_hours(1));
    let asked = [&seeing, &text].map(|question| {
        let request = question.request(&engine, 8);
        engine.submit(request)
    });
    let before = engine.engine.stats().prompt_tokens;
    engine.step();
    assert!(engine.engine.stats().prompt_tokens > before);
    engine.run();
    let [seeing, text] = asked.map(|id| engine.taken(id));
    seeing.assert_same(&expected[0], "with the picture");
    text.assert_same(&expected[1], "the text");
    assert!(seeing.outcome().cached_tokens >= 64);
    assert_eq!(text.outcome().cached_tokens, 0);
}

/// Pictures that are not where the prompt has places are refused.
#[test]
fn pictures_must_fit_their_places() {
    let mut engine = open(1 << 20);
    let frontend = engine.engine.frontend();
    let image = frontend.prepare_image(&picture(1, 64, 64)).unwrap();
    let mark = "<|vision_start|><|image_pad|><|vision_end|>";
    let ids = frontend.raw_prompt(&format!("a{mark}b")).unwrap();
    for count in [0, 2] {
        let images = vec![image.clone(); count];
        let error = frontend
            .place(ids.clone(), &images)
            .unwrap_err()
            .to_string();
        assert!(error.contains("a place for 1 image"), "{error}");
    }
    let placed = frontend
        .place(ids.clone(), std::slice::from_ref(&image))
        .unwrap();
    assert_eq!(placed.len(), ids.len() - 1 + image.tokens());
    // Not expanded, or too few pictures.
    for (prompt, images) in [(ids, vec![image.clone()]), (placed, Vec::new())] {
        let error = engine.engine.submit(BatchRequest {
            images,
            ..BatchRequest::new(prompt)
        });
        assert!(matches!(error, Err(Error::Request(_))), "{error:?}");
    }
    let huge = picture(1, 2048, 2048);
    let tight = open(16 << 20).engine.frontend();
    let error = tight.prepare_image(&huge).unwrap_err();
    assert!(
        matches!(error, Error::ImagesExceedContext { .. }),
        "{error}"
    );
}
