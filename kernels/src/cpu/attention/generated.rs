//! Generated rows: one query for each head, bound by how fast keys and values are read.
//!
//! All query heads of a KV head share one read. A row's blocks are cut into chunks that are whole subtrees of
//! the tree in which blocks are merged, so that all threads have work whatever the number of rows.

use std::ops::Range;

use super::partial::{Stack, put};
use super::plan::{Chunk, Job, Row, in_block};
use super::stored::{Stored, block};
use crate::cpu::block::LINE;
use crate::cpu::element::Element;
use crate::cpu::raw::Shared;
use crate::cpu::rows::load_row;
use crate::cpu::simd::{Kernel, LANES, Simd, exp_below};
use crate::kv::KV_BLOCK;

/// Some blocks of a row, for the query heads of one KV head.
pub(super) struct GeneratedChunk<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) chunk: Chunk<'a>,
    /// What this thread probably takes next.
    pub(super) after: Option<Chunk<'a>>,
    /// Whether nothing before it has asked for its first block.
    pub(super) begins: bool,
    /// Partial results of rows that several parts share, by slot and head.
    pub(super) partials: Shared<'a, f32>,
    pub(super) floats: &'a mut [f32],
}

impl Kernel for GeneratedChunk<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            job,
            chunk,
            after,
            begins,
            partials,
            floats,
        } = self;
        let (width, group, len) = (job.width(), job.group, job.partial_len());
        let blocks = chunk.blocks(job);
        let Chunk { row, index: part } = chunk;
        if blocks.is_empty() {
            return;
        }
        let seen = job.seen(row.run, row.token);
        let first_row = |index| job.first_row(row.run, row.kv_head, index);
        if begins {
            let first = blocks.start;
            fetch_rows(s, job, first_row(first), in_block(&seen, first).end);
        }
        let after = after.and_then(|chunk| {
            let index = chunk.blocks(job).next()?;
            Some(job.first_row(chunk.row.run, chunk.row.kv_head, index))
        });
        let (room, floats) = floats.split_at_mut(KV_BLOCK * width);
        let (queries, floats) = floats.split_at_mut(group * width);
        load_queries(s, job, &row, queries);
        let mut stack = Stack::new(floats, group, len);
        for index in blocks.clone() {
            let next = if index + 1 < blocks.end {
                Some(first_row(index + 1))
            } else {
                after
            };
            let block = Block {
                job,
                first_row: first_row(index),
                next,
                seen: in_block(&seen, index),
            };
            block.reduce(s, queries, room, stack.top());
            stack.push(s);
        }
        let result = stack.finish(s);
        let Some(slot) = row.slot else {
            put_heads(s, job, &row, result);
            return;
        };
        // SAFETY: the slot is this part's, and every slot has a partial result for each head.
        unsafe {
            let out = partials.at((slot + part) * group * len);
            out.copy_from_nonoverlapping(result.as_ptr(), result.len());
        }
    }
}

/// A row whose chunks are to be merged.
pub(super) struct MergedRow<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) row: Row<'a>,
    pub(super) partials: Shared<'a, f32>,
    pub(super) floats: &'a mut [f32],
}

impl Kernel for MergedRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            job,
            row,
            partials,
            floats,
        } = self;
        let entry = job.group * job.partial_len();
        let seen = job.seen(row.run, row.token);
        let mut stack = Stack::new(floats, job.group, job.partial_len());
        let mut index = 0;
        while !blocks_of(&seen, job.chunk, index).is_empty() {
            let slot = row.slot.unwrap_or(0) + index;
            // SAFETY: the part that filled the slot is done, and nobody writes it now.
            unsafe {
                let from = partials.at(slot * entry);
                from.copy_to_nonoverlapping(stack.top().as_mut_ptr(), entry);
            }
            stack.push(s);
            index += 1;
        }
        put_heads(s, job, &row, stack.finish(s));
    }
}

impl Chunk<'_> {
    /// The blocks of which something is seen.
    fn blocks(&self, job: &Job<'_>) -> Range<usize> {
        let seen = job.seen(self.row.run, self.row.token);
        blocks_of(&seen, job.chunk, self.index)
    }
}

