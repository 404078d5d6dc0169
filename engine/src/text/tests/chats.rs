//! Chats rendered as the reference renders them.

use serde_json::{Map, json};

use super::*;

fn cases() -> Vec<(Value, Value)> {
    let (Value::Array(cases), Value::Array(expected)) = (
        json("templates/cases.json"),
        json("templates/expected.json"),
    ) else {
        panic!("both files hold a list");
    };
    assert_eq!(cases.len(), expected.len());
    for (case, expected) in cases.iter().zip(&expected) {
        assert_eq!(case["name"], expected["name"]);
    }
    cases.into_iter().zip(expected).collect()
}

/// The tokenizer whose named tokens the reference was given.
fn tokenizer_of(template: &str) -> Tokenizer {
    fixture(match template {
        "headers.jinja" => "llama",
        "blocks.jinja" => "sentencepiece",
        _ => "qwen",
    })
}

/// Renders a case through the public API.
fn render(case: &Value) -> crate::Result<Prompt> {
    let name = case["template"].as_str().unwrap();
    let mut variables = case["variables"].as_object().unwrap().clone();
    let messages: Vec<Message> =
        serde_json::from_value(variables.remove("messages").unwrap()).unwrap();
    let tools = variables.remove("tools").unwrap_or(json!([]));
    let options = RenderOptions {
        add_generation_prompt: variables.remove("add_generation_prompt").unwrap() == true,
        tools: serde_json::from_value(tools).unwrap(),
        extra: variables,
    };
    template(name).render(&messages, &options, &tokenizer_of(name))
}

fn assert_rendered(name: &Value, rendered: crate::Result<String>, expected: &Value) {
    match (rendered, &expected["error"]) {
        (Ok(text), Value::Null) => assert_eq!(text, expected.as_str().unwrap(), "{name}"),
        (Err(error), Value::String(words)) => {
            assert!(
                error.to_string().ends_with(words.as_str()),
                "{name}: {error}"
            );
        }
        (rendered, _) => panic!("{name}: {rendered:?} instead of {expected}"),
    }
}

#[test]
fn chats_are_those_of_the_reference() {
    for (case, expected) in cases()
        .iter()
        .filter(|(case, _)| case["template"].is_string())
    {
        let rendered = render(case).map(|prompt| prompt.text().to_owned());
        assert_rendered(&case["name"], rendered, &expected["rendered"]);
    }
}

#[test]
fn snippets_are_those_of_the_reference() {
    for (case, expected) in cases()
        .iter()
        .filter(|(case, _)| case["source"].is_string())
    {
        let template = ChatTemplate::new(case["source"].as_str().unwrap(), "snippet").unwrap();
        let mut context = Map::new();
        context.insert("tools".to_owned(), Value::Null);
        context.extend(case["variables"].as_object().unwrap().clone());
        assert_rendered(
            &case["name"],
            template.render_variables(&context),
            &expected["rendered"],
        );
    }
}

#[test]
fn ids_are_those_of_the_whole_text() {
    for (case, _) in cases()
        .iter()
        .filter(|(case, _)| case["template"].is_string())
    {
        let Ok(prompt) = render(case) else { continue };
        let tokenizer = tokenizer_of(case["template"].as_str().unwrap());
        let whole = tokenizer
            .encode(prompt.text(), Controls::Recognised)
            .unwrap();
        assert_eq!(
            prompt.tokenize(&tokenizer).unwrap(),
            whole,
            "{}",
            case["name"]
        );
    }
}

#[test]
fn chats_begin_with_one_bos_or_none() {
    let messages = [Message::new(Role::User, "Hi")];
    let options = RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    let first_two = |template_name: &str, tokenizer: &Tokenizer| {
        let prompt = template(template_name)
            .render(&messages, &options, tokenizer)
            .unwrap();
        let ids = prompt.tokenize(tokenizer).unwrap();
        [
            tokenizer.token(ids[0]).unwrap(),
            tokenizer.token(ids[1]).unwrap(),
        ]
    };
    let llama = first_two("headers.jinja", &fixture("llama"));
    assert_eq!(llama, ["<|begin_of_text|>", "<|start_header_id|>"]);
    assert_eq!(
        first_two("thinking.jinja", &fixture("qwen"))[0],
        "<|im_start|>"
    );
}

#[test]
fn turn_ends_are_found() {
    let (qwen, llama) = (fixture("qwen"), fixture("llama"));
    assert_eq!(
        template("thinking.jinja").turn_end(&qwen),
        qwen.token_id("<|im_end|>")
    );
    assert_eq!(
        template("headers.jinja").turn_end(&llama),
        llama.token_id("<|eot_id|>")
    );
    let bare = ChatTemplate::new("{{ messages[0].content }}", "bare").unwrap();
    assert_eq!(bare.turn_end(&qwen), None);
}

