//! Causal attention, and appending to the cache it reads.

use std::ops::Range;

use cider_kernels::{AttentionArgs, AttentionRun, Backend, DType, KV_BLOCK, KvLayer, Phase, Sight};
use half::{bf16, f16};

use crate::cases::{
    ACTIVATIONS, Case, Failure, Fill, Matrix, Output, Prepared, Rng, filled, round_to,
};
use crate::compare::{Bounded, EXP_ERROR, EXP_FLOOR, UNIT, gamma, same_bits, within};

pub(crate) fn cases() -> Vec<Case> {
    let mut specs = Vec::new();
    for phase in [Phase::Prompt, Phase::Generated] {
        for dtype in ACTIVATIONS {
            let base = Spec::new(dtype, phase);
            let ratios = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16];
            specs.extend(ratios.map(|ratio| base.heads_of(ratio, 64)));
            let sizes = [16, 24, 64, 72, 80, 96, 128, 160, 256];
            specs.extend(sizes.map(|size| base.heads_of(2, size).last(3, 200)));
            for cache in [DType::F32, DType::F16, DType::Bf16] {
                let over = Spec { cache, ..base };
                let lengths = [1, 2, 17, 63, 64, 65, 129, 200, 1000];
                specs.extend(lengths.map(|length| over.last(3, length)));
            }
            let windows = [1, 2, 63, 64, 65, 100, 128, 1000];
            specs.extend(windows.map(|window| base.window(window).last(70, 200)));
            specs.extend(windows.map(|window| base.window(window).last(2, 1000)));
            let whole = Spec {
                sight: Sight::All,
                ..base
            };
            let lengths = [1, 2, 17, 63, 64, 65, 130, 200];
            specs.extend(lengths.map(|length| whole.last(length, length)));
            specs.extend([whole.heads_of(1, 72).last(150, 150), whole.last(5, 150)]);
            for chunk in [1, 7, 64, 100] {
                let chunk = Some(chunk);
                let base = Spec {
                    chunk,
                    ..base.heads_of(2, 16)
                };
                specs.extend([base.last(130, 130), base.window(70).last(130, 210)]);
            }
            let scores = [
                Scores::Equal,
                Scores::Large(1e4),
                Scores::Large(3e38),
                Scores::Poisoned,
            ];
            specs.extend(scores.map(|scores| base.scores(scores).last(3, 150)));
            // Lengths around 32 and 1024 keys, one of which stands out.
            let marker = base.scores(Scores::Marker).heads_of(4, 128);
            specs.extend([31, 32, 33, 1023, 1025].map(|length| marker.last(1, length)));
        }
        let long = Spec {
            kv_heads: 1,
            ..Spec::new(DType::F32, phase)
        };
        let long = long.heads_of(1, 16).last(1, 33_000);
        specs.extend([long, long.scores(Scores::Marker)]);
    }
    let mut cases: Vec<Case> = specs.into_iter().map(Spec::case).collect();
    cases.extend(ACTIVATIONS.map(batch));
    cases
}

pub(crate) fn perf_cases() -> Vec<Case> {
    let base = Spec {
        ratio: 4,
        kv_heads: 2,
        size: 128,
        ..Spec::new(DType::Bf16, Phase::Generated)
    };
    let prompt = Spec {
        phase: Phase::Prompt,
        ..base
    };
    [base.last(1, 512), base.last(1, 4096), prompt.last(512, 512)]
        .map(Spec::case)
        .into()
}

/// Some rows of one sequence, or with `batch` of three.
#[derive(Clone, Copy, Debug)]
struct Spec {
    dtype: DType,
    cache: DType,
    phase: Phase,
    ratio: usize,
    kv_heads: usize,
    size: usize,
    length: usize,
    rows: usize,
    sight: Sight,
    chunk: Option<usize>,
    scores: Scores,
    batch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scores {
    Normal,
    /// Every key the same.
    Equal,
    /// Scores of this magnitude and both signs.
    Large(f32),
    /// The last key alone has a large score, and its value alone is one.
    Marker,
    /// A NaN among the keys, and an infinite query.
    Poisoned,
}

impl Spec {
    fn new(dtype: DType, phase: Phase) -> Self {
        Self {
            dtype,
            cache: dtype,
            phase,
            ratio: 2,
            kv_heads: 2,
            size: 64,
            length: 65,
            rows: 3,
            sight: Sight::Causal,
            chunk: None,
            scores: Scores::Normal,
            batch: false,
        }
    }

