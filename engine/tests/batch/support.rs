//! Engines on small models, requests, and what came of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{env, fs, process};

use cider::generate::{RunnerOptions, SamplingParams, StopReason};
use cider::{
    Backend, BatchEngine, BatchEvent, BatchOptions, BatchRequest, DType, EngineOptions, Error,
    Outcome, Quantization, RequestId, Scheme, Step, TokenInfo,
};

use crate::recipe;

/// A file or folder of the repository.
pub(crate) fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// The folder of F-TINY, built once. A static is never dropped: it lies where a build keeps temporary files.
pub(crate) fn f_tiny() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("batch-f-tiny");
        fs::create_dir_all(&path).unwrap();
        recipe::build_model(&repository("testdata/f-tiny"), &path).unwrap();
        path
    })
}

/// A folder that is gone when the test is over.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// The F-CHAIN, which says what its scripts say.
    pub(crate) fn f_chain() -> Self {
        let folder = Self::new();
        let scripts = fs::read(repository("testdata/f-chain/scripts.json")).unwrap();
        recipe::build_chain(&serde_json::from_slice(&scripts).unwrap(), &folder.0).unwrap();
        folder
    }

    /// F-TINY, its tensors changed.
    pub(crate) fn f_tiny(change: impl FnOnce(&mut Vec<recipe::Tensor>)) -> Self {
        let (folder, source) = (Self::new(), repository("testdata/f-tiny"));
        recipe::copy_settings(&source, &folder.0).unwrap();
        let mut tensors = recipe::recipe_tensors(&source).unwrap();
        change(&mut tensors);
        let path = folder.0.join("model.safetensors");
        recipe::write_safetensors(&path, &tensors, recipe::Stored::F32).unwrap();
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("cider-batch-{}-{number}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A machine that is soon full: `rows` rows a step, `running` requests at once, `tokens` tokens of cache.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    pub(crate) running: usize,
    pub(crate) tokens: usize,
}

impl Size {
    /// Room for everything that a test asks at once.
    pub(crate) const LARGE: Self = Self {
        rows: 512,
        running: 64,
        tokens: 32 * 512,
    };
}

pub(crate) fn engine_options(scheme: Scheme, dtype: DType, rows: usize) -> EngineOptions {
    EngineOptions {
        runner: RunnerOptions {
            quantization: Quantization::of(scheme),
            dtype,
            context: Some(512),
            rows,
            ..RunnerOptions::default()
        },
        ..EngineOptions::default()
    }
}

pub(crate) fn open_on(
    path: &Path,
    backend: Arc<dyn Backend>,
    options: &EngineOptions,
    size: Size,
) -> BatchEngine {
    let batch = BatchOptions {
        max_running: size.running,
        cache_tokens: Some(size.tokens),
        idle_ttl: Duration::from_mins(1),
        ..BatchOptions::default()
    };
    BatchEngine::open(path, backend, options, &batch, &mut |_| {}).unwrap()
}

/// A model in W8A8 and bf16, where phases differ most.
pub(crate) fn open(path: &Path, size: Size) -> BatchEngine {
    let options = engine_options(Scheme::W8A8, DType::Bf16, size.rows);
    open_on(path, crate::machine::best(), &options, size)
}

pub(crate) fn greedy() -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    }
}

/// A greedy request that goes on to its limit, with the probabilities of its tokens.
pub(crate) fn request(prompt: Vec<u32>, max_tokens: usize) -> BatchRequest {
    BatchRequest {
        sampling: greedy(),
        max_tokens: Some(max_tokens),
        logprobs: Some(3),
        ignore_eos: true,
        ..BatchRequest::new(prompt)
    }
}

/// What a request came to.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) started: Option<usize>,
    pub(crate) progress: Vec<(usize, usize)>,
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenInfo>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) error: Option<Error>,
}

impl Answer {
    fn take(&mut self, event: BatchEvent) {
        let over = self.outcome.is_some() || self.error.is_some();
        assert!(!over, "nothing follows the end: {event:?}");
        match event {
            BatchEvent::Started { cached_tokens, .. } => {
                assert_eq!(self.started.replace(cached_tokens), None);
            }
            BatchEvent::Progress { done, total, .. } => self.progress.push((done, total)),
            BatchEvent::Text { text, tokens, .. } => {
                self.text.push_str(&text);
                self.tokens.extend(tokens);
            }
            BatchEvent::Finished { outcome, .. } => self.outcome = Some(outcome),
            BatchEvent::Failed { error, .. } => self.error = Some(error),
        }
    }

