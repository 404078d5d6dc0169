//! x86-64 levels.

pub(crate) mod avx2;
mod avx2_parts;
pub(crate) mod avx512_bf16;
pub(crate) mod avx512_vnni;
pub(crate) mod avx_vnni;
pub(crate) mod peak;

/// What both levels of AVX-512 need, and whether this machine has it.
pub(crate) fn avx512_features() -> Vec<(&'static str, bool)> {
    vec![
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512dq", is_x86_feature_detected!("avx512dq")),
        ("avx512vl", is_x86_feature_detected!("avx512vl")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
    ]
}
