//! Causal attention, and appending to the cache it reads.

mod twin;

use std::ops::Range;

use cider_kernels::{AttentionArgs, AttentionRun, Backend, DType, KV_BLOCK, KvLayer, Phase, Sight};

use crate::cases::{
    ACTIVATIONS, Case, Failure, Fill, Matrix, Output, Prepared, Rng, filled, round_to,
};
use crate::kv::{poison, stored_row, write};

pub(crate) fn cases() -> Vec<Case> {
    let mut specs = Vec::new();
    for phase in [Phase::Prompt, Phase::Generated] {
        for dtype in ACTIVATIONS {
            let base = Spec::new(dtype, phase);
            specs.extend(shapes(base));
            specs.extend(CACHES.into_iter().flat_map(|cache| stored(base, cache)));
            specs.extend(sights(base));
            specs.extend(scores(base));
        }
        specs.extend(lengths(phase));
    }
    let mut cases: Vec<Case> = specs.into_iter().map(Spec::case).collect();
    cases.extend(ACTIVATIONS.map(batch));
    cases
}

/// Ratios of heads, sizes of heads, and tiles of rows.
fn shapes(base: Spec) -> Vec<Spec> {
    let mut specs = Vec::new();
    let ratios = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16];
    specs.extend(ratios.map(|ratio| base.heads_of(ratio, 64)));
    let sizes = [16, 17, 24, 64, 72, 80, 96, 128, 160, 256];
    specs.extend(sizes.map(|size| base.heads_of(2, size).last(3, 200)));
    let rows = [15, 16, 17, 21, 22, 33, 48, 64, 100];
    specs.extend(rows.map(|rows| base.heads_of(3, 16).last(rows, 170)));
    specs
}

/// Lengths over a type of cache, the keys' and the values'.
fn stored(base: Spec, cache: [DType; 2]) -> Vec<Spec> {
    let over = Spec { cache, ..base };
    let mut specs = Vec::new();
    let lengths = [1, 2, 17, 63, 64, 65, 129, 200, 1000];
    specs.extend(lengths.map(|length| over.last(3, length)));
    specs.extend([17, 24, 72].map(|size| over.heads_of(5, size).last(20, 100)));
    specs.push(over.window(70).last(40, 210));
    specs.push(Spec {
        chunk: Some(7),
        ..over.heads_of(2, 16).last(130, 130)
    });
    let poisoned = [Scores::Poisoned, Scores::PoisonedValue];
    specs.extend(poisoned.map(|scores| over.scores(scores).last(3, 150)));
    specs
}

/// Windows, whole runs, and chunks of rows.
fn sights(base: Spec) -> Vec<Spec> {
    let mut specs = Vec::new();
    let windows = [1, 2, 63, 64, 65, 100, 128, 1000];
    specs.extend(windows.map(|window| base.window(window).last(70, 200)));
    specs.extend(windows.map(|window| base.window(window).last(2, 1000)));
    // Prompts shorter than a window, as long, and longer, in chunks across it.
    specs.extend([7, 8, 9, 20].map(|length| Spec {
        chunk: Some(5),
        ..base.window(8).last(length, length)
    }));
    let whole = Spec {
        sight: Sight::All,
        ..base
    };
    let lengths = [1, 2, 17, 63, 64, 65, 130, 200];
    specs.extend(lengths.map(|length| whole.last(length, length)));
    specs.extend([whole.heads_of(1, 72).last(150, 150), whole.last(5, 150)]);
    for chunk in [1, 7, 64, 100] {
        let base = Spec {
            chunk: Some(chunk),
            ..base.heads_of(2, 16)
        };
        specs.extend([base.last(130, 130), base.window(70).last(130, 210)]);
    }
    specs
}

/// Scores that are equal, large, or no numbers, and values that are none: those of the last key, which the rows
/// before it do not see.
fn scores(base: Spec) -> Vec<Spec> {
    let mut specs = Vec::new();
    let scores = [
        Scores::Equal,
        Scores::Large(1e4),
        Scores::Large(3e38),
        Scores::Poisoned,
        Scores::PoisonedValue,
    ];
    specs.extend(scores.map(|scores| base.scores(scores).last(3, 150)));
    specs.extend(scores.map(|scores| Spec {
        chunk: Some(9),
        ..base.scores(scores).heads_of(3, 16).last(70, 150)
    }));
    let marker = base.scores(Scores::Marker).heads_of(4, 128);
    specs.extend([1, 31, 32, 33, 1023, 1025].map(|length| marker.last(1, length)));
    specs
}

