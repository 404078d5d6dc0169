//! What can be wrong with one image.

use super::limits::MAX_ASPECT_RATIO;
use super::rgb::ImageSize;
use super::sniff::ImageFormat;

/// What is wrong with an image. [`Error::Image`](crate::Error::Image) says which image it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageFault {
    /// One side is too many times the other.
    #[error(
        "sides of {}x{} are over the aspect ratio of {MAX_ASPECT_RATIO}",
        size.width,
        size.height
    )]
    AspectRatio {
        /// The size that the file claims.
        size: ImageSize,
    },
    /// The file ends before the picture does.
    #[error("the {format} is cut: {what}")]
    Cut {
        /// The format of the file.
        format: ImageFormat,
        /// What is missing.
        what: &'static str,
    },
    /// The file is not what its format demands.
    #[error("the {format} is damaged: {what}")]
    Damaged {
        /// The format of the file.
        format: ImageFormat,
        /// What the decoder said.
        what: String,
    },
    /// A `data:` URL is malformed.
    #[error("data URL: {0}")]
    DataUrl(String),
    /// There are no bytes.
    #[error("no bytes")]
    Empty,
    /// A picture of no width or no height.
    #[error("{}x{} pixels: an image has at least one", size.width, size.height)]
    NoPixels {
        /// The size that the file claims.
        size: ImageSize,
    },
    /// The operating system refused to read the file.
    #[error("{0}")]
    Io(String),
    /// The file is larger than the limit.
    #[error("{bytes} bytes exceed the limit of {limit}")]
    TooManyBytes {
        /// Bytes of the file, at least.
        bytes: u64,
        /// Bytes that are read.
        limit: u64,
    },
    /// The picture has more pixels than the limit.
    #[error(
        "{}x{} are {} pixels, which exceed the limit of {limit}",
        size.width,
        size.height,
        size.pixels()
    )]
    TooManyPixels {
        /// The size that the file claims.
        size: ImageSize,
        /// Pixels that are decoded.
        limit: u64,
    },
    /// One side is longer than any that is decoded.
    #[error("a side of {side} pixels exceeds the limit of {limit}")]
    TooLong {
        /// The longer side that the file claims.
        side: usize,
        /// The longest side that is decoded.
        limit: usize,
    },
    /// No known image format.
    #[error("no known image format: PNG, JPEG, WebP, GIF and BMP are read")]
    UnknownFormat,
    /// A known format that is not decoded.
    #[error("{0} is not supported: PNG, JPEG, WebP, GIF and BMP are read")]
    UnsupportedFormat(&'static str),
    /// The bytes of a picture are not three a pixel.
    #[error("{bytes} bytes are not three for each of {}x{} pixels", size.width, size.height)]
    WrongLength {
        /// The size that was said.
        size: ImageSize,
        /// Bytes that came.
        bytes: usize,
    },
    /// A URL that is never followed.
    #[error("{0} URLs are not read, only data: URLs")]
    UnsupportedUrl(&'static str),
}
