//! Fixtures, engines, pictures, and prompts on their way through a runner.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

use cider::generate::{
    Logits, PromptImage, RunnerOptions, SamplingParams, Sequence, Work, argmax, find_images,
};
use cider::image::{ImageLimits, ImageSize, ImageSource, PixelBudget, RgbImage};
use cider::text::{Content, Message, Part, RenderOptions, Role};
use cider::{
    Backend, DType, Engine, EngineOptions, Error, ImageTimes, Quantization, Request, Result, Scheme,
};
use serde_json::Value;

use crate::arrays::Arrays;

pub(crate) use crate::machine::{best, cpu, isas};

/// A file or folder of the repository.
pub(crate) fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// A fixture: `tiny` or `late`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    repository("testdata/vl").join(name)
}

pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A folder that is gone when the test is over.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// A copy of a fixture.
    pub(crate) fn of(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("cider-vision-{}-{number}", process::id()));
        fs::create_dir_all(&path).unwrap();
        for entry in fs::read_dir(fixture(name)).unwrap() {
            let from = entry.unwrap().path();
            if from.is_file() {
                fs::copy(&from, path.join(from.file_name().unwrap())).unwrap();
            }
        }
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Changes a JSON file.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let path = self.0.join(name);
        let mut value = read_json(&path);
        change(&mut value);
        fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
    }

    /// Changes the tensors.
    pub(crate) fn change_tensors(&self, change: impl FnOnce(&mut Arrays)) {
        let path = self.0.join("model.safetensors");
        let mut tensors = Arrays::read(&path);
        change(&mut tensors);
        tensors.write(&path);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A prompt of a fixture.
pub(crate) struct Prompt {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) messages: Option<Vec<Message>>,
    pub(crate) pictures: Vec<RgbImage>,
    pub(crate) expected: Arrays,
}

impl Prompt {
    /// All prompts of a fixture.
    pub(crate) fn all(fixture_name: &str) -> Vec<Self> {
        let folder = fixture(fixture_name);
        let prompts = read_json(&folder.join("prompts.json"));
        let prompts = prompts.as_array().unwrap().iter();
        prompts.map(|entry| Self::read(&folder, entry)).collect()
    }

    pub(crate) fn named(fixture_name: &str, name: &str) -> Self {
        let mut all = Self::all(fixture_name).into_iter();
        all.find(|prompt| prompt.name == name).unwrap()
    }

    /// Its tokens and the images among them.
    pub(crate) fn see(&self, engine: &mut Engine) -> Seen {
        let ids = engine.raw_prompt(&self.text).unwrap();
        Seen::new(engine, &ids, &self.pictures)
    }

    fn read(folder: &Path, entry: &Value) -> Self {
        let name = entry["name"].as_str().unwrap().to_owned();
        let images = entry["images"].as_array().unwrap().iter();
        let file = format!("expected/{name}.safetensors");
        Self {
            text: entry["text"].as_str().unwrap().to_owned(),
            messages: entry
                .get("messages")
                .map(|messages| serde_json::from_value(messages.clone()).unwrap()),
            pictures: images.map(|name| picture(name.as_str().unwrap())).collect(),
            expected: Arrays::read(&folder.join(file)),
            name,
        }
    }
}

/// A picture of `testdata/vl/images`.
pub(crate) fn picture(name: &str) -> RgbImage {
    let path = repository("testdata/vl/images").join(name);
    let source = ImageSource::Path(path);
    source.decode(0, &ImageLimits::default()).unwrap()
}

/// A picture of one color.
pub(crate) fn solid(height: usize, width: usize, color: [u8; 3]) -> RgbImage {
    RgbImage::new(ImageSize::new(height, width), color.repeat(height * width)).unwrap()
}

pub(crate) const RED: [u8; 3] = [255, 0, 0];
pub(crate) const BLUE: [u8; 3] = [0, 0, 255];

/// The parts of a message: a text, or nothing where a picture stands.
pub(crate) fn message(role: Role, parts: &[Option<&str>]) -> Message {
    let mut message = Message::new(role, "");
    let parts = parts.iter().map(|part| match part {
        Some(text) => Part::Text {
            text: (*text).to_owned(),
        },
        None => Part::Image,
    });
    message.content = Content::Parts(parts.collect());
    message
}

pub(crate) fn user(parts: &[Option<&str>]) -> Message {
    message(Role::User, parts)
}

