//! Fixtures, backends, and steps through a runner.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::{env, fs, process};

use cider::generate::{CacheType, Logits, Runner, RunnerOptions, Sequence, Work};
use cider::load::Checkpoint;
use cider::{Backend, DType, Error, Quantization, Result, Scheme};
use serde_json::Value;

use crate::recipe;

pub(crate) use crate::arrays::Arrays;
pub(crate) use crate::machine::{best, cpu, isas};

/// A file or folder of `testdata`.
pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(name)
}

/// A folder that is gone when the test is over.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("cider-golden-{}-{number}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A copy of a checkpoint folder, with keys of its `config.json` changed; null removes one.
    pub(crate) fn with_config(source: &Path, changes: &Value) -> Self {
        let folder = Self::new();
        for entry in fs::read_dir(source).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.0.join(path.file_name().unwrap())).unwrap();
        }
        folder.change("config.json", changes);
        folder
    }

    /// The folder of F-TINY, its tensors changed.
    pub(crate) fn f_tiny(change: impl FnOnce(&mut Vec<recipe::Tensor>)) -> Self {
        let (folder, source) = (Self::new(), testdata("f-tiny"));
        recipe::copy_settings(&source, &folder.0).unwrap();
        let mut tensors = recipe::recipe_tensors(&source).unwrap();
        change(&mut tensors);
        let path = folder.0.join("model.safetensors");
        recipe::write_safetensors(&path, &tensors, recipe::Stored::F32).unwrap();
        folder
    }

    /// The F-CHAIN of some scripts.
    pub(crate) fn f_chain(scripts: &Value) -> Self {
        let folder = Self::new();
        recipe::build_chain(scripts, &folder.0).unwrap();
        folder
    }

    /// Changes keys of a JSON file; null removes one.
    pub(crate) fn change(&self, name: &str, changes: &Value) {
        let path = self.0.join(name);
        let mut value = read_json(&path);
        let object = value.as_object_mut().unwrap();
        for (key, change) in changes.as_object().unwrap() {
            if change.is_null() {
                object.remove(key);
            } else {
                object.insert(key.clone(), change.clone());
            }
        }
        fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn open(&self) -> Checkpoint {
        Checkpoint::open(&self.0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// The folder of F-TINY as it is, built once.
pub(crate) fn f_tiny() -> &'static Path {
    static PATH: OnceLock<Folder> = OnceLock::new();
    // A static is never dropped: the folder lies where a build keeps its temporary files.
    PATH.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("f-tiny");
        fs::create_dir_all(&path).unwrap();
        recipe::build_model(&testdata("f-tiny"), &path).unwrap();
        Folder(path)
    })
    .path()
}

pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A scheme with a group size.
pub(crate) fn plan(scheme: Scheme, group: usize) -> Quantization {
    Quantization {
        group_size: Some(group),
        ..Quantization::of(scheme)
    }
}

/// What `w8a16`, `w4a8_g64` and the like say; nothing says `none`.
pub(crate) fn plan_named(name: &str) -> Quantization {
    let (scheme, group) = name.split_once("_g").unwrap_or((name, "0"));
    let scheme = if scheme.is_empty() { "none" } else { scheme };
    plan(scheme.parse().unwrap(), group.parse().unwrap())
}

/// Room for a few sequences of 256 tokens, and for all logits of one.
pub(crate) fn options(quantization: Quantization, dtype: DType) -> RunnerOptions {
    RunnerOptions {
        quantization,
        vision: Quantization::of(Scheme::None),
        dtype,
        cache: CacheType::Auto,
        context: Some(256),
        cache_tokens: Some(1024),
        rows: 256,
        logits: 256,
    }
}

pub(crate) fn load(
    checkpoint: &Checkpoint,
    backend: Arc<dyn Backend>,
    quantization: Quantization,
    dtype: DType,
) -> Runner {
    let options = options(quantization, dtype);
    Runner::load(checkpoint, backend, &options, &mut |_| {}).unwrap()
}

/// Tokens, the first of which are a prompt, computed some at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    pub(crate) ids: &'a [u32],
    pub(crate) prompt: usize,
    pub(crate) chunk: usize,
}

impl<'a> Text<'a> {
    /// A prompt, computed in one step.
    pub(crate) fn prompt(ids: &'a [u32]) -> Self {
        Self::generated_from(ids, ids.len())
    }

    /// A text whose first `prompt` tokens are the prompt, computed in one step.
    pub(crate) fn generated_from(ids: &'a [u32], prompt: usize) -> Self {
        let chunk = ids.len();
        Self { ids, prompt, chunk }
    }

    pub(crate) fn in_chunks(self, chunk: usize) -> Self {
        Self { chunk, ..self }
    }
}

/// A text on its way, with the logits of what is computed.
pub(crate) struct Running {
    sequence: Sequence,
    chunk: usize,
    pub(crate) logits: Vec<f32>,
}

impl Running {
    pub(crate) fn new(text: Text<'_>) -> Self {
        Self {
            sequence: Sequence::with_prompt(text.ids, text.prompt, text.ids.len()),
            chunk: text.chunk,
            logits: Vec::new(),
        }
    }

    pub(crate) fn left(&self) -> usize {
        self.sequence.tokens().len() - self.sequence.computed()
    }

    pub(crate) fn release(&mut self, runner: &mut Runner) {
        runner.release(&mut self.sequence);
    }
}

/// One step of all texts that have tokens left.
pub(crate) fn step(runner: &mut Runner, texts: &mut [&mut Running]) -> Result<()> {
    let mut texts: Vec<_> = texts.iter_mut().filter(|text| text.left() > 0).collect();
    let tokens: Vec<_> = texts
        .iter()
        .map(|text| text.chunk.min(text.left()))
        .collect();
    let mut work: Vec<_> = texts
        .iter_mut()
        .zip(&tokens)
        .map(|(text, &tokens)| Work {
            sequence: &mut text.sequence,
            tokens,
            logits: Logits::All,
        })
        .collect();
    runner.step(&mut work)?;
    for (number, (text, &tokens)) in texts.iter_mut().zip(&tokens).enumerate() {
        for token in 0..tokens {
            text.logits.extend_from_slice(runner.logits(number, token)?);
        }
    }
    Ok(())
}

/// The logits of every token of a text that runs alone.
pub(crate) fn alone(runner: &mut Runner, text: Text<'_>) -> Vec<f32> {
    let mut running = Running::new(text);
    while running.left() > 0 {
        step(runner, &mut [&mut running]).unwrap();
    }
    running.release(runner);
    running.logits
}

/// The largest difference, as a part of the largest magnitude of `expected`.
pub(crate) fn distance(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected
        .iter()
        .fold(0_f32, |most, value| most.max(value.abs()));
    let apart = |(a, b): (&f32, &f32)| (a - b).abs();
    let differences = found.iter().zip(expected).map(apart);
    // A NaN is no distance at all, and `max` would pass over it.
    differences.fold(
        0_f32,
        |most, value| if value <= most { most } else { value },
    ) / largest
}

/// Both must be the same, bit for bit.
#[track_caller]
pub(crate) fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differs = found
        .iter()
        .zip(expected)
        .position(|(a, b)| a.to_bits() != b.to_bits());
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

/// Numbers without order: the same for the same seed.
pub(crate) fn random_ids(seed: u64, count: usize, below: u32) -> Vec<u32> {
    let mut state = seed;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(seed | 1);
        (state >> 33) as u32 % below
    };
    std::iter::repeat_with(next).take(count).collect()
}
