//! Linear layers: every format with every kind of activation, and the bare integer product.

use cider_kernels::{
    Backend, DType, Format, LinearArgs, LinearInput, QuantizedRows, ReferenceBackend, RowSource,
    Weights,
};

use crate::cases::{Case, Failure, Fill, Matrix, Output, Prepared, Rng, filled};
use crate::compare::{Bounded, UNIT, sum_error, within};

pub(crate) fn cases() -> Vec<Case> {
    let mut specs = Vec::new();
    for format in formats() {
        for input in Input::ALL.into_iter().filter(|input| input.meets(format)) {
            let base = Spec::new(format, input);
            let sizes = |m, n, k| Spec { m, n, k, ..base };
            specs.extend(ROWS.map(|m| sizes(m, 33, 100)));
            specs.extend(COLS.map(|n| sizes(3, n, 65)));
            specs.extend(DEPTHS.map(|k| sizes(3, 17, k)));
            specs.extend([
                Spec {
                    x: Fill::Mixed,
                    ..sizes(9, 35, 130)
                },
                Spec {
                    x: Fill::Mixed,
                    w: Source::Zeros,
                    ..sizes(9, 35, 130)
                },
                Spec {
                    x: Fill::LastColumn,
                    w: Source::LastColumn,
                    ..sizes(2, 17, 4304)
                },
                Spec {
                    split: Some(1),
                    ..sizes(9, 19, 300)
                },
                Spec {
                    split: Some(4),
                    ..sizes(70, 19, 300)
                },
                Spec {
                    w: Source::Clipped(99.0),
                    ..sizes(2, 17, 300)
                },
                Spec {
                    w: Source::Small,
                    ..sizes(2, 17, 300)
                },
            ]);
            let poisons = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            specs.extend(poisons.map(|x| Spec {
                x: Fill::Poisoned(x),
                ..sizes(5, 17, 65)
            }));
            if !matches!(format, Format::Dense(_)) {
                let integers = |w, m, n, k| Spec {
                    w,
                    x: Fill::Extreme,
                    ..sizes(m, n, k)
                };
                specs.extend([
                    integers(Source::Integers, 3, 17, 100),
                    integers(Source::Lowest, 5, 33, 1152),
                    integers(Source::Highest, 5, 33, 576),
                ]);
            }
        }
        specs.extend(large(format));
    }
    specs.extend(sampled());
    let mut cases: Vec<Case> = specs.into_iter().map(Spec::case).collect();
    cases.extend(products());
    cases.extend(crate::weights::cases());
    cases.extend(refusals());
    cases
}

pub(crate) fn perf_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let int8 = [
        Format::W8 { group: 0 },
        Format::W8 { group: 128 },
        Format::W4 { group: 64 },
    ];
    for format in int8 {
        for m in [1, 16, 128] {
            for input in [Input::Int8(DType::Bf16), Input::Float(DType::Bf16)] {
                if m <= 16 || input != Input::Float(DType::Bf16) {
                    cases.push(Spec {
                        m,
                        n: 2560,
                        k: 2560,
                        ..Spec::new(format, input)
                    });
                }
            }
        }
    }
    let dense = Spec::new(Format::Dense(DType::Bf16), Input::Float(DType::Bf16));
    cases.extend([1, 16].map(|m| Spec {
        m,
        n: 2560,
        k: 2560,
        ..dense
    }));
    cases.into_iter().map(Spec::case).collect()
}

/// A linear layer and what flows into it.
#[derive(Clone, Copy, Debug)]
struct Spec {
    format: Format,
    input: Input,
    out: DType,
    m: usize,
    n: usize,
    k: usize,
    x: Fill,
    w: Source,
    /// Rows of a call, when the caller splits them.
    split: Option<usize>,
}

/// What the layer is given: floats, or floats of this dtype quantised.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    Float(DType),
    Int8(DType),
}

/// The weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    /// Normal floats.
    Normal,
    /// Every third row zeros, and the first 32 columns of every fifth.
    Zeros,
    /// 0.01, and 100 in the last column.
    LastColumn,
    /// Magnitudes of 1e-5.
    Small,
    /// Magnitudes of 2^-141 and less: scales are subnormal, or vanish.
    Subnormal,
    /// Normal floats, clipped at a percentile.
    Clipped(f64),
    /// Random integers.
    Integers,
    /// The lowest integer the format holds.
    Lowest,
    /// The highest.
    Highest,
}

