//! From messages and pictures to the tokens and patches of a prompt, away from the threads that serve connections.

use std::sync::Arc;

use cider::generate::Constraint;
use cider::image::{ImageLimits, ImageSource, RgbImage};
use cider::text::{Content, Message, Opening, Part, RenderOptions};
use cider::{Error, Frontend, PreparedImage, VisionSide};
use tokio::task::spawn_blocking;

use super::app::App;
use super::budget::Share;
use super::error::{ApiError, Code};
use super::media::MediaRoot;
use super::messages::Conversation;
use super::rules::Rules;

/// A prompt, ready for the engine.
pub(super) struct Prompt {
    pub(super) tokens: Vec<u32>,
    pub(super) images: Vec<PreparedImage>,
    /// What each of its answers must keep to.
    pub(super) rules: Vec<Option<Box<dyn Constraint>>>,
    /// Where it leaves the answer.
    pub(super) opening: Opening,
}

/// A chat before it is a prompt.
pub(super) struct Chat {
    pub(super) conversation: Conversation,
    pub(super) options: RenderOptions,
    pub(super) rules: Rules,
    pub(super) answers: usize,
}

/// A picture on its way.
enum Source {
    Image(ImageSource),
    /// A `file:` URL.
    File(String),
}

impl App {
    /// The prompt of a conversation; `share` holds what its pictures take.
    pub(super) async fn prepare_chat(
        &self,
        chat: Chat,
        mut share: Share,
    ) -> Result<(Prompt, Share), ApiError> {
        let Chat {
            conversation: Conversation { messages, pictures },
            options,
            rules,
            answers,
        } = chat;
        if !pictures.is_empty() && self.frontend.vision().is_none() {
            let what = "the model has no vision input: it takes text alone";
            return Err(ApiError::value("messages", what));
        }
        self.check_text(messages.iter().map(length).sum(), "messages")?;
        let mut sources = Vec::with_capacity(pictures.len());
        for (index, picture) in pictures.into_iter().enumerate() {
            let source = self.source(index, picture.url, &mut share).await;
            let source = source.map_err(|error| error.at(&picture.param))?;
            sources.push((picture.param, source));
        }
        let (frontend, media) = (Arc::clone(&self.frontend), self.media.clone());
        let limits = self.image_limits();
        self.prepare(move || {
            let work = Work {
                frontend: &frontend,
                media: media.as_deref(),
                limits,
            };
            let mut prompt = work.chat(&messages, &options, sources, &mut share)?;
            prompt.rules = rules.compile(&frontend, prompt.opening, answers)?;
            Ok((prompt, share))
        })
        .await
    }

    /// Work that takes a while, of which not too much is done at once.
    pub(super) async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let failed = || ApiError::new(Code::InternalError, "the server failed to answer");
        let permit = Arc::clone(&self.preparing)
            .acquire_owned()
            .await
            .map_err(|_| failed())?;
        // The work goes on where its client has left, and counts as long as it does.
        let done = spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(|_| failed())?
    }

    /// Where a picture of a URL is to be had; those of the network are fetched.
    async fn source(
        &self,
        index: usize,
        url: String,
        share: &mut Share,
    ) -> Result<Source, ApiError> {
        let refuse =
            |what: &str| ApiError::new(Code::InvalidImage, format!("image {}: {what}", index + 1));
        let scheme = url
            .split_once(':')
            .map(|(scheme, _)| scheme.to_ascii_lowercase());
        match scheme.as_deref() {
            Some("data") => Ok(Source::Image(ImageSource::DataUrl(url))),
            Some("file") if self.media.is_some() => Ok(Source::File(url)),
            Some("http" | "https") => {
                let Some(fetcher) = &self.fetcher else {
                    return Err(refuse(
                        "pictures are not fetched from the network, only data: URLs are read",
                    ));
                };
                let most = usize::try_from(fetcher.bytes).unwrap_or(usize::MAX);
                share.take(most)?;
                let bytes = fetcher.fetch(&url).await.map_err(refuse)?;
                share.give(most - bytes.len());
                Ok(Source::Image(ImageSource::Bytes {
                    name: "URL".to_owned(),
                    bytes,
                }))
            }
            _ => Err(refuse("only data: URLs are read")),
        }
    }
}

