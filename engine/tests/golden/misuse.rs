//! What callers of the runner may do wrong: refused, and nothing is lost.

use cider::generate::{Logits, Sequence, Work};
use cider::load::Checkpoint;
use cider::{DType, Isa, Scheme};
use cider_kernels::{Backend, CpuBackend, Format, LinearArgs, LinearInput, RowSource, Tensor};

use crate::support::{best, f_tiny, load, plan};

/// Logits are those that were asked for in the last step, and of nobody else.
#[test]
fn logits_that_were_not_asked_for_are_refused() {
    let checkpoint = Checkpoint::open(f_tiny()).unwrap();
    let mut runner = load(&checkpoint, best(), plan(Scheme::None, 0), DType::F32);
    assert!(runner.logits(0, 0).is_err());
    let (mut one, mut two) = (Sequence::new(&[5, 6, 7], 16), Sequence::new(&[8, 9], 16));
    let asked = |sequence, tokens, logits| Work {
        sequence,
        tokens,
        logits,
    };
    let mut works = [
        asked(&mut one, 3, Logits::Last),
        asked(&mut two, 2, Logits::All),
    ];
    runner.step(&mut works).unwrap();
    assert!(runner.logits(0, 0).is_ok() && runner.logits(1, 1).is_ok());
    for (work, token) in [(0, 1), (1, 2), (2, 0), (99, 0)] {
        let error = runner.logits(work, token).unwrap_err().to_string();
        assert!(
            error.contains("were not asked for"),
            "{work} {token}: {error}"
        );
    }
    let (mut three, mut four) = (Sequence::new(&[5], 16), Sequence::new(&[8, 9], 16));
    let mut beyond = [
        asked(&mut three, usize::MAX, Logits::None),
        asked(&mut four, 2, Logits::None),
    ];
    assert!(runner.step(&mut beyond).is_err());
    assert!(
        runner.logits(0, 0).is_err(),
        "a refused step leaves nothing to read"
    );
}

/// A step that does not fit the cache takes no blocks from it.
#[test]
fn a_step_that_does_not_fit_takes_nothing() {
    let checkpoint = Checkpoint::open(f_tiny()).unwrap();
    let mut runner = load(&checkpoint, best(), plan(Scheme::None, 0), DType::F32);
    let prompt = |tokens: usize| vec![5; tokens];
    let mut whole: Vec<Sequence> = (0..16).map(|_| Sequence::new(&prompt(64), 64)).collect();
    let rest = whole.split_off(15);
    for sequence in &mut whole {
        runner
            .step(&mut [Work {
                sequence,
                tokens: 64,
                logits: Logits::None,
            }])
            .unwrap();
    }
    let (mut one, mut two) = (
        Sequence::new(&prompt(64), 64),
        Sequence::new(&prompt(64), 64),
    );
    let mut works = [&mut one, &mut two].map(|sequence| Work {
        sequence,
        tokens: 64,
        logits: Logits::None,
    });
    let error = runner.step(&mut works).unwrap_err().to_string();
    assert!(
        error.contains("128") && error.contains("64 free"),
        "{error}"
    );
    for mut sequence in rest {
        runner
            .step(&mut [Work {
                sequence: &mut sequence,
                tokens: 64,
                logits: Logits::None,
            }])
            .unwrap();
    }
}

/// Quantised rows are bytes whose meaning a backend gives them.
#[test]
fn rows_of_another_backend_are_refused_or_written_anew() {
    if Isa::Avx512Vnni.why_not().is_some() {
        println!("skipped: this machine has one layout of quantised rows");
        return;
    }
    let plain = CpuBackend::new(Isa::Scalar, 1).unwrap();
    let offset = CpuBackend::new(Isa::Avx512Vnni, 1).unwrap();
    let x = Tensor::from_slice(&[1.0_f32, -0.5, 0.25, 1.0], 1, 4).unwrap();
    let mut rows = offset.quantized_rows(1, 4).unwrap();
    offset.quantize(x.view(), &mut rows).unwrap();
    let mut weights = plain.weights(Format::W8 { group: 0 }, 1, 4).unwrap();
    let read = |_: usize, out: &mut [f32]| out.fill(1.0);
    let source = RowSource::Floats {
        read: &read,
        clip_percentile: None,
    };
    plain.fill_weights(&mut weights, 0, 1, source).unwrap();
    let mut out = Tensor::zeros(DType::F32, 1, 1).unwrap();
    let args = LinearArgs {
        input: LinearInput::Int8(&rows),
        weights: &weights,
        out: out.view_mut(),
    };
    assert!(plain.linear(args).is_err());
    plain.quantize(x.view(), &mut rows).unwrap();
    assert_eq!(rows.row(0), [127, -64, 32, 127]);
}
