//! How large an image becomes.

use cider::image::{ImageProcessor, ImageSize, PixelBudget};

use crate::support::Folder;

fn budget(min_pixels: u64, max_pixels: u64) -> ImageProcessor {
    let budget = PixelBudget {
        min_pixels: Some(min_pixels),
        max_pixels: Some(max_pixels),
    };
    ImageProcessor::default().with_budget(budget).unwrap()
}

/// Halves round to even, then the bounds.
#[test]
fn sides_are_those_of_the_reference() {
    let cases = [
        ((30, 305), (96, 832), 78),
        ((1, 1), (256, 256), 64),
        ((31, 31), (256, 256), 64),
        ((80, 1024), (64, 1024), 64),
        ((240, 1040), (256, 1024), 256),
        ((272, 400), (256, 384), 96),
        ((336, 1008), (320, 1024), 320),
        ((375, 512), (384, 512), 192),
        ((300, 300), (288, 288), 81),
        ((1080, 1920), (1088, 1920), 2040),
        ((6000, 8000), (3520, 4704), 16170),
    ];
    let processor = ImageProcessor::default();
    for ((height, width), resized, tokens) in cases {
        let size = ImageSize::new(height, width);
        let expected = ImageSize::new(resized.0, resized.1);
        assert_eq!(processor.resized(size), expected, "{size:?}");
        assert_eq!(processor.tokens(size), tokens, "{size:?}");
        let grid = [1, resized.0 / 16, resized.1 / 16];
        assert_eq!(processor.grid_thw(size), grid, "{size:?}");
    }
}

/// Icons grow to the least number of pixels.
#[test]
fn icons_grow() {
    let processor = ImageProcessor::default();
    for (height, width, tokens) in [(1, 1, 64), (2, 2, 64), (31, 31, 64), (16, 200, 87)] {
        assert_eq!(processor.tokens(ImageSize::new(height, width)), tokens);
    }
    let thin = processor.resized(ImageSize::new(16, 200));
    assert_eq!(thin, ImageSize::new(96, 928));
}

/// No side is rounded away.
#[test]
fn sides_are_at_least_one_factor() {
    let processor = budget(4 * 1024, 20 * 1024);
    let thin = processor.resized(ImageSize::new(31, 639));
    assert_eq!(thin, ImageSize::new(32, 640));
    for height in 11..=64 {
        for width in (200..=2000).step_by(7) {
            let size = processor.resized(ImageSize::new(height, width));
            for side in [size.height, size.width] {
                assert!(side >= 32 && side % 32 == 0, "{height}x{width}: {size:?}");
            }
        }
    }
}

/// A request beats `size`, which beats `min_pixels` and `max_pixels`.
#[test]
fn bounds_have_one_order() {
    let screen = ImageSize::new(1080, 1920);
    let request = PixelBudget {
        max_pixels: Some(200_000),
        ..PixelBudget::default()
    };
    let cases = [
        (r#"{"max_pixels": 200000}"#, None, 180),
        (
            r#"{"size": {"shortest_edge": 65536, "longest_edge": 200000}}"#,
            None,
            180,
        ),
        (
            r#"{"size": {"min_pixels": 65536, "max_pixels": 200000}}"#,
            None,
            180,
        ),
        ("{}", Some(request), 180),
        ("{}", None, 2040),
        (
            r#"{"size": {"longest_edge": 200000}, "max_pixels": 16777216}"#,
            None,
            180,
        ),
        (
            r#"{"size": {"longest_edge": 16777216}, "max_pixels": 300000}"#,
            Some(request),
            180,
        ),
    ];
    for (text, request, tokens) in cases {
        let folder = Folder::with("c015", &[("preprocessor_config.json", text)]);
        let processor = ImageProcessor::open(folder.path()).unwrap();
        let processor = processor.with_budget(request.unwrap_or_default()).unwrap();
        assert_eq!(processor.tokens(screen), tokens, "{text}");
    }
    assert_eq!(budget(1, 200_000).resized(screen), ImageSize::new(320, 576));
    assert_eq!(budget(1, 200_000).pixel_bounds(), (1, 200_000));
}

/// Bounds in tokens.
#[test]
fn tokens_become_pixels() {
    let processor = ImageProcessor::default();
    let size = ImageSize::new(512, 512);
    assert_eq!(processor.tokens(size), 256);
    let budget = PixelBudget::from_tokens(&processor, Some(1024), None).unwrap();
    assert_eq!(budget.min_pixels, Some(1_048_576));
    let detailed = processor.with_budget(budget).unwrap();
    assert_eq!(detailed.resized(size), ImageSize::new(1024, 1024));
    assert_eq!(detailed.tokens(size), 1024);
    let error = PixelBudget::from_tokens(&processor, Some(1024), Some(1023)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a minimum of 1024 image tokens exceeds the maximum of 1023"
    );
}

/// A request cannot contradict itself or the model, nor make every image huge.
#[test]
fn bounds_that_cannot_be_met_are_refused() {
    let cases = [
        (
            (Some(9), Some(8)),
            "a minimum of 9 pixels for images exceeds the maximum of 8",
        ),
        (
            (None, Some(65_535)),
            "a minimum of 65536 pixels for images exceeds the maximum of 65535",
        ),
        ((Some(0), None), "a bound of 0 pixels for images"),
        (
            (Some(1 << 40), Some(1 << 41)),
            "a minimum of 1099511627776 pixels for images exceeds the limit of 67108864",
        ),
    ];
    for ((min_pixels, max_pixels), message) in cases {
        let budget = PixelBudget {
            min_pixels,
            max_pixels,
        };
        let error = ImageProcessor::default().with_budget(budget).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}
