//! `debug preprocess` and `debug logits` with pictures, against the reference.

use std::fs;
use std::path::Path;
use std::process::Command;

use cider::load::safetensors;
use serde_json::Value;

use crate::support::{cider, finish, folder, integers, testdata};

/// A prompt of the fixtures.
struct Prompt {
    model: &'static str,
    entry: Value,
}

impl Prompt {
    /// All prompts of both models.
    fn all() -> Vec<Self> {
        let of = |model: &'static str| {
            let text = fs::read_to_string(testdata(model).join("prompts.json")).unwrap();
            let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
            entries.into_iter().map(move |entry| Self { model, entry })
        };
        of("vl/tiny").chain(of("vl/late")).collect()
    }

    fn name(&self) -> &str {
        self.entry["name"].as_str().unwrap()
    }

    fn expected(&self) -> std::path::PathBuf {
        let name = format!("{}.safetensors", self.name());
        testdata(self.model).join("expected").join(name)
    }

    /// A call of `debug logits` on the raw text and its pictures.
    fn command(&self, target: &Path, more: &[&str]) -> Command {
        let mut command = cider();
        command
            .args(["-q", "debug", "logits"])
            .arg(testdata(self.model));
        command.args(["--prompt", self.entry["text"].as_str().unwrap()]);
        for file in self.entry["images"].as_array().unwrap() {
            let file = testdata("vl/images").join(file.as_str().unwrap());
            command.arg("--image").arg(file);
        }
        command.args(["--scheme", "none", "--dtype", "f32", "-o"]);
        command.arg(target).args(more);
        command
    }
}

fn floats(path: &Path, name: &str) -> Vec<f32> {
    let file = safetensors::open(path).unwrap();
    file.get(name).unwrap().read_all()
}

#[test]
fn logits_and_positions_are_the_reference_ones_for_any_cut() {
    let target = folder("vl-logits").join("out.safetensors");
    let mut compared = 0;
    for prompt in Prompt::all() {
        let expected = prompt.expected();
        for chunk in ["128", "7", "1"] {
            let case = format!("{} {} chunk {chunk}", prompt.model, prompt.name());
            finish(&mut prompt.command(&target, &["--chunk", chunk])).succeeded();
            for name in ["ids", "positions"] {
                assert_eq!(
                    integers(&target, name),
                    integers(&expected, name),
                    "{case}: {name}"
                );
            }
            if prompt.name() != "text" {
                let grids = [&target, &expected].map(|path| integers(path, "image_grid_thw"));
                assert_eq!(grids[0], grids[1], "{case}");
            }
            let (found, wanted) = (floats(&target, "logits"), floats(&expected, "logits"));
            assert_eq!(found.len(), wanted.len(), "{case}");
            let pairs = found.iter().zip(&wanted);
            let distance = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(distance < 1e-4, "{case}: {distance}");
            compared += 1;
        }
    }
    assert_eq!(compared, 45);
}

#[test]
fn company_does_not_show_and_generated_tokens_stand_where_prompt_tokens_do() {
    let folder = folder("vl-company");
    let (alone, target) = (
        folder.join("alone.safetensors"),
        folder.join("out.safetensors"),
    );
    let others = folder.join("others.txt");
    fs::write(&others, "5,6,7,8,9,10\n1,2,3\n4\n").unwrap();
    let prompts = Prompt::all();
    let prompt = prompts
        .iter()
        .find(|prompt| prompt.name() == "two")
        .unwrap();
    finish(&mut prompt.command(&alone, &[])).succeeded();
    let company = ["--chunk", "5", "--batch-with", others.to_str().unwrap()];
    finish(&mut prompt.command(&target, &company)).succeeded();
    assert!(fs::read(&target).unwrap() == fs::read(&alone).unwrap());
    finish(&mut prompt.command(&target, &["--decode-from", "40"])).succeeded();
    assert_eq!(
        integers(&target, "positions"),
        integers(&alone, "positions")
    );
    let pairs = floats(&target, "logits")
        .into_iter()
        .zip(floats(&alone, "logits"));
    let distance = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(distance < 1e-4, "{distance}");
}

#[test]
fn a_chat_has_its_pictures_before_its_text() {
    let folder = folder("vl-chat");
    let ids = |name: &str, input: [&str; 2]| {
        let target = folder.join(name);
        let mut command = cider();
        command
            .args(["-q", "debug", "logits"])
            .arg(testdata("vl/tiny"));
        command.args(input).arg("--image");
        command
            .arg(testdata("vl/images/photo.png"))
            .arg("-o")
            .arg(&target);
        finish(&mut command).succeeded();
        integers(&target, "ids")
    };
    let raw = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(
        ids("chat", ["--chat", "What?"]),
        ids("raw", ["--prompt", raw])
    );
}

#[test]
fn preprocessing_gives_the_reference_pixels() {
    let target = folder("vl-pixels").join("out.safetensors");
    let mut whole = 0;
    for model in ["vl/tiny", "vl/late"] {
        let text = fs::read_to_string(testdata(model).join("images.json")).unwrap();
        let images: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
        for (name, entry) in &images {
            let mut command = cider();
            command
                .args(["debug", "preprocess", "--model"])
                .arg(testdata(model));
            command
                .arg("-o")
                .arg(&target)
                .arg(testdata("vl/images").join(name));
            let line = finish(&mut command).succeeded().stdout;
            let tokens = format!("{} tokens", entry["tokens"]);
            assert!(line.contains(name) && line.contains(&tokens), "{line}");
            let numbers = |key: &str| -> Vec<i64> {
                let list = entry[key].as_array().unwrap().iter();
                list.map(|number| number.as_i64().unwrap()).collect()
            };
            assert_eq!(
                integers(&target, "image_grid_thw"),
                (vec![1, 3], numbers("grid"))
            );
            assert_eq!(
                integers(&target, "resized_sizes"),
                (vec![1, 2], numbers("resized"))
            );
            assert_eq!(integers(&target, "sizes").0, [1, 2]);
            if entry["stored"] == "whole" {
                let bits = |path: &Path, tensor: &str| -> Vec<u32> {
                    floats(path, tensor)
                        .iter()
                        .map(|value| value.to_bits())
                        .collect()
                };
                let expected = testdata(model).join("pixel_values.safetensors");
                assert!(
                    bits(&target, "pixel_values") == bits(&expected, name),
                    "{model} {name}"
                );
                whole += 1;
            }
        }
    }
    assert!(whole >= 4, "{whole}");
}
