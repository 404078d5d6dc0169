//! The portable level: sixteen lanes as arrays.

use half::{bf16, f16};

use super::simd::{Kernel, LANES, Simd};

/// Plain Rust; every machine has it.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type F = [f32; LANES];
type I = [i32; LANES];

#[inline(always)]
fn lanes<T: Copy + Default>(mut value: impl FnMut(usize) -> T) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    for (lane, slot) in out.iter_mut().enumerate() {
        *slot = value(lane);
    }
    out
}

impl Simd for Scalar {
    type F = F;
    type I = I;
    type Quads = [[i8; 4]; LANES];
    type Four = [i8; 4];
    type Acc = I;
    type Pairs = [F; 2];
    type Two = [f32; 2];

    const WIDE: bool = false;
    const BIAS: u8 = 0;
    const BF16_DOT: bool = false;
    const ROWS: usize = 2;
    const INT_ROWS: usize = 2;
    const TILES: usize = 1;
    const TILES_OF_ONE: usize = 1;
    const INT_TILES_OF_ONE: usize = 1;

    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        // SAFETY: the caller promises sixteen f32.
        unsafe { p.cast::<F>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: F) {
        // SAFETY: the caller promises sixteen f32.
        unsafe { p.cast::<F>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> F {
        // SAFETY: the caller promises sixteen bf16.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        lanes(|l| f32::from_bits(u32::from(bits[l]) << 16))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: F) {
        let bits: [u16; LANES] = lanes(|l| bf16::from_f32(v[l]).to_bits());
        // SAFETY: the caller promises sixteen bf16.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> F {
        // SAFETY: the caller promises sixteen f16.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        lanes(|l| f16::from_bits(bits[l]).to_f32())
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: F) {
        let bits: [u16; LANES] = lanes(|l| f16::from_f32(v[l]).to_bits());
        // SAFETY: the caller promises sixteen f16.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn load_bf16_pairs(self, p: *const u8) -> [F; 2] {
        // SAFETY: the caller promises 64 bytes.
        let bits = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
        [
            lanes(|l| f32::from_bits(bits[l] << 16)),
            lanes(|l| f32::from_bits(bits[l] & 0xffff_0000)),
        ]
    }

    #[inline(always)]
    unsafe fn load_quads_f32<const C: usize>(self, p: *const u8) -> F {
        // SAFETY: the caller promises 64 bytes.
        let quads = unsafe { self.load_quads(p) };
        lanes(|l| f32::from(quads[l][C % 4]))
    }

    #[inline(always)]
    unsafe fn load_octets_f32<const C: usize>(self, p: *const u8) -> F {
        // SAFETY: the caller promises 64 bytes.
        let quads = unsafe {
            if C < 4 {
                self.load_octets::<false>(p)
            } else {
                self.load_octets::<true>(p)
            }
        };
        lanes(|l| f32::from(quads[l][C % 4]))
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        lanes(|l| a[l] + b[l])
    }

    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        lanes(|l| a[l] - b[l])
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        lanes(|l| a[l] * b[l])
    }

    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        lanes(|l| a[l] / b[l])
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        lanes(|l| a[l].mul_add(b[l], c[l]))
    }

    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        lanes(|l| if a[l] > b[l] { a[l] } else { b[l] })
    }

    #[inline(always)]
    fn abs(self, a: F) -> F {
        lanes(|l| a[l].abs())
    }

    #[inline(always)]
    fn select_lt(self, a: F, b: F, yes: F, no: F) -> F {
        lanes(|l| if a[l] < b[l] { yes[l] } else { no[l] })
    }

    #[inline(always)]
    fn round(self, a: F) -> I {
        lanes(|l| a[l].round_ties_even() as i32)
    }

    #[inline(always)]
    fn to_f32(self, a: I) -> F {
        lanes(|l| a[l] as f32)
    }

    #[inline(always)]
    fn pow2(self, n: I) -> F {
        lanes(|l| f32::from_bits((n[l].wrapping_add(127) as u32) << 23))
    }

    #[inline(always)]
    fn reduce_add(self, a: F) -> f32 {
        let mut a = a;
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                a[l] += a[l + half];
            }
        }
        a[0]
    }

    #[inline(always)]
    fn zero_i32(self) -> I {
        [0; LANES]
    }

    #[inline(always)]
    fn max_magnitude(self, acc: I, v: F) -> I {
        lanes(|l| acc[l].max((v[l].to_bits() & 0x7fff_ffff) as i32))
    }

    #[inline(always)]
    fn reduce_max_i32(self, a: I) -> i32 {
        a.iter().fold(i32::MIN, |m, &x| m.max(x))
    }

    #[inline(always)]
    unsafe fn store_i32(self, p: *mut i32, v: I) {
        // SAFETY: the caller promises sixteen i32.
        unsafe { p.cast::<I>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn store_i8(self, p: *mut u8, v: I, biased: bool) {
        let bias = if biased { Self::BIAS } else { 0 };
        let bytes: [u8; LANES] = lanes(|l| v[l].clamp(-127, 127) as u8 ^ bias);
        // SAFETY: the caller promises sixteen bytes.
        unsafe { p.cast::<[u8; LANES]>().write_unaligned(bytes) }
    }

    #[inline(always)]
    unsafe fn load_quads(self, p: *const u8) -> [[i8; 4]; LANES] {
        // SAFETY: the caller promises 64 bytes.
        unsafe { p.cast::<[[i8; 4]; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_quads(self, p: *mut u8, v: [[i8; 4]; LANES]) {
        // SAFETY: the caller promises 64 bytes.
        unsafe { p.cast::<[[i8; 4]; LANES]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn load_octets<const HIGH: bool>(self, p: *const u8) -> [[i8; 4]; LANES] {
        // SAFETY: the caller promises 64 bytes.
        let bytes = unsafe { p.cast::<[[u8; 4]; LANES]>().read_unaligned() };
        let shift = if HIGH { 4 } else { 0 };
        lanes(|l| bytes[l].map(|byte| ((byte >> shift) & 15) as i8 - 8))
    }

    #[inline(always)]
    unsafe fn load_four(self, p: *const u8) -> [i8; 4] {
        // SAFETY: the caller promises four bytes.
        unsafe { p.cast::<[i8; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn start(self, _weight_sums: *const i32) -> I {
        [0; LANES]
    }

    #[inline(always)]
    fn dot(self, acc: I, weights: [[i8; 4]; LANES], four: [i8; 4]) -> I {
        lanes(|l| {
            let mut sum = acc[l];
            for i in 0..4 {
                sum = sum.wrapping_add(i32::from(weights[l][i]) * i32::from(four[i]));
            }
            sum
        })
    }

    #[inline(always)]
    fn finish(self, acc: I) -> I {
        acc
    }

    #[inline(always)]
    unsafe fn load_pairs(self, p: *const u8) -> [F; 2] {
        // SAFETY: the caller promises 64 bytes.
        unsafe { self.load_bf16_pairs(p) }
    }

    #[inline(always)]
    fn pair(self, first: F, second: F) -> [F; 2] {
        [first, second]
    }

    #[inline(always)]
    unsafe fn load_two(self, p: *const u8) -> [f32; 2] {
        // SAFETY: the caller promises four bytes.
        let bits = unsafe { p.cast::<[u16; 2]>().read_unaligned() };
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    fn dot_pairs(self, acc: F, pairs: [F; 2], two: [f32; 2]) -> F {
        lanes(|l| pairs[0][l].mul_add(two[0], pairs[1][l].mul_add(two[1], acc[l])))
    }

    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}

    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> F {
        // SAFETY: the caller promises sixteen bytes.
        let bytes = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        bytes.map(f32::from)
    }

    #[inline(always)]
    fn round_bf16(self, v: F) -> F {
        v.map(|v| bf16::from_f32(v).to_f32())
    }

    #[inline(always)]
    unsafe fn store_pairs(self, p: *mut u8, first: F, second: F) {
        let (first, second) = (self.round_bf16(first), self.round_bf16(second));
        let pairs: [u32; LANES] =
            lanes(|l| first[l].to_bits() >> 16 | second[l].to_bits() & 0xffff_0000);
        // SAFETY: the caller promises 64 bytes.
        unsafe { p.cast::<[u32; LANES]>().write_unaligned(pairs) }
    }

    #[inline(always)]
    fn transpose(self, rows: [F; LANES]) -> [F; LANES] {
        let mut columns = rows;
        for (j, column) in columns.iter_mut().enumerate() {
            *column = rows.map(|row| row[j]);
        }
        columns
    }
}
