//! Blocks of outputs of a linear layer: as many as the registers hold, over all columns or a part of them.

use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::linear::Job;
use super::product::Product;
use super::rows::OutRows;
use super::simd::{Kernel, LANES, Simd};
use crate::dtype::DType;
use crate::quant::SEGMENT;
use crate::rows::UNIT;

/// The outputs of one panel and a few tiles.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) tiles: Tiles,
    /// Where the columns begin in the panel.
    pub(super) panel: *const u8,
    /// Bytes from one unit of a row to the next.
    pub(super) stride: usize,
    /// The first row of the output, and how many there are.
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) fetch: Fetch,
    /// Where the sums wait for the next columns.
    pub(super) waiting: *mut u8,
}

/// A part of the columns of a few tiles.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub(super) first: usize,
    pub(super) count: usize,
    /// Where the columns begin in the first tile, and how many steps they are.
    pub(super) weights: *const u8,
    pub(super) steps: usize,
    /// Scales and sums of the weights of the first group of these columns.
    pub(super) scales: *const f32,
    pub(super) sums: *const i32,
    /// Whether no columns come before these, and none after.
    pub(super) begin: bool,
    pub(super) end: bool,
}

impl Tiles {
    /// How many of them are multiplied at once.
    #[inline(always)]
    pub(super) fn at_once<S: Simd>(self) -> usize {
        if S::TILES > 1 { self.count } else { 1 }
    }
}

/// What is fetched while the steps pass.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    /// How far ahead of the tiles, and how many bytes at each step.
    pub(super) ahead: usize,
    pub(super) pace: usize,
    /// How much of it each lot of the panel's rows fetches.
    pub(super) share: usize,
    /// After how many steps that would be the tiles at hand again, and how much further the next ones are.
    pub(super) turn: usize,
    pub(super) jump: usize,
}

impl Block<'_> {
    /// Takes as many rows at a time as the registers hold.
    #[inline(always)]
    pub(super) fn rows<S: Simd, P: Product>(self, s: S) {
        let most = self.job.rows_at_once::<S, P>();
        let stored = self.stride / UNIT;
        let lots = stored.div_ceil(most);
        let (mut row, mut lot) = (0, 0);
        while row < stored {
            // Lots as equal as even numbers of rows allow: few rows do not keep the units busy.
            let left = stored - row;
            let count = left.div_ceil(lots - lot).next_multiple_of(2).min(left);
            let part = Self {
                panel: self.panel.wrapping_add(row * UNIT),
                row: self.row + row,
                waiting: self
                    .waiting
                    .wrapping_add(row * self.tiles.at_once::<S>() * sum_bytes::<S, P>()),
                rows: self.rows.saturating_sub(row).min(count),
                fetch: Fetch {
                    ahead: self.fetch.ahead.wrapping_add(lot * self.fetch.share),
                    ..self.fetch
                },
                ..self
            };
            match (count, self.tiles.count) {
                (1, 4) if S::TILES_OF_ONE == 4 => s.call(Registers::<P, 1, 4>::of(part)),
                (1, _) => part.tiles::<S, P, 1>(s),
                (2, _) => part.tiles::<S, P, 2>(s),
                (4, _) if most >= 4 => part.tiles::<S, P, 4>(s),
                (6, _) if most >= 6 => part.tiles::<S, P, 6>(s),
                (8, _) if most >= 8 => part.tiles::<S, P, 8>(s),
                (10, _) if most >= 10 => part.tiles::<S, P, 10>(s),
                _ if most >= 12 => part.tiles::<S, P, 12>(s),
                _ => {}
            }
            (row, lot) = (row + count, lot + 1);
        }
    }

    #[inline(always)]
    fn tiles<S: Simd, P: Product, const R: usize>(self, s: S) {
        if S::TILES > 1 && self.tiles.count == 2 {
            return s.call(Registers::<P, R, 2>::of(self));
        }
        let mut part = self;
        let lanes = self.job.groups * LANES;
        for _ in 0..self.tiles.count {
            s.call(Registers::<P, R, 1>::of(part));
            let tiles = &mut part.tiles;
            tiles.first += 1;
            tiles.weights = tiles.weights.wrapping_add(self.job.tile_bytes);
            tiles.scales = tiles.scales.wrapping_add(lanes);
            tiles.sums = tiles.sums.wrapping_add(lanes);
            let rows = self.job.plan.panels_each * self.job.panels.each;
            part.waiting = part.waiting.wrapping_add(rows * sum_bytes::<S, P>());
        }
    }
}

