//! Rows of weights on their way into tiles: read once, checked, quantised and interleaved while they are in the
//! caches, sixteen rows at a time on each thread.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};

use super::element::{Element, store};
use super::pack::{lane, step_bytes, step_columns, tile_bytes};
use super::raw::Shared;
use super::simd::{Kernel, LANES, Simd};
use super::{CpuBackend, Scratch};
use crate::check::{check_integers, check_percentile, check_stored};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::pages::LARGE_PAGE;
use crate::quant::Format;
use crate::reference::quantize::{check_finite, percentile};
use crate::reference::{round, widened};
use crate::weights::{RowSource, Weights};

/// Fills rows. What a tile holds of which a row is refused is not defined.
pub(super) fn fill(
    backend: &CpuBackend,
    weights: &mut Weights,
    first: usize,
    count: usize,
    source: RowSource<'_>,
) -> Result<()> {
    weights.check_rows(first, count)?;
    check_percentile(source.clip_percentile())?;
    let minus_128 = AtomicBool::new(weights.has_minus_128);
    let target = Target::new(weights);
    let job = Job {
        rows: first..first + count,
        source,
    };
    let cut = Cut::new(&target, &job.rows, backend.threads());
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    backend.pool.run(cut.tasks(), &|worker, task| {
        let mut scratch = backend.scratch(worker);
        for tile in cut.tiles_of(task) {
            match fill_tile(backend, &target, &mut scratch, tile, &job) {
                Ok(false) => {}
                Ok(true) => minus_128.store(true, Ordering::Relaxed),
                Err(error) => {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|(first, _)| tile < *first) {
                        *failed = Some((tile, error));
                    }
                }
            }
        }
    });
    weights.has_minus_128 = minus_128.into_inner();
    failed
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .map_or(Ok(()), |(_, error)| Err(error))
}

/// What is to be filled, from what.
struct Job<'a> {
    rows: Range<usize>,
    source: RowSource<'a>,
}

impl<'a> Job<'a> {
    /// The row where it lies, if that is what the weights hold.
    fn as_stored(&self, format: Format, row: usize) -> Option<&'a [u8]> {
        match self.source {
            RowSource::Stored { dtype, rows, .. } if format == Format::Dense(dtype) => {
                Some(rows(row - self.rows.start))
            }
            _ => None,
        }
    }
}

/// Where rows go. Rows of different tiles share no bytes, so threads may write different tiles at once.
struct Target<'a> {
    format: Format,
    k: usize,
    groups: usize,
    data: Shared<'a, u8>,
    scales: Shared<'a, f32>,
    sums: Shared<'a, i32>,
}

impl<'a> Target<'a> {
    fn new(weights: &'a mut Weights) -> Self {
        Self {
            format: weights.format,
            k: weights.k,
            groups: weights.format.groups(weights.k),
            data: Shared::new(weights.data.as_mut_slice()),
            scales: Shared::new(weights.scales.as_mut_slice()),
            sums: Shared::new(weights.sums.as_mut_slice()),
        }
    }

    /// Bytes of a row before it is interleaved.
    fn row_bytes(&self) -> usize {
        let steps = self.k.div_ceil(step_columns(self.format));
        steps * step_bytes(self.format) / LANES
    }

    /// Where a tile begins.
    fn tile(&self, tile: usize) -> *mut u8 {
        // SAFETY: the tile is inside the weights, and this thread owns it.
        unsafe { self.data.at(tile * tile_bytes(self.format, self.k)) }
    }
}

/// Tiles as tasks. Where there are many large pages, a task is the tiles that begin in one of them: the thread that
/// takes it is the first to write there, so that no page is cleared twice by threads that come at once.
struct Cut {
    tiles: Range<usize>,
    tile_bytes: usize,
    /// How far the first tile of the weights is from the beginning of its large page.
    offset: usize,
    /// The first large page, counted from that one; without it a task is this many tiles.
    shares: Result<usize, usize>,
}

