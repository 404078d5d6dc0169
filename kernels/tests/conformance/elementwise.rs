//! The gated product, GELU, addition, lookup and argmax.

use cider_kernels::{Backend, DType, Gelu, QuantizedRows, RowsOut, Weights};

use crate::cases::{
    ACTIVATIONS, Case, Failure, Fill, Matrix, Output, Prepared, Rng, TAILS, filled, round_to,
};
use crate::compare::{Bounded, ERFC_ERROR, EXP_ERROR, EXP_FLOOR, UNIT, same_bits, within};
use crate::weights::{Source, fill, formats};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in ACTIVATIONS {
        for op in Op::ALL {
            let base = Spec::new(op, dtype);
            let normal = |rows, cols| base.case(Fill::Normal, rows, cols);
            cases.extend(TAILS.map(|cols| normal(3, cols)));
            cases.extend([1, 2, 5, 70].map(|rows| normal(rows, 33)));
            cases.push(base.case(Fill::Mixed, 9, 65));
            let poisons = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            cases.extend(poisons.map(|x| base.case(Fill::Poisoned(x), 3, 33)));
            cases.push(base.sweep(40, 1000));
            let others = ACTIVATIONS.into_iter().filter(|out| *out != dtype);
            for out in others.filter(|_| op != Op::GatedInt8) {
                let other = Spec { out, ..base };
                cases.extend(TAILS.map(|cols| other.case(Fill::Mixed, 9, cols)));
            }
        }
        cases.extend(embeddings(dtype));
        cases.extend(argmaxes(dtype));
    }
    cases.extend(refusals());
    cases
}

pub(crate) fn perf_cases() -> Vec<Case> {
    let spec = |op| Spec::new(op, DType::Bf16).case(Fill::Normal, 128, 2560);
    Op::ALL.map(spec).into()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Add,
    Copy,
    Gated,
    GatedInt8,
    Gelu(Gelu),
}

impl Op {
    const ALL: [Self; 6] = [
        Self::Add,
        Self::Copy,
        Self::Gated,
        Self::GatedInt8,
        Self::Gelu(Gelu::Erf),
        Self::Gelu(Gelu::Tanh),
    ];

