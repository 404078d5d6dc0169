//! AVX512-BF16: AVX-512 VNNI with a two-way bf16 dot product.

use std::arch::x86_64::{__m512, __m512bh, __m512i, _mm512_dpbf16_ps};
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
