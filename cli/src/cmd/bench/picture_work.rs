//! A picture in front of a prompt, and what its phases need at least.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use cider::Scheme;
use cider::generate::{
    ImageFeatures, Logits, PromptImage, Runner, Sequence, Work, argmax, log_sum_exp, place_images,
};
use cider::image::{ImageLimits, ImageProcessor, ImageSize, Patches, RgbImage};
use cider::load::{ModelConfig, VisionConfig};

use super::model_work::{ModelWork, bytes, prefill_cost, stored, unit};
use super::roofline::Cost;
use crate::args::ModelOptions;
use crate::failure::Usage;

/// A picture and the text behind it.
pub(super) struct Picture {
    image: RgbImage,
    processor: ImageProcessor,
    config: VisionConfig,
    /// The prompt with one token for the picture.
    prompt: Vec<u32>,
}

/// A picture on its way to the first token, phase by phase.
pub(super) struct Answer<'a> {
    picture: &'a Picture,
    patches: Option<Patches>,
    features: Option<Arc<ImageFeatures>>,
}

/// How far the next tokens of a text are from what they should be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divergence {
    /// Nats, the mean over the tokens.
    pub(super) mean: f64,
    pub(super) max: f64,
    /// The part of the tokens whose likeliest next token is the same.
    pub(super) same: f64,
    pub(super) tokens: usize,
}

impl Answer<'_> {
    /// Preprocessing, the tower, the prompt.
    pub(super) const PHASES: usize = 3;

    /// Does a phase, upon what the one before has made.
    pub(super) fn run(&mut self, phase: usize, work: &mut ModelWork) -> Result<()> {
        match (phase, &self.patches, &self.features) {
            (0, ..) => self.patches = Some(self.picture.cut()),
            (1, Some(patches), _) => {
                self.features = Some(Arc::new(work.runner().encode(patches)?));
            }
            (2, _, Some(features)) => {
                let (prompt, images) = self.picture.place(Arc::clone(features))?;
                work.set_prompt_with(prompt, images)?;
            }
            _ => bail!("phase {phase} of a picture before those that it needs"),
        }
        Ok(())
    }
}

impl Picture {
    /// A picture of a model, with `text` behind it.
    pub(super) fn new(
        processor: ImageProcessor,
        config: &VisionConfig,
        size: ImageSize,
        text: &[u32],
    ) -> Result<Self> {
        let special = [config.start_token, config.image_token, config.end_token];
        let mut prompt = special.to_vec();
        // Any token will do in place of those that mean a picture.
        let plain = |&id: &u32| if special.contains(&id) { 0 } else { id };
        prompt.extend(text.iter().map(plain));
        Ok(Self {
            image: draw(size)?,
            processor,
            config: config.clone(),
            prompt,
        })
    }

    /// Tokens of the text.
    pub(super) fn text_tokens(&self) -> usize {
        self.prompt.len() - AROUND
    }

    /// Tokens of the whole prompt.
    pub(super) fn tokens(&self) -> usize {
        self.prompt.len() - 1 + self.image_tokens()
    }

    /// Those of the picture.
    pub(super) fn image_tokens(&self) -> usize {
        self.processor.tokens(self.image.size())
    }

    pub(super) fn patches(&self) -> usize {
        self.processor.grid_thw(self.image.size()).iter().product()
    }

    /// What the tower makes of the picture.
    pub(super) fn encode(&self, runner: &Runner) -> Result<Arc<ImageFeatures>> {
        Ok(Arc::new(runner.encode(&self.cut())?))
    }

    fn cut(&self) -> Patches {
        self.processor.patches(&self.image)
    }

    /// The prompt with the picture in it.
    fn place(&self, features: Arc<ImageFeatures>) -> Result<(Vec<u32>, Vec<PromptImage>)> {
        Ok(place_images(
            &self.prompt,
            self.config.image_token,
            &[features],
        )?)
    }

