//! Pictures on their way into a prompt: pixels, sizes, positions, features.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cider::generate::{ImageFeatures, find_images, place_images};
use cider::image::{ImageProcessor, ImageSize, Patches, PixelBudget};
use cider::{DType, Scheme};
use serde_json::json;

use crate::arrays::Arrays;
use crate::support::{
    BLUE, Folder, RED, Seen, assert_close, assert_refused, assert_same, fixture, greedy, last_row,
    open, pad, read_json, repository, set_pixels, solid, tiny, tiny_with_family_sizes,
};

/// What the tower makes of a grey picture that is so many patches high and wide.
fn features(grid: [usize; 3]) -> Arc<ImageFeatures> {
    let values = grid.iter().product::<usize>() * 1536;
    let patches = Patches {
        pixel_values: vec![0.0; values],
        grid_thw: grid,
    };
    Arc::new(tiny().runner().encode(&patches).unwrap())
}

/// Positions of prompts with any mix of text and images.
#[test]
fn positions_are_those_of_the_tables() {
    let tables = Arrays::read(&repository("testdata/vl/tables/tables.safetensors"));
    let table = read_json(&repository("testdata/vl/tables/tables.json"));
    let pad = table["token_ids"]["image_pad"].as_u64().unwrap() as u32;
    for (i, case) in table["positions"].as_array().unwrap().iter().enumerate() {
        let grids: Vec<[usize; 3]> = serde_json::from_value(case["grids"].clone()).unwrap();
        let all: Vec<_> = grids.into_iter().map(features).collect();
        let ids = tables.ids(&format!("ids.{i}"));
        let images = find_images(&ids, pad, &all).unwrap();
        let sequence = Seen { ids, images }.sequence();
        let tokens = sequence.tokens().len();
        let axis = |axis: usize| {
            let sequence = &sequence;
            (0..tokens).map(move |place| i64::from(sequence.position(place)[axis]))
        };
        let found: Vec<i64> = (0..3).flat_map(axis).collect();
        let expected = tables.integers(&format!("positions.{i}"));
        assert_eq!(found, expected, "{}", case["name"]);
        let first = sequence.position(tokens);
        let expected = case["first_generated"].as_u64().unwrap() as u32;
        assert_eq!(first, [expected; 3], "{}", case["name"]);
    }
}

/// A picture of 256 tokens moves the positions behind it on by 16, its longer side in tokens.
#[test]
fn a_square_picture_moves_positions_by_its_side() {
    let mut engine = tiny_with_family_sizes();
    let picture = solid(512, 512, RED);
    let text = "ab<|vision_start|><|image_pad|><|vision_end|>c";
    let seen = Seen::raw(&mut engine, text, &[picture]);
    assert_eq!(seen.ids.len(), 261);
    let sequence = seen.sequence();
    assert_eq!(sequence.position(2), [2; 3]);
    assert_eq!(sequence.position(3), [3; 3]);
    assert_eq!(sequence.position(3 + 17), [3, 4, 4]);
    assert_eq!(sequence.position(258), [3, 18, 18]);
    assert_eq!(sequence.position(259), [19; 3]);
    assert_eq!(sequence.position(260), [20; 3]);
    assert_eq!(sequence.position(261), [21; 3]);
}

/// Logits are the same for chunks that begin or end inside a picture.
#[test]
fn the_size_of_chunks_changes_nothing() {
    let text = "0123456789<|vision_start|><|image_pad|><|vision_end|>9876543210";
    for dtype in [DType::F32, DType::Bf16] {
        let mut engine = open(&fixture("tiny"), Scheme::None, dtype);
        set_pixels(&mut engine, 65_536, 16_777_216);
        let seen = Seen::raw(&mut engine, text, &[solid(256, 256, BLUE)]);
        assert_eq!(seen.images[0].features.tokens(), 64);
        let whole = seen.logits(&mut engine);
        let sizes = if dtype == DType::F32 {
            (1..=100).collect()
        } else {
            vec![1, 7, 64, 512]
        };
        for chunk in sizes {
            let found = seen.logits_in_chunks(&mut engine, chunk);
            assert_same(&found, &whole, &format!("{dtype}, chunks of {chunk}"));
        }
        let (tokens, _) = greedy(&mut engine, &seen, 16);
        let generated = engine.generate(&seen.request(16), &mut |_| {}).unwrap();
        assert!(tokens.starts_with(&generated.tokens), "{dtype}");
    }
}

/// Mean and deviation come from the files, not from the family.
#[test]
fn pixels_are_normalised_as_the_files_say() {
    let [usual, other] = ["tiny", "late"].map(|name| ImageProcessor::open(&fixture(name)).unwrap());
    let check = |processor: &ImageProcessor, color: [u8; 3], expected: [f32; 3]| {
        let patches = processor.patches(&solid(256, 256, color));
        for patch in patches.pixel_values.chunks(1536) {
            for (channel, values) in patch.chunks(512).enumerate() {
                let near = |value: &f32| (value - expected[channel]).abs() < 5e-5;
                assert!(values.iter().all(near), "{color:?}: {}", values[0]);
            }
        }
    };
    check(&usual, [128; 3], [0.0039; 3]);
    check(&usual, [0; 3], [-1.0; 3]);
    check(&usual, [255; 3], [1.0; 3]);
    check(&usual, RED, [1.0, -1.0, -1.0]);
    check(&other, [128; 3], [0.8039, 1.2078, 0.2020]);
}

