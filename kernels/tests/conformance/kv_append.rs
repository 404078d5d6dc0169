//! Appending to the cache.

use cider_kernels::{Backend, DType, KV_BLOCK, KvAppendArgs, KvLayer};

use crate::attention::poison;
use crate::cases::{ACTIVATIONS, Case, Failure, Fill, Matrix, Output, Prepared, Rng, bits, filled};
use crate::compare::{Bounded, within};

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
        let output = |name, tensor: &cider_kernels::Tensor| {
            Ok::<_, Failure>(Output {
                name,
                dtype: tensor.dtype(),
                rows: tensor.rows(),
                cols: tensor.cols(),
                bits: bits(tensor)?,
            })
        };
        Ok(vec![
            output("keys", self.cache.keys())?,
            output("values", self.cache.values())?,
        ])
    }
}

/// Rows go to their slots, rounded once; every other place keeps its NaN.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in ACTIVATIONS {
        for cache in [DType::F32, DType::F16, DType::Bf16] {
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
        let mut cache = KvLayer::new(cache, 3, kv_heads, size)?;
        poison(&mut cache)?;
        Ok(Box::new(Append {
            keys: Matrix::input(dtype, rows, cols, &floats(1))?,
            values: Matrix::input(dtype, rows, cols, &floats(2))?,
            slots: places.clone(),
            cache,
        }))
    });
    case.twin(move |outputs| {
        for (out, seed) in outputs.iter().zip([1, 2]) {
            let x = floats(seed);
            within(out, |place, d| {
                let (block, head) = (place / KV_BLOCK / kv_heads, place / KV_BLOCK % kv_heads);
                let slot = (block * KV_BLOCK + place % KV_BLOCK) as u32;
                let row = slots.iter().position(|other| *other == slot);
                let value = row.map_or(f32::NAN, |row| x[row * cols + head * size + d]);
                Bounded::exact(f64::from(value))
            })?;
        }
        Ok(0.0)
    })
}
