//! From the options of the command line to what the engine takes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cider::files::shown;
use cider::generate::RunnerOptions;
use cider::image::{ImageProcessor, PixelBudget};
use cider::load::Checkpoint;
use cider::{Backend as _, CpuBackend, Engine, EngineOptions};

use crate::args::{DeviceOptions, ImageBounds, ImageOptions, ModelOptions, RunArgs};
use crate::failure::hinted;
use crate::memory::Memory;
use crate::pictures::{Pictures, Room};
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
    let mut engine = Engine::open(path, backend.clone(), &options, &mut |progress| {
        memory.sample();
        bar.show(progress.done, progress.total);
    })?;
    if let Some(vision) = engine
        .vision_mut()
        .filter(|_| !args.images.files.is_empty())
    {
        let model = vision.processor().pixel_bounds();
        vision.set_budget(budget(vision.processor(), &args.images.bounds)?)?;
        warn_of_sizes(model, vision.processor().pixel_bounds());
    }
    Ok(Opened {
        engine,
        backend,
        load: started.elapsed(),
        memory,
    })
}

/// The pictures of a `run`, read before the weights are.
pub(crate) fn read_pictures(path: &Path, args: &RunArgs) -> Result<Pictures> {
    if !asks_for_vision(&args.images, &args.options) {
        return Ok(Pictures::default());
    }
    let checkpoint = Checkpoint::open(path)?;
    check_vision(&checkpoint)?;
    if args.images.files.is_empty() {
        return Ok(Pictures::default());
    }
    let options = RunnerOptions {
        context: args.ctx,
        ..RunnerOptions::default()
    };
    let room = Room {
        processor: bounded(
            &ImageProcessor::open(&checkpoint.path)?,
            &args.images.bounds,
        )?,
        context: Some(options.context_of(&checkpoint.config)),
    };
    Pictures::read(&args.images.files, &room).map_err(|error| hinted(error.into(), ROOM))
}

/// A processor within the bounds that were asked for.
pub(crate) fn bounded(processor: &ImageProcessor, bounds: &ImageBounds) -> Result<ImageProcessor> {
    Ok(processor.with_budget(budget(processor, bounds)?)?)
}

/// The bounds that were asked for, which must go with those of the model.
pub(crate) fn budget(processor: &ImageProcessor, bounds: &ImageBounds) -> Result<PixelBudget> {
    let (least, most) = (bounds.min_image_tokens, bounds.max_image_tokens);
    let token = (processor.factor() * processor.factor()) as u64;
    let (min_pixels, max_pixels) = processor.pixel_bounds();
    let (model_least, model_most) = (min_pixels.div_ceil(token), max_pixels / token);
    match (least, most) {
        (None, Some(most)) => ensure!(
            most as u64 >= model_least,
            "--max-image-tokens {most} is below the minimum of the model, {model_least} tokens: give --min-image-tokens \
             too to go below it"
        ),
        (Some(least), None) => ensure!(
            least as u64 <= model_most,
            "--min-image-tokens {least} exceeds the maximum of the model, {model_most} tokens: give --max-image-tokens \
             too to go beyond it"
        ),
        (Some(least), Some(most)) => ensure!(
            least <= most,
            "--min-image-tokens {least} exceeds --max-image-tokens {most}"
        ),
        (None, None) => {}
    }
    Ok(PixelBudget::from_tokens(processor, least, most)?)
}

/// Says so where pictures may have sizes outside those that the model is made for.
fn warn_of_sizes(model: (u64, u64), asked: (u64, u64)) {
    if asked.0 < model.0 || asked.1 > model.1 {
        tracing::warn!(
            "pictures of {} to {} pixels: the model is made for {} to {}, its answer may be nonsense",
            asked.0,
            asked.1,
            model.0,
            model.1
        );
    }
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
        cache: options.kv_cache,
        ..RunnerOptions::default()
    }
}

/// What makes room for pictures.
pub(crate) const ROOM: &str =
    "fewer pictures, a smaller --max-image-tokens or a larger --ctx make room";
