//! The CPU backend: algorithms written once over sixteen virtual lanes, compiled per instruction set.
#![expect(
    clippy::inline_always,
    reason = "code over `Simd` must melt into the one function per level that enables its features"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "blocks of registers are indexed by row and tile, several arrays at a time"
)]
#![expect(
    clippy::unused_self,
    reason = "a level's `self` is the proof that its instructions are there"
)]

mod attention;
mod block;
mod caches;
mod ceilings;
mod element;
mod elementwise;
mod fill;
mod float_tile;
mod kv_append;
mod linear;
mod norm;
mod pack;
mod panel;
mod plan;
mod product;
mod raw;
mod rope;
mod rows;
mod scalar;
mod simd;
mod table;
mod threads;
mod topology;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::env;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::table::Level;
use self::threads::Pool;
use crate::backend::{
    AttentionArgs, Backend, Gelu, KvAppendArgs, LinearArgs, NormArgs, RopeArgs, RowsOut,
};
use crate::buffer::Slab;
use crate::check::{check_read_integers, check_read_row};
use crate::error::{Error, Result};
use crate::quant::Format;
use crate::rows::QuantizedRows;
use crate::tensor::{TensorMut, TensorRef};
use crate::weights::{RowSource, Weights};

pub use self::caches::Caches;
pub use self::ceilings::{Ceilings, PlainRead};
pub use self::table::Isa;
pub use self::topology::Topology;

/// The CPU, with one instruction set and a number of threads.
pub struct CpuBackend {
    level: Level,
    pool: Pool,
    /// Working memory of each thread; grows to what it needs and stays.
    scratch: Vec<Mutex<Scratch>>,
    /// Floats that every thread has.
    reserved: AtomicUsize,
    /// Linear layers so far.
    jobs: AtomicU64,
    /// Bytes of the cache that each core has for itself.
    core_cache: usize,
    /// Where weights lie.
    slab: Slab,
    /// What parts of generated rows come to, until they are merged.
    partials: Mutex<Vec<f32>>,
}

impl CpuBackend {
    /// A backend of an instruction set, on `threads` threads (the caller's included).
    ///
    /// # Errors
    /// When this machine lacks the instruction set, or `threads` is 0.
    pub fn new(isa: Isa, threads: usize) -> Result<Self> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(Error::Device {
                what: format!("threads: expected 1 to {MAX_THREADS}, got {threads}"),
            });
        }
        let pool = Pool::new(threads);
        let scratch = (0..pool.threads()).map(|_| Mutex::default()).collect();
        Ok(Self {
            level: Level::new(isa)?,
            pool,
            scratch,
            reserved: AtomicUsize::new(0),
            jobs: AtomicU64::new(0),
            core_cache: caches::of_core(),
            slab: Slab::default(),
            partials: Mutex::default(),
        })
    }

    /// The best backend of this machine; `CIDER_CPU` forces the instruction set and `CIDER_THREADS` the
    /// threads, unless `threads` does.
    ///
    /// # Errors
    /// When a variable cannot be honoured.
    pub fn from_env(threads: Option<usize>) -> Result<Self> {
        let (isa, threads) = Self::choice(threads)?;
        Self::new(isa, threads)
    }

    /// The instruction set and the number of threads that [`CpuBackend::from_env`] takes. Starts nothing.
    ///
    /// # Errors
    /// When a variable cannot be honoured.
    pub fn choice(threads: Option<usize>) -> Result<(Isa, usize)> {
        let isa = match env::var("CIDER_CPU") {
            Ok(name) if !name.is_empty() => name
                .parse()
                .and_then(Level::new)
                .map_err(|error| Error::Device {
                    what: format!("CIDER_CPU: {error}"),
                })?
                .isa(),
            _ => Isa::best(),
        };
        let asked = match env::var("CIDER_THREADS") {
            Ok(text) if threads.is_none() && !text.is_empty() => Some(
                text.parse()
                    .ok()
                    .filter(|&n| n > 0)
                    .ok_or_else(|| Error::Device {
                        what: format!("CIDER_THREADS: expected a number above 0, got {text}"),
                    })?,
            ),
            _ => threads,
        };
        Ok((isa, asked.unwrap_or_else(|| Topology::detect().threads())))
    }

    /// The instruction set.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.level.isa()
    }

    /// Threads, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn scratch(&self, worker: usize) -> MutexGuard<'_, Scratch> {
        self.scratch[worker]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no other linear layer has had.
    fn next_job(&self) -> u64 {
        self.jobs.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives every thread working memory of `floats` floats: those too that are not needed this time, for
    /// they may be when nothing is to be allocated.
    fn reserve(&self, floats: usize) {
        if self.reserved.load(Ordering::Relaxed) >= floats {
            return;
        }
        for worker in 0..self.scratch.len() {
            self.scratch(worker).take(floats, 0);
        }
        self.reserved.fetch_max(floats, Ordering::Relaxed);
    }

    /// Calls `body` for each task with `floats` floats of working memory.
    fn each_task(
        &self,
        tasks: usize,
        floats: usize,
        body: impl Fn(Level, usize, &mut [f32]) + Sync,
    ) {
        self.reserve(floats);
        self.pool.run(tasks, &|worker, task| {
            let mut scratch = self.scratch(worker);
            let (floats, _) = scratch.take(floats, 0);
            body(self.level, task, floats);
        });
    }

    /// Calls `body` for each row with `floats` floats of working memory; on one thread when the rows are
    /// small. A thread takes whole numbers of `together` rows: those that share cache lines.
    fn each_row(
        &self,
        (rows, together): (usize, usize),
        cols: usize,
        floats: usize,
        body: impl Fn(Level, usize, &mut [f32]) + Sync,
    ) {
        let each = (ROW_TASK / cols.max(1)).max(1).next_multiple_of(together);
        self.each_task(rows.div_ceil(each), floats, |level, task, floats| {
            for row in task * each..((task + 1) * each).min(rows) {
                body(level, row, floats);
            }
        });
    }
}

