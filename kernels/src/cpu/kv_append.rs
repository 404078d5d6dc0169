//! The way of new keys and values into the cache.

use super::CpuBackend;
use super::block::LINE;
use super::raw::Shared;
use super::rows::{Factors, OutRows, load_row};
use super::simd::{Kernel, LANES, Simd};
use crate::backend::KvAppendArgs;
use crate::check::check_kv_append;
use crate::dtype::DType;
use crate::error::Result;
use crate::kv::{KV_BLOCK, KvRows};
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
    for (x, rows) in [(keys, &mut cache.keys), (values, &mut cache.values)] {
        let KvRows { data, scales } = rows;
        let mut view = data.view_mut();
        let out = if view.dtype() == DType::I8 {
            let data = Shared::new(bytemuck::cast_slice_mut(view.span_mut::<i8>()?));
            Out::I8(data, Shared::new(scales.as_mut_slice()?))
        } else {
            Out::Float(OutRows::new(&mut view)?)
        };
        // A vector more, for the last head may end within one.
        let padded = x.cols() + LANES;
        backend.each_row((x.rows(), 1), x.cols(), padded, |level, row, floats| {
            let slot = slots[row] as usize;
            level.run(Append {
                x,
                row,
                out: &out,
                first: slot / KV_BLOCK * kv_heads * KV_BLOCK + slot % KV_BLOCK,
                head_size,
                floats,
            });
        });
    }
    Ok(())
}

/// Keys or values of all blocks.
enum Out<'a> {
    Float(OutRows<'a>),
    /// The integers, and the scale of each row.
    I8(Shared<'a, u8>, Shared<'a, f32>),
}

struct Append<'a> {
    x: TensorRef<'a>,
    row: usize,
    out: &'a Out<'a>,
    /// Row of the first head; the others follow a block apart.
    first: usize,
    head_size: usize,
    floats: &'a mut [f32],
}

impl Kernel for Append<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cols = self.x.cols();
        self.fetch(s);
        load_row(
            s,
            self.x,
            self.row,
            &mut self.floats[..cols.next_multiple_of(LANES)],
        );
        for (head, at) in (0..cols).step_by(self.head_size).enumerate() {
            let row = self.first + head * KV_BLOCK;
            match self.out {
                Out::Float(out) => out.put_row(s, row, &self.floats[at..at + self.head_size]),
                Out::I8(data, scales) => {
                    let values = &self.floats[at..at + self.head_size.next_multiple_of(LANES)];
                    quantize(s, values, self.head_size, row, (*data, *scales));
                }
            }
        }
    }
}

impl Append<'_> {
    /// Asks for all that is written at once: the heads lie far apart, and a store after the other would wait.
    #[inline(always)]
    fn fetch<S: Simd>(&self, s: S) {
        for head in 0..self.x.cols() / self.head_size {
            let row = self.first + head * KV_BLOCK;
            let (first, bytes) = match self.out {
                // SAFETY: the slot was checked: the row exists, and it is this thread's.
                Out::Float(out) => unsafe {
                    (
                        out.tile(row, 0).cast_const(),
                        self.head_size * out.dtype.size(),
                    )
                },
                // SAFETY: as above.
                Out::I8(data, _) => unsafe {
                    (data.at(row * self.head_size).cast_const(), self.head_size)
                },
            };
            for at in (0..bytes).step_by(LINE) {
                s.prefetch(first.wrapping_add(at));
            }
        }
    }
}

/// Writes the first `size` of some values, whole vectors of them, as INT8.
#[inline(always)]
fn quantize<S: Simd>(
    s: S,
    values: &[f32],
    size: usize,
    row: usize,
    (data, scales): (Shared<'_, u8>, Shared<'_, f32>),
) {
    let mut acc = s.zero_i32();
    let mut last = [0_f32; LANES];
    let whole = size / LANES * LANES;
    last[..size - whole].copy_from_slice(&values[whole..size]);
    for chunk in values[..whole].chunks_exact(LANES).chain([&last[..]]) {
        // SAFETY: the chunk has sixteen elements.
        acc = s.max_magnitude(acc, unsafe { s.load(chunk.as_ptr()) });
    }
    let factors = Factors::of(s, acc);
    // SAFETY: the row is this thread's: `size` integers and a scale.
    unsafe {
        scales.write(row, factors.scale);
        let mut out = data.at(row * size);
        for chunk in values[..whole].chunks_exact(LANES).chain([&last[..]]) {
            let q = factors.integers(s, s.load(chunk.as_ptr()));
            let mut bytes = [0_u8; LANES];
            s.store_i8(bytes.as_mut_ptr(), q, false);
            let count = LANES.min(size - out.offset_from_unsigned(data.at(row * size)));
            out.copy_from_nonoverlapping(bytes.as_ptr(), count);
            out = out.add(count);
        }
    }
}
