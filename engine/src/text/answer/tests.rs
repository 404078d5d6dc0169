use proptest::prelude::*;

use super::*;
use crate::text::{StopMatcher, Stopped};

/// The parts of an answer that comes in these pieces, neighbours of one kind joined and calls named alike.
fn parse(
    format: AnswerFormat,
    opening: Opening,
    pieces: &[&str],
    natural: bool,
) -> Vec<AnswerPart> {
    let mut parser = AnswerParser::new(&format, opening);
    let mut parts = Vec::new();
    for piece in pieces {
        parts.extend(parser.push(piece));
    }
    parts.extend(parser.finish(natural));
    let ends = parts
        .iter()
        .filter(|part| matches!(part, AnswerPart::ToolCallEnd { .. }));
    assert_eq!(ends.count(), parser.calls());
    parts.into_iter().fold(Vec::new(), |mut joined, mut part| {
        if let AnswerPart::ToolCallStart { id, .. } = &mut part {
            assert!(id.starts_with("call_"));
            "call".clone_into(id);
        }
        match (joined.last_mut(), &part) {
            (Some(AnswerPart::Reasoning(all)), AnswerPart::Reasoning(more))
            | (Some(AnswerPart::Content(all)), AnswerPart::Content(more)) => all.push_str(more),
            (
                Some(AnswerPart::ToolCallArguments { index, text: all }),
                AnswerPart::ToolCallArguments { index: other, text },
            ) if index == other => all.push_str(text),
            _ => joined.push(part),
        }
        joined
    })
}

const THINKS: AnswerFormat = AnswerFormat {
    reasoning: true,
    tools: None,
};
const HERMES: AnswerFormat = AnswerFormat {
    reasoning: true,
    tools: Some(ToolFormat::Hermes),
};
const LLAMA: AnswerFormat = AnswerFormat {
    reasoning: false,
    tools: Some(ToolFormat::Llama3),
};

fn reasoning(text: &str) -> AnswerPart {
    AnswerPart::Reasoning(text.to_owned())
}

fn content(text: &str) -> AnswerPart {
    AnswerPart::Content(text.to_owned())
}

fn call(index: usize, name: &str, arguments: &str) -> Vec<AnswerPart> {
    let (id, name) = ("call".to_owned(), name.to_owned());
    vec![
        AnswerPart::ToolCallStart { index, id, name },
        AnswerPart::ToolCallArguments {
            index,
            text: arguments.to_owned(),
        },
        AnswerPart::ToolCallEnd { index },
    ]
}

/// The call without its end: it is none.
fn cut_call(index: usize, name: &str, arguments: &str) -> Vec<AnswerPart> {
    let mut parts = call(index, name, arguments);
    parts.pop();
    parts
}

#[test]
fn c063_the_prompt_may_have_opened_the_thought() {
    let script = ["r", "</think>", "ok"];
    let expected = [reasoning("r"), content("ok")];
    assert_eq!(parse(THINKS, Opening::Open, &script, true), expected);
    assert_eq!(
        parse(THINKS, Opening::Open, &script[..1], false),
        [reasoning("r")]
    );
    assert_eq!(
        parse(THINKS, Opening::MayOpen, &["ok"], true),
        [content("ok")]
    );
    let own = ["<think>", "\nr\n", "</think>", "\n\nok"];
    assert_eq!(parse(THINKS, Opening::MayOpen, &own, true), expected);
    // Thoughts are off: marks are words.
    let text = "<think>r</think>ok";
    assert_eq!(
        parse(THINKS, Opening::Closed, &[text], true),
        [content(text)]
    );
    assert_eq!(
        parse(AnswerFormat::default(), Opening::MayOpen, &[text], true),
        [content(text)]
    );
}

#[test]
fn c064_a_thought_goes_on_until_its_mark() {
    assert_eq!(
        parse(THINKS, Opening::Open, &["ok"], true),
        [reasoning("ok")]
    );
    let script = ["ok <think> ok</think>a</think>b"];
    let expected = [reasoning("ok <think> ok"), content("a</think>b")];
    assert_eq!(parse(THINKS, Opening::Open, &script, true), expected);
}

#[test]
fn c032_marks_over_several_tokens_are_never_text() {
    let script = ["<think>", "r", "</th", "ink>", "ok"];
    let expected = [reasoning("r"), content("ok")];
    assert_eq!(parse(THINKS, Opening::MayOpen, &script, true), expected);
    // What never becomes a mark is text after all.
    let script = ["<think>", "r", "</th", "is"];
    assert_eq!(
        parse(THINKS, Opening::MayOpen, &script, true),
        [reasoning("r</this")]
    );
    assert_eq!(
        parse(THINKS, Opening::MayOpen, &script[..3], false),
        [reasoning("r</th")]
    );
    assert_eq!(
        parse(THINKS, Opening::MayOpen, &[" <thi", "s>"], true),
        [content(" <this>")]
    );
}

