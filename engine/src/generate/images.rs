//! Images in a prompt: which tokens stand for them, and where tokens are on the three axes of positions.

use std::sync::Arc;

use cider_kernels::{DType, Tensor};

use crate::error::{Error, Result};

/// What a vision tower makes of an image.
#[derive(Debug)]
pub struct ImageFeatures {
    /// `[tokens, hidden]`: what stands in the prompt.
    pub(crate) tokens: Tensor,
    /// The same of intermediate blocks: level i is added after decoder layer i.
    pub(crate) levels: Vec<Tensor>,
    /// Patches along time, height and width.
    pub(crate) grid: [usize; 3],
}

impl ImageFeatures {
    /// Tokens of the prompt that the image takes.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens.rows()
    }

    /// Patches along time, height and width.
    #[must_use]
    pub fn grid(&self) -> [usize; 3] {
        self.grid
    }

    /// What stands in the prompt: `[tokens, hidden]`, then each level that is added to a decoder layer.
    #[must_use]
    pub fn tensors(&self) -> Vec<&Tensor> {
        [&self.tokens].into_iter().chain(&self.levels).collect()
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tensors().into_iter().map(Tensor::bytes).sum()
    }

    /// What stands for an image whose tokens are in the cache: its shape without its features.
    pub(crate) fn shape_only(tokens: usize, grid: [usize; 3]) -> Result<Self> {
        Ok(Self {
            tokens: Tensor::zeros(DType::F32, tokens, 0)?,
            levels: Vec::new(),
            grid,
        })
    }

    /// Tokens along height and width.
    fn sides(&self) -> [usize; 2] {
        let [frames, height, width] = self.grid;
        let merge = (frames * height * width / self.tokens().max(1))
            .isqrt()
            .max(1);
        [height / merge, width / merge]
    }
}

/// An image in a prompt.
#[derive(Clone, Debug)]
pub struct PromptImage {
    /// The place of its first token.
    pub start: usize,
    /// Its tokens.
    pub features: Arc<ImageFeatures>,
}

impl PromptImage {
    /// The place behind its last token.
    #[must_use]
    pub fn end(&self) -> usize {
        self.start + self.features.tokens()
    }
}

/// The time, row and column of every token of a prompt, and what is added to the place of a token behind it to
/// get its position on all three: an image moves positions on by its longer side, not by its tokens.
pub(super) fn positions(tokens: usize, images: &[PromptImage]) -> (Vec<[u32; 3]>, i64) {
    let mut positions: Vec<[u32; 3]> = Vec::with_capacity(tokens);
    let mut next = 0_u32;
    for image in images {
        while positions.len() < image.start {
            positions.push([next; 3]);
            next += 1;
        }
        let [height, width] = image.features.sides();
        for row in 0..height as u32 {
            positions.extend((0..width as u32).map(|column| [next, next + row, next + column]));
        }
        next += height.max(width) as u32;
    }
    while positions.len() < tokens {
        positions.push([next; 3]);
        next += 1;
    }
    let delta = i64::from(next) - positions.len() as i64;
    (positions, delta)
}

/// Replaces the one pad that stands for each image by as many as the image has tokens; gives the prompt and
/// where its images are.
///
/// # Errors
/// When there are more or fewer pads than images.
pub fn place_images(
    ids: &[u32],
    pad: u32,
    images: &[Arc<ImageFeatures>],
) -> Result<(Vec<u32>, Vec<PromptImage>)> {
    check_places(ids, pad, images.len())?;
    let mut left = images.iter();
    let mut prompt = Vec::new();
    let mut placed = Vec::new();
    for &id in ids {
        match left.as_slice().first().filter(|_| id == pad) {
            Some(features) => {
                left.next();
                placed.push(PromptImage {
                    start: prompt.len(),
                    features: Arc::clone(features),
                });
                prompt.extend(std::iter::repeat_n(pad, features.tokens()));
            }
            None => prompt.push(id),
        }
    }
    Ok((prompt, placed))
}

/// Refuses a prompt that has more or fewer places than there are images.
pub(crate) fn check_places(ids: &[u32], pad: u32, images: usize) -> Result<()> {
    let places = ids.iter().filter(|&&id| id == pad).count();
    if places == images {
        return Ok(());
    }
    let places = match places {
        0 => "no place for an image".to_owned(),
        1 => "a place for 1 image".to_owned(),
        _ => format!("places for {places} images"),
    };
    let images = match images {
        0 => "none".to_owned(),
        _ => images.to_string(),
    };
    let what = format!("the prompt has {places}, got {images}");
    Err(Error::Request(what))
}

/// Binds images to the runs of pads of a prompt that has them all already: every run must be as long as its
/// image, and follow the token that opens an image.
///
/// # Errors
/// When the runs do not match the images; the message has both counts.
pub fn find_images(
    ids: &[u32],
    pad: u32,
    images: &[Arc<ImageFeatures>],
) -> Result<Vec<PromptImage>> {
    let tokens: Vec<_> = images.iter().map(|features| features.tokens()).collect();
    let starts = find_runs(ids, pad, &tokens)?.into_iter();
    let bound = starts.zip(images).map(|(start, features)| PromptImage {
        start,
        features: Arc::clone(features),
    });
    Ok(bound.collect())
}

/// Where the runs of pads of a prompt begin, which must have as many tokens each as its image.
pub(crate) fn find_runs(ids: &[u32], pad: u32, images: &[usize]) -> Result<Vec<usize>> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (place, _) in ids.iter().enumerate().filter(|(_, id)| **id == pad) {
        match runs.last_mut() {
            Some((start, length)) if *start + *length == place => *length += 1,
            _ => runs.push((place, 1)),
        }
    }
    if runs.len() != images.len() {
        let (found, expected) = (runs.len(), images.len());
        let what = format!("the prompt has {found} runs of image tokens for {expected} images");
        return Err(Error::Request(what));
    }
    let bound = runs
        .into_iter()
        .zip(images)
        .enumerate()
        .map(|(i, ((start, found), &expected))| {
            if found == expected {
                return Ok(start);
            }
            let what = format!(
                "image {} has {expected} tokens, the prompt has {found} for it",
                i + 1
            );
            Err(Error::Request(what))
        });
    bound.collect()
}