    fn stem(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Copy => "copy",
            Self::Gated | Self::GatedInt8 => "gated",
            Self::Gelu(_) => "gelu",
        }
    }

    /// In f64, with the bound of what f32 may lose.
    fn element(self, x: f64, y: f64) -> Bounded {
        let tiny = 2f64.powi(-148);
        match self {
            Self::Add => Bounded {
                value: x + y,
                error: UNIT * (x + y).abs(),
            },
            Self::Copy => Bounded::exact(x),
            Self::Gated | Self::GatedInt8 => {
                let value = x / (1.0 + (-x).exp()) * y;
                let share = EXP_ERROR + 4.0 * UNIT;
                // Where e^-x overflows in f32 the result is zero.
                let lost = (x.abs() * EXP_FLOOR + tiny) * y.abs();
                Bounded {
                    value,
                    error: value.abs() * share + lost + tiny,
                }
            }
            Self::Gelu(Gelu::Tanh) => {
                let u = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                let value = x / (1.0 + (-u).exp());
                // What the exponential loses counts as far as it is not small beside 1.
                let part = (8.0 * UNIT * u.abs()).exp_m1().min(1.0) / (1.0 + u.exp());
                let share = EXP_ERROR + 4.0 * UNIT + part;
                Bounded {
                    value,
                    error: value.abs() * share + x.abs() * EXP_FLOOR + tiny,
                }
            }
            Self::Gelu(Gelu::Erf) => {
                let z = x.abs() * std::f64::consts::FRAC_1_SQRT_2;
                let tail = erfc(z) / 2.0;
                let phi = if x >= 0.0 { 1.0 - tail } else { tail };
                let share = ERFC_ERROR + EXP_ERROR + 40.0 * UNIT + (4.0 * UNIT * z * z).exp_m1();
                let lost = tail * share.min(1.0) + EXP_FLOOR;
                Bounded {
                    value: x * phi,
                    error: x.abs() * (lost + 2.0 * UNIT * phi) + tiny,
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Spec {
    op: Op,
    dtype: DType,
    out: DType,
}

impl Spec {
    fn new(op: Op, dtype: DType) -> Self {
        Self {
            op,
            dtype,
            out: dtype,
        }
    }

    fn case(self, fill: Fill, rows: usize, cols: usize) -> Case {
        let mut rng = Rng::new(cols as u64);
        let x = filled(fill, self.dtype, (rows, cols), &mut rng);
        let y = filled(Fill::Normal, self.dtype, (rows, cols), &mut rng);
        self.with(&format!("{fill:?}"), (rows, cols), x, y)
    }

    /// Every magnitude and both signs of x, with y = 1.
    fn sweep(self, rows: usize, cols: usize) -> Case {
        let count = rows * cols;
        let half = count / 2;
        let at = |i: usize| {
            let share = i as f32 / half as f32;
            // The first half is even in value, from -100 to 100, the second in exponent.
            if i < half {
                share * 200.0 - 100.0
            } else {
                (share * 40.0 - 60.0).exp2()
            }
        };
        let mut x: Vec<f32> = (0..count)
            .map(|i| if i % 3 == 0 { -at(i) } else { at(i) })
            .collect();
        round_to(self.dtype, &mut x);
        self.with("sweep", (rows, cols), x, vec![1.0; count])
    }

    fn with(self, what: &str, (rows, cols): (usize, usize), mut x: Vec<f32>, y: Vec<f32>) -> Case {
        let Self { op, dtype, out } = self;
        let name = format!("{op:?} {dtype} -> {out}, {rows} x {cols} {what}");
        if op == Op::Add {
            round_to(out, &mut x);
        }
        let (left, right) = (x.clone(), y.clone());
        let case = Case::new(op.stem(), name, move |backend| {
            // A sum replaces its left side, which may be of another type.
            let x_dtype = if op == Op::Add { out } else { dtype };
            Ok(Box::new(Pointwise {
                op,
                x: Matrix::input(x_dtype, rows, cols, &left)?,
                y: Matrix::input(dtype, rows, cols, &right)?,
                out: Matrix::output(out, rows, cols)?,
                int8: backend.quantized_rows(rows, cols)?,
                unfused: backend.quantized_rows(rows, cols)?,
            }))
        });
        case.work(3 * rows * cols * dtype.size(), rows * cols)
            .twin(move |outputs| {
                if op == Op::GatedInt8 {
                    return same_bits(&outputs[..2], &outputs[2..]).map(|()| 0.0);
                }
                within(&outputs[0], |row, col| {
                    let i = row * cols + col;
                    let (x, y) = (f64::from(x[i]), f64::from(y[i]));
                    // Minus infinity times a gate of zero is not a number.
                    if !matches!(op, Op::Add | Op::Copy) && x == f64::NEG_INFINITY {
                        return Bounded::exact(f64::NAN);
                    }
                    op.element(x, y)
                })
            })
    }
}

struct Pointwise {
    op: Op,
    x: Matrix,
    y: Matrix,
    out: Matrix,
    int8: QuantizedRows,
    unfused: QuantizedRows,
}

impl Prepared for Pointwise {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        let out = self.out.view_mut();
        match self.op {
            Op::Add => backend.add(self.x.view_mut(), self.y.view())?,
            Op::Copy => backend.copy(self.x.view(), out)?,
            Op::Gated => backend.gated(self.x.view(), self.y.view(), RowsOut::Float(out))?,
            Op::GatedInt8 => {
                let fused = RowsOut::Int8(&mut self.int8);
                backend.gated(self.x.view(), self.y.view(), fused)?;
                backend.gated(self.x.view(), self.y.view(), RowsOut::Float(out))?;
                backend.quantize(self.out.view(), &mut self.unfused)?;
            }
            Op::Gelu(kind) => backend.gelu(self.x.view(), kind, out)?,
        }
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        let out = self.out.read("out")?;
        Ok(match self.op {
            Op::Add => vec![self.x.read("x")?],
            Op::GatedInt8 => [
                Output::quantized(&self.int8),
                Output::quantized(&self.unfused),
            ]
            .concat(),
            Op::Copy | Op::Gated | Op::Gelu(_) => vec![out],
        })
    }
}

struct Embedding {
    table: Weights,
    ids: Vec<u32>,
    out: Matrix,
}

impl Prepared for Embedding {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        Ok(backend.embedding(&self.table, &self.ids, self.out.view_mut())?)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        Ok(vec![self.out.read("out")?])
    }
}

/// Rows of every format; each must be the row of the table as it reads back, rounded.
fn embeddings(dtype: DType) -> Vec<Case> {
    let shapes = [(1, 1), (17, 33), (70, 100), (5, 576)];
    let cases = formats()
        .into_iter()
        .flat_map(|format| shapes.map(|shape| (format, shape)));
    let cases = cases.map(|(format, (n, k))| {
        let ids: Vec<u32> = (0..9).map(|i| (i * 5 + n as u32 - 1) % n as u32).collect();
        let expected = ids.clone();
        let case = Case::new(
            "embedding",
            format!("{format} -> {dtype}, {n} x {k}"),
            move |backend| {
                let mut table = backend.weights(format, n, k)?;
                fill(backend, &mut table, Source::Normal, n as u64)?;
                let out = Matrix::output(dtype, ids.len(), k)?;
                Ok(Box::new(Embedding {
                    table,
                    ids: ids.clone(),
                    out,
                }))
            },
        );
        case.twin(move |outputs| {
            let text = |failure: cider_kernels::Error| failure.to_string();
            let backend = cider_kernels::ReferenceBackend;
            let mut table = backend.weights(format, n, k).map_err(text)?;
            fill(&backend, &mut table, Source::Normal, n as u64).map_err(|f| f.to_string())?;
            let mut rows = vec![vec![0.0; k]; expected.len()];
            for (row, &id) in rows.iter_mut().zip(&expected) {
                backend.read_row(&table, id as usize, row).map_err(text)?;
            }
            within(&outputs[0], |row, col| {
                Bounded::exact(f64::from(rows[row][col]))
            })
        })
    });
    cases.collect()
}

struct Argmax {
    x: Matrix,
    out: Vec<u32>,
}

impl Prepared for Argmax {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        Ok(backend.argmax(self.x.view(), &mut self.out)?)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        Ok(vec![Output::integers("columns", &self.out)])
    }
}

fn argmaxes(dtype: DType) -> Vec<Case> {
    let mut cases = Vec::new();
    for cols in TAILS.into_iter().chain([1000, 49_153]) {
        let mut rng = Rng::new(cols as u64);
        let mut x = filled(Fill::Normal, dtype, (8, cols), &mut rng);
        let rows: Vec<&mut [f32]> = x.chunks_mut(cols).collect();
        for (row, x) in rows.into_iter().enumerate() {
            let (first, second) = (rng.below(cols), rng.below(cols));
            match row {
                1 => x.fill(0.0),
                // Zeros of both signs are equal.
                2 => x
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, x)| *x = if i % 2 == 0 { -0.0 } else { 0.0 }),
                3 => [x[first], x[second]] = [9.0; 2],
                4 => x[cols - 1] = 9.0,
                5 => x[first] = f32::NAN,
                6 => x[cols - 1] = f32::INFINITY,
                7 => x.iter_mut().for_each(|x| *x = -x.abs() - 1.0),
                _ => {}
            }
        }
        round_to(dtype, &mut x);
        let values = x.clone();
        let case = Case::new("argmax", format!("{dtype} 8 x {cols}"), move |_| {
            let x = Matrix::input(dtype, 8, cols, &values)?;
            Ok(Box::new(Argmax { x, out: vec![7; 8] }))
        });
        cases.push(case.twin(move |outputs| {
            within(&outputs[0], |row, _| {
                let x = &x[row * cols..(row + 1) * cols];
                let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let first = x.iter().position(|x| *x == max).unwrap_or(0);
                let finite = x.iter().all(|x| x.is_finite());
                let expected = if finite { first as u32 } else { u32::MAX };
                Bounded::exact(f64::from(expected as i32))
            })
        }));
    }
    cases
}

