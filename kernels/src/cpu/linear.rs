//! Linear layers: one output per lane, columns in ascending order, so the bits depend on nothing but the
//! row, the weights and the format.
//!
//! Rows are interleaved in panels (`panel.rs`), weights in tiles (`pack.rs`). A task (`plan.rs`) takes some
//! panels, which stay in the core's cache, and lets tiles pass; what it computes at once fills the registers.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;

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
use crate::quant::{Format, SEGMENT};
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
    let floats = job.floats();
    backend.reserve(floats);
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
struct Job<'a> {
    input: LinearInput<'a>,
    weights: &'a Weights,
    out: OutRows<'a>,
    panels: Panels,
    /// Units of a row in its panel.
    units: usize,
    /// Whether the panels hold bf16.
    bf16: bool,
    plan: Plan,
}

impl<'a> Job<'a> {
    fn new(
        backend: &CpuBackend,
        input: LinearInput<'a>,
        weights: &'a Weights,
        out: OutRows<'a>,
    ) -> Self {
        let isa = backend.level.isa();
        let (panels, units, bf16) = match input {
            LinearInput::Int8(rows) => (rows.panels, rows.stride / UNIT, false),
            LinearInput::Float(x) => {
                let bf16 = isa.has_bf16_dot()
                    && x.dtype() == DType::Bf16
                    && !matches!(
                        weights.format,
                        Format::Dense(DType::F32) | Format::Dense(DType::F16)
                    );
                let panels = Panels::new(x.rows(), isa.float_rows());
                (panels, panel::units(x.cols(), bf16), bf16)
            }
        };
        let at_once = match (isa.is_wide(), panels.each) {
            (true, 1) => 4,
            (true, _) => 2,
            _ => 1,
        };
        let plan = Plan::new(Shape {
            panels,
            k: weights.k,
            row_bytes: units * UNIT,
            tiles: weights.n.div_ceil(LANES),
            tile_bytes: tile_bytes(weights.format, weights.k),
            at_once,
            threads: backend.threads(),
            cache: backend.core_cache,
        });
        Self {
            input,
            weights,
            out,
            panels,
            units,
            bf16,
            plan,
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

    /// Floats of working memory: sums that wait, a row, and the panels of a task.
    fn floats(&self) -> usize {
        let rows = self.plan.panels_each * self.panels.each;
        let panels = match self.input {
            LinearInput::Int8(_) => 0,
            LinearInput::Float(x) => x.cols().next_multiple_of(LANES) + (rows + 1) * self.units,
        };
        self.waiting() + panels
    }

    /// Floats of the sums that wait for the next columns, in whole cache lines.
    fn waiting(&self) -> usize {
        if self.plan.depth >= self.weights.k {
            return 0;
        }
        let rows = self.plan.panels_each * self.panels.each;
        (rows * self.plan.tiles_each + 1) * SUM_BYTES / size_of::<f32>()
    }

    /// Working memory of task `(job, first panel)`, after laying its panels out if this worker has not yet.
    fn pack(
        &self,
        backend: &CpuBackend,
        scratch: &mut Scratch,
        floats: usize,
        task: (u64, usize),
    ) -> Room {
        let fresh = scratch.packed == Some(task);
        let (floats, _) = scratch.take(floats, 0);
        let (waiting, floats) = floats.split_at_mut(self.waiting());
        let sums: *mut u8 = waiting.as_mut_ptr().cast();
        let packed = match self.input {
            LinearInput::Int8(rows) => {
                let first = task.1 * self.panels.each * rows.stride;
                rows.data.as_slice::<u8>()[first..].as_ptr()
            }
            LinearInput::Float(x) => {
                let (row, out) = floats.split_at_mut(x.cols().next_multiple_of(LANES));
                let packed = out.as_ptr().cast();
                if !fresh {
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
        }
    }

    fn tile(&self, tile: usize) -> *const u8 {
        let bytes = tile_bytes(self.weights.format, self.weights.k);
        self.weights.data.as_slice::<u8>()[tile * bytes..][..bytes].as_ptr()
    }

    /// Scales, sums or biases of the lanes of a tile.
    fn lanes<T: Element>(&self, all: &'a [T], group: usize, tile: usize) -> *const T {
        let padded = self.weights.n.next_multiple_of(LANES);
        all[group * padded + tile * LANES..][..LANES].as_ptr()
    }

    fn scales(&self, group: usize, tile: usize) -> *const f32 {
        self.lanes(self.weights.scales.as_slice(), group, tile)
    }

    fn sums(&self, group: usize, tile: usize) -> *const i32 {
        match self.weights.format {
            Format::Dense(_) => std::ptr::null(),
            _ => self.lanes(self.weights.sums.as_slice(), group, tile),
        }
    }

    fn bias(&self, tile: usize) -> *const f32 {
        self.lanes(self.weights.bias.as_slice(), 0, tile)
    }

    /// Output columns of a tile: sixteen, or what is left.
    fn columns(&self, tile: usize) -> usize {
        (self.weights.n - tile * LANES).min(LANES)
    }

    /// What the sums of a row are multiplied with.
    fn row_scale(&self, row: usize) -> f32 {
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
        let weights = self.job.weights;
        let (k, depth) = (weights.k, self.job.plan.depth);
        for first in (0..k).step_by(depth) {
            self.columns::<S, P>(s, first..(first + depth).min(k));
        }
    }

    /// Adds the products of some columns to all outputs.
    #[inline(always)]
    fn columns<S: Simd, P: Product>(&self, s: S, columns: Range<usize>) {
        let Self {
            job,
            room,
            panels,
            tiles,
        } = self;
        let panel_bytes = job.panels.each * job.units * UNIT;
        let bytes = tile_bytes(job.weights.format, job.weights.k);
        let part = columns.len().div_ceil(step_columns(job.weights.format)) * P::BYTES;
        let mut tile = tiles.start;
        while tile < tiles.end {
            let left = tiles.end - tile;
            let single = S::TILES > 1 && job.panels.each == 1 && left >= 4;
            let count = if single { 4 } else { left.min(S::TILES) };
            // While the panels meet these tiles, each fetches its share of the next ones; a single panel
            // fetches what comes next in these.
            let (ahead, share) = match panels.len() {
                1 => (AHEAD, P::BYTES),
                several => (count * bytes, P::BYTES.div_ceil(several)),
            };
            for (i, panel) in panels.clone().enumerate() {
                let block = Block {
                    job,
                    columns: (columns.start, columns.end),
                    panel: room.packed.wrapping_add(i * panel_bytes),
                    stride: job.panels.stored(panel) * UNIT,
                    row: panel * job.panels.each,
                    rows: job.panels.rows_of(panel),
                    tile,
                    ahead: ahead + i * (part / panels.len()),
                    pace: share,
                    sums: room.sums,
                    place: (tile - tiles.start) * job.plan.panels_each * job.panels.each,
                    place_row: i * job.panels.each,
                };
                block.rows::<S, P>(s, count);
            }
            tile += count;
        }
    }
}

/// The outputs of one panel and a few tiles.
#[derive(Clone, Copy)]
struct Block<'a> {
    job: &'a Job<'a>,
    /// First column, and the end.
    columns: (usize, usize),
    panel: *const u8,
    /// Bytes from one unit of a row to the next.
    stride: usize,
    /// The first row of the output, and how many there are.
    row: usize,
    rows: usize,
    tile: usize,
    /// How far ahead of the tiles to fetch, and how many bytes at each step.
    ahead: usize,
    pace: usize,
    /// Sums that wait, and which of them are those of the tile and of its first row.
    sums: *mut u8,
    place: usize,
    place_row: usize,
}

impl Block<'_> {
    /// Takes as many rows at a time as the registers hold.
    #[inline(always)]
    fn rows<S: Simd, P: Product>(self, s: S, tiles: usize) {
        let most = if P::INTEGERS { S::INT_ROWS } else { S::ROWS };
        let stored = self.stride / UNIT;
        let mut row = 0;
        while row < stored {
            let count = (stored - row).min(most);
            let part = Self {
                panel: self.panel.wrapping_add(row * UNIT),
                row: self.row + row,
                place_row: self.place_row + row,
                rows: self.rows.saturating_sub(row).min(count),
                ..self
            };
            match (count, tiles) {
                (1, 4) if S::TILES > 1 => s.call(Registers::<P, 1, 4>::of(part)),
                (1, _) => part.tiles::<S, P, 1>(s, tiles),
                (2, _) => part.tiles::<S, P, 2>(s, tiles),
                (4, _) if most >= 4 => part.tiles::<S, P, 4>(s, tiles),
                (6, _) if most >= 6 => part.tiles::<S, P, 6>(s, tiles),
                (8, _) if most >= 8 => part.tiles::<S, P, 8>(s, tiles),
                (10, _) if most >= 10 => part.tiles::<S, P, 10>(s, tiles),
                _ if most >= 12 => part.tiles::<S, P, 12>(s, tiles),
                _ => {}
            }
            row += count;
        }
    }

    #[inline(always)]
    fn tiles<S: Simd, P: Product, const R: usize>(self, s: S, tiles: usize) {
        if S::TILES > 1 && tiles == 2 {
            return s.call(Registers::<P, R, 2>::of(self));
        }
        for t in 0..tiles {
            let rows = self.job.plan.panels_each * self.job.panels.each;
            let (tile, place) = (self.tile + t, self.place + t * rows);
            s.call(Registers::<P, R, 1>::of(Self {
                tile,
                place,
                ..self
            }));
        }
    }
}

/// As many outputs as the registers hold: `R` rows and `T` tiles.
struct Registers<'a, P, const R: usize, const T: usize> {
    block: Block<'a>,
    product: PhantomData<P>,
}

impl<'a, P, const R: usize, const T: usize> Registers<'a, P, R, T> {
    fn of(block: Block<'a>) -> Self {
        Self {
            block,
            product: PhantomData,
        }
    }
}

impl<P: Product, const R: usize, const T: usize> Kernel for Registers<'_, P, R, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let job = self.block.job;
        let (first, last) = (
            self.block.columns.0 == 0,
            self.block.columns.1 == job.weights.k,
        );
        let mut sums = Sums([[[0.0; LANES]; T]; R]);
        let format = job.weights.format;
        if !format.is_per_channel() && !matches!(format, Format::Dense(_)) {
            let waiting: *mut [[[f32; LANES]; T]; R] = self.waiting(SUM_BYTES / 2).cast();
            if !first {
                // SAFETY: an earlier part of the columns left them there.
                sums.0 = unsafe { waiting.read() };
            }
            self.groups(s, &mut sums.0);
            if !last {
                // SAFETY: the room is for these outputs alone.
                unsafe { waiting.write(sums.0) };
            }
        } else {
            let waiting: *mut [[P::Acc<S>; T]; R] = self.waiting(size_of::<P::Acc<S>>()).cast();
            let mut acc = if first {
                [self.starts(s, 0); R]
            } else {
                // SAFETY: an earlier part of the columns left them there.
                unsafe { waiting.read() }
            };
            let walk = self.walk(s, self.block.columns);
            walk.add(s, &mut acc);
            if !last {
                // SAFETY: the room is for these outputs alone.
                unsafe { waiting.write(acc) };
            }
            for r in 0..R {
                for t in 0..T {
                    let out = sums.0[r][t].as_mut_ptr();
                    // SAFETY: there is room for sixteen of either.
                    unsafe {
                        if job.out.dtype == DType::I32 {
                            P::store_i32(s, acc[r][t], out.cast());
                        } else {
                            s.store(out, P::total(s, acc[r][t]));
                        }
                    }
                }
            }
        }
        if last {
            s.call(Finish {
                block: self.block,
                sums: sums.0.as_flattened(),
                tiles: T,
            });
        }
    }
}

