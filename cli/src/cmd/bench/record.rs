//! What was measured, with all that is needed to judge it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, process};

use anyhow::{Context as _, Result};
use cider::files::check_target as check_regular;
use cider_kernels::{Caches, Ceilings, CpuBackend, Topology};
use serde::Serialize;
use serde_json::{Map, Value};

use super::roofline::{Cost, Unit};
use super::timing::Spread;

/// A run of the command.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    pub(super) command: &'static str,
    arguments: Vec<String>,
    date: String,
    cider_version: &'static str,
    commit: Option<String>,
    pub(super) machine: Machine,
    pub(super) ceilings: CeilingsRecord,
    pub(super) rows: Vec<Row>,
}

/// Where it ran.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) threads: usize,
    pub(super) isa: &'static str,
    caches: Vec<usize>,
    os: String,
    load_average: Option<f64>,
}

/// The best of what the ceilings came to, and what each measurement of them gave.
#[derive(Debug, Serialize)]
pub(super) struct CeilingsRecord {
    pub(super) int8_tops: f64,
    pub(super) bf16_tops: Option<f64>,
    pub(super) f32_tops: f64,
    pub(super) read_gbs: f64,
    /// First, middle and last, in the order of the fields above.
    measured: Vec<[Option<f64>; 4]>,
}

/// One contender at one work.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) work: &'static str,
    pub(super) shape: Map<String, Value>,
    pub(super) who: String,
    pub(super) variant: String,
    pub(super) ms: Spread,
    /// Tokens per second, where tokens are what is made.
    #[serde(rename = "tokens_per_second", skip_serializing_if = "Option::is_none")]
    pub(super) rate: Option<f64>,
    pub(super) tops: Option<f64>,
    pub(super) gbs: Option<f64>,
    pub(super) unit: Unit,
    /// What the ceilings allow: the longer of computing and reading.
    pub(super) floor_ms: Option<f64>,
    pub(super) share_of_peak: Option<f64>,
    pub(super) share_of_roofline: Option<f64>,
    /// The largest error as a part of the largest value.
    pub(super) relative_error: Option<f64>,
    /// How much longer than Cider it takes: above 1, Cider is faster.
    pub(super) ratio_to_cider: Option<f64>,
    /// How much longer it takes than the ceilings allow, where that is what it is compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_floor: Option<f64>,
    /// The variant of Cider that it is compared with, or [`FLOOR`].
    pub(super) compared_with: Option<String>,
    /// Nats from what the same gives without quantisation, the mean over tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kl_divergence: Option<f64>,
    #[serde(flatten)]
    pub(super) more: Map<String, Value>,
    #[serde(skip)]
    pub(super) place: Place,
    #[serde(skip)]
    pub(super) cost: Cost,
}

/// Where a row stands in the table and in the plot.
#[derive(Debug)]
pub(super) struct Place {
    /// What all contenders of one work share.
    pub(super) label: String,
    /// The plot it is in.
    pub(super) plot: String,
    /// Its place on the horizontal axis.
    pub(super) x: usize,
}

impl Record {
    pub(super) fn new(
        command: &'static str,
        backend: &CpuBackend,
        ceilings: &[Ceilings],
        rows: Vec<Row>,
    ) -> Self {
        Self {
            command,
            arguments: env::args().skip(1).collect(),
            date: jiff::Timestamp::now().to_string(),
            cider_version: env!("CARGO_PKG_VERSION"),
            commit: commit(),
            machine: Machine::new(backend),
            ceilings: CeilingsRecord::new(ceilings),
            rows,
        }
    }

    /// Writes it, whole or not at all.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        replace(path, text.as_bytes()).with_context(|| path.display().to_string())
    }
}

impl Row {
    /// A row of ours that nothing is known of but the time.
    pub(super) fn new<const N: usize>(
        work: &'static str,
        shape: [(&str, usize); N],
        place: Place,
        (cost, ms): (Cost, Spread),
    ) -> Self {
        Self {
            work,
            shape: shape
                .map(|(key, size)| (key.to_owned(), size.into()))
                .into_iter()
                .collect(),
            who: CIDER.to_owned(),
            variant: String::new(),
            ms,
            rate: None,
            tops: None,
            gbs: None,
            unit: cost.unit,
            floor_ms: None,
            share_of_peak: None,
            share_of_roofline: None,
            relative_error: None,
            ratio_to_cider: None,
            ratio_to_floor: None,
            compared_with: None,
            kl_divergence: None,
            more: Map::new(),
            place,
            cost,
        }
    }

