//! Resizing, to the byte.

use cider::image::{ImageSize, resize_bicubic};

use crate::support::{expected, noise, sha256};

/// Up, down, far down, unchanged, mixed, sides of one pixel: Pillow's bytes.
#[test]
fn bicubic_is_that_of_pillow() {
    let expected = expected();
    let rows = expected["resized"].as_array().unwrap();
    assert!(rows.len() > 100, "{}", rows.len());
    for row in rows {
        let fields: Vec<&str> = row.as_str().unwrap().split(' ').collect();
        let side = |index: usize| fields[index].parse::<usize>().unwrap();
        let from = ImageSize::new(side(0), side(1));
        if from.height.max(from.width) > 200 * from.height.min(from.width) {
            continue;
        }
        let resized = resize_bicubic(&noise(from), ImageSize::new(side(2), side(3)));
        assert_eq!(resized.size(), ImageSize::new(side(2), side(3)));
        assert_eq!(sha256(resized.bytes()), fields[4], "{row}");
    }
}
