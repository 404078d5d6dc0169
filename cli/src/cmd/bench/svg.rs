//! Plots of a record: one panel per plot of its rows, one line per contender.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::record::{Record, Row};
use super::roofline::Unit;

/// Draws the record.
pub(super) fn draw(record: &Record) -> String {
    let machine = &record.machine;
    let title = format!(
        "cider bench {}: {}, {} threads, {}",
        record.command, machine.cpu, machine.threads, machine.isa
    );
    sheet(&title, &panels(record))
}

/// Draws panels, two side by side.
pub(super) fn sheet(title: &str, panels: &[Panel]) -> String {
    let columns = panels.len().clamp(1, 2);
    let lines = panels.len().div_ceil(columns).max(1);
    let (width, height) = (columns * WIDTH, lines * HEIGHT + TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} \
         {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, [16.0, 22.0], "start", title);
    for (i, panel) in panels.iter().enumerate() {
        let x = (i % columns * WIDTH) as f64;
        let y = (i / columns * HEIGHT + TOP) as f64;
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        panel.draw(&mut svg);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

/// One plot.
pub(super) struct Panel {
    title: String,
    /// What is up, and what is to the right.
    axes: [&'static str; 2],
    /// Values of the horizontal axis, in order.
    ticks: Vec<String>,
    series: Vec<Series>,
    /// Horizontal lines, with their names.
    peaks: Vec<(&'static str, f64)>,
    top: f64,
}

/// A line of a plot.
pub(super) struct Series {
    pub(super) name: String,
    /// Number of the tick and height.
    pub(super) points: Vec<(usize, f64)>,
}

fn panels(record: &Record) -> Vec<Panel> {
    let mut titles: Vec<&str> = Vec::new();
    for row in &record.rows {
        if !titles.contains(&row.place.plot.as_str()) {
            titles.push(&row.place.plot);
        }
    }
    let panel = |title| {
        let rows = record.rows.iter().filter(|row| row.place.plot == title);
        Panel::of(title, record, &rows.collect::<Vec<_>>())
    };
    titles.into_iter().map(panel).collect()
}

/// What a row is plotted at: tokens per second where there are any, else operations.
fn height(row: &Row) -> Option<f64> {
    row.rate.or(row.tops)
}

impl Panel {
    /// A plot of lines; its height is that of the highest point.
    pub(super) fn new(
        title: String,
        axes: [&'static str; 2],
        ticks: Vec<String>,
        series: Vec<Series>,
    ) -> Self {
        let points = series.iter().flat_map(|series| &series.points);
        let top = points.map(|&(_, height)| height).fold(0.0, f64::max);
        Self {
            title,
            axes,
            ticks,
            series,
            peaks: Vec::new(),
            top: round_up(top),
        }
    }

    fn of(title: &str, record: &Record, rows: &[&Row]) -> Self {
        let ticks: BTreeSet<usize> = rows.iter().map(|row| row.place.x).collect();
        let ticks: Vec<usize> = ticks.into_iter().collect();
        let mut series: Vec<Series> = Vec::new();
        for row in rows {
            let Some(height) = height(row) else { continue };
            let name = format!("{} {}", row.who, row.variant);
            let tick = ticks.partition_point(|&x| x < row.place.x);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push((tick, height)),
                None => series.push(Series {
                    name,
                    points: vec![(tick, height)],
                }),
            }
        }
        let has_rate = rows.iter().any(|row| row.rate.is_some());
        let uses = |unit| {
            !has_rate
                && rows
                    .iter()
                    .any(|row| row.unit == unit && row.tops.is_some())
        };
        let ceilings = &record.ceilings;
        let peaks = [
            ("int8 peak", uses(Unit::Int8).then_some(ceilings.int8_tops)),
            ("bf16 peak", ceilings.bf16_tops.filter(|_| uses(Unit::Bf16))),
            ("f32 peak", uses(Unit::F32).then_some(ceilings.f32_tops)),
        ];
        let peaks: Vec<_> = peaks
            .into_iter()
            .filter_map(|(name, height)| Some((name, height?)))
            .collect();
        let up = if has_rate {
            "tokens per second"
        } else {
            "TOPS"
        };
        let ticks = ticks.iter().map(usize::to_string).collect();
        let axes = [up, "rows, or tokens of context"];
        let panel = Self::new(title.to_owned(), axes, ticks, series);
        let peak = peaks.iter().map(|&(_, height)| height);
        Self {
            top: round_up(peak.fold(panel.top, f64::max)),
            peaks,
            ..panel
        }
    }

    fn draw(&self, svg: &mut String) {
        let middle = f64::midpoint(LEFT, RIGHT);
        text(svg, [middle, 16.0], "middle", &self.title);
        text(svg, [middle, BOTTOM + 34.0], "middle", self.axes[1]);
        let _ = writeln!(
            svg,
            "<text x=\"14\" y=\"{0}\" text-anchor=\"middle\" fill=\"#222222\" transform=\"rotate(-90 14 {0})\">{1}</text>",
            f64::midpoint(BOTTOM, ROOF),
            self.axes[0]
        );
        for step in 0..=5 {
            let value = self.top * f64::from(step) / 5.0;
            let y = self.y(value);
            line(svg, [LEFT, y, RIGHT, y], "#e2e2e2", "");
            text(svg, [LEFT - 6.0, y + 4.0], "end", &label(value));
        }
        for (i, tick) in self.ticks.iter().enumerate() {
            text(svg, [self.x(i), BOTTOM + 16.0], "middle", tick);
        }
        for &(name, height) in &self.peaks {
            let y = self.y(height);
            line(
                svg,
                [LEFT, y, RIGHT, y],
                "#888888",
                " stroke-dasharray=\"5 4\"",
            );
            text(svg, [RIGHT - 4.0, y - 4.0], "end", name);
        }
        for (i, series) in self.series.iter().enumerate() {
            self.draw_series(svg, i, series);
        }
    }

    fn draw_series(&self, svg: &mut String, place: usize, series: &Series) {
        let colour = COLOURS[place % COLOURS.len()];
        let dash = DASHES[place / COLOURS.len() % DASHES.len()];
        let points: Vec<String> = series
            .points
            .iter()
            .map(|&(tick, height)| format!("{:.1},{:.1}", self.x(tick), self.y(height)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            points.join(" ")
        );
        for &(tick, height) in &series.points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{colour}\"/>",
                self.x(tick),
                self.y(height)
            );
        }
        let y = ROOF + 8.0 + 16.0 * place as f64;
        let wide = format!(" stroke-width=\"2\"{dash}");
        line(svg, [RIGHT + 12.0, y, RIGHT + 32.0, y], colour, &wide);
        text(svg, [RIGHT + 38.0, y + 4.0], "start", &series.name);
    }

    fn x(&self, tick: usize) -> f64 {
        let parts = self.ticks.len().max(1) as f64;
        LEFT + (RIGHT - LEFT) * (tick as f64 + 0.5) / parts
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - (BOTTOM - ROOF) * value / self.top
    }
}

fn line(svg: &mut String, [x1, y1, x2, y2]: [f64; 4], colour: &str, more: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"{more}/>"
    );
}

fn text(svg: &mut String, [x, y]: [f64; 2], anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222222\">{words}</text>"
    );
}

/// The next of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten.
fn round_up(value: f64) -> f64 {
    if value.is_nan() || value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    let fits = steps.into_iter().find(|step| step * power >= value);
    fits.unwrap_or(10.0) * power
}

fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

const WIDTH: usize = 640;
const HEIGHT: usize = 330;
const TOP: usize = 36;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 460.0;
const ROOF: f64 = 28.0;
const BOTTOM: f64 = 280.0;
const COLOURS: [&str; 8] = [
    "#0b6e99", "#d9480f", "#2b8a3e", "#862e9c", "#c2255c", "#5f3dc4", "#a67c00", "#495057",
];
const DASHES: [&str; 3] = ["", " stroke-dasharray=\"6 3\"", " stroke-dasharray=\"2 3\""];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        let tops = [2.28, 0.54, 1000.0, 0.0].map(|value| label(round_up(value)));
        assert_eq!(tops, ["2.5", "0.6", "1000", "1"]);
        assert_eq!([0.5, 2.0, 10.0].map(label), ["0.5", "2", "10"]);
    }
}
