//! Calls that a grammar forces.

use super::*;
use crate::text::answer::{AnswerFormat, AnswerParser, AnswerPart, ToolFormat};

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "required": ["city"],
            "additionalProperties": false, "$defs": {"City": {"enum": ["Paris", "Oslo"]}}}}}),
        json!({"type": "function", "function": {"name": "now \"<>\"", "parameters": {"properties": {}, "additionalProperties": false}}}),
    ]
}

#[test]
fn forced_calls_are_calls() {
    let text = Text::qwen();
    for format in [ToolFormat::Hermes, ToolFormat::Llama3] {
        for (choice, parallel) in [
            (ToolChoice::Required, true),
            (ToolChoice::Named("weather".to_owned()), false),
        ] {
            let grammar = Grammar::Tools(ToolRule {
                tools: tools(),
                choice: choice.clone(),
                format,
                parallel,
            });
            for seed in 0..4 {
                let (answer, whole) = text.sample(&grammar, seed, 2_000);
                assert!(whole, "{answer}");
                let parses = AnswerFormat {
                    reasoning: false,
                    tools: Some(format),
                };
                let mut parser = AnswerParser::new(&parses, Opening::Closed);
                let mut parts = parser.push(&answer);
                parts.extend(parser.finish(true));
                let names: Vec<&str> = parts
                    .iter()
                    .filter_map(|part| match part {
                        AnswerPart::ToolCallStart { name, .. } => Some(name.as_str()),
                        AnswerPart::Content(_) | AnswerPart::Reasoning(_) => {
                            panic!("{answer}: {parts:?}")
                        }
                        _ => None,
                    })
                    .collect();
                assert_eq!(names.len(), parser.calls());
                let known = |name: &&str| {
                    *name == "weather" || (*name == "now \"<>\"" && choice == ToolChoice::Required)
                };
                assert!(!names.is_empty() && names.iter().all(known), "{answer}");
                assert!(parallel || names.len() == 1, "{answer}");
                for part in &parts {
                    if let AnswerPart::ToolCallArguments { text, .. } = part {
                        let city = serde_json::from_str::<Value>(text).unwrap();
                        assert!(
                            city == json!({}) || city["city"] == "Paris" || city["city"] == "Oslo",
                            "{answer}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn tools_that_cannot_be_forced_are_refused() {
    let text = Text::qwen();
    let rule = |tools: Vec<Value>, choice: ToolChoice| {
        Grammar::Tools(ToolRule {
            tools,
            choice,
            format: ToolFormat::Hermes,
            parallel: true,
        })
    };
    let named = ToolChoice::Named("other".to_owned());
    assert!(text.refuses(&rule(tools(), named)).contains("\"other\""));
    text.refuses(&rule(vec![], ToolChoice::Required));
    for parameters in [
        json!(5),
        json!({"type": "array"}),
        json!({"properties": {"a": {"type": "foo"}}}),
    ] {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        text.refuses(&rule(vec![tool], ToolChoice::Required));
    }
    text.refuses(&rule(
        vec![json!({"type": "function"})],
        ToolChoice::Required,
    ));
    let large =
        json!({"name": "f", "parameters": {"type": "object", "description": "x".repeat(50_000)}});
    text.refuses(&rule(vec![large; 4], ToolChoice::Required));
    let named = json!({"name": "n".repeat(1_000_000)});
    text.refuses(&rule(vec![named], ToolChoice::Required));
}
