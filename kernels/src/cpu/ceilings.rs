//! What the machine can do at most: the measure of everything else.
//!
//! The dot-product units run on operands in registers, all threads at once; memory is read plainly, from a buffer
//! that no cache holds. Nothing that computes something can be faster than these.

use std::fmt;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::CpuBackend;
use super::caches::Caches;
use super::simd::{Kernel, LANES, Simd};
use super::threads::Pool;
use crate::buffer::Buffer;
use crate::error::Result;

/// The ceilings of a backend: of its threads and its instruction set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// INT8 operations per second (a multiplication and an addition are two).
    pub int8: f64,
    /// bf16 operations per second of the dot-product instruction, where there is one.
    pub bf16: Option<f64>,
    /// f32 operations per second.
    pub f32: f64,
    /// Bytes per second that a plain loop reads from memory.
    pub read: f64,
}

impl Ceilings {
    /// Measures them: the best of seven runs each, and of more as long as one betters the others.
    ///
    /// # Errors
    /// When there is no memory for a buffer larger than the caches.
    pub fn measure(backend: &CpuBackend) -> Result<Self> {
        Self::measure_with(backend, 7)
    }

    /// Measures them from `rounds` runs each.
    ///
    /// # Errors
    /// When there is no memory for a buffer larger than the caches.
    pub fn measure_with(backend: &CpuBackend, rounds: usize) -> Result<Self> {
        let peaks = backend.level.peaks();
        let rate = |busy: Busy| busy.rate(&backend.pool, rounds);
        Ok(Self {
            int8: rate(peaks.int8),
            bf16: peaks.bf16.map(rate),
            f32: rate(peaks.f32),
            read: read_rate(backend, rounds)?,
        })
    }

    /// The better of two measurements, figure by figure: what other programs took away is no property of the
    /// machine.
    #[must_use]
    pub fn best(self, other: Self) -> Self {
        Self {
            int8: self.int8.max(other.int8),
            bf16: self.bf16.zip(other.bf16).map(|(a, b)| a.max(b)),
            f32: self.f32.max(other.f32),
            read: self.read.max(other.read),
        }
    }
}

/// The busy loops of a level.
#[derive(Clone, Copy)]
pub(crate) struct Peaks {
    pub(crate) int8: Busy,
    pub(crate) bf16: Option<Busy>,
    pub(crate) f32: Busy,
}

/// A loop that keeps units busy on `operands`.
#[derive(Clone, Copy)]
pub(crate) struct Busy {
    /// Runs some rounds; needs the instructions of the level it was made for.
    body: unsafe fn(u64, u32, u32),
    /// Multiplications with additions of a round.
    products: u64,
    operands: [u32; 2],
}

impl Busy {
    pub(crate) const fn new(
        body: unsafe fn(u64, u32, u32),
        products: u64,
        operands: [u32; 2],
    ) -> Self {
        Self {
            body,
            products,
            operands,
        }
    }

    /// Operations per second of all threads.
    fn rate(self, pool: &Pool, rounds: usize) -> f64 {
        let [left, right] = self.operands;
        let run = |turns: u64| {
            // SAFETY: a level gives out its own loops alone, and it was found on this machine.
            together(pool, &|_| unsafe { (self.body)(turns, left, right) })
        };
        // Grown until a run is long against the start of the threads.
        let mut turns = 1 << 10;
        while run(turns).time < RUN && turns < 1 << 40 {
            turns *= 2;
        }
        let operations = 2 * self.products * turns * pool.threads() as u64;
        operations as f64 / best_of(rounds, || run(turns)).as_secs_f64()
    }
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Busy({} products a round)", self.products)
    }
}

/// The loops of a level that has none of its own: what the compiler makes of the vocabulary.
pub(crate) const PORTABLE: Peaks = Peaks {
    int8: Busy::new(
        portable_int8,
        CHAINS as u64 * 64,
        [0x91d3_57a5, 0x35f1_9b4d],
    ),
    bf16: None,
    f32: Busy::new(portable_f32, CHAINS as u64 * 16, [0x3f80_0000, 0x3a83_126f]),
};

