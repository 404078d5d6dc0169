//! The devices of this machine, their instruction sets, and which is chosen.

use std::fmt::Write as _;

use cider::{CpuBackend, Isa, Topology};
use serde::Serialize;

/// What there is to run on.
#[derive(Serialize)]
pub(super) struct MachineInfo {
    version: &'static str,
    devices: Vec<Thing>,
    instruction_sets: Vec<Thing>,
    processors: Processors,
    chosen: Choice,
}

/// Something that is available, or the reason why it is not.
#[derive(Serialize)]
struct Thing {
    name: &'static str,
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
}

#[derive(Serialize)]
struct Processors {
    logical: usize,
    physical: usize,
    quota: Option<usize>,
}

/// What a model would run on now, `CIDER_CPU` and `CIDER_THREADS` honoured.
#[derive(Serialize)]
#[serde(untagged)]
enum Choice {
    Made {
        device: &'static str,
        isa: &'static str,
        threads: usize,
    },
    Impossible {
        error: String,
    },
}

impl MachineInfo {
    /// Looks.
    pub(super) fn new() -> Self {
        let absent = |name| Thing::new(name, Some("not in this build".to_owned()));
        let instruction_sets = Isa::ALL.map(|isa| Thing::new(isa.name(), isa.why_not()));
        let topology = Topology::detect();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            devices: vec![Thing::new("cpu", None), absent("cuda"), absent("metal")],
            instruction_sets: instruction_sets.into(),
            processors: Processors {
                logical: topology.logical,
                physical: topology.physical,
                quota: topology.quota,
            },
            chosen: Choice::new(),
        }
    }

    /// As people read it.
    pub(super) fn text(&self) -> String {
        let mut text = format!("cider {}\n", self.version);
        for (title, things) in [
            ("devices", &self.devices),
            ("instruction sets of the cpu", &self.instruction_sets),
        ] {
            let _ = writeln!(text, "\n{title}");
            for thing in things {
                let state = match &thing.why_not {
                    None => "available".to_owned(),
                    Some(why) => format!("not available: {why}"),
                };
                let _ = writeln!(text, "  {:<14}{state}", thing.name);
            }
        }
        let Processors {
            logical,
            physical,
            quota,
        } = self.processors;
        let quota = quota.map_or_else(|| "none".to_owned(), |quota| quota.to_string());
        let _ = writeln!(
            text,
            "\nprocessors\n  {:<14}{logical}\n  {:<14}{physical}",
            "logical", "physical"
        );
        let _ = writeln!(text, "  {:<14}{quota}", "quota");
        let chosen = match &self.chosen {
            Choice::Made {
                device,
                isa,
                threads,
            } => format!("{device}, {isa}, {threads} threads"),
            Choice::Impossible { error } => format!("nothing: {error}"),
        };
        let _ = writeln!(text, "\nchosen\n  {chosen}");
        text
    }
}

impl Thing {
    fn new(name: &'static str, why_not: Option<String>) -> Self {
        Self {
            name,
            available: why_not.is_none(),
            why_not,
        }
    }
}

impl Choice {
    fn new() -> Self {
        match CpuBackend::from_env(None) {
            Ok(backend) => Self::Made {
                device: "cpu",
                isa: backend.isa().name(),
                threads: backend.threads(),
            },
            Err(error) => Self::Impossible {
                error: error.to_string(),
            },
        }
    }
}
