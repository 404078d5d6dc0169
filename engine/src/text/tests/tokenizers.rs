//! Ids, bytes, and the three sources a tokenizer is built from.

use super::*;

const FIXTURES: [&str; 4] = ["qwen", "llama", "smol", "sentencepiece"];

fn assert_ids(tokenizer: &Tokenizer, name: &str) {
    for row in json("text/expected.json")[name].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        let recognised = tokenizer.encode(text, Controls::Recognised).unwrap();
        assert_eq!(recognised, ids(&row["ids"]), "{name}: {text:?}");
        let plain = tokenizer.encode(text, Controls::Plain).unwrap();
        assert_eq!(plain, ids(&row["plain"]), "{name}, plain: {text:?}");
        assert!(plain.iter().all(|&id| !tokenizer.is_special(id)));
        assert_eq!(
            tokenizer.decode(&recognised).unwrap(),
            row["decoded"].as_str().unwrap()
        );
    }
}

/// The parts of a fixture as GGUF metadata has them.
struct Metadata {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
}

impl Metadata {
    fn of(name: &str) -> Self {
        let file = json(&format!("text/{name}/tokenizer.json"));
        let mut tokens: Vec<(u64, String, i32)> = file["model"]["vocab"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(token, id)| (id.as_u64().unwrap(), token.clone(), 1))
            .collect();
        for added in file["added_tokens"].as_array().unwrap() {
            let id = added["id"].as_u64().unwrap();
            let kind = if added["special"] == true { 3 } else { 4 };
            tokens.retain(|(known, _, _)| *known != id);
            tokens.push((id, added["content"].as_str().unwrap().to_owned(), kind));
        }
        tokens.sort();
        let halves = |merge: &Value| {
            let half = |index: usize| merge[index].as_str().unwrap().to_owned();
            format!("{} {}", half(0), half(1))
        };
        Self {
            types: tokens.iter().map(|(_, _, kind)| *kind).collect(),
            tokens: tokens.into_iter().map(|(_, token, _)| token).collect(),
            merges: file["model"]["merges"]
                .as_array()
                .unwrap()
                .iter()
                .map(halves)
                .collect(),
        }
    }

    fn vocabulary<'a>(&'a self, pre: &'a str) -> GgufVocabulary<'a> {
        GgufVocabulary {
            model: "gpt2",
            pre,
            tokens: self.tokens.iter().map(String::as_str).collect(),
            token_types: self.types.clone(),
            merges: self.merges.iter().map(String::as_str).collect(),
            ..GgufVocabulary::default()
        }
    }

    fn id(&self, token: &str) -> u32 {
        self.tokens
            .iter()
            .position(|t| t == token)
            .unwrap()
            .try_into()
            .unwrap()
    }
}

#[test]
fn ids_are_those_of_the_reference() {
    for name in FIXTURES {
        assert_ids(&fixture(name), name);
    }
}

#[test]
fn gguf_metadata_gives_the_same_ids() {
    for (name, pre) in [
        ("qwen", "qwen2"),
        ("llama", "llama-bpe"),
        ("smol", "smollm"),
    ] {
        let metadata = Metadata::of(name);
        let tokenizer = Tokenizer::from_gguf(&metadata.vocabulary(pre)).unwrap();
        assert_eq!(tokenizer.vocab_size(), metadata.tokens.len());
        assert_eq!(tokenizer.vocab_size(), fixture(name).vocab_size());
        assert_ids(&tokenizer, name);
    }
}

#[test]
fn pre_tokenizers_differ() {
    let metadata = Metadata::of("qwen");
    let text = "def hello(name):\n";
    let of = |pre| {
        let tokenizer = Tokenizer::from_gguf(&metadata.vocabulary(pre)).unwrap();
        tokenizer.encode(text, Controls::Plain).unwrap()
    };
    assert_eq!(of("gpt-2"), of("default"));
    assert_eq!(of("llama-bpe"), of("llama3"));
    assert_ne!(of("gpt-2"), of("qwen2"));
}

