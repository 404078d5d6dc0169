//! Files that a command writes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cider::files;
use cider::files::shown;

use crate::failure::Usage;
use crate::interrupt;

/// The files that a command is asked to write, by their options.
pub(crate) struct Targets<'a> {
    found: Vec<(&'static str, &'a Path, PathBuf)>,
}

impl<'a> Targets<'a> {
    /// Refuses what could not be written in the end, before anything is computed for it, and one file for two options.
    pub(crate) fn check(
        outputs: impl IntoIterator<Item = (&'static str, &'a Path)>,
    ) -> Result<Self> {
        let mut found: Vec<(&str, &Path, PathBuf)> = Vec::new();
        for (option, path) in outputs {
            let target = files::check_target(path).map_err(cider::Error::io(path))?;
            if let Some((other, first, _)) = found.iter().find(|(_, _, other)| *other == target) {
                let (first, second) = (shown(*first), shown(path));
                let what = format!("{other} {first} and {option} {second} are one file");
                return Err(Usage(what).into());
            }
            found.push((option, path, target));
        }
        Ok(Self { found })
    }

    /// Refuses to replace a file that the command reads, or one of a model's in a folder that it reads.
    pub(crate) fn are_not<'b>(&self, inputs: impl IntoIterator<Item = &'b Path>) -> Result<()> {
        for input in inputs {
            let Ok(read) = input.canonicalize() else {
                continue;
            };
            for (option, path, target) in &self.found {
                let is_within = read.is_dir() && target.parent() == Some(&read);
                if *target == read || is_within && target.exists() && is_of_model(target) {
                    let (path, input) = (shown(*path), shown(input));
                    let what = format!("{option} {path} would replace what is read: {input}");
                    return Err(Usage(what).into());
                }
            }
        }
        Ok(())
    }
}

/// Whether a file has the name of one that makes up a model.
fn is_of_model(path: &Path) -> bool {
    let kinds = ["safetensors", "gguf", "json", "jinja"];
    path.extension()
        .is_some_and(|found| kinds.iter().any(|kind| found == *kind))
}

/// Writes a file, whole or not at all, whatever signal comes.
pub(crate) fn write(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let written = interrupt::whole(|| files::replace(path, write)).context("signals")?;
    Ok(written.map_err(cider::Error::io(path))?)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::*;

    #[test]
    fn two_options_cannot_have_one_file_nor_a_file_that_is_read() {
        fn two(a: &Path, b: &Path) -> Result<()> {
            Targets::check([("--json", a), ("--svg", b)]).map(|_| ())
        }
        let folder = env::temp_dir().join(format!("cider-targets-{}", process::id()));
        fs::create_dir_all(folder.join("model")).unwrap();
        let (a, b) = (folder.join("a"), folder.join("model/../a"));
        let refused = two(&a, &b).unwrap_err();
        assert!(refused.is::<Usage>());
        let refused = refused.to_string();
        assert!(
            refused.starts_with("--json ") && refused.ends_with("are one file"),
            "{refused}"
        );
        two(&a, &folder.join("b")).unwrap();
        fs::write(&a, "").unwrap();
        fs::write(folder.join("model/config.json"), "").unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink("a", &link).unwrap();
        two(&a, &link).unwrap_err();
        let inputs = [folder.join("model"), a.clone(), folder.join("missing")];
        let one = |path: &Path| {
            Targets::check([("-o", path)])
                .unwrap()
                .are_not(inputs.iter().map(PathBuf::as_path))
        };
        for path in [&a, &b, &link, &folder.join("model/config.json")] {
            let refused = one(path).unwrap_err().to_string();
            assert!(refused.contains("would replace what is read"), "{refused}");
        }
        one(&folder.join("model/new.json")).unwrap();
        fs::write(folder.join("model/logits"), "").unwrap();
        one(&folder.join("model/logits")).unwrap();
        one(&folder.join("b")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
