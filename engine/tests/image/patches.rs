//! Patches: values, layout, digests.

use std::fs;
use std::time::{Duration, Instant};

use cider::image::{ImageProcessor, ImageSize, PixelBudget, resize_bicubic};
use serde_json::{Value, json};

use crate::support::{
    Folder, decode, expected, noise, picture, sha256, sha256_f32, solid, testdata,
};

/// The reference processor's `pixel_values`, to the bit, in several geometries and normalisations.
#[test]
fn pixel_values_are_those_of_the_reference() {
    let expected = expected();
    let rows = expected["patches"].as_array().unwrap();
    for row in rows {
        let mut settings = row["settings"].clone();
        settings["min_pixels"] = row["min_pixels"].clone();
        settings["max_pixels"] = row["max_pixels"].clone();
        let text = settings.to_string();
        let folder = Folder::with("patches", &[("preprocessor_config.json", &text)]);
        let processor = ImageProcessor::open(folder.path()).unwrap();
        let image = decode(&picture(row["file"].as_str().unwrap()));
        let patches = processor.patches(&image);
        assert_eq!(json!(patches.grid_thw), row["grid_thw"], "{row}");
        assert_eq!(
            patches.rows() * row_values(&processor),
            patches.pixel_values.len()
        );
        assert_eq!(sha256_f32(&patches.pixel_values), row["sha256"], "{row}");
    }
    assert!(rows.len() >= 60, "{}", rows.len());
}

/// The pictures of the tiny vision models, with the two spellings of their settings.
#[test]
fn pixel_values_of_the_tiny_models() {
    for model in ["vl/tiny", "vl/late"] {
        let folder = testdata(model);
        let processor = ImageProcessor::open(&folder).unwrap();
        let images = fs::read(folder.join("images.json")).unwrap();
        let images: Value = serde_json::from_slice(&images).unwrap();
        for (name, row) in images.as_object().unwrap() {
            let image = decode(&fs::read(testdata("vl/images").join(name)).unwrap());
            let resized = resize_bicubic(&image, processor.resized(image.size()));
            assert_eq!(sha256(resized.bytes()), row["resized_sha256"], "{name}");
            let patches = processor.patches(&image);
            assert_eq!(json!(patches.grid_thw), row["grid"], "{model}: {name}");
            assert_eq!(json!(processor.tokens(image.size())), row["tokens"]);
            assert_eq!(
                sha256_f32(&patches.pixel_values),
                row["pixel_values_sha256"],
                "{model}: {name}"
            );
        }
    }
}

/// Mean and deviation of the file.
#[test]
fn values_are_normalised_as_the_file_says() {
    let plain = ImageProcessor::default();
    let means = r#"{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 1.0]}"#;
    let folder = Folder::with("c014", &[("preprocessor_config.json", means)]);
    let other = ImageProcessor::open(folder.path()).unwrap();
    let cases = [
        (&plain, [128; 3], [0.0039; 3]),
        (&plain, [0; 3], [-1.0; 3]),
        (&plain, [255; 3], [1.0; 3]),
        (&plain, [255, 0, 0], [1.0, -1.0, -1.0]),
        (&other, [128; 3], [0.8039, 1.2078, 0.2020]),
    ];
    for (processor, rgb, values) in cases {
        let patches = processor.patches(&solid(256, 256, rgb));
        assert_eq!(patches.grid_thw, [1, 16, 16]);
        for patch in patches.pixel_values.chunks_exact(1536) {
            for (channel, value) in patch.chunks_exact(512).zip(values) {
                assert!(channel.iter().all(|v| (v - value).abs() < 1e-4), "{rgb:?}");
            }
        }
    }
}

/// Alpha over white, for every colour and alpha, as the reference has it.
#[test]
fn alpha_is_composed_over_white() {
    let processor = ImageProcessor::default();
    for (rgba, rgb) in [
        ([0, 0, 0, 0], [255, 255, 255]),
        ([255, 0, 0, 255], [255, 0, 0]),
        ([0, 0, 0, 128], [127, 127, 127]),
    ] {
        let image = decode(&rgba_bmp(64, 64, |_, _| rgba));
        assert_eq!(image, solid(64, 64, rgb), "{rgba:?}");
        let value = processor.patches(&image).pixel_values[0];
        assert!((value - (f32::from(rgb[0]) / 127.5 - 1.0)).abs() < 1e-6);
    }
    let table = decode(&rgba_bmp(256, 256, |row, column| {
        [column as u8, column as u8, column as u8, row as u8]
    }));
    let grey: Vec<u8> = table.bytes().iter().copied().step_by(3).collect();
    assert_eq!(sha256(&grey), expected()["alpha"]);
}

/// One small picture takes milliseconds.
#[test]
fn a_picture_is_quick() {
    let processor = ImageProcessor::default();
    let image = noise(ImageSize::new(375, 512));
    assert_eq!(processor.tokens(image.size()), 192);
    let times = (0..5).map(|_| {
        let start = Instant::now();
        assert_eq!(processor.patches(&image).grid_thw, [1, 24, 32]);
        start.elapsed()
    });
    let best = times.min().unwrap();
    assert!(best < Duration::from_millis(30), "{best:?}");
}

/// The digest tells apart what gives other patches, and nothing else.
#[test]
fn digests_follow_pixels_and_settings() {
    let processor = ImageProcessor::default();
    let red = solid(64, 96, [255, 0, 0]);
    let digest = processor.digest(&red);
    assert_eq!(processor.digest(&solid(64, 96, [255, 0, 0])), digest);
    assert_ne!(processor.digest(&solid(64, 96, [254, 0, 0])), digest);
    assert_ne!(processor.digest(&solid(96, 64, [255, 0, 0])), digest);
    let budget = |min_pixels, max_pixels| {
        let (min_pixels, max_pixels) = (Some(min_pixels), Some(max_pixels));
        let budget = PixelBudget {
            min_pixels,
            max_pixels,
        };
        processor.with_budget(budget).unwrap().digest(&red)
    };
    assert_ne!(budget(1024, 4096), digest);
    // Another bound that leads to the same size gives the same patches.
    assert_eq!(budget(65_536, 1 << 20), digest);
    let text = r#"{"image_mean": [0.5, 0.5, 0.4]}"#;
    let folder = Folder::with("digest", &[("preprocessor_config.json", text)]);
    let other = ImageProcessor::open(folder.path()).unwrap();
    assert_ne!(other.digest(&red), digest);
    assert_eq!(digest.to_string().len(), 64);
    assert_eq!(digest.as_bytes().len(), 32);
}

fn row_values(processor: &ImageProcessor) -> usize {
    3 * processor.temporal_patch_size() * processor.patch_size().pow(2)
}

/// A BMP of 32 bits with a mask for alpha, which needs no compression.
fn rgba_bmp(height: u32, width: u32, pixel: impl Fn(u32, u32) -> [u8; 4]) -> Vec<u8> {
    let mut file = b"BM\0\0\0\0\0\0\0\0".to_vec();
    file.extend(122_u32.to_le_bytes());
    file.extend([108, width, height].into_iter().flat_map(u32::to_le_bytes));
    file.extend([1, 0, 32, 0]);
    file.extend([3, 0, 0, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes));
    let masks = [0xff_u32, 0xff00, 0x00ff_0000, 0xff00_0000];
    file.extend(masks.into_iter().flat_map(u32::to_le_bytes));
    file.resize(122, 0);
    for row in (0..height).rev() {
        (0..width).for_each(|column| file.extend(pixel(row, column)));
    }
    file
}