#[test]
fn vocabulary_files_give_the_same_ids() {
    assert_ids(&fixture("qwen-vocab"), "qwen");
    let folder = Folder::new("vocabulary");
    folder.copy("text/qwen-vocab/vocab.json");
    folder.copy("text/qwen-vocab/merges.txt");
    folder.write("config.json", r#"{"model_type": "qwen3"}"#);
    folder.write(
        "added_tokens.json",
        r#"{"<|im_start|>": 341, "<|endoftext|>": 340, "<|im_end|>": 342,
            "<tool_call>": 343, "</tool_call>": 344, "<think>": 345, "</think>": 346}"#,
    );
    let tokenizer = Tokenizer::from_folder(&folder.0).unwrap();
    assert_ids(&tokenizer, "qwen");
    assert_eq!(tokenizer.vocab_size(), 347);
}

#[test]
fn added_tokens_of_the_config_alone_count() {
    let folder = Folder::new("added");
    folder.copy("text/qwen/tokenizer.json");
    folder.write(
        "tokenizer_config.json",
        r#"{"added_tokens_decoder": {"347": {"content": "<|new|>", "special": true}}}"#,
    );
    let tokenizer = Tokenizer::from_folder(&folder.0).unwrap();
    assert_eq!(
        tokenizer.encode("<|new|>", Controls::Recognised).unwrap(),
        [347]
    );
    assert!(tokenizer.is_special(347));
    assert_eq!(tokenizer.vocab_size(), 348);
    assert_eq!(tokenizer.decode(&[347]).unwrap(), "<|new|>");
}

#[test]
fn a_folder_without_tokenizer_names_what_is_accepted() {
    let folder = Folder::new("none");
    let error = || Tokenizer::from_folder(&folder.0).unwrap_err().to_string();
    assert!(
        error().ends_with("one of these is needed: tokenizer.json; vocab.json with merges.txt")
    );
    folder.write("vocab.json", "{}");
    assert!(error().contains("no tokenizer found"));
    folder.write("merges.txt", "#version: 0.2\na b\n");
    assert!(
        error().contains("merges.txt: merge of \"a\" and \"b\": the joined"),
        "{}",
        error()
    );
    folder.write(
        "tokenizer_config.json",
        r#"{"tokenizer_class": "BertTokenizer"}"#,
    );
    assert!(
        error().contains("tokenizer_class \"BertTokenizer\""),
        "{}",
        error()
    );
}

