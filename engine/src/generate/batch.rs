//! What one step computes: rows of several sequences, each with its phase.

use std::ops::Range;
use std::sync::Arc;

use cider_kernels::{AttentionRun, KV_BLOCK, Phase, Tensor, TensorRef};

use super::images::ImageFeatures;
use super::sequence::Sequence;
use crate::nn::Rows;

/// Tokens of one sequence to compute in a step.
#[derive(Debug)]
pub struct Work<'a> {
    /// Whose.
    pub sequence: &'a mut Sequence,
    /// How many, from the first that is not computed.
    pub tokens: usize,
    /// Whose logits are wanted.
    pub logits: Logits,
}

/// Which tokens' logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Every token's.
    All,
    /// The last token's.
    Last,
    /// None.
    None,
}

impl Logits {
    /// How many of `tokens` tokens.
    pub(super) fn count(self, tokens: usize) -> usize {
        match self {
            Self::All => tokens,
            Self::Last => tokens.min(1),
            Self::None => 0,
        }
    }
}

/// Rows that stand for a part of an image.
#[derive(Debug)]
pub(crate) struct BatchImage {
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) features: Arc<ImageFeatures>,
    /// The image's token in the first row.
    first_token: usize,
}

impl BatchImage {
    /// The rows of one of the image's tensors that belong to this part.
    pub(crate) fn part<'a>(&self, tensor: &'a Tensor) -> TensorRef<'a> {
        tensor
            .view()
            .row_range(self.first_token..self.first_token + self.rows)
    }
}

/// The rows of a step: all prompt rows first, then all generated ones.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    ids: Vec<u32>,
    /// `[axes, rows]`.
    positions: Vec<u32>,
    /// The second and third axis, while the batch is laid out.
    later_axes: [Vec<u32>; 2],
    /// The axis of each pair of a head's elements; none where there is one axis.
    axes: Vec<u8>,
    images: Vec<BatchImage>,
    slots: Vec<u32>,
    runs: Vec<AttentionRun>,
    table: Vec<u32>,
    prompt: usize,
    /// Rows whose logits are wanted, work by work.
    logits: Vec<usize>,
    /// Per work: its first prompt row, its first generated row, its first place in `logits`.
    starts: Vec<[usize; 3]>,
}

