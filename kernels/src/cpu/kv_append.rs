//! The way of new keys and values into the cache.

use super::CpuBackend;
use super::rows::{OutRows, load_row};
use super::simd::{Kernel, LANES, Simd};
use crate::backend::KvAppendArgs;
use crate::check::check_kv_append;
use crate::error::Result;
use crate::kv::KV_BLOCK;
use crate::tensor::TensorRef;

/// Writes keys and values into their slots.
pub(super) fn kv_append(backend: &CpuBackend, args: KvAppendArgs<'_>) -> Result<()> {
    check_kv_append(&args)?;
    let KvAppendArgs {
        keys,
        values,
        slots,
        cache,
    } = args;
    let (kv_heads, head_size) = (cache.kv_heads, cache.head_size);
    for (x, tensor) in [(keys, &mut cache.keys), (values, &mut cache.values)] {
        let mut view = tensor.view_mut();
        let out = OutRows::new(&mut view)?;
        let padded = x.cols().next_multiple_of(LANES);
        backend.each_row(x.rows(), x.cols(), padded, |level, row, floats| {
            let slot = slots[row] as usize;
            let first = slot / KV_BLOCK * kv_heads * KV_BLOCK + slot % KV_BLOCK;
            level.run(Append {
                x,
                row,
                out: &out,
                first,
                head_size,
                floats,
            });
        });
    }
    Ok(())
}

struct Append<'a> {
    x: TensorRef<'a>,
    row: usize,
    out: &'a OutRows<'a>,
    /// Row of the first head; the others follow a block apart.
    first: usize,
    head_size: usize,
    floats: &'a mut [f32],
}

impl Kernel for Append<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        load_row(s, self.x, self.row, self.floats);
        let heads = self.floats[..self.x.cols()].chunks_exact(self.head_size);
        for (head, values) in heads.enumerate() {
            self.out.put_row(s, self.first + head * KV_BLOCK, values);
        }
    }
}
