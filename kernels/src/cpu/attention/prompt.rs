//! Rows of prompts: flash attention over tiles of rows.
//!
//! A lane is a row, so a key or a value is read once for all rows of a tile, and the softmax needs no sums
//! across lanes. Scores, weights and outputs lie as `[key or element][row]`.

use std::ops::Range;

use half::bf16;

use super::plan::{Job, STATES, TILE_ROWS, Tile, in_block};
use super::product::{Float, Ones, Pair, Word, multiply};
use super::stored::{Stored, block};
use crate::cpu::rows::load_row;
use crate::cpu::simd::{Kernel, LANES, Simd, exp_below};
use crate::kv::KV_BLOCK;

/// The rows of a tile over all keys that they see.
pub(super) struct PromptTile<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) tile: Tile<'a>,
    pub(super) floats: &'a mut [f32],
}

impl Kernel for PromptTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rounds = self.job.rounds_weights();
        let mut rows = TileRows::new(self);
        if S::BF16_DOT && rounds {
            rows.attend::<S, Pair>(s);
        } else {
            rows.attend::<S, Float>(s);
        }
    }
}

/// A tile at work.
struct TileRows<'a> {
    job: &'a Job<'a>,
    tile: Tile<'a>,
    width: usize,
    /// Vectors of rows.
    vectors: usize,
    /// `[word][row]`.
    queries: &'a mut [f32],
    /// `[key][row]`, then the weights in their place, as words.
    scores: &'a mut [f32],
    /// Room for a block's keys, `[key][word]`.
    keys: &'a mut [f32],
    /// Room for a block's values, words of pairs of keys: `[pair][word of it][element]`.
    values: &'a mut [f32],
    /// The weighted values, `[element][row]`.
    out: &'a mut [f32],
    /// Room for a vector's rows, one after the other.
    rows: &'a mut [f32],
    state: State<'a>,
}

/// Numbers of each row.
struct State<'a> {
    /// The largest score and the sum of the weights, of the blocks that were met.
    max: &'a mut [f32],
    sum: &'a mut [f32],
    /// The block's factors: of what was, and of what it adds.
    old: &'a mut [f32],
    new: &'a mut [f32],
    /// The keys of the block that a row sees.
    first: &'a mut [f32],
    end: &'a mut [f32],
}

impl<'a> TileRows<'a> {
    fn new(kernel: PromptTile<'a>) -> Self {
        let PromptTile { job, tile, floats } = kernel;
        let width = job.width();
        let (queries, floats) = floats.split_at_mut(TILE_ROWS * width);
        let (scores, floats) = floats.split_at_mut(KV_BLOCK * TILE_ROWS);
        let (keys, floats) = floats.split_at_mut(KV_BLOCK * width);
        let (values, floats) = floats.split_at_mut(KV_BLOCK * width);
        let (out, floats) = floats.split_at_mut(TILE_ROWS * width);
        let (rows, floats) = floats.split_at_mut(LANES * width);
        let mut states = floats[..STATES * TILE_ROWS].chunks_exact_mut(TILE_ROWS);
        let mut state = || states.next().unwrap_or_default();
        let state = State {
            max: state(),
            sum: state(),
            old: state(),
            new: state(),
            first: state(),
            end: state(),
        };
        // No block was met: below every score, and exactly nothing when merged with the first.
        state.max.fill(f32::MIN);
        state.sum.fill(0.0);
        out.fill(0.0);
        Self {
            job,
            width,
            vectors: tile.rows.len().div_ceil(LANES),
            tile,
            queries,
            scores,
            keys,
            values,
            out,
            rows,
            state,
        }
    }

    /// The keys that a row of the tile sees.
    fn seen(&self, row: usize) -> Range<usize> {
        self.job.seen(self.tile.run, row / self.job.group)
    }

    #[inline(always)]
    fn attend<S: Simd, W: Word>(&mut self, s: S) {
        for vector in 0..self.vectors {
            self.load_queries::<S, W>(s, vector);
        }
        let (first, last) = (
            self.seen(self.tile.rows.start),
            self.seen(self.tile.rows.end - 1),
        );
        let (any, every) = (first.start..last.end, last.start..first.end);
        for index in any.start / KV_BLOCK..any.end.div_ceil(KV_BLOCK) {
            let seen = in_block(&any, index);
            let first_row = self.job.first_row(self.tile.run, self.tile.kv_head, index);
            let mut block = self.load_block::<S, W>(s, first_row, &seen);
            if (index + 1) * KV_BLOCK < any.end {
                let next = self
                    .job
                    .first_row(self.tile.run, self.tile.kv_head, index + 1);
                block.next = Some(self.job.addresses(next));
            }
            if in_block(&every, index) == (0..KV_BLOCK) {
                self.meet::<S, W, false>(s, &block);
                self.weigh::<S, W>(s, &block);
                continue;
            }
            self.limit(index);
            self.meet::<S, W, true>(s, &block);
            if self.values_are_finite::<W>(&block.seen) {
                self.weigh::<S, W>(s, &block);
            } else {
                self.weigh_seen::<S, W>(s, &block);
            }
        }
        for vector in 0..self.vectors {
            self.put(s, vector);
        }
    }

