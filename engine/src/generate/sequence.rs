//! The state of one request: its tokens, what is computed, where its keys and values are.

use std::sync::Arc;

use cider_kernels::Phase;

use super::images::{self, PromptImage};

/// A sequence of tokens, the first of which are the prompt.
#[derive(Debug)]
pub struct Sequence {
    tokens: Vec<u32>,
    prompt: usize,
    images: Vec<PromptImage>,
    /// Time, row and column of the prompt's tokens; empty without images.
    positions: Vec<[u32; 3]>,
    /// What a place behind the prompt's is moved by.
    delta: i64,
    pub(crate) computed: usize,
    pub(super) blocks: Vec<u32>,
}

impl Sequence {
    /// A sequence that begins with `prompt` and has room to grow to `capacity` tokens.
    #[must_use]
    pub fn new(prompt: &[u32], capacity: usize) -> Self {
        Self::with_prompt(prompt, prompt.len(), capacity)
    }

    /// A sequence whose first `prompt` tokens are the prompt and the others count as generated.
    #[must_use]
    pub fn with_prompt(tokens: &[u32], prompt: usize, capacity: usize) -> Self {
        let capacity = capacity.min(MOST_RESERVED).max(tokens.len());
        let mut all = Vec::with_capacity(capacity);
        all.extend_from_slice(tokens);
        let blocks = Vec::with_capacity(capacity.div_ceil(cider_kernels::KV_BLOCK));
        Self {
            tokens: all,
            prompt: prompt.min(tokens.len()),
            images: Vec::new(),
            positions: Vec::new(),
            delta: 0,
            computed: 0,
            blocks,
        }
    }

    /// The same sequence with images among the tokens of its prompt, in the order of their places.
    #[must_use]
    pub fn with_images(mut self, images: Vec<PromptImage>) -> Self {
        self.set_images(images);
        self
    }

    /// The images of the prompt.
    #[must_use]
    pub fn images(&self) -> &[PromptImage] {
        &self.images
    }

    /// Time, row and column of the token at `place`: its place three times where there are no images before.
    #[must_use]
    pub fn position(&self, place: usize) -> [u32; 3] {
        match self.positions.get(place) {
            Some(position) => *position,
            // Positions lag behind places and never fall below zero: an image is at least as many tokens as
            // its longer side.
            None => [(place as i64 + self.delta).max(0) as u32; 3],
        }
    }

    /// All tokens.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens of the prompt.
    #[must_use]
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt]
    }

    /// The tokens after the prompt.
    #[must_use]
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// How many tokens have their keys and values in the cache.
    #[must_use]
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// Appends a generated token.
    pub fn push(&mut self, id: u32) {
        self.tokens.push(id);
    }

    /// The phase of the token at `place`.
    #[must_use]
    pub fn phase(&self, place: usize) -> Phase {
        if place < self.prompt {
            Phase::Prompt
        } else {
            Phase::Generated
        }
    }

    /// Becomes the sequence of another prompt and keeps what both prompts begin with, images compared by what
    /// they are; tokens that were generated before are computed again, as prompt tokens.
    pub fn restart(&mut self, prompt: &[u32], images: Vec<PromptImage>) {
        let old = &self.tokens[..self.prompt.min(self.computed)];
        let mut same = old.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let pairs = self.images.iter().zip(&images);
        let equal = |(a, b): &(&PromptImage, &PromptImage)| {
            a.start == b.start && Arc::ptr_eq(&a.features, &b.features)
        };
        let kept = pairs.take_while(equal).count();
        for images in [&self.images, &images] {
            same = same.min(images.get(kept).map_or(same, |image| image.start));
        }
        self.computed = same;
        self.tokens.clear();
        self.tokens.extend_from_slice(prompt);
        self.prompt = prompt.len();
        self.set_images(images);
    }

    /// Makes room for `more` tokens.
    pub(crate) fn reserve(&mut self, more: usize) {
        let tokens = self.tokens.len() + more.min(MOST_RESERVED);
        self.tokens.reserve(tokens - self.tokens.len());
        let blocks = tokens.div_ceil(cider_kernels::KV_BLOCK);
        self.blocks
            .reserve(blocks.saturating_sub(self.blocks.len()));
    }

    /// Blocks of the cache that it holds.
    pub(crate) fn held_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Sets the images of the prompt, in the order of their places.
    pub(crate) fn set_images(&mut self, images: Vec<PromptImage>) {
        (self.positions, self.delta) = if images.is_empty() {
            (Vec::new(), 0)
        } else {
            images::positions(self.prompt, &images)
        };
        self.images = images;
    }
}

/// Tokens that room is made for ahead of time; longer sequences grow.
const MOST_RESERVED: usize = 1 << 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_split_at_the_prompt() {
        let mut sequence = Sequence::new(&[1, 2], 8);
        sequence.push(3);
        assert_eq!(sequence.generated(), [3]);
        assert_eq!(
            [0, 1, 2].map(|i| sequence.phase(i) == Phase::Prompt),
            [true, true, false]
        );
    }

    #[test]
    fn a_restart_keeps_only_what_both_prompts_share() {
        let mut sequence = Sequence::new(&[1, 2, 3], 8);
        sequence.push(4);
        sequence.computed = 4;
        sequence.restart(&[1, 2, 3, 4, 5], Vec::new());
        assert_eq!((sequence.computed(), sequence.prompt().len()), (3, 5));
        sequence.restart(&[1, 9], Vec::new());
        assert_eq!(sequence.computed(), 1);
    }
}