/// Bytes of the sums of a row and a tile.
pub(super) const fn sum_bytes<S: Simd, P: Product>() -> usize {
    let (floats, acc) = (LANES * size_of::<f32>(), size_of::<P::Acc<S>>());
    if acc > floats { acc } else { floats }
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
        let mut room = MaybeUninit::<Sums<R, T>>::uninit();
        let sums = if self.block.job.grouped {
            // Opaque, so that it is one address that is chosen, and not one for each sum.
            let sums = black_box(if self.block.tiles.begin && self.block.tiles.end {
                room.as_mut_ptr().cast()
            } else {
                self.block.waiting.cast()
            });
            self.groups(s, sums);
            sums
        } else {
            let sums = room.as_mut_ptr().cast();
            self.channels(s, sums);
            sums
        };
        if self.block.tiles.end {
            s.call(Finish {
                block: self.block,
                sums,
                tiles: T,
            });
        }
    }
}

impl<P: Product, const R: usize, const T: usize> Registers<'_, P, R, T> {
    /// Sums over columns of one scale; after the last of them they are left in `sums`, as i32 where that is the
    /// output, else as f32.
    #[inline(always)]
    fn channels<S: Simd>(&self, s: S, sums: *mut f32) {
        let Block { tiles, waiting, .. } = self.block;
        let waiting: *mut [[P::Acc<S>; T]; R] = waiting.cast();
        let mut acc = if tiles.begin {
            [self.starts(s, tiles.sums); R]
        } else {
            // SAFETY: an earlier part of the columns left them there.
            unsafe { waiting.read() }
        };
        self.walk::<S>().add(s, tiles.steps, &mut acc);
        if !tiles.end {
            // SAFETY: the room is for these outputs alone.
            return unsafe { waiting.write(acc) };
        }
        let integers = self.block.job.out.dtype == DType::I32;
        for r in 0..R {
            for t in 0..T {
                // SAFETY: there is room for the lanes of all of them, and i32 are as large as f32.
                unsafe {
                    let sum = sums.add((r * T + t) * LANES);
                    if integers {
                        P::store_i32(s, acc[r][t], sum.cast());
                    } else {
                        s.store(sum, P::total(s, acc[r][t]));
                    }
                }
            }
        }
    }

    /// Adds the sums of groups times their scales to `sums`, in segments.
    #[inline(always)]
    fn groups<S: Simd>(&self, s: S, sums: *mut f32) {
        let Tiles { steps, begin, .. } = self.block.tiles;
        let of_segment = SEGMENT / self.block.job.group_size * self.block.job.group_steps;
        let mut walk = self.walk::<S>();
        let mut factors = (self.block.tiles.scales, self.block.tiles.sums);
        let mut done = 0;
        while done < steps {
            let count = of_segment.min(steps - done);
            // Registers, where there are enough of them beside those of the products.
            let mut held = [[s.splat(0.0); T]; R];
            let mut parts = MaybeUninit::<Sums<R, T>>::uninit();
            let parts: *mut f32 = parts.as_mut_ptr().cast();
            if !holds::<S>(R * T) {
                for i in 0..R * T {
                    // SAFETY: there is room for the lanes of all parts.
                    unsafe { s.store(parts.add(i * LANES), s.splat(0.0)) };
                }
            }
            (walk, factors) = self.segment(s, (walk, factors), count, (&mut held, parts));
            for r in 0..R {
                for t in 0..T {
                    let lanes = (r * T + t) * LANES;
                    // SAFETY: as above; the sums have as much room.
                    unsafe {
                        let before = if begin && done == 0 {
                            s.splat(0.0)
                        } else {
                            s.load(sums.add(lanes))
                        };
                        let part = if holds::<S>(R * T) {
                            held[r][t]
                        } else {
                            s.load(parts.add(lanes))
                        };
                        s.store(sums.add(lanes), s.add(before, part));
                    }
                }
            }
            done += count;
        }
    }

    /// Adds the sums of the groups of `left` steps times their scales to the parts: those in registers, or those in
    /// memory. Gives what comes next.
    #[inline(always)]
    fn segment<S: Simd>(
        &self,
        s: S,
        (mut walk, (mut scales, mut weight_sums)): (Walk<P, R, T>, (*const f32, *const i32)),
        mut left: usize,
        (held, parts): (&mut [[S::F; T]; R], *mut f32),
    ) -> (Walk<P, R, T>, (*const f32, *const i32)) {
        let job = self.block.job;
        let lanes = job.groups * LANES;
        while left > 0 {
            let count = job.group_steps.min(left);
            left -= count;
            let mut acc = [self.starts(s, weight_sums); R];
            walk = walk.add(s, count, &mut acc);
            // An address that the compiler cannot know keeps the parts in memory: it would take them through
            // the loop in registers that it does not have.
            let parts = if holds::<S>(R * T) {
                parts
            } else {
                black_box(parts)
            };
            for t in 0..T {
                // SAFETY: scales of a group have sixteen lanes.
                let scale = unsafe { s.load(scales.wrapping_add(t * lanes)) };
                for r in 0..R {
                    let sum = P::total(s, acc[r][t]);
                    if holds::<S>(R * T) {
                        held[r][t] = s.fma(sum, scale, held[r][t]);
                        continue;
                    }
                    // SAFETY: a part has sixteen lanes.
                    unsafe {
                        let part = parts.add((r * T + t) * LANES);
                        s.store(part, s.fma(sum, scale, s.load(part)));
                    }
                }
            }
            scales = scales.wrapping_add(LANES);
            weight_sums = weight_sums.wrapping_add(LANES);
        }
        (walk, (scales, weight_sums))
    }

    /// Empty sums for weights of these sums, which for the next tile lie `groups` further.
    #[inline(always)]
    fn starts<S: Simd>(&self, s: S, sums: *const i32) -> [P::Acc<S>; T] {
        let lanes = self.block.job.groups * LANES;
        // SAFETY: sums of a group have sixteen lanes.
        let mut starts = [unsafe { P::start(s, sums) }; T];
        for t in 1..T {
            // SAFETY: as above.
            starts[t] = unsafe { P::start(s, sums.wrapping_add(t * lanes)) };
        }
        starts
    }

    #[inline(always)]
    fn walk<S: Simd>(&self) -> Walk<P, R, T> {
        let Block { fetch, tiles, .. } = self.block;
        let mut places = [tiles.weights; T];
        for t in 1..T {
            places[t] = tiles.weights.wrapping_add(t * self.block.job.tile_bytes);
        }
        let mut next = places;
        for t in 0..T {
            next[t] = next[t].wrapping_add(fetch.ahead);
        }
        Walk {
            tiles: places,
            panel: self.block.panel,
            stride: self.block.stride,
            next,
            pace: fetch.pace * P::at_once::<S>(),
            turn: fetch.turn / P::at_once::<S>(),
            jump: fetch.jump,
            product: PhantomData,
        }
    }
}

