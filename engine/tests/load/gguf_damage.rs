//! GGUF files that are cut, hostile or of another kind. Each error comes at once and without
//! memory for what the file claims.

use std::fs;
use std::time::{Duration, Instant};

use cider::load::Checkpoint;
use cider::load::gguf::Gguf;

use crate::support::{Folder, GgufFile, Tiny, assert_refused, header, info, text, value};

#[track_caller]
fn assert_bad(bytes: &[u8], parts: &[&str]) {
    let folder = Folder::new();
    let path = folder.write("bad.gguf", bytes);
    let start = Instant::now();
    let opened = Gguf::open(&path);
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{parts:?}: {:?}",
        start.elapsed()
    );
    let mut parts = parts.to_vec();
    parts.push("bad.gguf");
    assert_refused(opened, &parts);
    if let Ok(status) = fs::read_to_string("/proc/self/status") {
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        let kilobytes: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kilobytes < 200 << 10, "peak of {peak}");
    }
}

/// One value and one tensor of 32 floats; then any part of it may be replaced.
fn file(value: &[u8], info: &[u8]) -> Vec<u8> {
    let mut bytes = [header(3, 1, 1).as_slice(), value, info].concat();
    bytes.resize(bytes.len().next_multiple_of(32) + 128, 0);
    bytes
}

fn good_value() -> Vec<u8> {
    value("a", 4, &[0; 4])
}

fn with_info(info: &[u8]) -> Vec<u8> {
    file(&good_value(), info)
}

fn with_value(value: &[u8]) -> Vec<u8> {
    file(value, &info("t", &[32], 0, 0))
}

#[test]
fn the_frame_itself_is_good() {
    let folder = Folder::new();
    let bytes = with_value(&good_value());
    let gguf = Gguf::open(&folder.write("good.gguf", &bytes)).unwrap();
    assert_eq!(gguf.tensors.get("t").unwrap().read_all(), [0.0; 32]);
    // Padding after the last tensor is usual, not required.
    let one = file(&good_value(), &info("t", &[1], 0, 0));
    Gguf::open(&folder.write("short.gguf", &one[..one.len() - 124])).unwrap();
    assert_bad(
        &one[..one.len() - 120],
        &["expected 32 bytes of data, found 8"],
    );
}

#[test]
fn a_cut_file_is_refused() {
    let folder = Folder::new();
    let whole = GgufFile::of(&Tiny::qwen3(), "qwen3").bytes();
    for (length, what) in [
        (whole.len() - 1, "cut?"),
        (whole.len() / 2, "cut?"),
        (1000, "cut?"),
        (24, "number of tensors is 24"),
        (8, "number of tensors takes 8 bytes"),
        (3, "magic"),
        (0, "magic"),
    ] {
        assert_bad(&whole[..length], &[what]);
    }
    // Nor does a cut anywhere else open.
    let path = folder.write("cut.gguf", &whole);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for length in (4000..whole.len())
        .step_by(1999)
        .rev()
        .chain((0..4000).rev())
    {
        file.set_len(length as u64).unwrap();
        Checkpoint::open(&path).unwrap_err();
    }
}

#[test]
fn other_versions_and_kinds_are_refused() {
    assert_bad(&header(1, 0, 0), &["version 2 or 3, found 1"]);
    assert_bad(&header(99, 0, 0), &["version 2 or 3, found 99"]);
    assert_bad(&header(3u32.swap_bytes(), 0, 0), &["big-endian"]);
    let mut reversed = header(3, 0, 0);
    reversed[..4].reverse();
    assert_bad(&reversed, &["magic", "big-endian"]);
    assert_bad(b"PK\x03\x04 and so on", &["not a GGUF file"]);
    assert_bad(
        b"version https://git-lfs.github.com/spec/v1\noid",
        &["Git LFS pointer"],
    );
}

#[test]
fn counts_beyond_the_file_are_refused() {
    for count in [1 << 32, 1 << 40, u64::MAX] {
        assert_bad(
            &header(3, count, 0),
            &["number of tensors", &count.to_string()],
        );
        assert_bad(
            &header(3, 0, count),
            &["number of metadata values", &count.to_string()],
        );
        let long = [count.to_le_bytes().as_slice(), &[b'x'; 64]].concat();
        assert_bad(&with_value(&long), &["a metadata key", &count.to_string()]);
        assert_bad(
            &with_value(&value("a", 8, &long)),
            &["a takes", &count.to_string()],
        );
        assert_bad(&with_info(&long), &["a tensor's name", &count.to_string()]);
        for kind in [0u32, 4, 8, 12] {
            let array = [&kind.to_le_bytes(), count.to_le_bytes().as_slice()].concat();
            assert_bad(
                &with_value(&value("a", 9, &array)),
                &["a is", &count.to_string()],
            );
        }
    }
}

