//! AVX2 with FMA and F16C: sixteen lanes in two registers. With `VNNI`, the dot product of AVX-VNNI.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "one proof for the file: a value of `Avx2` exists only inside `run`, whose features are those \
              of every intrinsic here; pointers are the caller's promise, as each method says"
)]
#![allow(
    clippy::wildcard_imports,
    reason = "intrinsics are the vocabulary of this file; the lint is silent in tests"
)]

use std::arch::x86_64::*;

use super::avx2_parts::SHORT_STEPS;
use crate::cpu::product::octet_half;
use crate::cpu::simd::{Kernel, Simd};

/// Runs `kernel` with AVX2.
///
/// # Safety
/// The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<false>(()))
}

/// The same as a function of its own: what is compiled many times has its own registers and stack.
///
/// # Safety
/// As for [`run`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn apart<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<false>(()))
}

/// The vector operations of AVX2; `VNNI` takes the dot product of AVX-VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(pub(super) ());

type F = [__m256; 2];
type I = [__m256i; 2];

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type F = F;
    type I = I;
    type Quads = [__m256i; 2];
    type Four = __m256i;
    type Acc = [__m256i; 2];
    type Pairs = [F; 2];
    type Two = [F; 2];

    const WIDE: bool = false;
    const BIAS: u8 = if VNNI { 0x80 } else { 0 };
    const BF16_DOT: bool = false;
    const ROWS: usize = 6;
    const INT_ROWS: usize = if VNNI { 6 } else { 4 };
    const TILES: usize = 1;
    const TILES_OF_ONE: usize = 4;
    const INT_TILES_OF_ONE: usize = 1;
    const OCTET_STEPS: usize = if VNNI { 2 } else { SHORT_STEPS };

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        unsafe {
            if VNNI {
                super::avx_vnni::apart(kernel)
            } else {
                apart(kernel)
            }
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: F) {
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> F {
        unsafe { self.widen_bf16(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: F) {
        unsafe {
            let packed = _mm256_packus_epi32(self.narrow_bf16(v[0]), self.narrow_bf16(v[1]));
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> F {
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: F) {
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(
                p.add(8).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]),
            );
        }
    }

    #[inline(always)]
    unsafe fn load_bf16_pairs(self, p: *const u8) -> [F; 2] {
        unsafe {
            let v = [
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(32).cast()),
            ];
            let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                v.map(|v| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v))),
                v.map(|v| _mm256_castsi256_ps(_mm256_and_si256(v, high))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_quads_f32<const C: usize>(self, p: *const u8) -> F {
        unsafe {
            let (low, high) = (
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(32).cast()),
            );
            [self.byte_to_f32::<C>(low), self.byte_to_f32::<C>(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_octets_f32<const C: usize>(self, p: *const u8) -> F {
        unsafe {
            let (low, high) = (p.cast(), p.add(32).cast());
            [
                self.nibble_to_f32::<C>(_mm256_loadu_si256(low), 0),
                self.nibble_to_f32::<C>(_mm256_loadu_si256(high), 1),
            ]
        }
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        unsafe {
            [
                _mm256_fmadd_ps(a[0], b[0], c[0]),
                _mm256_fmadd_ps(a[1], b[1], c[1]),
            ]
        }
    }

    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn abs(self, a: F) -> F {
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
        }
    }

    #[inline(always)]
    fn select_lt(self, a: F, b: F, yes: F, no: F) -> F {
        unsafe {
            [
                _mm256_blendv_ps(no[0], yes[0], _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0])),
                _mm256_blendv_ps(no[1], yes[1], _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])),
            ]
        }
    }

    #[inline(always)]
    fn round(self, a: F) -> I {
        unsafe { [_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1])] }
    }

    #[inline(always)]
    fn to_f32(self, a: I) -> F {
        unsafe { [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])] }
    }

    #[inline(always)]
    fn pow2(self, n: I) -> F {
        unsafe {
            let bias = _mm256_set1_epi32(127);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n[0], bias))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n[1], bias))),
            ]
        }
    }

    #[inline(always)]
    fn reduce_add(self, a: F) -> f32 {
        unsafe {
            let eight = _mm256_add_ps(a[0], a[1]);
            let four = _mm_add_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn zero_i32(self) -> I {
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    fn max_magnitude(self, acc: I, v: F) -> I {
        unsafe {
            let mask = _mm256_set1_epi32(0x7fff_ffff);
            [
                _mm256_max_epi32(acc[0], _mm256_and_si256(_mm256_castps_si256(v[0]), mask)),
                _mm256_max_epi32(acc[1], _mm256_and_si256(_mm256_castps_si256(v[1]), mask)),
            ]
        }
    }

    #[inline(always)]
    fn reduce_max_i32(self, a: I) -> i32 {
        let mut lanes = [0_i32; 16];
        unsafe { self.store_i32(lanes.as_mut_ptr(), a) };
        lanes.iter().fold(i32::MIN, |m, &x| m.max(x))
    }

    #[inline(always)]
    unsafe fn store_i32(self, p: *mut i32, v: I) {
        unsafe {
            _mm256_storeu_si256(p.cast(), v[0]);
            _mm256_storeu_si256(p.add(8).cast(), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn store_i8(self, p: *mut u8, v: I, biased: bool) {
        unsafe {
            let (low, high) = (_mm256_set1_epi32(-127), _mm256_set1_epi32(127));
            let v = v.map(|v| _mm256_min_epi32(_mm256_max_epi32(v, low), high));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(v[0], v[1]));
            let bytes = _mm_packs_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            let bias = if biased { Self::BIAS } else { 0 };
            _mm_storeu_si128(p.cast(), _mm_xor_si128(bytes, _mm_set1_epi8(bias as i8)));
        }
    }

    #[inline(always)]
    unsafe fn load_quads(self, p: *const u8) -> [__m256i; 2] {
        unsafe {
            [
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(32).cast()),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store_quads(self, p: *mut u8, v: [__m256i; 2]) {
        unsafe {
            _mm256_storeu_si256(p.cast(), v[0]);
            _mm256_storeu_si256(p.add(32).cast(), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_octets<const HIGH: bool>(self, p: *const u8) -> [__m256i; 2] {
        unsafe {
            let [mut low, mut high] = self.load_quads(p);
            if HIGH {
                (low, high) = (_mm256_srli_epi16::<4>(low), _mm256_srli_epi16::<4>(high));
            }
            [self.nibbles(low), self.nibbles(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_four(self, p: *const u8) -> __m256i {
        unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn start(self, weight_sums: *const i32) -> [__m256i; 2] {
        unsafe {
            if VNNI {
                self.start_octets(weight_sums)
            } else {
                [_mm256_setzero_si256(); 2]
            }
        }
    }

    #[inline(always)]
    unsafe fn start_octets(self, weight_sums: *const i32) -> [__m256i; 2] {
        unsafe {
            let zero = _mm256_setzero_si256();
            // The activations are taken as q + 128: take 128 times the sum of the weights off.
            let low = _mm256_slli_epi32::<7>(_mm256_loadu_si256(weight_sums.cast()));
            let high = _mm256_slli_epi32::<7>(_mm256_loadu_si256(weight_sums.add(8).cast()));
            [_mm256_sub_epi32(zero, low), _mm256_sub_epi32(zero, high)]
        }
    }

    #[inline(always)]
    fn dot(self, acc: [__m256i; 2], weights: [__m256i; 2], four: __m256i) -> [__m256i; 2] {
        unsafe {
            if VNNI {
                return super::avx_vnni::dot(acc, weights, four);
            }
            [
                self.add_products(acc[0], weights[0], four),
                self.add_products(acc[1], weights[1], four),
            ]
        }
    }

    #[inline(always)]
    fn dot_octets(self, acc: [__m256i; 2], weights: [__m256i; 2], four: __m256i) -> [__m256i; 2] {
        if VNNI {
            return self.dot(acc, weights, four);
        }
        let four = self.unsigned(four);
        [
            self.add_pairs(acc[0], self.nibble_products(weights[0], four)),
            self.add_pairs(acc[1], self.nibble_products(weights[1], four)),
        ]
    }

    #[inline(always)]
    unsafe fn octet_steps<const R: usize, const T: usize>(
        self,
        acc: &mut [[[__m256i; 2]; T]; R],
        tiles: [*const u8; T],
        panel: *const u8,
        stride: usize,
        left: usize,
    ) -> usize {
        unsafe {
            if VNNI || R <= 2 || left < SHORT_STEPS {
                octet_half::<Self, R, T, false>(self, acc, tiles, panel);
                octet_half::<Self, R, T, true>(self, acc, tiles, panel.add(stride));
                return 1;
            }
            let mut short = [[[_mm256_setzero_si256(); 2]; T]; R];
            for step in 0..SHORT_STEPS {
                let tiles = tiles.map(|tile| tile.wrapping_add(64 * step));
                let panel = panel.wrapping_add(2 * step * stride);
                self.add_short::<R, T, false>(&mut short, tiles, panel);
                self.add_short::<R, T, true>(&mut short, tiles, panel.wrapping_add(stride));
            }
            for r in 0..R {
                for t in 0..T {
                    for half in 0..2 {
                        acc[r][t][half] = self.add_pairs(acc[r][t][half], short[r][t][half]);
                    }
                }
            }
            SHORT_STEPS
        }
    }

    #[inline(always)]
    fn finish(self, acc: [__m256i; 2]) -> I {
        acc
    }

    #[inline(always)]
    unsafe fn load_pairs(self, p: *const u8) -> [F; 2] {
        unsafe { self.load_bf16_pairs(p) }
    }

    #[inline(always)]
    fn pair(self, first: F, second: F) -> [F; 2] {
        [first, second]
    }

    #[inline(always)]
    unsafe fn load_two(self, p: *const u8) -> [F; 2] {
        let bits = unsafe { p.cast::<u32>().read_unaligned() };
        [
            self.splat(f32::from_bits(bits << 16)),
            self.splat(f32::from_bits(bits & 0xffff_0000)),
        ]
    }

    #[inline(always)]
    fn dot_pairs(self, acc: F, pairs: [F; 2], two: [F; 2]) -> F {
        self.fma(pairs[0], two[0], self.fma(pairs[1], two[1], acc))
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> F {
        unsafe {
            let bytes = _mm_loadu_si128(p.cast());
            let high = _mm_srli_si128::<8>(bytes);
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
            ]
        }
    }

    #[inline(always)]
    fn round_bf16(self, v: F) -> F {
        let mut rounded = v;
        for half in 0..2 {
            unsafe {
                let bits = _mm256_castps_si256(v[half]);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                rounded[half] = _mm256_castsi256_ps(_mm256_and_si256(up, high));
            }
        }
        rounded
    }

    #[inline(always)]
    unsafe fn store_pairs(self, p: *mut u8, first: F, second: F) {
        let (first, second) = (self.round_bf16(first), self.round_bf16(second));
        for half in 0..2 {
            unsafe {
                let low = _mm256_srli_epi32::<16>(_mm256_castps_si256(first[half]));
                let pairs = _mm256_or_si256(low, _mm256_castps_si256(second[half]));
                _mm256_storeu_si256(p.add(32 * half).cast(), pairs);
            }
        }
    }

    #[inline(always)]
    fn transpose(self, rows: [F; 16]) -> [F; 16] {
        let mut columns = rows;
        for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut square = [rows[0][0]; 8];
            for (k, row) in square.iter_mut().enumerate() {
                *row = rows[8 * i + k][j];
            }
            for (k, column) in transpose_8(square).into_iter().enumerate() {
                columns[8 * j + k][i] = column;
            }
        }
        columns
    }
}

/// Lane j of vector i becomes lane i of vector j.
#[inline(always)]
fn transpose_8(rows: [__m256; 8]) -> [__m256; 8] {
    unsafe {
        let mut fours = rows;
        for i in [0, 4] {
            let [a, b, c, d] = [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]];
            let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (next_low, next_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            fours[i] = _mm256_shuffle_ps::<0b01_00_01_00>(low, next_low);
            fours[i + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(low, next_low);
            fours[i + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(high, next_high);
            fours[i + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(high, next_high);
        }
        let mut columns = rows;
        for j in 0..4 {
            columns[j] = _mm256_permute2f128_ps::<0x20>(fours[j], fours[j + 4]);
            columns[j + 4] = _mm256_permute2f128_ps::<0x31>(fours[j], fours[j + 4]);
        }
        columns
    }
}
