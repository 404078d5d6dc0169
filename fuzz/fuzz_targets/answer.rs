//! Any text as an answer, cut anywhere: the same parts, and arguments of whole calls that parse.
#![no_main]

use cider::text::{AnswerFormat, AnswerParser, AnswerPart, Opening, ToolFormat};

libfuzzer_sys::fuzz_target!(|input: (u8, &str)| {
    let (choice, text) = input;
    let format = AnswerFormat {
        reasoning: choice & 1 == 0,
        tools: [None, Some(ToolFormat::Hermes), Some(ToolFormat::Llama3)][usize::from(choice >> 1) % 3],
    };
    let opening = [Opening::MayOpen, Opening::Open, Opening::Closed][usize::from(choice >> 4) % 3];
    let natural = choice & 8 == 0;
    let whole = parse(AnswerParser::new(&format, opening), &[text], natural);
    let mut middle = text.len() / 2;
    while !text.is_char_boundary(middle) {
        middle -= 1;
    }
    let (first, second) = text.split_at(middle);
    let halves = parse(AnswerParser::new(&format, opening), &[first, second], natural);
    assert_eq!(whole, halves);
});

/// Thoughts, words, and for each call its name, arguments and end.
fn parse(mut parser: AnswerParser, pieces: &[&str], natural: bool) -> (String, String, Vec<(String, String, bool)>) {
    let mut parts: Vec<AnswerPart> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish(natural));
    let (mut thoughts, mut words, mut calls) = (String::new(), String::new(), Vec::new());
    for part in parts {
        match part {
            AnswerPart::Reasoning(text) => thoughts.push_str(&text),
            AnswerPart::Content(text) => words.push_str(&text),
            AnswerPart::ToolCallStart { name, .. } => calls.push((name, String::new(), false)),
            AnswerPart::ToolCallArguments { index, text } => calls[index].1.push_str(&text),
            AnswerPart::ToolCallEnd { index } => calls[index].2 = true,
        }
    }
    for (_, arguments, whole) in &calls {
        assert!(!whole || serde_json::from_str::<serde_json::Value>(arguments).is_ok_and(|value| value.is_object()));
    }
    (thoughts, words, calls)
}
