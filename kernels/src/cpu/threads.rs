//! A thread pool whose dispatch costs less than a microsecond: workers spin for a moment, then park.
//!
//! General pools wake threads through queues (10 to 20 microseconds a dispatch); a decode step dispatches
//! hundreds of times.

use std::cell::UnsafeCell;
use std::hint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Threads that run numbered tasks together with the caller.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One dispatch at a time.
    dispatch: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads, the caller's included.
    pub(crate) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::new(threads));
        // Workers are numbered without gaps: behind one that cannot be started there are no others.
        let workers = (1..threads)
            .map_while(|worker| {
                let shared = Arc::clone(&shared);
                let name = format!("cider-{worker}");
                thread::Builder::new()
                    .name(name)
                    .spawn(move || {
                        shared.started.fetch_add(1, Ordering::Release);
                        shared.work(worker);
                    })
                    .ok()
            })
            .collect::<Vec<_>>();
        // What a thread needs to begin is its own affair and allocates: no dispatch is to pay for it.
        while shared.started.load(Ordering::Acquire) < workers.len() {
            thread::yield_now();
        }
        Self {
            shared,
            workers,
            dispatch: Mutex::new(()),
        }
    }

    /// Threads that run tasks, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(worker, task)` once for each task in `0..tasks`, on any of the threads, and returns when
    /// all are done. `worker` is below [`Pool::threads`] and no two threads share one at a time. A thread takes
    /// tasks that follow each other, and at the end what others have left.
    ///
    /// # Panics
    /// When a task did.
    pub(crate) fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        let _guard = self.dispatch.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks <= 1 || self.workers.is_empty() || u32::try_from(tasks).is_err() {
            for task in 0..tasks {
                body(0, task);
            }
            return;
        }
        self.shared.publish((self.threads(), tasks), body);
        self.wake();
        let own = catch_unwind(AssertUnwindSafe(|| self.shared.drain(0, body)));
        self.shared.close();
        let failed = self.shared.failed.swap(false, Ordering::AcqRel);
        assert!(own.is_ok() && !failed, "a task of the thread pool panicked");
    }

    /// The first of `tasks` tasks that are dealt to `worker`.
    pub(crate) fn begins(&self, worker: usize, tasks: usize) -> usize {
        first_of(worker, self.threads(), tasks)
    }

    fn wake(&self) {
        if self.shared.sleeping.load(Ordering::SeqCst) > 0 {
            self.shared.wakes.fetch_add(1, Ordering::Relaxed);
            self.workers
                .iter()
                .map(JoinHandle::thread)
                .for_each(Thread::unpark);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.workers
            .iter()
            .map(JoinHandle::thread)
            .for_each(Thread::unpark);
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so it ends by itself.
            let _ = worker.join();
        }
    }
}

/// A borrowed body with its lifetime forgotten; used only between `publish` and `close`.
type Body = *const (dyn Fn(usize, usize) + Sync);

struct Shared {
    /// `epoch << 16 | joined`, even epochs closed and odd ones open: a worker joins an open epoch by adding
    /// one, so a late worker never touches a body that is gone.
    gate: AtomicU64,
    /// Workers of this epoch that are done.
    done: AtomicUsize,
    /// The tasks that each thread has left.
    ranges: Box<[TaskRange]>,
    /// Workers that have begun.
    started: AtomicUsize,
    sleeping: AtomicUsize,
    /// Dispatches that found somebody asleep.
    wakes: AtomicUsize,
    stop: AtomicBool,
    failed: AtomicBool,
    job: UnsafeCell<Option<Body>>,
}

