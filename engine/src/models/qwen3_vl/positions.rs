//! Where patches are: their rows and columns in the order they come, and the learned table between its entries.

/// Rows and columns of the patches of a grid, in the order of the processor: square by square of the patches
/// that become one token, and row by row within a square.
pub(super) fn places(height: usize, width: usize, merge: usize) -> Vec<[usize; 2]> {
    let mut places = Vec::with_capacity(height * width);
    for row in (0..height).step_by(merge) {
        for column in (0..width).step_by(merge) {
            for i in 0..merge {
                places.extend((0..merge).map(|j| [row + i, column + j]));
            }
        }
    }
    places
}

/// The four entries of a table of `side` x `side` that a patch lies between, each with its weight: the corners
/// of the picture are the corners of the table.
pub(super) fn corners(place: [usize; 2], grid: [usize; 2], side: usize) -> [(usize, f32); 4] {
    let [row, column] = [0, 1].map(|axis| even_steps(place[axis], grid[axis], side));
    let entry = |row: usize, column: usize| row * side + column;
    [
        (
            entry(row.below, column.below),
            (1.0 - row.share) * (1.0 - column.share),
        ),
        (
            entry(row.below, column.above),
            (1.0 - row.share) * column.share,
        ),
        (
            entry(row.above, column.below),
            row.share * (1.0 - column.share),
        ),
        (entry(row.above, column.above), row.share * column.share),
    ]
}

/// A point between two entries.
struct Between {
    below: usize,
    above: usize,
    /// How near it is to the entry above.
    share: f32,
}

/// Point `index` of `count` points that are spread evenly over the entries `0..side`, in f32 as the reference
/// has it: a product that is exact, then one division.
fn even_steps(index: usize, count: usize, side: usize) -> Between {
    let point = (index * (side - 1)) as f32 / count.saturating_sub(1).max(1) as f32;
    let below = (point as usize).min(side - 1);
    Between {
        below,
        above: (below + 1).min(side - 1),
        share: point - below as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::safetensors;

    #[test]
    fn places_go_square_by_square() {
        let expected = [
            [0, 0],
            [0, 1],
            [1, 0],
            [1, 1],
            [0, 2],
            [0, 3],
            [1, 2],
            [1, 3],
        ];
        assert_eq!(places(2, 4, 2), expected);
    }

    /// The corners of the table of positions lie on the corners of the picture, whatever its shape.
    #[test]
    fn corners_are_aligned() {
        let value = |entry: usize| (entry / 48 * 1000 + entry % 48) as f32;
        for [height, width] in [[2, 2], [16, 16], [32, 52], [96, 6]] {
            for [row, column] in places(height, width, 2) {
                let found: f32 = corners([row, column], [height, width], 48)
                    .into_iter()
                    .map(|(entry, weight)| value(entry) * weight)
                    .sum();
                let at = |i: usize, n: usize| 47.0 * i as f64 / (n - 1) as f64;
                let expected = at(row, height) * 1000.0 + at(column, width);
                assert!(
                    (f64::from(found) - expected).abs() < 1e-2,
                    "{row} {column}: {found}"
                );
            }
        }
    }

    /// The weights of the four nearest entries equal the reference's, to the bit.
    #[test]
    fn weights_are_those_of_the_reference() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../testdata/vl/tables/tables.safetensors"
        );
        let tables = safetensors::open(path.as_ref()).unwrap();
        let value = |entry: usize| (entry / 48 * 1000 + entry % 48) as f32;
        for [height, width] in [[2, 2], [16, 16], [32, 52], [96, 6]] {
            let read = |name: &str| tables.get(&format!("{name}.{height}x{width}")).unwrap();
            let weights = read("weights").read_all();
            let interpolated = read("interpolated").read_all();
            let places = places(height, width, 2);
            assert_eq!(places.len(), interpolated.len());
            let expected = weights.as_chunks::<4>().0.iter().zip(&interpolated);
            for (&place, (weights, interpolated)) in places.iter().zip(expected) {
                let corners = corners(place, [height, width], 48);
                let what = format!("{place:?} of {height} x {width}");
                assert_eq!(corners.map(|(_, weight)| weight), *weights, "{what}");
                let sum: f32 = corners
                    .map(|(entry, weight)| value(entry) * weight)
                    .iter()
                    .sum();
                assert!((sum - interpolated).abs() < 1e-2, "{what}: {sum}");
            }
        }
    }
}
