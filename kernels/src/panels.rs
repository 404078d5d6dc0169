//! How rows of activations are interleaved, so that a product reads one address upwards.

/// Rows in panels of at most `each`. A panel gives the first four bytes of each of its rows, then the next
/// four of each, and so on: a unit is four INT8, two bf16 or one f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panels {
    /// Rows in all.
    pub(crate) rows: usize,
    /// Rows of a panel; the last may have fewer.
    pub(crate) each: usize,
}

impl Panels {
    /// Panels of at most `most` rows, as equal as even numbers of rows allow.
    pub(crate) fn new(rows: usize, most: usize) -> Self {
        let count = rows.div_ceil(most).max(1);
        let each = even(rows.div_ceil(count)).clamp(1, most);
        Self { rows, each }
    }

    /// One row after the other.
    pub(crate) fn plain(rows: usize) -> Self {
        Self { rows, each: 1 }
    }

    /// Number of panels.
    pub(crate) fn count(self) -> usize {
        self.rows.div_ceil(self.each)
    }

    /// Rows of a panel.
    pub(crate) fn rows_of(self, panel: usize) -> usize {
        self.each.min(self.rows - panel * self.each)
    }

    /// Rows of a panel as it is stored: one, or an even number, of which the last may be of any contents.
    pub(crate) fn stored(self, panel: usize) -> usize {
        even(self.rows_of(panel))
    }

    /// Rows of all panels as they are stored.
    pub(crate) fn stored_rows(self) -> usize {
        match self.count() {
            0 => 0,
            count => (count - 1) * self.each + self.stored(count - 1),
        }
    }

    /// Where the units of a row of `units` units lie: the first of them, and how far the next one is.
    pub(crate) fn place(self, row: usize, units: usize) -> (usize, usize) {
        let panel = row / self.each;
        (
            panel * self.each * units + row % self.each,
            self.stored(panel),
        )
    }
}

/// One, or the next even number.
fn even(rows: usize) -> usize {
    if rows <= 1 {
        rows
    } else {
        rows.next_multiple_of(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_nearly_equal_and_never_too_large() {
        let sizes = |rows, most| {
            let panels = Panels::new(rows, most);
            (0..panels.count())
                .map(|p| panels.rows_of(p))
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(1, 12), [1]);
        assert_eq!(sizes(5, 12), [5]);
        assert_eq!(sizes(12, 12), [12]);
        assert_eq!(sizes(13, 12), [8, 5]);
        assert_eq!(sizes(33, 12), [12, 12, 9]);
        assert_eq!(sizes(7, 6), [4, 3]);
        assert_eq!(sizes(3, 1), [1, 1, 1]);
        assert_eq!(sizes(0, 12), [0; 0]);
    }

    #[test]
    fn every_unit_has_its_own_place() {
        for (rows, most) in [(1, 12), (5, 12), (13, 12), (128, 12), (9, 6), (4, 1)] {
            let (panels, units) = (Panels::new(rows, most), 3);
            let mut taken = vec![false; panels.stored_rows() * units];
            for row in 0..rows {
                let (first, step) = panels.place(row, units);
                for unit in 0..units {
                    let place = &mut taken[first + unit * step];
                    assert!(!*place, "{rows} rows: row {row}, unit {unit}");
                    *place = true;
                }
            }
        }
    }
}
