//! Linear layers of one shape in all schemes, ready to run.

use anyhow::{Result, ensure};
use cider::bf16;
use cider_kernels::{
    Activations, Backend, Ceilings, CpuBackend, DType, Format, LinearArgs, LinearInput,
    QuantizedRows, ReferenceBackend, RowSource, Tensor, TensorRef, Weights,
};

use super::roofline::{Cost, Unit};
use super::sample::{Sample, relative_error};
use super::values;

/// How weights and activations meet.
#[derive(Debug)]
pub(super) struct Scheme {
    pub(super) name: &'static str,
    format: Format,
    activations: Activations,
    /// Of input and output.
    dtype: DType,
}

/// A part of the work that is timed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Quantising, multiplying and scaling back.
    Whole,
    /// The integer product alone.
    Product,
    /// Quantising the rows alone.
    Quantize,
}

/// One thing to time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) scheme: &'static Scheme,
    pub(super) part: Part,
}

/// The weights of all schemes for one shape, and room for inputs and outputs.
pub(super) struct LinearWork<'a> {
    backend: &'a CpuBackend,
    shape: [usize; 2],
    /// The rows as every contender gets them; all are exact in bf16.
    values: Vec<f32>,
    inputs: [Tensor; 2],
    quantized: QuantizedRows,
    outputs: [Tensor; 3],
    weights: Vec<(Format, Vec<Weights>)>,
    turn: usize,
}

impl Scheme {
    /// The scheme of a name from the command line.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        SCHEMES.iter().find(|scheme| scheme.name == name)
    }

    /// The scheme that does what other programs call `variant`; INT8 where nothing is recognised.
    pub(super) fn like(variant: &str) -> &'static Self {
        let has = |parts: &[&str]| parts.iter().any(|part| variant.contains(part));
        let place = match () {
            () if has(&["w8a16", "w8a32"]) => 4,
            () if has(&["w4a16", "w4a32"]) => 5,
            () if has(&["q4", "int4", "w4"]) => 2,
            () if has(&["w8a8"]) && has(&["128"]) => 1,
            () if has(&["bf16", "f16", "fp16"]) => 6,
            () if has(&["f32", "fp32"]) => 7,
            () => 0,
        };
        &SCHEMES[place]
    }

    /// Whether its weights have 4 bits.
    pub(super) fn has_coarse_weights(&self) -> bool {
        matches!(self.format, Format::W4 { .. })
    }

    /// What is timed of it: for INT8 weights per channel, the parts beside the whole.
    pub(super) fn tasks(&'static self) -> impl Iterator<Item = Task> {
        let parts: &[Part] = match (self.activations, self.format) {
            (Activations::Int8, Format::W8 { group: 0 }) => {
                &[Part::Whole, Part::Product, Part::Quantize]
            }
            _ => &[Part::Whole],
        };
        parts.iter().map(move |&part| Task { scheme: self, part })
    }

    fn unit(&self) -> Unit {
        match (self.activations, self.dtype) {
            (Activations::Int8, _) => Unit::Int8,
            (Activations::Float, DType::F32) => Unit::F32,
            (Activations::Float, _) => Unit::Bf16,
        }
    }
}

impl Task {
    /// Its name among the variants.
    pub(super) fn name(&self) -> &'static str {
        match self.part {
            Part::Whole => self.scheme.name,
            Part::Product => PRODUCT,
            Part::Quantize => "quantise",
        }
    }
}

impl<'a> LinearWork<'a> {
    /// Room for up to `m` rows.
    pub(super) fn new(backend: &'a CpuBackend, shape: [usize; 2], m: usize) -> Result<Self> {
        let [n, k] = shape;
        let values = values::rows(INPUT, m, k, INPUT_STEP);
        let halves: Vec<bf16> = values.iter().map(|&x| bf16::from_f32(x)).collect();
        Ok(Self {
            backend,
            shape,
            inputs: [
                Tensor::from_slice(&halves, m, k)?,
                Tensor::from_slice(&values, m, k)?,
            ],
            values,
            quantized: backend.quantized_rows(m, k)?,
            outputs: [
                Tensor::zeros(DType::Bf16, m, n)?,
                Tensor::zeros(DType::F32, m, n)?,
                Tensor::zeros(DType::I32, m, n)?,
            ],
            weights: Vec::new(),
            turn: 0,
        })
    }

