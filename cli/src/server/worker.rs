//! The engine on its own thread: requests go in through a channel, news come out through each request's mailbox.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use cider::generate::StopReason;
use cider::{BatchEngine, BatchEvent, BatchRequest, BatchStats, Error, RequestId, Step};

use super::error::{ApiError, Code};
use super::mail::{News, Outbox, Unsent};
use super::metrics::Metrics;

/// What the thread drives: a batch engine, or a script in tests.
pub(super) trait Core {
    /// Takes a request.
    fn submit(&mut self, request: BatchRequest) -> Result<RequestId, Error>;
    /// Ends a request before the next step.
    fn cancel(&mut self, id: RequestId);
    /// Computes what comes next.
    fn step(&mut self, now: Instant, events: &mut Vec<BatchEvent>) -> Step;
    /// Where it stands.
    fn stats(&self) -> BatchStats;
    /// Drops what was remembered for too long.
    fn drop_idle(&mut self, now: Instant);
}

impl Core for BatchEngine {
    fn submit(&mut self, request: BatchRequest) -> Result<RequestId, Error> {
        self.submit(request)
    }

    fn cancel(&mut self, id: RequestId) {
        self.cancel(id);
    }

    fn step(&mut self, now: Instant, events: &mut Vec<BatchEvent>) -> Step {
        self.step(now, events)
    }

    fn stats(&self) -> BatchStats {
        self.stats()
    }

    fn drop_idle(&mut self, now: Instant) {
        self.drop_idle(now);
    }
}

/// The way to the engine.
#[derive(Debug)]
pub(super) struct Worker {
    requests: Sender<Submission>,
    status: Arc<Status>,
}

/// What others may know of the engine.
#[derive(Debug, Default)]
pub(super) struct Status {
    alive: AtomicBool,
    stats: Mutex<BatchStats>,
    /// Microseconds that a request takes, from its turn to its end; the latest count most.
    service: AtomicU64,
}

/// A request on its way to the engine.
struct Submission {
    request: BatchRequest,
    outbox: Outbox,
    asked: Instant,
}

impl Worker {
    /// Starts the thread. `open` makes the engine on it, and what else the caller wants of it.
    pub(super) fn start<C: Core, T: Send + 'static>(
        metrics: Arc<Metrics>,
        open: impl FnOnce() -> Result<(C, T)> + Send + 'static,
    ) -> Result<(Self, T, JoinHandle<()>)> {
        let (requests, received) = channel();
        let (opened, opening) = channel();
        let status: Arc<Status> = Arc::default();
        let shared = Arc::clone(&status);
        let body = move || match open() {
            Ok((core, rest)) => {
                let _alive = Alive::new(&shared);
                *shared.lock() = core.stats();
                if opened.send(Ok(rest)).is_ok() {
                    Loop::new(core, &shared, &metrics).run(&received);
                }
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(body);
        let thread = thread.context("the engine's thread")?;
        let rest = opening
            .recv()
            .map_err(|_| anyhow!("the engine's thread ended while it opened the model"))??;
        Ok((Self { requests, status }, rest, thread))
    }

    /// Hands a request to the engine; what comes of it comes through the mailbox.
    pub(super) fn submit(
        &self,
        request: BatchRequest,
        outbox: Outbox,
        asked: Instant,
    ) -> Result<(), ApiError> {
        let submission = Submission {
            request,
            outbox,
            asked,
        };
        self.requests
            .send(submission)
            .map_err(|_| ApiError::worker_gone())
    }

    /// What is known of the engine.
    pub(super) fn status(&self) -> &Status {
        &self.status
    }
}

impl Status {
    /// Whether the engine's thread runs.
    pub(super) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    /// Where the engine stood after its last step.
    pub(super) fn stats(&self) -> BatchStats {
        *self.lock()
    }

    /// How long one has to wait behind `ahead` others of whom `running` run at once.
    pub(super) fn wait(&self, ahead: usize, running: usize) -> Duration {
        let service = Duration::from_micros(self.service.load(Ordering::Relaxed));
        service.mul_f64(ahead as f64 / running.max(1) as f64)
    }

    fn served(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let before = self.service.load(Ordering::Relaxed);
        let next = if before == 0 {
            time
        } else {
            before - before / 8 + time / 8
        };
        self.service.store(next, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BatchStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the thread is alive until it ends, in whatever way.
struct Alive<'a>(&'a Status);

impl<'a> Alive<'a> {
    fn new(status: &'a Status) -> Self {
        status.alive.store(true, Ordering::SeqCst);
        Self(status)
    }
}

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::SeqCst);
    }
}

