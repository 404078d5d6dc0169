//! Causal attention over the blocks of the cache.
//!
//! A block of keys is reduced from scratch to a partial result (largest score, sum of weights, weighted
//! values); partial results are merged left to right for prompt rows and by a fixed tree for generated ones.
//! So the bits of a row depend on its place alone, not on what it is computed with.

use std::ops::Range;

use super::CpuBackend;
use super::rows::{OutRows, load_row};
use super::simd::{Kernel, LANES, Simd, exp};
use crate::backend::{AttentionArgs, AttentionRun, Phase, Sight};
use crate::check::check_attention;
use crate::error::Result;
use crate::kv::{KV_BLOCK, KvLayer};
use crate::tensor::TensorRef;

/// Attention of every row.
pub(super) fn attention(backend: &CpuBackend, mut args: AttentionArgs<'_>) -> Result<()> {
    check_attention(&args)?;
    let out = OutRows::new(&mut args.out)?;
    let job = Job {
        queries: args.queries,
        cache: args.cache,
        runs: args.runs,
        table: args.table,
        group: args.heads / args.cache.kv_heads,
        scale: args.scale,
        sight: args.sight,
        padded: args.cache.head_size.next_multiple_of(LANES),
    };
    backend.each_task(job.tasks(), job.floats(), |level, task, floats| {
        let part = job.part(task);
        match part.run.phase {
            Phase::Prompt => level.run(PromptTile {
                job: &job,
                part,
                out: &out,
                floats,
            }),
            Phase::Generated => level.run(GeneratedRow {
                job: &job,
                part,
                out: &out,
                floats,
            }),
        }
    });
    Ok(())
}

/// One call, cut into parts that threads take in turn.
struct Job<'a> {
    queries: TensorRef<'a>,
    cache: &'a KvLayer,
    runs: &'a [AttentionRun],
    table: &'a [u32],
    /// Query heads of a KV head.
    group: usize,
    scale: f32,
    sight: Sight,
    padded: usize,
}

/// Tokens of one run, for one KV head.
struct Part<'a> {
    run: &'a AttentionRun,
    kv_head: usize,
    /// Counted from the first row of the run.
    tokens: Range<usize>,
}

impl<'a> Job<'a> {
    /// Tokens that a task of the run takes.
    fn step(&self, run: &AttentionRun) -> usize {
        match run.phase {
            Phase::Prompt => (TILE_ROWS / self.group).clamp(8, KV_BLOCK),
            Phase::Generated => 1,
        }
    }

    fn tasks_of(&self, run: &AttentionRun) -> usize {
        run.rows.div_ceil(self.step(run)) * self.cache.kv_heads
    }

    fn tasks(&self) -> usize {
        self.runs.iter().map(|run| self.tasks_of(run)).sum()
    }