/// Whether there are registers for the parts of so many sums beside the sums themselves.
const fn holds<S: Simd>(sums: usize) -> bool {
    sums <= if S::WIDE { HELD } else { 1 }
}

/// Parts of sums that wide levels hold in registers: as many as sums, and a few registers are left.
const HELD: usize = 12;

/// Rows whose parts of sums are held in registers with two tiles.
pub(super) const HELD_ROWS: usize = HELD / 2;

/// Steps of `T` tiles and a panel.
struct Walk<P, const R: usize, const T: usize> {
    tiles: [*const u8; T],
    panel: *const u8,
    stride: usize,
    next: [*const u8; T],
    /// Bytes to fetch in a turn.
    pace: usize,
    /// Turns until the jump.
    turn: usize,
    jump: usize,
    product: PhantomData<P>,
}

impl<P: Product, const R: usize, const T: usize> Walk<P, R, T> {
    /// Adds the products of some steps; gives where the next ones are.
    #[inline(always)]
    fn add<S: Simd>(mut self, s: S, steps: usize, acc: &mut [[P::Acc<S>; T]; R]) -> Self {
        let mut left = steps;
        while left >= P::at_once::<S>() {
            self.fetch(s);
            self.steps(s, P::at_once::<S>(), acc);
            left -= P::at_once::<S>();
        }
        self.steps(s, left, acc);
        self
    }

