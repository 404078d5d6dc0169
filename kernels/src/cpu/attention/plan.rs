//! How a call is cut into parts that threads take in turn. Parts never change what is computed.

use std::ops::Range;

use super::stored::Stored;
use crate::backend::{AttentionArgs, AttentionRun, Phase, Sight};
use crate::cpu::rows::OutRows;
use crate::cpu::simd::LANES;
use crate::dtype::DType;
use crate::kv::{KV_BLOCK, KvLayer};
use crate::tensor::TensorRef;

/// One call.
pub(super) struct Job<'a> {
    pub(super) queries: TensorRef<'a>,
    pub(super) out: &'a OutRows<'a>,
    pub(super) cache: &'a KvLayer,
    pub(super) keys: Stored<'a>,
    pub(super) values: Stored<'a>,
    pub(super) runs: &'a [AttentionRun],
    pub(super) table: &'a [u32],
    /// Query heads of a KV head.
    pub(super) group: usize,
    pub(super) scale: f32,
    pub(super) sight: Sight,
    /// Blocks of a generated row that one part takes, a power of two: whole subtrees.
    pub(super) chunk: usize,
}

/// What a thread takes at a time.
pub(super) enum Part<'a> {
    /// Rows of a prompt.
    Tile(Tile<'a>),
    /// Blocks of a generated row.
    Chunk(Chunk<'a>),
}

/// Rows of a prompt for one KV head. Each token has a row for every query head of the group.
pub(super) struct Tile<'a> {
    pub(super) run: &'a AttentionRun,
    pub(super) kv_head: usize,
    /// Counted from the first of the run: token times group plus head of the group.
    pub(super) rows: Range<usize>,
}

/// A generated row for one KV head.
pub(super) struct Row<'a> {
    pub(super) run: &'a AttentionRun,
    pub(super) kv_head: usize,
    /// Counted from the first of the run.
    pub(super) token: usize,
    /// Its first partial result; none where one part takes the whole row.
    pub(super) slot: Option<usize>,
}

/// Blocks of a generated row.
pub(super) struct Chunk<'a> {
    pub(super) row: Row<'a>,
    pub(super) index: usize,
}

/// Blocks that one part of a generated row takes, so that every thread has some.
pub(super) fn chunk_of(args: &AttentionArgs<'_>, threads: usize) -> usize {
    let generated = args.runs.iter().filter(|run| run.phase == Phase::Generated);
    let blocks = generated.map(|run| run.rows * blocks_of(args.sight, run));
    let all = blocks.sum::<usize>() * args.cache.kv_heads;
    if threads == 1 {
        return all.next_power_of_two();
    }
    all.div_ceil(threads * PARTS_PER_THREAD).next_power_of_two()
}

/// The most blocks that a row of the run sees some of.
fn blocks_of(sight: Sight, run: &AttentionRun) -> usize {
    let end = run.first_position + run.rows;
    if run.rows == 0 {
        return 0;
    }
    match sight.keys(end - 1, end) {
        seen if seen.start == 0 => seen.end.div_ceil(KV_BLOCK),
        seen => seen.len().div_ceil(KV_BLOCK) + 1,
    }
}

impl<'a> Job<'a> {
    fn kv_heads(&self) -> usize {
        self.cache.kv_heads
    }

    /// Parts of each row and KV head of a generated run.
    fn chunks_of(&self, run: &AttentionRun) -> usize {
        blocks_of(self.sight, run).div_ceil(self.chunk)
    }

    fn tasks_of(&self, run: &AttentionRun) -> usize {
        self.kv_heads()
            * match run.phase {
                Phase::Prompt => (run.rows * self.group).div_ceil(TILE_ROWS),
                Phase::Generated => run.rows * self.chunks_of(run),
            }
    }

    pub(super) fn tasks(&self) -> usize {
        self.runs.iter().map(|run| self.tasks_of(run)).sum()
    }

    /// Rows whose parts have to be merged, for each KV head.
    fn merges_of(&self, run: &AttentionRun) -> usize {
        match run.phase {
            Phase::Generated if self.chunks_of(run) > 1 => run.rows * self.kv_heads(),
            _ => 0,
        }
    }

    pub(super) fn merges(&self) -> usize {
        self.runs.iter().map(|run| self.merges_of(run)).sum()
    }

