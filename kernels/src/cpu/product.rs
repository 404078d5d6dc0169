//! How one step of a weight tile (`pack.rs`) meets one step of a panel of activations (`panel.rs`).

use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

use super::float_tile::{self, FloatTile};
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

    /// Steps between two looks at what is to be fetched: about four units.
    #[inline(always)]
    fn at_once<S: Simd>() -> usize {
        if Self::UNITS < 4 { 4 / Self::UNITS } else { 1 }
    }

    /// The empty sum; `weight_sums` are the sums of the weights that will be multiplied.
    ///
    /// # Safety
    /// Sixteen i32 must be readable where the weights are integers that meet integers.
    unsafe fn start<S: Simd>(s: S, weight_sums: *const i32) -> Self::Acc<S>;

    /// Adds the products of a step, or of as many as are best taken together, at most `left`; gives how many those
    /// were. Unit `u` of row `r` lies at `u * stride + 4 r` in the panel.
    ///
    /// # Safety
    /// For each of `left` steps, at least one, `BYTES` of each tile and `UNITS` units of `R` rows must be readable.
    unsafe fn steps<S: Simd, const R: usize, const T: usize>(
        s: S,
        acc: &mut [[Self::Acc<S>; T]; R],
        tiles: [*const u8; T],
        panel: *const u8,
        stride: usize,
        left: usize,
    ) -> usize;

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

