//! The steps of weight tiles (`pack.rs`) as floats.

use super::simd::Simd;

/// How one step of a tile becomes floats.
pub(super) trait FloatTile {
    /// Columns of a step, at most eight.
    const COLUMNS: usize;
    /// Bytes of a step.
    const BYTES: usize;

    /// The columns of a step; those beyond `COLUMNS` repeat others.
    ///
    /// # Safety
    /// `BYTES` must be readable.
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> [S::F; 8];
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
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> [S::F; 8] {
        // SAFETY: the caller promises 64 bytes.
        [unsafe { s.load(p.cast()) }; 8]
    }
}

impl FloatTile for DenseF16 {
    const COLUMNS: usize = 1;
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> [S::F; 8] {
        // SAFETY: the caller promises 32 bytes.
        [unsafe { s.load_f16(p.cast()) }; 8]
    }
}

impl FloatTile for DenseBf16 {
    const COLUMNS: usize = 2;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> [S::F; 8] {
        // SAFETY: the caller promises 64 bytes.
        let [a, b] = unsafe { s.load_bf16_pairs(p) };
        [a, b, a, b, a, b, a, b]
    }
}

impl FloatTile for Int8 {
    const COLUMNS: usize = 4;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> [S::F; 8] {
        // SAFETY: the caller promises 64 bytes.
        let [a, b, c, d] = unsafe { s.load_quads_f32(p) };
        [a, b, c, d, a, b, c, d]
    }
}

impl FloatTile for Int4 {
    const COLUMNS: usize = 8;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> [S::F; 8] {
        // SAFETY: the caller promises 64 bytes.
        unsafe { s.load_octets_f32(p) }
    }
}