/// C030, C032: stop strings stand before the parser, and what they held back goes through it.
#[test]
fn text_held_back_for_a_stop_string_is_parsed() {
    let run = |stop: &str| {
        let mut stops = StopMatcher::new(&[stop.to_owned()]).unwrap();
        let mut parser = AnswerParser::new(&THINKS, Opening::MayOpen);
        let mut parts = Vec::new();
        for piece in ["<think>", "r", "</th", "ink>", "ok"] {
            let (text, stopped) = stops.push(piece);
            parts.extend(parser.push(text));
            if stopped == Stopped::Yes {
                parts.extend(parser.finish(true));
                return parts;
            }
        }
        parts.extend(parser.push(stops.finish()));
        parts.extend(parser.finish(true));
        parts
    };
    assert_eq!(run("</thX"), [reasoning("r"), content("ok")]);
    assert_eq!(run("ok"), [reasoning("r")]);
    assert_eq!(run("k>ok"), [reasoning("r"), reasoning("</thin")]);
}

const SCRIPT: [&str; 6] = [
    "<tool_call>",
    "{\"name\":\"f\",",
    "\"argu",
    "ments\":{\"x\"",
    ":1}}",
    "</tool_call>",
];

#[test]
fn c068_a_call_is_whole_or_none() {
    let run = |format, pieces: usize, natural| {
        parse(format, Opening::MayOpen, &SCRIPT[..pieces], natural)
    };
    let (whole, cut) = (call(0, "f", "{\"x\":1}"), cut_call(0, "f", "{\"x\":1}"));
    assert_eq!(run(HERMES, 6, true), whole);
    assert_eq!(run(HERMES, 6, false), whole);
    // Cut: what was given out has no end, and what was not is text.
    assert_eq!(run(HERMES, 4, false), cut_call(0, "f", "{\"x\""));
    assert_eq!(run(HERMES, 2, false), [content(&SCRIPT[..2].concat())]);
    // Only the mark is missing: a call, if the model itself ended there.
    assert_eq!(run(HERMES, 5, true), whole);
    assert_eq!(run(HERMES, 5, false), cut);
    // No tools in the request: text.
    assert_eq!(run(THINKS, 6, true), [content(&SCRIPT.concat())]);
}

#[test]
fn calls_stand_among_words_and_behind_thoughts() {
    let text = "<think>\nr <tool_call>\n</think>\n\nLet me look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n\
                </tool_call>\n<tool_call>\n{\"arguments\": {\"a\": \"}</tool_call>\"}, \"name\": \"g\"}\n</tool_call>\n";
    let mut expected = vec![reasoning("r <tool_call>"), content("Let me look.")];
    expected.extend(call(0, "f", "{}"));
    expected.extend(call(1, "g", "{\"a\": \"}</tool_call>\"}"));
    assert_eq!(parse(HERMES, Opening::MayOpen, &[text], true), expected);
    expected.push(content("all  done"));
    assert_eq!(
        parse(
            HERMES,
            Opening::MayOpen,
            &[text, " all", "  do", "ne "],
            true
        ),
        expected
    );
}

#[test]
fn other_forms_of_arguments() {
    let run = |body: &str| {
        let text = format!("<tool_call>{body}</tool_call>");
        parse(HERMES, Opening::Closed, &[&text], true)
    };
    assert_eq!(
        run("{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}"),
        call(0, "f", "{\"x\":1}")
    );
    assert_eq!(run("{\"name\":\"f\"}"), call(0, "f", "{}"));
    assert_eq!(
        run("{\"name\":\"f\",\"arguments\":null}"),
        call(0, "f", "{}")
    );
    let named = "{\"id\":7,\"name\":\"f\",\"parameters\":{\"a\":[1,{}]}}";
    assert_eq!(run(named), call(0, "f", "{\"a\":[1,{}]}"));
    for body in [
        "{\"name\":\"f\",\"arguments\":3}",
        "{\"name\":\"f\",\"arguments\":\"3\"}",
        "{\"name\":\"\"}",
        "{\"name\":3}",
        "{}",
        "[]",
        "f(1)",
        "{\"arguments\":{}}",
        "{\"name\":\"f\",}",
        "{\"name\":\"f\",\"name\":\"g\"}",
    ] {
        assert_eq!(
            run(body),
            [content(&format!("<tool_call>{body}</tool_call>"))],
            "{body}"
        );
    }
    // It began well: what follows the fault is text, and there is no end.
    let mut expected = cut_call(0, "f", "{\"a\":");
    expected.push(content("oops}}</tool_call>"));
    assert_eq!(run("{\"name\":\"f\",\"arguments\":{\"a\":oops}}"), expected);
}