/// Asks for the first rows of a block at once: before the first block there is nothing to do meanwhile.
#[inline(always)]
fn fetch_rows<S: Simd>(s: S, job: &Job<'_>, first_row: usize, rows: usize) {
    for (first, bytes) in job.addresses(first_row) {
        for at in (0..bytes / KV_BLOCK * rows).step_by(LINE) {
            s.prefetch(first.wrapping_add(at));
        }
    }
}

/// The blocks of a chunk of those in which something is seen.
fn blocks_of(seen: &Range<usize>, chunk: usize, index: usize) -> Range<usize> {
    let first = seen.start / KV_BLOCK + index * chunk;
    let end = seen.end.div_ceil(KV_BLOCK);
    first..end.min(first + chunk)
}

/// The queries of the group, zero-padded to whole vectors.
#[inline(always)]
fn load_queries<S: Simd>(s: S, job: &Job<'_>, row: &Row<'_>, out: &mut [f32]) {
    let size = job.cache.head_size;
    for (i, out) in out.chunks_exact_mut(job.width()).enumerate() {
        let first = (row.kv_head * job.group + i) * size;
        let queries = job.queries.col_range(first..first + size);
        load_row(s, queries, row.run.first_row + row.token, out);
    }
}

/// Writes the heads of a row.
#[inline(always)]
fn put_heads<S: Simd>(s: S, job: &Job<'_>, row: &Row<'_>, partials: &mut [f32]) {
    let at = row.run.first_row + row.token;
    let partials = partials.chunks_exact_mut(job.partial_len());
    for (i, partial) in partials.enumerate() {
        put(s, job, (at, row.kv_head * job.group + i), partial);
    }
}

/// A block of keys and values.
struct Block<'a> {
    job: &'a Job<'a>,
    first_row: usize,
    /// Where the block after it begins: it is asked for while this one is reduced.
    next: Option<usize>,
    seen: Range<usize>,
}