impl Input {
    const ALL: [Self; 4] = [
        Self::Float(DType::F32),
        Self::Float(DType::Bf16),
        Self::Int8(DType::F32),
        Self::Int8(DType::Bf16),
    ];

    fn dtype(self) -> DType {
        match self {
            Self::Float(dtype) | Self::Int8(dtype) => dtype,
        }
    }

    fn meets(self, format: Format) -> bool {
        matches!(self, Self::Float(_)) || !matches!(format, Format::Dense(_))
    }
}

impl Spec {
    fn new(format: Format, input: Input) -> Self {
        Self {
            format,
            input,
            out: input.dtype(),
            m: 3,
            n: 17,
            k: 65,
            x: Fill::Normal,
            w: Source::Normal,
            split: None,
        }
    }

    fn name(self) -> String {
        let split = self
            .split
            .map_or(String::new(), |rows| format!(" in {rows}s"));
        let Self {
            format,
            input,
            out,
            m,
            n,
            k,
            x,
            w,
            ..
        } = self;
        format!("{format}, {input:?} -> {out}, {m} x {n} x {k}{split}, x {x:?}, w {w:?}")
    }

    fn case(self) -> Case {
        let size = match self.format {
            Format::Dense(dtype) => dtype.size() * 2,
            Format::W8 { .. } => 2,
            Format::W4 { .. } => 1,
        };
        let weights = self.n * self.k * size / 2;
        let rows = self.m * (self.k * self.input.dtype().size() + self.n * self.out.size());
        Case::new("linear", self.name(), move |backend| {
            Ok(Box::new(self.prepare(backend)?))
        })
        .twin(move |outputs| self.check(outputs))
        .work(weights + rows, 2 * self.m * self.n * self.k)
    }

    fn rng(self) -> Rng {
        Rng::new((self.m * 1_000_003 + self.n * 1009 + self.k) as u64)
    }

    fn activations(self) -> Vec<f32> {
        filled(
            self.x,
            self.input.dtype(),
            (self.m, self.k),
            &mut self.rng(),
        )
    }

    fn bias(self) -> Vec<f32> {
        self.rng().normals(self.n)
    }

    fn prepare(self, backend: &dyn Backend) -> Result<Linear, Failure> {
        let mut weights = backend.weights(self.format, self.n, self.k)?;
        fill(backend, &mut weights, self.w, self.n as u64)?;
        // A layer without a bias must be as good as one with a bias of zeros.
        if self.m % 2 == 1 {
            backend.set_bias(&mut weights, 0, &self.bias())?;
        }
        let second = self.split.map(|_| Matrix::output(self.out, self.m, self.n));
        Ok(Linear {
            spec: self,
            x: Matrix::input(self.input.dtype(), self.m, self.k, &self.activations())?,
            quantized: backend.quantized_rows(self.m, self.k)?,
            weights,
            out: Matrix::output(self.out, self.m, self.n)?,
            second: second.transpose()?,
        })
    }

    /// Against f64: exact products of what the layer was given.
    fn check(self, outputs: &[Output]) -> Result<f64, String> {
        let text = |failure: Failure| failure.to_string();
        let linear = self.prepare(&ReferenceBackend).map_err(text)?;
        let rows = (0..self.n).map(|n| Row::read(&linear.weights, n));
        let rows = rows.collect::<Result<Vec<_>, _>>().map_err(text)?;
        let x: Vec<Vec<f64>> = match self.input {
            Input::Float(_) => {
                let x = self.activations();
                x.chunks(self.k)
                    .map(|x| x.iter().map(|x| f64::from(*x)).collect())
                    .collect()
            }
            Input::Int8(_) => (0..self.m).map(|m| dequantized(outputs, m)).collect(),
        };
        let bias = if self.m % 2 == 1 {
            self.bias()
        } else {
            vec![0.0; self.n]
        };
        let groups = self.format.groups(self.k);
        let worst = within(&outputs[0], |m, n| {
            rows[n].product(&x[m], f64::from(bias[n]), self.k + 3 * groups + 4)
        })?;
        if self.x == Fill::LastColumn && !matches!(self.format, Format::Dense(_)) {
            self.check_steps(&outputs[0], &rows, &x)?;
        }
        if let Some(second) = self.split.and(outputs.get(1)) {
            crate::compare::same_bits(
                &outputs[..1],
                &[Output {
                    name: outputs[0].name,
                    ..second.clone()
                }],
            )
            .map_err(|what| format!("split rows: {what}"))?;
        }
        if let (Fill::Poisoned(_), 1..) = (self.x, self.m) {
            check_poison(self, &outputs[0])?;
        }
        Ok(worst)
    }
}

