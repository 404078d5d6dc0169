//! Causal attention, and appending to the cache it reads.

use std::ops::Range;

use cider_kernels::{
    AttentionArgs, AttentionRun, Backend, DType, KV_BLOCK, KvAppendArgs, KvLayer, Phase,
};
use half::{bf16, f16};

use crate::cases::{
    ACTIVATIONS, Case, Failure, Fill, Matrix, Output, Prepared, Rng, bits, filled, round_to,
};
use crate::compare::{Bounded, EXP_ERROR, EXP_FLOOR, UNIT, gamma, same_bits, within};

pub(crate) fn cases() -> Vec<Case> {
    let mut specs = Vec::new();
    for phase in [Phase::Prompt, Phase::Generated] {
        for dtype in ACTIVATIONS {
            let base = Spec::new(dtype, phase);
            let ratios = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16];
            specs.extend(ratios.map(|ratio| Spec { ratio, ..base }));
            let sizes = [16, 24, 64, 72, 80, 96, 128, 160, 256];
            specs.extend(sizes.map(|size| Spec {
                size,
                ..base.last(3, 200)
            }));
            for cache in [DType::F32, DType::F16, DType::Bf16] {
                let lengths = [1, 2, 17, 63, 64, 65, 129, 200, 1000];
                specs.extend(lengths.map(|length| Spec {
                    cache,
                    ..base.last(3, length)
                }));
            }
            let windows = [1, 2, 63, 64, 65, 100, 128, 1000];
            specs.extend(windows.map(|window| Spec {
                window: Some(window),
                ..base.last(70, 200)
            }));
            let chunks = [1, 7, 64, 100].map(|chunk| Spec {
                chunk: Some(chunk),
                size: 16,
                ..base.last(130, 130)
            });
            specs.extend(chunks);
            specs.extend(chunks.map(|spec| Spec {
                window: Some(70),
                ..spec.last(130, 210)
            }));
            let scores = [
                Scores::Equal,
                Scores::Large(1e4),
                Scores::Large(3e38),
                Scores::Poisoned,
            ];
            specs.extend(scores.map(|scores| Spec {
                scores,
                ..base.last(3, 150)
            }));
            // C125.
            let lengths = [31, 32, 33, 1023, 1025];
            let marker = Spec {
                scores: Scores::Marker,
                ratio: 4,
                size: 128,
                ..base
            };
            specs.extend(lengths.map(|length| marker.last(1, length)));
        }
        let long = Spec {
            size: 16,
            ratio: 1,
            kv_heads: 1,
            ..Spec::new(DType::F32, phase)
        };
        specs.extend([Scores::Normal, Scores::Marker].map(|scores| Spec {
            scores,
            ..long.last(1, 33_000)
        }));
    }
    let mut cases: Vec<Case> = specs.into_iter().map(Spec::case).collect();
    cases.extend(ACTIVATIONS.map(batch));
    cases.extend(appends());
    cases.extend(refusals());
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
    window: Option<usize>,
    chunk: Option<usize>,
    scores: Scores,
    batch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scores {
    Normal,
    /// C124: every key the same.
    Equal,
    /// C124: scores of this magnitude and both signs.
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
            window: None,
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
            window,
            chunk,
            scores,
            ..
        } = self;
        let window = window.map_or(String::new(), |window| format!(", window {window}"));
        let chunk = chunk.map_or(String::new(), |chunk| format!(", in {chunk}s"));
        let name = format!(
            "{dtype} over {cache}, {phase:?}, {ratio} x {kv_heads} heads of {size}, rows {rows} of {length}{window}{chunk}, {scores:?}"
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
                key[0] = magnitude * if place % 3 == 0 { -1.0 } else { 1.0 }
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
                    let first = self
                        .window
                        .map_or(0, |window| (place + 1).saturating_sub(window));
                    let start = row * cols + head * self.size;
                    let q = &queries[start..start + self.size];
                    let expected = self.attend(q, &pairs[first..=place]);
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
                window: self.spec.window,
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

fn poison(cache: &mut KvLayer) -> Result<(), Failure> {
    let dtype = cache.dtype();
    let (keys, values) = cache.parts_mut();
    for tensor in [keys, values] {
        match dtype {
            DType::F32 => tensor.as_mut_slice()?.fill(f32::NAN),
            DType::F16 => tensor.as_mut_slice()?.fill(f16::NAN),
            _ => tensor.as_mut_slice()?.fill(bf16::NAN),
        }
    }
    Ok(())
}

fn write(cache: &mut KvLayer, row: usize, key: &[f32], value: &[f32]) -> Result<(), Failure> {
    let dtype = cache.dtype();
    let (keys, values) = cache.parts_mut();
    for (tensor, from) in [(keys, key), (values, value)] {
        let mut view = tensor.view_mut();
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

struct Append {
    keys: Matrix,
    values: Matrix,
    slots: Vec<u32>,
    cache: KvLayer,
}

impl Prepared for Append {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        Ok(backend.kv_append(KvAppendArgs {
            keys: self.keys.view(),
            values: self.values.view(),
            slots: &self.slots,
            cache: &mut self.cache,
        })?)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        let output = |name, tensor: &cider_kernels::Tensor| {
            Ok::<_, Failure>(Output {
                name,
                dtype: tensor.dtype(),
                rows: tensor.rows(),
                cols: tensor.cols(),
                bits: bits(tensor)?,
            })
        };
        Ok(vec![
            output("keys", self.cache.keys())?,
            output("values", self.cache.values())?,
        ])
    }
}

/// Rows go to their slots, rounded once; every other place keeps its NaN.
fn appends() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in ACTIVATIONS {
        for cache in [DType::F32, DType::F16, DType::Bf16] {
            for (rows, kv_heads, size) in [
                (1, 1, 16),
                (5, 2, 64),
                (9, 3, 72),
                (70, 2, 24),
                (2, 1, 256),
                (3, 5, 17),
            ] {
                for fill in [Fill::Mixed, Fill::Poisoned(f32::NAN)] {
                    cases.push(append(dtype, cache, (rows, kv_heads, size), fill));
                }
            }
        }
    }
    cases
}

fn append(
    dtype: DType,
    cache: DType,
    (rows, kv_heads, size): (usize, usize, usize),
    fill: Fill,
) -> Case {
    let name = format!("{dtype} into {cache}, {rows} x {kv_heads} x {size}, {fill:?}");
    let cols = kv_heads * size;
    let slots: Vec<u32> = (0..rows as u32).map(|row| (row * 53 + 190) % 192).collect();
    let floats = move |seed| filled(fill, dtype, (rows, cols), &mut Rng::new(seed));
    let places = slots.clone();
    let case = Case::new("kv_append", name, move |_| {
        let mut cache = KvLayer::new(cache, 3, kv_heads, size)?;
        poison(&mut cache)?;
        Ok(Box::new(Append {
            keys: Matrix::input(dtype, rows, cols, &floats(1))?,
            values: Matrix::input(dtype, rows, cols, &floats(2))?,
            slots: places.clone(),
            cache,
        }))
    });
    case.twin(move |outputs| {
        for (out, seed) in outputs.iter().zip([1, 2]) {
            let x = floats(seed);
            within(out, |place, d| {
                let (block, head) = (place / KV_BLOCK / kv_heads, place / KV_BLOCK % kv_heads);
                let slot = (block * KV_BLOCK + place % KV_BLOCK) as u32;
                let row = slots.iter().position(|other| *other == slot);
                let value = row.map_or(f32::NAN, |row| x[row * cols + head * size + d]);
                Bounded::exact(f64::from(value))
            })?;
        }
        Ok(0.0)
    })
}

fn refusals() -> Vec<Case> {
    let call = |heads: usize, length: usize, table: &'static [u32], window: Option<usize>| {
        move |backend: &dyn Backend| {
            let cache = KvLayer::new(DType::F32, 3, 2, 16)?;
            let q = Matrix::input(DType::F32, 2, 64, &[1.0; 128])?;
            let mut out = Matrix::output(DType::F32, 2, 64)?;
            let (first_position, phase) = (length - 2, Phase::Prompt);
            let run = AttentionRun {
                first_row: 0,
                rows: 2,
                first_position,
                first_block: 0,
                blocks: table.len(),
                phase,
            };
            Ok(backend.attention(AttentionArgs {
                queries: q.view(),
                cache: &cache,
                runs: &[run],
                table,
                heads,
                scale: 1.0,
                window,
                out: out.view_mut(),
            })?)
        }
    };
    let append = |cols: usize, slots: &'static [u32]| {
        move |backend: &dyn Backend| {
            let mut cache = KvLayer::new(DType::F32, 3, 2, 16)?;
            let x = Matrix::input(DType::F32, 2, cols, &vec![1.0; 2 * cols])?;
            let (keys, values) = (x.view(), x.view());
            Ok(backend.kv_append(KvAppendArgs {
                keys,
                values,
                slots,
                cache: &mut cache,
            })?)
        }
    };
    vec![
        Case::refused(
            "attention",
            "a ratio that is none",
            &["3", "2"],
            call(3, 2, &[0], None),
        ),
        Case::refused(
            "attention",
            "a wrong width",
            &["32", "64"],
            call(2, 2, &[0], None),
        ),
        Case::refused(
            "attention",
            "too few blocks",
            &["65", "2", "1"],
            call(4, 65, &[0], None),
        ),
        Case::refused(
            "attention",
            "a block beyond the cache",
            &["block 3", "3"],
            call(4, 65, &[0, 3], None),
        ),
        Case::refused(
            "attention",
            "a window of nothing",
            &["window"],
            call(4, 65, &[0, 1], Some(0)),
        ),
        Case::refused(
            "kv_append",
            "a slot beyond the cache",
            &["slot 192", "192"],
            append(32, &[0, 192]),
        ),
        Case::refused("kv_append", "too few slots", &["2", "1"], append(32, &[0])),
        Case::refused(
            "kv_append",
            "a wrong width",
            &["32", "31"],
            append(31, &[0, 1]),
        ),
    ]
}