/// The life of the thread.
struct Loop<'a, C> {
    core: C,
    status: &'a Status,
    metrics: &'a Metrics,
    requests: HashMap<RequestId, Running>,
    events: Vec<BatchEvent>,
}

/// A request that the engine has.
struct Running {
    outbox: Outbox,
    asked: Instant,
    /// When its first and its last text came.
    first: Option<Instant>,
    last: Option<Instant>,
}

impl<'a, C: Core> Loop<'a, C> {
    fn new(core: C, status: &'a Status, metrics: &'a Metrics) -> Self {
        Self {
            core,
            status,
            metrics,
            requests: HashMap::new(),
            events: Vec::new(),
        }
    }

    /// Until nobody can ask any more and nothing runs.
    fn run(mut self, received: &Receiver<Submission>) {
        loop {
            if self.requests.is_empty() {
                match received.recv_timeout(IDLE) {
                    Ok(submission) => self.take(submission),
                    Err(RecvTimeoutError::Timeout) => self.core.drop_idle(Instant::now()),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            while let Ok(submission) = received.try_recv() {
                self.take(submission);
            }
            self.leave_the_gone();
            if !self.requests.is_empty() {
                self.step();
            }
            *self.status.lock() = self.core.stats();
        }
    }

    fn take(&mut self, submission: Submission) {
        let Submission {
            request,
            outbox,
            asked,
        } = submission;
        if outbox.is_closed() {
            return;
        }
        match self.core.submit(request) {
            Ok(id) => {
                let running = Running {
                    outbox,
                    asked,
                    first: None,
                    last: None,
                };
                self.requests.insert(id, running);
            }
            Err(error) => outbox.fail(error.into()),
        }
    }

    /// Cancels what nobody reads any more.
    fn leave_the_gone(&mut self) {
        let core = &mut self.core;
        self.requests.retain(|&id, running| {
            let gone = running.outbox.is_closed();
            if gone {
                core.cancel(id);
            }
            !gone
        });
    }

    fn step(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        let step = self.core.step(Instant::now(), &mut events);
        for event in events.drain(..) {
            self.deliver(event);
        }
        self.events = events;
        if step == Step::Idle {
            // The engine has nothing of what is waited for here: nobody must wait for it.
            for (_, running) in self.requests.drain() {
                running.outbox.fail(ApiError::new(
                    Code::InternalError,
                    "the server failed to answer",
                ));
            }
        }
    }

    fn deliver(&mut self, event: BatchEvent) {
        let id = event.id();
        let Some(running) = self.requests.get_mut(&id) else {
            return;
        };
        let sent = match event {
            BatchEvent::Started { .. } => Ok(()),
            BatchEvent::Progress { done, total, .. } => {
                running.outbox.send(News::Progress { done, total })
            }
            BatchEvent::Text { text, tokens, .. } => {
                running.note_text(self.metrics);
                running.outbox.send(News::Text { text, tokens })
            }
            BatchEvent::Finished { outcome, .. } => {
                if outcome.reason != StopReason::Cancelled {
                    self.status.served(outcome.prefill + outcome.decode);
                }
                let sent = running.outbox.send(News::Finished(Box::new(outcome)));
                if sent == Err(Unsent::Full) {
                    running.outbox.fail(slow_reader());
                }
                self.requests.remove(&id);
                return;
            }
            BatchEvent::Failed { error, .. } => {
                running.outbox.fail(error.into());
                self.requests.remove(&id);
                return;
            }
        };
        if sent.is_err() {
            if sent == Err(Unsent::Full) {
                running.outbox.fail(slow_reader());
            }
            self.core.cancel(id);
            self.requests.remove(&id);
        }
    }
}

impl Running {
    fn note_text(&mut self, metrics: &Metrics) {
        let now = Instant::now();
        if self.first.is_none() {
            self.first = Some(now);
            metrics.first_token.observe(now - self.asked);
        }
        if let Some(last) = self.last.replace(now) {
            metrics.between_tokens.observe(now - last);
        }
    }
}

fn slow_reader() -> ApiError {
    ApiError::new(
        Code::SlowReader,
        "the answer was not read as fast as it came",
    )
}

/// How often an idle engine looks for what to forget.
const IDLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::mail::{Inbox, mailbox};
    use super::*;

    /// Answers each request with one piece of text per step, for as many steps as its prompt has tokens. Token 13 panics,
    /// token 7 is refused.
    struct Script {
        queue: VecDeque<(RequestId, usize)>,
        next: u64,
        cancelled: Sender<RequestId>,
    }

    impl Core for Script {
        fn submit(&mut self, request: BatchRequest) -> Result<RequestId, Error> {
            if request.prompt == [7] {
                return Err(Error::Request("seven".to_owned()));
            }
            assert_ne!(request.prompt, [13], "the engine breaks");
            self.next += 1;
            self.queue
                .push_back((RequestId::from(self.next), request.prompt.len()));
            Ok(RequestId::from(self.next))
        }

        fn cancel(&mut self, id: RequestId) {
            self.queue.retain(|entry| entry.0 != id);
            self.cancelled.send(id).unwrap();
        }

        fn step(&mut self, _now: Instant, events: &mut Vec<BatchEvent>) -> Step {
            let Some((id, left)) = self.queue.pop_front() else {
                return Step::Idle;
            };
            if left == 0 {
                events.push(BatchEvent::Failed {
                    id,
                    error: Error::NonFinite { position: 0 },
                });
            } else {
                events.push(BatchEvent::Text {
                    id,
                    text: "x".to_owned(),
                    tokens: Vec::new(),
                });
                self.queue.push_back((id, left - 1));
            }
            thread::sleep(Duration::from_millis(1));
            Step::Worked
        }

        fn stats(&self) -> BatchStats {
            BatchStats {
                running: self.queue.len(),
                ..BatchStats::default()
            }
        }

        fn drop_idle(&mut self, _now: Instant) {}
    }

    fn started() -> (Worker, JoinHandle<()>, Receiver<RequestId>) {
        let (cancelled, cancellations) = channel();
        let open = || {
            Ok((
                Script {
                    queue: VecDeque::new(),
                    next: 0,
                    cancelled,
                },
                (),
            ))
        };
        let (worker, (), thread) = Worker::start(Arc::new(Metrics::default()), open).unwrap();
        (worker, thread, cancellations)
    }

    fn ask(worker: &Worker, prompt: &[u32], limit: usize) -> Inbox {
        let (mut outboxes, inbox) = mailbox(1, limit);
        worker
            .submit(
                BatchRequest::new(prompt.to_vec()),
                outboxes.remove(0),
                Instant::now(),
            )
            .unwrap();
        inbox
    }

    #[tokio::test]
    async fn news_come_in_order_and_a_failure_is_of_one_request_alone() {
        let (worker, thread, _cancelled) = started();
        let (mut refused, mut one) = (ask(&worker, &[7], 10_000), ask(&worker, &[1, 2], 10_000));
        assert!(
            matches!(refused.next().await, Some((0, News::Failed(error))) if error.code() == Code::InvalidValue)
        );
        assert!(matches!(one.next().await, Some((0, News::Text { .. }))));
        assert!(matches!(one.next().await, Some((0, News::Text { .. }))));
        assert!(
            matches!(one.next().await, Some((0, News::Failed(error))) if error.code() == Code::NumericalError)
        );
        assert!(worker.status().is_alive());
        drop(worker);
        thread.join().unwrap();
    }

    #[tokio::test]
    async fn a_client_that_left_or_does_not_read_is_cancelled() {
        let (worker, _thread, cancelled) = started();
        let wait = Duration::from_secs(5);
        drop(ask(&worker, &vec![1; 100_000], 10_000));
        // One that left before the engine took it is never started; else it is cancelled.
        let mut slow = ask(&worker, &vec![1; 100_000], 600);
        assert!(cancelled.recv_timeout(wait).is_ok());
        let mut last = None;
        while let Some((_, news)) = {
            thread::sleep(Duration::from_millis(20));
            slow.next().await
        } {
            last = Some(news);
        }
        assert!(matches!(last, Some(News::Failed(error)) if error.code() == Code::SlowReader));
    }

    #[tokio::test]
    async fn when_the_thread_is_gone_nobody_waits_for_it() {
        let (worker, thread, _cancelled) = started();
        let mut before = ask(&worker, &vec![1; 100_000], 10_000_000);
        assert!(matches!(before.next().await, Some((0, News::Text { .. }))));
        let mut broken = ask(&worker, &[13], 10_000);
        assert!(thread.join().is_err());
        while before.next().await.is_some() {}
        assert!(broken.next().await.is_none());
        assert!(!worker.status().is_alive());
        let (mut outboxes, _inbox) = mailbox(1, 1000);
        let refused = worker.submit(
            BatchRequest::new(vec![1]),
            outboxes.remove(0),
            Instant::now(),
        );
        assert_eq!(refused.unwrap_err().code(), Code::WorkerGone);
    }
}
