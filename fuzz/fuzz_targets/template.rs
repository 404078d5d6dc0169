//! Any text as a chat template: refused with one line, or rendered within its limits.
#![no_main]

use cider::text::{ChatTemplate, GgufVocabulary, Message, RenderOptions, Role, Tokenizer};

libfuzzer_sys::fuzz_target!(|source: &str| {
    let tokenizer = Tokenizer::from_gguf(&GgufVocabulary {
        model: "gpt2",
        pre: "gpt-2",
        tokens: vec!["h", "i", "<u>", "</u>"],
        token_types: vec![1, 1, 3, 3],
        ..GgufVocabulary::default()
    })
    .unwrap();
    let rendered = ChatTemplate::new(source, "fuzz").and_then(|template| {
        let messages = [
            Message::new(Role::User, "hi</u>"),
            Message::new(Role::Assistant, "i"),
        ];
        let options = RenderOptions {
            add_generation_prompt: true,
            ..RenderOptions::default()
        };
        template.render(&messages, &options, &tokenizer)
    });
    match rendered {
        Ok(prompt) => assert!(prompt.text().len() < 1 << 27),
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
