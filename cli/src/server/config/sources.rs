//! Settings from a file, the environment and flags, in this order: the last that says something counts.

use std::path::Path;

use cider::files::{self, shown};
use serde_json::{Map, Value};

use super::setting::{Kind, PREFIX, Setting};
use super::settings::SETTINGS;
use super::{Config, ServeFlags, nearest};
use crate::failure::Usage;

impl Config {
    /// What all sources say together. `environment` is the environment's variables.
    pub(crate) fn read(
        flags: &ServeFlags,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Usage> {
        let mut values: Vec<Option<Given>> = SETTINGS.iter().map(|_| None).collect();
        if let Some(path) = &flags.config {
            take_file(path, &mut values)?;
        }
        take_environment(environment, &mut values)?;
        for (key, given) in &flags.given {
            if let Some(at) = SETTINGS.iter().position(|setting| setting.key == *key) {
                let source = format!("--{}", SETTINGS[at].flag);
                values[at] = Some(Given {
                    source,
                    values: given.clone(),
                });
            }
        }
        let mut config = Self::default();
        for (setting, given) in SETTINGS.iter().zip(values) {
            let Some(given) = given else { continue };
            if setting.is_secret() && given.values.iter().all(String::is_empty) {
                // A secret that was not filled in must not open the server.
                return Err(Usage(format!("{}: no key in it", given.source)));
            }
            for value in &given.values {
                (setting.set)(&mut config, value)
                    .map_err(|what| Usage(refusal(setting, &given.source, value, &what)))?;
            }
        }
        Ok(config)
    }
}

/// The values of a setting, and who gave them.
struct Given {
    source: String,
    values: Vec<String>,
}

/// What is wrong with a value; a key is never shown.
fn refusal(setting: &Setting, source: &str, value: &str, what: &str) -> String {
    if setting.is_secret() {
        return format!("{source}: {what}");
    }
    format!("{source}: {what}, got {value:?}")
}

fn take_environment(
    environment: impl IntoIterator<Item = (String, String)>,
    values: &mut [Option<Given>],
) -> Result<(), Usage> {
    let names: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    for (name, value) in environment {
        if !name.starts_with(PREFIX) {
            continue;
        }
        let Some(at) = names.iter().position(|known| *known == name) else {
            let hint = hint(&name, names.iter().map(String::as_str));
            return Err(Usage(format!(
                "environment variable {name} is not known{hint}"
            )));
        };
        let list = match SETTINGS[at].kind {
            Kind::Many => value
                .split(',')
                .map(|part| part.trim().to_owned())
                .filter(|part| !part.is_empty())
                .collect(),
            _ => vec![value],
        };
        values[at] = Some(Given {
            source: name,
            values: list,
        });
    }
    Ok(())
}

fn take_file(path: &Path, values: &mut [Option<Given>]) -> Result<(), Usage> {
    let refuse = |what: String| Usage(format!("{}: {what}", shown(path)));
    let bytes = files::read(path, MAX_FILE).map_err(|error| refuse(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("not UTF-8".to_owned()))?;
    // An empty file, or one of comments alone, sets nothing.
    let read: Option<Map<String, Value>> =
        serde_saphyr::from_str(&text).map_err(|error| refuse(first_line(&error.to_string())))?;
    let mut found = Vec::new();
    flatten("", read.unwrap_or_default(), &mut found);
    for (key, value) in found {
        // The mode of W8A8 may stand without its level.
        let key = if key == "w8a8" {
            "w8a8.mode".to_owned()
        } else {
            key
        };
        let Some(at) = SETTINGS.iter().position(|setting| setting.key == key) else {
            let hint = hint(&key, SETTINGS.iter().map(|setting| setting.key));
            return Err(refuse(format!("{key} is not known{hint}")));
        };
        let list = texts(&SETTINGS[at], value).map_err(|what| refuse(format!("{key}: {what}")))?;
        let source = format!("{}: {key}", shown(path));
        values[at] = list.map(|values| Given { source, values });
    }
    Ok(())
}

/// What is wrong, and where; the lines behind it are those of the file, and a key may be among them.
fn first_line(error: &str) -> String {
    error.lines().next().unwrap_or_default().to_owned()
}

fn flatten(path: &str, map: Map<String, Value>, found: &mut Vec<(String, Value)>) {
    for (name, value) in map {
        let key = if path.is_empty() {
            name
        } else {
            format!("{path}.{name}")
        };
        match value {
            Value::Object(inner) => flatten(&key, inner, found),
            value => found.push((key, value)),
        }
    }
}

/// The values of a file as texts; nothing where it says null.
fn texts(setting: &Setting, value: Value) -> Result<Option<Vec<String>>, String> {
    let text = |value: Value| match (setting.kind, value) {
        (_, Value::String(text)) => Ok(text),
        (Kind::Switch, Value::Bool(on)) => Ok(on.to_string()),
        (Kind::Mode, Value::Bool(on)) => Ok(if on { "on" } else { "off" }.to_owned()),
        (Kind::Number, Value::Number(number)) => Ok(number.to_string()),
        // "none" is a scheme, and no word of YAML; numbers and truths would change their spelling.
        _ if setting.is_secret() => Err("expected texts: put them in quotes".to_owned()),
        (_, other) => Err(format!("expected a text, got {other}: put it in quotes")),
    };
    match (setting.kind, value) {
        (_, Value::Null) => Ok(None),
        (Kind::Many, Value::Array(list)) => list
            .into_iter()
            .map(text)
            .collect::<Result<_, _>>()
            .map(Some),
        (_, Value::Array(_)) => Err("expected one value, got a list".to_owned()),
        (_, value) => text(value).map(|text| Some(vec![text])),
    }
}

fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("; the nearest is {near}"))
}