/// A processor whose file has some keys.
fn processor(keys: &serde_json::Value) -> cider::Result<ImageProcessor> {
    let folder = Folder::of("tiny");
    folder.change("preprocessor_config.json", |config| {
        let object = config.as_object_mut().unwrap();
        object.remove("min_pixels");
        object.remove("max_pixels");
        object.extend(keys.as_object().unwrap().clone());
    });
    ImageProcessor::open(folder.path())
}

/// However often the files state a bound, one order says which counts.
#[test]
fn one_bound_on_pixels_wins() {
    let picture = ImageSize::new(1080, 1920);
    let small = ImageSize::new(320, 576);
    let by_number = processor(&json!({"min_pixels": 65536, "max_pixels": 200_000})).unwrap();
    let edges = json!({"shortest_edge": 65536, "longest_edge": 200_000});
    let by_size = processor(&json!({"size": edges})).unwrap();
    let both = processor(&json!({"size": edges, "max_pixels": 16_777_216})).unwrap();
    let usual = processor(&json!({})).unwrap();
    let budget = PixelBudget {
        max_pixels: Some(200_000),
        ..PixelBudget::default()
    };
    let by_request = usual.with_budget(budget).unwrap();
    for processor in [by_number, by_size, both, by_request] {
        assert_eq!(processor.resized(picture), small);
        assert_eq!(processor.tokens(picture), 180);
    }
    let sides = processor(&json!({"size": {"height": 224, "width": 224}}));
    assert_refused(sides, &["preprocessor_config.json", "size"]);
}

/// A bound of 1,024 tokens enlarges a picture that would have 256.
#[test]
fn bounds_can_be_given_in_tokens() {
    let usual = processor(&json!({})).unwrap();
    let picture = ImageSize::new(512, 512);
    assert_eq!(usual.tokens(picture), 256);
    let budget = PixelBudget::from_tokens(&usual, Some(1024), None).unwrap();
    let fine = usual.with_budget(budget).unwrap();
    assert_eq!(fine.resized(picture), ImageSize::new(1024, 1024));
    assert_eq!(fine.tokens(picture), 1024);
    assert_refused(
        PixelBudget::from_tokens(&usual, Some(9), Some(8)),
        &["9", "8"],
    );
    let budget = PixelBudget {
        min_pixels: Some(100_000),
        max_pixels: Some(99_999),
    };
    assert_refused(usual.with_budget(budget), &["100000", "99999"]);
}

/// Pictures side by side keep their own tokens; runs that do not match are refused with both counts.
#[test]
fn grids_decide_which_tokens_are_whose() {
    let images = [features([1, 16, 16]), features([1, 30, 40])];
    let engine = tiny();
    let (pad, start, end) = (pad(&engine), 329, 330);
    let pads = |count: usize| vec![pad; count];
    let beside = [&[start][..], &pads(64), &[end, start], &pads(300), &[end]].concat();
    let found = find_images(&beside, pad, &images).unwrap();
    assert_eq!([found[0].start, found[0].end()], [1, 65]);
    assert_eq!([found[1].start, found[1].end()], [67, 367]);

    let one_run = [&[start][..], &pads(364), &[end]].concat();
    assert_refused(find_images(&one_run, pad, &images), &["1", "2"]);
    let short = [&[start][..], &pads(63), &[end]].concat();
    assert_refused(find_images(&short, pad, &images[..1]), &["64", "63"]);
    let none = find_images(&[5, 6], pad, &images[..1]);
    assert_refused(none, &["0", "1"]);
    let surplus = find_images(&beside, pad, &images[..1]);
    assert_refused(surplus, &["2", "1"]);

    let one_pad_each = [start, pad, end, start, pad, end];
    let (placed, found) = place_images(&one_pad_each, pad, &images).unwrap();
    assert_eq!(placed, beside);
    assert_eq!([found[0].start, found[1].start], [1, 67]);
    assert_refused(place_images(&one_pad_each, pad, &images[1..]), &["2", "1"]);
    assert_refused(place_images(&[start, pad], pad, &images), &["1", "2"]);
}

/// A row of the tower's residual stream is far beyond what f16 holds.
#[test]
fn activations_beyond_half_precision_stay_finite() {
    let folder = Folder::of("tiny");
    folder.change_tensors(|tensors| {
        tensors.set("model.visual.blocks.0.mlp.linear_fc2.bias", 0, 1e5);
    });
    let [f32, bf16] = [DType::F32, DType::Bf16].map(|dtype| {
        let mut engine = open(folder.path(), Scheme::None, dtype);
        let text = "x<|vision_start|><|image_pad|><|vision_end|>y";
        let seen = Seen::raw(&mut engine, text, &[solid(64, 64, RED)]);
        let logits = seen.logits(&mut engine);
        assert!(logits.iter().all(|value| value.is_finite()), "{dtype}");
        last_row(&engine, &logits).to_vec()
    });
    assert_close(&bf16, &f32, 0.05, "bf16 against f32");
}

/// Preprocessing takes milliseconds, with room for a debug build on a busy machine.
#[test]
fn a_small_picture_is_cut_quickly() {
    let processor = processor(&json!({})).unwrap();
    let picture = solid(375, 512, BLUE);
    assert_eq!(processor.tokens(picture.size()), 192);
    let started = Instant::now();
    let patches = processor.patches(&picture);
    let spent = started.elapsed();
    assert_eq!(patches.grid_thw, [1, 24, 32]);
    assert!(spent < Duration::from_secs(2), "{spent:?}");
}
