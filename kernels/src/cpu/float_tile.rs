//! The steps of weight tiles (`pack.rs`) as floats.

use super::simd::Simd;

/// How one step of a tile becomes floats.
pub(super) trait FloatTile {
    /// Columns of a step, at most eight.
    const COLUMNS: usize;
    /// Bytes of a step.
    const BYTES: usize;

    /// Column `C` of a step.
    ///
    /// # Safety
    /// `BYTES` must be readable.
    unsafe fn load<S: Simd, const C: usize>(s: S, p: *const u8) -> S::F;
}

/// Dense f32.
pub(super) struct DenseF32;
/// Dense f16.
pub(super) struct DenseF16;
/// Dense bf16, two columns at a time.
pub(super) struct DenseBf16;
/// 8-bit integers, four columns at a time.
pub(super) struct Int8;
/// 4-bit integers, eight columns at a time.
pub(super) struct Int4;

impl FloatTile for DenseF32 {
    const COLUMNS: usize = 1;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load<S: Simd, const C: usize>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller promises 64 bytes.
        unsafe { s.load(p.cast()) }
    }
}

impl FloatTile for DenseF16 {
    const COLUMNS: usize = 1;
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load<S: Simd, const C: usize>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller promises 32 bytes.
        unsafe { s.load_f16(p.cast()) }
    }
}

impl FloatTile for DenseBf16 {
    const COLUMNS: usize = 2;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load<S: Simd, const C: usize>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller promises 64 bytes.
        let pair = unsafe { s.load_bf16_pairs(p) };
        pair[C % 2]
    }
}

impl FloatTile for Int8 {
    const COLUMNS: usize = 4;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load<S: Simd, const C: usize>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller promises 64 bytes.
        unsafe { s.load_quads_f32::<C>(p) }
    }
}

impl FloatTile for Int4 {
    const COLUMNS: usize = 8;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load<S: Simd, const C: usize>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller promises 64 bytes.
        unsafe { s.load_octets_f32::<C>(p) }
    }
}
