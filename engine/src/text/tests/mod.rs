//! Tests of the text half against testdata/text and testdata/templates, which hold what the
//! reference implementations give.

mod chats;
mod forgery;
mod hostile;
mod places;
mod tokenizers;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(path)
}

fn json(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(testdata(path)).unwrap()).unwrap()
}

pub(super) fn fixture(name: &str) -> Tokenizer {
    Tokenizer::from_folder(&testdata(&format!("text/{name}"))).unwrap()
}

fn template(name: &str) -> ChatTemplate {
    let path = testdata(&format!("templates/{name}"));
    ChatTemplate::new(&fs::read_to_string(path).unwrap(), name).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cider-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn copy(&self, path: &str) {
        let from = testdata(path);
        fs::copy(&from, self.0.join(from.file_name().unwrap())).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}