    /// The queries of a vector of rows, as words.
    #[inline(always)]
    fn load_queries<S: Simd, W: Word>(&mut self, s: S, vector: usize) {
        let (job, size) = (self.job, self.job.cache.head_size);
        let words = if W::SPAN == 1 {
            (self.width / 2).next_multiple_of(LANES)
        } else {
            self.width
        };
        for lane in 0..LANES {
            let out = &mut self.rows[lane * words..][..words];
            let row = self.tile.rows.start + vector * LANES + lane;
            if row >= self.tile.rows.end {
                out.fill(0.0);
                continue;
            }
            let head = self.tile.kv_head * job.group + row % job.group;
            let queries = job.queries.col_range(head * size..(head + 1) * size);
            let row = self.tile.run.first_row + row / job.group;
            if W::SPAN > 1 {
                load_row(s, queries, row, out);
            } else if let Ok(from) = queries.row::<bf16>(row) {
                let out = bytemuck::cast_slice_mut::<f32, bf16>(out);
                out[..size].copy_from_slice(from);
                out[size..].fill(bf16::ZERO);
            }
        }
        for word in (0..words).step_by(LANES) {
            let mut square = [s.splat(0.0); LANES];
            for (lane, row) in square.iter_mut().enumerate() {
                // SAFETY: each of the sixteen rows has `words` words, whole vectors.
                *row = unsafe { s.load(self.rows.as_ptr().add(lane * words + word)) };
            }
            for (i, column) in s.transpose(square).into_iter().enumerate() {
                let at = (word + i) * TILE_ROWS + vector * LANES;
                // SAFETY: there are `words` rows of words of the tile's rows.
                unsafe { s.store(self.queries.as_mut_ptr().add(at), column) };
            }
        }
    }