impl Spec {
    /// C084: against the floats before anything was quantised, in the bound that half a step of each gives.
    fn check_steps(self, out: &Output, rows: &[Row], quantised: &[Vec<f64>]) -> Result<(), String> {
        let activations = self.activations();
        let bias = if self.m % 2 == 1 {
            self.bias()
        } else {
            vec![0.0; self.n]
        };
        within(out, |m, n| {
            let w = floats(self.w, self.n as u64, n, self.k);
            let (mut value, mut error) = (f64::from(bias[n]), 0.0);
            for (k, w) in w.into_iter().map(f64::from).enumerate() {
                let x = f64::from(activations[m * self.k + k]);
                let (dx, dw) = ((x - quantised[m][k]).abs(), rows[n].steps[k]);
                value += x * w;
                error += x.abs() * dw + dx * (w.abs() + dw) + 4.0 * UNIT * (x * w).abs();
            }
            let sum = rows[n].product(&quantised[m], f64::from(bias[n]), 2 * self.k);
            Bounded {
                value,
                error: error + sum.error,
            }
        })?;
        Ok(())
    }
}

struct Linear {
    spec: Spec,
    x: Matrix,
    quantized: QuantizedRows,
    weights: Weights,
    out: Matrix,
    second: Option<Matrix>,
}

impl Prepared for Linear {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        let Spec {
            m, input, split, ..
        } = self.spec;
        let mut call = |first: usize, count: usize, out: &mut Matrix| {
            let x = self.x.view().row_range(first..first + count);
            let input = match input {
                Input::Float(_) => LinearInput::Float(x),
                Input::Int8(_) => {
                    backend.quantize(x, &mut self.quantized)?;
                    LinearInput::Int8(&self.quantized)
                }
            };
            let out = out.view_mut().row_range(first..first + count);
            backend.linear(LinearArgs {
                input,
                weights: &self.weights,
                out,
            })
        };
        if let (Some(rows), Some(second)) = (split, &mut self.second) {
            for first in (0..m).step_by(rows) {
                call(first, rows.min(m - first), second)?;
            }
        }
        Ok(call(0, m, &mut self.out)?)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        let mut outputs = vec![self.out.read("out")?];
        if let Some(second) = &self.second {
            outputs.push(second.read("split")?);
        }
        if let Input::Int8(_) = self.spec.input {
            outputs.extend(Output::quantized(&self.quantized));
        }
        Ok(outputs)
    }
}

/// A row of weights as the layer has it.
struct Row {
    /// Integers times scales, or dense values, exact.
    values: Vec<f64>,
    /// Half a step of each integer, zero for dense values.
    steps: Vec<f64>,
}

impl Row {
    fn read(weights: &Weights, row: usize) -> Result<Self, Failure> {
        let (format, k) = (weights.format(), weights.k());
        if let Format::Dense(_) = format {
            let mut values = vec![0.0; k];
            ReferenceBackend.read_row(weights, row, &mut values)?;
            return Ok(Self {
                values: values.into_iter().map(f64::from).collect(),
                steps: vec![0.0; k],
            });
        }
        let (mut q, mut scales) = (vec![0; k], vec![0.0; format.groups(k)]);
        ReferenceBackend.read_integers(weights, row, &mut q, &mut scales)?;
        let scale = |i: usize| f64::from(scales[i / format.group_size(k)]);
        let values = q.iter().enumerate().map(|(i, &q)| f64::from(q) * scale(i));
        Ok(Self {
            values: values.collect(),
            steps: (0..k).map(|i| scale(i) / 2.0).collect(),
        })
    }

    /// `x . row + bias`, with the error of `steps` roundings.
    fn product(&self, x: &[f64], bias: f64, steps: usize) -> Bounded {
        let (mut value, mut magnitude) = (bias, bias.abs());
        for (x, w) in x.iter().zip(&self.values) {
            value += x * w;
            magnitude += (x * w).abs();
        }
        // A partial sum beyond f32 makes the result infinite or NaN, as it may.
        let error = if magnitude > f64::from(f32::MAX) && value.is_finite() {
            f64::INFINITY
        } else {
            // A product of two scales may be subnormal: it then loses as much, 127 * 128 times a column.
            sum_error(steps, magnitude) + sum_error(127 * 128 * steps, 0.0)
        };
        Bounded { value, error }
    }
}

