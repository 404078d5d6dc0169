//! What was measured, with all that is needed to judge it.

use std::process::Command;
use std::{env, fs};

use anyhow::Result;
use cider_kernels::{Caches, Ceilings, CpuBackend, Topology};
use serde::Serialize;
use serde_json::{Map, Value};

use super::peer::GivenUp;
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
    /// Peers that did not answer in time, and are missing from there on.
    #[serde(rename = "peers_given_up", skip_serializing_if = "Vec::is_empty")]
    pub(super) given_up: Vec<GivenUp>,
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
    /// How far apart they are, as parts of the best, in the same order.
    spread: [Option<f64>; 4],
    /// Why the machine was not quiet: what is measured against such ceilings says little.
    pub(super) disturbed: Vec<String>,
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
            ceilings: CeilingsRecord::new(ceilings, backend),
            given_up: Vec::new(),
            rows,
        }
    }

    /// As JSON.
    pub(super) fn text(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
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
    pub(super) fn new(backend: &CpuBackend) -> Self {
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
    fn new(all: &[Ceilings], backend: &CpuBackend) -> Self {
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
        let values = |i: usize| measured.iter().filter_map(move |figures| figures[i]);
        let best = [0, 1, 2, 3].map(|i| values(i).reduce(f64::max));
        let spread = [0, 1, 2, 3].map(|i| {
            let (best, worst) = (best[i]?, values(i).reduce(f64::min)?);
            Some((best - worst) / best)
        });
        let mut disturbed = apart(spread);
        let house = family().and_then(|family| usual_peak(&family, backend.isa().name()));
        disturbed.extend(house.and_then(|each| low(best[0]?, each, backend.threads())));
        Self {
            int8_tops: best[0].unwrap_or(0.0),
            bf16_tops: best[1],
            f32_tops: best[2].unwrap_or(0.0),
            read_gbs: best[3].unwrap_or(0.0),
            measured,
            spread,
            disturbed,
        }
    }
}

/// Those ceilings whose measurements are too far apart.
fn apart(spread: [Option<f64>; 4]) -> Vec<String> {
    let names = ["int8", "bf16", "f32", "read"];
    let limits = [
        APART_COMPUTING,
        APART_COMPUTING,
        APART_COMPUTING,
        APART_READING,
    ];
    let all = names.into_iter().zip(limits).zip(spread);
    all.filter_map(|((name, limit), spread)| {
        let spread = spread.filter(|&spread| spread > limit)?;
        let (spread, limit) = (100.0 * spread, 100.0 * limit);
        Some(format!(
            "the ceiling {name} was measured several times, {spread:.0} % apart, the limit is {limit:.0} %"
        ))
    })
    .collect()
}

/// That the INT8 peak is below what so many threads of such a processor are known to reach.
fn low(found: f64, each: f64, threads: usize) -> Option<String> {
    let usual = each * threads as f64;
    (found < usual).then(|| {
        format!(
            "the ceiling int8 is {found:.3} TOPS, {threads} threads of this processor reach {usual:.2}: \
             somebody else had the cores"
        )
    })
}

/// INT8 TOPS of a core at the least when nobody disturbs it, where that is known of a processor and its instructions.
fn usual_peak(family: &str, isa: &str) -> Option<f64> {
    match (family, isa) {
        // Zen 5: its AVX-512 VNNI.
        ("AuthenticAMD 26", "avx512_vnni" | "avx512_bf16") => Some(1.1),
        _ => None,
    }
}

/// The vendor and the family of the processor.
fn family() -> Option<String> {
    Some(format!(
        "{} {}",
        cpu_field("vendor_id")?,
        cpu_field("cpu family")?
    ))
}

/// The version of the sources around the program, where it lies in a checkout.
pub(super) fn commit() -> Option<String> {
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
    cpu_field("model name").unwrap_or_else(|| env::consts::ARCH.to_owned())
}

/// What the system says of the first processor.
fn cpu_field(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let mut found = fields.filter(|(key, _)| key.trim() == name);
    found.next().map(|(_, value)| value.trim().to_owned())
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

/// The machine among the contenders.
pub(super) const MACHINE: &str = "machine";

/// Who we are among the contenders.
pub(super) const CIDER: &str = "cider";

/// How far measurements of one ceiling of a quiet machine are apart at most, as parts of the best.
const APART_COMPUTING: f64 = 0.05;
/// The same for memory, which other machines on the same host share.
const APART_READING: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_ceiling_is_told() {
        let all = |int8: [f64; 3], read: [f64; 3]| {
            let measured = int8.into_iter().zip(read).map(|(int8, read)| Ceilings {
                int8: int8 * 1e12,
                bf16: None,
                f32: 0.5e12,
                read: read * 1e9,
            });
            let backend = CpuBackend::new(cider::Isa::Scalar, 1).unwrap();
            CeilingsRecord::new(&measured.collect::<Vec<_>>(), &backend)
        };
        let quiet = all([2.2, 2.25, 2.21], [50.0, 48.0, 46.0]);
        assert!(quiet.disturbed.is_empty(), "{:?}", quiet.disturbed);
        let spread = quiet
            .spread
            .map(|spread| spread.map(|spread| (1e4 * spread).round()));
        assert_eq!(spread, [Some(222.0), None, Some(0.0), Some(800.0)]);
        let found = all([2.2, 2.0, 2.1], [50.0, 25.0, 49.0]).disturbed;
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("int8") && found[0].contains("9 % apart"),
            "{found:?}"
        );
        assert!(
            found[1].contains("read") && found[1].contains("50 % apart"),
            "{found:?}"
        );
    }

    #[test]
    fn a_peak_below_what_is_known_of_the_processor_is_told() {
        let each = usual_peak("AuthenticAMD 26", "avx512_bf16").unwrap();
        assert_eq!(low(2.2, each, 2), None);
        let what = low(2.1, each, 2).unwrap();
        assert!(
            what.contains("2.100 TOPS, 2 threads") && what.contains("2.20"),
            "{what}"
        );
        assert_eq!(usual_peak("AuthenticAMD 26", "avx2"), None);
        assert_eq!(usual_peak("GenuineIntel 6", "avx512_vnni"), None);
    }
}
