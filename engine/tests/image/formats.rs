//! Decoding every format and kind.

use std::fs;

use cider::image::{ImageLimits, ImageSize, ImageSource};
use serde_json::{Value, json};

use crate::support::{decode, expected, picture, sha256, source, testdata};

/// Everything that is lossless is Pillow's, to the byte.
#[test]
fn lossless_pictures_are_those_of_pillow() {
    let expected = expected();
    let decoded = expected["decoded"].as_object().unwrap();
    let mut exact = 0;
    for (name, row) in decoded {
        let image = decode(&picture(name));
        let size = [image.size().height, image.size().width];
        assert_eq!(serde_json::json!(size), row["size"], "{name}");
        if !testdata("images/lossy")
            .join(format!("{name}.png"))
            .exists()
        {
            assert_eq!(sha256(image.bytes()), row["sha256"], "{name}");
            exact += 1;
        }
    }
    assert!(exact >= 30, "{exact}");
}

/// Lossy WebP is libwebp's to the byte. JPEG differs from libjpeg-turbo by at most 2 in a channel; where
/// colour has fewer samples than pixels, which are filled in with another rounding, by at most 4 at the
/// edges of these hard pictures. On average it is less than half a step.
#[test]
fn lossy_pictures_are_close_to_pillow() {
    let files = fs::read_dir(testdata("images/lossy")).unwrap();
    let mut count = 0;
    for file in files {
        let path = file.unwrap().path();
        let reference = decode(&fs::read(&path).unwrap());
        let name = path.file_stem().unwrap().to_str().unwrap();
        let image = decode(&picture(name));
        assert_eq!(image.size(), reference.size(), "{name}");
        let pairs = image.bytes().iter().zip(reference.bytes());
        let apart: Vec<u64> = pairs.map(|(a, b)| a.abs_diff(*b).into()).collect();
        let subsampled = ["420", "422", "progressive", "restart"];
        let limit = if name.contains(".webp") {
            0
        } else if subsampled.iter().any(|part| name.contains(part)) {
            4
        } else {
            2
        };
        let largest = apart.iter().max().unwrap();
        assert!(*largest <= limit, "{name}: {largest}");
        let sum: u64 = apart.iter().sum();
        assert!(2 * sum < apart.len() as u64, "{name}: {sum}");
        count += 1;
    }
    assert!(count >= 20, "{count}");
}

/// The other set of pictures, each within its own tolerance of Pillow.
#[test]
fn pictures_of_the_vision_models_are_those_of_pillow() {
    let folder = testdata("vl/formats");
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let listed: Value = serde_json::from_slice(&read("formats.json")).unwrap();
    let pixels = read("pixels.safetensors");
    let (length, rest) = pixels.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    for (name, row) in listed.as_object().unwrap() {
        let image = decode(&read(name));
        let size = json!([image.size().height, image.size().width, 3]);
        assert_eq!(header[name]["shape"], size, "{name}");
        let offset = |end: usize| header[name]["data_offsets"][end].as_u64().unwrap() as usize;
        let expected = &data[offset(0)..offset(1)];
        let apart = image
            .bytes()
            .iter()
            .zip(expected)
            .map(|(a, b)| a.abs_diff(*b));
        let largest = u64::from(apart.max().unwrap());
        assert!(
            largest <= row["tolerance"].as_u64().unwrap(),
            "{name}: {largest}"
        );
    }
}

/// One red square in every format; of a GIF the first of three frames.
#[test]
fn every_format_is_red() {
    let mut count = 0;
    for name in expected()["decoded"].as_object().unwrap().keys() {
        if !name.starts_with("red-") && name != "frames.gif" && name != "animated.webp" {
            continue;
        }
        let image = decode(&picture(name));
        for (channel, value) in [1.0, -1.0, -1.0].into_iter().enumerate() {
            let samples = image.bytes().iter().skip(channel).step_by(3);
            let sum: f64 = samples.map(|v| f64::from(*v) / 127.5 - 1.0).sum();
            let mean = sum / image.size().pixels() as f64;
            assert!((mean - value).abs() < 0.05, "{name}: {channel}: {mean}");
        }
        count += 1;
    }
    assert_eq!(count, 9);
}

/// The left half red, the right half blue, upright in eight ways.
#[test]
fn exif_orientation_is_applied() {
    let (wide, tall) = (ImageSize::new(32, 64), ImageSize::new(64, 32));
    // Which corner pixel is red, the other one being blue.
    let cases = [
        ("exif-1.jpg", wide, (5, 5), (5, 58)),
        ("exif-2.jpg", wide, (5, 58), (5, 5)),
        ("exif-3.jpg", wide, (5, 58), (5, 5)),
        ("exif-4.jpg", wide, (5, 5), (5, 58)),
        ("exif-5.jpg", tall, (5, 5), (58, 5)),
        ("exif-6.jpg", tall, (5, 5), (58, 5)),
        ("exif-7.jpg", tall, (58, 5), (5, 5)),
        ("exif-8.jpg", tall, (58, 5), (5, 5)),
        ("exif-6.png", tall, (5, 5), (58, 5)),
        ("exif-6.webp", tall, (5, 5), (58, 5)),
        ("exif-broken.jpg", wide, (5, 5), (5, 58)),
    ];
    for (name, size, red, blue) in cases {
        let image = decode(&picture(name));
        assert_eq!(image.size(), size, "{name}");
        let at = |(row, column): (usize, usize)| {
            let start = 3 * (row * size.width + column);
            <[u8; 3]>::try_from(&image.bytes()[start..start + 3]).unwrap()
        };
        assert!(at(red)[0] > 250 && at(red)[2] < 5, "{name}: {:?}", at(red));
        assert!(
            at(blue)[2] > 250 && at(blue)[0] < 5,
            "{name}: {:?}",
            at(blue)
        );
    }
}

/// A wrong extension does not matter: bytes say what they are.
#[test]
fn names_are_not_looked_at() {
    let image = decode(&picture("red-baseline.jpg"));
    let named = ImageSource::Bytes {
        name: "picture.bmp".to_owned(),
        bytes: picture("red-baseline.jpg"),
    };
    assert_eq!(named.decode(0, &ImageLimits::default()).unwrap(), image);
    let path = ImageSource::Path(testdata("images/red-baseline.jpg"));
    assert_eq!(path.decode(0, &ImageLimits::default()).unwrap(), image);
}

#[test]
fn one_pixel_is_a_picture() {
    let image = decode(&picture("one.png"));
    assert_eq!(
        (image.size(), image.bytes()),
        (ImageSize::new(1, 1), [10, 200, 30].as_slice())
    );
    assert_eq!(format!("{:?}", source(b"")), "ImageSource(a.png)");
}
