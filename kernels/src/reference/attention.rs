//! Causal attention over the keys of the cache, in blocks at absolute places, and appending to the cache.

use std::ops::Range;

use half::bf16;

use super::{fold_lanes, load, quantize_row, store};
use crate::backend::{AttentionArgs, AttentionRun, KvAppendArgs, Phase};
use crate::dtype::DType;
use crate::error::Result;
use crate::kv::{KV_BLOCK, KvLayer, KvRows};
use crate::reference::elementwise::exp;

/// Writes each key and value into its slot, rounded or quantised.
pub(crate) fn append(args: KvAppendArgs<'_>) -> Result<()> {
    let cache = args.cache;
    let size = cache.head_size();
    for (row, &slot) in args.slots.iter().enumerate() {
        let (block, offset) = (slot as usize / KV_BLOCK, slot as usize % KV_BLOCK);
        let (keys, values) = (load(args.keys, row)?, load(args.values, row)?);
        for (head, (key, value)) in keys.chunks(size).zip(values.chunks(size)).enumerate() {
            let place = cache.row(block, head, offset);
            store_row(&mut cache.keys, place, key)?;
            store_row(&mut cache.values, place, value)?;
        }
    }
    Ok(())
}

/// Attention of the rows of a run.
pub(crate) fn attend_run(args: &mut AttentionArgs<'_>, run: &AttentionRun) -> Result<()> {
    let size = args.cache.head_size();
    let end = run.first_position + run.rows;
    let first = args.sight.keys(run.first_position, end).start;
    let share = args.heads / args.cache.kv_heads();
    let rule = Rule {
        scale: args.scale,
        phase: run.phase,
        short: rounds_weights(args),
    };
    for head in 0..args.heads {
        let at = (run.blocks_in(args.table), head / share);
        let keys = gather(args.cache.keys(), args.cache, at, first..end)?;
        let values = gather(args.cache.values(), args.cache, at, first..end)?;
        let columns = head * size..(head + 1) * size;
        for i in 0..run.rows {
            let seen = args.sight.keys(run.first_position + i, end);
            let part = seen.start - first..seen.end - first;
            let seen = Seen {
                keys: &keys[part.clone()],
                values: &values[part],
                first: seen.start,
            };
            let q = load(args.queries.col_range(columns.clone()), run.first_row + i)?;
            let y = attend(&q, seen, rule);
            let mut out = args.out.reborrow().col_range(columns.clone());
            store(&mut out, run.first_row + i, &y)?;
        }
    }
    Ok(())
}

/// Whether weights are rounded to bf16 in prompts: where everything that is multiplied is exact in it.
fn rounds_weights(args: &AttentionArgs<'_>) -> bool {
    let exact = |dtype| matches!(dtype, DType::Bf16 | DType::I8);
    args.queries.dtype() == DType::Bf16
        && exact(args.cache.keys().dtype())
        && exact(args.cache.values().dtype())
}

/// A key or a value as it is stored: its elements, and the factor they all have.
struct Row {
    elements: Vec<f32>,
    factor: f32,
}

/// The keys and values that a query sees; the first is at place `first`.
#[derive(Clone, Copy)]
struct Seen<'a> {
    keys: &'a [Row],
    values: &'a [Row],
    first: usize,
}

/// How scores become weights.
#[derive(Clone, Copy)]
struct Rule {
    scale: f32,
    phase: Phase,
    /// Whether weights are rounded to bf16.
    short: bool,
}

/// What a range of keys comes to: the largest score, the sum of the weights, the weighted values.
#[derive(Clone)]
struct Partial {
    max: f32,
    sum: f32,
    out: Vec<f32>,
}

/// The mean of the values, weighted by the softmax of `q . key * scale`.
fn attend(q: &[f32], seen: Seen<'_>, rule: Rule) -> Vec<f32> {
    let blocks: Vec<Partial> = split(seen)
        .into_iter()
        .map(|block| reduce(q, block, rule))
        .collect();
    let whole = match rule.phase {
        Phase::Prompt => blocks[1..]
            .iter()
            .fold(blocks[0].clone(), |left, right| merge(&left, right)),
        Phase::Generated => tree(&blocks),
    };
    // A zero is +0, whatever the signs of the products that vanished.
    whole.out.iter().map(|o| (o + 0.0) / whole.sum).collect()
}