    /// The first `m` rows of the input.
    pub(super) fn input(&self, m: usize) -> &[f32] {
        &self.values[..m * self.shape[1]]
    }

    /// Row `n` of the weights, before they are quantised.
    pub(super) fn weight_row(n: usize, out: &mut [f32]) {
        values::fill(WEIGHTS, n, WEIGHT_STEP, out);
    }

    /// Makes the weights of a scheme, in as many copies as are needed so that `bytes` go round, where memory is what
    /// the smallest of `m` rows wait for.
    pub(super) fn prepare(
        &mut self,
        scheme: &Scheme,
        m: &[usize],
        ceilings: &Ceilings,
        bytes: usize,
    ) -> Result<()> {
        let format = scheme.format;
        let mut made = self.take(format);
        if made.is_empty() {
            made.push(self.make(format)?);
        }
        let each = made[0].bytes();
        let waits = m.iter().any(|&m| {
            let cost = self.whole_cost(scheme, m, each);
            cost.is_memory_bound(ceilings)
        });
        let copies = if waits { bytes / each + 1 } else { 1 };
        while made.len() < copies {
            made.push(self.make(format)?);
        }
        self.weights.push((format, made));
        Ok(())
    }

    fn take(&mut self, format: Format) -> Vec<Weights> {
        let place = self.weights.iter().position(|(other, _)| *other == format);
        place.map_or_else(Vec::new, |place| self.weights.swap_remove(place).1)
    }

    fn make(&self, format: Format) -> Result<Weights> {
        let [n, k] = self.shape;
        let mut weights = self.backend.weights(format, n, k)?;
        let source = RowSource::Floats {
            read: &Self::weight_row,
            clip_percentile: None,
        };
        self.backend.fill_weights(&mut weights, 0, n, source)?;
        Ok(weights)
    }

    /// The copies of the weights of a format.
    fn copies(&self, format: Format) -> Result<&[Weights]> {
        let found = self.weights.iter().find(|(other, _)| *other == format);
        ensure!(found.is_some(), "{format} weights were not prepared");
        Ok(found.map_or(&[], |(_, copies)| copies))
    }

    /// What a task consists of.
    pub(super) fn cost(&self, task: Task, m: usize) -> Result<Cost> {
        let [n, k] = self.shape;
        let each = self.copies(task.scheme.format)?[0].bytes();
        let whole = self.whole_cost(task.scheme, m, each);
        Ok(match task.part {
            Part::Whole => whole,
            Part::Product => Cost {
                bytes: (each + m * k + 4 * m * n) as f64,
                ..whole
            },
            Part::Quantize => Cost {
                unit: Unit::Memory,
                operations: 0.0,
                bytes: (m * k * (task.scheme.dtype.size() + 1) + 4 * m) as f64,
                ..Cost::NOTHING
            },
        })
    }

    /// What a scheme's whole work consists of, by the size of its weights alone.
    pub(super) fn nominal_cost(&self, scheme: &Scheme, m: usize) -> Cost {
        let [n, k] = self.shape;
        let weights = match scheme.format {
            Format::Dense(dtype) => n * k * dtype.size(),
            Format::W8 { .. } => n * k,
            Format::W4 { .. } => n * k / 2,
        };
        self.whole_cost(scheme, m, weights)
    }

    /// Rows and columns of the weights.
    pub(super) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn whole_cost(&self, scheme: &Scheme, m: usize, weights: usize) -> Cost {
        let [n, k] = self.shape;
        Cost {
            unit: scheme.unit(),
            operations: 2.0 * (m as f64) * (n as f64) * (k as f64),
            bytes: (weights + m * (n + k) * scheme.dtype.size()) as f64,
            ..Cost::NOTHING
        }
    }