unsafe fn portable_int8(rounds: u64, left: u32, right: u32) {
    let s = super::scalar::Scalar;
    let (bytes, zeros) = ([left; LANES], [0; LANES]);
    // SAFETY: the arrays have the 64 bytes and the sixteen i32 that are read, the number has four bytes.
    let (weights, four, sum) = unsafe {
        let four = s.load_four((&raw const right).cast());
        let weights = s.load_quads(bytes.as_ptr().cast());
        (weights, four, s.start(zeros.as_ptr()))
    };
    let mut sums = [sum; CHAINS];
    for _ in 0..rounds {
        // Opaque, so that no product can be taken out of the loop.
        let four = black_box(four);
        for sum in &mut sums {
            *sum = black_box(s.dot(*sum, weights, four));
        }
    }
    black_box(sums);
}

unsafe fn portable_f32(rounds: u64, left: u32, right: u32) {
    let s = super::scalar::Scalar;
    let (left, right) = (
        s.splat(f32::from_bits(left)),
        s.splat(f32::from_bits(right)),
    );
    let mut sums = [s.splat(0.0); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = black_box(s.fma(left, right, *sum));
        }
    }
    black_box(sums);
}

/// Bytes per second that all threads read together. A run reads the whole buffer: of a part that the last cache
/// happens to keep the best run would make the figure of a cache.
fn read_rate(backend: &CpuBackend, rounds: usize) -> Result<f64> {
    let mut plain = PlainRead::new()?;
    let bytes = plain.bytes();
    let time = best_of(rounds, || plain.run(backend, bytes));
    Ok(bytes as f64 / time.as_secs_f64())
}

/// A buffer that no cache holds, read plainly by all threads: how fast memory is at this moment, to be asked beside
/// work that waits for memory.
#[derive(Debug)]
pub struct PlainRead {
    buffer: Buffer,
    /// Bytes of it.
    bytes: usize,
    /// Where the next read begins, in bytes.
    place: usize,
}

impl PlainRead {
    /// A buffer larger than the caches.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new() -> Result<Self> {
        let bytes = (BEYOND * Caches::detect().last + 1).next_multiple_of(MOST_THREADS * BYTES);
        let mut buffer = Buffer::host(bytes)?;
        // Pages that were never written are all the same one, which a cache does hold.
        buffer.as_mut_slice::<f32>().fill(1.0);
        Ok(Self {
            buffer,
            bytes,
            place: 0,
        })
    }

    /// Bytes of the buffer.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads `bytes` bytes, or a few less, behind those that were read last, round and round.
    pub fn read(&mut self, backend: &CpuBackend, bytes: usize) -> Duration {
        let mut left = bytes;
        let mut time = Duration::ZERO;
        while left > 0 {
            let part = left.min(self.bytes - self.place);
            time += self.run(backend, part).time;
            left -= part;
        }
        time
    }

    /// Reads a part that ends within the buffer.
    fn run(&mut self, backend: &CpuBackend, bytes: usize) -> Run {
        let floats = &self.buffer.as_slice::<f32>()[self.place / size_of::<f32>()..];
        let each = bytes / backend.pool.threads() / BYTES * UNIT;
        let run = together(&backend.pool, &|thread| {
            let floats = &floats[thread * each..][..each];
            black_box(backend.level.run(Read { floats }));
        });
        self.place = (self.place + bytes.next_multiple_of(BYTES)) % self.bytes;
        run
    }
}

/// Reads floats, whose number is a multiple of [`UNIT`].
struct Read<'a> {
    floats: &'a [f32],
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut largest = [s.splat(0.0); UNIT / LANES];
        for unit in self.floats.chunks_exact(UNIT) {
            for (i, largest) in largest.iter_mut().enumerate() {
                // SAFETY: a unit has the floats of all lanes of all vectors.
                let v = unsafe { s.load(unit.as_ptr().add(i * LANES)) };
                *largest = s.max(*largest, v);
            }
        }
        let mut all = largest[0];
        for &v in &largest[1..] {
            all = s.max(all, v);
        }
        s.reduce_add(all)
    }
}

/// A run of all threads.
#[derive(Clone, Copy)]
struct Run {
    /// From the first thread's start to the last one's end.
    time: Duration,
    /// Whether they ran side by side, and not one after the other on what others left of the cores.
    side_by_side: bool,
}

