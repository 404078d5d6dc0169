//! Templates and tokenizers that are out to end the program.

use serde_json::json;

use super::{Folder, Value, fixture, testdata};
use crate::Error;
use crate::text::*;
use std::fs;

/// What a template comes to.
fn rendered(source: &str) -> Result<String, Error> {
    let template = ChatTemplate::new(source, "hostile")?;
    let messages = [Message::new(Role::User, "hi")];
    let prompt = template.render(&messages, &RenderOptions::default(), &fixture("qwen"))?;
    Ok(prompt.text().to_owned())
}

/// Nests a list in itself as often as `steps` says, then does `then`.
fn nested(steps: usize, then: &str) -> String {
    format!(
        "{{% set ns = namespace(x=[]) %}}{{% for i in range({steps}) %}}{{% set ns.x = [[[[ns.x]]]] %}}{{% endfor %}}\
         {then}"
    )
}

#[test]
fn values_nested_without_end_are_survived() {
    for then in [
        "done",
        "{{ ns.x }}",
        "{{ ns.x == [ns.x] }}",
        "{{ ns.x < [ns.x] }}",
        "{{ (ns.x ~ '') | length }}",
        "{{ ns.x | string | length }}",
        "{{ {ns.x: 1} | length }}",
        "{{ [ns.x, ns.x] | unique | list | length }}",
        "{{ '%s' | format(ns.x) | length }}",
        "{{ messages }}{% set messages = ns.x %}{{ messages }}",
    ] {
        // As deep as the fuel allows at all, and as a list of ten thousand levels.
        for steps in [2_500, 90_000] {
            match rendered(&nested(steps, then)) {
                Ok(_) => {}
                Err(Error::Template { what, .. }) => assert!(what.len() < 200, "{what}"),
                Err(other) => panic!("{other}"),
            }
        }
    }
    let json = rendered(&nested(2_500, "{{ ns.x | tojson }}")).unwrap_err();
    assert!(json.to_string().contains("tojson: more than"), "{json}");
    let straight = format!("{{{{ 'a'{} }}}}", " ~ 'b'".repeat(5_000));
    assert!(rendered(&straight).is_ok_and(|text| text.len() > 5_000));
}

#[test]
fn a_template_cannot_ask_for_gigabytes() {
    let doubled = |what: &str| {
        format!(
            "{{% set ns = namespace(s='x') %}}{{% for i in range(40) %}}{{% set ns.s = {what} %}}{{% endfor %}}{{{{ ns.s }}}}"
        )
    };
    for source in [
        doubled("ns.s ~ ns.s"),
        doubled("ns.s + ns.s"),
        doubled("[ns.s, ns.s] | join"),
        doubled("ns.s | replace('x', 'xx')"),
        doubled("ns.s.replace('x', 'xx')"),
        doubled("[ns.s] * 2 | string"),
        doubled("ns.s * 1000"),
        "{{ 'x' * 99000000 }}".to_owned(),
        "{{ ('x' * 60000) | tojson(indent='y' * 60000) }}{{ [[[1]], [[2]]] | tojson(indent='y' * 9000000) }}"
            .to_owned(),
        "{{ range(100000) | list | tojson(separators=('x' * 60000, ':')) }}".to_owned(),
        "{{ '%099999999d' | format(1) }}".to_owned(),
        "{% for i in range(100000) %}{{ 'x' * 10000 }}{% endfor %}".to_owned(),
        "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('x' * 1000) }}".to_owned(),
    ] {
        let error = rendered(&source).unwrap_err();
        assert!(matches!(error, Error::Template { .. }), "{source}: {error}");
    }
}

/// A conversation as long as any is far from the limits.
#[test]
fn a_thousand_messages_are_no_attack() {
    let mut messages = Vec::new();
    for _ in 0..500 {
        messages.push(Message::new(
            Role::User,
            "A question of some words. ".repeat(20),
        ));
        messages.push(Message::new(
            Role::Assistant,
            "An answer of some words. ".repeat(40),
        ));
    }
    let tokenizer = fixture("qwen");
    for entry in fs::read_dir(testdata("templates")).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "jinja")
        {
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        let template = ChatTemplate::new(&source, "fixture").unwrap();
        match template.render(&messages, &RenderOptions::default(), &tokenizer) {
            Ok(prompt) => assert!(prompt.text().len() > 500_000),
            Err(error) => assert!(!error.to_string().contains("fuel"), "{error}"),
        }
    }
}

#[test]
fn normalizers_that_the_tokenizers_crate_takes_for_granted_are_refused() {
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let regex = |source: &str| json!({"Regex": source});
    let letter = || json!({"String": "a"});
    let explode = replace(letter(), &"a".repeat(100));
    let twice = json!({"type": "Sequence", "normalizers": [explode, explode]});
    let map = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
    let key = "normalizer";
    refuses(key, &map("AAAA"), "Precompiled is not supported");
    refuses(key, &map(""), "Precompiled is not supported");
    refuses(
        key,
        &replace(json!({"String": ""}), "b"),
        "an empty pattern",
    );
    refuses(key, &replace(regex("x*"), "b"), "matches nothing at all");
    refuses(key, &replace(regex("(?=a)"), "b"), "matches nothing at all");
    refuses(key, &replace(regex("("), "b"), key);
    refuses(
        key,
        &replace(letter(), &"a".repeat(1000)),
        "may become 1000 bytes",
    );
    refuses(
        key,
        &twice,
        "normalizer.normalizers[1]: a byte may become 10000",
    );
}

#[test]
fn pre_tokenizers_and_decoders_that_would_panic_are_refused() {
    let fixed = json!({"type": "FixedLength", "length": 0});
    let all = json!({"type": "Sequence", "pretokenizers": [fixed]});
    let empty = json!({"String": ""});
    let split = json!({"type": "Split", "pattern": empty, "behavior": "Isolated", "invert": false});
    let replace = json!({"type": "Replace", "pattern": empty, "content": "b"});
    let strip = json!({"type": "Strip", "content": "a", "start": 1, "stop": 1});
    let inner = json!({"type": "Sequence", "decoders": [replace]});
    refuses("pre_tokenizer", &fixed, "a length of 0");
    refuses("pre_tokenizer", &all, "pretokenizers[0]: a length of 0");
    refuses("pre_tokenizer", &split, "an empty pattern");
    refuses("decoder", &replace, "an empty pattern");
    refuses("decoder", &strip, "Strip at both ends");
    refuses("decoder", &inner, "decoder.decoders[0]: an empty pattern");
}

/// A tokenizer with `rule` under `key` is an error that names the file, the key and `what`.
fn refuses(key: &str, rule: &Value, what: &str) {
    let folder = Folder::new(&format!("hostile-{key}"));
    let mut file = super::json("text/sentencepiece/tokenizer.json");
    file[key] = rule.clone();
    folder.write("tokenizer.json", &file.to_string());
    match Tokenizer::from_folder(&folder.0) {
        Err(Error::Tokenizer(message)) => {
            assert!(message.contains(key) && message.contains(what), "{message}");
            assert!(message.contains("tokenizer.json"), "{message}");
        }
        other => panic!("{rule}: {other:?}"),
    }
}