impl Cut {
    fn new(target: &Target<'_>, rows: &Range<usize>, threads: usize) -> Self {
        let tiles = rows.start / LANES..rows.end.div_ceil(LANES);
        let offset = target.tile(0).addr() % LARGE_PAGE;
        Self::of(tiles, tile_bytes(target.format, target.k), offset, threads)
    }

    fn of(tiles: Range<usize>, tile_bytes: usize, offset: usize, threads: usize) -> Self {
        let page = |tile: usize| (offset + tile * tile_bytes) / LARGE_PAGE;
        let pages = page(tiles.end) - page(tiles.start);
        let shares = if pages >= SHARES * threads {
            Ok(page(tiles.start))
        } else {
            Err((tiles.len() / (SHARES * threads)).max(1))
        };
        Self {
            tiles,
            tile_bytes,
            offset,
            shares,
        }
    }

    fn tasks(&self) -> usize {
        match self.shares {
            Ok(first) => (self.offset + self.tiles.end * self.tile_bytes) / LARGE_PAGE - first + 1,
            Err(each) => self.tiles.len().div_ceil(each),
        }
    }

    fn tiles_of(&self, task: usize) -> Range<usize> {
        let begin = |task: usize| {
            let tile = match self.shares {
                Ok(first) => ((first + task) * LARGE_PAGE)
                    .saturating_sub(self.offset)
                    .div_ceil(self.tile_bytes),
                Err(each) => self.tiles.start + task * each,
            };
            tile.clamp(self.tiles.start, self.tiles.end)
        };
        // What begins in the page before belongs to nobody else.
        let start = if task == 0 {
            self.tiles.start
        } else {
            begin(task)
        };
        start..begin(task + 1)
    }
}

/// Reads, quantises and places the rows of one tile; whether they have a -128.
fn fill_tile(
    backend: &CpuBackend,
    target: &Target<'_>,
    scratch: &mut Scratch,
    tile: usize,
    job: &Job<'_>,
) -> Result<bool> {
    let rows = job.rows.start.max(tile * LANES)..job.rows.end.min((tile + 1) * LANES);
    // Rows of a power of two would fall into the same sets of the cache.
    let longest = target.row_bytes().max(target.k);
    let stride = longest.next_multiple_of(BLOCK) + BLOCK;
    let (floats, bytes) = scratch.take(target.k + target.groups, LANES * stride);
    let (values, scales) = floats.split_at_mut(target.k);
    let mut minus_128 = false;
    for (row, out) in rows.clone().zip(bytes.chunks_exact_mut(stride)) {
        minus_128 |= fill_row(backend, target, job, row, (values, scales, out))?;
        for (group, &scale) in scales.iter().enumerate() {
            // SAFETY: group and row are inside the weights, and this thread owns the row's tile.
            unsafe { target.scales.write(lane(row, group, target.groups), scale) };
        }
    }
    let mut lanes: [&[u8]; LANES] = [&[]; LANES];
    for (row, written) in rows.clone().zip(bytes.chunks_exact(stride)) {
        lanes[row % LANES] = job.as_stored(target.format, row).unwrap_or(written);
    }
    let first = rows.start % LANES;
    backend.level.run(Interleave {
        target,
        tile,
        lanes,
        filled: first..first + rows.len(),
    });
    Ok(minus_128)
}

