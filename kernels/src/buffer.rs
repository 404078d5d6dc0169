//! Memory that tensors live in.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::{fmt, slice};

use memmap2::MmapMut;

use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::pages::{LARGE_FROM, LARGE_PAGE, ask_for_large};

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

/// Where the buffers of a backend's weights lie together, so that small ones too are in large pages. Memory is given
/// back when the last buffer of a stretch is dropped.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    current: Mutex<Stretch>,
}

impl Slab {
    /// `bytes` of zeroed memory, as [`Buffer::host`] gives.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer> {
        if bytes == 0 || bytes > STRETCH / 4 {
            return Buffer::host(bytes);
        }
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let size = bytes.next_multiple_of(ALIGN);
        let room = current
            .memory
            .upgrade()
            .filter(|_| size <= STRETCH - current.used);
        let stretch = if let Some(stretch) = room {
            stretch
        } else {
            let stretch = Arc::new(HostBuffer::mapped(STRETCH)?);
            *current = Stretch {
                memory: Arc::downgrade(&stretch),
                used: 0,
            };
            stretch
        };
        // SAFETY: the stretch has that many bytes more.
        let pointer = unsafe { stretch.pointer.add(current.used) };
        current.used += size;
        Ok(Buffer {
            host: HostBuffer {
                pointer,
                len: bytes,
                memory: Memory::Part { _of: stretch },
            },
        })
    }
}

/// Memory of which parts are given out, one after the other and each once.
#[derive(Debug, Default)]
struct Stretch {
    memory: Weak<HostBuffer>,
    used: usize,
}

/// A zeroed allocation and the aligned memory in it.
///
/// An allocator asked for zeroed memory of a large alignment writes all of it; asked for an ordinary one, it
/// hands out pages that the system gives when they are first written. So we align within.
struct HostBuffer {
    /// Aligned to [`ALIGN`].
    pointer: NonNull<u8>,
    len: usize,
    memory: Memory,
}

/// What must be given back.
enum Memory {
    /// `pointer` lies `offset` bytes in.
    Allocated { offset: usize, layout: Layout },
    /// A part of memory that others have parts of too.
    Part { _of: Arc<HostBuffer> },
    /// Unmapped when it is dropped.
    Mapped { _map: MmapMut },
}

// SAFETY: the allocation, or the part of one that nobody else was given, is owned and reached only through `&self` and `&mut self`.
unsafe impl Send for HostBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    fn zeroed(len: usize) -> Result<Self> {
        if len >= LARGE_FROM {
            Self::mapped(len)
        } else {
            Self::allocated(len)
        }
    }

    fn allocated(len: usize) -> Result<Self> {
        let refuse = || refused(len);
        let size = len
            .checked_next_multiple_of(ALIGN)
            .and_then(|padded| padded.checked_add(ALIGN))
            .ok_or_else(refuse)?;
        let layout = Layout::from_size_align(size, ORDINARY_ALIGN).map_err(|_| refuse())?;
        // SAFETY: the layout's size is at least ALIGN, so it is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refuse)?;
        let offset = base.addr().get().wrapping_neg() % ALIGN;
        // SAFETY: the allocation has ALIGN bytes more than are used, and the offset to the next multiple of
        // ALIGN is less than that.
        let pointer = unsafe { base.add(offset) };
        Ok(Self {
            pointer,
            len,
            memory: Memory::Allocated { offset, layout },
        })
    }

    /// Memory of its own mapping, from a large page's start on. Pages cost nothing until they are written.
    fn mapped(len: usize) -> Result<Self> {
        let refuse = || refused(len);
        let size = len.checked_add(LARGE_PAGE).ok_or_else(refuse)?;
        let limit = usize::try_from(isize::MAX).map_err(|_| refuse())?;
        if size > limit {
            return Err(refuse());
        }
        let mut map = MmapMut::map_anon(size).map_err(|_| refuse())?;
        ask_for_large(&map);
        let base = NonNull::new(map.as_mut_ptr()).ok_or_else(refuse)?;
        let offset = base.addr().get().wrapping_neg() % LARGE_PAGE;
        Ok(Self {
            // SAFETY: the mapping has LARGE_PAGE bytes more than are used, and the offset is less than that.
            pointer: unsafe { base.add(offset) },
            len,
            memory: Memory::Mapped { _map: map },
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation holds `len` initialised bytes for as long as `self` lives.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Memory::Allocated { offset, layout } = self.memory {
            // SAFETY: allocated with this very layout, `offset` bytes before.
            unsafe { dealloc(self.pointer.as_ptr().sub(offset), layout) }
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.len)
    }
}

fn refused(len: usize) -> Error {
    Error::shape("allocate", format!("{len} bytes cannot be allocated"))
}

/// Alignment of every allocation: a cache line, and the widest vector register.
const ALIGN: usize = 64;
/// Bytes that are mapped for buffers to lie in together; larger buffers than a quarter have mappings of their own.
const STRETCH: usize = 32 << 20;
/// An alignment that every allocator gives without being asked.
const ORDINARY_ALIGN: usize = 8;

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
    fn large_memory_is_zeroed_and_aligned_to_a_large_page() {
        let mut buffer = Buffer::host(LARGE_FROM + 1).unwrap();
        assert_eq!(buffer.len(), LARGE_FROM + 1);
        assert_eq!(buffer.as_slice::<u8>().as_ptr() as usize % LARGE_PAGE, 0);
        assert!(buffer.as_slice::<u8>().iter().all(|&byte| byte == 0));
        buffer.as_mut_slice::<u8>()[LARGE_FROM] = 1;
        assert_eq!(buffer.as_slice::<u8>()[LARGE_FROM], 1);
    }

    #[test]
    fn parts_of_a_stretch_are_zeroed_and_apart_and_end_with_the_last() {
        let slab = Slab::default();
        let sizes = [
            1,
            64,
            100,
            STRETCH / 4,
            STRETCH / 4,
            STRETCH / 4,
            STRETCH / 4,
            7,
        ];
        let mut buffers = sizes.map(|size| slab.buffer(size).unwrap());
        let mut taken = Vec::new();
        for (i, (buffer, size)) in buffers.iter_mut().zip(sizes).enumerate() {
            let bytes = buffer.as_mut_slice::<u8>();
            assert_eq!((bytes.len(), bytes.as_ptr() as usize % ALIGN), (size, 0));
            assert!(bytes.iter().all(|&byte| byte == 0), "buffer {i}");
            bytes.fill(i as u8 + 1);
            taken.push(bytes.as_ptr_range());
        }
        taken.sort_unstable_by_key(|range| range.start);
        assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start));
        for (i, buffer) in buffers.iter().enumerate() {
            assert!(
                buffer
                    .as_slice::<u8>()
                    .iter()
                    .all(|&byte| byte == i as u8 + 1)
            );
        }
        let [first, .., last] = buffers;
        assert!(matches!(first.host.memory, Memory::Part { .. }));
        drop(first);
        assert_eq!(
            slab.current.lock().unwrap().memory.strong_count(),
            2,
            "two parts of the second"
        );
        drop(last);
        assert_eq!(slab.current.lock().unwrap().memory.strong_count(), 1);
        assert!(slab.buffer(0).unwrap().is_empty());
    }

    #[test]
    fn refuses_a_size_that_overflows() {
        let error = Buffer::host(usize::MAX - 3).unwrap_err().to_string();
        assert!(error.contains("cannot be allocated"), "{error}");
    }
}
