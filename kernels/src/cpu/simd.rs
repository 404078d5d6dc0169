//! The vector vocabulary of the CPU algorithms: sixteen virtual lanes on every instruction set.
//!
//! An algorithm is written once over [`Simd`]; sixteen lanes whatever the register width make every level
//! compute the same bits. All methods are `#[inline(always)]` so that they melt into the one function per
//! level that enables its features (`table.rs`).

use super::product::{octet_half, quad_step};
use crate::reference::elementwise::{EXP_HIGHEST, EXP_LOWEST, EXP_POLYNOMIAL, LN_2_HIGH, LN_2_LOW};

/// Operations on sixteen f32 (`F`) or i32 (`I`) lanes. A value of the implementing type is the proof that
/// the CPU has the instructions.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixteen lanes of four INT8 weights, ready for [`Simd::dot`].
    type Quads: Copy;
    /// Four INT8 activations, repeated for every lane.
    type Four: Copy;
    /// Partial sums of [`Simd::dot`].
    type Acc: Copy;
    /// Sixteen lanes of two bf16, ready for [`Simd::dot_pairs`].
    type Pairs: Copy;
    /// Two bf16, repeated for every lane.
    type Two: Copy;

    /// Whether thirty-two wide registers are there: how large a block of outputs may be.
    const WIDE: bool;
    /// Rows whose products are summed at once, with [`Simd::TILES`] tiles: as many as registers hold.
    const ROWS: usize;
    /// The same for products of integers.
    const INT_ROWS: usize;
    /// Tiles that are multiplied at once.
    const TILES: usize;
    /// The same for a single row: so many that no product waits for the sum of the one before it.
    const TILES_OF_ONE: usize;
    /// The same for products of integers, which read memory as fast as it gives with fewer.
    const INT_TILES_OF_ONE: usize;
    /// Steps of nibbles that [`Simd::octet_steps`] is best given at once.
    const OCTET_STEPS: usize = 2;
    /// What activations are combined with in memory (exclusive or): `0x80` where the dot product takes them unsigned.
    const BIAS: u8;
    /// Whether [`Simd::dot_pairs`] is one instruction.
    const BF16_DOT: bool;

    /// Runs a kernel as a function of its own: what is compiled many times stays small.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, x: f32) -> Self::F;
    /// # Safety
    /// Sixteen f32 must be readable.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// # Safety
    /// Sixteen f32 must be writable.
    unsafe fn store(self, p: *mut f32, v: Self::F);
    /// # Safety
    /// Sixteen bf16 must be readable.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;
    /// Rounds half to even; a NaN stays one.
    /// # Safety
    /// Sixteen bf16 must be writable.
    unsafe fn store_bf16(self, p: *mut u16, v: Self::F);
    /// # Safety
    /// Sixteen f16 must be readable.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;
    /// Rounds half to even.
    /// # Safety
    /// Sixteen f16 must be writable.
    unsafe fn store_f16(self, p: *mut u16, v: Self::F);
    /// Sixteen pairs of bf16: the first and the second of each.
    /// # Safety
    /// 64 bytes must be readable.
    unsafe fn load_bf16_pairs(self, p: *const u8) -> [Self::F; 2];
    /// Column `C` of sixteen quads of INT8 as floats.
    /// # Safety
    /// 64 bytes must be readable.
    unsafe fn load_quads_f32<const C: usize>(self, p: *const u8) -> Self::F;
    /// Column `C` of sixteen octets of nibbles (value + 8) as floats: the low nibbles are the first four.
    /// # Safety
    /// 64 bytes must be readable.
    unsafe fn load_octets_f32<const C: usize>(self, p: *const u8) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; what it gives for a NaN is not defined.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, a: Self::F) -> Self::F;
    /// `if a < b { yes } else { no }`, lane by lane; a NaN compares false.
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// Rounds half to even; values beyond i32 give any integer.
    fn round(self, a: Self::F) -> Self::I;
    fn to_f32(self, a: Self::I) -> Self::F;
    /// 2^n for n in -126..=127; anything for other n.
    fn pow2(self, n: Self::I) -> Self::F;
    /// The sum of the lanes: lane l += lane l + 8, then + 4, + 2, + 1.
    fn reduce_add(self, a: Self::F) -> f32;

    fn zero_i32(self) -> Self::I;
    /// The larger of `acc` and the magnitude bits of `v`: orders finite < Inf < NaN.
    fn max_magnitude(self, acc: Self::I, v: Self::F) -> Self::I;
    fn reduce_max_i32(self, a: Self::I) -> i32;
    /// # Safety
    /// Sixteen i32 must be writable.
    unsafe fn store_i32(self, p: *mut i32, v: Self::I);
    /// Clamps to -127..=127, XORs with [`Simd::BIAS`] when `biased`, and writes sixteen bytes.
    /// # Safety
    /// Sixteen bytes must be writable.
    unsafe fn store_i8(self, p: *mut u8, v: Self::I, biased: bool);

    /// # Safety
    /// 64 bytes must be readable.
    unsafe fn load_quads(self, p: *const u8) -> Self::Quads;
    /// # Safety
    /// 64 bytes must be writable.
    unsafe fn store_quads(self, p: *mut u8, v: Self::Quads);
    /// Nibbles, 8 taken off: the low ones (columns 0..4), or the high ones (columns 4..8) where `HIGH`.
    /// # Safety
    /// 64 bytes must be readable.
    unsafe fn load_octets<const HIGH: bool>(self, p: *const u8) -> Self::Quads;
    /// Four activations as they are stored (with [`Simd::BIAS`]).
    /// # Safety
    /// Four bytes must be readable.
    unsafe fn load_four(self, p: *const u8) -> Self::Four;
    /// The empty sum. `weight_sums` undoes the bias: 16 sums of the weights that will be multiplied.
    /// # Safety
    /// Sixteen i32 must be readable.
    unsafe fn start(self, weight_sums: *const i32) -> Self::Acc;
    /// Adds the four products of each lane, exactly.
    fn dot(self, acc: Self::Acc, weights: Self::Quads, four: Self::Four) -> Self::Acc;
    /// [`Simd::start`] for nibbles.
    /// # Safety
    /// Sixteen i32 must be readable.
    #[inline(always)]
    unsafe fn start_octets(self, weight_sums: *const i32) -> Self::Acc {
        // SAFETY: the caller promises sixteen sums.
        unsafe { self.start(weight_sums) }
    }
    /// [`Simd::dot`] for nibbles.
    #[inline(always)]
    fn dot_octets(self, acc: Self::Acc, weights: Self::Quads, four: Self::Four) -> Self::Acc {
        self.dot(acc, weights, four)
    }
    /// Adds the products of tiles of INT8 and a panel: a step, or as many as are best taken together, at most
    /// `left`; gives how many those were.
    /// # Safety
    /// `left` steps of the tiles and of `R` rows of the panel must be readable, at least one.
    #[inline(always)]
    unsafe fn quad_steps<const R: usize, const T: usize>(
        self,
        acc: &mut [[Self::Acc; T]; R],
        tiles: [*const u8; T],
        panel: *const u8,
        _stride: usize,
        _left: usize,
    ) -> usize {
        // SAFETY: the caller promises the first step.
        unsafe { quad_step(self, acc, tiles, panel) };
        1
    }
    /// The same for tiles of nibbles, whose low ones meet a unit of each row, and whose high ones the next.
    /// # Safety
    /// `left` steps of the tiles and of `R` rows of the panel must be readable, at least one.
    #[inline(always)]
    unsafe fn octet_steps<const R: usize, const T: usize>(
        self,
        acc: &mut [[Self::Acc; T]; R],
        tiles: [*const u8; T],
        panel: *const u8,
        stride: usize,
        _left: usize,
    ) -> usize {
        // SAFETY: the caller promises the first step.
        unsafe {
            octet_half::<Self, R, T, false>(self, acc, tiles, panel);
            octet_half::<Self, R, T, true>(self, acc, tiles, panel.add(stride));
        }
        1
    }
    /// The sums, one per lane.
    fn finish(self, acc: Self::Acc) -> Self::I;

    /// # Safety
    /// 64 bytes must be readable.
    unsafe fn load_pairs(self, p: *const u8) -> Self::Pairs;
    /// Pairs of floats that bf16 holds exactly.
    fn pair(self, first: Self::F, second: Self::F) -> Self::Pairs;
    /// Columns `2 U` and `2 U + 1` of sixteen quads of INT8 as bf16, which is exact.
    /// # Safety
    /// 64 bytes must be readable.
    #[inline(always)]
    unsafe fn load_quads_pairs<const U: usize>(self, p: *const u8) -> Self::Pairs {
        // SAFETY: the caller promises 64 bytes.
        unsafe {
            if U == 0 {
                self.pair(self.load_quads_f32::<0>(p), self.load_quads_f32::<1>(p))
            } else {
                self.pair(self.load_quads_f32::<2>(p), self.load_quads_f32::<3>(p))
            }
        }
    }
    /// The same of sixteen octets of nibbles (value + 8).
    /// # Safety
    /// 64 bytes must be readable.
    #[inline(always)]
    unsafe fn load_octets_pairs<const U: usize>(self, p: *const u8) -> Self::Pairs {
        // SAFETY: the caller promises 64 bytes.
        unsafe {
            match U {
                0 => self.pair(self.load_octets_f32::<0>(p), self.load_octets_f32::<1>(p)),
                1 => self.pair(self.load_octets_f32::<2>(p), self.load_octets_f32::<3>(p)),
                2 => self.pair(self.load_octets_f32::<4>(p), self.load_octets_f32::<5>(p)),
                _ => self.pair(self.load_octets_f32::<6>(p), self.load_octets_f32::<7>(p)),
            }
        }
    }
    /// # Safety
    /// Four bytes must be readable.
    unsafe fn load_two(self, p: *const u8) -> Self::Two;
    /// `acc`, plus the product of the second bf16 of each pair, plus that of the first; each sum is rounded
    /// once. Where it is one instruction it takes subnormals for zeros.
    fn dot_pairs(self, acc: Self::F, pairs: Self::Pairs, two: Self::Two) -> Self::F;
    /// Asks for the cache line of `p`, which may be any address.
    fn prefetch(self, p: *const u8);

    /// Sixteen INT8 as floats.
    /// # Safety
    /// Sixteen bytes must be readable.
    unsafe fn load_i8(self, p: *const i8) -> Self::F;
    /// Rounds to bf16, half to even, and widens again; what a NaN becomes is not defined.
    fn round_bf16(self, v: Self::F) -> Self::F;
    /// Writes sixteen pairs, rounded like [`Simd::round_bf16`]; where [`Simd::BF16_DOT`], subnormals become
    /// zeros.
    /// # Safety
    /// 64 bytes must be writable.
    unsafe fn store_pairs(self, p: *mut u8, first: Self::F, second: Self::F);
    /// Lane j of vector i becomes lane i of vector j.
    fn transpose(self, rows: [Self::F; LANES]) -> [Self::F; LANES];
    /// The sum of the lanes of each vector, as [`Simd::reduce_add`] adds them; vector `i` becomes lane `i`.
    #[inline(always)]
    fn reduce_add_each(self, vectors: [Self::F; LANES]) -> Self::F {
        let mut lanes = self.transpose(vectors);
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] = self.add(lanes[lane], lanes[lane + half]);
            }
        }
        lanes[0]
    }
}

