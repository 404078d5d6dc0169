//! Logits against those of the reference implementation.

use cider::DType;
use cider::generate::{Logits, Sequence, Work};
use cider::load::Checkpoint;
use cider_kernels::Activations;
use serde_json::{Value, json};

use crate::support::{
    Arrays, Folder, Text, alone, assert_refused, assert_same, best, cpu, distance, f_tiny, isas,
    load, plan_named, random_ids, read_json, testdata,
};

/// A model and the file with what it must give.
struct Fixture {
    name: &'static str,
    checkpoint: Checkpoint,
    expected: Arrays,
}

fn fixtures() -> Vec<Fixture> {
    let folder = |name: &'static str| Fixture {
        name,
        checkpoint: Checkpoint::open(&testdata(name)).unwrap(),
        expected: Arrays::read(&testdata(name).join("expected.safetensors")),
    };
    let gguf = |name: &'static str| Fixture {
        name,
        checkpoint: Checkpoint::open(&testdata("gguf").join(format!("{name}.gguf"))).unwrap(),
        expected: Arrays::read(&testdata("gguf").join(format!("{name}-expected.safetensors"))),
    };
    let mut all = Vec::from(FOLDERS.map(folder));
    all.extend(["llama-q8", "qwen3-mixed"].map(gguf));
    all.push(Fixture {
        name: "f-tiny",
        checkpoint: Checkpoint::open(f_tiny()).unwrap(),
        expected: Arrays::read(&testdata("f-tiny/expected.safetensors")),
    });
    all
}

/// Every stored array of logits, on every instruction set: the same positions, and logits within a ten
/// thousandth of the largest. One of them, qwen2-bias, has inputs that no group divides. The fixtures keep activations away from rounding borders, so quantised schemes
/// find the same integers as the reference.
#[test]
fn f32_activations_give_the_logits_of_the_reference() {
    for isa in isas() {
        for fixture in fixtures() {
            let ids = fixture.expected.ids("ids");
            let positions: Vec<_> = (0..).take(ids.len()).collect();
            assert_eq!(fixture.expected.ids("positions"), positions);
            for name in fixture.expected.logits() {
                let plan = plan_named(name.trim_start_matches("logits").trim_start_matches('_'));
                let mut runner = load(&fixture.checkpoint, cpu(isa, 2), plan, DType::F32);
                let found = alone(&mut runner, Text::prompt(&ids));
                let distance = distance(&found, &fixture.expected.floats(name));
                println!("{isa} {} {name}: {distance:.1e}", fixture.name);
                assert!(
                    distance <= 1e-4,
                    "{isa} {} {name}: {distance:e}",
                    fixture.name
                );
            }
        }
    }
}

/// With bf16 activations each of about eight roundings of a layer is off by up to 2^-9 of its value; if all
/// were off in the same direction, that would come to 2^-9 of the largest logit each. INT8 activations may also
/// fall on the other side of a rounding border, which moves them by 1/127 of the largest of their row, in each
/// of four linear layers. Errors have either sign, so the bound is wide; a wrong formula is far outside.
#[test]
fn bf16_activations_stay_within_their_rounding() {
    for fixture in fixtures() {
        let ids = fixture.expected.ids("ids");
        for name in fixture.expected.logits() {
            let plan = plan_named(name.trim_start_matches("logits").trim_start_matches('_'));
            let mut runner = load(&fixture.checkpoint, best(), plan, DType::Bf16);
            let layers = runner.config().layers as f32;
            let borders = match plan.scheme.prompt_activations() {
                Activations::Float => 0.0,
                Activations::Int8 => 4.0 * layers / 127.0,
            };
            let bound = (8.0 * layers + 2.0) / 512.0 + borders;
            let found = alone(&mut runner, Text::prompt(&ids));
            let distance = distance(&found, &fixture.expected.floats(name));
            println!("{} {name}: {distance:.1e} of {bound:.1e}", fixture.name);
            assert!(distance <= bound, "{} {name}: {distance:e}", fixture.name);
        }
    }
}

/// A window counts only where the configuration switches it on, in the layers it names.
#[test]
fn windows_act_where_the_configuration_says() {
    let source = testdata("qwen2-window");
    let expected = Arrays::read(&source.join("expected.safetensors"));
    let variants = Arrays::read(&source.join("variants.safetensors"));
    let ids = expected.ids("ids");
    let changes = read_json(&source.join("variants.json"));
    for (name, change) in changes.as_object().unwrap() {
        let folder = Folder::with_config(&source, change);
        let mut runner = load(&folder.open(), best(), plan_named(""), DType::F32);
        let found = alone(&mut runner, Text::prompt(&ids));
        let apart = distance(&found, &variants.floats(name));
        assert!(apart <= 1e-4, "{name}: {apart:e}");
        let moved = distance(&found, &expected.floats("logits"));
        assert!(moved > 0.05, "{name}: {moved:e}");
    }
}

