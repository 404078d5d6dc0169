//! The format of a file by its first bytes; names and media types are not looked at.

use std::fmt;

use super::fault::ImageFault;

/// A format that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// Windows bitmap.
    Bmp,
    /// Graphics Interchange Format, of which the first frame is taken.
    Gif,
    /// JPEG: baseline or progressive, grey, colour or CMYK.
    Jpeg,
    /// Portable Network Graphics.
    Png,
    /// WebP: lossy or lossless.
    WebP,
}

impl ImageFormat {
    /// The format of `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Result<Self, ImageFault> {
        if bytes.is_empty() {
            return Err(ImageFault::Empty);
        }
        if let Some((_, format)) = DECODED.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            return Ok(*format);
        }
        if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            return Ok(Self::WebP);
        }
        match refused(bytes) {
            Some(name) => Err(ImageFault::UnsupportedFormat(name)),
            None => Err(ImageFault::UnknownFormat),
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bmp => "BMP",
            Self::Gif => "GIF",
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
        })
    }
}

/// The name of a format that is known and not decoded.
fn refused(bytes: &[u8]) -> Option<&'static str> {
    if let Some((_, name)) = REFUSED.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Some(name);
    }
    if bytes.get(4..8) == Some(b"ftyp") {
        return Some(brand(bytes.get(8..).unwrap_or_default()));
    }
    is_svg(bytes).then_some("SVG")
}

/// The name of an ISO media file by its brands: the major one, a version, the compatible ones. The
/// major one may be HEIF's own, which names no codec.
fn brand(brands: &[u8]) -> &'static str {
    let mut read = brands.chunks_exact(4).take(BRANDS_READ);
    let known = read.find_map(|brand| BRANDS.iter().find(|(name, _)| brand == *name));
    match known {
        Some((_, name)) => name,
        None if brands.starts_with(b"mif1") || brands.starts_with(b"msf1") => "HEIF",
        None => "an ISO media file",
    }
}

/// Whether the text begins like SVG: a root, perhaps after a declaration, comments and white space.
fn is_svg(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(SVG_HEAD)];
    let text = String::from_utf8_lossy(head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head));
    let text = text.trim_start();
    text.starts_with('<') && text.contains("<svg")
}

/// The first bytes of what is decoded.
const DECODED: [(&[u8], ImageFormat); 5] = [
    (b"\x89PNG\r\n\x1a\n", ImageFormat::Png),
    (b"\xff\xd8\xff", ImageFormat::Jpeg),
    (b"GIF87a", ImageFormat::Gif),
    (b"GIF89a", ImageFormat::Gif),
    (b"BM", ImageFormat::Bmp),
];

/// The first bytes of what people send and is not decoded.
const REFUSED: [(&[u8], &str); 11] = [
    (b"II\x2a\0", "TIFF"),
    (b"MM\0\x2a", "TIFF"),
    (b"II\x2b\0", "TIFF"),
    (b"MM\0\x2b", "TIFF"),
    (b"%PDF-", "PDF"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\0\0\x01\0", "ICO"),
    (b"8BPS", "PSD"),
    (b"qoif", "QOI"),
];

/// Brands of ISO media files.
const BRANDS: [(&[u8], &str); 8] = [
    (b"avif", "AVIF"),
    (b"avis", "AVIF"),
    (b"heic", "HEIC"),
    (b"heix", "HEIC"),
    (b"hevc", "HEIC"),
    (b"hevx", "HEIC"),
    (b"heim", "HEIC"),
    (b"heis", "HEIC"),
];

/// Brands that are looked at.
const BRANDS_READ: usize = 8;

/// Bytes in which the root of an SVG is looked for.
const SVG_HEAD: usize = 1024;
