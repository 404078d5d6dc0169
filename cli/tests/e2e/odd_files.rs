//! Files that are no regular files, and names that would break a line.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, os::unix::net::UnixListener};

use crate::errors::failed;
use crate::support::{Outcome, cider, finish, folder, root, testdata};

const PICTURE: &str = "testdata/vl/images/photo.png";

/// A pipe that nobody writes to.
fn pipe(path: &Path) -> PathBuf {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
    path.to_path_buf()
}

/// Runs the program, which must end by itself.
fn within_time<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Outcome {
    let mut command = Command::new("timeout");
    command
        .args(["60", env!("CARGO_BIN_EXE_cider")])
        .args(arguments)
        .current_dir(root());
    finish(&mut command)
}

/// The tiny model with vision in a folder of its own.
fn model(folder: &Path) -> PathBuf {
    let target = folder.join("model");
    fs::create_dir_all(&target).unwrap();
    for entry in fs::read_dir(testdata("vl/tiny")).unwrap() {
        let from = entry.unwrap().path();
        if from.is_file() {
            fs::copy(&from, target.join(from.file_name().unwrap())).unwrap();
        }
    }
    target
}

#[test]
fn a_picture_that_is_a_pipe_a_socket_or_a_device_does_not_hang() {
    let folder = folder("odd-pictures");
    let pipe = pipe(&folder.join("pipe.png"));
    let socket = folder.join("socket.png");
    let _listener = UnixListener::bind(&socket).unwrap();
    for odd in [&pipe, &socket, Path::new("/dev/zero"), &folder] {
        let name = odd.file_name().unwrap().to_str().unwrap();
        let parts = ["image 1", name, "not a regular file"];
        let odd = odd.as_os_str();
        let output = folder.join("out");
        let arguments: [&OsStr; 6] = [
            "run".as_ref(),
            "models/demo-vlm".as_ref(),
            "What?".as_ref(),
            "--image".as_ref(),
            odd,
            "--quiet".as_ref(),
        ];
        failed(&within_time(arguments), &parts);
        let arguments: [&OsStr; 5] = [
            "debug".as_ref(),
            "preprocess".as_ref(),
            odd,
            "-o".as_ref(),
            output.as_ref(),
        ];
        failed(&within_time(arguments), &parts);
    }
    let link = folder.join("link.png");
    std::os::unix::fs::symlink(root().canonicalize().unwrap().join(PICTURE), &link).unwrap();
    let output = folder.join("out");
    let arguments = ["debug", "preprocess", "-o"].map(OsStr::new);
    let arguments = arguments
        .into_iter()
        .chain([output.as_ref(), link.as_ref()]);
    within_time(arguments).succeeded();
}

#[test]
fn no_file_of_a_model_may_be_a_pipe() {
    let folder = folder("odd-models");
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "preprocessor_config.json",
        "processor_config.json",
    ] {
        let model = model(&folder);
        let file = model.join(name);
        let _ = fs::remove_file(&file);
        pipe(&file);
        let arguments = ["run", model.to_str().unwrap(), "x", "--image", PICTURE];
        failed(&within_time(arguments), &[name, "not a regular file"]);
        fs::remove_dir_all(&model).unwrap();
    }
    let model = model(&folder);
    let gguf = pipe(&folder.join("pipe.gguf"));
    failed(
        &within_time(["run", gguf.to_str().unwrap(), "x"]),
        &["pipe.gguf", "not a regular file"],
    );
    let odd = pipe(&folder.join("pipe"));
    let (model, odd) = (model.to_str().unwrap(), odd.to_str().unwrap());
    let template = ["run", model, "x", "--chat-template", odd];
    failed(&within_time(template), &["pipe", "not a regular file"]);
    let logits = ["debug", "logits", model, "--tokens", "1"];
    let beside = [&logits[..], &["-o", "x", "--batch-with", odd]].concat();
    failed(&within_time(beside), &["pipe", "not a regular file"]);
    let onto = [&logits[..], &["-o", odd]].concat();
    failed(&within_time(onto), &["pipe", "not a regular file"]);
}

#[test]
fn names_with_control_characters_are_shown_escaped_and_whole() {
    let folder = folder("odd-names");
    let name = "two\n  lines\u{1b}[31m.png";
    let shown = "two\\n  lines\\u{1b}[31m.png";
    let absent = folder.join(name);
    let absent = absent.to_str().unwrap();
    let run = |more: &[&str]| finish(cider().arg("run").args(more));
    failed(
        &run(&["models/demo-vlm", "What?", "--image", absent]),
        &["image 1", shown, "No such file"],
    );
    failed(&run(&[absent, "x"]), &[shown, "No such file"]);
    failed(
        &run(&["models/demo-vlm", "x", "--chat-template", absent]),
        &[shown, "No such file"],
    );
    let logits = ["debug", "logits", "testdata/vl/tiny", "--tokens", "1", "-o"];
    let beside = folder.join("x");
    let mut command = cider();
    command
        .args(logits)
        .arg(&beside)
        .args(["--batch-with", absent]);
    failed(&finish(&mut command), &[shown, "No such file"]);
    let mut command = cider();
    command.args(logits).arg(folder.join(name).join("out"));
    failed(&finish(&mut command), &[shown]);
    // In a model's folder: weights of an odd name.
    let model = model(&folder);
    fs::rename(
        model.join("model.safetensors"),
        model.join("a\nb.safetensors"),
    )
    .unwrap();
    fs::write(model.join("c.safetensors"), "").unwrap();
    failed(
        &run(&[model.to_str().unwrap(), "x"]),
        &["a\\nb.safetensors and c.safetensors"],
    );
    // Where figures go to standard output, a name takes one line too.
    let picture = folder.join("line\nbreak.png");
    fs::copy(root().join(PICTURE), &picture).unwrap();
    let mut command = cider();
    command.args(["debug", "preprocess", "-o"]).arg(&beside);
    let outcome = finish(command.arg(&picture)).succeeded();
    assert_eq!(outcome.stdout.lines().count(), 1, "{outcome:?}");
    assert!(outcome.stdout.contains("line\\nbreak.png:"), "{outcome:?}");
}
