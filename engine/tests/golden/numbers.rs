//! Numbers at the edges: what overflows, what vanishes, what is no number, and what is refused.

use cider::generate::{History, Logits, Runner, Sampler, SamplingParams, Sequence, Work};
use cider::load::Checkpoint;
use cider::{DType, Error, Quantization, Result, Scheme};
use serde_json::json;

use crate::independence::{POISON, poison};
use crate::recipe::Tensor;
use crate::support::{
    Folder, Running, Text, alone, assert_refused, assert_same, best, cpu, distance, f_tiny, isas,
    load, options, plan, random_ids, step,
};

/// The column of the largest of each row of 512, and whether it leads by a twentieth of the largest of all.
fn leaders(logits: &[f32]) -> Vec<(usize, bool)> {
    let largest = logits
        .iter()
        .fold(0_f32, |most, logit| most.max(logit.abs()));
    let of = |row: &[f32]| {
        let mut order: Vec<_> = (0..row.len()).collect();
        order.sort_unstable_by(|&a, &b| row[b].total_cmp(&row[a]));
        (order[0], row[order[0]] - row[order[1]] > largest / 20.0)
    };
    logits.chunks_exact(512).map(of).collect()
}

fn scale(tensors: &mut [Tensor], name: &str, factor: f32) {
    let mut found = 0;
    for tensor in tensors
        .iter_mut()
        .filter(|tensor| tensor.name.contains(name))
    {
        tensor.values.iter_mut().for_each(|value| *value *= factor);
        found += 1;
    }
    assert!(found > 0, "{name}");
}

/// A residual stream and products far beyond 65,504 stay finite, and wherever one token leads
/// clearly everybody means that one.
#[test]
fn large_activations_stay_finite() {
    let folder = Folder::f_tiny(|tensors| {
        // The largest embedding is above 1000 then, and products of the MLP pass 100,000.
        scale(tensors, "embed_tokens", 3000.0);
        scale(tensors, "gate_proj", 50.0);
        scale(tensors, "up_proj", 50.0);
    });
    let ids = random_ids(103, 40, 500);
    for isa in isas() {
        let run = |scheme, dtype| {
            let mut runner = load(&folder.open(), cpu(isa, 2), Quantization::of(scheme), dtype);
            let logits = alone(&mut runner, Text::prompt(&ids));
            assert!(
                logits.iter().all(|logit| logit.is_finite()),
                "{isa} {scheme} {dtype}"
            );
            leaders(&logits)
        };
        let expected = run(Scheme::None, DType::F32);
        let clear = expected.iter().filter(|(_, leads)| *leads);
        assert!(clear.count() > 10);
        for (scheme, dtype) in [
            (Scheme::None, DType::Bf16),
            (Scheme::W8A8, DType::F32),
            (Scheme::W8A8, DType::Bf16),
        ] {
            for (place, (found, expected)) in run(scheme, dtype).iter().zip(&expected).enumerate() {
                let same = found.0 == expected.0 || !expected.1;
                assert!(
                    same,
                    "{isa} {scheme} {dtype} {place}: {found:?}, {expected:?}"
                );
            }
        }
    }
}

/// A sequence that overflows has logits that are no numbers, and is told so; one in the same
/// steps has the bits it has alone.
#[test]
fn what_overflows_harms_nobody_else() {
    let folder = Folder::f_tiny(poison);
    let good: Vec<_> = random_ids(12, 60, 499).iter().map(|id| id + 1).collect();
    let mut bad = random_ids(13, 60, 500);
    bad[7..]
        .iter_mut()
        .for_each(|id| *id += u32::from(*id == POISON));
    bad[6] = POISON;
    bad[..6].fill(9);
    for (scheme, dtype) in [
        (Scheme::None, DType::F32),
        (Scheme::W8A8, DType::Bf16),
        (Scheme::W4A8, DType::F32),
        (Scheme::W8A16, DType::Bf16),
    ] {
        for isa in isas() {
            let mut runner = load(&folder.open(), cpu(isa, 2), Quantization::of(scheme), dtype);
            let texts = [
                Text::generated_from(&good, 40).in_chunks(7),
                Text::generated_from(&bad, 30).in_chunks(5),
            ];
            let lone = texts.map(|text| alone(&mut runner, text));
            let [mut one, mut two] = texts.map(Running::new);
            while two.left() > 0 {
                step(&mut runner, &mut [&mut two, &mut one]).unwrap();
            }
            let what = format!("{isa} {scheme} {dtype}");
            assert_same(&one.logits, &lone[0][..one.logits.len()], &what);
            let (before, after) = two.logits.split_at(6 * 512);
            assert!(
                one.logits
                    .iter()
                    .chain(before)
                    .all(|logit| logit.is_finite()),
                "{what}"
            );
            assert!(after.iter().all(|logit| !logit.is_finite()), "{what}");
            one.release(&mut runner);
            two.release(&mut runner);
            let mut sampler = Sampler::new(&SamplingParams::default(), 512, 500).unwrap();
            let error = sampler.sample(
                &mut lone[1][30 * 512..31 * 512].to_vec(),
                History {
                    prompt: &bad[..31],
                    generated: &[],
                },
            );
            assert!(
                matches!(error, Err(Error::NonFinite { position: 30 })),
                "{error:?}"
            );
        }
    }
}