/// Reads one row and makes of it what its lane shall hold, with its scales; whether it has a -128.
fn fill_row(
    backend: &CpuBackend,
    target: &Target<'_>,
    job: &Job<'_>,
    row: usize,
    (values, scales, out): (&mut [f32], &mut [f32], &mut [u8]),
) -> Result<bool> {
    let source_row = row - job.rows.start;
    let (dtype, stored, clip_percentile) = match job.source {
        RowSource::Integers { read } => {
            out.fill(0);
            let q: &mut [i8] = bytemuck::cast_slice_mut(&mut out[..target.k]);
            read(source_row, q, scales);
            let minus_128 = check_integers(target.format, row, q, scales)?;
            if matches!(target.format, Format::W4 { .. }) {
                pack_nibbles(out);
            }
            return Ok(minus_128);
        }
        RowSource::Floats {
            read,
            clip_percentile,
        } => {
            read(source_row, values);
            (DType::F32, bytemuck::cast_slice(values), clip_percentile)
        }
        RowSource::Stored {
            dtype,
            rows,
            clip_percentile,
        } => (dtype, rows(source_row), clip_percentile),
    };
    check_stored(dtype, target.k, stored)?;
    let floats = Floats {
        format: target.format,
        is_written: job.as_stored(target.format, row).is_none(),
        stored,
        k: target.k,
        clip_percentile,
        scales,
        out,
    };
    let finite = match dtype {
        DType::Bf16 => backend.level.run(As::<bf16>::of(floats)),
        DType::F16 => backend.level.run(As::<f16>::of(floats)),
        _ => backend.level.run(As::<f32>::of(floats)),
    };
    if !finite {
        let mut values = widened(dtype, stored);
        if let Format::Dense(dtype) = target.format {
            round(dtype, &mut values);
        }
        check_finite(row, &values)?;
    }
    Ok(false)
}

/// Eight integers become four bytes: the first four in the low nibbles, value + 8.
#[inline(always)]
fn pack_nibbles(row: &mut [u8]) {
    for octet in 0..row.len() / 8 {
        let mut eight = [0; 8];
        eight.copy_from_slice(&row[8 * octet..][..8]);
        let nibbles = (u64::from_le_bytes(eight) & 0x0f0f_0f0f_0f0f_0f0f) ^ 0x0808_0808_0808_0808;
        let four = nibbles as u32 | ((nibbles >> 32) as u32) << 4;
        row[4 * octet..][..4].copy_from_slice(&four.to_le_bytes());
    }
}

/// A row of floats, and where it goes: as it is, rounded, or as integers.
struct Floats<'a> {
    format: Format,
    /// Whether `out` is written, or the row is taken from where it lies.
    is_written: bool,
    stored: &'a [u8],
    k: usize,
    clip_percentile: Option<f64>,
    scales: &'a mut [f32],
    out: &'a mut [u8],
}

/// A row of elements of a type.
struct As<'a, T> {
    row: Floats<'a>,
    element: PhantomData<T>,
}

impl<'a, T> As<'a, T> {
    fn of(row: Floats<'a>) -> Self {
        Self {
            row,
            element: PhantomData,
        }
    }
}

impl<T: Element> Kernel for As<'_, T> {
    /// Whether all of the row is finite, in the type it is stored in.
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        let row = self.row;
        let size = size_of::<T>();
        if let Format::Dense(dtype) = row.format {
            let mut largest = [f32::from_bits(largest::<S, T>(s, row.stored) as u32)];
            // Rounding keeps the order of magnitudes, so the largest speaks for all.
            round(dtype, &mut largest);
            if row.is_written {
                convert::<S, T>(s, row.stored, dtype, row.out);
            }
            return largest[0].is_finite();
        }
        let group = row.format.group_size(row.k);
        // The groups of a row are whole vectors, but for the last.
        let groups = row.stored.chunks(group * size).zip(row.scales);
        for ((stored, scale), q) in groups.zip(row.out.chunks_mut(group.next_multiple_of(LANES))) {
            let largest = f32::from_bits(largest::<S, T>(s, stored) as u32);
            if !largest.is_finite() {
                return false;
            }
            let clip = row.clip_percentile.map(|p| clip::<T>(stored, p));
            let limit = row.format.largest().unwrap_or(127) as f32;
            *scale = quantize::<S, T>(s, stored, (largest, clip, limit), q);
        }
        row.out[row.k..].fill(0);
        if matches!(row.format, Format::W4 { .. }) {
            pack_nibbles(row.out);
        }
        true
    }
}

/// The largest magnitude, as bits.
#[inline(always)]
fn largest<S: Simd, T: Element>(s: S, stored: &[u8]) -> i32 {
    let mut acc = s.zero_i32();
    for i in 0..stored.len().div_ceil(LANES * size_of::<T>()) {
        acc = s.max_magnitude(acc, load::<S, T>(s, stored, i));
    }
    s.reduce_max_i32(acc)
}

