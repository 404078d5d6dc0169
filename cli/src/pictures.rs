//! Pictures of the command line on their way to a model.

use std::time::{Duration, Instant};

use cider::image::{ImageLimits, ImageSize, ImageSource, RgbImage};
use cider::text::{Content, Message, Part, Role};
use cider::{Error, ImageTimes};

/// The pictures of a conversation, in the order of their places.
#[derive(Default)]
pub(crate) struct Pictures {
    images: Vec<RgbImage>,
    /// Time of reading and decoding that no answer has reported yet.
    reading: Duration,
}

/// What the pictures of a prompt came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) images: usize,
    pub(crate) tokens: usize,
    /// Preprocessing is with reading and decoding.
    pub(crate) times: ImageTimes,
}

impl Pictures {
    /// Reads pictures that are files or `data:` URLs.
    pub(crate) fn read(arguments: &[String]) -> Result<Self, Error> {
        let mut pictures = Self::default();
        for argument in arguments {
            pictures.add(argument)?;
        }
        Ok(pictures)
    }

    /// Reads one more; gives its size.
    pub(crate) fn add(&mut self, argument: &str) -> Result<ImageSize, Error> {
        let started = Instant::now();
        let index = self.images.len();
        let source = ImageSource::from_argument(argument).map_err(|fault| Error::Image {
            index,
            name: argument.to_owned(),
            fault,
        })?;
        let image = source.decode(index, &ImageLimits::default())?;
        self.reading += started.elapsed();
        let size = image.size();
        self.images.push(image);
        Ok(size)
    }

    /// All of them.
    pub(crate) fn images(&self) -> &[RgbImage] {
        &self.images
    }

    /// Forgets all but the first `count`.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.images.truncate(count);
    }

    /// The time of reading that was not yet asked for.
    pub(crate) fn take_reading(&mut self) -> Duration {
        std::mem::take(&mut self.reading)
    }
}

/// A message of the user: pictures, then text.
pub(crate) fn user_message(text: &str, images: usize) -> Message {
    let mut message = Message::new(Role::User, text);
    if images > 0 {
        let text = Part::Text {
            text: text.to_owned(),
        };
        let parts = std::iter::repeat_n(Part::Image, images).chain([text]);
        message.content = Content::Parts(parts.collect());
    }
    message
}
