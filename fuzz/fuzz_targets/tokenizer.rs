//! Any bytes as a `tokenizer.json`: refused with one line, or a tokenizer that takes any text.
#![no_main]

use std::{env, fs, process};

use cider::text::{Controls, Tokenizer};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = env::temp_dir().join(format!("cider-fuzz-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tokenizer.json"), bytes).unwrap();
    match Tokenizer::from_folder(&folder) {
        Ok(tokenizer) => {
            for text in [
                "",
                "a b\n\n c",
                "Ünïcödé \u{4e00}\u{2581}",
                "<|im_end|>aaaa1234",
            ] {
                if let Ok(ids) = tokenizer.encode(text, Controls::Recognised) {
                    let _ = tokenizer.decode(&ids);
                }
            }
            let _ = tokenizer.decode(&[0, 1, 2, 3, u32::MAX]);
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
