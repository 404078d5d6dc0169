//! AVX-512 with VNNI: sixteen lanes in one register. With `BF16`, the dot product of AVX512-BF16.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "one proof for the file: a value of `Avx512` exists only inside `run`, whose features are \
              those of every intrinsic here; pointers are the caller's promise, as each method says"
)]
#![allow(
    clippy::wildcard_imports,
    reason = "intrinsics are the vocabulary of this file; the lint is silent in tests"
)]

use std::arch::x86_64::*;

use crate::cpu::simd::{Kernel, Simd};

/// Runs `kernel` with AVX-512 VNNI.
///
/// # Safety
/// The CPU must have AVX-512 F, BW, DQ, VL and VNNI, and AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false>(()))
}

/// The same as a function of its own: what is compiled many times has its own registers and stack.
///
/// # Safety
/// As for [`run`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn apart<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false>(()))
}

/// The vector operations of AVX-512; `BF16` takes the dot product of AVX512-BF16.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool>(pub(super) ());

impl<const BF16: bool> Avx512<BF16> {
    /// Byte `C % 4` of each lane.
    #[inline(always)]
    fn byte_to_f32<const C: usize>(self, v: __m512i) -> __m512 {
        unsafe {
            let top = match C % 4 {
                0 => _mm512_slli_epi32::<24>(v),
                1 => _mm512_slli_epi32::<16>(v),
                2 => _mm512_slli_epi32::<8>(v),
                _ => v,
            };
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top))
        }
    }

    /// The halves of each lane as two floats.
    #[inline(always)]
    fn widen_pairs(self, v: __m512i) -> [__m512; 2] {
        unsafe {
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)),
                _mm512_castsi512_ps(_mm512_and_si512(v, high)),
            ]
        }
    }
}

impl<const BF16: bool> Simd for Avx512<BF16> {
    type F = __m512;
    type I = __m512i;
    type Quads = __m512i;
    type Four = __m512i;
    type Acc = __m512i;
    type Pairs = __m512i;
    type Two = __m512i;

    const WIDE: bool = true;
    const BIAS: u8 = 0x80;
    const BF16_DOT: bool = BF16;
    const ROWS: usize = 12;
    const INT_ROWS: usize = 12;
    const TILES: usize = 2;
    const TILES_OF_ONE: usize = 4;
    const INT_TILES_OF_ONE: usize = 2;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        unsafe {
            if BF16 {
                super::avx512_bf16::apart(kernel)
            } else {
                apart(kernel)
            }
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: __m512) {
        // Not the bf16 conversion instruction: it flushes subnormals.
        unsafe {
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
            let narrow = _mm512_srli_epi32::<16>(_mm512_mask_mov_epi32(rounded, nan, quiet));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(narrow));
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m512) {
        unsafe {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        }
    }

    #[inline(always)]
    unsafe fn load_bf16_pairs(self, p: *const u8) -> [__m512; 2] {
        self.widen_pairs(unsafe { _mm512_loadu_si512(p.cast()) })
    }

    #[inline(always)]
    unsafe fn load_quads_f32<const C: usize>(self, p: *const u8) -> __m512 {
        self.byte_to_f32::<C>(unsafe { _mm512_loadu_si512(p.cast()) })
    }

