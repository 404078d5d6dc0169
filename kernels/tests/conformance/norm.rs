//! RMS and layer norms.

use cider_kernels::{Backend, DType, NormArgs, NormKind, QuantizedRows, RowsOut};

use crate::cases::{
    ACTIVATIONS, Case, Failure, Fill, Matrix, Output, Prepared, Rng, TAILS, filled,
};
use crate::compare::{Bounded, UNIT, gamma, same_bits, within};

pub(crate) fn cases() -> Vec<Case> {
    let mut specs = Vec::new();
    for kind in [NormKind::Rms, NormKind::Layer] {
        for dtype in ACTIVATIONS {
            for out in [Some(DType::F32), Some(DType::Bf16), None] {
                let base = Spec::new(kind, dtype, out);
                specs.extend(TAILS.map(|length| base.sizes(3, 1, length)));
                specs.extend(TAILS.map(|length| base.sizes(2, 3, length)));
                specs.extend([1, 2, 5, 9, 70].map(|rows| base.sizes(rows, 1, 100)));
                let mixed = base.fill(Fill::Mixed);
                specs.extend([17, 576].map(|length| mixed.sizes(9, 1, length)));
                let poisons = [f32::NAN, f32::INFINITY].map(Fill::Poisoned);
                specs.extend(poisons.map(|fill| base.fill(fill).sizes(3, 1, 33)));
            }
        }
    }
    specs.into_iter().map(Spec::case).collect()
}

pub(crate) fn perf_cases() -> Vec<Case> {
    let spec = |out| Spec::new(NormKind::Rms, DType::Bf16, out);
    let (float, int8) = (spec(Some(DType::Bf16)), spec(None));
    let specs = [(float, 1), (float, 128), (int8, 128)];
    specs
        .map(|(spec, rows)| spec.sizes(rows, 1, 2560).case())
        .into()
}

#[derive(Clone, Copy, Debug)]
struct Spec {
    kind: NormKind,
    dtype: DType,
    /// Floats of this type, or INT8.
    out: Option<DType>,
    rows: usize,
    segments: usize,
    length: usize,
    fill: Fill,
}

impl Spec {
    fn new(kind: NormKind, dtype: DType, out: Option<DType>) -> Self {
        Self {
            kind,
            dtype,
            out,
            rows: 3,
            segments: 1,
            length: 64,
            fill: Fill::Normal,
        }
    }

    fn sizes(self, rows: usize, segments: usize, length: usize) -> Self {
        Self {
            rows,
            segments,
            length,
            ..self
        }
    }

    fn fill(self, fill: Fill) -> Self {
        Self { fill, ..self }
    }

    fn case(self) -> Case {
        let Self {
            kind,
            dtype,
            out,
            rows,
            segments,
            length,
            fill,
        } = self;
        let out = out.map_or("int8".to_owned(), |out| out.to_string());
        let name = format!("{kind:?} {dtype} -> {out}, {rows} x {segments} x {length} {fill:?}");
        let elements = rows * segments * length;
        Case::new("norm", name, move |backend| {
            Ok(Box::new(self.prepare(backend)?))
        })
        .twin(move |outputs| self.check(outputs))
        .work(elements * 2 * dtype.size(), elements * 4)
    }

    fn cols(self) -> usize {
        self.segments * self.length
    }

    fn x(self) -> Vec<f32> {
        let mut rng = Rng::new((self.rows + self.length) as u64);
        filled(self.fill, self.dtype, (self.rows, self.cols()), &mut rng)
    }

    fn weight(self) -> Vec<f32> {
        Rng::new(self.length as u64).normals(self.length)
    }

    /// A layer norm has a bias at odd lengths.
    fn bias(self) -> Option<Vec<f32>> {
        let has = self.kind == NormKind::Layer && self.length % 2 == 1;
        has.then(|| Rng::new(77).normals(self.length))
    }