/// All threads run `body`, once each, and none begins before all are there.
fn together(pool: &Pool, body: &(dyn Fn(usize) + Sync)) -> Run {
    let threads = pool.threads();
    let missing = AtomicUsize::new(threads);
    let spans = Mutex::new(Vec::with_capacity(threads));
    pool.run(threads, &|_, task| {
        missing.fetch_sub(1, Ordering::AcqRel);
        let mut turns = 0_u32;
        while missing.load(Ordering::Acquire) > 0 {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1024) {
                thread::yield_now();
            }
            spin_loop();
        }
        let start = Instant::now();
        body(task);
        let end = Instant::now();
        spans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((start, end));
    });
    let spans = spans.into_inner().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let starts = || spans.iter().map(|span| span.0);
    let ends = || spans.iter().map(|span| span.1);
    let (first, last) = (starts().min().unwrap_or(now), ends().max().unwrap_or(now));
    let time = last - first;
    let shared = ends()
        .min()
        .zip(starts().max())
        .map_or(Duration::ZERO, |(end, start)| {
            end.saturating_duration_since(start)
        });
    Run {
        time,
        side_by_side: 2 * shared > time,
    }
}

/// The shortest of at least `rounds` runs, over some time: runs are short, so that some fall between what other
/// programs do. As long as one is shorter than those before by a noticeable part, as many follow again; and where
/// threads get no cores side by side, they are waited for with patience.
fn best_of(rounds: usize, mut run: impl FnMut() -> Run) -> Duration {
    let start = Instant::now();
    let (enough, most) = (ROUND * rounds as u32, PATIENCE * rounds as u32);
    let mut best = Duration::MAX;
    let mut since = 0;
    while since < rounds || start.elapsed() < enough {
        let Run { time, side_by_side } = run();
        since = if time.as_secs_f64() < 0.995 * best.as_secs_f64() {
            0
        } else {
            since + usize::from(side_by_side)
        };
        best = best.min(time);
        if start.elapsed() > most {
            break;
        }
        if !side_by_side {
            // Whoever sleeps may be given another core.
            thread::sleep(Duration::from_millis(1));
        }
    }
    // A clock that does not move must not make a rate infinite.
    best.max(Duration::from_nanos(1))
}

/// Independent accumulators of the portable loops.
const CHAINS: usize = 12;
/// How much larger than the last cache the buffer is that is read.
const BEYOND: usize = 4;
/// Floats that a turn of the reading loop reads, and their bytes.
const UNIT: usize = 8 * LANES;
const BYTES: usize = UNIT * size_of::<f32>();
/// The buffer is cut into equal parts for so many threads.
const MOST_THREADS: usize = 64;
/// A run of a busy loop: long against the clock, short against what a scheduler gives others.
const RUN: Duration = Duration::from_micros(400);
/// What is spent on a round at least.
const ROUND: Duration = Duration::from_millis(30);
/// What is spent on a round at most.
const PATIENCE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn every_level_has_ceilings_in_their_order() {
        for isa in Isa::available() {
            let backend = CpuBackend::new(isa, 1).unwrap();
            let found = Ceilings::measure_with(&backend, 1).unwrap();
            // No core of today does a product in less than a 256th of a cycle, or needs a microsecond for it.
            for rate in [found.int8, found.f32, found.bf16.unwrap_or(found.f32)] {
                assert!(rate > 1e6 && rate < 5e12, "{isa}: {found:?}");
            }
            assert!(found.read > 1e7 && found.read < 1e13, "{isa}: {found:?}");
            if isa != Isa::Scalar {
                assert!(found.int8 > found.f32, "{isa}: {found:?}");
            }
        }
    }

    #[test]
    fn threads_start_together_and_each_runs_once() {
        let pool = Pool::new(3);
        let ran = Mutex::new(Vec::new());
        let run = together(&pool, &|thread| {
            thread::sleep(Duration::from_millis(2));
            ran.lock().unwrap().push(thread);
        });
        let mut ran = ran.into_inner().unwrap();
        ran.sort_unstable();
        assert_eq!(ran, [0, 1, 2]);
        assert!(run.time >= Duration::from_millis(2));
    }

    #[test]
    fn the_best_goes_on_while_it_gets_better() {
        let mut calls = 0;
        let best = best_of(3, || {
            thread::sleep(ROUND);
            calls += 1;
            Run {
                time: Duration::from_millis(110_u64.saturating_sub(10 * calls).max(50)),
                side_by_side: true,
            }
        });
        assert_eq!(best, Duration::from_millis(50));
        assert_eq!(calls, 9);
    }

    #[test]
    fn threads_that_never_run_side_by_side_are_waited_for_but_not_for_ever() {
        let start = Instant::now();
        let best = best_of(1, || Run {
            time: Duration::from_millis(3),
            side_by_side: false,
        });
        assert_eq!(best, Duration::from_millis(3));
        assert!(start.elapsed() >= PATIENCE && start.elapsed() < 20 * PATIENCE);
    }
}
