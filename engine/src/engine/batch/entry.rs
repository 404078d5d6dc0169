//! A request on its way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::events::{BatchEvent, BatchRequest, Outcome, RequestId, TokenInfo};
use super::frontend::{Frontend, PreparedImage};
use crate::engine::image_cache::ImageKey;
use crate::engine::request::Output;
use crate::error::{Error, Result};
use crate::generate::{
    Constraint, History, ImageFeatures, Logprobs, PlacedDigest, PrefixDigest, PromptImage,
    Runnable, Sampler, SamplingParams, Sequence, StopReason, blocks, find_runs, prefix_digests,
};

/// A request, from its arrival to its end.
pub(super) struct Entry {
    pub(super) id: RequestId,
    pub(super) sequence: Sequence,
    pub(super) pictures: Vec<Picture>,
    /// Whether the sequence has its pictures.
    pub(super) sees: bool,
    /// The names of the full blocks of its prompt.
    pub(super) names: Vec<PrefixDigest>,
    /// Tokens to generate at most.
    limit: usize,
    sampling: SamplingParams,
    /// Made when the request's turn comes, for it takes room.
    sampler: Option<Sampler>,
    constraint: Option<Box<dyn Constraint>>,
    logprobs: Option<Logprobs>,
    output: Output,
    /// What is not told yet.
    text: String,
    infos: Vec<TokenInfo>,
    pub(super) deadline: Option<Instant>,
    ignore_eos: bool,
    /// Tokens of the prompt that were remembered.
    pub(super) cached: usize,
    /// Tokens that were there before blocks were taken away: what comes back of them is not counted again.
    reached: usize,
    times: Times,
    /// Set when it is done.
    end: Option<End>,
}

/// A picture of a request.
pub(super) struct Picture {
    pub(super) start: usize,
    pub(super) tokens: usize,
    grid: [usize; 3],
    pub(super) key: ImageKey,
    pub(super) pixels: Pixels,
}

/// A picture, before and behind the vision tower.
pub(super) enum Pixels {
    Prepared(PreparedImage),
    Encoded(Arc<ImageFeatures>),
}

struct Times {
    arrived: Instant,
    started: Option<Instant>,
    /// The first and the last token.
    tokens: Option<(Instant, Instant)>,
}

/// How a request ended.
enum End {
    Finished(StopReason),
    Failed(Error),
}

impl Entry {
    /// Checks a request.
    pub(super) fn new(id: RequestId, request: BatchRequest, frontend: &Frontend) -> Result<Self> {
        let prompt = &request.prompt;
        frontend.check_length(prompt.len())?;
        request.sampling.validate()?;
        let pictures = pictures(&request, frontend)?;
        let placed: Vec<_> = pictures.iter().map(Picture::placed).collect();
        let room = frontend.context() - prompt.len();
        Ok(Self {
            id,
            sequence: Sequence::new(prompt, prompt.len()),
            names: prefix_digests(&request.salt, prompt, &placed),
            pictures,
            sees: false,
            limit: request.max_tokens.unwrap_or(usize::MAX).min(room),
            sampling: request.sampling,
            sampler: None,
            constraint: request.constraint,
            logprobs: logprobs(request.logprobs, frontend)?,
            output: Output::new(&request.stops)?.showing(request.shown),
            text: String::new(),
            infos: Vec::new(),
            deadline: request.deadline,
            ignore_eos: request.ignore_eos,
            cached: 0,
            reached: 0,
            times: Times {
                arrived: Instant::now(),
                started: None,
                tokens: None,
            },
            end: None,
        })
    }

    /// Whether its turn came before.
    pub(super) fn has_started(&self) -> bool {
        self.times.started.is_some()
    }

