//! Linear layers: one output per lane, columns in ascending order, so the bits depend on nothing but the
//! row, the weights and the format.

use std::ops::Range;

use super::CpuBackend;
use super::float_tile::{DenseBf16, DenseF16, DenseF32, FloatTile, Int4, Int8};
use super::pack::{step_columns, tile_bytes};
use super::rows::{OutRows, load_row};
use super::simd::{Kernel, LANES, Simd};
use crate::backend::{LinearArgs, LinearInput};
use crate::check::{check_linear, check_matmul_i32};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::quant::{Format, SEGMENT};
use crate::rows::QuantizedRows;
use crate::tensor::{TensorMut, TensorRef};
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
    if rows.bias == backend.level.isa().activation_bias() {
        return Ok(());
    }
    Err(Error::shape(
        "linear",
        "the rows were quantised by a backend with another layout",
    ))
}

fn run(backend: &CpuBackend, input: LinearInput<'_>, weights: &Weights, out: OutRows<'_>) {
    let wide = if backend.level.isa().is_wide() { 4 } else { 2 };
    let job = Job::new(input, weights, out, wide);
    let floats = MAX_ROWS * weights.k.next_multiple_of(LANES);
    backend.each_task(job.tasks(), floats, |level, index, floats| {
        level.run(Task {
            job: &job,
            index,
            floats,
        });
    });
}

/// One linear layer, cut into blocks of output that threads take in turn.
struct Job<'a> {
    input: LinearInput<'a>,
    weights: &'a Weights,
    out: OutRows<'a>,
    rows: usize,
    /// Tiles of a block.
    wide: usize,
    row_blocks: usize,
}

impl<'a> Job<'a> {
    fn new(input: LinearInput<'a>, weights: &'a Weights, out: OutRows<'a>, wide: usize) -> Self {
        let rows = input.rows();
        Self {
            input,
            weights,
            out,
            rows,
            wide,
            row_blocks: rows.div_ceil(ROW_BLOCK),
        }
    }

    fn tiles(&self) -> usize {
        self.weights.n.div_ceil(LANES)
    }

    fn tasks(&self) -> usize {
        self.tiles().div_ceil(self.wide) * self.row_blocks
    }

    /// The tiles and rows of a task; neighbouring tasks share tiles.
    fn block(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let tile = task / self.row_blocks * self.wide;
        let row = task % self.row_blocks * ROW_BLOCK;
        (
            tile..(tile + self.wide).min(self.tiles()),
            row..(row + ROW_BLOCK).min(self.rows),
        )
    }

    /// The bytes of a tile.
    fn tile(&self, tile: usize) -> *const u8 {
        let bytes = tile_bytes(self.weights.format, self.weights.k);
        self.weights.data.as_slice::<u8>()[tile * bytes..][..bytes].as_ptr()
    }

    /// Scales, sums or biases of the lanes of a tile.
    fn lanes<T: Element>(&self, all: &'a [T], group: usize, tile: usize) -> *const T {
        let padded = self.tiles() * LANES;
        all[group * padded + tile * LANES..][..LANES].as_ptr()
    }

    fn scales(&self, group: usize, tile: usize) -> *const f32 {
        self.lanes(self.weights.scales.as_slice(), group, tile)
    }

    fn sums(&self, group: usize, tile: usize) -> *const i32 {
        self.lanes(self.weights.sums.as_slice(), group, tile)
    }

    fn bias(&self, tile: usize) -> *const f32 {
        self.lanes(self.weights.bias.as_slice(), 0, tile)
    }

    /// Output columns of a tile: sixteen, or what is left.
    fn columns(&self, tile: usize) -> usize {
        (self.weights.n - tile * LANES).min(LANES)
    }
}

/// One block of output.
struct Task<'a> {
    job: &'a Job<'a>,
    index: usize,
    floats: &'a mut [f32],
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { job, index, floats } = self;
        let (tiles, rows) = job.block(index);
        match (job.input, job.weights.format) {
            (LinearInput::Int8(x), Format::W4 { .. }) => {
                cover(s, job, &mut IntWalk::<true> { x }, tiles, rows);
            }
            (LinearInput::Int8(x), _) => {
                cover(s, job, &mut IntWalk::<false> { x }, tiles, rows);
            }
            (LinearInput::Float(x), format) => {
                let rows_f32 = Rows {
                    x,
                    floats,
                    padded: job.weights.k.next_multiple_of(LANES),
                };
                match format {
                    Format::Dense(DType::F16) => {
                        cover_floats::<S, DenseF16>(s, job, rows_f32, tiles, rows);
                    }
                    Format::Dense(DType::Bf16) => {
                        cover_floats::<S, DenseBf16>(s, job, rows_f32, tiles, rows);
                    }
                    Format::Dense(_) => cover_floats::<S, DenseF32>(s, job, rows_f32, tiles, rows),
                    Format::W4 { .. } => cover_floats::<S, Int4>(s, job, rows_f32, tiles, rows),
                    Format::W8 { .. } => cover_floats::<S, Int8>(s, job, rows_f32, tiles, rows),
                }
            }
        }
    }
}

