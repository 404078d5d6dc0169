//! `cider debug logits`: the logits of every token, in a file.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use cider::generate::{Logits, PromptImage, Runner, RunnerOptions, Sequence, Work, place_images};
use cider::load::Checkpoint;
use cider::load::safetensors::Dtype;
use cider::{KV_BLOCK, TextSide};

use super::chat_tokens;
use super::others::{self, Other};
use super::preprocess::{self, Processed};
use super::tensors::{self, Array};
use crate::args::LogitsArgs;
use crate::failure::Usage;
use crate::model;
use crate::pictures::{Pictures, Room};
use crate::progress::Progress;
use crate::targets::Targets;

/// Runs the command.
pub(super) fn run(args: &LogitsArgs) -> Result<()> {
    args.options.check()?;
    if args.input.tokens.is_some() && !args.images.files.is_empty() {
        let what = "--image has no place among --tokens: it goes with --prompt or --chat";
        return Err(Usage(what.to_owned()).into());
    }
    let targets = Targets::check([("-o", args.output.as_path())])?;
    targets.are_not([args.model.as_path()])?;
    targets.are_not(args.images.files.iter().map(Path::new))?;
    targets.are_not(args.batch_with.as_deref())?;
    targets.are_not(args.chat_template.as_deref())?;
    let checkpoint = Checkpoint::open(&args.model)?;
    if model::asks_for_vision(&args.images, &args.options) {
        model::check_vision(&checkpoint)?;
    }
    let ids = ids(args, &checkpoint)?;
    ensure!(!ids.is_empty(), "there are no tokens");
    let processed = process(args, &checkpoint)?;
    // Each pad grows to as many tokens as its picture has; that there is one for each, is seen when they are placed.
    let total = (ids.len() + processed.tokens).saturating_sub(processed.patches.len());
    if let Some(limit) = args.ctx.filter(|&limit| limit < total) {
        let prompt = total;
        return Err(cider::Error::ContextExceeded { prompt, limit }.into());
    }
    let prompt = args.decode_from.unwrap_or(total);
    ensure!(
        prompt <= total,
        "--decode-from {prompt} is beyond the {total} tokens"
    );
    let chunk = args.chunk.min(total);
    let mut others = match &args.batch_with {
        Some(path) => others::read(path, chunk, checkpoint.config.vocab_size)?,
        None => Vec::new(),
    };
    let options = options(args, total, chunk, &others);
    let backend = model::backend(&args.device)?;
    let mut bar = Progress::bytes("loading", false);
    let mut runner = Runner::load(&checkpoint, backend, &options, &mut |progress| {
        bar.show(progress.done, progress.total);
    })?;
    let (ids, images) = place(&runner, &ids, &processed)?;
    let mut main = Sequence::with_prompt(&ids, prompt, ids.len()).with_images(images);
    let logits = compute(&mut runner, &mut main, chunk, &mut others)?;
    save(args, &runner, &main, logits, &processed)
}

/// The tokens to look at, with one pad for each picture.
fn ids(args: &LogitsArgs, checkpoint: &Checkpoint) -> Result<Vec<u32>> {
    let images = args.images.files.len();
    let input = &args.input;
    if let Some(tokens) = &input.tokens {
        return Ok(tokens.clone());
    }
    let text = TextSide::open(checkpoint, args.chat_template.as_deref())?;
    let ids = match (&input.prompt, &input.chat) {
        (_, Some(message)) => chat_tokens(&text, message, images)?,
        (Some(prompt), None) => text.tokenizer.encode_prompt(prompt)?,
        (None, None) => Vec::new(),
    };
    if let Some(vision) = &checkpoint.config.vision {
        text.check_places(&ids, vision, images)?;
    }
    Ok(ids)
}

/// The pictures, resized and cut.
fn process(args: &LogitsArgs, checkpoint: &Checkpoint) -> Result<Processed> {
    if args.images.files.is_empty() {
        return Ok(Processed::default());
    }
    let room = Room {
        processor: preprocess::processor(&checkpoint.path, &args.images.bounds)?,
        context: args.ctx,
    };
    let pictures = Pictures::read(&args.images.files, &room)?;
    Ok(Processed::new(&room.processor, pictures.images()))
}