    pub(super) fn part(&self, task: usize) -> Part<'a> {
        let (run, task, slot) = self.find(task, |run| self.tasks_of(run));
        if run.phase == Phase::Prompt {
            // Neighbours share a KV head, whose blocks stay in the cache. Late tiles see the most keys: they go
            // first, so that no thread is left alone with one.
            let all = run.rows * self.group;
            let tiles = all.div_ceil(TILE_ROWS);
            let tile = tiles - 1 - task % tiles;
            return Part::Tile(Tile {
                run,
                kv_head: task / tiles,
                rows: tile * TILE_ROWS..((tile + 1) * TILE_ROWS).min(all),
            });
        }
        let chunks = self.chunks_of(run);
        Part::Chunk(Chunk {
            row: self.row(run, task / chunks, slot),
            index: task % chunks,
        })
    }

    /// The blocks of a generated row that are task `task`, if that is what it is.
    pub(super) fn chunk_at(&self, task: usize) -> Option<Chunk<'a>> {
        if task >= self.tasks() {
            return None;
        }
        match self.part(task) {
            Part::Chunk(chunk) => Some(chunk),
            Part::Tile(_) => None,
        }
    }

    pub(super) fn merged_row(&self, task: usize) -> Row<'a> {
        let (run, row, slot) = self.find(task, |run| self.merges_of(run));
        self.row(run, row, slot)
    }

    /// The run to which a task belongs, its number within the run, and the first slot of the run.
    fn find(
        &self,
        mut task: usize,
        of: impl Fn(&AttentionRun) -> usize,
    ) -> (&'a AttentionRun, usize, usize) {
        let mut slot = 0;
        for run in self.runs {
            let tasks = of(run);
            if task < tasks {
                return (run, task, slot);
            }
            task -= tasks;
            slot += self.merges_of(run) * self.chunks_of(run);
        }
        (&self.runs[0], 0, 0)
    }

    fn row(&self, run: &'a AttentionRun, row: usize, slot: usize) -> Row<'a> {
        let chunks = self.chunks_of(run);
        Row {
            run,
            kv_head: row % self.kv_heads(),
            token: row / self.kv_heads(),
            slot: (chunks > 1).then_some(slot + row * chunks),
        }
    }

    /// Partial results that are to be merged.
    pub(super) fn slots(&self) -> usize {
        let slots = |run| self.merges_of(run) * self.chunks_of(run);
        self.runs.iter().map(slots).sum()
    }

    /// Memory of all partial results; what a call of this layer may ever need, so that it is had once.
    pub(super) fn partial_floats(&self, threads: usize) -> usize {
        let is_generated = |run: &AttentionRun| run.phase == Phase::Generated;
        if !self.runs.iter().any(is_generated) {
            return 0;
        }
        self.slots().max(4 * threads * PARTS_PER_THREAD) * self.group * self.partial_len()
    }

    /// Elements of a head, as whole vectors.
    pub(super) fn width(&self) -> usize {
        self.cache.head_size.next_multiple_of(LANES)
    }

    /// Floats of a partial result: the weighted values, then a vector that begins with the largest score and
    /// the sum of the weights.
    pub(super) fn partial_len(&self) -> usize {
        self.width() + LANES
    }

    /// Working memory of the largest part.
    pub(super) fn floats(&self) -> usize {
        let width = self.width();
        let of_phase = |phase| match phase {
            // Queries, keys, values and outputs; scores; one group of rows; the state.
            Phase::Prompt => {
                2 * TILE_ROWS * width
                    + 2 * KV_BLOCK * width
                    + KV_BLOCK * TILE_ROWS
                    + LANES * width
                    + STATES * TILE_ROWS
            }
            // Keys and values; queries; the stacks of subtrees.
            Phase::Generated => {
                2 * KV_BLOCK * width + self.group * (width + DEPTH * self.partial_len())
            }
        };
        let sizes = self.runs.iter().map(|run| of_phase(run.phase));
        sizes.max().unwrap_or(0) + LINE
    }

    /// The keys that a token sees, counted from the first of its run.
    pub(super) fn seen(&self, run: &AttentionRun, token: usize) -> Range<usize> {
        self.sight
            .keys(run.first_position + token, run.first_position + run.rows)
    }

    /// The row of the cache where block `block` of a sequence begins for a KV head.
    pub(super) fn first_row(&self, run: &AttentionRun, kv_head: usize, block: usize) -> usize {
        let place = run.blocks_in(self.table)[block] as usize;
        self.cache.row(place, kv_head, 0)
    }

    /// Where the keys and the values of the block that begins at `row` lie, and how many bytes they are.
    pub(super) fn addresses(&self, row: usize) -> [(*const u8, usize); 2] {
        let size = self.cache.head_size;
        let of = |stored: Stored<'_>| {
            let bytes = stored.bytes(row, size);
            (bytes.as_ptr(), bytes.len())
        };
        [of(self.keys), of(self.values)]
    }

    /// Whether weights of prompts are rounded to bf16: where everything that is multiplied is exact in it.
    pub(super) fn rounds_weights(&self) -> bool {
        let exact = |dtype| matches!(dtype, DType::Bf16 | DType::I8);
        self.queries.dtype() == DType::Bf16
            && exact(self.cache.keys.dtype())
            && exact(self.cache.values.dtype())
    }
}

/// The keys of `seen` in block `block`, counted from the block's start.
pub(super) fn in_block(seen: &Range<usize>, block: usize) -> Range<usize> {
    let start = block * KV_BLOCK;
    seen.start.saturating_sub(start).min(KV_BLOCK)..seen.end.saturating_sub(start).min(KV_BLOCK)
}

/// Rows of a prompt tile: four vectors, whose scores of a block fit a first-level cache.
pub(super) const TILE_ROWS: usize = 4 * LANES;

/// Vectors of state of a prompt row: largest score, sum, two factors, first and last key seen.
pub(super) const STATES: usize = 6;

/// Parts of generated rows for each thread: enough that none waits long for the last.
const PARTS_PER_THREAD: usize = 8;

/// Entries of the stack of subtrees: blocks are numbered with 32 bits.
pub(super) const DEPTH: usize = 33;

/// Floats of a cache line.
pub(super) const LINE: usize = 16;
