//! What a range of keys comes to, and how two neighbours become one.
//!
//! A partial result is the weighted values, as whole vectors, and a vector that begins with the largest score
//! and the sum of the weights.

use super::plan::Job;
use crate::cpu::simd::{LANES, Simd, exp_below};

/// Merges a later partial result into an earlier one.
#[inline(always)]
pub(super) fn merge<S: Simd>(s: S, left: &mut [f32], right: &[f32]) {
    let width = left.len() - LANES;
    let max = left[width].max(right[width]);
    let mut lanes = [0_f32; LANES];
    lanes[0] = left[width] - max;
    lanes[1] = right[width] - max;
    // SAFETY: `lanes` has sixteen elements.
    unsafe { s.store(lanes.as_mut_ptr(), exp_below(s, s.load(lanes.as_ptr()))) };
    let (a, b) = (s.splat(lanes[0]), s.splat(lanes[1]));
    for at in (0..left.len()).step_by(LANES) {
        // SAFETY: both are whole vectors.
        unsafe {
            let (l, r) = (
                s.load(left.as_ptr().add(at)),
                s.load(right.as_ptr().add(at)),
            );
            s.store(left.as_mut_ptr().add(at), s.fma(l, a, s.mul(r, b)));
        }
    }
    // The sum was merged with the values, and so was the largest score, which has a rule of its own.
    left[width] = max;
}

/// Partial results of whole subtrees, the largest first: a binary counter of what was pushed. An entry has one
/// for each of several heads.
pub(super) struct Stack<'a> {
    floats: &'a mut [f32],
    heads: usize,
    /// Floats of a partial result.
    len: usize,
    /// Entries, and how many were pushed.
    depth: usize,
    pushed: usize,
}

impl<'a> Stack<'a> {
    /// An empty stack.
    pub(super) fn new(floats: &'a mut [f32], heads: usize, len: usize) -> Self {
        Self {
            floats,
            heads,
            len,
            depth: 0,
            pushed: 0,
        }
    }

    /// Room for an entry, which is pushed once it is written.
    pub(super) fn top(&mut self) -> &mut [f32] {
        &mut self.floats[self.depth * self.heads * self.len..][..self.heads * self.len]
    }

    /// Pushes the entry on top, and merges what has become whole.
    #[inline(always)]
    pub(super) fn push<S: Simd>(&mut self, s: S) {
        self.depth += 1;
        self.pushed += 1;
        for _ in 0..self.pushed.trailing_zeros() {
            self.fold(s);
        }
    }

    /// The result of all.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(&mut self, s: S) -> &mut [f32] {
        while self.depth > 1 {
            self.fold(s);
        }
        &mut self.floats[..self.heads * self.len]
    }

    #[inline(always)]
    fn fold<S: Simd>(&mut self, s: S) {
        self.depth -= 1;
        let entry = self.heads * self.len;
        let (below, above) = self.floats.split_at_mut(self.depth * entry);
        let below = below[(self.depth - 1) * entry..].chunks_exact_mut(self.len);
        for (left, right) in below.zip(above.chunks_exact(self.len)) {
            merge(s, left, right);
        }
    }
}

/// Writes the mean of the values to row `at.0`, head `at.1`.
#[inline(always)]
pub(super) fn put<S: Simd>(s: S, job: &Job<'_>, at: (usize, usize), partial: &mut [f32]) {
    let (width, size) = (job.width(), job.cache.head_size);
    let sum = s.splat(partial[width + 1]);
    for chunk in partial[..width].chunks_exact_mut(LANES) {
        // SAFETY: the chunk has sixteen elements.
        unsafe {
            let value = s.add(s.load(chunk.as_ptr()), s.splat(0.0));
            s.store(chunk.as_mut_ptr(), s.div(value, sum));
        }
    }
    job.out.put_part(s, at.0, at.1 * size, &partial[..size]);
}
