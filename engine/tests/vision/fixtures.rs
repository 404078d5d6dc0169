//! Every prompt of the fixtures against the reference.

use cider::{DType, Scheme};
use sha2::{Digest, Sha256};

use crate::arrays::Arrays;
use crate::support::{
    Prompt, Running, Seen, assert_close, assert_same, cpu, fixture, greedy, isas, open, open_with,
    options, picture, read_json, tiny,
};

const FIXTURES: [&str; 2] = ["tiny", "late"];

/// Of the largest value, for everything in f32.
const BOUND: f32 = 1e-4;

/// For W8A8 where activations may round the other way.
const LOOSE: f32 = 0.05;

fn bound(scheme: Scheme, prompt: &Prompt) -> f32 {
    if scheme == Scheme::W8A8 && prompt.name != "clear" {
        LOOSE
    } else {
        BOUND
    }
}

/// The logits that are stored for a scheme.
fn expected_logits(prompt: &Prompt, scheme: Scheme) -> Option<Vec<f32>> {
    let name = match scheme {
        Scheme::None => "logits".to_owned(),
        _ => format!("logits_{scheme}"),
    };
    let there = prompt.expected.0.contains_key(&name);
    there.then(|| prompt.expected.floats(&name))
}

#[test]
fn pixels_are_those_of_the_processor() {
    for name in FIXTURES {
        let engine = open(&fixture(name), Scheme::None, DType::F32);
        let processor = engine.vision().unwrap().processor();
        let stored = Arrays::read(&fixture(name).join("pixel_values.safetensors"));
        let images = read_json(&fixture(name).join("images.json"));
        let images = images.as_object().unwrap();
        assert_eq!(images.len(), stored.0.len());
        for (file, expected) in images {
            let what = format!("{name}, {file}");
            let patches = processor.patches(&picture(file));
            let grid: [usize; 3] = serde_json::from_value(expected["grid"].clone()).unwrap();
            assert_eq!(patches.grid_thw, grid, "{what}");
            let columns = patches.pixel_values.len() / patches.rows();
            let step = if expected["stored"] == "whole" {
                [1, 1]
            } else {
                [8, 16]
            };
            let rows = patches.pixel_values.chunks(columns).step_by(step[0]);
            let sample: Vec<f32> = rows
                .flat_map(|row| row.iter().step_by(step[1]).copied())
                .collect();
            assert_same(&sample, &stored.floats(file), &what);
            let bytes: Vec<u8> = patches
                .pixel_values
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect();
            let digest = Sha256::digest(&bytes);
            let digest: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(digest.concat(), expected["pixel_values_sha256"], "{what}");
        }
    }
}

#[test]
fn tokens_positions_and_features_are_those_of_the_reference() {
    for name in FIXTURES {
        let mut engine = open(&fixture(name), Scheme::None, DType::F32);
        let levels = engine.vision().unwrap().config().deepstack.len();
        for prompt in Prompt::all(name) {
            let what = format!("{name}, {}", prompt.name);
            let seen = prompt.see(&mut engine);
            assert_eq!(seen.ids, prompt.expected.ids("ids"), "{what}");
            if let Some(messages) = &prompt.messages {
                let chat = Seen::chat(&mut engine, messages, &prompt.pictures);
                assert_eq!(chat.ids, seen.ids, "{what}: as a chat");
            }
            check_positions(&seen, &prompt, &what);
            for level in 0..=levels {
                check_features(&seen, &prompt, level, &what);
            }
        }
    }
}

fn check_positions(seen: &Seen, prompt: &Prompt, what: &str) {
    let tokens = seen.ids.len();
    let sequence = seen.sequence();
    let axis = |axis: usize| (0..tokens).map(move |place| (axis, place));
    let found = (0..3).flat_map(axis);
    let found: Vec<i64> = found
        .map(|(axis, place)| i64::from(sequence.position(place)[axis]))
        .collect();
    assert_eq!(found, prompt.expected.integers("positions"), "{what}");
    let delta = prompt.expected.integers("delta")[0];
    for generated in 0..12 {
        let place = tokens + generated;
        let position = u32::try_from(place as i64 + delta).unwrap();
        assert_eq!(sequence.position(place), [position; 3], "{what}");
    }
    let grids = seen.images.iter().flat_map(|image| image.features.grid());
    let grids: Vec<i64> = grids.map(|side| side as i64).collect();
    let expected = if prompt.pictures.is_empty() {
        Vec::new()
    } else {
        prompt.expected.integers("image_grid_thw")
    };
    assert_eq!(grids, expected, "{what}");
}

/// Level 0 is what stands in the prompt.
fn check_features(seen: &Seen, prompt: &Prompt, level: usize, what: &str) {
    if seen.images.is_empty() {
        return;
    }
    let tensors = seen
        .images
        .iter()
        .map(|image| image.features.tensors()[level]);
    let found: Vec<f32> = tensors
        .flat_map(|tensor| tensor.as_slice::<f32>().unwrap().to_vec())
        .collect();
    let name = match level.checked_sub(1) {
        None => "vision".to_owned(),
        Some(level) => format!("deepstack_{level}"),
    };
    let expected = prompt.expected.floats(&name);
    assert_close(&found, &expected, BOUND, &format!("{what}: {name}"));
}

