//! The files that describe the processor.

use cider::image::{ImageProcessor, ImageSize};

use crate::support::{Folder, testdata};

const OLD: &str = "preprocessor_config.json";
const NEW: &str = "processor_config.json";

fn bounds(test: &str, files: &[(&str, &str)]) -> (u64, u64) {
    let folder = Folder::with(test, files);
    let processor = ImageProcessor::open(folder.path()).unwrap();
    processor.pixel_bounds()
}

/// The settings of a newer folder are nested and win; a newer file without them leaves the older one.
#[test]
fn both_spellings_are_read() {
    let old = r#"{"min_pixels": 100, "max_pixels": 200}"#;
    let new = r#"{"image_processor": {"size": {"shortest_edge": 300, "longest_edge": 400}}}"#;
    assert_eq!(bounds("spelling-old", &[(OLD, old)]), (100, 200));
    assert_eq!(bounds("spelling-new", &[(NEW, new)]), (300, 400));
    assert_eq!(
        bounds("spelling-both", &[(OLD, old), (NEW, new)]),
        (300, 400)
    );
    let other = r#"{"processor_class": "Qwen3VLProcessor"}"#;
    assert_eq!(
        bounds("spelling-other", &[(OLD, old), (NEW, other)]),
        (100, 200)
    );
    let late = ImageProcessor::open(&testdata("vl/late")).unwrap();
    assert_eq!(late.pixel_bounds(), (65_536, 16_777_216));
    let tiny = ImageProcessor::open(&testdata("vl/tiny")).unwrap();
    assert_eq!(tiny.pixel_bounds(), (4096, 32_768));
}

#[test]
fn the_geometry_comes_from_the_file() {
    let text = r#"{"patch_size": 14, "merge_size": 3, "temporal_patch_size": 4}"#;
    let folder = Folder::with("geometry", &[(OLD, text)]);
    let processor = ImageProcessor::open(folder.path()).unwrap();
    let sizes = [
        processor.patch_size(),
        processor.merge_size(),
        processor.temporal_patch_size(),
        processor.factor(),
    ];
    assert_eq!(sizes, [14, 3, 4, 42]);
    assert_eq!(processor.grid_thw(ImageSize::new(420, 840)), [1, 30, 60]);
}

/// What is wrong is named with its file and key.
#[test]
fn wrong_settings_are_refused() {
    let cases = [
        (
            r#"{"image_processor_type": "SiglipImageProcessor"}"#,
            "image_processor_type: SiglipImageProcessor is not known, only Qwen2VLImageProcessor, \
             Qwen2VLImageProcessorFast, Qwen2VLImageProcessorPil, Qwen3VLImageProcessor",
        ),
        (
            r#"{"size": {"height": 448, "width": 448}}"#,
            "size.height: not known: a size is a shortest_edge and a longest_edge, both in pixels of area",
        ),
        (
            r#"{"size": {"shortest_edge": 500, "longest_edge": 400}}"#,
            "size: a minimum of 500 pixels for images exceeds the maximum of 400",
        ),
        (r#"{"size": 448}"#, "size: expected an object, found 448"),
        (
            r#"{"max_pixels": -1}"#,
            "max_pixels: expected a whole number from 1 to 1099511627776, found -1",
        ),
        (
            r#"{"patch_size": 0}"#,
            "patch_size: expected a whole number from 1 to 64, found 0",
        ),
        (
            r#"{"image_mean": [0.5, 0.5]}"#,
            "image_mean: expected three numbers or one, found [0.5,0.5]",
        ),
        (
            r#"{"image_std": [0.5, 0, 0.5]}"#,
            "image_std: expected numbers above 0",
        ),
        (
            r#"{"resample": 2}"#,
            "resample: expected 3, which is bicubic, found 2",
        ),
        (
            r#"{"do_resize": false}"#,
            "do_resize: expected true: images must fit the patches",
        ),
        (
            r#"{"rescale_factor": 0}"#,
            "rescale_factor: expected a number above 0, found 0",
        ),
    ];
    for (text, message) in cases {
        let folder = Folder::with("wrong", &[(OLD, text)]);
        let error = ImageProcessor::open(folder.path()).unwrap_err();
        let path = folder.path().join(OLD);
        assert_eq!(error.to_string(), format!("{}: {message}", path.display()));
    }
    let nested = r#"{"image_processor": {"merge_size": 1.5}}"#;
    let folder = Folder::with("wrong-nested", &[(NEW, nested)]);
    let message = ImageProcessor::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("image_processor.merge_size"), "{message}");
    let folder = Folder::with("wrong-none", &[]);
    let message = ImageProcessor::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("no preprocessor_config.json"), "{message}");
}
