//! Pictures: what the small model answers, where its time goes, what it takes, and what a terminal does with them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, slice};

use serde_json::Value;

use crate::memory::{peak_anonymous, start};
use crate::process::{chat_with, terminal};
use crate::support::{cider, encode_base64, finish, finish_with, folder, root, run, testdata};

const MODEL: &str = "models/demo-vlm";

/// A call of `run` with pictures and a question.
fn ask(pictures: &[PathBuf], question: &str, more: &[&str]) -> Command {
    let mut command = cider();
    command.args(["-q", "run", MODEL, question]).args(more);
    for picture in pictures {
        command.arg("--image").arg(picture);
    }
    command
}

fn strings(value: &Value) -> Vec<&str> {
    let list = value.as_array().unwrap().iter();
    list.map(|entry| entry.as_str().unwrap()).collect()
}

#[test]
fn held_out_questions_are_answered_as_by_the_reference() {
    let folder = testdata("vl/heldout");
    let lines = fs::read_to_string(folder.join("questions.jsonl")).unwrap();
    let mut counts = [0; 4];
    for line in lines.lines().take(16) {
        let entry: Value = serde_json::from_str(line).unwrap();
        let files = strings(&entry["images"]);
        counts[files.len()] += 1;
        let files: Vec<_> = files.iter().map(|file| folder.join(file)).collect();
        let exact = ["--scheme", "none", "--dtype", "f32"];
        let question = entry["question"].as_str().unwrap();
        let found = finish(&mut ask(&files, question, &exact)).succeeded();
        assert_eq!(found.stdout.trim_end(), entry["reference"], "{line}");
    }
    assert!(counts[1] > 3 && counts[2] + counts[3] > 1, "{counts:?}");
}

#[test]
fn examples_are_answered_as_the_program_comes() {
    let folder = root().join(MODEL).join("examples");
    let text = fs::read_to_string(folder.join("examples.json")).unwrap();
    let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut wrong = Vec::new();
    for entry in &entries {
        let files: Vec<_> = strings(&entry["images"])
            .iter()
            .map(|file| folder.join(file))
            .collect();
        let question = entry["question"].as_str().unwrap();
        let found = finish(&mut ask(&files, question, &[])).succeeded().stdout;
        if found.trim_end() != entry["answer"] {
            wrong.push(format!("{question}: {found}"));
        }
    }
    assert!(entries.len() >= 12 && wrong.len() <= 1, "{wrong:?}");
}

