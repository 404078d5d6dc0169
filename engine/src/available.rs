//! What this machine offers.

use std::fmt;

use cider_kernels::{CpuBackend, Isa, Topology};

/// A way to compute on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// The device: `cpu`.
    pub device: &'static str,
    /// The instruction set, by the name that `CIDER_CPU` takes.
    pub name: &'static str,
    /// Why this machine cannot take it; nothing if it can.
    pub why_not: Option<String>,
    /// Why its INT8 products are not done by units made for them; nothing if they are.
    pub why_no_int8_units: Option<String>,
}

impl PathReport {
    /// Whether this machine can take it.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.why_not.is_none()
    }

    /// Whether it is available and multiplies INT8 in units made for it.
    #[must_use]
    pub fn has_int8_units(&self) -> bool {
        self.is_available() && self.why_no_int8_units.is_none()
    }
}

/// What [`is_available`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    /// Every path there is code for, the best of a device last.
    pub paths: Vec<PathReport>,
    /// The path that is taken; or why the environment (`CIDER_CPU`, `CIDER_THREADS`) cannot be honoured.
    pub chosen: Result<Choice, String>,
    /// Processors, cores and quota.
    pub topology: Topology,
}

/// A path, and how many threads take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its place in [`Availability::paths`].
    pub path: usize,
    /// Threads, the caller's included.
    pub threads: usize,
}

impl Availability {
    /// Whether the path that is taken has INT8 units. Without them everything works, only slower.
    #[must_use]
    pub fn has_int8_units(&self) -> bool {
        self.chosen_path().is_some_and(PathReport::has_int8_units)
    }

    /// The path that is taken.
    #[must_use]
    pub fn chosen_path(&self) -> Option<&PathReport> {
        let choice = self.chosen.as_ref().ok()?;
        self.paths.get(choice.path)
    }
}

/// For people: the path that is taken, then every path with what it lacks.
impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Topology {
            logical,
            physical,
            quota,
        } = self.topology;
        match (&self.chosen, self.chosen_path()) {
            (Ok(Choice { threads, .. }), Some(path)) => {
                write!(f, "{}, {}, threads: {threads}", path.device, path.name)?;
            }
            (Err(why), _) => f.write_str(why)?,
            _ => f.write_str("nothing")?,
        }
        write!(f, " (logical CPUs: {logical}, cores: {physical}")?;
        if let Some(quota) = quota {
            write!(f, ", quota: {quota}")?;
        }
        f.write_str(")")?;
        for path in &self.paths {
            let lacks = path.why_not.as_ref().or(path.why_no_int8_units.as_ref());
            let state = match (path.is_available(), lacks) {
                (true, None) => "INT8 units".to_owned(),
                (true, Some(why)) => format!("available, no INT8 units: {why}"),
                (false, why) => format!("not available: {}", why.map_or("", String::as_str)),
            };
            write!(f, "\n  {} {:<12} {state}", path.device, path.name)?;
        }
        Ok(())
    }
}

/// Looks at the machine: devices, instruction sets, threads, and for each path whether it multiplies INT8 in
/// units made for it, or why not. It reads a few small files of the system and starts nothing.
///
/// ```
/// let report = cider::is_available();
/// println!("{report}");
/// assert!(report.paths.iter().any(cider::PathReport::is_available));
/// if !report.has_int8_units() {
///     println!("INT8 products will be no faster than 16-bit ones");
/// }
/// ```
#[must_use]
pub fn is_available() -> Availability {
    let path = |isa: Isa| PathReport {
        device: "cpu",
        name: isa.name(),
        why_not: isa.why_not(),
        why_no_int8_units: why_no_int8_units(isa).map(str::to_owned),
    };
    let place = |isa| Isa::ALL.iter().position(|&known| known == isa);
    let chosen = CpuBackend::choice(None).map(|(isa, threads)| Choice {
        path: place(isa).unwrap_or(0),
        threads,
    });
    Availability {
        paths: Isa::ALL.map(path).to_vec(),
        chosen: chosen.map_err(|error| error.to_string()),
        topology: Topology::detect(),
    }
}

fn why_no_int8_units(isa: Isa) -> Option<&'static str> {
    match isa {
        Isa::Scalar => Some("portable code multiplies one by one"),
        Isa::Avx2 => Some("AVX2 multiplies 16-bit integers, it has no dot product of bytes"),
        Isa::AvxVnni | Isa::Avx512Vnni | Isa::Avx512Bf16 => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_is_reported_and_the_best_is_taken() {
        let report = is_available();
        assert_eq!(report.paths.len(), Isa::ALL.len());
        for (path, isa) in report.paths.iter().zip(Isa::ALL) {
            assert_eq!(path.is_available(), Isa::available().contains(&isa));
        }
        if std::env::var_os("CIDER_CPU").is_none() {
            let best = report.paths.iter().rfind(|path| path.is_available());
            assert_eq!(report.chosen_path(), best);
        }
        let text = report.to_string();
        assert_eq!(text.lines().count(), 1 + Isa::ALL.len(), "{text}");
        assert!(text.contains("AVX2 multiplies 16-bit") || text.contains("lacks avx2"));
    }

    #[test]
    fn a_path_that_the_machine_lacks_has_no_units() {
        let path = PathReport {
            device: "cpu",
            name: "avx512_vnni",
            why_not: Some("this CPU lacks avx512f".to_owned()),
            why_no_int8_units: None,
        };
        let mut report = Availability {
            paths: vec![path],
            chosen: Ok(Choice {
                path: 0,
                threads: 1,
            }),
            topology: Topology::detect(),
        };
        assert!(!report.has_int8_units());
        assert!(
            report
                .to_string()
                .contains("not available: this CPU lacks avx512f")
        );
        report.paths[0].why_not = None;
        assert!(report.has_int8_units());
        report.chosen = Err("CIDER_CPU: no".to_owned());
        assert!(!report.has_int8_units());
        assert!(report.to_string().starts_with("CIDER_CPU: no (logical"));
    }
}
