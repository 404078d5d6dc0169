//! How many threads to run: the cores this process may use, and no more than its quota pays for.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What the machine and its container allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Logical CPUs in the affinity mask.
    pub logical: usize,
    /// Physical cores behind them.
    pub physical: usize,
    /// Whole CPUs of the cgroup's quota, if it has one.
    pub quota: Option<usize>,
}

impl Topology {
    /// Reads the running system.
    #[must_use]
    pub fn detect() -> Self {
        Self::read(Path::new("/"))
    }

    /// Reads the files of a Linux system under `root`; another path than `/` is for tests.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let cpus = affinity(root);
        let fallback = std::thread::available_parallelism().map_or(1, usize::from);
        let logical = if cpus.is_empty() {
            fallback
        } else {
            cpus.len()
        };
        let cores: BTreeSet<String> = cpus
            .iter()
            .filter_map(|cpu| {
                let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
                fs::read_to_string(root.join(path)).ok()
            })
            .collect();
        let physical = if cores.is_empty() {
            logical
        } else {
            cores.len().min(logical)
        };
        Self {
            logical,
            physical,
            quota: quota(root),
        }
    }

    /// Threads to run: physical cores, capped by the quota, at least one.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.quota
            .map_or(self.physical, |quota| quota.min(self.physical))
            .max(1)
    }
}

/// The CPUs in this process's affinity mask.
fn affinity(root: &Path) -> Vec<usize> {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(|list| parse_list(list.trim())).unwrap_or_default()
}

/// Reads a list such as `0-3,8,10-11`.
fn parse_list(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    };
    list.split(',')
        .filter_map(range)
        .flatten()
        .take(1 << 16)
        .collect()
}

/// Whole CPUs of the tightest cgroup quota from this process's group up to the root, rounded up.
fn quota(root: &Path) -> Option<usize> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut quotas = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if controllers.is_empty() {
            quotas.extend(ancestors(&root.join("sys/fs/cgroup"), path, quota_v2));
        } else if controllers.split(',').any(|name| name == "cpu") {
            for mount in ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"] {
                quotas.extend(ancestors(&root.join(mount), path, quota_v1));
            }
        }
    }
    quotas.into_iter().min()
}

fn ancestors(mount: &Path, path: &str, read: fn(&Path) -> Option<usize>) -> Option<usize> {
    let group = mount.join(path.trim_start_matches('/'));
    group
        .ancestors()
        .take_while(|folder| folder.starts_with(mount))
        .filter_map(read)
        .min()
}

fn quota_v2(folder: &Path) -> Option<usize> {
    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    whole_cpus(quota.parse().ok()?, period.parse().ok()?)
}

fn quota_v1(folder: &Path) -> Option<usize> {
    let read = |name: &str| {
        fs::read_to_string(folder.join(name))
            .ok()?
            .trim()
            .parse::<i64>()
            .ok()
    };
    whole_cpus(read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
}

fn whole_cpus(quota: i64, period: i64) -> Option<usize> {
    if quota <= 0 || period <= 0 {
        return None;
    }
    usize::try_from((quota + period - 1) / period).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A made-up system of 64 CPUs, two to a core, with files under its cgroup mount.
    fn system(name: &str, cgroup: &str, files: &[(&str, &str)]) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("cider-topology-{}-{name}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-63\n");
        write("proc/self/cgroup", cgroup);
        for cpu in 0..64 {
            let siblings = format!("{},{}\n", cpu % 32, cpu % 32 + 32);
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            write(&path, &siblings);
        }
        for (path, text) in files {
            write(path, text);
        }
        root
    }

    fn read(name: &str, cgroup: &str, files: &[(&str, &str)]) -> Topology {
        let root = system(name, cgroup, files);
        let topology = Topology::read(&root);
        fs::remove_dir_all(root).unwrap();
        topology
    }

    /// The quota of a control group, of either version, bounds the threads.
    #[test]
    fn a_quota_caps_the_threads() {
        let max = ("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
        let found = read("v2", "0::/a/b\n", &[max]);
        assert_eq!(
            found,
            Topology {
                logical: 64,
                physical: 32,
                quota: Some(4)
            }
        );
        assert_eq!(found.threads(), 4);
        let open = read(
            "open",
            "0::/a\n",
            &[("sys/fs/cgroup/a/cpu.max", "max 100000\n")],
        );
        assert_eq!((open.quota, open.threads()), (None, 32));
    }

    #[test]
    fn the_tightest_ancestor_wins_and_parts_round_up() {
        let files = [
            ("sys/fs/cgroup/a/cpu.max", "150000 100000"),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000"),
        ];
        assert_eq!(read("parent", "0::/a/b\n", &files).threads(), 2);
        let v1 = [
            ("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000"),
            ("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000"),
        ];
        assert_eq!(read("v1", "3:cpu,cpuacct:/x\n", &v1).threads(), 1);
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_list("0-2,7"), [0, 1, 2, 7]);
        assert_eq!(parse_list(""), Vec::<usize>::new());
    }
}
