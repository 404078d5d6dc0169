//! Causal attention of one query over its keys, in blocks at absolute places.

use crate::backend::Phase;
use crate::kv::KV_BLOCK;
use crate::reference::elementwise::exp;
use crate::reference::fold_lanes;

/// The keys and values that a query sees, rows of `size` elements; the first is at place `first`.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    pub(crate) size: usize,
    pub(crate) first: usize,
}

/// What a range of keys comes to: the largest score, the sum of the weights, the weighted values.
#[derive(Clone)]
struct Partial {
    max: f32,
    sum: f32,
    out: Vec<f32>,
}

/// The mean of the values, weighted by the softmax of `q . key * scale`.
pub(crate) fn attend(q: &[f32], seen: Seen<'_>, scale: f32, phase: Phase) -> Vec<f32> {
    let blocks: Vec<Partial> = split(seen)
        .into_iter()
        .map(|block| reduce(q, block, scale, phase))
        .collect();
    let whole = match phase {
        Phase::Prompt => blocks[1..]
            .iter()
            .fold(blocks[0].clone(), |left, right| merge(&left, right)),
        Phase::Generated => tree(&blocks),
    };
    whole.out.iter().map(|o| o / whole.sum).collect()
}

/// Cuts at the places that are multiples of a block.
fn split(seen: Seen<'_>) -> Vec<Seen<'_>> {
    let end = seen.first + seen.keys.len() / seen.size;
    let mut blocks = Vec::new();
    let mut first = seen.first;
    while first < end {
        let stop = ((first / KV_BLOCK + 1) * KV_BLOCK).min(end);
        let rows = (first - seen.first) * seen.size..(stop - seen.first) * seen.size;
        blocks.push(Seen {
            keys: &seen.keys[rows.clone()],
            values: &seen.values[rows],
            first,
            ..seen
        });
        first = stop;
    }
    blocks
}

fn reduce(q: &[f32], block: Seen<'_>, scale: f32, phase: Phase) -> Partial {
    let keys = block.keys.chunks(block.size);
    let scores: Vec<f32> = keys.map(|key| dot(q, key, phase) * scale).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|s| exp(s - max)).collect();
    let first = block.first % KV_BLOCK;
    let sum = fold_lanes(first..first + weights.len(), |sum, j| {
        sum + weights[j - first]
    });
    let mut out = vec![0.0f32; block.size];
    for (weight, value) in weights.iter().zip(block.values.chunks(block.size)) {
        for (out, v) in out.iter_mut().zip(value) {
            *out = weight.mul_add(*v, *out);
        }
    }
    Partial { max, sum, out }
}

fn dot(q: &[f32], key: &[f32], phase: Phase) -> f32 {
    match phase {
        Phase::Prompt => (0..q.len()).fold(0.0, |sum, d| q[d].mul_add(key[d], sum)),
        Phase::Generated => fold_lanes(0..q.len(), |sum, d| q[d].mul_add(key[d], sum)),
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
