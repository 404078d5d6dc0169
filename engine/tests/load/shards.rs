//! A checkpoint of several files, whole and not.

use std::fs;

use cider::load::{Checkpoint, SourceKind};
use serde_json::{Value, json};

use crate::support::{Folder, INDEX, Made, Tiny, assert_refused, save_tensors, shard_name};

fn sharded() -> Folder {
    let folder = Folder::new();
    Tiny::qwen3().save_sharded(&folder);
    folder
}

/// Changes the index's map.
fn edit_index(folder: &Folder, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let text = fs::read_to_string(folder.path().join(INDEX)).unwrap();
    let mut index: Value = serde_json::from_str(&text).unwrap();
    edit(index["weight_map"].as_object_mut().unwrap());
    folder.write(INDEX, index.to_string());
}

#[test]
fn shards_are_one_checkpoint() {
    let folder = sharded();
    let checkpoint = folder.open().unwrap();
    assert_eq!(checkpoint.source, SourceKind::Safetensors);
    let tiny = Tiny::qwen3();
    assert_eq!(checkpoint.tensors.names().count(), tiny.tensors.len());
    for Made {
        name,
        shape,
        values,
        ..
    } in &tiny.tensors
    {
        assert_eq!(
            &checkpoint.tensors.require(name, shape).unwrap().read_all(),
            values,
            "{name}"
        );
    }
}

#[test]
fn an_index_or_a_shard_stands_for_the_whole() {
    let folder = sharded();
    for name in [INDEX.to_owned(), shard_name(2)] {
        let checkpoint = Checkpoint::open(&folder.path().join(name)).unwrap();
        assert_eq!(checkpoint.tensors.names().count(), 24);
        assert_eq!(checkpoint.path, folder.path());
    }
}

#[test]
fn shards_need_their_index() {
    let folder = sharded();
    fs::remove_file(folder.path().join(INDEX)).unwrap();
    assert_refused(folder.open(), &[&shard_name(1), &shard_name(2), "no index"]);
    let shard = Checkpoint::open(&folder.path().join(shard_name(2)));
    assert_refused(shard, &[&shard_name(2), "one of 00003 shards", INDEX]);
    // The only shard of its set is the whole.
    let folder = Folder::new();
    let tiny = Tiny::qwen3();
    tiny.save_config(&folder);
    let only = folder.path().join("model-00001-of-00001.safetensors");
    save_tensors(&only, &tiny.tensors);
    folder.open().unwrap();
}

#[test]
fn a_missing_shard_is_named() {
    let folder = sharded();
    fs::remove_file(folder.path().join(shard_name(2))).unwrap();
    let parts = [INDEX, "1 of 3 shards", "8 tensors", &shard_name(2)];
    assert_refused(folder.open(), &parts);
    fs::remove_file(folder.path().join(shard_name(3))).unwrap();
    assert_refused(
        folder.open(),
        &["2 of 3 shards", &shard_name(2), &shard_name(3)],
    );
}

#[test]
fn a_renamed_shard_is_missing() {
    let folder = sharded();
    let from = folder.path().join(shard_name(2));
    fs::rename(from, folder.path().join("model-2.safetensors")).unwrap();
    assert_refused(folder.open(), &[INDEX, "missing", &shard_name(2)]);
}

#[test]
fn a_tensor_the_index_promises_must_be_in_its_shard() {
    let folder = sharded();
    edit_index(&folder, |map| {
        map.insert("model.norm.weight".to_owned(), json!(shard_name(3)));
    });
    let parts = [&shard_name(3), "model.norm.weight", INDEX];
    assert_refused(
        folder.open(),
        &parts.map(String::from).each_ref().map(String::as_str),
    );
}

#[test]
fn a_shard_of_the_set_must_be_in_the_index() {
    let folder = sharded();
    let tiny = Tiny::qwen3();
    edit_index(&folder, |map| {
        map.retain(|_, shard| *shard != json!(shard_name(3)));
    });
    assert_refused(folder.open(), &[&shard_name(3), INDEX, "does not list"]);
    // A file of another name is none of the index's business.
    let folder = sharded();
    save_tensors(
        &folder.path().join("consolidated.safetensors"),
        &tiny.tensors[..1],
    );
    folder.open().unwrap();
}

#[test]
fn a_single_file_beside_an_index_is_ambiguous() {
    let folder = sharded();
    let single = folder.path().join("model.safetensors");
    let tiny = Tiny::qwen3();
    save_tensors(&single, &tiny.tensors);
    assert_refused(folder.open(), &[INDEX, "model.safetensors, which"]);
    // Naming one of them settles it.
    Checkpoint::open(&single).unwrap();
    Checkpoint::open(&folder.path().join(INDEX)).unwrap();
}