#[test]
fn logits_are_those_of_the_reference_for_every_size_of_chunk() {
    for name in FIXTURES {
        for scheme in [Scheme::None, Scheme::W8A16, Scheme::W8A8] {
            let mut engine = open(&fixture(name), scheme, DType::F32);
            for prompt in Prompt::all(name) {
                let Some(expected) = expected_logits(&prompt, scheme) else {
                    continue;
                };
                let what = format!("{name}, {}, {scheme}", prompt.name);
                let seen = prompt.see(&mut engine);
                let logits = seen.logits(&mut engine);
                println!("{what}: {:e}", crate::support::distance(&logits, &expected));
                assert_close(&logits, &expected, bound(scheme, &prompt), &what);
                for chunk in [1, 2, 3, 7, 16, 64] {
                    let found = seen.logits_in_chunks(&mut engine, chunk);
                    assert_same(&found, &logits, &format!("{what}: chunks of {chunk}"));
                }
            }
        }
    }
}

/// A chunk that begins or ends with an image's first or last token, or is one of them alone.
#[test]
fn images_begin_and_end_chunks() {
    for scheme in [Scheme::None, Scheme::W8A8] {
        let mut engine = open(&fixture("tiny"), scheme, DType::F32);
        for prompt in Prompt::all("tiny") {
            let seen = prompt.see(&mut engine);
            let logits = seen.logits(&mut engine);
            let edges = seen
                .images
                .iter()
                .flat_map(|image| [image.start, image.end()]);
            let edges: Vec<usize> = edges.collect();
            let tokens = seen.ids.len();
            for offsets in [&[0][..], &[1], &[-1], &[0, 1], &[-1, 0, 1]] {
                let ends = edges.iter().flat_map(|&edge| {
                    offsets
                        .iter()
                        .filter_map(move |&o| edge.checked_add_signed(o))
                });
                let ends = ends.filter(|end| (1..tokens).contains(end)).collect();
                let found = Running::cut_at(&seen, tokens, ends).alone(&mut engine);
                let what = format!("{}, {scheme}: cut {offsets:?} from edges", prompt.name);
                assert_same(&found, &logits, &what);
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let prompts = ["three", "clear"].map(|name| Prompt::named("tiny", name));
    for scheme in [Scheme::None, Scheme::W8A16, Scheme::W8A8] {
        let mut first: [Option<Vec<f32>>; 2] = [None, None];
        for isa in isas() {
            let options = options(scheme, DType::F32);
            let mut engine = open_with(&fixture("tiny"), cpu(isa, 2), options).unwrap();
            for (prompt, first) in prompts.iter().zip(&mut first) {
                let what = format!("{}, {scheme}, {isa}", prompt.name);
                let seen = prompt.see(&mut engine);
                let logits = seen.logits(&mut engine);
                let expected = expected_logits(prompt, scheme).unwrap();
                assert_close(&logits, &expected, bound(scheme, prompt), &what);
                assert_same(&logits, first.get_or_insert(logits.clone()), &what);
            }
        }
    }
}

#[test]
fn generated_tokens_are_those_of_the_reference() {
    for name in FIXTURES {
        let mut engine = open(&fixture(name), Scheme::None, DType::F32);
        for prompt in Prompt::all(name) {
            let what = format!("{name}, {}", prompt.name);
            let expected = prompt.expected.ids("generated");
            let seen = prompt.see(&mut engine);
            let (tokens, logits) = greedy(&mut engine, &seen, expected.len());
            assert_eq!(tokens, expected, "{what}");
            let expected_logits = prompt.expected.floats("generated_logits");
            assert_close(&logits, &expected_logits, BOUND, &what);

            let generation = engine.generate(&seen.request(expected.len()), &mut |_| {});
            // An end token ends the text; ids that are no token of the tokenizer are never chosen.
            let until = expected
                .iter()
                .position(|id| engine.end_tokens().contains(id))
                .map_or(expected.len(), |end| end + 1);
            let known = engine.tokenizer().vocab_size() as u32;
            let until = expected[..until]
                .iter()
                .position(|&id| id >= known)
                .unwrap_or(until);
            let tokens = generation.unwrap().tokens;
            assert_eq!(tokens[..until], expected[..until], "{what}");
        }
    }
}

/// Step by step after an image, and all at once.
#[test]
fn decoding_equals_a_fresh_prefill() {
    let mut engine = tiny();
    for prompt in Prompt::all("tiny") {
        let seen = prompt.see(&mut engine);
        let (tokens, _) = greedy(&mut engine, &seen, 12);
        let longer = seen.expanded(&engine, [&seen.ids[..], &tokens].concat());
        let generated = Running::new(&longer, seen.ids.len(), 1).alone(&mut engine);
        let fresh = longer.logits(&mut engine);
        assert_close(&generated, &fresh, BOUND, &prompt.name);
    }
}