#[test]
fn values_must_be_of_a_known_type() {
    assert_bad(
        &with_value(&value("a", 13, &[0; 8])),
        &["a: unknown value type 13"],
    );
    assert_bad(&with_value(&value("a", u32::MAX, &[0; 8])), &["4294967295"]);
    let array = |kind: u32| [&kind.to_le_bytes(), 1u64.to_le_bytes().as_slice(), &[0; 8]].concat();
    assert_bad(
        &with_value(&value("a", 9, &array(13))),
        &["a: unknown value type 13"],
    );
    assert_bad(
        &with_value(&value("a", 9, &array(9))),
        &["a: array in an array"],
    );
    let binary = [
        1u64.to_le_bytes().as_slice(),
        &[0xff],
        &4u32.to_le_bytes(),
        &[0; 4],
    ]
    .concat();
    assert_bad(&with_value(&binary), &["a metadata key", "not UTF-8"]);
    let twice = [header(3, 0, 2), good_value(), good_value()].concat();
    assert_bad(&twice, &["a: two values of this key"]);
    assert_bad(
        &with_value(&value("general.alignment", 4, &[0; 4])),
        &["general.alignment", "0"],
    );
    let alignment = value("general.alignment", 4, &0x8000_0000u32.to_le_bytes());
    assert_bad(
        &with_value(&alignment),
        &["general.alignment", "2147483648"],
    );
    assert_bad(
        &with_value(&value("general.alignment", 8, &text("32"))),
        &["general.alignment"],
    );
}

#[test]
fn dimensions_must_be_countable() {
    let refused = |dimensions: &[u64], kind: u32, what: &str| {
        assert_bad(
            &with_info(&info("t", dimensions, kind, 0)),
            &["tensor t", what],
        );
    };
    refused(&[1; 9], 0, "1 to 4 dimensions, found 9");
    refused(&[], 0, "1 to 4 dimensions, found 0");
    refused(&[0], 0, "leave no values");
    refused(&[32, 0], 0, "leave no values");
    refused(&[1 << 32, 1 << 31], 0, "too large to count");
    refused(&[1 << 32, 1 << 32], 0, "too large to count");
    refused(&[1 << 62], 0, "too large to count");
    refused(
        &[u64::MAX, u64::MAX, u64::MAX, u64::MAX],
        0,
        "too large to count",
    );
    refused(&[1 << 40], 0, "cut?");
    refused(&[33], 8, "Q8_0 comes in blocks of 32, found rows of 33");
    refused(&[128], 12, "Q4_K comes in blocks of 256, found rows of 128");
    let mut many = info("t", &[1; 4], 0, 0);
    many[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_bad(&with_info(&many), &["tensor t", "4294967295"]);
}

#[test]
fn tensors_must_lie_in_the_file_and_apart() {
    let refused = |offset: u64, what: &str| {
        assert_bad(
            &with_info(&info("t", &[32], 0, offset)),
            &["tensor t", what],
        );
    };
    refused(1, "offset 1 is not aligned to 32");
    refused(32, "128 bytes at offset 32 of 128");
    refused(1 << 40, "cut?");
    refused(u64::MAX - 31, "cut?");
    let mut bytes = header(3, 2, 0);
    bytes.extend(info("t", &[32], 0, 0));
    bytes.extend(info("u", &[16], 0, 64));
    bytes.resize(bytes.len().next_multiple_of(32) + 128, 0);
    assert_bad(
        &bytes,
        &[
            "tensor u",
            "begins at 64, inside the tensor that ends at 128",
        ],
    );
    let mut bytes = header(3, 2, 0);
    bytes.extend(info("t", &[16], 0, 0));
    bytes.extend(info("t", &[16], 0, 64));
    bytes.resize(bytes.len().next_multiple_of(32) + 128, 0);
    assert_bad(&bytes, &["tensor t", "two tensors of this name"]);
    // Two names of the file that mean the same tensor.
    let mut bytes = header(3, 2, 0);
    bytes.extend(info("token_embd.weight", &[16], 0, 0));
    bytes.extend(info("model.embed_tokens.weight", &[16], 0, 64));
    bytes.resize(bytes.len().next_multiple_of(32) + 128, 0);
    assert_bad(
        &bytes,
        &["model.embed_tokens.weight", "two tensors of this name"],
    );
}
