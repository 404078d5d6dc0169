//! Memory that tensors live in.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::{fmt, slice};

use crate::dtype::Element;
use crate::error::{Error, Result};

/// Memory of one device. On the CPU it is host memory, zeroed, aligned to a cache line and padded to a
/// multiple of one.
#[derive(Debug)]
pub struct Buffer {
    host: HostBuffer,
}

impl Buffer {
    /// `bytes` of zeroed host memory. Untouched pages cost nothing until they are written.
    ///
    /// # Errors
    /// When the size overflows or the allocator refuses.
    pub fn host(bytes: usize) -> Result<Self> {
        Ok(Self {
            host: HostBuffer::zeroed(bytes)?,
        })
    }

    /// Bytes asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.host.len
    }

    /// Whether nothing was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.host.len == 0
    }

    /// The contents as elements.
    #[must_use]
    pub fn as_slice<T: Element>(&self) -> &[T] {
        bytemuck::cast_slice(self.host.bytes())
    }

    /// The contents as elements to write.
    #[must_use]
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.host.bytes_mut())
    }
}

/// Zeroed bytes aligned to [`ALIGN`], inside an allocation of ordinary alignment: only for such a one does the
/// allocator hand out pages that are zero because nobody has touched them.
struct HostBuffer {
    allocation: NonNull<u8>,
    layout: Layout,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the allocation is owned and reached only through `&self` and `&mut self`.
unsafe impl Send for HostBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    fn zeroed(len: usize) -> Result<Self> {
        let refuse = || Error::shape("allocate", format!("{len} bytes cannot be allocated"));
        let padded = len
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .and_then(|padded| padded.checked_add(ALIGN))
            .ok_or_else(refuse)?;
        let layout = Layout::from_size_align(padded, ORDINARY).map_err(|_| refuse())?;
        // SAFETY: the layout's size is at least ALIGN, so it is not zero.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refuse)?;
        let offset = allocation.addr().get().wrapping_neg() % ALIGN;
        // SAFETY: the offset is below ALIGN, by which the allocation is longer than the padded bytes.
        let start = unsafe { allocation.add(offset) };
        Ok(Self {
            allocation,
            layout,
            start,
            len,
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: from `start` the allocation holds `len` initialised bytes for as long as `self` lives.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.len)
    }
}

/// Alignment of every allocation: a cache line, and the widest vector register.
const ALIGN: usize = 64;

/// What every allocator aligns to.
const ORDINARY: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_aligned_and_typed() {
        let mut buffer = Buffer::host(12).unwrap();
        assert_eq!(buffer.as_slice::<f32>(), [0.0; 3]);
        assert_eq!(buffer.as_slice::<u8>().as_ptr() as usize % ALIGN, 0);
        buffer.as_mut_slice::<i32>()[2] = 7;
        assert_eq!(buffer.as_slice::<u8>()[8], 7);
        assert_eq!(Buffer::host(0).unwrap().as_slice::<u8>().len(), 0);
    }

    #[test]
    fn refuses_a_size_that_overflows() {
        let error = Buffer::host(usize::MAX - 3).unwrap_err().to_string();
        assert!(error.contains("cannot be allocated"), "{error}");
    }
}