    /// From the picture to the first token.
    pub(super) fn answer(&self) -> Answer<'_> {
        Answer {
            picture: self,
            patches: None,
            features: None,
        }
    }

    /// How far the text's next tokens behind what the model's tower makes of the picture are from those behind `other`,
    /// in one decoder. The runner must have room for two sequences and [`LOGITS`] logits of each.
    pub(super) fn divergence(
        &self,
        runner: &mut Runner,
        other: Arc<ImageFeatures>,
    ) -> Result<Divergence> {
        let features = self.encode(runner)?;
        let mut sequences = Vec::new();
        for features in [other, features] {
            let (prompt, images) = self.place(features)?;
            sequences.push(Sequence::new(&prompt, prompt.len()).with_images(images));
        }
        let first = sequences[0].images().first().map_or(0, PromptImage::end);
        let (total, mut done) = (self.tokens(), 0);
        let (mut nats, mut same) = (Vec::new(), 0);
        while done < total {
            let (left, logits) = match first.saturating_sub(done) {
                0 => ((total - done).min(LOGITS), Logits::All),
                left => (left, Logits::None),
            };
            let tokens = left.min(runner.rows() / 2).max(1);
            let mut work: Vec<Work<'_>> = sequences
                .iter_mut()
                .map(|sequence| Work {
                    sequence,
                    tokens,
                    logits,
                })
                .collect();
            runner.step(&mut work)?;
            done += tokens;
            for token in 0..if logits == Logits::All { tokens } else { 0 } {
                let expected = runner.logits(0, token)?.to_vec();
                let found = runner.logits(1, token)?;
                nats.push(kl_divergence(&expected, found));
                same += usize::from(argmax(&expected) == argmax(found));
            }
        }
        for sequence in &mut sequences {
            runner.release(sequence);
        }
        ensure!(
            nats.iter().all(|nats| nats.is_finite()),
            "the logits behind the picture are not finite"
        );
        Ok(Divergence {
            mean: nats.iter().sum::<f64>() / nats.len() as f64,
            max: nats.iter().copied().fold(0.0, f64::max),
            same: same as f64 / nats.len() as f64,
            tokens: nats.len(),
        })
    }

    /// What cutting the picture consists of: reading its pixels, writing its patches.
    pub(super) fn preprocess_cost(&self) -> Cost {
        let values = self.patches() * self.config.patch_values();
        Cost {
            bytes: (self.image.bytes().len() + 4 * values) as f64,
            ..Cost::NOTHING
        }
    }

    /// What the tower consists of: the products of its linear layers and of its attention.
    pub(super) fn tower_cost(&self, model: &ModelConfig, options: &ModelOptions) -> Cost {
        let (config, patches) = (&self.config, self.patches());
        let plan = options.vision();
        let format = plan.linear_format(stored(model));
        let (mut operations, mut weights) = (0.0, 0.0);
        for layer in layers(config, model.hidden_size) {
            let [n, k] = layer.shape;
            operations += (2 * layer.count * n * k) as f64 * (patches / layer.patches) as f64;
            weights += layer.count as f64 * bytes(format, layer.shape);
        }
        let linears = Cost {
            unit: unit(plan.scheme, options.dtype),
            operations,
            bytes: weights,
            ..Cost::NOTHING
        };
        let attention =
            4.0 * (config.hidden_size * config.blocks) as f64 * (patches as f64).powi(2);
        linears.then(attention_cost(options, attention))
    }

    /// What the prompt consists of: the products of the decoder's linear layers and of its attention.
    pub(super) fn prefill_cost(&self, model: &ModelConfig, options: &ModelOptions) -> Cost {
        let tokens = self.tokens();
        let seen = |window: &Option<usize>| -> usize {
            (1..=tokens)
                .map(|seen| window.map_or(seen, |window| seen.min(window)))
                .sum()
        };
        let seen: usize = model.window.iter().map(seen).sum();
        let attention = 4.0 * (model.heads * model.head_size) as f64 * seen as f64;
        prefill_cost(model, options, tokens).then(attention_cost(options, attention))
    }
}

/// Some linear layers of a shape.
struct Layers {
    count: usize,
    /// Patches of a row.
    patches: usize,
    /// Rows and columns of the weights.
    shape: [usize; 2],
}

