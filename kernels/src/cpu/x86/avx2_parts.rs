//! What the operations of AVX2 (`avx2.rs`) are made of.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "one proof for the file: a value of `Avx2` exists only where its instructions are there; pointers \
              are the caller's promise, as each operation says"
)]
#![allow(
    clippy::wildcard_imports,
    reason = "intrinsics are the vocabulary of this file; the lint is silent in tests"
)]

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx2::Avx2;
use crate::cpu::product::one_by_one;
use crate::cpu::simd::Simd;

impl<const VNNI: bool> Avx2<VNNI> {
    #[inline(always)]
    pub(super) fn widen_bf16(self, v: __m256i) -> [__m256; 2] {
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(v));
            let high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256::<1>(v));
            [low, high].map(|half| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(half)))
        }
    }

    #[inline(always)]
    pub(super) fn narrow_bf16(self, v: __m256) -> __m256i {
        unsafe {
            let bits = _mm256_castps_si256(v);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
        }
    }

    /// Adds the four products of each lane. The magnitudes of the weights meet the activations with the signs
    /// of the weights: two products, at most 2 * 128 * 127, fit 16 bits. An activation of -128 has no
    /// opposite: such rows are for another level (`linear.rs`).
    #[inline(always)]
    pub(super) fn add_products(self, acc: __m256i, weights: __m256i, four: __m256i) -> __m256i {
        unsafe {
            let signed = _mm256_sign_epi8(four, weights);
            self.add_pairs(acc, _mm256_maddubs_epi16(_mm256_abs_epi8(weights), signed))
        }
    }

    /// Byte `C % 4` of each lane.
    #[inline(always)]
    pub(super) fn byte_to_f32<const C: usize>(self, v: __m256i) -> __m256 {
        unsafe {
            let top = match C % 4 {
                0 => _mm256_slli_epi32::<24>(v),
                1 => _mm256_slli_epi32::<16>(v),
                2 => _mm256_slli_epi32::<8>(v),
                _ => v,
            };
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(top))
        }
    }

    /// Column `C` of the octet of each lane. Nibbles are values + 8: with the other highest bit they are values.
    #[inline(always)]
    pub(super) fn nibble_to_f32<const C: usize>(self, v: __m256i, half: usize) -> __m256 {
        unsafe {
            let signs: *const __m256i = (&raw const (*unknown(&NUMBERS)).signs).cast();
            let v = _mm256_xor_si256(v, *signs.add(half));
            let top = match C {
                0 => _mm256_slli_epi32::<28>(v),
                1 => _mm256_slli_epi32::<20>(v),
                2 => _mm256_slli_epi32::<12>(v),
                3 => _mm256_slli_epi32::<4>(v),
                4 => _mm256_slli_epi32::<24>(v),
                5 => _mm256_slli_epi32::<16>(v),
                6 => _mm256_slli_epi32::<8>(v),
                _ => v,
            };
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<28>(top))
        }
    }

    /// The nibbles of each byte that lie low, 8 taken off.
    #[inline(always)]
    pub(super) fn nibbles(self, v: __m256i) -> __m256i {
        unsafe {
            let numbers = unknown(&NUMBERS);
            let low: *const __m256i = (&raw const (*numbers).low_nibbles).cast();
            let eights: *const __m256i = (&raw const (*numbers).eights).cast();
            _mm256_sub_epi8(_mm256_and_si256(v, *low), *eights)
        }
    }

    /// The products of unsigned activations and nibbles in pairs: at most 2 * 255 * 8, so that sums of eight fit
    /// 16 bits.
    #[inline(always)]
    pub(super) fn nibble_products(self, weights: __m256i, four: __m256i) -> __m256i {
        unsafe { _mm256_maddubs_epi16(four, weights) }
    }

    /// Adds the products of one unit of some rows and the nibbles it meets, in 16 bits.
    #[inline(always)]
    pub(super) unsafe fn add_short<const R: usize, const T: usize, const HIGH: bool>(
        self,
        short: &mut [[[__m256i; 2]; T]; R],
        tiles: [*const u8; T],
        panel: *const u8,
    ) {
        unsafe {
            for t in 0..T {
                let weights = self.load_octets::<HIGH>(tiles[t]);
                for r in 0..R {
                    let four = self.unsigned(self.load_four(panel.add(4 * r)));
                    for half in 0..2 {
                        let products = self.nibble_products(weights[half], four);
                        short[r][t][half] = _mm256_add_epi16(short[r][t][half], products);
                    }
                }
            }
        }
        one_by_one::<Self, R>();
    }

    /// Activations as they are stored, offset by 128.
    #[inline(always)]
    pub(super) fn unsigned(self, four: __m256i) -> __m256i {
        unsafe {
            let offsets: *const __m256i = (&raw const (*unknown(&NUMBERS)).offsets).cast();
            _mm256_xor_si256(four, *offsets)
        }
    }

    #[inline(always)]
    pub(super) fn add_pairs(self, acc: __m256i, pairs: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))) }
    }
}

/// Numbers that operate from memory where registers are wanted for others.
#[repr(C, align(32))]
struct Numbers {
    /// The low nibble of each byte.
    low_nibbles: [u8; 32],
    eights: [u8; 32],
    /// 128 in each byte.
    offsets: [u8; 32],
    /// The highest bit of each nibble, twice: what is read at two places is kept at none.
    signs: [u8; 64],
}

static NUMBERS: Numbers = Numbers {
    low_nibbles: [0x0f; 32],
    eights: [8; 32],
    offsets: [0x80; 32],
    signs: [0x88; 64],
};

/// The same address, as one of which the compiler knows nothing: what lies there is a constant no more, which it
/// would keep in a register.
#[inline(always)]
#[expect(
    clippy::pointers_in_nomem_asm_block,
    reason = "no instruction is there: nothing is read or written through it"
)]
fn unknown<T>(known: &'static T) -> *const T {
    let mut address: *const T = known;
    unsafe {
        asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags));
    }
    address
}

/// Steps of nibbles whose sums fit 16 bits.
pub(super) const SHORT_STEPS: usize = 4;
