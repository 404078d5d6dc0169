//! How a linear layer is cut into tasks: a pure function of sizes. It decides who computes a block of outputs
//! and when, never how: the bits do not depend on it.

use std::ops::Range;

use crate::panels::Panels;
use crate::quant::SEGMENT;

/// What is to be cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) panels: Panels,
    /// Columns.
    pub(super) k: usize,
    /// Bytes of a row in its panel.
    pub(super) row_bytes: usize,
    pub(super) tiles: usize,
    pub(super) tile_bytes: usize,
    /// Whether segments of groups are multiplied one after the other, from the nearest cache.
    pub(super) segments: bool,
    /// Tiles that are multiplied at once.
    pub(super) at_once: usize,
    pub(super) threads: usize,
    /// Bytes of the cache that each core has for itself.
    pub(super) cache: usize,
}

/// Tasks of some panels and some tiles each. Tasks that follow each other share their panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    panels: usize,
    tiles: usize,
    /// Panels of a task: they stay in the cache while the tiles pass.
    pub(super) panels_each: usize,
    /// Tiles of a task.
    pub(super) tiles_each: usize,
    /// Columns that are multiplied before the next tiles come: all, or a multiple of [`SEGMENT`].
    pub(super) depth: usize,
}

impl Plan {
    pub(super) fn new(shape: Shape) -> Self {
        let panels = shape.panels.count();
        let resident = shape.depth();
        let depth = match panels {
            2.. if shape.segments => SEGMENT.min(shape.k),
            _ => resident,
        };
        let row_bytes = (shape.row_bytes * resident / shape.k.max(1)).max(1);
        // Half of the cache for the panels: the tiles at hand and the next ones need the rest.
        let most = (shape.cache / 2 / (shape.panels.each * row_bytes)).max(1);
        let blocks = panels.div_ceil(most).max(1);
        let panels_each = panels.div_ceil(blocks).max(1);
        let blocks = panels.div_ceil(panels_each);
        // Equal parts of a single panel, even if the last tiles of one are fewer than are multiplied at once: all wait
        // for the slowest.
        let unit = if panels <= 1 {
            shape.at_once.min(2)
        } else {
            shape.at_once
        };
        let tiles_each = match (shape.threads, panels) {
            (1, _) => shape.tiles,
            (threads, 0..=1) => {
                // Of the shorter runs those that leave no thread with more than its part.
                let each = |streams| {
                    let each = shape.tiles.div_ceil(threads * streams);
                    each.next_multiple_of(unit).max(1)
                };
                let longest = |&each: &usize| shape.tiles.div_ceil(each).div_ceil(threads) * each;
                let runs = (1..=shape.streams()).rev().map(each);
                runs.min_by_key(longest).unwrap_or(unit)
            }
            (threads, _) => shape.tiles * blocks / (threads * TASKS_EACH),
        };
        let sums = panels_each * shape.panels.each * SUM_BYTES;
        let tiles_each = if depth < shape.k {
            tiles_each.min(shape.cache / 8 / sums)
        } else {
            tiles_each
        };
        let tiles_each = (tiles_each / unit * unit).max(unit);
        Self {
            panels,
            tiles: shape.tiles,
            panels_each,
            tiles_each,
            depth,
        }
    }

    pub(super) fn tasks(self) -> usize {
        self.tile_blocks() * self.panels.div_ceil(self.panels_each)
    }

    /// The panels and the tiles of a task.
    pub(super) fn task(self, task: usize) -> (Range<usize>, Range<usize>) {
        let panel = task / self.tile_blocks() * self.panels_each;
        let tile = task % self.tile_blocks() * self.tiles_each;
        (
            panel..(panel + self.panels_each).min(self.panels),
            tile..(tile + self.tiles_each).min(self.tiles),
        )
    }

    fn tile_blocks(self) -> usize {
        self.tiles.div_ceil(self.tiles_each)
    }
}

impl Shape {
    /// Tasks of each thread for a single panel, which reads weights as fast as memory gives them: runs that are long
    /// beside their own beginning.
    fn streams(self) -> usize {
        (self.tiles * self.tile_bytes / self.threads / STREAM).clamp(1, 8)
    }

    /// One panel takes tiles as they lie in memory; several take parts of them that stay in the cache.
    fn depth(self) -> usize {
        let parts = self.tile_bytes.div_ceil(TILE_PART);
        if self.panels.count() <= 1 || parts <= 1 {
            return self.k;
        }
        self.k.div_ceil(parts).next_multiple_of(SEGMENT).min(self.k)
    }
}

/// Tasks for each thread: so many that the last one, which others wait for, is short.
const TASKS_EACH: usize = 24;

/// Bytes that one task of a single panel reads, or more.
const STREAM: usize = 128 << 10;

/// Bytes of a tile that are multiplied before the next tile comes: with a few tiles at once and the next
/// ones on their way they take a good part of the cache.
const TILE_PART: usize = 48 << 10;

/// Bytes that the sums of a row and a tile take while they wait for the next part: at most.
pub(super) const SUM_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rows: usize, k: usize, n: usize, threads: usize) -> Plan {
        Plan::new(Shape {
            panels: Panels::new(rows, 12),
            k,
            row_bytes: k,
            tiles: n.div_ceil(16),
            tile_bytes: k * 16,
            segments: false,
            at_once: if rows == 1 { 4 } else { 2 },
            threads,
            cache: 1 << 20,
        })
    }

    #[test]
    fn panels_fill_half_the_cache_and_tiles_give_every_thread_enough_tasks() {
        let table = [
            // rows, k, n, threads: panels, tiles and depth of a task
            (1, 2560, 10240, 2, (1, 40, 2560)),
            (1, 576, 576, 2, (1, 18, 576)),
            (1, 576, 960, 2, (1, 30, 576)),
            (1, 1536, 576, 2, (1, 6, 1536)),
            (1, 18944, 3584, 2, (1, 14, 18944)),
            (128, 2560, 10240, 2, (11, 12, 2560)),
            (1024, 2560, 10240, 2, (15, 80, 2560)),
            (1024, 10240, 2560, 2, (13, 6, 3072)),
            (8192, 18944, 3584, 2, (14, 6, 3072)),
            (1024, 2560, 10240, 1, (15, 640, 2560)),
        ];
        for (rows, k, n, threads, expected) in table {
            let plan = plan(rows, k, n, threads);
            assert_eq!(
                (plan.panels_each, plan.tiles_each, plan.depth),
                expected,
                "{rows} x {k} x {n} on {threads}"
            );
        }
    }

    #[test]
    fn every_block_is_computed_once() {
        for (rows, k, n, threads) in [(1, 8, 1, 4), (37, 9000, 1000, 3), (300, 40_000, 90, 2)] {
            let plan = plan(rows, k, n, threads);
            let (panels, tiles) = (plan.panels, plan.tiles);
            let mut counts = vec![0; panels * tiles];
            for task in 0..plan.tasks() {
                let (panels, of_task) = plan.task(task);
                for panel in panels {
                    for tile in of_task.clone() {
                        counts[panel * tiles + tile] += 1;
                    }
                }
            }
            assert!(counts.iter().all(|&count| count == 1));
        }
    }
}
