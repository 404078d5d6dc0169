//! Safetensors files whose header cannot be true.

use std::fs;

use cider::load::safetensors::{self, Dtype, Tensor};

use crate::support::{Folder, Made, Tiny, assert_refused};

/// A file of `header` and as many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[track_caller]
fn assert_bad(bytes: &[u8], parts: &[&str]) {
    let folder = Folder::new();
    let path = folder.write("bad.safetensors", bytes);
    let mut parts = parts.to_vec();
    parts.push("bad.safetensors");
    assert_refused(safetensors::open(&path), &parts);
}

#[test]
fn a_cut_file_is_refused() {
    let folder = Folder::new();
    Tiny::qwen3().save(&folder);
    let whole = fs::read(folder.path().join("model.safetensors")).unwrap();
    assert_bad(&whole[..whole.len() - 1], &["bytes of data", "cut?"]);
    assert_bad(&whole[..whole.len() / 2], &["bytes of data", "cut?"]);
    assert_bad(&whole[..100], &["header of", "in a file of 100"]);
    assert_bad(&whole[..4], &["at least 8 bytes, found 4"]);
    assert_bad(&[], &["at least 8 bytes, found 0"]);
    let longer = [whole.as_slice(), &[0]].concat();
    assert_bad(&longer, &["the tensors end at byte"]);
    // The message of the checkpoint is the file's.
    folder.write("model.safetensors", &whole[..whole.len() - 1]);
    assert_refused(folder.open(), &["model.safetensors", "cut?"]);
}

#[test]
fn a_header_must_be_a_header() {
    let mut long = file("{}", 0);
    long[..8].copy_from_slice(&1_000_000_000_000u64.to_le_bytes());
    assert_bad(&long, &["header of 1000000000000 bytes in a file of 10"]);
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_bad(&long, &["18446744073709551615"]);
    assert_bad(&file("not JSON", 0), &["header: "]);
    assert_bad(&file("[1]", 0), &["header: "]);
    assert_bad(&file("", 0), &["header: "]);
    assert_bad(&file(&"[".repeat(100_000), 0), &["header: "]);
    assert_bad(&file("{\"a\": \u{fffd}}", 0), &["header: "]);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n";
    assert_bad(pointer.as_bytes(), &["Git LFS pointer"]);
}

#[test]
fn an_entry_must_be_able_to_be_true() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"t": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}}}"#)
    };
    for (header, data, what) in [
        (
            one("F32", "[2]", "[8, 0]"),
            8,
            "begins at 8, after its end at 0",
        ),
        (
            one("F32", "[2]", "[0, 7]"),
            7,
            "F32 of shape [2] is 8 bytes, the range 7",
        ),
        (
            one("BF16", "[3, 2]", "[0, 8]"),
            8,
            "BF16 of shape [3, 2] is 12 bytes, the range 8",
        ),
        (one("F32", "[2]", "[0, 8]"), 7, "ends at byte 8 of 7"),
        (
            one("F32", "[2]", "[4, 12]"),
            12,
            "begins at 4, after a gap from 0",
        ),
        (one("F99", "[2]", "[0, 8]"), 8, "type \"F99\" is not known"),
        (
            one("F32", "[4294967296, 4294967296]", "[0, 8]"),
            8,
            "too large to count",
        ),
        (
            one("F32", "[4611686018427387904]", "[0, 8]"),
            8,
            "too large to count",
        ),
        (
            one("F32", "[18446744073709551616]", "[0, 8]"),
            8,
            "tensor t: ",
        ),
        (one("F32", "[-1]", "[0, 8]"), 8, "tensor t: "),
        (one("F32", "[2.5]", "[0, 8]"), 8, "tensor t: "),
        (one("F32", "[2]", "[0, 8, 16]"), 8, "tensor t: "),
        (one("F32", "[2]", "[0]"), 8, "tensor t: "),
        (
            r#"{"t": {"dtype": "F32", "shape": [2]}}"#.to_owned(),
            8,
            "tensor t: ",
        ),
        (r#"{"t": 5}"#.to_owned(), 8, "tensor t: "),
    ] {
        assert_bad(&file(&header, data), &["t", what]);
    }
}

