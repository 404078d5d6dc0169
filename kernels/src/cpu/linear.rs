//! Linear layers: one output per lane, columns in ascending order, so the bits depend on nothing but the
//! row, the weights and the format.
//!
//! Rows are interleaved in panels (`panel.rs`), weights in tiles (`pack.rs`). A task (`plan.rs`) takes some
//! panels, which stay in the core's cache, and lets tiles pass; what it computes at once fills the registers.

use std::ops::Range;

use super::block::{Block, Fetch, HELD_ROWS, LINE, Tiles, sum_bytes};
use super::float_tile::{self, FloatTile};
use super::pack::{step_columns, tile_bytes};
use super::panel::{self, Pack};
use super::plan::{Plan, SUM_BYTES, Shape};
use super::product::{Bf16, Bf16Int4, Bf16Int8, F32, Int4, Int8, Product};
use super::rows::OutRows;
use super::simd::{Kernel, LANES, Simd};
use super::table::{Isa, Level};
use super::{CpuBackend, Scratch};
use crate::backend::{LinearArgs, LinearInput};
use crate::check::{check_linear, check_matmul_i32};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::panels::Panels;
use crate::quant::Format;
use crate::rows::{QuantizedRows, UNIT};
use crate::tensor::TensorMut;
use crate::weights::Weights;

/// `out = input . weights + bias`.
pub(super) fn linear(backend: &CpuBackend, mut args: LinearArgs<'_>) -> Result<()> {
    check_linear(&args)?;
    if let LinearInput::Int8(rows) = args.input {
        check_layout(backend, rows)?;
    }
    let out = OutRows::new(&mut args.out)?;
    run(backend, args.input, args.weights, out);
    Ok(())
}

/// `out = input . weights` in integers.
pub(super) fn matmul_i32(
    backend: &CpuBackend,
    input: &QuantizedRows,
    weights: &Weights,
    mut out: TensorMut<'_>,
) -> Result<()> {
    check_matmul_i32(input, weights, &out)?;
    check_layout(backend, input)?;
    let out = OutRows::new(&mut out)?;
    run(backend, LinearInput::Int8(input), weights, out);
    Ok(())
}

/// Refuses rows that another backend laid out: their bytes mean other numbers here.
fn check_layout(backend: &CpuBackend, rows: &QuantizedRows) -> Result<()> {
    if rows.bias == backend.level.isa().row_layout().bias {
        return Ok(());
    }
    Err(Error::shape(
        "linear",
        "the rows were quantised by a backend with another layout",
    ))
}

fn run(backend: &CpuBackend, input: LinearInput<'_>, weights: &Weights, out: OutRows<'_>) {
    let job = Job::new(backend, input, weights, out);
    let floats = job.floats(job.plan, job.panels);
    // Enough for any number of rows: a step with more of them than there have been allocates nothing.
    let most = Panels::new(MANY_ROWS, backend.isa().float_rows());
    backend.reserve(floats.max(job.floats(job.plan_of(most), most)));
    let number = backend.next_job();
    backend.pool.run(job.plan.tasks(), &|worker, task| {
        let mut scratch = backend.scratch(worker);
        let (panels, tiles) = job.plan.task(task);
        let room = job.pack(backend, &mut scratch, floats, (number, panels.start));
        job.level(backend).run(Task {
            job: &job,
            room,
            panels,
            tiles,
        });
    });
}

/// One linear layer, cut into tasks.
pub(super) struct Job<'a> {
    pub(super) input: LinearInput<'a>,
    pub(super) weights: &'a Weights,
    pub(super) out: OutRows<'a>,
    pub(super) panels: Panels,
    /// Units of a row in its panel.
    pub(super) units: usize,
    /// Whether the panels hold bf16.
    pub(super) bf16: bool,
    shape: Shape,
    pub(super) plan: Plan,
    /// Scales of a row, and the columns and the steps that share one.
    pub(super) groups: usize,
    pub(super) group_size: usize,
    pub(super) group_steps: usize,
    /// Whether rows of weights have several scales, or one.
    pub(super) grouped: bool,
    pub(super) per_channel: bool,
    pub(super) tile_bytes: usize,
}

