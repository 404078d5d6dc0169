//! `cider debug logits`: the logits of every token, in a file.

use std::path::Path;

use anyhow::{Result, ensure};
use cider::generate::{Logits, Runner, RunnerOptions, Sequence, Work};
use cider::load::Checkpoint;
use cider::load::safetensors::{Dtype, Tensor, write};
use cider::{KV_BLOCK, TextSide};

use super::chat_tokens;
use super::others::{self, Other};
use crate::args::LogitsArgs;
use crate::model;
use crate::progress::Progress;

/// Runs the command.
pub(super) fn run(args: &LogitsArgs) -> Result<()> {
    args.options.check()?;
    let checkpoint = Checkpoint::open(&args.model)?;
    let ids = ids(args, &checkpoint)?;
    ensure!(!ids.is_empty(), "there are no tokens");
    let prompt = args.decode_from.unwrap_or(ids.len());
    ensure!(
        prompt <= ids.len(),
        "--decode-from {prompt} is beyond the {} tokens",
        ids.len()
    );
    let chunk = args.chunk.min(ids.len());
    let mut others = match &args.batch_with {
        Some(path) => others::read(path, chunk)?,
        None => Vec::new(),
    };
    let options = options(args, ids.len(), chunk, &others);
    let backend = model::backend(&args.device)?;
    let mut bar = Progress::bytes("loading", false);
    let mut runner = Runner::load(&checkpoint, backend, &options, &mut |progress| {
        bar.show(progress.done, progress.total);
    })?;
    let mut main = Sequence::with_prompt(&ids, prompt, ids.len());
    let logits = compute(&mut runner, &mut main, chunk, &mut others)?;
    save(&args.output, &ids, runner.config().vocab_size, &logits)
}

/// The tokens to look at.
fn ids(args: &LogitsArgs, checkpoint: &Checkpoint) -> Result<Vec<u32>> {
    let input = &args.input;
    if let Some(tokens) = &input.tokens {
        return Ok(tokens.clone());
    }
    let text = TextSide::open(checkpoint, args.chat_template.as_deref())?;
    match (&input.prompt, &input.chat) {
        (_, Some(message)) => chat_tokens(&text, message),
        (Some(prompt), None) => Ok(text.tokenizer.encode_prompt(prompt)?),
        (None, None) => Ok(Vec::new()),
    }
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

fn save(path: &Path, ids: &[u32], vocabulary: usize, logits: &[u8]) -> Result<()> {
    let tokens = ids.len();
    let as_bytes = |numbers: &mut dyn Iterator<Item = i64>| -> Vec<u8> {
        numbers.flat_map(i64::to_le_bytes).collect()
    };
    let positions = as_bytes(&mut (0..tokens as i64));
    let ids = as_bytes(&mut ids.iter().map(|&id| i64::from(id)));
    let tensors = [
        Tensor {
            name: "ids",
            dtype: Dtype::I64,
            shape: &[tokens],
            bytes: &ids,
        },
        Tensor {
            name: "positions",
            dtype: Dtype::I64,
            shape: &[tokens],
            bytes: &positions,
        },
        Tensor {
            name: "logits",
            dtype: Dtype::F32,
            shape: &[tokens, vocabulary],
            bytes: logits,
        },
    ];
    Ok(write(path, &tensors, &[])?)
}