    fn part(&self, task: usize) -> Part<'a> {
        let mut left = task;
        let mut found = &self.runs[0];
        for run in self.runs {
            found = run;
            let tasks = self.tasks_of(run);
            if left < tasks {
                break;
            }
            left -= tasks;
        }
        // Late tiles see the most keys: they go first, so that no thread is left alone with one.
        let step = self.step(found);
        let tile = found.rows.div_ceil(step) - 1 - left / self.cache.kv_heads;
        let tokens = tile * step..((tile + 1) * step).min(found.rows);
        Part {
            run: found,
            kv_head: left % self.cache.kv_heads,
            tokens,
        }
    }

    /// Working memory of the largest part.
    fn floats(&self) -> usize {
        let of = |run| self.floats_of(run);
        self.runs.iter().map(of).max().unwrap_or(0)
    }

    fn floats_of(&self, run: &AttentionRun) -> usize {
        let rows = self.step(run).min(run.rows) * self.group;
        let block = 2 * KV_BLOCK * self.padded;
        let state = match run.phase {
            Phase::Prompt => rows * partial_len(self.padded),
            Phase::Generated => self.group * DEPTH * partial_len(self.padded),
        };
        block + self.padded + rows * self.padded + state + 4 * partial_len(self.padded)
    }

    /// The keys that a token sees, counted from the first of its run.
    fn seen(&self, run: &AttentionRun, token: usize) -> Range<usize> {
        self.sight
            .keys(run.first_position + token, run.first_position + run.rows)
    }

    /// The queries of a token, one padded row per head of the group.
    #[inline(always)]
    fn load_queries<S: Simd>(&self, s: S, row: usize, kv_head: usize, out: &mut [f32]) {
        let size = self.cache.head_size;
        for (i, out) in out.chunks_exact_mut(self.padded).enumerate() {
            let first = (kv_head * self.group + i) * size;
            load_row(s, self.queries.col_range(first..first + size), row, out);
        }
    }

    /// The values of a block's keys `keys` as padded f32 rows.
    #[inline(always)]
    fn load_values<S: Simd>(&self, s: S, first_row: usize, keys: Range<usize>, out: &mut [f32]) {
        for key in keys {
            let out = &mut out[key * self.padded..][..self.padded];
            load_row(s, self.cache.values.view(), first_row + key, out);
        }
    }
}

/// Floats of a partial result: the weighted values, the largest score, the sum of the weights.
fn partial_len(padded: usize) -> usize {
    padded + 2
}

/// The keys of `seen` in block `block`, counted from the block's start.
fn in_block(seen: &Range<usize>, block: usize) -> Range<usize> {
    let start = block * KV_BLOCK;
    seen.start.saturating_sub(start).min(KV_BLOCK)..seen.end.saturating_sub(start).min(KV_BLOCK)
}

/// Prompt tokens of one tile, for the query heads of one KV head.
struct PromptTile<'a> {
    job: &'a Job<'a>,
    part: Part<'a>,
    out: &'a OutRows<'a>,
    floats: &'a mut [f32],
}

impl Kernel for PromptTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            job,
            part,
            out,
            floats,
        } = self;
        let (padded, group) = (job.padded, job.group);
        let rows = part.tokens.len() * group;
        let (keys, floats) = floats.split_at_mut(KV_BLOCK * padded);
        let (values, floats) = floats.split_at_mut(KV_BLOCK * padded);
        let (key, floats) = floats.split_at_mut(padded);
        let (queries, floats) = floats.split_at_mut(rows * padded);
        let (states, fresh) = floats.split_at_mut(rows * partial_len(padded));
        for (i, token) in part.tokens.clone().enumerate() {
            let queries = &mut queries[i * group * padded..][..group * padded];
            job.load_queries(s, part.run.first_row + token, part.kv_head, queries);
        }
        let mut tile = TileRows {
            job,
            part: &part,
            queries,
            states,
            fresh,
        };
        let all = tile.seen(0).start..tile.seen(rows - 1).end;
        for block in all.start / KV_BLOCK..all.end.div_ceil(KV_BLOCK) {
            let place = part.run.blocks_in(job.table)[block] as usize;
            let first_row = job.cache.row(place, part.kv_head, 0);
            load_keys_transposed(s, job, first_row, in_block(&all, block), key, keys);
            job.load_values(s, first_row, in_block(&all, block), values);
            let (size, scale) = (job.cache.head_size, job.scale);
            tile.meet(
                s,
                &Block {
                    padded,
                    size,
                    scale,
                    keys,
                    values,
                },
                block,
            );
        }
        for (i, state) in states.chunks_exact_mut(partial_len(padded)).enumerate() {
            let row = part.run.first_row + part.tokens.start + i / group;
            put(s, job, out, (row, part.kv_head * group + i % group), state);
        }
    }
}

/// The rows of a prompt tile: tokens, and the heads of the group within each.
struct TileRows<'a> {
    job: &'a Job<'a>,
    part: &'a Part<'a>,
    queries: &'a [f32],
    /// What each row has come to so far.
    states: &'a mut [f32],
    /// Room for the partial results of a few rows.
    fresh: &'a mut [f32],
}