/// How a block of outputs is computed.
trait Walk {
    /// Whether two tiles at once pay on sixteen narrow registers.
    const NARROW_PAIRS: bool;

    /// Called before the blocks of `count` rows from `row` on.
    fn prepare<S: Simd>(&mut self, s: S, row: usize, count: usize);

    /// Computes rows `row..row + R` of tiles `tile..tile + T`.
    fn block<S: Simd, const R: usize, const T: usize>(
        &self,
        s: S,
        job: &Job<'_>,
        row: usize,
        tile: usize,
    );
}

#[inline(always)]
fn cover<S: Simd, W: Walk>(
    s: S,
    job: &Job<'_>,
    walk: &mut W,
    tiles: Range<usize>,
    rows: Range<usize>,
) {
    let mut row = rows.start;
    while row < rows.end {
        let left = rows.end - row;
        if S::WIDE && left >= 4 {
            strip::<S, W, 4>(s, job, walk, tiles.clone(), row);
            row += 4;
        } else if left >= 2 {
            strip::<S, W, 2>(s, job, walk, tiles.clone(), row);
            row += 2;
        } else {
            strip::<S, W, 1>(s, job, walk, tiles.clone(), row);
            row += 1;
        }
    }
}

#[inline(always)]
fn strip<S: Simd, W: Walk, const R: usize>(
    s: S,
    job: &Job<'_>,
    walk: &mut W,
    tiles: Range<usize>,
    row: usize,
) {
    walk.prepare(s, row, R);
    if S::WIDE && tiles.len() == 4 {
        walk.block::<S, R, 4>(s, job, row, tiles.start);
    } else if !S::WIDE && W::NARROW_PAIRS && tiles.len() == 2 {
        walk.block::<S, R, 2>(s, job, row, tiles.start);
    } else {
        for tile in tiles {
            walk.block::<S, R, 1>(s, job, row, tile);
        }
    }
}

/// Quantised rows against integer weights; `FOUR` for 4-bit ones.
struct IntWalk<'a, const FOUR: bool> {
    x: &'a QuantizedRows,
}

impl<const FOUR: bool> IntWalk<'_, FOUR> {
    /// The exact sums over the columns of `steps`.
    #[inline(always)]
    fn sums<S: Simd, const R: usize, const T: usize>(
        &self,
        s: S,
        tiles: [*const u8; T],
        rows: [*const u8; R],
        steps: Range<usize>,
    ) -> [[S::Acc; T]; R] {
        let mut acc = [[s.zero_acc(); T]; R];
        for step in steps {
            if FOUR {
                for t in 0..T {
                    // SAFETY: the step is inside the tiles, and rows are padded to whole steps.
                    let weights = unsafe { s.load_octets(tiles[t].add(step * 64)) };
                    for r in 0..R {
                        // SAFETY: as above.
                        let [low, high] = unsafe {
                            [
                                s.load_four(rows[r].add(step * 8)),
                                s.load_four(rows[r].add(step * 8 + 4)),
                            ]
                        };
                        acc[r][t] = s.dot(s.dot(acc[r][t], weights[0], low), weights[1], high);
                    }
                }
            } else {
                for t in 0..T {
                    // SAFETY: as above.
                    let weights = unsafe { s.load_quads(tiles[t].add(step * 64)) };
                    for r in 0..R {
                        // SAFETY: as above.
                        let four = unsafe { s.load_four(rows[r].add(step * 4)) };
                        acc[r][t] = s.dot(acc[r][t], weights, four);
                    }
                }
            }
        }
        acc
    }
}