/// A configuration is a page long.
const MAX_FILE: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::super::W8A8;
    use super::*;

    fn from_file(name: &str, text: &str) -> Result<Config, Usage> {
        let path = env::temp_dir().join(format!("cider-config-{name}-{}", process::id()));
        fs::write(&path, text).unwrap();
        let flags = ServeFlags {
            config: Some(path.clone()),
            ..ServeFlags::default()
        };
        let config = Config::read(&flags, []);
        fs::remove_file(path).unwrap();
        config
    }

    #[test]
    fn the_keys_of_the_seed_are_read() {
        let text = "model_name_or_path: /models/a\nw8a8:\n  mode: off\nsampling:\n  temperature: 0.5\n  top_k: null\n  \
                    max_new_tokens: 64\nserver:\n  host: 127.0.0.1\n  port: 8341\n  ttl: 60\n  max_image_buffer_size: 2\n";
        let config = from_file("seed", text).unwrap();
        assert_eq!(config.model.as_deref(), Some("/models/a"));
        assert_eq!(config.loading.w8a8, W8A8::Off, "off without quotes is off");
        assert_eq!(
            (config.sampling.temperature, config.sampling.top_k),
            (Some(0.5), None)
        );
        assert_eq!(
            (config.server.port, config.server.ttl.as_secs()),
            (8341, 60)
        );
        for (text, mode) in [
            ("on", W8A8::On),
            ("'off'", W8A8::Off),
            ("auto", W8A8::Auto),
            ("false", W8A8::Off),
        ] {
            let config = from_file("mode", &format!("w8a8: {text}\n")).unwrap();
            assert_eq!(config.loading.w8a8, mode, "{text}");
        }
        assert!(from_file("empty", "# nothing\n").is_ok());
    }

    #[test]
    fn keys_are_not_shown_and_a_key_that_is_missing_is_told() {
        for text in [
            "server:\n  api_keys: [supersecret]\n  port: 0\n bad: x\n",
            "server: {api_keys: [{supersecret: 1}]}",
            "server: {api_keys: supersecret: 1}",
        ] {
            let error = from_file("secret", text).unwrap_err().0;
            assert!(!error.contains("supersecret"), "{error}");
        }
        assert!(from_file("no-key", "server: {api_keys: []}").is_err());
        for value in ["", ",", " , "] {
            let variable = ("CIDER_SERVE_SERVER_API_KEYS".to_owned(), value.to_owned());
            let error = Config::read(&ServeFlags::default(), [variable])
                .unwrap_err()
                .0;
            assert!(error.ends_with("API_KEYS: no key in it"), "{error}");
        }
    }

    #[test]
    fn unknown_keys_name_the_nearest() {
        let error = from_file("unknown", "server:\n  prt: 1\n").unwrap_err().0;
        assert!(
            error.ends_with("server.prt is not known; the nearest is server.port"),
            "{error}"
        );
        let error = Config::read(
            &ServeFlags::default(),
            [("CIDER_SERVE_SERVER_PROT".to_owned(), "1".to_owned())],
        );
        assert!(
            error
                .unwrap_err()
                .0
                .contains("the nearest is CIDER_SERVE_SERVER_PORT")
        );
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let variable = |value: &str| ("CIDER_SERVE_SERVER_PORT".to_owned(), value.to_owned());
        let mut flags = ServeFlags::default();
        let port = |flags: &ServeFlags, value: &str| {
            Config::read(flags, [variable(value)]).unwrap().server.port
        };
        assert_eq!(port(&flags, "1"), 1);
        flags.given.push(("server.port", vec!["2".to_owned()]));
        assert_eq!(port(&flags, "1"), 2);
    }

    #[test]
    fn values_of_the_wrong_kind_are_refused_and_keys_are_not_shown() {
        for (text, what) in [
            ("server: {port: high}", "whole number"),
            ("server: {port: [1, 2]}", "a list"),
            ("server: {api_keys: [00123]}", "quotes"),
            ("limits: {body_bytes: -1}", "bytes"),
            ("- a\n- b\n", ""),
            ("a: [", ""),
        ] {
            let error = from_file("wrong", text).unwrap_err().0;
            assert!(error.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn every_setting_has_its_own_names() {
        let mut flags: Vec<&str> = SETTINGS.iter().map(|setting| setting.flag).collect();
        let mut names: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
        flags.sort_unstable();
        names.sort_unstable();
        flags.dedup();
        names.dedup();
        assert_eq!((flags.len(), names.len()), (SETTINGS.len(), SETTINGS.len()));
    }
}