/// The poisoned row has no finite output; the others are those of clean rows.
fn check_poison(spec: Spec, out: &Output) -> Result<(), String> {
    let text = |failure: Failure| failure.to_string();
    let clean = Spec {
        x: Fill::Normal,
        ..spec
    };
    let mut linear = clean.prepare(&ReferenceBackend).map_err(text)?;
    linear.run(&ReferenceBackend).map_err(text)?;
    let clean = linear.out.read("out").map_err(text)?;
    for row in 0..spec.m {
        let range = row * spec.n..(row + 1) * spec.n;
        if row == 1 && range.clone().any(|i| out.at(i).is_finite()) {
            return Err("a row that is not finite has a finite output".to_owned());
        }
        if row != 1 && out.bits[range.clone()] != clean.bits[range] {
            return Err(format!("row {row} changed with another row"));
        }
    }
    Ok(())
}

fn dequantized(outputs: &[Output], row: usize) -> Vec<f64> {
    let scale = outputs[outputs.len() - 2].at(row);
    let q = outputs[outputs.len() - 1].row(row);
    q.iter().map(|q| q * scale).collect()
}

/// Fills weights from a source; on every backend the same.
pub(crate) fn fill(
    backend: &dyn Backend,
    weights: &mut Weights,
    source: Source,
    seed: u64,
) -> Result<(), Failure> {
    let (format, n, k) = (weights.format(), weights.n(), weights.k());
    let clip_percentile = match source {
        Source::Clipped(percentile) => Some(percentile),
        _ => None,
    };
    if matches!(source, Source::Integers | Source::Lowest | Source::Highest) {
        let read = |row: usize, q: &mut [i8], scales: &mut [f32]| {
            integers(source, format, seed + row as u64, q, scales);
        };
        return Ok(backend.fill_weights(weights, 0, n, RowSource::Integers { read: &read })?);
    }
    // In two parts, so that the first row of a part is not always that of the matrix.
    let half = n / 2;
    for (first, count) in [(0, half), (half, n - half)] {
        let read = |row: usize, w: &mut [f32]| {
            w.copy_from_slice(&floats(source, seed, first + row, k));
        };
        let source = RowSource::Floats {
            read: &read,
            clip_percentile,
        };
        backend.fill_weights(weights, first, count, source)?;
    }
    Ok(())
}

/// Row `row` of float weights.
pub(crate) fn floats(source: Source, seed: u64, row: usize, k: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed * 10_007 + row as u64);
    let factor = match source {
        Source::Small => 1e-5,
        Source::Subnormal => 2f32.powi(-140 - row as i32 % 3),
        _ => 0.05,
    };
    let mut w: Vec<f32> = (0..k).map(|_| rng.normal() * factor).collect();
    match source {
        Source::Zeros if row % 3 == 0 => w.fill(0.0),
        Source::Zeros if row % 5 == 1 => w.iter_mut().take(32).for_each(|w| *w = -0.0),
        Source::LastColumn => {
            w.fill(0.01);
            w[k - 1] = 100.0;
        }
        _ => {}
    }
    w
}

fn integers(source: Source, format: Format, seed: u64, q: &mut [i8], scales: &mut [f32]) {
    let mut rng = Rng::new(seed);
    let (low, high) = if matches!(format, Format::W4 { .. }) {
        (-8, 7)
    } else {
        (-128, 127)
    };
    for q in q {
        *q = match source {
            Source::Lowest => low,
            Source::Highest => high,
            _ => {
                (i64::from(low) + rng.below((i64::from(high) - i64::from(low) + 1) as usize) as i64)
                    as i8
            }
        };
    }
    for scale in scales {
        *scale = (rng.uniform() + 1.5) * 0.01;
    }
}

/// Depths that matter to one format alone, and sizes past every tile.
fn large(format: Format) -> Vec<Spec> {
    let inputs = Input::ALL.into_iter().filter(|input| input.meets(format));
    let mut specs = Vec::new();
    for input in inputs {
        let base = Spec::new(format, input);
        let int8 = matches!(input, Input::Int8(_));
        if format.is_per_channel() && int8 {
            specs.push(Spec {
                m: 2,
                n: 3,
                k: 70_001,
                ..base
            });
        }
        let (m, n) = if int8 { (70, 130) } else { (17, 67) };
        specs.extend([576, 896, 1152].map(|k| Spec { m, n, k, ..base }));
    }
    specs
}