    #[inline(always)]
    unsafe fn load_octets_f32<const C: usize>(self, p: *const u8) -> __m512 {
        let quads = unsafe {
            if C < 4 {
                self.load_octets::<false>(p)
            } else {
                self.load_octets::<true>(p)
            }
        };
        self.byte_to_f32::<C>(quads)
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }

    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        unsafe { _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), yes) }
    }

    #[inline(always)]
    fn round(self, a: __m512) -> __m512i {
        unsafe { _mm512_cvtps_epi32(a) }
    }

    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn pow2(self, n: __m512i) -> __m512 {
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(
                n,
                _mm512_set1_epi32(127),
            )))
        }
    }

    #[inline(always)]
    fn reduce_add(self, a: __m512) -> f32 {
        unsafe {
            let high = _mm512_extractf32x8_ps::<1>(a);
            let eight = _mm256_add_ps(_mm512_castps512_ps256(a), high);
            let four = _mm_add_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn zero_i32(self) -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn max_magnitude(self, acc: __m512i, v: __m512) -> __m512i {
        unsafe { _mm512_max_epi32(acc, _mm512_castps_si512(_mm512_abs_ps(v))) }
    }

    #[inline(always)]
    fn reduce_max_i32(self, a: __m512i) -> i32 {
        unsafe { _mm512_reduce_max_epi32(a) }
    }

    #[inline(always)]
    unsafe fn store_i32(self, p: *mut i32, v: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }

    #[inline(always)]
    unsafe fn store_i8(self, p: *mut u8, v: __m512i, biased: bool) {
        unsafe {
            let (low, high) = (_mm512_set1_epi32(-127), _mm512_set1_epi32(127));
            let bytes = _mm512_cvtepi32_epi8(_mm512_min_epi32(_mm512_max_epi32(v, low), high));
            let bias = if biased { Self::BIAS } else { 0 };
            _mm_storeu_si128(p.cast(), _mm_xor_si128(bytes, _mm_set1_epi8(bias as i8)));
        }
    }

    #[inline(always)]
    unsafe fn load_quads(self, p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store_quads(self, p: *mut u8, v: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }

    #[inline(always)]
    unsafe fn load_octets<const HIGH: bool>(self, p: *const u8) -> __m512i {
        unsafe {
            let mut v = _mm512_loadu_si512(p.cast());
            if HIGH {
                v = _mm512_srli_epi16::<4>(v);
            }
            let (mask, eight) = (_mm512_set1_epi8(15), _mm512_set1_epi8(8));
            _mm512_sub_epi8(_mm512_and_si512(v, mask), eight)
        }
    }

    #[inline(always)]
    unsafe fn load_four(self, p: *const u8) -> __m512i {
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn start(self, weight_sums: *const i32) -> __m512i {
        // The activations are taken as q + 128: take 128 times the sum of the weights off.
        unsafe {
            let sums = _mm512_slli_epi32::<7>(_mm512_loadu_si512(weight_sums.cast()));
            _mm512_sub_epi32(_mm512_setzero_si512(), sums)
        }
    }

    #[inline(always)]
    fn dot(self, acc: __m512i, weights: __m512i, four: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, four, weights) }
    }

    #[inline(always)]
    fn finish(self, acc: __m512i) -> __m512i {
        acc
    }

    #[inline(always)]
    unsafe fn load_pairs(self, p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline(always)]
    fn pair(self, first: __m512, second: __m512) -> __m512i {
        unsafe {
            let first = _mm512_srli_epi32::<16>(_mm512_castps_si512(first));
            _mm512_or_si512(first, _mm512_castps_si512(second))
        }
    }

    #[inline(always)]
    unsafe fn load_octets_pairs<const U: usize>(self, p: *const u8) -> __m512i {
        unsafe {
            // A byte becomes a word, whose low five bits choose from a table of which both halves are equal:
            // the fifth bit belongs to the other nibble.
            let places = if U.is_multiple_of(2) {
                _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1)
            } else {
                _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1)
            };
            let table = _mm512_loadu_si512(NIBBLES_BF16.as_ptr().cast());
            let mut v = _mm512_loadu_si512(p.cast());
            if U >= 2 {
                v = _mm512_srli_epi16::<4>(v);
            }
            let words = _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(places));
            _mm512_permutexvar_epi16(words, table)
        }
    }

    #[inline(always)]
    unsafe fn load_two(self, p: *const u8) -> __m512i {
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    fn dot_pairs(self, acc: __m512, pairs: __m512i, two: __m512i) -> __m512 {
        if BF16 {
            return unsafe { super::avx512_bf16::dot(acc, pairs, two) };
        }
        let ([a, b], [c, d]) = (self.widen_pairs(pairs), self.widen_pairs(two));
        self.fma(a, c, self.fma(b, d, acc))
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    fn round_bf16(self, v: __m512) -> __m512 {
        unsafe {
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            _mm512_castsi512_ps(_mm512_and_si512(rounded, high))
        }
    }

    #[inline(always)]
    unsafe fn store_pairs(self, p: *mut u8, first: __m512, second: __m512) {
        unsafe {
            let pairs = if BF16 {
                super::avx512_bf16::round_pairs(first, second)
            } else {
                self.pair(self.round_bf16(first), self.round_bf16(second))
            };
            _mm512_storeu_si512(p.cast(), pairs);
        }
    }

    #[inline(always)]
    fn transpose(self, rows: [__m512; 16]) -> [__m512; 16] {
        unsafe {
            // Within quarters: pairs of rows, then fours of them.
            let mut fours = rows;
            for i in (0..16).step_by(4) {
                let [a, b, c, d] = [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]];
                let (low, high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (next_low, next_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                let (low, high) = (_mm512_castps_pd(low), _mm512_castps_pd(high));
                let next_low = _mm512_castps_pd(next_low);
                let next_high = _mm512_castps_pd(next_high);
                fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, next_low));
                fours[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, next_low));
                fours[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, next_high));
                fours[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, next_high));
            }
            // Quarters among the fours: column 4 q + j gathers quarter q of vector j of each four.
            let mut columns = rows;
            for j in 0..4 {
                let [a, b, c, d] = [fours[j], fours[j + 4], fours[j + 8], fours[j + 12]];
                let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
                let odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
                let next_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(c, d);
                let next_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(c, d);
                columns[j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(even, next_even);
                columns[8 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(even, next_even);
                columns[4 + j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(odd, next_odd);
                columns[12 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(odd, next_odd);
            }
            columns
        }
    }

    /// Each level of the sum brings two vectors into one: half of the shuffles of a transposition.
    #[inline(always)]
    fn reduce_add_each(self, v: [__m512; 16]) -> __m512 {
        unsafe {
            let mut fours = [_mm512_setzero_ps(); 4];
            for (i, four) in fours.iter_mut().enumerate() {
                let (low, high) = (add_halves(v[i], v[i + 4]), add_halves(v[i + 8], v[i + 12]));
                *four = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high),
                    _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high),
                );
            }
            let (even, odd) = (add_pairs(fours[0], fours[1]), add_pairs(fours[2], fours[3]));
            _mm512_add_ps(
                _mm512_shuffle_ps::<0b10_00_10_00>(even, odd),
                _mm512_shuffle_ps::<0b11_01_11_01>(even, odd),
            )
        }
    }
}

/// The upper eight lanes added to the lower ones: of `a`, then of `b`.
#[inline(always)]
fn add_halves(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the level was found on this machine, or nobody could call its operations.
    unsafe {
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
            _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
        )
    }
}

/// In each quarter the upper two lanes added to the lower ones: of `a`, then of `b`.
#[inline(always)]
fn add_pairs(a: __m512, b: __m512) -> __m512 {
    // SAFETY: as above.
    unsafe {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    }
}

/// -8 to 7 in bf16, twice.
const NIBBLES_BF16: [u16; 32] = {
    let magnitudes = [
        0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100,
    ];
    let mut table = [0; 32];
    let mut i = 0;
    while i < 32 {
        let nibble = i % 16;
        table[i] = if nibble < 8 {
            0x8000 | magnitudes[8 - nibble]
        } else {
            magnitudes[nibble - 8]
        };
        i += 1;
    }
    table
};
