//! Caches of every type: what they take, and that a result depends on the request alone with each.

use cider::generate::{CacheType, CacheTypes, Runner, RunnerOptions};
use cider::load::Checkpoint;
use cider::{DType, Isa, Quantization, Scheme};

use crate::support::{
    Text, alone, assert_same, cpu, distance, f_tiny, isas, options, random_ids, testdata,
};

/// Chunks, threads and instruction sets leave every bit, over three blocks of a cache; INT8 and 16 bit are close
/// to 32 bit.
#[test]
fn caches_of_every_type_leave_every_bit() {
    let checkpoint = Checkpoint::open(f_tiny()).unwrap();
    let ids = random_ids(90, 150, 500);
    let texts = [150, 70].map(|prompt| Text::generated_from(&ids, prompt));
    for dtype in [DType::F32, DType::Bf16] {
        let load = |cache, isa, threads| load(&checkpoint, (cache, dtype), isa, threads);
        let exact = texts.map(|text| alone(&mut load(CacheType::F32, Isa::best(), 1), text));
        for (cache, most) in [
            (CacheType::F32, 0.0),
            (CacheType::F16, 0.003),
            (CacheType::Bf16, 0.02),
            (CacheType::Int8, 0.05),
        ] {
            let lone = texts.map(|text| alone(&mut load(cache, Isa::best(), 1), text));
            for (lone, exact) in lone.iter().zip(&exact) {
                let apart = distance(lone, exact);
                assert!(apart <= most, "{cache} in {dtype}: {apart}");
                assert!(apart > 0.0 || cache != CacheType::Int8, "{dtype}");
            }
            for isa in isas() {
                let mut runner = load(cache, isa, 2);
                for (text, lone) in texts.iter().zip(&lone) {
                    for chunk in [7, 64, 150] {
                        let found = alone(&mut runner, text.in_chunks(chunk));
                        let what = format!("{cache} in {dtype}, {isa}, chunks of {chunk}");
                        assert_same(&found, lone, &what);
                    }
                }
            }
        }
    }
}

/// Two times layers times KV heads times elements of a head times their bytes, and four bytes for each scale.
#[test]
fn a_token_takes_what_the_types_say() {
    let checkpoint = Checkpoint::open(f_tiny()).unwrap();
    for (cache, bytes) in [
        (CacheType::Auto, 2 * 4 * 2 * 32 * 2),
        (CacheType::Bf16, 1024),
        (CacheType::F16, 1024),
        (CacheType::F32, 2048),
        (CacheType::Int8, 2 * 4 * 2 * (32 + 4)),
    ] {
        let runner = load(&checkpoint, (cache, DType::Bf16), Isa::best(), 1);
        let types = runner.cache_types();
        assert_eq!(types.bytes_per_token(runner.config()), bytes, "{cache}");
        assert_eq!(runner.cache_bytes(), 1024 * bytes, "{cache}");
    }
}

/// A bias of the keys would drown them in INT8.
#[test]
fn keys_with_a_bias_stay_in_16_bit() {
    let types = |folder: &str| {
        let checkpoint = Checkpoint::open(&testdata(folder)).unwrap();
        CacheType::Int8.of(&checkpoint.config, DType::F32)
    };
    let (keys, values) = (DType::Bf16, DType::I8);
    assert_eq!(types("qwen2-bias"), CacheTypes { keys, values });
    let keys = DType::I8;
    assert_eq!(types("qwen3-headdim"), CacheTypes { keys, values });
}

/// What cannot fit is refused with what it needs and what there is, of every type.
#[test]
fn a_cache_that_does_not_fit_is_refused() {
    let checkpoint = Checkpoint::open(f_tiny()).unwrap();
    for (cache, needed) in [
        (CacheType::Bf16, "1024000000.0 GB"),
        (CacheType::Int8, "576000000.0 GB"),
    ] {
        let options = RunnerOptions {
            cache,
            context: Some(1_000_000_000_000_000),
            ..RunnerOptions::default()
        };
        let loaded = Runner::load(&checkpoint, cpu(Isa::best(), 1), &options, &mut |_| {});
        let error = loaded.unwrap_err().to_string();
        assert!(error.contains(needed), "{error}");
        assert!(error.contains("GB of memory is available"), "{error}");
    }
}

fn load(
    checkpoint: &Checkpoint,
    (cache, dtype): (CacheType, DType),
    isa: Isa,
    threads: usize,
) -> Runner {
    let options = RunnerOptions {
        cache,
        ..options(Quantization::of(Scheme::None), dtype)
    };
    Runner::load(checkpoint, cpu(isa, threads), &options, &mut |_| {}).unwrap()
}
