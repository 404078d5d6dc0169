//! From the options of the command line to what the engine takes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use cider::generate::RunnerOptions;
use cider::{Backend as _, CpuBackend, Engine, EngineOptions};

use crate::args::{DeviceOptions, ModelOptions, RunArgs};
use crate::memory::Memory;
use crate::progress::Progress;

/// A model that is ready to answer.
pub(crate) struct Opened {
    pub(crate) engine: Engine,
    pub(crate) backend: Arc<CpuBackend>,
    /// How long opening took.
    pub(crate) load: Duration,
    pub(crate) memory: Memory,
}

/// Opens the model of a `run`.
pub(crate) fn open(path: &Path, args: &RunArgs, quiet: bool) -> Result<Opened> {
    let started = Instant::now();
    let backend = backend(&args.device)?;
    let options = EngineOptions {
        runner: RunnerOptions {
            context: args.ctx,
            ..runner_options(&args.options)
        },
        chat_template: args.chat_template.clone(),
    };
    let mut bar = Progress::bytes("loading", quiet);
    let mut memory = Memory::default();
    let engine = Engine::open(path, backend.clone(), &options, &mut |progress| {
        memory.sample();
        bar.show(progress.done, progress.total);
    })?;
    Ok(Opened {
        engine,
        backend,
        load: started.elapsed(),
        memory,
    })
}

/// The device, said in the log.
pub(crate) fn backend(options: &DeviceOptions) -> Result<Arc<CpuBackend>> {
    let backend = CpuBackend::from_env(options.threads)?;
    tracing::info!("{}", backend.describe());
    Ok(Arc::new(backend))
}

/// The options that all commands share.
pub(crate) fn runner_options(options: &ModelOptions) -> RunnerOptions {
    RunnerOptions {
        quantization: options.quantization(),
        dtype: options.dtype,
        ..RunnerOptions::default()
    }
}
