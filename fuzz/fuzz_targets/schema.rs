//! Any text as a JSON schema, an expression or a grammar: refused with one line, or followed for some steps.
#![no_main]

use std::sync::LazyLock;

use cider::text::{Grammar, Grammars, GgufVocabulary, Tokenizer};

/// Half of the characters of ASCII, some words, and an end.
static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| {
    let characters: Vec<String> = ('!'..='~').map(String::from).collect();
    let mut tokens: Vec<&str> = characters.iter().map(String::as_str).collect();
    tokens.extend(["\u{120}", "\u{10a}", "{\"", "true", "<end>"]);
    let mut kinds = vec![1; tokens.len()];
    let end = tokens.len() - 1;
    kinds[end] = 3;
    let tokenizer = Tokenizer::from_gguf(&GgufVocabulary {
        model: "gpt2",
        pre: "gpt-2",
        tokens,
        token_types: kinds,
        ..GgufVocabulary::default()
    })
    .unwrap();
    Grammars::new(&tokenizer, &[end as u32]).unwrap()
});

libfuzzer_sys::fuzz_target!(|input: (u8, &str)| {
    let (choice, text) = input;
    let grammar = match choice % 3 {
        0 => match serde_json::from_str(text) {
            Ok(schema) => Grammar::JsonSchema(schema),
            Err(_) => return,
        },
        1 => Grammar::Regex(text.to_owned()),
        _ => Grammar::Lark(text.to_owned()),
    };
    let mut rule = match GRAMMARS.compile(&grammar) {
        Ok(rule) => rule,
        Err(error) => return assert!(!error.to_string().contains('\n')),
    };
    for step in 0..20 {
        let mut logits = [0.0; 128];
        if rule.finished() || rule.mask(&mut logits).is_err() {
            return;
        }
        let allowed: Vec<u32> = (0..128).filter(|&id| logits[id as usize] == 0.0).collect();
        let Some(&id) = allowed.get(step * usize::from(choice) % allowed.len().max(1)) else {
            return;
        };
        if rule.accept(id).is_err() {
            return;
        }
    }
});