/// A weight that is no number is refused by the name of its tensor, in whichever kind of tensor and scheme.
#[test]
fn weights_that_are_no_numbers_are_refused() {
    for name in [
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.v_proj.weight",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.3.input_layernorm.weight",
        "model.layers.0.self_attn.k_norm.weight",
        "model.norm.weight",
    ] {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let folder = Folder::f_tiny(|tensors| {
                let tensor = tensors
                    .iter_mut()
                    .find(|tensor| tensor.name == name)
                    .unwrap();
                let last = tensor.values.len() - 1;
                tensor.values[last] = value;
            });
            for scheme in [Scheme::None, Scheme::W8A8, Scheme::W4A16] {
                let options = options(Quantization::of(scheme), DType::F32);
                let loaded = Runner::load(&folder.open(), best(), &options, &mut |_| {});
                assert_refused(loaded, &[name]);
            }
        }
    }
}

/// A llama of one layer, 16 wide inside and `inner` wide in its MLP.
fn wide(inner: usize) -> Folder {
    let folder = Folder::new();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16,
        "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 32,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let linear = |name: &str, rows, columns| (format!("layers.0.{name}"), vec![rows, columns]);
    let tensors = [
        ("embed_tokens".to_owned(), vec![32, 16]),
        ("norm".to_owned(), vec![16]),
        ("layers.0.input_layernorm".to_owned(), vec![16]),
        ("layers.0.post_attention_layernorm".to_owned(), vec![16]),
        linear("self_attn.q_proj", 16, 16),
        linear("self_attn.k_proj", 16, 16),
        linear("self_attn.v_proj", 16, 16),
        linear("self_attn.o_proj", 16, 16),
        linear("mlp.gate_proj", inner, 16),
        linear("mlp.up_proj", inner, 16),
        linear("mlp.down_proj", 16, inner),
    ];
    let tensors = tensors.map(|(name, shape)| {
        let numbers = random_ids(shape.len() as u64, shape.iter().product(), 255);
        let values = numbers
            .iter()
            .map(|&n| (n as f32 - 127.0) / 256.0)
            .collect();
        Tensor {
            name: format!("model.{name}.weight"),
            shape,
            values,
        }
    });
    let path = folder.path().join("model.safetensors");
    crate::recipe::write_safetensors(&path, &tensors, crate::recipe::Stored::F32).unwrap();
    folder
}

/// Sums that could leave 32 bits are refused while loading, by tensor and numbers; the
/// longest that cannot, groups and floats run.
#[test]
fn sums_that_could_overflow_are_refused() {
    let load = |folder: &Folder, scheme, group| -> Result<Runner> {
        let options = options(plan(scheme, group), DType::F32);
        Runner::load(&folder.open(), best(), &options, &mut |_| {})
    };
    let folder = wide(133_145);
    for scheme in [Scheme::W8A8, Scheme::W8A16] {
        assert_refused(
            load(&folder, scheme, 0),
            &["model.layers.0.mlp.down_proj", "133145", "133144"],
        );
    }
    let ids = [1, 2, 3];
    let logits = |folder: &Folder, scheme, group| {
        let mut runner = load(folder, scheme, group).unwrap();
        alone(&mut runner, Text::prompt(&ids))
    };
    let dense = logits(&folder, Scheme::None, 0);
    for (scheme, group) in [(Scheme::W8A16, 64), (Scheme::W8A8, 64), (Scheme::W8A8, 256)] {
        let apart = distance(&logits(&folder, scheme, group), &dense);
        assert!(apart < 0.1, "{scheme} {group}: {apart:e}");
    }
    let folder = wide(133_144);
    let dense = logits(&folder, Scheme::None, 0);
    let apart = distance(&logits(&folder, Scheme::W8A8, 0), &dense);
    assert!(apart < 0.1, "{apart:e}");
}

