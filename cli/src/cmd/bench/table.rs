//! The record as people read it.

use std::fmt::Write as _;

use super::record::{Record, Row};

/// The machine, its ceilings, and one line per contender.
pub(super) fn render(record: &Record) -> String {
    let (machine, ceilings) = (&record.machine, &record.ceilings);
    let bf16 = ceilings
        .bf16_tops
        .map_or_else(|| "none".to_owned(), |tops| format!("{tops:.3} TOPS"));
    let mut text = format!(
        "{}, {} threads, {}\nceilings: int8 {:.3} TOPS, bf16 {bf16}, f32 {:.3} TOPS, read {:.1} GB/s\n",
        machine.cpu,
        machine.threads,
        machine.isa,
        ceilings.int8_tops,
        ceilings.f32_tops,
        ceilings.read_gbs
    );
    let has_rate = record.rows.iter().any(|row| row.rate.is_some());
    let has_divergence = record.rows.iter().any(|row| row.kl_divergence.is_some());
    let shown = (has_rate, has_divergence);
    let mut lines = vec![titles(shown)];
    let mut last = "";
    for row in &record.rows {
        if row.place.label != last {
            lines.push(Vec::new());
            last = &row.place.label;
        }
        lines.push(cells(row, shown));
    }
    align(&lines, &mut text);
    text
}

/// The titles; rates and divergences have a column where somebody has one.
fn titles((has_rate, has_divergence): (bool, bool)) -> Vec<String> {
    let mut titles = vec!["work", "who", "variant", "ms", "min", "max", "floor"];
    if has_rate {
        titles.push("tok/s");
    }
    titles.extend(["TOPS", "GB/s", "peak", "roofline", "error"]);
    if has_divergence {
        titles.push("KL");
    }
    titles.push("ratio");
    titles.into_iter().map(str::to_owned).collect()
}

fn cells(row: &Row, (has_rate, has_divergence): (bool, bool)) -> Vec<String> {
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    let ratio = |ratio: f64| match &row.compared_with {
        Some(base) => format!("{ratio:.2}x {base}"),
        None => format!("{ratio:.2}"),
    };
    let mut cells = vec![
        row.place.label.clone(),
        row.who.clone(),
        row.variant.clone(),
        number(row.ms.median),
        number(row.ms.min),
        number(row.ms.max),
        or_dash(row.floor_ms, number),
    ];
    if has_rate {
        cells.push(or_dash(row.rate, |rate| format!("{rate:.1}")));
    }
    cells.extend([
        or_dash(row.tops, |tops| format!("{tops:.3}")),
        or_dash(row.gbs, |gbs| format!("{gbs:.1}")),
        or_dash(row.share_of_peak, percent),
        or_dash(row.share_of_roofline, percent),
        or_dash(row.relative_error, |error| format!("{error:.1e}")),
    ]);
    if has_divergence {
        cells.push(or_dash(row.kl_divergence, |nats| format!("{nats:.2e}")));
    }
    cells.push(or_dash(row.ratio_to_cider.or(row.ratio_to_floor), ratio));
    cells
}

fn or_dash(value: Option<f64>, form: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), form)
}

/// Four digits or a little more.
pub(super) fn number(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.4}"),
        value if value < 1000.0 => format!("{value:.2}"),
        value => format!("{value:.0}"),
    }
}

/// Words to the left, numbers to the right; a line without cells is empty.
pub(super) fn align(lines: &[Vec<String>], text: &mut String) {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        let mut out = String::new();
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            let is_word = column < WORDS || column + 1 == columns;
            let _ = if is_word {
                write!(out, "{cell:<width$}  ")
            } else {
                write!(out, "{cell:>width$}  ")
            };
        }
        let _ = writeln!(text, "{}", out.trim_end());
    }
}

/// Columns of words in front.
const WORDS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let line = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect();
        let lines = [
            line(&["a", "b", "c", "ms", "of"]),
            Vec::new(),
            line(&["long", "b", "c", "1.25", "x"]),
        ];
        let mut text = String::new();
        align(&lines, &mut text);
        assert_eq!(text, "a     b  c    ms  of\n\nlong  b  c  1.25  x\n");
    }

    #[test]
    fn numbers_keep_their_digits() {
        assert_eq!(
            [0.12345, 12.345, 1234.5].map(number),
            ["0.1235", "12.35", "1234"]
        );
    }
}
