//! Quantising activations.

use cider_kernels::{Backend, DType, QuantizedRows, SMALLEST_MAX};

use crate::cases::{
    ACTIVATIONS, Case, Failure, Fill, Matrix, Output, Prepared, Rng, TAILS, filled,
};
use crate::compare::UNIT;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in ACTIVATIONS {
        for cols in TAILS {
            cases.push(case(dtype, Fill::Mixed, 9, cols));
        }
        for rows in [1, 2, 5, 70] {
            cases.push(case(dtype, Fill::Normal, rows, 100));
        }
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for cols in [1, 16, 33] {
                cases.push(case(dtype, Fill::Poisoned(poison), 3, cols));
            }
        }
        cases.push(case(dtype, Fill::LastColumn, 2, 4304));
    }
    cases.extend([one_large_row(), small_rows(), ties()]);
    cases.push(Case::refused(
        "quantize",
        "more rows than there is room for",
        &["3 x 8", "2 x 64"],
        |backend| {
            let x = Matrix::input(DType::F32, 3, 8, &[1.0; 24])?;
            Ok(backend.quantize(x.view(), &mut backend.quantized_rows(2, 64)?)?)
        },
    ));
    cases.push(Case::refused(
        "quantize",
        "f16",
        &["bf16 or f32", "f16"],
        |backend| {
            let x = Matrix::input(DType::F16, 1, 8, &[1.0; 8])?;
            Ok(backend.quantize(x.view(), &mut backend.quantized_rows(1, 8)?)?)
        },
    ));
    cases
}

pub(crate) fn perf_cases() -> Vec<Case> {
    let case = |dtype: DType, rows, cols| {
        case(dtype, Fill::Normal, rows, cols).work(rows * cols * (dtype.size() + 1), rows * cols)
    };
    vec![
        case(DType::Bf16, 128, 2560),
        case(DType::F32, 128, 2560),
        case(DType::Bf16, 1, 10240),
    ]
}

fn case(dtype: DType, fill: Fill, rows: usize, cols: usize) -> Case {
    let x = filled(fill, dtype, (rows, cols), &mut Rng::new(cols as u64));
    let name = format!("{dtype} {rows} x {cols} {fill:?}");
    of_values(name, dtype, (rows, cols), x)
}

fn of_values(name: impl Into<String>, dtype: DType, shape: (usize, usize), x: Vec<f32>) -> Case {
    let values = x.clone();
    let case = Case::new("quantize", name, move |backend| {
        Ok(Box::new(Quantize {
            x: Matrix::input(dtype, shape.0, shape.1, &values)?,
            out: backend.quantized_rows(shape.0, shape.1)?,
        }))
    });
    case.twin(move |outputs| {
        for (row, x) in x.chunks(shape.1).enumerate() {
            check_row(x, &outputs[0], &outputs[1], row)?;
        }
        Ok(0.0)
    })
}

struct Quantize {
    x: Matrix,
    out: QuantizedRows,
}

impl Prepared for Quantize {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        Ok(backend.quantize(self.x.view(), &mut self.out)?)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        Ok(Output::quantized(&self.out).into())
    }
}

/// A row must have the scale of its largest magnitude, and every value must be half a step from its own.
fn check_row(x: &[f32], scales: &Output, q: &Output, row: usize) -> Result<(), String> {
    let (scale, q) = (scales.at(row), q.row(row));
    let zero = |what: &str| {
        let zeros = q.iter().all(|&q| q == 0.0);
        if zeros {
            Ok(())
        } else {
            Err(format!("row {row} {what} is not all zeros"))
        }
    };
    if x.iter().any(|x| !x.is_finite()) {
        return if scale.is_nan() {
            zero("not finite")
        } else {
            Err(format!("row {row} has a scale"))
        };
    }
    let max = x
        .iter()
        .fold(0.0, |max: f64, x| max.max(f64::from(x.abs())));
    if max < f64::from(SMALLEST_MAX) {
        return if scale == 1.0 {
            zero("tiny")
        } else {
            Err(format!("row {row} has scale {scale}"))
        };
    }
    if scale != f64::from((max / 127.0) as f32) {
        return Err(format!(
            "row {row} has scale {scale:e}, its largest value is {max:e}"
        ));
    }
    // The reciprocal and the product are rounded once each, the scale once.
    let bound = scale / 2.0 + 4.0 * UNIT * max;
    let far = x
        .iter()
        .zip(&q)
        .find(|(x, q)| (f64::from(**x) - **q * scale).abs() > bound);
    match far {
        Some((x, q)) => Err(format!("row {row}: {x:e} became {q} of {scale:e}")),
        None => Ok(()),
    }
}

/// A batch of 2 x 3 tokens of 8; one scale per token, and token (1, 2) alone is large.
fn one_large_row() -> Case {
    let mut x = vec![1.0; 48];
    x[40..].fill(100.0);
    let case = of_values("2 x 3 x 8, one row large", DType::F32, (6, 8), x);
    case.twin(|outputs| {
        for row in 0..6 {
            let expected = if row == 5 {
                100.0f32 / 127.0
            } else {
                1.0 / 127.0
            };
            if outputs[0].at(row) != f64::from(expected) {
                return Err(format!(
                    "scale {row} is {}, expected {expected}",
                    outputs[0].at(row)
                ));
            }
        }
        Ok(0.0)
    })
}

/// Rows whose scale would vanish in half precision keep a hundredth of precision.
fn small_rows() -> Case {
    let magnitudes = [1e-6, 1e-30, 1e30];
    let mut rng = Rng::new(95);
    let x: Vec<f32> = (0..96)
        .map(|i| if i % 32 == 0 { 1.0 } else { rng.uniform() })
        .collect();
    let x = x
        .iter()
        .enumerate()
        .map(|(i, x)| x * magnitudes[i / 32])
        .collect();
    of_values("rows of 1e-6, 1e-30, 1e30", DType::F32, (3, 32), x)
}

fn ties() -> Case {
    let x = vec![127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5];
    let case = of_values("ties go to even", DType::F32, (1, 8), x);
    case.twin(|outputs| {
        let expected = [127.0, 0.0, 2.0, 2.0, 0.0, -2.0, -2.0, 126.0];
        if outputs[1].row(0) == expected {
            Ok(0.0)
        } else {
            Err(format!("{:?}", outputs[1].row(0)))
        }
    })
}