/// A scheme's formats are checked before anything is read; the error says which layer.
#[test]
fn groups_that_are_not_served_are_refused() {
    let checkpoint = Checkpoint::open(f_tiny()).unwrap();
    let options = options(plan(Scheme::W8A8, 48), DType::F32);
    let loaded = Runner::load(&checkpoint, best(), &options, &mut |_| {});
    assert_refused(loaded, &["layers.0", "48", "256"]);
}

/// Activations of a millionth keep their precision, for scales are f32.
#[test]
fn tiny_activations_keep_their_precision() {
    let folder = Folder::f_tiny(|tensors| {
        // What the norm before attention takes away, the values' projection gives back.
        scale(tensors, "input_layernorm", 1e-6);
        scale(tensors, "v_proj", 1e6);
    });
    let ids = random_ids(95, 40, 500);
    for isa in isas() {
        let run = |path: &std::path::Path, scheme| {
            let checkpoint = Checkpoint::open(path).unwrap();
            let mut runner = load(
                &checkpoint,
                cpu(isa, 1),
                Quantization::of(scheme),
                DType::F32,
            );
            alone(&mut runner, Text::prompt(&ids))
        };
        let dense = run(folder.path(), Scheme::None);
        assert!(
            distance(&run(folder.path(), Scheme::W8A8), &dense) < 0.05,
            "{isa}"
        );
        assert!(
            distance(&run(f_tiny(), Scheme::W8A8), &dense) > 0.001,
            "the scale acts"
        );
    }
}

/// Steps that cannot be done are refused with the numbers, and the sequences stay as they were.
#[test]
fn steps_that_cannot_be_done_change_nothing() {
    let checkpoint = Checkpoint::open(f_tiny()).unwrap();
    let mut options = options(Quantization::of(Scheme::W8A8), DType::F32);
    (options.cache_tokens, options.rows, options.logits) = (Some(256), 100, 2);
    let mut runner = Runner::load(&checkpoint, best(), &options, &mut |_| {}).unwrap();
    let ids = random_ids(1, 300, 500);
    let mut sequence = Sequence::new(&ids, 300);
    let mut other = Sequence::new(&ids[..200], 300);
    let mut run = |sequence: &mut Sequence, tokens, logits| {
        runner.step(&mut [Work {
            sequence,
            tokens,
            logits,
        }])
    };
    assert_refused(run(&mut sequence, 101, Logits::None), &["101", "100"]);
    assert_refused(run(&mut sequence, 3, Logits::All), &["3 logits", "2"]);
    for tokens in [100, 50] {
        run(&mut sequence, tokens, Logits::None).unwrap();
    }
    assert_refused(run(&mut other, 100, Logits::None), &["64"]);
    assert_eq!((sequence.computed(), other.computed()), (150, 0));
    run(&mut other, 60, Logits::Last).unwrap();
    run(&mut sequence, 42, Logits::Last).unwrap();
    assert_refused(run(&mut sequence, 65, Logits::Last), &["257", "256"]);
    assert_refused(run(&mut sequence, 1, Logits::Last), &["full"]);
    assert_refused(
        run(&mut Sequence::new(&[512], 1), 1, Logits::Last),
        &["512"],
    );
    assert_refused(
        run(&mut Sequence::new(&[5], 1), 2, Logits::Last),
        &["2 of 1"],
    );
    let expected = {
        let mut whole = load(&checkpoint, best(), options.quantization, DType::F32);
        alone(&mut whole, Text::prompt(&ids[..192]))
    };
    runner.release(&mut other);
    runner
        .step(&mut [Work {
            sequence: &mut sequence,
            tokens: 1,
            logits: Logits::Last,
        }])
        .unwrap();
    assert_eq!(sequence.computed(), 193);
    runner.release(&mut sequence);
    assert_same(
        &alone_last(&mut runner, &ids[..192]),
        &expected[191 * 512..],
        "after refusals",
    );
}

/// The last logits of a prompt in steps of 100.
fn alone_last(runner: &mut Runner, ids: &[u32]) -> Vec<f32> {
    let mut sequence = Sequence::new(ids, ids.len());
    while sequence.computed() < ids.len() {
        let tokens = (ids.len() - sequence.computed()).min(100);
        runner
            .step(&mut [Work {
                sequence: &mut sequence,
                tokens,
                logits: Logits::Last,
            }])
            .unwrap();
    }
    runner.release(&mut sequence);
    runner.logits(0, 0).unwrap().to_vec()
}
