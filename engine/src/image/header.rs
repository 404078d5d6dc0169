//! The size of a picture by its file's header, and whether the file is whole, without decoding it.

use super::fault::ImageFault;
use super::header_jpeg;
use super::rgb::ImageSize;
use super::sniff::ImageFormat;

/// The size that `bytes` of `format` claim. PNG, JPEG and WebP say where they end: a file that does
/// not reach its end is refused. GIF and BMP that are cut are left to their decoders.
pub(super) fn size(format: ImageFormat, bytes: &[u8]) -> Result<ImageSize, ImageFault> {
    match format {
        ImageFormat::Bmp => bmp(bytes),
        ImageFormat::Gif => gif(bytes),
        ImageFormat::Jpeg => header_jpeg::size(bytes),
        ImageFormat::Png => png(bytes),
        ImageFormat::WebP => webp(bytes),
    }
}

/// The `N` bytes from `start` on.
pub(super) fn array<const N: usize>(bytes: &[u8], start: usize) -> Option<[u8; N]> {
    bytes.get(start..)?.first_chunk().copied()
}

fn bmp(bytes: &[u8]) -> Result<ImageSize, ImageFault> {
    let cut = || cut(ImageFormat::Bmp, "the header is not whole");
    let header_size = u32::from_le_bytes(array(bytes, 14).ok_or_else(cut)?);
    if header_size == BMP_CORE_HEADER {
        return sides_u16(bytes, 18).ok_or_else(cut);
    }
    let width = i32::from_le_bytes(array(bytes, 18).ok_or_else(cut)?);
    // A negative height is that of rows from the top.
    let height = i32::from_le_bytes(array(bytes, 22).ok_or_else(cut)?).unsigned_abs();
    match usize::try_from(width) {
        Ok(width) => Ok(ImageSize::new(height as usize, width)),
        Err(_) => Err(damaged(ImageFormat::Bmp, format!("a width of {width}"))),
    }
}

fn gif(bytes: &[u8]) -> Result<ImageSize, ImageFault> {
    sides_u16(bytes, 6).ok_or_else(|| cut(ImageFormat::Gif, "the header is not whole"))
}

fn png(bytes: &[u8]) -> Result<ImageSize, ImageFault> {
    let cut = || cut(ImageFormat::Png, "no IEND chunk");
    let mut position = 8;
    let mut size = None;
    loop {
        let length = u32::from_be_bytes(array(bytes, position).ok_or_else(cut)?) as usize;
        let name: [u8; 4] = array(bytes, position + 4).ok_or_else(cut)?;
        let data = position + 8;
        // The checksum is the decoder's business.
        let next = data.checked_add(length).and_then(|end| end.checked_add(4));
        let next = next.filter(|next| *next <= bytes.len()).ok_or_else(cut)?;
        match (&name, size) {
            (b"IHDR", None) if length == 13 => {
                let width = u32::from_be_bytes(array(bytes, data).ok_or_else(cut)?);
                let height = u32::from_be_bytes(array(bytes, data + 4).ok_or_else(cut)?);
                size = Some(ImageSize::new(height as usize, width as usize));
            }
            (_, None) => return Err(damaged(ImageFormat::Png, "no IHDR chunk at its begin")),
            (b"IEND", Some(size)) => return Ok(size),
            _ => {}
        }
        position = next;
    }
}

/// The canvas of a WebP, all of whose chunks must lie in the file.
fn webp(bytes: &[u8]) -> Result<ImageSize, ImageFault> {
    let cut = || cut(ImageFormat::WebP, "shorter than its chunks say");
    let length = u32::from_le_bytes(array(bytes, 4).ok_or_else(cut)?) as usize;
    let riff = bytes.get(12..length.saturating_add(8)).ok_or_else(cut)?;
    check_chunks(riff, true)?;
    let first: [u8; 4] = array(riff, 0).ok_or_else(cut)?;
    let data = riff.get(8..).ok_or_else(cut)?;
    let size = match &first {
        b"VP8 " => array(data, 6).map(|[w0, w1, h0, h1]| {
            let side = |bytes| usize::from(u16::from_le_bytes(bytes) & 0x3fff);
            ImageSize::new(side([h0, h1]), side([w0, w1]))
        }),
        b"VP8L" => array(data, 1).map(|bytes| {
            let bits = u32::from_le_bytes(bytes) as usize;
            ImageSize::new((bits >> 14 & 0x3fff) + 1, (bits & 0x3fff) + 1)
        }),
        b"VP8X" => array(data, 4).map(|[w0, w1, w2, h0, h1, h2]| {
            let side = |bytes| u32::from_le_bytes(bytes) as usize + 1;
            ImageSize::new(side([h0, h1, h2, 0]), side([w0, w1, w2, 0]))
        }),
        _ => return Err(damaged(ImageFormat::WebP, "no picture in its first chunk")),
    };
    size.ok_or_else(cut)
}

/// Refuses chunks that end beyond `bytes`; those of an animation's frames too where `outer`.
fn check_chunks(mut bytes: &[u8], outer: bool) -> Result<(), ImageFault> {
    while let (Some(name), Some(length)) = (array::<4>(bytes, 0), array(bytes, 4)) {
        let length = u32::from_le_bytes(length) as usize;
        let Some(data) = bytes.get(8..length.saturating_add(8)) else {
            return Err(cut(ImageFormat::WebP, "shorter than its chunks say"));
        };
        if outer && &name == b"ANMF" {
            check_chunks(data.get(WEBP_FRAME_HEADER..).unwrap_or_default(), false)?;
        }
        let next = length.saturating_add(8 + length % 2);
        bytes = bytes.get(next..).unwrap_or_default();
    }
    Ok(())
}

/// Width and height as 16-bit little-endian numbers at `start`.
fn sides_u16(bytes: &[u8], start: usize) -> Option<ImageSize> {
    let width = u16::from_le_bytes(array(bytes, start)?);
    let height = u16::from_le_bytes(array(bytes, start + 2)?);
    Some(ImageSize::new(height.into(), width.into()))
}

pub(super) fn cut(format: ImageFormat, what: &'static str) -> ImageFault {
    ImageFault::Cut { format, what }
}

pub(super) fn damaged(format: ImageFormat, what: impl Into<String>) -> ImageFault {
    ImageFault::Damaged {
        format,
        what: what.into(),
    }
}

/// Bytes of the oldest BMP header, the only one with sides of 16 bits.
const BMP_CORE_HEADER: u32 = 12;

/// Bytes before the chunks of a frame of a WebP animation.
const WEBP_FRAME_HEADER: usize = 16;