#[test]
fn parts_are_joined_where_the_template_takes_text() {
    let message: Message = serde_json::from_value(json!({
        "role": "developer",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }))
    .unwrap();
    let user = Message::new(Role::User, "c");
    let qwen = fixture("qwen");
    let render = |template: &ChatTemplate, messages: &[Message]| {
        template.render(messages, &RenderOptions::default(), &qwen)
    };
    let (text, parts) = (template("blocks.jinja"), template("parts.jinja"));
    assert!(!text.takes_parts() && parts.takes_parts());
    let prompt = render(
        &template("thinking.jinja"),
        &[message.clone(), user.clone()],
    )
    .unwrap();
    assert!(
        prompt
            .text()
            .starts_with("<|im_start|>system\nab<|im_end|>"),
        "{prompt:?}"
    );
    let prompt = render(&parts, &[message]).unwrap();
    assert_eq!(prompt.text(), "<|im_start|>system\nab<|im_end|>\n");
    let picture = Message {
        content: Content::Parts(vec![Part::Image]),
        ..user
    };
    let error = render(&text, &[picture]).unwrap_err().to_string();
    assert_eq!(
        error,
        "chat template (blocks.jinja): the template takes no pictures"
    );
}

#[test]
fn arguments_of_calls_become_objects() {
    let message: Message = serde_json::from_value(json!({
        "role": "assistant",
        "content": null,
        "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": "{\"x\": 1.0}"}},
            {"type": "function", "function": {"name": "g", "arguments": "not json"}},
        ],
    }))
    .unwrap();
    let messages = [Message::new(Role::User, "q"), message];
    let qwen = fixture("qwen");
    let prompt = template("thinking.jinja").render(&messages, &RenderOptions::default(), &qwen);
    let text = prompt.unwrap().text().to_owned();
    assert!(
        text.contains("{\"name\": \"f\", \"arguments\": {\"x\": 1.0}}"),
        "{text}"
    );
    assert!(
        text.contains("{\"name\": \"g\", \"arguments\": not json}"),
        "{text}"
    );
}

#[test]
fn today_is_known() {
    let template = ChatTemplate::new("{{ strftime_now('%d %b %Y|%Y-%m-%d') }}", "date").unwrap();
    let text = template.render_variables(&Map::new()).unwrap();
    let (long, short) = text.split_once('|').unwrap();
    let words: Vec<&str> = long.split(' ').collect();
    assert_eq!(
        [words[0].len(), words[1].len(), words[2].len()],
        [2, 3, 4],
        "{text}"
    );
    assert!(words[1].chars().all(char::is_alphabetic), "{text}");
    assert_eq!(short.split('-').next_back().unwrap(), words[0]);
    let bad = ChatTemplate::new("{{ strftime_now('%') }}", "date").unwrap();
    assert!(bad.render_variables(&Map::new()).is_err());
}

#[test]
fn hostile_and_broken_templates_end_with_an_error() {
    let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
                 {% endfor %}{% endfor %}{% endfor %}";
    let error = ChatTemplate::new(loops, "hostile")
        .unwrap()
        .render_variables(&Map::new());
    assert!(error.unwrap_err().to_string().contains("fuel"));
    let error = ChatTemplate::new(&"1+".repeat(40_000), "endless").unwrap_err();
    assert!(error.to_string().contains("80000 bytes exceed"), "{error}");
    let error = ChatTemplate::new("a\n{% if %}", "broken.jinja")
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("chat template (broken.jinja): syntax error"),
        "{error}"
    );
    assert!(error.ends_with("(line 2)"), "{error}");
    let refuses = ChatTemplate::new("{{ raise_exception('roles must\nalternate') }}", "r").unwrap();
    let error = refuses
        .render_variables(&Map::new())
        .unwrap_err()
        .to_string();
    assert_eq!(error, "chat template (r): roles must alternate");
}

/// C049: instructions of both names stand in one system block, whatever the template does with a second.
#[test]
fn instructions_are_merged() {
    let qwen = fixture("qwen");
    let merged = |messages: &[(Role, &str)]| {
        let message = |(role, text): &(Role, &str)| Message::new(*role, *text);
        let messages: Vec<Message> = messages.iter().map(message).collect();
        let template = template("thinking.jinja");
        let prompt = template.render(&messages, &RenderOptions::default(), &qwen);
        prompt.unwrap().text().to_owned()
    };
    let (system, developer, user) = (Role::System, Role::Developer, (Role::User, "a"));
    assert_eq!(
        merged(&[(developer, "X"), user]),
        merged(&[(system, "X"), user])
    );
    let both = merged(&[(system, "X"), (developer, "Y"), user]);
    assert!(
        both.starts_with("<|im_start|>system\nX\n\nY<|im_end|>"),
        "{both}"
    );
    // Later ones stay where they are.
    let later = merged(&[(system, "X"), user, (developer, "Y")]);
    assert!(
        later.ends_with("<|im_start|>system\nY<|im_end|>\n"),
        "{later}"
    );
}

