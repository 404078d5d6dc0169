//! `convert_model` against loading with the scheme.

use std::sync::Arc;

use cider::generate::{Logits, Runner, RunnerOptions, Sequence, Work};
use cider::load::Checkpoint;
use cider::{
    ConvertOptions, CpuBackend, DType, Engine, EngineOptions, Head, Isa, Quantization, Request,
    Scheme, convert_model,
};

use crate::arrays::testdata;
use crate::{Folder, on_every_isa, recipe};

#[test]
fn a_converted_model_is_one_that_was_loaded_so() {
    let folder = testdata().join("llama-mha-bias");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    on_every_isa(|isa| {
        let backend = Arc::new(CpuBackend::new(isa, 2).unwrap());
        let load = |quantization| {
            let options = RunnerOptions {
                quantization,
                dtype: DType::F32,
                ..RunnerOptions::default()
            };
            Runner::load(&checkpoint, backend.clone(), &options, &mut |_| {}).unwrap()
        };
        for (scheme, group_size, clip_percentile) in [
            (Scheme::W8A8, None, None),
            (Scheme::W8A16, Some(64), Some(99.0)),
            (Scheme::W4A8, Some(32), None),
        ] {
            let plan = Quantization {
                scheme,
                group_size,
                clip_percentile,
                head: Head::None,
            };
            let mut converted = load(Quantization {
                head: Head::None,
                ..Quantization::of(Scheme::None)
            });
            let before = logits(&mut converted);
            let options = ConvertOptions {
                scheme,
                group_size,
                clip_percentile,
            };
            let mut told = Vec::new();
            let report = convert_model(&mut converted, &options, &mut |done, total| {
                told.push((done, total));
            });
            let report = report.unwrap();
            // Two layers of four fused linears.
            assert_eq!(report.n_converted, 8);
            assert!(report.elapsed_s > 0.0);
            assert_eq!(told, (1..=8).map(|done| (done, 8)).collect::<Vec<_>>());
            let after = logits(&mut converted);
            assert_ne!(after, before, "{isa}, {scheme}");
            let mut loaded = load(plan);
            assert_eq!(after, logits(&mut loaded), "{isa}, {scheme}");
            assert_eq!(converted.weight_bytes(), loaded.weight_bytes());
        }
    });
}

#[test]
fn a_format_that_is_not_served_changes_nothing() {
    let checkpoint = Checkpoint::open(&testdata().join("llama3-tied")).unwrap();
    let backend = Arc::new(CpuBackend::new(Isa::best(), 1).unwrap());
    let options = RunnerOptions::default();
    let mut runner = Runner::load(&checkpoint, backend, &options, &mut |_| {}).unwrap();
    let before = logits(&mut runner);
    let refusals = [
        (Scheme::None, None, None, "quantised"),
        (Scheme::W8A8, Some(48), None, "48"),
        (Scheme::W8A8, None, Some(-1.0), "-1"),
    ];
    for (scheme, group_size, clip_percentile, word) in refusals {
        let options = ConvertOptions {
            scheme,
            group_size,
            clip_percentile,
        };
        let error = convert_model(&mut runner, &options, &mut |_, _| {}).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(logits(&mut runner), before);
}

/// The keys and values of a prompt that both requests begin with were computed with the old weights.
#[test]
fn an_engine_forgets_what_it_computed_before() {
    let folder = Folder::new("tiny");
    recipe::build_model(&testdata().join("f-tiny"), &folder.0).unwrap();
    let backend = Arc::new(CpuBackend::new(Isa::best(), 2).unwrap());
    let mut options = EngineOptions::default();
    options.runner.quantization = Quantization::of(Scheme::None);
    options.runner.quantization.head = Head::Int8;
    let open = |options: &EngineOptions| {
        Engine::open(&folder.0, backend.clone(), options, &mut |_| {}).unwrap()
    };
    let mut converted = open(&options);
    let prompt = converted
        .raw_prompt("a prompt of more than a few tokens")
        .unwrap();
    let mut request = Request::new(prompt);
    request.sampling.temperature = 0.0;
    request.max_tokens = Some(12);
    let answer = |engine: &mut Engine| engine.generate(&request, &mut |_| {}).unwrap();
    let before = answer(&mut converted);
    assert!(answer(&mut converted).cached_tokens > 0);
    let to_w4a8 = ConvertOptions {
        scheme: Scheme::W4A8,
        ..ConvertOptions::default()
    };
    let report = convert_model(&mut converted, &to_w4a8, &mut |_, _| {}).unwrap();
    assert_eq!(report.n_converted, 16);
    let after = answer(&mut converted);
    assert_eq!(after.cached_tokens, 0);
    assert_ne!(after.tokens, before.tokens);
    options.runner.quantization.scheme = Scheme::W4A8;
    assert_eq!(after.tokens, answer(&mut open(&options)).tokens);
}

/// The logits of a prompt's last token, then of a generated one.
fn logits(runner: &mut Runner) -> Vec<f32> {
    let mut sequence = Sequence::with_prompt(&[5, 17, 200, 31, 8, 44], 5, 6);
    let mut all = Vec::new();
    for tokens in [5, 1] {
        let work = Work {
            sequence: &mut sequence,
            tokens,
            logits: Logits::Last,
        };
        runner.step(&mut [work]).unwrap();
        all.extend_from_slice(runner.logits(0, 0).unwrap());
    }
    runner.release(&mut sequence);
    all
}
