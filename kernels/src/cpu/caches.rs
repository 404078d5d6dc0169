//! The data caches of the machine, as a Linux system describes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What the data caches hold, by level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Bytes of one cache of each level, the first level first; empty where the system does not say.
    pub levels: Vec<usize>,
    /// Bytes of all caches of the last level together.
    pub last: usize,
}

impl Caches {
    /// Reads the running system.
    #[must_use]
    pub fn detect() -> Self {
        Self::read(Path::new("/"))
    }

    /// Reads the files of a Linux system under `root`; another path than `/` is for tests.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        // Level and the CPUs that share it, to the size: CPUs that share a cache describe the same one.
        let mut found = BTreeMap::new();
        for cpu in numbered(&root.join("sys/devices/system/cpu"), "cpu") {
            for index in numbered(&cpu.join("cache"), "index") {
                if let Some((level, shared, size)) = cache(&index) {
                    found.insert((level, shared), size);
                }
            }
        }
        let mut levels = BTreeMap::new();
        let mut last = BTreeMap::<usize, usize>::new();
        for ((level, _), size) in found {
            levels.insert(level, size);
            *last.entry(level).or_default() += size;
        }
        Self {
            levels: levels.into_values().collect(),
            last: last.into_values().next_back().unwrap_or(USUAL_LAST),
        }
    }
}

/// Bytes of the second-level cache of the first core, or what most cores have; reads as little as it can.
pub(super) fn of_core() -> usize {
    let indices = numbered(Path::new("/sys/devices/system/cpu/cpu0/cache"), "index");
    indices
        .iter()
        .filter_map(|index| cache(index))
        .find(|(level, _, size)| *level == 2 && CORE_SIZES.contains(size))
        .map_or(USUAL_CORE, |(_, _, size)| size)
}

/// The folders `name0`, `name1` and so on.
fn numbered(folder: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let is_numbered = |path: &Path| {
        let number = path
            .file_name()
            .and_then(|file| file.to_str())
            .and_then(|file| file.strip_prefix(name));
        number.is_some_and(|number| number.parse::<usize>().is_ok())
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| is_numbered(path))
        .collect()
}

/// Level, sharing CPUs and size of a cache that holds data.
fn cache(folder: &Path) -> Option<(usize, String, usize)> {
    let read = |name: &str| {
        Some(
            fs::read_to_string(folder.join(name))
                .ok()?
                .trim()
                .to_owned(),
        )
    };
    if read("type")? == "Instruction" {
        return None;
    }
    let size = read("size")?;
    let (number, unit) = match size.strip_suffix('K') {
        Some(number) => (number, 1024),
        None => (size.strip_suffix('M')?, 1024 * 1024),
    };
    let bytes = number.parse::<usize>().ok()?.checked_mul(unit)?;
    Some((
        read("level")?.parse().ok()?,
        read("shared_cpu_list")?,
        bytes,
    ))
}

/// Taken for the cache of a core where the system says nothing, or none of these.
const USUAL_CORE: usize = 1 << 20;
const CORE_SIZES: std::ops::RangeInclusive<usize> = 128 << 10..=64 << 20;

/// Taken for the last level where the system says nothing.
const USUAL_LAST: usize = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, caches: &[(usize, usize, [&str; 4])]) -> Caches {
        let root = std::env::temp_dir().join(format!("cider-caches-{}-{name}", std::process::id()));
        for (cpu, index, values) in caches {
            let folder = root.join(format!(
                "sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            ));
            fs::create_dir_all(&folder).unwrap();
            let names = ["level", "type", "size", "shared_cpu_list"];
            for (name, value) in names.iter().zip(values) {
                fs::write(folder.join(name), format!("{value}\n")).unwrap();
            }
        }
        fs::create_dir_all(&root).unwrap();
        let caches = Caches::read(&root);
        fs::remove_dir_all(root).unwrap();
        caches
    }

    #[test]
    fn shared_caches_count_once_and_separate_ones_add_up() {
        let mut files = Vec::new();
        for cpu in 0..4 {
            let own = ["0", "1", "2", "3"][cpu];
            let half = ["0-1", "0-1", "2-3", "2-3"][cpu];
            files.push((cpu, 0, ["1", "Data", "48K", own]));
            files.push((cpu, 1, ["1", "Instruction", "32K", own]));
            files.push((cpu, 2, ["2", "Unified", "1024K", own]));
            files.push((cpu, 3, ["3", "Unified", "32M", half]));
        }
        let found = read("shared", &files);
        assert_eq!(found.levels, [48 << 10, 1 << 20, 32 << 20]);
        assert_eq!(found.last, 64 << 20);
    }

    #[test]
    fn a_system_that_says_nothing_or_nonsense_gets_the_usual() {
        let usual = Caches {
            levels: Vec::new(),
            last: USUAL_LAST,
        };
        assert_eq!(read("nothing", &[]), usual);
        assert_eq!(
            read("nonsense", &[(0, 0, ["x", "Data", "many", "0"])]),
            usual
        );
    }
}