impl TileRows<'_> {
    /// The keys that a row sees.
    fn seen(&self, row: usize) -> Range<usize> {
        let token = self.part.tokens.start + row / self.job.group;
        self.job.seen(self.part.run, token)
    }

    /// Reduces a block of keys for every row that sees some of it.
    #[inline(always)]
    fn meet<S: Simd>(&mut self, s: S, tile: &Block<'_>, block: usize) {
        let rows = self.queries.len() / tile.padded;
        let mut row = 0;
        while row < rows {
            let seen = in_block(&self.seen(row), block);
            let four = S::WIDE && row + 4 <= rows && in_block(&self.seen(row + 3), block) == seen;
            let count = if four { 4 } else { 1 };
            if !seen.is_empty() {
                let queries = &self.queries[row * tile.padded..][..count * tile.padded];
                if four {
                    tile.reduce::<S, 4>(s, queries, seen, self.fresh);
                } else {
                    tile.reduce::<S, 1>(s, queries, seen, self.fresh);
                }
                for i in 0..count {
                    self.take(s, row + i, i, block);
                }
            }
            row += count;
        }
    }

    /// Merges the `index`-th fresh result into the state of a row.
    #[inline(always)]
    fn take<S: Simd>(&mut self, s: S, row: usize, index: usize, block: usize) {
        let len = partial_len(self.job.padded);
        let first = self.seen(row).start / KV_BLOCK == block;
        let state = &mut self.states[row * len..][..len];
        let fresh = &self.fresh[index * len..][..len];
        if first {
            state.copy_from_slice(fresh);
        } else {
            merge(s, state, fresh);
        }
    }
}

/// Keys as columns: element d of key j at `d * KV_BLOCK + j`.
#[inline(always)]
fn load_keys_transposed<S: Simd>(
    s: S,
    job: &Job<'_>,
    first_row: usize,
    keys: Range<usize>,
    key: &mut [f32],
    out: &mut [f32],
) {
    for j in keys {
        load_row(s, job.cache.keys.view(), first_row + j, key);
        for (d, value) in key[..job.cache.head_size].iter().enumerate() {
            out[d * KV_BLOCK + j] = *value;
        }
    }
}

/// A block of keys (transposed) and values in f32.
struct Block<'a> {
    padded: usize,
    size: usize,
    scale: f32,
    keys: &'a [f32],
    values: &'a [f32],
}

impl Block<'_> {
    /// Partial results of `R` queries that see the same keys: one key per lane, elements in ascending order.
    #[inline(always)]
    fn reduce<S: Simd, const R: usize>(
        &self,
        s: S,
        queries: &[f32],
        seen: Range<usize>,
        out: &mut [f32],
    ) {
        let mut scores = [[s.splat(0.0); VECTORS]; R];
        let keys = self.keys.as_ptr();
        for d in 0..self.size {
            for v in 0..VECTORS {
                // SAFETY: row d of the transposed keys has KV_BLOCK floats.
                let key = unsafe { s.load(keys.add(d * KV_BLOCK + v * LANES)) };
                for r in 0..R {
                    let q = s.splat(queries[r * self.padded + d]);
                    scores[r][v] = s.fma(q, key, scores[r][v]);
                }
            }
        }
        let mut weights = [[0_f32; KV_BLOCK]; R];
        for r in 0..R {
            for v in 0..VECTORS {
                let score = s.mul(scores[r][v], s.splat(self.scale));
                // SAFETY: there are KV_BLOCK weights.
                unsafe { s.store(weights[r].as_mut_ptr().add(v * LANES), score) };
            }
            let partial = &mut out[r * partial_len(self.padded)..][..partial_len(self.padded)];
            softmax(
                s,
                &mut weights[r],
                seen.clone(),
                &mut partial[self.padded..],
            );
        }
        weigh::<S, R>(s, &weights, self.values, self.padded, seen, out);
    }
}

