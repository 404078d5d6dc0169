//! A decoded picture.

use super::fault::ImageFault;
use super::limits::{MAX_ASPECT_RATIO, MAX_SIDE};

/// Height and width in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageSize {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl ImageSize {
    /// A size of `height` rows and `width` columns.
    #[must_use]
    pub const fn new(height: usize, width: usize) -> Self {
        Self { height, width }
    }

    /// Height times width.
    #[must_use]
    pub const fn pixels(self) -> u64 {
        (self.height as u64).saturating_mul(self.width as u64)
    }

    /// Refuses a side of nothing, a side beyond [`MAX_SIDE`] and a ratio beyond
    /// [`MAX_ASPECT_RATIO`].
    pub(super) fn check(self) -> Result<(), ImageFault> {
        let short = self.height.min(self.width);
        let long = self.height.max(self.width);
        if short == 0 {
            Err(ImageFault::NoPixels { size: self })
        } else if long > MAX_SIDE {
            Err(ImageFault::TooLong {
                side: long,
                limit: MAX_SIDE,
            })
        } else if long > short.saturating_mul(MAX_ASPECT_RATIO) {
            Err(ImageFault::AspectRatio { size: self })
        } else {
            Ok(())
        }
    }
}

/// Pixels of 8 bits in the order red, green, blue, row by row without padding.
#[derive(Clone, PartialEq, Eq)]
pub struct RgbImage {
    size: ImageSize,
    bytes: Vec<u8>,
}

impl RgbImage {
    /// An image of `size` from its bytes, three a pixel.
    ///
    /// # Errors
    /// A size without pixels or over the aspect ratio, or another number of bytes.
    pub fn new(size: ImageSize, bytes: Vec<u8>) -> Result<Self, ImageFault> {
        size.check()?;
        if bytes.len() as u64 != 3 * size.pixels() {
            return Err(ImageFault::WrongLength {
                size,
                bytes: bytes.len(),
            });
        }
        Ok(Self { size, bytes })
    }

    /// Bytes that are known to be three a pixel of a size that was checked.
    pub(super) fn from_parts(size: ImageSize, bytes: Vec<u8>) -> Self {
        debug_assert_eq!(bytes.len() as u64, 3 * size.pixels());
        Self { size, bytes }
    }

    /// Height and width.
    #[must_use]
    pub fn size(&self) -> ImageSize {
        self.size
    }

    /// Red, green and blue of each pixel, row by row.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for RgbImage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RgbImage")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