    /// Sets what follows from the time and the ceilings.
    pub(super) fn take_shares(&mut self, ceilings: &Ceilings) {
        let (cost, seconds) = (self.cost, self.ms.median / 1e3);
        self.floor_ms = Some(1e3 * cost.least(ceilings));
        self.share_of_roofline = Some(cost.least(ceilings) / seconds);
        self.gbs = Some(cost.bytes / seconds / 1e9);
        if cost.unit != Unit::Memory {
            self.tops = Some(cost.all_operations() / seconds / 1e12);
            self.share_of_peak = Some(cost.computing(ceilings) / seconds);
        }
        if self.compared_with.as_deref() == Some(FLOOR) {
            self.ratio_to_floor = Some(seconds / cost.least(ceilings));
        }
    }
}

impl Machine {
    fn new(backend: &CpuBackend) -> Self {
        let topology = Topology::detect();
        Self {
            cpu: cpu_name(),
            cores: topology.physical,
            threads: backend.threads(),
            isa: backend.isa().name(),
            caches: Caches::detect().levels,
            os: format!("{} {}", env::consts::OS, env::consts::ARCH),
            load_average: load_average(),
        }
    }
}

impl CeilingsRecord {
    fn new(all: &[Ceilings]) -> Self {
        let figures = |c: &Ceilings| {
            let bf16 = c.bf16.map(|rate| rate / 1e12);
            [
                Some(c.int8 / 1e12),
                bf16,
                Some(c.f32 / 1e12),
                Some(c.read / 1e9),
            ]
        };
        let measured: Vec<_> = all.iter().map(figures).collect();
        let best = |i: usize| {
            let values = measured.iter().filter_map(|figures| figures[i]);
            values.reduce(f64::max)
        };
        Self {
            int8_tops: best(0).unwrap_or(0.0),
            bf16_tops: best(1),
            f32_tops: best(2).unwrap_or(0.0),
            read_gbs: best(3).unwrap_or(0.0),
            measured,
        }
    }
}

/// Puts a file in the place of another; what was there stays until the new one is whole. Links stay links.
pub(super) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(format!(".{}.part", process::id()));
    let part = path.with_file_name(name);
    let written = File::create_new(&part).and_then(|mut file| {
        file.write_all(contents)?;
        file.sync_all()
    });
    let replaced = written.and_then(|()| fs::rename(&part, path));
    if replaced.is_err() {
        // The error that counts is the first.
        let _ = fs::remove_file(&part);
    }
    replaced
}

/// Refuses a target that could not be written in the end, before hours are spent.
pub(super) fn check_target(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let found = fs::metadata(&folder).with_context(|| path.display().to_string())?;
    anyhow::ensure!(
        found.is_dir() && !path.is_dir(),
        "{}: no place for a file",
        path.display()
    );
    // A device or a pipe would be gone, and a file in its place.
    check_regular(path).with_context(|| path.display().to_string())
}

/// The version of the sources around the program, where it lies in a checkout.
fn commit() -> Option<String> {
    let program = env::current_exe().ok()?;
    let output = Command::new("git")
        .arg("-C")
        .arg(program.parent()?)
        .args(["describe", "--always", "--dirty", "--exclude", "*"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|rest| rest.split_once(':'));
    name.map_or_else(
        || env::consts::ARCH.to_owned(),
        |(_, name)| name.trim().to_owned(),
    )
}

/// What waited for the processors in the last minute: whether the machine was quiet.
fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Sets the ratios: of a peer to our variant that `counterpart` names for its own, of all others to our first.
pub(super) fn compare(rows: &mut [Row], counterpart: impl Fn(&str) -> &'static str) {
    let ours: Vec<(String, Spread)> = rows
        .iter()
        .filter(|row| row.who == CIDER)
        .map(|row| (row.variant.clone(), row.ms))
        .collect();
    for row in rows {
        let name = if row.who == CIDER {
            ""
        } else {
            counterpart(&row.variant)
        };
        let base = ours.iter().find(|(variant, _)| variant == name);
        if let Some((variant, base)) = base.or(ours.first()) {
            row.ratio_to_cider = Some(row.ms.median / base.median);
            row.compared_with = Some(variant.clone());
        }
    }
}

/// What a row is compared with that has no contender but the machine.
pub(super) const FLOOR: &str = "floor";

/// Who we are among the contenders.
pub(super) const CIDER: &str = "cider";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_and_what_it_names_is_replaced() {
        let folder = env::temp_dir().join(format!("cider-record-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        check_target(&link).unwrap();
        replace(&link, b"after").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"after");
        fs::remove_dir_all(&folder).unwrap();
    }
}
