//! Linear layers: every format with every kind of activation, and the bare integer product.

use cider_kernels::{
    Backend, DType, Format, LinearArgs, LinearInput, QuantizedRows, ReferenceBackend, Weights,
};

use crate::cases::{Case, Failure, Fill, Matrix, Output, Prepared, Rng, filled};
use crate::compare::{Bounded, UNIT, sum_error, within};
use crate::weights::{Source, fill, floats, formats, range};

pub(crate) fn cases() -> Vec<Case> {
    let mut specs = sampled();
    for format in formats() {
        for input in Input::ALL.into_iter().filter(|input| input.meets(format)) {
            let base = Spec::new(format, input);
            specs.extend(ROWS.map(|m| base.sizes(m, 33, 100)));
            specs.extend(COLS.map(|n| base.sizes(3, n, 65)));
            specs.extend(DEPTHS.map(|k| base.sizes(3, 17, k)));
            specs.extend(contents(base));
            specs.extend(large(base));
        }
    }
    specs.into_iter().map(Spec::case).collect()
}

pub(crate) fn perf_cases() -> Vec<Case> {
    let mut specs = Vec::new();
    let (w8, w8_grouped) = (Format::W8 { group: 0 }, Format::W8 { group: 128 });
    for format in [w8, w8_grouped, Format::W4 { group: 64 }] {
        let int8 = Spec::new(format, Input::Int8(DType::Bf16));
        let float = Spec::new(format, Input::Float(DType::Bf16));
        specs.extend([1, 16, 128].map(|m| int8.sizes(m, 2560, 2560)));
        specs.extend([1, 16].map(|m| float.sizes(m, 2560, 2560)));
    }
    let dense = Spec::new(Format::Dense(DType::Bf16), Input::Float(DType::Bf16));
    specs.extend([1, 16].map(|m| dense.sizes(m, 2560, 2560)));
    specs.into_iter().map(Spec::case).collect()
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

    fn sizes(self, m: usize, n: usize, k: usize) -> Self {
        Self { m, n, k, ..self }
    }

    fn x(self, x: Fill) -> Self {
        Self { x, ..self }
    }

    fn w(self, w: Source) -> Self {
        Self { w, ..self }
    }

    fn split(self, rows: usize) -> Self {
        let split = Some(rows);
        Self { split, ..self }
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
        .flushed(self.flushed())
    }

    /// Two subnormals a column may count as zeros, times a weight of at most 128, where bf16 meets what bf16
    /// holds exactly.
    fn flushed(self) -> f64 {
        let dense = matches!(self.format, Format::Dense(dtype) if dtype != DType::Bf16);
        if self.input != Input::Float(DType::Bf16) || dense {
            return 0.0;
        }
        256.0 * self.k as f64 * f64::from(f32::MIN_POSITIVE)
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
    /// Against the floats before anything was quantised, in the bound that half a step of each gives.
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

/// What rows and weights may hold, and how a caller may split rows.
fn contents(base: Spec) -> Vec<Spec> {
    let mixed = base.sizes(9, 35, 130).x(Fill::Mixed);
    let mut specs = vec![
        mixed,
        mixed.w(Source::Zeros),
        base.sizes(2, 17, 4304)
            .x(Fill::LastColumn)
            .w(Source::LastColumn),
        base.sizes(9, 19, 300).split(1),
        base.sizes(70, 19, 300).split(4),
        base.sizes(2, 17, 300).w(Source::Clipped(99.0)),
        base.sizes(2, 17, 300).w(Source::Small),
        base.sizes(2, 17, 300).w(Source::Subnormal),
    ];
    let poisons = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    specs.extend(poisons.map(|x| base.sizes(5, 17, 65).x(Fill::Poisoned(x))));
    if let Some([low, high]) = range(base.format) {
        let extreme = base.x(Fill::Extreme);
        specs.extend([
            extreme.sizes(3, 17, 100).w(Source::Integers),
            extreme.sizes(5, 33, 1152).w(Source::Constant(low)),
            extreme.sizes(5, 33, 1152).w(Source::Constant(low + 1)),
            extreme.sizes(5, 33, 576).w(Source::Constant(high)),
        ]);
    }
    specs
}

/// Sizes past every tile, and a depth past what 16 bits and an offset of 128 could hold.
fn large(base: Spec) -> Vec<Spec> {
    let int8 = matches!(base.input, Input::Int8(_));
    let (m, n) = if int8 { (70, 130) } else { (17, 67) };
    let mut specs: Vec<Spec> = [576, 896, 1152].map(|k| base.sizes(m, n, k)).into();
    // Several panels of rows so deep that sums wait for the next columns.
    specs.push(base.sizes(14, 35, 4304));
    if base.format.is_per_channel() && int8 {
        specs.push(base.sizes(2, 3, 70_001));
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

const ROWS: [usize; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64, 70];
const COLS: [usize; 10] = [1, 2, 15, 16, 17, 33, 63, 64, 65, 130];
pub(crate) const DEPTHS: [usize; 17] = [
    1, 2, 3, 15, 17, 31, 33, 63, 65, 100, 127, 576, 896, 1025, 1152, 2049, 4304,
];