/// In a model of one layer with a window of 8, token 39 sees nothing of token 0; chunks and
/// generation make no difference to that.
#[test]
fn a_window_hides_what_lies_before_it() {
    let change = json!({"num_hidden_layers": 1, "use_sliding_window": true, "sliding_window": 8,
        "max_window_layers": 0});
    let windowed = Folder::with_config(f_tiny(), &change);
    let full = Folder::with_config(f_tiny(), &json!({"num_hidden_layers": 1}));
    let ids = random_ids(119, 40, 500);
    let other: Vec<_> = [ids[0] ^ 1]
        .into_iter()
        .chain(ids[1..].iter().copied())
        .collect();
    for isa in isas() {
        let mut runner = load(&windowed.open(), cpu(isa, 2), plan_named(""), DType::F32);
        let width = runner.config().vocab_size;
        for text in [
            Text::prompt(&ids),
            Text::prompt(&ids).in_chunks(5),
            Text::generated_from(&ids, 3),
        ] {
            let one = alone(&mut runner, text);
            let two = alone(
                &mut runner,
                Text {
                    ids: &other,
                    ..text
                },
            );
            assert_same(&one[8 * width..], &two[8 * width..], "tokens from 8 on");
            assert!(distance(&one[7 * width..8 * width], &two[7 * width..8 * width]) > 1e-5);
        }
        let mut runner = load(&full.open(), cpu(isa, 2), plan_named(""), DType::F32);
        let one = alone(&mut runner, Text::prompt(&ids));
        let two = alone(&mut runner, Text::prompt(&other));
        assert!(distance(&one[39 * width..], &two[39 * width..]) > 1e-6);
    }
}

/// The scaling of rope is not passed over, and its kind has two spellings.
#[test]
fn rope_scaling_acts_under_either_spelling() {
    for (name, key) in [
        ("llama3-tied", "rope_type"),
        ("llama-yarn", "rope_type"),
        ("llama-linear", "type"),
    ] {
        let source = testdata(name);
        let expected = Arrays::read(&source.join("expected.safetensors"));
        let (ids, logits) = (expected.ids("ids"), expected.floats("logits"));
        let run = |change: Value| {
            let folder = Folder::with_config(&source, &change);
            let mut runner = load(&folder.open(), best(), plan_named(""), DType::F32);
            distance(&alone(&mut runner, Text::prompt(&ids)), &logits)
        };
        let mut scaling = read_json(&source.join("config.json"))["rope_scaling"].clone();
        let kind = scaling.as_object_mut().unwrap().remove(key).unwrap();
        let other = if key == "type" { "rope_type" } else { "type" };
        scaling[other] = kind;
        let renamed = run(json!({"rope_scaling": scaling}));
        assert!(renamed <= 1e-4, "{name}: {renamed:e}");
        let moved = run(json!({"rope_scaling": null}));
        assert!(moved > 1e-2, "{name}: {moved:e}");
        scaling[other] = "foo".into();
        let folder = Folder::with_config(&source, &json!({"rope_scaling": scaling}));
        assert_refused(Checkpoint::open(folder.path()), &["config.json", "foo"]);
    }
}

/// Steps ask for the logits of some tokens only; those are the ones.
#[test]
fn logits_are_those_of_the_tokens_asked_for() {
    let fixture = &fixtures()[0];
    let ids = fixture.expected.ids("ids");
    let mut runner = load(&fixture.checkpoint, best(), plan_named("w8a8"), DType::F32);
    let all = alone(&mut runner, Text::prompt(&ids));
    let width = runner.config().vocab_size;
    let (mut first, mut second) = (Sequence::new(&ids[..20], 40), Sequence::new(&ids, 40));
    runner
        .step(&mut [
            work(&mut first, 20, Logits::Last),
            work(&mut second, 30, Logits::None),
        ])
        .unwrap();
    assert_same(
        runner.logits(0, 0).unwrap(),
        &all[19 * width..20 * width],
        "last of the first",
    );
    runner
        .step(&mut [work(&mut second, 10, Logits::Last)])
        .unwrap();
    assert_same(
        runner.logits(0, 0).unwrap(),
        &all[39 * width..],
        "last of the second",
    );
}

fn work(sequence: &mut Sequence, tokens: usize, logits: Logits) -> Work<'_> {
    Work {
        sequence,
        tokens,
        logits,
    }
}

/// Checkpoints in folders.
const FOLDERS: [&str; 7] = [
    "llama3-tied",
    "llama-mha-bias",
    "qwen3-headdim",
    "qwen2-bias",
    "llama-yarn",
    "llama-linear",
    "qwen2-window",
];
