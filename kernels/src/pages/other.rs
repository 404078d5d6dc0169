//! Systems that choose the size of pages by themselves.

use memmap2::MmapMut;

/// Nothing to ask for.
pub(crate) fn ask_for_large(_map: &MmapMut) {}
