//! Any bytes as an image, as a file and as the data of a URL: refused with one line, or a picture that
//! can be cut into patches.
#![no_main]

use cider::image::{ImageLimits, ImageProcessor, ImageSource, PixelBudget};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let limits = ImageLimits {
        bytes: 1 << 20,
        pixels: 1 << 18,
    };
    let file = ImageSource::Bytes {
        name: String::from("fuzz"),
        bytes: bytes.to_vec(),
    };
    let url = ImageSource::DataUrl(format!("data:{}", String::from_utf8_lossy(bytes)));
    for source in [file, url] {
        match source.decode(0, &limits) {
            Ok(image) => {
                assert_eq!(image.bytes().len() as u64, 3 * image.size().pixels());
                let budget = PixelBudget {
                    min_pixels: Some(1024),
                    max_pixels: Some(16 * 1024),
                };
                let processor = ImageProcessor::default().with_budget(budget).unwrap();
                let patches = processor.patches(&image);
                assert_eq!(patches.grid_thw, processor.grid_thw(image.size()));
                assert_eq!(patches.pixel_values.len(), patches.rows() * 1536);
            }
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
    }
});
