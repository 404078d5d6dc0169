//! Blocks of outputs of a linear layer: as many as the registers hold, over all columns or a part of them.

use std::hint::black_box;
use std::marker::PhantomData;

use super::linear::Job;
use super::pack::step_columns;
use super::plan::SUM_BYTES;
use super::product::Product;
use super::simd::{Kernel, LANES, Simd};
use crate::dtype::DType;
use crate::quant::{Format, SEGMENT};
use crate::rows::UNIT;

/// The outputs of one panel and a few tiles.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) job: &'a Job<'a>,
    /// First column, and the end.
    pub(super) columns: (usize, usize),
    pub(super) panel: *const u8,
    /// Bytes from one unit of a row to the next.
    pub(super) stride: usize,
    /// The first row of the output, and how many there are.
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) tile: usize,
    /// How far ahead of the tiles to fetch, and how many bytes at each step.
    pub(super) ahead: usize,
    pub(super) pace: usize,
    /// After how many steps that would be the tiles at hand again, and how much further the next ones are.
    pub(super) turn: usize,
    pub(super) jump: usize,
    /// Sums that wait, and which of them are those of the tile and of its first row.
    pub(super) sums: *mut u8,
    pub(super) place: usize,
    pub(super) place_row: usize,
}

impl Block<'_> {
    /// Takes as many rows at a time as the registers hold.
    #[inline(always)]
    pub(super) fn rows<S: Simd, P: Product>(self, s: S, tiles: usize) {
        let most = match (P::INTEGERS, P::UNITS) {
            (false, _) => S::ROWS,
            // Nibbles need registers to be unpacked in.
            (true, 2) if !S::WIDE => S::INT_ROWS.min(4),
            (true, _) => S::INT_ROWS,
        };
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
                [starts::<S, P, T>(s, self.weight_sums()); R]
            } else {
                // SAFETY: an earlier part of the columns left them there.
                unsafe { waiting.read() }
            };
            let walk = self.walk(self.block.columns);
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

    /// The sums of the weights of the first group.
    #[inline(always)]
    fn weight_sums(&self) -> [*const i32; T] {
        std::array::from_fn(|t| self.block.job.sums(self.block.tile + t))
    }

    /// The steps of columns `columns.0..columns.1`.
    #[inline(always)]
    fn walk(&self, columns: (usize, usize)) -> Walk<P, R, T> {
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
        // What is to be fetched lies where these steps lie, as much further as was fetched.
        let passed = begun > block.turn;
        let further = block
            .ahead
            .wrapping_add(if passed { block.jump } else { 0 });
        let back = begun * (P::BYTES - block.pace);
        Walk {
            tiles,
            panel: block.panel.wrapping_add(start * P::UNITS * block.stride),
            stride: block.stride,
            steps: end - start,
            next: tiles.map(|tile| tile.wrapping_sub(back).wrapping_add(further)),
            pace: block.pace,
            turn: if passed {
                usize::MAX
            } else {
                block.turn - begun
            },
            jump: block.jump,
            product: PhantomData,
        }
    }

    /// The sums of groups times their scales, in segments.
    #[inline(always)]
    fn groups<S: Simd>(&self, s: S, total: &mut [[[f32; LANES]; T]; R]) {
        let weights = self.block.job.weights;
        let group_size = self.block.job.group_size;
        let (start, end) = self.block.columns;
        let scales: [*const f32; T] =
            std::array::from_fn(|t| self.block.job.scales(self.block.tile + t));
        let weight_sums = self.weight_sums();
        for first in (start..end).step_by(SEGMENT) {
            let mut segment = Sums([[[0.0; LANES]; T]; R]);
            let parts = segment.0.as_mut_ptr();
            let segment_end = (first + SEGMENT).min(end);
            let mut walk = self.walk((first, segment_end));
            let mut left = walk.steps;
            walk.steps = group_size / step_columns(weights.format);
            let mut group = first / group_size;
            let mut sums = weight_sums.map(|sums| sums.wrapping_add(group * LANES));
            while left > 0 {
                walk.steps = walk.steps.min(left);
                left -= walk.steps;
                let mut acc = [starts::<S, P, T>(s, sums); R];
                for sums in &mut sums {
                    *sums = sums.wrapping_add(LANES);
                }
                walk = walk.add(s, &mut acc);
                // An address that the compiler cannot know keeps the parts in memory: it would take them through
                // the loop in registers that it does not have.
                let parts = black_box(parts);
                for t in 0..T {
                    // SAFETY: scales of a group have sixteen lanes.
                    let scale = unsafe { s.load(scales[t].add(group * LANES)) };
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

/// Empty sums for weights of these sums.
#[inline(always)]
fn starts<S: Simd, P: Product, const T: usize>(s: S, sums: [*const i32; T]) -> [P::Acc<S>; T] {
    // SAFETY: sums of a group have sixteen lanes.
    let mut starts = [unsafe { P::start(s, sums[0]) }; T];
    for t in 1..T {
        // SAFETY: as above.
        starts[t] = unsafe { P::start(s, sums[t]) };
    }
    starts
}

/// Steps of `T` tiles and a panel.
struct Walk<P, const R: usize, const T: usize> {
    tiles: [*const u8; T],
    panel: *const u8,
    stride: usize,
    steps: usize,
    next: [*const u8; T],
    pace: usize,
    turn: usize,
    jump: usize,
    product: PhantomData<P>,
}

impl<P: Product, const R: usize, const T: usize> Walk<P, R, T> {
    /// Adds the products of the steps; gives where the next ones are.
    #[inline(always)]
    fn add<S: Simd>(mut self, s: S, acc: &mut [[P::Acc<S>; T]; R]) -> Self {
        for _ in 0..self.steps {
            if self.turn == 0 {
                self.next = self.next.map(|next| next.wrapping_add(self.jump));
            }
            self.turn = self.turn.wrapping_sub(1);
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
                    s.mul(row_scale, unsafe { s.load(job.scales(tile)) })
                } else {
                    row_scale
                };
                job.out
                    .put(s, (row, tile), columns, s.fma(sum, scale, bias));
            }
        }
    }
}
