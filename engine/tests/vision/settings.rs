//! Configurations of models that see: what would give silently wrong answers is refused by name.

use std::fs;

use cider::load::Checkpoint;
use serde_json::{Value, json};

use crate::support::{Folder, assert_refused};

/// The configuration after a change must be refused with an error that has all of `parts` in it.
#[track_caller]
fn refused(change: impl FnOnce(&mut Value), parts: &[&str]) {
    let folder = Folder::of("tiny");
    assert!(Checkpoint::open(folder.path()).is_ok());
    folder.change("config.json", change);
    assert_refused(Checkpoint::open(folder.path()), parts);
}

fn remove(object: &mut Value, key: &str) {
    assert!(object.as_object_mut().unwrap().remove(key).is_some());
}

#[test]
fn sections_that_are_absent_must_be_those_of_the_family() {
    let parts = [
        "config.json",
        "rope_scaling.mrope_section",
        "missing",
        "[24, 20, 20]",
    ];
    let text = |config: &mut Value| config["text_config"].take();
    refused(
        |config| {
            let mut inner = text(config);
            remove(&mut inner, "rope_scaling");
            config["text_config"] = inner;
        },
        &parts,
    );
    refused(
        |config| config["text_config"]["rope_scaling"] = Value::Null,
        &parts,
    );
    refused(
        |config| remove(&mut config["text_config"]["rope_scaling"], "mrope_section"),
        &parts,
    );
}

#[test]
fn levels_of_features_are_never_dropped() {
    let key = "vision_config.deepstack_visual_indexes";
    refused(
        |config| remove(&mut config["vision_config"], "deepstack_visual_indexes"),
        &[key, "missing"],
    );
    refused(
        |config| config["vision_config"]["deepstack_visual_indexes"] = Value::Null,
        &[key, "missing"],
    );
    for (list, count) in [(json!([]), "0"), (json!([0]), "1")] {
        refused(
            |config| config["vision_config"]["deepstack_visual_indexes"] = list,
            &[
                "visual.deepstack_merger_list.",
                count,
                "deepstack_visual_indexes",
            ],
        );
    }
}

#[test]
fn the_tower_must_end_where_the_decoder_begins() {
    for size in [0, 48] {
        refused(
            |config| config["vision_config"]["out_hidden_size"] = json!(size),
            &["vision_config.out_hidden_size", &size.to_string()],
        );
    }
}

#[test]
fn tokens_outside_the_vocabulary_are_blamed_on_their_keys() {
    for key in [
        "image_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    ] {
        refused(
            |config| config[key] = json!(2_147_483_648_u32),
            &[key, "2147483648", "outside the vocabulary"],
        );
    }
    refused(
        |config| config["text_config"]["bos_token_id"] = json!(3048),
        &["bos_token_id", "3048"],
    );
    let folder = Folder::of("tiny");
    let text = r#"{"bos_token_id": 3048}"#;
    fs::write(folder.path().join("generation_config.json"), text).unwrap();
    assert_refused(
        Checkpoint::open(folder.path()),
        &["generation_config.json", "bos_token_id", "3048"],
    );
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    let folder = Folder::of("tiny");
    let path = folder.path();
    for name in [
        "config.json",
        "preprocessor_config.json",
        "generation_config.json",
    ] {
        let text = fs::read_to_string(path.join(name)).unwrap_or_else(|_| "{}".to_owned());
        fs::write(path.join(name), format!("\u{feff}{text}")).unwrap();
    }
    Checkpoint::open(path).unwrap();
    cider::image::ImageProcessor::open(path).unwrap();
}