    /// The last `rows` of `length` tokens, or all.
    fn last(self, rows: usize, length: usize) -> Self {
        Self {
            rows: rows.min(length),
            length,
            ..self
        }
    }

    fn heads_of(self, ratio: usize, size: usize) -> Self {
        Self {
            ratio,
            size,
            ..self
        }
    }

    fn window(self, window: usize) -> Self {
        let sight = Sight::Window(window);
        Self { sight, ..self }
    }

    fn scores(self, scores: Scores) -> Self {
        Self { scores, ..self }
    }

    fn heads(self) -> usize {
        self.ratio * self.kv_heads
    }

    fn scale(self) -> f32 {
        match self.scores {
            Scores::Large(_) => 1.0,
            _ => 1.0 / (self.size as f32).sqrt(),
        }
    }

    fn case(self) -> Case {
        let Self {
            dtype,
            cache,
            phase,
            ratio,
            kv_heads,
            size,
            length,
            rows,
            sight,
            chunk,
            scores,
            ..
        } = self;
        let sight = match sight {
            Sight::Causal => String::new(),
            other => format!(", {other:?}"),
        };
        let chunk = chunk.map_or(String::new(), |chunk| format!(", in {chunk}s"));
        let name = format!(
            "{dtype} over {cache}, {phase:?}, {ratio} x {kv_heads} heads of {size}, rows {rows} of {length}{sight}{chunk}, {scores:?}"
        );
        let keys = rows * (2 * length - rows) / 2;
        Case::new("attention", name, move |backend| {
            Ok(Box::new(self.prepare(backend)?))
        })
        .twin(move |outputs| self.check(outputs))
        .work(
            2 * length * kv_heads * size * cache.size(),
            4 * keys * self.heads() * size,
        )
    }

    /// Sequences of a batch: the phase, the length and the rows of each.
    fn sequences(self) -> Vec<(Phase, usize, usize)> {
        if !self.batch {
            return vec![(self.phase, self.length, self.rows)];
        }
        vec![
            (Phase::Prompt, 70, 70),
            (Phase::Generated, 130, 1),
            (Phase::Generated, 1, 1),
            (Phase::Prompt, 200, 9),
        ]
    }

    fn total_rows(self) -> usize {
        self.sequences().iter().map(|sequence| sequence.2).sum()
    }

    /// Runs whose blocks are shuffled over a pool larger than they need; the table of the blocks, of which the
    /// first belongs to no run.
    fn runs(self) -> (Vec<AttentionRun>, Vec<u32>) {
        let sequences = self.sequences();
        let blocks = |length: usize| length.div_ceil(KV_BLOCK);
        let pool = sequences
            .iter()
            .map(|sequence| blocks(sequence.1))
            .sum::<usize>()
            + 3;
        let mut table: Vec<u32> = (0..pool as u32).collect();
        let mut rng = Rng::new(pool as u64);
        for i in (1..pool).rev() {
            table.swap(i, rng.below(i + 1));
        }
        let (mut first_row, mut first_block) = (0, 1);
        let runs = sequences.into_iter().map(|(phase, length, rows)| {
            let run = AttentionRun {
                first_row,
                rows,
                first_position: length - rows,
                first_block,
                blocks: blocks(length),
                phase,
            };
            first_row += rows;
            first_block += run.blocks;
            run
        });
        (runs.collect(), table)
    }

    fn queries(self) -> Vec<f32> {
        let cols = self.heads() * self.size;
        let mut q = filled(
            Fill::Normal,
            self.dtype,
            (self.total_rows(), cols),
            &mut Rng::new(1),
        );
        match self.scores {
            // One column of ones makes a score of the first element of a key.
            Scores::Large(_) | Scores::Marker => {
                for head in q.chunks_mut(self.size) {
                    head.fill(0.0);
                    head[0] = 1.0;
                }
            }
            Scores::Poisoned => q[cols] = f32::INFINITY,
            Scores::Normal | Scores::Equal => {}
        }
        q
    }

