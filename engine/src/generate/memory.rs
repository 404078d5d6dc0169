//! How much memory there is.

use std::fs;
use std::path::Path;

/// Bytes of memory that can still be had, where the system says so: of the machine, and of the control group that
/// this process is in.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, names) = match controllers {
            "" => ("/sys/fs/cgroup", &UNIFIED),
            "memory" => ("/sys/fs/cgroup/memory", &SEPARATE),
            _ => return None,
        };
        // Inside a container the root is the group itself.
        let own = Path::new(root).join(path.trim_start_matches('/'));
        group_memory(&own, names).or_else(|| group_memory(Path::new(root), names))
    });
    machine_memory().into_iter().chain(groups).min()
}

fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes = line.trim().trim_end_matches(" kB").trim();
    kilobytes.parse::<u64>().ok()?.checked_mul(1024)
}

/// The files of a control group.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// The key of the file cache that can be given up, in `memory.stat`.
    cache: &'static str,
}

/// What a control group has left; nothing where it has no limit.
fn group_memory(folder: &Path, names: &Names) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        text.trim().parse().ok()
    };
    let (limit, usage) = (number(names.limit)?, number(names.usage)?);
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == names.cache).then(|| value.parse::<u64>().ok())?
    });
    let used = usage.saturating_sub(cache.unwrap_or_default());
    Some(limit.saturating_sub(used))
}

const UNIFIED: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    cache: "inactive_file",
};

const SEPARATE: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: "total_inactive_file",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_what_its_limit_leaves() {
        let folder = std::env::temp_dir().join(format!("cider-group-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        assert_eq!(group_memory(&folder, &UNIFIED), None);
        write("memory.max", "max\n");
        write("memory.current", "3000\n");
        assert_eq!(group_memory(&folder, &UNIFIED), None);
        write("memory.max", "10000\n");
        assert_eq!(group_memory(&folder, &UNIFIED), Some(7000));
        write("memory.stat", "anon 2000\ninactive_file 500\n");
        assert_eq!(group_memory(&folder, &UNIFIED), Some(7500));
        write("memory.current", "20000\n");
        assert_eq!(group_memory(&folder, &UNIFIED), Some(0));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn there_is_memory() {
        if Path::new("/proc/meminfo").exists() {
            assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
        }
    }
}