impl fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Backend for CpuBackend {
    fn describe(&self) -> String {
        format!("cpu, {}, {} threads", self.isa(), self.threads())
    }

    fn quantized_rows(&self, capacity: usize, cols: usize) -> Result<QuantizedRows> {
        QuantizedRows::new(capacity, cols, self.isa().row_layout())
    }

    fn weights(&self, format: Format, n: usize, k: usize) -> Result<Weights> {
        pack::zeroed(&self.slab, format, n, k)
    }

    fn fill_weights(
        &self,
        weights: &mut Weights,
        first: usize,
        count: usize,
        source: RowSource<'_>,
    ) -> Result<()> {
        fill::fill(self, weights, first, count, source)
    }

    fn set_bias(&self, weights: &mut Weights, first: usize, bias: &[f32]) -> Result<()> {
        weights.check_rows(first, bias.len())?;
        weights.bias.as_mut_slice::<f32>()[first..first + bias.len()].copy_from_slice(bias);
        Ok(())
    }

    fn read_row(&self, weights: &Weights, row: usize, out: &mut [f32]) -> Result<()> {
        check_read_row(weights, row, out)?;
        pack::read_row(weights, row, out);
        Ok(())
    }

    fn read_integers(
        &self,
        weights: &Weights,
        row: usize,
        out: &mut [i8],
        scales: &mut [f32],
    ) -> Result<()> {
        check_read_integers(weights, row, out, scales)?;
        pack::read_integers(weights, row, out, scales);
        Ok(())
    }

    fn quantize(&self, x: TensorRef<'_>, out: &mut QuantizedRows) -> Result<()> {
        rows::quantize(self, x, out)
    }

    fn linear(&self, args: LinearArgs<'_>) -> Result<()> {
        linear::linear(self, args)
    }

    fn matmul_i32(
        &self,
        input: &QuantizedRows,
        weights: &Weights,
        out: TensorMut<'_>,
    ) -> Result<()> {
        linear::matmul_i32(self, input, weights, out)
    }

    fn norm(&self, args: NormArgs<'_>) -> Result<()> {
        norm::norm(self, args)
    }

    fn rope(&self, args: RopeArgs<'_>) -> Result<()> {
        rope::rope(self, args)
    }

    fn kv_append(&self, args: KvAppendArgs<'_>) -> Result<()> {
        kv_append::kv_append(self, args)
    }

    fn attention(&self, args: AttentionArgs<'_>) -> Result<()> {
        attention::attention(self, args)
    }

    fn gated(&self, gate: TensorRef<'_>, up: TensorRef<'_>, out: RowsOut<'_>) -> Result<()> {
        elementwise::gated(self, gate, up, out)
    }

    fn gelu(&self, x: TensorRef<'_>, kind: Gelu, out: TensorMut<'_>) -> Result<()> {
        elementwise::gelu(self, x, kind, out)
    }

    fn add(&self, x: TensorMut<'_>, y: TensorRef<'_>) -> Result<()> {
        elementwise::add(self, x, y)
    }

    fn copy(&self, x: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
        elementwise::copy(self, x, out)
    }

    fn embedding(&self, table: &Weights, ids: &[u32], out: TensorMut<'_>) -> Result<()> {
        elementwise::embedding(self, table, ids, out)
    }

    fn argmax(&self, x: TensorRef<'_>, out: &mut [u32]) -> Result<()> {
        elementwise::argmax(self, x, out)
    }
}

/// Working memory of one thread.
#[derive(Debug, Default)]
struct Scratch {
    floats: Vec<f32>,
    bytes: Vec<u8>,
    /// The linear layer and the panel that the floats were last filled for.
    packed: Option<(u64, usize)>,
}

impl Scratch {
    /// Floats and bytes of any contents.
    fn take(&mut self, floats: usize, bytes: usize) -> (&mut [f32], &mut [u8]) {
        self.packed = None;
        if self.floats.len() < floats {
            self.floats.resize(floats, 0.0);
        }
        if self.bytes.len() < bytes {
            self.bytes.resize(bytes, 0);
        }
        (&mut self.floats[..floats], &mut self.bytes[..bytes])
    }
}

/// The most threads that are started; more only wait for each other.
const MAX_THREADS: usize = 1024;

/// Elements a thread takes at a time in ops that go row by row: less is not worth waking a thread.
const ROW_TASK: usize = 16 * 1024;
