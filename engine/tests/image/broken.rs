//! Files that are hostile, broken, cut, or of another kind.

use std::time::{Duration, Instant};

use cider::image::{ImageFault, ImageFormat, ImageLimits, ImageSize, ImageSource};

use crate::support::{decode, expected, fault, picture, png, png_header, solid, testdata};

const LIMITS: ImageLimits = ImageLimits {
    bytes: 64 << 20,
    pixels: 1 << 26,
};

/// Sides are checked before anything is decoded.
#[test]
fn bombs_are_refused_from_their_headers() {
    assert_eq!(ImageLimits::default(), LIMITS);
    let too_many = |height, width| ImageFault::TooManyPixels {
        size: ImageSize::new(height, width),
        limit: LIMITS.pixels,
    };
    let idat: &[u8] = b"\x78\x9c\x63\0\0\0\x01\0\x01";
    let header = png_header(20_000, 20_000);
    let bomb = png(&[(b"IHDR", &header), (b"IDAT", idat), (b"IEND", b"")]);
    let start = Instant::now();
    for _ in 0..20 {
        assert_eq!(fault(&bomb, &LIMITS), too_many(20_000, 20_000));
        assert_eq!(
            fault(&jpeg_of_size(65_535, 65_535), &LIMITS),
            too_many(65_535, 65_535)
        );
        assert_eq!(
            fault(b"GIF89a\xff\xff\xff\xff\0\0\0;", &LIMITS),
            too_many(65_535, 65_535)
        );
        assert_eq!(
            fault(&webp_of_size(16_383, 16_383), &LIMITS),
            too_many(16_383, 16_383)
        );
        assert_eq!(
            fault(&bmp_of_size(20_000, -20_000), &LIMITS),
            too_many(20_000, 20_000)
        );
    }
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(
        too_many(20_000, 20_000).to_string(),
        "20000x20000 are 400000000 pixels, which exceed the limit of 67108864"
    );
}

/// Text that inflates to a gigabyte is not inflated.
#[test]
fn compressed_text_is_skipped() {
    let plain = picture("red-png.png");
    let mut file = plain[..33].to_vec();
    let text = [b"Comment\0\0\x78\x9c".as_slice(), &deflated_zeros(1 << 30)].concat();
    file.extend(&png(&[(b"zTXt", &text)])[8..]);
    file.extend(&plain[33..]);
    let start = Instant::now();
    assert_eq!(decode(&file), solid(64, 64, [255, 0, 0]));
    assert!(start.elapsed() < Duration::from_secs(1));
}

