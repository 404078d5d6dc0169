//! Images in: from the bytes of a file to the patches a vision tower reads.
//!
//! An [`ImageSource`] is read within [`ImageLimits`] and decoded to an [`RgbImage`]; an
//! [`ImageProcessor`], read from the model's folder, resizes it as Pillow does and cuts it into
//! [`Patches`]. Nothing here knows a model's weights.
//!
//! # What a decoded image is
//! The reference is Pillow: the Exif orientation applied, then `convert("RGB")`.
//! - PNG, GIF, BMP and WebP give Pillow's bytes. JPEG differs from libjpeg-turbo by at most 2 in a
//!   channel; with subsampled colour by up to 4 at hard edges.
//! - Alpha is composed over white: `(c * a + 255 * (255 - a)) / 255`, rounded to the nearest. This is
//!   what the reference processor does (`Image.alpha_composite`), bit for bit.
//! - Samples of 16 bits keep their high byte. Pillow does so for colours and for grey with alpha, but
//!   cuts plain grey at 255, which leaves a white picture: there the high byte is taken too.
//! - CMYK and YCCK JPEGs are read as Adobe writes them, inverted.
//! - Of an animation the first frame is taken; what it leaves free of the canvas is white.
//! - Orientation is read from Exif alone (JPEG, PNG, WebP); broken Exif is ignored. Colour profiles,
//!   gamma and XMP are not looked at.
//!
//! A file that is cut or damaged is an error, never half a picture.

mod bicubic;
mod data_url;
mod decode;
mod digest;
mod fault;
mod header;
mod header_jpeg;
mod limits;
mod patches;
mod processor;
mod processor_json;
mod rgb;
mod sniff;
mod source;

pub use bicubic::resize_bicubic;
pub use digest::ImageDigest;
pub use fault::ImageFault;
pub use limits::{ImageLimits, MAX_ASPECT_RATIO, MAX_SIDE};
pub use patches::Patches;
pub use processor::{ImageProcessor, PixelBudget};
pub use rgb::{ImageSize, RgbImage};
pub use sniff::ImageFormat;
pub use source::{ImageSource, UndecodedImage};