    /// The keys of a block and those of its values that are seen, as words.
    #[inline(always)]
    fn load_block<S: Simd, W: Word>(
        &mut self,
        s: S,
        first_row: usize,
        seen: &Range<usize>,
    ) -> Block<'a> {
        let (job, size, width) = (self.job, self.job.cache.head_size, self.width);
        let stored = match job.keys {
            Stored::F32(all) if W::SPAN > 1 && size.is_multiple_of(2) => {
                Some((block(all, first_row, size).as_ptr(), size))
            }
            Stored::Bf16(all) if W::SPAN == 1 && size.is_multiple_of(2) => {
                Some((block(all, first_row, size).as_ptr().cast(), size / 2))
            }
            _ => None,
        };
        let (keys, stride) = stored.unwrap_or_else(|| {
            if W::SPAN > 1 {
                job.keys.widen(s, first_row, size, self.keys);
                return (self.keys.as_ptr(), width);
            }
            let out = bytemuck::cast_slice_mut(self.keys);
            job.keys.narrow(first_row, size, out);
            (self.keys.as_ptr(), width / 2)
        });
        if W::SPAN > 1 {
            job.values.widen(s, first_row, size, self.values);
            self.values[..seen.start * width].fill(0.0);
            self.values[seen.end * width..KV_BLOCK * width].fill(0.0);
        } else {
            let out = bytemuck::cast_slice_mut(self.values);
            job.values.interleave(first_row, size, seen, out);
        }
        Block {
            keys,
            stride,
            key_factors: job.keys.factors(first_row),
            value_factors: job.values.factors(first_row),
            seen: seen.clone(),
            next: None,
        }
    }

    /// Whether the values of a block that some row sees are numbers.
    #[inline(always)]
    fn values_are_finite<W: Word>(&self, seen: &Range<usize>) -> bool {
        let pairs = seen.start / 2..seen.end.div_ceil(2);
        let words = self.width * W::SPAN;
        let has_exponent = |bits: u32, mask: u32| bits & mask == mask;
        let mut finite = true;
        for word in &self.values[pairs.start * words..pairs.end * words] {
            let bits = word.to_bits();
            finite &= !has_exponent(bits, 0x7f80_0000);
            if W::SPAN == 1 {
                finite &= !has_exponent(bits, 0x7f80);
            }
        }
        finite
    }

    /// What each row sees of a block.
    fn limit(&mut self, index: usize) {
        let rows = self.tile.rows.clone();
        for lane in 0..self.vectors * LANES {
            let seen = in_block(&self.seen((rows.start + lane).min(rows.end - 1)), index);
            self.state.first[lane] = seen.start as f32;
            self.state.end[lane] = seen.end as f32;
        }
    }

    /// Scores, weights, and how the block is merged with those before.
    #[inline(always)]
    fn meet<S: Simd, W: Word, const PART: bool>(&mut self, s: S, block: &Block<'_>) {
        self.state.new.fill(f32::NEG_INFINITY);
        let seen = block.seen.clone();
        let (fours, eights) = (seen.start / 4 * 4..seen.end, seen.start / 8 * 8..seen.end);
        if !S::WIDE {
            let (sixes, rest) = in_sixes(seen.start / 2 * 2..seen.end);
            self.score::<S, W, PART, 1, 6>(s, block, sixes);
            if rest.len() > 2 {
                self.score::<S, W, PART, 1, 4>(s, block, rest);
            } else {
                self.score::<S, W, PART, 1, 2>(s, block, rest);
            }
        } else if self.vectors == 4 {
            self.score::<S, W, PART, 4, 4>(s, block, fours);
        } else if self.vectors == 3 {
            self.score::<S, W, PART, 3, 4>(s, block, fours);
        } else if self.vectors == 2 {
            self.score::<S, W, PART, 2, 8>(s, block, eights);
        } else {
            self.score::<S, W, PART, 1, 8>(s, block, eights);
        }
        for vector in 0..self.vectors {
            self.soften::<S, W, PART>(s, block, vector);
        }
    }

    /// The scores of all rows for some keys, and the largest of each in `new`.
    #[inline(always)]
    fn score<S: Simd, W: Word, const PART: bool, const R: usize, const C: usize>(
        &mut self,
        s: S,
        block: &Block<'_>,
        keys: Range<usize>,
    ) {
        let pairs = self.job.cache.head_size.div_ceil(2);
        let scale = s.splat(self.job.scale);
        for key in keys.step_by(C) {
            block.prefetch(s, 0, key..key + C);
            block.prefetch(s, 1, key..key + C);
            for at in (0..self.vectors * LANES).step_by(R * LANES) {
                // SAFETY: the block has 64 keys of at least `pairs` pairs, and whole `C` of them from the first
                // one on; the vectors are a multiple of `R`.
                unsafe {
                    let ones = Ones {
                        words: block.keys.add(key * block.stride),
                        along: 1,
                        across: block.stride,
                    };
                    let lanes = self.queries.as_ptr().add(at);
                    let scores = multiply::<S, W, R, C>(s, pairs, lanes, ones);
                    for r in 0..R {
                        let at = at + r * LANES;
                        let largest = self.state.new.as_mut_ptr().add(at);
                        let mut max = s.load(largest);
                        for c in 0..C {
                            let mut score = scores[c][r];
                            if let Some(factors) = block.key_factors {
                                score = s.mul(score, s.splat(factors[key + c]));
                            }
                            score = s.mul(score, scale);
                            if PART {
                                let none = s.splat(f32::NEG_INFINITY);
                                score = self.where_seen(s, at, key + c, (score, none));
                            }
                            max = s.max(max, score);
                            let out = self.scores.as_mut_ptr().add((key + c) * TILE_ROWS + at);
                            s.store(out, score);
                        }
                        s.store(largest, max);
                    }
                }
            }
        }
    }

    /// `pair.0` in the rows that see a key, `pair.1` in the others.
    #[inline(always)]
    fn where_seen<S: Simd>(&self, s: S, at: usize, key: usize, pair: (S::F, S::F)) -> S::F {
        let key = s.splat(key as f32);
        let (yes, no) = pair;
        // SAFETY: there are numbers of all rows.
        unsafe {
            let inside = s.select_lt(key, s.load(self.state.end.as_ptr().add(at)), yes, no);
            s.select_lt(key, s.load(self.state.first.as_ptr().add(at)), no, inside)
        }
    }

    /// The weights of a vector of rows in place of their scores, their sums, and the factors of the merge.
    #[inline(always)]
    fn soften<S: Simd, W: Word, const PART: bool>(
        &mut self,
        s: S,
        block: &Block<'_>,
        vector: usize,
    ) {
        let at = vector * LANES;
        let rounds = self.job.rounds_weights();
        let zero = s.splat(0.0);
        let (mut even, mut odd) = (zero, zero);
        // SAFETY: there are numbers of all rows, and scores of the keys of every pair that is seen some of.
        unsafe {
            let max = s.load(self.state.new.as_ptr().add(at));
            for pair in block.seen.start / 2..block.seen.end.div_ceil(2) {
                let mut weights = [zero; 2];
                for (i, weight) in weights.iter_mut().enumerate() {
                    let key = 2 * pair + i;
                    let score = s.load(self.scores.as_ptr().add(key * TILE_ROWS + at));
                    *weight = exp_below(s, s.sub(score, max));
                    if PART {
                        *weight = self.where_seen(s, at, key, (*weight, zero));
                    }
                }
                even = s.add(even, weights[0]);
                odd = s.add(odd, weights[1]);
                if let Some(factors) = block.value_factors {
                    for (i, weight) in weights.iter_mut().enumerate() {
                        let key = 2 * pair + i;
                        *weight = s.mul(*weight, s.splat(factors[key]));
                        if PART {
                            *weight = self.where_seen(s, at, key, (*weight, zero));
                        }
                    }
                }
                if rounds && W::SPAN > 1 {
                    // Not `map`: its closure is compiled without the level's instructions.
                    weights = [s.round_bf16(weights[0]), s.round_bf16(weights[1])];
                }
                let out = self.scores.as_mut_ptr();
                let out = out.add(pair * W::SPAN * TILE_ROWS + at);
                W::put(s, out, weights[0], weights[1]);
            }
            let state = &mut self.state;
            let before = s.load(state.max.as_ptr().add(at));
            let both = s.max(before, max);
            let old = exp_below(s, s.sub(before, both));
            let new = exp_below(s, s.sub(max, both));
            let sum = s.load(state.sum.as_ptr().add(at));
            let sum = s.fma(sum, old, s.mul(s.add(even, odd), new));
            s.store(state.max.as_mut_ptr().add(at), both);
            s.store(state.sum.as_mut_ptr().add(at), sum);
            s.store(state.old.as_mut_ptr().add(at), old);
            s.store(state.new.as_mut_ptr().add(at), new);
        }
    }

    /// Adds the weighted values of a block to all rows.
    #[inline(always)]
    fn weigh<S: Simd, W: Word>(&mut self, s: S, block: &Block<'_>) {
        let elements = 0..self.job.cache.head_size;
        if !S::WIDE {
            let (sixes, rest) = in_sixes(elements);
            self.weigh_by::<S, W, 1, 6>(s, block, sixes);
            if rest.len() > 2 {
                self.weigh_by::<S, W, 1, 4>(s, block, rest);
            } else {
                self.weigh_by::<S, W, 1, 2>(s, block, rest);
            }
        } else if self.vectors == 4 {
            self.weigh_by::<S, W, 4, 4>(s, block, elements);
        } else if self.vectors == 3 {
            self.weigh_by::<S, W, 3, 4>(s, block, elements);
        } else if self.vectors == 2 {
            self.weigh_by::<S, W, 2, 8>(s, block, elements);
        } else {
            self.weigh_by::<S, W, 1, 8>(s, block, elements);
        }
    }

    #[inline(always)]
    fn weigh_by<S: Simd, W: Word, const R: usize, const C: usize>(
        &mut self,
        s: S,
        block: &Block<'_>,
        elements: Range<usize>,
    ) {
        let pairs = block.seen.start / 2..block.seen.end.div_ceil(2);
        let first = pairs.start * W::SPAN;
        for at in (0..self.vectors * LANES).step_by(R * LANES) {
            for element in elements.clone().step_by(C) {
                // SAFETY: rows of values and outputs are whole vectors, which hold whole `C` from the first
                // element on; there are weights of every pair that is seen some of.
                unsafe {
                    let ones = Ones {
                        words: self.values.as_ptr().add(first * self.width + element),
                        along: self.width,
                        across: 1,
                    };
                    let lanes = self.scores.as_ptr().add(first * TILE_ROWS + at);
                    let sums = multiply::<S, W, R, C>(s, pairs.len(), lanes, ones);
                    for r in 0..R {
                        let at = at + r * LANES;
                        for c in 0..C {
                            self.merge(s, element + c, at, sums[c][r]);
                        }
                    }
                }
            }
        }
    }

    /// Merges the block's sums of an element with what the rows from `at` on have.
    ///
    /// # Safety
    /// The element and the sixteen rows must exist.
    #[inline(always)]
    unsafe fn merge<S: Simd>(&mut self, s: S, element: usize, at: usize, sums: S::F) {
        // SAFETY: the caller promises the place.
        unsafe {
            let out = self.out.as_mut_ptr().add(element * TILE_ROWS + at);
            let old = s.load(self.state.old.as_ptr().add(at));
            let new = s.load(self.state.new.as_ptr().add(at));
            s.store(out, s.fma(s.load(out), old, s.mul(sums, new)));
        }
    }

    /// The same as [`TileRows::weigh`] where some values are not finite: what a row does not see is not even
    /// multiplied by zero.
    #[inline(always)]
    fn weigh_seen<S: Simd, W: Word>(&mut self, s: S, block: &Block<'_>) {
        for at in (0..self.vectors * LANES).step_by(LANES) {
            for element in 0..self.job.cache.head_size {
                let mut acc = s.splat(0.0);
                for pair in block.seen.start / 2..block.seen.end.div_ceil(2) {
                    for (i, (word, bits)) in W::PARTS.into_iter().enumerate() {
                        let step = pair * W::SPAN + word;
                        // SAFETY: there are values and weights of every pair that is seen some of.
                        unsafe {
                            let value =
                                self.values.as_ptr().add(step * self.width + element).read();
                            let value = f32::from_bits(value.to_bits() & bits);
                            let lanes = self.scores.as_ptr().add(step * TILE_ROWS + at);
                            let one = W::one(s, &raw const value);
                            let sum = W::add(s, acc, W::lanes(s, lanes), one);
                            acc = self.where_seen(s, at, 2 * pair + 1 - i, (sum, acc));
                        }
                    }
                }
                // SAFETY: the element and the rows exist.
                unsafe { self.merge(s, element, at, acc) };
            }
        }
    }

    /// Writes a vector of rows.
    #[inline(always)]
    fn put<S: Simd>(&mut self, s: S, vector: usize) {
        let (job, size, width) = (self.job, self.job.cache.head_size, self.width);
        for element in (0..width).step_by(LANES) {
            let mut square = [s.splat(0.0); LANES];
            // SAFETY: rows of outputs are whole vectors, and so are rows of the tile.
            unsafe {
                let sum = s.load(self.state.sum.as_ptr().add(vector * LANES));
                for (i, column) in square.iter_mut().enumerate() {
                    let at = (element + i) * TILE_ROWS + vector * LANES;
                    let out = s.load(self.out.as_ptr().add(at));
                    *column = s.div(s.add(out, s.splat(0.0)), sum);
                }
                for (lane, row) in s.transpose(square).into_iter().enumerate() {
                    s.store(self.rows.as_mut_ptr().add(lane * width + element), row);
                }
            }
        }
        let first = self.tile.rows.start + vector * LANES;
        for (lane, row) in (first..self.tile.rows.end.min(first + LANES)).enumerate() {
            let head = self.tile.kv_head * job.group + row % job.group;
            let at = self.tile.run.first_row + row / job.group;
            let values = &self.rows[lane * width..][..size];
            job.out.put_part(s, at, head * size, values);
        }
    }
}

/// A block of keys and values as words.
struct Block<'a> {
    keys: *const f32,
    /// Words from a key to the next.
    stride: usize,
    key_factors: Option<&'a [f32]>,
    value_factors: Option<&'a [f32]>,
    /// The keys that some row sees; those beyond may be anything, but values beyond are 0.
    seen: Range<usize>,
    /// The keys and values of the block after it, which are asked for while this one is met.
    next: Option<[(*const u8, usize); 2]>,
}

impl Block<'_> {
    /// Asks for what the next block has where these keys are in this one.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, side: usize, keys: Range<usize>) {
        let Some(next) = self.next else { return };
        let (first, bytes) = next[side];
        for at in (keys.start * bytes / KV_BLOCK..keys.end * bytes / KV_BLOCK).step_by(64) {
            s.prefetch(first.wrapping_add(at));
        }
    }
}

/// Cuts a range from an even number on into sixes and what is left: with sixteen registers, six outputs at once
/// hide how long a product takes.
fn in_sixes(range: Range<usize>) -> (Range<usize>, Range<usize>) {
    let even = range.len().next_multiple_of(2);
    let border = range.start + even / 6 * 6;
    (range.start..border, border..range.end.max(border))
}