/// Combinations of everything, drawn at random.
fn sampled() -> Vec<Spec> {
    let mut rng = Rng::new(2);
    let formats = formats();
    let mut specs = Vec::new();
    while specs.len() < 250 {
        let (format, input) = (rng.pick(&formats), rng.pick(&Input::ALL));
        let (m, n, k) = (1 + rng.below(70), 1 + rng.below(140), 1 + rng.below(2500));
        if input.meets(format) && m * n * k <= 1_500_000 {
            specs.push(Spec {
                m,
                n,
                k,
                out: rng.pick(&crate::cases::ACTIVATIONS),
                x: rng.pick(&[Fill::Normal, Fill::Mixed]),
                w: rng.pick(&[Source::Normal, Source::Zeros]),
                split: rng.pick(&[None, Some(1), Some(3), Some(16)]),
                ..Spec::new(format, input)
            });
        }
    }
    specs
}

/// A bare integer product, with what it must be where that is known.
#[derive(Clone, Copy)]
struct Product {
    format: Format,
    m: usize,
    n: usize,
    k: usize,
    x: Fill,
    w: Source,
    expected: Option<i32>,
}

impl Product {
    fn case(self) -> Case {
        let Self {
            format,
            m,
            n,
            k,
            x,
            w,
            expected,
        } = self;
        let name = format!("i32 product, {format}, {m} x {n} x {k}, x {x:?}, w {w:?}");
        Case::new("linear", name, move |backend| {
            let mut weights = backend.weights(format, n, k)?;
            fill(backend, &mut weights, w, 7)?;
            let values = filled(x, DType::F32, (m, k), &mut Rng::new(k as u64));
            Ok(Box::new(MatmulI32 {
                x: Matrix::input(DType::F32, m, k, &values)?,
                quantized: backend.quantized_rows(m, k)?,
                weights,
                out: Matrix::output(DType::I32, m, n)?,
            }))
        })
        .twin(move |outputs| match expected {
            None => Ok(0.0),
            Some(expected) => within(&outputs[0], |_, _| Bounded::exact(f64::from(expected))),
        })
    }
}

struct MatmulI32 {
    x: Matrix,
    quantized: QuantizedRows,
    weights: Weights,
    out: Matrix,
}

impl Prepared for MatmulI32 {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        backend.quantize(self.x.view(), &mut self.quantized)?;
        Ok(backend.matmul_i32(&self.quantized, &self.weights, self.out.view_mut())?)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        let [scales, q] = Output::quantized(&self.quantized);
        Ok(vec![self.out.read("out")?, scales, q])
    }
}

/// C091 and C096: sums that saturate 16 bits, and the longest that fit 32.
fn products() -> Vec<Case> {
    let base = Product {
        format: Format::W8 { group: 0 },
        m: 3,
        n: 17,
        k: 64,
        x: Fill::Extreme,
        w: Source::Highest,
        expected: None,
    };
    let minus_128 = |k: usize| Some(-(k as i32) * 127 * 128);
    let mut products = vec![
        Product {
            expected: Some(1_032_256),
            ..base
        },
        Product {
            w: Source::Lowest,
            expected: minus_128(64),
            ..base
        },
        Product {
            m: 1,
            n: 2,
            k: 70_001,
            expected: Some(70_001 * 127 * 127),
            ..base
        },
        Product {
            m: 1,
            n: 2,
            k: 133_144,
            expected: Some(2_147_479_576),
            ..base
        },
        Product {
            m: 2,
            n: 1,
            k: 133_144,
            expected: Some(2_147_479_576),
            ..base
        },
        Product {
            m: 1,
            n: 2,
            k: 132_104,
            w: Source::Lowest,
            expected: minus_128(132_104),
            ..base
        },
    ];
    for k in DEPTHS {
        let random = Product {
            k,
            x: Fill::Mixed,
            w: Source::Integers,
            m: 9,
            ..base
        };
        products.extend([
            random,
            Product {
                format: Format::W4 { group: 0 },
                ..random
            },
        ]);
    }
    products.into_iter().map(Product::case).collect()
}