/// Turns scores into weights `exp(score - largest)`, zero for keys not seen; leaves the largest score and
/// the sum of the weights in `summary`.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32; KV_BLOCK], seen: Range<usize>, summary: &mut [f32]) {
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
            let weight = exp(s, s.sub(s.load(chunk.as_ptr()), s.splat(max)));
            sum = s.add(sum, weight);
            s.store(chunk.as_mut_ptr(), weight);
        }
    }
    summary[0] = max;
    summary[1] = s.reduce_add(sum);
}

/// The weighted sums of the values of the keys seen, in ascending order of keys.
#[inline(always)]
fn weigh<S: Simd, const R: usize>(
    s: S,
    weights: &[[f32; KV_BLOCK]; R],
    values: &[f32],
    padded: usize,
    seen: Range<usize>,
    out: &mut [f32],
) {
    for at in (0..padded).step_by(LANES) {
        let mut acc = [s.splat(0.0); R];
        for j in seen.clone() {
            // SAFETY: row j of the values has `padded` floats.
            let value = unsafe { s.load(values.as_ptr().add(j * padded + at)) };
            for r in 0..R {
                acc[r] = s.fma(s.splat(weights[r][j]), value, acc[r]);
            }
        }
        for r in 0..R {
            // SAFETY: partial result r has `padded` floats of values.
            unsafe { s.store(out.as_mut_ptr().add(r * partial_len(padded) + at), acc[r]) };
        }
    }
}

/// Merges a later partial result into an earlier one.
#[inline(always)]
fn merge<S: Simd>(s: S, left: &mut [f32], right: &[f32]) {
    let padded = left.len() - 2;
    let max = left[padded].max(right[padded]);
    let mut lanes = [0_f32; LANES];
    lanes[0] = left[padded] - max;
    lanes[1] = right[padded] - max;
    // SAFETY: `lanes` has sixteen elements.
    unsafe { s.store(lanes.as_mut_ptr(), exp(s, s.load(lanes.as_ptr()))) };
    let (a, b) = (s.splat(lanes[0]), s.splat(lanes[1]));
    left[padded] = max;
    // The last vector of what is merged may hold the two sums' neighbours, so they are merged alone.
    let sums = [left[padded + 1], right[padded + 1]];
    for at in (0..padded).step_by(LANES) {
        // SAFETY: both hold `padded` floats, whole vectors.
        unsafe {
            let (l, r) = (
                s.load(left.as_ptr().add(at)),
                s.load(right.as_ptr().add(at)),
            );
            s.store(left.as_mut_ptr().add(at), s.fma(l, a, s.mul(r, b)));
        }
    }
    lanes = [0.0; LANES];
    // SAFETY: `lanes` has sixteen elements.
    unsafe {
        let merged = s.fma(s.splat(sums[0]), a, s.mul(s.splat(sums[1]), b));
        s.store(lanes.as_mut_ptr(), merged);
    }
    left[padded + 1] = lanes[0];
}

/// Writes the mean of the values to row `at.0`, head `at.1`.
#[inline(always)]
fn put<S: Simd>(s: S, job: &Job<'_>, out: &OutRows<'_>, at: (usize, usize), state: &mut [f32]) {
    let sum = s.splat(state[job.padded + 1]);
    for chunk in state[..job.padded].chunks_exact_mut(LANES) {
        // SAFETY: the chunk has sixteen elements.
        unsafe { s.store(chunk.as_mut_ptr(), s.div(s.load(chunk.as_ptr()), sum)) }
    }
    let size = job.cache.head_size;
    out.put_part(s, at.0, at.1 * size, &state[..size]);
}

/// One generated token, for the query heads of one KV head.
struct GeneratedRow<'a> {
    job: &'a Job<'a>,
    part: Part<'a>,
    out: &'a OutRows<'a>,
    floats: &'a mut [f32],
}