/// Long sequences, and a cache of more elements than 31 bits count.
fn lengths(phase: Phase) -> Vec<Spec> {
    let mut specs = Vec::new();
    for (dtype, length) in [
        (DType::F32, 32_767),
        (DType::F32, 33_000),
        (DType::Bf16, 65_535),
        (DType::F32, 65_537),
        (DType::Bf16, 131_073),
    ] {
        let base = Spec {
            kv_heads: 1,
            ..Spec::new(dtype, phase)
        };
        specs.push(base.heads_of(1, 8).last(1, length).scores(Scores::Marker));
    }
    let base = Spec {
        kv_heads: 1,
        ..Spec::new(DType::Bf16, phase)
    };
    specs.push(base.heads_of(2, 8).last(2, 33_000));
    specs.push(Spec {
        cache: [DType::I8; 2],
        spare: (1 << 31) / (KV_BLOCK * 128),
        ..base.heads_of(1, 128)
    });
    specs
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
    /// The types of keys and values.
    cache: [DType; 2],
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
    /// Blocks before those that the sequences use, which nobody touches.
    spare: usize,
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
    /// A NaN in the last key, and an infinite query.
    Poisoned,
    /// Infinities of both signs in the last value.
    PoisonedValue,
}

impl Spec {
    fn new(dtype: DType, phase: Phase) -> Self {
        Self {
            dtype,
            cache: [dtype; 2],
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
            spare: 0,
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
            spare,
            ..
        } = self;
        let spare = if spare > 0 {
            format!(", after {spare} blocks")
        } else {
            String::new()
        };
        let sight = match sight {
            Sight::Causal => String::new(),
            other => format!(", {other:?}"),
        };
        let chunk = chunk.map_or(String::new(), |chunk| format!(", in {chunk}s"));
        let name = format!(
            "{dtype} over {} and {}, {phase:?}, {ratio} x {kv_heads} heads of {size}, rows {rows} of {length}{sight}{chunk}, {scores:?}{spare}",
            cache[0], cache[1]
        );
        let keys = rows * (2 * length - rows) / 2;
        let bytes = cache.map(DType::size).iter().sum::<usize>();
        Case::new("attention", name, move |backend| {
            Ok(Box::new(self.prepare(backend)?))
        })
        .twin(move |outputs| self.check(outputs))
        .work(
            length * kv_heads * size * bytes,
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
        for block in &mut table {
            *block += self.spare as u32;
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
            Scores::Normal | Scores::Equal | Scores::PoisonedValue => {}
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
            Scores::PoisonedValue if place + 1 == self.length => {
                value[0] = f32::INFINITY;
                value[self.size - 1] = f32::NEG_INFINITY;
            }
            Scores::Poisoned | Scores::PoisonedValue | Scores::Normal => {}
        }
        round_to(self.cache[0], &mut key);
        round_to(self.cache[1], &mut value);
        (key, value)
    }

    /// The same as the cache has it.
    fn stored_pair(self, sequence: usize, head: usize, place: usize) -> (Vec<f64>, Vec<f64>) {
        let (key, value) = self.pair(sequence, head, place);
        let [keys, values] = self.cache;
        (stored_row(keys, &key), stored_row(values, &value))
    }

    /// Whether weights are rounded to bf16: in prompts, where everything that is multiplied is exact in it.
    fn rounds_weights(self) -> bool {
        let exact = |dtype| matches!(dtype, DType::Bf16 | DType::I8);
        self.phase == Phase::Prompt
            && self.dtype == DType::Bf16
            && self.cache.map(exact) == [true; 2]
    }

    fn prepare(self, _: &dyn Backend) -> Result<Attention, Failure> {
        let (runs, table) = self.runs();
        let [keys, values] = self.cache;
        let blocks = self.spare + table.len();
        let mut cache = KvLayer::new(keys, values, blocks, self.kv_heads, self.size)?;
        if self.spare == 0 {
            poison(&mut cache)?;
        }
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

/// The types of a cache's keys and values.
const CACHES: [[DType; 2]; 5] = [
    [DType::F32; 2],
    [DType::F16; 2],
    [DType::Bf16; 2],
    [DType::I8; 2],
    [DType::Bf16, DType::I8],
];
