//! Rows of given integers: -128 on both sides, sums to the last bit of 32.

use cider_kernels::{Backend, DType, Format, QuantizedRows, RowSource, Weights};

use crate::cases::{Case, Failure, Matrix, Output, Prepared, Rng};
use crate::compare::{Bounded, within};

pub(crate) fn cases() -> Vec<Case> {
    let constant = |x, w, k| Product {
        x: Integers::All(x),
        w: Integers::All(w),
        m: 3,
        n: 18,
        k,
    };
    let mut products = vec![
        constant(-128, -128, 64),
        constant(-128, 127, 65),
        constant(127, -128, 63),
    ];
    products.extend(
        [(-128, -128), (-128, 127), (127, -128)].map(|(x, w)| Product {
            m: 2,
            n: 2,
            ..constant(x, w, LONGEST)
        }),
    );
    for (i, k) in [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 133, 576, 1152]
        .into_iter()
        .enumerate()
    {
        products.push(Product {
            x: Integers::Random(k as u64),
            w: Integers::Random(k as u64 + 1),
            m: 1 + i % 9,
            n: 1 + 5 * i,
            k,
        });
    }
    let mut cases: Vec<Case> = products.into_iter().map(Product::case).collect();
    cases.extend(refusals());
    cases
}

/// Integers of a matrix.
#[derive(Clone, Copy, Debug)]
enum Integers {
    All(i8),
    /// Uniform in -128..=127.
    Random(u64),
}

impl Integers {
    fn make(self, count: usize) -> Vec<i8> {
        match self {
            Self::All(value) => vec![value; count],
            Self::Random(seed) => {
                let mut rng = Rng::new(seed);
                (0..count).map(|_| rng.next() as i8).collect()
            }
        }
    }
}

/// A product of integers with integers, `[m, k]` and `[n, k]`.
#[derive(Clone, Copy)]
struct Product {
    x: Integers,
    w: Integers,
    m: usize,
    n: usize,
    k: usize,
}

impl Product {
    fn case(self) -> Case {
        let Self { x, w, m, n, k } = self;
        let name = format!("given integers, {m} x {n} x {k}, x {x:?}, w {w:?}");
        Case::new("matmul_i32", name, move |backend| {
            Ok(Box::new(self.prepare(backend)?))
        })
        .twin(move |outputs| self.check(&outputs[0]))
    }

    fn prepare(self, backend: &dyn Backend) -> Result<Given, Failure> {
        let Self { x, w, m, n, k } = self;
        let weights = weights(backend, w, n, k)?;
        let mut rows = backend.quantized_rows(m, k)?;
        rows.set(k, &x.make(m * k), &vec![1.0; m])?;
        let out = Matrix::output(DType::I32, m, n)?;
        Ok(Given { rows, weights, out })
    }

    /// Against sums in 64 bits.
    fn check(self, out: &Output) -> Result<f64, String> {
        let Self { x, w, m, n, k } = self;
        let (x, w) = (x.make(m * k), w.make(n * k));
        within(out, |row, column| {
            let (x, w) = (&x[row * k..][..k], &w[column * k..][..k]);
            let products = x.iter().zip(w).map(|(&x, &w)| i64::from(x) * i64::from(w));
            Bounded::exact(products.sum::<i64>() as f64)
        })
    }
}

struct Given {
    rows: QuantizedRows,
    weights: Weights,
    out: Matrix,
}

impl Prepared for Given {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        Ok(backend.matmul_i32(&self.rows, &self.weights, self.out.view_mut())?)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        let [scales, q] = Output::quantized(&self.rows);
        Ok(vec![self.out.read("out")?, scales, q])
    }
}

fn weights(backend: &dyn Backend, w: Integers, n: usize, k: usize) -> Result<Weights, Failure> {
    let mut weights = backend.weights(Format::W8 { group: 0 }, n, k)?;
    let all = w.make(n * k);
    let read = |row: usize, q: &mut [i8], scales: &mut [f32]| {
        q.copy_from_slice(&all[row * k..][..k]);
        scales.fill(1.0);
    };
    backend.fill_weights(&mut weights, 0, n, RowSource::Integers { read: &read })?;
    Ok(weights)
}

fn refusals() -> Vec<Case> {
    let product = |x: i8, k: usize| {
        move |backend: &dyn Backend| {
            let base = Product {
                x: Integers::All(x),
                w: Integers::All(-128),
                m: 1,
                n: 1,
                k,
            };
            base.prepare(backend)?.run(backend)
        }
    };
    let set = |cols: usize, values: usize| {
        move |backend: &dyn Backend| {
            let mut rows = backend.quantized_rows(2, 64)?;
            Ok(rows.set(cols, &vec![0; values], &[1.0, 1.0])?)
        }
    };
    vec![
        Case::refused(
            "matmul_i32",
            "-128 on both sides over K = 131,072",
            &["131072", "131071"],
            product(-128, LONGEST + 1),
        ),
        Case::refused(
            "quantize",
            "integers that are too few",
            &["7", "2 x 4"],
            set(4, 7),
        ),
        Case::refused(
            "quantize",
            "integers that find no room",
            &["2 x 65"],
            set(65, 130),
        ),
    ]
}

/// The most products of -128 and -128 that 32 bits hold.
const LONGEST: usize = 131_071;