/// The linear layers of a tower whose tokens are `out` wide.
fn layers(config: &VisionConfig, out: usize) -> [Layers; 7] {
    let (hidden, inner, square) = (
        config.hidden_size,
        config.intermediate_size,
        config.merged_size(),
    );
    let blocks = |shape| Layers {
        count: config.blocks,
        patches: 1,
        shape,
    };
    let mergers = |shape| Layers {
        count: config.deepstack.len() + 1,
        patches: config.merge_size * config.merge_size,
        shape,
    };
    [
        Layers {
            count: 1,
            ..blocks([hidden, config.patch_values()])
        },
        blocks([3 * hidden, hidden]),
        blocks([hidden, hidden]),
        blocks([inner, hidden]),
        blocks([hidden, inner]),
        mergers([square, square]),
        mergers([out, square]),
    ]
}

/// The products of attention: floats, whatever the scheme.
fn attention_cost(options: &ModelOptions, operations: f64) -> Cost {
    Cost {
        unit: unit(Scheme::None, options.dtype),
        operations,
        ..Cost::NOTHING
    }
}

/// The divergence of what `found` says of the next token from what `expected` says, in nats.
fn kl_divergence(expected: &[f32], found: &[f32]) -> f64 {
    let (p, q) = (log_sum_exp(expected), log_sum_exp(found));
    let terms = expected.iter().zip(found).map(|(&expected, &found)| {
        let log_p = f64::from(expected) - p;
        log_p.exp() * (log_p - (f64::from(found) - q))
    });
    terms.sum()
}

/// Something like a screenshot: a window with a bar, lines of words, and a picture in it.
fn draw(size: ImageSize) -> Result<RgbImage> {
    let (pixels, limit) = (size.pixels(), ImageLimits::default().pixels);
    if pixels > limit {
        let what = format!("--image: {pixels} pixels, expected at most {limit}");
        return Err(Usage(what).into());
    }
    let mut bytes = Vec::with_capacity(3 * pixels as usize);
    for y in 0..size.height {
        for x in 0..size.width {
            bytes.extend(colour([x, y], size));
        }
    }
    RgbImage::new(size, bytes).map_err(|fault| Usage(format!("--image: {fault}")).into())
}

fn colour([x, y]: [usize; 2], size: ImageSize) -> [u8; 3] {
    let (right, low) = (3 * x > 2 * size.width, 2 * y > size.height);
    // Words of some letters, each of strokes that differ.
    let letter = (x / 7).wrapping_mul(2_654_435_761) ^ (y / 18).wrapping_mul(40_503);
    let is_word = (letter >> 5) % 6 > 0;
    let stroke = (letter >> (x % 7 + y % 18 / 3)) & 1 == 0;
    if y < size.height / 20 {
        [40, 60, 90]
    } else if right && low {
        [
            (255 * x / size.width) as u8,
            (255 * y / size.height) as u8,
            ((x ^ y) % 256) as u8,
        ]
    } else if is_word && stroke && y % 18 < 11 {
        [30, 30, 35]
    } else {
        [250, 250, 248]
    }
}

/// Tokens of the prompt that are no text: the picture's, and what opens and closes it.
const AROUND: usize = 3;

/// Logits of a sequence in a step.
pub(super) const LOGITS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergences_of_distributions() {
        let logits = |p: [f32; 3]| p.map(|p| p.ln() + 3.0);
        let (p, q) = (logits([0.5, 0.25, 0.25]), logits([0.25, 0.25, 0.5]));
        assert!(kl_divergence(&p, &p).abs() < 1e-7);
        let expected = 0.25 * std::f64::consts::LN_2;
        assert!((kl_divergence(&p, &q) - expected).abs() < 1e-6);
        // A logit that is not a number makes a divergence that is none.
        assert!(!kl_divergence(&p, &[f32::NAN, 0.0, 0.0]).is_finite());
    }

    #[test]
    fn a_picture_has_all_its_pixels_and_sizes_have_bounds() {
        let image = draw(ImageSize::new(30, 40)).unwrap();
        assert_eq!(image.bytes().len(), 3 * 30 * 40);
        let colours: std::collections::HashSet<_> = image.bytes().chunks(3).collect();
        assert!(colours.len() > 50, "{}", colours.len());
        for (height, width, what) in [(1 << 14, 1 << 14, "pixels"), (1, 201, "ratio")] {
            let error = draw(ImageSize::new(height, width)).unwrap_err().to_string();
            assert!(
                error.starts_with("--image") && error.contains(what),
                "{error}"
            );
        }
    }
}
