//! Running the program, and the models it runs on.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::{fs, thread};

use cider::Isa;
use serde_json::Value;

use crate::recipe;

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// The run, which must have ended with exit code 0.
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.status.code(), Some(0), "{self:?}");
        self
    }

    /// Its standard output as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The program with an environment that forces nothing.
pub(crate) fn cider() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cider"));
    command
        .env_remove("CIDER_CPU")
        .env_remove("CIDER_THREADS")
        .env_remove("CIDER_DATA");
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs a command to its end; whatever happens, nothing may panic.
pub(crate) fn finish(command: &mut Command) -> Outcome {
    finish_with(command, b"")
}

/// As [`finish`], with bytes on standard input.
pub(crate) fn finish_with(command: &mut Command, input: &[u8]) -> Outcome {
    if !input.is_empty() {
        command.stdin(Stdio::piped());
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    if let Some(mut stdin) = child.stdin.take() {
        let input = input.to_owned();
        // A program that has failed already does not read: that is for the caller to find out.
        thread::spawn(move || drop(stdin.write_all(&input)));
    }
    let output = child.wait_with_output().unwrap();
    let outcome = Outcome {
        status: output.status,
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    outcome
}

/// Runs the program with arguments.
pub(crate) fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Outcome {
    finish(cider().args(arguments))
}

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A fixture of `testdata`.
pub(crate) fn testdata(name: &str) -> PathBuf {
    root().join("testdata").join(name)
}

/// An empty folder of this test.
pub(crate) fn folder(test: &str) -> PathBuf {
    // Tests run side by side: of two with one folder, each would empty the other's.
    let fresh = TAKEN.lock().unwrap().insert(test.to_owned());
    assert!(fresh, "two folders are named {test}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The names of folders so far.
static TAKEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// F-TINY, built from its recipe.
pub(crate) fn f_tiny() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = folder("f-tiny");
        recipe::build_model(&testdata("f-tiny"), &target).unwrap();
        target
    })
}

/// The trained model.
pub(crate) fn smollm2() -> &'static str {
    static FETCHED: OnceLock<String> = OnceLock::new();
    FETCHED.get_or_init(|| {
        let output = Command::new(root().join("scripts/fetch-smollm2"))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "the model of the tests cannot be had: {stderr}"
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    })
}

/// An array of i64 in a safetensors file: its shape and its elements.
pub(crate) fn integers(path: &Path, name: &str) -> (Vec<u64>, Vec<i64>) {
    let bytes = fs::read(path).unwrap();
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let entry = &header[name];
    assert_eq!(entry["dtype"], "I64", "{name} in {}", path.display());
    let numbers = |key: &str| -> Vec<u64> {
        let list = entry[key].as_array().unwrap().iter();
        list.map(|number| number.as_u64().unwrap()).collect()
    };
    let offsets = numbers("data_offsets");
    let data = &bytes[start..][offsets[0] as usize..offsets[1] as usize];
    let elements = data.as_chunks::<8>().0.iter();
    (
        numbers("shape"),
        elements
            .map(|element| i64::from_le_bytes(*element))
            .collect(),
    )
}

/// Bytes as base64.
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(padded);
        for place in 0..4 {
            let letter = letters[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place > group.len() {
                '='
            } else {
                char::from(letter)
            });
        }
    }
    text
}

/// The instruction sets of this machine; the others are printed with the reason, and counted.
pub(crate) fn levels() -> Vec<Isa> {
    let (available, absent): (Vec<_>, Vec<_>) = Isa::ALL
        .into_iter()
        .partition(|isa| isa.why_not().is_none());
    for isa in &absent {
        eprintln!("skipped: {isa}: {}", isa.why_not().unwrap_or_default());
    }
    eprintln!("levels: {} run, {} skipped", available.len(), absent.len());
    assert!(available.contains(&Isa::Scalar));
    available
}

/// Every scheme, with group sizes beside the default ones.
pub(crate) const SCHEMES: [&[&str]; 10] = [
    &["--scheme", "none"],
    &["--scheme", "none", "--head", "int8"],
    &["--scheme", "w8a16"],
    &["--scheme", "w8a16", "--group-size", "64"],
    &["--scheme", "w4a16"],
    &["--scheme", "w8a8"],
    &["--scheme", "w8a8", "--group-size", "32", "--head", "none"],
    &["--scheme", "w8a8", "--group-size", "128"],
    &["--scheme", "w4a8"],
    &["--scheme", "w4a8", "--group-size", "0"],
];