    /// Its turn comes, perhaps again: makes what takes room.
    pub(super) fn start(&mut self, logits: usize, frontend: &Frontend) -> Result<()> {
        if self.sampler.is_none() {
            let vocabulary = frontend.tokenizer().vocab_size();
            self.sampler = Some(Sampler::new(&self.sampling, logits, vocabulary)?);
        }
        self.sequence.reserve(self.limit);
        self.times.started.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Blocks for all its tokens and one more.
    pub(super) fn blocks(&self) -> usize {
        blocks(self.sequence.tokens().len() + 1)
    }

    /// As the scheduler sees it; `waits` where an older request computes what both begin with.
    pub(super) fn runnable(&self, waits: bool) -> Runnable {
        Runnable {
            computed: self.sequence.computed(),
            known: self.sequence.tokens().len(),
            blocks: self.sequence.held_blocks(),
            ready: self.sees && !waits,
        }
    }

    /// The name of the block that comes next, where it may be shared: where a block begins that has a name, and not
    /// all of the prompt, for the logits of the last token are wanted.
    pub(super) fn next_name(&self) -> Option<(usize, &PrefixDigest)> {
        let (computed, prompt) = (self.sequence.computed(), self.sequence.prompt().len());
        let block = computed / crate::KV_BLOCK;
        let begins = computed.is_multiple_of(crate::KV_BLOCK);
        let shareable = begins && computed + crate::KV_BLOCK < prompt;
        self.names
            .get(block)
            .filter(|_| shareable)
            .map(|name| (block, name))
    }

    /// Whether it is going to compute the block at this place, of this name, and need not wait for pictures.
    pub(super) fn will_compute(&self, block: usize, name: &PrefixDigest) -> bool {
        self.sees
            && self.sequence.computed() / crate::KV_BLOCK <= block
            && self.names.get(block) == Some(name)
    }

    /// Counts the tokens from `before` on as remembered, unless they were there already.
    pub(super) fn count_remembered(&mut self, before: usize) -> usize {
        let new = self
            .sequence
            .computed()
            .saturating_sub(before.max(self.reached));
        self.cached += new;
        new
    }

    /// Its blocks are taken away.
    pub(super) fn notice_preemption(&mut self) {
        self.reached = self.reached.max(self.sequence.computed());
        self.sees = false;
    }

    /// The first picture that must be encoded: the tokens of others are in the cache.
    pub(super) fn unseen(&mut self) -> Option<&mut Picture> {
        let computed = self.sequence.computed();
        let unseen = |picture: &&mut Picture| {
            let prepared = matches!(picture.pixels, Pixels::Prepared(_));
            prepared && picture.start + picture.tokens > computed
        };
        self.pictures.iter_mut().find(unseen)
    }

    /// Gives the sequence its pictures, once all of them are encoded or in the cache.
    pub(super) fn see_if_ready(&mut self) {
        if self.unseen().is_some() {
            return;
        }
        let images = self.pictures.iter().map(Picture::image);
        match images.collect() {
            Ok(images) => self.sequence.set_images(images),
            Err(error) => self.fail(error),
        }
        self.sees = true;
    }

    /// Whether it is done.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Ends it, unless it is done.
    pub(super) fn finish(&mut self, reason: StopReason) {
        self.end.get_or_insert(End::Finished(reason));
    }

    /// Ends it with an error.
    pub(super) fn fail(&mut self, error: Error) {
        if matches!(error, Error::Panicked(_)) {
            tracing::error!("request {}: {error}", self.id);
        }
        self.end.get_or_insert(End::Failed(error));
    }

    /// How far the prompt is, while it is computed for the first time.
    pub(super) fn progress(&self) -> Option<BatchEvent> {
        let total = self.sequence.prompt().len();
        self.sequence
            .generated()
            .is_empty()
            .then(|| BatchEvent::Progress {
                id: self.id,
                done: self.sequence.computed(),
                total,
            })
    }

    /// Chooses the token behind those that are computed.
    pub(super) fn choose(&mut self, logits: &mut [f32], frontend: &Frontend) -> Result<()> {
        if self.limit == 0 {
            self.finish(StopReason::Length);
            return Ok(());
        }
        let Some(sampler) = &mut self.sampler else {
            return Err(Error::Request("the request has not started".into()));
        };
        // Others have no order; the sampler refuses them.
        let finite = || logits.iter().all(|logit| logit.is_finite());
        if let Some(logprobs) = self.logprobs.as_mut().filter(|_| finite()) {
            logprobs.observe(logits);
        }
        let history = History {
            prompt: self.sequence.prompt(),
            generated: self.sequence.generated(),
        };
        let id = match &mut self.constraint {
            Some(rule) => sampler.sample_within(logits, history, Some(&mut **rule))?,
            None => sampler.sample(logits, history)?,
        };
        self.sequence.push(id);
        self.take(id, frontend);
        Ok(())
    }

    /// Takes a token that was chosen: its text, and whether it ends the answer.
    fn take(&mut self, id: u32, frontend: &Frontend) {
        let now = Instant::now();
        self.times.tokens.get_or_insert((now, now)).1 = now;
        let ends = !self.ignore_eos && frontend.end_tokens().contains(&id);
        let mut stopped = ends;
        if !ends {
            let info = self.info(id, frontend);
            let text = &mut self.text;
            stopped = self
                .output
                .push(&info.bytes, &mut |piece| text.push_str(piece));
            self.infos.push(info);
        }
        let complete = self.constraint.as_ref().is_some_and(|rule| rule.finished());
        if stopped || complete {
            self.finish(StopReason::Stop);
        } else if self.sequence.generated().len() >= self.limit {
            self.finish(StopReason::Length);
        }
    }

    fn info(&self, id: u32, frontend: &Frontend) -> TokenInfo {
        let bytes = |id| self.output.bytes(id, frontend.tokenizer());
        let logprobs = self.logprobs.as_ref();
        let top = logprobs.map(|all| all.top().map(|(id, logprob)| (id, bytes(id), logprob)));
        TokenInfo {
            id,
            bytes: bytes(id),
            logprob: logprobs.and_then(|all| all.of(id)).unwrap_or_default(),
            top: top.map_or_else(Vec::new, Iterator::collect),
        }
    }

    /// What there is to tell of its text; at the end, all of it.
    pub(super) fn tell(&mut self, events: &mut Vec<BatchEvent>) {
        let over = matches!(self.end, Some(End::Finished(_)));
        if over {
            let text = &mut self.text;
            self.output.finish(&mut |piece| text.push_str(piece));
        }
        if !self.text.is_empty() || (over && !self.infos.is_empty()) {
            events.push(BatchEvent::Text {
                id: self.id,
                text: std::mem::take(&mut self.text),
                tokens: std::mem::take(&mut self.infos),
            });
        }
    }

    /// The last event of one that is done.
    pub(super) fn into_end(self) -> Option<BatchEvent> {
        let id = self.id;
        let reason = match self.end? {
            End::Failed(error) => return Some(BatchEvent::Failed { id, error }),
            End::Finished(reason) => reason,
        };
        let Times {
            arrived,
            started,
            tokens,
        } = self.times;
        let now = Instant::now();
        let turn = started.unwrap_or(now);
        let (first, last) = tokens.unwrap_or((now, now));
        let outcome = Outcome {
            stop: self.output.stop().map(str::to_owned),
            text: self.output.text,
            tokens: self.sequence.generated().to_vec(),
            prompt_tokens: self.sequence.prompt().len(),
            cached_tokens: self.cached,
            generated_tokens: self.sequence.generated().len(),
            queue: turn.saturating_duration_since(arrived),
            prefill: started.map_or(Duration::ZERO, |at| first.saturating_duration_since(at)),
            decode: last.saturating_duration_since(first),
            reason,
            seed: self.sampler.map_or(0, |sampler| sampler.seed()),
        };
        Some(BatchEvent::Finished { id, outcome })
    }
}

impl Picture {
    fn placed(&self) -> PlacedDigest {
        PlacedDigest {
            start: self.start,
            tokens: self.tokens,
            digest: *self.key.digest(),
        }
    }