/// Cuts at the places that are multiples of a block.
fn split(seen: Seen<'_>) -> Vec<Seen<'_>> {
    let end = seen.first + seen.keys.len();
    let mut blocks = Vec::new();
    let mut first = seen.first;
    while first < end {
        let stop = ((first / KV_BLOCK + 1) * KV_BLOCK).min(end);
        let rows = first - seen.first..stop - seen.first;
        blocks.push(Seen {
            keys: &seen.keys[rows.clone()],
            values: &seen.values[rows],
            first,
        });
        first = stop;
    }
    blocks
}

fn reduce(q: &[f32], block: Seen<'_>, rule: Rule) -> Partial {
    let score = |key: &Row| dot(q, &key.elements, rule.phase) * key.factor * rule.scale;
    let scores: Vec<f32> = block.keys.iter().map(score).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|s| exp(s - max)).collect();
    let first = block.first % KV_BLOCK;
    let places = first..first + weights.len();
    let add = |sum: f32, j: usize| sum + weights[j - first];
    let sum = match rule.phase {
        Phase::Prompt => {
            let places_of = |parity| places.clone().filter(move |j| j % 2 == parity);
            places_of(0).fold(0.0, add) + places_of(1).fold(0.0, add)
        }
        Phase::Generated => fold_lanes(places.clone(), add),
    };
    let mut out = vec![0.0f32; q.len()];
    for j in order(places, rule.phase) {
        let (weight, value) = (weights[j - first], &block.values[j - first]);
        let mut weight = weight * value.factor;
        if rule.short && rule.phase == Phase::Prompt {
            weight = bf16::from_f32(weight).to_f32();
        }
        for (out, v) in out.iter_mut().zip(&value.elements) {
            *out = weight.mul_add(*v, *out);
        }
    }
    Partial { max, sum, out }
}

fn dot(q: &[f32], key: &[f32], phase: Phase) -> f32 {
    let add = |sum, d: usize| q[d].mul_add(key[d], sum);
    match phase {
        Phase::Prompt => order(0..q.len(), phase).into_iter().fold(0.0, add),
        Phase::Generated => fold_lanes(0..q.len(), add),
    }
}

/// The order in which products are added: ascending, in prompts the odd one of a pair before the even one.
fn order(places: Range<usize>, phase: Phase) -> Vec<usize> {
    match phase {
        Phase::Prompt => {
            let pairs = places.start / 2..places.end.div_ceil(2);
            let both = pairs.flat_map(|pair| [2 * pair + 1, 2 * pair]);
            both.filter(|place| places.contains(place)).collect()
        }
        Phase::Generated => places.collect(),
    }
}

/// One block is itself; more are cut after the largest power of two below their number.
fn tree(blocks: &[Partial]) -> Partial {
    if let [block] = blocks {
        return block.clone();
    }
    let (left, right) = blocks.split_at(blocks.len().next_power_of_two() / 2);
    merge(&tree(left), &tree(right))
}

fn merge(left: &Partial, right: &Partial) -> Partial {
    let max = left.max.max(right.max);
    let (a, b) = (exp(left.max - max), exp(right.max - max));
    let parts = left.out.iter().zip(&right.out);
    Partial {
        max,
        sum: left.sum.mul_add(a, right.sum * b),
        out: parts.map(|(l, r)| l.mul_add(a, r * b)).collect(),
    }
}

/// The keys or values of one head at `places` of a sequence, one after the other.
fn gather(
    rows: &KvRows,
    cache: &KvLayer,
    (blocks, head): (&[u32], usize),
    places: Range<usize>,
) -> Result<Vec<Row>> {
    let at = |place: usize| {
        let block = blocks[place / KV_BLOCK] as usize;
        load_row(rows, cache.row(block, head, place % KV_BLOCK))
    };
    places.map(at).collect()
}

fn load_row(rows: &KvRows, row: usize) -> Result<Row> {
    if rows.dtype() == DType::I8 {
        let integers = rows.data().row::<i8>(row)?.iter();
        return Ok(Row {
            elements: integers.map(|&q| f32::from(q)).collect(),
            factor: rows.scales().row::<f32>(0)?[row],
        });
    }
    Ok(Row {
        elements: load(rows.data(), row)?,
        factor: 1.0,
    })
}

fn store_row(rows: &mut KvRows, row: usize, x: &[f32]) -> Result<()> {
    if rows.dtype() == DType::I8 {
        let scale = quantize_row(x, rows.data_mut().row_mut::<i8>(row)?);
        rows.scales_mut().row_mut::<f32>(0)?[row] = scale;
        return Ok(());
    }
    store(&mut rows.data_mut(), row, x)
}
