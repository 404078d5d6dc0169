//! The small model that comes with the program, and when it is meant.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::Result;
use cider::files::shown;

use crate::failure::Usage;

/// Tells MODEL from PROMPT where only one of them may be there: a single argument is the model if it exists as a
/// file or folder or looks like one, otherwise the prompt.
pub(crate) fn tell_apart(
    model: Option<&Path>,
    prompt: Option<&str>,
) -> (Option<PathBuf>, Option<String>) {
    match (model, prompt) {
        (Some(only), None) if !only.exists() => match only.to_str() {
            Some(text) if !looks_like_a_model(text) => (None, Some(text.to_owned())),
            _ => (Some(only.to_path_buf()), None),
        },
        _ => (model.map(Path::to_path_buf), prompt.map(str::to_owned)),
    }
}

/// Refuses a picture in the place of MODEL or PROMPT, and a PROMPT without words.
pub(crate) fn refuse_slips(model: Option<&Path>, prompt: Option<&str>) -> Result<(), Usage> {
    let Some(first) = model else {
        return Ok(());
    };
    if first.as_os_str().is_empty() {
        let what = if prompt.is_some() {
            "MODEL is empty"
        } else {
            "the prompt is empty"
        };
        return Err(Usage(what.to_owned()));
    }
    let end = first.extension().unwrap_or_default().to_ascii_lowercase();
    let is_word = !first.to_string_lossy().contains(char::is_whitespace);
    if (is_word || first.is_file()) && PICTURES.iter().any(|&known| end == known) {
        let name = shown(first);
        let what =
            format!("{name} is a picture: give it as --image {name}, with a PROMPT about it");
        return Err(Usage(what));
    }
    Ok(())
}

/// The folder of the small model.
pub(crate) fn find() -> Result<PathBuf> {
    let places = places(
        env::var_os("CIDER_DATA"),
        env::current_exe().ok().as_deref(),
    );
    match places
        .iter()
        .find(|place| place.join("config.json").is_file())
    {
        Some(found) => Ok(found.clone()),
        None => Err(Usage(not_found(&places)).into()),
    }
}

/// Where it may be, the likeliest first: what the environment says, beside the program, where an installation
/// puts data, and the checkout that the program was built in.
fn places(data: Option<std::ffi::OsString>, program: Option<&Path>) -> Vec<PathBuf> {
    let data = data.filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = data.into_iter().collect();
    if let Some(folder) = program.and_then(Path::parent) {
        folders.push(folder.to_path_buf());
        if let Some(prefix) = folder.parent() {
            folders.push(prefix.join("share/cider"));
        }
        folders.extend(folder.ancestors().skip(1).map(Path::to_path_buf));
    }
    folders.iter().map(|folder| folder.join(NAME)).collect()
}

fn not_found(places: &[PathBuf]) -> String {
    let places: Vec<String> = places
        .iter()
        .map(|place| shown(place).to_string())
        .collect();
    format!(
        "no MODEL given, and the small one that comes with the program is in none of {}: name a GGUF file or a \
         folder with config.json and safetensors, or set CIDER_DATA",
        places.join(", ")
    )
}

/// How the names of pictures end.
const PICTURES: [&str; 6] = ["png", "jpg", "jpeg", "webp", "gif", "bmp"];

/// Whether an argument that is no file is more likely a model's name than a question.
fn looks_like_a_model(text: &str) -> bool {
    let is_path = ["/", "./", "../", "~"]
        .iter()
        .any(|start| text.starts_with(start));
    let one_word = !text.contains(char::is_whitespace);
    is_path || one_word && (text.to_ascii_lowercase().ends_with(".gguf") || is_hub_id(text))
}

/// `owner/name` in the characters that hubs allow.
fn is_hub_id(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let mut parts = text.split('/');
    let (owner, name) = (parts.next(), parts.next());
    parts.next().is_none() && owner.is_some_and(is_name) && name.is_some_and(is_name)
}

const NAME: &str = "models/demo-vlm";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_argument_is_a_model_or_a_prompt() {
        let told = |text: &str| tell_apart(Some(Path::new(text)), None);
        for model in [
            "src", // Tests run in the folder of the crate, which has one.
            "missing.gguf",
            "./missing",
            "../missing",
            "/missing folder/model",
            "~/model",
            "Qwen/Qwen3-VL-2B-Instruct",
        ] {
            assert_eq!(told(model), (Some(model.into()), None), "{model}");
        }
        for prompt in [
            "hello",
            "What is in this image?",
            "either/or, which?",
            "a/b/c",
            "what is in model.gguf",
            "",
        ] {
            assert_eq!(told(prompt), (None, Some(prompt.into())), "{prompt}");
        }
    }

    #[test]
    fn two_arguments_are_model_and_prompt() {
        let told = tell_apart(Some(Path::new("hello")), Some("src"));
        assert_eq!(told, (Some("hello".into()), Some("src".into())));
        assert_eq!(tell_apart(None, None), (None, None));
    }

    #[test]
    fn places_go_from_the_environment_up_to_the_root() {
        let found = places(Some("/data".into()), Some(Path::new("/a/bin/cider")));
        let expected = ["/data", "/a/bin", "/a/share/cider", "/a", "/"];
        assert_eq!(found, expected.map(|folder| Path::new(folder).join(NAME)));
        assert!(not_found(&found).contains("/a/share/cider/models/demo-vlm"));
        assert_eq!(places(Some("".into()), None), Vec::<PathBuf>::new());
    }
}