#[test]
fn the_phases_of_an_answer_are_reported() {
    let files =
        ["scene.png", "squares.png"].map(|name| root().join("examples/pictures").join(name));
    let question = "Which image shows a circle?";
    let report = finish(&mut ask(&files, question, &["--json"]))
        .succeeded()
        .json();
    assert_eq!(report["text"], "The first image shows a circle.");
    assert_eq!(report["images"], 2);
    let tokens = report["image_tokens"].as_u64().unwrap();
    assert!((128..=288).contains(&tokens), "{report}");
    assert!(
        report["prompt_tokens"].as_u64().unwrap() > tokens + 8,
        "{report}"
    );
    let phases = report["phases"].as_object().unwrap();
    let names = ["decode", "image_preprocessing", "prefill", "vision_tower"];
    let mut found: Vec<_> = phases.keys().collect();
    found.sort();
    assert_eq!(found, names);
    let figure = |name: &str, what: &str| phases[name][what].as_f64().unwrap();
    let sum = |what| names.map(|name| figure(name, what)).iter().sum::<f64>();
    assert!(
        names.iter().all(|name| figure(name, "seconds") > 0.0),
        "{report}"
    );
    assert!((sum("share") - 1.0).abs() < 1e-9, "{report}");
    let first = report["first_token_seconds"].as_f64().unwrap();
    let before = sum("seconds") - figure("decode", "seconds");
    assert!((first - before).abs() < 1e-9, "{report}");

    let mut command = cider();
    command
        .args(["run", MODEL, question, "--image"])
        .arg(&files[0]);
    let line = finish(&mut command).succeeded().stderr;
    let line = line.lines().last().unwrap();
    for part in [
        "for 1 image)",
        "image preprocessing 0.",
        "vision tower 0.",
        "prefill",
        "decode",
        " %",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let text = run(["run", MODEL, "hello"]).succeeded().stderr;
    assert!(
        !text.contains("image") && text.contains("prefill"),
        "{text}"
    );
}

#[test]
fn a_data_url_is_as_good_as_a_file() {
    let file = root().join("examples/pictures/word.png");
    let data = encode_base64(&fs::read(&file).unwrap());
    let url = PathBuf::from(format!("data:image/png;base64,{data}"));
    let answer = |picture| {
        finish(&mut ask(&[picture], "What word is written here?", &[]))
            .succeeded()
            .stdout
    };
    let expected = answer(file);
    assert!(expected.contains("APPLE"), "{expected}");
    assert_eq!(answer(url), expected);
}

#[test]
fn pictures_come_in_their_order_and_raw_prompts_name_their_places() {
    let pictures = root().join("examples/pictures");
    let [first, second] = ["scene.png", "squares.png"].map(|name| pictures.join(name));
    let question = "Which image shows a circle?";
    let swapped = finish(&mut ask(&[second, first.clone()], question, &[])).succeeded();
    assert_eq!(swapped.stdout, "The second image shows a circle.\n");
    let report = |command: &mut Command| finish(command).succeeded().json();
    let chat = report(&mut ask(
        slice::from_ref(&first),
        "Is there a circle?",
        &["--json"],
    ));
    let raw = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Is there a circle?<|im_end|>\n\
               <|im_start|>assistant\n";
    let raw = report(&mut ask(&[first], raw, &["--json", "--raw"]));
    for figure in ["prompt_tokens", "image_tokens", "tokens"] {
        assert_eq!(raw[figure], chat[figure], "{figure}");
    }
}

#[test]
fn the_tower_can_be_quantised_and_pictures_be_bounded() {
    let picture = [root().join("examples/pictures/scene.png")];
    let report = |more: &[&str]| {
        let mut all = vec!["--json"];
        all.extend(more);
        finish(&mut ask(&picture, "What is in this image?", &all))
            .succeeded()
            .json()
    };
    let plain = report(&[]);
    let weights = |report: &Value| report["memory"]["weights"].as_u64().unwrap();
    assert_eq!(plain["text"], report(&["--vision-scheme", "none"])["text"]);
    for scheme in ["w8a16", "w8a8"] {
        let quantised = report(&["--vision-scheme", scheme]);
        assert!(
            weights(&quantised) < weights(&plain),
            "{scheme}: {quantised}"
        );
        let text = quantised["text"].as_str().unwrap();
        assert!(text.starts_with("The image shows"), "{scheme}: {text}");
    }
    let tokens = |more: &[&str]| report(more)["image_tokens"].as_u64().unwrap();
    let most = tokens(&["--max-image-tokens", "80"]);
    assert!((64..=80).contains(&most), "{most}");
    let least = tokens(&["--min-image-tokens", "300", "--max-image-tokens", "400"]);
    assert!((300..=400).contains(&least), "{least}");
}

/// A screenshot's size, with light lines of dark dots over a gradient, as a BMP.
fn write_screenshot(path: &Path) {
    let (width, height) = (1280_usize, 831_usize);
    let mut file = b"BM".to_vec();
    let words = [54 + 3 * width * height, 0, 54, 40, width, height];
    file.extend(words.iter().flat_map(|&word| (word as u32).to_le_bytes()));
    file.extend([1, 0, 24, 0]);
    file.extend([0; 24]);
    for y in 0..height {
        for x in 0..width {
            let dark =
                y % 18 > 6 && (x * 2_654_435_761 + (y / 2) * 40_503) >> 7 & 7 < 3 && x % 9 > 1;
            let gradient = [200 + y / 20, 210 + x / 40, 255 - y / 16];
            file.extend(gradient.map(|sample| if dark { 30 } else { sample as u8 }));
        }
    }
    fs::write(path, file).unwrap();
}

#[test]
fn a_screenshot_takes_little_more_memory_than_the_model() {
    let file = folder("screenshot").join("screen.bmp");
    write_screenshot(&file);
    // Once as the model wants it, once in all its 1280x832 pixels.
    for (most, tokens) in [("144", 100..=144), ("1040", 1040..=1040)] {
        let more = ["--json", "--max-tokens", "16", "--max-image-tokens", most];
        let mut child = start(&mut ask(
            slice::from_ref(&file),
            "What is in this image?",
            &more,
        ));
        let peak = peak_anonymous(&mut child);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = report["image_tokens"].as_u64().unwrap();
        assert!(tokens.contains(&found), "{report}");
        let weights = report["memory"]["weights"].as_u64().unwrap();
        eprintln!(
            "{found} tokens: peak {peak}, weights {weights}, {}",
            report["phases"]
        );
        assert!(
            peak <= weights + 200_000_000,
            "{peak} over {weights}: {report}"
        );
    }
}

#[test]
fn a_chat_takes_names_with_spaces_and_quotes() {
    let folder = folder("names with spaces");
    let file = folder.join("two words.png");
    fs::copy(root().join("examples/pictures/scene.png"), &file).unwrap();
    let name = file.to_str().unwrap();
    let lines = [
        format!("/image {name}"),
        format!("/image \"{name}\""),
        format!("/image {}", name.replace(' ', "\\ ")),
        "/exit".to_owned(),
    ];
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let said = chat_with(MODEL, &lines);
    assert!(!said.contains("error"), "{said}");
    assert!(said.contains("image 3: "), "{said}");
    // Bounds that the model cannot keep are said when a picture comes, not before.
    let bounded = [MODEL, "--max-image-tokens", "8", "--max-tokens", "2"];
    let said = terminal(&bounded, &["hello", lines[0], "/exit"])
        .succeeded()
        .stdout;
    assert!(
        said.contains("error: --max-image-tokens 8 is below"),
        "{said}"
    );
}

#[test]
fn a_chat_shows_pictures_and_remembers_them() {
    let said = chat_with(
        MODEL,
        &[
            "/image examples/pictures/nothing.png",
            "/image",
            "/image examples/pictures/scene.png",
            "How many shapes are there?",
            "Is there a white circle?",
            "/clear",
            "hello",
            "/exit",
        ],
    );
    assert!(
        said.contains("error: image 1 (examples/pictures/nothing.png)"),
        "{said}"
    );
    assert!(said.contains("/image FILE: a picture that goes"), "{said}");
    assert!(said.contains("image 1: "), "{said}");
    assert!(said.contains("There are three shapes."), "{said}");
    assert!(said.contains("Yes, there is a white circle"), "{said}");
    let figures: Vec<_> = said
        .lines()
        .filter(|line| line.contains("prompt tokens"))
        .collect();
    let [first, second, third] = figures.as_slice() else {
        panic!("{said}");
    };
    // The picture stays in the conversation, and is neither encoded nor read again.
    assert!(
        first.contains("for 1 image)") && second.contains("for 1 image)"),
        "{said}"
    );
    assert!(
        second.contains("vision tower 0.000 s") && second.contains("cached"),
        "{said}"
    );
    assert!(!third.contains("image"), "{said}");
}

#[test]
fn without_a_model_the_small_one_answers() {
    let picture = "examples/pictures/scene.png";
    let arguments = ["-q", "run", "--image", picture, "What is in this image?"];
    let expected = "The image shows a small blue diamond, a large white circle and a large black diamond on a gray background.\n";
    assert_eq!(run(arguments).succeeded().stdout, expected);
    let piped = finish_with(
        cider().args(["-q", "run", "--image", picture]),
        b"What is in this image?\n",
    );
    assert_eq!(piped.succeeded().stdout, expected);
    // A single argument that is a model takes its prompt from standard input.
    let named = finish_with(
        cider().args(["-q", "run", MODEL, "--image", picture]),
        b"What is in this image?\n",
    );
    assert_eq!(named.succeeded().stdout, expected);
}

#[test]
fn the_small_model_is_found_where_an_installation_has_it() {
    let base = std::env::temp_dir().join(format!("cider-e2e-{}", std::process::id()));
    let program = base.join("bin/cider");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_cider"), &program).unwrap();
    let hello = |data: Option<&Path>| {
        let mut command = Command::new(&program);
        command.args(["-q", "run", "hello"]).current_dir(root());
        command.env_remove("CIDER_DATA");
        command.envs(data.map(|folder| ("CIDER_DATA", folder)));
        finish(&mut command)
    };
    let nowhere = hello(None);
    assert_eq!(nowhere.status.code(), Some(2), "{nowhere:?}");
    for part in [
        "no MODEL",
        "bin/models/demo-vlm",
        "share/cider/models/demo-vlm",
        "CIDER_DATA",
    ] {
        assert!(nowhere.stderr.contains(part), "{part}: {nowhere:?}");
    }
    assert_eq!(nowhere.stderr.lines().count(), 1, "{nowhere:?}");
    let expected = hello(Some(root())).succeeded().stdout;
    assert!(expected.starts_with("Hello"), "{expected}");
    let model = root().join(MODEL).canonicalize().unwrap();
    for place in ["bin/models", "share/cider/models", "models"] {
        let place = base.join(place);
        fs::create_dir_all(&place).unwrap();
        let link = place.join("demo-vlm");
        std::os::unix::fs::symlink(&model, &link).unwrap();
        assert_eq!(
            hello(None).succeeded().stdout,
            expected,
            "{}",
            place.display()
        );
        fs::remove_file(link).unwrap();
    }
    fs::remove_dir_all(base).unwrap();
}

#[test]
fn info_describes_the_tower() {
    let text = run(["info", MODEL]).succeeded().stdout;
    for part in [
        "6 blocks, hidden 128",
        "24x24 positions",
        "[0, 2, 4]",
        "64 to 144 tokens",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let report = run(["info", MODEL, "--json"]).succeeded().json();
    let vision = &report["model"]["vision"];
    assert_eq!(vision["images"]["max_pixels"], 147_456);
    let bytes = vision["bytes"].as_u64().unwrap();
    assert!((1_000_000..16_000_000).contains(&bytes), "{vision}");
    let text_only = run(["info", "testdata/llama3-tied", "--json"])
        .succeeded()
        .json();
    assert!(text_only["model"].get("vision").is_none(), "{text_only}");
}