/// Runs the vision tower and puts the pictures at their places.
fn place(
    runner: &Runner,
    ids: &[u32],
    processed: &Processed,
) -> Result<(Vec<u32>, Vec<PromptImage>)> {
    let Some(vision) = &runner.config().vision else {
        return Ok((ids.to_vec(), Vec::new()));
    };
    let encode = |patches| runner.encode(patches).map(Arc::new);
    let features: Vec<_> = processed
        .patches
        .iter()
        .map(encode)
        .collect::<Result<_, _>>()?;
    // Ids that were given as such have all their pads already, and no picture for them.
    if features.is_empty() && !ids.contains(&vision.image_token) {
        return Ok((ids.to_vec(), Vec::new()));
    }
    Ok(place_images(ids, vision.image_token, &features)?)
}

/// Room for the sequence and for those that run beside it, and no more; no two share a block of the cache.
fn options(args: &LogitsArgs, tokens: usize, chunk: usize, others: &[Other]) -> RunnerOptions {
    let lengths = || others.iter().map(Other::len).chain([tokens]);
    let whole_blocks = |length: usize| length.next_multiple_of(KV_BLOCK);
    RunnerOptions {
        context: Some(args.ctx.unwrap_or(lengths().max().unwrap_or(tokens))),
        cache_tokens: Some(lengths().map(whole_blocks).sum()),
        rows: chunk + others.iter().map(Other::rows).sum::<usize>(),
        logits: chunk + others.len(),
        ..model::runner_options(&args.options)
    }
}

/// The logits of all tokens of `main`, as the bytes of f32 numbers. Every step has rows of all sequences: every
/// second of the others has read its prompt before, so prompt and generated rows meet.
fn compute(
    runner: &mut Runner,
    main: &mut Sequence,
    chunk: usize,
    others: &mut [Other],
) -> Result<Vec<u8>> {
    let (total, prompt) = (main.tokens().len(), main.prompt().len());
    let mut logits = reserve(total, runner.config().vocab_size)?;
    for other in others.iter_mut().skip(1).step_by(2) {
        other.run_prompt(runner)?;
    }
    let mut bar = Progress::tokens("computing", false);
    while main.computed() < total {
        let tokens = match prompt.saturating_sub(main.computed()) {
            0 => 1,
            left => left.min(chunk),
        };
        for other in others.iter_mut() {
            other.restart_at_end(runner);
        }
        let place = step(runner, main, tokens, others)?;
        for token in 0..tokens {
            let row = runner.logits(place, token)?;
            if !row.iter().all(|logit| logit.is_finite()) {
                let position = logits.len() / (4 * row.len());
                return Err(cider::Error::NonFinite { position }.into());
            }
            logits.extend(row.iter().flat_map(|logit| logit.to_le_bytes()));
        }
        bar.show(main.computed(), total);
    }
    Ok(logits)
}

/// One step with `main` in the middle of the others; gives its place among them.
fn step(
    runner: &mut Runner,
    main: &mut Sequence,
    tokens: usize,
    others: &mut [Other],
) -> Result<usize> {
    let place = others.len() / 2;
    let (before, behind) = others.split_at_mut(place);
    let mut work: Vec<Work<'_>> = before.iter_mut().map(Other::work).collect();
    work.push(Work {
        sequence: main,
        tokens,
        logits: Logits::All,
    });
    work.extend(behind.iter_mut().map(Other::work));
    runner.step(&mut work)?;
    Ok(place)
}

fn reserve(tokens: usize, vocabulary: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let size = tokens
        .checked_mul(vocabulary)
        .and_then(|count| count.checked_mul(4));
    let reserved = size.is_some_and(|size| bytes.try_reserve_exact(size).is_ok());
    ensure!(
        reserved,
        "there is no memory for the logits of {tokens} tokens over a vocabulary of {vocabulary}"
    );
    Ok(bytes)
}

fn save(
    args: &LogitsArgs,
    runner: &Runner,
    main: &Sequence,
    logits: Vec<u8>,
    processed: &Processed,
) -> Result<()> {
    let tokens = main.tokens().len();
    let ids = main.tokens().iter().map(|&id| i64::from(id));
    let position = |axis: usize| (0..tokens).map(move |place| main.position(place)[axis].into());
    let positions = if runner.config().vision.is_some() {
        let axes = (0..3).flat_map(position);
        Array::integers("positions", vec![3, tokens], axes)
    } else {
        Array::integers("positions", vec![tokens], position(0))
    };
    let mut arrays = vec![
        Array::integers("ids", vec![tokens], ids),
        positions,
        Array {
            name: "logits",
            dtype: Dtype::F32,
            shape: vec![tokens, runner.config().vocab_size],
            bytes: logits,
        },
    ];
    if !processed.patches.is_empty() {
        arrays.extend([processed.pixel_values(), processed.grids()]);
    }
    tensors::save(&args.output, &arrays)
}
