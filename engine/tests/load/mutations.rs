//! Files that nobody would write: whatever their bytes, they are opened and read or refused, never a
//! panic. A thousand bytes are flipped.

use std::fs;

use cider::load::gguf::Gguf;
use cider::load::{Checkpoint, TensorMap, safetensors};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{Folder, GgufFile, Tiny};

/// Reads all that an opened file offers.
fn read_all(tensors: &TensorMap) {
    for name in tensors.names() {
        let source = tensors.get(name).unwrap();
        assert_eq!(source.read_all().len(), source.rows() * source.cols());
    }
}

fn try_gguf(folder: &Folder, bytes: &[u8]) {
    let path = folder.write("try.gguf", bytes);
    if let Ok(gguf) = Gguf::open(&path) {
        read_all(&gguf.tensors);
        for key in gguf.metadata.keys() {
            if let Ok(Some(strings)) = gguf.metadata.strings(key) {
                let count = strings.len();
                assert_eq!(strings.count(), count);
            }
        }
    }
    if let Ok(checkpoint) = Checkpoint::open(&path) {
        read_all(&checkpoint.tensors);
    }
}

fn try_safetensors(folder: &Folder, bytes: &[u8]) {
    let path = folder.write("model.safetensors", bytes);
    if let Ok(tensors) = safetensors::open(&path) {
        read_all(&tensors);
    }
    if let Ok(checkpoint) = folder.open() {
        read_all(&checkpoint.tensors);
    }
}

/// The next of a sequence of numbers that is the same in every run.
fn next(state: &mut u64) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

#[test]
fn a_flipped_byte_of_a_gguf_file() {
    let folder = Folder::new();
    let whole = GgufFile::of(&Tiny::llama(), "llama").bytes();
    let mut state = 7;
    for _ in 0..1000 {
        let mut bytes = whole.clone();
        let at = next(&mut state) % 4096.min(bytes.len());
        bytes[at] ^= 1 + (next(&mut state) % 255) as u8;
        try_gguf(&folder, &bytes);
    }
}

#[test]
fn a_flipped_byte_of_a_safetensors_file() {
    let folder = Folder::new();
    Tiny::qwen3().save(&folder);
    let whole = fs::read(folder.path().join("model.safetensors")).unwrap();
    let mut state = 7;
    for _ in 0..1000 {
        let mut bytes = whole.clone();
        let at = next(&mut state) % 3000;
        bytes[at] ^= 1 + (next(&mut state) % 255) as u8;
        try_safetensors(&folder, &bytes);
    }
}

#[test]
fn a_flipped_byte_of_a_configuration() {
    let folder = Folder::new();
    let tiny = Tiny::qwen3();
    tiny.save(&folder);
    let whole = tiny.config.to_string().into_bytes();
    let mut state = 7;
    for _ in 0..1000 {
        let mut bytes = whole.clone();
        let at = next(&mut state) % bytes.len();
        bytes[at] ^= 1 << (next(&mut state) % 7);
        folder.write("config.json", &bytes);
        if let Ok(checkpoint) = folder.open() {
            read_all(&checkpoint.tensors);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..400)) {
        let folder = Folder::new();
        try_gguf(&folder, &bytes);
        try_safetensors(&folder, &bytes);
        let framed = [b"GGUF\x03\0\0\0".as_slice(), &bytes].concat();
        try_gguf(&folder, &framed);
        let counted = [b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0".as_slice(), &bytes].concat();
        try_gguf(&folder, &counted);
        let header = [(bytes.len() as u64).to_le_bytes().as_slice(), &bytes].concat();
        try_safetensors(&folder, &header);
    }

    #[test]
    fn any_stretch_replaced(at in 0usize..4000, bytes in vec(any::<u8>(), 1..24)) {
        let folder = Folder::new();
        let mut whole = GgufFile::of(&Tiny::qwen3(), "qwen3").bytes();
        whole[at..at + bytes.len()].copy_from_slice(&bytes);
        try_gguf(&folder, &whole);
    }
}