impl<P: Product, const R: usize, const T: usize> Registers<'_, P, R, T> {
    /// Where the sums of these outputs wait, `size` bytes each.
    #[inline(always)]
    fn waiting(&self, size: usize) -> *mut u8 {
        let place = self.block.place + self.block.place_row * T;
        self.block.sums.wrapping_add(place * size)
    }

    /// Empty sums of a group.
    #[inline(always)]
    fn starts<S: Simd>(&self, s: S, group: usize) -> [P::Acc<S>; T] {
        std::array::from_fn(|t| {
            // SAFETY: sums of a tile have sixteen lanes.
            unsafe { P::start(s, self.block.job.sums(group, self.block.tile + t)) }
        })
    }

    /// The steps of columns `columns.0..columns.1`.
    #[inline(always)]
    fn walk<S: Simd>(&self, _s: S, columns: (usize, usize)) -> Walk<P, R, T> {
        let block = &self.block;
        let each = step_columns(block.job.weights.format);
        let (start, end) = (columns.0 / each, columns.1.div_ceil(each));
        let tiles = std::array::from_fn(|t| {
            block
                .job
                .tile(block.tile + t)
                .wrapping_add(start * P::BYTES)
        });
        let begun = start - block.columns.0 / each;
        Walk {
            tiles,
            panel: block.panel.wrapping_add(start * P::UNITS * block.stride),
            stride: block.stride,
            steps: end - start,
            // The part of the tiles to be fetched lies where this part does, as much further as was fetched.
            next: tiles.map(|tile| {
                tile.wrapping_sub(begun * (P::BYTES - block.pace))
                    .wrapping_add(block.ahead)
            }),
            pace: block.pace,
            product: PhantomData,
        }
    }

    /// The sums of groups times their scales, in segments.
    #[inline(always)]
    fn groups<S: Simd>(&self, s: S, total: &mut [[[f32; LANES]; T]; R]) {
        let weights = self.block.job.weights;
        let group_size = weights.format.group_size(weights.k);
        let (start, end) = self.block.columns;
        let scales: [*const f32; T] =
            std::array::from_fn(|t| self.block.job.scales(0, self.block.tile + t));
        let padded = weights.n.next_multiple_of(LANES);
        for first in (start..end).step_by(SEGMENT) {
            let mut segment = Sums([[[0.0; LANES]; T]; R]);
            // Kept in memory: there are no registers for them beside those of the sums.
            let parts = black_box(segment.0.as_mut_ptr());
            let segment_end = (first + SEGMENT).min(end);
            let mut walk = self.walk(s, (first, segment_end));
            let mut left = walk.steps;
            walk.steps = group_size / step_columns(weights.format);
            let mut group = first / group_size;
            while left > 0 {
                walk.steps = walk.steps.min(left);
                left -= walk.steps;
                let mut acc = [self.starts(s, group); R];
                walk = walk.add(s, &mut acc);
                for t in 0..T {
                    // SAFETY: scales of a tile have sixteen lanes, those of the next group `padded` further.
                    let scale = unsafe { s.load(scales[t].add(group * padded)) };
                    for r in 0..R {
                        // SAFETY: a part has sixteen lanes.
                        unsafe {
                            let part = (*parts.add(r))[t].as_mut_ptr();
                            let sum = s.fma(P::total(s, acc[r][t]), scale, s.load(part));
                            s.store(part, sum);
                        }
                    }
                }
                group += 1;
            }
            let parts = segment.0.as_flattened();
            for (total, part) in total.as_flattened_mut().iter_mut().zip(parts) {
                // SAFETY: both have sixteen lanes.
                unsafe {
                    let sum = s.add(s.load(total.as_ptr()), s.load(part.as_ptr()));
                    s.store(total.as_mut_ptr(), sum);
                }
            }
        }
    }
}

