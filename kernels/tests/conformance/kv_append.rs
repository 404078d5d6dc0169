//! Appending to the cache.

use cider_kernels::{Backend, DType, KV_BLOCK, KvAppendArgs, KvLayer, TensorRef};
use half::{bf16, f16};

use crate::cases::{ACTIVATIONS, Case, Failure, Fill, Matrix, Output, Prepared, Rng, filled};
use crate::compare::{Bounded, gamma, within};
use crate::kv::poison;

struct Append {
    keys: Matrix,
    values: Matrix,
    slots: Vec<u32>,
    cache: KvLayer,
}

impl Prepared for Append {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        Ok(backend.kv_append(KvAppendArgs {
            keys: self.keys.view(),
            values: self.values.view(),
            slots: &self.slots,
            cache: &mut self.cache,
        })?)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        let (keys, values) = (self.cache.keys(), self.cache.values());
        [
            ("keys", keys.data()),
            ("values", values.data()),
            ("scales of the keys", keys.scales()),
            ("scales of the values", values.scales()),
        ]
        .into_iter()
        .map(|(name, view)| {
            Ok(Output {
                name,
                dtype: view.dtype(),
                rows: view.rows(),
                cols: view.cols(),
                bits: bits_of(view)?,
            })
        })
        .collect()
    }
}

/// Rows go to their slots, rounded once or quantised; every other place keeps its NaN.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in ACTIVATIONS {
        for cache in [DType::F32, DType::F16, DType::Bf16, DType::I8] {
            for (rows, kv_heads, size) in [
                (1, 1, 16),
                (5, 2, 64),
                (9, 3, 72),
                (70, 2, 24),
                (2, 1, 256),
                (3, 5, 17),
            ] {
                for fill in [Fill::Mixed, Fill::Poisoned(f32::NAN)] {
                    cases.push(append(dtype, cache, (rows, kv_heads, size), fill));
                }
            }
        }
    }
    cases
}

fn append(
    dtype: DType,
    cache: DType,
    (rows, kv_heads, size): (usize, usize, usize),
    fill: Fill,
) -> Case {
    let name = format!("{dtype} into {cache}, {rows} x {kv_heads} x {size}, {fill:?}");
    let cols = kv_heads * size;
    let slots: Vec<u32> = (0..rows as u32).map(|row| (row * 53 + 190) % 192).collect();
    let floats = move |seed| filled(fill, dtype, (rows, cols), &mut Rng::new(seed));
    let places = slots.clone();
    let case = Case::new("kv_append", name, move |_| {
        let mut cache = KvLayer::new(cache, cache, 3, kv_heads, size)?;
        poison(&mut cache)?;
        Ok(Box::new(Append {
            keys: Matrix::input(dtype, rows, cols, &floats(1))?,
            values: Matrix::input(dtype, rows, cols, &floats(2))?,
            slots: places.clone(),
            cache,
        }))
    });
    case.twin(move |outputs| {
        let place_of = |row: usize| {
            let (block, head) = (row / KV_BLOCK / kv_heads, row / KV_BLOCK % kv_heads);
            let slot = (block * KV_BLOCK + row % KV_BLOCK) as u32;
            let row = slots.iter().position(|other| *other == slot);
            row.map(|row| row * cols + head * size)
        };
        for (i, seed) in [1, 2].into_iter().enumerate() {
            let (x, out, scales) = (floats(seed), &outputs[i], &outputs[2 + i]);
            let row = |row: usize| place_of(row).map(|at| &x[at..at + size]);
            within(out, |place, d| match (out.dtype, row(place)) {
                (DType::I8, row) => integer(row, d),
                (_, None) => Bounded::exact(f64::NAN),
                (_, Some(row)) => Bounded::exact(f64::from(row[d])),
            })?;
            within(scales, |_, place| scale(row(place)))?;
        }
        Ok(0.0)
    })
}

/// An integer of a row; the places that no row went to keep theirs.
fn integer(row: Option<&[f32]>, d: usize) -> Bounded {
    let Some(row) = row else {
        return Bounded::exact(77.0);
    };
    let max = largest(row);
    if max < 2f64.powi(-100) || !max.is_finite() {
        return Bounded::exact(0.0);
    }
    // Half a step, and the roundings of the product.
    let (value, error) = (f64::from(row[d]) * 127.0 / max, 0.5 + 127.0 * gamma(2));
    Bounded { value, error }
}

/// The scale of a row; a place that no row went to keeps its NaN.
fn scale(row: Option<&[f32]>) -> Bounded {
    let max = row.map_or(f64::NAN, largest);
    let value = if max < 2f64.powi(-100) {
        1.0
    } else {
        max / 127.0
    };
    Bounded {
        value,
        error: value * gamma(1),
    }
}

/// The largest magnitude; a NaN is above all.
fn largest(row: &[f32]) -> f64 {
    let magnitudes = row.iter().map(|x| f64::from(x.abs()));
    magnitudes.fold(0.0, |max, x| if x > max || x.is_nan() { x } else { max })
}

/// Bits of all elements of a view.
fn bits_of(view: TensorRef<'_>) -> Result<Vec<u32>, Failure> {
    let mut bits = Vec::new();
    for row in 0..view.rows() {
        match view.dtype() {
            DType::F32 => bits.extend(view.row::<f32>(row)?.iter().map(|x| x.to_bits())),
            DType::F16 => {
                let values = view.row::<f16>(row)?.iter();
                bits.extend(values.map(|x| u32::from(x.to_bits())));
            }
            DType::I8 => bits.extend(view.row::<i8>(row)?.iter().map(|&x| i32::from(x) as u32)),
            _ => {
                let values = view.row::<bf16>(row)?.iter();
                bits.extend(values.map(|x| u32::from(x.to_bits())));
            }
        }
    }
    Ok(bits)
}