#[test]
fn an_index_may_list_the_single_file() {
    let folder = Folder::new();
    let tiny = Tiny::qwen3();
    tiny.save(&folder);
    let map: serde_json::Map<_, _> = tiny
        .tensors
        .iter()
        .map(|tensor| (tensor.name.clone(), "model.safetensors".into()))
        .collect();
    folder.write(INDEX, json!({"weight_map": map}).to_string());
    folder.open().unwrap();
}

#[test]
fn what_the_index_does_not_list_does_not_count() {
    let folder = sharded();
    edit_index(&folder, |map| {
        map.remove("model.norm.weight");
    });
    assert_refused(folder.open(), &["model.norm.weight", "missing"]);
}

#[test]
fn a_damaged_index_is_refused() {
    let folder = sharded();
    for (content, what) in [
        ("{", "not JSON"),
        ("[]", "expected an object, found a list"),
        ("{}", "weight_map: missing"),
        (r#"{"weight_map": {}}"#, "lists no tensor"),
        (r#"{"weight_map": {"a": 1}}"#, "weight_map.a"),
        (
            r#"{"weight_map": {"a": "../other/model.safetensors"}}"#,
            "../other/model.safetensors",
        ),
        (r#"{"weight_map": {"a": "/etc/passwd"}}"#, "/etc/passwd"),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "Git LFS pointer",
        ),
    ] {
        folder.write(INDEX, content);
        assert_refused(folder.open(), &[INDEX, what]);
    }
}

#[test]
fn a_missing_tensor_is_never_made_up() {
    for tensor in Tiny::qwen3().tensors {
        let mut tiny = Tiny::qwen3();
        tiny.tensors.retain(|other| other.name != tensor.name);
        assert_refused(tiny.open(), &["model.safetensors", &tensor.name, "missing"]);
    }
    let mut tiny = Tiny::qwen3();
    tiny.tensors.truncate(1);
    assert_refused(
        tiny.open(),
        &["model.layers.0.input_layernorm.weight", "and 22 others"],
    );
}

#[test]
fn a_tensor_of_another_shape_or_type_is_refused() {
    let mut tiny = Tiny::qwen3();
    tiny.tensors[3] = Made::new(&tiny.tensors[3].name, &[64, 128], 1);
    let parts = [
        "model.layers.0.self_attn.q_proj.weight",
        "[128, 64]",
        "[64, 128]",
    ];
    assert_refused(tiny.open(), &parts);
}

#[test]
fn surplus_tensors_are_left_out() {
    let mut tiny = Tiny::qwen3();
    tiny.tensors
        .push(Made::new("model.layers.0.self_attn.q_proj.bias", &[128], 9));
    tiny.tensors
        .push(Made::new("model.layers.7.mlp.up_proj.weight", &[96, 64], 9));
    let checkpoint = tiny.open().unwrap();
    assert_eq!(checkpoint.tensors.names().count(), 24);
    assert!(
        checkpoint
            .tensors
            .get("model.layers.0.self_attn.q_proj.bias")
            .is_none()
    );
}

#[test]
fn other_prefixes_are_the_same_tensors() {
    let renames: [fn(&str) -> String; 3] = [
        |name| name.replacen("model.", "model.language_model.", 1),
        |name| format!("language_model.{name}"),
        |name| name.replacen("model.", "", 1),
    ];
    for rename in renames {
        let mut tiny = Tiny::qwen3();
        for tensor in &mut tiny.tensors {
            tensor.name = rename(&tensor.name);
        }
        assert_eq!(tiny.open().unwrap().tensors.names().count(), 24);
    }
}

#[test]
fn a_folder_without_weights_says_what_is_there() {
    let folder = Folder::new();
    let tiny = Tiny::qwen3();
    tiny.save_config(&folder);
    assert_refused(folder.open(), &["no .safetensors file"]);
    folder.write("pytorch_model.bin", "x");
    assert_refused(folder.open(), &["pytorch_model.bin", "another format"]);
    save_tensors(&folder.path().join("weights.safetensors"), &tiny.tensors);
    folder.open().unwrap();
    save_tensors(&folder.path().join("other.safetensors"), &tiny.tensors);
    assert_refused(
        folder.open(),
        &["other.safetensors and weights.safetensors"],
    );
}

#[test]
fn a_path_that_is_no_model_says_so() {
    let folder = Folder::new();
    assert_refused(
        Checkpoint::open(&folder.path().join("none")),
        &["none", "No such file"],
    );
    assert_refused(folder.open(), &["neither config.json nor a .gguf file"]);
    let text = folder.write("notes.txt", "hello");
    assert_refused(Checkpoint::open(&text), &["notes.txt", "not a model"]);
    let pointer = folder.write("big", "version https://git-lfs.github.com/spec/v1\n");
    assert_refused(Checkpoint::open(&pointer), &["big", "Git LFS"]);
    fs::create_dir(folder.path().join("config.json")).unwrap();
    assert_refused(folder.open(), &["config.json", "not a regular file"]);
}
