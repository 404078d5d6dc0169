//! A model that answers many requests at once.
//!
//! What a request gets does not depend on the others: a token is computed in the phase it belongs to, whatever shares
//! its step, and what requests share are keys and values that each would have computed to the same bits.

mod entry;
mod events;
mod frontend;
mod sight;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cider_kernels::{Backend, KV_BLOCK};

use self::entry::Entry;
pub use self::events::{
    BatchEvent, BatchOptions, BatchRequest, BatchStats, Outcome, RequestId, Step, TokenInfo,
};
pub use self::frontend::{Frontend, PreparedImage};
use self::sight::Sight;
use super::{EngineOptions, Opened};
use crate::error::{Error, Result};
use crate::generate::{
    KvCache, Logits, Plan, Runnable, Runner, RunnerOptions, Scheduler, Share, StopReason, Work,
    available_memory, blocks,
};
use crate::models::Progress;

/// A model that answers many requests at once. It lives on one thread; what prepares requests, its [`Frontend`],
/// is for all.
pub struct BatchEngine {
    runner: Runner,
    frontend: Arc<Frontend>,
    scheduler: Scheduler,
    sight: Sight,
    idle_ttl: Duration,
    /// In the order of their arrival, as those that run.
    waiting: VecDeque<Entry>,
    running: Vec<Entry>,
    /// Those that run, as the scheduler sees them.
    runnable: Vec<Runnable>,
    /// What is to be told.
    said: Vec<BatchEvent>,
    next_id: u64,
    counts: BatchStats,
}

impl BatchEngine {
    /// Opens the model at `path`: a folder or a GGUF file.
    ///
    /// # Errors
    /// When a file is missing, damaged or not supported, or memory is short.
    pub fn open(
        path: &Path,
        backend: Arc<dyn Backend>,
        engine: &EngineOptions,
        options: &BatchOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let scheduler = Scheduler::new(engine.runner.rows, options.max_running);
        let engine = EngineOptions {
            runner: RunnerOptions {
                cache_tokens: options.cache_tokens,
                logits: scheduler.max_running(),
                ..engine.runner
            },
            ..engine.clone()
        };
        let Opened {
            mut runner,
            text,
            mut vision,
            generation,
        } = Opened::open(path, backend, &engine, progress)?;
        if let Some(vision) = &mut vision {
            vision.set_budget(options.pixels)?;
        }
        let tokens = cache_tokens(&runner, options, scheduler.max_running());
        runner.replace_cache(tokens, scheduler.max_running())?;
        tracing::info!(
            "kv cache: {tokens} tokens in {} blocks, {:.2} GB",
            runner.cache().pool().total(),
            runner.cache_bytes() as f64 / 1e9
        );
        let frontend = Frontend {
            text,
            vision,
            generation,
            context: runner.context().min(tokens),
        };
        Ok(Self {
            runner,
            frontend: Arc::new(frontend),
            scheduler,
            sight: Sight::new(options.image_cache_bytes),
            idle_ttl: options.idle_ttl,
            waiting: VecDeque::new(),
            running: Vec::new(),
            runnable: Vec::new(),
            said: Vec::new(),
            next_id: 0,
            counts: BatchStats::default(),
        })
    }

    /// What prepares requests.
    #[must_use]
    pub fn frontend(&self) -> Arc<Frontend> {
        Arc::clone(&self.frontend)
    }

    /// The runner.
    #[must_use]
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Takes a request, which waits for its turn.
    ///
    /// # Errors
    /// When a parameter is out of range, the prompt does not fit, or its pictures are not where they should be.
    pub fn submit(&mut self, request: BatchRequest) -> Result<RequestId> {
        let id = RequestId(self.next_id);
        let entry = Entry::new(id, request, &self.frontend)?;
        self.next_id += 1;
        self.waiting.push_back(entry);
        Ok(id)
    }

    /// Ends a request before the next step; its blocks are free at once. One that is done already stays as it is.
    pub fn cancel(&mut self, id: RequestId) {
        let all = self.waiting.iter_mut().chain(&mut self.running);
        for entry in all.filter(|entry| entry.id == id) {
            entry.finish(StopReason::Cancelled);
        }
        self.collect();
    }