    #[inline(always)]
    fn steps<S: Simd>(&mut self, s: S, mut left: usize, acc: &mut [[P::Acc<S>; T]; R]) {
        while left > 0 {
            // SAFETY: the steps are inside the tiles and the panel, which are padded to whole steps.
            let taken = unsafe { P::steps(s, acc, self.tiles, self.panel, self.stride, left) };
            for t in 0..T {
                self.tiles[t] = self.tiles[t].wrapping_add(taken * P::BYTES);
            }
            self.panel = self.panel.wrapping_add(taken * P::UNITS * self.stride);
            left -= taken;
        }
    }

    /// Fetches what the next steps are to find in the cache.
    #[inline(always)]
    fn fetch<S: Simd>(&mut self, s: S) {
        if self.turn == 0 {
            for t in 0..T {
                self.next[t] = self.next[t].wrapping_add(self.jump);
            }
        }
        self.turn = self.turn.wrapping_sub(1);
        for t in 0..T {
            s.prefetch(self.next[t]);
        }
        let mut line = LINE;
        while line < self.pace {
            for t in 0..T {
                s.prefetch(self.next[t].wrapping_add(line));
            }
            line += LINE;
        }
        for t in 0..T {
            self.next[t] = self.next[t].wrapping_add(self.pace);
        }
    }
}

/// Sums that lie at cache lines.
#[repr(align(64))]
struct Sums<const R: usize, const T: usize>([[[f32; LANES]; T]; R]);

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Scales, biases and writes the sums of a block.
struct Finish<'a> {
    block: Block<'a>,
    /// Of `tiles` tiles of each row: f32, or i32 where that is the output.
    sums: *const f32,
    tiles: usize,
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let job = self.block.job;
        let whole = (self.block.tiles.first + self.tiles) * LANES <= job.weights.n;
        match job.out.dtype {
            DType::I32 => self.integers(),
            DType::F32 if whole => self.floats(s, |s, out, v| {
                // SAFETY: the output has sixteen f32.
                unsafe { s.store(out.cast(), v) }
            }),
            DType::Bf16 if whole => self.floats(s, |s, out, v| {
                // SAFETY: the output has sixteen bf16.
                unsafe { s.store_bf16(out.cast(), v) }
            }),
            _ => self.any(s),
        }
    }
}

impl Finish<'_> {
    fn integers(&self) {
        let job = self.block.job;
        for r in 0..self.block.rows {
            for t in 0..self.tiles {
                let tile = self.block.tiles.first + t;
                let sums = self.sums.wrapping_add((r * self.tiles + t) * LANES);
                // SAFETY: the sums of a tile are sixteen i32 there.
                let sums = unsafe { std::slice::from_raw_parts(sums.cast(), job.columns(tile)) };
                job.out.put_i32((self.block.row + r, tile), sums);
            }
        }
    }

    /// Whole tiles of a common type.
    #[inline(always)]
    fn floats<S: Simd>(&self, s: S, put: impl Fn(S, *mut u8, S::F)) {
        let out: OutRows<'_> = self.block.job.out;
        let bytes = LANES * out.dtype.size();
        for r in 0..self.block.rows {
            // SAFETY: the row and its tiles exist, and they are this thread's.
            let row = unsafe { out.tile(self.block.row + r, self.block.tiles.first) };
            self.row(s, r, |t, v| put(s, row.wrapping_add(t * bytes), v));
        }
    }

    /// Any type, and a last tile that the output has a part of.
    fn any<S: Simd>(&self, s: S) {
        let job = self.block.job;
        for r in 0..self.block.rows {
            self.row(s, r, |t, v| {
                let tile = self.block.tiles.first + t;
                job.out
                    .put(s, (self.block.row + r, tile), job.columns(tile), v);
            });
        }
    }

    /// The outputs of a row, tile by tile.
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, r: usize, put: impl Fn(usize, S::F)) {
        let job = self.block.job;
        let row_scale = s.splat(job.row_scale(self.block.row + r));
        let bias = job.bias(self.block.tiles.first);
        for t in 0..self.tiles {
            // SAFETY: sums, scales and biases of a tile have sixteen lanes.
            let v = unsafe {
                let sum = s.load(self.sums.add((r * self.tiles + t) * LANES));
                let scale = if job.per_channel {
                    s.mul(row_scale, s.load(self.block.tiles.scales.add(t * LANES)))
                } else {
                    row_scale
                };
                s.fma(sum, scale, s.load(bias.wrapping_add(t * LANES)))
            };
            put(t, v);
        }
    }
}