fn refusals() -> Vec<Case> {
    let w8 = Format::W8 { group: 0 };
    let weights = move |format: Format, n, k| {
        move |backend: &dyn Backend| {
            backend
                .weights(format, n, k)
                .map(|_| ())
                .map_err(Failure::from)
        }
    };
    let call = |format: Format, x: (usize, usize), out: (DType, usize, usize)| {
        move |backend: &dyn Backend| {
            let weights = backend.weights(format, 4, 8)?;
            let x = Matrix::input(DType::F32, x.0, x.1, &vec![1.0; x.0 * x.1])?;
            let mut y = Matrix::output(out.0, out.1, out.2)?;
            let input = LinearInput::Float(x.view());
            Ok(backend.linear(LinearArgs {
                input,
                weights: &weights,
                out: y.view_mut(),
            })?)
        }
    };
    vec![
        Case::refused(
            "linear",
            "K = 133,145",
            &["133145", "133144"],
            weights(w8, 1, 133_145),
        ),
        Case::refused(
            "linear",
            "a group of 48",
            &["48"],
            weights(Format::W8 { group: 48 }, 1, 96),
        ),
        Case::refused("linear", "no rows", &["0 x 8"], weights(w8, 0, 8)),
        Case::refused(
            "linear",
            "dense i8",
            &["i8"],
            weights(Format::Dense(DType::I8), 1, 8),
        ),
        Case::refused(
            "linear",
            "a wrong K",
            &["linear", "8", "7"],
            call(w8, (2, 7), (DType::F32, 2, 4)),
        ),
        Case::refused(
            "linear",
            "a wrong M",
            &["linear", "2", "3"],
            call(w8, (2, 8), (DType::F32, 3, 4)),
        ),
        Case::refused(
            "linear",
            "a wrong N",
            &["linear", "4", "5"],
            call(w8, (2, 8), (DType::F32, 2, 5)),
        ),
        Case::refused(
            "linear",
            "an f16 output",
            &["f16"],
            call(w8, (2, 8), (DType::F16, 2, 4)),
        ),
        Case::refused(
            "linear",
            "INT8 rows with dense weights",
            &["dense bf16"],
            |backend| {
                let weights = backend.weights(Format::Dense(DType::Bf16), 4, 8)?;
                let rows = one_row(backend)?;
                let mut out = Matrix::output(DType::F32, 1, 4)?;
                let input = LinearInput::Int8(&rows);
                Ok(backend.linear(LinearArgs {
                    input,
                    weights: &weights,
                    out: out.view_mut(),
                })?)
            },
        ),
        Case::refused(
            "linear",
            "an i32 product per group",
            &["per channel", "group 32"],
            |backend| {
                let weights = backend.weights(Format::W8 { group: 32 }, 4, 8)?;
                let mut out = Matrix::output(DType::I32, 1, 4)?;
                Ok(backend.matmul_i32(&one_row(backend)?, &weights, out.view_mut())?)
            },
        ),
        Case::refused("linear", "an f32 product", &["i32", "f32"], |backend| {
            let weights = backend.weights(Format::W8 { group: 0 }, 4, 8)?;
            let mut out = Matrix::output(DType::F32, 1, 4)?;
            Ok(backend.matmul_i32(&one_row(backend)?, &weights, out.view_mut())?)
        }),
    ]
}

fn one_row(backend: &dyn Backend) -> Result<QuantizedRows, Failure> {
    let mut rows = backend.quantized_rows(1, 8)?;
    backend.quantize(
        Matrix::input(DType::F32, 1, 8, &[1.0; 8])?.view(),
        &mut rows,
    )?;
    Ok(rows)
}

/// Every format.
pub(crate) fn formats() -> Vec<Format> {
    let dense = [DType::F32, DType::Bf16, DType::F16].map(Format::Dense);
    let w8 = GROUPS.map(|group| Format::W8 { group });
    let w4 = GROUPS.map(|group| Format::W4 { group });
    [&dense[..], &w8, &w4].concat()
}

const GROUPS: [usize; 5] = [0, 32, 64, 128, 256];
const ROWS: [usize; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64, 70];
const COLS: [usize; 10] = [1, 2, 15, 16, 17, 33, 63, 64, 65, 130];
const DEPTHS: [usize; 17] = [
    1, 2, 3, 15, 17, 31, 33, 63, 65, 100, 127, 576, 896, 1025, 1152, 2049, 4304,
];