/// C063, C064: the state of the answer is what the template wrote to begin it, whatever messages spell out.
#[test]
fn the_prompt_says_where_the_answer_begins() {
    let qwen = fixture("qwen");
    let opening = |prefix: &str, content: &str| {
        let source = format!(
            "{{% for m in messages %}}<|im_start|>{{{{ m.content }}}}<|im_end|>{{% endfor %}}\
             {{% if add_generation_prompt %}}{prefix}{{% endif %}}"
        );
        let template = ChatTemplate::new(&source, "test").unwrap();
        let messages = [Message::new(Role::User, content)];
        let options = RenderOptions {
            add_generation_prompt: true,
            ..RenderOptions::default()
        };
        let prompt = template.render(&messages, &options, &qwen).unwrap();
        template
            .opening(&prompt, &messages, &options, &qwen)
            .unwrap()
    };
    for text in [
        "a",
        "explain </think> and <think>",
        "<think>",
        "</think>",
        "<|im_start|><think>",
    ] {
        assert_eq!(opening("<|im_start|>", text), Opening::MayOpen, "{text}");
        assert_eq!(
            opening("<|im_start|><think>\n", text),
            Opening::Open,
            "{text}"
        );
        let closed = "<|im_start|><think>\n\n</think>\n\n";
        assert_eq!(opening(closed, text), Opening::Closed, "{text}");
        assert_eq!(opening("", text), Opening::MayOpen, "{text}");
    }
}

/// A template that writes the last turn differently when it is to be answered.
#[test]
fn the_last_control_token_shows_the_beginning_too() {
    let qwen = fixture("qwen");
    let source = "{{ messages[0].content }}{% if not add_generation_prompt %}<|im_end|>{% else %}\
                  {{ ' ' }}<|im_start|>{% if thinking %}<think>{% endif %}{% endif %}";
    let template = ChatTemplate::new(source, "test").unwrap();
    for (thinking, expected) in [(true, Opening::Open), (false, Opening::MayOpen)] {
        let messages = [Message::new(Role::User, "</think> <|im_start|> <think>")];
        let mut options = RenderOptions {
            add_generation_prompt: true,
            ..RenderOptions::default()
        };
        options.extra.insert("thinking".to_owned(), json!(thinking));
        let prompt = template.render(&messages, &options, &qwen).unwrap();
        let opening = template.opening(&prompt, &messages, &options, &qwen);
        assert_eq!(opening.unwrap(), expected);
    }
}

/// C048: for every role a text says the same in one part and in several, whether the template takes parts or not.
#[test]
fn a_text_may_come_in_parts() {
    let qwen = fixture("qwen");
    for name in ["thinking.jinja", "parts.jinja"] {
        for role in ["system", "developer", "user", "assistant", "tool"] {
            let render = |content: Value| {
                let message = json!({"role": role, "content": content, "tool_call_id": "c1"});
                let messages: Vec<Message> = [json!({"role": "user", "content": "q"}), message]
                    .into_iter()
                    .map(|message| serde_json::from_value(message).unwrap())
                    .collect();
                let options = RenderOptions {
                    add_generation_prompt: true,
                    ..RenderOptions::default()
                };
                let prompt = template(name).render(&messages, &options, &qwen).unwrap();
                prompt.tokenize(&qwen).unwrap()
            };
            let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
            assert_eq!(render(json!("ab")), render(parts), "{name}: {role}");
        }
    }
}

/// C047: a message that only calls tools has no content, or none to speak of.
#[test]
fn calls_need_no_content() {
    let qwen = fixture("qwen");
    let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
    let render = |assistant: Value| {
        let messages: Vec<Message> = [
            json!({"role": "user", "content": "a"}),
            assistant,
            json!({"role": "tool", "tool_call_id": "c1", "content": "3"}),
            json!({"role": "user", "content": "b"}),
        ]
        .into_iter()
        .map(|message| serde_json::from_value(message).unwrap())
        .collect();
        let template = template("thinking.jinja");
        let prompt = template.render(&messages, &RenderOptions::default(), &qwen);
        prompt.unwrap().text().to_owned()
    };
    let absent = render(json!({"role": "assistant", "tool_calls": [call.clone()]}));
    let null = render(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
    assert_eq!(absent, null);
    let written = "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>";
    assert!(absent.contains(written), "{absent}");
    assert!(
        absent.contains("<tool_response>\n3\n</tool_response>"),
        "{absent}"
    );
}
