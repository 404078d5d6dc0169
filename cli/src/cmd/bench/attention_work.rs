//! Attention of one geometry over a cache of one type, ready to run.

use anyhow::{Result, ensure};
use cider::bf16;
use cider_kernels::{
    AttentionArgs, AttentionRun, Backend, Ceilings, CpuBackend, DType, KV_BLOCK, KvAppendArgs,
    KvLayer, Phase, Sight, Tensor, TensorRef,
};

use super::roofline::{Cost, Unit};
use super::sample::relative_error;
use super::values;

/// Heads of queries, of keys and values, and the elements of a head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_size: usize,
}

/// What is attended to by what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) phase: Phase,
    pub(super) sequences: usize,
    /// Of each sequence: its last ones.
    pub(super) rows: usize,
    /// Tokens of each sequence, the rows included.
    pub(super) context: usize,
}

/// A load on caches of one type.
pub(super) struct AttentionWork<'a> {
    backend: &'a CpuBackend,
    geometry: Geometry,
    load: Load,
    dtype: DType,
    /// The same keys and values several times, so that no processor cache holds them.
    caches: Vec<KvLayer>,
    runs: Vec<AttentionRun>,
    table: Vec<u32>,
    queries: Tensor,
    out: Tensor,
    turn: usize,
}

impl Load {
    /// Keys that all rows see together.
    fn seen(&self) -> usize {
        let first = self.context - self.rows + 1;
        self.sequences * self.rows * (first + self.context) / 2
    }

    fn tokens(&self) -> usize {
        self.sequences * self.context
    }

    fn all_rows(&self) -> usize {
        self.sequences * self.rows
    }
}

/// The types of a cache that the kernels serve.
pub(super) fn cache_types() -> Vec<DType> {
    let all = [DType::F32, DType::Bf16, DType::F16, DType::I8];
    let is_served = |dtype: &DType| cache(*dtype, 1, 1, 64).is_ok();
    all.into_iter().filter(is_served).collect()
}

fn cache(
    dtype: DType,
    blocks: usize,
    kv_heads: usize,
    head_size: usize,
) -> cider_kernels::Result<KvLayer> {
    KvLayer::new(dtype, dtype, blocks, kv_heads, head_size)
}

impl<'a> AttentionWork<'a> {
    /// The work with one cache.
    pub(super) fn new(
        backend: &'a CpuBackend,
        geometry: Geometry,
        load: Load,
        dtype: DType,
    ) -> Result<Self> {
        let cols = geometry.heads * geometry.head_size;
        let activations = activations(dtype);
        let blocks = load.context.div_ceil(KV_BLOCK);
        let run = |sequence: usize| AttentionRun {
            first_row: sequence * load.rows,
            rows: load.rows,
            first_position: load.context - load.rows,
            first_block: sequence * blocks,
            blocks,
            phase: load.phase,
        };
        let queries = values::rows(QUERIES, load.all_rows(), cols, STEP);
        let mut work = Self {
            backend,
            geometry,
            load,
            dtype,
            caches: Vec::new(),
            runs: (0..load.sequences).map(run).collect(),
            // Blocks of a sequence lie apart, as after some time of service.
            table: scattered(load.sequences * blocks),
            queries: tensor(activations, &queries, cols)?,
            out: Tensor::zeros(activations, load.all_rows(), cols)?,
            turn: 0,
        };
        let cache = work.fill()?;
        work.caches.push(cache);
        Ok(work)
    }

    /// Adds copies of the cache until `bytes` go round, where memory is what the work waits for.
    pub(super) fn rotate(&mut self, ceilings: &Ceilings, bytes: usize) -> Result<()> {
        if self.cost().is_memory_bound(ceilings) {
            let copies = (bytes / self.caches[0].bytes() + 1).min(MOST_COPIES);
            while self.caches.len() < copies {
                let cache = self.fill()?;
                self.caches.push(cache);
            }
        }
        Ok(())
    }

