//! Bytes of a file to red, green and blue.

use std::error::Error as _;
use std::io::{self, Cursor};

use ::image::codecs::bmp::BmpDecoder;
use ::image::codecs::gif::GifDecoder;
use ::image::codecs::jpeg::JpegDecoder;
use ::image::codecs::png::PngDecoder;
use ::image::codecs::webp::WebPDecoder;
use ::image::error::{ParameterError, ParameterErrorKind};
use ::image::metadata::Orientation;
use ::image::{DynamicImage, ImageDecoder, ImageError, ImageResult, Limits};

use super::fault::ImageFault;
use super::header;
use super::limits::ImageLimits;
use super::rgb::{ImageSize, RgbImage};
use super::sniff::ImageFormat;

/// Decodes a whole file, upright and without alpha.
pub(super) fn decode(bytes: &[u8], limits: &ImageLimits) -> Result<RgbImage, ImageFault> {
    let (format, size) = header(bytes, limits)?;
    let file = Cursor::new(bytes);
    let image = match format {
        ImageFormat::Bmp => upright(BmpDecoder::new(file), size),
        ImageFormat::Gif => upright(GifDecoder::new(file), size),
        ImageFormat::Jpeg => upright(JpegDecoder::new(file), size),
        ImageFormat::Png => upright(PngDecoder::with_limits(file, decoder_limits(size)), size),
        ImageFormat::WebP => upright(WebPDecoder::new(file), size),
    };
    let image = image.map_err(|error| fault(format, &error))?;
    let size = ImageSize::new(image.height() as usize, image.width() as usize);
    Ok(RgbImage::from_parts(size, image.into_raw()))
}

/// The format of a file and the size that its header claims, both within what is decoded.
pub(super) fn header(
    bytes: &[u8],
    limits: &ImageLimits,
) -> Result<(ImageFormat, ImageSize), ImageFault> {
    limits.check_bytes(bytes.len() as u64)?;
    let format = ImageFormat::of(bytes)?;
    let size = header::size(format, bytes)?;
    limits.check_size(size)?;
    Ok((format, size))
}

/// The decoder's picture, turned as its Exif says, without alpha.
fn upright<D: ImageDecoder>(decoder: ImageResult<D>, size: ImageSize) -> ImageResult<Rgb8> {
    let mut decoder = decoder?;
    // The header was read before: a decoder that finds a larger picture stops here.
    decoder.set_limits(decoder_limits(size))?;
    let exif = decoder.exif_metadata().ok().flatten().unwrap_or_default();
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(&exif);
    let orientation = Orientation::from_exif_chunk(exif).unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::ImageRgb8(opaque(DynamicImage::from_decoder(decoder)?)?);
    image.apply_orientation(orientation);
    // Already what it is turned into: nothing is converted.
    Ok(image.into_rgb8())
}

/// What a decoder may use for a picture of `size`: samples of 16 bits in four channels and as much
/// again, and what small pictures need besides.
fn decoder_limits(size: ImageSize) -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_image_width = u32::try_from(size.width).ok();
    limits.max_image_height = u32::try_from(size.height).ok();
    limits.max_alloc = Some(size.pixels().saturating_mul(16) + DECODER_BYTES);
    limits
}

/// Samples of 8 bits, composed over white.
fn opaque(image: DynamicImage) -> ImageResult<Rgb8> {
    let (width, height) = (image.width(), image.height());
    let channels = image.color().channel_count();
    let samples = match image {
        DynamicImage::ImageLuma8(image) => image.into_raw(),
        DynamicImage::ImageLumaA8(image) => image.into_raw(),
        DynamicImage::ImageRgb8(image) => image.into_raw(),
        DynamicImage::ImageRgba8(image) => image.into_raw(),
        DynamicImage::ImageLuma16(image) => high_bytes(&image),
        DynamicImage::ImageLumaA16(image) => high_bytes(&image),
        DynamicImage::ImageRgb16(image) => high_bytes(&image),
        DynamicImage::ImageRgba16(image) => high_bytes(&image),
        // Samples in floating point: no format of ours has them.
        other => return Ok(other.into_rgb8()),
    };
    let bytes = match channels {
        1 => each_pixel(&samples, |[grey]| [*grey; 3]),
        2 => each_pixel(&samples, |[grey, alpha]| [over_white(*grey, *alpha); 3]),
        3 => samples,
        _ => each_pixel(&samples, |[red, green, blue, alpha]| {
            [red, green, blue].map(|colour| over_white(*colour, *alpha))
        }),
    };
    let kind = ParameterErrorKind::DimensionMismatch;
    Rgb8::from_raw(width, height, bytes)
        .ok_or_else(|| ImageError::Parameter(ParameterError::from_kind(kind)))
}

fn high_bytes(samples: &[u16]) -> Vec<u8> {
    samples.iter().map(|sample| (sample >> 8) as u8).collect()
}

fn each_pixel<const N: usize>(samples: &[u8], rgb: impl Fn(&[u8; N]) -> [u8; 3]) -> Vec<u8> {
    let (pixels, _) = samples.as_chunks::<N>();
    let mut bytes = vec![0; 3 * pixels.len()];
    for (target, pixel) in bytes.as_chunks_mut::<3>().0.iter_mut().zip(pixels) {
        *target = rgb(pixel);
    }
    bytes
}

/// `(colour * alpha + 255 * (255 - alpha)) / 255`, rounded to the nearest.
fn over_white(colour: u8, alpha: u8) -> u8 {
    let (colour, alpha) = (u32::from(colour), u32::from(alpha));
    ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

/// A decoder's error as one of ours, which names the format already.
fn fault(format: ImageFormat, error: &ImageError) -> ImageFault {
    let text = match error {
        ImageError::IoError(io) if io.kind() == io::ErrorKind::UnexpectedEof => {
            return header::cut(format, CUT);
        }
        // Its own words have the format in front.
        ImageError::Decoding(decoding) => match decoding.source() {
            Some(source) => source.to_string(),
            None => decoding.to_string(),
        },
        other => other.to_string(),
    };
    if text.to_ascii_lowercase().starts_with("unexpected end") {
        return header::cut(format, CUT);
    }
    header::damaged(format, one_line(&text))
}

/// A decoder's message as one of ours: one line, no full stop.
fn one_line(message: &str) -> String {
    let words = message
        .split(char::is_control)
        .collect::<Vec<_>>()
        .join(" ");
    words.trim_end_matches('.').to_owned()
}

type Rgb8 = ::image::RgbImage;

/// What is said of a file that a decoder found too short.
const CUT: &str = "it ends before its picture";

/// Metadata and working memory of a decoder, whatever the size of the picture.
const DECODER_BYTES: u64 = 16 << 20;
