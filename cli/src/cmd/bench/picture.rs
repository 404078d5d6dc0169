//! `cider bench model --image`: from a picture to the first token.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cider::generate::{ImageFeatures, RunnerOptions};
use cider::image::{ImageProcessor, ImageSize};
use cider::load::Checkpoint;
use cider::{CpuBackend, Quantization, Scheme};
use cider_kernels::KV_BLOCK;
use serde_json::{Value, json};

use super::model_work::{ModelWork, tokens};
use super::peer::Peers;
use super::picture_work::{Answer, Divergence, LOGITS, Picture};
use super::record::{FLOOR, Place, Row};
use super::roofline::Cost;
use super::timing::{self, Spread};
use super::{Bench, or};
use crate::args::ModelBench;
use crate::model;

/// Runs the command.
pub(super) fn run(args: &ModelBench, path: &Path, name: &str, size: [usize; 2]) -> Result<()> {
    let checkpoint = Checkpoint::open(path)?;
    model::check_vision(&checkpoint)?;
    let processor = ImageProcessor::open(&checkpoint.path)?;
    let config = checkpoint.config.vision.as_ref();
    let config = config.context("the model has no vision input")?;
    let pictures = or(&args.prompt, &[PROMPT])
        .into_iter()
        .map(|count| {
            let (size, text) = (ImageSize::new(size[1], size[0]), tokens(&checkpoint, count));
            Picture::new(processor.clone(), config, size, &text)
        })
        .collect::<Result<Vec<_>>>()?;
    let backend = Arc::new(CpuBackend::from_env(args.options.threads)?);
    let plan = Plan {
        args,
        checkpoint: &checkpoint,
        name,
        size,
        backend: &backend,
    };
    let longest = pictures.iter().map(Picture::tokens).max().unwrap_or(0);
    let reference = match pictures.first() {
        Some(first) if plan.quantises() => Some(plan.reference(first)?),
        _ => None,
    };
    let mut work = plan.load(longest, reference.is_some())?;
    let mut bench = Bench::with_backend(&args.options, backend.clone())?;
    for (i, picture) in pictures.iter().enumerate() {
        if i == pictures.len() / 2 {
            bench.measure_ceilings()?;
        }
        let divergence = reference
            .as_ref()
            .map(|features| picture.divergence(work.emptied(), Arc::clone(features)))
            .transpose()?;
        let rows = plan.measure(bench.rounds(), &mut work, picture, divergence)?;
        bench.rows.extend(rows);
    }
    bench.finish("model", Peers::none())
}

/// What is measured.
struct Plan<'a> {
    args: &'a ModelBench,
    checkpoint: &'a Checkpoint,
    name: &'a str,
    /// Width and height.
    size: [usize; 2],
    backend: &'a Arc<CpuBackend>,
}

impl Plan<'_> {
    fn quantises(&self) -> bool {
        self.args.model_options.vision().scheme != Scheme::None
    }

    /// What an unquantised tower makes of the picture. The model goes before the one that is measured comes.
    fn reference(&self, picture: &Picture) -> Result<Arc<ImageFeatures>> {
        tracing::info!("the picture in an unquantised tower");
        let options = RunnerOptions {
            vision: Quantization::of(Scheme::None),
            context: Some(picture.tokens()),
            ..model::runner_options(&self.args.model_options)
        };
        let work = ModelWork::with_options(self.checkpoint, self.backend.clone(), &options)?;
        picture.encode(work.runner())
    }

    /// The model with room for a prompt and the token behind it, or for two prompts that are compared.
    fn load(&self, tokens: usize, compares: bool) -> Result<ModelWork> {
        let context = tokens + 1;
        let options = RunnerOptions {
            context: Some(context),
            cache_tokens: Some(context.next_multiple_of(KV_BLOCK) * if compares { 2 } else { 1 }),
            logits: if compares { 2 * LOGITS } else { 1 },
            ..model::runner_options(&self.args.model_options)
        };
        ModelWork::with_options(self.checkpoint, self.backend.clone(), &options)
    }

    fn measure(
        &self,
        rounds: usize,
        work: &mut ModelWork,
        picture: &Picture,
        divergence: Option<Divergence>,
    ) -> Result<Vec<Row>> {
        let (patches, tokens) = (picture.patches(), picture.tokens());
        tracing::info!("{}, {patches} patches, {tokens} tokens", self.name);
        let mut answer = picture.answer();
        let phases = timing::interleave(Answer::PHASES, rounds, |phase, repetitions| {
            timing::seconds(repetitions, || answer.run(phase, work)).map(Some)
        })?;
        let phases: Vec<Vec<f64>> = phases.into_iter().flatten().collect();
        let together = |round: usize| phases.iter().map(|figures| figures[round]).sum();
        let all_figures = (0..rounds).map(together).collect();
        let spreads = phases.iter().cloned().chain([all_figures]).map(Spread::new);
        let (config, options) = (work.config(), &self.args.model_options);
        let costs = [
            picture.preprocess_cost(),
            picture.tower_cost(config, options),
            picture.prefill_cost(config, options),
        ];
        let all = costs.into_iter().fold(Cost::NOTHING, Cost::then);
        let names = ["preprocess", "tower", "prefill", "first token"];
        let measured = costs.into_iter().chain([all]).zip(spreads);
        let mut rows: Vec<Row> = names
            .into_iter()
            .zip(measured)
            .map(|(phase, measured)| self.row(picture, phase, measured))
            .collect();
        rows[2].rate = Some(tokens as f64 / (rows[2].ms.median / 1e3));
        if let Some(found) = divergence {
            for row in rows.iter_mut().skip(1) {
                row.kl_divergence = Some(found.mean);
                let more = json!({ "max": found.max, "same_next_token": found.same, "tokens": found.tokens });
                row.more.insert("divergence".to_owned(), more);
            }
        }
        Ok(rows)
    }

    fn row(&self, picture: &Picture, phase: &'static str, measured: (Cost, Spread)) -> Row {
        let [width, height] = self.size;
        let text = picture.text_tokens();
        let place = Place {
            label: format!("{} {width}x{height} + {text} {phase}", self.name),
            plot: format!("{} {phase}", self.name),
            x: text,
        };
        let shape = [
            ("prompt", text),
            ("width", width),
            ("height", height),
            ("patches", picture.patches()),
            ("image_tokens", picture.image_tokens()),
        ];
        let options = &self.args.model_options;
        let tower = options.vision().scheme.name();
        let mut row = Row::new("model", shape, place, measured);
        row.variant = match phase {
            "preprocess" => String::new(),
            "tower" => tower.to_owned(),
            "prefill" => options.scheme.name().to_owned(),
            _ => format!("{tower}, {}", options.scheme.name()),
        };
        row.compared_with = Some(FLOOR.to_owned());
        let (int8, floats) = measured.0.split();
        let more = [
            ("model", Value::from(self.name)),
            ("phase", phase.into()),
            ("operations_int8", int8.into()),
            ("operations_float", floats.into()),
            ("bytes", measured.0.bytes.into()),
        ];
        row.more
            .extend(more.map(|(key, value)| (key.to_owned(), value)));
        row
    }
}

/// Tokens of the text behind the picture.
const PROMPT: usize = 300;