/// Room for a few sequences, and for all logits of one.
pub(crate) fn options(scheme: Scheme, dtype: DType) -> RunnerOptions {
    RunnerOptions {
        quantization: Quantization::of(scheme),
        dtype,
        context: Some(512),
        cache_tokens: Some(2048),
        rows: 512,
        logits: 512,
        ..RunnerOptions::default()
    }
}

pub(crate) fn open_with(
    path: &Path,
    backend: Arc<dyn Backend>,
    runner: RunnerOptions,
) -> Result<Engine> {
    let options = EngineOptions {
        runner,
        ..EngineOptions::default()
    };
    Engine::open(path, backend, &options, &mut |_| {})
}

/// A model on the best instruction set.
pub(crate) fn open(path: &Path, scheme: Scheme, dtype: DType) -> Engine {
    open_with(path, best(), options(scheme, dtype)).unwrap()
}

/// `tiny`, in f32, unquantised.
pub(crate) fn tiny() -> Engine {
    open(&fixture("tiny"), Scheme::None, DType::F32)
}

/// `tiny` that takes pictures of the family's sizes.
pub(crate) fn tiny_with_family_sizes() -> Engine {
    let mut engine = tiny();
    set_pixels(&mut engine, 65_536, 16_777_216);
    engine
}

pub(crate) fn set_pixels(engine: &mut Engine, min: u64, max: u64) {
    let budget = PixelBudget {
        min_pixels: Some(min),
        max_pixels: Some(max),
    };
    engine.vision_mut().unwrap().set_budget(budget).unwrap();
}

/// Tokens, and the images among them.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) ids: Vec<u32>,
    pub(crate) images: Vec<PromptImage>,
}

impl Seen {
    /// Tokens with one pad a picture.
    pub(crate) fn new(engine: &mut Engine, ids: &[u32], pictures: &[RgbImage]) -> Self {
        let times = &mut ImageTimes::default();
        let (ids, images) = engine.see(ids, pictures, times).unwrap();
        Self { ids, images }
    }

    /// A raw text with one pad a picture.
    pub(crate) fn raw(engine: &mut Engine, text: &str, pictures: &[RgbImage]) -> Self {
        let ids = engine.raw_prompt(text).unwrap();
        Self::new(engine, &ids, pictures)
    }

    pub(crate) fn chat(engine: &mut Engine, messages: &[Message], pictures: &[RgbImage]) -> Self {
        let ids = engine
            .chat_prompt(messages, &RenderOptions::default())
            .unwrap();
        Self::new(engine, &ids, pictures)
    }

    /// The same images among tokens that have all pads.
    pub(crate) fn expanded(&self, engine: &Engine, ids: Vec<u32>) -> Self {
        let features: Vec<_> = self
            .images
            .iter()
            .map(|i| Arc::clone(&i.features))
            .collect();
        let images = find_images(&ids, pad(engine), &features).unwrap();
        Self { ids, images }
    }

    pub(crate) fn sequence(&self) -> Sequence {
        self.sequence_with(self.ids.len())
    }

    /// A sequence whose tokens from place `prompt` on count as generated.
    pub(crate) fn sequence_with(&self, prompt: usize) -> Sequence {
        let room = self.ids.len() + 32;
        Sequence::with_prompt(&self.ids, prompt, room).with_images(self.images.clone())
    }

    /// The logits of all tokens, computed in one step.
    pub(crate) fn logits(&self, engine: &mut Engine) -> Vec<f32> {
        Running::new(self, self.ids.len(), self.ids.len()).alone(engine)
    }

    /// The same, some tokens a step.
    pub(crate) fn logits_in_chunks(&self, engine: &mut Engine, chunk: usize) -> Vec<f32> {
        Running::new(self, self.ids.len(), chunk).alone(engine)
    }

    /// A greedy request.
    pub(crate) fn request(&self, max_tokens: usize) -> Request {
        Request {
            images: self.images.clone(),
            sampling: SamplingParams {
                temperature: 0.0,
                ..SamplingParams::default()
            },
            max_tokens: Some(max_tokens),
            ..Request::new(self.ids.clone())
        }
    }
}

pub(crate) fn pad(engine: &Engine) -> u32 {
    engine.vision().unwrap().config().image_token
}

/// A sequence on its way, with the logits of what is computed.
pub(crate) struct Running {
    sequence: Sequence,
    /// Where steps end.
    ends: Vec<usize>,
    pub(crate) logits: Vec<f32>,
}