impl<const FOUR: bool> Walk for IntWalk<'_, FOUR> {
    const NARROW_PAIRS: bool = false;

    #[inline(always)]
    fn prepare<S: Simd>(&mut self, _s: S, _row: usize, _count: usize) {}

    #[inline(always)]
    fn block<S: Simd, const R: usize, const T: usize>(
        &self,
        s: S,
        job: &Job<'_>,
        row: usize,
        tile: usize,
    ) {
        let weights = job.weights;
        let columns = step_columns(weights.format);
        let tiles: [*const u8; T] = std::array::from_fn(|t| job.tile(tile + t));
        let bytes = self.x.data.as_slice::<u8>();
        let rows: [*const u8; R] =
            std::array::from_fn(|r| bytes[(row + r) * self.x.stride..][..self.x.stride].as_ptr());
        let scale = |r: usize| self.x.scales.as_slice::<f32>()[row + r];
        if weights.format.is_per_channel() {
            let acc = self.sums(s, tiles, rows, 0..weights.k.div_ceil(columns));
            for r in 0..R {
                for t in 0..T {
                    // SAFETY: sums of a tile have sixteen lanes.
                    let sum = unsafe { s.finish(acc[r][t], job.sums(0, tile + t)) };
                    let output = (row + r, tile + t);
                    if job.out.dtype == DType::I32 {
                        job.out.put_i32(s, output, job.columns(tile + t), sum);
                        continue;
                    }
                    // SAFETY: scales and biases of a tile have sixteen lanes.
                    let (weight_scale, bias) =
                        unsafe { (s.load(job.scales(0, tile + t)), s.load(job.bias(tile + t))) };
                    let y = s.fma(s.to_f32(sum), s.mul(s.splat(scale(r)), weight_scale), bias);
                    job.out.put(s, output, job.columns(tile + t), y);
                }
            }
            return;
        }
        let mut total = [[s.splat(0.0); T]; R];
        let group_size = weights.format.group_size(weights.k);
        for groups in Segments::of(weights) {
            let mut part = [[s.splat(0.0); T]; R];
            for group in groups {
                let end = ((group + 1) * group_size).min(weights.k).div_ceil(columns);
                let acc = self.sums(s, tiles, rows, group * group_size / columns..end);
                for t in 0..T {
                    // SAFETY: scales of a tile have sixteen lanes.
                    let weight_scale = unsafe { s.load(job.scales(group, tile + t)) };
                    for r in 0..R {
                        // SAFETY: sums of a tile have sixteen lanes.
                        let sum = unsafe { s.finish(acc[r][t], job.sums(group, tile + t)) };
                        part[r][t] = s.fma(s.to_f32(sum), weight_scale, part[r][t]);
                    }
                }
            }
            add_parts(s, &mut total, &part);
        }
        for r in 0..R {
            for t in 0..T {
                // SAFETY: biases of a tile have sixteen lanes.
                let bias = unsafe { s.load(job.bias(tile + t)) };
                let y = s.fma(total[r][t], s.splat(scale(r)), bias);
                job.out
                    .put(s, (row + r, tile + t), job.columns(tile + t), y);
            }
        }
    }
}

/// The groups of each segment in turn.
struct Segments {
    next: usize,
    groups: usize,
    each: usize,
}

impl Segments {
    #[inline(always)]
    fn of(weights: &Weights) -> Self {
        let each = SEGMENT / weights.format.group_size(weights.k);
        Self {
            next: 0,
            groups: weights.format.groups(weights.k),
            each,
        }
    }
}

impl Iterator for Segments {
    type Item = Range<usize>;

    #[inline(always)]
    fn next(&mut self) -> Option<Range<usize>> {
        let first = self.next;
        self.next = (first + self.each).min(self.groups);
        (first < self.groups).then_some(first..self.next)
    }
}

#[inline(always)]
fn add_parts<S: Simd, const R: usize, const T: usize>(
    s: S,
    total: &mut [[S::F; T]; R],
    part: &[[S::F; T]; R],
) {
    for (total, part) in total.iter_mut().flatten().zip(part.iter().flatten()) {
        *total = s.add(*total, *part);
    }
}

/// Float rows, converted to f32 a few at a time.
struct Rows<'a> {
    x: TensorRef<'a>,
    floats: &'a mut [f32],
    padded: usize,
}

/// Float rows against weights of one tile format.
struct FloatWalk<'a, W> {
    rows: Rows<'a>,
    tile: std::marker::PhantomData<W>,
}

