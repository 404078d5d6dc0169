//! How one step of a weight tile (`pack.rs`) meets one step of a panel of activations (`panel.rs`).

use std::marker::PhantomData;

use super::float_tile::FloatTile;
use super::simd::Simd;

/// A kind of product. A panel gives each of its rows in units of four bytes: four INT8, two bf16 or one f32.
pub(super) trait Product {
    /// Partial sums of sixteen outputs.
    type Acc<S: Simd>: Copy;

    /// Units of a row that meet one step of a tile.
    const UNITS: usize;
    /// Bytes of a step of a tile.
    const BYTES: usize;
    /// Whether integers meet integers.
    const INTEGERS: bool;

    /// The empty sum; `weight_sums` are the sums of the weights that will be multiplied.
    ///
    /// # Safety
    /// Sixteen i32 must be readable where the weights are integers that meet integers.
    unsafe fn start<S: Simd>(s: S, weight_sums: *const i32) -> Self::Acc<S>;

    /// Adds the products of a step. Unit `u` of row `r` lies at `u * stride + 4 r` in the panel.
    ///
    /// # Safety
    /// `BYTES` of each tile and `UNITS` units of `R` rows must be readable.
    unsafe fn step<S: Simd, const R: usize, const T: usize>(
        s: S,
        acc: &mut [[Self::Acc<S>; T]; R],
        tiles: [*const u8; T],
        panel: *const u8,
        stride: usize,
    );

    /// The sums as f32.
    fn total<S: Simd>(s: S, acc: Self::Acc<S>) -> S::F;

    /// Writes the sums as sixteen i32.
    ///
    /// # Safety
    /// Sixteen i32 must be writable.
    unsafe fn store_i32<S: Simd>(s: S, acc: Self::Acc<S>, out: *mut i32);
}

/// INT8 with INT8.
pub(super) struct Int8;
/// INT8 with 4-bit integers.
pub(super) struct Int4;
/// bf16 with bf16.
pub(super) struct Bf16;
/// bf16 with INT8 weights, exact in bf16.
pub(super) struct Bf16Int8;
/// bf16 with 4-bit weights, exact in bf16.
pub(super) struct Bf16Int4;
/// f32 with weights of any kind.
pub(super) struct F32<W>(PhantomData<W>);

impl Product for Int8 {
    type Acc<S: Simd> = S::Acc;

    const UNITS: usize = 1;
    const BYTES: usize = 64;
    const INTEGERS: bool = true;

    #[inline(always)]
    unsafe fn start<S: Simd>(s: S, weight_sums: *const i32) -> S::Acc {
        // SAFETY: the caller promises sixteen sums.
        unsafe { s.start(weight_sums) }
    }

    #[inline(always)]
    unsafe fn step<S: Simd, const R: usize, const T: usize>(
        s: S,
        acc: &mut [[S::Acc; T]; R],
        tiles: [*const u8; T],
        panel: *const u8,
        _stride: usize,
    ) {
        // SAFETY: the caller promises the step.
        let mut weights = [unsafe { s.load_quads(tiles[0]) }; T];
        for t in 1..T {
            // SAFETY: as above.
            weights[t] = unsafe { s.load_quads(tiles[t]) };
        }
        for r in 0..R {
            // SAFETY: as above.
            let four = unsafe { s.load_four(panel.add(4 * r)) };
            for t in 0..T {
                acc[r][t] = s.dot(acc[r][t], weights[t], four);
            }
        }
    }

    #[inline(always)]
    fn total<S: Simd>(s: S, acc: S::Acc) -> S::F {
        s.to_f32(s.finish(acc))
    }

    #[inline(always)]
    unsafe fn store_i32<S: Simd>(s: S, acc: S::Acc, out: *mut i32) {
        // SAFETY: the caller promises sixteen i32.
        unsafe { s.store_i32(out, s.finish(acc)) }
    }
}

impl Product for Int4 {
    type Acc<S: Simd> = S::Acc;

    const UNITS: usize = 2;
    const BYTES: usize = 64;
    const INTEGERS: bool = true;

    #[inline(always)]
    unsafe fn start<S: Simd>(s: S, weight_sums: *const i32) -> S::Acc {
        // SAFETY: the caller promises sixteen sums.
        unsafe { s.start(weight_sums) }
    }

    #[inline(always)]
    unsafe fn step<S: Simd, const R: usize, const T: usize>(
        s: S,
        acc: &mut [[S::Acc; T]; R],
        tiles: [*const u8; T],
        panel: *const u8,
        stride: usize,
    ) {
        // SAFETY: the caller promises the step.
        let mut weights = [unsafe { s.load_octets(tiles[0]) }; T];
        for t in 1..T {
            // SAFETY: as above.
            weights[t] = unsafe { s.load_octets(tiles[t]) };
        }
        for half in 0..2 {
            for r in 0..R {
                // SAFETY: as above.
                let four = unsafe { s.load_four(panel.add(half * stride + 4 * r)) };
                for t in 0..T {
                    acc[r][t] = s.dot(acc[r][t], weights[t][half], four);
                }
            }
        }
    }