    /// Does the task once for `m` rows, on the next copy of the weights.
    pub(super) fn run(&mut self, task: Task, m: usize) -> Result<()> {
        self.turn += 1;
        let turn = self.turn;
        let format = task.scheme.format;
        let found = self.weights.iter().find(|(other, _)| *other == format);
        let Some((_, copies)) = found else {
            return Ok(());
        };
        let weights = &copies[turn % copies.len()];
        let place = usize::from(task.scheme.dtype == DType::F32);
        let x = self.inputs[place].view().row_range(0..m);
        let is_integer = task.scheme.activations == Activations::Int8;
        if is_integer && task.part != Part::Product {
            self.backend.quantize(x, &mut self.quantized)?;
        }
        let output = match task.part {
            Part::Quantize => return Ok(()),
            Part::Product => 2,
            Part::Whole => place,
        };
        let out = self.outputs[output].view_mut().row_range(0..m);
        if task.part == Part::Product {
            return Ok(self.backend.matmul_i32(&self.quantized, weights, out)?);
        }
        let input = if is_integer {
            LinearInput::Int8(&self.quantized)
        } else {
            LinearInput::Float(x)
        };
        Ok(self.backend.linear(LinearArgs {
            input,
            weights,
            out,
        })?)
    }

    /// Quantises `m` rows, for products that are timed without it.
    pub(super) fn quantize(&mut self, m: usize) -> Result<()> {
        let x = self.inputs[0].view().row_range(0..m);
        Ok(self.backend.quantize(x, &mut self.quantized)?)
    }

    /// Does the task and compares a sample of it with the reference; refuses what differs. Gives the error against
    /// exact products of the floats.
    pub(super) fn check(&mut self, task: Task, m: usize, exact: &Exact) -> Result<Option<f64>> {
        if task.part == Part::Quantize {
            return Ok(None);
        }
        self.quantize(m)?;
        self.run(task, m)?;
        let expected = exact.reference(task, &self.values, self.shape[1])?;
        let output = match task.part {
            Part::Product => &self.outputs[2],
            _ => &self.outputs[usize::from(task.scheme.dtype == DType::F32)],
        };
        let view = output.view();
        let got = exact.sample.map(|row, col| element(view, row, col))?;
        let error = relative_error(&got, &expected);
        let limit = match (task.part, task.scheme.activations, task.scheme.dtype) {
            // Equal to the bit: integers are, and what follows them is one fused operation and a rounding.
            (Part::Product, ..) | (_, Activations::Int8, _) => 0.0,
            // Another order of sums in f32, and where the output is bf16 another rounding.
            (_, _, DType::F32) => 1e-5,
            _ => 1.0 / 128.0,
        };
        let [n, k] = self.shape;
        ensure!(
            error <= limit,
            "{} for M = {m}, {n}x{k}: wrong by {error:.2e} of the largest value, the limit is {limit:.2e}",
            task.name()
        );
        Ok(Some(match task.part {
            Part::Whole => relative_error(&got, &exact.values),
            _ => error,
        }))
    }
}

/// A sample of the exact products of inputs and weights.
pub(super) struct Exact {
    pub(super) sample: Sample,
    pub(super) values: Vec<f64>,
}

