//! A step allocates nothing, once there was one like it: neither the forward pass nor sampling, in prompts and
//! in generation, in every scheme, on one thread and on several.
//!
//! A program of its own, for the counter sees what every thread of the process does, those of a test harness
//! too. What is measured in seconds is here as well: no other test runs beside it.
#![expect(clippy::print_stdout, reason = "a test program reports on stdout")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod long;
#[path = "../../../testdata/recipe.rs"]
mod recipe;
mod rows;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

use cider::generate::{
    CacheType, History, Logits, Runner, RunnerOptions, Sampler, SamplingParams, Sequence, Work,
};
use cider::load::Checkpoint;
use cider::{CpuBackend, DType, Isa, Quantization, Scheme};

/// The system's allocator, counting.
struct Counting;

/// Allocations and reallocations since the program began.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_some_and(|argument| argument == MEMORY) {
        let folder = arguments.next().unwrap();
        long::memory_grows_by_keys_and_values(&Checkpoint::open(Path::new(&folder)).unwrap());
        return;
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(Box::new(std::hint::black_box(1)));
    assert!(
        ALLOCATIONS.load(Ordering::Relaxed) > before,
        "the counter counts"
    );

    let folder = env::temp_dir().join(format!("cider-allocations-{}", process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/f-tiny");
    recipe::build_model(&source, &folder).unwrap();
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let best = Isa::best();
    let backends = [
        (Isa::Scalar, DType::Bf16, CacheType::Auto, 1),
        (best, DType::F32, CacheType::Auto, 1),
        (best, DType::Bf16, CacheType::Int8, 2),
        (best, DType::Bf16, CacheType::Auto, 3),
    ];
    let mut checked = 0;
    for scheme in Scheme::ALL {
        for group_size in [0, 64] {
            let quantization = Quantization {
                group_size: Some(group_size),
                ..Quantization::of(scheme)
            };
            for (isa, dtype, cache, threads) in backends {
                let backend = Arc::new(CpuBackend::new(isa, threads).unwrap());
                let options = RunnerOptions {
                    quantization,
                    vision: Quantization::of(Scheme::None),
                    dtype,
                    cache,
                    context: Some(512),
                    cache_tokens: Some(1536),
                    rows: 64,
                    logits: 4,
                };
                let runner = Runner::load(&checkpoint, backend, &options, &mut |_| {}).unwrap();
                let what = format!("{isa} {scheme} {group_size} {dtype} {cache} {threads}");
                check(runner, &what);
                checked += 1;
            }
        }
    }
    many_sequences(&checkpoint);
    long::check(&checkpoint);
    rows::check();
    let mut fresh = process::Command::new(env::current_exe().unwrap());
    assert!(fresh.arg(MEMORY).arg(&folder).status().unwrap().success());
    fs::remove_dir_all(&folder).unwrap();
    println!("{checked} runners allocate nothing once they are warm");
}

/// The argument of a process of its own that looks at its memory.
const MEMORY: &str = "--memory-of";

/// A first sequence warms up, with one step of each kind. Then another is computed beside it, and goes on.
fn check(mut runner: Runner, what: &str) {
    let prompt: Vec<_> = (0..150).map(|i| i * 7 % 500).collect();
    let [mut first, mut second] = [0; 2].map(|_| Sequence::new(&prompt, 400));
    let [mut one, mut two] = [1, 2].map(sampler);
    prefill(&mut runner, &mut first);
    sample(&mut runner, 0, &mut first, &mut one);
    generate(&mut runner, &mut [(&mut first, &mut one)], 1);

    let before = ALLOCATIONS.load(Ordering::Relaxed);
    prefill(&mut runner, &mut second);
    sample(&mut runner, 0, &mut second, &mut two);
    let after_prompt = ALLOCATIONS.load(Ordering::Relaxed);
    generate(&mut runner, &mut [(&mut first, &mut one)], 70);
    let after_generation = ALLOCATIONS.load(Ordering::Relaxed);
    generate(
        &mut runner,
        &mut [(&mut first, &mut one), (&mut second, &mut two)],
        20,
    );
    let after_both = ALLOCATIONS.load(Ordering::Relaxed);
    runner.release(&mut second);
    prefill(&mut runner, &mut second);
    let end = ALLOCATIONS.load(Ordering::Relaxed);
    let counts = [
        after_prompt - before,
        after_generation - after_prompt,
        after_both - after_generation,
        end - after_both,
    ];
    assert_eq!(counts, [0; 4], "{what}: prompt, one, two, again");
}

/// A step of more sequences than any before it.
fn many_sequences(checkpoint: &Checkpoint) {
    let options = RunnerOptions {
        context: Some(64),
        cache_tokens: Some(200 * 64),
        rows: 200,
        ..RunnerOptions::default()
    };
    let backend = Arc::new(CpuBackend::new(Isa::best(), 1).unwrap());
    let mut runner = Runner::load(checkpoint, backend, &options, &mut |_| {}).unwrap();
    prefill(&mut runner, &mut Sequence::new(&[7; 64], 64));
    let mut sequences: Vec<_> = (0..199).map(|id| Sequence::new(&[id], 64)).collect();
    let mut work: Vec<_> = sequences
        .iter_mut()
        .map(|sequence| Work {
            sequence,
            tokens: 1,
            logits: Logits::None,
        })
        .collect();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    runner.step(&mut work).unwrap();
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
}

/// A sampler with every filter and penalty on.
fn sampler(seed: u64) -> Sampler {
    let params = SamplingParams {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.02,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        seed: Some(seed),
    };
    Sampler::new(&params, 512, 500).unwrap()
}

fn prefill(runner: &mut Runner, sequence: &mut Sequence) {
    while sequence.computed() < sequence.tokens().len() {
        let tokens = (sequence.tokens().len() - sequence.computed()).min(runner.rows());
        let logits = Logits::Last;
        runner
            .step(&mut [Work {
                sequence,
                tokens,
                logits,
            }])
            .unwrap();
    }
}

fn sample(runner: &mut Runner, work: usize, sequence: &mut Sequence, sampler: &mut Sampler) {
    let history = History {
        prompt: sequence.prompt(),
        generated: sequence.generated(),
    };
    let id = sampler
        .sample(runner.logits(work, 0).unwrap(), history)
        .unwrap();
    sequence.push(id);
}

/// Steps of one token of each sequence.
fn generate<const N: usize>(
    runner: &mut Runner,
    texts: &mut [(&mut Sequence, &mut Sampler); N],
    steps: usize,
) {
    for _ in 0..steps {
        let mut work = texts.each_mut().map(|(sequence, _)| Work {
            sequence,
            tokens: 1,
            logits: Logits::Last,
        });
        runner.step(&mut work).unwrap();
        for (number, (sequence, sampler)) in texts.iter_mut().enumerate() {
            sample(runner, number, sequence, sampler);
        }
    }
}