    #[inline(always)]
    fn total<S: Simd>(s: S, acc: S::Acc) -> S::F {
        s.to_f32(s.finish(acc))
    }

    #[inline(always)]
    unsafe fn store_i32<S: Simd>(s: S, acc: S::Acc, out: *mut i32) {
        // SAFETY: the caller promises sixteen i32.
        unsafe { s.store_i32(out, s.finish(acc)) }
    }
}

/// The bf16 products differ in how a step becomes pairs.
macro_rules! bf16_product {
    ($product:ty, $pairs:literal, $load:ident) => {
        impl Product for $product {
            type Acc<S: Simd> = S::F;

            const UNITS: usize = $pairs;
            const BYTES: usize = 64;
            const INTEGERS: bool = false;

            #[inline(always)]
            unsafe fn start<S: Simd>(s: S, _weight_sums: *const i32) -> S::F {
                s.splat(0.0)
            }

            #[inline(always)]
            unsafe fn step<S: Simd, const R: usize, const T: usize>(
                s: S,
                acc: &mut [[S::F; T]; R],
                tiles: [*const u8; T],
                panel: *const u8,
                stride: usize,
            ) {
                // SAFETY: the caller promises the step.
                let mut weights = [unsafe { $load(s, tiles[0]) }; T];
                for t in 1..T {
                    // SAFETY: as above.
                    weights[t] = unsafe { $load(s, tiles[t]) };
                }
                for u in 0..$pairs {
                    for r in 0..R {
                        // SAFETY: as above.
                        let two = unsafe { s.load_two(panel.add(u * stride + 4 * r)) };
                        for t in 0..T {
                            acc[r][t] = s.dot_pairs(acc[r][t], weights[t][u], two);
                        }
                    }
                }
            }

            #[inline(always)]
            fn total<S: Simd>(_s: S, acc: S::F) -> S::F {
                acc
            }

            #[inline(always)]
            unsafe fn store_i32<S: Simd>(_s: S, _acc: S::F, _out: *mut i32) {}
        }
    };
}

bf16_product!(Bf16, 1, one_pair);
bf16_product!(Bf16Int8, 2, quads_pairs);
bf16_product!(Bf16Int4, 4, octets_pairs);

/// # Safety
/// 64 bytes must be readable.
#[inline(always)]
unsafe fn one_pair<S: Simd>(s: S, p: *const u8) -> [S::Pairs; 1] {
    // SAFETY: the caller promises 64 bytes.
    [unsafe { s.load_pairs(p) }]
}

/// # Safety
/// 64 bytes must be readable.
#[inline(always)]
unsafe fn quads_pairs<S: Simd>(s: S, p: *const u8) -> [S::Pairs; 2] {
    // SAFETY: the caller promises 64 bytes.
    unsafe { s.load_quads_pairs(p) }
}

/// # Safety
/// 64 bytes must be readable.
#[inline(always)]
unsafe fn octets_pairs<S: Simd>(s: S, p: *const u8) -> [S::Pairs; 4] {
    // SAFETY: the caller promises 64 bytes.
    unsafe { s.load_octets_pairs(p) }
}

impl<W: FloatTile> Product for F32<W> {
    type Acc<S: Simd> = S::F;

    const UNITS: usize = W::COLUMNS;
    const BYTES: usize = W::BYTES;
    const INTEGERS: bool = false;

    #[inline(always)]
    unsafe fn start<S: Simd>(s: S, _weight_sums: *const i32) -> S::F {
        s.splat(0.0)
    }

    #[inline(always)]
    unsafe fn step<S: Simd, const R: usize, const T: usize>(
        s: S,
        acc: &mut [[S::F; T]; R],
        tiles: [*const u8; T],
        panel: *const u8,
        stride: usize,
    ) {
        if W::COLUMNS == 1 {
            // SAFETY: the caller promises the step.
            let mut weights = [unsafe { W::load(s, tiles[0]) }[0]; T];
            for t in 1..T {
                // SAFETY: as above.
                weights[t] = unsafe { W::load(s, tiles[t]) }[0];
            }
            for r in 0..R {
                // SAFETY: as above; a unit is one f32.
                let x = s.splat(unsafe { *panel.add(4 * r).cast::<f32>() });
                for t in 0..T {
                    acc[r][t] = s.fma(x, weights[t], acc[r][t]);
                }
            }
            return;
        }
        for t in 0..T {
            // SAFETY: the caller promises the step.
            let weights = unsafe { W::load(s, tiles[t]) };
            for c in 0..W::COLUMNS {
                // Pairs in the order of the bf16 dot product: the second column, then the first.
                let column = if W::COLUMNS > 1 { c ^ 1 } else { c };
                for r in 0..R {
                    // SAFETY: as above; a unit is one f32.
                    let x = unsafe { *panel.add(column * stride + 4 * r).cast::<f32>() };
                    acc[r][t] = s.fma(s.splat(x), weights[column], acc[r][t]);
                }
            }
        }
    }

    #[inline(always)]
    fn total<S: Simd>(_s: S, acc: S::F) -> S::F {
        acc
    }

    #[inline(always)]
    unsafe fn store_i32<S: Simd>(_s: S, _acc: S::F, _out: *mut i32) {}
}
