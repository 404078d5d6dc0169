//! Pictures that are no pictures, and pictures where there is no place for them.

use std::fs;

use crate::errors::{failed, refused};
use crate::support::{cider, finish, folder, run, smollm2, testdata};

const MODEL: &str = "models/demo-vlm";

/// A BMP of so many pixels by its header, and none in it.
fn bmp(width: u32, height: u32) -> Vec<u8> {
    let mut file = b"BM".to_vec();
    let words = [54, 0, 54, 40, width, height];
    file.extend(words.iter().flat_map(|word: &u32| word.to_le_bytes()));
    file.extend([1, 0, 24, 0]);
    file.extend([0; 24]);
    file
}

#[test]
fn pictures_that_cannot_be_read_are_named() {
    let folder = folder("bad-pictures");
    let png = fs::read(testdata("vl/images/photo.png")).unwrap();
    let mut flipped = png.clone();
    let middle = png.len() / 2;
    flipped[middle] ^= 0x55;
    let cases: [(&str, &[u8], &[&str]); 8] = [
        ("cut.png", &png[..png.len() / 2], &["PNG"]),
        ("flipped.png", &flipped, &["PNG"]),
        ("empty.png", b"", &["no bytes"]),
        (
            "text.png",
            b"just words, no picture",
            &["no known image format"],
        ),
        (
            "bomb.bmp",
            &bmp(60_000, 60_000),
            &["60000x60000", "limit of 67108864"],
        ),
        (
            "wide.bmp",
            &bmp(4001, 20),
            &["4001x20", "aspect ratio of 200"],
        ),
        ("flat.bmp", &bmp(10, 0), &["10x0"]),
        (
            "photo.tiff",
            b"II*\0\x08\0\0\0\0\0\0\0",
            &["TIFF is not supported", "PNG, JPEG"],
        ),
    ];
    let target = folder.join("out.safetensors");
    for (name, bytes, parts) in cases {
        let file = folder.join(name);
        fs::write(&file, bytes).unwrap();
        let mut all = vec!["image 2", name];
        all.extend(parts);
        let good = testdata("vl/images/photo.png");
        let mut asked = cider();
        asked.args(["run", MODEL, "What?", "--image"]).arg(&good);
        failed(&finish(asked.arg("--image").arg(&file)), &all);
        let mut preprocessed = cider();
        preprocessed
            .args(["debug", "preprocess"])
            .arg(&good)
            .arg(&file);
        failed(&finish(preprocessed.arg("-o").arg(&target)), &all);
        assert!(!target.exists(), "{name}");
    }
}

#[test]
fn what_is_no_file_and_no_data_is_named() {
    let missing = run(["run", MODEL, "What?", "--image", "missing.png"]);
    failed(&missing, &["image 1 (missing.png)", "No such file"]);
    let url = "https://example.org/a.png";
    failed(
        &run(["run", MODEL, "What?", "--image", url]),
        &["https URLs are not read", url],
    );
    let data = "data:image/png;base64,????";
    failed(
        &run(["run", MODEL, "What?", "--image", data]),
        &["image 1", "data URL"],
    );
}

#[test]
fn pictures_and_places_must_match() {
    let picture = "testdata/vl/images/photo.png";
    let target = folder("places").join("out");
    let target = target.to_str().unwrap();
    let place = "<|vision_start|><|image_pad|><|vision_end|>";
    for (text, images, places) in [("none", 1, 0), (place, 0, 1), (place, 2, 1)] {
        let mut command = cider();
        command.args([
            "debug",
            "logits",
            "testdata/vl/tiny",
            "--prompt",
            text,
            "-o",
            target,
        ]);
        for _ in 0..images {
            command.args(["--image", picture]);
        }
        let places = format!("places for {places} images, got {images}");
        failed(&finish(&mut command), &[&places]);
        let mut command = cider();
        command.args(["run", MODEL, text, "--raw"]);
        for _ in 0..images {
            command.args(["--image", picture]);
        }
        failed(&finish(&mut command), &[&places]);
    }
}

#[test]
fn a_model_for_text_alone_says_so() {
    let picture = "examples/pictures/scene.png";
    let asked = run(["run", smollm2(), "What?", "--image", picture]);
    failed(&asked, &["no vision input", "SmolLM2"]);
    let quantised = run(["run", smollm2(), "What?", "--vision-scheme", "w8a8"]);
    failed(&quantised, &["no vision input"]);
    let logits = [
        "debug",
        "logits",
        "testdata/llama3-tied",
        "--prompt",
        "x",
        "-o",
        "x",
        "--image",
        picture,
    ];
    failed(&run(logits), &["llama3-tied", "no vision input"]);
    let processor = [
        "debug",
        "preprocess",
        "--model",
        "testdata/llama3-tied",
        "-o",
        "x",
        picture,
    ];
    failed(
        &run(processor),
        &["llama3-tied", "preprocessor_config.json"],
    );
}

#[test]
fn options_of_pictures_that_contradict_each_other() {
    let picture = "examples/pictures/scene.png";
    let with = |more: &[&str]| {
        let mut command = cider();
        command
            .args(["run", MODEL, "What?", "--image", picture])
            .args(more);
        finish(&mut command)
    };
    failed(
        &with(&["--min-image-tokens", "9", "--max-image-tokens", "8"]),
        &["minimum of 9", "maximum of 8"],
    );
    failed(
        &with(&["--max-image-tokens", "8"]),
        &["minimum of 65536", "maximum of 8192"],
    );
    failed(&with(&["--min-image-tokens", "99999999999"]), &["exceeds"]);
    failed(
        &with(&["--ctx", "32"]),
        &["exceeds the context of 32 tokens"],
    );
    refused(
        &with(&["--vision-scheme", "auto"]),
        &["--vision-scheme", "w8a8"],
    );
    refused(
        &with(&["--max-image-tokens", "0"]),
        &["--max-image-tokens", "above 0"],
    );
    let tokens = [
        "debug", "logits", MODEL, "--tokens", "1", "-o", "x", "--image", picture,
    ];
    refused(&run(tokens), &["--image", "--tokens"]);
}