/// Of ten thousand frames the first is read.
#[test]
fn many_frames_cost_one() {
    let file = picture("frames.gif");
    let mut many = file[..file.len() - 1].to_vec();
    let frames = many[many.len() / 3..].to_vec();
    (0..10_000).for_each(|_| many.extend(&frames));
    let start = Instant::now();
    assert_eq!(decode(&many), solid(32, 64, [255, 0, 0]));
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn the_limits_are_exact() {
    let file = picture("rgb.png");
    let length = file.len() as u64;
    let exact = ImageLimits {
        bytes: length,
        pixels: 64 * 32,
    };
    decode(&file);
    assert!(
        ImageSource::Path(testdata("images/rgb.png"))
            .decode(0, &exact)
            .is_ok()
    );
    let fewer = ImageLimits {
        pixels: 64 * 32 - 1,
        ..exact
    };
    assert_eq!(
        fault(&file, &fewer).to_string(),
        "64x32 are 2048 pixels, which exceed the limit of 2047"
    );
    let shorter = ImageLimits {
        bytes: length - 1,
        ..exact
    };
    let too_many = ImageFault::TooManyBytes {
        bytes: length,
        limit: length - 1,
    };
    assert_eq!(fault(&file, &shorter), too_many);
    let path = ImageSource::Path(testdata("images/rgb.png"));
    let message = path.decode(2, &shorter).unwrap_err().to_string();
    assert!(message.starts_with("image 3 ("), "{message}");
    assert!(
        message.ends_with(&format!(
            "rgb.png): {length} bytes exceed the limit of {}",
            length - 1
        )),
        "{message}"
    );
}

#[test]
fn shapes_beyond_the_aspect_ratio_are_refused() {
    for (height, width, refused) in [
        (1, 200, false),
        (1, 201, true),
        (401, 2, true),
        (400, 2, false),
    ] {
        let header = png_header(height, width);
        let file = png(&[(b"IHDR", &header), (b"IEND", b"")]);
        let size = ImageSize::new(height as usize, width as usize);
        let is_ratio = fault(&file, &LIMITS) == ImageFault::AspectRatio { size };
        assert_eq!(is_ratio, refused, "{size:?}");
    }
    let size = ImageSize::new(1, 201);
    assert_eq!(
        ImageFault::AspectRatio { size }.to_string(),
        "sides of 201x1 are over the aspect ratio of 200"
    );
    let empty = png(&[(b"IHDR", &png_header(0, 5)), (b"IEND", b"")]);
    let size = ImageSize::new(0, 5);
    assert_eq!(fault(&empty, &LIMITS), ImageFault::NoPixels { size });
}

/// What is not decoded is named.
#[test]
fn other_formats_are_named() {
    let cases: [(&[u8], &str); 12] = [
        (b"\0\0\0\x1cftypavif\0\0\0\0mif1miaf", "AVIF"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avif", "AVIF"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1miaf", "HEIF"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0isommp42", "an ISO media file"),
        (
            b"<?xml version='1.0'?>\n<!-- a -->\n<svg xmlns='x'/>",
            "SVG",
        ),
        (b"\xef\xbb\xbf  <svg/>", "SVG"),
        (b"%PDF-1.7\n", "PDF"),
        (b"II*\0\x08\0\0\0", "TIFF"),
        (b"MM\0*\0\0\0\x08", "TIFF"),
        (b"\0\0\x01\0\x01\0", "ICO"),
        (b"\xff\x0a\xff", "JPEG XL"),
    ];
    for (bytes, name) in cases {
        assert_eq!(fault(bytes, &LIMITS), ImageFault::UnsupportedFormat(name));
    }
    let message = ImageFault::UnsupportedFormat("AVIF").to_string();
    assert_eq!(
        message,
        "AVIF is not supported: PNG, JPEG, WebP, GIF and BMP are read"
    );
    for bytes in [
        b"hello".as_slice(),
        b"RIFF\0\0\0\0WAVE",
        b"<html></html>",
        b"\xff\xd8",
    ] {
        assert_eq!(fault(bytes, &LIMITS), ImageFault::UnknownFormat);
    }
    assert_eq!(fault(b"", &LIMITS), ImageFault::Empty);
}

/// A file cut anywhere is refused, or, of an animation, its first frame is whole.
#[test]
fn cut_files_are_refused() {
    for name in expected()["decoded"].as_object().unwrap().keys() {
        let bytes = picture(name);
        let whole = decode(&bytes);
        let animated = name.contains(".gif");
        let step = (bytes.len() / 97).max(1);
        for length in (0..bytes.len()).step_by(step) {
            let cut = ImageSource::Bytes {
                name: name.clone(),
                bytes: bytes[..length].to_vec(),
            };
            match cut.decode(0, &LIMITS) {
                Ok(image) => assert!(animated && image == whole, "{name}: {length}"),
                Err(error) => assert!(!error.to_string().contains('\n')),
            }
        }
    }
    for (name, format) in [("scene.gif", "GIF"), ("rgb.bmp", "BMP")] {
        let bytes = picture(name);
        let message = fault(&bytes[..bytes.len() / 2], &LIMITS).to_string();
        assert_eq!(
            message,
            format!("the {format} is cut: it ends before its picture")
        );
    }
    // The decoder's words come without the format, which ours have.
    let mut gif = picture("scene.gif");
    let middle = gif.len() / 2;
    gif[middle..].fill(0xff);
    let message = fault(&gif, &LIMITS).to_string();
    assert_eq!(message.matches("GIF").count(), 1, "{message}");
    assert!(!message.contains("Gif"), "{message}");
    let jpeg = picture("progressive.jpg");
    let cut = ImageFault::Cut {
        format: ImageFormat::Jpeg,
        what: "no end-of-image marker",
    };
    assert_eq!(fault(&jpeg[..jpeg.len() / 2], &LIMITS), cut);
    assert_eq!(cut.to_string(), "the JPEG is cut: no end-of-image marker");
}

/// A wrong checksum, in the header and in the data.
#[test]
fn wrong_checksums_are_refused() {
    let file = picture("rgb.png");
    let idat = file.windows(4).position(|name| name == b"IDAT").unwrap();
    let length = u32::from_be_bytes(file[idat - 4..idat].try_into().unwrap()) as usize;
    for place in [29, idat + 4 + length] {
        let mut wrong = file.clone();
        wrong[place] ^= 1;
        let message = fault(&wrong, &LIMITS).to_string();
        assert!(message.starts_with("the PNG is damaged: "), "{message}");
        assert!(message.contains("CRC"), "{message}");
    }
}

/// A flipped bit anywhere is refused or decoded, and never a panic.
#[test]
fn flipped_bits_do_not_panic() {
    for name in expected()["decoded"].as_object().unwrap().keys() {
        let bytes = picture(name);
        let step = (bytes.len() / 61).max(1);
        for place in (0..bytes.len()).step_by(step) {
            let mut wrong = bytes.clone();
            wrong[place] ^= 1 << (place % 8);
            let source = ImageSource::Bytes {
                name: name.clone(),
                bytes: wrong,
            };
            if let Err(error) = source.decode(0, &LIMITS) {
                assert!(!error.to_string().contains('\n'), "{name}: {error}");
            }
        }
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let absent = ImageSource::Path(testdata("images/absent.png"));
    let message = absent.decode(0, &LIMITS).unwrap_err().to_string();
    assert!(message.contains("absent.png): No such file"), "{message}");
    let folder = ImageSource::Path(testdata("images"));
    let message = folder.decode(0, &LIMITS).unwrap_err().to_string();
    assert!(
        message.ends_with("images): a folder, not a regular file"),
        "{message}"
    );
}

/// A JPEG of one component whose frame header claims `height` and `width`.
fn jpeg_of_size(height: u16, width: u16) -> Vec<u8> {
    let mut file = picture("grey.jpg");
    let frame = file
        .windows(2)
        .position(|marker| marker == b"\xff\xc0")
        .unwrap();
    file[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    file[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    file
}

fn webp_of_size(height: u16, width: u16) -> Vec<u8> {
    let mut file = picture("lossy.webp");
    file[26..28].copy_from_slice(&width.to_le_bytes());
    file[28..30].copy_from_slice(&height.to_le_bytes());
    file
}

fn bmp_of_size(width: i32, height: i32) -> Vec<u8> {
    let mut file = picture("rgb.bmp");
    file[18..22].copy_from_slice(&width.to_le_bytes());
    file[22..26].copy_from_slice(&height.to_le_bytes());
    file
}

/// A deflate stream of `length` zeros: blocks with fixed codes, each a literal and then the longest
/// copies of the byte before.
fn deflated_zeros(length: usize) -> Vec<u8> {
    // In the order in which they are written, low bit first: last block, fixed codes; then the literal
    // 0 as 00110000, and a copy of 258 at distance 1 as 11000101 00000.
    let mut bits = BitWriter::default();
    bits.write(0b011, 3);
    bits.write(0b0000_1100, 8);
    for _ in 0..length / 258 {
        bits.write(0b1010_0011, 8);
        bits.write(0, 5);
    }
    bits.write(0, 7);
    bits.bytes
}

#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    used: usize,
}

impl BitWriter {
    fn write(&mut self, bits: u32, count: usize) {
        for bit in 0..count {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= ((bits >> bit & 1) as u8) << (self.used % 8);
            }
            self.used += 1;
        }
    }
}