impl Block<'_> {
    /// The partial results of all heads of the group; `room` is for rows that are no whole vectors.
    #[inline(always)]
    fn reduce<S: Simd>(&self, s: S, queries: &[f32], room: &mut [f32], out: &mut [f32]) {
        let group = self.job.group;
        let mut head = 0;
        while head < group {
            let left = if S::WIDE { group - head } else { 1 };
            // Heads times keys fill the vectors whose lanes are added up together.
            match left {
                1 if S::WIDE => self.reduce_heads::<S, 1, 16>(s, (queries, head), room, out),
                1 => self.reduce_heads::<S, 1, 4>(s, (queries, head), room, out),
                2 => self.reduce_heads::<S, 2, 8>(s, (queries, head), room, out),
                3 => self.reduce_heads::<S, 3, 4>(s, (queries, head), room, out),
                _ => self.reduce_heads::<S, 4, 4>(s, (queries, head), room, out),
            }
            head += left.min(4);
        }
    }

    /// The partial results of `H` heads from `head` on, scores being computed for `K` keys at a time.
    #[inline(always)]
    fn reduce_heads<S: Simd, const H: usize, const K: usize>(
        &self,
        s: S,
        (queries, head): (&[f32], usize),
        room: &mut [f32],
        out: &mut [f32],
    ) {
        let (width, len) = (self.job.width(), self.job.partial_len());
        let queries = &queries[head * width..][..H * width];
        let out = &mut out[head * len..][..H * len];
        let mut weights = [[f32::NEG_INFINITY; KV_BLOCK]; H];
        self.score::<S, H, K>(s, queries, room, &mut weights);
        for (weights, out) in weights.iter_mut().zip(out.chunks_exact_mut(len)) {
            soften(s, weights, self.seen.clone(), &mut out[width..]);
            if let Some(factors) = self.job.values.factors(self.first_row) {
                for key in self.seen.clone() {
                    weights[key] *= factors[key];
                }
            }
        }
        self.weigh(s, &weights, room, out);
    }

    /// The scores of the keys that are seen.
    #[inline(always)]
    fn score<S: Simd, const H: usize, const K: usize>(
        &self,
        s: S,
        queries: &[f32],
        room: &mut [f32],
        out: &mut [[f32; KV_BLOCK]; H],
    ) {
        let size = self.job.cache.head_size;
        let keys = self.job.keys;
        if size.is_multiple_of(LANES) {
            match keys {
                Stored::F32(all) => self.score_rows::<S, _, H, K>(s, queries, self.rows(all), out),
                Stored::F16(all) => self.score_rows::<S, _, H, K>(s, queries, self.rows(all), out),
                Stored::Bf16(all) => self.score_rows::<S, _, H, K>(s, queries, self.rows(all), out),
                Stored::I8(all, _) => {
                    self.score_rows::<S, _, H, K>(s, queries, self.rows(all), out);
                }
            }
        } else {
            keys.widen(s, self.first_row, size, room);
            let rows = self.copied();
            rows.score_rows::<S, _, H, K>(s, queries, room, out);
        }
        if let Some(factors) = keys.factors(self.first_row) {
            for out in &mut *out {
                for (out, factor) in out.iter_mut().zip(factors) {
                    *out *= factor;
                }
            }
        }
        for out in out {
            for out in out {
                *out *= self.job.scale;
            }
        }
    }

    /// The block for rows that were copied: what lies behind them is not the next block.
    fn copied(&self) -> Self {
        Self {
            next: None,
            seen: self.seen.clone(),
            ..*self
        }
    }

    fn rows<'a, T>(&self, all: &'a [T]) -> &'a [T] {
        block(all, self.first_row, self.job.cache.head_size)
    }

    /// The dot products with rows of whole vectors: sixteen lanes along the head.
    #[inline(always)]
    fn score_rows<S: Simd, T: Element, const H: usize, const K: usize>(
        &self,
        s: S,
        queries: &[f32],
        keys: &[T],
        out: &mut [[f32; KV_BLOCK]; H],
    ) {
        let width = self.job.width();
        for key in (self.seen.start / K * K..self.seen.end).step_by(K) {
            self.prefetch(s, keys, key, K);
            let mut acc = [s.splat(0.0); LANES];
            for at in (0..width).step_by(LANES) {
                for k in 0..K {
                    // SAFETY: the block has 64 rows of `width` keys.
                    let key = unsafe { T::load(s, keys.as_ptr().add((key + k) * width + at)) };
                    for h in 0..H {
                        // SAFETY: there are `H` queries of `width` floats.
                        let query = unsafe { s.load(queries.as_ptr().add(h * width + at)) };
                        acc[h * K + k] = s.fma(query, key, acc[h * K + k]);
                    }
                }
            }
            let mut sums = [0_f32; LANES];
            // SAFETY: `sums` has sixteen elements.
            unsafe { s.store(sums.as_mut_ptr(), s.reduce_add_each(acc)) };
            for (out, sums) in out.iter_mut().zip(sums.chunks_exact(K)) {
                out[key..key + K].copy_from_slice(sums);
            }
        }
    }

    /// Asks for the part of the next block, which lies where `rows`, this one's, say, that is due at `count` keys
    /// from `key` on: all of it is asked for while the keys that are seen pass.
    #[inline(always)]
    fn prefetch<S: Simd, T>(&self, s: S, rows: &[T], key: usize, count: usize) {
        let Some(next) = self.next else { return };
        let size = self.job.cache.head_size;
        let away = next.wrapping_sub(self.first_row).wrapping_mul(size);
        let first = rows.as_ptr().wrapping_add(away).cast::<u8>();
        let bytes = KV_BLOCK * size * size_of::<T>();
        let start = self.seen.start / count * count;
        let each = (bytes * count).div_ceil(self.seen.end - start);
        let each = each.next_multiple_of(LINE);
        let due = (key - start) / count * each;
        for at in (due..bytes.min(due + each)).step_by(LINE) {
            s.prefetch(first.wrapping_add(at));
        }
    }

    /// The weighted sums of the values of the keys seen, in ascending order of keys.
    #[inline(always)]
    fn weigh<S: Simd, const H: usize>(
        &self,
        s: S,
        weights: &[[f32; KV_BLOCK]; H],
        room: &mut [f32],
        out: &mut [f32],
    ) {
        let size = self.job.cache.head_size;
        let values = self.job.values;
        if !size.is_multiple_of(LANES) {
            values.widen(s, self.first_row, size, room);
            self.copied().weigh_rows(s, weights, room, out);
            return;
        }
        match values {
            Stored::F32(all) => self.weigh_rows(s, weights, self.rows(all), out),
            Stored::F16(all) => self.weigh_rows(s, weights, self.rows(all), out),
            Stored::Bf16(all) => self.weigh_rows(s, weights, self.rows(all), out),
            Stored::I8(all, _) => self.weigh_rows(s, weights, self.rows(all), out),
        }
    }

    #[inline(always)]
    fn weigh_rows<S: Simd, T: Element, const H: usize>(
        &self,
        s: S,
        weights: &[[f32; KV_BLOCK]; H],
        values: &[T],
        out: &mut [f32],
    ) {
        let width = self.job.width();
        let mut at = 0;
        while at < width {
            if S::WIDE && at + 4 * LANES <= width {
                self.weigh_columns::<S, T, H, 4>(s, weights, (values, at), out);
                at += 4 * LANES;
            } else if at + 2 * LANES <= width {
                self.weigh_columns::<S, T, H, 2>(s, weights, (values, at), out);
                at += 2 * LANES;
            } else {
                self.weigh_columns::<S, T, H, 1>(s, weights, (values, at), out);
                at += LANES;
            }
        }
    }

    /// `V` vectors of columns from `at` on.
    #[inline(always)]
    fn weigh_columns<S: Simd, T: Element, const H: usize, const V: usize>(
        &self,
        s: S,
        weights: &[[f32; KV_BLOCK]; H],
        (values, at): (&[T], usize),
        out: &mut [f32],
    ) {
        let (width, len) = (self.job.width(), self.job.partial_len());
        let mut acc = [[s.splat(0.0); V]; H];
        for key in self.seen.clone() {
            if at == 0 {
                self.prefetch(s, values, key, 1);
            }
            for v in 0..V {
                // SAFETY: the block has 64 rows of `width` values.
                let value = unsafe {
                    let from = values.as_ptr().add(key * width + at + v * LANES);
                    T::load(s, from)
                };
                for h in 0..H {
                    acc[h][v] = s.fma(s.splat(weights[h][key]), value, acc[h][v]);
                }
            }
        }
        for h in 0..H {
            for v in 0..V {
                // SAFETY: each of the `H` partial results has `width` values.
                unsafe {
                    let out = out.as_mut_ptr().add(h * len + at + v * LANES);
                    s.store(out, acc[h][v]);
                }
            }
        }
    }
}