    #[track_caller]
    pub(crate) fn outcome(&self) -> &Outcome {
        match &self.outcome {
            Some(outcome) => outcome,
            None => panic!("{:?}", self.error),
        }
    }

    pub(crate) fn reason(&self) -> Option<StopReason> {
        Some(self.outcome.as_ref()?.reason)
    }

    /// Both must be the same to the last bit of every probability; an answer that was cut is as far as it goes.
    #[track_caller]
    pub(crate) fn assert_same(&self, lone: &Self, what: &str) {
        let (found, expected) = (self.outcome(), lone.outcome());
        let cut = matches!(found.reason, StopReason::Cancelled | StopReason::Deadline);
        if cut {
            assert!(expected.tokens.starts_with(&found.tokens), "{what}");
        } else {
            assert_eq!(found.tokens, expected.tokens, "{what}");
            assert_eq!(found.text, expected.text, "{what}");
            assert_eq!(found.reason, expected.reason, "{what}");
        }
        assert_eq!(self.text, found.text, "{what}");
        assert_eq!(self.tokens.len(), found.tokens.len(), "{what}");
        for (place, (a, b)) in self.tokens.iter().zip(&lone.tokens).enumerate() {
            assert_eq!(bits(a), bits(b), "{what}: token {place}");
        }
    }
}

/// All numbers of a token.
fn bits(token: &TokenInfo) -> Vec<u32> {
    let top = token.top.iter();
    let top = top.flat_map(|(id, _, logprob)| [*id, logprob.to_bits()]);
    [token.id, token.logprob.to_bits()]
        .into_iter()
        .chain(top)
        .collect()
}

/// An engine, and what its requests came to.
pub(crate) struct Running {
    pub(crate) engine: BatchEngine,
    answers: BTreeMap<RequestId, Answer>,
}

impl Running {
    pub(crate) fn new(engine: BatchEngine) -> Self {
        Self {
            engine,
            answers: BTreeMap::new(),
        }
    }

    pub(crate) fn submit(&mut self, request: BatchRequest) -> RequestId {
        self.engine.submit(request).unwrap()
    }

    pub(crate) fn step(&mut self) -> Step {
        self.step_at(Instant::now())
    }

    pub(crate) fn step_at(&mut self, now: Instant) -> Step {
        let mut events = Vec::new();
        let step = self.engine.step(now, &mut events);
        for event in events {
            self.answers.entry(event.id()).or_default().take(event);
        }
        step
    }

    /// Runs until nothing is left, and gives what a request came to.
    pub(crate) fn answer(&mut self, id: RequestId) -> Answer {
        self.run();
        self.taken(id)
    }

    pub(crate) fn run(&mut self) {
        let mut steps = 0;
        while self.step() == Step::Worked {
            steps += 1;
            assert!(steps < 100_000, "it never ends: {:?}", self.engine);
        }
        let stats = self.engine.stats();
        assert_eq!((stats.waiting, stats.running, stats.used_blocks), (0, 0, 0));
    }

    /// What is known of a request.
    pub(crate) fn seen(&mut self, id: RequestId) -> &Answer {
        self.answers.entry(id).or_default()
    }

    /// What a request came to.
    pub(crate) fn taken(&mut self, id: RequestId) -> Answer {
        self.answers.remove(&id).unwrap_or_default()
    }

    /// What a request comes to alone, when nothing is remembered.
    pub(crate) fn alone(&mut self, mut request: BatchRequest) -> Answer {
        static SALT: AtomicUsize = AtomicUsize::new(1);
        let number = SALT.fetch_add(1, Ordering::Relaxed) as u64;
        request.salt[..8].copy_from_slice(&number.to_le_bytes());
        let id = self.submit(request);
        let answer = self.answer(id);
        assert_eq!(answer.started, Some(0));
        answer
    }
}

/// Numbers without order: the same for the same seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    pub(crate) fn ids(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(500) as u32).collect()
    }
}

/// Numbers without order, of a seed.
pub(crate) fn ids(seed: u64, count: usize) -> Vec<u32> {
    Random::new(seed).ids(count)
}
