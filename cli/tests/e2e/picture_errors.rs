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
fn slips_with_pictures_are_said() {
    let picture = "examples/pictures/scene.png";
    for arguments in [
        &["run", picture][..],
        &["run", "no-such.JPG"],
        &["run", picture, "What?"],
    ] {
        refused(&run(arguments), &["is a picture", "--image"]);
    }
    refused(&run(["run", ""]), &["the prompt is empty"]);
    let template = folder("failing-template").join("template.jinja");
    fs::write(&template, "{{ raise_exception('no luck today') }}").unwrap();
    let mut command = cider();
    command.args(["run", MODEL, "What?", "--image", picture, "--chat-template"]);
    failed(&finish(command.arg(&template)), &["no luck today"]);
    let kernel = ["run", MODEL, "What?", "--image", "/proc/self/status"];
    failed(&run(kernel), &["image 1", "no bytes"]);
    let nowhere = [
        "debug",
        "preprocess",
        picture,
        "--model",
        "/nope",
        "-o",
        "x",
    ];
    failed(&run(nowhere), &["/nope", "No such file"]);
    let copy = folder("own-input").join("x.png");
    fs::copy("../examples/pictures/scene.png", &copy).unwrap();
    let mut command = cider();
    command
        .args(["debug", "preprocess"])
        .arg(&copy)
        .arg("-o")
        .arg(&copy);
    refused(&finish(&mut command), &["would replace what is read"]);
    let mut command = cider();
    command.args([
        "run",
        MODEL,
        "What?",
        "--max-tokens",
        "2",
        "--image",
        picture,
    ]);
    command.args(["--min-image-tokens", "1", "--max-image-tokens", "1"]);
    let said = finish(&mut command).succeeded().stderr;
    assert!(
        said.contains("warning: pictures of 1024 to 1024 pixels"),
        "{said}"
    );
}

#[test]
fn an_answer_that_fills_the_context_says_so() {
    let mut command = cider();
    command.args(["run", MODEL, "What is in this image?", "--image"]);
    command.args(["examples/pictures/scene.png", "--ctx", "164"]);
    let said = finish(&mut command).succeeded().stderr;
    assert!(said.contains("the context of 164 tokens is full"), "{said}");
}

/// Little address space is enough for a chat.
#[test]
fn a_chat_needs_no_large_address_space() {
    let mut command = std::process::Command::new("sh");
    let limited =
        "ulimit -v 512000; exec \"$0\" run models/demo-vlm hello --max-tokens 2 --threads 1";
    command.args(["-c", limited, env!("CARGO_BIN_EXE_cider")]);
    command.current_dir(crate::support::root());
    finish(&mut command).succeeded();
}

#[test]
fn pictures_and_places_must_match() {
    let picture = "testdata/vl/images/photo.png";
    let target = folder("places").join("out");
    let target = target.to_str().unwrap();
    let place = "<|vision_start|><|image_pad|><|vision_end|>";
    for (text, images, places) in [
        ("none", 1, "no place for an image, got 1"),
        (place, 0, "a place for 1 image, got none"),
        (place, 2, "a place for 1 image, got 2"),
        (&place.repeat(3), 1, "places for 3 images, got 1"),
    ] {
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
        let parts = [places, "each image stands as", place];
        failed(&finish(&mut command), &parts);
        let mut command = cider();
        command.args(["run", MODEL, text, "--raw"]);
        for _ in 0..images {
            command.args(["--image", picture]);
        }
        failed(&finish(&mut command), &parts);
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
        &["llama3-tied", "no vision input", "for text alone"],
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
        &["--min-image-tokens 9 exceeds --max-image-tokens 8"],
    );
    failed(
        &with(&["--max-image-tokens", "8"]),
        &["--max-image-tokens 8 is below the minimum of the model, 64 tokens"],
    );
    failed(
        &with(&["--min-image-tokens", "4000000000"]),
        &["--min-image-tokens 4000000000 exceeds the maximum of the model, 144 tokens"],
    );
    let both = ["--min-image-tokens", "4", "--max-image-tokens", "8"];
    with(&both).succeeded();
    failed(
        &with(&["--ctx", "32"]),
        &[
            "1 image of",
            "tokens exceeds the context of 32 tokens",
            "--max-image-tokens",
            "--ctx",
        ],
    );
    refused(
        &with(&["--vision-scheme", "auto"]),
        &["--vision-scheme", "w8a8"],
    );
    refused(
        &with(&["--max-image-tokens", "0"]),
        &["--max-image-tokens", "from 1 to"],
    );
    let tokens = [
        "debug", "logits", MODEL, "--tokens", "1", "-o", "x", "--image", picture,
    ];
    refused(&run(tokens), &["--image", "--tokens"]);
}