#[inline(always)]
fn cover_floats<S: Simd, W: FloatTile>(
    s: S,
    job: &Job<'_>,
    rows_f32: Rows<'_>,
    tiles: Range<usize>,
    rows: Range<usize>,
) {
    let mut walk = FloatWalk::<W> {
        rows: rows_f32,
        tile: std::marker::PhantomData,
    };
    cover(s, job, &mut walk, tiles, rows);
}

impl<W: FloatTile> FloatWalk<'_, W> {
    /// The sums over columns `columns`, ascending.
    #[inline(always)]
    fn sums<S: Simd, const R: usize, const T: usize>(
        &self,
        s: S,
        tiles: [*const u8; T],
        columns: Range<usize>,
    ) -> [[S::F; T]; R] {
        let x = self.rows.floats.as_ptr();
        let mut acc = [[s.splat(0.0); T]; R];
        let mut k = columns.start;
        while k < columns.end {
            let whole = k + W::COLUMNS <= columns.end;
            for t in 0..T {
                // SAFETY: the step that holds column k is inside the tile.
                let weights = unsafe { W::load(s, tiles[t].add(k / W::COLUMNS * W::BYTES)) };
                for c in 0..W::COLUMNS {
                    if !whole && k + c >= columns.end {
                        break;
                    }
                    for r in 0..R {
                        // SAFETY: `prepare` filled row r up to its padded width.
                        let value = unsafe { *x.add(r * self.rows.padded + k + c) };
                        acc[r][t] = s.fma(s.splat(value), weights[c], acc[r][t]);
                    }
                }
            }
            k += W::COLUMNS;
        }
        acc
    }

    /// The sums of per-group weights, in segments.
    #[inline(always)]
    fn grouped<S: Simd, const R: usize, const T: usize>(
        &self,
        s: S,
        job: &Job<'_>,
        tiles: [*const u8; T],
        tile: usize,
    ) -> [[S::F; T]; R] {
        let weights = job.weights;
        let group_size = weights.format.group_size(weights.k);
        let mut total = [[s.splat(0.0); T]; R];
        for groups in Segments::of(weights) {
            let mut part = [[s.splat(0.0); T]; R];
            for group in groups {
                let end = ((group + 1) * group_size).min(weights.k);
                let sums: [[S::F; T]; R] = self.sums(s, tiles, group * group_size..end);
                for t in 0..T {
                    // SAFETY: scales of a tile have sixteen lanes.
                    let scale = unsafe { s.load(job.scales(group, tile + t)) };
                    for r in 0..R {
                        part[r][t] = s.fma(sums[r][t], scale, part[r][t]);
                    }
                }
            }
            add_parts(s, &mut total, &part);
        }
        total
    }
}

impl<W: FloatTile> Walk for FloatWalk<'_, W> {
    const NARROW_PAIRS: bool = true;

    #[inline(always)]
    fn prepare<S: Simd>(&mut self, s: S, row: usize, count: usize) {
        for r in 0..count {
            let out = &mut self.rows.floats[r * self.rows.padded..][..self.rows.padded];
            load_row(s, self.rows.x, row + r, out);
        }
    }

    #[inline(always)]
    fn block<S: Simd, const R: usize, const T: usize>(
        &self,
        s: S,
        job: &Job<'_>,
        row: usize,
        tile: usize,
    ) {
        let weights = job.weights;
        let tiles: [*const u8; T] = std::array::from_fn(|t| job.tile(tile + t));
        let grouped = weights.format.groups(weights.k) > 0 && !weights.format.is_per_channel();
        let sums: [[S::F; T]; R] = if grouped {
            self.grouped(s, job, tiles, tile)
        } else {
            self.sums(s, tiles, 0..weights.k)
        };
        for t in 0..T {
            // SAFETY: biases of a tile have sixteen lanes.
            let bias = unsafe { s.load(job.bias(tile + t)) };
            for r in 0..R {
                let y = if weights.format.is_per_channel() {
                    // SAFETY: scales of a tile have sixteen lanes.
                    s.fma(sums[r][t], unsafe { s.load(job.scales(0, tile + t)) }, bias)
                } else {
                    s.add(sums[r][t], bias)
                };
                job.out
                    .put(s, (row + r, tile + t), job.columns(tile + t), y);
            }
        }
    }
}

/// Rows converted and multiplied together.
const MAX_ROWS: usize = 4;

/// Rows of a task: enough to reuse the tiles of a block from the L2 cache, few enough to share work.
const ROW_BLOCK: usize = 128;
