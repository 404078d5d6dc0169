//! `cider serve`: a model behind an HTTP server.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use cider::generate::RunnerOptions;
use cider::image::{ImageProcessor, PixelBudget};
use cider::load::Checkpoint;
use cider::{Activations, BatchEngine, BatchOptions, DType, EngineOptions, Quantization, Scheme};

use crate::args::{DeviceOptions, ImageBounds, ServeArgs};
use crate::bundled;
use crate::failure::Usage;
use crate::model;
use crate::progress::Progress;
use crate::server::config::{Config, Loading, W8A8};
use crate::server::{self, Model};

/// Runs the command.
pub(crate) fn run(args: &ServeArgs, quiet: bool) -> Result<()> {
    let environment = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let config = Config::read(&args.flags, environment)?;
    if args
        .flags
        .given
        .iter()
        .any(|(key, _)| *key == "server.api_keys")
    {
        tracing::warn!(
            "--api-key can be seen by others on this machine: --api-key-file or CIDER_SERVE_SERVER_API_KEYS is better"
        );
    }
    let model = model_of(&config, quiet)?;
    server::run(config, model)
}

/// The model that a configuration names.
pub(crate) fn model_of(config: &Config, quiet: bool) -> Result<Model> {
    let path = match &config.model {
        Some(model) if model.is_empty() => return Err(Usage("MODEL is empty".to_owned()).into()),
        Some(model) => PathBuf::from(model),
        None => bundled::find()?,
    };
    let loading = config.loading.clone();
    let scheme = scheme(&loading)?;
    let runner = runner_options(&loading, scheme)?;
    Ok(Model {
        name: server::name_of(&path),
        scheme: scheme.to_string(),
        open: Box::new(move |options| open(&path, &loading, runner, &options, quiet)),
    })
}

/// The scheme that is meant, said in the log.
fn scheme(loading: &Loading) -> Result<Scheme> {
    let asked = loading.scheme;
    let scheme = match loading.w8a8 {
        W8A8::Auto => asked.unwrap_or_default(),
        W8A8::On => {
            let scheme = asked.unwrap_or(Scheme::W8A8);
            let what = "w8a8.mode is on, but the scheme keeps the activations of prompts as floats";
            ensure!(
                scheme.prompt_activations() == Activations::Int8,
                Usage(format!("{what}: {scheme}"))
            );
            let found = cider::is_available();
            if let Err(why) = &found.chosen {
                anyhow::bail!("w8a8.mode is on, but there is no path for it: {why}");
            }
            scheme
        }
        W8A8::Off => {
            let scheme = asked.unwrap_or(Scheme::None);
            let what = "w8a8.mode is off, but the scheme quantises the activations of prompts";
            ensure!(
                scheme.prompt_activations() == Activations::Float,
                Usage(format!("{what}: {scheme}"))
            );
            scheme
        }
    };
    let activations = match scheme.prompt_activations() {
        Activations::Int8 => "INT8",
        Activations::Float => "floats",
    };
    tracing::info!("scheme {scheme}: prompts run on {activations}");
    Ok(scheme)
}

fn runner_options(loading: &Loading, scheme: Scheme) -> Result<RunnerOptions> {
    if scheme == Scheme::None && loading.group_size.is_some_and(|size| size > 0) {
        let what = "group_size has no meaning with the scheme none: its weights have no scales";
        return Err(Usage(what.to_owned()).into());
    }
    Ok(RunnerOptions {
        quantization: Quantization {
            group_size: loading.group_size.filter(|_| scheme != Scheme::None),
            head: loading.head,
            ..Quantization::of(scheme)
        },
        vision: Quantization::of(loading.vision_scheme.unwrap_or(Scheme::None)),
        dtype: loading.dtype.unwrap_or(DType::Bf16),
        cache: loading.kv_cache,
        context: loading.ctx,
        ..RunnerOptions::default()
    })
}

fn open(
    path: &Path,
    loading: &Loading,
    runner: RunnerOptions,
    options: &BatchOptions,
    quiet: bool,
) -> Result<BatchEngine> {
    let options = BatchOptions {
        pixels: pixels(path, loading)?,
        ..options.clone()
    };
    let device = DeviceOptions {
        device: "auto".to_owned(),
        threads: loading.threads,
    };
    let backend = model::backend(&device)?;
    let engine = EngineOptions {
        runner,
        chat_template: loading.chat_template.clone(),
    };
    let mut bar = Progress::bytes("loading", quiet);
    let engine = BatchEngine::open(path, backend, &engine, &options, &mut |progress| {
        bar.show(progress.done, progress.total);
    })?;
    Ok(engine)
}

/// The bounds on pictures.
fn pixels(path: &Path, loading: &Loading) -> Result<PixelBudget> {
    let bounds = ImageBounds {
        min_image_tokens: loading.min_image_tokens,
        max_image_tokens: loading.max_image_tokens,
    };
    if !bounds.are_given() {
        return Ok(PixelBudget::default());
    }
    let checkpoint = Checkpoint::open(path)?;
    model::check_vision(&checkpoint)?;
    model::budget(&ImageProcessor::open(&checkpoint.path)?, &bounds)
}