#[test]
fn tensors_must_not_share_names_or_bytes() {
    let entry = |name: &str, begin: usize, end: usize| {
        format!(r#""{name}": {{"dtype": "U8", "shape": [8], "data_offsets": [{begin}, {end}]}}"#)
    };
    let two = |a, b| format!("{{{a}, {b}}}");
    let overlap = two(entry("a", 0, 8), entry("b", 4, 12));
    assert_bad(
        &file(&overlap, 12),
        &["b", "begins at 4, inside the tensor that ends at 8"],
    );
    let twice = two(entry("a", 0, 8), entry("a", 8, 16));
    assert_bad(&file(&twice, 16), &["tensor a", "two tensors of this name"]);
    // The order in the header is free.
    let folder = Folder::new();
    let swapped = file(&two(entry("a", 8, 16), entry("b", 0, 8)), 16);
    safetensors::open(&folder.write("swapped.safetensors", swapped)).unwrap();
}

#[test]
fn an_empty_tensor_is_one() {
    let folder = Folder::new();
    let header = r#"{"e": {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]}}"#;
    let tensors = safetensors::open(&folder.write("e.safetensors", file(header, 0))).unwrap();
    assert_eq!(tensors.get("e").unwrap().rows(), 0);
    assert!(tensors.get("e").unwrap().read_all().is_empty());
}

#[test]
fn a_type_that_is_no_float_is_refused_where_a_weight_is_needed() {
    let folder = Folder::new();
    let path = folder.path().join("ints.safetensors");
    let bytes: Vec<u8> = (0..16).collect();
    let ids = Tensor {
        name: "ids",
        dtype: Dtype::I64,
        shape: &[2],
        bytes: &bytes,
    };
    safetensors::write(&path, &[ids], &[]).unwrap();
    let tensors = safetensors::open(&path).unwrap();
    assert!(tensors.get("ids").is_none());
    assert_refused(
        tensors.require("ids", &[2]),
        &["ids", "type I64 is not supported"],
    );
    assert_refused(
        tensors.require("other", &[2]),
        &["ints.safetensors", "other", "missing"],
    );
}

#[test]
fn what_is_written_is_read() {
    let folder = Folder::new();
    let path = folder.path().join("out.safetensors");
    folder.write("out.safetensors", "what was there before");
    let made = Made::new("logits", &[3, 5], 4);
    let (ids, bytes) = (7i64.to_le_bytes(), made.bytes());
    let tensors = [
        Tensor {
            name: "ids",
            dtype: Dtype::I64,
            shape: &[1],
            bytes: &ids,
        },
        Tensor {
            name: "logits",
            dtype: Dtype::Bf16,
            shape: &[3, 5],
            bytes: &bytes,
        },
        Tensor {
            name: "none",
            dtype: Dtype::F32,
            shape: &[0],
            bytes: &[],
        },
    ];
    safetensors::write(&path, &tensors, &[("scheme", "w8a8")]).unwrap();
    let read = safetensors::open(&path).unwrap();
    assert_eq!(
        read.require("logits", &[3, 5]).unwrap().read_all(),
        made.values
    );
    let mut row = [0.0; 5];
    read.get("logits").unwrap().read_row(2, &mut row);
    assert_eq!(row, made.values[10..]);
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "a temporary file is left"
    );
    let whole = fs::read(&path).unwrap();
    let header = usize::try_from(u64::from_le_bytes(*whole.first_chunk().unwrap())).unwrap();
    assert_eq!(header % 8, 0);
    assert!(String::from_utf8_lossy(&whole[8..8 + header]).contains(r#"{"scheme":"w8a8"}"#));
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let folder = Folder::new();
    let path = folder.path().join("out.safetensors");
    let short = Tensor {
        name: "t",
        dtype: Dtype::F32,
        shape: &[2],
        bytes: &[0; 7],
    };
    let parts = ["out.safetensors", "tensor t", "F32 of shape [2]", "7 bytes"];
    assert_refused(safetensors::write(&path, &[short], &[]), &parts);
    let one = Tensor {
        name: "t",
        dtype: Dtype::U8,
        shape: &[1],
        bytes: &[0],
    };
    assert_refused(
        safetensors::write(&path, &[one, one], &[]),
        &["the name is taken"],
    );
    let nowhere = folder.path().join("none").join("out.safetensors");
    assert_refused(safetensors::write(&nowhere, &[one], &[]), &["none"]);
    fs::create_dir(&path).unwrap();
    assert_refused(safetensors::write(&path, &[one], &[]), &["out.safetensors"]);
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "a temporary file is left"
    );
}
