//! What is refused before it is decoded.

use super::fault::ImageFault;
use super::rgb::ImageSize;

/// Limits on an image, checked on its header before anything is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Bytes of the file.
    pub bytes: u64,
    /// Width times height.
    pub pixels: u64,
}

impl ImageLimits {
    pub(super) fn check_bytes(&self, bytes: u64) -> Result<(), ImageFault> {
        if bytes > self.bytes {
            return Err(ImageFault::TooManyBytes {
                bytes,
                limit: self.bytes,
            });
        }
        Ok(())
    }

    pub(super) fn check_size(&self, size: ImageSize) -> Result<(), ImageFault> {
        size.check()?;
        if size.pixels() > self.pixels {
            return Err(ImageFault::TooManyPixels {
                size,
                limit: self.pixels,
            });
        }
        Ok(())
    }
}

impl Default for ImageLimits {
    /// 64 MiB and 8192x8192 pixels: what cameras make, and no bomb.
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            pixels: 1 << 26,
        }
    }
}

/// The longer side may be this many times the shorter: the reference processor's limit.
pub const MAX_ASPECT_RATIO: usize = 200;

/// The longest side: far above what the other limits leave, so that no product of sides overflows.
pub const MAX_SIDE: usize = 1 << 24;
