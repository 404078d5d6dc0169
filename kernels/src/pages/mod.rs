//! Large zeroed memory in large pages, where the system has them: weights are read from end to end, and a page
//! of 4 KiB costs a search of the page tables every few dozen cache lines.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::ask_for_large;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::ask_for_large;

/// From this size on memory is asked for in large pages.
pub(crate) const LARGE_FROM: usize = 4 << 20;

/// Bytes of a large page.
pub(crate) const LARGE_PAGE: usize = 2 << 20;
