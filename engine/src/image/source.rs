//! Where an image comes from.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::data_url;
use super::decode::{decode, header};
use super::fault::ImageFault;
use super::limits::ImageLimits;
use super::rgb::{ImageSize, RgbImage};
use crate::error::{Error, Result};
use crate::files::{self, Unread};

/// Where an image comes from. Nothing is ever fetched over a network.
#[derive(Clone, PartialEq, Eq)]
pub enum ImageSource {
    /// The bytes of a file, and the name that messages give it.
    Bytes {
        /// What to call it.
        name: String,
        /// The whole file.
        bytes: Vec<u8>,
    },
    /// A `data:` URL.
    DataUrl(String),
    /// A file.
    Path(PathBuf),
}

impl ImageSource {
    /// A source named on a command line: a `data:` URL, or else a file. URLs with the schemes http,
    /// https and file are refused rather than looked for as files.
    ///
    /// # Errors
    /// Such a URL.
    pub fn from_argument(argument: &str) -> Result<Self, ImageFault> {
        if data_url::is_data_url(argument) {
            return Ok(Self::DataUrl(argument.to_owned()));
        }
        match foreign_scheme(argument) {
            Some(scheme) => Err(ImageFault::UnsupportedUrl(scheme)),
            None => Ok(Self::Path(PathBuf::from(argument))),
        }
    }

    /// A source named by a client: a `data:` URL and nothing else. What else it may be, a path that
    /// exists or one that does not, makes no difference.
    ///
    /// # Errors
    /// Any other text.
    pub fn from_url(url: &str) -> Result<Self, ImageFault> {
        if data_url::is_data_url(url) {
            return Ok(Self::DataUrl(url.to_owned()));
        }
        Err(ImageFault::UnsupportedUrl(
            foreign_scheme(url).unwrap_or("other"),
        ))
    }

    /// What messages call it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Bytes { name, .. } => name.clone(),
            Self::DataUrl(_) => "data: URL".to_owned(),
            Self::Path(path) => path.to_string_lossy().into_owned(),
        }
    }

    /// Reads and decodes the image, which is number `index` of its request, counted from 0.
    ///
    /// # Errors
    /// [`Error::Image`], whose message counts images from 1.
    pub fn decode(&self, index: usize, limits: &ImageLimits) -> Result<RgbImage> {
        self.open(index, limits)?.decode(limits)
    }

    /// Reads the image and looks at its header alone: its size is known before anything is decoded.
    ///
    /// # Errors
    /// As [`ImageSource::decode`].
    pub fn open(&self, index: usize, limits: &ImageLimits) -> Result<UndecodedImage<'_>> {
        let bytes = match self {
            Self::Bytes { bytes, .. } => Ok(Cow::Borrowed(bytes.as_slice())),
            Self::DataUrl(url) => data_url::decode(url, limits).map(Cow::Owned),
            Self::Path(path) => read(path, limits).map(Cow::Owned),
        };
        let opened = bytes.and_then(|bytes| {
            let (_, size) = header(&bytes, limits)?;
            Ok(UndecodedImage {
                index,
                name: self.name(),
                bytes,
                size,
            })
        });
        opened.map_err(|fault| Error::Image {
            index,
            name: self.name(),
            fault,
        })
    }
}

/// An image that was read and not yet decoded.
pub struct UndecodedImage<'a> {
    index: usize,
    name: String,
    bytes: Cow<'a, [u8]>,
    size: ImageSize,
}

impl UndecodedImage<'_> {
    /// The size that its header claims; an orientation that turns it is not yet applied.
    #[must_use]
    pub fn size(&self) -> ImageSize {
        self.size
    }

    /// Decodes it.
    ///
    /// # Errors
    /// As [`ImageSource::decode`].
    pub fn decode(&self, limits: &ImageLimits) -> Result<RgbImage> {
        decode(&self.bytes, limits).map_err(|fault| Error::Image {
            index: self.index,
            name: self.name.clone(),
            fault,
        })
    }
}

impl std::fmt::Debug for UndecodedImage<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "UndecodedImage({})", self.name)
    }
}

impl std::fmt::Debug for ImageSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ImageSource({})", self.name())
    }
}

/// The whole file, unless it is longer than the limit.
fn read(path: &Path, limits: &ImageLimits) -> Result<Vec<u8>, ImageFault> {
    files::read(path, limits.bytes).map_err(|unread| match unread {
        Unread::Io(error) => ImageFault::Io(error.to_string()),
        Unread::TooLong(bytes) => ImageFault::TooManyBytes {
            bytes,
            limit: limits.bytes,
        },
    })
}

/// The scheme of `text` if it is one that a reader might have expected to be followed.
fn foreign_scheme(text: &str) -> Option<&'static str> {
    let (scheme, _) = text.split_once(':')?;
    ["http", "https", "file"]
        .into_iter()
        .find(|known| scheme.eq_ignore_ascii_case(known))
}
