//! Where an image comes from.

use std::path::{Path, PathBuf};

use super::data_url;
use super::decode::decode;
use super::fault::ImageFault;
use super::limits::ImageLimits;
use super::rgb::RgbImage;
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
        let image = match self {
            Self::Bytes { bytes, .. } => decode(bytes, limits),
            Self::DataUrl(url) => {
                data_url::decode(url, limits).and_then(|bytes| decode(&bytes, limits))
            }
            Self::Path(path) => read(path, limits).and_then(|bytes| decode(&bytes, limits)),
        };
        image.map_err(|fault| Error::Image {
            index,
            name: self.name(),
            fault,
        })
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