    fn image(&self) -> Result<PromptImage> {
        let features = match &self.pixels {
            Pixels::Encoded(features) => Arc::clone(features),
            Pixels::Prepared(_) => Arc::new(ImageFeatures::shape_only(self.tokens, self.grid)?),
        };
        Ok(PromptImage {
            start: self.start,
            features,
        })
    }
}

fn logprobs(count: Option<usize>, frontend: &Frontend) -> Result<Option<Logprobs>> {
    match count {
        Some(count) if count > MOST_LOGPROBS => Err(Error::Request(format!(
            "logprobs is {count}, it must be at most {MOST_LOGPROBS}"
        ))),
        _ => Ok(count.map(|count| Logprobs::new(count, frontend.tokenizer().vocab_size()))),
    }
}

/// The pictures of a request at the places of their tokens.
fn pictures(request: &BatchRequest, frontend: &Frontend) -> Result<Vec<Picture>> {
    let Some(vision) = frontend.vision() else {
        return match request.images.len() {
            0 => Ok(Vec::new()),
            _ => Err(Error::Request("the model has no vision input".into())),
        };
    };
    let tokens: Vec<_> = request.images.iter().map(PreparedImage::tokens).collect();
    let starts = find_runs(&request.prompt, vision.config().image_token, &tokens)?;
    let placed = starts.into_iter().zip(&request.images);
    let picture = placed.map(|(start, image)| Picture {
        start,
        tokens: image.tokens(),
        grid: image.patches().grid_thw,
        key: ImageKey::new(&request.salt, *image.digest()),
        pixels: Pixels::Prepared(image.clone()),
    });
    Ok(picture.collect())
}

/// The likeliest tokens that are told of each token at most.
const MOST_LOGPROBS: usize = 20;
