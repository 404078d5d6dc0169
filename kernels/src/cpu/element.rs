//! The types of stored elements, and how they become f32.

use half::{bf16, f16};

use super::simd::Simd;
use crate::dtype::DType;

/// Writes sixteen floats, rounded to a type of floats.
///
/// # Safety
/// Sixteen elements of `dtype` must be writable.
#[inline(always)]
pub(super) unsafe fn store<S: Simd>(s: S, dtype: DType, p: *mut u8, v: S::F) {
    // SAFETY: the caller promises sixteen.
    unsafe {
        match dtype {
            DType::F32 => s.store(p.cast(), v),
            DType::Bf16 => s.store_bf16(p.cast(), v),
            _ => s.store_f16(p.cast(), v),
        }
    }
}

/// An element of rows or of the cache.
pub(super) trait Element: Copy {
    /// The type.
    const DTYPE: DType;

    /// Sixteen of them as floats.
    ///
    /// # Safety
    /// Sixteen must be readable.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F;

    /// It alone as a float.
    fn widen(self) -> f32;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F {
        // SAFETY: the caller promises sixteen.
        unsafe { s.load(p) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F {
        // SAFETY: the caller promises sixteen.
        unsafe { s.load_f16(p.cast()) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F {
        // SAFETY: the caller promises sixteen.
        unsafe { s.load_bf16(p.cast()) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Element for i8 {
    const DTYPE: DType = DType::I8;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F {
        // SAFETY: the caller promises sixteen.
        unsafe { s.load_i8(p) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from(self)
    }
}