/// Quantises a group, whose largest magnitude is finite; gives its scale.
#[inline(always)]
fn quantize<S: Simd, T: Element>(
    s: S,
    stored: &[u8],
    (largest, clip, limit): (f32, Option<f32>, f32),
    q: &mut [u8],
) -> f32 {
    let clip = clip.filter(|&clip| clip > 0.0).unwrap_or(largest);
    let scale = clip / limit;
    let scale = if scale == 0.0 { 1.0 } else { scale };
    // A subnormal scale may be far from its quotient, which must not pass the largest integer.
    let clip = clip.min(scale * limit);
    let (low, high, divisor) = (s.splat(-clip), s.splat(clip), s.splat(scale));
    for (i, q) in q.chunks_exact_mut(LANES).enumerate() {
        if i * LANES * size_of::<T>() >= stored.len() {
            break;
        }
        let mut v = load::<S, T>(s, stored, i);
        if clip < largest {
            v = s.select_lt(v, low, low, v);
            v = s.select_lt(high, v, high, v);
        }
        // SAFETY: the chunk has sixteen elements.
        unsafe { s.store_i8(q.as_mut_ptr(), s.round(s.div(v, divisor)), false) };
    }
    scale
}

/// Writes a row in another type of float.
#[inline(always)]
fn convert<S: Simd, T: Element>(s: S, stored: &[u8], dtype: DType, out: &mut [u8]) {
    for (i, out) in out.chunks_exact_mut(LANES * dtype.size()).enumerate() {
        let v = load::<S, T>(s, stored, i);
        // SAFETY: the chunk has sixteen elements.
        unsafe { store(s, dtype, out.as_mut_ptr(), v) };
    }
}

/// The percentile of the magnitudes.
fn clip<T: Element>(stored: &[u8], p: f64) -> f32 {
    let mut magnitudes: Vec<f32> = widened(T::DTYPE, stored).iter().map(|v| v.abs()).collect();
    percentile(&mut magnitudes, p)
}

/// Sixteen elements as floats; zeros beyond the end.
#[inline(always)]
fn load<S: Simd, T: Element>(s: S, stored: &[u8], index: usize) -> S::F {
    let bytes = LANES * size_of::<T>();
    let rest = stored.get(index * bytes..).unwrap_or_default();
    let mut padded = [0; BLOCK];
    let from = if rest.len() >= bytes {
        rest
    } else {
        padded[..rest.len()].copy_from_slice(rest);
        &padded[..]
    };
    // SAFETY: sixteen elements are there; every level reads from any address.
    unsafe { T::load(s, from.as_ptr().cast()) }
}

/// Sixteen rows become steps of a tile, four bytes of each row at a time; then the sums of their integers.
struct Interleave<'a> {
    target: &'a Target<'a>,
    tile: usize,
    /// The bytes of each lane's row.
    lanes: [&'a [u8]; LANES],
    /// The lanes that have a row; the others stay as they are.
    filled: Range<usize>,
}

impl Kernel for Interleave<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let words = self.target.row_bytes().div_ceil(4);
        for block in 0..words.div_ceil(LANES) {
            let mut rows = [s.splat(0.0); LANES];
            for (row, bytes) in rows.iter_mut().zip(self.lanes) {
                // Bytes as they are: nothing is computed with these floats.
                *row = load::<S, f32>(s, bytes, block);
            }
            let columns = s.transpose(rows);
            for (i, column) in columns.into_iter().enumerate() {
                if block * LANES + i < words {
                    self.put(s, block * LANES + i, column);
                }
            }
        }
        if self.target.groups > 0 {
            self.put_sums(s);
        }
    }
}