/// Steps of `T` tiles and a panel.
struct Walk<P, const R: usize, const T: usize> {
    tiles: [*const u8; T],
    panel: *const u8,
    stride: usize,
    steps: usize,
    next: [*const u8; T],
    pace: usize,
    product: PhantomData<P>,
}

impl<P: Product, const R: usize, const T: usize> Walk<P, R, T> {
    /// Adds the products of the steps; gives where the next ones are.
    #[inline(always)]
    fn add<S: Simd>(mut self, s: S, acc: &mut [[P::Acc<S>; T]; R]) -> Self {
        for _ in 0..self.steps {
            for t in 0..T {
                s.prefetch(self.next[t]);
            }
            // SAFETY: the step is inside the tiles and the panel, which are padded to whole steps.
            unsafe { P::step(s, acc, self.tiles, self.panel, self.stride) };
            for t in 0..T {
                self.tiles[t] = self.tiles[t].wrapping_add(P::BYTES);
                self.next[t] = self.next[t].wrapping_add(self.pace);
            }
            self.panel = self.panel.wrapping_add(P::UNITS * self.stride);
        }
        self
    }
}

/// Sums that lie at cache lines.
#[repr(align(64))]
struct Sums<const R: usize, const T: usize>([[[f32; LANES]; T]; R]);