// SAFETY: `job` is written only while the gate is closed and no worker has joined, and read only by workers
// that joined the epoch it was published for; the gate's release and acquire order the two.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to a `Sync` closure.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("gate", &self.gate)
            .field("wakes", &self.wakes)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn new(threads: usize) -> Self {
        Self {
            gate: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            ranges: (0..threads.max(1)).map(|_| TaskRange::default()).collect(),
            started: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            wakes: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            job: UnsafeCell::new(None),
        }
    }

    /// Opens the next epoch for `body`, whose tasks are dealt out to the threads in equal parts.
    fn publish(&self, (threads, tasks): (usize, usize), body: &(dyn Fn(usize, usize) + Sync)) {
        // SAFETY: only the lifetime is dropped; `close` waits for every worker that joined before `run`
        // returns, so nobody uses the pointer after the borrow ends.
        let body: Body =
            unsafe { std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), Body>(body) };
        for (worker, range) in self.ranges[..threads].iter().enumerate() {
            let first = |worker| first_of(worker, threads, tasks);
            range.set(first(worker), first(worker + 1));
        }
        self.done.store(0, Ordering::Relaxed);
        // SAFETY: the gate is closed and all workers of the last epoch are done: nobody reads `job`.
        unsafe { *self.job.get() = Some(body) };
        let epoch = self.gate.load(Ordering::Relaxed) >> 16;
        self.gate.store((epoch + 1) << 16, Ordering::SeqCst);
    }

    /// Closes the epoch and waits for those who joined it.
    fn close(&self) {
        let mut gate = self.gate.load(Ordering::Acquire);
        while let Err(now) = self.gate.compare_exchange_weak(
            gate,
            ((gate >> 16) + 1) << 16,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            gate = now;
        }
        let joined = (gate & 0xffff) as usize;
        let mut turns = 0_u32;
        while self.done.load(Ordering::Acquire) < joined {
            turns += 1;
            pause(turns);
        }
    }

    fn drain(&self, worker: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        while let Some(task) = self.ranges[worker].first().or_else(|| self.steal()) {
            body(worker, task);
        }
    }

    /// The last task of whoever has the most left.
    fn steal(&self) -> Option<usize> {
        loop {
            let richest = self.ranges.iter().max_by_key(|range| range.left())?;
            if richest.left() == 0 {
                return None;
            }
            if let Some(task) = richest.last() {
                return Some(task);
            }
        }
    }

    fn work(&self, worker: usize) {
        let mut seen = 0;
        while let Some(gate) = self.wait(seen) {
            seen = gate >> 16;
            if self
                .gate
                .compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
                && !self.join(seen)
            {
                continue;
            }
            // SAFETY: this worker joined the open epoch, so `publish` wrote the job before and `close`
            // keeps the body alive until `done` is raised below.
            if let Some(body) = unsafe { *self.job.get() } {
                // SAFETY: as above.
                let body = unsafe { &*body };
                if catch_unwind(AssertUnwindSafe(|| self.drain(worker, body))).is_err() {
                    self.failed.store(true, Ordering::Release);
                }
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    /// Joins epoch `epoch` if it is still open.
    fn join(&self, epoch: u64) -> bool {
        let mut gate = self.gate.load(Ordering::Acquire);
        while gate >> 16 == epoch {
            match self.gate.compare_exchange_weak(
                gate,
                gate + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    /// Waits for an open epoch after `seen`; nothing when the pool ends.
    fn wait(&self, seen: u64) -> Option<u64> {
        let open = |gate: u64| (gate >> 16) % 2 == 1 && gate >> 16 != seen;
        let start = Instant::now();
        let mut turns = 0_u32;
        loop {
            for _ in 0..SPINS {
                let gate = self.gate.load(Ordering::Acquire);
                if open(gate) {
                    return Some(gate);
                }
                turns = turns.saturating_add(1);
                pause(turns);
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if start.elapsed() < SPIN_TIME {
                continue;
            }
            self.sleeping.fetch_add(1, Ordering::SeqCst);
            let idle = !open(self.gate.load(Ordering::SeqCst)) && !self.stop.load(Ordering::SeqCst);
            if idle {
                thread::park();
            }
            self.sleeping.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The first task of a thread's part: the parts are equal.
fn first_of(worker: usize, threads: usize, tasks: usize) -> usize {
    tasks * worker / threads
}

/// Tasks `start..end` as `end << 32 | start`, in a cache line of their own.
#[derive(Default)]
#[repr(align(64))]
struct TaskRange(AtomicU64);

impl TaskRange {
    /// Both are below 2^32.
    fn set(&self, start: usize, end: usize) {
        self.0
            .store((end as u64) << 32 | start as u64, Ordering::Relaxed);
    }

    fn left(&self) -> u64 {
        let range = self.0.load(Ordering::Relaxed);
        (range >> 32).saturating_sub(range & u64::from(u32::MAX))
    }

    /// Takes the first task.
    fn first(&self) -> Option<usize> {
        self.take(|range| (range + 1, range & u64::from(u32::MAX)))
    }

    /// Takes the last task.
    fn last(&self) -> Option<usize> {
        self.take(|range| (range - (1 << 32), (range >> 32) - 1))
    }

    /// Takes a task if there is one; `one` gives what is left, and the task.
    fn take(&self, one: impl Fn(u64) -> (u64, u64)) -> Option<usize> {
        let mut range = self.0.load(Ordering::Relaxed);
        while range >> 32 > range & u64::from(u32::MAX) {
            let (left, task) = one(range);
            match self
                .0
                .compare_exchange_weak(range, left, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(task as usize),
                Err(now) => range = now,
            }
        }
        None
    }
}

/// Waits for an instant; after the first moments it offers the core to whoever lost theirs, so that a busy
/// machine does not wait for a thread that waits itself.
fn pause(turns: u32) {
    if turns > PURE_SPINS && turns.is_multiple_of(32) {
        thread::yield_now();
    }
    hint::spin_loop();
}

/// Looks at the gate between two looks at the clock.
const SPINS: u32 = 256;

/// Waits before the core is offered to others: some ten microseconds.
const PURE_SPINS: u32 = 2048;

/// How long an idle worker spins: longer than the gaps inside a decode step, shorter than those between
/// requests.
const SPIN_TIME: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_sizes() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 7, 100, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|worker, task| {
                    assert!(worker < threads);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts
                        .iter()
                        .all(|count| count.load(Ordering::Relaxed) == 1)
                );
            }
        }
    }

    #[test]
    fn a_thread_takes_tasks_in_order_and_others_take_what_it_does_not_get_to() {
        let pool = Pool::new(2);
        let taken = Mutex::new(vec![Vec::new(); 2]);
        pool.run(64, &|worker, task| {
            taken.lock().unwrap()[worker].push(task);
            // The first thread is held up: the other one does nearly all of its work.
            thread::sleep(Duration::from_millis(if worker == 0 { 30 } else { 1 }));
        });
        let taken = taken.into_inner().unwrap();
        assert!(taken[0].len() < 32, "{taken:?}");
        assert!(taken[0].is_sorted() && taken[0][0] == 0, "{taken:?}");
        let own: Vec<usize> = taken[1].iter().copied().filter(|&t| t >= 32).collect();
        assert!(own.is_sorted() && own[0] == 32, "{taken:?}");
        let stolen: Vec<usize> = taken[1].iter().copied().filter(|&t| t < 32).collect();
        assert!(
            stolen.is_sorted_by(|a, b| a > b) && stolen[0] == 31,
            "{taken:?}"
        );
    }

    #[test]
    fn many_dispatches_from_several_callers_and_after_sleep() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2000 {
                        pool.run(3, &|_, task| {
                            total.fetch_add(task, Ordering::Relaxed);
                        });
                        if round % 500 == 0 {
                            thread::sleep(SPIN_TIME * 4);
                        }
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 4 * 2000 * 3);
    }

    /// A step of a model is hundreds of dispatches in a row: its threads are woken for the first.
    #[test]
    fn dispatches_that_follow_each_other_wake_nobody() {
        let pool = Pool::new(2);
        for _ in 0..2000 {
            pool.run(4, &|_, task| {
                hint::black_box(task);
            });
        }
        // A machine busy with others may take the core away for longer than a worker waits.
        let wakes = pool.shared.wakes.load(Ordering::Relaxed);
        assert!(wakes <= 200, "{wakes} of 2000 dispatches woke a thread");
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives() {
        let pool = Pool::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(8, &|_, task| assert!(task != 5, "task five"));
        }));
        assert!(result.is_err());
        let total = AtomicUsize::new(0);
        pool.run(8, &|_, _| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.load(Ordering::Relaxed), 8);
    }
}
