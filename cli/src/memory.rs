//! How much memory the process occupies, as the system counts it.

use std::fs;

use serde::Serialize;

/// Memory of this process in bytes. Mapped files count as resident; the anonymous figures are without them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// The most that was ever resident.
    pub(crate) resident_peak: u64,
    /// What is resident and belongs to no file.
    pub(crate) anonymous: u64,
    /// The largest `anonymous` that was seen.
    pub(crate) anonymous_peak: u64,
}

impl Memory {
    /// Looks again; figures that the system does not give stay 0.
    pub(crate) fn sample(&mut self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        self.resident_peak = field(&status, "VmHWM:").unwrap_or_default();
        self.anonymous = field(&status, "RssAnon:").unwrap_or_default();
        self.anonymous_peak = self.anonymous_peak.max(self.anonymous);
    }
}

/// Bytes of a line such as `RssAnon:  123 kB`.
fn field(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_bytes() {
        let status = "Name:\tcider\nVmHWM:\t     200 kB\nRssAnon:\t  12 kB\n";
        assert_eq!(field(status, "VmHWM:"), Some(204_800));
        assert_eq!(field(status, "RssAnon:"), Some(12_288));
        assert_eq!(field(status, "RssFile:"), None);
    }
}