impl Exact {
    pub(super) fn new(work: &LinearWork<'_>, m: usize) -> Self {
        let [n, k] = work.shape;
        let sample = Sample::new(m, n);
        let mut values = Vec::new();
        let mut w = vec![0.0; k];
        for &col in &sample.cols {
            LinearWork::weight_row(col, &mut w);
            for &row in &sample.rows {
                let x = &work.values[row * k..][..k];
                let products = x.iter().zip(&w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                values.push(products.sum());
            }
        }
        // Columns were outside, so that each is made once.
        let (rows, cols) = (sample.rows.len(), sample.cols.len());
        let at = |i: usize| values[i % cols * rows + i / cols];
        let values = (0..rows * cols).map(at).collect();
        Self { sample, values }
    }

    /// The sample of what the reference gives.
    fn reference(&self, task: Task, input: &[f32], k: usize) -> Result<Vec<f64>> {
        let (rows, cols) = (&self.sample.rows, &self.sample.cols);
        let reference = ReferenceBackend;
        let mut weights = reference.weights(task.scheme.format, cols.len(), k)?;
        let source = RowSource::Floats {
            read: &|i, out| LinearWork::weight_row(cols[i], out),
            clip_percentile: None,
        };
        reference.fill_weights(&mut weights, 0, cols.len(), source)?;
        let picked: Vec<f32> = rows
            .iter()
            .flat_map(|&row| &input[row * k..][..k])
            .copied()
            .collect();
        // The values are exact in bf16 too; its type alone decides the rounding of the output.
        let x = Tensor::from_slice(&picked, rows.len(), k)?;
        let mut quantized = reference.quantized_rows(rows.len(), k)?;
        reference.quantize(x.view(), &mut quantized)?;
        let dtype = match task.part {
            Part::Product => DType::I32,
            _ => task.scheme.dtype,
        };
        let mut out = Tensor::zeros(dtype, rows.len(), cols.len())?;
        if task.part == Part::Product {
            reference.matmul_i32(&quantized, &weights, out.view_mut())?;
        } else {
            let halves: Vec<bf16> = picked.iter().map(|&x| bf16::from_f32(x)).collect();
            let narrow = Tensor::from_slice(&halves, rows.len(), k)?;
            let input = match (task.scheme.activations, task.scheme.dtype) {
                (Activations::Int8, _) => LinearInput::Int8(&quantized),
                (Activations::Float, DType::F32) => LinearInput::Float(x.view()),
                (Activations::Float, _) => LinearInput::Float(narrow.view()),
            };
            reference.linear(LinearArgs {
                input,
                weights: &weights,
                out: out.view_mut(),
            })?;
        }
        let view = out.view();
        let all = Sample {
            rows: (0..rows.len()).collect(),
            cols: (0..cols.len()).collect(),
        };
        all.map(|row, col| element(view, row, col))
    }
}

fn element(view: TensorRef<'_>, row: usize, col: usize) -> Result<f64> {
    Ok(match view.dtype() {
        DType::Bf16 => view.row::<bf16>(row)?[col].to_f64(),
        DType::I32 => f64::from(view.row::<i32>(row)?[col]),
        _ => f64::from(view.row::<f32>(row)?[col]),
    })
}

/// The order of the command line's list.
static SCHEMES: [Scheme; 8] = {
    const fn scheme(
        name: &'static str,
        format: Format,
        activations: Activations,
        dtype: DType,
    ) -> Scheme {
        Scheme {
            name,
            format,
            activations,
            dtype,
        }
    }
    use Activations::{Float, Int8};
    use DType::{Bf16, F32};
    [
        scheme("w8a8", Format::W8 { group: 0 }, Int8, Bf16),
        scheme("w8a8-g128", Format::W8 { group: 128 }, Int8, Bf16),
        scheme("w4a8", Format::W4 { group: 64 }, Int8, Bf16),
        scheme("w4a8-channel", Format::W4 { group: 0 }, Int8, Bf16),
        scheme("w8a16", Format::W8 { group: 0 }, Float, Bf16),
        scheme("w4a16", Format::W4 { group: 64 }, Float, Bf16),
        scheme("bf16", Format::Dense(Bf16), Float, Bf16),
        scheme("f32", Format::Dense(F32), Float, F32),
    ]
};

/// The name of the integer product alone.
pub(super) const PRODUCT: &str = "int32 product";
const INPUT: u64 = 1;
const WEIGHTS: u64 = 2;
const INPUT_STEP: f32 = 1.0 / 64.0;
const WEIGHT_STEP: f32 = 1.0 / 1024.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::LINEAR_SCHEMES;

    #[test]
    fn the_command_line_names_all_schemes() {
        assert_eq!(SCHEMES.each_ref().map(|scheme| scheme.name), LINEAR_SCHEMES);
        for name in LINEAR_SCHEMES {
            assert_eq!(Scheme::named(name).unwrap().name, name);
        }
    }

    #[test]
    fn a_wrong_answer_is_refused() {
        let backend = CpuBackend::new(cider::Isa::Scalar, 1).unwrap();
        let mut work = LinearWork::new(&backend, [8, 64], 3).unwrap();
        let scheme = Scheme::named("w8a8").unwrap();
        work.weights
            .push((scheme.format, vec![work.make(scheme.format).unwrap()]));
        let exact = Exact::new(&work, 3);
        let task = scheme.tasks().next().unwrap();
        let error = work.check(task, 3, &exact).unwrap().unwrap();
        assert!(error > 0.0 && error < 0.02, "{error}");
        work.weights[0].1[0] = backend.weights(scheme.format, 8, 64).unwrap();
        let refused = work.check(task, 3, &exact).unwrap_err().to_string();
        assert!(
            refused.contains("w8a8 for M = 3, 8x64: wrong by"),
            "{refused}"
        );
    }
}
