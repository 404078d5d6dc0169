//! What prepares requests beside the engine: prompts and pictures, on any thread.

use std::fmt;
use std::sync::Arc;

use crate::engine::{ChatPrompt, TextSide, VisionSide};
use crate::error::{Error, Result};
use crate::generate::SamplingParams;
use crate::image::{ImageDigest, ImageSize, Patches, RgbImage};
use crate::load::GenerationConfig;
use crate::text::{ChatTemplate, Message, RenderOptions, Tokenizer};

/// A picture, resized and cut, with what tells it from all others. Clones share the pixels.
#[derive(Clone)]
pub struct PreparedImage {
    patches: Arc<Patches>,
    tokens: usize,
    digest: ImageDigest,
}

impl PreparedImage {
    /// Tokens that it takes in a prompt.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// What tells it from all others.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        self.digest.as_bytes()
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(self.patches.pixel_values.as_slice())
    }

    pub(super) fn patches(&self) -> &Patches {
        &self.patches
    }
}

impl fmt::Debug for PreparedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedImage")
            .field("grid", &self.patches.grid_thw)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

/// The words and pictures of a model, without its weights.
#[derive(Debug)]
pub struct Frontend {
    pub(super) text: TextSide,
    pub(super) vision: Option<VisionSide>,
    pub(super) generation: GenerationConfig,
    pub(super) context: usize,
}

impl Frontend {
    /// The words of the model: templates, grammars, and how it writes thoughts and calls of tools.
    #[must_use]
    pub fn text(&self) -> &TextSide {
        &self.text
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.text.tokenizer
    }

    /// The chat template, if the model has one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.text.template.as_ref()
    }

    /// The tokens that end a text.
    #[must_use]
    pub fn end_tokens(&self) -> &[u32] {
        &self.text.end_tokens
    }

    /// What the checkpoint says about generation.
    #[must_use]
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// What the model's makers sample with; greedy where they say so.
    #[must_use]
    pub fn sampling(&self) -> SamplingParams {
        SamplingParams::from(&self.generation)
    }

    /// The vision side, of models that see.
    #[must_use]
    pub fn vision(&self) -> Option<&VisionSide> {
        self.vision.as_ref()
    }

    /// Tokens that a request may have, prompt and answer.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// The tokens of a chat, up to the opening of the assistant's turn. Message text is plain text: control
    /// tokens that it spells out are none.
    ///
    /// # Errors
    /// When the model has no chat template, or the template refuses the messages.
    pub fn chat_prompt(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<u32>> {
        self.text.chat_prompt(messages, options)
    }

    /// The same, with the state in which the prompt leaves the answer.
    ///
    /// # Errors
    /// As [`Frontend::chat_prompt`].
    pub fn chat(&self, messages: &[Message], options: &RenderOptions) -> Result<ChatPrompt> {
        self.text.chat(messages, options)
    }

    /// The tokens of a raw text, in which control tokens count.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn raw_prompt(&self, text: &str) -> Result<Vec<u32>> {
        self.text.tokenizer.encode_prompt(text)
    }

    /// Tokens that a picture of `size` takes in a prompt.
    ///
    /// # Errors
    /// When the model has no vision input.
    pub fn image_tokens(&self, size: ImageSize) -> Result<usize> {
        Ok(self.seeing()?.processor().tokens(size))
    }

    /// Resizes and cuts a picture.
    ///
    /// # Errors
    /// When the model has no vision input, or a picture alone exceeds the context.
    pub fn prepare_image(&self, image: &RgbImage) -> Result<PreparedImage> {
        let processor = self.seeing()?.processor();
        let tokens = VisionSide::count_tokens(processor, [image.size()], 0, self.context)?;
        Ok(PreparedImage {
            patches: Arc::new(processor.patches(image)),
            tokens,
            digest: processor.digest(image),
        })
    }

    /// Puts pictures into a prompt, in the order of their places in it: each pad, one per picture, becomes as many
    /// as the picture has tokens.
    ///
    /// # Errors
    /// When the model has no vision input, the prompt has places for more or fewer pictures, or all that does not
    /// fit the context.
    pub fn place(&self, prompt: Vec<u32>, images: &[PreparedImage]) -> Result<Vec<u32>> {
        let Some(vision) = &self.vision else {
            return match images.len() {
                0 => self.fits(prompt),
                _ => Err(no_vision()),
            };
        };
        self.text
            .check_places(&prompt, vision.config(), images.len())?;
        let text = prompt.len() - images.len();
        let tokens: usize = images.iter().map(PreparedImage::tokens).sum();
        if !images.is_empty() && tokens + text >= self.context {
            return Err(Error::ImagesExceedContext {
                images: images.len(),
                tokens,
                text,
                limit: self.context,
            });
        }
        vision.warn_of_many(images.len());
        let pad = vision.config().image_token;
        let mut counts = images.iter().map(PreparedImage::tokens);
        let mut placed = Vec::with_capacity(text + tokens);
        for id in prompt {
            let count = if id == pad { counts.next() } else { None };
            placed.extend(std::iter::repeat_n(id, count.unwrap_or(1)));
        }
        self.fits(placed)
    }

    fn fits(&self, prompt: Vec<u32>) -> Result<Vec<u32>> {
        self.check_length(prompt.len())?;
        Ok(prompt)
    }

    /// Refuses a prompt of no tokens, and one that leaves no room for an answer.
    pub(super) fn check_length(&self, prompt: usize) -> Result<()> {
        let limit = self.context;
        match prompt {
            0 => Err(Error::Request("the prompt has no tokens".into())),
            _ if prompt >= limit => Err(Error::ContextExceeded { prompt, limit }),
            _ => Ok(()),
        }
    }

    fn seeing(&self) -> Result<&VisionSide> {
        self.vision.as_ref().ok_or_else(no_vision)
    }
}

fn no_vision() -> Error {
    Error::Request("the model has no vision input".into())
}
