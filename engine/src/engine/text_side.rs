//! The tokenizer, the chat template and the end tokens of a checkpoint.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::generate::{check_places, eos_ids};
use crate::load::gguf::Metadata;
use crate::load::{Checkpoint, VisionConfig};
use crate::text::{
    AnswerFormat, ChatTemplate, GgufVocabulary, Grammars, Message, Opening, RenderOptions,
    Tokenizer,
};

/// What turns words into tokens and back: all of a checkpoint that needs no weights.
#[derive(Debug)]
pub struct TextSide {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, if there is one.
    pub template: Option<ChatTemplate>,
    /// The tokens that end a text.
    pub end_tokens: Vec<u32>,
    /// Built when the first request needs it.
    grammars: Mutex<Option<Grammars>>,
}

/// A chat, ready to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Where they leave the answer.
    pub opening: Opening,
}

impl TextSide {
    /// Reads the text side of a checkpoint; `chosen` is a template that replaces its own.
    ///
    /// # Errors
    /// When the tokenizer or the template is missing, damaged or not supported.
    pub fn open(checkpoint: &Checkpoint, chosen: Option<&Path>) -> Result<Self> {
        let text = Self::read(checkpoint, chosen)?;
        text.log();
        Ok(text)
    }

    /// The same, without a word.
    pub(super) fn read(checkpoint: &Checkpoint, chosen: Option<&Path>) -> Result<Self> {
        let (tokenizer, template) = match checkpoint.gguf_metadata() {
            Some(metadata) => {
                let embedded = metadata.string("tokenizer.chat_template")?;
                (
                    from_metadata(metadata)?,
                    ChatTemplate::find(None, chosen, embedded)?,
                )
            }
            None => (
                Tokenizer::from_folder(&checkpoint.path)?,
                ChatTemplate::find(Some(&checkpoint.path), chosen, None)?,
            ),
        };
        let turn_end = template
            .as_ref()
            .and_then(|template| template.turn_end(&tokenizer));
        let (generation, config) = (&checkpoint.generation.eos, &checkpoint.config.eos);
        let end_tokens = eos_ids(generation, config, tokenizer.eos(), turn_end);
        Ok(Self {
            tokenizer,
            template,
            end_tokens,
            grammars: Mutex::default(),
        })
    }

    /// Says in the log which chat template there is.
    pub(super) fn log(&self) {
        if let Some(template) = &self.template {
            tracing::info!("chat template: {}", template.source_name());
        } else {
            tracing::warn!("no chat template: chats need --chat-template");
        }
    }

    /// The tokens of a chat. Message text is plain text: control tokens that it spells out are none.
    ///
    /// # Errors
    /// When there is no chat template, or the template refuses the messages.
    pub fn chat_prompt(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<u32>> {
        Ok(self.chat(messages, options)?.ids)
    }

    /// The tokens of a chat, and the state in which they leave the answer.
    ///
    /// # Errors
    /// As [`TextSide::chat_prompt`].
    pub fn chat(&self, messages: &[Message], options: &RenderOptions) -> Result<ChatPrompt> {
        self.chat_within(messages, options, usize::MAX)
    }

    /// The same, where long texts that surely have `limit` tokens are refused before they are cut.
    pub(super) fn chat_within(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        limit: usize,
    ) -> Result<ChatPrompt> {
        let Some(template) = &self.template else {
            return Err(Error::Request(
                "the model has no chat template: give one, or use a raw prompt".into(),
            ));
        };
        // A prompt is there to be answered.
        let options = RenderOptions {
            add_generation_prompt: true,
            ..options.clone()
        };
        let prompt = template.render(messages, &options, &self.tokenizer)?;
        self.tokenizer.check_length(prompt.text(), limit)?;
        let opening = if self.answer_format().reasoning {
            template.opening(&prompt, messages, &options, &self.tokenizer)?
        } else {
            Opening::Closed
        };
        Ok(ChatPrompt {
            ids: prompt.tokenize(&self.tokenizer)?,
            opening,
        })
    }

    /// How the model writes thoughts and calls of tools.
    #[must_use]
    pub fn answer_format(&self) -> AnswerFormat {
        AnswerFormat::of(self.template.as_ref(), &self.tokenizer)
    }

    /// The compiler of grammars over this vocabulary, which is built once.
    ///
    /// # Errors
    /// As [`Grammars::new`].
    pub fn grammars(&self) -> Result<Grammars> {
        let mut grammars = self.grammars.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grammars) = &*grammars {
            return Ok(grammars.clone());
        }
        let built = Grammars::new(&self.tokenizer, &self.end_tokens)?;
        *grammars = Some(built.clone());
        Ok(built)
    }

    /// Refuses a prompt that has more or fewer places for images than there are images.
    ///
    /// # Errors
    /// With both numbers, and what a place looks like.
    pub fn check_places(&self, ids: &[u32], vision: &VisionConfig, images: usize) -> Result<()> {
        check_places(ids, vision.image_token, images).map_err(|error| {
            let tokens = [vision.start_token, vision.image_token, vision.end_token];
            let place: String = tokens
                .iter()
                .filter_map(|&id| self.tokenizer.token(id))
                .collect();
            Error::Request(format!("{error}: each image stands as {place}"))
        })?;
        if let Some(place) = ids
            .iter()
            .position(|&id| self.tokenizer.token(id).is_some_and(|name| name == VIDEO))
        {
            let what = format!("token {place} of the prompt is {VIDEO}: videos are not supported");
            return Err(Error::Request(what));
        }
        let stands = |at: usize| {
            at.checked_sub(1).and_then(|before| ids.get(before)) == Some(&vision.start_token)
                && ids.get(at + 1) == Some(&vision.end_token)
        };
        let mut places = (0..ids.len()).filter(|&at| ids[at] == vision.image_token);
        match places.find(|&at| !stands(at)) {
            Some(at) => Err(Error::Request(format!(
                "token {at} of the prompt is an image without the tokens that open and close one"
            ))),
            None => Ok(()),
        }
    }
}

/// The token that stands for a video.
const VIDEO: &str = "<|video_pad|>";

/// The tokenizer of a GGUF file.
fn from_metadata(metadata: &Metadata) -> Result<Tokenizer> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| -> Result<Option<u32>> {
        Ok(metadata
            .unsigned(&key(name))?
            .and_then(|id| u32::try_from(id).ok()))
    };
    let strings = |name: &str| -> Result<Vec<&str>> {
        Ok(metadata
            .strings(&key(name))?
            .map_or_else(Vec::new, Iterator::collect))
    };
    let type_key = key("token_type");
    let types = metadata.integers(&type_key)?;
    Tokenizer::from_gguf(&GgufVocabulary {
        model: metadata.string(&key("model"))?.unwrap_or_default(),
        pre: metadata.string(&key("pre"))?.unwrap_or_default(),
        tokens: strings("tokens")?,
        token_types: types.map_or_else(Vec::new, |all| all.map(|kind| kind as i32).collect()),
        merges: strings("merges")?,
        add_bos: metadata.flag(&key("add_bos_token"))?,
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        unknown: id("unknown_token_id")?,
        padding: id("padding_token_id")?,
    })
}