/// Scales, biases and writes the sums of a block.
struct Finish<'a> {
    block: Block<'a>,
    /// Of `tiles` tiles of each row: f32, or i32 where that is the output.
    sums: &'a [[f32; LANES]],
    tiles: usize,
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { block, sums, tiles } = self;
        let job = block.job;
        for (r, sums) in sums.chunks_exact(tiles).take(block.rows).enumerate() {
            let row = block.row + r;
            let row_scale = s.splat(job.row_scale(row));
            for (t, sums) in sums.iter().enumerate() {
                let tile = block.tile + t;
                let columns = job.columns(tile);
                if job.out.dtype == DType::I32 {
                    job.out
                        .put_i32((row, tile), bytemuck::cast_slice(&sums[..columns]));
                    continue;
                }
                // SAFETY: sums, scales and biases of a tile have sixteen lanes.
                let (sum, bias) = unsafe { (s.load(sums.as_ptr()), s.load(job.bias(tile))) };
                let scale = if job.weights.format.is_per_channel() {
                    // SAFETY: as above.
                    s.mul(row_scale, unsafe { s.load(job.scales(0, tile)) })
                } else {
                    row_scale
                };
                job.out
                    .put(s, (row, tile), columns, s.fma(sum, scale, bias));
            }
        }
    }
}

/// How far ahead a single panel fetches: what memory gives while a request is on its way.
const AHEAD: usize = 2048;
