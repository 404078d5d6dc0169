//! The names and array layouts of the public W8A8 package for MLX, against data that numpy made, on every
//! instruction set of the machine.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod arrays;
mod convert;
mod layouts;
mod shapes;

#[path = "../../../testdata/recipe.rs"]
mod recipe;

#[expect(dead_code, reason = "its `main` is for the command line")]
#[path = "../../../examples/generate.rs"]
mod generate;
#[expect(dead_code, reason = "its `main` is for the command line")]
#[path = "../../../examples/linear.rs"]
mod linear;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use cider::ops::with_backend;
use cider::{CpuBackend, Isa};

/// Runs `body` on every instruction set of the machine; says which it lacks.
fn on_every_isa(mut body: impl FnMut(Isa)) {
    for isa in Isa::ALL {
        if let Some(why) = isa.why_not() {
            eprintln!("skipped {isa}: {why}");
            continue;
        }
        let backend = CpuBackend::new(isa, 2).unwrap();
        with_backend(Arc::new(backend), || body(isa));
    }
}

/// A folder that goes when the value does.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("cider-seed-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_linear_example_prints_what_each_layer_loses() {
    let mut out = Vec::new();
    linear::run([3, 40, 100], &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let error = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let column = line[name.len()..].split_whitespace().nth(1).unwrap();
        column.parse().unwrap()
    };
    // A step of the integers over the largest magnitude: 1/127 and 1/7, both sides for a8.
    for (name, limit) in [("w8a16 ", 0.01), ("w8a8 ", 0.02), ("w4a16 group 64 ", 0.15)] {
        let error = error(name);
        assert!(error > 0.0 && error < limit, "{name}: {error}\n{text}");
    }
    assert!(error("w4a8 ") > error("w8a8 "), "{text}");
}

#[test]
fn the_generate_example_streams_the_answer() {
    let folder = Folder::new("chain");
    let scripts = fs::read(arrays::testdata().join("f-chain/scripts.json")).unwrap();
    let scripts = serde_json::from_slice(&scripts).unwrap();
    recipe::build_chain(&scripts, &folder.0).unwrap();
    let mut out = Vec::new();
    generate::run(&folder.0, "say 2", &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("ABCDEFGHIJK\n5 + 7 tokens, "), "{text}");
    let missing = generate::run(&folder.0.join("none"), "say 2", &mut Vec::new());
    assert!(missing.unwrap_err().to_string().contains("none"));
}