impl Kernel for GeneratedRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            job,
            part,
            out,
            floats,
        } = self;
        let (padded, group) = (job.padded, job.group);
        let (keys, floats) = floats.split_at_mut(KV_BLOCK * padded);
        let (values, floats) = floats.split_at_mut(KV_BLOCK * padded);
        let (queries, stacks) = floats.split_at_mut(group * padded);
        let row = part.run.first_row + part.tokens.start;
        job.load_queries(s, row, part.kv_head, queries);
        let seen = job.seen(part.run, part.tokens.start);
        let blocks = seen.start / KV_BLOCK..seen.end.div_ceil(KV_BLOCK);
        let mut depth = 0;
        for (i, block) in blocks.enumerate() {
            let first_row = job.cache.row(
                part.run.blocks_in(job.table)[block] as usize,
                part.kv_head,
                0,
            );
            let seen = in_block(&seen, block);
            for key in seen.clone() {
                let out = &mut keys[key * padded..][..padded];
                load_row(s, job.cache.keys.view(), first_row + key, out);
            }
            job.load_values(s, first_row, seen.clone(), values);
            // A binary counter: the stack holds whole subtrees, largest first.
            let merges = (i + 1).trailing_zeros() as usize;
            for head in 0..group {
                let query = &queries[head * padded..][..padded];
                let stack = &mut stacks[head * DEPTH * partial_len(padded)..]
                    [..DEPTH * partial_len(padded)];
                let top = &mut stack[depth * partial_len(padded)..][..partial_len(padded)];
                reduce_generated(s, (query, keys, values), job.scale, seen.clone(), top);
                fold(s, stack, partial_len(padded), depth, merges);
            }
            depth = depth + 1 - merges;
        }
        for head in 0..group {
            let stack =
                &mut stacks[head * DEPTH * partial_len(padded)..][..DEPTH * partial_len(padded)];
            fold(s, stack, partial_len(padded), depth - 1, depth - 1);
            put(
                s,
                job,
                out,
                (row, part.kv_head * group + head),
                &mut stack[..partial_len(padded)],
            );
        }
    }
}

/// Merges the entry at `top` of a stack into the one below, `times` over.
#[inline(always)]
fn fold<S: Simd>(s: S, stack: &mut [f32], len: usize, top: usize, times: usize) {
    for i in 0..times {
        let (below, above) = stack.split_at_mut((top - i) * len);
        merge(s, &mut below[(top - i - 1) * len..], &above[..len]);
    }
}

/// The partial result of one query: sixteen lanes along the head.
#[inline(always)]
fn reduce_generated<S: Simd>(
    s: S,
    (query, keys, values): (&[f32], &[f32], &[f32]),
    scale: f32,
    seen: Range<usize>,
    out: &mut [f32],
) {
    let padded = query.len();
    let mut weights = [[0_f32; KV_BLOCK]; 1];
    for key in seen.clone() {
        let mut acc = s.splat(0.0);
        for at in (0..padded).step_by(LANES) {
            // SAFETY: the query and key row `key` have `padded` floats.
            unsafe {
                let k = s.load(keys.as_ptr().add(key * padded + at));
                acc = s.fma(s.load(query.as_ptr().add(at)), k, acc);
            }
        }
        weights[0][key] = s.reduce_add(acc) * scale;
    }
    softmax(s, &mut weights[0], seen.clone(), &mut out[padded..]);
    weigh::<S, 1>(s, &weights, values, padded, seen, out);
}

/// Vectors of scores of a block.
const VECTORS: usize = KV_BLOCK / LANES;

/// Rows of a prompt tile, heads of the group included: enough to pay for transposing a block of keys.
const TILE_ROWS: usize = 192;

/// Entries of the stack of subtrees: blocks are numbered with 32 bits.
const DEPTH: usize = 33;