impl Running {
    /// Tokens that count as generated from place `prompt` on, `chunk` a step.
    pub(crate) fn new(seen: &Seen, prompt: usize, chunk: usize) -> Self {
        let ends = (0..seen.ids.len()).step_by(chunk).skip(1);
        Self::cut_at(seen, prompt, ends.collect())
    }

    /// The same, in steps that end at some places.
    pub(crate) fn cut_at(seen: &Seen, prompt: usize, mut ends: Vec<usize>) -> Self {
        ends.push(seen.ids.len());
        Self {
            sequence: seen.sequence_with(prompt),
            ends,
            logits: Vec::new(),
        }
    }

    /// The logits of all tokens.
    pub(crate) fn alone(mut self, engine: &mut Engine) -> Vec<f32> {
        together(engine, &mut [&mut self]);
        self.logits
    }

    /// Tokens of the next step.
    fn tokens(&self) -> usize {
        let computed = self.sequence.computed();
        let end = self.ends.iter().find(|&&end| end > computed);
        end.map_or(0, |end| end - computed)
    }
}

/// Computes all tokens of some sequences, in the same steps.
pub(crate) fn together(engine: &mut Engine, all: &mut [&mut Running]) {
    let runner = engine.runner_mut();
    loop {
        let mut left: Vec<_> = all.iter_mut().filter(|one| one.tokens() > 0).collect();
        if left.is_empty() {
            break;
        }
        let tokens: Vec<_> = left.iter().map(|one| one.tokens()).collect();
        let works = left.iter_mut().zip(&tokens).map(|(one, &tokens)| Work {
            sequence: &mut one.sequence,
            tokens,
            logits: Logits::All,
        });
        runner.step(&mut works.collect::<Vec<_>>()).unwrap();
        for (number, (one, &tokens)) in left.iter_mut().zip(&tokens).enumerate() {
            for token in 0..tokens {
                let logits = runner.logits(number, token).unwrap();
                one.logits.extend_from_slice(logits);
            }
        }
    }
    for one in all {
        runner.release(&mut one.sequence);
    }
}

/// Greedy tokens after a prompt, and the logits that chose each.
pub(crate) fn greedy(engine: &mut Engine, seen: &Seen, tokens: usize) -> (Vec<u32>, Vec<f32>) {
    let runner = engine.runner_mut();
    let mut sequence = seen.sequence();
    let mut chosen = Vec::new();
    for i in 0..tokens {
        let work = Work {
            tokens: if i == 0 { seen.ids.len() } else { 1 },
            sequence: &mut sequence,
            logits: Logits::Last,
        };
        runner.step(&mut [work]).unwrap();
        let logits = runner.logits(0, 0).unwrap();
        chosen.extend_from_slice(logits);
        sequence.push(argmax(logits));
    }
    let generated = sequence.generated().to_vec();
    runner.release(&mut sequence);
    (generated, chosen)
}

/// The last row of logits.
pub(crate) fn last_row<'a>(engine: &Engine, logits: &'a [f32]) -> &'a [f32] {
    &logits[logits.len() - engine.runner().config().vocab_size..]
}

/// The largest difference, as a part of the largest magnitude of `expected`.
#[track_caller]
pub(crate) fn distance(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0_f32, |most, v| most.max(v.abs()));
    let apart = |(a, b): (&f32, &f32)| (a - b).abs();
    let differences = found.iter().zip(expected).map(apart);
    // A NaN is no distance at all, and `max` would pass over it.
    let most = differences.fold(0_f32, |most, v| if v <= most { most } else { v });
    most / largest
}

#[track_caller]
pub(crate) fn assert_close(found: &[f32], expected: &[f32], bound: f32, what: &str) {
    let distance = distance(found, expected);
    assert!(distance <= bound, "{what}: {distance:e} apart");
}

/// Both must be the same, bit for bit.
#[track_caller]
pub(crate) fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let mut pairs = found.iter().zip(expected);
    let differs = pairs.position(|(a, b)| a.to_bits() != b.to_bits());
    if let Some(at) = differs {
        panic!(
            "{what}: value {at} is {}, expected {}",
            found[at], expected[at]
        );
    }
}

/// The result must be an error of one line with all of `parts` in it.
#[track_caller]
pub(crate) fn assert_refused<T>(result: Result<T, Error>, parts: &[&str]) {
    let message = match result {
        Ok(_) => panic!("accepted, although {parts:?}"),
        Err(error) => error.to_string(),
    };
    assert!(!message.contains('\n'), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}
