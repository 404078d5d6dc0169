//! Bicubic resizing as Pillow does it, to the byte.
//!
//! A pass along rows and one along columns; a pass whose side does not change is left out. Output i of
//! a side of `to` pixels made from `from` has its centre at `(i + 0.5) * from / to`; the filter is the
//! cubic of Keys with a = -1/2, reaching over 2 pixels, or over `2 * from / to` when the side shrinks.
//! Weights are computed in f64, divided by their sum and rounded to 22 fractional bits, halves away
//! from zero. A pass sums `pixel * weight + 1/2` in i32, shifts, and clamps to a byte: the clamp
//! between the passes is part of the definition, and so is their order ([`columns_first`]).

use super::rgb::{ImageSize, RgbImage};

/// `image` resized to `size`.
#[must_use]
pub fn resize_bicubic(image: &RgbImage, size: ImageSize) -> RgbImage {
    let from = image.size();
    let rows = |bytes: &[u8]| resize_rows(bytes, from.width, size.width);
    let columns = |bytes: &[u8], width: usize| {
        resize_columns(bytes, 3 * width, &Windows::new(from.height, size.height))
    };
    let bytes = match (size.width != from.width, size.height != from.height) {
        (false, false) => image.bytes().to_vec(),
        (true, false) => rows(image.bytes()),
        (false, true) => columns(image.bytes(), from.width),
        (true, true) if columns_first(from, size) => rows(&columns(image.bytes(), from.width)),
        (true, true) => columns(&rows(image.bytes()), size.width),
    };
    RgbImage::from_parts(size, bytes)
}

/// Pillow's order of the passes since its version 13: columns first when the height shrinks and loses
/// more than twice what the width loses. Before, rows always came first.
fn columns_first(from: ImageSize, to: ImageSize) -> bool {
    let lost = |from: usize, to: usize| from as i64 - to as i64;
    let (height, width) = (lost(from.height, to.height), lost(from.width, to.width));
    height > 0 && 2 * width < height
}

/// Resizes along rows. [`STRIP`] rows at a time are turned so that their pixels of one column lie side
/// by side: then all of them take the same weights, and the sum is that of [`resize_columns`].
fn resize_rows(bytes: &[u8], from: usize, to: usize) -> Vec<u8> {
    let windows = Windows::new(from, to);
    let mut resized = vec![0; bytes.len() / from * to];
    let mut strip = vec![0; from * LANES];
    let sources = bytes.chunks(3 * from * STRIP);
    for (source, target) in sources.zip(resized.chunks_mut(3 * to * STRIP)) {
        turn(source, 3 * from, &mut strip);
        for (column, (start, weights)) in windows.iter().enumerate() {
            let sums: [u8; LANES] = weighted_sums(&strip[start * LANES..], LANES, weights);
            for (row, pixels) in target.chunks_exact_mut(3 * to).enumerate() {
                let pixel = &mut pixels[3 * column..3 * column + 3];
                pixel.copy_from_slice(&[sums[row], sums[STRIP + row], sums[2 * STRIP + row]]);
            }
        }
    }
    resized
}

/// Writes the rows of `source`, each `stride` bytes, as columns of `strip`: [`STRIP`] bytes of one
/// sample side by side. Tiles of both stay in the nearest cache.
fn turn(source: &[u8], stride: usize, strip: &mut [u8]) {
    for (tile, columns) in strip.chunks_mut(TILE * STRIP).enumerate() {
        let (columns, _) = columns.as_chunks_mut::<STRIP>();
        for (row, samples) in source.chunks_exact(stride).enumerate() {
            for (column, sample) in columns.iter_mut().zip(&samples[TILE * tile..]) {
                column[row] = *sample;
            }
        }
    }
}