    /// The key and the value of a KV head at a place of a sequence.
    fn pair(self, sequence: usize, head: usize, place: usize) -> (Vec<f32>, Vec<f32>) {
        let mut rng = Rng::new(((sequence * 64 + head) * 200_000 + place) as u64 + 3);
        let (mut key, mut value) = (rng.normals(self.size), rng.normals(self.size));
        match self.scores {
            Scores::Equal => key = vec![0.5; self.size],
            Scores::Large(magnitude) => {
                key[0] = magnitude * if place.is_multiple_of(3) { -1.0 } else { 1.0 }
            }
            Scores::Marker => {
                let last = place + 1 == self.length;
                key[0] = if last { 1e4 } else { key[0] };
                value.fill(0.0);
                value[place % self.size] = if last { 1.0 } else { rng.normal() };
            }
            Scores::Poisoned if place + 1 == self.length => key[self.size / 2] = f32::NAN,
            Scores::Poisoned | Scores::Normal => {}
        }
        round_to(self.cache, &mut key);
        round_to(self.cache, &mut value);
        (key, value)
    }

    fn prepare(self, _: &dyn Backend) -> Result<Attention, Failure> {
        let (runs, table) = self.runs();
        let mut cache = KvLayer::new(self.cache, table.len(), self.kv_heads, self.size)?;
        poison(&mut cache)?;
        for (sequence, run) in runs.iter().enumerate() {
            for place in 0..run.first_position + run.rows {
                for head in 0..self.kv_heads {
                    let block = run.blocks_in(&table)[place / KV_BLOCK] as usize;
                    let row = cache.row(block, head, place % KV_BLOCK);
                    let (key, value) = self.pair(sequence, head, place);
                    write(&mut cache, row, &key, &value)?;
                }
            }
        }
        let (rows, cols) = (self.total_rows(), self.heads() * self.size);
        let second = self.chunk.map(|_| Matrix::output(self.dtype, rows, cols));
        Ok(Attention {
            spec: self,
            cache,
            runs,
            table,
            queries: Matrix::input(self.dtype, rows, cols, &self.queries())?,
            out: Matrix::output(self.dtype, rows, cols)?,
            second: second.transpose()?,
        })
    }

    fn check(self, outputs: &[Output]) -> Result<f64, String> {
        if let Some(second) = outputs.get(1) {
            let second = Output {
                name: outputs[0].name,
                ..second.clone()
            };
            same_bits(&outputs[..1], &[second]).map_err(|what| format!("in chunks: {what}"))?;
        }
        let (runs, queries) = (self.runs().0, self.queries());
        let cols = self.heads() * self.size;
        let mut worst = 0.0f64;
        for (sequence, run) in runs.iter().enumerate() {
            for head in 0..self.heads() {
                let end = run.first_position + run.rows;
                let pairs: Vec<_> = (0..end)
                    .map(|place| self.pair(sequence, head / self.ratio, place))
                    .collect();
                for i in 0..run.rows {
                    let (row, place) = (run.first_row + i, run.first_position + i);
                    let start = row * cols + head * self.size;
                    let q = &queries[start..start + self.size];
                    let expected = self.attend(q, &pairs[self.sight.keys(place, end)]);
                    let out = Output {
                        rows: 1,
                        cols: self.size,
                        bits: outputs[0].bits[start..start + self.size].to_vec(),
                        ..outputs[0].clone()
                    };
                    let used = within(&out, |_, d| expected[d])
                        .map_err(|what| format!("row {row}, head {head}: {what}"))?;
                    worst = worst.max(used);
                }
            }
        }
        Ok(worst)
    }

