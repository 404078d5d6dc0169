//! A model that sees, given only text: the plain model with the same weights.

use serde_json::json;

use cider::{DType, ImageTimes, Scheme};

use crate::support::{
    Folder, Prompt, RED, Seen, assert_close, assert_refused, best, open, open_with, options, solid,
    tiny,
};

/// The decoder of `tiny` as a text model of its own.
fn decoder() -> Folder {
    let folder = Folder::of("tiny");
    folder.change("config.json", |config| {
        let mut text = config["text_config"].clone();
        let object = text.as_object_mut().unwrap();
        object.remove("rope_scaling");
        object.insert("model_type".to_owned(), json!("qwen3"));
        object.insert("architectures".to_owned(), json!(["Qwen3ForCausalLM"]));
        *config = text;
    });
    folder.change_tensors(|tensors| {
        let all = std::mem::take(&mut tensors.0).into_iter();
        let decoder = all.filter_map(|(name, array)| {
            let rest = name.strip_prefix("model.language_model.")?;
            Some((format!("model.{rest}"), array))
        });
        tensors.0 = decoder.collect();
    });
    folder
}

fn text(ids: &[u32]) -> Seen {
    Seen {
        ids: ids.to_vec(),
        images: Vec::new(),
    }
}

/// Tokens with the same ones before them have the same logits, whatever follows.
#[test]
fn a_token_does_not_see_those_behind_it() {
    let mut engine = tiny();
    let [a, b] = [[5, 6, 7], [5, 6, 9]].map(|ids| text(&ids).logits(&mut engine));
    let border = a.len() / 3 * 2;
    assert_eq!(a[..border], b[..border]);
    assert_ne!(a[border..], b[border..]);
}

/// Without pictures the three axes of positions are one.
#[test]
fn text_alone_gives_what_the_text_model_gives() {
    let folder = decoder();
    let mut decoder = open(folder.path(), Scheme::None, DType::F32);
    let mut engine = tiny();
    let prompt = Prompt::named("tiny", "text");
    let ids = [&[5, 6, 7, 8, 9][..], &prompt.expected.ids("ids")].concat();
    let found = text(&ids).logits(&mut engine);
    let expected = text(&ids).logits(&mut decoder);
    assert_close(&found, &expected, 1e-5, "text");
}

/// A picture sent to a model without vision is an error, not ignored.
#[test]
fn a_text_model_refuses_pictures() {
    let folder = decoder();
    let mut engine = open(folder.path(), Scheme::None, DType::F32);
    assert!(engine.vision().is_none());
    let ids = engine
        .raw_prompt("<|vision_start|><|image_pad|><|vision_end|>x")
        .unwrap();
    let picture = solid(64, 64, RED);
    let seen = engine.see(&ids, &[picture], &mut ImageTimes::default());
    assert_refused(seen, &["no vision input"]);
    let seen = engine.see(&ids, &[], &mut ImageTimes::default()).unwrap();
    assert_eq!((seen.0, seen.1.len()), (ids, 0));
}

/// A checkpoint whose tower was left out.
#[test]
fn a_missing_tower_is_named() {
    let folder = Folder::of("tiny");
    folder.change_tensors(|tensors| tensors.0.retain(|name, _| !name.contains("visual.")));
    let opened = open_with(folder.path(), best(), options(Scheme::None, DType::F32));
    assert_refused(opened, &["visual.", "missing"]);
}
