//! The safetensors of a folder: one file, or shards and their index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::json::{self, Keys};
use super::names;
use super::safetensors;
use super::sniff::{self, INDEX_SUFFIX, has_extension};
use super::tensor::TensorMap;
use crate::error::{Error, Result};
use crate::files::{shown, shown_name};

/// Opens the weights of `folder`, with canonical names.
///
/// Where a single file and an index of other files lie side by side nobody can say which are the
/// weights: that is an error, and naming one of the two as the model settles it.
pub(super) fn open(folder: &Path) -> Result<TensorMap> {
    let names = sniff::names_in(folder)?;
    let indexes: Vec<_> = names
        .iter()
        .filter(|name| name.ends_with(INDEX_SUFFIX))
        .collect();
    let single = names.iter().any(|name| name == SINGLE);
    match (indexes.as_slice(), single) {
        ([], true) => open_file(&folder.join(SINGLE)),
        ([], false) => open_only(folder, &names),
        ([index], _) => {
            let index = folder.join(index);
            let shards = shards(&index, &read_index(&index)?)?;
            if single && !shards.contains_key(SINGLE) {
                let what =
                    format!("lies beside {SINGLE}, which it does not list: name one of them");
                return Err(Error::file(index, what));
            }
            open_shards(&index)
        }
        ([first, second, ..], _) => {
            let (first, second) = (shown_name(first), shown_name(second));
            let what = format!("both {first} and {second} in it: name one of them");
            Err(Error::file(folder, what))
        }
    }
}

/// Opens one safetensors file, or the shards of an index; a shard stands for the whole of its index.
pub(super) fn open_file(path: &Path) -> Result<TensorMap> {
    if path.to_string_lossy().ends_with(INDEX_SUFFIX) {
        return open_shards(path);
    }
    if let Some((stem, total)) = shard_set(&file_name(path)) {
        let index = path.with_file_name(format!("{stem}{INDEX_SUFFIX}"));
        if index.exists() {
            return open_shards(&index);
        }
        if total != "00001" {
            let what = format!(
                "one of {total} shards, but there is no {}",
                shown_name(&file_name(&index))
            );
            return Err(Error::file(path, what));
        }
    }
    let mut tensors = TensorMap::new(path);
    let source = safetensors::open(path)?;
    tensors.take_all(source, |name| Some(names::canonical(name)))?;
    Ok(tensors)
}

/// A folder whose single file has another name than usual.
fn open_only(folder: &Path, names: &[String]) -> Result<TensorMap> {
    let mut files = names
        .iter()
        .filter(|name| has_extension(name, "safetensors"));
    match (files.next(), files.next()) {
        (Some(only), None) => open_file(&folder.join(only)),
        (Some(first), Some(second)) => {
            let (first, second) = (shown_name(first), shown_name(second));
            let what = format!("{first} and {second} in it, but no index: name one of them");
            Err(Error::file(folder, what))
        }
        (None, _) => {
            let other = names
                .iter()
                .find(|name| has_extension(name, "bin") || has_extension(name, "pth"));
            let found = other.map_or(String::new(), |name| {
                format!(" ({} is of another format)", shown_name(name))
            });
            Err(Error::file(
                folder,
                format!("no .safetensors file in it{found}"),
            ))
        }
    }
}

fn open_shards(index: &Path) -> Result<TensorMap> {
    let tensors_of = shards(index, &read_index(index)?)?;
    let folder = index.parent().unwrap_or(Path::new(""));
    check_files(index, folder, &tensors_of)?;
    let mut tensors = TensorMap::new(folder);
    for (shard, listed) in &tensors_of {
        let path = folder.join(shard);
        let source = safetensors::open(&path)?;
        if let Some(absent) = listed.iter().find(|name| !source.contains(name)) {
            let what = format!(
                "missing, though {} says it is there",
                shown_name(&file_name(index))
            );
            return Err(Error::tensor(path, absent, what));
        }
        let unlisted: Vec<_> = source
            .all_names()
            .filter(|name| !listed.contains(*name))
            .collect();
        if let Some(first) = unlisted.first() {
            let (path, count) = (shown(path.as_path()), unlisted.len());
            tracing::warn!("{path}: {count} tensors are not in the index, {first} the first");
        }
        let keep = |name: &str| listed.contains(name).then(|| names::canonical(name));
        tensors.take_all(source, keep)?;
    }
    Ok(tensors)
}

fn read_index(index: &Path) -> Result<BTreeMap<String, String>> {
    let object = json::read_object(index)?;
    let keys = Keys::new(index, &object);
    let map = keys
        .inside("weight_map")?
        .ok_or_else(|| keys.missing("weight_map"))?;
    let mut shard_of = BTreeMap::new();
    for name in map.names() {
        let shard = map.find(name).and_then(Value::as_str).unwrap_or_default();
        if !has_extension(shard, "safetensors") || shard.contains(['/', '\\']) {
            let what = format!("expected the name of a .safetensors file, found {shard:?}");
            return Err(map.error(name, what));
        }
        shard_of.insert(name.to_owned(), shard.to_owned());
    }
    Ok(shard_of)
}

/// The tensors of each shard.
fn shards(
    index: &Path,
    shard_of: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut tensors_of = BTreeMap::<_, BTreeSet<_>>::new();
    for (name, shard) in shard_of {
        tensors_of
            .entry(shard.clone())
            .or_default()
            .insert(name.clone());
    }
    if tensors_of.is_empty() {
        return Err(Error::file(index, "weight_map lists no tensor"));
    }
    Ok(tensors_of)
}

/// All shards must be there before any is opened, and none of their set may be there unlisted.
fn check_files(
    index: &Path,
    folder: &Path,
    tensors_of: &BTreeMap<String, BTreeSet<String>>,
) -> Result<()> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let there: BTreeSet<_> = sniff::names_in(folder)?.into_iter().collect();
    let missing: Vec<_> = tensors_of
        .iter()
        .filter(|(shard, _)| !there.contains(*shard))
        .collect();
    if !missing.is_empty() {
        let tensors: usize = missing.iter().map(|(_, tensors)| tensors.len()).sum();
        let (count, all) = (missing.len(), tensors_of.len());
        let shown: Vec<_> = missing
            .iter()
            .take(SHOWN)
            .map(|(shard, _)| shown_name(shard))
            .collect();
        let shown = shown.join(", ");
        let what = format!("{count} of {all} shards are missing with {tensors} tensors: {shown}");
        return Err(Error::file(index, what));
    }
    let sets: BTreeSet<_> = tensors_of
        .keys()
        .filter_map(|shard| shard_set(shard))
        .collect();
    for name in &there {
        if !tensors_of.contains_key(name) && shard_set(name).is_some_and(|set| sets.contains(&set))
        {
            let what = format!(
                "a shard that {} does not list",
                shown_name(&file_name(index))
            );
            return Err(Error::file(folder.join(name), what));
        }
    }
    Ok(())
}

/// The stem and the number of shards in `stem-00001-of-00003.safetensors`.
fn shard_set(name: &str) -> Option<(String, String)> {
    let (rest, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(total)).then(|| (stem.to_owned(), total.to_owned()))
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// How a single file is called.
const SINGLE: &str = "model.safetensors";

/// Shards that a message names.
const SHOWN: usize = 5;