/// Turns scores into weights `exp(score - largest)`, zero for keys not seen; leaves the largest score and
/// the sum of the weights in `summary`.
#[inline(always)]
fn soften<S: Simd>(s: S, scores: &mut [f32; KV_BLOCK], seen: Range<usize>, summary: &mut [f32]) {
    // What lies beyond may be anything: it is replaced, never computed with.
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    let mut largest = s.splat(f32::NEG_INFINITY);
    for chunk in scores.chunks_exact(LANES) {
        // SAFETY: the chunk has sixteen elements.
        largest = s.max(largest, unsafe { s.load(chunk.as_ptr()) });
    }
    let mut lanes = [0_f32; LANES];
    // SAFETY: `lanes` has sixteen elements.
    unsafe { s.store(lanes.as_mut_ptr(), largest) };
    let max = lanes.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    let mut sum = s.splat(0.0);
    for chunk in scores.chunks_exact_mut(LANES) {
        // SAFETY: the chunk has sixteen elements.
        unsafe {
            let weight = exp_below(s, s.sub(s.load(chunk.as_ptr()), s.splat(max)));
            sum = s.add(sum, weight);
            s.store(chunk.as_mut_ptr(), weight);
        }
    }
    summary[0] = max;
    summary[1] = s.reduce_add(sum);
}