#[test]
fn calls_as_llama_writes_them() {
    let run = |text: &str| parse(LLAMA, Opening::Closed, &[text], true);
    let one = "{\"name\": \"f\", \"parameters\": {\"x\": 1}}";
    assert_eq!(run(one), call(0, "f", "{\"x\": 1}"));
    assert_eq!(
        run(&format!("\n<|python_tag|>{one}")),
        call(0, "f", "{\"x\": 1}")
    );
    let typed = format!("{{\"type\": \"function\", {}", &one[1..]);
    assert_eq!(run(&typed), call(0, "f", "{\"x\": 1}"));
    let two = format!("{one}; {}", one.replace('f', "g"));
    assert_eq!(
        run(&two),
        [call(0, "f", "{\"x\": 1}"), call(1, "g", "{\"x\": 1}")].concat()
    );
    // An answer in JSON is no call, nor is a call within words.
    for text in [
        "{\"name\": \"Bob\", \"age\": 3}",
        "{\"name\": \"Bob\"}",
        "{\"a\"",
        "{",
        " <|python",
        "<|python_tag|>f(1)",
    ] {
        assert_eq!(run(text), [content(text)], "{text}");
    }
    let text = format!("I call {one}");
    assert_eq!(run(&text), [content(&text)]);
    assert_eq!(run(&one[..one.len() - 4]), cut_call(0, "f", "{\"x\":"));
}

#[test]
fn calls_have_names_of_their_own() {
    let id = || {
        let mut parser = AnswerParser::new(&HERMES, Opening::Closed);
        let parts = parser.push(&SCRIPT.concat());
        let AnswerPart::ToolCallStart { id, .. } = &parts[0] else {
            panic!("{parts:?}")
        };
        id.clone()
    };
    assert_ne!(id(), id());
}

#[test]
fn deep_and_many_calls_are_bounded() {
    let deep = format!(
        "<tool_call>{{\"name\":\"f\",\"arguments\":{}",
        "{\"a\":".repeat(100_000)
    );
    let parts = parse(HERMES, Opening::Closed, &[&deep], false);
    assert!(
        matches!(parts.last(), Some(AnswerPart::Content(_))),
        "too deep to be a call"
    );
    let long = format!("{}<tool_call>", "<tool_call>{".repeat(2_000));
    assert_eq!(
        parse(HERMES, Opening::Closed, &[&long], true),
        [content(&long)]
    );
}

fn formats() -> impl Strategy<Value = (AnswerFormat, Opening)> {
    let openings = [Opening::MayOpen, Opening::Open, Opening::Closed];
    let both = AnswerFormat {
        reasoning: true,
        ..LLAMA
    };
    let formats = [THINKS, HERMES, LLAMA, both];
    (
        prop::sample::select(formats.to_vec()),
        prop::sample::select(openings.to_vec()),
    )
}

/// Answers made of what parsers stumble over.
fn answers() -> impl Strategy<Value = String> {
    let pieces = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "{\"name\":\"f\",",
        "\"arguments\":{",
        "\"x\":1",
        "}",
        "}}",
        "{\"name\": \"é\", \"parameters\": {\"世\": \"</tool_call>\"}}",
        "{",
        ",",
        " ",
        "\n",
        ";",
        "\"arguments\":{},\"name\":\"g\"}",
        "\"arguments\":\"{}\"",
        "ok",
        "<",
        "</th",
        "世",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        "{\"name\":\"f\",\"parameters\":{}}",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..12)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn cuts_make_no_difference(
        (format, opening) in formats(),
        text in answers(),
        cuts in prop::collection::vec(any::<bool>(), 200),
        natural in any::<bool>(),
    ) {
        let mut pieces = vec![String::new()];
        for (character, cut) in text.chars().zip(cuts.into_iter().cycle()) {
            if cut {
                pieces.push(String::new());
            }
            pieces.last_mut().unwrap().push(character);
        }
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let whole = parse(format, opening, &[&text], natural);
        prop_assert_eq!(&parse(format, opening, &pieces, natural), &whole);
        let singles: Vec<String> = text.chars().map(String::from).collect();
        let singles: Vec<&str> = singles.iter().map(String::as_str).collect();
        prop_assert_eq!(&parse(format, opening, &singles, natural), &whole);
    }

    #[test]
    fn arguments_of_whole_calls_are_objects((format, opening) in formats(), text in answers()) {
        let parts = parse(format, opening, &[&text], true);
        for (at, part) in parts.iter().enumerate() {
            if let AnswerPart::ToolCallEnd { index } = part {
                let AnswerPart::ToolCallArguments { index: same, text } = &parts[at - 1] else {
                    panic!("no arguments before the end: {parts:?}");
                };
                prop_assert_eq!(index, same);
                let value: serde_json::Value = serde_json::from_str(text).unwrap();
                prop_assert!(value.is_object());
            }
        }
    }

    #[test]
    fn words_alone_are_kept(text in answers()) {
        let expected = if text.is_empty() { Vec::new() } else { vec![content(&text)] };
        prop_assert_eq!(parse(THINKS, Opening::Closed, &[&text], true), expected);
    }
}