    fn fill(&self) -> Result<KvLayer> {
        let Geometry {
            kv_heads,
            head_size,
            ..
        } = self.geometry;
        let (cols, tokens) = (kv_heads * head_size, self.load.tokens());
        let activations = activations(self.dtype);
        let keys = values::rows(KEYS, tokens, cols, STEP);
        let values = values::rows(VALUES, tokens, cols, STEP);
        let (keys, values) = (
            tensor(activations, &keys, cols)?,
            tensor(activations, &values, cols)?,
        );
        let mut cache = cache(self.dtype, self.table.len(), kv_heads, head_size)?;
        let per_sequence = self.load.context.div_ceil(KV_BLOCK);
        let slot = |token: usize| {
            let (sequence, place) = (token / self.load.context, token % self.load.context);
            let block = self.table[sequence * per_sequence + place / KV_BLOCK];
            block * KV_BLOCK as u32 + (place % KV_BLOCK) as u32
        };
        self.backend.kv_append(KvAppendArgs {
            keys: keys.view(),
            values: values.view(),
            slots: &(0..tokens).map(slot).collect::<Vec<_>>(),
            cache: &mut cache,
        })?;
        Ok(cache)
    }

    /// What the work consists of: every key and value is read once.
    pub(super) fn cost(&self) -> Cost {
        let Geometry {
            heads, head_size, ..
        } = self.geometry;
        let own = self.load.sequences * self.load.context;
        let held = self.table.len() * KV_BLOCK;
        let cache = self.caches.first().map_or(0, KvLayer::bytes);
        let ends = 2 * self.queries.bytes();
        Cost {
            unit: unit(self.dtype),
            operations: 4.0 * (heads * head_size) as f64 * self.load.seen() as f64,
            bytes: cache as f64 * own as f64 / held as f64 + ends as f64,
            ..Cost::NOTHING
        }
    }

    /// Does it once, over the next copy of the cache.
    pub(super) fn run(&mut self) -> Result<()> {
        self.turn += 1;
        let cache = &self.caches[self.turn % self.caches.len()];
        Ok(self.backend.attention(AttentionArgs {
            queries: self.queries.view(),
            cache,
            runs: &self.runs,
            table: &self.table,
            heads: self.geometry.heads,
            scale: scale(self.geometry.head_size),
            sight: Sight::Causal,
            out: self.out.view_mut(),
        })?)
    }

    /// Does it and compares a sample with what f64 gives; refuses what is further than the types explain. Gives the
    /// error.
    pub(super) fn check(&mut self, exact: &Exact) -> Result<f64> {
        self.run()?;
        let view = self.out.view();
        let mut got = Vec::new();
        for &(row, head) in &exact.places {
            let size = self.geometry.head_size;
            let row = floats(view, row)?;
            got.extend_from_slice(&row[head * size..][..size]);
        }
        let error = relative_error(&got, &exact.values);
        let limit = match self.dtype {
            DType::F32 => 1e-4,
            // INT8 keys move the scores themselves.
            DType::I8 => 0.1,
            _ => 0.02,
        };
        ensure!(
            error <= limit,
            "attention over {}: wrong by {error:.2e} of the largest value, the limit is {limit:.2e}",
            self.dtype
        );
        Ok(error)
    }
}

/// What f64 gives for some heads of some rows.
pub(super) struct Exact {
    /// Row and query head.
    pub(super) places: Vec<(usize, usize)>,
    pub(super) values: Vec<f64>,
}

impl Exact {
    pub(super) fn new(geometry: Geometry, load: Load) -> Self {
        let rows = load.all_rows();
        let mut picked = vec![0, rows / 3, rows / 2, rows - 1];
        picked.dedup();
        let heads = [0, geometry.heads / 2, geometry.heads - 1];
        let places: Vec<_> = picked
            .iter()
            .flat_map(|&row| heads.map(|head| (row, head)))
            .collect();
        let values = places
            .iter()
            .flat_map(|&(row, head)| attend(geometry, load, row, head))
            .collect();
        Self { places, values }
    }
}

