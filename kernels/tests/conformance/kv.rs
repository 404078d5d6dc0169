//! Caches of every type: written by hand, and as they are read.

use cider_kernels::{DType, KvLayer};
use half::{bf16, f16};

use crate::cases::Failure;

/// Fills every place with what must not be seen.
pub(crate) fn poison(cache: &mut KvLayer) -> Result<(), Failure> {
    for rows in cache.parts_mut() {
        let dtype = rows.dtype();
        let mut view = rows.data_mut();
        for row in 0..view.rows() {
            match dtype {
                DType::F32 => view.row_mut::<f32>(row)?.fill(f32::NAN),
                DType::F16 => view.row_mut::<f16>(row)?.fill(f16::NAN),
                DType::I8 => view.row_mut::<i8>(row)?.fill(77),
                _ => view.row_mut::<bf16>(row)?.fill(bf16::NAN),
            }
        }
        rows.scales_mut().row_mut::<f32>(0)?.fill(f32::NAN);
    }
    Ok(())
}

/// Writes a key and a value into a row.
pub(crate) fn write(
    cache: &mut KvLayer,
    row: usize,
    key: &[f32],
    value: &[f32],
) -> Result<(), Failure> {
    for (rows, from) in cache.parts_mut().into_iter().zip([key, value]) {
        let dtype = rows.dtype();
        if dtype == DType::I8 {
            let (q, scale) = quantized(from);
            rows.data_mut().row_mut::<i8>(row)?.copy_from_slice(&q);
            rows.scales_mut().row_mut::<f32>(0)?[row] = scale;
            continue;
        }
        let mut view = rows.data_mut();
        match dtype {
            DType::F32 => view.row_mut::<f32>(row)?.copy_from_slice(from),
            DType::F16 => {
                let to = view.row_mut::<f16>(row)?.iter_mut().zip(from);
                to.for_each(|(to, from)| *to = f16::from_f32(*from));
            }
            _ => {
                let to = view.row_mut::<bf16>(row)?.iter_mut().zip(from);
                to.for_each(|(to, from)| *to = bf16::from_f32(*from));
            }
        }
    }
    Ok(())
}

/// A row as the cache has it.
pub(crate) fn stored_row(dtype: DType, x: &[f32]) -> Vec<f64> {
    if dtype == DType::I8 {
        let (q, scale) = quantized(x);
        return q.iter().map(|&q| f64::from(q) * f64::from(scale)).collect();
    }
    x.iter().map(|&x| f64::from(x)).collect()
}

/// A row as INT8 with its scale; a row that is not finite has a scale that is not.
fn quantized(x: &[f32]) -> (Vec<i8>, f32) {
    if x.iter().any(|x| !x.is_finite()) {
        return (vec![0; x.len()], f32::NAN);
    }
    let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let q = x
        .iter()
        .map(|x| (x * (127.0 / max)).round_ties_even() as i8);
    (q.collect(), max / 127.0)
}