/// Work that is compiled once per instruction set.
pub(crate) trait Kernel {
    /// What it gives.
    type Output;

    /// The work. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Lanes of a virtual vector.
pub(crate) const LANES: usize = 16;

/// `e^x` as `docs/numerics.md` defines it.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    s.select_lt(
        s.splat(EXP_HIGHEST),
        x,
        s.splat(f32::INFINITY),
        exp_below(s, x),
    )
}

/// The same for an `x` that is not too large: differences from the largest are not.
#[inline(always)]
pub(crate) fn exp_below<S: Simd>(s: S, x: S::F) -> S::F {
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let nf = s.to_f32(n);
    let r = s.fma(nf, s.splat(-LN_2_HIGH), x);
    let r = s.fma(nf, s.splat(-LN_2_LOW), r);
    let mut p = s.splat(EXP_POLYNOMIAL[0]);
    for &coefficient in &EXP_POLYNOMIAL[1..] {
        p = s.fma(p, r, s.splat(coefficient));
    }
    let y = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    let y = s.mul(y, s.pow2(n));
    s.select_lt(x, s.splat(EXP_LOWEST), s.splat(0.0), y)
}

/// `-x`, of zeros too.
#[inline(always)]
pub(crate) fn negate<S: Simd>(s: S, x: S::F) -> S::F {
    s.sub(s.splat(-0.0), x)
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, negate(s, x))))
}
