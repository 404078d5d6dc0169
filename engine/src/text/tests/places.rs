//! Where a template is found.

use serde_json::json;

use super::*;

const EVERYWHERE: [&str; 5] = [
    "chosen.jinja",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer_config.json",
    "GGUF",
];

/// Puts templates that print their own place into `places`, and gives what is found.
fn find(test: &str, places: &[&str]) -> Option<(String, String)> {
    let folder = Folder::new(test);
    for place in places.iter().filter(|place| **place != "GGUF") {
        let json = Path::new(place).extension().is_some_and(|e| e == "json");
        let text = if json {
            json!({"chat_template": place}).to_string()
        } else {
            (*place).to_owned()
        };
        folder.write(place, &text);
    }
    let chosen = folder.0.join("chosen.jinja");
    let chosen = places.contains(&"chosen.jinja").then_some(chosen.as_path());
    let gguf = places.contains(&"GGUF").then_some("GGUF");
    let found = ChatTemplate::find(Some(&folder.0), chosen, gguf).unwrap()?;
    let text = found
        .render(&[], &RenderOptions::default(), &fixture("qwen"))
        .unwrap();
    Some((found.source_name().to_owned(), text.text().to_owned()))
}

#[test]
fn the_first_place_counts() {
    for start in 0..EVERYWHERE.len() {
        let (source_name, text) = find("all", &EVERYWHERE[start..]).unwrap();
        assert_eq!(text, EVERYWHERE[start]);
        assert!(source_name.contains(EVERYWHERE[start]), "{source_name}");
        let alone = find("alone", &EVERYWHERE[start..=start]).unwrap();
        assert_eq!(alone.1, EVERYWHERE[start]);
    }
    assert_eq!(find("nowhere", &[]), None);
}

#[test]
fn a_list_serves_chats_with_tools_apart() {
    let folder = Folder::new("list");
    let qwen = fixture("qwen");
    let render = |tools: &[Value]| {
        let template = ChatTemplate::find(Some(&folder.0), None, None)
            .unwrap()
            .unwrap();
        let options = RenderOptions {
            tools: tools.to_vec(),
            ..RenderOptions::default()
        };
        template
            .render(&[], &options, &qwen)
            .unwrap()
            .text()
            .to_owned()
    };
    let default = json!({"name": "default", "template": "plain"});
    let tool_use = json!({"name": "tool_use", "template": "{{ tools | length }} tools"});
    let write = |list: Value| {
        folder.write(
            "tokenizer_config.json",
            &json!({"chat_template": list}).to_string(),
        );
    };
    write(json!([default, tool_use]));
    assert_eq!(render(&[]), "plain");
    assert_eq!(render(&[json!({})]), "1 tools");
    write(json!([default]));
    assert_eq!(render(&[json!({})]), "plain");
    write(json!([tool_use]));
    let error = ChatTemplate::find(Some(&folder.0), None, None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("tokenizer_config.json: chat_template: expected"),
        "{error}"
    );
}

#[test]
fn byte_order_marks_and_carriage_returns_do_not_show() {
    let folder = Folder::new("marks");
    folder.write(
        "chat_template.jinja",
        "\u{feff}{% if true %}\r\na\r\n{% endif %}\r\nb\r\n",
    );
    let template = ChatTemplate::find(Some(&folder.0), None, None)
        .unwrap()
        .unwrap();
    let prompt = template
        .render(&[], &RenderOptions::default(), &fixture("qwen"))
        .unwrap();
    assert_eq!(prompt.text(), "a\nb");
}

#[test]
fn a_chosen_file_must_exist() {
    let error = ChatTemplate::find(None, Some(Path::new("/nonexistent/x.jinja")), Some("GGUF"));
    assert!(
        error
            .unwrap_err()
            .to_string()
            .starts_with("/nonexistent/x.jinja: ")
    );
}
