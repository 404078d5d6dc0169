//! Fixtures, digests, and files made to be wrong.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

use cider::Error;
use cider::image::{ImageFault, ImageLimits, ImageSize, ImageSource, RgbImage};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A file or folder of `testdata`.
pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(name)
}

/// The bytes of a picture of `testdata/images`.
pub(crate) fn picture(name: &str) -> Vec<u8> {
    fs::read(testdata("images").join(name)).unwrap()
}

/// What Pillow and the reference processor make of the pictures.
pub(crate) fn expected() -> Value {
    serde_json::from_slice(&picture("expected.json")).unwrap()
}

pub(crate) fn source(bytes: &[u8]) -> ImageSource {
    ImageSource::Bytes {
        name: "a.png".to_owned(),
        bytes: bytes.to_vec(),
    }
}

pub(crate) fn decode(bytes: &[u8]) -> RgbImage {
    source(bytes).decode(0, &ImageLimits::default()).unwrap()
}

/// What is wrong with `bytes`. The message must be one line that names the image.
pub(crate) fn fault(bytes: &[u8], limits: &ImageLimits) -> ImageFault {
    let error = source(bytes).decode(1, limits).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("image 2 (a.png): "), "{message}");
    assert!(!message.contains(char::is_control), "{message:?}");
    assert!(!message.ends_with('.'), "{message}");
    match error {
        Error::Image {
            index: 1, fault, ..
        } => fault,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn solid(height: usize, width: usize, rgb: [u8; 3]) -> RgbImage {
    let size = ImageSize::new(height, width);
    RgbImage::new(size, rgb.repeat(height * width)).unwrap()
}

/// Byte i is the top byte of the `SplitMix64` finaliser of i.
pub(crate) fn noise(size: ImageSize) -> RgbImage {
    let bytes = (0..3 * size.pixels()).map(|index| {
        let mut z = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 56) as u8
    });
    RgbImage::new(size, bytes.collect()).unwrap()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let digits: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

pub(crate) fn sha256_f32(values: &[f32]) -> String {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    sha256(&bytes)
}

/// A folder with one file, gone when the test is over.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn with(test: &str, files: &[(&str, &str)]) -> Self {
        let path = env::temp_dir().join(format!("cider-image-{}-{test}", process::id()));
        fs::create_dir_all(&path).unwrap();
        for (name, text) in files {
            fs::write(path.join(name), text).unwrap();
        }
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A PNG of `chunks`, their checksums right.
pub(crate) fn png(chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, data) in chunks {
        file.extend((data.len() as u32).to_be_bytes());
        let checked = [name.as_slice(), data].concat();
        file.extend(&checked);
        file.extend(crc32(&checked).to_be_bytes());
    }
    file
}

/// The IHDR of a picture with 8 bits of red, green and blue.
pub(crate) fn png_header(height: u32, width: u32) -> Vec<u8> {
    [
        width.to_be_bytes().as_slice(),
        &height.to_be_bytes(),
        &[8, 2, 0, 0, 0],
    ]
    .concat()
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
