//! Pixels to the rows that a vision tower reads.

use super::rgb::RgbImage;

/// The patches of one image, in the reference processor's layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    /// [T * H * W, channels * frames * side * side] of the grid's T, H, W. Rows go block by block of
    /// the patches that are merged to one token, and row by row within a block; a still image fills
    /// all frames of a patch alike.
    pub pixel_values: Vec<f32>,
    /// Patches along time, height and width.
    pub grid_thw: [usize; 3],
}

impl Patches {
    /// Patches, which are rows of [`Self::pixel_values`].
    #[must_use]
    pub fn rows(&self) -> usize {
        self.grid_thw.iter().product()
    }
}

/// How an image is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PatchShape {
    /// Pixels along a side of a patch.
    pub(super) side: usize,
    /// Patches along a side of a merged block.
    pub(super) merge: usize,
    /// Frames of a patch.
    pub(super) frames: usize,
}

impl PatchShape {
    /// Pixels along a side of a merged block: what sides of an image are multiples of.
    pub(super) fn factor(self) -> usize {
        self.side * self.merge
    }

    /// Values of a patch.
    fn values(self) -> usize {
        3 * self.frames * self.side * self.side
    }

    /// Cuts `image`, whose sides are multiples of the factor; `levels` has the value of each sample.
    pub(super) fn cut(self, image: &RgbImage, levels: &[[f32; 256]; 3]) -> Patches {
        let size = image.size();
        let (rows, columns) = (size.height / self.side, size.width / self.side);
        let mut pixel_values = vec![0.0; rows * columns * self.values()];
        let mut patches = pixel_values.chunks_exact_mut(self.values());
        let mut write = |row: usize, column: usize| {
            let first = 3 * (row * self.side * size.width + column * self.side);
            if let Some(patch) = patches.next() {
                self.write(&image.bytes()[first..], 3 * size.width, levels, patch);
            }
        };
        for block_row in 0..rows / self.merge {
            for block_column in 0..columns / self.merge {
                for row in 0..self.merge {
                    for column in 0..self.merge {
                        write(
                            block_row * self.merge + row,
                            block_column * self.merge + column,
                        );
                    }
                }
            }
        }
        Patches {
            pixel_values,
            grid_thw: [1, rows, columns],
        }
    }

    /// Writes the patch whose first pixel `bytes` begin with; `stride` bytes are a row of the image.
    fn write(self, bytes: &[u8], stride: usize, levels: &[[f32; 256]; 3], patch: &mut [f32]) {
        let plane = self.side * self.side;
        let channels = patch.chunks_exact_mut(self.frames * plane);
        for (channel, (levels, frames)) in levels.iter().zip(channels).enumerate() {
            let rows = bytes.chunks(stride);
            for (row, values) in rows.zip(frames[..plane].chunks_exact_mut(self.side)) {
                for (value, pixel) in values.iter_mut().zip(row.as_chunks::<3>().0) {
                    *value = levels[usize::from(pixel[channel])];
                }
            }
            for frame in 1..self.frames {
                frames.copy_within(..plane, frame * plane);
            }
        }
    }
}
