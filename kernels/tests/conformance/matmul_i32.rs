//! The bare integer product.

use cider_kernels::{Backend, DType, Format, QuantizedRows, Weights};

use crate::cases::{Case, Failure, Fill, Matrix, Output, Prepared, Rng, filled};
use crate::compare::{Bounded, within};
use crate::linear::DEPTHS;
use crate::weights::{Source, fill};

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
        let name = format!("{format}, {m} x {n} x {k}, x {x:?}, w {w:?}");
        Case::new("matmul_i32", name, move |backend| {
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

/// Sums that saturate 16 bits, and the longest that fit 32.
pub(crate) fn cases() -> Vec<Case> {
    let mut products = Vec::new();
    for (w, m, n, k, expected) in [
        (127, 3, 17, 64, 1_032_256),
        (-127, 3, 17, 64, -1_032_256),
        (-128, 3, 17, 64, -1_040_384),
        (127, 1, 2, 70_001, 1_129_046_129),
        (127, 1, 2, 133_144, 2_147_479_576),
        (127, 2, 1, 133_144, 2_147_479_576),
        (-127, 1, 17, 133_144, -2_147_479_576),
        (-128, 1, 2, 132_104, -2_147_482_624),
    ] {
        products.push(Product {
            format: W8,
            m,
            n,
            k,
            x: Fill::Extreme,
            w: Source::Constant(w),
            expected: Some(expected),
        });
    }
    for (k, format) in DEPTHS.into_iter().flat_map(|k| [(k, W4), (k, W8)]) {
        products.push(Product {
            format,
            m: 9,
            n: 17,
            k,
            x: Fill::Mixed,
            w: Source::Integers,
            expected: None,
        });
    }
    products.into_iter().map(Product::case).collect()
}

const W4: Format = Format::W4 { group: 0 };
const W8: Format = Format::W8 { group: 0 };
