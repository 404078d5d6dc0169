//! A long sequence: a step at 4,000 tokens costs what its attention costs and nothing else, memory grows by the keys
//! and values alone, and where a new block begins no bit changes.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cider::generate::{Logits, Runner, RunnerOptions, Sequence, Work};
use cider::load::Checkpoint;
use cider::{CpuBackend, Isa};
use cider_kernels::{
    AttentionArgs, AttentionRun, Backend, KV_BLOCK, KvLayer, Phase, Sight, Tensor,
};

use super::{ALLOCATIONS, prefill};

/// Checks the model of a checkpoint.
pub(super) fn check(checkpoint: &Checkpoint) {
    steps_cost_their_attention(checkpoint);
    for edge in [256, 4096] {
        a_block_edge_changes_nothing(checkpoint, edge);
    }
}

fn steps_cost_their_attention(checkpoint: &Checkpoint) {
    let mut runner = runner(checkpoint, 8192);
    for attempt in 1.. {
        let [near, far] = [100, 4000].map(|position| {
            let step = steps(&mut runner, position);
            let attention = attention(&runner, position + STEPS / 2);
            (step, step.saturating_sub(attention))
        });
        println!(
            "attempt {attempt}: steps at 100 {near:?}, at 4,000 {far:?}: all, and without attention"
        );
        // The attention of a step cannot be all of it.
        assert!(near.1 > Duration::ZERO, "{near:?}");
        if far.1 <= 2 * near.1 {
            return;
        }
        assert!(
            attempt < ATTEMPTS,
            "a step at 4,000 takes {far:?}, one at 100 {near:?}"
        );
    }
}

/// The shortest of [`STEPS`] steps from `position` on; none of them allocates.
fn steps(runner: &mut Runner, position: usize) -> Duration {
    let mut sequence = sequence(position, position + STEPS + 1);
    prefill(runner, &mut sequence);
    let mut shortest = Duration::MAX;
    let mut allocations = Vec::new();
    for token in 0..=STEPS as u32 {
        sequence.push(token * 7 % 500);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let started = Instant::now();
        step(runner, &mut sequence, 1, Logits::Last);
        shortest = shortest.min(started.elapsed());
        allocations.push(ALLOCATIONS.load(Ordering::Relaxed) - before);
    }
    // The first step of its kind may size what was not.
    assert!(
        allocations[1..].iter().all(|&count| count == 0),
        "at {position}: {allocations:?}"
    );
    runner.release(&mut sequence);
    shortest
}

/// The shortest time of the attention of one generated token, in all layers.
fn attention(runner: &Runner, position: usize) -> Duration {
    let (config, types) = (runner.config(), runner.cache_types());
    let backend = CpuBackend::new(Isa::best(), 1).unwrap();
    let blocks = position.div_ceil(KV_BLOCK) + 1;
    let cache = KvLayer::new(
        types.keys,
        types.values,
        blocks,
        config.kv_heads,
        config.head_size,
    );
    let cache = cache.unwrap();
    let columns = config.heads * config.head_size;
    let queries = Tensor::from_slice(&vec![0.5_f32; columns], 1, columns).unwrap();
    let mut out = Tensor::zeros(queries.dtype(), 1, columns).unwrap();
    let table: Vec<_> = (0..blocks as u32).collect();
    let run = AttentionRun {
        first_row: 0,
        rows: 1,
        first_position: position,
        first_block: 0,
        blocks,
        phase: Phase::Generated,
    };
    let mut shortest = Duration::MAX;
    for _ in 0..STEPS {
        let started = Instant::now();
        for _ in 0..config.layers {
            let args = AttentionArgs {
                queries: queries.view(),
                cache: &cache,
                runs: &[run],
                table: &table,
                heads: config.heads,
                scale: 1.0,
                sight: Sight::Causal,
                out: out.view_mut(),
            };
            backend.attention(args).unwrap();
        }
        shortest = shortest.min(started.elapsed());
    }
    shortest
}

/// For a process that has done nothing else: memory that was freed would be taken again unseen.
pub(super) fn memory_grows_by_keys_and_values(checkpoint: &Checkpoint) {
    let Some(_) = anonymous_memory() else {
        println!("skipped: the system does not say how much memory a process has");
        return;
    };
    let mut runner = runner(checkpoint, 20_000);
    let (short, long) = (4096, 16_384);
    let mut sequence = sequence(long, long);
    let mut sizes = Vec::new();
    for end in [short, long] {
        while sequence.computed() < end {
            let tokens = runner.rows().min(end - sequence.computed());
            step(&mut runner, &mut sequence, tokens, Logits::Last);
        }
        sizes.extend(anonymous_memory());
    }
    let grown = sizes[1] as f64 - sizes[0] as f64;
    let per_token = runner.cache_types().bytes_per_token(runner.config());
    let formula = ((long - short) * per_token) as f64;
    println!("memory grew by {grown} bytes, keys and values take {formula}");
    assert!(
        (0.9..=1.1).contains(&(grown / formula)),
        "{grown} bytes, expected {formula}"
    );
}

/// Bytes of memory of this process that belong to no file.
fn anonymous_memory() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(
        line.trim()
            .strip_suffix(" kB")?
            .trim()
            .parse::<usize>()
            .ok()?
            * 1024,
    )
}

/// Token by token over the edge, and in one step, after prompts in other chunks.
fn a_block_edge_changes_nothing(checkpoint: &Checkpoint, edge: usize) {
    let (prompt, end) = (edge - 3, edge + 3);
    let ids: Vec<_> = (0..end as u32).map(|i| i * 13 % 500).collect();
    let logits = [(512, 1), (100, end - prompt), (37, 2)].map(|(chunk, each)| {
        let mut runner = runner(checkpoint, 8192);
        let mut sequence = Sequence::with_prompt(&ids, prompt, end);
        let mut bits = Vec::new();
        while sequence.computed() < end {
            let done = sequence.computed();
            let tokens = if done < prompt {
                chunk.min(prompt - done)
            } else {
                each
            };
            let wanted = if done < prompt {
                Logits::None
            } else {
                Logits::All
            };
            step(&mut runner, &mut sequence, tokens, wanted);
            if done >= prompt {
                for token in 0..tokens {
                    let row = runner.logits(0, token).unwrap();
                    bits.push(row.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
                }
            }
        }
        assert_eq!(bits.len(), end - prompt);
        bits
    });
    assert!(
        logits[0] == logits[1] && logits[0] == logits[2],
        "at {edge}"
    );
    assert!(
        logits[0].windows(2).all(|pair| pair[0] != pair[1]),
        "rows of a text differ"
    );
}

fn runner(checkpoint: &Checkpoint, context: usize) -> Runner {
    let options = RunnerOptions {
        context: Some(context),
        logits: 8,
        ..RunnerOptions::default()
    };
    let backend = Arc::new(CpuBackend::new(Isa::best(), 1).unwrap());
    Runner::load(checkpoint, backend, &options, &mut |_| {}).unwrap()
}

fn sequence(tokens: usize, limit: usize) -> Sequence {
    let prompt: Vec<_> = (0..tokens as u32).map(|i| i * 11 % 500).collect();
    Sequence::new(&prompt, limit)
}

fn step(runner: &mut Runner, sequence: &mut Sequence, tokens: usize, logits: Logits) {
    let work = Work {
        sequence,
        tokens,
        logits,
    };
    runner.step(&mut [work]).unwrap();
}

/// Steps from a position on.
const STEPS: usize = 100;

/// Tries until a busy machine is no excuse.
const ATTEMPTS: usize = 5;