/// Resizes along columns; `stride` bytes are a row.
fn resize_columns(bytes: &[u8], stride: usize, windows: &Windows) -> Vec<u8> {
    let mut resized = vec![0; stride * windows.starts.len()];
    for ((start, weights), target) in windows.iter().zip(resized.chunks_exact_mut(stride)) {
        let source = &bytes[start * stride..];
        let (blocks, rest) = target.as_chunks_mut::<LANES>();
        let done = LANES * blocks.len();
        for (block, column) in blocks.iter_mut().zip((0..).step_by(LANES)) {
            *block = weighted_sums(&source[column..], stride, weights);
        }
        for (pixel, column) in rest
            .as_chunks_mut::<3>()
            .0
            .iter_mut()
            .zip((done..).step_by(3))
        {
            *pixel = weighted_sums(&source[column..], stride, weights);
        }
    }
    resized
}

/// Sums `N` neighbouring bytes over as many lines as there are weights, `stride` bytes apart.
#[inline]
fn weighted_sums<const N: usize>(bytes: &[u8], stride: usize, weights: &[i32]) -> [u8; N] {
    let mut sums = [1_i32 << (FRACTION_BITS - 1); N];
    for (line, weight) in weights.iter().enumerate() {
        let samples = &bytes[line * stride..line * stride + N];
        for (sum, sample) in sums.iter_mut().zip(samples) {
            // Magnitudes of weights sum to less than 2: nothing overflows, and without a check for
            // it in any build the sums are vector instructions.
            *sum = sum.wrapping_add(i32::from(*sample).wrapping_mul(*weight));
        }
    }
    sums.map(|sum| (sum >> FRACTION_BITS).clamp(0, 255) as u8)
}

/// For each output pixel of a side, where it reads and with which weights.
struct Windows {
    starts: Vec<usize>,
    lengths: Vec<usize>,
    /// Weights of each window, [`Self::reach`] apart.
    weights: Vec<i32>,
    reach: usize,
}

impl Windows {
    fn new(from: usize, to: usize) -> Self {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let support = SUPPORT * stretch;
        let reach = 2 * support.ceil() as usize + 1;
        let mut windows = Self {
            starts: Vec::with_capacity(to),
            lengths: Vec::with_capacity(to),
            weights: vec![0; reach * to],
            reach,
        };
        let mut exact = Vec::with_capacity(reach);
        for (pixel, weights) in windows.weights.chunks_exact_mut(reach).enumerate() {
            let centre = (pixel as f64 + 0.5) * scale;
            // Casts saturate at 0 below it.
            let start = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            exact.clear();
            exact.extend((start..end).map(|x| cubic((x as f64 - centre + 0.5) * (1.0 / stretch))));
            let sum: f64 = exact.iter().sum();
            for (weight, exact) in weights.iter_mut().zip(&exact) {
                let exact = if sum == 0.0 { *exact } else { exact / sum };
                *weight = fixed_point(exact);
            }
            windows.starts.push(start);
            windows.lengths.push(end - start);
        }
        windows
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let weights = self.weights.chunks_exact(self.reach);
        let windows = self.starts.iter().zip(&self.lengths).zip(weights);
        windows.map(|((start, length), weights)| (*start, &weights[..*length]))
    }
}

/// Keys' cubic with a = -1/2, in Pillow's order of operations.
fn cubic(x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// Rounded half away from zero, as a cast after adding a signed half does it.
fn fixed_point(weight: f64) -> i32 {
    let scaled = weight * f64::from(1 << FRACTION_BITS);
    (scaled + 0.5_f64.copysign(weight)) as i32
}

const A: f64 = -0.5;

/// Pixels to each side that the cubic reaches over.
const SUPPORT: f64 = 2.0;

/// 32 bits less 8 of the sample and 2 for overshoot and sign.
const FRACTION_BITS: u32 = 22;

/// Rows that are resized side by side.
const STRIP: usize = 16;

/// Samples of a row that are turned before those of the next row.
const TILE: usize = 64;

/// Samples that are summed side by side: the three channels of a strip.
const LANES: usize = 3 * STRIP;
