//! Element types of buffers.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 16-bit brain float.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// Signed 32-bit integer.
    I32,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer, also raw bytes.
    U8,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }

    /// Whether it is one of the three float types.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Bf16 | Self::F16 | Self::F32)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::I8 => "i8",
            Self::U8 => "u8",
        })
    }
}

/// A Rust type that is the element of a tensor.
pub trait Element: Pod + Send + Sync {
    /// Its name at run time.
    const DTYPE: DType;
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for i32 {
    const DTYPE: DType = DType::I32;
}

impl Element for i8 {
    const DTYPE: DType = DType::I8;
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;
}
