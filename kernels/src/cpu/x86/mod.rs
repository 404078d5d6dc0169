//! x86-64 levels.

pub(crate) mod avx2;
pub(crate) mod avx512_bf16;
pub(crate) mod avx512_vnni;
pub(crate) mod avx_vnni;
pub(crate) mod peak;