/// The complementary error function in f64: a series near zero, a continued fraction beyond.
fn erfc(z: f64) -> f64 {
    let root = std::f64::consts::PI.sqrt();
    if z < 2.0 {
        let mut term = z;
        let mut sum = z;
        for n in 1..60 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - 2.0 / root * sum;
    }
    let fraction = (1..200)
        .rev()
        .fold(0.0, |tail, n| f64::from(n) / 2.0 / (z + tail));
    (-z * z).exp() / root / (z + fraction)
}

fn refusals() -> Vec<Case> {
    let matrix =
        |dtype, rows: usize, cols: usize| Matrix::input(dtype, rows, cols, &vec![1.0; rows * cols]);
    let f32 = DType::F32;
    vec![
        Case::refused("add", "another shape", &["add", "8", "9"], move |backend| {
            Ok(backend.add(matrix(f32, 2, 8)?.view_mut(), matrix(f32, 2, 9)?.view())?)
        }),
        Case::refused("add", "f16", &["f16"], move |backend| {
            let y = matrix(DType::F16, 2, 8)?;
            Ok(backend.add(matrix(f32, 2, 8)?.view_mut(), y.view())?)
        }),
        Case::refused(
            "gated",
            "another shape",
            &["gated", "2", "3"],
            move |backend| {
                let mut out = matrix(f32, 2, 8)?;
                let out = RowsOut::Float(out.view_mut());
                Ok(backend.gated(matrix(f32, 2, 8)?.view(), matrix(f32, 3, 8)?.view(), out)?)
            },
        ),
        Case::refused(
            "gelu",
            "another shape",
            &["gelu", "8", "7"],
            move |backend| {
                let mut out = matrix(f32, 2, 7)?;
                Ok(backend.gelu(matrix(f32, 2, 8)?.view(), Gelu::Erf, out.view_mut())?)
            },
        ),
        Case::refused(
            "argmax",
            "too few results",
            &["argmax", "2", "1"],
            move |backend| Ok(backend.argmax(matrix(f32, 2, 8)?.view(), &mut [0])?),
        ),
        Case::refused(
            "embedding",
            "an id beyond the table",
            &["embedding", "3"],
            move |backend| {
                let table = backend.weights(cider_kernels::Format::W8 { group: 0 }, 3, 8)?;
                Ok(backend.embedding(&table, &[0, 3], matrix(f32, 2, 8)?.view_mut())?)
            },
        ),
        Case::refused(
            "embedding",
            "a wrong width",
            &["embedding", "8", "9"],
            move |backend| {
                let table = backend.weights(cider_kernels::Format::W8 { group: 0 }, 3, 8)?;
                Ok(backend.embedding(&table, &[0, 1], matrix(f32, 2, 9)?.view_mut())?)
            },
        ),
    ]
}