impl Interleave<'_> {
    /// Writes the `word`-th four bytes of every row.
    #[inline(always)]
    fn put<S: Simd>(&self, s: S, word: usize, column: S::F) {
        let tile = self.target.tile(self.tile);
        let halves = self.target.format == Format::Dense(DType::F16);
        // SAFETY: the tile has as many words as its rows (of f16, an odd last one has no second half), and this
        // thread owns it.
        unsafe {
            let out = tile.add(word * STEP);
            if !halves && self.filled.len() == LANES {
                s.store(out.cast(), column);
                return;
            }
            let mut lanes = [0_u32; LANES];
            s.store(lanes.as_mut_ptr().cast(), column);
            for lane in self.filled.clone() {
                if !halves {
                    out.cast::<[u8; 4]>()
                        .add(lane)
                        .write(lanes[lane].to_le_bytes());
                    continue;
                }
                let [first, second] = [lanes[lane] as u16, (lanes[lane] >> 16) as u16];
                out.cast::<[u8; 2]>().add(lane).write(first.to_le_bytes());
                if 2 * word + 1 < self.target.k {
                    out.cast::<[u8; 2]>()
                        .add(LANES + lane)
                        .write(second.to_le_bytes());
                }
            }
        }
    }

    /// Writes the sums of each group: products with ones.
    #[inline(always)]
    fn put_sums<S: Simd>(&self, s: S) {
        let Target {
            format, k, groups, ..
        } = *self.target;
        let (none, ones) = ([0_i32; LANES], [1_u8; 4]);
        let steps = k.div_ceil(step_columns(format));
        let each = format.group_size(k).div_ceil(step_columns(format));
        for group in 0..groups {
            let mut lanes = [0_i32; LANES];
            // SAFETY: the steps are inside the tile, which this thread owns; `ones` are taken as they are by
            // every level, signed or not.
            unsafe {
                let one = s.load_four(ones.as_ptr());
                let mut acc = s.start(none.as_ptr());
                for step in group * each..((group + 1) * each).min(steps) {
                    let at = self.target.tile(self.tile).add(step * STEP);
                    if matches!(format, Format::W4 { .. }) {
                        acc = s.dot(acc, s.load_octets::<false>(at), one);
                        acc = s.dot(acc, s.load_octets::<true>(at), one);
                    } else {
                        acc = s.dot(acc, s.load_quads(at), one);
                    }
                }
                s.store_i32(lanes.as_mut_ptr(), s.finish(acc));
            }
            for filled in self.filled.clone() {
                let at = lane(self.tile * LANES + filled, group, groups);
                // SAFETY: the row is inside the weights, and this thread owns its tile.
                unsafe { self.target.sums.write(at, lanes[filled]) };
            }
        }
    }
}

/// Bytes of a block of a row that is interleaved at once: sixteen words.
const BLOCK: usize = 64;

/// Bytes of a step of a tile; two steps of f16.
const STEP: usize = 64;

/// Tasks that each thread has at least, where there are tiles enough.
const SHARES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_has_one_task() {
        for (tiles, bytes, offset) in [
            (0..1, 64, 0),
            (3..7, 64, 4096),
            (0..100, 100_000, 0),
            (5..700, 40_960, 1 << 20),
            (1..90, 3 * LARGE_PAGE, 77 * 64),
            (0..9496, 16384, 64),
        ] {
            for threads in [1, 2, 3, 8] {
                let cut = Cut::of(tiles.clone(), bytes, offset, threads);
                let all: Vec<_> = (0..cut.tasks())
                    .flat_map(|task| cut.tiles_of(task))
                    .collect();
                assert_eq!(all, tiles.clone().collect::<Vec<_>>(), "{bytes} {offset}");
            }
        }
    }

    #[test]
    fn a_task_begins_in_one_large_page() {
        let (bytes, offset) = (40_960, 1 << 20);
        let cut = Cut::of(3..700, bytes, offset, 2);
        assert!(cut.tasks() > 10);
        for task in 0..cut.tasks() {
            let mut pages: Vec<_> = cut
                .tiles_of(task)
                .map(|tile| (offset + tile * bytes) / LARGE_PAGE)
                .collect();
            pages.dedup();
            assert!(pages.len() <= 1, "task {task}: {pages:?}");
        }
    }

    #[test]
    fn nibbles_keep_their_values_and_places() {
        let mut row = [-8_i8, 7, 0, -1, 1, 2, 3, -3].map(|q| q as u8);
        pack_nibbles(&mut row);
        assert_eq!(row[..4], [0x90, 0xaf, 0xb8, 0x57]);
    }
}
