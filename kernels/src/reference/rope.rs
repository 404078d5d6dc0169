//! Rotary positions.

use crate::rope::RopeTable;

/// Where the angles of a row are.
pub(crate) struct Angles<'a> {
    pub(crate) row: usize,
    pub(crate) rows: usize,
    /// `[axes, rows]`.
    pub(crate) positions: &'a [u32],
    /// The axis of each pair; none where there is but one.
    pub(crate) axes: &'a [u8],
}

impl Angles<'_> {
    /// The row's values of a table of `[position][pair]`: each pair's at its own axis' position.
    pub(crate) fn of(&self, table: &[f32], shape: &RopeTable) -> Vec<f32> {
        let pairs = shape.rotary_size() / 2;
        let value = |pair: usize| {
            let axis = self.axes.get(pair).copied().map_or(0, usize::from);
            let position = self.positions[axis * self.rows + self.row] as usize;
            table[position * pairs + pair]
        };
        (0..pairs).map(value).collect()
    }
}

/// Rotates the first `2 * cos.len()` elements of a head: element i with element `i + cos.len()`.
pub(crate) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let pairs = cos.len();
    for i in 0..pairs {
        let (a, b) = (head[i], head[i + pairs]);
        head[i] = a.mul_add(cos[i], -(b * sin[i]));
        head[i + pairs] = b.mul_add(cos[i], a * sin[i]);
    }
}
