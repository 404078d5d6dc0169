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
            for quantised in [false, true] {
                let base = Spec {
                    kind,
                    dtype,
                    quantised,
                    rows: 3,
                    segments: 1,
                    length: 64,
                    fill: Fill::Normal,
                };
                specs.extend(TAILS.map(|length| Spec { length, ..base }));
                specs.extend(TAILS.map(|length| Spec {
                    length,
                    rows: 2,
                    segments: 3,
                    ..base
                }));
                specs.extend([1, 2, 5, 9, 70].map(|rows| Spec {
                    rows,
                    length: 100,
                    ..base
                }));
                specs.extend([17, 576].map(|length| Spec {
                    rows: 9,
                    length,
                    fill: Fill::Mixed,
                    ..base
                }));
                let poisons = [f32::NAN, f32::INFINITY];
                specs.extend(poisons.map(|x| Spec {
                    length: 33,
                    fill: Fill::Poisoned(x),
                    ..base
                }));
            }
        }
    }
    let mut cases: Vec<Case> = specs.into_iter().map(Spec::case).collect();
    cases.extend(refusals());
    cases
}

pub(crate) fn perf_cases() -> Vec<Case> {
    let spec = |rows, quantised| Spec {
        kind: NormKind::Rms,
        dtype: DType::Bf16,
        quantised,
        rows,
        segments: 1,
        length: 2560,
        fill: Fill::Normal,
    };
    [spec(1, false), spec(128, false), spec(128, true)]
        .map(Spec::case)
        .into()
}

#[derive(Clone, Copy, Debug)]
struct Spec {
    kind: NormKind,
    dtype: DType,
    quantised: bool,
    rows: usize,
    segments: usize,
    length: usize,
    fill: Fill,
}

impl Spec {
    fn case(self) -> Case {
        let Self {
            kind,
            dtype,
            quantised,
            rows,
            segments,
            length,
            fill,
        } = self;
        let out = if quantised { "int8" } else { "float" };
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
            float: Matrix::output(self.dtype, self.rows, self.cols())?,
            int8: backend.quantized_rows(self.rows, self.cols())?,
            unfused: backend.quantized_rows(self.rows, self.cols())?,
        })
    }

    fn check(self, outputs: &[Output]) -> Result<f64, String> {
        if self.quantised {
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
        if self.spec.quantised {
            backend.norm(args(RowsOut::Int8(&mut self.int8)))?;
        }
        backend.norm(args(RowsOut::Float(self.float.view_mut())))?;
        if self.spec.quantised {
            backend.quantize(self.float.view(), &mut self.unfused)?;
        }
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        if self.spec.quantised {
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

fn refusals() -> Vec<Case> {
    let call = |cols: usize, out: (DType, usize), bias: Option<&'static [f32]>, kind| {
        move |backend: &dyn Backend| {
            let x = Matrix::input(DType::F32, 2, cols, &vec![1.0; 2 * cols])?;
            let mut y = Matrix::output(out.0, 2, out.1)?;
            Ok(backend.norm(NormArgs {
                x: x.view(),
                weight: &[1.0; 8],
                bias,
                eps: EPS,
                kind,
                out: RowsOut::Float(y.view_mut()),
            })?)
        }
    };
    let (rms, layer, f32) = (NormKind::Rms, NormKind::Layer, DType::F32);
    vec![
        Case::refused(
            "norm",
            "columns that weights do not divide",
            &["12", "8"],
            call(12, (f32, 12), None, rms),
        ),
        Case::refused(
            "norm",
            "a wrong output",
            &["16", "8"],
            call(16, (f32, 8), None, rms),
        ),
        Case::refused(
            "norm",
            "another dtype",
            &["f32", "bf16"],
            call(16, (DType::Bf16, 16), None, rms),
        ),
        Case::refused(
            "norm",
            "a bias of an RMS norm",
            &["bias"],
            call(8, (f32, 8), Some(&[0.0; 8]), rms),
        ),
        Case::refused(
            "norm",
            "a short bias",
            &["8", "3"],
            call(8, (f32, 8), Some(&[0.0; 3]), layer),
        ),
        Case::refused(
            "norm",
            "int8 rows without room",
            &["2 x 70", "1 x 64"],
            |backend| {
                let x = Matrix::input(DType::F32, 2, 70, &[1.0; 140])?;
                Ok(backend.norm(NormArgs {
                    x: x.view(),
                    weight: &[1.0; 70],
                    bias: None,
                    eps: EPS,
                    kind: NormKind::Rms,
                    out: RowsOut::Int8(&mut backend.quantized_rows(1, 64)?),
                })?)
            },
        ),
    ]
}

const EPS: f32 = 1e-5;