    /// The plain softmax in f64, and how far blocks, merges and roundings may lead from it.
    fn attend(self, q: &[f32], pairs: &[(Vec<f32>, Vec<f32>)]) -> Vec<Bounded> {
        let scale = f64::from(self.scale());
        let dot = |key: &[f32], absolute: bool| -> f64 {
            let products = q
                .iter()
                .zip(key)
                .map(|(q, k)| f64::from(*q) * f64::from(*k));
            if absolute {
                products.map(f64::abs).sum()
            } else {
                products.sum()
            }
        };
        let scores: Vec<f64> = pairs
            .iter()
            .map(|(key, _)| dot(key, false) * scale)
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        // The error of a weight, relative to it: its score, its distance from the largest, one exponential and two
        // roundings in its block and in each merge, and the sums.
        let merges = pairs.len().div_ceil(KV_BLOCK) + 1;
        let steps = (EXP_ERROR + 2.0 * UNIT) * merges as f64 + gamma(KV_BLOCK + merges + 2);
        let relative = |j: usize| {
            let score = gamma(q.len() + 1) * dot(&pairs[j].0, true) * scale.abs();
            (2.0 * score + 2.0 * UNIT * (scores[j] - max).abs() + steps).exp_m1()
        };
        let errors: Vec<f64> = (0..pairs.len())
            .map(|j| {
                let rounding = if weights[j] == 0.0 {
                    0.0
                } else {
                    weights[j] * relative(j)
                };
                rounding + EXP_FLOOR * merges as f64
            })
            .collect();
        (0..self.size)
            .map(|d| {
                let v = |j: usize| f64::from(pairs[j].1[d]);
                let value = (0..pairs.len()).map(|j| weights[j] * v(j)).sum::<f64>() / sum;
                let error: f64 = (0..pairs.len())
                    .map(|j| errors[j] * (v(j).abs() + value.abs()))
                    .sum::<f64>()
                    / sum;
                let normal = weights.iter().all(|w| w.is_finite());
                Bounded {
                    value: if normal { value } else { f64::NAN },
                    error: error * 1.01 + UNIT * value.abs(),
                }
            })
            .collect()
    }
}

struct Attention {
    spec: Spec,
    cache: KvLayer,
    runs: Vec<AttentionRun>,
    table: Vec<u32>,
    queries: Matrix,
    out: Matrix,
    second: Option<Matrix>,
}

impl Prepared for Attention {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        let call = |runs: &[AttentionRun], rows: Range<usize>, out: &mut Matrix| {
            backend.attention(AttentionArgs {
                queries: self.queries.view().row_range(rows.clone()),
                cache: &self.cache,
                runs,
                table: &self.table,
                heads: self.spec.heads(),
                scale: self.spec.scale(),
                sight: self.spec.sight,
                out: out.view_mut().row_range(rows),
            })
        };
        if let (Some(chunk), Some(second)) = (self.spec.chunk, &mut self.second) {
            let run = &self.runs[0];
            for first in (0..run.rows).step_by(chunk) {
                let rows = first..(first + chunk).min(run.rows);
                let part = AttentionRun {
                    rows: rows.len(),
                    first_position: run.first_position + first,
                    ..*run
                };
                call(&[part], rows, second)?;
            }
        }
        Ok(call(&self.runs, 0..self.spec.total_rows(), &mut self.out)?)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        let mut outputs = vec![self.out.read("out")?];
        if let Some(second) = &self.second {
            outputs.push(second.read("chunks")?);
        }
        Ok(outputs)
    }
}

/// Sequences of both phases in one call.
fn batch(dtype: DType) -> Case {
    let spec = Spec {
        batch: true,
        ..Spec::new(dtype, Phase::Prompt)
    };
    let case = spec.case();
    Case {
        name: format!("{dtype}, four sequences of both phases"),
        ..case
    }
}

pub(crate) fn poison(cache: &mut KvLayer) -> Result<(), Failure> {
    let dtype = cache.dtype();
    let (keys, values) = cache.parts_mut();
    for mut view in [keys, values] {
        for row in 0..view.rows() {
            match dtype {
                DType::F32 => view.row_mut::<f32>(row)?.fill(f32::NAN),
                DType::F16 => view.row_mut::<f16>(row)?.fill(f16::NAN),
                _ => view.row_mut::<bf16>(row)?.fill(bf16::NAN),
            }
        }
    }
    Ok(())
}

fn write(cache: &mut KvLayer, row: usize, key: &[f32], value: &[f32]) -> Result<(), Failure> {
    let dtype = cache.dtype();
    let (keys, values) = cache.parts_mut();
    for (mut view, from) in [(keys, key), (values, value)] {
        match dtype {
            DType::F32 => view.row_mut::<f32>(row)?.copy_from_slice(from),
            DType::F16 => {
                let to = view.row_mut::<f16>(row)?.iter_mut().zip(from);
                to.for_each(|(to, from)| *to = f16::from_f32(*from));
            }
            _ => {
                let to = view.row_mut::<bf16>(row)?.iter_mut().zip(from);
                to.for_each(|(to, from)| *to = bf16::from_f32(*from));
            }
        }
    }
    Ok(())
}