impl<'a> Job<'a> {
    fn new(
        backend: &CpuBackend,
        input: LinearInput<'a>,
        weights: &'a Weights,
        out: OutRows<'a>,
    ) -> Self {
        let isa = backend.level.isa();
        let integers = matches!(input, LinearInput::Int8(_));
        let (panels, units, bf16) = match input {
            LinearInput::Int8(rows) => (rows.panels, rows.stride / UNIT, false),
            LinearInput::Float(x) => {
                let bf16 = isa.has_bf16_dot()
                    && x.dtype() == DType::Bf16
                    && !matches!(weights.format, Format::Dense(DType::F32 | DType::F16));
                let panels = Panels::new(x.rows(), isa.float_rows());
                (panels, panel::units(x.cols(), bf16), bf16)
            }
        };
        let at_once = match (isa, panels.each) {
            (Isa::Scalar, _) => 1,
            _ if isa.is_wide() => 2,
            (_, 1) => 4,
            _ => 1,
        };
        let format = weights.format;
        let (per_channel, dense) = (format.is_per_channel(), matches!(format, Format::Dense(_)));
        let grouped = !per_channel && !dense;
        let tile_bytes = tile_bytes(format, weights.k);
        let group_size = format.group_size(weights.k);
        let shape = Shape {
            panels,
            k: weights.k,
            row_bytes: units * UNIT,
            tiles: weights.n.div_ceil(LANES),
            tile_bytes,
            segments: grouped && integers && isa.is_wide(),
            at_once,
            threads: backend.threads(),
            cache: backend.core_cache,
        };
        Self {
            input,
            weights,
            out,
            panels,
            units,
            bf16,
            shape,
            plan: Plan::new(shape),
            groups: format.groups(weights.k),
            group_size,
            group_steps: group_size / step_columns(format),
            grouped,
            per_channel,
            tile_bytes,
        }
    }

    /// The level that multiplies: AVX2 has no product of an activation of -128, so what may have one is left
    /// to portable code, which reads the same layout.
    fn level(&self, backend: &CpuBackend) -> Level {
        match self.input {
            LinearInput::Int8(rows) if rows.largest > 127 && backend.isa() == Isa::Avx2 => {
                Level::SCALAR
            }
            _ => backend.level,
        }
    }

    /// How the layer would be cut for other rows.
    fn plan_of(&self, panels: Panels) -> Plan {
        Plan::new(Shape {
            panels,
            ..self.shape
        })
    }

    /// Floats of working memory for rows in such panels: sums that wait, a row, and the panels of a task.
    fn floats(&self, plan: Plan, panels: Panels) -> usize {
        let rows = (plan.panels_each * panels.each).max(self.panels.each) + 1;
        let packed = match self.input {
            LinearInput::Int8(_) => 0,
            LinearInput::Float(x) => x.cols().next_multiple_of(LANES) + rows * self.units,
        };
        self.waiting(plan, panels) + packed
    }

    /// Floats of the sums that wait for the next columns.
    fn waiting(&self, plan: Plan, panels: Panels) -> usize {
        if plan.depth >= self.weights.k {
            return 0;
        }
        let rows = plan.panels_each * panels.each;
        (rows * plan.tiles_each + 1) * SUM_BYTES / size_of::<f32>()
    }

    /// Working memory of task `(job, first panel)`, after laying its panels out if this worker has not yet.
    fn pack(
        &self,
        backend: &CpuBackend,
        scratch: &mut Scratch,
        floats: usize,
        task: (u64, usize),
    ) -> Room {
        let begins = scratch.packed.is_none_or(|packed| packed.0 != task.0);
        let is_packed = scratch.packed == Some(task);
        let (floats, _) = scratch.take(floats, 0);
        let (waiting, floats) = floats.split_at_mut(self.waiting(self.plan, self.panels));
        let sums: *mut u8 = waiting.as_mut_ptr().cast();
        let packed = match self.input {
            LinearInput::Int8(rows) => {
                let first = task.1 * self.panels.each * rows.stride;
                rows.data.as_slice::<u8>()[first..].as_ptr()
            }
            LinearInput::Float(x) => {
                let (row, out) = floats.split_at_mut(x.cols().next_multiple_of(LANES));
                let packed = out.as_ptr().cast();
                if !is_packed {
                    let end = (task.1 + self.plan.panels_each).min(self.panels.count());
                    backend.level.run(Pack {
                        x,
                        panels: self.panels,
                        wanted: task.1..end,
                        units: self.units,
                        bf16: self.bf16,
                        row,
                        out: bytemuck::cast_slice_mut(out),
                    });
                }
                packed
            }
        };
        scratch.packed = Some(task);
        Room {
            packed,
            sums: sums.wrapping_add(sums.align_offset(64)),
            begins,
        }
    }

    fn tile(&self, tile: usize) -> *const u8 {
        self.weights.data.as_slice::<u8>()[tile * self.tile_bytes..][..self.tile_bytes].as_ptr()
    }

