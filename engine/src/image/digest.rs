//! What tells one preprocessed image from another.

use std::fmt;

use sha2::{Digest, Sha256};

use super::patches::PatchShape;
use super::rgb::{ImageSize, RgbImage};

/// The SHA-256 of an image's decoded pixels and of all that makes patches of them: two images with
/// the same digest have the same [`Patches`](super::Patches).
///
/// Images come from strangers and their features are shared between requests, so a hash is needed for
/// which nobody can make two images collide. SHA-256 has instructions on today's processors and a
/// crate in plain Rust.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageDigest([u8; 32]);

impl ImageDigest {
    /// The digest of `image`, to be resized to `size` and cut as `shape` and `levels` say.
    pub(super) fn new(
        image: &RgbImage,
        size: ImageSize,
        shape: PatchShape,
        levels: &[[f32; 256]; 3],
    ) -> Self {
        let mut hash = Sha256::new();
        let from = image.size();
        let sides = [from.height, from.width, size.height, size.width];
        for number in sides
            .into_iter()
            .chain([shape.side, shape.merge, shape.frames])
        {
            hash.update((number as u64).to_le_bytes());
        }
        for level in levels.as_flattened() {
            hash.update(level.to_le_bytes());
        }
        hash.update(image.bytes());
        Self(hash.finalize().into())
    }

    /// The 32 bytes of the hash.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ImageDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for ImageDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ImageDigest({self})")
    }
}