    fn prepare(self, backend: &dyn Backend) -> Result<Norm, Failure> {
        Ok(Norm {
            spec: self,
            x: Matrix::input(self.dtype, self.rows, self.cols(), &self.x())?,
            weight: self.weight(),
            bias: self.bias(),
            float: Matrix::output(self.out.unwrap_or(self.dtype), self.rows, self.cols())?,
            int8: backend.quantized_rows(self.rows, self.cols())?,
            unfused: backend.quantized_rows(self.rows, self.cols())?,
        })
    }

    fn check(self, outputs: &[Output]) -> Result<f64, String> {
        if self.out.is_none() {
            // What the float form followed by `quantize` gives.
            return same_bits(&outputs[..2], &outputs[2..]).map(|()| 0.0);
        }
        let x = self.x();
        within(&outputs[0], |row, col| {
            let start = row * self.cols() + col / self.length * self.length;
            let segment = &x[start..start + self.length];
            if segment.iter().all(|x| x.is_finite()) {
                return self.element(segment, col % self.length);
            }
            // An infinity makes its own element NaN, and the others zero or NaN.
            let infinite = segment.iter().any(|x| x.is_infinite()) && self.kind == NormKind::Rms;
            let value = if infinite && col % self.length + 1 < self.length {
                0.0
            } else {
                f64::NAN
            };
            Bounded::exact(value)
        })
    }

    fn element(self, x: &[f32], i: usize) -> Bounded {
        let length = x.len() as f64;
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let steps = self.length.div_ceil(16) + 6;
        let (mut mean, mut off) = (0.0, 0.0);
        if self.kind == NormKind::Layer {
            mean = x.iter().sum::<f64>() / length;
            off = 2f64.powi(-149) + gamma(steps) * x.iter().map(|x| x.abs()).sum::<f64>() / length;
        }
        let d = |x: f64| x - mean;
        let d_error = |x: f64| off + UNIT * d(x).abs();
        let power = x.iter().map(|&x| d(x) * d(x)).sum::<f64>() / length;
        if power > f64::from(f32::MAX) / length {
            // Squares may overflow; the result is then zero or not a number.
            return Bounded {
                value: 0.0,
                error: f64::INFINITY,
            };
        }
        let power_error = x
            .iter()
            .map(|&x| 2.0 * d(x).abs() * d_error(x) + d_error(x).powi(2))
            .sum::<f64>()
            / length;
        let power_error = power_error + gamma(steps) * power + 2f64.powi(-149);
        let variance = power + f64::from(EPS);
        let r = 1.0 / variance.sqrt();
        let r_error = r * (power_error / variance + 3.0 * UNIT);
        let weight = f64::from(self.weight()[i]);
        let bias = self.bias().map_or(0.0, |bias| f64::from(bias[i]));
        let value = d(x[i]) * r * weight + bias;
        let error = weight.abs() * (d_error(x[i]) * (r + r_error) + d(x[i]).abs() * r_error)
            + 3.0 * UNIT * (value.abs() + bias.abs())
            + 2f64.powi(-148) * (1.0 + weight.abs());
        Bounded { value, error }
    }
}

struct Norm {
    spec: Spec,
    x: Matrix,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    float: Matrix,
    int8: QuantizedRows,
    unfused: QuantizedRows,
}

impl Prepared for Norm {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        let args = |out| NormArgs {
            x: self.x.view(),
            weight: &self.weight,
            bias: self.bias.as_deref(),
            eps: EPS,
            kind: self.spec.kind,
            out,
        };
        if self.spec.out.is_none() {
            backend.norm(args(RowsOut::Int8(&mut self.int8)))?;
        }
        backend.norm(args(RowsOut::Float(self.float.view_mut())))?;
        if self.spec.out.is_none() {
            backend.quantize(self.float.view(), &mut self.unfused)?;
        }
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        if self.spec.out.is_none() {
            self.float.read("out")?;
            let (fused, unfused) = (
                Output::quantized(&self.int8),
                Output::quantized(&self.unfused),
            );
            return Ok([fused, unfused].concat());
        }
        Ok(vec![self.float.read("out")?])
    }
}

const EPS: f32 = 1e-5;