/// The integer products differ in how a step becomes quads.
macro_rules! integer_product {
    ($product:ty, $units:literal, $start:ident, $steps:ident, $at_once:expr) => {
        impl Product for $product {
            type Acc<S: Simd> = S::Acc;

            const UNITS: usize = $units;
            const BYTES: usize = 64;
            const INTEGERS: bool = true;

            #[inline(always)]
            fn at_once<S: Simd>() -> usize {
                $at_once
            }

            #[inline(always)]
            unsafe fn start<S: Simd>(s: S, weight_sums: *const i32) -> S::Acc {
                // SAFETY: the caller promises sixteen sums.
                unsafe { s.$start(weight_sums) }
            }

            #[inline(always)]
            unsafe fn steps<S: Simd, const R: usize, const T: usize>(
                s: S,
                acc: &mut [[S::Acc; T]; R],
                tiles: [*const u8; T],
                panel: *const u8,
                stride: usize,
                left: usize,
            ) -> usize {
                // SAFETY: the caller promises the steps.
                unsafe { s.$steps(acc, tiles, panel, stride, left) }
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
    };
}

integer_product!(Int8, 1, start, quad_steps, 4);
integer_product!(Int4, 2, start_octets, octet_steps, S::OCTET_STEPS);

/// A step of INT8 weights.
///
/// # Safety
/// 64 bytes of each tile and a unit of `R` rows must be readable.
#[inline(always)]
pub(super) unsafe fn quad_step<S: Simd, const R: usize, const T: usize>(
    s: S,
    acc: &mut [[S::Acc; T]; R],
    tiles: [*const u8; T],
    panel: *const u8,
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
    one_by_one::<S, R>();
}

/// Half a step of nibbles: the low ones, or the high ones.
///
/// # Safety
/// 64 bytes of each tile and a unit of `R` rows must be readable.
#[inline(always)]
pub(super) unsafe fn octet_half<S: Simd, const R: usize, const T: usize, const HIGH: bool>(
    s: S,
    acc: &mut [[S::Acc; T]; R],
    tiles: [*const u8; T],
    panel: *const u8,
) {
    // SAFETY: the caller promises the step.
    let mut weights = [unsafe { s.load_octets::<HIGH>(tiles[0]) }; T];
    for t in 1..T {
        // SAFETY: as above.
        weights[t] = unsafe { s.load_octets::<HIGH>(tiles[t]) };
    }
    for r in 0..R {
        // SAFETY: as above.
        let four = unsafe { s.load_four(panel.add(4 * r)) };
        for t in 0..T {
            acc[r][t] = s.dot_octets(acc[r][t], weights[t], four);
        }
    }
    one_by_one::<S, R>();
}

/// The bf16 products differ in how a step becomes pairs.
macro_rules! bf16_product {
    ($product:ty, $units:literal, $load:ident, $($unit:literal)*) => {
        impl Product for $product {
            type Acc<S: Simd> = S::F;

            const UNITS: usize = $units;
            const BYTES: usize = 64;
            const INTEGERS: bool = false;

            #[inline(always)]
            unsafe fn start<S: Simd>(s: S, _weight_sums: *const i32) -> S::F {
                s.splat(0.0)
            }

            #[inline(always)]
            unsafe fn steps<S: Simd, const R: usize, const T: usize>(
                s: S,
                acc: &mut [[S::F; T]; R],
                tiles: [*const u8; T],
                panel: *const u8,
                stride: usize,
                _left: usize,
            ) -> usize {
                $(
                    // SAFETY: the caller promises the step.
                    let mut weights = [unsafe { $load::<S, $unit>(s, tiles[0]) }; T];
                    for t in 1..T {
                        // SAFETY: as above.
                        weights[t] = unsafe { $load::<S, $unit>(s, tiles[t]) };
                    }
                    for r in 0..R {
                        // SAFETY: as above.
                        let two = unsafe { s.load_two(panel.add($unit * stride + 4 * r)) };
                        for t in 0..T {
                            acc[r][t] = s.dot_pairs(acc[r][t], weights[t], two);
                        }
                    }
                )*
                1
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

bf16_product!(Bf16, 1, pairs, 0);
bf16_product!(Bf16Int8, 2, quads_pairs, 0 1);
bf16_product!(Bf16Int4, 4, octets_pairs, 0 1 2 3);

/// # Safety
/// 64 bytes must be readable.
#[inline(always)]
unsafe fn pairs<S: Simd, const U: usize>(s: S, p: *const u8) -> S::Pairs {
    // SAFETY: the caller promises 64 bytes.
    unsafe { s.load_pairs(p) }
}

/// # Safety
/// 64 bytes must be readable.
#[inline(always)]
unsafe fn quads_pairs<S: Simd, const U: usize>(s: S, p: *const u8) -> S::Pairs {
    // SAFETY: the caller promises 64 bytes.
    unsafe { s.load_quads_pairs::<U>(p) }
}

/// # Safety
/// 64 bytes must be readable.
#[inline(always)]
unsafe fn octets_pairs<S: Simd, const U: usize>(s: S, p: *const u8) -> S::Pairs {
    // SAFETY: the caller promises 64 bytes.
    unsafe { s.load_octets_pairs::<U>(p) }
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
    unsafe fn steps<S: Simd, const R: usize, const T: usize>(
        s: S,
        acc: &mut [[S::F; T]; R],
        tiles: [*const u8; T],
        panel: *const u8,
        stride: usize,
        _left: usize,
    ) -> usize {
        // SAFETY: the caller promises the step. Pairs are taken in the order of the bf16 dot product: the second
        // column, then the first.
        unsafe {
            if W::COLUMNS == 1 {
                column::<S, W, R, T, 0>(s, acc, tiles, panel);
                return 1;
            }
            if W::COLUMNS > 4 && !S::WIDE && R > 2 {
                steps_of_octets(s, acc, tiles, panel, stride);
                return 1;
            }
            column::<S, W, R, T, 1>(s, acc, tiles, panel.add(stride));
            column::<S, W, R, T, 0>(s, acc, tiles, panel);
            if W::COLUMNS > 2 {
                column::<S, W, R, T, 3>(s, acc, tiles, panel.add(3 * stride));
                column::<S, W, R, T, 2>(s, acc, tiles, panel.add(2 * stride));
            }
            if W::COLUMNS > 4 {
                column::<S, W, R, T, 5>(s, acc, tiles, panel.add(5 * stride));
                column::<S, W, R, T, 4>(s, acc, tiles, panel.add(4 * stride));
                column::<S, W, R, T, 7>(s, acc, tiles, panel.add(7 * stride));
                column::<S, W, R, T, 6>(s, acc, tiles, panel.add(6 * stride));
            }
        }
        1
    }

    #[inline(always)]
    fn total<S: Simd>(_s: S, acc: S::F) -> S::F {
        acc
    }

    #[inline(always)]
    unsafe fn store_i32<S: Simd>(_s: S, _acc: S::F, _out: *mut i32) {}
}

/// A step of nibbles, which become quads first: a column of quads becomes floats in fewer instructions, and the
/// sums of many rows leave no registers for more of them.
///
/// # Safety
/// A step of each tile and eight units of `R` rows must be readable.
#[inline(always)]
unsafe fn steps_of_octets<S: Simd, const R: usize, const T: usize>(
    s: S,
    acc: &mut [[S::F; T]; R],
    tiles: [*const u8; T],
    panel: *const u8,
    stride: usize,
) {
    let mut quads = [const { Quads::uninit() }; T];
    let mut places = [std::ptr::null::<u8>(); T];
    for t in 0..T {
        let place: *mut u8 = quads[t].as_mut_ptr().cast();
        // SAFETY: the caller promises the step; there is room for its quads.
        unsafe {
            s.store_quads(place, s.load_octets::<false>(tiles[t]));
            s.store_quads(place.add(64), s.load_octets::<true>(tiles[t]));
        }
        places[t] = place;
    }
    // A number that the compiler does not know: it would lay all columns out in a row, and hold some back.
    for half in 0..black_box(2) {
        let places = places.map(|place| place.wrapping_add(64 * half));
        let panel = panel.wrapping_add(4 * half * stride);
        // SAFETY: the quads are there, and so are the units.
        unsafe { F32::<float_tile::Int8>::steps(s, acc, places, panel, stride, 1) };
    }
}

/// Room for the quads of a step of nibbles.
type Quads = MaybeUninit<QuadBytes>;

/// Quads that lie at cache lines.
#[repr(align(64))]
struct QuadBytes(#[expect(dead_code, reason = "read by address")] [u8; 128]);

/// Column `C` of a step.
///
/// # Safety
/// A step of each tile and a unit of `R` rows must be readable.
#[inline(always)]
unsafe fn column<S: Simd, W: FloatTile, const R: usize, const T: usize, const C: usize>(
    s: S,
    acc: &mut [[S::F; T]; R],
    tiles: [*const u8; T],
    panel: *const u8,
) {
    // SAFETY: the caller promises the step.
    let mut weights = [unsafe { W::load::<S, C>(s, tiles[0]) }; T];
    for t in 1..T {
        // SAFETY: as above.
        weights[t] = unsafe { W::load::<S, C>(s, tiles[t]) };
    }
    for r in 0..R {
        // SAFETY: as above; a unit is one f32.
        let x = s.splat(unsafe { panel.add(4 * r).cast::<f32>().read_unaligned() });
        for t in 0..T {
            acc[r][t] = s.fma(x, weights[t], acc[r][t]);
        }
    }
    one_by_one::<S, R>();
}

/// Keeps the compiler from taking in the next weights before these were met: sixteen registers hold the sums of
/// many rows and one vector of weights, and it would rather move sums to memory and back at each step.
#[inline(always)]
pub(super) fn one_by_one<S: Simd, const R: usize>() {
    if !S::WIDE && R > 2 {
        compiler_fence(Ordering::SeqCst);
    }
}
