//! What all requests share.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cider::Frontend;
use cider::image::ImageLimits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::auth::Gate;
use super::budget::Budget;
use super::config::Limits;
use super::error::{ApiError, Code};
use super::fetch::Fetcher;
use super::media::MediaRoot;
use super::metrics::Metrics;
use super::params::Defaults;
use super::wire::{ModelCard, Queue};
use super::worker::Worker;

/// The server's state.
pub(super) struct App {
    pub(super) gate: Gate,
    pub(super) limits: Limits,
    pub(super) defaults: Defaults,
    pub(super) strict_model: bool,
    pub(super) card: ModelCard,
    pub(super) frontend: Arc<Frontend>,
    /// Bytes of the longest token.
    pub(super) longest_token: usize,
    pub(super) worker: Worker,
    pub(super) metrics: Arc<Metrics>,
    pub(super) budget: Budget,
    /// Where pictures are fetched from the network, if they are.
    pub(super) fetcher: Option<Fetcher>,
    pub(super) media: Option<Arc<MediaRoot>>,
    /// Prompts and pictures that are prepared at once.
    pub(super) preparing: Arc<Semaphore>,
    pub(super) slots: Slots,
    pub(super) draining: AtomicBool,
    pub(super) unknown: Unknown,
    pub(super) ids: Ids,
}

impl App {
    /// The limits on pictures.
    pub(super) fn image_limits(&self) -> ImageLimits {
        ImageLimits {
            bytes: self.limits.image_bytes,
            pixels: self.limits.image_pixels,
        }
    }

    /// Refuses a model that is not the one served, where names are strict.
    pub(super) fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        match model {
            Some(name) if self.strict_model && name != self.card.id => {
                let name: String = name.chars().take(100).collect();
                let what = format!(
                    "the model {name:?} is not served here, {:?} is",
                    self.card.id
                );
                Err(ApiError::new(Code::ModelNotFound, what).at("model"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a text so long that no way of cutting it into tokens fits the context, before it is cut.
    pub(super) fn check_text(&self, bytes: usize, param: &str) -> Result<(), ApiError> {
        let (least, limit) = (bytes.div_ceil(self.longest_token), self.frontend.context());
        if least < limit {
            return Ok(());
        }
        let what =
            format!("prompt of at least {least} tokens exceeds the context of {limit} tokens");
        Err(ApiError::new(Code::ContextLengthExceeded, what).at(param))
    }

    /// Room for so many answers; with none left, one is to come back later.
    pub(super) fn slots(&self, answers: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.draining.load(Ordering::SeqCst) {
            return Err(ApiError::new(
                Code::ShuttingDown,
                "the server is shutting down",
            ));
        }
        if !self.worker.status().is_alive() {
            return Err(ApiError::worker_gone());
        }
        if answers > self.slots.all {
            let what = format!(
                "{answers} answers are asked for, the server has room for {}",
                self.slots.all
            );
            return Err(ApiError::value("n", what));
        }
        self.slots
            .take(answers)
            .ok_or_else(|| ApiError::queue_full(self.wait()))
    }

    /// How many wait and run, and how long one has to wait.
    pub(super) fn queue(&self) -> Queue {
        let size = self.slots.taken();
        let running = self.worker.status().stats().running.min(size);
        Queue {
            size,
            running,
            waiting: size - running,
            estimated_wait_seconds: if size < self.limits.running {
                0.0
            } else {
                self.wait().as_secs_f64()
            },
            status: if size == 0 { "idle" } else { "busy" },
        }
    }

    fn wait(&self) -> Duration {
        let ahead = self.slots.taken().saturating_sub(self.limits.running) + 1;
        let wait = self.worker.status().wait(ahead, self.limits.running);
        wait.min(MAX_WAIT)
    }

    /// When a request that came at `asked` ends, whether it is done or not.
    pub(super) fn deadline(&self, asked: Instant) -> Option<Instant> {
        asked.checked_add(self.limits.request_timeout)
    }
}

/// Answers that wait or are computed.
pub(super) struct Slots {
    free: Arc<Semaphore>,
    all: usize,
}

impl Slots {
    /// Room for so many.
    pub(super) fn new(all: usize) -> Self {
        let all = all.min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(all)),
            all,
        }
    }

    fn take(&self, answers: usize) -> Option<OwnedSemaphorePermit> {
        let answers = u32::try_from(answers).ok()?;
        Arc::clone(&self.free).try_acquire_many_owned(answers).ok()
    }

    fn taken(&self) -> usize {
        self.all - self.free.available_permits()
    }
}

/// Names of request fields that are not known: each is told to the log once.
#[derive(Default)]
pub(super) struct Unknown(Mutex<BTreeSet<String>>);

impl Unknown {
    /// Notes a field.
    pub(super) fn note(&self, field: &str) {
        if HARMLESS.contains(&field) {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Clients may invent names without end.
        if known.len() < MAX_UNKNOWN && field.len() <= 64 && known.insert(field.to_owned()) {
            tracing::warn!("the request field {field:?} is not known and ignored");
        }
    }
}

/// Names of answers: no two are equal, none can be guessed from another.
#[derive(Default)]
pub(super) struct Ids {
    state: RandomState,
    next: AtomicU64,
}

impl Ids {
    /// A new name.
    pub(super) fn next(&self, prefix: &str) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (high, low) = (
            self.state.hash_one(number),
            self.state.hash_one((number, "low")),
        );
        format!("{prefix}-{high:016x}{:08x}", low as u32)
    }
}

/// Seconds since 1970.
pub(super) fn unix_time() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}

/// The longest wait that is told.
const MAX_WAIT: Duration = Duration::from_mins(2);
const MAX_UNKNOWN: usize = 100;

/// Fields of the API that change no answer.
const HARMLESS: [&str; 10] = [
    "metadata",
    "prompt_cache_key",
    "reasoning_effort",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
    "messages.annotations",
    "messages.refusal",
];