#[test]
fn damaged_files_are_named() {
    let cases = [
        ("{", "tokenizer.json: EOF"),
        (
            "{\"model\": {\"type\": \"WordPiece\"}}",
            "model.type is \"WordPiece\"",
        ),
        ("{\"model\": {\"type\": \"BPE\"}}", "model.vocab is missing"),
        ("{\"model\": {\"vocab\": {\"a\": -1}}}", "invalid value"),
        (
            "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a\"]}}",
            "merge \"a\" is not two",
        ),
        (
            "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]}}",
            "a merge has two",
        ),
        (
            "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}",
            "\"a\": the joined token is not",
        ),
        (
            "{\"model\": {\"vocab\": {}, \"dropout\": 0.5}}",
            "model.dropout is 0.5",
        ),
        (
            "{\"model\": {\"vocab\": {}}, \"added_tokens\": [{\"content\": \"x\"}]}",
            "field `id`",
        ),
    ];
    let folder = Folder::new("damaged");
    for (text, expected) in cases {
        folder.write("tokenizer.json", text);
        let error = Tokenizer::from_folder(&folder.0).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("tokenizer.json: "), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn lying_metadata_is_refused() {
    let error = |change: &dyn Fn(&mut GgufVocabulary<'static>)| {
        let mut vocabulary = GgufVocabulary {
            model: "gpt2",
            pre: "gpt-2",
            tokens: vec!["a", "b", "ab"],
            merges: vec!["a b"],
            ..GgufVocabulary::default()
        };
        assert_eq!(Tokenizer::from_gguf(&vocabulary).unwrap().vocab_size(), 3);
        change(&mut vocabulary);
        Tokenizer::from_gguf(&vocabulary).unwrap_err().to_string()
    };
    let cases = [
        (
            error(&|v| v.model = "llama"),
            "tokenizer.ggml.model \"llama\"",
        ),
        (
            error(&|v| v.pre = "tekken"),
            "tokenizer.ggml.pre \"tekken\"",
        ),
        (
            error(&|v| v.tokens[2] = "a"),
            "tokens 0 and 2 are both \"a\"",
        ),
        (
            error(&|v| v.merges[0] = "ab"),
            "merge \"ab\" is not two tokens",
        ),
        (
            error(&|v| v.merges[0] = "ab ab"),
            "\"ab\": the joined token is not",
        ),
        (error(&|v| v.merges[0] = "a a"), "merges: Token `aa` out of"),
        (
            error(&|v| v.token_types = vec![1]),
            "1 entries for 3 tokens",
        ),
        (
            error(&|v| v.bos = Some(3)),
            "bos_token_id is 3, but there are 3",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn raw_prompts_begin_with_one_bos_or_none() {
    let llama = fixture("llama");
    let bos = llama.bos().unwrap();
    assert!(llama.add_bos());
    let plain = llama.encode("Hello", Controls::Recognised).unwrap();
    let prompt = llama.encode_prompt("Hello").unwrap();
    assert_eq!(prompt, [&[bos], plain.as_slice()].concat());
    assert_eq!(
        llama.encode_prompt("<|begin_of_text|>Hello").unwrap(),
        prompt
    );
    assert_eq!(llama.encode_prompt("").unwrap(), [bos]);
    assert_eq!(fixture("sentencepiece").encode_prompt("").unwrap(), [1]);

    let qwen = fixture("qwen");
    assert!(!qwen.add_bos());
    assert_eq!(qwen.bos(), None);
    assert_eq!(qwen.eos(), qwen.token_id("<|im_end|>"));
    let start = qwen.token_id("<|im_start|>").unwrap();
    assert_eq!(qwen.encode_prompt("<|im_start|>").unwrap(), [start]);
}

#[test]
fn gguf_says_whether_bos_is_added() {
    let (qwen, llama) = (Metadata::of("qwen"), Metadata::of("llama"));
    let (start, begin) = ("<|endoftext|>", "<|begin_of_text|>");
    let cases = [
        (&llama, "llama-bpe", begin, Some(true), true),
        (&llama, "llama-bpe", begin, Some(false), false),
        (&llama, "llama-bpe", begin, None, true),
        (&qwen, "qwen2", start, Some(true), true),
        (&qwen, "qwen2", start, Some(false), false),
        (&qwen, "qwen2", start, None, false),
    ];
    for (metadata, pre, bos, add_bos, expected) in cases {
        let bos = Some(metadata.id(bos));
        let vocabulary = GgufVocabulary {
            add_bos,
            bos,
            ..metadata.vocabulary(pre)
        };
        let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
        let ids = tokenizer.encode_prompt("x").unwrap();
        assert_eq!(ids.first() == bos.as_ref(), expected, "{pre} {add_bos:?}");
        assert_eq!(ids.len(), 1 + usize::from(expected));
    }
}

#[test]
fn bytes_of_tokens_make_the_text() {
    for name in ["qwen", "llama", "smol"] {
        let tokenizer = fixture(name);
        for row in json("text/expected.json")[name].as_array().unwrap() {
            let mut decoder = StreamDecoder::new();
            let mut text = String::new();
            for id in ids(&row["ids"]) {
                text.push_str(decoder.push(&tokenizer.token_bytes(id).unwrap()));
            }
            text.push_str(decoder.finish());
            assert_eq!(text, row["decoded"].as_str().unwrap());
        }
        let beyond = u32::try_from(tokenizer.vocab_size()).unwrap();
        assert_eq!(tokenizer.token_bytes(beyond), None);
    }
}

#[test]
fn bytes_of_sentencepiece_tokens() {
    let tokenizer = fixture("sentencepiece");
    let bytes = |token: &str| {
        tokenizer
            .token_bytes(tokenizer.token_id(token).unwrap())
            .unwrap()
    };
    assert_eq!(bytes("<0x0A>"), b"\n");
    assert_eq!(bytes("<0xE4>"), [0xe4]);
    assert_eq!(bytes("\u{2581}Hello"), b" Hello");
    assert_eq!(bytes("</s>"), b"</s>");
}

#[test]
fn long_runs_of_white_space_are_not_a_trap() {
    let tokenizer = fixture("qwen");
    let text = format!("a{}b", " ".repeat(100_000));
    let encoded = tokenizer.encode(&text, Controls::Recognised).unwrap();
    assert_eq!(tokenizer.decode(&encoded).unwrap(), text);
}