/// Causal attention of one head of one row, in f64.
fn attend(geometry: Geometry, load: Load, row: usize, head: usize) -> Vec<f64> {
    let Geometry {
        heads,
        kv_heads,
        head_size,
    } = geometry;
    let part = |matrix, row, heads, head: usize| {
        let mut values = vec![0.0; heads * head_size];
        values::fill(matrix, row, STEP, &mut values);
        values[head * head_size..][..head_size].to_vec()
    };
    let query = part(QUERIES, row, heads, head);
    let (sequence, within) = (row / load.rows, row % load.rows);
    let seen = load.context - load.rows + within + 1;
    let kv_head = head / (heads / kv_heads);
    let (mut sum, mut out, mut largest) = (0.0, vec![0.0; head_size], f64::NEG_INFINITY);
    for token in (0..seen).map(|place| sequence * load.context + place) {
        let key = part(KEYS, token, kv_heads, kv_head);
        let products = query
            .iter()
            .zip(&key)
            .map(|(q, k)| f64::from(*q) * f64::from(*k));
        let score = products.sum::<f64>() * f64::from(scale(head_size));
        let factor = (largest - score.max(largest)).exp();
        largest = score.max(largest);
        let weight = (score - largest).exp();
        sum = sum * factor + weight;
        let value = part(VALUES, token, kv_heads, kv_head);
        for (out, v) in out.iter_mut().zip(value) {
            *out = *out * factor + weight * f64::from(v);
        }
    }
    out.iter().map(|out| out / sum).collect()
}

/// Queries, keys and values, as peers get them.
pub(super) const MATRICES: [u64; 3] = [QUERIES, KEYS, VALUES];

/// The distance of two neighbouring values.
pub(super) const STEP: f32 = 1.0 / 64.0;

/// Row by row, in the type of activations.
fn tensor(dtype: DType, values: &[f32], cols: usize) -> Result<Tensor> {
    let rows = values.len() / cols;
    Ok(if dtype == DType::F32 {
        Tensor::from_slice(values, rows, cols)?
    } else {
        let halves: Vec<bf16> = values.iter().map(|&x| bf16::from_f32(x)).collect();
        Tensor::from_slice(&halves, rows, cols)?
    })
}

/// A row as f64.
fn floats(view: TensorRef<'_>, row: usize) -> Result<Vec<f64>> {
    Ok(match view.dtype() {
        DType::F32 => view.row::<f32>(row)?.iter().map(|&x| x.into()).collect(),
        _ => view.row::<bf16>(row)?.iter().map(|x| x.to_f64()).collect(),
    })
}

/// The activations that go with a cache.
fn activations(cache: DType) -> DType {
    if cache == DType::F32 {
        DType::F32
    } else {
        DType::Bf16
    }
}

fn unit(cache: DType) -> Unit {
    if cache == DType::F32 {
        Unit::F32
    } else {
        Unit::Bf16
    }
}

fn scale(head_size: usize) -> f32 {
    1.0 / (head_size as f32).sqrt()
}

/// All numbers below `count`, neighbours apart.
fn scattered(count: usize) -> Vec<u32> {
    let stride = count / 3 + 1;
    let starts = 0..stride as u32;
    starts
        .flat_map(|start| (start..count as u32).step_by(stride))
        .collect()
}

const QUERIES: u64 = 3;
const KEYS: u64 = 4;
const VALUES: u64 = 5;
const MOST_COPIES: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        heads: 4,
        kv_heads: 2,
        head_size: 32,
    };

    #[test]
    fn blocks_are_scattered_and_all_there() {
        let mut blocks = scattered(10);
        assert_ne!(blocks[1], 1);
        blocks.sort_unstable();
        assert_eq!(blocks, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn keys_are_counted_row_by_row() {
        let load = |rows, context, sequences| Load {
            phase: Phase::Prompt,
            sequences,
            rows,
            context,
        };
        assert_eq!(load(3, 3, 1).seen(), 1 + 2 + 3);
        assert_eq!(load(2, 5, 3).seen(), 3 * (4 + 5));
    }

    #[test]
    fn right_answers_pass_and_wrong_ones_are_refused() {
        let backend = CpuBackend::new(cider::Isa::Scalar, 1).unwrap();
        for (phase, sequences, rows) in [(Phase::Prompt, 1, 70), (Phase::Generated, 3, 1)] {
            let load = Load {
                phase,
                sequences,
                rows,
                context: 130,
            };
            let exact = Exact::new(GEOMETRY, load);
            for dtype in cache_types() {
                let mut work = AttentionWork::new(&backend, GEOMETRY, load, dtype).unwrap();
                let error = work.check(&exact).unwrap();
                assert!(error > 0.0, "{dtype}");
                work.table.reverse();
                let refused = work.check(&exact).unwrap_err().to_string();
                assert!(refused.contains("wrong by"), "{refused}");
            }
        }
    }
}