    /// Rows that are multiplied at once: as many as registers are left for.
    #[inline(always)]
    pub(super) fn rows_at_once<S: Simd, P: Product>(&self) -> usize {
        match P::INTEGERS {
            // The parts of sums take half of the registers; a single panel waits for memory and may wait for them.
            true if self.shape.segments && self.panels.count() > 1 => HELD_ROWS,
            true => S::INT_ROWS,
            false => S::ROWS,
        }
    }

    /// Scales of the groups of a tile, sixteen each; null where the weights are dense.
    fn scales(&self, tile: usize) -> *const f32 {
        self.of_tile(self.weights.scales.as_slice(), tile)
    }

    /// Sums of the groups of a tile, sixteen each; null where the weights are dense.
    fn sums(&self, tile: usize) -> *const i32 {
        self.of_tile(self.weights.sums.as_slice(), tile)
    }

    fn of_tile<T: Element>(&self, all: &'a [T], tile: usize) -> *const T {
        let lanes = self.groups * LANES;
        if lanes == 0 {
            return std::ptr::null();
        }
        all[tile * lanes..][..lanes].as_ptr()
    }

    pub(super) fn bias(&self, tile: usize) -> *const f32 {
        self.weights.bias.as_slice::<f32>()[tile * LANES..][..LANES].as_ptr()
    }

    /// Output columns of a tile: sixteen, or what is left.
    pub(super) fn columns(&self, tile: usize) -> usize {
        (self.weights.n - tile * LANES).min(LANES)
    }

    /// What the sums of a row are multiplied with.
    pub(super) fn row_scale(&self, row: usize) -> f32 {
        match self.input {
            LinearInput::Int8(rows) => rows.scales.as_slice::<f32>()[row],
            LinearInput::Float(_) => 1.0,
        }
    }
}

/// Working memory of a task.
#[derive(Clone, Copy)]
struct Room {
    /// The first of its panels.
    packed: *const u8,
    /// Sums that wait for the next columns.
    sums: *mut u8,
    /// Whether this is the first task of its job on this thread.
    begins: bool,
}

/// One block of output.
struct Task<'a> {
    job: &'a Job<'a>,
    room: Room,
    panels: Range<usize>,
    tiles: Range<usize>,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let format = self.job.weights.format;
        match (self.job.input, format) {
            (LinearInput::Int8(_), Format::W4 { .. }) => self.cover::<S, Int4>(s),
            (LinearInput::Int8(_), _) => self.cover::<S, Int8>(s),
            (LinearInput::Float(_), _) if S::BF16_DOT && self.job.bf16 => match format {
                Format::Dense(_) => self.cover::<S, Bf16>(s),
                Format::W8 { .. } => self.cover::<S, Bf16Int8>(s),
                Format::W4 { .. } => self.cover::<S, Bf16Int4>(s),
            },
            (LinearInput::Float(_), _) => match format {
                Format::Dense(DType::F16) => self.cover_f32::<S, float_tile::DenseF16>(s),
                Format::Dense(DType::Bf16) => self.cover_f32::<S, float_tile::DenseBf16>(s),
                Format::Dense(_) => self.cover_f32::<S, float_tile::DenseF32>(s),
                Format::W8 { .. } => self.cover_f32::<S, float_tile::Int8>(s),
                Format::W4 { .. } => self.cover_f32::<S, float_tile::Int4>(s),
            },
        }
    }
}