/// The header alone says how many tokens a picture takes: these would not even decode.
#[test]
fn pictures_that_exceed_the_context_are_refused_before_they_are_decoded() {
    let file = folder("too-many").join("damaged.png");
    let mut damaged = fs::read("../examples/pictures/scene.png").unwrap();
    let data = damaged.windows(4).position(|name| name == b"IDAT").unwrap();
    damaged[data + 10] ^= 0x55;
    fs::write(&file, damaged).unwrap();
    let many = |count: usize, more: &[&str]| {
        let mut command = cider();
        command.args(["run", MODEL, "What?"]).args(more);
        for _ in 0..count {
            command.arg("--image").arg(&file);
        }
        finish(&mut command)
    };
    failed(&many(1, &[]), &["image 1", "the PNG is damaged"]);
    let tokens = "80 images of 11520 tokens exceed the context of 4096 tokens";
    failed(
        &many(80, &[]),
        &[tokens, "fewer pictures", "--max-image-tokens"],
    );
    let tokens = "2 images of 288 tokens exceed the context of 288 tokens";
    failed(&many(2, &["--ctx", "288"]), &[tokens]);
    failed(&many(2, &["--ctx", "289"]), &["the PNG is damaged"]);
    let mut command = cider();
    command.args(["debug", "logits", MODEL, "--chat", "What?", "--ctx", "100"]);
    command.args(["-o", "x", "--image"]).arg(&file);
    failed(
        &finish(&mut command),
        &["1 image of 144 tokens exceeds the context of 100"],
    );
    // With the text they are too many: that is seen before the tower runs.
    let picture = "examples/pictures/scene.png";
    let text = run(["run", MODEL, "What?", "--image", picture, "--ctx", "150"]);
    failed(
        &text,
        &[
            "1 image of 144 tokens and",
            "of text exceed the context of 150 tokens",
        ],
    );
}

#[test]
fn more_pictures_than_the_model_was_trained_on_are_warned_of() {
    let said = |count: usize| {
        let mut command = cider();
        command.args(["run", MODEL, "How many?", "--quiet", "--max-tokens", "2"]);
        for _ in 0..count {
            command.args(["--image", "examples/pictures/scene.png"]);
        }
        finish(&mut command).succeeded().stderr
    };
    assert_eq!(said(3), "");
    let warned = said(4);
    assert!(
        warned.starts_with("warning: 4 images in one prompt: the model was trained on at most 3"),
        "{warned}"
    );
}

#[test]
fn bounds_count_where_there_is_a_picture() {
    let picture = "examples/pictures/scene.png";
    // Without a picture there is nothing to bound.
    let alone = [
        "run",
        MODEL,
        "hello",
        "--max-image-tokens",
        "8",
        "--max-tokens",
        "2",
    ];
    run(alone).succeeded();
    let preprocess = [
        "debug",
        "preprocess",
        picture,
        "-o",
        "x",
        "--max-image-tokens",
        "8",
    ];
    failed(
        &run(preprocess),
        &["--max-image-tokens 8 is below", "64 tokens"],
    );
}
