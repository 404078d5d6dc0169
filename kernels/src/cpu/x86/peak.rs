//! Loops that keep the dot-product units busy and do nothing else.
//!
//! They are assembly, not code over `Simd`: a compiler sees that such loops compute nothing and folds or hoists
//! what they are there to time, and it alone decides what stays in registers. No function here needs its features
//! enabled to be compiled, so nothing of the surrounding code uses the registers they leave in disorder.

use std::arch::asm;

use crate::cpu::ceilings::{Busy, Peaks};

/// Twelve independent chains of `$step` on registers `$register` (the step names its accumulator `\r`); operands
/// are in registers 14 and 15, 13 is free.
macro_rules! busy {
    ($name:ident, $register:literal, [$($step:literal),+]) => {
        unsafe fn $name(rounds: u64, left: u32, right: u32) {
            // SAFETY: the caller promises the instructions; all registers that are written are declared, as their
            // lower parts: no code around holds anything in the upper ones.
            unsafe {
                asm!(
                    "vmovd xmm14, {left:e}",
                    "vmovd xmm15, {right:e}",
                    concat!("vpbroadcastd ", $register, "14, xmm14"),
                    concat!("vpbroadcastd ", $register, "15, xmm15"),
                    ".irp r, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11",
                    "vpxor xmm\\r, xmm\\r, xmm\\r",
                    ".endr",
                    ".p2align 5",
                    "2:",
                    ".irp r, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11",
                    $($step,)+
                    ".endr",
                    "dec {rounds}",
                    "jnz 2b",
                    "vzeroupper",
                    rounds = inout(reg) rounds.max(1) => _,
                    left = in(reg) left,
                    right = in(reg) right,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nomem, nostack),
                );
            }
        }
    };
}

busy!(dot_512, "zmm", ["vpdpbusd zmm\\r, zmm14, zmm15"]);
busy!(dot_256, "ymm", ["{{vex}} vpdpbusd ymm\\r, ymm14, ymm15"]);
// Without a four-way dot product, exact sums go by pairs of 16 bits.
busy!(
    pairs_256,
    "ymm",
    [
        "vpmaddwd ymm13, ymm14, ymm15",
        "vpaddd ymm\\r, ymm\\r, ymm13"
    ]
);
busy!(bf16_512, "zmm", ["vdpbf16ps zmm\\r, zmm14, zmm15"]);
busy!(fma_512, "zmm", ["vfmadd231ps zmm\\r, zmm14, zmm15"]);
busy!(fma_256, "ymm", ["vfmadd231ps ymm\\r, ymm14, ymm15"]);

/// What AVX2 has.
pub(crate) const AVX2: Peaks = Peaks {
    int8: Busy::new(pairs_256, CHAINS * 16, BYTES),
    bf16: None,
    f32: Busy::new(fma_256, CHAINS * 8, FLOATS),
};

/// What AVX2 with AVX-VNNI has.
pub(crate) const AVX_VNNI: Peaks = Peaks {
    int8: Busy::new(dot_256, CHAINS * 32, BYTES),
    ..AVX2
};

/// What AVX-512 with VNNI has.
pub(crate) const AVX512_VNNI: Peaks = Peaks {
    int8: Busy::new(dot_512, CHAINS * 64, BYTES),
    bf16: None,
    f32: Busy::new(fma_512, CHAINS * 16, FLOATS),
};

/// What AVX-512 with VNNI and the bf16 dot product has.
pub(crate) const AVX512_BF16: Peaks = Peaks {
    bf16: Some(Busy::new(bf16_512, CHAINS * 32, HALVES)),
    ..AVX512_VNNI
};

/// Independent accumulators: two pipes of five cycles need ten.
const CHAINS: u64 = 12;
/// Four bytes of some size: zeros would draw less current and clock higher than real data.
const BYTES: [u32; 2] = [0x91d3_57a5, 0x35f1_9b4d];
/// Twice 1 and about 0.001 as bf16: sums stay normal numbers.
const HALVES: [u32; 2] = [0x3f80_3f80, 0x3a83_3a83];
/// 1 and about 0.001 as f32.
const FLOATS: [u32; 2] = [0x3f80_0000, 0x3a83_126f];
