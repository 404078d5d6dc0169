//! Attention over the blocks of the cache.
//!
//! A block of keys is reduced from scratch to a partial result (largest score, sum of weights, weighted
//! values); partial results are merged left to right for prompt rows and by a fixed tree for generated ones.
//! So the bits of a row depend on its place alone, not on what it is computed with.

mod generated;
mod partial;
mod plan;
mod product;
mod prompt;
mod stored;

use std::sync::PoisonError;

use self::generated::{GeneratedChunk, MergedRow};
use self::plan::{Job, Part};
use self::prompt::PromptTile;
use self::stored::Stored;
use super::CpuBackend;
use super::raw::Shared;
use super::rows::OutRows;
use crate::backend::AttentionArgs;
use crate::check::check_attention;
use crate::error::Result;

/// Attention of every row.
pub(super) fn attention(backend: &CpuBackend, mut args: AttentionArgs<'_>) -> Result<()> {
    check_attention(&args)?;
    let chunk = plan::chunk_of(&args, backend.threads());
    let out = OutRows::new(&mut args.out)?;
    let job = Job {
        queries: args.queries,
        out: &out,
        cache: args.cache,
        keys: Stored::new(args.cache.keys())?,
        values: Stored::new(args.cache.values())?,
        runs: args.runs,
        table: args.table,
        group: args.heads / args.cache.kv_heads,
        scale: args.scale,
        sight: args.sight,
        chunk,
    };
    let mut partials = backend
        .partials
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let needed = job.partial_floats(backend.threads());
    if partials.len() < needed {
        partials.resize(needed, 0.0);
    }
    let partials = Shared::new(&mut partials[..]);
    let (tasks, room) = (job.tasks(), job.floats());
    backend.reserve(room);
    backend.pool.run(tasks, &|worker, task| {
        let mut scratch = backend.scratch(worker);
        let (floats, _) = scratch.take(room, 0);
        let (job, floats) = (&job, aligned(floats));
        match job.part(task) {
            Part::Tile(tile) => backend.level.run(PromptTile { job, tile, floats }),
            Part::Chunk(chunk) => backend.level.run(GeneratedChunk {
                job,
                chunk,
                after: job.chunk_at(task + 1),
                begins: backend.pool.begins(worker, tasks) == task,
                partials,
                floats,
            }),
        }
    });
    let (merges, entry) = (job.merges(), job.group * job.partial_len());
    let of_each = job.slots().checked_div(merges).unwrap_or(0) * entry;
    backend.each_row((merges, 1), of_each, room, |level, row, floats| {
        let (job, floats) = (&job, aligned(floats));
        level.run(MergedRow {
            job,
            row: job.merged_row(row),
            partials,
            floats,
        });
    });
    Ok(())
}

/// The working memory from its first cache line on.
fn aligned(floats: &mut [f32]) -> &mut [f32] {
    let skipped = floats.as_ptr().align_offset(plan::LINE * size_of::<f32>());
    &mut floats[skipped.min(plan::LINE)..]
}
