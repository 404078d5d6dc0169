//! Linux: transparent huge pages, on request.

use memmap2::{Advice, MmapMut};

/// Asks for large pages; without them the memory works as well.
pub(crate) fn ask_for_large(map: &MmapMut) {
    // A system without them says so, which changes nothing.
    let _ = map.advise(Advice::HugePage);
}