    /// Computes some tokens of those requests whose turn it is, and tells what happened.
    pub fn step(&mut self, now: Instant, events: &mut Vec<BatchEvent>) -> Step {
        self.runner.cache_mut().pool_mut().set_time(now);
        self.end_overdue(now);
        self.admit();
        let (running, counts) = (&mut self.running, &mut self.counts);
        self.sight.step(&self.runner, running, counts, now);
        let shares = self.schedule();
        match self.run(&shares) {
            Ok(()) => self.postprocess(&shares),
            Err(_) => self.run_alone(&shares),
        }
        self.collect();
        let idle = self.waiting.is_empty() && self.running.is_empty() && self.said.is_empty();
        events.append(&mut self.said);
        if idle { Step::Idle } else { Step::Worked }
    }

    /// Where it stands.
    #[must_use]
    pub fn stats(&self) -> BatchStats {
        let pool = self.runner.cache().pool();
        BatchStats {
            waiting: self.waiting.len(),
            running: self.running.len(),
            used_blocks: pool.total() - pool.available(),
            cached_blocks: pool.idle(),
            total_blocks: pool.total(),
            block_tokens: KV_BLOCK,
            image_bytes: self.sight.images.bytes(),
            ..self.counts
        }
    }

    /// Forgets prefixes and pictures that nobody used for the time that was set.
    pub fn drop_idle(&mut self, now: Instant) {
        let pool = self.runner.cache_mut().pool_mut();
        pool.set_time(now);
        pool.forget_idle(self.idle_ttl);
        self.sight.images.forget_idle(now, self.idle_ttl);
    }

    fn end_overdue(&mut self, now: Instant) {
        let all = self.waiting.iter_mut().chain(&mut self.running);
        let overdue = |entry: &&mut Entry| entry.deadline.is_some_and(|deadline| deadline <= now);
        all.filter(overdue)
            .for_each(|entry| entry.finish(StopReason::Deadline));
        self.collect();
    }

    /// Lets requests run while there is room, first come first served.
    fn admit(&mut self) {
        while let Some(next) = self.waiting.front() {
            let pool = self.runner.cache().pool();
            let held = |name: &&_| pool.find(name) == Some(true);
            let shared = next.names.iter().take_while(held).count();
            let needed = next.blocks().saturating_sub(shared);
            let free = pool.available();
            self.look();
            if !self.scheduler.admits(&self.runnable, free, needed) {
                return;
            }
            if let Some(entry) = self.waiting.pop_front() {
                self.start(entry);
            }
        }
    }

    fn start(&mut self, mut entry: Entry) {
        let first = !entry.has_started();
        if let Err(error) = entry.start(self.runner.config().vocab_size, &self.frontend) {
            entry.fail(error);
        }
        self.counts.prefix_hits += attach(self.runner.cache_mut(), &mut entry);
        if first {
            self.counts.prefix_queries += entry.sequence.prompt().len() as u64;
            self.said.push(BatchEvent::Started {
                id: entry.id,
                cached_tokens: entry.cached,
            });
        }
        let place = self.running.partition_point(|other| other.id < entry.id);
        self.running.insert(place, entry);
    }

    /// The tokens of the next step. Requests that must make room for it wait again.
    fn schedule(&mut self) -> Vec<Share> {
        for entry in &mut self.running {
            self.counts.prefix_hits += attach(self.runner.cache_mut(), entry);
        }
        loop {
            self.look();
            let free = self.runner.cache().free_blocks();
            let victim = match self.scheduler.plan(&self.runnable, free) {
                Plan::Run(shares) => {
                    let mut shares = shares.to_vec();
                    shares.sort_unstable_by_key(|share| share.index);
                    return shares;
                }
                Plan::Preempt(victim) => victim,
            };
            let mut entry = self.running.remove(victim);
            entry.notice_preemption();
            self.runner.release(&mut entry.sequence);
            self.counts.preemptions += 1;
            self.waiting.push_front(entry);
        }
    }

    /// Those that run, as the scheduler sees them.
    fn look(&mut self) {
        let Self {
            running, runnable, ..
        } = self;
        runnable.clear();
        for (i, entry) in running.iter().enumerate() {
            let older = &running[..i];
            let waits = entry.next_name().is_some_and(|(block, name)| {
                older.iter().any(|older| older.will_compute(block, name))
            });
            runnable.push(entry.runnable(waits || entry.has_ended()));
        }
    }

