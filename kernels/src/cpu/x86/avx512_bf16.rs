//! AVX512-BF16: AVX-512 VNNI with a two-way bf16 dot product.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_si512,
    _mm512_permutexvar_epi16,
};
use std::mem::transmute;

use super::avx512_vnni::Avx512;
use crate::cpu::simd::Kernel;

/// Runs `kernel` with AVX-512 VNNI and AVX512-BF16.
///
/// # Safety
/// The CPU must have AVX-512 F, BW, DQ, VL, VNNI and BF16, and AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<true>(()))
}

/// The same as a function of its own: what is compiled many times has its own registers and stack.
///
/// # Safety
/// As for [`run`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
pub(crate) unsafe fn apart<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<true>(()))
}

/// Adds the products of the odd halves, then those of the even ones.
///
/// # Safety
/// The CPU must have AVX512-BF16.
#[inline(always)]
pub(super) unsafe fn dot(acc: __m512, pairs: __m512i, two: __m512i) -> __m512 {
    // SAFETY: the caller promises AVX512-BF16; the types are the same 64 bytes.
    unsafe {
        let (pairs, two) = (
            transmute::<__m512i, __m512bh>(pairs),
            transmute::<__m512i, __m512bh>(two),
        );
        _mm512_dpbf16_ps(acc, pairs, two)
    }
}

/// Rounds two vectors to bf16 and pairs them; subnormals become zeros.
///
/// # Safety
/// The CPU must have AVX512-BF16 and AVX-512 BW.
#[inline(always)]
pub(super) unsafe fn round_pairs(first: __m512, second: __m512) -> __m512i {
    // SAFETY: the caller promises the features; the types are the same 64 bytes.
    unsafe {
        let halves = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
        _mm512_permutexvar_epi16(_mm512_loadu_si512(PAIRED.as_ptr().cast()), halves)
    }
}

/// Element i of the first half, then element i of the second.
const PAIRED: [u16; 32] = {
    let mut places = [0; 32];
    let mut i = 0;
    while i < 16 {
        places[2 * i] = i as u16;
        places[2 * i + 1] = 16 + i as u16;
        i += 1;
    }
    places
};