/// Bytes of a message's text.
fn length(message: &Message) -> usize {
    match &message.content {
        Content::Text(text) => text.len(),
        Content::Parts(parts) => {
            let texts = parts.iter().map(|part| match part {
                Part::Text { text } => text.len(),
                Part::Image => 0,
            });
            texts.sum()
        }
        Content::Nothing(()) => 0,
    }
}

/// What preparing needs.
struct Work<'a> {
    frontend: &'a Frontend,
    media: Option<&'a MediaRoot>,
    limits: ImageLimits,
}

impl Work<'_> {
    fn chat(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        sources: Vec<(String, Source)>,
        share: &mut Share,
    ) -> Result<Prompt, ApiError> {
        if self.frontend.chat_template().is_none() {
            let what = "the model has no chat template: start the server with --chat-template FILE, or use /v1/completions";
            return Err(ApiError::new(Code::TemplateError, what).at("messages"));
        }
        let at = |error: Error| ApiError::from(error).at("messages");
        let chat = self.frontend.chat(messages, options).map_err(at)?;
        let images = self.images(sources, chat.ids.len(), share)?;
        let tokens = self.frontend.place(chat.ids, &images).map_err(at)?;
        Ok(Prompt {
            tokens,
            images,
            rules: Vec::new(),
            opening: chat.opening,
        })
    }

    /// All headers are looked at before any picture is decoded.
    fn images(
        &self,
        sources: Vec<(String, Source)>,
        tokens: usize,
        share: &mut Share,
    ) -> Result<Vec<PreparedImage>, ApiError> {
        let Some(vision) = self.frontend.vision().filter(|_| !sources.is_empty()) else {
            return Ok(Vec::new());
        };
        let mut read = Vec::with_capacity(sources.len());
        for (index, (param, source)) in sources.into_iter().enumerate() {
            let source = match source {
                Source::Image(image) => image,
                Source::File(url) => self.file(index, &url).map_err(|error| error.at(&param))?,
            };
            read.push((param, source));
        }
        let opened = read.iter().enumerate().map(|(index, (param, source))| {
            let opened = source.open(index, &self.limits);
            opened.map_err(|error| image_error(error, source).at(param))
        });
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        let sizes = opened.iter().map(cider::image::UndecodedImage::size);
        let text = tokens.saturating_sub(opened.len());
        VisionSide::count_tokens(vision.processor(), sizes, text, self.frontend.context())
            .map_err(|error| ApiError::from(error).at("messages"))?;
        let mut images = Vec::with_capacity(opened.len());
        for (image, (param, source)) in opened.iter().zip(&read) {
            let decoded = usize::try_from(image.size().pixels())
                .unwrap_or(usize::MAX)
                .saturating_mul(RGB);
            share.take(decoded)?;
            let decoded_image = image.decode(&self.limits);
            let pixels: RgbImage =
                decoded_image.map_err(|error| image_error(error, source).at(param))?;
            let prepared = self.frontend.prepare_image(&pixels);
            let prepared = prepared.map_err(|error| ApiError::from(error).at(param))?;
            share.give(decoded);
            share.take(prepared.bytes())?;
            images.push(prepared);
        }
        Ok(images)
    }

    fn file(&self, index: usize, url: &str) -> Result<ImageSource, ApiError> {
        let bytes = self
            .media
            .and_then(|media| media.read(url, self.limits.bytes));
        let bytes = bytes.ok_or_else(|| unreadable(index))?;
        Ok(ImageSource::Bytes {
            name: FILE.to_owned(),
            bytes,
        })
    }
}

/// What is wrong with a picture; of a file nothing but that it cannot be read.
fn image_error(error: Error, source: &ImageSource) -> ApiError {
    match (&error, source) {
        (Error::Image { index, .. }, ImageSource::Bytes { name, .. }) if name == FILE => {
            unreadable(*index)
        }
        _ => error.into(),
    }
}

/// The same for files that are missing and for those that are none of ours.
fn unreadable(index: usize) -> ApiError {
    let what = format!(
        "image {}: no picture can be read at this file: URL",
        index + 1
    );
    ApiError::new(Code::InvalidImage, what)
}

/// What a picture from a file is called; never shown.
const FILE: &str = "file: URL";

/// Bytes of a decoded pixel.
const RGB: usize = 3;