    /// Runs one step of the model.
    fn run(&mut self, shares: &[Share]) -> Result<()> {
        if shares.is_empty() {
            return Ok(());
        }
        let mut left = shares.iter().copied().peekable();
        let entries = self.running.iter_mut().enumerate();
        let work = entries.filter_map(|(index, entry)| {
            let share = left.next_if(|share| share.index == index)?;
            Some(work(entry, share.tokens))
        });
        let mut work: Vec<_> = work.collect();
        let runner = &mut self.runner;
        self.counts.steps += 1;
        let done = guarded(|| runner.step(&mut work));
        self.counts.panics += u64::from(matches!(done, Err(Error::Panicked(_))));
        done
    }

    /// Takes a step that failed again, request by request: only those fail that fail alone.
    fn run_alone(&mut self, shares: &[Share]) {
        for share in shares.iter().map(slice::from_ref) {
            match self.run(share) {
                Ok(()) => self.postprocess(share),
                Err(error) => self.running[share[0].index].fail(error),
            }
        }
    }

    /// Makes tokens of the logits of a step, and remembers what was computed of prompts.
    fn postprocess(&mut self, shares: &[Share]) {
        for (number, share) in shares.iter().enumerate() {
            let entry = &mut self.running[share.index];
            let computed = entry.sequence.computed();
            let prompt = entry.sequence.prompt().len();
            let before = computed - share.tokens;
            if before < prompt {
                let cache = self.runner.cache_mut();
                cache.name_blocks(&entry.sequence, &entry.names, before / KV_BLOCK);
                self.counts.prompt_tokens += (computed.min(prompt) - before) as u64;
            }
            self.said.extend(entry.progress());
            if computed < entry.sequence.tokens().len() {
                continue;
            }
            let (runner, frontend) = (&mut self.runner, &self.frontend);
            let known = entry.sequence.tokens().len();
            let chosen = guarded(|| entry.choose(runner.logits(number, 0)?, frontend));
            if let Err(error) = chosen {
                entry.fail(error);
            }
            self.counts.generated_tokens += (entry.sequence.tokens().len() - known) as u64;
        }
    }

    /// Tells what there is to tell, and lets those go that are done.
    fn collect(&mut self) {
        for entry in self.waiting.iter_mut().chain(&mut self.running) {
            entry.tell(&mut self.said);
        }
        let waiting = &mut self.waiting;
        while let Some(at) = waiting.iter().position(Entry::has_ended) {
            self.said
                .extend(waiting.remove(at).and_then(Entry::into_end));
        }
        while let Some(at) = self.running.iter().position(Entry::has_ended) {
            let mut entry = self.running.remove(at);
            self.runner.release(&mut entry.sequence);
            self.said.extend(entry.into_end());
        }
    }
}

impl std::fmt::Debug for BatchEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchEngine")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Gives a request the blocks of its prompt that are remembered; how many tokens that it had not before.
fn attach(cache: &mut KvCache, entry: &mut Entry) -> u64 {
    let before = entry.sequence.computed();
    while let Some((_, &name)) = entry.next_name() {
        if !cache.attach(&mut entry.sequence, &name) {
            break;
        }
    }
    entry.count_remembered(before) as u64
}

fn work(entry: &mut Entry, tokens: usize) -> Work<'_> {
    let last = entry.sequence.computed() + tokens == entry.sequence.tokens().len();
    Work {
        sequence: &mut entry.sequence,
        tokens,
        logits: if last { Logits::Last } else { Logits::None },
    }
}

/// A panic becomes an error: what it was working at is given up, and everything else is written anew by each step.
fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(Error::Panicked(text.unwrap_or("a panic").to_owned()))
    })
}

/// Tokens that the cache is to hold: what was asked for, or what all requests could want and half of the memory has
/// room for, and one context in any case.
fn cache_tokens(runner: &Runner, options: &BatchOptions, max_running: usize) -> usize {
    if let Some(tokens) = options.cache_tokens {
        return blocks(tokens.max(1)) * KV_BLOCK;
    }
    let context = runner.context();
    let wanted = context.saturating_mul(max_running);
    let per_token = runner.cache_types().bytes_per_token(runner.config()).max(1);
    let room = available_memory().map_or(usize::MAX, |bytes| {
        let share = usize::try_from(bytes / 2).unwrap_or(usize::MAX);
        share.saturating_sub(options.image_cache_bytes) / per_token
    });
    blocks(wanted.min(room).max(context)) * KV_BLOCK
}
