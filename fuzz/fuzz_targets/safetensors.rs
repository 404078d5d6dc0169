//! Any bytes as a safetensors file: refused, or every tensor of it can be read.
#![no_main]

use std::{env, fs, process};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = env::temp_dir().join(format!("cider-fuzz-{}.safetensors", process::id()));
    fs::write(&path, bytes).unwrap();
    if let Ok(tensors) = cider::load::safetensors::open(&path) {
        tensors
            .names()
            .filter_map(|name| tensors.get(name))
            .for_each(|tensor| drop(tensor.read_all()));
    }
});
