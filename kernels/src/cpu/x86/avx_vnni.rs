//! AVX-VNNI: AVX2 with a four-way byte dot product.

use std::arch::x86_64::{__m256i, _mm256_dpbusd_avx_epi32};

use super::avx2::Avx2;
use crate::cpu::simd::Kernel;

/// Runs `kernel` with AVX2 and AVX-VNNI.
///
/// # Safety
/// The CPU must have AVX2, FMA, F16C and AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<true>(()))
}

/// The same as a function of its own: what is compiled many times has its own registers and stack.
///
/// # Safety
/// As for [`run`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(crate) unsafe fn apart<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<true>(()))
}

/// Adds the dot products of unsigned activations and signed weights.
///
/// # Safety
/// The CPU must have AVX-VNNI.
#[inline(always)]
pub(super) unsafe fn dot(acc: [__m256i; 2], weights: [__m256i; 2], four: __m256i) -> [__m256i; 2] {
    // SAFETY: the caller promises AVX-VNNI.
    unsafe {
        [
            _mm256_dpbusd_avx_epi32(acc[0], four, weights[0]),
            _mm256_dpbusd_avx_epi32(acc[1], four, weights[1]),
        ]
    }
}
