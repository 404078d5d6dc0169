//! The instruction sets and the backends of this machine.

use std::sync::Arc;

use cider::{Backend, CpuBackend, Isa};

/// The instruction sets of this machine; those it lacks are printed with the reason, and counted.
pub(crate) fn isas() -> Vec<Isa> {
    let skipped: Vec<_> = Isa::ALL
        .into_iter()
        .filter_map(|isa| Some(format!("{isa} ({})", isa.why_not()?)))
        .collect();
    println!("{} skipped: {}", skipped.len(), skipped.join(", "));
    Isa::available()
}

pub(crate) fn cpu(isa: Isa, threads: usize) -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(isa, threads).unwrap())
}

/// The best of this machine, on two threads.
pub(crate) fn best() -> Arc<dyn Backend> {
    cpu(Isa::best(), 2)
}