impl Task<'_> {
    #[inline(always)]
    fn cover_f32<S: Simd, W: FloatTile>(self, s: S) {
        self.cover::<S, F32<W>>(s);
    }

    #[inline(always)]
    fn cover<S: Simd, P: Product>(self, s: S) {
        let (k, depth) = (self.job.weights.k, self.job.plan.depth);
        for first in (0..k).step_by(depth) {
            self.columns::<S, P>(s, first..(first + depth).min(k));
        }
    }

    /// Adds the products of some columns to all outputs.
    #[inline(always)]
    fn columns<S: Simd, P: Product>(&self, s: S, columns: Range<usize>) {
        let job = self.job;
        let panel_bytes = job.panels.each * job.units * UNIT;
        let start = columns.start / step_columns(job.weights.format);
        let rows = job.plan.panels_each * job.panels.each;
        let mut tile = self.tiles.start;
        while tile < self.tiles.end {
            let tiles = self.tiles::<S, P>(tile, &columns);
            if self.room.begins && tile == self.tiles.start && self.panels.len() == 1 {
                self.fetch_first::<S, P>(s, tiles);
            }
            let (mut fetch, lot) = self.fetch::<S, P>(tiles, &columns);
            let sums = (tile - self.tiles.start) * rows * sum_bytes::<S, P>();
            let waiting = self.room.sums.wrapping_add(sums);
            for (i, panel) in self.panels.clone().enumerate() {
                let stride = job.panels.stored(panel) * UNIT;
                let block = Block {
                    job,
                    tiles,
                    panel: self
                        .room
                        .packed
                        .wrapping_add(i * panel_bytes + start * P::UNITS * stride),
                    stride,
                    row: panel * job.panels.each,
                    rows: job.panels.rows_of(panel),
                    fetch,
                    waiting: waiting.wrapping_add(
                        i * job.panels.each * sum_bytes::<S, P>() * tiles.at_once::<S>(),
                    ),
                };
                block.rows::<S, P>(s);
                fetch.ahead = fetch.ahead.wrapping_add(lot);
            }
            tile += tiles.count;
        }
    }

    /// The columns of tile `first` and those that are multiplied with it.
    #[inline(always)]
    fn tiles<S: Simd, P: Product>(&self, first: usize, columns: &Range<usize>) -> Tiles {
        let job = self.job;
        let left = self.tiles.end - first;
        let each = step_columns(job.weights.format);
        let of_one = match P::INTEGERS {
            true => S::INT_TILES_OF_ONE,
            // Two streams of a thread are read faster than four, unless sums wait for themselves: one for each
            // output, and four products for each line of weights.
            false if S::WIDE && !(job.per_channel && each * LANES > P::BYTES) => 2,
            false => S::TILES_OF_ONE,
        };
        let single = job.panels.each == 1 && left >= of_one;
        let start = columns.start / each;
        let group = if job.grouped {
            columns.start / job.group_size * LANES
        } else {
            0
        };
        Tiles {
            first,
            count: if single { of_one } else { left.min(S::TILES) },
            weights: job.tile(first).wrapping_add(start * P::BYTES),
            steps: columns.end.div_ceil(each) - start,
            scales: job.scales(first).wrapping_add(group),
            sums: job.sums(first).wrapping_add(group),
            begin: columns.start == 0,
            end: columns.end == job.weights.k,
        }
    }

    /// Asks for the beginning of the first tiles at once: nobody has fetched it ahead, and one after the other each
    /// line would be waited for.
    #[inline(always)]
    fn fetch_first<S: Simd, P: Product>(&self, s: S, tiles: Tiles) {
        let bytes = AHEAD.min(tiles.steps * P::BYTES);
        for byte in (0..bytes).step_by(LINE) {
            for t in 0..tiles.count {
                let tile = tiles.weights.wrapping_add(t * self.job.tile_bytes);
                s.prefetch(tile.wrapping_add(byte));
            }
        }
    }

    /// What the first panel fetches while it meets these tiles, and how much further each next panel does.
    ///
    /// Each panel fetches its share of the tiles that come next; a single one fetches what comes next in these
    /// tiles, and at their end the beginning of the next ones.
    #[inline(always)]
    fn fetch<S: Simd, P: Product>(&self, tiles: Tiles, columns: &Range<usize>) -> (Fetch, usize) {
        let job = self.job;
        let bytes = job.tile_bytes;
        let next = tiles.first + tiles.count;
        let last = next >= self.tiles.end;
        let behind_all = next >= job.shape.tiles;
        if self.panels.len() == 1 {
            let fetch = Fetch {
                ahead: AHEAD,
                pace: P::BYTES,
                share: 0,
                turn: tiles.steps.saturating_sub(AHEAD / P::BYTES),
                // Behind the end of the weights comes nothing: these once more, which costs nothing.
                jump: if behind_all {
                    0_usize.wrapping_sub(AHEAD)
                } else {
                    (tiles.count - 1) * bytes
                },
            };
            return (fetch, 0);
        }
        let part = tiles.steps * P::BYTES;
        let each = step_columns(job.weights.format);
        let ahead = match (last, tiles.end) {
            (false, _) => tiles.count * bytes,
            // The next columns of the first tiles.
            (true, false) => part.wrapping_sub((tiles.first - self.tiles.start) * bytes),
            // The first columns of the tiles of the task that probably comes next.
            (true, true) => (tiles.count * bytes).wrapping_sub(columns.start / each * P::BYTES),
        };
        let lots = job.panels.each.div_ceil(job.rows_at_once::<S, P>());
        let share = part / (self.panels.len() * lots);
        let fetch = Fetch {
            ahead,
            pace: P::BYTES.div_ceil(self.panels.len() * lots),
            share,
            turn: usize::MAX,
            jump: 0,
        };
        (fetch, share * lots)
    }
}

/// How far ahead a single panel fetches: what memory gives while a request is on its way.
const AHEAD: usize = 8192;

/// More rows than the caches hold.
const MANY_ROWS: usize = 1 << 16;