impl Batch {
    /// Room for steps of `rows` rows of sequences that share `blocks` blocks, so that no step allocates.
    pub(super) fn with_capacity(rows: usize, blocks: usize, axes: Vec<u8>) -> Self {
        let later = if axes.is_empty() { 0 } else { rows };
        Self {
            later_axes: [Vec::with_capacity(later), Vec::with_capacity(later)],
            axes,
            images: Vec::with_capacity(rows.min(64)),
            ids: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows + 2 * later),
            slots: Vec::with_capacity(rows),
            runs: Vec::with_capacity(2 * rows),
            table: Vec::with_capacity(2 * blocks),
            prompt: 0,
            logits: Vec::with_capacity(rows),
            starts: Vec::with_capacity(rows),
        }
    }

    /// Lays the rows of a step out.
    pub(super) fn fill(&mut self, work: &[Work<'_>]) {
        self.clear();
        for item in work {
            self.starts.push([self.ids.len(), 0, 0]);
            self.add(item, Phase::Prompt);
        }
        self.prompt = self.ids.len();
        for (i, item) in work.iter().enumerate() {
            self.starts[i][1] = self.ids.len();
            self.add(item, Phase::Generated);
        }
        for axis in &self.later_axes {
            self.positions.extend_from_slice(axis);
        }
        for (i, item) in work.iter().enumerate() {
            self.starts[i][2] = self.logits.len();
            let first = item.tokens - item.logits.count(item.tokens);
            for token in first..item.tokens {
                self.logits.push(self.row_of(i, item, token));
            }
        }
    }

    /// Token ids, one per row.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Positions, one per axis and row.
    pub(crate) fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// The axis of each pair of a head's elements; none where there is one axis.
    pub(crate) fn axes(&self) -> &[u8] {
        &self.axes
    }

    /// Rows that stand for images.
    pub(crate) fn images(&self) -> &[BatchImage] {
        &self.images
    }

    /// Slots of the cache, one per row.
    pub(crate) fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Which rows are whose.
    pub(crate) fn runs(&self) -> &[AttentionRun] {
        &self.runs
    }

    /// The blocks of all runs.
    pub(crate) fn table(&self) -> &[u32] {
        &self.table
    }

    /// Rows whose logits are wanted.
    pub(crate) fn logits(&self) -> &[usize] {
        &self.logits
    }

    /// How many rows of each phase.
    pub(crate) fn rows(&self) -> Rows {
        Rows {
            prompt: self.prompt,
            all: self.ids.len(),
        }
    }

    /// Where the logits of a work begin.
    pub(super) fn logits_of(&self, work: usize) -> Range<usize> {
        let start = |work: usize| self.starts.get(work).map(|starts| starts[2]);
        let end = self.logits.len();
        start(work).unwrap_or(end)..start(work + 1).unwrap_or(end)
    }

    /// Empties the batch: no logits are there then.
    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.positions.clear();
        self.later_axes.iter_mut().for_each(Vec::clear);
        self.images.clear();
        self.slots.clear();
        self.runs.clear();
        self.table.clear();
        self.logits.clear();
        self.starts.clear();
        self.prompt = 0;
    }

    /// Adds the tokens of a work that are in `phase`: one run, for prompt tokens come first.
    fn add(&mut self, work: &Work<'_>, phase: Phase) {
        let sequence = &*work.sequence;
        let places = sequence.computed..sequence.computed + work.tokens;
        let border = sequence.prompt().len().clamp(places.start, places.end);
        let places = match phase {
            Phase::Prompt => places.start..border,
            Phase::Generated => border..places.end,
        };
        if places.is_empty() {
            return;
        }
        self.runs.push(AttentionRun {
            first_row: self.ids.len(),
            rows: places.len(),
            first_position: places.start,
            first_block: self.table.len(),
            blocks: sequence.blocks.len(),
            phase,
        });
        self.table.extend_from_slice(&sequence.blocks);
        self.add_images(sequence, places.clone());
        for place in places {
            self.ids.push(sequence.tokens()[place]);
            let position = sequence.position(place);
            self.positions.push(position[0]);
            if !self.axes.is_empty() {
                self.later_axes[0].push(position[1]);
                self.later_axes[1].push(position[2]);
            }
            let block = sequence.blocks[place / KV_BLOCK];
            self.slots
                .push(block * KV_BLOCK as u32 + (place % KV_BLOCK) as u32);
        }
    }

    /// The parts of images among `places`, which become the next rows.
    fn add_images(&mut self, sequence: &Sequence, places: Range<usize>) {
        let first_row = self.ids.len();
        for image in sequence.images() {
            let (start, end) = (image.start.max(places.start), image.end().min(places.end));
            if start < end {
                self.images.push(BatchImage {
                    first_row: first_row + start - places.start,
                    rows: end - start,
                    features: Arc::clone(&image.features),
                    first_token: start - image.start,
                });
            }
        }
    }

    fn row_of(&self, index: usize, work: &Work<'_>, token: usize) -> usize {
        let [prompt, generated, _] = self.starts[index];
        let place = work.sequence.computed + token;
        let border = work.sequence.prompt().len().max(work.sequence.computed);
        if place < border {
            prompt + token
        } else {
            generated + place - border
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cider_kernels::Tensor;

    use super::*;
    use crate::generate::PromptImage;

    /// An image of some tokens whose every level has the token's number, from 1, in its rows.
    fn numbered(tokens: usize) -> Arc<ImageFeatures> {
        let tensor = || {
            let numbers: Vec<f32> = (1..=tokens).flat_map(|i| [i as f32; 2]).collect();
            Tensor::from_slice(&numbers, tokens, 2).unwrap()
        };
        Arc::new(ImageFeatures {
            tokens: tensor(),
            levels: vec![tensor(), tensor(), tensor()],
            grid: [1, 4, tokens],
        })
    }

    /// What is added at each place of a prompt, at each level, when it is computed `chunk` tokens a step.
    fn added(prompt: &[u32], images: &[PromptImage], chunk: usize) -> Vec<Vec<f32>> {
        let mut sequence = Sequence::new(prompt, prompt.len()).with_images(images.to_vec());
        sequence.blocks = (0..prompt.len().div_ceil(KV_BLOCK) as u32).collect();
        let mut batch = Batch::with_capacity(prompt.len(), 8, vec![0, 1, 2]);
        let mut levels = vec![Vec::new(); 3];
        while sequence.computed < prompt.len() {
            let tokens = chunk.min(prompt.len() - sequence.computed);
            batch.fill(&[Work {
                sequence: &mut sequence,
                tokens,
                logits: Logits::None,
            }]);
            sequence.computed += tokens;
            for (level, all) in levels.iter_mut().enumerate() {
                let mut rows = vec![0.0; tokens];
                for image in batch.images() {
                    let part = image.part(&image.features.levels[level]);
                    for row in 0..image.rows {
                        rows[image.first_row + row] += part.row::<f32>(row).unwrap()[0];
                    }
                }
                all.extend(rows);
            }
        }
        levels
    }

    /// However a prompt is cut, each row of a picture is added to its own token.
    #[test]
    fn features_land_on_their_tokens_in_every_chunk() {
        let images = [(10, 64), (76, 6)].map(|(start, tokens)| PromptImage {
            start,
            features: numbered(tokens),
        });
        let prompt = [7; 92];
        let mut expected = vec![0.0; 10];
        expected.extend((1..=64).map(|i| i as f32));
        expected.extend([0.0; 2]);
        expected.extend((1..=6).map(|i| i as f32));
        expected.extend([0.0; 10]);
        for chunk in [1, 2, 7, 10, 16, 64, 74, 92] {
            let levels = added(&prompt, &images, chunk);
            assert_eq!(levels, vec![expected.clone(); 3], "chunks of {chunk}");
        }
    }
}
