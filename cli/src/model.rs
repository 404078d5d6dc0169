//! From the options of the command line to what the engine takes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cider::files::shown;
use cider::generate::RunnerOptions;
use cider::image::PixelBudget;
use cider::load::Checkpoint;
use cider::{Backend as _, CpuBackend, Engine, EngineOptions};

use crate::args::{DeviceOptions, ImageOptions, ModelOptions, RunArgs};
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
    if asks_for_vision(&args.images, &args.options) {
        check_vision(&Checkpoint::open(path)?)?;
    }
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
    let mut engine = Engine::open(path, backend.clone(), &options, &mut |progress| {
        memory.sample();
        bar.show(progress.done, progress.total);
    })?;
    let bounds = &args.images.bounds;
    if let Some(vision) = engine.vision_mut().filter(|_| bounds.are_given()) {
        let (least, most) = (bounds.min_image_tokens, bounds.max_image_tokens);
        vision.set_budget(PixelBudget::from_tokens(vision.processor(), least, most)?)?;
    }
    Ok(Opened {
        engine,
        backend,
        load: started.elapsed(),
        memory,
    })
}

/// Whether there are options that only a model with vision input can honour.
pub(crate) fn asks_for_vision(images: &ImageOptions, options: &ModelOptions) -> bool {
    !images.files.is_empty() || images.bounds.are_given() || options.vision_scheme.is_some()
}

/// Refuses a model without vision input, before its weights are read.
pub(crate) fn check_vision(checkpoint: &Checkpoint) -> Result<()> {
    ensure!(
        checkpoint.config.vision.is_some(),
        "{}: the model has no vision input: it is a {} for text alone",
        shown(&checkpoint.path),
        checkpoint.config.architecture.name()
    );
    Ok(())
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
        vision: options.vision(),
        dtype: options.dtype,
        ..RunnerOptions::default()
    }
}
