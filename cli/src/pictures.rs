//! Pictures of the command line on their way to a model.

use std::time::{Duration, Instant};

use cider::image::{ImageLimits, ImageProcessor, ImageSource, RgbImage, UndecodedImage};
use cider::text::{Content, Message, Part, Role};
use cider::{Error, ImageTimes, VisionSide};

/// The pictures of a conversation, in the order of their places.
#[derive(Default)]
pub(crate) struct Pictures {
    images: Vec<RgbImage>,
    /// Time of reading and decoding that no answer has reported yet.
    reading: Duration,
}

/// What pictures must fit: a context, if there is a limit, in the tokens of a processor.
pub(crate) struct Room {
    pub(crate) processor: ImageProcessor,
    pub(crate) context: Option<usize>,
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
    /// Reads pictures that are files or `data:` URLs, and fit the room that there is.
    pub(crate) fn read(arguments: &[String], room: &Room) -> Result<Self, Error> {
        let mut pictures = Self::default();
        pictures.add(arguments, room)?;
        Ok(pictures)
    }

    /// Reads more of them: all headers, and if their tokens fit, all pictures.
    pub(crate) fn add(&mut self, arguments: &[String], room: &Room) -> Result<(), Error> {
        let started = Instant::now();
        let limits = ImageLimits::default();
        let first = self.images.len();
        let sources = (first..).zip(arguments).map(|(index, argument)| {
            ImageSource::from_argument(argument).map_err(|fault| Error::Image {
                index,
                name: argument.to_owned(),
                fault,
            })
        });
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let opened = (first..)
            .zip(&sources)
            .map(|(index, source)| source.open(index, &limits));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        let before = self.images.iter().map(RgbImage::size);
        let sizes = before.chain(opened.iter().map(UndecodedImage::size));
        if let Some(context) = room.context {
            VisionSide::count_tokens(&room.processor, sizes, 0, context)?;
        }
        let decoded = opened.iter().map(|image| image.decode(&limits));
        let decoded = decoded.collect::<Result<Vec<_>, _>>()?;
        self.images.extend(decoded);
        self.reading += started.elapsed();
        Ok(())
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
