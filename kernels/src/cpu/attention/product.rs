//! The products of prompts, in words of four bytes: floats, or pairs of bf16.

use crate::cpu::product::one_by_one;
use crate::cpu::simd::{LANES, Simd};

use super::plan::TILE_ROWS;

/// What a word is. Products go along pairs of elements, the odd one first.
pub(super) trait Word: Copy + Send + Sync + 'static {
    /// A vector of words, one for each row.
    type Lanes<S: Simd>: Copy;
    /// A word that all rows share.
    type One<S: Simd>: Copy;

    /// Words of a pair.
    const SPAN: usize;
    /// Where the odd and the even element of a pair lie: the word, and its bits.
    const PARTS: [(usize, u32); 2];

    /// # Safety
    /// 64 bytes must be readable.
    unsafe fn lanes<S: Simd>(s: S, p: *const f32) -> Self::Lanes<S>;
    /// # Safety
    /// Four bytes must be readable.
    unsafe fn one<S: Simd>(s: S, p: *const f32) -> Self::One<S>;
    fn add<S: Simd>(s: S, acc: S::F, lanes: Self::Lanes<S>, one: Self::One<S>) -> S::F;
    /// Writes the two weights of each row, `first` being those of the even key; rounded, where words are bf16.
    ///
    /// # Safety
    /// [`Word::SPAN`] vectors, [`TILE_ROWS`] apart, must be writable.
    unsafe fn put<S: Simd>(s: S, p: *mut f32, first: S::F, second: S::F);
}

/// A float.
#[derive(Clone, Copy)]
pub(super) struct Float;

/// A pair of bf16.
#[derive(Clone, Copy)]
pub(super) struct Pair;

impl Word for Float {
    type Lanes<S: Simd> = S::F;
    type One<S: Simd> = S::F;

    const SPAN: usize = 2;
    const PARTS: [(usize, u32); 2] = [(1, u32::MAX), (0, u32::MAX)];

    #[inline(always)]
    unsafe fn lanes<S: Simd>(s: S, p: *const f32) -> S::F {
        // SAFETY: the caller promises 64 bytes.
        unsafe { s.load(p) }
    }

    #[inline(always)]
    unsafe fn one<S: Simd>(s: S, p: *const f32) -> S::F {
        // SAFETY: the caller promises four bytes.
        s.splat(unsafe { p.read() })
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, acc: S::F, lanes: S::F, one: S::F) -> S::F {
        s.fma(lanes, one, acc)
    }

    #[inline(always)]
    unsafe fn put<S: Simd>(s: S, p: *mut f32, first: S::F, second: S::F) {
        // SAFETY: the caller promises two vectors.
        unsafe {
            s.store(p, first);
            s.store(p.add(TILE_ROWS), second);
        }
    }
}

impl Word for Pair {
    type Lanes<S: Simd> = S::Pairs;
    type One<S: Simd> = S::Two;

    const SPAN: usize = 1;
    const PARTS: [(usize, u32); 2] = [(0, 0xffff_0000), (0, 0x0000_ffff)];

    #[inline(always)]
    unsafe fn lanes<S: Simd>(s: S, p: *const f32) -> S::Pairs {
        // SAFETY: the caller promises 64 bytes.
        unsafe { s.load_pairs(p.cast()) }
    }

    #[inline(always)]
    unsafe fn one<S: Simd>(s: S, p: *const f32) -> S::Two {
        // SAFETY: the caller promises four bytes.
        unsafe { s.load_two(p.cast()) }
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, acc: S::F, lanes: S::Pairs, one: S::Two) -> S::F {
        s.dot_pairs(acc, lanes, one)
    }

    #[inline(always)]
    unsafe fn put<S: Simd>(s: S, p: *mut f32, first: S::F, second: S::F) {
        // SAFETY: the caller promises 64 bytes.
        unsafe { s.store_pairs(p.cast(), first, second) }
    }
}

/// Words that rows share, for `C` outputs: those of an output are `along` apart, those of neighbours `across`.
#[derive(Clone, Copy)]
pub(super) struct Ones {
    pub(super) words: *const f32,
    pub(super) along: usize,
    pub(super) across: usize,
}

/// The products of `R` vectors of rows with `C` outputs, over `pairs` pairs.
///
/// # Safety
/// `lanes` must have `pairs * SPAN` rows of words, [`TILE_ROWS`] apart, of `R` vectors each, and `ones` as
/// many words for each output.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd, W: Word, const R: usize, const C: usize>(
    s: S,
    pairs: usize,
    lanes: *const f32,
    ones: Ones,
) -> [[S::F; R]; C] {
    let mut acc = [[s.splat(0.0); R]; C];
    for pair in 0..pairs {
        for part in (0..W::SPAN).rev() {
            let step = pair * W::SPAN + part;
            // SAFETY: the caller promises the words of this step.
            unsafe {
                let row = lanes.add(step * TILE_ROWS);
                let mut vectors = [W::lanes(s, row); R];
                for r in 1..R {
                    vectors[r] = W::lanes(s, row.add(r * LANES));
                }
                for c in 0..C {
                    let one = W::one(s, ones.words.add(step * ones.along + c * ones.across));
                    for r in 0..R {
                        acc[c][r] = W::add(s, acc[c][r], vectors[r], one);
                    }
                }
            }
            one_by_one::<S, C>();
        }
    }
    acc
}
